"""Facts against walking over every element, tap and sector; and the known figures of the KernelBench layers. Measured ceilings
are kept per GPU, found by name, preferred to what ships, and never trusted when they are torn."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path

import pytest
from hypothesis import given, settings

from tests.shared import workloads
from workbench.core import facts
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.presets import PRESETS, preset
from workbench.core.replies import Rates
from workbench.core.roofline import Ceilings, ceilings_for, ceilings_of, floor, folder, keep, kept

H200 = ceilings_of("NVIDIA H200")


def pairs_of(work: Workload) -> list[set[tuple[int, int, int]]]:
    """Per dimension all (input, tap, output) that land inside, straight from the definition."""
    layer = work.layer
    return [{(i, k, i * s - p + k * d) for i in range(n) for k in range(kernel) if 0 <= i * s - p + k * d < out}
            for n, out, kernel, s, p, d in zip(work.input_size, work.output_size, layer.kernel_size, layer.stride,
                                               layer.padding, layer.dilation, strict=True)]


def sectors_of(work: Workload, shape: tuple[int, ...], chosen: list[set[int]], *, movable: bool = True) -> int:
    """32-byte sectors of a tensor that hold a chosen position, one element at a time."""
    last = movable and work.memory_format == "channels_last"
    axes = [0, *range(2, len(shape)), 1] if last else list(range(len(shape)))
    pitch, at = {}, 1
    for axis in reversed(axes):
        pitch[axis] = at
        at *= shape[axis]
    full = [set(range(shape[0])), set(range(shape[1])), *chosen]
    return len({sum(pitch[a] * v for a, v in enumerate(index)) * work.element_bytes // 32 for index in product(*full)})


@settings(max_examples=120, deadline=None)
@given(workloads())
def test_multiply_adds_are_the_pairs_that_land_inside(work: Workload) -> None:
    layer = work.layer
    expected = work.batch * layer.in_channels * (layer.out_channels // layer.groups) * prod(map(len, pairs_of(work)))
    assert facts.macs(work) == expected
    assert {facts.flops(work, d) for d in ("forward", "grad_input", "grad_weight")} == {2 * expected}
    assert facts.flops(work, "backward") == 4 * expected


@settings(max_examples=120, deadline=None)
@given(workloads())
def test_zero_share_is_the_outputs_nothing_lands_on(work: Workload) -> None:
    touched = prod(len({o for _, _, o in pairs}) for pairs in pairs_of(work))
    assert facts.zero_share(work) == pytest.approx(1 - touched / prod(work.output_size), abs=1e-15)


@settings(max_examples=150, deadline=None)
@given(workloads())
def test_bytes_are_the_sectors_that_hold_a_reached_element(work: Workload) -> None:
    layer, pairs = work.layer, pairs_of(work)

    def whole(*shape: int) -> int:
        return -(-prod(shape) * work.element_bytes // 32) * 32

    x = 32 * sectors_of(work, work.input_shape, [{i for i, _, _ in p} for p in pairs])
    y = 32 * sectors_of(work, work.output_shape, [{o for _, _, o in p} for p in pairs])
    w = 32 * sectors_of(work, layer.weight_shape, [{k for _, k, _ in p} for p in pairs], movable=False)
    bias = whole(layer.out_channels)
    for with_bias in (False, True):
        b, gy = (bias, whole(*work.output_shape)) if with_bias else (0, y)
        expected = {"forward": (x + w + b, whole(*work.output_shape)),
                    "grad_input": (y + w, whole(*work.input_shape)),
                    "grad_weight": (x + gy, whole(*layer.weight_shape) + b),
                    "backward": (x + w + gy, whole(*work.input_shape) + whole(*layer.weight_shape) + b)}
        for direction, (read, written) in expected.items():
            moved = facts.bytes_moved(work, direction, with_bias)
            assert (moved.read_bytes, moved.written_bytes) == (read, written), direction


@settings(max_examples=120, deadline=None)
@given(workloads())
def test_phases_say_which_taps_reach_which_outputs(work: Workload) -> None:
    found = facts.phases(work.layer)
    for pairs, phase, p, kernel in zip(pairs_of(work), found, work.layer.padding, work.layer.kernel_size, strict=True):
        assert sorted(t for taps in phase.taps.values() for t in taps) == list(range(kernel))
        for _, k, o in pairs:
            assert k in phase.taps[(o + p) % phase.stride]


def test_known_figures_of_the_strided_dilated_layer() -> None:
    work = preset("kb81").workload()
    moved = facts.bytes_moved(work, "forward")
    assert round(moved.read_bytes / 1e6) == 17 and round(moved.written_bytes / 1e6) == 831
    assert round(100 * facts.zero_share(work), 1) == 64.2
    assert facts.zero_share(work) == pytest.approx(1 - 190 * 382 / (318 * 638))
    found = facts.phases(work.layer)
    assert [p.stride for p in found] == [5, 5]
    assert [p.taps for p in found] == [{0: (0,), 2: (1,), 4: (2,)}] * 2
    # the rows that some tap reaches, 190 of 318, in whole sectors: a little over 60 % of grad_output
    read = facts.bytes_moved(work, "grad_input", False).read_bytes
    assert 190 / 318 * 831e6 < read < 1.01 * 190 / 318 * 831e6
    assert facts.bytes_moved(work, "grad_weight", True).read_bytes > 831e6  # grad_bias sums all of it


@pytest.mark.parametrize(("name", "gflop"), [
    ("kb57", 618.5), ("kb58", 56.4), ("kb61", 260.9), ("kb64", 412.3), ("kb65", 360.8), ("kb68", 1288.5),
    ("kb69", 515.4), ("kb70", 440.3), ("kb71", 77.3), ("kb72", 5.5), ("kb73", 55.9), ("kb74", 85.9), ("kb75", 8.0),
    ("kb77", 26.6), ("kb78", 179.9), ("kb79", 25.8), ("kb81", 4.8)])
def test_work_of_the_published_layers(name: str, gflop: float) -> None:
    assert facts.flops(PRESETS[name].workload()) / 1e9 == pytest.approx(gflop, rel=5e-3, abs=0.06)


def test_facts_do_not_walk_over_the_tensor() -> None:
    """A tensor of 1e18 elements: anything but closed form would never end."""
    huge = Workload(ConvTranspose(3, 64, 64, (3, 5, 7), stride=(2, 3, 5), padding=(1, 2, 3), dilation=(3, 2, 1)),
                    1000, (100_003, 100_001, 50_021))
    assert facts.macs(huge) > 1e19
    assert facts.bytes_moved(huge, "backward").total_bytes > 1e17
    assert 0 <= facts.zero_share(huge) < 1


def test_floor_of_the_bandwidth_bound_layer() -> None:
    work = preset("kb74").workload()
    for direction in ("forward", "grad_input", "grad_weight"):
        found = floor(work, direction, "tf32", H200)
        assert found.limit == "bytes" and found.ms == pytest.approx(0.375, rel=0.03)
        assert found.compute_ms == pytest.approx(0.212, rel=0.01)
    assert floor(work, "forward", "tf32x3", H200).ms == pytest.approx(0.64, rel=0.01)
    assert floor(work, "forward", "tf32x3", H200).limit == "compute"
    assert floor(work, "forward", "ieee", None) is None


def test_floor_mixes_reading_and_writing_by_the_directions_own_ratio() -> None:
    rates = Ceilings("x", 1e12, 4e12, 2e12, {"ieee": 1e30}, 0)
    work = Workload(ConvTranspose(1, 8, 8, 1, bias=False), 1, (1024,))
    moved = facts.bytes_moved(work, "forward")  # the weight is read on top: 256 bytes
    assert moved.read_bytes - moved.written_bytes == 256
    assert floor(work, "forward", "ieee", rates).ms == pytest.approx(
        1e3 * (2 * moved.written_bytes / 2e12 + 256 / 1e12), rel=1e-12)


def test_what_a_data_sheet_predicts_says_so() -> None:
    work = preset("kb74").workload()
    assert not floor(work, "forward", "tf32", H200).predicted
    assert floor(work, "forward", "tf32", ceilings_of("NVIDIA A100-SXM4-80GB")).predicted
    assert ceilings_of("NVIDIA A100-SXM4-40GB").copy_bytes_per_s < ceilings_of("NVIDIA A100-SXM4-80GB").copy_bytes_per_s
    assert ceilings_of("NVIDIA H100 80GB HBM3").name == "H100" and ceilings_of("NVIDIA GeForce RTX 4090") is None


MEASURED = Rates("NVIDIA H200", "3d59-00", read_bytes_per_s=4.33e12, write_bytes_per_s=4.69e12, copy_bytes_per_s=4.29e12,
                 l2_bytes=60 << 20, flops_per_s={"ieee": 51e12, "tf32": 412e12, "tf32x3": 137e12, "fp16": 761e12,
                                                 "bf16": 787e12, "fp64": 62e12})


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_CACHE", str(tmp_path))


def test_measured_ones_are_preferred(cache) -> None:
    assert kept("NVIDIA H200") is None
    shipped = ceilings_for("NVIDIA H200")
    keep(MEASURED)
    found = ceilings_for("NVIDIA H200")
    assert found == kept("NVIDIA H200") != shipped
    assert (found.read_bytes_per_s, found.predicted) == (4.33e12, frozenset())
    assert kept("NVIDIA A100") is None
    limit = floor(preset("kb74").workload("full"), "forward", "ieee", found)
    assert limit.ms > 0 and not limit.predicted


def test_the_newest_measurement_counts(cache) -> None:
    keep(MEASURED)
    keep(replace(MEASURED, read_bytes_per_s=4.0e12))
    assert kept("NVIDIA H200").read_bytes_per_s == 4.0e12 and len(list(folder().glob("*.json"))) == 1


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "kernel-workbench/ceilings/9", "name": "NVIDIA H200"}'])
def test_a_torn_record_is_as_good_as_none(cache, text: str) -> None:
    folder().mkdir(parents=True)
    (folder() / "x.json").write_text(text)
    assert kept("NVIDIA H200") is None
