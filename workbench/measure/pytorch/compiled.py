"""torch.compile's cache on the disk is filled ahead of a measurement, which then finds its compiled ways there."""

from __future__ import annotations

import torch

from ...core.orders import CompileOrder, Emit
from ...core.pytorch_ways import WAYS
from ...core.replies import Compiled
from .baselines import plain_tensors
from .ways import Unavailable, bind, switches


def prepare(order: CompileOrder, emit: Emit) -> Compiled:
    """Worker operation "compile". A way that PyTorch refuses is left to the measurement, which says why."""
    if order.device != "cpu":
        torch.cuda.set_device(order.device)
    count = 0
    for direction, modes in order.modes.items():
        plain = plain_tensors(order.workload, direction, order.device)
        for mode in modes:
            try:
                with switches(WAYS[mode]):
                    bind(WAYS[mode].kind, order.workload, direction, plain)()
                count += 1
            except (Unavailable, RuntimeError, MemoryError):
                continue
    return Compiled(count)
