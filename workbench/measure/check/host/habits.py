"""Calls of a module as a network makes them, inside the foreign process: without gradients, after .eval(), two before their
backwards, with only some gradients wanted. Tensors: one or two sets of inputs, then a grad_output for each, if any."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..foreign.replies import Habit
from ..foreign.requests import DailyUse, EvalMode, NoGrad, SomeGradients, TwoCalls
from ..foreign.wire import Tensors
from .calls import gradients_of


def no_grad(module: torch.nn.Module, request: NoGrad, tensors: Tensors, device: str) -> tuple[Habit, Tensors]:
    """Output under no_grad, then in inference_mode."""
    (xs,), _ = _sets(request, tensors, device)
    with torch.no_grad():
        plain = module(*xs).clone()
    with torch.inference_mode():
        inferred = module(*xs).clone()
    return Habit(), [plain, inferred]


def eval_mode(module: torch.nn.Module, request: EvalMode, tensors: Tensors, device: str) -> tuple[Habit, Tensors]:
    """Outputs: after .eval(), the same under no_grad, and back in the mode before. Then the buffers, which the answer names."""
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
    names = tuple(n for n in module.state_dict() if n in buffers)
    return Habit(buffers=names), [evaluated, inferred, back, *(buffers[n].detach().clone() for n in names)]


def two_calls(module: torch.nn.Module, request: TwoCalls, tensors: Tensors, device: str) -> tuple[Habit, Tensors]:
    """Outputs of two calls, read after the second: under no_grad, then with gradients; then the gradients of the first and of
    the second, taken after both calls. The answer says which there are."""
    sets, grad_outputs = _sets(request, tensors, device)
    with torch.no_grad():
        outputs = [module(*xs) for xs in sets]
    if not grad_outputs:
        return Habit(), outputs
    wanted = [_wanted(module, request.gradients, xs) for xs in sets]
    outputs += [module(*xs) for xs in sets]
    (first, of_first), (second, of_second) = (
        _gradients(request.gradients, ones, output, grad_output)
        for output, grad_output, ones in zip(outputs[2:], grad_outputs, wanted, strict=True))
    return Habit(first=first, second=second), [*(o.detach() for o in outputs), *of_first, *of_second]


def some_gradients(module: torch.nn.Module, request: SomeGradients, tensors: Tensors, device: str) -> tuple[Habit, Tensors]:
    """Gradients of the parameters where no input wants one, then of the inputs where the parameters are frozen."""
    (xs,), (grad_output,) = _sets(request, tensors, device)
    names = request.gradients
    of_inputs = [n for n in names if n.startswith("input ")]
    of_parameters = [n for n in names if n not in of_inputs]
    parameters: dict[str, torch.Tensor] = dict(module.named_parameters())
    there: tuple[str, ...] = ()
    there_inputs: tuple[str, ...] = ()
    results: Tensors = []
    if of_parameters:
        wanted = [parameters[n] for n in of_parameters]
        there, results = _gradients(of_parameters, wanted, module(*xs), grad_output)
    thawed = [p for p in parameters.values() if p.requires_grad]
    try:
        for p in thawed:
            p.requires_grad_(False)
        wanted = _wanted(module, of_inputs, xs)
        if of_inputs:
            there_inputs, grads = _gradients(of_inputs, wanted, module(*xs), grad_output)
            results += grads
    finally:
        for p in thawed:
            p.requires_grad_(True)
    return Habit(parameters=there, inputs=there_inputs), results


HABITS = (no_grad, eval_mode, two_calls, some_gradients)


def _sets(request: DailyUse, tensors: Tensors, device: str) -> tuple[list[Tensors], Tensors]:
    size, count = request.inputs, request.sets
    there = [t.to(device).clone() for t in tensors]
    return [there[i * size:(i + 1) * size] for i in range(count)], there[size * count:]


def _wanted(module: torch.nn.Module, names: Sequence[str], xs: Tensors) -> Tensors:
    parameters = dict(module.named_parameters())
    return [xs[int(n[6:])].requires_grad_() if n.startswith("input ") else parameters[n] for n in names]


def _gradients(names: Sequence[str], wanted: Tensors, output: torch.Tensor, grad_output: torch.Tensor
               ) -> tuple[tuple[str, ...], Tensors]:
    """Of those that there are, names and values."""
    if not output.requires_grad:
        return (), []
    grads = gradients_of(output, grad_output, wanted)
    kept = [(n, g) for n, g in zip(names, grads, strict=True) if g is not None]
    return tuple(n for n, _ in kept), [g for _, g in kept]
