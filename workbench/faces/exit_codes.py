"""The exit codes of the command line, and the code for each status of a trial."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.trial import NOT_JUDGED, Status

RIGHT, WRONG, BAD_REQUEST, NOTHING_RAN, CRASHED, INTERRUPTED = 0, 1, 2, 3, 70, 130
WORDS = ("exit codes: 0 right, 1 a result is wrong, 2 bad request, 3 nothing could run, 70 defect of the workbench, 130 "
         "interrupted")


def of(statuses: Iterable[str]) -> int:
    """The exit code of some trials. 0: all judged ones are right. 3: nothing was judged (no kernel serves the layer or fits
    into memory, or the machine failed)."""
    statuses = list(statuses)
    if all(s in NOT_JUDGED for s in statuses):
        return NOTHING_RAN
    return RIGHT if all(s in (Status.OK, Status.SKIPPED) for s in statuses) else WRONG
