"""What the command line exits with, and which statuses of trials lead to which code."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.trial import NOT_JUDGED, Status

RIGHT, WRONG, BAD_REQUEST, NOTHING_RAN, CRASHED, INTERRUPTED = 0, 1, 2, 3, 70, 130
WORDS = ("exit codes: 0 right, 1 a result is wrong, 2 bad request, 3 nothing could run, 70 defect of the workbench, 130 "
         "interrupted")


def of(statuses: Iterable[str]) -> int:
    """0: all that was judged is right. 3: nothing was judged (it does not serve, does not fit, or the machine failed)."""
    statuses = list(statuses)
    if all(s in NOT_JUDGED for s in statuses):
        return NOTHING_RAN
    return RIGHT if all(s in (Status.OK, Status.SKIPPED) for s in statuses) else WRONG
