"""The processes of one front end: a pool that builds, and one measuring process for each device."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ...core import roofline
from ...core.diagnostics import LOG
from ...core.env import environment, find_toolchain, require_torch
from ...core.errors import BadRequest
from ...core.orders import CeilingsOrder, DeviceOrder, ExplainOrder, JudgeOrder, Order
from ...core.owned_folder import owned_folder, sweep
from ...core.replies import Built, Device, Event, Outcome
from ...core.roofline import floor
from ...core.template import Rendered, symbol
from ...core.trial_parts import Environment
from ...core.wrong_values import WrongValues
from . import outcome
from .builds import BuildPool, BuildSettings
from .request import RunRequest
from .worker_process import WorkerCancelled, WorkerDied, WorkerFailed, WorkerProcess, WorkerTimeout

R = TypeVar("R")
_POLL_S = 0.1
_SCRATCH = "kernel-workbench-scratch"


class Workers:
    """The workers. Each is started at its first use, started again after it died, and ended by `close`. `scratch`: the folder
    of their logs and truths."""

    def __init__(self, *, build_workers: int | None = None) -> None:
        temporary = Path(tempfile.gettempdir())
        sweep(temporary.glob(f"{_SCRATCH}.*"))  # files of processes that were killed
        self._lock: int | None
        self.scratch, self._lock = owned_folder(temporary, _SCRATCH, mode=0o700)
        self.pool = BuildPool(self.scratch, size=build_workers)
        self._measure: dict[str, WorkerProcess] = {}
        self._described: dict[str, Device] = {}
        self._asking = threading.Lock()
        self._closed = threading.Event()

    def close(self) -> None:
        """End all processes, remove scratch files."""
        self._closed.set()
        self.pool.close()
        for worker in self._measure.values():
            worker.close()
        shutil.rmtree(self.scratch, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def device(self, name: str, *, stop: threading.Event | None = None) -> Device:
        """The device of a place, as reported by its measuring process. It is asked only once. Raises `BadRequest` for a device
        that torch does not see, or if torch is not installed, and `WorkerCancelled` if `stop` is set first.
        """
        require_torch()
        if name in self._described:   # at once, also while another place is asked
            return self._described[name]
        if not taken(self._asking, stop):  # a worker takes one call at a time, and both `warm` and a starting run ask it
            raise WorkerCancelled("The worker was stopped.")
        try:
            if name not in self._described:
                self._described[name] = self.measure(name).call(DeviceOrder(device_of(name)), limit_s=120, stop=stop)
            return self._described[name]
        except WorkerFailed as error:
            if error.bad_request:
                raise BadRequest(str(error), field="device") from error
            raise
        finally:
            self._asking.release()

    def free_bytes(self, name: str, *, stop: threading.Event | None = None) -> int:
        """The bytes that can be allocated on that device now."""
        return self.measure(name).call(DeviceOrder(device_of(name)), limit_s=120, stop=stop).free_bytes

    def answers(self, name: str, *, stop: threading.Event | None = None) -> bool:
        """Whether the measuring process of a place still reaches its device. If the process has died, a new one is started."""
        try:
            self.measure(name).call(DeviceOrder(device_of(name)), limit_s=120, stop=stop)
        except (WorkerDied, WorkerFailed, WorkerTimeout):
            return False
        return True

    def measure(self, device: str, *, sanitize: str = "") -> WorkerProcess:
        """The measuring process of a place. A place is a device ("cuda:0"), or "cpu#1" for a further process on it. Kernels
        built with AddressSanitizer have a separate process, with its runtime."""
        key = f"{device}-{sanitize}" if sanitize else device
        if key not in self._measure:
            self._measure[key] = WorkerProcess(
                "measure", log_path=self.scratch / f"measure-{key.replace(':', '')}.log",
                environment=sanitizer_environment() if sanitize else {}, device="cuda" if sanitize else device)
        return self._measure[key]

    def put(self, place: str, process: WorkerProcess) -> None:
        """Add a place whose process is on another machine: "cuda:0@3" is the third place of a cluster."""
        self._measure[place] = process

    def drop(self, place: str) -> None:
        """Remove such a place."""
        self._measure.pop(place, None)
        self._described.pop(place, None)

    def environment(self, place: str) -> Environment:
        """The environment of the machine of a place."""
        process = self._measure.get(place)
        return process.environment if process else environment()

    def fresh(self, order: Order[R], device: str, *, limit_s: float, stop: threading.Event | None = None) -> R:
        """Carry out one order in its own measuring process, which shares nothing with earlier kernels."""
        if is_elsewhere(device):
            return self.measure(device).call(order, limit_s=limit_s, stop=stop)
        worker = WorkerProcess("measure", log_path=self.scratch / f"fresh-{secrets.token_hex(4)}.log",
                               device=device)
        try:
            return worker.call(order, limit_s=limit_s, on_event=lambda event: limit_s, stop=stop or self._closed)
        finally:
            worker.close()

    def measure_ceilings(self, device: str, *, stop: threading.Event | None = None) -> None:
        """Measure the rates of a GPU and keep them. Its floors are computed from them afterwards."""
        roofline.keep(self.measure(device).call(CeilingsOrder(device_of(device)), limit_s=120, stop=stop))

    def build_all(self, items: list[Rendered], device: str) -> dict[str, Built]:
        """Build in few shared translation units, without a session. candidate_id -> build result."""
        known = self.device(device)
        built: dict[str, Built] = {}
        self.pool.build(units(items, self.pool.size), BuildSettings(known.kind, known.arch, "", 600.0), with_resources=False,
                        log_of=lambda r: self.scratch / f"{r.candidate_id}.log",
                        on_done=lambda r, result: built.update({r.candidate_id: result}),
                        cancelled=threading.Event())
        return built

    def judge(self, order: JudgeOrder, *, place: str = "", sanitize: str = "",
              on_event: Callable[[Event], object] = lambda event: None, stop: threading.Event | None = None) -> Outcome:
        """Have one candidate judged. A crash or a hang gives an outcome with the corresponding status."""
        def heard(event: Event) -> float:
            on_event(event)
            return order.limit_s

        try:
            worker = self.measure(place or order.device, sanitize=sanitize)
            return worker.call(order, limit_s=order.limit_s, on_event=heard, stop=stop)
        except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
            return outcome.failure(error, building=False)

    def explain(self, order: ExplainOrder, *, place: str = "", sanitize: str = "",
                stop: threading.Event | None = None) -> WrongValues | None:
        """Where a result is wrong; None if nothing is found. If the kernel crashes or hangs on a smaller size, it is tried once
        more without searching for the smallest case."""
        try:
            worker = self.measure(place or order.of.device, sanitize=sanitize)
            return worker.call(order, limit_s=order.of.limit_s, stop=stop).values
        except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
            LOG.info("%s was not explained: %s", order.of.symbol, error)
            if not order.shrink:
                return None
            return self.explain(replace(order, shrink=False), place=place, sanitize=sanitize, stop=stop)

    def judge_order(self, place: str, item: Rendered, built: Built, request: RunRequest) -> JudgeOrder:
        """The order to judge one candidate in the measuring process of a place."""
        candidate = item.candidate
        limit = floor(request.workload, candidate.direction, candidate.precision,
                      roofline.ceilings_for(self.device(place).name))
        return JudgeOrder(Path(built.library), symbol(item), candidate.direction, request.workload, device_of(place),
                          candidate.precision, built.digest, effort=request.effort, time=request.time,
                          cold_l2=request.cold_l2, scratch=self.scratch, limit_s=request.run_timeout_s,
                          floor_ms=limit.ms if limit else None, sanitize=bool(request.sanitize),
                          channels_last=candidate.takes_channels_last)


def device_of(place: str) -> str:
    """"cpu" of "cpu#1", and "cuda:0" of "cuda:0@3"."""
    return place.partition("#")[0].partition("@")[0]


def is_elsewhere(place: str) -> bool:
    """Whether a place is on a machine of a cluster."""
    return "@" in place


def taken(lock: threading.Lock, stop: threading.Event | None) -> bool:
    """Wait for a lock; False when `stop` was set first."""
    while not lock.acquire(timeout=_POLL_S):
        if stop is not None and stop.is_set():
            return False
    return True


def units(items: list[Rendered], workers: int) -> list[list[Rendered]]:
    """The translation units of candidates. Few candidates get one unit each. Many candidates with the same flags share units,
    which are spread over the workers."""
    if len(items) <= 2 * workers:
        return [[item] for item in items]
    by_flags: dict[tuple[str, ...], list[Rendered]] = {}
    for item in items:
        if not item.candidate.headers:
            by_flags.setdefault(item.candidate.compile_flags, []).append(item)
    # Edited headers have the same names as other headers, so such a candidate is built alone.
    units = [[item] for item in items if item.candidate.headers]
    for group in by_flags.values():
        size = max(2, min(24, -(-len(group) // workers)))
        units += [group[i:i + size] for i in range(0, len(group), size)]
    return units


def sanitizer_environment() -> dict[str, str]:
    """What a process needs to load kernels built with AddressSanitizer: its runtime must be loaded before Python, so it is
    preloaded. Leaks are not reported, because they are Python's."""
    compiler = find_toolchain().cxx
    if compiler is None:
        raise BadRequest("AddressSanitizer needs a C++ compiler; install g++.")
    library = subprocess.run([str(compiler), "-print-file-name=libasan.so"], capture_output=True, text=True, timeout=10,
                             check=False).stdout.strip()
    if not Path(library).is_absolute():
        raise BadRequest("AddressSanitizer's runtime (libasan) was not found; install the libasan of your g++.")
    return {"LD_PRELOAD": library, "CUDACPU_THREADS": "1",
            "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0:verify_asan_link_order=0:exitcode=86"}
