"""Finds the trials of a request that a session has already. `--resume` runs only the missing ones."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ...core.candidate import Candidate, why_not
from ...core.errors import RenderError
from ...core.pytorch_ways import WAYS, ladder
from ...core.replies import Device
from ...core.template import render
from ...core.trial import FORMULATION, Status, Trial
from .request import DEFAULTS, RunRequest

SLOWER = "slower"   # the reason for which a tune ends the timing of a candidate early: it is clearly slower than the best

# These statuses do not judge the candidate: it was stopped by the machine, a limit or a person. It may be tried again.
NO_VERDICT = frozenset({Status.CANCELLED, Status.NO_COMPILER, Status.MACHINE_FAILED, Status.BUILD_TIMEOUT, Status.WORKER_DIED,
                        Status.OUT_OF_MEMORY})


def answered(candidates: Iterable[Candidate], trials: list[Trial], request: RunRequest, device: Device
             ) -> list[Trial | None]:
    """For each candidate its last trial with a verdict, or None. The trial must be of the same workload, judged in the same
    way, on the same kind of device. `device`: the request's device as reported by the measuring process."""
    finished = {_key_of_trial(t): t for t in trials if _answers(t, request, device)}
    return [finished.get(_key(candidate, device)) for candidate in candidates]


def missing(candidates: Iterable[Candidate], trials: list[Trial], request: RunRequest, device: Device
            ) -> list[Candidate]:
    """The candidates without a trial that has a verdict; see `answered`."""
    candidates = list(candidates)
    return [c for c, trial in zip(candidates, answered(candidates, trials, request, device), strict=True) if trial is None]


def missing_ways(direction: str, trials: list[Trial], request: RunRequest, device: Device) -> list[str]:
    """Keys of PyTorch's ways that the request asks for and the session does not have, for the same workload and device. For the
    strength `default` only trials from a fresh process count, for any other strength only the other trials. A formulation that
    was wrong, failed or was too large counts as measured."""
    alone = request.strength == DEFAULTS
    have = {t.name for t in trials if t.kind == "baseline" and t.direction == direction
            and (t.status not in NO_VERDICT or FORMULATION in t.flags) and bool(t.detail.fresh_process) == alone
            and _same_work(t, request) and t.device.key == device.key}
    return [key for key in ways_of(request, device) if WAYS[key].name not in have]


def ways_of(request: RunRequest, device: Device) -> list[str]:
    """Keys of PyTorch's ways that the request asks for, in their order; [] for a request without baselines."""
    if not request.baselines:
        return []
    return ladder(request.strength, request.workload, device.kind, classes=request.classes,
                  autotune=request.max_autotune)


def standing(trials: Iterable[Trial]) -> list[Trial]:
    """The trials, without those that have no verdict and are followed by another trial of the same candidate."""
    trials = list(trials)
    places = [(t.place, t.kind, t.direction, t.candidate_id or t.trial_id) for t in trials]
    last = {place: i for i, place in enumerate(places)}
    return [t for i, t in enumerate(trials) if t.status not in NO_VERDICT or last[places[i]] == i]


def not_run(events: list[dict[str, Any]], trials: list[Trial]) -> int:
    """How many candidates of the session's runs have no trial. For each workload and device only the last run counts, because a
    resumed run contains all missing candidates."""
    last = {json.dumps([e.get("workload"), e.get("device")], sort_keys=True): e for e in events
            if e.get("event") == "run_started" and isinstance(e.get("rows"), list)}
    done = Counter(t.run_id for t in trials if t.kind == "candidate")
    return sum(max(0, len(e["rows"]) - done[str(e.get("run_id"))]) for e in last.values())


def _answers(trial: Trial, request: RunRequest, device: Device) -> bool:
    if trial.kind != "candidate" or trial.status in NO_VERDICT or not _same_work(trial, request):
        return False
    if (trial.device.kind, trial.device.key) != (device.kind, device.key):
        return False
    if request.sanitize and f"--sanitize {request.sanitize}" not in trial.command:
        return False  # right without AddressSanitizer is not right with it
    if not (trial.ok and request.time):
        return True
    if trial.kernel_ms is None:
        return False  # it was judged but not timed
    if trial.kernel_ms.stop == SLOWER:
        return False  # a tune took only a few samples
    return device.kind == "cpu" or trial.kernel_ms.cold_l2 == request.cold_l2


def _same_work(trial: Trial, request: RunRequest) -> bool:
    """Whether the trial is of the request's workload and of the same preset; each preset has its own trials."""
    return (trial.workload, trial.workload.preset) == (request.workload, request.workload.preset)


def _key(candidate: Candidate, device: Device) -> object:
    """The identity of a candidate: the id of its source. If it cannot be rendered or run, its parts and the reason."""
    try:
        reason = why_not(candidate, sm=device.sm)
        if reason is None:
            return render(candidate).candidate_id
    except RenderError as error:
        reason = str(error)
    return (candidate.variant.name, candidate.direction, candidate.precision, candidate.form, candidate.compile_flags,
            tuple(sorted(candidate.config.items())), reason)


def _key_of_trial(trial: Trial) -> object:
    return trial.candidate_id or (trial.name, trial.direction, trial.precision, trial.form, trial.compile_flags,
                                  tuple(sorted(trial.config.items())), trial.headline)
