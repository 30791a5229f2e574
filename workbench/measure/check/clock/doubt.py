"""Which of PyTorch's ways must be timed again, because the file seems to be faster than they are."""

from __future__ import annotations

from ....core.replies import CheckTimes
from ....core.verdict import FASTER, from_samples
from .ladder import LADDER

LOOSER = ("fp64", "ieee", "tf32", "fp16", "bf16")  # precisions from the strictest to the loosest


def doubted_ways(found: CheckTimes) -> tuple[str, ...]:
    """If the candidate is faster than the fastest drop-in way: that way, and the ways that had no memory. Ways of torch.compile
    are not timed again, because compiling takes long."""
    strict = LOOSER[:LOOSER.index(found.precision) + 1]
    ways = [b for b in found.baselines if b.drop_in and b.precision in strict and LADDER[b.key].kind != "compiled"]
    best = min(ways, key=lambda b: b.timing.median_ms, default=None)
    if best is None or from_samples(found.samples, best.samples, paired=True).verdict != FASTER:
        return ()
    return best.key, *(key for key in found.starved if LADDER[key].drop_in and LADDER[key].kind != "compiled")
