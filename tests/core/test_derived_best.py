"""The rule that gives every layer of the suites an entry on every GPU, and says where it is from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from workbench.core.best_known import BestKnown, best_config, entries_of, load, save
from workbench.core.candidate import Candidate, why_not
from workbench.core.derived_best import ORDER, best_or_derived
from workbench.core.gpu import sm_of
from workbench.core.layer import DIRECTIONS, ConvTranspose, Workload
from workbench.core.precision import CLASSES_OF
from workbench.core.presets import PRESETS, preset
from workbench.core.space import SearchSpace
from workbench.core.start_config import Start, start
from workbench.core.variants import discover, find

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
WORK = preset("models/pose").workload()
CONFIG = find("implicit_gemm_mma", "forward").default_config


def entry(**more: object) -> BestKnown:
    known = BestKnown("sm_90", str(WORK.layer), "forward", "float32", "tf32", "implicit_gemm_mma", CONFIG, "tf32", "constant",
                      0.5, WORK.batch, tuple(WORK.input_size), "NVIDIA H200", "recorded", baseline_ms=1.0, baseline="eager",
                      pytorch_precision="tf32")
    return replace(known, **more)  # type: ignore[arg-type]


def best(file: Path, arch: str, *entries: BestKnown, precision: str = "tf32", work: Workload = WORK) -> BestKnown | None:
    save(entries, file)
    return best_or_derived("forward", work, precision, arch, file=file)


@pytest.mark.parametrize("arch", ARCHS)
def test_every_layer_of_both_suites_has_an_entry_that_can_run_there(arch: str) -> None:
    for at, (name, one) in enumerate(PRESETS.items()):
        for dtype, classes in CLASSES_OF.items():
            if at % 3 and (dtype == "float16" or arch in ("sm_89", "sm_100", "sm_120")):
                continue  # these go the ways of bfloat16 and of the other GPUs: some layers do
            work = one.workload(dtype=dtype)
            for direction in DIRECTIONS:
                for precision in classes:
                    found = best_or_derived(direction, work, precision, arch)
                    assert found is not None, (arch, name, direction, precision)
                    assert (found.arch, found.source) == (arch, "derived" if found.note else "measured")
                    known = best_config(direction, work, precision, arch)
                    assert found == known if known and known.arch == arch else found.derived
                    assert found.note.startswith("derived: ") or found.reason.startswith("measured on NVIDIA H200, session ")
                    assert why_not(found.candidate(work), sm=sm_of(arch)) is None


def test_what_is_measured_there_is_taken_as_it_is(tmp_path: Path) -> None:
    known = entry()
    assert best(tmp_path / "b", "sm_90", known, entry(variant="gathered_mma", config={}, ms=0.7)) == known
    assert (known.source, known.reason) == ("measured", "measured on NVIDIA H200, session recorded")


def test_another_gpu_takes_the_fastest_that_runs_there(tmp_path: Path) -> None:
    hopper = entry(variant="persistent_wgmma", config={}, ms=0.2)
    slow, fast = entry(variant="gathered_mma", config={}, ms=0.9), entry(arch="sm_80", ms=0.5)
    found = best(tmp_path / "b", "sm_100", hopper, slow, fast)
    note = "derived: the fastest config known for sm_80 that runs here; not measured here"
    assert found == replace(fast, arch="sm_100", note=note)


def test_a_config_that_does_not_fit_is_changed_as_little_as_possible(tmp_path: Path) -> None:
    large = entry(direction="grad_weight", variant="split_mma", config=find("split_mma", "grad_weight").config(
        {"SHARED_KB": 160}), arch="sm_80")
    save([large], tmp_path / "b")
    found = best_or_derived("grad_weight", WORK, "tf32", "sm_86", file=tmp_path / "b")
    assert found and found.variant == "split_mma" and found.config["SHARED_KB"] == 72 and found.ms is None and not found.gpu
    assert found.reason.startswith("derived: the fastest config known for sm_80 with ") and "SHARED_KB=72" in found.reason
    assert found.reason.endswith(", because otherwise it does not fit this GPU; not measured")
    assert why_not(large.candidate(WORK), sm=86) is not None


def test_another_precision_lends_its_variant(tmp_path: Path) -> None:
    half = replace(WORK, dtype="bfloat16")
    found = best(tmp_path / "b", "sm_90", entry(), precision="bf16", work=half)
    assert found and (found.variant, found.precision, found.dtype, found.ms) == ("implicit_gemm_mma", "bf16", "bfloat16", None)
    reason = "derived: implicit_gemm_mma is the fastest known for this layer in tf32; its config there, not measured in bf16"
    assert found.reason == reason


def test_else_the_order_of_preference_decides(tmp_path: Path) -> None:
    found = best(tmp_path / "b", "sm_86")
    assert found and found.variant == "implicit_gemm_mma" and "first in the order of preference" in found.reason
    assert (found.config, found.ms, found.pytorch_precision) == (CONFIG, None, "")
    hopper = best(tmp_path / "b", "sm_90")
    assert hopper and hopper.variant == "persistent_wgmma"
    free = Workload(ConvTranspose(1, 4, 4, 3), 1, (8,))
    assert best(tmp_path / "b", "sm_90", work=free) is None      # of no suite, and nobody has measured it


def test_a_default_that_spills_is_changed_and_the_reason_says_so(tmp_path: Path) -> None:
    """nvcc says so of both: tests/kernels/test_nvcc.py."""
    work = preset("models/dac-1").workload()
    save([], tmp_path / "b")
    found = best_or_derived("grad_weight", work, "tf32", "sm_90", file=tmp_path / "b")
    assert found and found.variant == "persistent_wgmma" and found.config["AHEAD"] == 1
    assert "its default config with AHEAD=1, because otherwise registers spill, not measured" in found.reason
    exact = find("persistent_wgmma", "grad_weight").config({"AHEAD": 2})
    space = SearchSpace(find("persistent_wgmma", "grad_weight"), work.layer, "float32", 90, "tf32")
    assert start(space, "sm_90", exact) == Start(exact)                # only the default is known to spill


def test_what_was_faster_on_measured_layers_starts_a_search_but_changes_no_measured_entry(tmp_path: Path) -> None:
    found = best(tmp_path / "b", "sm_86", precision="ieee")
    assert found and found.precision == "tf32x3" and found.config == {**CONFIG, "ROLL": 1}
    assert "with ROLL=1, because that was faster on the layers timed so far, not measured" in found.reason
    known = entry(precision="tf32x3", precision_class="ieee")
    assert best(tmp_path / "b", "sm_90", known, precision="ieee") == known


def test_a_template_that_is_gone_gives_way_and_the_precision_of_pytorch_stays(tmp_path: Path) -> None:
    found = best(tmp_path / "b", "sm_90", entry(variant="gone", pytorch_precision="ieee"))
    assert found and found.variant == "persistent_wgmma" and found.derived and found.pytorch_precision == "ieee"


def test_the_order_names_variants_that_exist_and_ends_with_one_for_every_layer() -> None:
    there = {v.key: v for v in discover()}
    for direction, names in ORDER.items():
        assert all(f"{direction}/{name}" in there for name in names)
        last = there[f"{direction}/{names[-1]}"]
        assert all(why_not(Candidate(last, p.layer, "float32", {}), sm=80) is None for p in PRESETS.values())


def test_a_contiguous_layer_gets_no_entry_of_channels_last_tensors() -> None:
    """Its config may have CHANNELS_LAST=1. A channels_last layer may get a contiguous entry."""
    known = next(e for e in load() if e.memory_format == "channels_last" and not e.derived and e.arch == "sm_90")
    work = next(p.workload(dtype=known.dtype) for p in PRESETS.values() if str(p.layer) == known.layer)
    for memory_format, found in (("contiguous", {"contiguous"}), ("channels_last", {"contiguous", "channels_last"})):
        there = entries_of(known.direction, replace(work, memory_format=memory_format), known.precision_class, 90)
        assert {e.memory_format for e in there} == found
