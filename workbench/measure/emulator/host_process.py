"""Runs the host code of kernels for the emulator: one process for each candidate, forked from one that never sees a result.

    python -m workbench.measure.emulator.host_process SOCKET_FD

`kernel.apart` is the judge's side. The process of a candidate has its inputs and outputs in shared memory, which is closed
outside of kernels and copies. It has no seed, no truth, and no descriptor but those of this protocol. Before it loads the
library it gives up writing files, reading other files than libraries, starting processes, sockets, and signals to others, as
far as the system can. One line of JSON asks, one answers:

    ["workspace", [PROBLEM]]  or  ["launch", ORDER, ENVIRONMENT, [PROBLEM], [OFFSET or null, ...], BYTES]  or  ["last_error"]
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...core import landlock, seccomp

FDS = 4                     # what comes with each candidate: requests, replies, how it ended, memory
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_POLL_MS = 200
# What a library may need while it is loaded. The runtime of C++ is loaded before.
_READS = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/sys/devices/system", "/proc/self")
_RUNTIMES = ("libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0")
_REFUSED = (*seccomp.TO_OTHERS, *seccomp.STARTS, *seccomp.SIGNALS, "socket")
_libc = ctypes.CDLL(None)
_libc.mmap.restype = ctypes.c_void_p


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
                _watch(json.loads(data), *fds)
                os._exit(0)
            for fd in fds:
                os.close(fd)


def _watch(job: dict[str, Any], requests: int, replies: int, ended: int, memory: int) -> None:
    """Start the candidate's process; kill it, and what it has started, when the judge lets go; say how it ended."""
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
            os.kill(child, signal.SIGKILL)  # no harm where it has died
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


def _answer(job: dict[str, Any], requests: int, replies: int, memory: int) -> None:
    with os.fdopen(requests, "r", encoding="utf-8") as asked:
        def say(*words: object) -> None:
            os.write(replies, json.dumps(words).encode() + b"\n")

        _give_up(Path(job["library"]))
        try:
            launcher = _Library(job["library"], job["symbol"], job["arguments"], memory)
        except (OSError, AttributeError) as error:
            say("missing" if isinstance(error, AttributeError) else "not loaded", str(error))
            return
        say("loaded", "")
        for line in asked:
            operation, *rest = json.loads(line)
            say(*getattr(launcher, operation)(*rest))


def _give_up(library: Path) -> None:
    """Rights that the host code of a kernel does not need. Where the system cannot take one, it stays."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if landlock.version():
        fd = landlock.ruleset([], [], reads=[*map(Path, _READS), library.parent])
        landlock.restrict(fd)
        os.close(fd)
    if not seccomp.problem():
        seccomp.restrict(seccomp.program(_REFUSED))


class _Library:
    """The launcher of one candidate. Raises OSError if it cannot be loaded, AttributeError if a function is missing."""

    def __init__(self, path: str, symbol: str, arguments: int, memory: int) -> None:
        self._library, self._memory = ctypes.CDLL(path), memory
        self._query, self._launch = self._library[f"{symbol}_workspace"], self._library[symbol]
        self._query.restype, self._launch.restype = ctypes.c_longlong, ctypes.c_int
        self._query.argtypes, self._launch.argtypes = [ctypes.c_void_p], [ctypes.c_void_p] * arguments
        self._words = self._library.cuda_on_cpu_last_error
        self._words.restype = ctypes.c_char_p
        self._start = 0   # where the memory is mapped

    def workspace(self, problem: list[int]) -> tuple[object, ...]:
        return self._query(ctypes.byref(_problem(problem))), ""

    def launch(self, order: str, environment: dict[str, str], problem: list[int], offsets: list[int | None], size: int
               ) -> tuple[object, ...]:
        if not self._start:
            self._map(size)
        os.environ.update(environment)
        self._library.cuda_on_cpu_set_order(order.encode())
        pointers = [None if offset is None else self._start + offset for offset in offsets]
        return self._told(self._launch(ctypes.byref(_problem(problem)), *pointers, None))

    def last_error(self) -> tuple[object, ...]:
        return self._told(self._library.cudaGetLastError())

    def _told(self, code: int) -> tuple[object, ...]:
        return code, (self._words() or b"").decode(errors="replace") if code else ""

    def _map(self, size: int) -> None:
        # Python's own mmap would keep a descriptor, to which host code could write.
        at = _libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, self._memory,
                        ctypes.c_long(0))
        os.close(self._memory)
        if at == ctypes.c_void_p(-1).value:
            raise MemoryError(f"{size} bytes cannot be mapped")
        self._start = at
        self._library.cuda_on_cpu_set_device_memory((ctypes.c_size_t * 2)(self._start, size), 1, 0)


def _problem(values: list[int]) -> ctypes.Array[ctypes.c_longlong]:
    return (ctypes.c_longlong * len(values))(*values)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
