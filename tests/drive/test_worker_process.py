"""Worker processes that really die, hang and are killed; and what is left of them afterwards: nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from workbench.core.orders import DeviceOrder, Order, PingOrder, WarmOrder
from workbench.core.replies import Alive, Device
from workbench.drive.machine import forked
from workbench.drive.running.worker_process import WorkerCancelled, WorkerDied, WorkerFailed, WorkerProcess, WorkerTimeout

from .conftest import until

SLOW = WarmOrder(("kernel.judge",))  # imports torch: seconds


@dataclass(frozen=True)
class Unheard(Order[Alive]):
    operation, reply = "no such operation", Alive


@dataclass(frozen=True)
class Ping(Order[Alive]):
    operation, reply = "ping", Alive
    colour: str = "red"


@dataclass(frozen=True)
class PingForADevice(Order[Device]):
    operation, reply = "ping", Device


@dataclass(frozen=True)
class Describe(Order[Device]):
    operation, reply = "device", Device


@dataclass(frozen=True)
class DescribeNumber(Order[Device]):
    operation, reply = "device", Device
    device: int


@pytest.fixture(params=["cpu", "cuda"])
def worker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[WorkerProcess]:
    process = WorkerProcess("measure", log_path=tmp_path / "worker.log", device=request.param)
    yield process
    process.close()


def gone(pid: int, within_s: float = 100.0) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def once_asked(worker: WorkerProcess, act: Callable[[], None]) -> None:
    """Another thread acts as soon as the next order has a number."""
    number = worker._number

    def watch() -> None:
        until(lambda: worker._number > number)
        act()

    threading.Thread(target=watch, daemon=True).start()


def test_a_worker_stays_warm_between_calls(worker: WorkerProcess) -> None:
    first = worker.call(PingOrder(), limit_s=200)
    assert worker.call(PingOrder(), limit_s=200) == first and worker.starts == 1


def test_killed_from_outside_it_says_so_and_starts_again(worker: WorkerProcess) -> None:
    pid = worker.call(PingOrder(), limit_s=200).pid
    os.kill(pid, signal.SIGSTOP)  # so that it never answers
    once_asked(worker, lambda: os.kill(pid, signal.SIGKILL))
    with pytest.raises(WorkerDied, match="SIGKILL"):
        worker.call(SLOW, limit_s=200)
    assert worker.call(PingOrder(), limit_s=200).pid != pid


def test_what_is_asked_ahead_is_done_and_its_answer_passed_over(worker: WorkerProcess) -> None:
    worker.ask_ahead(WarmOrder(("resources",)))
    worker.ask_ahead(Unheard())  # told by nobody: the next call is answered by its own answer
    assert worker.call(PingOrder(), limit_s=200).pid == worker.call(PingOrder(), limit_s=200).pid
    assert worker.starts == 1
    worker._process.kill()
    worker._process.wait()
    worker.ask_ahead(PingOrder())
    assert worker.call(PingOrder(), limit_s=200).pid and worker.starts == 2


def test_a_deadline_kills_it(worker: WorkerProcess) -> None:
    pid = worker.call(PingOrder(), limit_s=200).pid
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(WorkerTimeout, match="0.2 s"):
        worker.call(SLOW, limit_s=0.2)
    assert gone(pid)
    assert worker.call(PingOrder(), limit_s=200).pid != pid


def test_a_stop_from_another_thread_ends_the_call(worker: WorkerProcess) -> None:
    pid, stop = worker.call(PingOrder(), limit_s=200).pid, threading.Event()
    os.kill(pid, signal.SIGSTOP)
    once_asked(worker, stop.set)
    with pytest.raises(WorkerCancelled):
        worker.call(SLOW, limit_s=200, stop=stop)
    assert gone(pid)
    assert worker.call(PingOrder(), limit_s=200, stop=threading.Event()).pid != pid


def test_a_stop_before_the_start_is_not_forgotten_by_it(worker: WorkerProcess) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(WorkerCancelled):
        worker.call(PingOrder(), limit_s=200, stop=stop)
    assert worker.starts == 0


@pytest.mark.parametrize(("order", "said"), [
    (Unheard(), "The operation 'no such operation' is not known."),
    (Ping(), "The order 'ping' cannot be read: colour is not known."),
    (Describe(), "The order 'device' cannot be read: device is missing."),
    (DescribeNumber(7), "The order 'device' cannot be read: device is 7, not a text.")])
def test_an_order_that_the_worker_does_not_know_is_our_defect_with_a_trace(worker: WorkerProcess, order: Order[Alive],
                                                                           said: str) -> None:
    with pytest.raises(WorkerFailed) as failed:
        worker.call(order, limit_s=200)
    assert str(failed.value) == f"ValueError: {said}" and not failed.value.bad_request
    assert "Traceback" in failed.value.trace
    assert worker.call(PingOrder(), limit_s=200).pid and worker.starts == 1


def test_a_reply_of_another_kind_is_refused_by_the_name_of_its_key(worker: WorkerProcess) -> None:
    with pytest.raises(WorkerFailed, match=r"^The reply to the order 'ping' cannot be read: arch is missing\.$"):
        worker.call(PingForADevice(), limit_s=200)
    assert worker.call(PingOrder(), limit_s=200).pid


def test_a_bad_request_is_its_sentence_alone(worker: WorkerProcess) -> None:
    with pytest.raises(WorkerFailed, match=r"^device 'tpu' is not known; choose cpu or cuda:0\.$") as failed:
        worker.call(DeviceOrder("tpu"), limit_s=200)
    assert failed.value.bad_request


def test_workers_die_with_their_parent(tmp_path: Path) -> None:
    script = f"""
import os, sys, threading
from pathlib import Path
from workbench.core.orders import PingOrder
from workbench.drive.running.worker_process import WorkerProcess
worker = WorkerProcess("measure", log_path=Path({str(tmp_path)!r}) / "w.log")
pids = []
starter = threading.Thread(target=lambda: pids.append(worker.call(PingOrder(), limit_s=200).pid))
starter.start(); starter.join()          # the thread that started the worker ends: the worker must live on
assert worker.call(PingOrder(), limit_s=200).pid == pids[0]
print(pids[0], flush=True)
os.kill(os.getpid(), 9)
"""
    parent = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False,
                            env={**os.environ, "PYTHONPATH": os.getcwd()})
    assert parent.returncode == -9, parent.stderr
    assert gone(int(parent.stdout))


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@contextmanager
def another(tmp_path: Path, kind: str = "measure", **how: object) -> Iterator[int]:
    """The number of a worker of its own."""
    process = WorkerProcess(kind, log_path=tmp_path / "another.log", **how)
    try:
        yield process.call(PingOrder(), limit_s=200).pid
    finally:
        process.close()


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another test may have started the one of this process, under other variables: then nothing forks here."""
    monkeypatch.setattr(forked, "_server", None)
    yield
    if forked._server is not None:
        forked._server.close()


@pytest.mark.usefixtures("own_server")
def test_workers_without_a_gpu_are_forks_of_one_process_and_no_others_are(tmp_path: Path) -> None:
    with (another(tmp_path, device="cpu") as first, another(tmp_path, "build") as second,
          another(tmp_path, device="cuda:0") as gpu):
        assert parent(first) == parent(second) != os.getpid() == parent(gpu)
        assert os.getsid(first) == first and os.getsid(second) == second
        assert len(list(Path(f"/proc/{parent(first)}/task").iterdir())) == 1, "a fork keeps only one of several threads"


@pytest.mark.usefixtures("own_server")
def test_a_worker_that_starts_others_first_does_not_wait_for_the_import_of_torch(tmp_path: Path) -> None:
    with another(tmp_path, device="cpu", at_once=True) as first:
        assert parent(first) == os.getpid() and not forked.there()
    with another(tmp_path, device="cpu") as second, another(tmp_path, device="cpu", at_once=True) as third:
        assert parent(second) == parent(third) != os.getpid(), "where torch is there, a fork is faster"


@pytest.mark.usefixtures("own_server")
def test_what_is_read_when_torch_is_loaded_needs_a_new_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of(pid: int) -> set[bytes]:
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))

    with another(tmp_path, device="cpu") as pid:
        assert parent(pid) != os.getpid()
    with another(tmp_path, device="cpu", environment={"OMP_NUM_THREADS": "1"}) as pid:
        assert parent(pid) == os.getpid() and b"OMP_NUM_THREADS=1" in of(pid)
    monkeypatch.setenv("MKL_NUM_THREADS", "1")
    with another(tmp_path, device="cpu") as pid:
        assert parent(pid) == os.getpid() and b"MKL_NUM_THREADS=1" in of(pid)


def test_a_fork_shares_no_drawn_seed_with_another() -> None:
    """The judge draws some when it is imported."""
    code = ("import importlib, sys\nfrom workbench.measure import fork_server\nfor name in fork_server._AHEAD: "
            "importlib.import_module(name)\nprint(*(m for m in sys.modules if m.startswith('workbench.')))")
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["workbench.measure", "workbench.measure.fork_server"]


@pytest.mark.usefixtures("own_server")
def test_a_fork_server_that_is_killed_costs_its_workers_and_the_next_call_starts_others(tmp_path: Path) -> None:
    worker = WorkerProcess("measure", log_path=tmp_path / "worker.log", device="cpu")
    try:
        pid = worker.call(PingOrder(), limit_s=200).pid
        server = parent(pid)
        assert server != os.getpid()
        os.kill(server, signal.SIGKILL)
        until(lambda: not worker.alive)
        new = worker.call(PingOrder(), limit_s=200).pid
        assert gone(pid) and gone(server) and parent(new) not in (server, os.getpid())
    finally:
        worker.close()


def test_a_worker_that_is_closed_before_it_began_never_begins(tmp_path: Path) -> None:
    script = f"""
import os
from pathlib import Path
from workbench.core.orders import PingOrder
from workbench.drive.running.worker_process import WorkerProcess
first, second = (WorkerProcess("measure", log_path=Path({str(tmp_path)!r}) / name, device="cpu") for name in "ab")
first.ask_ahead(PingOrder())             # the server has begun to import torch
first.close()
pid = second.call(PingOrder(), limit_s=200).pid
server = Path(f"/proc/{{pid}}/stat").read_text().rpartition(")")[2].split()[1]
print(pid, *Path(f"/proc/{{server}}/task/{{server}}/children").read_text().split())
second.close()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": os.getcwd()})
    pid, *children = done.stdout.split()
    assert children == [pid]
