"""Messages between the judge and a foreign process: one line of JSON, then the raw bytes of its tensors."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable, Sequence
from io import BufferedReader
from math import prod
from typing import Any

import torch

from ....core.typed import to_json
from .window import Window

MOST_HEADER_BYTES = 4 << 20
# All dtypes of messages. PyTorch knows other names (quint8, bits8), but ends the process when one is used.
DTYPES = {name: getattr(torch, name) for name in (
    "float64", "float32", "float16", "bfloat16", "complex128", "complex64", "int64", "int32", "int16", "int8", "uint8", "bool")}
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_MOST_DIMS, _MOST_ELEMENTS = 32, 1 << 48
_MOST_TENSORS = 1 << 16
_POLL_S = 0.1
Tensors = list[torch.Tensor]
Kind = tuple[torch.dtype, tuple[int, ...]]
Accept = Callable[[dict[str, Any], list[Kind]], Any]
Received = tuple[Any, Tensors]   # the result of `Accept` for the header, and the tensors


class NotTheProtocol(ValueError):
    """The other side sent something that is not a message."""


def pack(header: dict[str, Any], tensors: Sequence[torch.Tensor] = (), window: Window | None = None
         ) -> list[bytes | memoryview]:
    """The parts of a message, in order. A tensor in the window is not a part; its kind says where it begins. Raises TypeError
    for a dtype that cannot be sent."""
    kinds: list[dict[str, Any]] = [{"dtype": _name(t.dtype), "shape": list(t.shape)} for t in tensors]
    places = window.put(tensors) if window else [None] * len(tensors)
    for kind, place in zip(kinds, places, strict=True):
        kind |= {} if place is None else {"at": place}
    return [to_json({**header, "tensors": kinds}).encode() + b"\n",
            *(_bytes(t) for t, place in zip(tensors, places, strict=True) if place is None)]


def unpack(line: bytes, read: Callable[[int], bytearray | memoryview], *, most_bytes: int = 1 << 40,
           accept: Accept = lambda header, kinds: header, window: Window | None = None) -> Received:
    """Read a message, given its first line and a function that reads further bytes. `accept` converts the header, and raises an
    error if the header or its tensors must not be read. Raises `NotTheProtocol`."""
    try:
        header = json.loads(line.decode("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError, MemoryError) as error:
        raise NotTheProtocol(f"{type(error).__name__}: {str(error)[:200]}") from error
    described = header.pop("tensors", None) if isinstance(header, dict) else None
    if not isinstance(described, list) or len(described) > _MOST_TENSORS:
        raise NotTheProtocol("a line that is not a message")
    places = [one.pop("at", None) if isinstance(one, dict) else None for one in described]
    kinds = [_kind(one) for one in described]
    sizes = [prod(shape) * dtype.itemsize for dtype, shape in kinds]
    if sum(sizes) > most_bytes:
        raise NotTheProtocol(f"tensors of {sum(sizes)} bytes")
    for place, size in zip(places, sizes, strict=True):
        if place is not None and not (window and window.has(place, size)):
            raise NotTheProtocol("a tensor outside the shared memory")
    accepted = accept(header, kinds)
    tensors = [_tensor(read(size), dtype, shape) if place is None or window is None else window.take(place, dtype, shape)
               for (dtype, shape), size, place in zip(kinds, sizes, places, strict=True)]
    if window and any(place is not None for place in places):
        window.wait()
    return accepted, tensors


def receive_blocking(stream: BufferedReader, window: Window | None = None) -> tuple[dict[str, Any], Tensors] | None:
    """For the foreign side: wait for the next message; None when the judge has gone."""
    line = stream.readline()
    if not line:
        return None

    def read(size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = stream.readinto(view)
            if not count:
                raise EOFError("the judge has gone")
            view = view[count:]
        return data

    return unpack(line, read, window=window)


class Line:
    """The judge's end: a pair of descriptors, every wait with a deadline. `watch` may raise, and ends the wait. `more_s`: by
    how many seconds the process may exceed a deadline. `window`: the memory that it shares with the process, if any."""

    def __init__(self, write_fd: int, read_fd: int, watch: Callable[[], None], more_s: Callable[[], float]) -> None:
        self._write_fd, self._read_fd, self._watch, self._more_s = write_fd, read_fd, watch, more_s
        os.set_blocking(write_fd, False)
        self._buffer = bytearray()
        self.window: Window | None = None
        self.moved_s = 0.0   # of the last request: tensors were on their way

    def send(self, header: dict[str, Any], tensors: Sequence[torch.Tensor], deadline: float) -> None:
        """Raises TimeoutError, BrokenPipeError."""
        begin = time.monotonic()
        for part in pack(header, tensors, self.window):
            view = memoryview(part)
            while view:
                self._wait([], [self._write_fd], deadline)
                view = view[os.write(self._write_fd, view[:1 << 20]):]
        self.moved_s = time.monotonic() - begin

    def receive(self, deadline: float, *, most_bytes: int, accept: Accept) -> Received:
        """Raises TimeoutError, EOFError, `NotTheProtocol`; see `unpack`."""
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > MOST_HEADER_BYTES:
                raise NotTheProtocol("a line without an end")
            self._more(deadline)
        line = bytes(self._buffer[:end])
        del self._buffer[:end + 1]
        begin = time.monotonic()
        received = unpack(line, lambda size: self._exactly(size, deadline), most_bytes=most_bytes, accept=accept,
                          window=self.window)
        self.moved_s += time.monotonic() - begin
        return received

    def close(self) -> None:
        os.close(self._write_fd)
        os.close(self._read_fd)

    def _exactly(self, size: int, deadline: float) -> memoryview:
        """Announced bytes that are not sent use no memory, because Linux allocates a page only when it is written."""
        room: Any = torch.empty(size, dtype=torch.uint8).numpy()   # as in `_bytes`
        data = memoryview(room)
        there = min(size, len(self._buffer))
        data[:there] = self._buffer[:there]
        del self._buffer[:there]
        while there < size:
            self._wait([self._read_fd], [], deadline)
            count = os.readv(self._read_fd, [data[there:there + (1 << 20)]])
            if not count:
                raise EOFError
            there += count
        return data

    def _more(self, deadline: float) -> None:
        self._wait([self._read_fd], [], deadline)
        data = os.read(self._read_fd, 1 << 16)
        if not data:
            raise EOFError
        self._buffer += data

    def _wait(self, readers: list[int], writers: list[int], deadline: float) -> None:
        while True:
            left = deadline - time.monotonic()
            if left <= 0 and (left := left + self._more_s()) <= 0:
                raise TimeoutError
            ready = select.select(readers, writers, [], min(left, _POLL_S))
            if ready[0] or ready[1]:
                return
            self._watch()


def count(kinds: list[Kind], wanted: int) -> None:
    if len(kinds) != wanted:
        raise NotTheProtocol(f"{len(kinds)} tensors where {wanted} were asked for")


def differentiable(kinds: list[Kind]) -> None:
    if any(dtype not in _FLOATS for dtype, _ in kinds):
        raise NotTheProtocol("a gradient that is not floating point")


def within(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    farthest = sum((n - 1) * s for n, s in zip(shape, strides, strict=False))
    return len(shape) == len(strides) and (0 in shape or farthest < prod(shape))


def _name(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise TypeError(f"a tensor of dtype {name}, which is not known here")
    return name


def _kind(described: Any) -> Kind:
    dtype, shape = (described.get("dtype"), described.get("shape")) if isinstance(described, dict) else (None, None)
    if not isinstance(dtype, str) or dtype not in DTYPES or len(described) != 2:
        raise NotTheProtocol(f"a tensor of dtype {str(dtype)[:40]!r}")
    if not isinstance(shape, list) or len(shape) > _MOST_DIMS or any(type(n) is not int or n < 0 for n in shape) or \
            prod(max(n, 1) for n in shape) > _MOST_ELEMENTS:
        raise NotTheProtocol(f"a tensor of shape {str(shape)[:80]}")
    return DTYPES[dtype], tuple(shape)


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not a number")


def _bytes(tensor: torch.Tensor) -> memoryview:
    dense = tensor.detach().cpu().contiguous()
    flat = dense.as_strided((dense.numel(),), (1,))  # the only element of a dense tensor may have any stride
    array: Any = flat.view(torch.uint8).numpy()   # Python 3.11 cannot say that it is a buffer
    return memoryview(array) if flat.numel() else memoryview(b"")


def _tensor(data: bytearray | memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)
