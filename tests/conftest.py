"""One runner for all tests of a pytest process, and the command line in this process: every new worker imports torch."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from workbench.drive.running.runner import Runner
from workbench.faces.cli import main

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def runner() -> Iterator[Runner]:
    with Runner() as shared:
        yield shared


@pytest.fixture
def here(runner: Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
         ) -> Callable[..., subprocess.CompletedProcess[str]]:
    """As `test_cli.cli`, for what needs no process of its own."""
    logger = logging.getLogger("workbench")
    monkeypatch.chdir(ROOT)
    for verb in ("run", "test", "export", "bench"):
        monkeypatch.setattr(f"workbench.faces.verbs.{verb}.Runner", lambda: nullcontext(runner))

    def typed(*words: str, sessions: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        with monkeypatch.context() as patch:
            for name, value in (environment | ({"KERNEL_WORKBENCH_SESSIONS": str(sessions)} if sessions else {})).items():
                patch.setenv(name, value)
            capsys.readouterr()
            logger.addHandler(logging.lastResort)  # as where no handler is: pytest has some
            try:
                code = main(words)
            except SystemExit as end:
                code = end.code
            finally:
                logger.removeHandler(logging.lastResort)
        said = capsys.readouterr()
        return subprocess.CompletedProcess(words, code, said.out, said.err)

    return typed
