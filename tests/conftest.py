"""One runner for all tests of a pytest process, and the command line in this process: every new worker imports torch.
A folder of broken templates, and a driver that lists a GPU."""

from __future__ import annotations

import gc
import logging
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.export.recipes import new_worker
from tests.shared import require
from workbench.core.env import find_toolchain
from workbench.drive.checking.attacks import kernels
from workbench.drive.running.runner import Runner
from workbench.drive.running.worker_process import WorkerProcess
from workbench.faces.cli import main

ROOT = Path(__file__).resolve().parents[1]


@pytest.hookimpl(optionalhook=True)  # a GPU machine may lack xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """As `--dist loadgroup`, which waits for ever once a process of tests has died (xdist 3.8)."""
    from xdist.scheduler import LoadGroupScheduling

    class Groups(LoadGroupScheduling):
        def remove_node(self, node: Any) -> str | None:
            """Give what it has not run to the others, without the test that ended it; return that one."""
            units = self.assigned_work.pop(node)
            left = {group: [test for test, done in unit.items() if not done] for group, unit in units.items()}
            ended_it = next((test for tests in left.values() for test in tests), None)
            for group, tests in left.items():
                if rest := {test: False for test in tests if test != ended_it}:
                    self.workqueue[group] = rest
            for other in self.assigned_work:
                self._reschedule(other)
            return ended_it

    return Groups(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Imported modules stay. Looking for garbage in them takes a third of the collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """`make failed` must find what failed: `--dist loadgroup` writes a test's group behind its name.
    It must not pass after a run that was cut short: nobody knows what the rest would have said."""
    if hasattr(session.config, "workerinput"):
        gc.callbacks.clear()  # xdist ends this process by an interrupt; in Hypothesis's callback it would print a traceback
        return
    if not hasattr(session.config, "cache"):
        return
    cache = session.config.cache
    ended = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
    failed = cache.get("cache/lastfailed", {}) if ended else {}
    cache.set("cache/lastfailed", {re.sub(r"@[^@\]]+$", "", name): True for name in failed})


@pytest.fixture(autouse=True)
def own_store(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What tunes of this machine have found is nothing to the tests."""
    monkeypatch.setenv("KERNEL_WORKBENCH_STORE", str(tmp_path_factory.getbasetemp() / "no store" / "tuned.json"))


@pytest.fixture(autouse=True, scope="session")
def own_locks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The processes of tests do not wait for each other's emulator. A GPU is shared: there the locks of the machine count."""
    with pytest.MonkeyPatch.context() as patch:
        if not any(test.path.parent.name == "gpu" for test in request.session.items):
            patch.setenv("KERNEL_WORKBENCH_LOCKS", str(tmp_path_factory.mktemp("locks")))
        yield


@pytest.fixture(scope="session")
def runner() -> Iterator[Runner]:
    with Runner() as shared:
        yield shared


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for the built kernels and the truth of all tests of a pytest process that ask for it."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module", autouse=True)
def what_folders_need(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests of builds need a compiler; those of patches share one cache of built kernels."""
    room = request.path.parent.name
    if room == "build":
        require(find_toolchain().cxx, "a C++ compiler")
    with pytest.MonkeyPatch.context() as patch:
        if room == "patch":
            patch.setenv("KERNEL_WORKBENCH_CACHE", str(request.getfixturevalue("folder") / "cache"))
        yield


@pytest.fixture(scope="module")
def worker(folder: Path) -> Iterator[WorkerProcess]:
    """For exported files that are refused: they share a process, as they share nothing in it."""
    process = new_worker(folder)
    yield process
    process.close()


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def here(runner: Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
         ) -> Callable[..., subprocess.CompletedProcess[str]]:
    """As `test_cli.cli`, for what needs no process of its own."""
    logger = logging.getLogger("workbench")
    monkeypatch.chdir(ROOT)
    for verb in ("run", "test", "export", "bench", "tune", "diff", "profile"):
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


@pytest.fixture(scope="session")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kernels(tmp_path_factory.mktemp("attacks"))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A driver that lists one H200: nothing more of it is there."""
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\necho '0, NVIDIA H200, GPU-aaaa1111, 9.0, 143771, 580.159.03'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{smi.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
