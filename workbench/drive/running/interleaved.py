"""The final verdict of a candidate: timed in turns with the best PyTorch that was measured, pair by pair."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace

from ...core.orders import CompareOrder, JudgeOrder
from ...core.pytorch_ways import AUTOTUNED, WAYS
from ...core.replies import Compared
from ...core.trial import DEFAULT_ADVICE, Status, Trial
from ...core.trial_parts import Against
from ...core.verdict import from_samples
from ..reporting import report
from ..sessions.session import Session
from .worker_process import WorkerDied, WorkerFailed, WorkerTimeout

_TOO_SLOW = 0.5    # a candidate that far behind needs no second measurement to be called SLOWER
_CLEAR = 1.25      # nor does the strongest formulation, where it is that much slower or faster


def against_best(call: Callable[[CompareOrder], Compared], session: Session, order: JudgeOrder, trial: Trial,
                 others: Iterable[Trial]) -> Trial:
    """`trial` with `detail.against` and the pairs as a blob; unchanged where there is nothing to compare. A candidate
    found wrong meanwhile loses its time. Where another formulation is the strongest PyTorch and near, it is timed in turns
    too: `detail.against_strongest`.

    `call` has the comparison carried out; `order` is the one that the candidate was judged by.
    """
    if not trial.ok or trial.kernel_ms is None or report.is_emulated(trial):
        return trial
    baselines = report.Baselines(others)
    best, strongest = report.best_baseline(baselines, trial), report.strongest_baseline(baselines, trial)
    if best and best.kernel_median_ms >= _TOO_SLOW * trial.kernel_median_ms:
        trial = _in_turns(call, session, order, trial, best)
    if strongest and strongest is not best and trial.ok and 1 / _CLEAR < (
            strongest.kernel_median_ms / trial.kernel_median_ms) < _CLEAR:
        trial = _in_turns(call, session, order, trial, strongest, strongest=True)
    return trial


def _in_turns(call: Callable[[CompareOrder], Compared], session: Session, order: JudgeOrder, trial: Trial,
              baseline: Trial, *, strongest: bool = False) -> Trial:
    way = baseline.detail.way
    if not way or WAYS[way].kind.startswith(AUTOTUNED):  # it would be tuned once more
        return trial
    try:
        result = call(CompareOrder(order, way))
    except (WorkerDied, WorkerFailed, WorkerTimeout):
        return replace(trial, flags=(*trial.flags, "not_compared"))
    if result.status == Status.OUT_OF_MEMORY:
        return replace(trial, flags=(*trial.flags, "not_compared"))
    if result.status != Status.OK:
        return replace(trial, status=result.status, headline=result.headline, kernel_ms=None,
                       advice=result.advice or DEFAULT_ADVICE[result.status], detail=result.detail)
    verdict = from_samples(result.ours, result.theirs, paired=True)
    pairs = session.put_blob(json.dumps({"ours": result.ours, "theirs": result.theirs}).encode())
    found = Against(baseline.name, baseline.trial_id, verdict.value, verdict.low, verdict.high, str(verdict.verdict),
                    len(result.ours), result.dropped, result.stop)
    told = replace(trial.detail, against_strongest=found) if strongest else replace(trial.detail, against=found)
    return replace(trial, detail=told, blobs={**trial.blobs, "pairs_strongest" if strongest else "pairs": pairs},
                   flags=tuple(dict.fromkeys([*trial.flags, *result.flags])))
