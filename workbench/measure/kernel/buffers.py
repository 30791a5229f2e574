"""Device memory that shows what a kernel did to it: filled with one specific NaN (poison), with guard zones around it.

The zones hold NaN of random bits, so that a sum of values read there is NaN. `surround` writes ordinary numbers there instead.

The poison is a *signalling* NaN: arithmetic on it returns another NaN (quiet on the CPU, canonical on a GPU), so
"never written" and "computed from something unwritten" stay two different findings.
"""

from __future__ import annotations

import mmap
import secrets
from collections.abc import Callable
from math import prod

import torch

GUARD_BYTES = 64 * 1024   # on each side; longer than a row that a kernel may overrun
ALIGN_BYTES = 256         # what cudaMalloc guarantees
START, END = "start", "end"   # of a tensor: that which lies where a page begins or ends
SHIFTED = "shifted"           # one element behind where a page begins, as a slice of a larger tensor may
_END_BYTES = 16           # a tensor that ends with a page begins at a multiple of it: what the widest loads need
_PAGE = mmap.PAGESIZE
_NAN = 0x7FF0             # words of 16 bits from here to 0x7FFF, of either sign, are NaN in all four dtypes
_RANDOM = torch.Generator().manual_seed(secrets.randbits(63))  # so that no kernel can know what the zones hold
_INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}
POISON = {torch.float16: 0x7D5A, torch.bfloat16: 0x7FA5, torch.float32: 0x7FA5C0DE,
          torch.float64: 0x7FF4C0DE7FA5C0DE}


class Buffer:
    """A tensor of `shape` between guard zones, contiguous or `last` (channels_last in memory). `zones=False` leaves them out,
    for memory sanitizers. `allocate` gives so many bytes of memory; None: torch does. `edge`: of the memory that `allocate`
    gives, which begins with a page, the pages `pages` hold nothing but this tensor, and it begins or ends with them, or begins
    one element behind their start."""

    # more than seven: what a tensor is and where it lies
    def __init__(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, *, device: str,
                 zones: bool = True, last: bool = False, allocate: Callable[[int], torch.Tensor] | None = None,
                 edge: str = "") -> None:
        self.name = name
        size = prod(shape) * dtype.itemsize
        guard = GUARD_BYTES if zones else 0
        shift = dtype.itemsize if edge == SHIFTED else 0
        pages = -(-(size + shift) // _PAGE) * _PAGE if edge else 0
        total = guard + (pages or size) + guard + (ALIGN_BYTES if zones and not edge else 0)
        self._raw = allocate(total) if allocate else torch.empty(total, dtype=torch.uint8, device=device)
        behind = (pages - size) // _END_BYTES * _END_BYTES if edge == END else shift
        self._start = guard + (-(self._raw.data_ptr() + guard) % ALIGN_BYTES if zones and not edge else behind)
        self.pages = self._raw.data_ptr() + guard, pages
        self._end = self._start + size
        self.nbytes = size
        row = self._raw[self._start:self._end].view(dtype)
        self.tensor = row.view(shape[0], *shape[2:], shape[1]).movedim(-1, 1) if last else row.view(shape)
        words = torch.randint(32, (self._longest // 2 + 1,), generator=_RANDOM)
        self._fill_zones(torch.where(words < 16, _NAN + words, words - 32).to(torch.int16))

    def poison(self) -> None:
        """Fill the contents with the poison of their dtype (untyped memory: with the pattern of the guard zones)."""
        dtype = self.tensor.dtype
        if dtype in POISON:
            self.bits.fill_(POISON[dtype])
        elif self.nbytes > 1:
            self.tensor[:self.nbytes // 2 * 2].view(torch.int16).fill_(_NAN + 7)

    def surround(self) -> None:
        """Fill the guard zones with numbers like those of a tensor beside this one."""
        dtype = self.tensor.dtype if self.tensor.dtype in POISON else torch.float32
        self._fill_zones(torch.randn(self._longest // dtype.itemsize + 1, generator=_RANDOM).to(dtype))

    @property
    def bits(self) -> torch.Tensor:
        """The same memory as whole numbers."""
        return self.tensor.view(_INTEGER[self.tensor.dtype.itemsize])

    def overrun(self) -> tuple[int, int]:
        """(bytes changed before the start, bytes changed behind the end), counted from the edge to the farthest."""
        before, behind = self._zones()
        if torch.equal(before, self._expected(before)) and torch.equal(behind, self._expected(behind)):
            return 0, 0
        changed_before = (before != self._expected(before)).nonzero()
        changed_behind = (behind != self._expected(behind)).nonzero()
        return (len(before) - int(changed_before[0]) if len(changed_before) else 0,
                int(changed_behind[-1]) + 1 if len(changed_behind) else 0)

    def beyond(self, address: int) -> tuple[int, int] | None:
        """(bytes before the start, bytes behind the end) of an address in this memory; None if it is elsewhere."""
        place = address - self._raw.data_ptr()
        if not 0 <= place < len(self._raw):
            return None
        return max(0, self._start - place), max(0, place - self._end + 1)

    @property
    def _longest(self) -> int:
        return max(self._start, len(self._raw) - self._end)

    def _fill_zones(self, values: torch.Tensor) -> None:
        self._pattern = values.view(torch.uint8).to(self._raw.device)
        for zone in self._zones():
            zone.copy_(self._expected(zone))

    def _zones(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._raw[:self._start], self._raw[self._end:]

    def _expected(self, zone: torch.Tensor) -> torch.Tensor:
        return self._pattern[:len(zone)]


def row_of(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor without gaps as one row, in the order of memory."""
    return tensor.as_strided((tensor.numel(),), (1,))


def count_poison(tensor: torch.Tensor) -> torch.Tensor:
    """A mask of the elements that still hold the poison of their dtype."""
    return tensor.contiguous().view(_INTEGER[tensor.dtype.itemsize]) == POISON[tensor.dtype]
