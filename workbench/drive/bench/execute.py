"""Runs a plan. It writes ordinary trials into a session, and does not repeat those that the session has already.

Each job is an ordinary run. A bench only chooses the next job, by what `BuildAhead` has built.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ...core.errors import BadRequest, RenderError
from ...core.facts import tensor_bytes
from ...core.layer import CONTIGUOUS
from ...core.orders import CompileOrder
from ...core.presets import PRESETS
from ...core.pytorch_ways import WAYS
from ...core.replies import Device
from ...core.template import Rendered, render
from ...core.trial import Trial
from ..machine.device_lock import held
from ..machine.doctor import resolve_device
from ..running.builds import BuildSettings
from ..running.request import DEFAULTS, Prebuilt, Run, RunRequest
from ..running.resume import NO_VERDICT, missing, missing_ways
from ..running.runner import Runner
from ..sessions.session import Session
from .plan import BenchPlan, Job
from .prebuild import BuildAhead, build_workers, compile_ahead, units_of

_POLL_S = 0.1
_SILENT_S = 10.0            # five heartbeats: a run without an event for this time was killed
_BUILD_TIMEOUT_S = 580.0
_RUN_TIMEOUT_S = 120.0      # the naive variants take a second a launch on the largest layers
# Keys that older sessions lack.
_BEFORE: dict[str, Any] = {"defaults": False, "memory_format": CONTIGUOUS, "variants": [], "modules": False,
                           "known": False}
EVENT = "bench"          # the session has one for each started plan; only plans with candidates have cells in the table


@dataclass(frozen=True)
class BenchResult:
    """`state`: done, stopped (time limit or interrupt) or failed; the sentence says why."""

    state: str
    sentence: str
    judged: int


class Bench:
    """One call of the verb. `on_line` gets a line for every job begun and every finished trial."""

    def __init__(self, plan: BenchPlan, session: Session, runner: Runner, *, device: str = "auto",
                 on_line: Callable[[str], None] = lambda line: None) -> None:
        self.plan, self.session, self.runner, self.on_line = plan, session, runner, on_line
        self.device = resolve_device(device)
        self._said: set[str] = set()
        self._judged = 0
        self._deadline = float("inf")
        self._stop = threading.Event()

    def stop(self) -> None:
        """End the running compilers and the running kernel. It is called from another thread. Finished trials are kept."""
        self._stop.set()

    def _over(self) -> bool:
        return self._stop.is_set() or time.monotonic() >= self._deadline

    def run(self, *, time_limit_s: float | None = None) -> BenchResult:
        """Run the missing candidates. At the time limit the running kernel and compilers are ended, and only finished trials
        are recorded. Raises `BadRequest` if no variant applies."""
        started = time.monotonic()
        self._deadline = started + time_limit_s if time_limit_s is not None else float("inf")
        known = self.runner.device(self.device)
        jobs = self.plan.jobs(sm=known.sm, arch=known.arch)
        if self.plan.strength != DEFAULTS and not any(job.candidates for job in jobs):
            raise BadRequest(f"No variant computes {', '.join(self.plan.directions)} of {', '.join(self.plan.layers)} "
                             f"in the class {self.plan.precision}; 'python -m workbench variants' lists them.")
        begin(self.session, self.plan, known.name)
        emulated, free = known.kind == "cpu", known.free_bytes
        left: list[Job] = []
        units: list[list[Rendered]] = []
        wanted: dict[int, set[str]] = {}
        for job in jobs:
            missed = self._missing(job, known)
            if missed:
                left.append(missed)
                wanted[id(missed)] = {r.candidate_id for r in worth_building(missed, free)}
                units += [unit for unit in units_of(worth_building(job, free), emulated=emulated)
                          if wanted[id(missed)] & {r.candidate_id for r in unit}]
        total = self._count(left)
        self.on_line(f"{total} of {self._count(jobs)} {self._what} to run on {known.name}, session {self.session.name}")
        settings = BuildSettings(known.kind, known.arch, "", _BUILD_TIMEOUT_S)
        with BuildAhead(units, settings, self.runner.work_dir, workers=build_workers()) as ahead:
            self._compile_ahead(left, known)
            while left:
                ready, built = _next(left, wanted, ahead, self._over)
                if ready is None:
                    return self._stopped(total, time_limit_s)
                left.remove(ready)
                done = self._job(ready, built)
                if done.state == "failed":
                    return BenchResult("failed", done.message, self._judged)
                if done.state == "stopped" or (left and self._over()):
                    return self._stopped(total, time_limit_s)
        seconds = time.monotonic() - started
        done_to_them = "measured" if self.plan.strength == DEFAULTS else "judged"
        return BenchResult("done", f"All {total} {self._what} are {done_to_them} ({seconds:.0f} s).", self._judged)

    @property
    def _what(self) -> str:
        return "PyTorch defaults" if self.plan.strength == DEFAULTS else "candidates"

    def _count(self, jobs: list[Job]) -> int:
        return sum(len(job.directions if self.plan.strength == DEFAULTS else job.candidates) for job in jobs)

    def _compile_ahead(self, jobs: list[Job], known: Device) -> None:
        """Compile PyTorch's compiled ways of these jobs in several processes, because one after the other they take minutes."""
        trials = self.session.trials()
        orders = []
        for job in jobs:
            request = self._request(job)
            modes = {d: tuple(k for k in missing_ways(d, trials, request, known) if WAYS[k].compiled) for d in job.directions}
            if any(modes.values()):
                orders.append(CompileOrder(job.workload, self.device, {d: keys for d, keys in modes.items() if keys}))
        if len(orders) < 2 or build_workers() < 2:
            return
        ways, started = sum(map(len, (m for o in orders for m in o.modes.values()))), time.monotonic()
        self.on_line(f"torch.compile compiles {ways} of PyTorch's ways in {build_workers()} processes at most")
        with held(self.device, self.on_line):
            count = compile_ahead(orders, known, self.runner.work_dir, workers=build_workers(), over=self._over)
        self.on_line(f"  {count} are prepared ({time.monotonic() - started:.0f} s)")

    def _job(self, job: Job, built: dict[str, Prebuilt]) -> Run:
        request = replace(self._request(job), built=built)

        def on_change(run: Run) -> None:
            self._tell(run)
            if self._over() and not run.wait(0):
                self.runner.stop(run)

        self.on_line(f"{job.workload.preset}: {self._count([job])} {self._what}")
        return self.runner.run(request, self.session, resume=not self.plan.modules, on_change=on_change)

    def _request(self, job: Job) -> RunRequest:
        plan = self.plan
        return RunRequest(job.workload, job.candidates, device=self.device, directions=job.directions, effort=plan.effort,
                          strength=plan.strength, classes=(plan.precision,), max_autotune=plan.max_autotune,
                          baselines=not plan.modules, modules=plan.modules, run_timeout_s=_RUN_TIMEOUT_S)

    def _tell(self, run: Run) -> None:
        for trial in [t for t in list(run.trials) if t.trial_id not in self._said]:
            self._said.add(trial.trial_id)
            self._judged += trial.kind == ("baseline" if self.plan.strength == DEFAULTS else "candidate")
            self.on_line(f"  {trial.status:<10} {line_of(trial)}")

    def _missing(self, job: Job, device: Device) -> Job | None:
        """The job without the trials that the session has already; None if nothing is missing, including PyTorch's times."""
        trials = self.session.trials()
        request = self._request(job)
        if self.plan.modules:
            return None if any(t.kind == "module" and t.status not in NO_VERDICT and t.workload == job.workload
                               and t.device.key == device.key for t in trials) else job
        left = missing(job.candidates, trials, request, device)
        more = [d for d in job.directions if missing_ways(d, trials, request, device)]
        if self.plan.strength == DEFAULTS:
            job = replace(job, directions=tuple(more))
        return replace(job, candidates=tuple(left)) if left or more else None

    def _stopped(self, total: int, limit_s: float | None) -> BenchResult:
        why = f"the time limit of {limit_s:g} s" if limit_s is not None and not self._stop.is_set() else "a request"
        return BenchResult("stopped", f"Stopped by {why} after {self._judged} of {total} {self._what}; to continue, "
                           f"give --session {self.session.name}.", self._judged)


def begin(session: Session, plan: BenchPlan, gpu: str) -> None:
    """Write the cells of the bench into the session as an event, once for each plan."""
    suites = dict.fromkeys(PRESETS[name].suite for name in plan.layers)
    fields = {"suite": ",".join(suites), "layers": list(plan.layers), "directions": list(plan.directions),
              "precision": plan.precision, "memory_format": plan.memory_format, "size": plan.size, "configs": plan.configs,
              "sweep": plan.sweep, "top": plan.top, "seed": plan.seed, "device": gpu,
              "defaults": plan.strength == DEFAULTS, "variants": list(plan.variants), "modules": plan.modules,
              "known": plan.known is not None}
    for event in ({**_BEFORE, **e} for e in session.events()):
        if event.get("event") == EVENT and {k: event.get(k) for k in fields} == fields:
            return
    session.event(EVENT, **fields)


def is_of_modules(event: dict[str, Any]) -> bool:
    """Whether the event begins a bench of whole modules. Its candidates were not compared with PyTorch, so it has no cells."""
    return event.get("event") == EVENT and bool(event.get("modules"))


def under_way(session: Session, at: datetime) -> str | None:
    """The last message of a run in that session, of any process, within the last seconds before `at`; None if no run is active.
    A run writes heartbeats, so a killed run is recognised by their absence."""
    living = ("heartbeat", "phase", "run_started")
    last: dict[str, Any] = next((e for e in reversed(session.events())
                                 if e.get("event") in living or str(e.get("event")).startswith("run_")), {})
    if last.get("event") not in living:
        return None
    try:
        silent = (at - datetime.fromisoformat(str(last.get("at")))).total_seconds()
    except (TypeError, ValueError):
        return None
    return str(last.get("message") or last.get("phase") or "") if silent < _SILENT_S else None


def line_of(trial: Trial) -> str:
    """One finished trial as a line of progress."""
    time_ms = f"{trial.kernel_ms.median_ms:.4g} ms" if trial.kernel_ms else trial.headline
    config = " ".join(f"{k}={v}" for k, v in trial.config.items())
    return f"{trial.workload.preset} {trial.direction} {trial.name} {trial.precision} {config}: {time_ms}"


def worth_building(job: Job, free_bytes: int) -> list[Rendered]:
    """The rendered candidates whose tensors fit into that memory. For the others the run writes trials that give the reason."""
    found = []
    for candidate in job.candidates:
        if tensor_bytes(job.workload, candidate.direction) > free_bytes:
            continue
        try:
            found.append(render(candidate))
        except RenderError:
            continue
    return found


def _next(left: list[Job], wanted: dict[int, set[str]], ahead: BuildAhead, over: Callable[[], bool]
          ) -> tuple[Job | None, dict[str, Prebuilt]]:
    """The first job in the order whose libraries are built. It waits until there is one. (None, {}) if the bench is over."""
    while not over():
        for job in left:
            built = ahead.take(wanted[id(job)], timeout_s=0)
            if built is not None:
                return job, built
        time.sleep(_POLL_S)
    return None, {}
