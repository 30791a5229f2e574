"""The loop of a run: it builds, judges and times the candidates of a feed. Every finished trial is written at once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar

from ...core import roofline
from ...core.candidate import tiles_of, why_not
from ...core.errors import BadRequest, RenderError
from ...core.facts import tensor_bytes
from ...core.occupancy import too_many_registers
from ...core.orders import ExplainOrder, InterleaveOrder, JudgeOrder, Order
from ...core.replies import Built, Device, Event, Interleaved, Judged, Outcome
from ...core.template import Rendered, render
from ...core.trial import WRONG_VALUES, Status, Trial
from ...core.wrong_values import advice_of, sentence
from ..exporting.export import judge_modules
from ..machine.daemon_threads import DaemonThreads, Shared
from ..machine.device_lock import DeviceLock
from ..sessions.session import Session, SessionFull
from . import outcome
from .against_pytorch import Baselines, against_best
from .builds import BuildSettings
from .request import Feed, Listed, Row, Run, RunRequest
from .worker_process import WorkerCancelled, WorkerDied, WorkerFailed, WorkerTimeout
from .workers import Workers, device_of, is_elsewhere, units

R = TypeVar("R")
_HEARTBEAT_S, _POLL_S, _BACK_S = 2.0, 0.05, 1.0
_PHASES = {"truth": "checking", "check": "checking", "time": "timing", "recheck": "rechecking"}
_MAY_BE_THE_DEVICE = frozenset({Status.WORKER_DIED, Status.MACHINE_FAILED, Status.KERNEL_FAULT, Status.RUN_TIMEOUT})

_Prepared = tuple[Row, Rendered]
_Ready = tuple[Row, Rendered, Built]


class DeviceLost(RuntimeError):
    """No device is left: the last one does not answer any more."""


class Execution:
    """Carries out `run`. Other threads read its rows, state and message meanwhile. `places`: one for each measuring process:
    "cpu" or "cuda:N"; further processes on the same device are "cpu#1", ... `then`: the last step; the device is still held,
    and nothing is built.
    """

    patience_s = 120.0     # seconds without a worker of a cluster before the run ends

    def __init__(self, run: Run, session: Session, workers: Workers, places: Sequence[str], *, resume: bool,
                 feed: Feed | None = None, then: Callable[[Execution], None] = lambda execution: None) -> None:
        self.run, self.request, self.session, self.workers = run, run.request, session, workers
        self.places, self.name, self.resume = list(places), places[0], resume
        self.feed: Feed = feed or Listed(run.rows)
        self.then = then
        self.free_bytes = 0
        self._there = {id(row) for row in run.rows}
        self._asking, self._losing = threading.Lock(), threading.Lock()
        self._locks: dict[str, DeviceLock] = {}    # of the held devices

    def go(self) -> None:
        """Carry out the run to its end. Also after an error, rows that were not judged become CANCELLED and the run's message
        says how it ended."""
        run = self.run
        state, message = "failed", "the run ended unexpectedly"
        try:
            state, message = self._steps()
        except (BadRequest, DeviceLost, SessionFull, WorkerDied, WorkerFailed, WorkerTimeout) as error:
            message = str(error)
        except OSError as error:  # the scratch folder, the cache or a lock cannot be written
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

    def build(self, wave: Sequence[_Prepared]) -> dict[str, Built]:
        """Build these candidates. For the emulator nvcc is asked for the resources of each; a build for a GPU has them already.
        Failed builds become trials. Returns the successful builds by candidate_id."""
        rows = {rendered.candidate_id: row for row, rendered in wave}
        done: dict[str, Built] = {}

        def log_of(item: Rendered) -> Path:
            path = self._log_of(item)
            path.touch()
            return path

        def on_done(item: Rendered, build: Built) -> None:
            done[item.candidate_id] = build
            self._built(rows[item.candidate_id], build)

        pool, before = self.workers.pool, self.request.built
        self.run.message = f"building {len(wave)} candidates"
        for row, rendered in wave:
            if rendered.candidate_id in before:
                row.log_path = before[rendered.candidate_id].log
                on_done(rendered, before[rendered.candidate_id].build)
        resources = pool.build(
            units([r for _, r in wave if r.candidate_id not in before], pool.size), self._settings, log_of=log_of,
            on_done=on_done, on_start=lambda item: self._phase(rows[item.candidate_id], "building", "compiling"),
            cancelled=self.run.cancelled, with_resources=self._settings.device_kind == "cpu")
        built = {}
        for row, rendered in wave:
            if (build := done.get(rendered.candidate_id)) is None:
                continue
            if rendered.candidate_id in resources:
                build = replace(build, resources=resources[rendered.candidate_id])
            if self._can_launch(row, rendered, build):
                built[rendered.candidate_id] = build
        return built

    def interleave(self, contestants: InterleaveOrder, place: str = "") -> Interleaved:
        """Time two contestants alternately. Raises WorkerDied, WorkerFailed, WorkerTimeout or WorkerCancelled."""
        limit_s = self.request.run_timeout_s
        return self.workers.measure(place or self.name).call(contestants, limit_s=limit_s, on_event=lambda event: limit_s,
                                                             stop=self.run.cancelled)

    def judge_again(self, row: Row, rendered: Rendered, build: Built, request: RunRequest, *, baselines: Sequence[Trial] = ()
                    ) -> Trial:
        """Judge a built candidate once more. `request` gives the workload, the effort and whether it is timed. The trial is not
        recorded."""
        self.run.message = f"judging {row.label} again"
        while True:
            place = self.name
            order = self.workers.judge_order(place, rendered, build, request)
            result = self._outcome(order, place, lambda event: None)
            if result.status not in _MAY_BE_THE_DEVICE or self.workers.answers(place, stop=self.run.cancelled):
                break
            self._lost(place, result.headline)
            if not self.places:
                raise DeviceLost("No GPU of the cluster answers any more. Finished trials are kept.")
        trial = outcome.candidate_trial(self.session, self.run, row, rendered, build, result, workload=request.workload,
                                        device=self.workers.device(place), environment=self.workers.environment(place))
        return against_best(self.interleave, self.session, order, trial, baselines) if baselines else trial

    def record(self, trial: Trial) -> None:
        """Add a trial to the session and to the trials of this run."""
        self.session.append(trial)
        self.run.trials.append(trial)

    def _steps(self) -> tuple[str, str]:
        run = self.run
        tune = {"tune": self.request.tune} if self.request.tune else {}
        self.session.event("run_started", run_id=run.run_id, device=self.name, workload=self.request.workload.to_json(), **tune,
                           rows=[{"label": r.label, "config": r.config} for r in run.rows])
        if run.cancelled.is_set():
            return "stopped", "stopped before it began"
        run.device = self.workers.device(self.name, stop=run.cancelled)
        with contextlib.ExitStack() as locks:
            if not self._held(locks):
                return "stopped", "stopped while it waited for the device"
            run.state, run.message = "running", "preparing"
            threading.Thread(target=self._beat, daemon=True).start()
            self.free_bytes = self.workers.free_bytes(self.name, stop=run.cancelled)
            self._measure_ceilings()
            self._candidates()
            judged = run.done_rows
            if not run.cancelled.is_set():
                self.then(self)
            if self.request.modules and not run.cancelled.is_set():
                run.message = "judging ModelNew against nn.ConvTranspose"
                for trial in judge_modules(self._fresh, run, self.session, self.name, self.workers.scratch):
                    self.record(trial)
        if run.cancelled.is_set():
            return "stopped", f"stopped after {run.done_rows} of {len(run.rows)} candidates"
        return "done", f"{judged} candidates judged"

    def _held(self, locks: contextlib.ExitStack) -> bool:
        """Hold all devices that are free. The first one works and is of the wanted kind. If there is none, wait for one."""
        at_once = threading.Event()
        at_once.set()
        there: list[str] = []
        for place in self.places:
            of, lock = device_of(place), None
            if place == of:
                lock = DeviceLock(place)
            elif of not in there and not is_elsewhere(place):
                continue
            if lock and not lock.acquire(cancelled=at_once, waiting=lambda holder: None):
                continue
            if there or self._of_the_kind(place):   # the kind of the others is asked later, so that the first one begins
                there.append(place)
                if lock:
                    self._locks[place] = lock
                    locks.callback(lock.release)
            elif lock:
                lock.release()
        if not there:
            first = DeviceLock(self.name)
            if not first.acquire(cancelled=self.run.cancelled, waiting=self._waiting):
                return False
            locks.callback(first.release)
            there = [self.name]
        self.places, self.name = there, there[0]
        self.run.device = self.workers.device(self.name)
        return True

    def _of_the_kind(self, place: str) -> bool:
        """Whether it works and is like the first device. Its process takes seconds to start, and the others judge meanwhile."""
        if place == self.name:
            return True
        try:
            return self.workers.device(place, stop=self.run.cancelled).key == self.run.known_device.key
        except (BadRequest, WorkerDied, WorkerFailed, WorkerTimeout):
            return False

    def _candidates(self) -> None:
        """A thread for each measuring process takes what is built and judges it."""
        with contextlib.closing(self._ahead() if self.feed.ahead else self._in_turn()) as built:
            ready = Shared(built)
            if len(self.places) == 1:
                self._judge_on(self.name, ready)
                return
            with DaemonThreads(len(self.places)) as threads:
                begun = [threads.submit(self._judge_on, place, ready) for place in tuple(self.places)]  # some leave
                for each in begun:
                    each.result()

    def _judge_on(self, place: str, ready: Shared[_Ready]) -> None:
        try:
            if not self._of_the_kind(place):
                with self._losing:
                    self.places.remove(place)
                if place in self._locks:    # others may use it
                    self._locks[place].release()
                return
            while not self.run.cancelled.is_set() and (item := ready.take()) is not None:
                if self._judge(place, *item):
                    ready.done()
                    continue
                ready.give_back(item)
                if not self._back(place, ready):
                    return
        except BaseException:
            ready.end()
            raise

    def _in_turn(self) -> Generator[_Ready | None]:
        """Build a wave of candidates, judge it, then build the next one. No compiler runs during the timing, and the first
        verdicts come early. PyTorch is measured after the first wave is built."""
        first = True
        while (rows := self._more(0)) is not None:
            waves = list(_waves(self._prepared(rows), 2 * self.workers.pool.size))
            for wave in waves or [[]] if first else waves:
                built = self.build(wave) if wave else {}
                if first:
                    self._measure_baselines()
                    first = False
                for row, rendered in wave:
                    if rendered.candidate_id in built and row.phase != "done":
                        yield row, rendered, built[rendered.candidate_id]

    def _ahead(self) -> Generator[_Ready | None]:
        """Gives candidates as soon as they are built. Builds run on all workers of the pool while others are judged. None means
        that nothing is ready at the moment."""
        pool, queue, stop = self.workers.pool, SimpleQueue[_Ready](), threading.Event()
        at_once = 1 if self.run.known_device.kind == "cuda" else 2

        def over() -> bool:
            return self.run.cancelled.is_set() or stop.is_set() or self.feed.over

        def work() -> None:
            while not over():
                rows = self._more(at_once) if queue.qsize() < pool.size else ()
                if rows is None:
                    return
                prepared = self._prepared(rows)
                if prepared:
                    with self.feed.building(over):
                        for item in self._built_unit(prepared, stop):
                            queue.put(item)
                elif not rows:
                    time.sleep(_POLL_S)

        with DaemonThreads(pool.size) as threads:
            builders = [threads.submit(work) for _ in range(pool.size)]
            try:
                self._measure_baselines()
                self.run.message = "building the first candidates"
                while not (self.run.cancelled.is_set() or self.feed.over):
                    ended = all(builder.done() for builder in builders)
                    try:
                        yield queue.get(timeout=_POLL_S)
                    except Empty:
                        if ended:
                            break
                        yield None
            finally:
                stop.set()
                for builder in builders:
                    builder.result()

    def _built_unit(self, wave: Sequence[_Prepared], stop: threading.Event) -> Iterator[_Ready]:
        """Build one translation unit; failed builds become trials."""
        for row, _ in wave:
            self._phase(row, "building", "compiling")
        log = self._log_of(wave[0][1])
        log.touch()
        built = self.workers.pool.build_unit([r for _, r in wave], self._settings, log, stop)
        if built is None:
            return
        for row, rendered in wave:
            build = built[rendered.candidate_id]
            row.log_path = log
            self._built(row, build)
            if self._can_launch(row, rendered, build):
                yield row, rendered, build

    def _can_launch(self, row: Row, rendered: Rendered, build: Built) -> bool:
        """Whether it was built, and the GPU has enough registers for a block. Otherwise it gets its trial here, without time
        of the GPU."""
        device = self.run.known_device
        result: Outcome | None = build if build.status != Status.OK else None
        if result is None and device.kind == "cuda":
            reasons = (too_many_registers(row.candidate, kernels, sm=device.sm)
                       for arch, kernels in build.resources.items() if arch.rstrip("af") == device.arch)
            result = next((outcome.skipped(reason) for reason in reasons if reason), None)
        if result is not None:
            self._finish(row, rendered, build, result)
        return result is None

    @property
    def _settings(self) -> BuildSettings:
        device = self.run.known_device
        return BuildSettings(device.kind, device.arch, self.request.sanitize, self.request.build_timeout_s)

    def _more(self, count: int) -> Sequence[Row] | None:
        with self._asking:
            rows = self.feed.more(count)
            self.run.rows.extend(row for row in rows or () if id(row) not in self._there)
            self._there.update(map(id, rows or ()))
        return rows

    def _prepared(self, rows: Sequence[Row]) -> list[_Prepared]:
        """Render the candidates. One that cannot run, does not fit into memory or cannot be rendered gets its trial here."""
        ready = []
        for row in rows:
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

    def _judge(self, place: str, row: Row, rendered: Rendered, build: Built) -> bool:
        """Judge one row. False if the device has died; another device then judges the row."""
        self._phase(row, "checking", "making inputs and the float64 truth")
        self.run.message = f"checking {row.label}"
        order = replace(self.workers.judge_order(place, rendered, build, self.request), to_beat_ms=self.feed.to_beat(row))

        def on_event(event: Event) -> None:
            self._phase(row, _PHASES.get(event.phase, row.phase), event.text)
            self.run.message = f"{row.phase} {row.label}: {row.text}"

        result = self._outcome(order, place, on_event)
        if result.status in _MAY_BE_THE_DEVICE and not self.workers.answers(place, stop=self.run.cancelled):
            self._lost(place, result.headline)
            return False
        self._finish(row, rendered, build, self._explained(result, row, order, place), order=order,
                     device=self.workers.device(place), place=place)
        return True

    def _explained(self, result: Outcome, row: Row, order: JudgeOrder, place: str) -> Outcome:
        """The result, with the places where its values are wrong. In a tune this is left out, to save time."""
        shown = result.detail.shown
        if self.feed.ahead or not isinstance(result, Judged) or result.status not in WRONG_VALUES or "inputs" not in shown:
            return result
        asked = ExplainOrder(replace(order, time=False), shown["tensor"], shown["inputs"],
                             tiles_of(row.candidate, sm=self.run.known_device.sm))
        found = self.workers.explain(asked, place=place, sanitize=self.request.sanitize, stop=self.run.cancelled)
        return replace(result, where=found, advice=advice_of(found) or result.advice, detail=replace(
            result.detail, shown={**shown, "where": sentence(found)})) if found else result

    def _outcome(self, order: JudgeOrder, place: str, on_event: Callable[[Event], object]) -> Outcome:
        """The result of judging. In a tune, a candidate whose process was killed from outside is judged once more, because
        other processes may have used the memory."""
        def judged() -> Outcome:
            return self.workers.judge(order, place=place, sanitize=self.request.sanitize, on_event=on_event,
                                      stop=self.run.cancelled)

        result = judged()
        return judged() if self.feed.ahead and outcome.killed(result) else result

    def _lost(self, place: str, why: str) -> None:
        """Continue without a place. Raises `DeviceLost` if it was the last one."""
        with self._losing:
            if place in self.places:
                self.places.remove(place)
            self.session.event("device_lost", run_id=self.run.run_id, device=place, message=why)
            if self.places:
                self.name = self.places[0]   # the place of the last step
            elif not is_elsewhere(place):
                raise DeviceLost(f"{place} does not answer any more. Its last message: {why} Finished trials are kept.")

    def _back(self, place: str, ready: Shared[_Ready]) -> bool:
        """Whether another worker of a cluster replaces a lost one. Raises `DeviceLost` if none has answered for `patience_s`.
        """
        if not is_elsewhere(place):
            return False
        since = time.monotonic()
        while not (self.run.cancelled.is_set() or self.feed.over or ready.over):
            if self.workers.answers(place, stop=self.run.cancelled):
                with self._losing:
                    self.places.append(place)
                    self.name = self.places[0]
                return True
            if self.places:
                since = time.monotonic()
            elif time.monotonic() - since > self.patience_s:
                break
            else:
                self.run.message = "waiting for a worker of the cluster"
            self.run.cancelled.wait(_BACK_S)
        if not self.places and not self.run.cancelled.is_set():
            raise DeviceLost(f"No GPU of the cluster has answered for {time.monotonic() - since:.0f} s. Finished trials are "
                             "kept.")
        return False

    def _measure_ceilings(self) -> None:
        """Measure the rates of the GPU (reading, writing, copying, multiplying), once for each GPU and machine."""
        device = self.run.known_device
        if not self.request.time or device.kind == "cpu" or roofline.kept(device.name):
            return
        self.run.message = f"measuring the rates of {device.name}, once"
        self.workers.measure_ceilings(self.name, stop=self.run.cancelled)

    def _measure_baselines(self) -> None:
        there = self.session.trials() if self.resume and self.request.baselines else []
        Baselines(self.run, self.session, self.workers, self.name, self.free_bytes).measure(there, self.record)

    def _fresh(self, order: Order[R], *, limit_s: float) -> R:
        return self.workers.fresh(order, self.name, limit_s=limit_s, stop=self.run.cancelled)

    # -- records ------------------------------------------------------------------------------------------------

    def _finish(self, row: Row, rendered: Rendered | None, build: Built | None, result: Outcome, *,
                order: JudgeOrder | None = None, device: Device | None = None, place: str = "") -> None:
        trial = outcome.candidate_trial(self.session, self.run, row, rendered, build, result, device=device,
                                        environment=self.workers.environment(place))
        if order and self.request.baselines and self.request.in_turns:
            def in_turns(contestants: InterleaveOrder) -> Interleaved:
                self._phase(row, "timing", "timed alternately with the best PyTorch")
                return self.interleave(contestants, place)
            trial = against_best(in_turns, self.session, order, trial, self.run.trials)
        self.record(trial)
        row.status, row.trial_id, row.text, row.phase = trial.status, trial.trial_id, trial.headline, "done"
        self.feed.told(row, trial)

    def _built(self, row: Row, build: Built) -> None:
        if build.status == Status.OK:
            self._phase(row, "building", "cached" if build.cached else f"built in {build.seconds:.1f} s")

    def _phase(self, row: Row, phase: str, text: str) -> None:
        if row.phase != phase:
            row.started_at = row.started_at or time.time()
            number = next(i for i, other in enumerate(self.run.rows) if other is row)
            self.session.event("phase", run_id=self.run.run_id, row=number, phase=phase)
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


def _waves(ready: list[_Prepared], size: int) -> Iterator[list[_Prepared]]:
    for start in range(0, len(ready), max(size, len(ready) // 4)):
        yield ready[start:start + max(size, len(ready) // 4)]
