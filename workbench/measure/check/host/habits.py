"""Calls of a module as a network makes them, inside the foreign process: without gradients, after .eval(), two before their
backwards, with only some gradients wanted. Tensors: one or two sets of inputs, then a grad_output for each, if any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..foreign.wire import Message


def no_grad(module: torch.nn.Module, request: dict[str, Any], tensors: list[torch.Tensor], device: str) -> Message:
    """Output under no_grad, then in inference_mode."""
    (xs,), _ = _sets(request, tensors, device)
    with torch.no_grad():
        plain = module(*xs).clone()
    with torch.inference_mode():
        inferred = module(*xs).clone()
    return {}, [plain, inferred]


def eval_mode(module: torch.nn.Module, request: dict[str, Any], tensors: list[torch.Tensor], device: str) -> Message:
    """Outputs: after .eval(), the same under no_grad, and back in the mode before. Then the buffers; "buffers" names them."""
    (xs,), _ = _sets(request, tensors, device)
    modes = [(one, one.training) for one in module.modules()]
    module.eval()
    evaluated = module(*xs).detach().clone()
    with torch.no_grad():
        inferred = module(*xs).clone()
    module.train(modes[0][1])
    for one, training in modes:
        one.training = training
    back = module(*xs).detach().clone()
    buffers = dict(module.named_buffers())
    names = [n for n in module.state_dict() if n in buffers]
    return {"buffers": names}, [evaluated, inferred, back, *(buffers[n].detach().clone() for n in names)]


def two_calls(module: torch.nn.Module, request: dict[str, Any], tensors: list[torch.Tensor], device: str) -> Message:
    """Outputs of two calls, read after the second: under no_grad, then with gradients; then the gradients of the first and of
    the second, taken after both calls. "gradients" names the wanted ones, "first" and "second" say which there are."""
    sets, grad_outputs = _sets(request, tensors, device)
    with torch.no_grad():
        outputs = [module(*xs) for xs in sets]
    if not grad_outputs:
        return {}, outputs
    wanted = [_wanted(module, request["gradients"], xs) for xs in sets]
    outputs += [module(*xs) for xs in sets]
    there = {}
    results = []
    for which, output, grad_output, ones in zip(("first", "second"), outputs[2:], grad_outputs, wanted, strict=True):
        there[which], grads = _gradients(request["gradients"], ones, output, grad_output)
        results += grads
    return there, [*(o.detach() for o in outputs), *results]


def some_gradients(module: torch.nn.Module, request: dict[str, Any], tensors: list[torch.Tensor], device: str) -> Message:
    """Gradients of the parameters where no input wants one ("parameters" says which there are), then of the inputs where the
    parameters are frozen ("inputs")."""
    (xs,), (grad_output,) = _sets(request, tensors, device)
    names = request["gradients"]
    of_inputs = [n for n in names if n.startswith("input ")]
    of_parameters = [n for n in names if n not in of_inputs]
    parameters = dict(module.named_parameters())
    there, results = {}, []
    if of_parameters:
        wanted = [parameters[n] for n in of_parameters]
        there["parameters"], results = _gradients(of_parameters, wanted, module(*xs), grad_output)
    thawed = [p for p in parameters.values() if p.requires_grad]
    try:
        for p in thawed:
            p.requires_grad_(False)
        wanted = _wanted(module, of_inputs, xs)
        if of_inputs:
            there["inputs"], grads = _gradients(of_inputs, wanted, module(*xs), grad_output)
            results += grads
    finally:
        for p in thawed:
            p.requires_grad_(True)
    return there, results


HABITS: dict[str, Callable[[torch.nn.Module, dict[str, Any], list[torch.Tensor], str], Message]] = {
    "no_grad": no_grad, "eval_mode": eval_mode, "two_calls": two_calls, "some_gradients": some_gradients}


def _sets(request: dict[str, Any], tensors: list[torch.Tensor], device: str
          ) -> tuple[list[list[torch.Tensor]], list[torch.Tensor]]:
    size, count = request["inputs"], request["sets"]
    there = [t.to(device).clone() for t in tensors]
    return [there[i * size:(i + 1) * size] for i in range(count)], there[size * count:]


def _wanted(module: torch.nn.Module, names: list[str], xs: list[torch.Tensor]) -> list[torch.Tensor]:
    parameters = dict(module.named_parameters())
    return [xs[int(n[6:])].requires_grad_() if n.startswith("input ") else parameters[n] for n in names]


def _gradients(names: Sequence[str], wanted: list[torch.Tensor], output: torch.Tensor, grad_output: torch.Tensor
               ) -> tuple[list[str], list[torch.Tensor]]:
    """Of those that there are, names and values."""
    if not output.requires_grad:
        return [], []
    grads = torch.autograd.grad(output, wanted, grad_output, allow_unused=True)
    kept = [(n, g) for n, g in zip(names, grads, strict=True) if g is not None]
    return [n for n, _ in kept], [g for _, g in kept]
