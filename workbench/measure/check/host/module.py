"""Facts about a module inside the foreign process: its arguments, its state, its interface, and what it keeps in memory. And
the settings that a file can change for all modules of its process: torch's switches, hooks, functions and threads, and those of
Python and the system. Beside them a hook and a parametrization of the judge's, and what leaves a module as it was."""

from __future__ import annotations

import ast
import copy
import gc
import importlib
import inspect
import io
import logging
import multiprocessing
import os
import random
import signal
import sys
import threading
import types
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from zlib import crc32

import torch
import torch._compile
from torch import nn
from torch.nn.modules import module as modules

from ..foreign.requests import Make

CLASSES = {nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2, nn.ConvTranspose3d: 3}
INTERFACE = "interface"   # the form of a construction that asks for it
_OF_MODES = (nn.modules.dropout._DropoutNd, nn.RReLU)   # without parameters, and another function in eval mode
_ALONE = 2    # users of the memory of one tensor: the tensor, and whoever counts


# Environment variables that a right file sets, or that torch sets, to build an extension.
_OF_BUILDS = ("TORCH", "PYTORCH", "TRITON", "CUDA", "NVCC", "KINETO")
_BY_NAME = {"MAX_JOBS", "CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "PATH", "LD_LIBRARY_PATH"}

_FIRST_METHOD = multiprocessing.get_all_start_methods()[0]   # what a program has that sets none
Settings = dict[str, object]
_PLACES: dict[str, Any] = {
    "torch": torch, "torch.nn.functional": torch.nn.functional, "torch.nn.init": torch.nn.init, "torch.Tensor": torch.Tensor,
    "torch.autograd": torch.autograd,
    **{f"torch.nn.{name}": cls for name, cls in vars(torch.nn).items() if isinstance(cls, type)}}


class BeforeCalls:
    """A hook that each call of a module runs first. `numbers`: place -> value of the inputs that are no tensors. `draws`: the
    seed under which a call begins, unless it is 0."""

    def __init__(self, numbers: dict[int, Any], draws: int) -> None:
        self.numbers, self.draws = numbers, draws

    def __call__(self, module: nn.Module, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        """All arguments of forward, by place."""
        if self.draws:
            begin_with(self.draws)
        rest, count = iter(tensors), len(self.numbers) + len(tensors)
        return tuple(self.numbers[place] if place in self.numbers else next(rest) for place in range(count))


class Times(nn.Module):
    """A parametrization. Without gradients, its result lies in the memory of an earlier result that nobody has kept. In
    PyTorch this may happen by chance."""

    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.places: list[torch.Tensor] = []

    def forward(self, parameter: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            return parameter * self.factor
        place = next((p for p in self.places if (p.shape, p.dtype) == (parameter.shape, parameter.dtype) and alone(p)), None)
        with torch.inference_mode(False), torch.no_grad():   # a weight that is made outside inference_mode and used inside
            if place is None:
                place = torch.empty_like(parameter)
                self.places.append(place)
            place.copy_(parameter * self.factor)
            return place.data   # as a new tensor, of version 0


def alone(tensor: torch.Tensor) -> bool:
    """Whether no other tensor has this memory."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) == _ALONE


def begin_with(seed: int) -> None:
    """torch.manual_seed. Without a GPU that keeps stack traces, which takes two hundred times as long; and a check sets a seed
    a hundred times."""
    if torch.cuda.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def arguments_of(given: Any) -> tuple[list[Any], dict[str, Any]]:
    """KernelBench's get_init_inputs() is a list; newer ones also give [args, kwargs] or a dict."""
    if isinstance(given, dict):
        return [], given
    given = list(given)
    if len(given) == 2 and isinstance(given[0], list | tuple) and isinstance(given[1], dict):
        return list(given[0]), given[1]
    return given, {}


def the_state(module: nn.Module) -> tuple[list[str], list[torch.Tensor]]:
    state = {name: value for name, value in module.state_dict().items() if isinstance(value, torch.Tensor)}
    return list(state), list(state.values())


def takes_assign(module: nn.Module) -> bool:
    """Whether load_state_dict takes assign=True."""
    try:
        inspect.signature(module.load_state_dict).bind({}, assign=True)
    except TypeError:
        return False
    return True


def tells_of_keys(module: nn.Module, names: Sequence[str], values: list[torch.Tensor]) -> bool:
    """Whether load_state_dict(strict=False) returns the missing and the unexpected keys."""
    if not names:
        return True
    odd = f"{names[0]}_of_another"
    found = module.load_state_dict({odd: values[0], **dict(zip(names[1:], values[1:], strict=True))}, strict=False)
    missing, unexpected = (getattr(found, name, ()) for name in ("missing_keys", "unexpected_keys"))
    return names[0] in missing and odd in unexpected


def kinds(module: nn.Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the buffers, and of the parameters that require no gradient. A tensor with two names has both."""
    buffers = nn.Module.named_buffers(module, remove_duplicate=False)
    parameters = nn.Module.named_parameters(module, remove_duplicate=False)
    return tuple(n for n, _ in buffers), tuple(n for n, p in parameters if not p.requires_grad)


def stands_for_layer(cls: Any) -> bool:
    """Whether the class has the interface of nn.ConvTranspose: as its subclass, or by its constructor's device and dtype."""
    if not isinstance(cls, type):
        return False
    return issubclass(cls, tuple(CLASSES)) or {"device", "dtype"} <= inspect.signature(cls.__init__).parameters.keys()


@contextmanager
def in_form(form: str, arguments: Any, keywords: Any) -> Iterator[tuple[Any, Any]]:
    """The arguments of a constructor that is called inside: with whole numbers of NumPy's ("numpy"), with dtype float64
    ("dtype"), or where the default dtype is float64 ("float64"). "lists": lists among them change afterwards."""
    if form == "dtype":
        keywords = {**keywords, "dtype": torch.float64}
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if form == "float64" else usual)
    try:
        yield (_of_numpy(arguments), _of_numpy(keywords)) if form == "numpy" else (arguments, keywords)
        for one in (*arguments, *keywords.values()) if form == "lists" else ():
            if isinstance(one, list):
                one[:] = [n + 1 for n in one]
    finally:
        torch.set_default_dtype(usual)


def _of_numpy(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _of_numpy(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_of_numpy, value))
    return importlib.import_module("numpy").int64(value) if type(value) is int else value


def saved_and_loaded(module: nn.Module) -> nn.Module:
    memory = io.BytesIO()
    torch.save(module, memory)
    memory.seek(0)
    loaded: nn.Module = torch.load(memory, weights_only=False)
    return loaded


@contextmanager
def only(module: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """All other parameters are frozen."""
    frozen = [p for n, p in module.named_parameters() if p.requires_grad and n not in names]
    for p in frozen:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in frozen:
            p.requires_grad_(True)


@contextmanager
def fresh_grads(module: nn.Module) -> Iterator[None]:
    """No parameter has a gradient yet; afterwards none has one of these."""
    kept = [(p, p.grad) for _, p in module.named_parameters()]   # a file's parameters() may give copies
    for p, _ in kept:
        p.grad = None
    try:
        yield
    finally:
        for p, grad in kept:
            p.grad = grad


@torch.no_grad()
def overwrite(parameters: dict[str, torch.Tensor], names: Sequence[str], values: list[torch.Tensor]) -> None:
    for name, value in zip(names, values, strict=True):
        parameters[name].copy_(value)


@torch.no_grad()
def restore(kept: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for buffer, value in kept:
        buffer.copy_(value)


@contextmanager
def as_it_was(module: nn.Module) -> Iterator[None]:
    """Afterwards parameters have their memory and values, buffers their values, and all parts their modes."""
    parameters = [(p, p.data) for p in module.parameters()]
    kept = [(p, p.detach().clone()) for p in module.parameters()]
    buffers = {n: b.detach().clone() for n, b in module.named_buffers()}   # .to() makes new objects
    modes = [(one, one.training) for one in module.modules()]
    try:
        yield
    finally:
        for p, memory in parameters:
            p.data = memory
        restore([*kept, *((b, buffers[n]) for n, b in module.named_buffers() if n in buffers)])
        for one, training in modes:
            one.training = training


class _Ran(Exception):
    """A hook ran."""


def interface(module: nn.Module, *, as_layer: bool) -> tuple[str, ...]:
    """What other code may use of a module. "name()": a public method that its class defines and does not itself use; of a layer
    also reset_parameters. "name": anything else that can be called. ":name": see the code, and `_parts`; ":name Error" says
    what is raised there."""
    own = [cls for cls in type(module).__mro__ if cls.__module__ == "model_file"]
    used = {name for cls in own for one in vars(cls).values() for name in _names_in(getattr(one, "__code__", None))}
    methods = {name for cls in own for name, one in vars(cls).items()
               if inspect.isroutine(one) and name not in used} | ({"reset_parameters"} if as_layer else set())
    found = [f"{n}()" if n in methods else n for n in dir(module) if not n.startswith("_") and not hasattr(nn.Module, n)
             and _can_be_called(module, n)]
    found += [":bias"] if as_layer and hasattr(module, "bias") else []
    found += [":class"] if isinstance(module, tuple(CLASSES)) else []
    found += [":copy"] if _copies_flags(module) else []
    for name in ("parameters", "named_parameters", "buffers", "modules", "children"):
        with suppress(Exception):   # foreign code
            found += [f":{name}"] if hasattr(getattr(module, name)(), "__next__") else []
    try:
        found += [":repr"] if isinstance(repr(module), str) else []
    except Exception as error:   # foreign code
        found += [f":repr {type(error).__name__}"]
    found += [":flat"] if as_layer and all(p.is_contiguous() for p in module.parameters()) else []
    with suppress(Exception):
        found += _parts(module)
    return (*found, *([":hooks"] if _runs_hooks_of_all(module) else []))


def _parts(module: nn.Module) -> Iterator[str]:
    """For each submodule that has parameters ":layer NAME KIND ...": PyTorch's classes of which it is an instance. For one that
    does something else in eval mode, as dropout does, ":modes KIND"; if it is not in eval mode, also ":trains KIND"."""
    for name, one in nn.Module.named_modules(module):
        kinds = [getattr(one, "original_name", "")] if isinstance(one, torch.jit.ScriptModule) else [
            cls.__name__ for cls in type(one).__mro__ if cls.__module__.startswith("torch.nn.modules.")
            and cls is not nn.Module and not cls.__name__.startswith("_")]
        if name and any(p is not None for _, p in nn.Module.named_parameters(one, recurse=False)):
            yield f":layer {name} {' '.join(kinds)}"
        if isinstance(one, _OF_MODES):
            yield f":modes {kinds[0]}"
        if isinstance(one, _OF_MODES) and one.training and float(getattr(one, "p", 1.0)) > 0:
            yield f":trains {kinds[0]}"


def of_subclass(cls: Any, request: Make, state: list[torch.Tensor]) -> tuple[str, ...]:
    """":subclass" if a subclass that changes nothing can be constructed, ":subclass_state" if it has this state then."""
    if not isinstance(cls, type):   # a function has no subclasses
        return ":subclass", ":subclass_state"
    begin_with(request.seed)
    try:
        other = types.new_class("Subclass", (cls,))(*ast.literal_eval(request.arguments), **ast.literal_eval(request.keywords))
        same = all(map(torch.equal, (v.cpu() for v in the_state(other)[1]), (v.cpu() for v in state)))
    except Exception as error:   # foreign code
        return f":subclass {type(error).__name__}", ":subclass_state"
    return ":subclass", *([":subclass_state"] if same else [])


def _copies_flags(module: nn.Module) -> bool:
    """Whether a deep copy has the same frozen parameters, and draws nothing. True if it cannot be made."""
    floats = [p for p in module.parameters() if p.is_floating_point()][:1]
    state = torch.get_rng_state()
    try:
        for p in floats:
            p.requires_grad_(not p.requires_grad)
        other = copy.deepcopy(module)
        return torch.equal(state, torch.get_rng_state()) and [p.requires_grad for p in other.parameters()] == [
            p.requires_grad for p in module.parameters()]
    except Exception:   # foreign code
        return True
    finally:
        for p in floats:
            p.requires_grad_(not p.requires_grad)


def _can_be_called(module: nn.Module, name: str) -> bool:
    try:
        return callable(getattr(module, name, None))
    except Exception:   # a property of foreign code
        return False


def _names_in(code: Any) -> Iterator[str]:
    if isinstance(code, types.CodeType):
        yield from code.co_names
        for one in code.co_consts:
            yield from _names_in(one)


def _runs_hooks_of_all(module: nn.Module) -> bool:
    """Whether a call runs a hook that is registered for all modules. The hook ends the call before forward."""
    def hook(called: nn.Module, inputs: Any) -> None:
        raise _Ran
    handle = modules.register_module_forward_pre_hook(hook)
    try:
        module()
    except _Ran:
        return True
    except Exception:   # foreign code
        return False
    finally:
        handle.remove()
    return False


def random_states(device: str) -> tuple[str, ...]:
    """The state of each generator that a program shares, as a name and a checksum: torch's, Python's, and NumPy's if something
    has imported it."""
    numpy = _numpy_random()
    states = {"torch": torch.get_rng_state().numpy().tobytes(), "Python": repr(random.getstate()).encode()}
    if device != "cpu":
        states["CUDA"] = torch.cuda.get_rng_state(device).numpy().tobytes()
    if numpy is not None:
        state = numpy.get_state()
        states["NumPy"] = state[1].tobytes() + repr(state[2:]).encode() if isinstance(state, tuple) else repr(state).encode()
    return tuple(f"{name} {crc32(state)}" for name, state in states.items())


def other_random_states(device: str) -> None:
    """Draw a number from each generator. A call that sets a seed undoes this."""
    torch.rand(1)
    torch.rand(1, device=device)
    random.random()
    if (numpy := _numpy_random()) is not None:
        numpy.random()


def _numpy_random() -> Any:
    return getattr(sys.modules.get("numpy"), "random", None)


def changed_settings(before: Settings) -> tuple[str, ...]:
    """The names of changed settings. New names do not count, because modules of torch are imported when they are needed."""
    then = settings_now()
    return tuple(name for name, value in before.items() if then.get(name) != value)[:20]


def settings_now() -> Settings:
    """The present settings. Called before and after the file is loaded."""
    backends = torch.backends
    tiny = torch.tensor([1e-40])
    found: Settings = {
        "torch.get_default_dtype": torch.get_default_dtype(), "torch.get_num_threads": torch.get_num_threads(),
        "torch.is_grad_enabled": torch.is_grad_enabled(),
        "torch.get_float32_matmul_precision": torch.get_float32_matmul_precision(),
        "torch.are_deterministic_algorithms_enabled": torch.are_deterministic_algorithms_enabled(),
        "torch.is_anomaly_enabled": torch.is_anomaly_enabled(), "torch.set_flush_denormal": bool((tiny * 1 == 0).any()),
        "torch.backends.mkldnn.enabled": backends.mkldnn.enabled, "torch.backends.cudnn.enabled": backends.cudnn.enabled,
        "torch.backends.cudnn.benchmark": backends.cudnn.benchmark,
        "torch.backends.cudnn.deterministic": backends.cudnn.deterministic,
        "torch.backends.cudnn.allow_tf32": backends.cudnn.allow_tf32,
        "torch.backends.cuda.matmul.allow_tf32": backends.cuda.matmul.allow_tf32,
        "hooks of all modules": [len(hooks) for name, hooks in vars(modules).items()
                                 if name.startswith("_global_") and name.endswith("_hooks")],
        "the number of threads of Python, which a forked process does not have": threading.active_count()}
    found |= _of_the_process()
    for place, holder in _PLACES.items():
        for name, one in vars(holder).items():
            if callable(one):   # what it returns is a setting, too, if it stands above
                found[f"{place}.{name}"] = found.get(f"{place}.{name}"), id(_own(one))
    return found


def _own(function: Any) -> Any:
    """Without the wrapper that importing torch._dynamo puts around torch.manual_seed."""
    code = getattr(function, "__code__", None)
    wraps = code is not None and code.co_filename == torch._compile.__file__
    return getattr(function, "__wrapped__", function) if wraps else function


def _of_the_process() -> Settings:
    """Of warnings only the filters for all messages of all modules count: modules of torch add narrower ones when they are
    imported."""
    return {
        "the garbage collector": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "the priority of the process": os.getpriority(os.PRIO_PROCESS, 0),
        "the cores of the process": os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
        "os.environ": {name: value for name, value in os.environ.items()
                       if name not in _BY_NAME and not name.startswith(_OF_BUILDS)},
        "logging.disable": logging.root.manager.disable, "logging.getLogger().setLevel": logging.root.level,
        "os.chdir": os.getcwd(), "numpy.seterr": sys.modules["numpy"].geterr() if "numpy" in sys.modules else None,
        "multiprocessing.set_start_method": multiprocessing.get_start_method(allow_none=True) or _FIRST_METHOD,
        "sys.setrecursionlimit": sys.getrecursionlimit(),
        "signal handlers": {one: signal.getsignal(one) for one in signal.valid_signals()},
        "warnings.filters": {one[0] for one in warnings.filters if one[1] is None and one[3] is None and
                             issubclass(UserWarning, one[2])}}
