"""Runs the host code of kernels for the emulator: one process for each candidate, forked from one that never sees a result.

    python -m workbench.measure.emulator.host_process SOCKET_FD

`kernel.apart` is the judge's side. The process of a candidate has its inputs and outputs in shared memory, which is closed
outside of kernels and copies; a seccomp filter stops host code from opening it. The process has no seed, no truth, and no
descriptor but those of this protocol. Before it loads the library it gives up writing files, reading other files than
libraries, starting processes, sockets, and signals to others, as far as the system can. core/process_orders.py has the
requests and the answers, which are lines of JSON.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import secrets
import select
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ...core import landlock, seccomp
from ...core.process_orders import ErrorAsked, HostAnswer, HostAsked, LaunchAsked, LauncherOrder, WorkspaceAsked
from ...core.typed import read, reader, to_json

FDS = 4                     # what comes with each candidate: requests, replies, how it ended, memory
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_POLL_MS = 200
# What a library may need while it is loaded. The runtime of C++ is loaded before. Not /proc/self: its file `mem` shows closed
# memory.
_READS = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/sys/devices/system")
_RUNTIMES = ("libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0")
_REFUSED = (*seccomp.TO_OTHERS, *seccomp.STARTS, *seccomp.SIGNALS, *seccomp.MAPS, "socket")
_READERS = {kind.operation: reader(kind) for kind in (WorkspaceAsked, LaunchAsked, ErrorAsked)}
_libc = ctypes.CDLL(None)
_libc.mmap.restype = ctypes.c_void_p
# Of the memory that is shared with the judge, and of that for cudaMalloc. The first for which there is room.
_MOST_BYTES = (1 << 40, 1 << 36, 1 << 33)
_SLOT = 1 << 32             # the filter tells apart only addresses in different slots
_FIXED, _ANONYMOUS, _NO_RESERVE = 0x10, 0x20, 0x4000


def main(argv: list[str]) -> int:
    """For each message on the socket a candidate's process, until the judge has gone."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that watch
    for name in _RUNTIMES:
        with suppress(OSError):
            ctypes.CDLL(name)
    with socket.socket(fileno=int(argv[0])) as asked:
        while True:
            data, fds, _, _ = socket.recv_fds(asked, 1 << 16, FDS)
            if not data:
                return 0
            if os.fork() == 0:
                asked.close()
                _watch(read(LauncherOrder, json.loads(data)), *fds)
                os._exit(0)
            for fd in fds:
                os.close(fd)


def _watch(job: LauncherOrder, requests: int, replies: int, ended: int, memory: int) -> None:
    """Start the candidate's process. Kill it and all that it started when the judge closes the connection. Report how it ended.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    alive, kept = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            os.close(alive)
            os.close(ended)
            _answer(job, requests, replies, memory)
            os._exit(0)
        except BaseException:  # foreign code may raise anything; the trace goes to the log
            sys.__excepthook__(*sys.exc_info())
        finally:
            os._exit(1)
    for fd in (replies, memory, kept):
        os.close(fd)
    poll = select.poll()
    poll.register(requests, 0)
    poll.register(alive, 0)
    status = 0
    while True:
        if poll.poll(_POLL_MS):
            os.kill(child, signal.SIGKILL)  # ignored if the process has already ended
            _, status = os.waitpid(child, 0)
            break
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            break
    with suppress(OSError):  # an old kernel has no such file
        for orphan in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            os.kill(int(orphan), signal.SIGKILL)
    with suppress(OSError):  # the judge may have gone
        os.write(ended, b"%d" % os.waitstatus_to_exitcode(status))


def _answer(job: LauncherOrder, requests: int, replies: int, memory: int) -> None:
    with os.fdopen(requests, "r", encoding="utf-8") as asked:
        def say(answer: HostAnswer) -> None:
            os.write(replies, to_json(answer).encode() + b"\n")

        closed = _reserve(memory)
        _give_up(job.library, closed)
        try:
            launcher = _Library(job, closed)
        except (OSError, AttributeError) as error:
            say(HostAnswer(text=str(error), loaded="missing" if isinstance(error, AttributeError) else "not loaded"))
            return
        say(HostAnswer(loaded="loaded"))
        for line in asked:
            operation, what = json.loads(line)
            say(launcher.answer(_READERS[operation](what)))


def _reserve(memory: int) -> seccomp.Closed:
    """Closed pages: the first half shows the memory that is shared with the judge, as far as it will have grown; the other half
    is for cudaMalloc. Closes the descriptor, so that no host code can show the memory at another address. Raises MemoryError.
    """
    def mapped(at: int | None, size: int, flags: int, fd: int) -> int | None:
        found = _libc.mmap(ctypes.c_void_p(at), ctypes.c_size_t(size), 0, flags | _NO_RESERVE, fd, ctypes.c_long(0))
        return None if found == ctypes.c_void_p(-1).value else found

    for size in _MOST_BYTES:
        if (found := mapped(None, 2 * size + 2 * _SLOT, mmap.MAP_PRIVATE | _ANONYMOUS, -1)) is not None:
            start = -(-found // _SLOT) * _SLOT + _SLOT  # the slot below is refused, too
            if mapped(start, size, mmap.MAP_SHARED | _FIXED, memory) is not None:
                os.close(memory)
                return seccomp.Closed(start, start + 2 * size, (secrets.randbits(31), secrets.randbits(31)))
    raise MemoryError("no room for the memory of the device")


def _give_up(library: Path, closed: seccomp.Closed) -> None:
    """Rights that the host code of a kernel does not need. Where the system cannot take one, it stays."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if landlock.version():
        fd = landlock.ruleset([], [], reads=[*map(Path, _READS), library.parent])
        landlock.restrict(fd)
        os.close(fd)
    if not seccomp.problem():
        seccomp.restrict(seccomp.program(_REFUSED, closed=closed))


class _Library:
    """The launcher of one candidate. Raises OSError if it cannot be loaded, AttributeError if a function is missing."""

    def __init__(self, job: LauncherOrder, closed: seccomp.Closed) -> None:
        self._library = ctypes.CDLL(str(job.library))
        self._query, self._launch = self._library[f"{job.symbol}_workspace"], self._library[job.symbol]
        self._query.restype, self._launch.restype = ctypes.c_longlong, ctypes.c_int
        self._query.argtypes, self._launch.argtypes = [ctypes.c_void_p], [ctypes.c_void_p] * job.arguments
        self._words = self._library.cuda_on_cpu_last_error
        self._words.restype = ctypes.c_char_p
        self._library.cuda_on_cpu_stream.restype = ctypes.c_void_p
        self._stream = self._library.cuda_on_cpu_stream()
        self._start, self._most = closed.start, (closed.stop - closed.start) // 2
        self._library.cuda_on_cpu_set_heap(ctypes.c_size_t(self._start + self._most), ctypes.c_size_t(self._most),
                                           (ctypes.c_long * 2)(*closed.key))
        self._allowed: tuple[tuple[tuple[int, int], ...], bool] = ((), False)

    def answer(self, asked: HostAsked) -> HostAnswer:
        if isinstance(asked, WorkspaceAsked):
            return HostAnswer(self._query(ctypes.byref(_problem(asked.problem))))
        code = self._launched(asked) if isinstance(asked, LaunchAsked) else self._library.cudaGetLastError()
        place = ctypes.c_size_t()
        fault = self._library.cuda_on_cpu_fault(ctypes.byref(place))
        return HostAnswer(code, (self._words() or b"").decode(errors="replace") if code else "", fault=fault, place=place.value,
                          allocated=self._library.cuda_on_cpu_allocated())

    def _launched(self, asked: LaunchAsked) -> int:
        if asked.size > self._most:
            raise MemoryError(f"{asked.size} bytes cannot be mapped")
        self._allow(asked)
        os.environ.update(asked.environment)
        self._library.cuda_on_cpu_set_order(asked.threads.encode())
        pointers = [None if offset is None else self._start + offset for offset in asked.offsets]
        return self._launch(ctypes.byref(_problem(asked.problem)), *pointers, self._stream)

    def _allow(self, asked: LaunchAsked) -> None:
        wanted = asked.pages or ((0, asked.size),), asked.watched
        if wanted == self._allowed:
            return
        self._allowed = wanted
        numbers = [n for offset, size in wanted[0] for n in (self._start + offset, size)]
        self._library.cuda_on_cpu_set_device_memory((ctypes.c_size_t * len(numbers))(*numbers), len(numbers) // 2, 0)
        self._library.cuda_on_cpu_set_surroundings(ctypes.c_size_t(self._start), ctypes.c_size_t(asked.size), asked.watched)


def _problem(values: Sequence[int]) -> ctypes.Array[ctypes.c_longlong]:
    return (ctypes.c_longlong * len(values))(*values)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
