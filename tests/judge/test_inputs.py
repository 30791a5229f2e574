"""Inputs are the same again from the workload alone, and integer sums are exact in every accumulator. The truth is the
definition: on tiny layers element by element, and PyTorch in float64 agrees."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from workbench.core.layer import BACKWARD, DIRECTIONS, DTYPES, FORWARD, GRAD_WEIGHT, ConvTranspose, Workload
from workbench.measure import truth as truths
from workbench.measure.clock.signs import Signs
from workbench.measure.kernel import inputs
from workbench.measure.kernel.buffers import row_of
from workbench.measure.kernel.inputs import (
    BLOCK,
    FAR,
    FAR_SAMPLES,
    INTEGERS,
    NORMAL,
    RECHECK,
    changed,
    factors,
    fill,
    needed,
    reduction_length,
    results,
    shapes,
)
from workbench.measure.kernel.validate import Comparison, allowed_rel_l2
from workbench.measure.pytorch import aten
from workbench.measure.pytorch.aten import channels_last
from workbench.measure.truth import Truth, expected_blocks

WORKLOAD = Workload(ConvTranspose(2, 6, 4, 3, stride=2, groups=2), 3, (5, 7))
HUGE = Workload(ConvTranspose(1, 1, 1, 1), 64, (1 << 24,))  # 2^30 terms in each element of grad_weight


def _made(workload: Workload, name: str, kind: str, layout: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    tensor = torch.empty(shapes(workload)[name], dtype=getattr(torch, workload.dtype), memory_format=layout)
    fill(tensor, name, workload, kind)
    return tensor


@pytest.mark.parametrize("dtype", DTYPES)
def test_values(dtype: str) -> None:
    workload = replace(WORKLOAD, dtype=dtype)
    whole = _made(workload, "input", INTEGERS)
    if dtype in ("float16", "bfloat16"):
        longest = max(reduction_length(workload, result) for result in ("output", "grad_input"))
        weight, deviation = _made(workload, "weight", INTEGERS).double(), 1.0
        for operand in (whole.double(), weight):
            assert torch.equal(operand, operand.round()) and not bool((operand == 0).any()) and operand.abs().max() <= 256
            deviation *= float(operand.square().mean().sqrt())
        assert 2**11 < deviation * longest**0.5 < 60_000 / 8, "sums need more than the 11 bits of float16, and fit into it"
    else:
        assert set(whole.double().unique().tolist()) == {-2.0, -1.0, 1.0, 2.0}
    drawn = _made(workload, "input", NORMAL).double()
    assert abs(float(drawn.mean())) < 0.2 and 0.85 < float(drawn.std()) < 1.15
    assert not torch.equal(drawn, _made(workload, "input", RECHECK).double())
    last = _made(workload, "input", NORMAL, torch.channels_last)
    assert torch.equal(last.double(), drawn) and last.is_contiguous(memory_format=torch.channels_last)
    last[1, 2, 3, 4] += 1
    assert changed(last, "input", workload, NORMAL) == (1, ((1 * 6 + 2) * 5 + 3) * 7 + 4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_some_are_beyond_float16_where_float32_is_asked(dtype: str) -> None:
    workload = replace(WORKLOAD, dtype=dtype)
    near, far = ({name: _made(workload, name, kind).double() for name in ("input", "weight", "bias", "grad_output")}
                 for kind in (f"{RECHECK} 1", f"{FAR} 1"))
    if dtype != "float32":
        assert all(0.25 < float(far[name].std() / near[name].std()) < 4 for name in far)
        assert factors(workload, "input", f"{FAR} 1") is None
        return
    for name in far:
        by = factors(workload, name, f"{FAR} 1").double()
        assert not by.log2().remainder(17).any()
        assert 0.25 < float((far[name] / by).std() / near[name].std()) < 4
    for batch in (1, 3):  # samples that no parameter shows
        samples = {name: factors(replace(workload, batch=batch), name, f"{FAR_SAMPLES} 1") for name in far}
        assert all(bool((samples[name] == 1).all()) for name in ("weight", "bias")) and samples["input"].max() == 2**17
        far_too, of_weight = (factors(replace(workload, batch=batch), name, f"{FAR} 1") for name in ("input", "weight"))
        cancelled = {float(v.log2()) for v in (far_too[:, :, 0, 0] * of_weight[:, 0, 0, 0]).unique()}
        assert samples["input"].shape[0] == batch and (batch == 1 or len(cancelled) > 2), cancelled
    there = far["input"][far["input"] != 0].half()
    assert 0.1 < there.isinf().double().mean() < 0.8 and 0.1 < (there.abs() < 2.0**-14).double().mean() < 0.8


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_result_divided_by_its_factors_is_near_1(direction: str, tmp_path: Path) -> None:
    """In all sums the products have one factor, that of the result."""
    for layer in (WORKLOAD.layer, ConvTranspose(1, 1, 1, 3), ConvTranspose(2, 4, 4, 3, groups=4)):
        workload = replace(WORKLOAD, layer=layer, input_size=WORKLOAD.input_size[:layer.dims])
        norms = []
        for kind in (f"{RECHECK} 1", f"{FAR} 1", f"{FAR_SAMPLES} 1"):
            tensors = {name: _made(workload, name, kind) for name in needed(workload, direction)}
            truth = Truth(workload, direction, kind, device="cpu", scratch=tmp_path)
            truth.prepare(tensors)
            norms.append(truth.rms)
        assert all(1 / 8 < far[name] / norms[0][name] < 8 for far in norms[1:] for name in far), (norms, layer)


def test_same_again_and_different_by_name_and_seed() -> None:
    first = _made(WORKLOAD, "input", NORMAL)
    assert torch.equal(first, _made(WORKLOAD, "input", NORMAL))
    assert not torch.equal(first, _made(replace(WORKLOAD, seed=1), "input", NORMAL))
    square = Workload(ConvTranspose(1, 2, 2, 1), 1, (4,))
    assert not torch.equal(_made(square, "input", INTEGERS), _made(square, "grad_output", INTEGERS))


def test_changes_are_counted_bit_by_bit() -> None:
    two_blocks = Workload(ConvTranspose(1, 1, 1, 1), 1, (BLOCK + 500,), "float16")
    tensor = _made(two_blocks, "input", NORMAL)
    assert changed(tensor, "input", two_blocks, NORMAL) == (0, None)
    tensor.view(-1)[[BLOCK + 333, BLOCK + 444]] = 0.0
    assert changed(tensor, "input", two_blocks, NORMAL) == (2, BLOCK + 333)
    tensor.view(-1)[BLOCK - 1] = float("nan")
    assert changed(tensor, "input", two_blocks, NORMAL) == (3, BLOCK - 1)


def test_reduction_lengths() -> None:
    layer = ConvTranspose(2, 6, 4, (4, 3), stride=(2, 3), dilation=(1, 2), groups=2)
    workload = Workload(layer, 3, (5, 7))
    # 2 of 4 taps meet an output along H (stride 2); along W 1 of 3 (a period of 3 / gcd(3, 2) = 3)
    assert reduction_length(workload, "output") == 3 * 2 * 1 + 1
    assert reduction_length(workload, "grad_input") == 2 * 12
    assert reduction_length(workload, "grad_weight") == 3 * 5 * 7
    assert reduction_length(workload, "grad_bias") == 3 * workload.output_size[0] * workload.output_size[1]


def test_long_float16_sums_stay_finite() -> None:
    assert inputs._thinning(HUGE, "grad_output") == 0                 # float32 counts to 2^24
    halvings = inputs._thinning(replace(HUGE, dtype="float16"), "grad_output")
    terms = reduction_length(HUGE, "grad_weight")
    assert 8 * 2.5 * (terms / 2**halvings) ** 0.5 <= 60_000 < 8 * 2.5 * (terms / 2 ** (halvings - 1)) ** 0.5
    assert inputs._scale(HUGE, "grad_output") * terms**0.5 <= 2**8
    tensor = torch.empty(1 << 16, dtype=torch.float16)
    fill(tensor, "grad_output", replace(HUGE, dtype="float16"), INTEGERS)
    share = float((tensor != 0).double().mean())
    assert share == pytest.approx(2.0**-halvings, rel=0.2)


@pytest.mark.parametrize("direction", ["forward", "grad_input", "grad_weight", "backward"])
@pytest.mark.parametrize("layer", [ConvTranspose(2, 6, 4, (3, 2), stride=(2, 3), padding=(1, 0), groups=2),
                                   ConvTranspose(1, 16, 9, (3,)), ConvTranspose(3, 3, 12, (2, 1, 2), bias=False)], ids=str)
def test_results_follow_the_signs_of_channels_bit_for_bit(layer: ConvTranspose, direction: str) -> None:
    workload = Workload(layer, 2, (5, 4, 3)[:layer.dims])
    tensors = {n: torch.empty(shapes(workload)[n]) for n in {*needed(workload, direction), *needed(workload, "backward")}}
    for name, tensor in tensors.items():
        fill(tensor, name, workload, INTEGERS)
    before = {n: t.clone() for n, t in tensors.items()}
    wanted = results(workload, direction)
    plain = aten.call(workload, direction, tensors)
    signs = Signs(workload, {n: tensors[n] for n in needed(workload, direction)}, "cpu")
    seen = set()
    for _ in range(4):
        signs.draw()
        now = aten.call(workload, direction, tensors)
        seen.add(tuple(torch.cat([t.flatten() for t in tensors.values()]).tolist()))
        for name in wanted:
            assert torch.equal(now[name], signs.changed(name, plain[name])), name
            part = slice(3, 11)
            assert torch.equal(now[name].reshape(-1)[part], signs.changed_part(name, plain[name].contiguous(), part)), name
            if layer.dims > 1 and name in ("output", "grad_input"):
                one, other = (row_of(channels_last(t[name])) for t in (now, plain))
                assert torch.equal(one[part], signs.changed_part(name, channels_last(plain[name]), part)), name
                assert not torch.equal(one, row_of(now[name].contiguous())) and len(one) == len(other)
    signs.end()
    assert len(seen) > 1 and all(torch.equal(t, before[n]) for n, t in tensors.items())


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
