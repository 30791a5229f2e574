"""The build side of a run: candidates in, libraries out, over a small pool of build workers that never see a GPU."""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.compile_flags import emulated
from ...core.env import cache_dir
from ...core.template import Rendered, render_batch, symbol
from ...core.trial import Status
from ..machine.daemon_threads import DaemonThreads
from .outcome import failure
from .worker_process import WorkerCancelled, WorkerDied, WorkerFailed, WorkerProcess, WorkerTimeout

RESOURCE_ARCHS = ("sm_80", "sm_90")


@dataclass(frozen=True)
class BuildOrder:
    """Everything but the source that a build depends on."""

    device_kind: str        # "cpu" | "cuda"
    arch: str
    sanitize: str
    timeout_s: float


class BuildPool:
    """Warm build workers. `build` may be called from one thread at a time."""

    def __init__(self, work_dir: Path, *, size: int | None = None) -> None:
        self.size = size or max(1, min(8, os.cpu_count() or 1))
        self._workers = [WorkerProcess("build", log_path=work_dir / f"build-worker-{i}.log") for i in range(self.size)]
        self._free = list(self._workers)
        self._lock = threading.Condition()
        self._work_dir = work_dir

    def warm_ahead(self) -> None:
        """Let one worker import torch, so that the first build does not wait for it; nothing to do when one is up."""
        with self._lock:
            if self._free and not any(worker.alive for worker in self._workers):
                self._free[-1].ask_ahead("warm", {"modules": ["build.load_inline"]})

    def build(self, units: Sequence[Sequence[Rendered]], order: BuildOrder, *, log_of: Callable[[Rendered], Path],
              on_start: Callable[[Rendered], None], on_done: Callable[[Rendered, dict[str, Any]], None],
              cancelled: threading.Event, with_resources: bool = True) -> None:
        """Build every unit in parallel; `on_done` gets each candidate's own result, from a pool thread. When `cancelled` is
        set the compilers under way are killed."""
        def one(unit: Sequence[Rendered]) -> None:
            if cancelled.is_set():
                return
            for item in unit:
                on_start(item)
            results = self._refused_by_nvcc(unit, order, log_of(unit[0]), cancelled) or \
                self._build_unit(unit, order, log_of(unit[0]), cancelled)
            if results is not None:
                for item in unit:
                    on_done(item, results[item.candidate_id])

        def facts(item: Rendered) -> dict[str, Any]:
            found: dict[str, Any] = self._resources(item, order, cancelled).get("resources", {})
            return found

        self.resources: dict[str, dict[str, Any]] = {}
        with DaemonThreads(self.size) as pool:
            built = [pool.submit(one, unit) for unit in units]
            known = {item.candidate_id: pool.submit(facts, item) for unit in units for item in unit if with_resources}
            try:
                for future in built:
                    future.result()
                self.resources = {key: future.result() for key, future in known.items()}
            except KeyboardInterrupt:
                cancelled.set()  # or leaving the pool would wait for every compiler
                raise

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def _build_unit(self, unit: Sequence[Rendered], order: BuildOrder, log: Path,
                    cancelled: threading.Event) -> dict[str, dict[str, Any]] | None:
        flags = unit[0].candidate.compile_flags
        members = [{"id": r.candidate_id, "symbol": symbol(r), "source": render_batch([r])} for r in unit]
        request = {"source": render_batch(unit), "symbols": [m["symbol"] for m in members], "members": members,
                   "device": order.device_kind, "arch": _arch(unit, order.arch),
                   "flags": list(emulated(flags) if order.device_kind == "cpu" else flags),
                   "sanitize": order.sanitize, "cache": str(cache_dir()), "log": str(log), "key": None}
        try:
            result = self._call("build", request, limit_s=order.timeout_s, stop=cancelled)
        except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
            result = failure(error, building=True)
        except WorkerCancelled:
            return None
        by_symbol = result.get("members") or {}
        return {r.candidate_id: by_symbol.get(symbol(r), result) for r in unit}

    def _refused_by_nvcc(self, unit: Sequence[Rendered], order: BuildOrder, log: Path, cancelled: threading.Event
                         ) -> dict[str, dict[str, Any]] | None:
        """The results of a unit for the emulator whose flags nvcc does not take; None where it does, or is not there."""
        flags = unit[0].candidate.compile_flags
        if order.device_kind != "cpu" or not flags:
            return None
        answer = self._resources(unit[0], order, cancelled)
        if answer.get("status") != Status.BUILD_FAILED or self._resources(unit[0], order, cancelled, flags=()).get(
                "status") == Status.BUILD_FAILED:  # without them it fails as well: that is for the build to tell
            return None
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"$ nvcc {shlex.join(flags)} ...\n{answer['headline']}\n", encoding="utf-8")
        return dict.fromkeys((r.candidate_id for r in unit), {**answer, "advice": "Correct the compile flags: they are nvcc's, "
                             "also where the emulator runs the kernel.", "key": ""})

    def _resources(self, item: Rendered, order: BuildOrder, cancelled: threading.Event, *,
                   flags: Sequence[str] | None = None) -> dict[str, Any]:
        archs = {*RESOURCE_ARCHS, *([order.arch] if order.arch.startswith("sm_") else [])}
        return self.resources_of(item, archs, timeout_s=order.timeout_s, cancelled=cancelled, flags=flags)

    def resources_of(self, item: Rendered, archs: Iterable[str], *, timeout_s: float, cancelled: threading.Event | None = None,
                     flags: Sequence[str] | None = None) -> dict[str, Any]:
        """What nvcc says of a candidate: {"status", "headline", "resources": {arch: {kernel: numbers}}}; empty when it gave no
        answer. A variant that asks for a target is compiled for that one alone, and for anything else an empty kernel."""
        only = item.candidate.variant.arch
        request = {"source": render_batch([item]), "archs": [only] if only else sorted(archs), "cache": str(cache_dir()),
                   "flags": list(item.candidate.compile_flags if flags is None else flags)}
        try:
            return self._call("resources", request, limit_s=timeout_s, stop=cancelled)
        except (WorkerDied, WorkerFailed, WorkerTimeout, WorkerCancelled):
            return {}

    def _call(self, op: str, request: dict[str, Any], *, limit_s: float, stop: threading.Event | None = None
              ) -> dict[str, Any]:
        with self._lock:
            while not self._free:
                self._lock.wait()
            worker = self._free.pop()
        try:
            return worker.call(op, request, limit_s=limit_s, stop=stop)
        finally:
            with self._lock:
                self._free.append(worker)
                self._lock.notify()


def _arch(unit: Sequence[Rendered], arch: str) -> str:
    """The GPU's own target, or the extension of it (sm_90a on an sm_90) that a variant of the unit asks for."""
    wanted = [item.candidate.variant.arch for item in unit]
    return next((name for name in wanted if name.rstrip("af") == arch), arch)
