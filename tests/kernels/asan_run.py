"""Run by test_asan.py in a process that has AddressSanitizer loaded: every variant over a few layers; prints `ran N`.

Usage: python -m tests.kernels.asan_run TEMPLATES FOLDER [VARIANT_KEY | some | every]

A variant that is compiled for each layer runs on one of them, with `every` on all. `some`: every third variant.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from workbench.core.candidate import EMULATED_SM, Candidate, why_not
from workbench.core.layer import Workload
from workbench.core.variants import Variant, discover
from workbench.measure.emulator import ASAN_FLAGS

from .cases import CASES, FEW, label
from .harness import build_emulated, candidate, run


def served(variant: Variant, number: int, *, every: bool) -> list[tuple[Candidate, Workload]]:
    """Of a few layers those that the variant serves, else the first of all that it does. The variant's `number` says which it
    gets if it gets one."""
    dtype = variant.dtypes[0]
    one_each = "runtime" not in variant.forms   # each layer is one more instance to compile

    def among(works: Sequence[Workload]) -> list[tuple[Candidate, Workload]]:
        found = [(candidate(variant, work, form=variant.forms[-1]), work) for work in (replace(w, dtype=dtype) for w in works)]
        return [(one, work) for one, work in found if why_not(one, sm=EMULATED_SM) is None]

    found = among(FEW[::4] if one_each else FEW) or among(CASES)[:1]
    return [found[number % len(found)]] if one_each and not every else found


def main(templates: Path, folder: Path, only: str = "") -> int:
    """0 when every run was right; an invalid access ends the process before that, with a report on stderr."""
    chosen = [v for v in discover(templates) if only in ("", "some", "every", v.key)][::3 if only == "some" else 1]
    members = [member for n, variant in enumerate(chosen) for member in served(variant, n, every=only == "every")]
    # A report names lines, and no variables. A function checks each access: g++ takes three quarters of the time.
    flags = (*ASAN_FLAGS, "-g1", "--param", "asan-instrumentation-with-call-threshold=0")
    library = build_emulated(list(dict.fromkeys(one for one, _ in members)), folder, flags=flags)
    wrong = 0
    for one, work in members:
        outcome = run(library, one, work)
        if outcome.status != "OK":
            wrong += 1
            print(one.variant.key, label(work), outcome)
    print(f"ran {len(members)}")
    return 1 if wrong or not members else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]))
