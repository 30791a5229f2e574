"""The final verdict of a candidate: timed in turns with the best PyTorch that was measured, pair by pair."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace

from ...core.orders import CompareOrder, JudgeOrder
from ...core.pytorch_ways import AUTOTUNED, WAYS
from ...core.replies import Compared
from ...core.trial import DEFAULT_ADVICE, Status, Trial
from ...core.verdict import from_samples
from ..reporting import report
from ..sessions.session import Session
from .worker_process import WorkerDied, WorkerFailed, WorkerTimeout

_TOO_SLOW = 0.5    # a candidate that far behind needs no second measurement to be called SLOWER
_CLEAR = 1.25      # nor does the strongest formulation, where it is that much slower or faster


def against_best(call: Callable[[CompareOrder], Compared], session: Session, order: JudgeOrder, trial: Trial,
                 others: Iterable[Trial]) -> Trial:
    """`trial` with `detail["against"]` (baseline, its trial_id, ratio, low, high, verdict, pairs, dropped) and the pairs
    as a blob; unchanged where there is nothing to compare. A candidate found wrong meanwhile loses its time. Where another
    formulation is the strongest PyTorch and near, it is timed in turns too: `detail["against_strongest"]`.

    `call` has the comparison carried out; `order` is the one that the candidate was judged by.
    """
    if not trial.ok or trial.kernel_ms is None or report.is_emulated(trial):
        return trial
    baselines = report.Baselines(others)
    best, strongest = report.best_baseline(baselines, trial), report.strongest_baseline(baselines, trial)
    if best and best.kernel_median_ms >= _TOO_SLOW * trial.kernel_median_ms:
        trial = _in_turns(call, session, order, trial, best, report.AGAINST)
    if strongest and strongest is not best and trial.ok and 1 / _CLEAR < (
            strongest.kernel_median_ms / trial.kernel_median_ms) < _CLEAR:
        trial = _in_turns(call, session, order, trial, strongest, report.AGAINST_STRONGEST)
    return trial


def _in_turns(call: Callable[[CompareOrder], Compared], session: Session, order: JudgeOrder, trial: Trial,
              baseline: Trial, key: str) -> Trial:
    way = baseline.detail.get("way")
    if not way or WAYS[way].kind.startswith(AUTOTUNED):  # it would be tuned once more
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
    blob = "pairs" if key == report.AGAINST else "pairs_strongest"
    return replace(trial, detail={**trial.detail, key: found}, blobs={**trial.blobs, blob: pairs},
                   flags=tuple(dict.fromkeys([*trial.flags, *result.flags])))
