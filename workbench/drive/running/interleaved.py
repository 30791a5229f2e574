"""The final verdict of a candidate: timed in turns with the best PyTorch that was measured, pair by pair."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from ...core.trial import DEFAULT_ADVICE, Status, Trial
from ...core.verdict import from_samples
from ..reporting import report
from ..sessions.session import Session
from .worker_process import WorkerDied, WorkerFailed, WorkerTimeout

_TOO_SLOW = 0.5    # a candidate that far behind needs no second measurement to be called SLOWER


def against_best(call: Callable[[dict[str, Any]], dict[str, Any]], session: Session, order: dict[str, Any],
                 trial: Trial, others: Iterable[Trial]) -> Trial:
    """`trial` with `detail["against"]` (baseline, its trial_id, ratio, low, high, verdict, pairs, dropped) and the pairs
    as a blob; unchanged where there is nothing to compare. A candidate found wrong meanwhile loses its time.

    `call` carries out the worker operation "compare"; `order` is the candidate's `judge` order.
    """
    if not trial.ok or trial.kernel_ms is None or report.is_emulated(trial):
        return trial
    baseline = report.best_baseline(others, trial)
    way = baseline.detail.get("way") if baseline else None
    if not baseline or not way or baseline.kernel_median_ms < _TOO_SLOW * trial.kernel_median_ms:
        return trial
    try:
        result = call({"ours": order, "theirs": {"way": way}})
    except (WorkerDied, WorkerFailed, WorkerTimeout):
        return replace(trial, flags=(*trial.flags, "not_compared"))
    if result["status"] == Status.OUT_OF_MEMORY:
        return replace(trial, flags=(*trial.flags, "not_compared"))
    if result["status"] != Status.OK:
        status = Status(result["status"])
        return replace(trial, status=status, headline=result["headline"], kernel_ms=None,
                       advice=result.get("advice") or DEFAULT_ADVICE[status], detail=result.get("detail", {}))
    verdict = from_samples(result["ours"], result["theirs"], paired=True)
    pairs = session.put_blob(json.dumps({"ours": result["ours"], "theirs": result["theirs"]}).encode())
    found = {"baseline": baseline.name, "trial_id": baseline.trial_id, "ratio": verdict.value, "low": verdict.low,
             "high": verdict.high, "verdict": verdict.verdict, "pairs": len(result["ours"]),
             "dropped": result["dropped"], "stop": result["stop"]}
    return replace(trial, detail={**trial.detail, "against": found}, blobs={**trial.blobs, "pairs": pairs},
                   flags=tuple(dict.fromkeys([*trial.flags, *result["flags"]])))
