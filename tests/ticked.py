"""What a fresh page ticks: every variant that serves preset #74, small, in the precision it opens with."""

from __future__ import annotations

from workbench.core.candidate import EMULATED_SM, Candidate, why_not
from workbench.core.layer import LAUNCHES
from workbench.core.presets import preset
from workbench.core.variants import discover


def ticked(precision: str = "tf32") -> list[tuple[str, str]]:
    """(direction, name), in the page's order; `precision` "" is each variant's own."""
    layer = preset("kb74").workload("small").layer
    offers = [v for v in discover() if not precision or precision in v.precision]
    there = [v for v in offers if why_not(Candidate(v, layer, "float32", {}, precision, v.forms[0]), sm=EMULATED_SM) is None]
    return [(v.direction, v.name) for d in LAUNCHES for v in there if v.direction == d]
