"""Memory of the judge into which the processes write the results of timed calls: one slot for each call."""

from __future__ import annotations

import mmap
import os
import pickle
from typing import BinaryIO

import torch

from ..foreign.requests import OpenSlots
from ..party import Party

_SHARE = 0.2               # of free memory
_MOST_BYTES = {"cpu": 1 << 29, "cuda": 24 << 30}


class Slots:
    """On the CPU each process maps a file of its own. The judge reads it but does not map it: the process could shorten it.
    On a GPU all open one allocation through CUDA IPC.

    Raises `OSError` or `torch.cuda.OutOfMemoryError` where memory cannot be had or shared, `Ended` for a process."""

    def __init__(self, parties: dict[str, Party], *, device: str, stride: int, most_calls: int) -> None:
        self.stride = stride
        self._views: dict[str, torch.Tensor] = {}
        self._files: dict[str, BinaryIO] = {}
        if device == "cpu":
            size = max(stride, min(_MOST_BYTES["cpu"], max(4, most_calls) * stride))
            self.bytes = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            for name, party in parties.items():
                self._files[name] = _mapped(party, self.bytes)
            return
        free = torch.cuda.mem_get_info(device)[0]
        self.bytes = int(min(_MOST_BYTES["cuda"], max(2 * stride, _SHARE * free)))
        whole = torch.empty(self.bytes, dtype=torch.uint8, device=device)
        from torch.multiprocessing.reductions import reduce_tensor
        for name, party in parties.items():
            handle = torch.frombuffer(bytearray(pickle.dumps(reduce_tensor(whole))), dtype=torch.uint8)
            party.process.ask(OpenSlots(), [handle])
            self._views[name] = whole

    @property
    def calls(self) -> int:
        """How many results have room."""
        return self.bytes // self.stride

    def kept(self, name: str, call: int) -> torch.Tensor:
        """A copy of what that process has in the slot of a call, in bytes."""
        if name in self._files:
            data = os.pread(self._files[name].fileno(), self.stride, call * self.stride)
            return torch.frombuffer(bytearray(data.ljust(self.stride, b"\xff")), dtype=torch.uint8)  # NaN where nothing is
        return self._views[name][call * self.stride:(call + 1) * self.stride].clone()


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
