"""box_mma in the ways of working that the awkward layers do not reach; what a slip in it looks like. Also layers whose stride
and dilation share a divisor, in the variants that compute them on grains."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.core.candidate import EMULATED_SM, Candidate, why_not
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.variants import TEMPLATES, Variant, discover, find

from .harness import build_emulated, candidate, run, soon

# As KernelBench's #72, #75 and #77: rows that vectors fill, rows of even length, odd rows with residues that no tap meets.
# Then stride 1, with several parts of the channels; and shifts so far apart that no window holds them.
WORK = [Workload(ConvTranspose(3, 16, 16, (3, 5, 7), stride=2, padding=(1, 2, 3), output_padding=1, groups=2), 2, (3, 5, 12)),
        Workload(ConvTranspose(2, 16, 32, (3, 5), stride=(2, 3), padding=(1, 2), groups=2, dilation=(2, 1)), 3, (9, 22)),
        Workload(ConvTranspose(3, 20, 12, 3, stride=2, padding=1, dilation=2), 1, (3, 5, 9)),
        Workload(ConvTranspose(2, 24, 40, (2, 3), padding=(0, 1)), 2, (7, 34)),
        Workload(ConvTranspose(1, 8, 10, 7, dilation=6), 4, 70)]
CONFIGS = [("float32", "tf32", {}), ("float32", "tf32x3", {"STAGES": 3, "SUMS": 8, "SHARED_KB": 224}),
           ("bfloat16", "bf16", {"WARPS": 3, "SPLIT_D": 2, "STAGES": 3}),
           ("float32", "tf32", {"STRIPS": 3, "SPLIT_D": 2, "WARPS": 4, "SHARED_KB": 224, "BLOCKS": 1})]
RAW = ("float32", "tf32", {"RAW": 1, "WARPS": 4, "STAGES": 3})   # where each element along W is a grain


@pytest.mark.parametrize("direction", ["forward", "grad_input"])
@pytest.mark.parametrize("turn", [0, 1, 2])
def test_blocks_that_take_several_tiles(direction: str, turn: int, tmp_path: Path) -> None:
    """Each layer by one config and precision, others in each turn; then with RAW. The tensors begin that many elements behind a
    vector."""
    variant = find("box_mma", direction, root=TEMPLATES)
    members = []
    for number, work in enumerate(WORK):
        for dtype, precision, config in (CONFIGS[(number + turn) % 4], *([RAW] if number != 2 else [])):
            members.append((_one(variant, replace(work, dtype=dtype), precision, config), replace(work, dtype=dtype)))
    assert [why_not(one, sm=EMULATED_SM) for one, _ in members] == [None] * len(members)
    library = build_emulated([one for one, _ in members], tmp_path)
    for number, (one, work) in enumerate(members):
        for values in ("integers", "floats"):
            shift = turn * (2 if work.dtype == "bfloat16" else 4)
            outcome = run(library, one, work, order=number + 1, values=values, shift=shift)
            assert outcome.status == "OK", f"{work.layer} {one.config} {values}: {outcome.status} {outcome.text}"


# All elements of the output are grains along no axis, along some, along W alone; a residue that no tap meets; one tap along H.
GRAINS = [Workload(ConvTranspose(3, 16, 24, 3, stride=2, padding=1, dilation=2), 3, (3, 4, 9)),
          Workload(ConvTranspose(2, 20, 12, (3, 5), stride=(2, 3), padding=(1, 2), output_padding=(1, 2), dilation=(2, 3),
                                 groups=2, bias=False), 3, (5, 11)),
          Workload(ConvTranspose(1, 24, 40, 4, stride=4, padding=5, dilation=8), 2, 37),
          Workload(ConvTranspose(2, 8, 16, (1, 3), stride=(3, 2), padding=(0, 3), dilation=2), 5, (4, 70))]
ON_GRAINS = {"forward": [("wgmma_packed", "tf32", {}), ("wgmma_packed", "tf32x3", {}), ("wgmma_packed", "bf16", {"FOLD": 1})],
             "grad_input": [("wgmma_packed", "tf32", {"FOLD": 1}), ("wgmma_packed", "bf16", {})],
             "grad_weight": [("strip_wgmma", "tf32", {}), ("strip_wgmma", "tf32", {"IMAGES": 2}),
                             ("packed_wgmma", "tf32x3", {}), ("packed_wgmma", "bf16", {})]}


@pytest.mark.parametrize("direction", ON_GRAINS)
def test_layers_on_grains(direction: str, tmp_path: Path) -> None:
    members = []
    for name, precision, config in ON_GRAINS[direction]:
        variant = find(name, direction, root=TEMPLATES)
        for work in GRAINS:
            typed = replace(work, dtype="bfloat16" if precision == "bf16" else "float32")
            members.append((_one(variant, typed, precision, config), typed))
    assert [why_not(one, sm=EMULATED_SM) for one, _ in members] == [None] * len(members)
    library = build_emulated([one for one, _ in members], tmp_path)
    for number, (one, work) in enumerate(members):
        for values in ("integers", "floats"):
            outcome = run(library, one, work, order=number + 1, values=values)
            assert outcome.status == "OK", f"{work.layer} {one.config} {values}: {outcome.status} {outcome.text}"


SLIPS = {  # direction, number of the work, file, what is taken out, what is put there
    "copies that nobody waits for": ("forward", 0, "box_mma.cu", "      cp_async_wait<Plan::STAGES - 2>();\n", ""),
    "steps without a barrier": ("grad_input", 1, "box_mma.cu", "      __syncthreads();\n      fill();", "      fill();"),
    "the same tile again and again": ("forward", 1, "box_mma.cu", "ahead.at(a, ahead.tile + apart);", "ahead.at(a, first);"),
    "columns in another order": ("forward", 0, "store.cuh", "strip_of_column(lane % 4 * 2 + turn % 2);",
                                 "strip_of_column(lane % 4 + turn % 2 * 4);"),
    "neighbours of a row count": ("grad_input", 3, "stage.cuh", " && unsigned(w) < unsigned(a.in_w);", ";"),
    "weights of another plane": ("forward", 2, "stage.cuh", "first_tap = BEFORE,", "first_tap = 0,"),
    "residues without taps are not zero": ("forward", 2, "store.cuh", "    return 0.0f;", "    return 1.0f;"),
    "a row begins where the one before does": ("forward", 3, "tile.cuh", "line - deep * a.high,", "0 * line,"),
    "taps of another residue": ("forward", 1, "plan.cuh", "slot % W::CLASSES);", "0);"),
}


@pytest.mark.parametrize("slip", ["", *soon(SLIPS)])
def test_a_slip_is_caught(slip: str, tmp_path: Path) -> None:
    """With one plane in a step and little shared memory, so weights are copied with each step."""
    cases = [SLIPS[slip]] if slip else sorted({(d, n, "", "", "") for d, n, *_ in SLIPS.values()})
    root = tmp_path / "templates"
    shutil.copytree(TEMPLATES, root)
    for direction, number, name, old, new in cases:
        if slip:
            file = next(root.glob(f"*/{name}")) if name.endswith(".cu") else root / "families/box_mma" / name
            text = file.read_text(encoding="utf-8")
            assert text.count(old) == 1
            file.write_text(text.replace(old, new), encoding="utf-8")
        variant = next(v for v in discover(root) if v.key == f"{direction}/box_mma")
        one = _one(variant, WORK[number], "tf32", {"SPLIT_D": 2, "SHARED_KB": 72, "BLOCKS": 1, "WARPS": 4})
        outcome = run(build_emulated([one], tmp_path / f"build-{direction}-{number}"), one, WORK[number], order=3)
        assert (outcome.status == "OK") == (not slip), outcome


def _one(variant: Variant, work: Workload, precision: str, config: dict[str, int]) -> Candidate:
    return replace(candidate(variant, work, form="constant", **config), precision=precision)
