"""The resources that are shown are those of the variant's own kernel, not of one that packs, pads or sums for it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.core.candidate import Candidate
from workbench.core.layer import ConvTranspose
from workbench.core.occupancy import threads_per_block
from workbench.core.trial import Trial
from workbench.core.variants import discover, find
from workbench.drive.reporting import report
from workbench.drive.reporting.main_kernel import arch_of, main_kernel
from workbench.drive.sessions.recorded import most_shared_bytes, occupancy_of
from workbench.drive.sessions.session import Session

SESSIONS, TEMPLATES = (Path(__file__).resolve().parents[2] / name for name in ("sessions", "kernel_templates"))
_HELPER = re.compile(r"pack_|pad_|add_|sum_|\w*reduce|\w*slots|convert")


@pytest.fixture(scope="module")
def recorded() -> list[Trial]:
    found = [t for path in sorted(SESSIONS.glob("recorded-*")) for t in Session(path).trials()
             if t.kind == "candidate" and t.resources]
    assert len(found) >= 270
    return found


def test_of_every_recorded_candidate_the_main_kernel_is_shown_and_no_helper(recorded: list[Trial]) -> None:
    with_helpers = 0
    for trial in recorded:
        for arch, kernels in trial.resources.items():
            name = main_kernel(trial, arch)
            own = find(trial.name, trial.direction).kernel or trial.name
            assert name.partition("<")[0] == own and not _HELPER.match(name), (trial.trial_id, arch, name)
            with_helpers += any(_HELPER.match(n) for n in kernels)
        shown = trial.resources[arch_of(trial)][main_kernel(trial, arch_of(trial))].registers
        assert report.frame([trial])["registers"].iloc[0] == shown
    assert with_helpers > 150


def test_the_target_that_the_gpu_ran_is_shown(recorded: list[Trial]) -> None:
    assert {arch_of(t) for t in recorded if "sm_90a" in t.resources} == {"sm_90a"}
    both = next(t for t in recorded if {"sm_80", "sm_90"} <= set(t.resources))
    older, cpu = (replace(both, device=replace(both.device, arch=arch)) for arch in ("sm_80", "x86_64"))
    assert arch_of(both) == "sm_90" and arch_of(older) == "sm_80"
    assert arch_of(cpu) == "sm_90" and arch_of(replace(both, resources={})) == ""


def test_shared_memory_includes_the_dynamic_one_and_occupancy_counts_it(recorded: list[Trial]) -> None:
    split = next(t for t in recorded if t.name == "split_mma" and t.config["SHARED_KB"] == 110)
    assert most_shared_bytes(split, "sm_90") == 110 * 1024
    assert occupancy_of(split) == {}  # its code decides at launch how many of its warps a layer keeps busy
    packed = next(t for t in recorded if t.name == "wgmma_packed")  # its header gives no bound
    assert most_shared_bytes(packed, "sm_90a") is None
    naive = next(t for t in recorded if t.name == "naive_gather")
    assert most_shared_bytes(naive, "sm_90") == 0
    for trial in recorded:  # the strips say how many warps they have; disjoint_mma chooses where WARPS is 0
        if trial.name in ("implicit_gemm_mma", "disjoint_mma"):
            (name, found), = occupancy_of(trial)[arch_of(trial)].items()
            assert name == main_kernel(trial, arch_of(trial)) and 0 < found.warps_per_sm <= 64


def test_without_a_kernel_of_the_variants_name_the_largest_is_shown(recorded: list[Trial]) -> None:
    trial = replace(next(t for t in recorded if t.name == "implicit_gemm_mma"), name="my_own")
    assert main_kernel(trial, arch_of(trial)).startswith("implicit_gemm_mma")


def test_the_cu_of_every_shipped_variant_has_a_kernel_of_its_name() -> None:
    """Not a header: whoever opens the file finds the main loop there."""
    for variant in discover():
        assert re.search(rf"__global__[^;{{]*?\b{variant.kernel or variant.name}\(", variant.text), variant.key


def test_the_main_loop_of_every_shipped_variant_is_in_its_cu() -> None:
    """Warps that only stage may have their loop in a header. A loop that leaves one product in flight is the main loop."""
    assert not [p for p in (TEMPLATES / "families").rglob("*.cuh") if "wgmma_wait<1>" in p.read_text(encoding="utf-8")]
    for variant in discover():
        assert re.search(r"\b(for|while) \(|\bconst_loop<", variant.text), variant.key


def test_a_block_of_warps_that_the_header_chooses() -> None:
    layer = ConvTranspose(1, 32, 64, 5, dilation=3)
    assert threads_per_block(Candidate(find("disjoint_mma", "forward"), layer, "float32", {}), sm=90) in (32, 64, 128, 256)
    assert threads_per_block(Candidate(find("depthwise_rows", "forward"), layer, "float32", {"THREADS": 256}), sm=90) == 256
    assert threads_per_block(Candidate(find("split_mma", "grad_weight"), layer, "float32", {}), sm=90) is None
