"""Builds the candidates of a run, with a small pool of build workers that never use a GPU."""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ...core.env import cache_dir
from ...core.orders import BuildOrder, MachineCodeOrder, Member, Order, ResourcesOrder, WarmOrder
from ...core.replies import Built, Event, MachineCode, Resources
from ...core.template import Rendered, render_batch, symbol
from ...core.toolchain import emulated
from ...core.trial import Status
from ...core.trial_parts import Kernels
from ..machine.daemon_threads import DaemonThreads
from .outcome import failure
from .worker_process import WorkerCancelled, WorkerDied, WorkerFailed, WorkerProcess, WorkerTimeout

R = TypeVar("R")
RESOURCE_ARCHS = ("sm_80", "sm_90")


@dataclass(frozen=True)
class BuildSettings:
    """All inputs of a build except the source."""

    device_kind: str        # "cpu" | "cuda"
    arch: str
    sanitize: str
    timeout_s: float


class BuildPool:
    """Warm build workers. `build` may be called from one thread at a time."""

    def __init__(self, work_dir: Path, *, size: int | None = None, workers: Sequence[WorkerProcess] = ()) -> None:
        """`workers`: build workers on other machines, used instead of local processes."""
        self.size = len(workers) or size or max(1, min(8, os.cpu_count() or 1))
        self._workers = list(workers) or [WorkerProcess("build", log_path=work_dir / f"build-worker-{i}.log")
                                          for i in range(self.size)]
        self._free = list(self._workers)
        self._lock = threading.Condition()
        self._work_dir = work_dir

    def warm_ahead(self) -> None:
        """Make one worker import torch, so that the first build does not wait for it. It does nothing if a worker has started
        already."""
        with self._lock:
            if self._free and not any(worker.alive for worker in self._workers):
                self._free[-1].ask_ahead(WarmOrder(("build.load_inline",)))

    def build(self, units: Sequence[Sequence[Rendered]], settings: BuildSettings, *, log_of: Callable[[Rendered], Path],
              on_done: Callable[[Rendered, Built], None], cancelled: threading.Event,
              on_start: Callable[[Rendered], None] = lambda item: None, with_resources: bool = True) -> dict[str, Kernels]:
        """Build every unit in parallel; `on_done` gets each candidate's own result, from a pool thread. When `cancelled` is
        set, running compilers are killed. Returns nvcc's numbers for each candidate that it compiles: candidate_id ->
        architecture -> kernel -> numbers."""
        def one(unit: Sequence[Rendered]) -> None:
            if cancelled.is_set():
                return
            for item in unit:
                on_start(item)
            results = self.build_unit(unit, settings, log_of(unit[0]), cancelled)
            if results is not None:
                for item in unit:
                    on_done(item, results[item.candidate_id])

        def facts(item: Rendered) -> Kernels:
            found = self._resources(item, settings, cancelled)
            return found.resources if found else {}

        with DaemonThreads(self.size) as pool:
            built = [pool.submit(one, unit) for unit in units]
            known = {item.candidate_id: pool.submit(facts, item) for unit in units for item in unit if with_resources}
            try:
                for future in built:
                    future.result()
                return {key: future.result() for key, future in known.items()}
            except KeyboardInterrupt:
                cancelled.set()  # otherwise leaving the pool would wait for every compiler
                raise

    def build_unit(self, unit: Sequence[Rendered], settings: BuildSettings, log: Path, cancelled: threading.Event
                   ) -> dict[str, Built] | None:
        """Build one translation unit, as soon as a worker is free: candidate_id -> its result. None if `cancelled` was set.
        Several threads may call it at the same time."""
        return self._refused_by_nvcc(unit, settings, log, cancelled) or self._compile(unit, settings, log, cancelled)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def _compile(self, unit: Sequence[Rendered], settings: BuildSettings, log: Path, cancelled: threading.Event
                 ) -> dict[str, Built] | None:
        flags = unit[0].candidate.compile_flags
        members = tuple(Member(symbol(r), render_batch([r])) for r in unit)
        order = BuildOrder(render_batch(unit), settings.device_kind, cache_dir(), symbols=tuple(m.symbol for m in members),
                           arch=_arch(unit, settings.arch), flags=emulated(flags) if settings.device_kind == "cpu" else flags,
                           sanitize=settings.sanitize, log=log, members=members)
        try:
            result = self.call(order, limit_s=settings.timeout_s, stop=cancelled)
        except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
            result = Built(**vars(failure(error, building=True)))
        except WorkerCancelled:
            return None
        return {r.candidate_id: result.members.get(symbol(r), result) for r in unit}

    def _refused_by_nvcc(self, unit: Sequence[Rendered], settings: BuildSettings, log: Path, cancelled: threading.Event
                         ) -> dict[str, Built] | None:
        """For a build for the emulator: the failed results of a unit whose compile flags nvcc does not accept. None if nvcc
        accepts them or is not installed."""
        flags = unit[0].candidate.compile_flags
        if settings.device_kind != "cpu" or not flags:
            return None
        answer = self._resources(unit[0], settings, cancelled)
        if answer is None or answer.status != Status.BUILD_FAILED:
            return None
        without = self._resources(unit[0], settings, cancelled, flags=())
        # Without the flags nvcc fails too: the build reports that error.
        if without is not None and without.status == Status.BUILD_FAILED:
            return None
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"$ nvcc {shlex.join(flags)} ...\n{answer.headline}\n", encoding="utf-8")
        refused = Built(status=answer.status, headline=answer.headline, first_error=answer.first_error, advice="Correct the "
                        "compile flags: they must be valid for nvcc, also if the emulator runs the kernel.")
        return dict.fromkeys((r.candidate_id for r in unit), refused)

    def _resources(self, item: Rendered, settings: BuildSettings, cancelled: threading.Event, *,
                   flags: tuple[str, ...] | None = None) -> Resources | None:
        archs = {*RESOURCE_ARCHS, *([settings.arch] if settings.arch.startswith("sm_") else [])}
        return self.resources_of(item, archs, timeout_s=settings.timeout_s, cancelled=cancelled, flags=flags)

    def resources_of(self, item: Rendered, archs: Iterable[str], *, timeout_s: float, cancelled: threading.Event | None = None,
                     flags: tuple[str, ...] | None = None) -> Resources | None:
        """nvcc's numbers for a candidate; None if it gave no answer. A variant that names a target is compiled only for that
        target, because for others its kernel is empty."""
        only = item.candidate.variant.arch
        order = ResourcesOrder(render_batch([item]), (only,) if only else tuple(sorted(archs)), cache_dir(),
                               item.candidate.compile_flags if flags is None else flags)
        try:
            return self.call(order, limit_s=timeout_s, stop=cancelled)
        except (WorkerDied, WorkerFailed, WorkerTimeout, WorkerCancelled):
            return None

    def machine_code(self, source: str, arch: str, flags: tuple[str, ...], *, timeout_s: float = 300) -> MachineCode:
        """PTX and SASS of a source; needs nvcc and no GPU."""
        order = MachineCodeOrder(source, arch, cache_dir(), flags)
        try:
            return self.call(order, limit_s=timeout_s)
        except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
            return MachineCode(**vars(failure(error, building=True)))

    def call(self, order: Order[R], *, limit_s: float, stop: threading.Event | None = None,
             on_event: Callable[[Event], float | None] = lambda event: None) -> R:
        """Have one order carried out by the first worker that is free."""
        with self._lock:
            while not self._free:
                self._lock.wait()
            worker = self._free.pop()
        try:
            return worker.call(order, limit_s=limit_s, on_event=on_event, stop=stop)
        finally:
            with self._lock:
                self._free.append(worker)
                self._lock.notify()


def _arch(unit: Sequence[Rendered], arch: str) -> str:
    """The target of the GPU, or the extended target (sm_90a on an sm_90) that a variant of the unit names."""
    wanted = [item.candidate.variant.arch for item in unit]
    return next((name for name in wanted if name.rstrip("af") == arch), arch)
