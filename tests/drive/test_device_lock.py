"""Whoever uses a GPU holds it: a run, a check, `test`, the proof of an export and the measuring of ceilings."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from workbench.core import env
from workbench.drive import devices, headless
from workbench.drive.check import CheckRequest, check
from workbench.drive.device_lock import DeviceLock, held
from workbench.drive.run import RunRequest
from workbench.drive.runner import Runner
from workbench.drive.session import Session
from workbench.drive.workers import Workers

from .conftest import WORKLOAD, good

H200 = {"kind": "cuda", "index": 0, "name": "NVIDIA H200", "arch": "sm_90", "sm": 90, "key": "nvidia_h200"}


@pytest.fixture(autouse=True)
def fake(gpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A GPU that everybody believes in, and a folder of its own for the locks."""
    monkeypatch.setenv("KERNEL_WORKBENCH_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setattr(devices, "gpu_lacks", lambda: None)
    monkeypatch.setattr(Workers, "device", lambda self, name: H200)


def is_free(device: str = "cuda:0") -> bool:
    """Whether somebody else could take it at this moment."""
    lock, at_once = DeviceLock(device), threading.Event()
    at_once.set()
    got = lock.acquire(cancelled=at_once, waiting=lambda holder: None)
    lock.release()
    return got


def test_a_run_and_a_check_wait_for_the_same_gpu(tmp_path: Path) -> None:
    stopped, said = threading.Event(), []

    def on_text(text: str) -> None:
        said.append(text)
        stopped.set()

    with Runner(build_workers=1) as runner, held("cuda:0"):
        run = runner.start(RunRequest(WORKLOAD, (good(),), device="cuda:0", baselines=False), Session.create(tmp_path, "s"))
        end = time.monotonic() + 20
        while time.monotonic() < end and not run.message.startswith("waits: cuda:0 is used by process"):
            time.sleep(0.02)
        assert run.state == "waiting", run.message
        runner.stop(run)
        assert run.message == "stopped while it waited for the device"
        with pytest.raises(RuntimeError, match="Stopped by you"):
            check(CheckRequest("x = 1", "x = 1", "cuda:0"), on_text=on_text, stopped=stopped)
        assert said[0].startswith("waits: cuda:0 is used by process")
    assert is_free()


def test_the_gpu_is_held_under_any_of_its_numbers() -> None:
    cards = "0, NVIDIA H200, GPU-aaaa1111, 9.0, 143771, 580\n1, NVIDIA H200, GPU-bbbb2222, 9.0, 143771, 580\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workbench.drive.device_lock.gpus", lambda: env.parse_gpus(cards))
        second, first = DeviceLock("cuda:1").path, DeviceLock("cuda:0").path
        patch.setattr("workbench.drive.device_lock.gpus", lambda: env._visible(env.parse_gpus(cards), "1"))
        assert DeviceLock("cuda:0").path == second != first


def test_what_needs_no_run_holds_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    free: list[bool] = []

    def look(*_: Any, **__: Any) -> dict[str, Any]:
        free.append(is_free())
        return {"status": "OK", "headline": "right"}

    for name in ("fresh", "measure_ceilings", "judge_once"):
        monkeypatch.setattr(Workers, name, look)
    monkeypatch.setattr(Workers, "build_all", lambda self, items, device: {
        r.candidate_id: {"status": "OK", "library": ""} for r in items})
    with Runner(build_workers=1) as runner:
        runner.call("verify_export", {"device": "cuda:0"})
        runner.measure_ceilings("cuda:0")
        headless.validate(runner, device="cuda:0", variants=["forward/naive_gather"], workloads=[WORKLOAD])
        assert free == [False, False, False] and is_free()
        runner.call("verify_export", {"device": "cpu"})
        assert free[-1], "the CPU is not held"


def test_it_tells_for_whom_it_waits_and_when_that_is_over() -> None:
    said: list[str] = []
    other = DeviceLock("cuda:0")
    assert other.acquire(cancelled=threading.Event(), waiting=lambda holder: None)
    threading.Timer(0.3, other.release).start()
    with held("cuda:0", said.append):
        assert not is_free()
    assert len(said) == 2 and said[0].startswith("waits: cuda:0 is used by process") and said[1] == "cuda:0 is free now"
