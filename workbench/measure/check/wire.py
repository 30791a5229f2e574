"""Messages between the judge and a foreign process: one line of JSON, then the raw bytes of its tensors."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, BinaryIO

import torch

MOST_HEADER_BYTES = 4 << 20
_POLL_S = 0.1
Message = tuple[dict[str, Any], list[torch.Tensor]]


class NotTheProtocol(ValueError):
    """The other side sent something that is no message."""


def pack(header: dict[str, Any], tensors: Sequence[torch.Tensor] = ()) -> list[bytes | memoryview]:
    """The parts of a message, in order."""
    kinds = [{"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape)} for t in tensors]
    return [json.dumps({**header, "tensors": kinds}).encode() + b"\n", *(_bytes(t) for t in tensors)]


def unpack(line: bytes, read: Callable[[int], bytearray], *, most_bytes: int = 1 << 40) -> Message:
    """A message from its first line and a function that reads so many bytes more. Raises `NotTheProtocol`."""
    try:
        header = json.loads(line)
        kinds = [(getattr(torch, k["dtype"]), tuple(int(n) for n in k["shape"])) for k in header.pop("tensors")]
        sizes = [prod(shape) * dtype.itemsize for dtype, shape in kinds]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotTheProtocol(f"{type(error).__name__}: {error}") from error
    if any(size < 0 for size in sizes) or sum(sizes) > most_bytes:
        raise NotTheProtocol(f"tensors of {sum(sizes)} bytes")
    return header, [_tensor(read(size), dtype, shape) for (dtype, shape), size in zip(kinds, sizes, strict=True)]


def receive_blocking(stream: BinaryIO) -> Message | None:
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

    return unpack(line, read)


class Line:
    """The judge's end: a pair of descriptors, every wait with a deadline. `watch` may raise, and ends the wait."""

    def __init__(self, write_fd: int, read_fd: int, watch: Callable[[], None]) -> None:
        self._write_fd, self._read_fd, self._watch = write_fd, read_fd, watch
        os.set_blocking(write_fd, False)
        self._buffer = bytearray()

    def send(self, header: dict[str, Any], tensors: Sequence[torch.Tensor], deadline: float) -> None:
        """Raises TimeoutError, BrokenPipeError."""
        for part in pack(header, tensors):
            view = memoryview(part)
            while view:
                self._wait([], [self._write_fd], deadline)
                view = view[os.write(self._write_fd, view[:1 << 20]):]

    def receive(self, deadline: float, *, most_bytes: int) -> Message:
        """Raises TimeoutError, EOFError, `NotTheProtocol`."""
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > MOST_HEADER_BYTES:
                raise NotTheProtocol("a line without an end")
            self._more(deadline)
        line = bytes(self._buffer[:end])
        del self._buffer[:end + 1]
        return unpack(line, lambda size: self._exactly(size, deadline), most_bytes=most_bytes)

    def close(self) -> None:
        os.close(self._write_fd)
        os.close(self._read_fd)

    def _exactly(self, size: int, deadline: float) -> bytearray:
        data = bytearray(size)
        have = min(size, len(self._buffer))
        data[:have] = self._buffer[:have]
        del self._buffer[:have]
        view = memoryview(data)[have:]
        while view:
            self._wait([self._read_fd], [], deadline)
            count = os.readv(self._read_fd, [view[:1 << 20]])
            if not count:
                raise EOFError
            view = view[count:]
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
            if left <= 0:
                raise TimeoutError
            ready = select.select(readers, writers, [], min(left, _POLL_S))
            if ready[0] or ready[1]:
                return
            self._watch()


def _bytes(tensor: torch.Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else memoryview(b"")


def _tensor(data: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)
