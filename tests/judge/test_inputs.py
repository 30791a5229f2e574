"""Inputs are the same again from the workload alone, and integer sums are exact in every accumulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from workbench.core.layer import DIRECTIONS, DTYPES, ConvTranspose, Workload
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
from workbench.measure.pytorch import aten
from workbench.measure.pytorch.aten import channels_last
from workbench.measure.truth import Truth

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
