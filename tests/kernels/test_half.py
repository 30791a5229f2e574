"""implicit_gemm_mma in 16-bit types: every awkward layer it serves, alternately in float16 and bfloat16, and its
tunables. (test_matrix.py runs the fast variants over all layers in their first dtype only, float32.)"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from workbench.core.candidate import Candidate
from workbench.core.layer import Workload
from workbench.core.variants import TEMPLATES, Variant, discover

from .cases import CASES, label
from .harness import build_emulated, candidate, run
from .test_matrix import dtypes, extreme_configs, runs

VARIANTS = [v for v in discover(TEMPLATES) if v.name == "implicit_gemm_mma"]
HALVES = ("float16", "bfloat16")


def served(variant: Variant) -> list[tuple[Candidate, Workload]]:
    """Every second awkward layer, forward and grad_input (one engine) others; then extreme tunables on a layer with a slab of
    16 channels and on one with 8."""
    works = [replace(w, dtype=HALVES[number // 2 % 2]) for number, w in enumerate(CASES)]
    found = [(candidate(variant, w, form="constant"), w) for w in works]
    found = [(one, w) for one, w in found if runs(one)]
    wide = next(w for one, w in found if 16 < min(w.layer.in_channels, w.layer.out_channels) / w.layer.groups < 48)
    narrow = next(w for one, w in found if w.layer.dims == 2 and w.layer.stride[1] == 2)
    more = [(candidate(variant, w, form="constant", **c), w) for c in extreme_configs(variant) for w in (wide, narrow)]
    more += [(candidate(variant, w, form="constant", PAD=0), w) for _, w in found if w.input_size[-1] % 2
             or w.output_shape[-1] % 2][::3]
    return found[variant.direction == "forward"::2] + [(one, w) for one, w in more if runs(one)]


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)], ids=["half", "every"])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.key)
def test_sixteen_bits(variant: Variant, every: bool, tmp_path: Path) -> None:
    """Integers: the truth rounded once, bit for bit, in whatever order threads run; floats within the tolerance."""
    assert set(HALVES) <= set(dtypes(variant))
    tried = served(variant) if every else served(variant)[variant.direction == "forward"::2]
    library = build_emulated(list(dict.fromkeys(one for one, _ in tried)), tmp_path)
    wrong = []
    for number, (one, work) in enumerate(tried):
        for values in ("integers", "floats"):
            outcome = run(library, one, work, order=number + 1, values=values)
            if outcome.status != "OK":
                wrong.append(f"{work.dtype} {label(work)} {one.config} {values}: {outcome.status} {outcome.text}")
    print(f"\n{variant.key}: {len(tried)} candidates")
    assert not wrong, "\n".join(wrong)
    assert len(tried) > (40 if every else 20)
