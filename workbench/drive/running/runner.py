"""`Runner`: each front end has one. It owns the workers and carries out each `RunRequest` in a thread."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from ...core.candidate import Candidate
from ...core.errors import BadRequest
from ...core.layer import Workload
from ...core.orders import ModuleOrder, ProfileOrder
from ...core.replies import Built, Device, MachineCode, ModuleJudged, Outcome, Profiled
from ...core.template import Rendered
from ...core.trial import Status, Trial
from ..machine.device_lock import held
from ..machine.doctor import resolve_device
from ..sessions.session import Session
from .builds import BuildSettings
from .execution import Execution
from .request import Feed, Row, Run, RunRequest
from .resume import answered
from .worker_process import WorkerCancelled, WorkerDied, WorkerFailed, WorkerTimeout
from .workers import Workers, taken

_BUILD_S = 600.0


class Runner:
    """Warm workers for one front end; runs wait for each other. Use as a context manager, or call `close`."""

    def __init__(self, *, build_workers: int | None = None) -> None:
        self.workers = Workers(build_workers=build_workers)
        self.runs: list[Run] = []
        self._one_at_a_time = threading.Lock()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def work_dir(self) -> Path:
        """The folder for scratch files of this runner. `close` removes it."""
        return self.workers.scratch

    def close(self) -> None:
        """Stop the running run, end all workers, and remove scratch files."""
        for run in self.runs:
            run.stop()
        for run in self.runs:
            run.wait(10)
        self.workers.close()

    def warm(self, device: str = "auto") -> None:
        """Import torch in a build and in a measure worker, in the background."""
        self.workers.pool.warm_ahead()

        def work() -> None:
            with contextlib.suppress(BadRequest, WorkerDied, WorkerTimeout, WorkerCancelled):
                self.workers.device(resolve_device(device))
        threading.Thread(target=work, daemon=True).start()

    def start(self, request: RunRequest, session: Session, *, resume: bool = False, feed: Feed | None = None,
              places: Sequence[str] = (), then: Callable[[Execution], None] = lambda execution: None) -> Run:
        """Start the run in a thread and return at once. With `resume`, candidates that have a verdict in the session are left
        out.

        `feed` gives the candidates instead of the request; `places` and `then` are those of `Execution`.
        """
        device = places[0] if places else resolve_device(request.device)
        candidates = list(request.candidates)
        had = self._answered(candidates, request, session, device) if resume else [None] * len(candidates)
        run = Run(secrets.token_hex(4), request, session.path,
                  [Row(c) for c, trial in zip(candidates, had, strict=True) if trial is None],
                  kept=[trial for trial in had if trial is not None])
        if before := next((r for r in reversed(self.runs) if r.active), None):
            run.message = f"waits for the run in session {before.session.name}"
        self.runs.append(run)
        execution = Execution(run, session, self.workers, places or (device,), resume=resume, feed=feed, then=then)
        if run.rows or feed:  # so that a build worker imports torch while the measuring process looks up the device
            self.workers.pool.warm_ahead()

        def in_turn() -> None:
            if not taken(self._one_at_a_time, run.cancelled):
                execution.go()  # the run only reports that it was stopped before it began
                return
            try:
                execution.go()
            finally:
                self._one_at_a_time.release()

        threading.Thread(target=in_turn, daemon=True, name=f"run-{run.run_id}").start()
        return run

    def run(self, request: RunRequest, session: Session, *, resume: bool = False,
            on_change: Callable[[Run], None] | None = None) -> Run:
        """The same as `start`, but it waits for the end. An interrupt stops the run. `on_change` is called a few times a
        second."""
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
        run.wait(15)

    def device(self, name: str) -> Device:
        """The properties of "cpu" or "cuda:N"."""
        return self.workers.device(name)

    def prove(self, order: ModuleOrder, *, limit_s: float = 300, on_text: Callable[[str], None] = lambda text: None
              ) -> ModuleJudged:
        """Judge an exported file in a fresh measure worker, which holds its GPU."""
        with held(order.device, on_text):
            return self.workers.fresh(order, order.device, limit_s=limit_s)

    def measure_ceilings(self, device: str, on_text: Callable[[str], None] = lambda text: None) -> None:
        """Hold a GPU, measure its rates and keep them. Its floors are computed from them afterwards."""
        with held(device, on_text):
            self.workers.measure_ceilings(device)

    def machine_code(self, source: str, arch: str, flags: tuple[str, ...]) -> MachineCode:
        """PTX and SASS of a source; needs nvcc and no GPU."""
        return self.workers.pool.machine_code(source, arch, flags)

    def profile(self, item: Rendered, workload: Workload, device: str, ncu: Path, *, limit_s: float,
                on_text: Callable[[str], None] = lambda text: None) -> Profiled:
        """Launch a candidate under Nsight Compute in a fresh measure worker, which holds the lock of its GPU. If it fails,
        crashes or hangs, the reply has a sentence about it."""
        try:
            known = self.device(device)
            built = self._built(item, BuildSettings(known.kind, known.arch, "", _BUILD_S))
            if built is None or built.status is not Status.OK:
                return Profiled(why_not=f"It could not be built: {built.headline if built else 'the compiler was stopped.'}")
            request = RunRequest(workload, (item.candidate,), device=device, baselines=False)
            order = ProfileOrder(self.workers.judge_order(device, item, built, request), ncu)
            with held(device, on_text):
                return self.workers.fresh(order, device, limit_s=limit_s)
        except WorkerTimeout:
            return Profiled(why_not=f"ncu gave no answer within {limit_s:g} s and was stopped.")
        except WorkerDied as error:
            return Profiled(why_not=f"The process that started ncu ended by {error.how}.")
        except BadRequest as error:
            return Profiled(why_not=str(error))
        except WorkerFailed as error:
            return Profiled(why_not=f"ncu could not be run: {str(error).splitlines()[0]}")

    def _built(self, item: Rendered, settings: BuildSettings) -> Built | None:
        found = self.workers.pool.build_unit([item], settings, self.work_dir / f"{item.candidate_id}.log", threading.Event())
        return found[item.candidate_id] if found else None

    def build_all(self, items: list[Rendered], device: str) -> dict[str, Built]:
        """Build without a session. candidate_id -> build result."""
        return self.workers.build_all(items, device)

    def judge_once(self, device: str, item: Rendered, built: Built, request: RunRequest) -> Outcome:
        """Judge a candidate without a session. A crash or a hang gives an outcome with the corresponding status."""
        return self.workers.judge(self.workers.judge_order(device, item, built, request))

    def _answered(self, candidates: list[Candidate], request: RunRequest, session: Session, device: str
              ) -> list[Trial | None]:
        trials = session.trials()
        if not trials:
            return [None] * len(candidates)
        try:
            return answered(candidates, trials, request, self.workers.device(device))
        except (WorkerDied, WorkerFailed, WorkerTimeout, WorkerCancelled):
            return [None] * len(candidates)  # the run will fail in the same way and report it
