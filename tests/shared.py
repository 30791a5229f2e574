"""What tests of several folders share: what a laptop may lack, and what a fresh page ticks."""

from __future__ import annotations

import os

import pytest

from workbench.core.candidate import EMULATED_SM, Candidate, why_not
from workbench.core.layer import LAUNCHES
from workbench.core.presets import preset
from workbench.core.variants import discover

EVERYTHING = os.environ.get("KW_REQUIRE_ALL") == "1"


def require(there: object, reason: str) -> None:
    """What a laptop may lack is a skip with its reason; where everything is required (CI), it is a failure."""
    if there:
        return
    if EVERYTHING:
        pytest.fail(f"required here: {reason}")
    pytest.skip(reason)


def ticked(precision: str = "tf32") -> list[tuple[str, str]]:
    """What a fresh page ticks: every variant that serves preset #74, small, in that precision ("": each variant's own), as
    (direction, name) in the page's order."""
    layer = preset("kb74").workload("small").layer
    offers = [v for v in discover() if not precision or precision in v.precision]
    there = [v for v in offers if why_not(Candidate(v, layer, "float32", {}, precision, v.forms[0]), sm=EMULATED_SM) is None]
    return [(v.direction, v.name) for d in LAUNCHES for v in there if v.direction == d]
