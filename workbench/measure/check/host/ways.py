"""Binds one of PyTorch's ways (`ladder.py`) to a module, inside the reference's process, for calls in batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ....core.layer import FORWARD, Workload
from ....core.pytorch_ways import Way
from ...device import CHANNELS_LAST_LAYOUTS, out_of_memory
from ...pytorch.aten import as_convolution, channels_last
from ...pytorch.ways import Unavailable
from .module import structure

Forward = Callable[..., torch.Tensor]


@dataclass
class Bound:
    """`inputs`, or one grad_output (backward), whose values may be changed; `results()` computes from them."""

    inputs: list[torch.Tensor]
    results: Callable[[], Sequence[torch.Tensor]]


def bind(way: Way, module: torch.nn.Module, direction: str, fixed: list[torch.Tensor],
         inputs: list[torch.Tensor]) -> Bound:
    """`fixed`: the inputs of a backward, whose `inputs` are its grad_output. Raises `Unavailable`."""
    xs = [x.detach().requires_grad_(x.is_floating_point()) for x in (fixed or inputs)]
    module = module if way.kind in ("eager", "flipped") else copy.deepcopy(module)
    if way.kind in ("channels_last", "converted"):
        module = module.to(  # type: ignore[call-overload]  # its stub lacks memory_format
            memory_format=CHANNELS_LAST_LAYOUTS[4 if any(x.dim() == 4 for x in xs) else 5])
    if way.kind == "channels_last":
        xs = [channels_last(x).detach().requires_grad_(x.requires_grad) for x in xs]
        inputs = [channels_last(x.detach()).clone(memory_format=torch.preserve_format) for x in inputs]
    forward = _forward(way.kind, module, xs)
    if direction == FORWARD:
        for x in inputs:
            x.requires_grad_(x.is_floating_point())
        return Bound(inputs, lambda: (forward(*inputs),))
    output = forward(*xs)
    wanted = [x for x in xs if x.requires_grad] + [p for p in module.parameters() if p.requires_grad]
    # As torch.autograd.grad does, which imports sympy when it is first given a grad_output: that takes seconds.
    run: Callable[..., Sequence[torch.Tensor]] = torch.autograd.Variable._execution_engine.run_backward
    return Bound(inputs, lambda: run((output,), (inputs[0],), True, False, tuple(wanted), accumulate_grad=False))


def of_memory(error: BaseException | None) -> bool:
    """Whether memory was missing. torch.compile raises an error of its own, which holds the first one."""
    met: list[BaseException] = []
    while error is not None and error not in met:
        if isinstance(error, Exception) and (out_of_memory(error) or "out of memory" in str(error)):
            return True
        met.append(error)
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
    return False


def _forward(kind: str, module: torch.nn.Module, xs: list[torch.Tensor]) -> Forward:
    if kind == "converted":
        return lambda *inputs: module(*map(channels_last, inputs)).contiguous()
    if kind == "flipped":
        return _flipped(module, xs[0])
    if kind == "compiled":
        torch._dynamo.reset()
        compiled: Forward = torch.compile(module, dynamic=False)
        _tried(lambda: compiled(*xs), "torch.compile gave up")
        return compiled
    if kind == "graphed":
        samples = tuple(x.detach().clone().requires_grad_(x.requires_grad) for x in xs)
        graphed: Forward = _tried(lambda: torch.cuda.make_graphed_callables(module, samples), "it cannot be captured")
        return graphed
    return module


def _flipped(module: torch.nn.Module, x: torch.Tensor) -> Forward:
    found = structure(module)
    assert found is not None, "it is offered for a transposed convolution only"
    own: Any
    own, layer = module.get_submodule(found.attribute), found.layer

    def forward(x: torch.Tensor) -> torch.Tensor:
        workload = Workload(layer, x.shape[0], tuple(x.shape[2:]), str(x.dtype).removeprefix("torch."))
        tensors = {"input": x, "weight": own.weight, **({"bias": own.bias} if own.bias is not None else {})}
        return as_convolution(workload, FORWARD, tensors)["output"]

    return forward


def _tried(what: Callable[[], Any], sentence: str) -> Any:
    try:
        return what()
    except torch.cuda.OutOfMemoryError:
        raise
    except (RuntimeError, AssertionError, NotImplementedError, OSError) as error:  # what dynamo, inductor and capture raise
        raise Unavailable(f"{sentence}: {str(error).strip().splitlines()[0][:160]}") from error
