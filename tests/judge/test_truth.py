"""The truth is the definition: on tiny layers element by element, and PyTorch in float64 agrees."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from workbench.core.layer import BACKWARD, FORWARD, GRAD_WEIGHT, ConvTranspose, Workload
from workbench.measure import truth as truths
from workbench.measure.kernel.inputs import INTEGERS, NORMAL, fill, shapes
from workbench.measure.kernel.validate import Comparison, allowed_rel_l2
from workbench.measure.truth import Truth, expected_blocks

TINY = [
    Workload(ConvTranspose(1, 2, 3, 3), 2, (4,)),
    Workload(ConvTranspose(1, 4, 6, 4, stride=3, padding=2, output_padding=1, groups=2, dilation=2), 2, (5,)),
    Workload(ConvTranspose(1, 1, 1, 1, stride=2, padding=3, bias=False), 1, (6,)),          # more padding than kernel
    Workload(ConvTranspose(1, 1, 2, 2, stride=1, output_padding=2, dilation=3), 1, (3,)),   # op beyond the stride
    Workload(ConvTranspose(1, 1, 1, 7), 1, (1,)),                                           # length 1, longer kernel
    Workload(ConvTranspose(2, 3, 2, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), 2, (3, 4)),
    Workload(ConvTranspose(2, 4, 4, 3, stride=2, padding=1, output_padding=1, groups=4), 1, (3, 2)),
    Workload(ConvTranspose(3, 2, 4, (2, 1, 3), stride=(1, 2, 3), padding=(0, 0, 2), groups=2), 2, (2, 3, 3)),
]
NAMES = ("output", "grad_input", "grad_weight", "grad_bias")


def define(workload: Workload, x: np.ndarray, w: np.ndarray, b: np.ndarray | None,
           gy: np.ndarray) -> dict[str, np.ndarray]:
    """output, grad_input, grad_weight, grad_bias by the definition. Element by element, for tiny layers only."""
    layer, g = workload.layer, workload.layer.groups
    ci_g, co_g = layer.in_channels // g, layer.out_channels // g
    y, gx, gw = np.zeros(workload.output_shape), np.zeros_like(x), np.zeros_like(w)
    if b is not None:
        y += b.reshape(1, -1, *[1] * layer.dims)
    for n, ci, co in product(range(workload.batch), range(layer.in_channels), range(co_g)):
        c_out = ci // ci_g * co_g + co
        for i, k in product(np.ndindex(workload.input_size), np.ndindex(layer.kernel_size)):
            o = tuple(i[d] * layer.stride[d] - layer.padding[d] + k[d] * layer.dilation[d] for d in range(layer.dims))
            if all(0 <= o[d] < workload.output_size[d] for d in range(layer.dims)):
                y[n, c_out, *o] += x[n, ci, *i] * w[ci, co, *k]
                gx[n, ci, *i] += gy[n, c_out, *o] * w[ci, co, *k]
                gw[ci, co, *k] += gy[n, c_out, *o] * x[n, ci, *i]
    return {"output": y, "grad_input": gx, "grad_weight": gw, "grad_bias": gy.sum(axis=(0, *range(2, gy.ndim)))}


def _tensors(workload: Workload, kind: str = NORMAL) -> dict[str, torch.Tensor]:
    made = {}
    for name in ("input", "weight", "bias", "grad_output"):
        if name in shapes(workload):
            made[name] = torch.empty(shapes(workload)[name], dtype=getattr(torch, workload.dtype))
            fill(made[name], name, workload, kind)
    return made


def _assembled(workload: Workload, tensors: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    whole = torch.full(shapes(workload).get(name, (workload.layer.out_channels,)), float("nan"), dtype=torch.float64)
    for index, values in expected_blocks(workload, name, tensors):
        whole[index] = values
    return whole


@pytest.mark.parametrize("workload", TINY, ids=lambda w: str(w.layer))
@pytest.mark.parametrize("block", [1 << 22, 7])
def test_truth_is_the_definition(workload: Workload, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(truths._BLOCK_ELEMENTS, "cpu", block)  # 7 elements: samples are split by channels
    tensors = _tensors(workload)
    wide = {n: t.double().numpy() for n, t in tensors.items()}
    defined = define(workload, wide["input"], wide["weight"], wide.get("bias"), wide["grad_output"])
    for name in NAMES:
        np.testing.assert_allclose(_assembled(workload, tensors, name).numpy(), defined[name], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("workload", TINY, ids=lambda w: str(w.layer))
def test_definition_is_pytorchs(workload: Workload) -> None:
    layer, tensors = workload.layer, _tensors(workload)
    x, w = (tensors[n].double().requires_grad_() for n in ("input", "weight"))
    b = tensors["bias"].double().requires_grad_() if layer.bias else None
    y = getattr(torch.nn.functional, f"conv_transpose{layer.dims}d")(
        x, w, b, layer.stride, layer.padding, layer.output_padding, layer.groups, layer.dilation)
    gy = tensors["grad_output"].double()
    y.backward(gy)
    defined = define(workload, *(t.detach().numpy() if t is not None else None for t in (x, w, b)), gy.numpy())
    for name, theirs in zip(NAMES, (y, x.grad, w.grad, b.grad if b is not None else None), strict=True):
        if theirs is not None:
            np.testing.assert_allclose(defined[name], theirs.detach().numpy(), rtol=1e-12, atol=1e-13)


def test_integers_stay_exact() -> None:
    workload = TINY[1]
    tensors = _tensors(workload, INTEGERS)
    for name in NAMES:
        whole = _assembled(workload, tensors, name)
        assert torch.equal(whole, whole.round())


def test_kept_truth_is_read_again_without_the_inputs(tmp_path: Path) -> None:
    workload, tensors = TINY[5], _tensors(TINY[5])
    first = Truth(workload, BACKWARD, NORMAL, device="cpu", scratch=tmp_path)
    first.prepare(tensors)
    for t in tensors.values():
        t.fill_(float("nan"))  # a kernel that destroyed its inputs cannot reach what is kept
    again = Truth(workload, GRAD_WEIGHT, NORMAL, device="cpu", scratch=tmp_path)
    again.prepare(tensors)
    assert again.rms["grad_weight"] == first.rms["grad_weight"] > 0
    (_, values), = again.blocks("grad_weight", tensors)
    assert values.isfinite().all() and values.shape == workload.layer.weight_shape
    other = Truth(workload, FORWARD, INTEGERS, device="cpu", scratch=tmp_path)
    assert other._path("output") != first._path("output")


def test_large_truth_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(truths._KEPT_BYTES, "cpu", 0)
    workload, tensors = TINY[5], _tensors(TINY[5])
    truth = Truth(workload, FORWARD, NORMAL, device="cpu", scratch=tmp_path)
    truth.prepare(tensors)
    assert not list(tmp_path.iterdir())
    expected = _assembled(workload, tensors, "output")
    for index, values in truth.blocks("output", tensors):
        assert torch.equal(values, expected[index])
    norm = max(float(expected.norm()), truth.least_norm["output"])
    assert truth.rms["output"] == pytest.approx(norm / expected.numel() ** 0.5)


def test_errors_of_few_sums_are_relative_to_what_such_sums_are_on_average(tmp_path: Path) -> None:
    """Two channels whose sums of ten happen to cancel: a right fp32 sum is not wrong for that, and a wrong one still is."""
    workload = Workload(ConvTranspose(3, 3, 2, (5, 3, 4), stride=(1, 2, 1), padding=(2, 1, 0)), 1, (2, 1, 2))
    tensors = _tensors(workload)
    gy = tensors["grad_output"]
    gy[0, 0, 0, 0, 0] -= gy[0, 0].sum()
    gy[0, 1, 1, 0, 4] -= gy[0, 1].sum() - 1e-3
    truth = Truth(workload, GRAD_WEIGHT, NORMAL, device="cpu", scratch=tmp_path)
    truth.prepare(tensors)
    assert truth.least_norm["grad_bias"] == pytest.approx(float(gy.double().norm()))
    terms = np.abs(define(workload, *(tensors[n].double().numpy() ** 2 for n in ("input", "weight")), None,
                          gy.double().numpy() ** 2)["grad_weight"])
    assert truth.least_norm["grad_weight"] == pytest.approx(float(np.sqrt(terms.sum())))

    def judged(bias: torch.Tensor, least_norm: float) -> Comparison:
        found = Comparison((2,), allowed=allowed_rel_l2("ieee", truth.reduction["grad_bias"]), rms=truth.rms["grad_bias"],
                           least_norm=least_norm, exact=False)
        for index, expected in truth.blocks("grad_bias", tensors):
            found.add(index, bias[index], expected)
        return found

    right = torch.stack([sum(list(gy[0, c].flatten()), torch.zeros(())) for c in range(2)])  # one running float
    assert judged(right, 0.0).failed and not judged(right, truth.least_norm["grad_bias"]).failed
    assert judged(right + 1e-5, truth.least_norm["grad_bias"]).failed
    many = Workload(ConvTranspose(1, 16, 32, 3), 1, (8,))
    other = Truth(many, GRAD_WEIGHT, NORMAL, device="cpu", scratch=tmp_path)
    other.prepare(_tensors(many))
    assert other.least_norm["grad_weight"] == 0.0
