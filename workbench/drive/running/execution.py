"""The loop of a run: it builds, judges and times the candidates of a request. Every finished trial is written at once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ...core import ceilings
from ...core.candidate import why_not
from ...core.errors import BadRequest, RenderError
from ...core.facts import tensor_bytes
from ...core.layer import BACKWARD, LAUNCHES
from ...core.orders import BaselineOrder, CompareOrder, JudgeOrder, Order
from ...core.pytorch_ways import AUTOTUNED, WAYS
from ...core.replies import Baseline, Built, Compared, Event, Outcome
from ...core.template import Rendered, render
from ...core.trial import FORMULATION, Status, Trial
from ..exporting.module_run import judge_modules
from ..machine.device_lock import DeviceLock
from ..sessions.session import Session, SessionFull
from . import outcome
from .builds import BuildSettings
from .interleaved import against_best
from .request import DEFAULTS, Row, Run
from .resume import missing_ways
from .worker_process import WorkerCancelled, WorkerDied, WorkerFailed, WorkerTimeout
from .workers import Workers, units

R = TypeVar("R")
_HEARTBEAT_S = 2.0
_TUNED_S = 300.0   # of max-autotune, without a sign of life
_PHASES = {"truth": "checking", "check": "checking", "time": "timing", "recheck": "rechecking"}

_Prepared = tuple[Row, Rendered]


class Execution:
    """Carries out `run`, whose rows, state and message others watch meanwhile. `name`: "cpu" or "cuda:N"."""

    def __init__(self, run: Run, session: Session, workers: Workers, name: str, *, resume: bool) -> None:
        self.run, self.request, self.session, self.workers = run, run.request, session, workers
        self.name, self.resume = name, resume
        self.free_bytes = 0

    def go(self) -> None:
        """To the end, whatever happens: rows that were not judged become CANCELLED, and the run says how it ended."""
        run = self.run
        state, message = "failed", "the run ended unexpectedly"
        try:
            state, message = self._steps()
        except (BadRequest, SessionFull, WorkerDied, WorkerFailed, WorkerTimeout) as error:
            message = str(error)
        except OSError as error:  # scratch, cache or locks: as unwritable as a session may be
            place = f"{error.filename} cannot be used: " if error.filename else ""
            message = f"{place}{error.strerror or type(error).__name__}."
        except WorkerCancelled:
            state, message = "stopped", "stopped"
        finally:
            for row in run.rows:
                if row.phase != "done":
                    row.phase, row.status = "done", Status.CANCELLED
                    row.text = f"Not judged: {message}" if state == "failed" else f"Stopped after {len(run.trials)} trials."
            run.state, run.message = state, message
            with contextlib.suppress(BadRequest, OSError):
                self.session.event("run_" + ("finished" if state == "done" else state), run_id=run.run_id, message=message,
                                   trials=len(run.trials))
            run.finished.set()

    def _steps(self) -> tuple[str, str]:
        run = self.run
        self.session.event("run_started", run_id=run.run_id, device=self.name, workload=self.request.workload.to_json(),
                           rows=[{"label": r.label, "config": r.config} for r in run.rows])
        if run.cancelled.is_set():
            return "stopped", "stopped before it began"
        run.device = self.workers.device(self.name, stop=run.cancelled)
        lock = DeviceLock(self.name)
        if not lock.acquire(cancelled=run.cancelled, waiting=self._waiting):
            return "stopped", "stopped while it waited for the device"
        try:
            run.state, run.message = "running", "preparing"
            threading.Thread(target=self._beat, daemon=True).start()
            self.free_bytes = self.workers.free_bytes(self.name, stop=run.cancelled)
            self._measure_ceilings()
            self._candidates()
            if self.request.modules and not run.cancelled.is_set():
                run.message = "judging ModelNew against nn.ConvTranspose"
                for trial in judge_modules(self._fresh, run, self.session, self.name, self.workers.scratch):
                    self._record(trial)
        finally:
            lock.release()
        if run.cancelled.is_set():
            return "stopped", f"stopped after {run.done_rows} of {len(run.rows)} candidates"
        return "done", f"{len(run.rows)} candidates judged"

    def _candidates(self) -> None:
        """Wave by wave: build, then judge. PyTorch is measured once there is something to compare it with."""
        waves = list(_waves(self._prepared(), 2 * self.workers.pool.size)) or [[]]
        for number, wave in enumerate(waves):
            built = self._build(wave) if wave else {}
            if number == 0:
                self._measure_baselines()
            for row, rendered in wave:
                if self.run.cancelled.is_set():
                    return
                if rendered.candidate_id in built and row.phase != "done":
                    self._judge(row, rendered, built[rendered.candidate_id])

    def _prepared(self) -> list[_Prepared]:
        """Render all; what cannot run, does not fit into memory or cannot be rendered becomes its trial here."""
        ready = []
        for row in self.run.rows:
            try:
                reason = why_not(row.candidate, sm=self.run.known_device.sm)
                rendered = None if reason else render(row.candidate)
            except RenderError as error:
                self._finish(row, None, None, outcome.render_failed(error))
                continue
            needed = tensor_bytes(self.request.workload, row.direction)
            if rendered is None:
                self._finish(row, None, None, outcome.skipped(str(reason)))
            elif needed > self.free_bytes:
                self._finish(row, rendered, None, outcome.too_large(needed, self.free_bytes, self.name))
            else:
                row.log_path = self._log_of(rendered)
                ready.append((row, rendered))
        return ready

    def _build(self, wave: list[_Prepared]) -> dict[str, Built]:
        """Build one wave; failed builds become trials. Returns the others: candidate_id -> build."""
        rows = {rendered.candidate_id: row for row, rendered in wave}
        done: dict[str, Built] = {}

        def log_of(item: Rendered) -> Path:
            path = self._log_of(item)
            path.touch()
            return path

        def on_done(item: Rendered, build: Built) -> None:
            done[item.candidate_id] = build
            if build.status == Status.OK:
                seconds = "cached" if build.cached else f"built in {build.seconds:.1f} s"
                self._phase(rows[item.candidate_id], "building", seconds)

        pool, before, device = self.workers.pool, self.request.built, self.run.known_device
        settings = BuildSettings(device.kind, device.arch, self.request.sanitize, self.request.build_timeout_s)
        self.run.message = f"building {len(wave)} candidates"
        for row, rendered in wave:
            if rendered.candidate_id in before:
                row.log_path = before[rendered.candidate_id].log
                on_done(rendered, before[rendered.candidate_id].build)
        resources = pool.build(
            units([r for _, r in wave if r.candidate_id not in before], pool.size), settings, log_of=log_of, on_done=on_done,
            on_start=lambda item: self._phase(rows[item.candidate_id], "building", "compiling"), cancelled=self.run.cancelled)
        built = {}
        for row, rendered in wave:
            if (build := done.get(rendered.candidate_id)) is None:
                continue
            if rendered.candidate_id not in before:
                build = replace(build, resources=resources.get(rendered.candidate_id, {}))
            if build.status == Status.OK:
                built[rendered.candidate_id] = build
            else:
                self._finish(row, rendered, build, build)
        return built

    def _judge(self, row: Row, rendered: Rendered, build: Built) -> None:
        self._phase(row, "checking", "making inputs and the float64 truth")
        self.run.message = f"checking {row.label}"
        order = self.workers.judge_order(self.name, rendered, build, self.request)

        def on_event(event: Event) -> None:
            self._phase(row, _PHASES.get(event.phase, row.phase), event.text)
            self.run.message = f"{row.phase} {row.label}: {row.text}"

        result = self.workers.judge(order, sanitize=self.request.sanitize, on_event=on_event, stop=self.run.cancelled)
        self._finish(row, rendered, build, result, order=order)

    def _measure_ceilings(self) -> None:
        """Once per GPU and machine: what it can read, write, copy and multiply."""
        device = self.run.known_device
        if not self.request.time or device.kind == "cpu" or ceilings.kept(device.name):
            return
        self.run.message = f"measuring what {device.name} can do, once"
        self.workers.measure_ceilings(self.name, stop=self.run.cancelled)

    def _measure_baselines(self) -> None:
        run, request = self.run, self.request
        if not request.baselines or run.cancelled.is_set():
            return
        wanted = list(request.directions) or [d for d in LAUNCHES if any(r.direction == d for r in run.rows)]
        if BACKWARD in wanted and run.rows and not any(r.direction == BACKWARD and r.status != Status.SKIPPED
                                                       for r in run.rows):
            wanted.remove(BACKWARD)  # nothing to compare it with
        there = self.session.trials() if self.resume else []
        asked = {d: missing_ways(d, there, request, run.known_device) for d in wanted}
        wanted = [d for d in wanted if asked[d]]
        alone = request.strength == DEFAULTS
        for directions in [wanted] if alone and wanted else [[d] for d in wanted]:
            parts = [part for tuned in (False, True)
                     if (part := [k for k in asked[directions[0]] if WAYS[k].kind.startswith(AUTOTUNED) == tuned])]
            while parts and not run.cancelled.is_set():
                run.message = f"measuring PyTorch {', '.join(directions)}"
                modes = parts.pop(0)
                found, answered = self._baselines(directions, modes)
                for measured in found:
                    self._record(outcome.baseline_trial(self.session, run, measured))
                rest = [k for k in modes if not WAYS[k].formulation]
                if not answered and rest and rest != modes:
                    parts.insert(0, rest)  # a formulation that took its process along does not cost the modes

    def _baselines(self, directions: list[str], modes: list[str]) -> tuple[list[Baseline], bool]:
        """What the measuring process says of these ways, and whether it lived to say it. cuDNN keeps what cudnn.benchmark
        chose earlier in a process, so the default alone is asked in its own; max-autotune too, whose kernels are new."""
        request, limit_s = self.request, 4 * self.request.run_timeout_s
        if too_large := next((why for d in directions if (why := self._too_large(d))), None):
            return _unmeasured(directions, too_large), True
        order = BaselineOrder(request.workload, self.name, tuple(directions), tuple(modes), effort=request.effort,
                              cold_l2=request.cold_l2, scratch=self.workers.scratch)
        try:
            if request.strength == DEFAULTS:
                alone = self._fresh(order, limit_s=limit_s).baselines
                return [replace(b, detail=replace(b.detail, fresh_process=True)) for b in alone], True
            if WAYS[modes[0]].kind.startswith(AUTOTUNED):
                return list(self._fresh(order, limit_s=max(_TUNED_S, limit_s)).baselines), True
            return list(self.workers.measure(self.name).call(order, limit_s=limit_s, stop=self.run.cancelled,
                                                             on_event=lambda event: limit_s).baselines), True
        except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
            formulations = [WAYS[key].name for key in modes if WAYS[key].formulation]
            return _unmeasured(directions, outcome.failure(error, building=False), formulations=formulations), False

    def _too_large(self, direction: str) -> Outcome | None:
        """The outcome of a direction whose tensors do not fit."""
        needed = tensor_bytes(self.request.workload, direction)
        return outcome.too_large(needed, self.free_bytes, self.name) if needed > self.free_bytes else None

    def _fresh(self, order: Order[R], *, limit_s: float) -> R:
        return self.workers.fresh(order, self.name, limit_s=limit_s, stop=self.run.cancelled)

    # -- records ------------------------------------------------------------------------------------------------

    def _finish(self, row: Row, rendered: Rendered | None, build: Built | None, result: Outcome, *,
                order: JudgeOrder | None = None) -> None:
        trial = outcome.candidate_trial(self.session, self.run, row, rendered, build, result)
        if order and self.request.baselines:
            def compare(contestants: CompareOrder) -> Compared:
                self._phase(row, "timing", "in turns with the best PyTorch")
                limit_s = self.request.run_timeout_s
                return self.workers.measure(self.name).call(contestants, limit_s=limit_s, on_event=lambda event: limit_s,
                                                            stop=self.run.cancelled)
            trial = against_best(compare, self.session, order, trial, self.run.trials)
        self._record(trial)
        row.status, row.trial_id, row.text, row.phase = trial.status, trial.trial_id, trial.headline, "done"

    def _record(self, trial: Trial) -> None:
        self.session.append(trial)
        self.run.trials.append(trial)

    def _phase(self, row: Row, phase: str, text: str) -> None:
        if row.phase != phase:
            row.started_at = row.started_at or time.time()
            self.session.event("phase", run_id=self.run.run_id, row=self.run.rows.index(row), phase=phase)
        row.phase, row.text = phase, text

    def _waiting(self, holder: str) -> None:
        self.session.event("waiting", run_id=self.run.run_id, holder=holder)
        self.run.message = f"waits: {self.name} is used by {holder}"

    def _log_of(self, item: Rendered) -> Path:
        return self.workers.scratch / f"{self.run.run_id}-{item.candidate_id}.log"

    def _beat(self) -> None:
        while not self.run.finished.wait(_HEARTBEAT_S):
            with contextlib.suppress(BadRequest, OSError):
                self.session.event("heartbeat", run_id=self.run.run_id, done=self.run.done_rows, of=len(self.run.rows),
                                   message=self.run.message)


def _unmeasured(directions: Iterable[str], why: Outcome, *, formulations: Sequence[str] = ()) -> list[Baseline]:
    """Of these formulations, or of nn.ConvTranspose."""
    flags = (FORMULATION,) if formulations else ()
    return [Baseline(name=name, direction=direction, flags=flags, **vars(why)) for direction in directions
            for name in formulations or ("eager",)]


def _waves(ready: list[_Prepared], size: int) -> Iterable[list[_Prepared]]:
    """Build some, then judge them with the builders idle: times are not disturbed, and verdicts come early."""
    for start in range(0, len(ready), max(size, len(ready) // 4)):
        yield ready[start:start + max(size, len(ready) // 4)]
