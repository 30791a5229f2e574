"""Device memory that the judge shares with one foreign process: large tensors pass through it instead of the pipe.

With CUDA both sides can write to it. So neither side computes with its contents directly: each copies them into its own memory
first, the judge after the answer has arrived. Each process has its own window and cannot see those of others.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from math import prod
from typing import Any

import torch

_LEAST = 1 << 16       # bytes of a tensor; smaller ones go with the line
_ALIGNED = 256
_SEGMENT = 2 << 20     # PyTorch allocates multiples of this size from the driver
_LEAST_SEGMENT = 32 << 20   # what is smaller shares its allocation with other tensors
_LEAST_BLOCK = 1 << 20      # PyTorch puts no tensor into an unused part that is smaller
_MOST_IDLE = 1 << 30        # bytes that a process may keep for later; others may need more
_TIMED = ("renew", "run")   # requests around and between timed calls
# Taken before a foreign file may replace it.
_cuda_synchronize: Any = getattr(torch._C, "_cuda_synchronize", None)  # not there without CUDA


class Window:
    """`memory`: bytes, open on both sides."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory

    def put(self, tensors: Sequence[torch.Tensor]) -> list[int | None]:
        """Copy the tensors that fit, and wait. Returns where each one begins; None for a tensor that goes through the pipe."""
        places: list[int | None] = []
        start = 0
        for tensor in tensors:
            size = tensor.nbytes
            if size < _LEAST or start + size > len(self._memory):
                places.append(None)
                continue
            dense = tensor.detach().contiguous()
            flat = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)
            self._memory[start:start + size].copy_(flat)
            places.append(start)
            start += -(-size // _ALIGNED) * _ALIGNED
        if start:
            self.wait()
        return places

    def has(self, place: object, size: int) -> bool:
        """Whether such a piece is inside."""
        return type(place) is int and place % _ALIGNED == 0 and 0 <= place <= len(self._memory) - size

    def take(self, place: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        """A copy of that piece. Use it only after `wait`."""
        return self._memory[place:place + prod(shape) * dtype.itemsize].clone().view(dtype).view(shape)

    def wait(self) -> None:
        """Until the copies are made: then the other side may write again."""
        if self._memory.is_cuda:
            with torch.cuda.device(self._memory.device):  # it waits for the current one
                _cuda_synchronize()


def allocate(size: int, device: str) -> torch.Tensor:
    """Bytes of a GPU that can be shared. The driver shares whole allocations, so no other tensor may lie in this one. Raises
    `OSError`, `torch.cuda.OutOfMemoryError`."""
    size = max(_LEAST_SEGMENT, -(-size // _SEGMENT) * _SEGMENT)
    torch.cuda.empty_cache()
    found = torch.empty(size, dtype=torch.uint8, device=device)
    if not _alone(found):
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            found = torch.empty(size, dtype=torch.uint8, device=device)
        if not _alone(found):
            raise OSError("PyTorch gives no memory without other tensors in it")
    return found


def give_back(device: str, op: str) -> None:
    """Around request `op`: release the memory that PyTorch keeps unused, if it is much. All processes of a check share one
    GPU. Between timed calls it stays: a call that must ask the driver for memory again takes milliseconds longer."""
    if op in _TIMED:
        return
    if torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device) > _MOST_IDLE:
        torch.cuda.empty_cache()


def handle(memory: torch.Tensor) -> torch.Tensor:
    """The handle with which the other process opens the memory, as a tensor that can be sent."""
    from torch.multiprocessing.reductions import reduce_tensor
    return torch.frombuffer(bytearray(pickle.dumps(reduce_tensor(memory))), dtype=torch.uint8)


def opened(sent: torch.Tensor) -> torch.Tensor:
    """The memory of that handle, in the other process."""
    rebuild, arguments = pickle.loads(sent.numpy().tobytes())
    memory: torch.Tensor = rebuild(*arguments)
    return memory


def _alone(memory: torch.Tensor) -> bool:
    return any(segment["address"] == memory.data_ptr() and segment["total_size"] - memory.nbytes < _LEAST_BLOCK
               for segment in torch.cuda.memory_snapshot())
