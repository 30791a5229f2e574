"""The runner: hosts the workers, carries out a `RunRequest` in a thread, and writes every finished trial at once."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..core import ceilings
from ..core.candidate import EMULATED_SM, Candidate, why_not
from ..core.env import gpus
from ..core.errors import BadRequest, RenderError
from ..core.layer import BACKWARD, LAUNCHES
from ..core.roofline import floor
from ..core.template import Rendered, render, symbol
from ..core.trial import Status, Trial
from . import outcome
from .against import against_best
from .builds import BuildOrder, BuildPool
from .device_lock import DeviceLock
from .module_run import judge_modules
from .run import Row, Run, RunRequest
from .session import Session, SessionFull
from .worker_process import WorkerCancelled, WorkerDied, WorkerFailed, WorkerProcess, WorkerTimeout

_HEARTBEAT_S = 2.0
_PHASES = {"truth": "checking", "check": "checking", "time": "timing", "recheck": "rechecking"}


class Runner:
    """Warm workers for one front end. Use as a context manager, or call `close`."""

    def __init__(self, *, build_workers: int | None = None) -> None:
        self.work_dir = Path(tempfile.mkdtemp(prefix="kernel-workbench-"))
        self.runs: list[Run] = []
        self._pool = BuildPool(self.work_dir, size=build_workers)
        self._measure: dict[str, WorkerProcess] = {}
        self._described: dict[str, dict[str, Any]] = {}
        self._one_at_a_time = threading.Lock()
        self._asking = threading.Lock()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop what runs, end all workers, remove scratch files."""
        for run in self.runs:
            run.stop()
            self._kill(run)
        for run in self.runs:
            run.wait(10)
        self._pool.close()
        for worker in self._measure.values():
            worker.close()
        shutil.rmtree(self.work_dir, ignore_errors=True)

    def warm(self, device: str = "auto") -> None:
        """Import torch in a build and in a measure worker, in the background."""
        def work() -> None:
            with contextlib.suppress(WorkerDied, WorkerTimeout, WorkerCancelled):
                self._pool.warm()
                self.device(resolve_device(device))
        threading.Thread(target=work, daemon=True).start()

    def device(self, name: str) -> dict[str, Any]:
        """What the measure worker says of "cpu" or "cuda:N" (name, arch, key, memory); asked once."""
        with self._asking:  # a worker takes one call at a time: `warm` and a run that begins meanwhile both ask
            if name not in self._described:
                self._described[name] = self._worker(name).call("device", {"device": name}, limit_s=120)
            return self._described[name]

    def start(self, request: RunRequest, session: Session, *, resume: bool = False) -> Run:
        """Begin in a thread and return at once. With `resume`, candidates the session has finished are left out."""
        device = resolve_device(request.device)
        candidates = list(request.candidates)
        if resume:
            candidates = missing(candidates, session.trials(), request)
        run = Run(secrets.token_hex(4), request, session.path, [Row(c) for c in candidates])
        self.runs.append(run)
        threading.Thread(target=self._guarded, args=(run, session, device, resume), daemon=True,
                         name=f"run-{run.run_id}").start()
        return run

    def run(self, request: RunRequest, session: Session, *, resume: bool = False,
            on_change: Callable[[Run], None] | None = None) -> Run:
        """As `start`, but wait; an interrupt stops the run. `on_change` is called a few times a second."""
        run = self.start(request, session, resume=resume)
        try:
            while not run.wait(0.1):
                if on_change:
                    on_change(run)
        finally:
            if not run.wait(0):
                self.stop(run)
        if on_change:
            on_change(run)
        return run

    def stop(self, run: Run) -> None:
        """Stop a run now: its compilers and kernels are killed; finished trials stay; the rest is CANCELLED."""
        run.stop()
        self._kill(run)
        run.wait(15)

    def call(self, op: str, request: dict[str, Any], *, limit_s: float = 300) -> dict[str, Any]:
        """One operation in a fresh measure worker (export --verify): nothing is shared with earlier kernels."""
        worker = WorkerProcess("measure", log_path=self.work_dir / f"fresh-{secrets.token_hex(4)}.log")
        try:
            return worker.call(op, request, limit_s=limit_s, on_event=lambda event: limit_s)
        finally:
            worker.close()

    def measure_ceilings(self, device: str) -> None:
        """Measure the rates of a GPU and keep them: from then on they are its floors' ceilings."""
        ceilings.keep(self._worker(device).call("ceilings", {"device": device}, limit_s=120))

    def build_all(self, items: list[Rendered], device: str) -> dict[str, dict[str, Any]]:
        """Build in few shared translation units, without a session. candidate_id -> build result."""
        known = self.device(device)
        built: dict[str, dict[str, Any]] = {}
        order = BuildOrder(str(known["kind"]), str(known["arch"]), "", 600.0)
        self._pool.build(_units(items, self._pool.size), order, with_resources=False,
                         log_of=lambda r: self.work_dir / f"{r.candidate_id}.log", on_start=lambda r: None,
                         on_done=lambda r, result: built.update({r.candidate_id: result}),
                         cancelled=threading.Event())
        return built

    def judge_once(self, device: str, item: Rendered, library: str, request: RunRequest) -> dict[str, Any]:
        """One judgement without a session; a crash or a hang is a result with its status."""
        try:
            return self._worker(device).call("judge", self._judge_order(device, item, library, request),
                                             limit_s=request.run_timeout_s,
                                             on_event=lambda event: request.run_timeout_s)
        except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
            return outcome.failure(error, building=False)

    # -- one run ------------------------------------------------------------------------------------------------

    def _guarded(self, run: Run, session: Session, device: str, resume: bool) -> None:
        state, message = "failed", "the run ended unexpectedly"
        try:
            with self._one_at_a_time:
                state, message = self._execute(run, session, device, resume)
        except (BadRequest, SessionFull, WorkerDied, WorkerFailed, WorkerTimeout) as error:
            message = str(error)
        except WorkerCancelled:
            state, message = "stopped", "stopped"
        finally:
            for row in run.rows:
                if row.phase != "done":
                    row.phase, row.status = "done", Status.CANCELLED
                    row.text = f"Stopped after {len(run.trials)} trials."
            run.finished_at = time.time()
            run.state, run.message = state, message
            with contextlib.suppress(OSError):
                session.event("run_" + ("finished" if state == "done" else state), run_id=run.run_id, message=message,
                              trials=len(run.trials))
            run.finished.set()

    def _execute(self, run: Run, session: Session, device: str, resume: bool) -> tuple[str, str]:
        request = run.request
        session.event("run_started", run_id=run.run_id, device=device, workload=request.workload.to_json(),
                      rows=[{"label": r.label, "config": r.config} for r in run.rows])
        run.device = known = self.device(device)
        sm = int(known.get("sm") or EMULATED_SM)
        lock = DeviceLock(str(known["key"]))

        def waiting(holder: str) -> None:
            run.message = f"waits: {device} is used by {holder}"
            session.event("waiting", run_id=run.run_id, holder=holder)

        if not lock.acquire(cancelled=run.cancelled, waiting=waiting):
            return "stopped", "stopped while it waited for the device"
        heart = threading.Thread(target=_beat, args=(run, session), daemon=True)
        try:
            run.state, run.message = "running", "preparing"
            heart.start()
            if request.time:
                self._measure_ceilings(run, device, known)
            ready = self._prepared(run, session, known, sm)
            waves = list(_waves(ready, 2 * self._pool.size))
            if not waves:
                self._measure_baselines(run, session, device, known, resume)
            for number, wave in enumerate(waves):
                built = self._build(run, session, known, wave)
                if number == 0:
                    self._measure_baselines(run, session, device, known, resume)
                for row, rendered in wave:
                    if run.cancelled.is_set():
                        return "stopped", f"stopped after {run.done_rows} of {len(run.rows)} candidates"
                    if rendered.candidate_id in built and row.phase != "done":
                        self._judge(run, session, device, known, row, rendered, built[rendered.candidate_id])
            if request.modules and not run.cancelled.is_set():
                self._judge_modules(run, session, device, known)
        finally:
            lock.release()
        if run.cancelled.is_set():
            return "stopped", f"stopped after {run.done_rows} of {len(run.rows)} candidates"
        return "done", f"{len(run.rows)} candidates judged"

    def _prepared(self, run: Run, session: Session, device: dict[str, Any], sm: int) -> list[tuple[Row, Rendered]]:
        """Render all; what cannot run or be rendered becomes its trial here."""
        ready = []
        for row in run.rows:
            try:
                reason = why_not(row.candidate, sm=sm)
                rendered = None if reason else render(row.candidate)
            except RenderError as error:
                self._finish(run, session, device, row, None, {}, outcome.render_failed(error))
                continue
            if rendered is None:
                self._finish(run, session, device, row, None, {}, outcome.skipped(str(reason)))
            else:
                row.log_path = self.work_dir / f"{run.run_id}-{rendered.candidate_id}.log"
                ready.append((row, rendered))
        return ready

    def _build(self, run: Run, session: Session, device: dict[str, Any],
               wave: list[tuple[Row, Rendered]]) -> dict[str, dict[str, Any]]:
        """Build one wave; failed builds become trials. Returns candidate_id -> build result."""
        rows = {rendered.candidate_id: row for row, rendered in wave}
        built: dict[str, dict[str, Any]] = {}

        def log_of(item: Rendered) -> Path:
            path = self.work_dir / f"{run.run_id}-{item.candidate_id}.log"
            path.touch()
            return path

        def on_start(item: Rendered) -> None:
            self._phase(session, run, rows[item.candidate_id], "building", "compiling")

        def on_done(item: Rendered, result: dict[str, Any]) -> None:
            row = rows[item.candidate_id]
            if result["status"] == "OK":
                built[item.candidate_id] = result
                seconds = "cached" if result.get("cached") else f"built in {result['seconds']:.1f} s"
                self._phase(session, run, row, "building", seconds)
            else:
                failed[item.candidate_id] = result

        failed: dict[str, dict[str, Any]] = {}
        kind = str(device["kind"])
        order = BuildOrder(kind, str(device["arch"]), run.request.sanitize, run.request.build_timeout_s)
        run.message = f"building {len(wave)} candidates"
        before = run.request.built
        for row, rendered in wave:
            if rendered.candidate_id in before:
                row.log_path = Path(before[rendered.candidate_id]["log"])
                on_done(rendered, before[rendered.candidate_id])
        self._pool.build(_units([r for _, r in wave if r.candidate_id not in before], self._pool.size), order,
                         log_of=log_of, on_start=on_start, on_done=on_done, cancelled=run.cancelled)
        for row, rendered in wave:
            made = before.get(rendered.candidate_id, {})
            known = self._pool.resources.get(rendered.candidate_id) or made.get("resources") or {}
            if rendered.candidate_id in failed:
                result = failed[rendered.candidate_id]
                self._finish(run, session, device, row, rendered, {**result, "resources": known}, result)
            elif rendered.candidate_id in built:
                built[rendered.candidate_id] = {**built[rendered.candidate_id], "resources": known}
        return built

    def _judge(self, run: Run, session: Session, device_name: str, device: dict[str, Any], row: Row,
               rendered: Rendered, build: dict[str, Any]) -> None:
        request = run.request
        self._phase(session, run, row, "checking", "making inputs and the float64 truth")
        run.message = f"checking {row.label}"
        order = self._judge_order(device_name, rendered, build["library"], request)

        def on_event(event: dict[str, Any]) -> float:
            self._phase(session, run, row, _PHASES.get(event.get("phase", ""), row.phase), event.get("text", ""))
            run.message = f"{row.phase} {row.label}: {row.text}"
            return request.run_timeout_s

        try:
            result = self._worker(device_name, sanitize=request.sanitize).call(
                "judge", order, limit_s=request.run_timeout_s, on_event=on_event)
        except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
            result = outcome.failure(error, building=False)
        self._finish(run, session, device, row, rendered, build, result, order=order)

    def _measure_ceilings(self, run: Run, device_name: str, device: dict[str, Any]) -> None:
        """Once per GPU and machine: what it can read, write, copy and multiply."""
        if device["kind"] == "cpu" or ceilings.kept(str(device["name"])):
            return
        run.message = f"measuring what {device['name']} can do, once"
        self.measure_ceilings(device_name)

    def _judge_order(self, device_name: str, item: Rendered, library: str, request: RunRequest) -> dict[str, Any]:
        candidate = item.candidate
        limit = floor(request.workload, candidate.direction, candidate.precision,
                      ceilings.best_known(str(self.device(device_name)["name"])))
        return {"library": library, "symbol": symbol(item), "direction": candidate.direction,
                "computes": list(candidate.variant.computes), "workload": request.workload.to_json(),
                "device": device_name, "precision": candidate.precision, "effort": request.effort,
                "time": request.time, "cold_l2": request.cold_l2, "scratch": str(self.work_dir),
                "limit_s": request.run_timeout_s, "floor_ms": limit.ms if limit else None,
                "sanitize": bool(request.sanitize)}

    def _measure_baselines(self, run: Run, session: Session, device_name: str, device: dict[str, Any],
                           resume: bool) -> None:
        request = run.request
        if not request.baselines or run.cancelled.is_set():
            return
        wanted = list(request.directions) or [d for d in LAUNCHES if any(r.direction == d for r in run.rows)]
        if BACKWARD in wanted and run.rows and not any(r.direction == BACKWARD and r.status != Status.SKIPPED
                                                       for r in run.rows):
            wanted.remove(BACKWARD)  # nothing to compare it with
        if resume:
            have = {t.direction for t in session.trials() if t.kind == "baseline" and t.ok
                    and _same_work(t, request, device)}
            wanted = [d for d in wanted if d not in have]
        for direction in wanted:
            run.message = f"measuring PyTorch {direction}"
            order = {"workload": request.workload.to_json(), "directions": [direction], "device": device_name,
                     "effort": request.effort, "cold_l2": request.cold_l2, "scratch": str(self.work_dir),
                     "strength": request.strength}
            try:
                answer = self._worker(device_name).call("baseline", order, limit_s=4 * request.run_timeout_s,
                                                        on_event=lambda event: 4 * request.run_timeout_s)
            except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
                answer = {"baselines": [{"name": "eager", "direction": direction, "precision": "",
                                         **outcome.failure(error, building=False)}]}
            for measured in answer["baselines"]:
                self._record(run, session, outcome.baseline_trial(session, run, device, measured))

    def _judge_modules(self, run: Run, session: Session, device_name: str, device: dict[str, Any]) -> None:
        run.message = "judging ModelNew against nn.ConvTranspose"
        for trial in judge_modules(self.call, run, session, device_name, device, self.work_dir):
            self._record(run, session, trial)

    # -- records ------------------------------------------------------------------------------------------------

    def _finish(self, run: Run, session: Session, device: dict[str, Any], row: Row, rendered: Rendered | None,
                build: dict[str, Any], result: dict[str, Any], *, order: dict[str, Any] | None = None) -> None:
        trial = outcome.candidate_trial(session, run, device, row.candidate, rendered, build, result,
                                        log=row.log_path, emulated=device["kind"] == "cpu")
        if order and run.request.baselines:
            def compare(contestants: dict[str, Any]) -> dict[str, Any]:
                self._phase(session, run, row, "timing", "in turns with the best PyTorch")
                return self._worker(order["device"]).call("compare", contestants, limit_s=run.request.run_timeout_s,
                                                          on_event=lambda event: run.request.run_timeout_s)
            trial = against_best(compare, session, order, trial, run.trials)
        self._record(run, session, trial)
        row.status, row.trial_id, row.text, row.phase = trial.status, trial.trial_id, trial.headline, "done"

    def _record(self, run: Run, session: Session, trial: Trial) -> None:
        session.append(trial)
        run.trials.append(trial)

    def _phase(self, session: Session, run: Run, row: Row, phase: str, text: str) -> None:
        if row.phase != phase:
            row.started_at = row.started_at or time.time()
            session.event("phase", run_id=run.run_id, row=run.rows.index(row), phase=phase)
        row.phase, row.text = phase, text

    # -- workers ------------------------------------------------------------------------------------------------

    def _worker(self, device: str, *, sanitize: str = "") -> WorkerProcess:
        """The one measure worker of a device; kernels built with AddressSanitizer get one with its runtime."""
        key = f"{device}-{sanitize}" if sanitize else device
        if key not in self._measure:
            self._measure[key] = WorkerProcess(
                "measure", log_path=self.work_dir / f"measure-{key.replace(':', '')}.log",
                environment=sanitizer_environment() if sanitize else {})
        return self._measure[key]

    def _kill(self, run: Run) -> None:
        if run.active:
            self._pool.stop()
            for worker in self._measure.values():
                worker.kill()


def resolve_device(name: str) -> str:
    """"auto" -> "cuda:0" where there is a GPU, else "cpu". Raises `BadRequest` for a device that is not there."""
    if name == "cpu":
        return name
    there = [f"cuda:{gpu.index}" for gpu in gpus()]
    if name == "auto":
        return there[0] if there else "cpu"
    name = "cuda:0" if name == "cuda" else name
    if name not in there:
        raise BadRequest(f"Device {name!r} is not on this machine; choose {', '.join([*there, 'cpu'])}.", field="device")
    return name


def missing(candidates: Iterable[Candidate], trials: list[Trial], request: RunRequest) -> list[Candidate]:
    """Candidates without a finished trial of the same work on the same kind of device. CANCELLED is not finished."""
    kind = "cpu" if resolve_device(request.device) == "cpu" else "cuda"
    done = {(t.candidate_id or (t.name, t.direction, str(sorted(t.config.items())))) for t in trials
            if t.kind == "candidate" and t.status is not Status.CANCELLED and t.device.get("kind") == kind
            and t.workload == request.workload.to_json()}
    left = []
    for candidate in candidates:
        try:
            key: object = render(candidate).candidate_id
        except RenderError:
            key = None
        if key not in done and (candidate.variant.name, candidate.direction,
                                str(sorted(candidate.config.items()))) not in done:
            left.append(candidate)
    return left


def sanitizer_environment() -> dict[str, str]:
    """AddressSanitizer's runtime must be in the process before Python: preload it. Leaks are Python's, not ours."""
    import subprocess

    from ..core.env import find_toolchain
    compiler = find_toolchain().cxx
    if compiler is None:
        raise BadRequest("AddressSanitizer needs a C++ compiler; install g++.")
    library = subprocess.run([str(compiler), "-print-file-name=libasan.so"], capture_output=True, text=True, timeout=10,
                             check=False).stdout.strip()
    if not Path(library).is_absolute():
        raise BadRequest("AddressSanitizer's runtime (libasan) was not found; install the libasan of your g++.")
    return {"LD_PRELOAD": library, "CUDACPU_THREADS": "1",
            "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0:verify_asan_link_order=0:exitcode=86"}


def _same_work(trial: Trial, request: RunRequest, device: dict[str, Any]) -> bool:
    return trial.workload == request.workload.to_json() and trial.device.get("key") == device["key"]


def _waves(ready: list[tuple[Row, Rendered]], size: int) -> Iterable[list[tuple[Row, Rendered]]]:
    """Build some, then judge them with the builders idle: times are not disturbed, and verdicts come early."""
    for start in range(0, len(ready), max(size, len(ready) // 4)):
        yield ready[start:start + max(size, len(ready) // 4)]


def _units(items: list[Rendered], workers: int) -> list[list[Rendered]]:
    """Few candidates: one library each. Many: shared translation units of one flag set, spread over the workers."""
    if len(items) <= 2 * workers:
        return [[item] for item in items]
    by_flags: dict[tuple[str, ...], list[Rendered]] = {}
    for item in items:
        by_flags.setdefault(item.candidate.compile_flags, []).append(item)
    units = []
    for group in by_flags.values():
        size = max(2, min(24, -(-len(group) // workers)))
        units += [group[i:i + size] for i in range(0, len(group), size)]
    return units


def _beat(run: Run, session: Session) -> None:
    while not run.finished.wait(_HEARTBEAT_S):
        with contextlib.suppress(OSError):
            session.event("heartbeat", run_id=run.run_id, done=run.done_rows, of=len(run.rows), message=run.message)
