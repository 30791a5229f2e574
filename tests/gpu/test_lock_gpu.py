"""`test`, a run and the self-test wait for the process that holds the GPU, and say for which."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tests.drive.conftest import WORKLOAD, good, until
from tests.drive.test_device_lock import held_elsewhere
from tests.shared import require
from workbench.drive.checking import variant_tests
from workbench.drive.machine.device_lock import DeviceLock
from workbench.drive.running.request import RunRequest
from workbench.drive.running.runner import Runner
from workbench.drive.sessions.session import Session


@pytest.fixture(autouse=True)
def locks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    require(torch.cuda.is_available(), "no CUDA GPU")
    monkeypatch.setenv("KERNEL_WORKBENCH_LOCKS", str(tmp_path / "locks"))


def test_validation_and_a_run_wait_for_another_process(tmp_path: Path) -> None:
    said: list[str] = []
    with Runner(build_workers=1) as runner, ThreadPoolExecutor(1) as pool, held_elsewhere() as other:
        asked = variant_tests.Chosen(variants=("forward/naive_gather",), workloads=(WORKLOAD,))
        cases = pool.submit(variant_tests.validate, runner, asked, device="cuda:0", on_text=said.append)
        until(lambda: bool(said))
        assert said[0].startswith(f"waits: cuda:0 is used by process {other.pid} ") and not cases.done()
        other.stdin.close()
        assert [c.status for c in cases.result(120)] == ["OK"] and said[1] == "cuda:0 is free now"
    lock = DeviceLock("cuda:0")
    assert lock.acquire(cancelled=threading.Event(), waiting=print)
    with Runner(build_workers=1) as runner:
        session = Session.create(tmp_path, "s")
        run = runner.start(RunRequest(WORKLOAD, (good(),), device="cuda:0", baselines=False, effort="quick"), session)
        until(lambda: run.message.startswith("waits"))
        assert run.message.startswith(f"waits: cuda:0 is used by process {os.getpid()} ")
        lock.release()
        assert run.wait(120) and session.trials()[0].ok
