"""Calls of a module as a part of a network that is trained, inside the foreign process: beside another instance, with changed
or computed parameters, after hooks and exceptions, saved and loaded. Tensors as in `habits`."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.nn.utils import parametrize

from ..foreign.replies import Habit
from ..foreign.requests import Copied, Overwritten, Parametrized, TwoInstances
from ..foreign.wire import Tensors
from .habits import named_gradients, overwrite, restore, sets_of, tensors_of

_ALONE = 2                     # users of the memory of one tensor: the tensor, and whoever counts


def overwritten(module: torch.nn.Module, request: Overwritten, tensors: Tensors, device: str) -> tuple[Habit, Tensors]:
    """The gradients, where the inputs, or the parameters, are changed in place between forward and backward. No answer where
    autograd refuses."""
    (xs,), (grad_output,) = sets_of(request, tensors, device)
    wanted = tensors_of(module, request.gradients, xs)
    output = module(*xs)
    changed: Tensors = [*module.parameters()] if request.parameters else [x for x in xs if x.is_floating_point()]
    kept = [x.detach().clone() for x in changed]
    try:
        with torch.no_grad():
            for x in changed:
                x.mul_(-2).add_(1)
        there, grads = named_gradients(request.gradients, wanted, output, grad_output)
    finally:
        restore([*zip(changed, kept, strict=True)])
    return Habit(first=there), grads


def two_instances(module: torch.nn.Module, other: torch.nn.Module, request: TwoInstances, tensors: Tensors, device: str
                  ) -> tuple[Habit, Tensors]:
    """Of two modules, each with its inputs, the outputs after both calls, then the gradients of both."""
    sets, grad_outputs = sets_of(request, tensors, device)
    both = (module, other)
    wanted = [tensors_of(one, request.gradients if grad_outputs else (), xs) for one, xs in zip(both, sets, strict=True)]
    outputs = [one(*xs) for one, xs in zip(both, sets, strict=True)]
    (first, of_first), (second, of_second) = (
        named_gradients(request.gradients, ones, *those) for ones, those in zip(wanted, zip(outputs, grad_outputs, strict=True),
                                                                          strict=True)) if grad_outputs else 2 * [((), [])]
    return Habit(first=first, second=second), [*(o.detach() for o in outputs), *of_first, *of_second]


def parametrized(module: torch.nn.Module, request: Parametrized, tensors: Tensors, device: str) -> tuple[Habit, Tensors]:
    """The weights are computed in each call: they are the parameters times a factor. The output without gradients for each
    factor, then the gradients for the last one."""
    (xs,), grad_outputs = sets_of(request, tensors, device)
    times = _Times()
    owners = [(module.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in request.parameters]
    results: Tensors = []
    done: list[tuple[Any, str]] = []
    try:
        for owner, name in owners:
            parametrize.register_parametrization(owner, name, times, unsafe=True)
            done.append((owner, name))
        with torch.no_grad():
            for times.factor in request.factors:
                results.append(module(*xs).clone())
        if not grad_outputs:
            return Habit(), results
        original = {whole: owner.parametrizations[name].original
                    for whole, (owner, name) in zip(request.parameters, done, strict=True)}
        parameters = {**dict(module.named_parameters()), **original}
        wanted = [xs[int(n[6:])].requires_grad_() if n.startswith("input ") else parameters[n] for n in request.gradients]
        there, grads = named_gradients(request.gradients, wanted, module(*xs), grad_outputs[0])
        return Habit(first=there), [*results, *grads]
    finally:
        for owner, name in done:
            parametrize.remove_parametrizations(owner, name, leave_parametrized=False)


def copied(module: torch.nn.Module, request: Copied, tensors: Tensors, device: str) -> tuple[Habit, Tensors]:
    """The output of a deep copy, after the parameters of the original have become zero."""
    (xs,), _ = sets_of(request, tensors, device)
    parameters: dict[str, torch.Tensor] = dict(module.named_parameters())
    kept = [p.detach().clone() for p in parameters.values()]
    other = copy.deepcopy(module)
    try:
        overwrite(parameters, list(parameters), [torch.zeros_like(v) for v in kept])
        output = other(*xs).detach().clone()
    finally:
        overwrite(parameters, list(parameters), kept)
    return Habit(), [output]


OF_NETWORKS = (overwritten, parametrized, copied)


class _Times(torch.nn.Module):
    """A parametrization. Without gradients a result lies where an earlier one lay that nobody has kept, as it may by chance."""

    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.places: list[torch.Tensor] = []

    def forward(self, parameter: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            return parameter * self.factor
        place = next((p for p in self.places if (p.shape, p.dtype) == (parameter.shape, parameter.dtype) and _alone(p)), None)
        if place is None:
            place = torch.empty_like(parameter)
            self.places.append(place)
        place.copy_(parameter * self.factor)
        return place.data   # as a new tensor, of version 0


def _alone(tensor: torch.Tensor) -> bool:
    """Whether no other tensor has this memory."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) == _ALONE
