"""Memory of the judge into which the processes write the results of timed calls: one slot for each call."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import BinaryIO

import torch

from ..foreign import window
from ..foreign.replies import Prepared, Way
from ..foreign.requests import OpenSlots
from ..party import Party

# How many values are compared at once. On the CPU so many fit into the cache, also in float64.
_AT_ONCE = {"cpu": 1 << 16, "cuda": 1 << 23}
_SHARE = 0.1               # share of the free memory for slots; their copies take twice as much
_MOST_BYTES = {"cpu": 1 << 29, "cuda": 24 << 30}


class Slots:
    """The memory for the results of timed calls. On the CPU each process maps its own file. The judge reads the file without
    mapping it, because the process could shorten it. On a GPU all processes open one allocation through CUDA IPC. Raises
    `OSError` or `torch.cuda.OutOfMemoryError` if memory cannot be allocated or shared, and `Ended` if a process ends."""

    def __init__(self, parties: dict[str, Party], *, device: str, stride: int, most_calls: int) -> None:
        self.stride = stride
        self._views: dict[str, torch.Tensor] = {}
        self._files: dict[str, BinaryIO] = {}
        self._copies: dict[str, torch.Tensor] = {}   # allocating new memory takes longer than the copy
        if device == "cpu":
            size = max(stride, min(_MOST_BYTES["cpu"], max(4, most_calls) * stride))
            self.bytes = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            for name, party in parties.items():
                self._files[name] = _mapped(party, self.bytes)
            return
        free = torch.cuda.mem_get_info(device)[0]
        self.bytes = int(min(_MOST_BYTES["cuda"], max(2 * stride, _SHARE * free)))
        whole = window.allocate(self.bytes, device)
        for name, party in parties.items():
            party.process.ask(OpenSlots(), [window.handle(whole)])
            self._views[name] = whole

    @property
    def calls(self) -> int:
        """How many results fit."""
        return self.bytes // self.stride

    def kept(self, name: str, call: int) -> torch.Tensor:
        """A copy of the bytes in that process's slot of a call."""
        if name in self._files:
            data = os.pread(self._files[name].fileno(), self.stride, call * self.stride)
            return torch.frombuffer(bytearray(data.ljust(self.stride, b"\xff")), dtype=torch.uint8)  # NaN if the slot is empty
        return self._views[name][call * self.stride:(call + 1) * self.stride].clone()

    def all(self, name: str, calls: int) -> torch.Tensor:
        """A copy of the first slots, a row of bytes for each call. The next copy of that process's slots replaces it."""
        if name in self._files:
            size = calls * self.stride
            if name not in self._copies or self._copies[name].numel() < size:
                self._copies[name] = torch.empty(size, dtype=torch.uint8)
            copy = self._copies[name][:size]
            copy[os.preadv(self._files[name].fileno(), [copy.numpy()], 0):] = 0xff  # NaN if a slot is empty
            return copy.view(calls, self.stride)
        copy = self._views[name][:calls * self.stride].view(calls, self.stride).clone()
        torch.cuda.synchronize(copy.device)  # the next process writes to the same memory
        return copy


@dataclass(frozen=True)
class Limit:
    """The largest allowed difference of one kind of result. `allowed`: the relative L2 distance. `usual_rms`: the least scale
    to which it is relative."""

    dtype: str
    shape: Sequence[int]
    allowed: float
    usual_rms: float


def differs(ours: torch.Tensor, theirs: torch.Tensor, limits: Sequence[Limit]) -> bool:
    """Whether the results of two processes differ in one of the calls. The arguments are rows of bytes from `Slots.all`."""
    start = 0
    for one in limits:
        size = getattr(torch, one.dtype).itemsize * torch.Size(one.shape).numel()
        rows = max(1, _AT_ONCE[ours.device.type] // max(1, torch.Size(one.shape).numel()))
        for first in range(0, len(ours) if size else 0, rows):
            if _far(*(t[first:first + rows, start:start + size] for t in (ours, theirs)), one):
                return True
        start += rounded(size)
    return False


def _far(ours: torch.Tensor, theirs: torch.Tensor, limit: Limit) -> bool:
    """The same for a few rows of bytes. NaN counts as a difference."""
    kind, count = getattr(torch, limit.dtype), torch.Size(limit.shape).numel()
    at_once = kind.itemsize * _AT_ONCE[ours.device.type]
    apart, scale, worst = (torch.zeros(len(ours), dtype=torch.float64, device=ours.device) for _ in range(3))
    for first in range(0, ours.shape[1], at_once):
        a, b = (t[:, first:first + at_once].contiguous().view(kind).double() for t in (ours, theirs))
        scale += torch.linalg.vecdot(b, b)
        a -= b
        apart += torch.linalg.vecdot(a, a)
        worst = torch.maximum(worst, torch.linalg.vector_norm(a, inf, 1))
    scale = (scale / count).sqrt().clamp(min=max(limit.usual_rms, 1e-30))
    near = ((apart / count).sqrt() <= limit.allowed * scale) & (worst <= 60 * limit.allowed * scale + limit.allowed)
    return not bool(near.all())


def far_off(found: Sequence[tuple[float, float, float]], demanded: Sequence[tuple[float, float]], jumps: Sequence[float]
            ) -> bool:
    """Whether a result is farther from the truth than demanded. `found`: for each result (relative L2, largest, rms of the
    truth). `demanded`: (relative L2, usual rms). `jumps`: how far jumps may move it."""
    for (off, worst, rms), (allowed, usual_rms), jump in zip(found, demanded, jumps, strict=True):
        size = max(rms, usual_rms, 1e-30)  # sums that cancel have another scale than their size
        near = off * rms <= allowed * size and worst <= 60 * allowed * size + allowed
        if not near and not (jump and off * rms <= (allowed + jump) * size):
            return True
    return False


def kinds_of(answer: Prepared | Way) -> list[tuple[str, list[int]]]:
    """The dtypes and shapes of results."""
    return [(kind.dtype, list(kind.shape)) for kind in answer.kinds]


def results(kept: torch.Tensor, kinds: Sequence[tuple[str, Sequence[int]]], strides: Sequence[Sequence[int]] | None
            ) -> Iterator[torch.Tensor]:
    """The results in a slot, as they lie there."""
    start = 0
    for place, (dtype, shape) in enumerate(kinds):
        kind = getattr(torch, dtype)
        size = kind.itemsize * torch.Size(shape).numel()
        got = kept[start:start + size].view(kind)
        yield got.as_strided(shape, strides[place], got.storage_offset()) if strides else got.view(shape)
        start += rounded(size)


def rounded(size: int) -> int:
    """The bytes that one result takes in a slot."""
    return -(-size // 256) * 256


def _mapped(party: Party, size: int) -> BinaryIO:
    path, fd = party.process.shared_file(size)
    file = open(fd, "rb", buffering=0)
    try:
        party.process.ask(OpenSlots(path, size))
        return file
    except BaseException:
        file.close()
        raise
    finally:
        path.unlink(missing_ok=True)  # both have it open
