"""One worker process, seen from its parent: it is called with a deadline, killed together with its descendants, and started
again."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ...core.diagnostics import LOG
from ...core.env import environment
from ...core.errors import BadRequest, RenderError
from ...core.orders import Order
from ...core.plain_text import plain_json
from ...core.replies import Event, Failure
from ...core.trial_parts import Environment
from ...core.typed import Misfit, read, to_json
from ..machine import forked
from ..machine.forked import Forked, fork

R = TypeVar("R")
_GRACE_S = 5.0  # time for an operation that removes its files when it is stopped
GONE = "the loss of its worker in the cluster"   # the `how` of a process on another machine
_BAD_REQUESTS = (BadRequest.__name__, RenderError.__name__)


class WorkerDied(RuntimeError):
    """The process ended while it worked. `how` is "signal 11 (SIGSEGV)" or "exit code 3"; `log` its last lines."""

    def __init__(self, how: str, log: str) -> None:
        super().__init__(f"The process ended by {how}.")
        self.how = how
        self.log = log


class WorkerTimeout(RuntimeError):
    """No answer within the deadline; the process group was killed."""

    def __init__(self, limit_s: float, log: str) -> None:
        super().__init__(f"No answer within {limit_s:g} s.")
        self.limit_s = limit_s
        self.log = log


class WorkerCancelled(RuntimeError):
    """The event `stop` of the call was set; the process was killed with all it had started."""


class WorkerFailed(RuntimeError):
    """The operation raised an exception. This is a defect of the workbench, not of the candidate. The error has the child's
    traceback. `bad_request`: the request cannot be carried out, and `str(error)` is the sentence for the user. `machine`: the
    disk or another part of the machine is the cause; then it is not a defect.
    """

    def __init__(self, message: str, trace: str, *, bad_request: bool = False, machine: bool = False) -> None:
        super().__init__(message)
        self.trace = trace
        self.bad_request = bad_request
        self.machine = machine


class WorkerProcess:
    """Start lazily, call, restart after a death. One call at a time."""

    _module = "workbench.measure.worker"

    def __init__(self, kind: str, *, log_path: Path, environment: dict[str, str] | None = None, device: str = "cuda",
                 at_once: bool = False) -> None:
        """`device`: a worker for "cpu" or for builds may be a fork of a process that has imported torch. `at_once`: the worker
        starts other processes before it needs torch, so it is a fork only if the process that forks is running already."""
        self.kind = kind
        self._forks = (device == "cpu" or kind == "build") and (not at_once or forked.there())
        self.log_path = log_path
        self.starts = 0
        self._environment = environment or {}
        self._process: _Started | Forked | None = None
        self._number = 0

    @property
    def environment(self) -> Environment:
        """The environment of its machine, as trials record it."""
        return environment()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def call(self, order: Order[R], *, limit_s: float, on_event: Callable[[Event], float | None] = lambda event: None,
             stop: threading.Event | None = None) -> R:
        """Have one order carried out. `on_event` may return a new limit in seconds, counted from that event. `stop` belongs to
        the caller and stays set, so that a stop before the call also ends the call. Raises WorkerDied, WorkerTimeout,
        WorkerCancelled or WorkerFailed.
        """
        if stop is not None and stop.is_set():
            raise WorkerCancelled("The worker was stopped.")
        begun = time.monotonic()
        try:
            self._ask(order)
            LOG.debug("%s worker %s: %s asked, at most %g s", self.kind, self._who, order, limit_s)
            reply = self._reply(order, limit_s, on_event, stop)
        except BrokenPipeError:
            raise self._death() from None
        except (WorkerDied, WorkerTimeout, WorkerFailed, WorkerCancelled) as error:
            LOG.debug("%s worker %s: %s ended after %.2f s: %s", self.kind, self._who, order.operation,
                      time.monotonic() - begun, error)
            raise
        LOG.debug("%s worker %s: %s %s after %.2f s", self.kind, self._who, order.operation,
                  getattr(reply, "status", "done"), time.monotonic() - begun)
        return reply

    @property
    def _who(self) -> int | str:
        """The process id for the log. The id of a process that is being forked is not known yet."""
        return (self._process and self._process.pid) or "(starting)"

    def ask_ahead(self, order: Order[Any]) -> None:
        """Send an order for its effect on the process (an import, say) and do not wait. The next call reports a failure."""
        with contextlib.suppress(BrokenPipeError):
            self._ask(order)

    def close(self) -> None:
        """End the process and all that it started. Do not call it while a call is running."""
        self._end()

    def log_tail(self, size: int = 32_000) -> str:
        """The last characters of what the worker and its children printed."""
        if not self.log_path.is_file():
            return ""
        with self.log_path.open("rb") as file:
            file.seek(max(0, self.log_path.stat().st_size - size))
            return file.read().decode("utf-8", "replace")

    def _start(self) -> None:
        self._end()
        request_read, request_write = os.pipe()
        reply_read, reply_write = os.pipe()
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        environment = _child_environment(self._environment)
        with self.log_path.open("wb") as log:
            if self._forks:
                self._process = fork([self._module, self.kind], [request_read, reply_write, log.fileno()], environment,
                                     _child_environment({}))
            if self._process is None:
                self._process = _Started(
                    [sys.executable, "-u", "-m", self._module, self.kind, str(request_read), str(reply_write)],
                    pass_fds=(request_read, reply_write), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True, env=environment)
            self._write_fd, self._read_fd = request_write, reply_read
        os.close(request_read)
        os.close(reply_write)
        self.starts += 1

    def _ask(self, order: Order[Any]) -> None:
        if not self.alive:
            self._start()
        self._number += 1  # a reply to an earlier order is ignored
        self._write(to_json({"id": self._number, "operation": order.operation, "order": order}).encode() + b"\n")

    def _write(self, message: bytes) -> None:
        view = memoryview(message)
        while view:
            view = view[os.write(self._write_fd, view):]

    def _reply(self, order: Order[R], limit_s: float, on_event: Callable[[Event], float | None],
               stop: threading.Event | None) -> R:
        deadline = time.monotonic() + limit_s
        buffer = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._read_fd, selectors.EVENT_READ)
            while True:
                if stop is not None and stop.is_set():
                    if order.ends_itself:
                        self._let_it_end()
                    self._end()
                    raise WorkerCancelled("The worker was stopped.")
                left = deadline - time.monotonic()
                if left <= 0:
                    log = self.log_tail()
                    self._end()
                    raise WorkerTimeout(limit_s, log)
                if not selector.select(min(left, 0.2)):
                    continue
                data = os.read(self._read_fd, 1 << 16)
                if not data:
                    raise self._death()
                buffer += data
                *lines, buffer = buffer.split(b"\n")
                for line in lines:
                    message = plain_json(line.decode())
                    if message["id"] != self._number:
                        continue
                    if "event" in message:
                        event = read(Event, message["event"])
                        LOG.debug("%s worker %s: %s: %s", self.kind, self._who, event.phase, event.text)
                        new_limit = on_event(event)
                        if new_limit:
                            limit_s, deadline = new_limit, time.monotonic() + new_limit
                    elif "failure" in message:
                        failed = read(Failure, message["failure"])
                        bad = failed.type in _BAD_REQUESTS
                        raise WorkerFailed(failed.message if bad else f"{failed.type}: {failed.message}", failed.trace,
                                           bad_request=bad, machine=failed.machine)
                    else:
                        return self._read(order, message["reply"])

    def _read(self, order: Order[R], data: Any) -> R:
        try:
            reply: R = read(order.reply, data)
        except Misfit as error:
            self._end()
            raise WorkerFailed(f"The reply to the order {order.operation!r} cannot be read: {error}.", "") from error
        if getattr(reply, "restart", False):
            self._end()
        return reply

    def _death(self) -> Exception:
        code = self._process.wait() if self._process else -signal.SIGKILL
        log = self.log_tail()
        self._end()
        if code < 0:
            return WorkerDied(f"signal {-code} ({signal.Signals(-code).name})", log)
        return WorkerDied(f"exit code {code}", log)

    def _let_it_end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.end()
        self._process = None
        os.close(self._write_fd)
        os.close(self._read_fd)


class _Started(subprocess.Popen[bytes]):
    """A worker in a new interpreter."""

    def end(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)  # the group also contains nvcc, cicc and ptxas
        except ProcessLookupError:
            self.kill()
        self.wait()


def _child_environment(extra: dict[str, str]) -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[3])
    path = os.environ.get("PYTHONPATH")
    # Threads that spin while they wait would take the cores that other processes need.
    return {"OMP_WAIT_POLICY": "PASSIVE", **os.environ, "PYTHONPATH": f"{root}{os.pathsep}{path}" if path else root, **extra}
