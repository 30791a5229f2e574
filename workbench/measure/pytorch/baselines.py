"""PyTorch's own ways of computing a direction, timed and compared with the float64 truth like a candidate.

`kernel_ms` replays a CUDA graph of the call, so that PyTorch's host time is not counted (one way, named so, is called
by the host). The precision of a call is found from its distance to the truth, not from a switch. The library kernels that ran
are named. A formulation whose results differ from the truth has no time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd.profiler import profile

from ...core.layer import FORWARD, Workload
from ...core.orders import BaselineOrder, CompileOrder, Emit
from ...core.precision import PRECISIONS_OF, QUALIFIES
from ...core.pytorch_ways import AUTOTUNED, WAYS, Way
from ...core.replies import Baseline, Baselines, Compiled, Event
from ...core.trial import DEFAULT_ADVICE, FORMULATION, NOT_DROP_IN, Errors, Status
from ...core.trial_parts import Detail
from ..clock import timing
from ..device import out_of_memory
from ..kernel.inputs import NORMAL, fill, needed, results, shapes, torch_dtype
from ..kernel.validate import Comparison, allowed_rel_l2
from ..truth import Index, Truth
from .ways import Unavailable, bind, switches

_LOOK_S = 0.15       # samples of the first, short timing of a way
_NEAR = 1.03         # ways slower than this multiple of the fastest so far are not fully sampled
_KEPT_SHARE = 0.25   # of the free memory: the truth of a direction stays there meanwhile
_KERNELS = 3         # of those that ran, the longest are named
_WRAPPERS = ("aten::convolution", "aten::_convolution", "aten::conv_transpose1d", "aten::conv_transpose2d",
             "aten::conv_transpose3d", "aten::conv1d", "aten::conv2d", "aten::conv3d")
_NAME_LENGTH = 110   # characters of a kernel's name that are kept: templates make names of thousands


def measure(order: BaselineOrder, emit: Emit) -> Baselines:
    """Worker operation "baseline". What is wrong, refused or too large has that status and no time."""
    if order.device != "cpu":
        torch.cuda.set_device(order.device)
    found = []
    for direction in order.directions:
        asked = _Direction(order, direction)
        for mode in order.modes:
            emit(Event("baseline", f"{WAYS[mode].name}, {direction}"))
            found.append(asked.one(mode))
        del asked
        if order.device != "cpu":
            torch.cuda.empty_cache()  # the truth and the graphs' own memory
    return Baselines(tuple(found))


def timed_call(way: Way, workload: Workload, direction: str, plain: dict[str, torch.Tensor],
               device: str) -> tuple[Callable[[], dict[str, torch.Tensor]], Callable[[], None], bool]:
    """(the call itself, what is timed in its place, whether that replays a CUDA graph). Within `switches(way)`."""
    direct = bind(way.kind, workload, direction, plain)
    replay = _graph(direct) if device != "cpu" and way.replayed else None
    return direct, replay or direct, replay is not None


def fill_compile_cache(order: CompileOrder, emit: Emit) -> Compiled:
    """Worker operation "compile": fills torch.compile's cache on the disk ahead of a measurement, which finds its ways there.
    A way that PyTorch refuses is left to the measurement, which says why."""
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


def plain_tensors(workload: Workload, direction: str, device: str) -> dict[str, torch.Tensor]:
    """The direction's inputs as the judge fills them, contiguous."""
    plain = {}
    # The backward operator wants input and weight in hand even for the gradient that reads only one of them.
    for name in dict.fromkeys((*needed(workload, direction), *(("input", "weight") if direction != FORWARD else ()))):
        plain[name] = torch.empty(shapes(workload)[name], dtype=torch_dtype(workload), device=device)
        fill(plain[name], name, workload, NORMAL)
    return plain


class _Direction:
    """The shared data of the ways of one direction: inputs, the truth, the fastest time so far, and the remaining time for the
    search."""

    def __init__(self, order: BaselineOrder, direction: str) -> None:
        self._order, self._workload, self._direction, self._device = order, order.workload, direction, order.device
        self._left_s = order.search_s
        self._plain: dict[str, torch.Tensor] = {}
        self._truth: _Expected | None = None
        self._fastest: dict[str, float] = {}   # precision -> ms of the fastest drop-in way

    def one(self, mode: str) -> Baseline:
        """One way's answer. Raises what PyTorch raises in nn.ConvTranspose, but for too little memory."""
        way, began = WAYS[mode], time.monotonic()
        searched = way.formulation and not way.kind.startswith(AUTOTUNED)   # which is asked for by name and takes its time
        if searched and self._left_s <= 0:
            return self._without(way, Status.SKIPPED, "Not measured: the time limit for the strongest PyTorch of this "
                                                      "direction was reached.")
        try:
            with switches(way):
                return self._measured(mode, way)
        except Unavailable as error:
            return self._without(way, Status.SKIPPED, str(error))
        except (RuntimeError, MemoryError) as error:
            if out_of_memory(error):
                if self._device != "cpu":
                    torch.cuda.empty_cache()
                return self._without(way, Status.OUT_OF_MEMORY, f"PyTorch ran out of memory on {self._device}.")
            if not way.formulation:
                raise
            return self._without(way, Status.SKIPPED, f"PyTorch cannot compute it: {str(error).strip().splitlines()[0][:160]}")
        finally:
            self._left_s -= time.monotonic() - began if searched else 0.0

    def _without(self, way: Way, status: Status, headline: str, *, errors: dict[str, Errors] | None = None) -> Baseline:
        advice = ("Nothing to do: the other modes were measured." if status in (Status.SKIPPED, Status.MISMATCH) else
                  DEFAULT_ADVICE[status])
        return Baseline(name=way.name, direction=self._direction, errors=errors or {}, flags=_flags(way), status=status,
                        headline=headline, advice=advice)

    def _measured(self, mode: str, way: Way) -> Baseline:
        device = self._device
        if self._truth is None:
            self._plain = plain_tensors(self._workload, self._direction, device)
            self._truth = _Expected(self._order, self._direction, self._plain)
        direct, timed, replayed = timed_call(way, self._workload, self._direction, self._plain, device)
        got = direct()
        if device != "cpu":
            torch.cuda.synchronize()
        precision, errors, wrong = self._truth.judged(got, way)
        if wrong:
            return self._without(way, Status.MISMATCH, f"This formulation is wrong: {wrong}. It does not count.", errors=errors)
        del got
        no_graph = ["no_cuda_graph"] if device != "cpu" and way.replayed and not replayed else []
        measured, looked = self._timed(timed, way, precision, replayed)
        flags = (*_flags(way), *no_graph, *measured.flags, *(["brief_look"] if looked else []))
        cudnn = torch.backends.cudnn
        detail = Detail(way=mode, kernels=() if looked else tuple(kernels(direct, device)), shown={
            "replayed": replayed, "drop_in": way.drop_in, "pid": os.getpid(), "allow_tf32": cudnn.allow_tf32,
            "cudnn_benchmark": cudnn.benchmark})
        return Baseline(name=way.name, direction=self._direction, precision=precision, kernel_ms=measured.timing,
                        samples=tuple(measured.samples), clocks=tuple(measured.clocks), errors=errors,
                        flags=tuple(f for f in flags if f != "emulated"),
                        status=Status.OK, headline="PyTorch, measured in the same run.", detail=detail)

    def _timed(self, run: Callable[[], Any], way: Way, precision: str, replayed: bool) -> tuple[timing.Measurement, bool]:
        """The samples, and whether there are only a few because another way is far faster."""
        def sampled(effort: str, limit_s: float | None = None) -> timing.Measurement:
            return timing.measure(run, device=self._device, effort=effort, limit_s=limit_s, host_pays=not replayed,
                                  cold_l2=self._order.cold_l2)

        fastest = min((self._fastest[p] for p in QUALIFIES[precision] if p in self._fastest), default=None)
        if way.brief and fastest is not None:
            look = sampled("quick", _LOOK_S)
            if look.timing.median_ms > _NEAR * fastest:
                return look, True
        measured = sampled(self._order.effort)
        if way.drop_in:
            self._fastest[precision] = min(measured.timing.median_ms, self._fastest.get(precision, float("inf")))
        return measured, False


def _flags(way: Way) -> tuple[str, ...]:
    return (*(() if way.drop_in else (NOT_DROP_IN,)), *((FORMULATION,) if way.formulation else ()))


def kernels(run: Callable[[], Any], device: str) -> list[str]:
    """Names of the library kernels (on the CPU: of PyTorch's operators) that took most of one call, longest first."""
    cuda = device != "cpu"
    # torch.profiler starts the same profiler, but imports the compiler first, which takes seconds.
    with profile(use_cpu=not cuda, use_device="cuda" if cuda else None, use_kineto=True) as seen:
        run()
        if cuda:
            torch.cuda.synchronize()
    taken = {event.key: event.self_device_time_total if cuda else event.self_cpu_time_total
             for event in seen.key_averages()}
    if not cuda:  # wrappers take time, too, and say nothing
        taken = {name: us for name, us in taken.items() if "conv" in name and name not in _WRAPPERS} or taken
    return [name[:_NAME_LENGTH] for name, us in sorted(taken.items(), key=lambda item: -item[1])[:_KERNELS] if us > 0]


class _Expected:
    """The float64 truth of one direction; kept on the device where it takes little of it, else made anew for each way."""

    def __init__(self, order: BaselineOrder, direction: str, plain: dict[str, torch.Tensor]) -> None:
        workload, device = order.workload, order.device
        self._workload, self._plain, self._names = workload, plain, results(workload, direction)
        self._truth = Truth(workload, direction, NORMAL, device=device, scratch=order.scratch)
        self._truth.prepare(plain)
        free = torch.cuda.mem_get_info()[0] if device != "cpu" else 0
        self._keep = sum(8 * torch.Size(shapes(workload)[name]).numel() for name in self._names) < _KEPT_SHARE * free
        self._kept: dict[str, list[tuple[Index, torch.Tensor]]] = {}

    def judged(self, got: dict[str, torch.Tensor], way: Way) -> tuple[str, dict[str, Errors], str]:
        """(the precision that the distances to the truth show, these distances, what is wrong). nn.ConvTranspose is what a
        kernel is compared with, so it is not called wrong; a formulation has to be right in some precision."""
        offered = PRECISIONS_OF[self._workload.dtype]
        for name in self._names if way.formulation else ():
            if got[name].shape != (shape := shapes(self._workload)[name]):
                return "", {}, f"{name} has the shape {tuple(got[name].shape)}, not {shape}"
        strict = self._compared(got, offered[0])
        errors = {name: one.errors() for name, one in strict.items()}
        if not way.formulation:
            loose = self._workload.dtype == "float32" and any(
                not one.rel_l2 <= allowed_rel_l2(offered[0], self._truth.reduction[name]) for name, one in strict.items())
            return "tf32" if loose else offered[0], errors, ""
        if not any(one.failed for one in strict.values()):
            return offered[0], errors, ""
        looser = ["tf32x3", "tf32"] if way.kind.startswith("tf32x3") else ["tf32"]
        for precision in looser if self._workload.dtype == "float32" else []:
            found = self._compared(got, precision)
            errors = {name: one.errors() for name, one in found.items()}
            if not any(one.failed for one in found.values()):
                return precision, errors, ""
        name = max(errors, key=lambda key: errors[key].rel_l2 / errors[key].allowed)
        worst = errors[name]
        return "", errors, (f"{name} has a relative L2 error of {worst.rel_l2:.1e}, {worst.allowed:.1e} is allowed, and "
                            f"{worst.wrong} wrong elements")

    def _compared(self, got: dict[str, torch.Tensor], precision: str) -> dict[str, Comparison]:
        found = {}
        for name in self._names:
            one = found[name] = Comparison(
                shapes(self._workload)[name], allowed=allowed_rel_l2(precision, self._truth.reduction[name]),
                rms=self._truth.rms[name], exact=False, least_norm=self._truth.least_norm[name], poisoned=False)
            for index, expected in self._blocks(name):
                one.add(index, got[name][index].contiguous(), expected)
        return found

    def _blocks(self, name: str) -> Iterable[tuple[Index, torch.Tensor]]:
        if not self._keep:
            return self._truth.blocks(name, self._plain)
        if name not in self._kept:
            self._kept[name] = list(self._truth.blocks(name, self._plain))
        return self._kept[name]


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
