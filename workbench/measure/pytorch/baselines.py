"""PyTorch's own ways of computing a direction, timed and compared with the float64 truth like a candidate.

`kernel_ms` replays a CUDA graph of the call, so that PyTorch's host time is not counted (one way, named so, is called
by the host). The precision of a call is found from its distance to the truth, not from a switch. The library kernels that ran
are named.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from ...core.candidate import PRECISIONS_OF
from ...core.layer import FORWARD, Workload
from ...core.orders import BaselineOrder, Emit
from ...core.replies import Baseline, Baselines, Event
from ...core.trial import DEFAULT_ADVICE, NOT_DROP_IN, Errors, Status
from ..clock import timing
from ..device import out_of_memory
from ..kernel.inputs import NORMAL, fill, needed, results, shapes, torch_dtype
from ..kernel.validate import Comparison, allowed_rel_l2
from ..truth.reference import Truth
from .ways import WAYS, Unavailable, Way, bind, ladder, switches

_KERNELS = 3         # of those that ran, the longest are named
_WRAPPERS = ("aten::convolution", "aten::_convolution", "aten::conv_transpose1d", "aten::conv_transpose2d",
             "aten::conv_transpose3d", "aten::conv1d", "aten::conv2d", "aten::conv3d")
_NAME_LENGTH = 110   # characters of a kernel's name that are kept: templates make names of thousands


def measure(order: BaselineOrder, emit: Emit) -> Baselines:
    """Worker operation "baseline". What does not fit into memory has that status and no time."""
    if order.device != "cpu":
        torch.cuda.set_device(order.device)
    found = []
    for direction in order.directions:
        for mode in order.modes or ladder(order.strength, order.workload, order.device):
            emit(Event("baseline", f"{WAYS[mode].name}, {direction}"))
            found.append(_one(order, direction, mode))
    return Baselines(tuple(found))


def timed_call(way: Way, workload: Workload, direction: str, plain: dict[str, torch.Tensor],
               device: str) -> tuple[Callable[[], dict[str, torch.Tensor]], Callable[[], None], bool]:
    """(the call itself, what is timed in its place, whether that replays a CUDA graph). Within `switches(way)`."""
    direct = bind(way.kind, workload, direction, plain)
    replay = _graph(direct) if device != "cpu" and way.replayed else None
    return direct, replay or direct, replay is not None


def plain_tensors(workload: Workload, direction: str, device: str) -> dict[str, torch.Tensor]:
    """The direction's inputs as the judge fills them, contiguous."""
    plain = {}
    # The backward operator wants input and weight in hand even for the gradient that reads only one of them.
    for name in dict.fromkeys((*needed(workload, direction), *(("input", "weight") if direction != FORWARD else ()))):
        plain[name] = torch.empty(shapes(workload)[name], dtype=torch_dtype(workload), device=device)
        fill(plain[name], name, workload, NORMAL)
    return plain


def _one(order: BaselineOrder, direction: str, mode: str) -> Baseline:
    way, device = WAYS[mode], order.device
    flags = () if way.drop_in else (NOT_DROP_IN,)
    try:
        with switches(way):
            return _measured(order, direction, mode)
    except Unavailable as error:
        return Baseline(name=way.name, direction=direction, flags=flags, status=Status.SKIPPED, headline=str(error),
                        advice="Nothing to do: the other ways were measured.")
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        if device != "cpu":
            torch.cuda.empty_cache()
        return Baseline(name=way.name, direction=direction, flags=flags, status=Status.OUT_OF_MEMORY,
                        headline=f"PyTorch ran out of memory on {device}.", advice=DEFAULT_ADVICE[Status.OUT_OF_MEMORY])


def _measured(order: BaselineOrder, direction: str, mode: str) -> Baseline:
    way, workload, device = WAYS[mode], order.workload, order.device
    plain = plain_tensors(workload, direction, device)
    truth = Truth(workload, direction, NORMAL, device=device, scratch=order.scratch)
    truth.prepare(plain)
    direct, timed, replayed = timed_call(way, workload, direction, plain, device)
    got = direct()
    if device != "cpu":
        torch.cuda.synchronize()
    errors, precision = _errors(workload, direction, got, truth, plain)
    del got
    flags = [] if way.drop_in else [NOT_DROP_IN]
    flags += ["no_cuda_graph"] if device != "cpu" and way.replayed and not replayed else []
    measured = timing.measure(timed, device=device, effort=order.effort, cold_l2=order.cold_l2, host_pays=not replayed)
    cudnn = torch.backends.cudnn
    detail = {"way": mode, "kernels": kernels(direct, device), "replayed": replayed, "drop_in": way.drop_in, "pid": os.getpid(),
              "allow_tf32": cudnn.allow_tf32, "cudnn_benchmark": cudnn.benchmark}
    return Baseline(name=way.name, direction=direction, precision=precision, kernel_ms=measured.timing,
                    samples=tuple(measured.samples), errors=errors, detail=detail, status=Status.OK,
                    flags=tuple(f for f in (*flags, *measured.flags) if f != "emulated"),
                    headline="PyTorch, measured in the same run.")


def kernels(run: Callable[[], Any], device: str) -> list[str]:
    """Names of the library kernels (on the CPU: of PyTorch's operators) that took most of one call, longest first."""
    from torch.profiler import ProfilerActivity, profile
    cuda = device != "cpu"
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as seen:
        run()
        if cuda:
            torch.cuda.synchronize()
    taken = {event.key: event.self_device_time_total if cuda else event.self_cpu_time_total
             for event in seen.key_averages()}
    if not cuda:  # wrappers take time, too, and say nothing
        taken = {name: us for name, us in taken.items() if "conv" in name and name not in _WRAPPERS} or taken
    return [name[:_NAME_LENGTH] for name, us in sorted(taken.items(), key=lambda item: -item[1])[:_KERNELS] if us > 0]


def _errors(workload: Workload, direction: str, got: dict[str, torch.Tensor], truth: Truth,
            plain: dict[str, torch.Tensor]) -> tuple[dict[str, Errors], str]:
    """Distances to the truth, and the precision that they show: what a float32 call really computed in."""
    offered = PRECISIONS_OF[workload.dtype]
    errors, precision = {}, offered[0]
    for name in results(workload, direction):
        strict = allowed_rel_l2(offered[0], truth.reduction[name])
        comparison = Comparison(shapes(workload)[name], allowed=strict, rms=truth.rms[name], exact=False,
                                least_norm=truth.least_norm[name], poisoned=False)
        for index, expected in truth.blocks(name, plain):
            comparison.add(index, got[name][index].contiguous(), expected)
        errors[name] = comparison.errors()
        if workload.dtype == "float32" and not comparison.rel_l2 <= strict:
            precision = "tf32"
    return errors, precision


def _graph(run: Callable[[], Any]) -> Callable[[], None] | None:
    """A replay of the call; None where it cannot be captured."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # cudnn.benchmark must have chosen before the capture
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            run()
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError:
        return None
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay
