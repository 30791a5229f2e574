"""How long tensors and modules live: what stays in memory after calls."""

from __future__ import annotations

import copy
import gc
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from .module import fresh_grads

_FEW, _FEW_S = 8, 0.5   # calls of which nothing may stay in memory, and the seconds after which no more are made
_MANY, _LAST, _MANY_S = 40, 16, 0.1   # calls; the last of them; the seconds that all of them may take
_PLURAL = ("outputs", "inputs")
# Taken before a foreign file may replace them.
_monotonic, _thread_time, _collect = time.monotonic, time.thread_time, gc.collect


def lifetimes(module: nn.Module, xs: list[torch.Tensor]) -> tuple[str, ...]:
    """How long the tensors of a few calls live, half of which are training steps, and how long a module does. "kept": most
    outputs, or most inputs, are still in memory after Python's collector ran; a module may keep one or two. "outputs" and
    "inputs": all those of the steps, or of the other calls, were there until it ran. "module": a copy that was called once is
    still there after it ran. "grows": see `_grows`. Then what `_of_backward` says."""
    calls, begin, enabled = list[dict[str, StorageWeakRef]](), _monotonic(), gc.isenabled()
    gc.disable()
    try:
        while len(calls) < _FEW and (_monotonic() - begin < _FEW_S or len(calls) < 2):
            calls.append(_of_call(module, xs, trains=len(calls) % 2 == 0))
        told = _of_backward(module, xs)
        copied = _called_copy(module, xs)
        there = {one for one in _PLURAL for mode in (calls[::2], calls[1::2]) if len(_left(mode, one)) == _FEW // 2}
        _collect()
    finally:
        (gc.enable if enabled else gc.disable)()
    kept = {one for one in _PLURAL if len(_left(calls, one)) > _FEW // 2 + 1}
    stays = ["kept"] if kept else ["grows"] if _grows(module, xs) else []
    return (*told, *(there - kept), *stays, *["module"][:copied is not None and copied() is not None])


def _grows(module: nn.Module, xs: list[torch.Tensor]) -> bool:
    """Whether each of the last calls leaves a tensor in memory. A cache that has a bound is full by then. False if the calls
    take too long, by the time of this thread: other work on the machine does not count."""
    begin, before = _thread_time(), 0
    with suppress(Exception), torch.no_grad():   # foreign code
        for number in range(_MANY):
            if number == _MANY - _LAST:
                if _thread_time() - begin > _MANY_S:
                    return False
                before = _tensors()
            module(*[x.clone() for x in xs])
            if number == 3 and (_thread_time() - begin) * _MANY > 4 * _MANY_S:
                return False
        if _tensors() - before < _LAST:
            return False
        _collect()   # it takes long, so only now
        return _tensors() - before >= _LAST
    return False


def _tensors() -> int:
    return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())


def _left(calls: Sequence[dict[str, StorageWeakRef]], one: str) -> list[StorageWeakRef]:
    return [of[one] for of in calls if one in of and not of[one].expired()]


def _of_call(module: nn.Module, xs: list[torch.Tensor], *, trains: bool) -> dict[str, StorageWeakRef]:
    """The memory of the output and of the first input of a call, which nothing but the module may hold afterwards."""
    own = {t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers())}
    inputs = [x.clone() for x in xs]
    with torch.set_grad_enabled(trains), fresh_grads(module):
        output = module(*inputs)
        if output.requires_grad and output.is_floating_point():
            with suppress(Exception):   # foreign code
                output.sum().backward()
    there = dict(zip(_PLURAL, (output, *inputs[:1]), strict=False))
    return {name: StorageWeakRef(t.untyped_storage()) for name, t in there.items() if t.untyped_storage().data_ptr() not in own}


def _of_backward(module: nn.Module, xs: list[torch.Tensor]) -> tuple[str, ...]:
    """"saves": torch.autograd.graph.saved_tensors_hooks get tensors. "holds": they get none, a second backward without
    retain_graph raises no exception, and an input is still in memory after the backward, while the output is in use."""
    saved: list[bool] = []

    def noted(one: torch.Tensor) -> torch.Tensor:
        saved.append(True)
        return one
    with suppress(Exception), fresh_grads(module):   # foreign code
        inputs = [x.clone().requires_grad_(x.is_floating_point()).clone() for x in xs]   # as inside a network
        with torch.autograd.graph.saved_tensors_hooks(noted, lambda one: one):
            output = module(*inputs)
        places = [x.untyped_storage().data_ptr() for x in inputs]
        if saved or not output.requires_grad or output.untyped_storage().data_ptr() in places:
            return ("saves",) if saved else ()
        output.sum().backward()
        held = [StorageWeakRef(x.untyped_storage()) for x in inputs]
        del inputs
        output.sum().backward()   # raises if autograd has freed what it saved
        return () if all(one.expired() for one in held) else ("holds",)
    return ()


def _called_copy(module: nn.Module, xs: list[torch.Tensor]) -> weakref.ref[nn.Module] | None:
    """A deep copy that was called and then deleted."""
    with suppress(Exception), torch.no_grad():   # foreign code
        other = copy.deepcopy(module)
        other(*[x.clone() for x in xs])
        return None if other is module else weakref.ref(other)
    return None
