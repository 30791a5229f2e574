"""One run at a time on a device. A lock file contains the name of its holder. If the holder dies, Linux releases the lock."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ...core.env import gpus

_POLL_S = 0.1
_UNNAMED = "another process"


class DeviceLock:
    """The lock of a device. `acquire` waits until it holds the device or until `cancelled` is set, and reports the process that
    it waits for. `device`: "cpu" or "cuda:N" of this process. Two locks of one device also exclude each other in the same
    process.
    """

    def __init__(self, device: str) -> None:
        folder = Path(os.environ.get("KERNEL_WORKBENCH_LOCKS")
                      or Path(tempfile.gettempdir()) / f"kernel-workbench-{os.getuid()}")
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / (re.sub(r"[^A-Za-z0-9]+", "-", _key(device)).strip("-") + ".lock")
        self._fd: int | None = None

    def acquire(self, *, cancelled: threading.Event, waiting: Callable[[str], None]) -> bool:
        """True if the lock is held, False if `cancelled` was set first."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        said = seen = ""
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = self.holder()
                # A holder without a name is writing or removing it just now.
                if holder != said and (holder != _UNNAMED or seen == _UNNAMED):
                    waiting(holder)
                    said = holder
                seen = holder
            if cancelled.wait(_POLL_S):
                os.close(fd)
                return False
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps({"pid": os.getpid(), "command": shlex.join(sys.argv) or "python",
                                  "since": time.time()}).encode(), 0)
        self._fd = fd
        return True

    def release(self) -> None:
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None

    def holder(self) -> str:
        """"process 4711 (python -m workbench run ...)"."""
        try:
            data = json.loads(self.path.read_text())
            return f"process {data['pid']} ({data['command'][:120]})"
        except (OSError, ValueError, KeyError):
            return _UNNAMED


@contextmanager
def held(device: str, on_text: Callable[[str], None] = lambda text: None,
         stopped: threading.Event | None = None) -> Iterator[None]:
    """Holds the lock of a GPU for work that is not a run. The CPU needs no lock. `on_text` gets the name of the process for
    which it waits. Raises `RuntimeError` if `stopped` is set during the wait.
    """
    if device == "cpu":
        yield
        return
    lock, waited = DeviceLock(device), []

    def waiting(holder: str) -> None:
        waited.append(holder)
        on_text(f"waits: {device} is used by {holder}")

    if not lock.acquire(cancelled=stopped or threading.Event(), waiting=waiting):
        raise RuntimeError("Stopped by you.")
    try:
        if waited:
            on_text(f"{device} is free now")
        yield
    finally:
        lock.release()


def _key(device: str) -> str:
    """A name of the device that is the same in all processes. With CUDA_VISIBLE_DEVICES a GPU can have several numbers, but it
    has only one UUID."""
    if device == "cpu":
        return f"cpu-{platform.machine()}"
    return next((gpu.uuid for gpu in gpus() if device == f"cuda:{gpu.index}"), device)
