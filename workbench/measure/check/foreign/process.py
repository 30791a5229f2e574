"""One foreign process from outside: started under limits, asked with a deadline, killed with all it has started."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from ....core import numbers
from ....core.plain_text import plain
from ....core.trial import Status
from ...kernel.launch import STICKY_WORDS
from . import confine, window
from .hold import Hold, waits_s
from .replies import Told
from .requests import Begin, OpenWindow, Request
from .wire import Kind, Line, NotTheProtocol, Tensors

R = TypeVar("R")

_START_S = 120
_LOG_TAIL = 4000
_BUILD_LOG = 200_000
_MOST_LOG_BYTES = 8 << 20
_WATCH_S = 0.3
# The limit of an answer: this number of bytes, plus this multiple of the reference's largest answer.
_MORE_BYTES, _TIMES = 64 << 20, 4
_TOUCHED_DEVICE = 99          # host_touched_device in the emulator's launch.h
_IMPORT_BYTES = 250 << 20  # about the memory for importing torch
# Messages of Python, the loader, OpenBLAS and C++ when the memory limit stops them.
_NO_MEMORY = re.compile(r"MemoryError|[Mm]emory allocation|allocate memory|bad_alloc|failed to map|cannot map")
_IN_THE_FILE = 'File "<model file>"'
# The line is named separately, and a path is of no use.
_PLACE = re.compile(r" \((?:<model file>, line \d+|/[^()]*|unknown location)\)\.?$")
# What Python writes when a signal ends it (faulthandler), and what C says before it aborts.
_TRITON = re.compile(r"at \d+:\d+:$")
_FELL = re.compile(r'^Fatal Python error:(?:.|\n)*?^  File "<model file>", line (\d{1,7}) in ', re.M)
_LAST_WORDS = re.compile(r"^.*?((?:\w+, line|\w+:)\d+: .*Assertion .* failed)\.?$|^  what\(\):\s+(.*)$|^(\*\*\* .* \*\*\*.*)$|"
                         r"^((?:free|malloc|corrupted|double free|munmap_chunk)\b.*)$", re.M)
_SIGNALS: dict[int, tuple[str, str]] = {
    signal.SIGSEGV: (": an address outside its memory", "Test each index before its load or store, and pass no null pointer."),
    signal.SIGBUS: (": an address outside its memory", "Test each index before its load or store, and pass no null pointer."),
    signal.SIGFPE: (": a whole number divided by zero", "Test the divisor before / and %: a size or a stride may be 0."),
    signal.SIGABRT: ("", "Look at what the log says before the abort: an assert, a C++ exception or a damaged heap."),
    signal.SIGILL: (": an instruction that this processor does not have", "Remove -march from the flags.")}
_open: set[int] = set()  # processes of all open `ForeignProcess`es. Other children of this process have left theirs


class Ended(Exception):
    """The process has ended: it died, or was ended because it was too slow, used too many resources, or broke the protocol."""

    def __init__(self, status: Status, headline: str, advice: str = "", log: str = "") -> None:
        super().__init__(headline)
        self.status, self.headline, self.advice, self.log = status, headline, advice, log


class Raised(Exception):
    """The foreign code raised an exception; the process continues. `type`, `message`, `line` (in the foreign file, or None)."""

    def __init__(self, told: Told) -> None:
        self.type, self.message, self.line = told.type, told.message, told.line
        self.trace, self.where, self.detail = told.trace, told.where, told.detail
        super().__init__(f"{self.type}: {self.message}")

    @property
    def inside(self) -> bool:
        """Whether a line of the file raised it; else `line` is where the function begins that could not be called."""
        return _IN_THE_FILE in self.trace

    @property
    def sentence(self) -> str:
        """`TypeError in line 41: forward() takes ...`"""
        lines = [_PLACE.sub("", s).strip() for s in self.message.splitlines() if s.strip()] or [""]
        first = lines[-1] if _TRITON.match(lines[0]) else lines[0]  # Triton's message begins with the text of the kernel
        if first.endswith(":") and len(lines) > 1:  # the first line only introduces the next one
            first = f"{first} {lines[1]}"
        first = first.rstrip(".")[:300]
        place = f" in line {self.line}" if self.line else ""
        return f"{self.type}{place}{f': {first}' if first else ''}"


@dataclass
class Spent:
    """The cost of a process: the seconds of waiting for it (also those for float64 and for the transfer of tensors), the bytes
    of tensors, and the numbers of requests and starts."""

    seconds: float = 0.0
    truth_s: float = 0.0
    moved_s: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    requests: int = 0
    starts: int = 0


@dataclass(frozen=True)
class Limits:
    memory_bytes: int
    call_s: float = 60.0
    build_s: float = 300.0


class ForeignProcess:
    """Starts at the first `ask`, and again after a death. `beside`: the process whose answers limit the size of the answers of
    this one; without it only the memory limit counts."""

    def __init__(self, name: str, *, device: str, limits: Limits, scratch: Path, beside: ForeignProcess | None = None,
                 launched: confine.Launched | None = None) -> None:
        self.name, self.device, self.limits, self.beside = name, device, limits, beside
        self.largest = 0              # bytes of the tensors of one answer
        self._shared_bytes = 0        # of the files that it shares with the judge, which may lie in memory
        self.scratch = scratch / name
        self.log_path = confine.log_of(self.scratch)
        self._called = "The process" if name == "candidate" else "The reference's process"
        self.deaths = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Line | None = None
        self._watched = 0.0
        self._waits_s: dict[str, float] | None = None   # before this request; see `_without_a_core_s`
        self._number = 0
        self._ready = False
        self._hold: Hold | None = None
        self.ran_while_held = False
        self._limit_s = limits.call_s
        self.waited_for = True        # otherwise its seconds do not count, because the judge does other work at the same time
        self.spent = Spent()
        self._home = "cpu"            # the device for the tensors of answers
        self._window_bytes = 0
        self._window: torch.Tensor | None = None
        self._window_of = self
        if launched is not None:
            self._take(launched)

    @staticmethod
    def _popen(**how: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(**how)

    @property
    def _started(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def _open_line(self) -> Line:
        assert self._line is not None
        return self._line

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def ask(self, request: Request[R], tensors: Sequence[torch.Tensor] = (), *, limit_s: float | None = None,
            doing: str = "") -> tuple[R, Tensors]:
        """Send a request; returns the answer and its tensors. Raises `Raised` if the foreign code raised an exception, and
        `Ended` if the process has ended."""
        begin = time.monotonic()
        try:
            if self._window_bytes:
                window.give_back(self._home, request.op)
            answer, results = self._asked(request, tensors, limit_s, doing or "it worked")
            results = [t.to(self._home) for t in results]
            self.spent.received_bytes += sum(t.nbytes for t in results)
            return answer, results
        finally:
            took = time.monotonic() - begin if self.waited_for else 0.0
            self.spent.seconds += took
            self.spent.truth_s += took if getattr(request, "wide", False) else 0.0
            self.spent.moved_s += self._line.moved_s if self._line and self.waited_for else 0.0
            self.spent.sent_bytes += sum(t.nbytes for t in tensors)
            self.spent.requests += 1

    def _asked(self, request: Request[R], tensors: Sequence[torch.Tensor], limit_s: float | None, doing: str
               ) -> tuple[R, Tensors]:
        self.resume()
        self.get_ready()
        limit_s = limit_s or self.limits.call_s
        deadline = time.monotonic() + limit_s
        self._limit_s, self._waits_s = limit_s, None
        try:
            self._number += 1
            line = self._open_line
            line.send({"id": self._number, "op": request.op, "request": request}, tensors, deadline)
            answer, results = line.receive(deadline, most_bytes=self._most_bytes(tensors),
                                           accept=partial(self._accept, request, tensors))
            self._too_loud()
        except TimeoutError:
            self._lose()
            raise self._ended(Status.RUN_TIMEOUT, f"Still not done after {limit_s:g} s while {doing}; it was stopped.",
                              "Look for a loop without an end, or raise the time limit.") from None
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise self._death(doing) from None
        except NotTheProtocol as error:
            self._lose()
            raise self._ended(Status.WORKER_DIED, f"It wrote into the judge's pipe while {doing} ({error}).",
                              "Use only file descriptors that the file has opened.") from None
        if isinstance(answer, Told):
            if self.device != "cpu" and any(words in answer.message for words in STICKY_WORDS):
                self._lose_the_context()
            raise Raised(answer)
        self.largest = max(self.largest, sum(t.nbytes for t in results))
        return answer, results

    def begin(self) -> None:
        """Start it without waiting until it is ready."""
        if not self.alive:
            self._start()

    def get_ready(self) -> None:
        """Start it and wait until it can be asked. Raises `Ended`."""
        self.begin()
        if not self._ready:
            self._wait_ready()

    def share_with(self, other: ForeignProcess) -> None:
        """The same through the memory of a process with the same text. Both are never asked at the same time from now on."""
        self._window_of = other._window_of
        self.share(other._home, other._window_bytes)
        self._window = None  # of its own: the process has closed it now

    def share(self, home: str, window_bytes: int) -> None:
        """From now on tensors of answers are on that device, and large ones pass through memory of it that is shared with the
        process."""
        self._home, self._window_bytes = home, window_bytes
        if self._window_bytes and self._ready and self.alive:
            self._open_window()

    def hold(self, *, strays: bool = False) -> None:
        """Stop the process and all that it started, until `resume`, the next `ask` or its end. `strays`: also stop all
        processes without a parent. Raises `StillRunning`; even then the next `ask` continues the process."""
        if self._hold is None and self.alive:
            self._hold = Hold(partial(self.family, strays))
            self._hold.begin()

    def resume(self) -> None:
        """Continue the process. `ran_while_held` is true from then on if it had run although it was stopped."""
        if self._hold is not None:
            hold, self._hold = self._hold, None
            self.ran_while_held |= hold.end()

    def family(self, strays: bool = False) -> list[int]:
        """The process and all that it started. `strays`: also all processes without a parent."""
        pid = self._started.pid
        return [pid, *confine.descendants(pid, dead=True),
                *(confine.descendants(os.getpid(), dead=True, without=_open) if strays else ())]

    def close(self) -> None:
        if self._process is not None:
            self._end()

    def kill(self) -> None:
        """Kill the process. Called from another thread; the thread that waits for an answer then gets `Ended`."""
        if (process := self._process) is not None:
            _kill(process.pid)

    def shared_file(self, size: int) -> tuple[Path, int]:
        """A new file of `size` bytes in its scratch folder, and a descriptor, which the judge closes. The name is random,
        because otherwise the foreign file could put a link there, which the unconfined judge would follow."""
        path = self.scratch / f"shared-{secrets.token_hex(8)}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        os.ftruncate(fd, size)
        self._shared_bytes += size
        if user := confine.user_of(self.scratch, self.device):
            os.fchown(fd, user, user)
        return path, fd

    def build_log(self) -> str:
        """What compilers have printed. With load_inline(verbose=True) the exception does not contain it."""
        return self.log_tail(_BUILD_LOG)

    def log_tail(self, size: int = _LOG_TAIL) -> str:
        if not self.log_path.is_file():
            return ""
        with self.log_path.open("rb") as file:
            file.seek(max(0, self.log_path.stat().st_size - size))
            return file.read().decode("utf-8", "replace")

    def _most_bytes(self, sent: Sequence[torch.Tensor]) -> int:
        if self.beside is None:
            return self.limits.memory_bytes
        return _MORE_BYTES + _TIMES * max(self.beside.largest, sum(t.nbytes for t in sent))

    def _accept(self, request: Request[R], sent: Sequence[torch.Tensor], answer: dict[str, Any], kinds: list[Kind]
                ) -> R | Told:
        number = answer.pop("id", None)
        if type(number) is not int or number != self._number:  # a fork of the process answers, too
            raise NotTheProtocol("an answer to no question")
        return request.accept(sent, answer, kinds)

    def _start(self) -> None:
        self.close()
        self._take(confine.launch(self.scratch, self.device, self.limits.memory_bytes, popen=self._popen))

    def _take(self, launched: confine.Launched) -> None:
        self._process = launched.process
        _open.add(self._started.pid)
        self.spent.starts += 1
        self._line = Line(launched.to_write, launched.from_read, self._watch, self._without_a_core_s)
        self._watched = time.monotonic()
        self._ready = False

    def _wait_ready(self) -> None:
        try:
            self._open_line.receive(time.monotonic() + _START_S, most_bytes=0, accept=partial(Begin().accept, ()))
        except (TimeoutError, EOFError, NotTheProtocol):
            ended = self._death("it started")
            # A process with too little memory may be ended by a signal, without a message.
            little = self.device == "cpu" and self.limits.memory_bytes < _IMPORT_BYTES
            raise self._too_small() if little or _NO_MEMORY.search(ended.log) else ended from None
        except Ended as error:
            raise self._too_small() if error.status is Status.OUT_OF_MEMORY else error from None
        self._ready = True
        if self._window_bytes:
            self._open_window()

    def _open_window(self) -> None:
        """Open the window. If memory cannot be allocated or shared, all tensors go through the pipe."""
        try:
            owner = self._window_of
            if owner._window is None:  # after a death the next process gets the same
                owner._window = window.allocate(self._window_bytes, self._home)
            self.ask(OpenWindow(), [window.handle(owner._window)])
        except (OSError, Raised, RuntimeError):  # no memory, or a driver that shares none
            self._window_bytes = 0
        else:
            self._open_line.window = window.Window(owner._window)

    def _too_small(self) -> Ended:
        """No foreign code has run yet, so the memory limit is too small."""
        return self._ended(Status.OUT_OF_MEMORY, f"The process could not start within its memory limit of "
                           f"{numbers.memory(self.limits.memory_bytes)}: raise the limit (--memory, in GiB).",
                           "Give it 1 GiB or more: importing torch takes 0.25 GiB.")

    def _watch(self) -> None:
        """Checked during a wait: the number of processes, the memory, and the output."""
        if self._waits_s is None:
            self._waits_s = waits_s(self.family())
        if time.monotonic() - self._watched < _WATCH_S:
            return
        self._watched = time.monotonic()
        pids = [self._started.pid, *confine.descendants(self._started.pid)]
        if len(pids) > confine.MOST_PROCESSES:
            self._lose()
            raise self._ended(Status.WORKER_DIED, f"It started more than {confine.MOST_PROCESSES} processes; all of "
                              "them were stopped.", "Do not start processes: a module computes in its own process.")
        if confine.fills_the_disk(self.scratch):
            self._lose()
            raise self._ended(Status.WORKER_DIED, f"Its files take more than {numbers.memory(confine.MOST_DISK_BYTES)} of the "
                              "disk; it was stopped.", "Remove files that are not needed.")
        if confine.takes_more(pids, self.limits.memory_bytes + self._shared_bytes):
            self._lose()
            raise self._ended(Status.OUT_OF_MEMORY, f"It used more memory than its limit of "
                              f"{numbers.memory(self.limits.memory_bytes)}; it was stopped.",
                              "Free tensors that are not needed, or raise the limit.")
        self._too_loud()

    def _without_a_core_s(self) -> float:
        """For how many seconds of this request a thread was ready and had no core: a busy machine does not make a file slow. Of
        several threads the one that waited longest counts. At most three times the limit."""
        before = self._waits_s or {}
        waits = (seconds - before.get(task, 0.0) for task, seconds in waits_s(self.family()).items())
        return min(max(waits, default=0.0), 3 * self._limit_s)

    def _too_loud(self) -> None:
        if self.log_path.stat().st_size > _MOST_LOG_BYTES:
            self._lose()
            raise self._ended(Status.WORKER_DIED, f"It printed more than {numbers.memory(_MOST_LOG_BYTES)}; it was "
                              "stopped.", "Remove the printing.")

    def _death(self, doing: str) -> Ended:
        process = self._started
        try:
            code = process.wait(timeout=5)
        except subprocess.TimeoutExpired:  # it closed its pipe but is still running
            code = None
        self._lose()
        if code is None:
            return self._ended(Status.WORKER_DIED, f"It closed the judge's pipe while {doing}.",
                               "Use only file descriptors that the file has opened.")
        if code > 128:  # bwrap reports a signal as 128 + its number
            code = 128 - code
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            more, advice = _SIGNALS.get(-code, ("", "Look for a host-side pointer error or an abort."))
            log = self.log_tail()
            if said := _LAST_WORDS.search(log):
                more = f": {plain(next(filter(None, said.groups())))[:200]}"
            place = f" in line {at[1]}" if (at := _FELL.search(log)) else ""
            return self._ended(Status.WORKER_DIED, f"{self._called} ended by signal {-code} ({name}{more}){place} while "
                               f"{doing}.", advice)
        if code == _TOUCHED_DEVICE and self.device == "cpu":
            return self._ended(Status.WORKER_DIED, f"Host code read or wrote memory of the device while {doing}; on a GPU that "
                               "ends the process (SIGSEGV).", "Compute in a kernel, or copy the tensor to the host first.")
        if not self._ready:  # nothing foreign has run: the sandbox or the interpreter said why
            last = plain((self.log_tail().strip().splitlines() or ["it said nothing"])[-1])[:200].rstrip(".")
            return self._ended(Status.WORKER_DIED, f"{self._called} ended itself with exit code {code} while {doing}: {last}.",
                               "Check the file again. If it ends again, see the row sandbox of `python -m workbench doctor`.")
        return self._ended(Status.WORKER_DIED, f"{self._called} ended itself with exit code {code} while {doing}.",
                           "Remove the call that ends the process (sys.exit, os._exit).")

    def _ended(self, status: Status, headline: str, advice: str) -> Ended:
        return Ended(status, headline, advice, self.log_tail())

    def _lose(self) -> None:
        self.deaths += 1
        self._end()

    def _lose_the_context(self) -> None:
        """After such an error CUDA gives it for every call in the process. The next request starts another process. Values that
        a reference does not accept, as probabilities below 0, must not use up its deaths."""
        self.deaths += self.beside is not None
        self._end()

    def _end(self) -> None:
        """Kill the process group and the processes that left it, and close the connection."""
        self.resume()
        process, self._process = self._started, None
        below = confine.descendants(process.pid)
        for pid in (process.pid, *below):
            _kill(pid)
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()
        process.wait()
        _open.discard(process.pid)
        end = time.monotonic() + 2.0
        while time.monotonic() < end and set(below) & set(confine.descendants(os.getpid())):
            time.sleep(0.01)
        if self._line is not None:
            self._line.close()
            self._line = None


def kill_strays() -> None:
    """End processes that have left their parents and belong to no open process. Only candidates start such processes."""
    for pid in confine.descendants(os.getpid(), without=_open):
        _kill(pid)


def kill_orphans() -> int:
    """End descendants of this process, when no `ForeignProcess` is open: they left their group. How many."""
    lost = confine.descendants(os.getpid())
    for pid in lost:
        _kill(pid)
    end = time.monotonic() + 2.0  # one that is still there would be counted by the next check
    while time.monotonic() < end:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.005)
        except ChildProcessError:
            break
    return len(lost)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
