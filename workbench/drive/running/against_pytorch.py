"""PyTorch in a run: its ways are measured in the same run as the candidates. Each right candidate is timed alternately with the
best of them, which gives pairs of samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from ...core.facts import tensor_bytes
from ...core.layer import BACKWARD, LAUNCHES
from ...core.orders import BaselineOrder, InterleaveOrder, JudgeOrder
from ...core.pytorch_ways import AUTOTUNED, WAYS
from ...core.replies import Baseline, Interleaved, Outcome
from ...core.replies import Baselines as Measured
from ...core.trial import DEFAULT_ADVICE, FORMULATION, Status, Trial
from ...core.trial_parts import Against
from ...core.verdict import from_samples
from ..reporting import report
from ..sessions.session import Session
from . import outcome
from .request import DEFAULTS, Run
from .resume import missing_ways
from .worker_process import WorkerDied, WorkerFailed, WorkerTimeout
from .workers import Workers

_TUNED_S = 300.0   # limit of max-autotune, which sends no events
# If PyTorch's time is less than this share of the candidate's, the candidate is SLOWER without a second measurement.
_TOO_SLOW = 0.5
_CLEAR = 1.25      # the strongest formulation is also not timed again if it differs by more than this factor


@dataclass(frozen=True)
class Baselines:
    """Measures the ways of PyTorch that the request of a run names. `there`: trials of the session, whose ways are not measured
    again."""

    run: Run
    session: Session
    workers: Workers
    name: str
    free_bytes: int

    def measure(self, there: list[Trial], record: Callable[[Trial], None]) -> None:
        """`record` gets each trial as soon as it is measured."""
        run, request = self.run, self.run.request
        if not request.baselines or run.cancelled.is_set():
            return
        wanted = list(request.directions) or [d for d in LAUNCHES if any(r.direction == d for r in run.rows)]
        if BACKWARD in wanted and run.rows and not any(r.direction == BACKWARD and r.status != Status.SKIPPED
                                                       for r in run.rows):
            wanted.remove(BACKWARD)  # there is no candidate to compare it with
        asked = {d: missing_ways(d, there, request, run.known_device) for d in wanted}
        wanted = [d for d in wanted if asked[d]]
        alone = request.strength == DEFAULTS
        for directions in [wanted] if alone and wanted else [[d] for d in wanted]:
            parts = [part for tuned in (False, True)
                     if (part := [k for k in asked[directions[0]] if WAYS[k].kind.startswith(AUTOTUNED) == tuned])]
            while parts and not run.cancelled.is_set():
                run.message = f"measuring PyTorch {', '.join(directions)}"
                modes = parts.pop(0)
                found, answered = self._asked(directions, modes)
                for measured in found:
                    record(outcome.baseline_trial(self.session, run, measured))
                rest = [k for k in modes if not WAYS[k].formulation]
                if not answered and rest and rest != modes:
                    parts.insert(0, rest)  # if a formulation killed its process, the modes are measured in a new one

    def _asked(self, directions: list[str], modes: list[str]) -> tuple[list[Baseline], bool]:
        """The measurements of these ways, and whether the process survived. cuDNN keeps in a process the algorithm that
        cudnn.benchmark chose earlier, so PyTorch's default is measured in its own process. So is max-autotune, because it loads
        new kernels."""
        request, limit_s = self.run.request, 4 * self.run.request.run_timeout_s
        if too_large := next((why for d in directions if (why := self._too_large(d))), None):
            return _unmeasured(directions, too_large), True
        order = BaselineOrder(request.workload, self.name, tuple(directions), tuple(modes), effort=request.effort,
                              cold_l2=request.cold_l2, scratch=self.workers.scratch)
        try:
            if request.strength == DEFAULTS:
                alone = self._fresh(order, limit_s).baselines
                return [replace(b, detail=replace(b.detail, fresh_process=True)) for b in alone], True
            if WAYS[modes[0]].kind.startswith(AUTOTUNED):
                return list(self._fresh(order, max(_TUNED_S, limit_s)).baselines), True
            return list(self.workers.measure(self.name).call(order, limit_s=limit_s, stop=self.run.cancelled,
                                                             on_event=lambda event: limit_s).baselines), True
        except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
            formulations = [WAYS[key].name for key in modes if WAYS[key].formulation]
            return _unmeasured(directions, outcome.failure(error, building=False), formulations=formulations), False

    def _fresh(self, order: BaselineOrder, limit_s: float) -> Measured:
        return self.workers.fresh(order, self.name, limit_s=limit_s, stop=self.run.cancelled)

    def _too_large(self, direction: str) -> Outcome | None:
        """The outcome of a direction whose tensors do not fit."""
        needed = tensor_bytes(self.run.request.workload, direction)
        return outcome.too_large(needed, self.free_bytes, self.name) if needed > self.free_bytes else None


def against_best(call: Callable[[InterleaveOrder], Interleaved], session: Session, order: JudgeOrder, trial: Trial,
                 others: Iterable[Trial]) -> Trial:
    """`trial` with `detail.against` and the pairs as a blob; unchanged if there is nothing to compare. A candidate that is
    found wrong during the comparison loses its time. If another formulation is the strongest PyTorch and its time is near, it
    is timed alternately too (`detail.against_strongest`). `call` sends the order of the comparison to a worker. `order`: the
    order by which the candidate was judged.
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


def _in_turns(call: Callable[[InterleaveOrder], Interleaved], session: Session, order: JudgeOrder, trial: Trial,
              baseline: Trial, *, strongest: bool = False) -> Trial:
    way = baseline.detail.way
    if not way or WAYS[way].kind.startswith(AUTOTUNED):  # max-autotune would tune it once more
        return trial
    try:
        result = call(InterleaveOrder(order, way))
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


def _unmeasured(directions: Iterable[str], why: Outcome, *, formulations: Sequence[str] = ()) -> list[Baseline]:
    """Baselines without a time: for these formulations, or for nn.ConvTranspose."""
    flags = (FORMULATION,) if formulations else ()
    return [Baseline(name=name, direction=direction, flags=flags, **vars(why)) for direction in directions
            for name in formulations or ("eager",)]
