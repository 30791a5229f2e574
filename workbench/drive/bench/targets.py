"""The targets for the full size on a GPU, and which of them a cell misses."""

from __future__ import annotations

from ...core import numbers
from ...core.layer import FORWARD
from ...core.roofline import Floor
from ...core.verdict import MARGIN

_TWICE = ("kb64", "kb74", "kb81")               # every direction: at most max(baseline / 2, floor / 0.65)
_FOUR_TIMES = ("kb72", "kb73", "kb75", "kb77", "kb79", "kb81")  # forward
_ERROR = {"ieee": 3e-6}                         # relative L2 to float64
_ERROR_TF32 = 1.1                               # times what cuDNN's own TF32 has in the same cell


# more than seven: all that the targets are about, of one cell
def missed(preset: str, direction: str, precision: str, *, ms: float, baseline_ms: float, ratio: float | None,
           floor: Floor | None, rel_l2: float | None, tf32_rel_l2: float | None) -> list[str]:
    """One clause for each target that the cell misses; [] if it meets all.

    `ratio` is baseline / ours as the verdict has it; `tf32_rel_l2` is the error of PyTorch's TF32 in the same cell.
    """
    found = []
    ratio = ratio or baseline_ms / ms
    if ratio < 1 - MARGIN:
        found.append(f"slower than PyTorch ({numbers.ratio(ratio)})")
    elif precision == "tf32":
        if preset in _TWICE:
            most = max(baseline_ms / 2, floor.ms / 0.65 if floor else 0.0)
            if ms > most:
                found.append(f"the target is at most {numbers.time(most)}")
        if preset in _FOUR_TIMES and direction == FORWARD and ratio < 4:
            found.append("the target is 4×")
    limit = _ERROR.get(precision)
    if precision == "tf32" and tf32_rel_l2 is not None:
        limit = _ERROR_TF32 * tf32_rel_l2
    if limit is not None and rel_l2 is not None and not rel_l2 <= limit:
        found.append(f"error {numbers.error(rel_l2)} above {numbers.error(limit)}")
    return found
