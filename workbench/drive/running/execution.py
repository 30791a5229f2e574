"""One run, from its request to its last trial. Every finished trial is written at once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...core import ceilings
from ...core.candidate import EMULATED_SM, why_not
from ...core.errors import BadRequest, RenderError
from ...core.facts import tensor_bytes
from ...core.layer import BACKWARD, LAUNCHES
from ...core.pytorch_ways import AUTOTUNED, WAYS
from ...core.template import Rendered, render
from ...core.trial import FORMULATION, Status, Trial
from ..exporting.module_run import judge_modules
from ..machine.device_lock import DeviceLock
from ..sessions.session import Session, SessionFull
from . import outcome
from .builds import BuildOrder
from .interleaved import against_best
from .request import DEFAULTS, FRESH, Row, Run
from .resume import missing_ways
from .worker_process import WorkerCancelled, WorkerDied, WorkerFailed, WorkerTimeout
from .workers import Workers, units

_HEARTBEAT_S = 2.0
_PHASES = {"truth": "checking", "check": "checking", "time": "timing", "recheck": "rechecking"}
_MODULE_S = 300.0

_Prepared = tuple[Row, Rendered]


class Execution:
    """Carries out `run`, whose rows, state and message others watch meanwhile. `name`: "cpu" or "cuda:N"."""

    def __init__(self, run: Run, session: Session, workers: Workers, name: str, *, resume: bool) -> None:
        self.run, self.request, self.session, self.workers = run, run.request, session, workers
        self.name, self.resume = name, resume
        self.device: dict[str, Any] = {}
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
        run.device = self.device = self.workers.device(self.name, stop=run.cancelled)
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
                for trial in judge_modules(self._fresh, run, self.session, self.name, self.device, self.workers.scratch):
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
        sm = int(self.device.get("sm") or EMULATED_SM)
        for row in self.run.rows:
            try:
                reason = why_not(row.candidate, sm=sm)
                rendered = None if reason else render(row.candidate)
            except RenderError as error:
                self._finish(row, None, {}, outcome.render_failed(error))
                continue
            needed = tensor_bytes(self.request.workload, row.direction)
            if rendered is None:
                self._finish(row, None, {}, outcome.skipped(str(reason)))
            elif needed > self.free_bytes:
                self._finish(row, rendered, {}, outcome.too_large(needed, self.free_bytes, self.name))
            else:
                row.log_path = self._log_of(rendered)
                ready.append((row, rendered))
        return ready

    def _build(self, wave: list[_Prepared]) -> dict[str, dict[str, Any]]:
        """Build one wave; failed builds become trials. Returns candidate_id -> build result."""
        rows = {rendered.candidate_id: row for row, rendered in wave}
        built: dict[str, dict[str, Any]] = {}
        failed: dict[str, dict[str, Any]] = {}

        def log_of(item: Rendered) -> Path:
            path = self._log_of(item)
            path.touch()
            return path

        def on_done(item: Rendered, result: dict[str, Any]) -> None:
            if result["status"] == "OK":
                built[item.candidate_id] = result
                seconds = "cached" if result.get("cached") else f"built in {result['seconds']:.1f} s"
                self._phase(rows[item.candidate_id], "building", seconds)
            else:
                failed[item.candidate_id] = result

        pool, before = self.workers.pool, self.request.built
        order = BuildOrder(str(self.device["kind"]), str(self.device["arch"]), self.request.sanitize,
                           self.request.build_timeout_s)
        self.run.message = f"building {len(wave)} candidates"
        for row, rendered in wave:
            if rendered.candidate_id in before:
                row.log_path = Path(before[rendered.candidate_id]["log"])
                on_done(rendered, before[rendered.candidate_id])
        pool.build(units([r for _, r in wave if r.candidate_id not in before], pool.size), order, log_of=log_of,
                   on_start=lambda item: self._phase(rows[item.candidate_id], "building", "compiling"), on_done=on_done,
                   cancelled=self.run.cancelled)
        for row, rendered in wave:
            made = before.get(rendered.candidate_id, {})
            resources = pool.resources.get(rendered.candidate_id) or made.get("resources") or {}
            if rendered.candidate_id in failed:
                result = failed[rendered.candidate_id]
                self._finish(row, rendered, {**result, "resources": resources}, result)
            elif rendered.candidate_id in built:
                built[rendered.candidate_id] = {**built[rendered.candidate_id], "resources": resources}
        return built

    def _judge(self, row: Row, rendered: Rendered, build: dict[str, Any]) -> None:
        self._phase(row, "checking", "making inputs and the float64 truth")
        self.run.message = f"checking {row.label}"
        order = self.workers.judge_order(self.name, rendered, build["library"], self.request)
        limit_s = self.request.run_timeout_s

        def on_event(event: dict[str, Any]) -> float:
            self._phase(row, _PHASES.get(event.get("phase", ""), row.phase), event.get("text", ""))
            self.run.message = f"{row.phase} {row.label}: {row.text}"
            return limit_s

        try:
            result = self.workers.measure(self.name, sanitize=self.request.sanitize).call(
                "judge", order, limit_s=limit_s, on_event=on_event, stop=self.run.cancelled)
        except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
            result = outcome.failure(error, building=False)
        self._finish(row, rendered, build, result, order=order)

    def _measure_ceilings(self) -> None:
        """Once per GPU and machine: what it can read, write, copy and multiply."""
        if not self.request.time or self.device["kind"] == "cpu" or ceilings.kept(str(self.device["name"])):
            return
        self.run.message = f"measuring what {self.device['name']} can do, once"
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
        asked = {d: missing_ways(d, there, request, self.device) for d in wanted}
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
                    self._record(outcome.baseline_trial(self.session, run, self.device, measured))
                rest = [k for k in modes if not WAYS[k].formulation]
                if not answered and rest and rest != modes:
                    parts.insert(0, rest)  # a formulation that took its process along does not cost the modes

    def _baselines(self, directions: list[str], modes: list[str]) -> tuple[list[dict[str, Any]], bool]:
        """What the measuring process says of these ways, and whether it lived to say it. cuDNN keeps what cudnn.benchmark
        chose earlier in a process, so the default alone is asked in its own; max-autotune too, whose kernels are new."""
        request = self.request
        alone, limit_s = request.strength == DEFAULTS, 4 * request.run_timeout_s
        if too_large := next((why for d in directions if (why := self._too_large(d))), None):
            return [{"name": "eager", "direction": d, "precision": "", **too_large} for d in directions], True
        order = {"workload": request.workload.to_json(), "directions": directions, "device": self.name,
                 "effort": request.effort, "cold_l2": request.cold_l2, "scratch": str(self.workers.scratch), "modes": modes}
        try:
            if alone:
                found = self._fresh("baseline", order, limit_s=limit_s)["baselines"]
                return [{**b, "detail": {**b.get("detail", {}), FRESH: True}} for b in found], True
            if WAYS[modes[0]].kind.startswith(AUTOTUNED):
                return self._fresh("baseline", order, limit_s=_MODULE_S)["baselines"], True
            return self.workers.measure(self.name).call("baseline", order, limit_s=limit_s, stop=self.run.cancelled,
                                                        on_event=lambda event: limit_s)["baselines"], True
        except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
            failed = outcome.failure(error, building=False)
            formulations = [WAYS[key].name for key in modes if WAYS[key].formulation]
            return [{"name": name, "direction": d, "precision": "", "flags": [FORMULATION] if formulations else [], **failed}
                    for d in directions for name in formulations or ["eager"]], False

    def _too_large(self, direction: str) -> dict[str, Any] | None:
        """The outcome of a direction whose tensors do not fit."""
        needed = tensor_bytes(self.request.workload, direction)
        return outcome.too_large(needed, self.free_bytes, self.name) if needed > self.free_bytes else None

    def _fresh(self, op: str, request: dict[str, Any], *, limit_s: float = _MODULE_S) -> dict[str, Any]:
        return self.workers.fresh(op, request, limit_s=limit_s, stop=self.run.cancelled)

    # -- records ------------------------------------------------------------------------------------------------

    def _finish(self, row: Row, rendered: Rendered | None, build: dict[str, Any], result: dict[str, Any], *,
                order: dict[str, Any] | None = None) -> None:
        trial = outcome.candidate_trial(self.session, self.run, self.device, row.candidate, rendered, build, result,
                                        log=row.log_path, emulated=self.device["kind"] == "cpu")
        if order and self.request.baselines:
            def compare(contestants: dict[str, Any]) -> dict[str, Any]:
                self._phase(row, "timing", "in turns with the best PyTorch")
                limit_s = self.request.run_timeout_s
                return self.workers.measure(self.name).call("compare", contestants, limit_s=limit_s,
                                                            on_event=lambda event: limit_s, stop=self.run.cancelled)
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
        self.run.message = f"waits: {self.name} is used by {holder}"
        self.session.event("waiting", run_id=self.run.run_id, holder=holder)

    def _log_of(self, item: Rendered) -> Path:
        return self.workers.scratch / f"{self.run.run_id}-{item.candidate_id}.log"

    def _beat(self) -> None:
        while not self.run.finished.wait(_HEARTBEAT_S):
            with contextlib.suppress(BadRequest, OSError):
                self.session.event("heartbeat", run_id=self.run.run_id, done=self.run.done_rows, of=len(self.run.rows),
                                   message=self.run.message)


def _waves(ready: list[_Prepared], size: int) -> Iterable[list[_Prepared]]:
    """Build some, then judge them with the builders idle: times are not disturbed, and verdicts come early."""
    for start in range(0, len(ready), max(size, len(ready) // 4)):
        yield ready[start:start + max(size, len(ready) // 4)]
