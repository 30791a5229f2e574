"""Tunes many layers within one limit. Each layer gets a slice of it; every further slice goes to the layer with the largest
expected gain. Every layer and precision class has its own session, so that a tune of many layers can be continued like a single
one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log

from ...core.errors import BadRequest
from ...core.precision import CLASSES
from ...core.presets import SUITES
from ..bench.plan import dtype_of
from ..running.runner import Runner
from ..sessions.files import is_session
from ..sessions.session import Session, sessions_root
from .feed import TuneRequest
from .tune import TuneResult, tune, used_s

_LEAST_SLICE_S = 45.0
_LEAST_SLICE_TRIALS = 4
_FINALS_SHARE = 0.1       # share of the time


@dataclass
class Job:
    """One layer in one precision class. `gain`: the logarithm of the factor by which its last slice made it faster."""

    name: str
    request: TuneRequest
    session: str              # the name of its session, which is made with the first slice
    result: TuneResult | None = None
    slices: int = 0
    gain: float = 0.0
    spent_s: float = 0.0      # the seconds of earlier runs

    @property
    def ms(self) -> float:
        """The sum of the best times of all directions; 0 before there is one."""
        return sum(w.trial.kernel_median_ms for w in self.result.winners.values()) if self.result else 0.0


@dataclass(frozen=True)
class BatchRequest:
    """Layers of a suite in some precision classes. `minutes` or `trials`: the limit for all of them together. `layers`: only
    these layers. `tuned`: the request of each layer, without workload, precision and limit."""

    suite: str
    tuned: TuneRequest
    precisions: tuple[str, ...] = ("tf32",)
    minutes: float | None = None
    trials: int | None = None
    size: str = "full"
    layers: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.minutes is None and self.trials is None:
            raise BadRequest("--suite needs a limit that its layers share; give --minutes or --trials.", field="minutes")
        for name, value in (("minutes", self.minutes), ("trials", self.trials)):
            if value is not None and not value > 0:
                raise BadRequest(f"{name} is {value}; give a number above 0.", field=name)
        for precision in self.precisions:
            if precision not in CLASSES:
                raise BadRequest(f"precision {precision!r} is not a class; choose {', '.join(CLASSES)}.", field="precision")


def batch(request: BatchRequest, name: str, runner: Runner, *, on_line: Callable[[str], None] = lambda line: None,
          places: Sequence[str] = (), finish: threading.Event | None = None) -> list[Job]:
    """Tune all layers on these places. Their sessions are named NAME.LAYER.PRECISION; an existing session is continued, and its
    trials and minutes count towards the limit. Once `finish` is set, which the first Ctrl-C does, all searches end, and the
    finals of each layer follow. Raises `BadRequest`."""
    jobs, finish = _jobs(request, name), finish or threading.Event()
    begun = time.monotonic()
    seconds = 60 * request.minutes if request.minutes is not None else None
    search_s = (1 - _FINALS_SHARE) * seconds if seconds else None
    spent_s = sum(job.spent_s for job in jobs)
    if request.minutes is not None and spent_s:
        on_line(f"Earlier runs of {name} took {spent_s / 60:.1f} of the {request.minutes:g} minutes.")

    def left() -> float:
        if search_s is not None:
            return search_s - spent_s - (time.monotonic() - begun)
        return (request.trials or 0) - sum(job.result.trials if job.result else 0 for job in jobs)

    total = left()
    size = max(_LEAST_SLICE_S if search_s is not None else _LEAST_SLICE_TRIALS, total / (3 * len(jobs)))
    open_ = list(jobs)
    while open_ and not finish.is_set() and (rest := min(size, left())) > 0:
        job = next_job(open_)
        before, at = job.result.trials if job.result else 0, time.monotonic()
        on_line(f"{job.name}: slice {job.slices + 1}")
        _slice(job, rest, runner, on_line, by_time=search_s is not None, places=places, finish=finish)
        if job.result and job.result.state != "done":
            return jobs
        early = search_s is None or time.monotonic() - at < rest   # a long build may take a whole slice
        if early and (job.result.trials if job.result else 0) <= before:
            open_.remove(job)   # no candidate is left, or none can be tried
    for job in jobs:
        _finish(job, runner, on_line, places, finish)
        if job.result and job.result.state != "done":
            break
    return jobs


def next_job(jobs: list[Job]) -> Job:
    """A job that had no slice yet; else the one with the largest expected gain. The expected gain is its share of the total
    time, times the gain of its last slice plus a small number, which falls with the number of its slices."""
    fresh = next((job for job in jobs if not job.slices), None)
    if fresh is not None:
        return fresh
    whole = sum(job.ms for job in jobs) or 1.0

    def expected(job: Job) -> float:
        share = job.ms / whole if job.ms else 1.0 / len(jobs)
        return share * (1 - exp(-job.gain) + 0.05 / job.slices)

    return max(jobs, key=expected)


def _jobs(request: BatchRequest, name: str) -> list[Job]:
    jobs = []
    for preset in SUITES[request.suite].values():
        if request.layers and preset.name not in request.layers:
            continue
        for precision in request.precisions:
            workload = preset.workload(request.size, dtype_of(precision))
            asked = replace(request.tuned, workload=workload, precision=precision)
            session = f"{name}.{preset.name.replace('/', '-')}.{precision}"
            there = sessions_root() / session
            spent_s = used_s(Session.open(there), workload, precision) if is_session(there) else 0.0
            jobs.append(Job(f"{preset.name} {precision}", asked, session, spent_s=spent_s))
    if not jobs:
        raise BadRequest(f"No layer of {request.suite} is called {', '.join(request.layers)}.", field="suite")
    return jobs


def _slice(job: Job, size: float, runner: Runner, on_line: Callable[[str], None], *, by_time: bool,
           places: Sequence[str], finish: threading.Event) -> None:
    """`size`: seconds or trials."""
    before, session = job.ms, Session.create(name=job.session)
    if by_time:
        used = used_s(session, job.request.workload, job.request.precision)
        asked = replace(job.request, minutes=(used + size) / 60, trials=None)
    else:
        asked = replace(job.request, trials=(job.result.trials if job.result else 0) + max(1, round(size)), minutes=None)
    try:
        job.result = tune(asked, session, runner, on_line=on_line, with_finals=False, places=places,
                          finish=finish)
    except BadRequest as error:   # no variant serves the layer
        on_line(f"{job.name}: {error}")
        job.result = job.result or TuneResult("done", str(error), {})
    job.slices += 1
    job.gain = max(0.0, log(before / job.ms)) if before and job.ms else (log(2) if job.ms else 0.0)


def _finish(job: Job, runner: Runner, on_line: Callable[[str], None], places: Sequence[str], finish: threading.Event
            ) -> None:
    """Run the finals, without a search. A layer that had its time in earlier runs has no result here yet."""
    ready = bool(job.result.winners) if job.result else job.spent_s > 0
    if ready:
        asked = replace(job.request, trials=job.result.trials if job.result else 1, minutes=None)
        job.result = tune(asked, Session.create(name=job.session), runner, on_line=on_line, places=places, finish=finish)
