"""Calls of a module as a network makes them, inside the foreign process: without gradients, of views, after a step of an
optimizer, and so on. Tensors: one or two sets of inputs, then a grad_output for each, if any."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.nn.utils import parametrize, stateless

from ...module.cases import OTHER_GRADS, laid_out, other_grad
from ..foreign.replies import Habit, Left
from ..foreign.requests import (
    Aliases,
    AskLeft,
    DailyUse,
    EvalAlone,
    EvalMode,
    NoGrad,
    Parametrized,
    SecondBackward,
    SomeGradients,
    Stepped,
    Threads,
    TwoCalls,
    Views,
)
from ..foreign.wire import Tensors
from .calls import given_backward, gradients_of, guarded
from .lifetimes import lifetimes
from .module import (
    Settings,
    Times,
    changed_settings,
    fresh_grads,
    only,
    other_random_states,
    overwrite,
    random_states,
    restore,
)

_monotonic, _sleep = time.monotonic, time.sleep   # taken before a foreign file may replace them
_MANY, _MANY_S = 100, 0.5      # the number of calls, and the seconds after which no more are made
_KEPT_BYTES = 1 << 26   # of outputs
_CHOICES_S = 15.0
_AGAIN = 4   # calls with one weight: another one may then lie where an earlier one lay
_THREADS_S, _REST_S = 0.1, 2e-5
_RECORDS = (torch.enable_grad, torch.no_grad, torch.inference_mode)


def no_grad(module: torch.nn.Module, request: NoGrad, tensors: Tensors, device: str) -> tuple[Habit, Tensors]:
    """Output under no_grad, in inference_mode, and in another thread. Then the inputs, as they are after that. The answer says
    whether the first output is an inference tensor, and whether it requires a gradient; also with gradients, if all is frozen.
    """
    (xs,), _ = sets_of(request, tensors, device)
    with torch.no_grad():
        plain = module(*xs)
    with only(module, ()):
        frozen = module(*xs).requires_grad
    said = {"inference": plain.is_inference(), "graph": plain.requires_grad, "graph of frozen": frozen}
    plain = plain.detach().clone()
    with torch.inference_mode():
        inferred = module(*xs).clone()
    with ThreadPoolExecutor(1) as thread:
        threaded = thread.submit(lambda: module(*xs).detach().clone()).result()
    return Habit(first=tuple(n for n, yes in said.items() if yes)), [plain, inferred, threaded, *xs]


def threads(module: torch.nn.Module, request: Threads, tensors: Tensors, device: str) -> tuple[Habit, Tensors]:
    """Of the calls of four threads at once, two with each set of inputs: the output of each set that is farthest from its first
    one, element by element. Each thread rests at each call of a function: otherwise short calls would run one after the other.
    """
    sets, _ = sets_of(request, tensors, device)
    with torch.no_grad():
        first = [module(*xs).clone() for xs in sets]
    end, barrier = _monotonic() + _THREADS_S, threading.Barrier(2 * len(sets))

    def rest(*_: object) -> None:
        if _monotonic() < end:
            _sleep(_REST_S)

    def farthest(place: int) -> torch.Tensor:
        apart = torch.zeros_like(first[place])
        barrier.wait(_CHOICES_S)
        with torch.no_grad():
            for _ in range(_MANY):
                sys.setprofile(rest)
                output = module(*sets[place])
                sys.setprofile(None)
                apart = torch.maximum(apart, (output - first[place]).abs())
                if _monotonic() > end:
                    break
        return apart

    with ThreadPoolExecutor(2 * len(sets)) as pool:
        apart = list(pool.map(farthest, 2 * list(range(len(sets)))))
    return Habit(), [one + torch.maximum(apart[i], apart[i + len(sets)]) for i, one in enumerate(first)]


def eval_mode(module: torch.nn.Module, request: EvalMode, tensors: Tensors, device: str) -> tuple[Habit, Tensors]:
    """Outputs: after .eval(), the same under no_grad, and back in the mode before. Then the gradients after .eval(), and the
    buffers; the answer names them, and which methods, such as eval() and train(), did not return the module."""
    (xs,), grad_outputs = sets_of(request, tensors, device)
    modes = [(one, one.training) for one in module.modules()]
    returned: dict[str, Any] = {"eval": module.eval()}
    wanted = tensors_of(module, request.gradients, xs)
    output = module(*xs)
    evaluated = output.detach().clone()
    there, grads = named_gradients(request.gradients, wanted, output, grad_outputs[0]) if grad_outputs else ((), [])
    xs = [x.detach() for x in xs]
    with torch.no_grad():
        inferred = module(*xs).clone()
    returned["train"] = module.train(modes[0][1])
    for one, training in modes:
        one.training = training
    back = module(*xs).detach().clone()
    returned |= _returned(module, device)
    buffers = dict(module.named_buffers())
    names = tuple(n for n in module.state_dict() if n in buffers)
    return Habit(names, there, tuple(n for n, one in returned.items() if one is not module)), [
        evaluated, inferred, back, *grads, *(buffers[n].detach().clone() for n in names)]


def _returned(module: torch.nn.Module, device: str) -> dict[str, Any]:
    """What further methods return that return the module in PyTorch. None of them changes it here."""
    trainable = [(p, p.requires_grad) for p in module.parameters() if p.is_floating_point()]
    frozen = module.requires_grad_(False)
    for p, before in trainable:
        p.requires_grad_(before)
    floats = {t.dtype for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()}
    return {"requires_grad_": frozen, "apply": module.apply(lambda _: None), "to": module.to(device),
            **({"float": module.float()} if floats == {torch.float32} else {})}


def two_calls(module: torch.nn.Module, request: TwoCalls, tensors: Tensors, device: str) -> tuple[Habit, Tensors]:
    """Outputs of two calls, read after the second: under no_grad, then with gradients; then the gradients of the first and of
    the second, taken after both calls. The answer says which there are."""
    sets, grad_outputs = sets_of(request, tensors, device)
    with torch.no_grad():
        outputs = [module(*xs) for xs in sets]
    if not grad_outputs:
        return Habit(), outputs
    wanted = [tensors_of(module, request.gradients, xs) for xs in sets]
    outputs += [module(*xs) for xs in sets]
    (first, of_first), (second, of_second) = (
        named_gradients(request.gradients, ones, output, grad_output)
        for output, grad_output, ones in zip(outputs[2:], grad_outputs, wanted, strict=True))
    return Habit(first=first, second=second), [*(o.detach() for o in outputs), *of_first, *of_second]


def some_gradients(module: torch.nn.Module, request: SomeGradients, tensors: Tensors, device: str) -> tuple[Habit, Tensors]:
    """The gradients of each choice of tensors, if only these need a gradient. Not all choices are tried if each one is compiled
    again."""
    (xs,), (grad_output,) = sets_of(request, tensors, device)
    choices: list[tuple[str, ...]] = []
    results: Tensors = []
    begin = _monotonic()
    for names in request.choices:
        if choices and _monotonic() - begin > _CHOICES_S:
            break
        inputs = [x.detach() for x in xs]
        with only(module, names):
            there, grads = named_gradients(names, tensors_of(module, names, inputs), module(*inputs), grad_output.clone())
        choices.append(there)
        results += grads
    return Habit(choices=tuple(choices)), results


def second_backward(module: torch.nn.Module, request: SecondBackward, tensors: Tensors, device: str) -> tuple[Habit, Tensors]:
    """What adds up in .grad: two backwards through one graph, the first of them after .eval(), then, in another thread, that of
    another call, whose output is changed in place. Each grad_output is multiplied by `factor`, and the sums are divided by it.
    """
    (xs,), (grad_output,) = sets_of(request, tensors, device)
    grad_output = grad_output * request.factor
    wanted = tensors_of(module, request.gradients, xs)
    modes = [(one, one.training) for one in module.modules()]
    with fresh_grads(module):
        output = module(*xs)
        module.eval()
        given_backward(output, grad_output.clone()).backward(retain_graph=True)
        for one, training in modes:
            one.training = training
        given_backward(output, grad_output.clone()).backward()
        output = module(*xs)
        if request.in_place:
            output.mul_(-2)   # a mask that is read from the output then changes
        with ThreadPoolExecutor(1) as thread:
            thread.submit(given_backward(output, grad_output / -2 if request.in_place else grad_output).backward).result()
        kept = [(n, w.grad) for n, w in zip(request.gradients, wanted, strict=True) if w.grad is not None]
    return Habit(first=tuple(n for n, _ in kept)), [g / request.factor for _, g in kept]


def views(module: torch.nn.Module, request: Views, tensors: Tensors, device: str) -> tuple[Habit, Tensors]:
    """A call for each of `rounds`: its output, then its gradients; the answer names these. In a round each input, or
    grad_output, lies in memory in another way. "repeated": each sample of the batch is the first one, as a view without copies;
    then no gradients are taken. "grad summed" and the like have other values, see `other_grad`. With `dense` these are copies
    instead."""
    (xs,), grad_outputs = sets_of(request, tensors, device)
    wanted = tensors_of(module, request.gradients, xs)
    names: list[tuple[str, ...]] = []
    results: Tensors = []
    for one in request.rounds:
        _, of_grad, layout = one.rpartition("grad ")
        there, given = xs, [one.clone() for one in grad_outputs[:1]]   # a file may change it
        if one == "repeated":
            there, given = [x.detach()[:1].expand(x.shape) if x.dim() and len(x) else x.detach() for x in xs], []
        elif not of_grad:
            there = [laid_out(x, "reversed" if place % 2 and one == "part_of_batch" else one) for place, x in enumerate(xs)]
        elif layout in OTHER_GRADS:
            given = [other_grad(given[0], layout)]
        else:
            given = [laid_out(given[0], layout)]
        there, given = ([x.contiguous() for x in part] if request.dense else part for part in (there, given))
        output = module(*there)
        if one == "repeated":   # it must be memory of its own: this raises if several values share one place
            output.detach().copy_(output.detach().clone())
        there_are, grads = named_gradients(request.gradients, wanted, output, given[0]) if given else ((), [])
        names.append(there_are)
        results += [output.detach(), *grads]
    return Habit(choices=tuple(names)), results


def aliases(module: torch.nn.Module, request: Aliases, tensors: Tensors, device: str) -> tuple[Habit, Tensors]:
    """Of many calls the output that is farthest from the first, element by element. After its call each output is filled in
    place with a number of its own, unless it is the memory of an input or of the state. One output is an input of the next
    call, if it has the shape of the first input. Then an output, after its inputs have been overwritten. Then the output of one
    of many calls without gradients that later calls have changed most. These outputs are kept, up to some MB. `buffers` of the
    answer: what `lifetimes` says of further calls."""
    (xs,), _ = sets_of(request, tensors, device)
    first = module(*xs).detach().clone()
    farthest, lost, begin = torch.zeros_like(first), torch.zeros_like(first), _monotonic()
    others = {t.untyped_storage().data_ptr() for t in (*xs, *module.parameters(), *module.buffers())}
    kept: list[tuple[torch.Tensor, int]] = []
    most = _KEPT_BYTES // max(1, first.numel() * first.itemsize)
    for count in range(1, 1 + _MANY if first.is_floating_point() else 1):
        plain = count // 2 % 2 == 0   # two calls in a row: a file may keep something for each mode
        with torch.set_grad_enabled(not (request.without and plain)):
            output = module(*xs).detach()
        farthest = torch.maximum(farthest, (output - first).abs())
        if output.untyped_storage().data_ptr() not in others and output.is_contiguous():
            with contextlib.suppress(RuntimeError):   # of which a part may not be written
                output.fill_(count)
                if plain and len(kept) < most:
                    kept.append((output, count))
        if _monotonic() - begin > _MANY_S:
            break
    for output, count in kept:
        lost = torch.maximum(lost, (output - count).abs())
    output = module(*xs).detach()
    if xs and (output.shape, output.dtype) == (xs[0].shape, xs[0].dtype) and output.is_floating_point():
        with contextlib.suppress(RuntimeError, ValueError, AssertionError):  # it may not take such values
            module(output, *xs[1:])
        farthest = torch.maximum(farthest, (output - first).abs())
    output = module(*xs).detach()
    for x in xs:
        x.fill_(1)
    return Habit(lifetimes(module, xs)), [first + farthest, output, first + lost]


def stepped(module: torch.nn.Module, request: Stepped, tensors: Tensors, device: str) -> tuple[Habit, Tensors]:
    """Parameters that were changed in place, as an optimizer does: what state_dict() then has of them, output, output
    under no_grad, and gradients. Then the output after one value of each was changed through .data, which no version counts,
    also under no_grad and in inference_mode; what `_apart_if_reversed` gives is added. Then for each of `layouts` output and
    gradients with other Parameter objects of these values in their place, whose memory has that layout; the answer names
    the gradients of each."""
    count = len(tensors) - len(request.parameters)
    values = [v.to(device) for v in tensors[count:]]
    (xs,), grad_outputs = sets_of(request, tensors[:count], device)
    # As an optimizer gets them.
    parameters: dict[str, torch.Tensor] = dict(zip(dict(module.named_parameters()), module.parameters(), strict=False))
    kept = [parameters[n].detach().clone() for n in request.parameters]
    module(*xs)  # a call with the old values, so that stored copies of them are wrong in the following calls
    with torch.no_grad():
        module(*xs)
    try:
        overwrite(parameters, request.parameters, values)
        state = module.state_dict()
        saved = [state[n].detach().clone() for n in request.parameters]
        wanted = tensors_of(module, request.gradients, xs)
        output = module(*xs)
        there, grads = named_gradients(request.gradients, wanted, output, grad_outputs[0].clone()) if grad_outputs else ((), [])
        with torch.no_grad():
            plain = module(*xs).detach()
        overwrite(parameters, request.parameters, [_but_for_one(v, k) for v, k in zip(values, kept, strict=True)])
        for records in _RECORDS:
            _called_in(records, module, xs)
        for name, value in zip(request.parameters, values, strict=True):
            parameters[name].data.copy_(value)
        unversioned = [_called_in(records, module, xs) for records in _RECORDS]
        apart = _apart_if_reversed(module, [parameters[n] for n in request.parameters], xs)
        unversioned = [output + off for output, off in zip(unversioned, apart, strict=True)]
    finally:
        overwrite(parameters, request.parameters, kept)
    results = [*saved, output.detach(), plain, *grads, *unversioned]
    names = []
    with contextlib.suppress(NotImplementedError, RuntimeError, TypeError):  # not of every module, a scripted one for example
        closed = {n: torch.nn.Parameter(guarded(v.contiguous())) for n, v in zip(request.parameters, values, strict=True)}
        with stateless._reparametrize_module(module, closed, tie_weights=True):   # type: ignore[arg-type]
            module(*xs)   # a read beside a parameter ends the process
        for layout in request.layouts:
            others: dict[str, torch.Tensor] = {
                n: torch.nn.Parameter(laid_out(v, "strided" if v.dim() == 1 else layout if v.dim() in (4, 5) or
                                               layout == "reversed" else "contiguous"))
                for n, v in zip(request.parameters, values, strict=True)}
            xs = [x.detach() for x in xs]
            wanted = [xs[int(n[6:])].requires_grad_() if n.startswith("input ") else others.get(n, parameters[n])
                      for n in request.gradients]
            # Also in the backward, in which a checkpoint calls the module again. torch.func.functional_call ends before it.
            with stateless._reparametrize_module(module, others, tie_weights=True):
                output = module(*xs)
                theirs, grads = named_gradients(request.gradients, wanted, output, grad_outputs[0].clone()) \
                    if grad_outputs else ((), [])
            names.append(theirs)
            results += [output.detach(), *grads]
    return Habit(first=there, choices=tuple(names)), results


def _called_in(records: Callable[[], Any], module: torch.nn.Module, xs: Tensors) -> torch.Tensor:
    """The output in a mode. If it raises an exception in inference_mode, that under no_grad: a scripted module does, once it
    has been called with gradients."""
    try:
        with records():
            output: torch.Tensor = module(*xs).detach().clone()
            return output
    except RuntimeError:
        if records is not torch.inference_mode:
            raise
    return _called_in(torch.no_grad, module, xs)


def _apart_if_reversed(module: torch.nn.Module, parameters: Tensors, xs: Tensors) -> Tensors:
    """By how much outputs differ after the values of each parameter were reversed through .data, and after the same values were
    written as a new version. No sum or largest value shows the first change. The values have few digits: sums are exact."""
    apart = []
    for records in _RECORDS:
        restore([(p, p.detach().bfloat16()) for p in parameters])
        _called_in(records, module, xs)
        others = [p.detach().flatten().flip(0).view(p.shape) for p in parameters]
        for p, other in zip(parameters, others, strict=True):
            p.data.copy_(other)
        first = _called_in(records, module, xs)
        restore([*zip(parameters, others, strict=True)])
        second = _called_in(records, module, xs)
        same = (first == second) | first.isnan() & second.isnan()
        apart.append(torch.where(same, 0, first - second) if first.is_floating_point() else torch.zeros_like(first))
    return apart


def _but_for_one(values: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """The values, except the one that has changed most: that is the old one."""
    almost = values.clone(memory_format=torch.contiguous_format)
    if almost.numel():
        place = int((values - old).abs().argmax())
        almost.view(-1)[place] = old.reshape(-1)[place]
    return almost


def parametrized(module: torch.nn.Module, request: Parametrized, tensors: Tensors, device: str) -> tuple[Habit, Tensors]:
    """The weights are computed in each call: they are the parameters times a factor. The output without gradients for each
    factor, then the gradients for the last one. Each factor is used in several calls, whose weights lie in other memory; the
    last one is in inference_mode. The largest difference between them is added to the first output."""
    (xs,), grad_outputs = sets_of(request, tensors, device)
    times = Times()
    owners = [(module.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in request.parameters]
    results: Tensors = []
    done: list[tuple[Any, str]] = []
    try:
        for owner, name in owners:
            parametrize.register_parametrization(owner, name, times, unsafe=True)
            done.append((owner, name))
        with torch.no_grad():
            for times.factor in request.factors:
                first = module(*xs).clone()
                apart = torch.zeros_like(first)
                for again in range(_AGAIN):
                    with _RECORDS[1 + (again == _AGAIN - 1)]():
                        output = module(*xs)
                    apart = torch.maximum(apart, (output - first).abs())
                results.append(first + apart)
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


def eval_alone(module: torch.nn.Module, request: EvalAlone, tensors: Tensors, device: str) -> tuple[Habit, Tensors]:
    """The output, then that with each of `parts` alone in eval mode; without any, each submodule in turn, for a limited time.
    Each call begins with the same buffers."""
    (xs,), _ = sets_of(request, tensors, device)
    there = dict(module.named_modules())
    parts = request.parts or tuple(n for n in there if n)
    kept = [(b, b.detach().clone()) for b in module.buffers()]
    results, names, begin = [module(*xs).detach().clone()], [], _monotonic()
    for name in (n for n in parts if n in there):
        if not request.parts and _monotonic() - begin > _MANY_S:
            break
        modes = [(one, one.training) for one in there[name].modules()]
        restore(kept)
        there[name].eval()
        results.append(module(*xs).detach().clone())
        names.append(name)
        for one, training in modes:
            one.training = training
    restore(kept)
    return Habit(first=tuple(names)), results


def left(module: torch.nn.Module, request: AskLeft, tensors: Tensors, device: str, before: Settings
         ) -> tuple[Left, Tensors]:
    """The state after a call without gradients and one with a backward; and grad_output after them."""
    there = [t.to(device).clone() for t in tensors]
    xs, grad_outputs = there[:request.inputs], there[request.inputs:]
    trainable = {n: p.requires_grad for n, p in module.named_parameters()}
    modes = {n: one.training for n, one in module.named_modules()}
    own = dict(vars(module))
    torch.manual_seed(int(torch.randint(2**31, ())))  # a file that sets it to what it set before would not be seen
    other_random_states(device)
    drawn_before = random_states(device)
    ran: list[bool] = []
    hook = module.register_forward_hook(lambda *_: ran.append(True))
    with torch.no_grad():
        output = module(*xs)
    hook.remove()
    drawn = random_states(device)
    other_random_states(device)
    scattered: tuple[str, ...] = ()
    if grad_outputs:
        wanted = tensors_of(module, request.gradients, xs)
        names, grads = named_gradients(request.gradients, wanted, module(*xs), grad_outputs[0])
        scattered = tuple(n for n, g in zip(names, grads, strict=True) if not g.is_contiguous())
    else:
        module(*xs)
    attributes = {n: v for n, v in vars(module).items()
                  if isinstance(v, torch.Tensor) and v.is_floating_point() and own.get(n) is not v}
    seeds = tuple(sorted(one.split()[0] for one in {*drawn} & {*random_states(device)}))
    state = {n: v.detach().clone() for n, v in module.state_dict().items() if isinstance(v, torch.Tensor)}
    frozen = tuple(n for n, p in module.named_parameters() if trainable.get(n, p.requires_grad) != p.requires_grad)
    thawed = tuple(n for n in _thawed(module, trainable) if n not in frozen)
    changed = tuple(n for n, one in module.named_modules() if modes.get(n, one.training) != one.training)
    strides = tuple(output.stride()) if isinstance(output, torch.Tensor) else ()
    draws = not {*drawn_before} <= {*drawn}
    return Left(tuple(state), (*frozen, *thawed), changed, draws, seeds, bool(ran), strides, changed_settings(before),
                scattered=scattered, attributes=tuple(attributes),
                norms=tuple(float(v.detach().double().norm()) for v in attributes.values()),
                trained=tuple(n for n, v in attributes.items() if v.requires_grad)), [*state.values(), *grad_outputs]


HABITS = (no_grad, threads, eval_mode, two_calls, some_gradients, second_backward, views, aliases, stepped,
          parametrized, eval_alone)


def _thawed(module: torch.nn.Module, trainable: dict[str, bool]) -> Iterator[str]:
    """The parameters whose requires_grad is changed by .eval() or .train(). Some of them are frozen before."""
    modes = [(one, one.training) for one in module.modules()]
    there = {n: p for n, p in module.named_parameters() if p.is_floating_point()}
    for wanted in (False, True):
        for p in there.values():
            p.requires_grad_(wanted)
        module.eval()
        module.train()
        yield from (n for n, p in module.named_parameters() if n in there and p.requires_grad != wanted)
    for n, p in there.items():
        p.requires_grad_(trainable.get(n, True))
    for one, training in modes:
        one.training = training


def sets_of(request: DailyUse, tensors: Tensors, device: str) -> tuple[list[Tensors], Tensors]:
    size, count = request.inputs, request.sets
    there = [t.to(device).clone() for t in tensors]
    return [there[i * size:(i + 1) * size] for i in range(count)], there[size * count:]


def tensors_of(module: torch.nn.Module, names: Sequence[str], xs: Tensors) -> Tensors:
    parameters = dict(module.named_parameters())
    return [xs[int(n[6:])].requires_grad_() if n.startswith("input ") else parameters[n] for n in names]


def named_gradients(names: Sequence[str], wanted: Tensors, output: torch.Tensor, grad_output: torch.Tensor
               ) -> tuple[tuple[str, ...], Tensors]:
    """Of those that there are, names and values."""
    if not output.requires_grad:
        return (), []
    grads = gradients_of(output, grad_output, wanted)
    kept = [(n, g) for n, g in zip(names, grads, strict=True) if g is not None]
    return tuple(n for n, _ in kept), [g for _, g in kept]
