"""Calls of a module inside the foreign process: once with gradients, in the ways only a GPU allows, and in batches."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from typing import Any

import torch

from ..module_cases import laid_out
from .wire import Message

_SMALL = 1 << 20
_SLEEP_CYCLES = 100_000_000  # some 60 ms of a GPU


def call(module: torch.nn.Module, request: dict[str, Any], tensors: list[torch.Tensor], device: str) -> Message:
    """Inputs, then grad_output where "gradients" is asked for. Back come the output, with "echo" the inputs as they are
    afterwards, and the gradients that there are ("gradients" names them, None for one that is missing)."""
    count = request["inputs"]
    xs = [laid_out(t.to(device), request.get("layout", "contiguous")).detach() for t in tensors[:count]]
    names = request.get("gradients") or []
    torch.use_deterministic_algorithms(bool(request.get("poison")), warn_only=True)  # fresh memory holds NaN
    threads = torch.get_num_threads()
    if sum(t.numel() for t in tensors) < _SMALL:  # on a busy machine threads wait for one another
        torch.set_num_threads(1)
    try:
        for x in xs:
            x.requires_grad_(bool(names) and x.is_floating_point())
        with torch.set_grad_enabled(bool(names) or not request.get("no_grad")):
            output = module(*xs)
        _wait(device)
        facts = _facts(output)
        if not isinstance(output, torch.Tensor):
            return facts, []
        after = [x.detach() for x in xs] if request.get("echo") else []
        results = [output.detach(), *after]
        if names and output.requires_grad:
            parameters = dict(module.named_parameters())
            wanted = [xs[int(n[6:])] if n.startswith("input ") else parameters[n] for n in names]
            grads = torch.autograd.grad(output, wanted, tensors[count].to(device), allow_unused=True)
            _wait(device)
            facts["gradients"] = [n if g is not None else None for n, g in zip(names, grads, strict=True)]
            results += [g for g in grads if g is not None]
        return facts, results
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)


def side_stream(module: torch.nn.Module, tensors: list[torch.Tensor], device: str) -> Message:
    """The input arrives late on a side stream: a launch on another stream reads what was there before."""
    xs = [torch.zeros_like(t, device=device) for t in tensors]
    real = [t.to(device) for t in tensors]
    module(*xs)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        torch.cuda._sleep(_SLEEP_CYCLES)
        for x, value in zip(xs, real, strict=True):
            x.copy_(value)
        kept = module(*xs).clone()
        stream.synchronize()
        host = kept.cpu()
    torch.cuda.synchronize()
    return {}, [host]


def waits(module: torch.nn.Module, tensors: list[torch.Tensor], device: str) -> Message:
    """Host seconds of a call while the device is kept busy, beside those the device was busy."""
    xs = [t.to(device) for t in tensors]
    with torch.no_grad():
        module(*xs)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        torch.cuda._sleep(_SLEEP_CYCLES)
        module(*xs)
        called = time.perf_counter() - begin
        torch.cuda.synchronize()
    return {"call_s": called, "all_s": time.perf_counter() - begin}, []


def memory(module: torch.nn.Module, tensors: list[torch.Tensor], device: str) -> Message:
    """Most bytes that torch's allocator held above what was there before, forward and backward."""
    xs = [t.to(device).requires_grad_(t.is_floating_point()) for t in tensors]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    output = module(*xs)
    if output.requires_grad:
        output.backward(torch.ones_like(output))
    torch.cuda.synchronize()
    return {"peak_bytes": torch.cuda.max_memory_allocated() - before}, []


def compiled(module: torch.nn.Module, tensors: list[torch.Tensor], device: str) -> Message:
    xs = [t.to(device) for t in tensors]
    with torch.no_grad():
        explained = torch._dynamo.explain(module)(*xs)
        torch._dynamo.reset()
        output = torch.compile(module)(*xs)
    torch.cuda.synchronize()
    return {"graph_breaks": explained.graph_break_count}, [output]


def graphed(module: torch.nn.Module, tensors: list[torch.Tensor], device: str) -> Message:
    """Captured with zeros, replayed with the input."""
    xs = [torch.zeros_like(t, device=device) for t in tensors]
    stream = torch.cuda.Stream()
    with torch.no_grad():
        with torch.cuda.stream(stream):
            module(*xs)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = module(*xs)
    for x, value in zip(xs, tensors, strict=True):
        x.copy_(value)
    graph.replay()
    torch.cuda.synchronize()
    return {}, [output]


SPECIAL: dict[str, Callable[[torch.nn.Module, list[torch.Tensor], str], Message]] = {
    "side_stream": side_stream, "waits": waits, "memory": memory, "compiled": compiled, "graphed": graphed}


class Batches:
    """Timed calls. Results go into slots that belong to the judge, who reads them as soon as he has the answer."""

    def open(self, request: dict[str, Any], tensors: list[torch.Tensor], device: str) -> Message:
        """A file that both map, or the tensor is a pickled handle of the judge's GPU memory."""
        self.device = device
        if "path" in request:
            with open(request["path"], "r+b") as file:
                self.slots = torch.frombuffer(mmap.mmap(file.fileno(), request["bytes"]), dtype=torch.uint8)
        else:
            import pickle
            rebuild, arguments = pickle.loads(tensors[0].numpy().tobytes())
            self.slots = rebuild(*arguments)
        return {}, []

    def prepare(self, module: torch.nn.Module, request: dict[str, Any], tensors: list[torch.Tensor]
                , device: str) -> Message:
        """Several sets of inputs (forward), or inputs and several grad_outputs (backward)."""
        self.module, self.direction, count = module, request["direction"], request["inputs"]
        if self.direction == "forward":
            self.sets = [[t.to(device) for t in tensors[i:i + count]] for i in range(0, len(tensors), count)]
            self.dummy = [module(*self.sets[0]).detach()]
            for xs in self.sets:
                for x in xs:
                    x.requires_grad_(x.is_floating_point())
        else:
            xs = [t.to(device).requires_grad_(t.is_floating_point()) for t in tensors[:count]]
            self.output = module(*xs)
            self.wanted = [x for x in xs if x.requires_grad] + list(module.parameters())
            self.sets = [[t.to(device)] for t in tensors[count:]]
            self.dummy = [g.detach() for g in self._results(0)]
        _wait(device)
        return {"bytes": sum(t.numel() * t.itemsize for t in self.dummy),
                "kinds": [[str(t.dtype).removeprefix("torch."), list(t.shape)] for t in self.dummy]}, []

    def run(self, request: dict[str, Any], tensors: list[torch.Tensor]) -> Message:
        """Calls in order: change a few values of the input as told, call, put the results into the next slot."""
        places, values = (t.to(self.device) for t in tensors)
        stride, only_copy = request["stride"], request.get("only_copy")
        before = torch.backends.cudnn.allow_tf32
        if request.get("tf32") is not None:
            torch.backends.cudnn.allow_tf32 = request["tf32"]
        for number, chosen in enumerate(request["sets"]):
            first = self.sets[chosen][0].detach().view(-1)
            first.index_copy_(0, places[number], values[number])
            start = number * stride
            for result in self.dummy if only_copy else self._results(chosen):
                size = result.numel() * result.itemsize
                room = self.slots[start:start + size].view(result.dtype).view(result.shape)
                room.copy_(result.detach())
                start += -(-size // 256) * 256
        _wait(self.device)
        torch.backends.cudnn.allow_tf32 = before
        return {"done": True}, []

    def _results(self, chosen: int) -> tuple[torch.Tensor, ...]:
        if self.direction == "forward":
            return (self.module(*self.sets[chosen]),)
        return torch.autograd.grad(self.output, self.wanted, self.sets[chosen][0], retain_graph=True)


def _facts(output: Any) -> dict[str, Any]:
    if not isinstance(output, torch.Tensor):
        return {"type": type(output).__name__}
    return {"type": "Tensor", "dtype": str(output.dtype).removeprefix("torch."), "shape": list(output.shape),
            "device": str(output.device), "requires_grad": output.requires_grad}


def _wait(device: str) -> None:
    """Until the device is idle. A refused launch that nobody looked at is raised here, by the next launch's check."""
    if device != "cpu":
        torch.cuda.synchronize()
        torch.zeros(1, device=device).add_(1)
