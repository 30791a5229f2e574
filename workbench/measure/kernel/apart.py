"""The launcher of a candidate for the emulator, whose host code runs in a process of its own: see `emulator.host_process`.

That process cannot reach the judge's memory. It answers with an error code and a text; results are compared here.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import torch

from ...core.plain_text import plain
from ...core.process_orders import ErrorAsked, HostAnswer, HostAsked, LaunchAsked, LauncherOrder, WorkspaceAsked
from ...core.trial import Status
from ...core.typed import read, to_json
from ..emulator import host_process
from .findings import Finding
from .launch import ARGUMENTS, ORDER, MissingSymbol

_ROOT = Path(__file__).resolve().parents[3]
_PAGE = mmap.PAGESIZE
_MOST_ANSWER = 1 << 16
_TOUCHED_DEVICE = 99        # host_touched_device in the emulator's device_memory.h
TWO_BLOCKS, SHARED_SYMBOL, OTHER_STREAM, TWO_THREADS = 4, 5, 6, 7   # `Fault` there; those below are accesses outside a tensor
ACCESSES = {1: "Reads or writes", 2: "Reads", 3: "Writes"}
_KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")
_CUDACPU = "CUDACPU_"


class LauncherApart:
    """As `launch.Launcher`. Raises OSError when the library cannot be loaded, `MissingSymbol` when it lacks the symbol, and
    `Finding` when its process ends."""

    def __init__(self, library: Path, symbol: str, direction: str) -> None:
        self.direction = direction
        self._memory = os.memfd_create(f"kernel-workbench-{secrets.token_hex(4)}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._bytes = 0
        self._places: list[tuple[int, int, int]] = []   # address here, bytes, offset in the memory
        self._text = ""
        self.pages: tuple[tuple[int, int], ...] = ()    # address and bytes of what a kernel may touch; none: everything
        self.watched = False                            # find bytes that two blocks change
        self.fault, self.fault_at = 0, 0                # of the last launch, and the address
        self.allocated = 0                              # pieces of memory that its launcher has not freed
        to_read, self._requests = os.pipe()
        self._replies, to_write = os.pipe()
        self._ended, to_say = os.pipe()
        self._open = [self._requests, self._replies, self._ended, self._memory]
        self._buffer = b""
        fcntl.fcntl(self._memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)  # otherwise a read here could end this process
        job = LauncherOrder(library, symbol, 1 + len(ARGUMENTS[direction]) + 2)
        fds = [to_read, to_write, to_say, self._memory]
        try:
            _send(to_json(job).encode(), fds)
        finally:
            for fd in fds[:3]:
                os.close(fd)
        said = self._answer()
        if said.loaded != "loaded":
            raise MissingSymbol(f"The library exports no {symbol}.") if said.loaded == "missing" else OSError(
                plain(said.text)[:500])

    def __del__(self) -> None:
        for fd in self._open:
            os.close(fd)

    def allocate(self, size: int) -> torch.Tensor:
        """Bytes that the launcher's process sees too; all of them before the first launch."""
        pages = max(1, -(-size // _PAGE)) * _PAGE
        os.ftruncate(self._memory, self._bytes + pages)
        mapped = mmap.mmap(self._memory, pages, offset=self._bytes)
        tensor = torch.frombuffer(mapped, dtype=torch.uint8)[:size]
        self._places.append((tensor.data_ptr(), pages, self._bytes))
        self._bytes += pages
        return tensor

    def workspace_bytes(self, problem: ctypes.Array) -> int:
        return self._number(WorkspaceAsked(tuple(problem)))

    def __call__(self, problem: ctypes.Array, tensors: Mapping[str, torch.Tensor | None], workspace: torch.Tensor | None,
                 stream: int) -> int:
        given = [*(tensors.get(name) for name in ARGUMENTS[self.direction]), workspace]
        environment = {name: value for name, value in os.environ.items() if name.startswith(_CUDACPU)}
        self.fault = self.fault_at = 0
        pages = tuple((self._offset_of(address), size) for address, size in self.pages)
        return self._number(LaunchAsked(environment.pop(ORDER, ""), environment, tuple(problem),
                                        tuple(map(self._offset, given)), self._bytes, pages, self.watched))

    def last_error(self) -> int:
        return self._number(ErrorAsked())

    def error_text(self, code: int) -> str:
        return self._text or f"error {code}"

    def _offset(self, tensor: torch.Tensor | None) -> int | None:
        if tensor is None or not tensor.numel():
            return None
        return self._offset_of(tensor.data_ptr())

    def _offset_of(self, address: int) -> int:
        return next(offset + address - start for start, size, offset in self._places if start <= address < start + size)

    def _address(self, place: int) -> int:
        return next((start + place - offset for start, size, offset in self._places if offset <= place < offset + size), 0)

    def _number(self, asked: HostAsked) -> int:
        with suppress(BrokenPipeError):  # it has ended: reading says how
            os.write(self._requests, to_json([asked.operation, asked]).encode() + b"\n")
        said = self._answer()
        if said.loaded or not -1 << 63 <= said.number < 1 << 63:
            raise self._odd()
        self.allocated = said.allocated
        if said.number:
            self._text = plain(said.text)[:1000]
        if said.fault:
            self.fault, self.fault_at = said.fault, self._address(said.place)
        return said.number

    def _answer(self) -> HostAnswer:
        while b"\n" not in self._buffer:
            data = os.read(self._replies, _MOST_ANSWER)
            if not data:
                raise self._death()
            self._buffer += data
            if len(self._buffer) > _MOST_ANSWER:
                raise self._odd()
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            said = read(HostAnswer, json.loads(line))
        except (ValueError, RecursionError):
            raise self._odd() from None
        if self._buffer:
            raise self._odd()
        return said

    def _odd(self) -> Finding:
        return Finding(Status.WORKER_DIED, "The kernel's host code wrote into the pipe between its process and the judge.",
                       "Use only file descriptors that the code has opened.")

    def _death(self) -> Finding:
        said = os.read(self._ended, 100)
        code = int(said) if said else -signal.SIGKILL
        if code == _TOUCHED_DEVICE:
            return Finding(Status.WORKER_DIED, "Host code of the kernel read or wrote memory of the device; on a GPU that ends "
                           "the process (SIGSEGV).", "Compute on the device, or copy with cudaMemcpy first.")
        how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
        return Finding(Status.WORKER_DIED, f"The process of the kernel's host code ended by {how}.")


def _send(job: bytes, fds: list[int]) -> None:
    try:
        socket.send_fds(_host_processes(), [job], fds)
    except (BrokenPipeError, ConnectionResetError):  # somebody has ended it
        _host_processes.cache_clear()
        socket.send_fds(_host_processes(), [job], fds)


@lru_cache(maxsize=1)
def _host_processes() -> socket.socket:
    """The process that starts those of the candidates. It imports no torch, and has few environment variables."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    subprocess.Popen([sys.executable, "-S", "-m", host_process.__name__, str(theirs.fileno())], cwd="/",
                     stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env={**environment, "PYTHONPATH": str(_ROOT)})
    theirs.close()
    return ours
