"""Builds candidates of many layers ahead of time, in the order in which they are needed. So the device does not wait for a
compiler that could have started earlier.

A unit holds a few configs of one variant and one layer. Units depend on the plan alone, not on what has run before or
on the number of cores, so a resumed bench finds them in the cache.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...core.replies import Built
from ...core.template import Rendered
from ..running.builds import BuildPool, BuildSettings
from ..running.request import Prebuilt

_CONFIGS_PER_UNIT = 6


class BuildAhead:
    """Builds in the background from its making on. Use as a context manager, or call `close`."""

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
        """candidate_id -> build, once all of them are there; None when that takes longer than `timeout_s`."""
        wanted = set(ids)
        with self._change:
            there = self._change.wait_for(lambda: self._ended or wanted <= self._done.keys(), timeout_s)
            return {key: self._done[key] for key in wanted if key in self._done} if there else None

    @property
    def built(self) -> int:
        return len(self._done)

    def close(self) -> None:
        """Kill the compilers under way; what is in the cache stays."""
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


def units_of(items: Sequence[Rendered], *, emulated: bool) -> list[list[Rendered]]:
    """Units of one layer's candidates. The emulator compiles quickly: all in one. nvcc takes long over a fast kernel:
    a variant alone, a few configs at a time, so that the cores share the work and the first result comes early."""
    if emulated:
        return [list(items)] if items else []
    groups: dict[tuple[object, ...], list[Rendered]] = {}
    for item in items:
        groups.setdefault((item.candidate.variant.key, item.candidate.precision, item.candidate.compile_flags),
                          []).append(item)
    return [group[i:i + _CONFIGS_PER_UNIT] for group in groups.values()
            for i in range(0, len(group), _CONFIGS_PER_UNIT)]
