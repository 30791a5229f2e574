"""Starts workers as forks of one process that has imported torch (`measure.fork_server`). All workers of this process use the
same one."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from ...core.process_orders import ForkOrder
from ...core.typed import to_json

_SERVER = "workbench.measure.fork_server"  # a name, because this process must not import a module that imports torch
# Variables that are read only when they are needed. Any other variable may have been read when Python, torch or a library was
# loaded.
_READ_LATE = ("PATH", "TMPDIR", "PYTEST_CURRENT_TEST")
_READ_LATE_BEGIN = ("KW_", "KERNEL_WORKBENCH_", "CUDACPU_")
_lock = threading.Lock()
_server: _Server | None = None


def fork(words: Sequence[str], fds: Sequence[int], environment: Mapping[str, str], common: Mapping[str, str]) -> Forked | None:
    """Fork a process that runs `python -u -m` with these words, in its own session of processes. `fds`: requests, replies, log.
    `common`: the environment of most workers. None if this worker needs a new interpreter."""
    global _server
    early = _read_early(environment)
    if early != _read_early(common):
        return None
    with _lock:
        for _ in range(2):
            if _server is None:
                _server = _Server(common)
            if _server.environment != early:
                return None
            try:
                return _server.fork(words, fds, environment)
            except (BrokenPipeError, ConnectionResetError):  # the server was ended
                _server.close()
                _server = None
            except OSError:  # the variables are too long for a message
                return None
    return None


def there() -> bool:
    """Whether the process that forks has been started."""
    return _server is not None


class Forked:
    """A forked process, with the interface of `subprocess.Popen`. Its parent is the server, which waits for it. The process id
    is not reused before `end`."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._pid: int | None = None
        self._code: int | None = None
        self._buffer = b""
        self._taking = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The process id; None until the process has started."""
        self._listen(0)
        return self._pid

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        self._listen(0)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; returns the exit code. Raises `subprocess.TimeoutExpired`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._code is None:
            left = None if deadline is None else deadline - time.monotonic()
            if timeout is not None and left is not None and left <= 0:
                raise subprocess.TimeoutExpired("worker", timeout)
            self._listen(left)
        return self._code

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def end(self) -> None:
        """Kill the process and its group. If it has not started yet, it will not start."""
        if (pid := self.pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            self.wait()
        self._code = -signal.SIGKILL if self._code is None else self._code
        self._channel.close()

    def _signal(self, number: int) -> None:
        if (pid := self.pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _listen(self, seconds: float | None) -> None:
        """Read the channel, waiting up to `seconds` for data."""
        if self._code is not None:
            return
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        if not poll.poll(None if seconds is None else 1e3 * seconds):
            return
        with self._taking, contextlib.suppress(BlockingIOError):  # another thread has taken it
            data = self._channel.recv(1 << 10, socket.MSG_DONTWAIT)
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            for word, number in map(bytes.split, lines):
                if word == b"began":
                    self._pid = int(number)
                else:
                    self._code = int(number)
            if not data and self._code is None:
                self._code = -signal.SIGKILL  # the server has ended, so the real exit code is unknown


class _Server:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = _read_early(environment)
        self._asks, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", _SERVER, str(theirs.fileno())], pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                env=dict(environment))

    def fork(self, words: Sequence[str], fds: Sequence[int], environment: Mapping[str, str]) -> Forked:
        message = to_json(ForkOrder(tuple(words), os.getcwd(), dict(environment))).encode()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._asks, [message], [*fds, theirs.fileno()])
            except OSError:
                ours.close()
                raise
        return Forked(ours)

    def close(self) -> None:
        self._asks.close()
        self._process.kill()
        self._process.wait()


def _read_early(environment: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in environment.items() if k not in _READ_LATE and not k.startswith(_READ_LATE_BEGIN)}
