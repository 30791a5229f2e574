"""Whoever uses a GPU holds it: a run, a check, the proof of an export and the measuring of ceilings wait for a process that
really holds the lock. There is a driver that lists a GPU and nothing behind it, so what comes after the waiting fails."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.core.layer import ConvTranspose, Workload
from workbench.core.orders import ModuleOrder
from workbench.drive.checking.check import Check, CheckRequest, check
from workbench.drive.machine.device_lock import DeviceLock, held
from workbench.drive.running.request import RunRequest
from workbench.drive.running.runner import Runner
from workbench.drive.sessions.session import Session

from .conftest import WORKLOAD, good, until

ROOT = Path(__file__).resolve().parents[2]
TWO_CARDS = "0, NVIDIA H200, GPU-aaaa1111, 9.0, 143771, 580\n1, NVIDIA H200, GPU-bbbb2222, 9.0, 143771, 580"
_HOLDS = """
import sys
from workbench.drive.machine.device_lock import held
with held(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""
_HOLDS_THE_CPU = _HOLDS.replace("held\nwith held(sys.argv[1]):", """DeviceLock
import threading
lock = DeviceLock("cpu")
if lock.acquire(cancelled=threading.Event(), waiting=print):""")
NOTHING = ModuleOrder("x = 1", Workload(ConvTranspose(1, 2, 3, 3), 1, (9,)), (2, 3, 3), "cpu", Path("/nowhere"))
USES: dict[str, Callable[[Runner, Callable[[str], None]], object]] = {
    "a proof": lambda runner, say: runner.prove(replace(NOTHING, device="cuda:0"), on_text=say),
    "the measuring of ceilings": lambda runner, say: runner.measure_ceilings("cuda:0", say),
    "a check": lambda runner, say: check(CheckRequest("x = 1", "x = 1", "cuda:0"), on_text=say)}


@pytest.fixture(autouse=True)
def locks(gpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder of its own for the locks."""
    monkeypatch.setenv("KERNEL_WORKBENCH_LOCKS", str(tmp_path / "locks"))


@contextmanager
def held_elsewhere(script: str = _HOLDS) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the device until its input ends."""
    process = subprocess.Popen([sys.executable, "-c", script, "cuda:0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert process.stdout.readline() == "held\n"
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait(200)
        process.stdout.close()


def is_free(device: str = "cuda:0") -> bool:
    """Whether somebody else could take it at this moment."""
    lock, at_once = DeviceLock(device), threading.Event()
    at_once.set()
    got = lock.acquire(cancelled=at_once, waiting=lambda holder: None)
    lock.release()
    return got


class Looks(threading.Event):
    """A stop that nobody asks for. After each look at the lock, the next of these things happens."""

    def __init__(self, *happens: Callable[[], object]) -> None:
        super().__init__()
        self.happens = list(happens)

    def wait(self, timeout: float | None = None) -> bool:
        self.happens.pop(0)()
        return False


@pytest.mark.parametrize("use", USES)
def test_it_waits_says_for_whom_and_holds_the_gpu_while_it_works(use: str) -> None:
    said: list[str] = []
    with Runner(build_workers=1) as runner, ThreadPoolExecutor(1) as pool, held_elsewhere() as other:
        working: Future[object] = pool.submit(USES[use], runner, said.append)
        until(lambda: bool(said))
        assert said[0].startswith(f"waits: cuda:0 is used by process {other.pid} (-c cuda:0)")
        assert not working.done()
        other.stdin.close()
        until(lambda: DeviceLock("cuda:0").holder().startswith(f"process {os.getpid()} ") or working.done())
        assert not working.done() and not is_free()
        assert working.exception(300) is not None, "there is no GPU"
        assert said[1] == "cuda:0 is free now"
    assert is_free()


def test_a_run_waits_for_a_process_and_goes_on_when_that_is_killed(tmp_path: Path) -> None:
    session = Session.create(tmp_path, "s")
    with Runner(build_workers=1) as runner, held_elsewhere(_HOLDS_THE_CPU) as other:
        run = runner.start(RunRequest(WORKLOAD, (good(),), device="cpu", baselines=False, effort="quick"), session)
        until(lambda: run.message.startswith("waits"))
        assert run.state == "waiting" and run.message.startswith(f"waits: cpu is used by process {other.pid} (-c")
        assert [e["holder"].split(" (")[0] for e in session.events() if e["event"] == "waiting"] == [f"process {other.pid}"]
        other.kill()
        assert run.wait(300) and run.state == "done" and session.trials()[0].ok
    assert is_free("cpu")


def test_a_stop_ends_the_waiting(tmp_path: Path) -> None:
    with Runner(build_workers=1) as runner, held_elsewhere(_HOLDS_THE_CPU):
        run = runner.start(RunRequest(WORKLOAD, (good(),), device="cpu", baselines=False), Session.create(tmp_path, "s"))
        until(lambda: run.state == "waiting" and run.message.startswith("waits"))
        runner.stop(run)
        assert (run.state, run.message) == ("stopped", "stopped while it waited for the device")
    with held_elsewhere():
        checking = Check(CheckRequest("x = 1", "x = 1", "cuda:0")).start()
        until(lambda: checking.text.startswith("waits: cuda:0 is used by process"))
        checking.stop()
        assert checking.wait(100) and checking.problem == "Stopped by you."
        assert not is_free()


def test_what_runs_on_the_cpu_without_a_run_does_not_hold_it() -> None:
    said: list[str] = []
    with Runner(build_workers=1) as runner, held_elsewhere(_HOLDS_THE_CPU):
        assert runner.prove(NOTHING, on_text=said.append).status == "RENDER_FAILED"
    assert said == []


def test_the_gpu_is_held_under_any_of_its_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin" / "nvidia-smi").write_text(f"#!/bin/sh\necho '{TWO_CARDS}'\n")
    second, first = DeviceLock("cuda:1").path, DeviceLock("cuda:0").path
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert DeviceLock("cuda:0").path == second != first


def test_two_in_one_process_wait_for_each_other_too() -> None:
    said: list[str] = []
    other = DeviceLock("cuda:0")
    assert other.acquire(cancelled=threading.Event(), waiting=lambda holder: None)
    with held("cuda:0", said.append, Looks(other.release)):
        assert not is_free()
    assert len(said) == 2 and said[0].startswith(f"waits: cuda:0 is used by process {os.getpid()}")
    assert said[1] == "cuda:0 is free now"


def test_a_holder_that_just_lets_go_is_not_called_another_process() -> None:
    """Its name goes a moment before its lock does. Who never gives a name is called so."""
    said: list[str] = []
    other = DeviceLock("cuda:0")
    assert other.acquire(cancelled=threading.Event(), waiting=lambda holder: None)

    with held("cuda:0", said.append, Looks(lambda: other.path.write_text(""), other.release)):
        pass
    assert [text.split(" (")[0] for text in said] == [f"waits: cuda:0 is used by process {os.getpid()}", "cuda:0 is free now"]
    with other.path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with held("cuda:0", said.append, Looks(lambda: None, file.close)):
            pass
    assert said[2:] == ["waits: cuda:0 is used by another process", "cuda:0 is free now"]
