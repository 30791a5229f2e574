"""One folder for the built kernels and the truth of all export tests of a pytest process, and one warm worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.drive.running.worker_process import WorkerProcess

from .recipes import new_worker


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="module")
def worker(folder: Path) -> Iterator[WorkerProcess]:
    """For files that are refused: they share a process, as they share nothing in it."""
    process = new_worker(folder)
    yield process
    process.close()
