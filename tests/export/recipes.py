"""Recipes the export tests share, and the fresh process that runs an exported text on the emulator."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from workbench.core.candidate import Candidate
from workbench.core.layer import DIRECTIONS, ConvTranspose, Workload
from workbench.core.presets import Preset
from workbench.core.replies import ModuleJudged
from workbench.core.variants import find
from workbench.drive.exporting.export import Recipe, module_order, verify
from workbench.drive.running.worker_process import WorkerProcess

SMALL = Workload(ConvTranspose(1, 3, 4, 3, stride=2), 2, 9)
TWO_D = Workload(ConvTranspose(2, 6, 4, (3, 2), stride=(2, 3), padding=(1, 0), output_padding=(1, 2), groups=2,
                               dilation=(1, 2)), 2, (5, 6), memory_format="channels_last")
THREE_D = Workload(ConvTranspose(3, 4, 3, (2, 3, 1), stride=(1, 2, 3), padding=(0, 1, 0), bias=False), 2, (3, 4, 2),
                   dtype="float16")


def candidate(workload: Workload, direction: str, variant: str = "naive_gather", *, root: Path | None = None,
              form: str = "constant", **config: int) -> Candidate:
    return Candidate(find(variant, direction, root=root), workload.layer, workload.dtype, config, form=form)


def naive(workload: Workload, *directions: str, form: str = "constant") -> Recipe:
    """naive_gather in these directions (default: all)."""
    return Recipe(workload, **{d: candidate(workload, d, form=form) for d in directions or DIRECTIONS})


def new_worker(folder: Path) -> WorkerProcess:
    """Kernels are built into one cache for all tests."""
    return WorkerProcess("measure", log_path=folder / f"worker-{time.monotonic_ns()}.log",
                         environment={"KERNEL_WORKBENCH_CACHE": str(folder / "cache")}, device="cpu")


def run(worker: WorkerProcess, text: str, workload: Workload, folder: Path, *,
        preset: Preset | None = None) -> ModuleJudged:
    """The worker's verdict on that text."""
    return verify(partial(worker.call, limit_s=500), module_order(text, workload, device="cpu", scratch=folder, preset=preset))


def run_fresh(text: str, workload: Workload, folder: Path, *, preset: Preset | None = None) -> ModuleJudged:
    """The same in a process of its own."""
    worker = new_worker(folder)
    try:
        return run(worker, text, workload, folder, preset=preset)
    finally:
        worker.close()
