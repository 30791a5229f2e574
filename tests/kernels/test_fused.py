"""fused_mma, the grad_bias of strip_wgmma, and rolling_mma, in the ways of working that the awkward layers do not reach; what a
slip in them looks like."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.core.candidate import EMULATED_SM, Candidate, why_not
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.variants import TEMPLATES, Variant, discover, find

from .harness import Outcome, build_emulated, candidate, run, soon

# KernelBench's #74, #81, #79 and #73 on few positions; groups and odd channels; more channels than one warp takes.
WORK = [Workload(ConvTranspose(1, 32, 64, 5, dilation=3, bias=False), 2, 300),
        Workload(ConvTranspose(2, 32, 64, 3, stride=5, padding=1, dilation=2, bias=False), 1, (3, 70)),
        Workload(ConvTranspose(1, 32, 64, 3, stride=2, padding=1, dilation=2), 2, 261),
        Workload(ConvTranspose(3, 32, 32, 3, stride=2, padding=1), 1, (2, 3, 68)),
        Workload(ConvTranspose(2, 20, 24, (2, 3), stride=(2, 1), padding=(1, 2), groups=2), 2, (5, 66)),
        Workload(ConvTranspose(1, 48, 10, 4, padding=3), 3, 131)]
CONFIGS = [{}, {"TILE": 32, "X_M_TILES": 2}, {"TILE": 64, "STAGES": 3, "STAGGER": 1, "W_WARPS": 8},
           {"TILE": 256, "STAGES": 4, "STAGGER": 1, "X_WARPS": 2, "X_UNROLL": 2, "BLOCKS": 132}]


@pytest.mark.parametrize(("precision", "every"), [
    ("tf32", False), ("tf32x3", False), pytest.param("tf32", True, marks=pytest.mark.long)])
def test_both_gradients(precision: str, every: bool, tmp_path: Path) -> None:
    """tf32 by one of the configs, in turn; `every`: by all."""
    variant = find("fused_mma", "backward", root=TEMPLATES)
    members = [(_exact(variant, work, precision, **config), work) for number, work in enumerate(WORK)
               for config in (CONFIGS if every else [CONFIGS[number % 4]] if precision == "tf32" else CONFIGS[:1])]
    members = [(one, work) for one, work in members if why_not(one, sm=EMULATED_SM) is None]
    assert len({work.layer for _, work in members}) >= len(WORK) - (precision == "tf32x3")
    library = build_emulated(list(dict.fromkeys(one for one, _ in members)), tmp_path)
    for number, (one, work) in enumerate(members):
        for values in ("integers", "floats"):
            outcome = run(library, one, work, order=number + 1, values=values)
            assert outcome.status == "OK", f"{work.layer} {one.config} {values}: {outcome.status} {outcome.text}"


SLIPS = {  # what is taken out, what is put there, the result that shows it ("": any)
    "a tap row lost": ("if (at.row + 1 < ROWS) return;", "", "grad_input"),
    "sums not added at the end": ("if (since > 0 || first) promote();", "", "grad_weight"),
    "no barrier": ("      meet_from_anywhere(barrier, int(step % 2));\n", "", ""),
    "copies not waited for": ("        cp_async_wait<STAGES - 2>();\n        round_next();",
                              "        round_next();", ""),
    "rows of gy mixed up": ("const int kd = at.row / Layer::kernel_h, kh = at.row % Layer::kernel_h;",
                            "const int kd = 0, kh = 0;", ""),
}


@pytest.mark.parametrize("slip", soon(SLIPS))
def test_a_slip_is_caught(slip: str, tmp_path: Path) -> None:
    old, new, where = SLIPS[slip]
    root = tmp_path / "templates"
    shutil.copytree(TEMPLATES, root)
    file = root / "backward/fused_mma.cu"
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")
    outcome = _outcome(next(v for v in discover(root) if v.key == "backward/fused_mma"), tmp_path / "build")
    assert outcome.status != "OK" and where in outcome.text, outcome


def _outcome(variant: Variant, folder: Path) -> Outcome:
    work = WORK[1]
    one = _exact(variant, work, "tf32", TILE=32)
    return run(build_emulated([one], folder), one, work, order=3)


def _exact(variant: Variant, work: Workload, precision: str, **config: int) -> Candidate:
    return replace(candidate(variant, work, form="constant", **config), precision=precision)


# grad_bias that strip_wgmma adds up in the same read of gy: each element once, by whichever block it is staged.
# As KernelBench's #74, #64, #71, #61 and #58; then groups, odd channels and sizes, crops, dilations, an output_padding
# whose last positions no tile reaches (then sum_channel adds up, as it does where the rows of gy have gaps).
STRIP_WORK = [Workload(ConvTranspose(1, 32, 64, 5, dilation=3), 2, 300),
        Workload(ConvTranspose(1, 128, 128, 3), 2, 130),
        Workload(ConvTranspose(2, 32, 32, 3, padding=1), 2, (9, 64)),
        Workload(ConvTranspose(3, 48, 48, 3), 1, (2, 4, 62)),
        Workload(ConvTranspose(3, 16, 16, (3, 5, 7), padding=(1, 2, 3)), 1, (2, 4, 66)),
        Workload(ConvTranspose(2, 10, 36, (2, 3), padding=(1, 4), groups=2), 2, (7, 129)),
        Workload(ConvTranspose(2, 34, 6, 3, padding=(0, 1), dilation=(3, 2), output_padding=(0, 1)), 1, (4, 64)),
        Workload(ConvTranspose(3, 8, 40, (2, 2, 3), padding=(1, 0, 1), dilation=(2, 3, 1)), 1, (3, 4, 33)),
        Workload(ConvTranspose(2, 16, 16, 3, dilation=2, output_padding=1), 1, (5, 64)),
        Workload(ConvTranspose(2, 16, 24, 3, stride=(2, 1), padding=1, output_padding=(1, 0)), 2, (5, 40))]
STRIP_CONFIGS = [{"U": 1}, {"U": 2}, {"U": 1, "STRIP": 16, "BLOCKS": 264}, {"U_TILES": 2, "CONSUMERS": 2, "STAGES": 2},
           {"ROLL": 0, "U": 1}, {"U": 1, "COLUMNS": 96, "CONSUMERS": 1, "COPY_WARPS": 4}]


def _strip_members(variant: Variant, every: bool) -> list[tuple[Candidate, Workload]]:
    """Each layer with one of the configs, another one from layer to layer, or as it comes (one in four); or (`every`) both."""
    found = [(candidate(variant, work, form="constant", **config), work) for number, work in enumerate(STRIP_WORK)
             for config in ({}, STRIP_CONFIGS[number % len(STRIP_CONFIGS)]) if every or bool(config) == (number % 4 != 2)]
    return [(one, work) for one, work in dict.fromkeys(found) if why_not(one, sm=90) is None]


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)], ids=["some", "every"])
def test_every_element_of_a_strip_counts_once_in_the_bias(every: bool, tmp_path: Path) -> None:
    members = _strip_members(find("strip_wgmma", "grad_weight", root=TEMPLATES), every)
    assert len(members) >= (18 if every else 10) and {work.layer for _, work in members} == {work.layer for work in STRIP_WORK}
    library = build_emulated(list(dict.fromkeys(one for one, _ in members)), tmp_path)
    for number, (one, work) in enumerate(members):
        for values in ("integers", "floats") if number % 4 == 0 else ("integers",):
            outcome = run(library, one, work, order=number + 1, values=values)
            assert outcome.status == "OK", f"{work.layer} {one.config} {values}: {outcome.status} {outcome.text}"


STRIP_SLIPS = {  # number of the work, config, what is taken out, what is put there
    "a halo added everywhere": (1, {}, "step.halo && last", "last"),
    "the last halo left out": (2, {}, "step.halo && last", "false && last"),
    "rows that a share brings again": (2, {}, "(!at.warms() || at.h == 0)", "true"),
    "rows before the first tile left out": (2, {}, "(!at.warms() || at.h == 0)", "!at.warms()"),
    "rows added with every tap that meets them": (3, {}, "counts = counts && (step.last_d ||", "counts = counts && (true ||"),
    "rows of the last taps left out": (3, {}, "(step.last_d || ", "("),
    "sums of a dirty start": (0, {}, "[&](int turn) { of_turn(turn) = 0.f; }", "[&](int) {}"),
}


@pytest.mark.parametrize("slip", soon(STRIP_SLIPS))
def test_a_slip_in_the_bias_of_a_strip_is_caught(slip: str, tmp_path: Path) -> None:
    number, config, old, new = STRIP_SLIPS[slip]
    root = tmp_path / "templates"
    shutil.copytree(TEMPLATES, root)
    file = root / "families/strip_wgmma/bias.cuh"
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1
    file.write_text(text.replace(old, new), encoding="utf-8")
    outcome = _strip_outcome(next(v for v in discover(root) if v.key == "grad_weight/strip_wgmma"), number, config, tmp_path)
    assert outcome.status != "OK" and "grad_bias" in outcome.text, outcome


def _strip_outcome(variant: Variant, number: int, config: dict[str, int], folder: Path) -> Outcome:
    one = candidate(variant, STRIP_WORK[number], form="constant", **config)
    return run(build_emulated([one], folder / "build"), one, STRIP_WORK[number], order=3)


# Layers of many groups, so that each block of rolling_mma walks over many steps: as KernelBench's #75, #72 and #77; an input
# that is met three rows later, without a stride; rows of several tiles; and a tap row of two launches.
ROLLING_WORK = [Workload(ConvTranspose(2, 32, 64, (3, 5), stride=(2, 3), padding=(1, 2), groups=16, dilation=(2, 1)), 2,
                         (40, 21)),
                Workload(ConvTranspose(3, 32, 32, (3, 5, 7), stride=2, padding=(1, 2, 3), groups=16), 2, (3, 9, 13)),
                Workload(ConvTranspose(3, 32, 48, 3, stride=2, padding=1, groups=16, dilation=2), 1, (4, 9, 9)),
                Workload(ConvTranspose(2, 36, 24, (3, 2), groups=12, padding=(0, 1), dilation=(3, 1)), 2, (17, 70)),
                Workload(ConvTranspose(1, 20, 30, 11, stride=2, groups=10), 3, 150)]
ROLLING_CONFIGS = [("float32", "tf32", {}),
                   ("float32", "tf32x3", {"TILE": 32, "STAGES": 3, "M_TILES": 1, "SHARED_KB": 224}),
                   ("bfloat16", "bf16", {"COPY_WARPS": 2, "WARPS": 8, "UNROLL": 1}),
                   ("float32", "tf32", {"M_TILES": 4, "N_TILES": 1, "WARPS": 12, "STAGES": 2, "TILE": 64, "SHARED_KB": 224,
                                        "COPY_WARPS": 4})]


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)], ids=["some", "every"])
@pytest.mark.parametrize("turn", [0, 1, 3])
def test_blocks_that_walk_over_many_rows(turn: int, every: bool, tmp_path: Path) -> None:
    """Each layer by one config and precision, others in each turn; `every`: by all. The tensors begin that many elements behind
    a vector."""
    variant = find("rolling_mma", "grad_weight", root=TEMPLATES)
    members = [(_walking(variant, replace(work, dtype=dtype), precision, config), replace(work, dtype=dtype))
               for number, work in enumerate(ROLLING_WORK)
               for place, (dtype, precision, config) in enumerate(ROLLING_CONFIGS) if every or place == (number + turn) % 4]
    library = build_emulated(list(dict.fromkeys(one for one, _ in members)), tmp_path)
    for number, (one, work) in enumerate(members):
        for values in ("integers", "floats"):
            shift = turn * (2 if work.dtype == "bfloat16" else 4)
            outcome = run(library, one, work, order=number + 1, values=values, shift=shift)
            assert outcome.status == "OK", f"{work.layer} {one.config} {values}: {outcome.status} {outcome.text}"


ROLLING_SLIPS = {  # number of the work, file, what is taken out, what is put there
    "copies that nobody waits for": (0, "rolling_mma.cu", "    cp_async_wait<Tune::STAGES - 1>();\n", ""),
    "steps without a barrier": (0, "rolling_mma.cu", "    __syncthreads();\n    copy_next();", "    copy_next();"),
    "the oldest row is another one": (1, "rolling_mma.cu", "from < 0 ? from + Plan::SLOTS : from", "from < 0 ? 0 : from"),
    "rows that are not there count": (2, "rolling_mma.cu", "shared[i] = narrow<Scalar>(0.f);",
                                      "shared[i] = narrow<Scalar>(1.f);"),
    "earlier sums are lost": (0, "rolling_mma.cu", "    none = false;\n", ""),
    "a share begins without its ring": (0, "step.cuh", "    row = first > Plan::H::BEHIND ? first - Plan::H::BEHIND : 0;",
                                        "    row = first;"),
    "neighbours of a row count": (0, "step.cuh", "const bool inside = unsigned(position) < unsigned(own.length);",
                                  "const bool inside = true;"),
    "rows begin where their vector does": (0, "step.cuh", "  return (unsigned(reinterpret_cast",
                                           "  return 0 * (unsigned(reinterpret_cast"),
    "a ring that is a row short": (0, "plan.cuh", "SLOTS = H::BEHIND + 1 + Tune::STAGES", "SLOTS = H::BEHIND + Tune::STAGES"),
    "shares of a short chain": (1, "rolling_mma.cu", "1LL * Plan::shares(shares, chain_d) * Plan::PS", "1LL * Plan::PS"),
}


@pytest.mark.parametrize("slip", ["", *soon(ROLLING_SLIPS)])
def test_a_slip_in_a_walk_is_caught(slip: str, tmp_path: Path) -> None:
    """Sums are added up after every second step. Without a slip that is right."""
    number, name, old, new = ROLLING_SLIPS[slip] if slip else (0, "plan.cuh", "", "")
    root = tmp_path / "templates"
    shutil.copytree(TEMPLATES, root)
    folder = root / "families/rolling_mma"
    _replace(folder / "plan.cuh", "larger(1, 4096 * PS / TILE)", "2")
    if slip:
        _replace(next(root.glob(f"*/{name}")) if name.endswith(".cu") else folder / name, old, new)
    variant, work = next(v for v in discover(root) if v.key == "grad_weight/rolling_mma"), ROLLING_WORK[number]
    one = _walking(variant, work, "tf32", {})
    outcome = run(build_emulated([one], tmp_path / "build"), one, work, order=3)
    assert (outcome.status == "OK") == (not slip), outcome


def _replace(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1
    file.write_text(text.replace(old, new), encoding="utf-8")


def _walking(variant: Variant, work: Workload, precision: str, config: dict[str, int]) -> Candidate:
    return replace(candidate(variant, work, form="constant", **config, BLOCKS=132), precision=precision)
