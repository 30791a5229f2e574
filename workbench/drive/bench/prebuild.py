"""Builds candidates of many layers ahead of time, in the order in which they are needed. So the device rarely waits for a
compiler. `compile_ahead` does the same for PyTorch's compiled ways with torch.compile.

A unit holds a few configs of one variant and one layer. Units depend only on the plan, not on earlier runs or on the number of
cores. So a resumed bench finds them in the cache.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from queue import Empty, SimpleQueue

from ...core.facts import tensor_bytes
from ...core.orders import CompileOrder
from ...core.replies import Built, Device
from ...core.template import Rendered
from ..running.builds import BuildPool, BuildSettings
from ..running.request import Prebuilt
from ..running.worker_process import WorkerCancelled, WorkerDied, WorkerFailed, WorkerProcess, WorkerTimeout

_MOST_BUILD_WORKERS = 12   # each build process has torch and runs nvcc: about 1.5 GB
_CONFIGS_PER_UNIT = 6
_POLL_S = 0.2
_COMPILE_LIMIT_S = 600.0  # limit of one order
_COPIES = 6               # estimated memory of a process, as a multiple of a direction's tensors
_ONE_CORE = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}   # because many processes run


class BuildAhead:
    """Builds in the background as soon as it is created. Use as a context manager, or call `close`."""

    def __init__(self, units: Sequence[Sequence[Rendered]], settings: BuildSettings, work_dir: Path, *,
                 workers: int | None = None) -> None:
        self._pool = BuildPool(work_dir / "ahead", size=workers)
        self._work_dir = work_dir
        self._done: dict[str, Prebuilt] = {}
        self._of_unit = {item.candidate_id: unit[0].candidate_id for unit in units for item in unit}
        self._change = threading.Condition()
        self._cancelled = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._build, args=(units, settings), daemon=True, name="builds ahead")
        self._thread.start()

    def __enter__(self) -> BuildAhead:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self, ids: Iterable[str], *, timeout_s: float | None = None) -> dict[str, Prebuilt] | None:
        """candidate_id -> build, when all of them are finished; None if that takes longer than `timeout_s`."""
        wanted = set(ids)
        with self._change:
            there = self._change.wait_for(lambda: self._ended or wanted <= self._done.keys(), timeout_s)
            return {key: self._done[key] for key in wanted if key in self._done} if there else None

    @property
    def built(self) -> int:
        return len(self._done)

    def close(self) -> None:
        """Kill the running compilers. Finished builds stay in the cache."""
        self._cancelled.set()
        self._thread.join()
        self._pool.close()

    def _build(self, units: Sequence[Sequence[Rendered]], settings: BuildSettings) -> None:
        try:
            self._pool.build(units, settings, log_of=self._log, on_done=self._on_done, cancelled=self._cancelled,
                             with_resources=False)
        finally:
            with self._change:
                self._ended = True
                self._change.notify_all()

    def _log(self, item: Rendered) -> Path:
        path = self._work_dir / "ahead" / f"{self._of_unit[item.candidate_id]}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return path

    def _on_done(self, item: Rendered, build: Built) -> None:
        with self._change:
            self._done[item.candidate_id] = Prebuilt(build, self._log(item))
            self._change.notify_all()


def build_workers() -> int:
    """How many build processes run. Two cores stay free, for the measuring process and for this one."""
    return max(1, min(_MOST_BUILD_WORKERS, (os.cpu_count() or 1) - 2))


def units_of(items: Sequence[Rendered], *, emulated: bool) -> list[list[Rendered]]:
    """The units of one layer's candidates. For the emulator there is one unit, because g++ is fast. nvcc is slow for fast
    kernels, so a unit has a few configs of one variant. Then all cores have work, and the first result comes early."""
    if emulated:
        return [list(items)] if items else []
    groups: dict[tuple[object, ...], list[Rendered]] = {}
    for item in items:
        groups.setdefault((item.candidate.variant.key, item.candidate.precision, item.candidate.compile_flags),
                          []).append(item)
    return [group[i:i + _CONFIGS_PER_UNIT] for group in groups.values()
            for i in range(0, len(group), _CONFIGS_PER_UNIT)]


def compile_ahead(orders: Sequence[CompileOrder], device: Device, work_dir: Path, *, workers: int, over: Callable[[], bool]
                  ) -> int:
    """Compile these ways with torch.compile in several processes, while nothing is timed. The result is kept on the disk, and
    the measurement loads it from there. If a process dies, the ways of its order are compiled by the measurement. Returns how
    many ways were compiled before `over`.
    """
    waiting: SimpleQueue[CompileOrder] = SimpleQueue()
    for order in orders:
        waiting.put(order)
    largest = max((tensor_bytes(o.workload, d) for o in orders for d in o.modes), default=1)
    processes = min(workers, len(orders), max(1, device.free_bytes // (_COPIES * largest)))
    stop = threading.Event()

    def work(number: int) -> int:
        process, count = WorkerProcess("measure", log_path=work_dir / f"compile-{number}.log", environment=_ONE_CORE), 0
        try:
            while not (over() or stop.is_set()):
                order = waiting.get_nowait()
                with contextlib.suppress(WorkerDied, WorkerFailed, WorkerTimeout):
                    count += process.call(order, limit_s=_COMPILE_LIMIT_S, stop=stop).count
        except (Empty, WorkerCancelled):
            return count
        finally:
            process.close()
        return count

    with ThreadPoolExecutor(max(1, processes)) as pool:
        try:
            working = [pool.submit(work, number) for number in range(processes)]
            while wait(working, timeout=_POLL_S).not_done:
                if over():
                    stop.set()
            return sum(one.result() for one in working)
        finally:
            stop.set()   # after an interrupt the pool would wait for its threads, and these for their processes
