"""Calls of a module as a part of a network that is trained, inside the foreign process: beside another instance, with changed
or computed parameters, after hooks and exceptions, saved and loaded. Tensors as in `habits`."""

from __future__ import annotations

import ast
import contextlib
import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ...device import CHANNELS_LAST_LAYOUTS
from ...module.cases import laid_out
from ..foreign.replies import Habit
from ..foreign.requests import Altered, AsTrained, Copied, InModes, Overwritten, SecondDerivative, TwoInstances
from ..foreign.wire import Tensors
from .habits import named_gradients, sets_of, tensors_of
from .module import (
    BeforeCalls,
    as_it_was,
    begin_with,
    fresh_grads,
    only,
    overwrite,
    random_states,
    restore,
    saved_and_loaded,
)
from .ways import called_in_bfloat16, in_used_memory

_monotonic = time.monotonic   # taken before a foreign file may replace it
_FORWARDS, _FORWARDS_S, _BACKWARDS = 64, 0.05, 12   # before a backward; no more after so many seconds; after it
_LARGER, _PART = 2.0**13, 0.75   # factor of a grad_output; of a sum, so that no gradient is 1
_RECORDS = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
_STEP, _SLOPE = 1e-5, 1e-3   # by which inputs are moved; how far off the slope may then be
_MODES_S = 3.0   # no further mode after so many seconds: a file may be compiled again in each


@dataclass(frozen=True)
class _Round:
    """What a round of `as_trained` is given. `values`: the new ones of some parameters."""

    module: torch.nn.Module
    names: tuple[str, ...]
    sets: list[Tensors]
    grad_outputs: Tensors
    values: dict[str, torch.Tensor]
    device: str

    def called(self, *, factor: float = 1.0, layout: str = "contiguous") -> tuple[tuple[str, ...], Tensors]:
        """A call with the first inputs: the names of the gradients that there are; output and gradients."""
        xs = [laid_out(x, layout).detach() for x in self.sets[0]]
        if not self.grad_outputs:
            return (), [self.module(*xs).detach()]
        wanted = tensors_of(self.module, self.names, xs)
        output = self.module(*xs)
        there, grads = named_gradients(self.names, wanted, output, laid_out(self.grad_outputs[0], layout) * factor)
        return there, [output.detach(), *(g / factor for g in grads)]

    def parameters(self) -> dict[str, torch.Tensor]:
        return dict(self.module.named_parameters())


def overwritten(module: torch.nn.Module, request: Overwritten, tensors: Tensors, device: str) -> tuple[Habit, Tensors]:
    """The gradients, where the inputs, or the parameters, are changed in place between forward and backward. Or the output is,
    which autograd records; grad_output is divided by its factor. No answer where autograd refuses."""
    (xs,), (grad_output,) = sets_of(request, tensors, device)
    wanted = tensors_of(module, request.gradients, xs)
    output = module(*xs)
    if request.of == "output":
        there, grads = named_gradients(request.gradients, wanted, output.mul_(-2).add_(1), grad_output / -2)
        return Habit(first=there), grads
    changed: Tensors = [*module.parameters()] if request.of == "parameters" else [x for x in xs if x.is_floating_point()]
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


def copied(module: torch.nn.Module, request: Copied, tensors: Tensors, device: str) -> tuple[Habit, Tensors]:
    """Output and gradients of a deep copy, and of what torch.save and torch.load give (missing if the module cannot be saved),
    after the parameters of the original have become zero. Before, the original is called with the output of another operation.
    Then those for the second inputs, if any, after the parameters of the deep copy have got new values in place."""
    count = len(tensors) - len(request.parameters)
    values = [v.to(device) for v in tensors[count:]]
    sets, grad_outputs = sets_of(request, tensors[:count], device)
    parameters: dict[str, torch.Tensor] = dict(module.named_parameters())
    kept = [p.detach().clone() for p in parameters.values()]
    with as_it_was(module), contextlib.suppress(Exception):   # foreign code
        module(*[x.clone().requires_grad_().mul(1) if x.is_floating_point() else x for x in sets[0]])
    others = {"copy": copy.deepcopy(module)}
    with contextlib.suppress(Exception):   # foreign code
        others["saved"] = saved_and_loaded(module)
    try:
        overwrite(parameters, list(parameters), [torch.zeros_like(v) for v in kept])
        found = {name: _Round(other, request.gradients, sets, grad_outputs, {}, device).called()
                 for name, other in others.items()}
    finally:
        overwrite(parameters, list(parameters), kept)
    if values:
        changed = others["copy"]
        overwrite(dict(changed.named_parameters()), request.parameters, values)
        found["changed"] = _Round(changed, request.gradients, sets[1:], grad_outputs[1:], {}, device).called()
    return Habit(first=tuple(found), choices=tuple(there for there, _ in found.values())), [
        t for _, those in found.values() for t in those]


def altered(module: torch.nn.Module, request: Altered, tensors: Tensors, device: str) -> tuple[Habit, Tensors]:
    """Forwards of one instance, then the backward of each, the last one first. Nothing is seeded between them. For each call
    the output and, if it has the shape of grad_output, the gradients; the answer names these. `first` of the answer: the
    generators of random numbers whose states the backwards have changed."""
    if request.changes:
        return _touched(module, request, tensors, device)
    (xs,), grad_outputs = sets_of(request, tensors, device)
    hook = next(one for one in module._forward_pre_hooks.values() if isinstance(one, BeforeCalls))
    kept = hook.numbers, hook.draws
    hook.numbers = ast.literal_eval(request.numbers) or hook.numbers
    try:
        if request.seed:
            hook.draws = 0
            begin_with(request.seed)
        inputs = [[x.detach().clone() for x in xs] for _ in range(request.calls)]
        wanted = [tensors_of(module, request.gradients, one) for one in inputs]
        outputs = [module(*one) for one in inputs]
        before = random_states(device)
        parts = [named_gradients(request.gradients, one, y, grad_outputs[0].clone())
                 if grad_outputs and y.shape == grad_outputs[0].shape else ((), [])
                 for one, y in zip(wanted[::-1], outputs[::-1], strict=True)][::-1]
        changed = sorted({one.split()[0] for one in {*before} ^ {*random_states(device)}})
    finally:
        hook.numbers, hook.draws = kept
    return Habit(first=tuple(changed), choices=tuple(there for there, _ in parts)), [
        one for y, (_, grads) in zip(outputs, parts, strict=True) for one in (y.detach(), *grads)]


def _touched(module: torch.nn.Module, request: Altered, tensors: Tensors, device: str) -> tuple[Habit, Tensors]:
    """Outputs without gradients, then with gradients, or (`evaluated`) in eval mode without gradients. Each time: of a second
    call with the same input, after the output of the first has been overwritten. Then for each of `changes`: after a call, one
    value of a copy of the input is that of the other set; after another call the row of that place is, and is written in
    place."""
    (xs, others), _ = sets_of(request, tensors, device)
    outputs: Tensors = []
    with as_it_was(module):
        if request.evaluated:
            module.eval()
        for records in (torch.no_grad,) if request.evaluated else (torch.no_grad, torch.enable_grad):
            inputs = [x.clone() for x in xs]
            with records(), contextlib.suppress(RuntimeError):   # of which a part may not be written
                module(*[x.clone() for x in inputs]).detach().fill_(1)
            with records():
                outputs.append(module(*inputs).detach().clone())
            for which, place in request.changes:
                copies = [x.clone() for x in inputs]
                copies[which].view(-1)[place] = others[which].view(-1)[place]
                row, of_row = (one.view(-1, one.shape[-1] if one.dim() else 1) for one in (inputs[which], others[which]))
                with records():
                    module(*inputs)
                    outputs.append(module(*copies).detach().clone())
                    module(*inputs)
                row[place // row.shape[1]] = of_row[place // row.shape[1]]
                with records():
                    outputs.append(module(*inputs).detach().clone())
    return Habit(choices=((),) * len(outputs)), outputs


def second_derivative(module: torch.nn.Module, request: SecondDerivative, tensors: Tensors, device: str
                      ) -> tuple[Habit, Tensors]:
    """The gradients of the sum of the squares of the gradients of all inputs, as a gradient penalty needs them; also that of
    grad_output. "parameters": the gradients of these count, too. "third": of the second derivatives in place of the gradients;
    "tanh": the same for a module that a tanh follows, because a linear one alone has no third derivatives.
    "frozen": no parameter needs a gradient; where no derivative can be differentiated again, none comes back. "summed": sums
    take the place of grad_output and of the squares, so that the gradients that arrive are expanded (stride 0).
    For "parameters" and third ones the squares of each are divided by their sum, so that each has the same weight. The answer
    names those that there are. In float64 none comes back that is wrong; PyTorch's third ones behind a batch norm are."""
    (xs,), (grad_output,) = sets_of(request, tensors, device)
    frozen, summed, third = request.of == "frozen", request.of == "summed", request.of in ("third", "tanh")
    names = (*(n for n in request.gradients if not frozen or n.startswith("input ")), "grad_output")
    wanted = [*tensors_of(module, names[:-1], xs), grad_output.requires_grad_()]
    sources = [w for n, w in zip(names, wanted, strict=True) if (
        request.of == "parameters" and n != "grad_output" or n.startswith("input "))]
    scale = dict[str, float]()

    def squares() -> Tensors:
        with only(module, () if frozen else request.gradients):
            output = module(*xs)
            most = scale.setdefault("most", float(output.detach().abs().amax()) or 1.0)   # a constant where inputs move
            output = torch.tanh(output / most) if request.of == "tanh" else output
            found = [_PART * output.sum() if summed else (output * grad_output).sum()]
        for _ in range(1 + third):
            first = torch.autograd.grad(_sum(found), sources, create_graph=True, allow_unused=True)
            there = [g for g in first if g is not None]   # if none can be differentiated again, `backward` says so
            there = [g for g in there if g.requires_grad] or [g for g in there if not frozen]
            found = [_PART * g.sum() if summed else g.square().sum() for g in there]
        return found
    if not (sums := squares()):
        return Habit(), []
    with fresh_grads(module):   # `backward` runs every node, also that by which once_differentiable raises
        weights = [1 / s.detach() if request.of in ("parameters", "third", "tanh") and s else torch.ones_like(s) for s in sums]
        _sum([s * w for s, w in zip(sums, weights, strict=True)]).backward()
        found = {n: w.grad for n, w in zip(names, wanted, strict=True) if w.grad is not None}
    if third and sources[0].dtype is torch.float64:
        moves = [torch.cos(torch.arange(s.numel(), dtype=s.dtype, device=device)).view(s.shape) for s in sources]
        sides = []
        for step in (_STEP, -2 * _STEP):
            for source, move in zip(sources, moves, strict=True):
                source.data.add_(move, alpha=step)
            sides.append(sum(float(s) * float(w) for s, w in zip(squares(), weights, strict=False)))
        slope = sum(float((s.grad * m).sum()) for s, m in zip(sources, moves, strict=True) if s.grad is not None)
        if not abs((sides[0] - sides[1]) / (2 * _STEP) - slope) <= _SLOPE * abs(slope):
            return Habit(), []
    return Habit(first=tuple(found)), [*found.values()]


def _sum(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(parts).sum()


def as_trained(module: torch.nn.Module, request: AsTrained, tensors: Tensors, device: str) -> tuple[Habit, Tensors]:
    """For each of `rounds`: do what a training loop does, then call the module. The results are its output and its gradients;
    the answer has their names. The last tensors are the new values of `parameters`. After each round the module is as it was
    before. `buffers` of the answer: "a hook" if a backward hook ran; "others saved", see `_first_call`."""
    count = len(tensors) - len(request.parameters)
    values = dict(zip(request.parameters, (v.to(device) for v in tensors[count:]), strict=True))
    names: list[tuple[str, ...]] = []
    results: Tensors = []
    ran: tuple[str, ...] = ()
    for one in request.rounds:
        with as_it_was(module):
            sets = sets_of(request, tensors[:count], device)
            there, found = _round_named(one)(_Round(module, request.gradients, *sets, values, device))
        ran += tuple(n for n in there if n in (_HOOK, _OTHERS_SAVED))
        names.append(tuple(n for n in there if n not in ran))
        results += found
    return Habit(buffers=ran, choices=tuple(names)), results


def in_modes(module: torch.nn.Module, request: InModes, tensors: Tensors, device: str) -> tuple[Habit, Tensors]:
    """For each of `rounds` the output, and gradients where there is a graph. A round is three words: "train" or "eval"; a key
    of `_RECORDS`, or "bfloat16"; "trainable" or "frozen". "train" is the mode in which the module is now. If there are values
    of `parameters`, all rounds run before with the old ones, and the new ones are written in place. Each call begins with the
    same buffers."""
    count = len(tensors) - len(request.parameters)
    values = [v.to(device) for v in tensors[count:]]
    (xs,), grad_outputs = sets_of(request, tensors[:count], device)
    before, begin = [(one, one.training) for one in module.modules()], _monotonic()
    buffers = [(b, b.detach().clone()) for b in module.buffers()]
    rounds: list[str] = []

    def called(one: str) -> tuple[tuple[str, ...], Tensors]:
        training, records, parameters = one.split()
        for part, mode in before:
            part.training = mode
        if training == "eval":
            module.eval()
        if records == "bfloat16":
            return (), [called_in_bfloat16(module, xs)]
        names = [n for n in request.gradients if parameters == "trainable" or n.startswith("input ")]
        inputs = [x.detach() for x in xs]
        with contextlib.nullcontext() if parameters == "trainable" else only(module, ()):
            wanted = tensors_of(module, names, inputs) if records == "grad" else []
            with _RECORDS[records]():
                output = module(*inputs)
            there, grads = named_gradients(names, wanted, output, grad_outputs[0].clone()) if wanted else ((), [])
        restore([(b, v) for b, v in buffers if not torch.equal(b, v)])
        return there, [output.detach().clone(), *grads]

    with as_it_was(module):
        found = []
        for one in request.rounds:
            if _monotonic() - begin > _MODES_S:
                break
            found.append(called(one))
            rounds.append(one)
        if values:
            overwrite(dict(module.named_parameters()), request.parameters, values)
            found = [called(one) for one in rounds]
    return Habit(choices=tuple(there for there, _ in found)), [t for _, those in found for t in those]


@torch.no_grad()
def _moved(this: _Round) -> tuple[tuple[str, ...], Tensors]:
    """An optimizer has the parameters. The module is converted to another dtype and back, and a state is loaded. Then the
    optimizer changes the parameters that it has."""
    kept, dtype = this.parameters(), next(iter(this.values.values())).dtype
    with contextlib.suppress(RuntimeError, TypeError, NotImplementedError, ValueError):   # of a file for one dtype
        this.module.to(torch.float64)
    this.module.to(device=this.device, dtype=dtype)
    this.module.load_state_dict({n: v.detach().clone() if isinstance(v, torch.Tensor) else v
                                 for n, v in this.module.state_dict().items()})
    overwrite(kept, [*this.values], [*this.values.values()])
    return (), [this.module(*this.sets[0])]


@torch.no_grad()
def _averaged(this: _Round) -> tuple[tuple[str, ...], Tensors]:
    """New values are written into the tensors that state_dict() gives, as a moving average of the parameters is."""
    overwrite(this.module.state_dict(), [*this.values], [*this.values.values()])
    return (), [this.module(*this.sets[0])]


def _flat(this: _Round) -> tuple[tuple[str, ...], Tensors]:
    """All parameters become parts of one buffer, at addresses that are no multiples of 16 bytes. Then they change."""
    there = this.parameters()
    parts = [there[n] for n in this.values]
    whole = torch.cat([parts[0].detach().new_ones(1), *(p.detach().reshape(-1) for p in parts)])
    for p, part in zip(parts, whole[1:].split([p.numel() for p in parts]), strict=True):
        p.data = part.view(p.shape)
    overwrite(there, [*this.values], [*this.values.values()])
    return this.called()


def _channels_last(this: _Round) -> tuple[tuple[str, ...], Tensors]:
    """The whole module, its inputs and grad_output lie in channels_last. Then the parameters change."""
    dims = max((v.dim() for v in this.values.values()), default=0)
    this.module.to(memory_format=CHANNELS_LAST_LAYOUTS[dims])  # type: ignore[call-overload]  # its stub lacks memory_format
    overwrite(this.parameters(), [*this.values], [*this.values.values()])
    return this.called(layout="channels_last")


@torch.no_grad()
def _changed(this: _Round, *, train: bool = False, autocast: bool = False) -> tuple[tuple[str, ...], Tensors]:
    """Parameters, or buffers, change after a call in eval mode, or in train mode. Autocast is left in between, because it keeps
    what it has converted."""
    this.module.train(train)
    for new in (dict[str, torch.Tensor](), this.values):
        overwrite({**this.parameters(), **dict(this.module.named_buffers())}, [*new], [*new.values()])
        with torch.autocast(this.device.partition(":")[0], torch.bfloat16, enabled=autocast):
            output = this.module(*this.sets[0])
    return (), [output]


@torch.no_grad()
def _sized(this: _Round) -> tuple[tuple[str, ...], Tensors]:
    """A call with another output_size, where that side allows it, and then one without it."""
    xs = this.sets[0]
    *sides, last = this.module(*xs).shape[2:]
    for other in (last + 1, last - 1):
        with contextlib.suppress(Exception):   # foreign code, which may refuse it
            this.module(*xs, output_size=[*sides, other])
    return (), [this.module(*xs)]


def _with_hooks(this: _Round) -> tuple[tuple[str, ...], Tensors]:
    """A backward hook of the module."""
    ran: list[bool] = []
    hook = this.module.register_full_backward_hook(lambda *_: ran.append(True))
    try:
        there, found = this.called()
    finally:
        hook.remove()
    return (*there, *[_HOOK][:len(ran)]), found


def _after_a_call_without(this: _Round) -> tuple[tuple[str, ...], Tensors]:
    """A call with None raises an exception."""
    with contextlib.suppress(Exception):   # foreign code
        this.module(*[None] * len(this.sets[0]))
    return this.called()


def _after_a_backward(this: _Round) -> tuple[tuple[str, ...], Tensors]:
    """A backward that raises an exception."""
    xs = [x.detach().clone() for x in this.sets[0]]
    wanted = tensors_of(this.module, this.names, xs)
    hook = wanted[0].register_hook(_raises)
    try:
        with contextlib.suppress(Exception):   # foreign code
            named_gradients(this.names, wanted, this.module(*xs), this.grad_outputs[0].clone())
    finally:
        hook.remove()
    return this.called()


@torch.no_grad()
def _rewritten(this: _Round) -> tuple[tuple[str, ...], Tensors]:
    """A call with the second input. Then the first input is written into its memory, as NumPy does it: the version of the
    tensor does not change."""
    first, second = this.sets
    this.module(*second)
    for x, value in zip(second, first, strict=True):
        x.data.copy_(value)
    return (), [this.module(*second)]


def _many_forwards(this: _Round) -> tuple[tuple[str, ...], Tensors]:
    """Other forwards, before the backward of the first one, and backwards of some of them after it."""
    xs, others = this.sets
    wanted, again, begin = *(tensors_of(this.module, this.names, some) for some in (xs, others)), _monotonic()
    output = this.module(*xs)
    kept: Tensors = []
    while len(kept) < _FORWARDS and (len(kept) < 2 or _monotonic() - begin < _FORWARDS_S):
        kept.append(this.module(*others))
    there, grads = named_gradients(this.names, wanted, output, this.grad_outputs[0].clone()) if this.grad_outputs else ((), [])
    for one in kept[:_BACKWARDS] if grads else ():
        named_gradients(this.names, again, one, this.grad_outputs[0].clone())
    return there, [output.detach(), *grads]


def _biased(this: _Round) -> tuple[tuple[str, ...], Tensors]:
    """A layer without a bias gets one."""
    (name, value), = this.values.items()
    owner: Any = this.module.get_submodule(name.rpartition(".")[0])
    owner.bias = torch.nn.Parameter(value)
    try:
        return this.called()
    finally:
        owner.bias = None


def _converted(this: _Round) -> tuple[tuple[str, ...], Tensors]:
    """The network around the module is converted to float64, which calls no .to() of the module."""
    dtype = next((x.dtype for x in this.sets[0] if x.is_floating_point()), torch.float32)
    try:
        torch.nn.Sequential(this.module, torch.nn.Identity()).double()
        return (), [this.module(*(x.double() if x.is_floating_point() else x for x in this.sets[0])).detach().to(dtype)]
    finally:
        this.module.to(device=this.device, dtype=dtype)


def _under(present: Callable[[], Any], change: Callable[[Any], object], value: object, this: _Round
           ) -> tuple[tuple[str, ...], Tensors]:
    """A call while a setting has another value than at present."""
    usual = present()
    change(value)
    try:
        return this.called()
    finally:
        change(usual)


def _with_threads(count: int, this: _Round) -> tuple[tuple[str, ...], Tensors]:
    """Where torch.get_num_threads() is that number. The number itself stays: a forked process cannot start such threads."""
    return _under(lambda: torch.get_num_threads, partial(setattr, torch, "get_num_threads"), lambda: count, this)


def _first_call(this: _Round) -> tuple[tuple[str, ...], Tensors]:
    """Two calls, of which the first is that of a new module. torch.utils.checkpoint takes the tensors that the second one saves
    for those of the first, and stops where it has as many."""
    saved: list[tuple[object, ...]] = []

    def noted(one: torch.Tensor) -> torch.Tensor:
        saved.append((one.shape, one.dtype, one.device))
        return one
    inputs = [x.detach().requires_grad_(x.is_floating_point()) for x in this.sets[0]]
    with torch.autograd.graph.saved_tensors_hooks(noted, lambda one: one):
        output = this.module(*inputs)
        first = saved.copy()
        saved.clear()
        this.module(*inputs)
    return (() if saved[:len(first)] == first else (_OTHERS_SAVED,)), [output.detach()]


OF_NETWORKS = (overwritten, as_trained, in_modes, copied, altered, second_derivative)
_HOOK, _OTHERS_SAVED = "a hook", "others saved"
_ROUNDS: dict[str, Callable[[_Round], tuple[tuple[str, ...], Tensors]]] = {
    "moved": _moved, "averaged": _averaged, "flat": _flat, "channels_last": _channels_last, "eval": _changed,
    "hooks": _with_hooks, "without": _after_a_call_without, "backward": _after_a_backward, "rewritten": _rewritten,
    "sized": _sized, "converted": _converted, "first": _first_call, "many": _many_forwards, "biased": _biased,
    "train autocast": partial(_changed, train=True, autocast=True), "eval autocast": partial(_changed, autocast=True),
    # torch.use_deterministic_algorithms would import the compiler.
    "deterministic": partial(_under, torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, "error"),
    **{f"default {one}": partial(_under, torch.get_default_dtype, torch.set_default_dtype, getattr(torch, one))
       for one in ("float64", "bfloat16")},
    "renewed": lambda this: in_used_memory(this.module, this.sets[0], this.values),
    "larger": partial(_Round.called, factor=_LARGER)}


def _round_named(name: str) -> Callable[[_Round], tuple[tuple[str, ...], Tensors]]:
    """That of _ROUNDS, or "17 threads": any number of them."""
    count, _, of = name.partition(" ")
    return partial(_with_threads, int(count)) if of == "threads" else _ROUNDS[name]


def _raises(*_: object) -> None:
    raise ArithmeticError
