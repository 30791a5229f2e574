"""The final verdict of a candidate: timed in turns with the best PyTorch that was measured, pair by pair."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace

from ...core.orders import CompareOrder, JudgeOrder
from ...core.replies import Compared
from ...core.trial import DEFAULT_ADVICE, Status, Trial
from ...core.verdict import from_samples
from ..reporting import report
from ..sessions.session import Session
from .worker_process import WorkerDied, WorkerFailed, WorkerTimeout

_TOO_SLOW = 0.5    # a candidate that far behind needs no second measurement to be called SLOWER


def against_best(call: Callable[[CompareOrder], Compared], session: Session, order: JudgeOrder, trial: Trial,
                 others: Iterable[Trial]) -> Trial:
    """`trial` with `detail["against"]` (baseline, its trial_id, ratio, low, high, verdict, pairs, dropped) and the pairs
    as a blob; unchanged where there is nothing to compare. A candidate found wrong meanwhile loses its time.

    `call` has the comparison carried out; `order` is the one that the candidate was judged by.
    """
    if not trial.ok or trial.kernel_ms is None or report.is_emulated(trial):
        return trial
    baseline = report.best_baseline(others, trial)
    way = baseline.detail.get("way") if baseline else None
    if not baseline or not way or baseline.kernel_median_ms < _TOO_SLOW * trial.kernel_median_ms:
        return trial
    try:
        result = call(CompareOrder(order, str(way)))
    except (WorkerDied, WorkerFailed, WorkerTimeout):
        return replace(trial, flags=(*trial.flags, "not_compared"))
    if result.status == Status.OUT_OF_MEMORY:
        return replace(trial, flags=(*trial.flags, "not_compared"))
    if result.status != Status.OK:
        return replace(trial, status=result.status, headline=result.headline, kernel_ms=None,
                       advice=result.advice or DEFAULT_ADVICE[result.status], detail=result.detail)
    verdict = from_samples(result.ours, result.theirs, paired=True)
    pairs = session.put_blob(json.dumps({"ours": result.ours, "theirs": result.theirs}).encode())
    found = {"baseline": baseline.name, "trial_id": baseline.trial_id, "ratio": verdict.value, "low": verdict.low,
             "high": verdict.high, "verdict": verdict.verdict, "pairs": len(result.ours),
             "dropped": result.dropped, "stop": result.stop}
    return replace(trial, detail={**trial.detail, "against": found}, blobs={**trial.blobs, "pairs": pairs},
                   flags=tuple(dict.fromkeys([*trial.flags, *result.flags])))
