"""Measures the rates of one GPU: reading, writing, copying, and matrix products by precision."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...core.orders import CeilingsOrder, Emit
from ...core.replies import Event, Rates
from ..device import free_bytes, l2_bytes
from . import timing

_MOST_BYTES = 4 << 30      # bytes of one buffer, much larger than any L2
_SIDE = 8192               # of the square matrices; float64 takes half of it
_BEST = 0.1                # a ceiling is the highest rate, so the fastest tenth of the samples counts, not the median


def measure(order: CeilingsOrder, emit: Emit) -> Rates:
    """Measure a GPU on random data: zeros run faster than any real input."""
    device = order.device
    torch.cuda.set_device(device)
    index = torch.device(device).index or 0
    facts = torch.cuda.get_device_properties(index)
    emit(Event("ceilings", "memory"))
    rates = _memory_rates(device)
    flops = {}
    for precision, dtype, tf32 in (("ieee", torch.float32, False), ("tf32", torch.float32, True),
                                   ("fp16", torch.float16, False), ("bf16", torch.bfloat16, False),
                                   ("fp64", torch.float64, False)):
        emit(Event("ceilings", f"matrix products, {precision}"))
        flops[precision] = _matrix_rate(device, dtype, tf32=tf32)
    flops["tf32x3"] = flops["tf32"] / 3
    return Rates(facts.name, str(getattr(facts, "uuid", "")), **rates, flops_per_s=flops, l2_bytes=l2_bytes(index))


def _memory_rates(device: str) -> dict[str, float]:
    size = min(_MOST_BYTES, free_bytes(device) // 4) // 4096 * 4096
    source = torch.empty(size // 4, dtype=torch.float32, device=device).normal_()
    target = torch.empty_like(source)
    rows = source.view(1024, -1)
    sums = torch.empty(1024, device=device)
    return {"read_bytes_per_s": size / _seconds(lambda: torch.sum(rows, dim=1, out=sums), device),
            "write_bytes_per_s": size / _seconds(lambda: target.fill_(1.5), device),
            "copy_bytes_per_s": 2 * size / _seconds(lambda: target.copy_(source), device)}


def _matrix_rate(device: str, dtype: torch.dtype, *, tf32: bool) -> float:
    side = _SIDE // 2 if dtype == torch.float64 else _SIDE
    a = torch.empty(side, side, dtype=torch.float32, device=device).normal_().to(dtype)
    b, c = a.t().contiguous(), torch.empty_like(a)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        return 2 * side**3 / _seconds(lambda: torch.mm(a, b, out=c), device)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _seconds(run: Callable[[], object], device: str) -> float:
    samples = timing.measure(lambda: (run(), None)[1], device=device, effort="quick", limit_s=0.3).samples
    return timing.quantile(sorted(samples), _BEST) / 1e3
