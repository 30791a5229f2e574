"""fused_mma in the ways of working that the awkward layers do not reach, and what a slip in it looks like."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.core.candidate import EMULATED_SM, Candidate, why_not
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.variants import TEMPLATES, Variant, discover, find

from .harness import Outcome, build_emulated, candidate, run

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
    """tf32 by the default config and one of the others, in turn; `every`: by all."""
    variant = find("fused_mma", "backward", root=TEMPLATES)
    others = {number: CONFIGS if every else [CONFIGS[0], CONFIGS[1 + number % 3]] for number in range(len(WORK))}
    members = [(_exact(variant, work, precision, **config), work) for number, work in enumerate(WORK)
               for config in (others[number] if precision == "tf32" else CONFIGS[:1])]
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


@pytest.mark.parametrize("slip", SLIPS)
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
