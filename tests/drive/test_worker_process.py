"""Worker processes that really die, hang and are killed; and what is left of them afterwards: nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.drive.running.worker_process import WorkerCancelled, WorkerDied, WorkerFailed, WorkerProcess, WorkerTimeout

SLOW = {"modules": ["kernel.judge"]}  # imports torch: seconds, time enough to be killed in


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[WorkerProcess]:
    process = WorkerProcess("measure", log_path=tmp_path / "worker.log")
    yield process
    process.close()


def gone(pid: int, within_s: float = 5.0) -> bool:
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


def test_a_worker_stays_warm_between_calls(worker: WorkerProcess) -> None:
    first = worker.call("ping", {}, limit_s=20)
    assert worker.call("ping", {}, limit_s=20) == first and worker.starts == 1


def test_killed_from_outside_it_says_so_and_starts_again(worker: WorkerProcess) -> None:
    pid = worker.call("ping", {}, limit_s=20)["pid"]
    threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
    with pytest.raises(WorkerDied, match="SIGKILL"):
        worker.call("warm", SLOW, limit_s=60)
    assert worker.call("ping", {}, limit_s=20)["pid"] != pid


def test_what_is_asked_ahead_is_done_and_its_answer_passed_over(worker: WorkerProcess) -> None:
    worker.ask_ahead("warm", {"modules": ["resources"]})
    worker.ask_ahead("no_such_operation", {})  # told by nobody: the next call is answered by its own answer
    assert worker.call("ping", {}, limit_s=60)["pid"] == worker.call("ping", {}, limit_s=60)["pid"]
    assert worker.starts == 1
    worker._process.kill()
    worker._process.wait()
    worker.ask_ahead("ping", {})
    assert worker.call("ping", {}, limit_s=60)["pid"] and worker.starts == 2


def test_a_deadline_kills_it(worker: WorkerProcess) -> None:
    pid = worker.call("ping", {}, limit_s=20)["pid"]
    with pytest.raises(WorkerTimeout, match="0.2 s"):
        worker.call("warm", SLOW, limit_s=0.2)
    assert gone(pid)
    assert worker.call("ping", {}, limit_s=20)["pid"] != pid


def test_a_stop_from_another_thread_ends_the_call(worker: WorkerProcess) -> None:
    pid, stop = worker.call("ping", {}, limit_s=20)["pid"], threading.Event()
    threading.Timer(0.2, stop.set).start()
    start = time.monotonic()
    with pytest.raises(WorkerCancelled):
        worker.call("warm", SLOW, limit_s=60, stop=stop)
    assert time.monotonic() - start < 2 and gone(pid)
    assert worker.call("ping", {}, limit_s=20, stop=threading.Event())["pid"] != pid


def test_a_stop_before_the_start_is_not_forgotten_by_it(worker: WorkerProcess) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(WorkerCancelled):
        worker.call("ping", {}, limit_s=20, stop=stop)
    assert worker.starts == 0


def test_an_unknown_operation_is_our_defect_with_a_trace(worker: WorkerProcess) -> None:
    with pytest.raises(WorkerFailed, match="KeyError") as failed:
        worker.call("no such operation", {}, limit_s=20)
    assert "Traceback" in failed.value.trace
    assert worker.call("ping", {}, limit_s=20)["pid"]


def test_a_bad_request_is_its_sentence_alone(worker: WorkerProcess) -> None:
    with pytest.raises(WorkerFailed, match=r"^device 'tpu' is not known; choose cpu or cuda:0\.$") as failed:
        worker.call("device", {"device": "tpu"}, limit_s=60)
    assert failed.value.bad_request


def test_workers_die_with_their_parent(tmp_path: Path) -> None:
    script = f"""
import os, sys, threading
from pathlib import Path
from workbench.drive.running.worker_process import WorkerProcess
worker = WorkerProcess("measure", log_path=Path({str(tmp_path)!r}) / "w.log")
pids = []
starter = threading.Thread(target=lambda: pids.append(worker.call("ping", {{}}, limit_s=20)["pid"]))
starter.start(); starter.join()          # the thread that started the worker ends: the worker must live on
assert worker.call("ping", {{}}, limit_s=20)["pid"] == pids[0]
print(pids[0], flush=True)
os.kill(os.getpid(), 9)
"""
    parent = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False,
                            env={**os.environ, "PYTHONPATH": os.getcwd()})
    assert parent.returncode == -9, parent.stderr
    assert gone(int(parent.stdout))
