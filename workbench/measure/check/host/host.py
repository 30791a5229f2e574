"""Runs inside the foreign process: loads a file with Model or ModelNew and answers the judge, one operation at a time.

The judge does not rely on answers from here: it compares tensors and measures the time itself.
"""

from __future__ import annotations

import ast
import copy
import faulthandler
import gc
import importlib
import inspect
import linecache
import math
import os
import random
import re
import sys
import time
import traceback
import types
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import torch

from ....core.typed import keys_of
from ..foreign import requests
from ..foreign.replies import (
    Context,
    Done,
    Given,
    Habit,
    IsTheLayer,
    Left,
    Loaded,
    Made,
    Nothing,
    NoWay,
    Prepared,
    Ran,
    Ready,
    StateLoaded,
    Told,
    Way,
)
from ..foreign.requests import OfModule, Request
from ..foreign.window import Window, give_back, opened
from ..foreign.wire import Tensors, pack, receive_blocking
from . import calls, habits, load, networks
from .lines import FILE, Recorder
from .module import (
    INTERFACE,
    BeforeCalls,
    Settings,
    arguments_of,
    begin_with,
    in_form,
    interface,
    kinds,
    of_subclass,
    other_random_states,
    random_states,
    restore,
    settings_now,
    stands_for_layer,
    takes_assign,
    tells_of_keys,
    the_state,
)
from .ways import convolves, is_the_layer, structure

_monotonic = time.monotonic  # taken before a foreign file may put another clock in its place
_MOST_MESSAGE = 200_000  # a compiler's whole log may be in it
_MOST_SHOWN = 40   # characters of a default value
_CALLS: dict[str, Callable[..., Any]] = {function.__name__: function for function in (
    calls.call, calls.reach, *habits.HABITS, *networks.OF_NETWORKS, *calls.ON_GPU)}   # by the operation's name
_CALLED = re.compile(r"([\w.]{1,200})\(\) (?:missing|takes|got) ")
_BACKWARD = re.compile(r"[Ff]unction (\w{1,200})Backward returned an (?:incorrect|invalid)")
_TRITON = re.compile(r"at \d{1,6}:\d{1,6}:\n(?:.*\n){0,200}?(.*)\n *\^")  # the line above the mark
_CLASS = re.compile(r'Module \[(\w{1,200})\] is missing the required "forward" function|(\w{1,200}) is not an nn\.Module$')
# What PyTorch imports at a first call, which takes as long as importing torch: torch.compile; a CUDA graph with its backward.
_LATER = {"compiler": "torch._inductor.compile_fx", "benchmark": "torch.fx.experimental.symbolic_shapes",
          "spare": "torch.fx.experimental.symbolic_shapes"}
# Requests of the timing, and those in which torch.compile reads the code.
_NOT_RECORDED = ("compiled", "graphed", "warm_up", "open_slots", "prepare", "prepare_way", "drop_ways", "renew", "run")
R = TypeVar("R")


class Host:
    """What the process holds between two operations."""

    def __init__(self) -> None:
        self.namespace: dict[str, Any] = {}    # of the file
        self.cls: Any = None
        self.device = "cpu"
        self.modules: dict[str, torch.nn.Module] = {}
        self.loaded = load.Loads()
        self.batch = calls.Batches()
        self.settings: Settings = {}   # before the file was loaded
        self.seeded: tuple[str, ...] = ()   # generators whose state the import of the file has changed
        self.drew = False   # whether a plain call has drawn random numbers
        self.lines = Recorder()
        self.window: Window | None = None   # through which large tensors come and go

    def answer(self, request: Request[R], tensors: Tensors) -> tuple[R, Tensors]:
        """What the operation gives: the answer of its type, and tensors."""
        self.lines.switch(on=request.op not in _NOT_RECORDED)
        if isinstance(request, OfModule) and request.op in _CALLS:
            before = _generators(self.device) if request.op == "call" else None
            given: tuple[R, Tensors] = _CALLS[request.op](self.modules[request.module], request, tensors, self.device)
            self.drew = self.drew or before is not None and before != _generators(self.device)
            self.loaded.raise_what_cuda_says()
        else:
            given = getattr(self, request.op)(request, tensors)
        return given

    def ran(self, request: requests.AskRan, tensors: Tensors) -> tuple[Ran, Tensors]:
        return Ran(self.lines.record, self.loaded.native.lines), []

    def load(self, request: requests.Load, tensors: Tensors) -> tuple[Loaded, Tensors]:
        """Run the file. Answers the constructor's parameters and the load_inline calls it made."""
        self.device, self.drew = request.device, False
        if self.device != "cpu":
            torch.cuda.set_device(self.device)
            torch.ones(1, device=self.device)
        text = request.text
        linecache.cache[FILE] = (len(text), None, text.splitlines(True), FILE)
        file = types.ModuleType("model_file")   # as if it were imported: pickle looks for its classes there
        sys.modules["model_file"], self.namespace = file, file.__dict__
        self.namespace["__file__"] = FILE
        begin = _monotonic()
        self.loaded.install(emulate=request.emulate)
        self.settings = settings_now()
        other_random_states(self.device)
        drawn = random_states(self.device)
        code = compile(text, FILE, "exec", dont_inherit=True)
        if request.record:
            self.lines.begin(code)
        exec(code, self.namespace)
        now = random_states(self.device)
        self.seeded = tuple(f"the random numbers of {one.split()[0]} at its import" for one in drawn if one not in now)
        if request.emulate:
            self.loaded.adopt_export(self.namespace, request.cache)
        name = request.class_name
        if name not in self.namespace:
            classes = [n for n, v in self.namespace.items() if isinstance(v, type) and issubclass(v, torch.nn.Module) and
                       v.__module__ == "model_file"]
            raise NameError(f"the file defines no class {name}; it has {', '.join(classes) or 'no nn.Module at all'}")
        self.cls = self.namespace[name]
        if isinstance(self.cls, type) and not issubclass(self.cls, torch.nn.Module):
            raise TypeError(f"{name} is not an nn.Module")
        signature = inspect.signature(self.cls.__init__)
        named = [p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD][1:]
        defaults = {p.name: p.default for p in signature.parameters.values() if _is_known(p.default)}
        takes, others = _of_forward(self.cls)
        options = [p for p in takes if p.default is not p.empty]
        return Loaded(tuple(named), defaults, tuple(self.loaded.calls), round(_monotonic() - begin, 2),
                      self.loaded.own_export, tuple(p.name for p in options), _takes_size(self.cls), len(takes) - len(options),
                      stands_for_layer(self.cls), tuple(_shown(p.default) for p in options),
                      () if others else tuple(p.name for p in takes)), []

    def give(self, request: requests.Give, tensors: Tensors) -> tuple[Given, Tensors]:
        """The results of get_init_inputs() and get_inputs() of a reference, each called under the seed."""
        begin_with(request.seed)
        arguments, keywords = arguments_of(self.namespace.get("get_init_inputs", list)())
        begin_with(request.seed)
        inputs = list(self.namespace["get_inputs"]())
        numbers = {place: x for place, x in enumerate(inputs) if isinstance(x, int | float) and math.isfinite(x)}
        tensors = [x for place, x in enumerate(inputs) if place not in numbers]
        odd = next((x for x in tensors if not isinstance(x, torch.Tensor)), None)
        if odd is not None:
            raise TypeError(f"get_inputs() gives a {type(odd).__name__}, but the check supports only tensors and finite "
                            "numbers")
        return Given(repr(arguments), repr(keywords), repr(numbers)), tensors

    def make(self, request: requests.Make, tensors: Tensors) -> tuple[Made, Tensors]:
        """A module under a seed. "structure": the transposed convolution in it that has all its parameters."""
        arguments, keywords = ast.literal_eval(request.arguments), ast.literal_eval(request.keywords)
        other_random_states(self.device)
        begin_with(request.seed)
        with in_form(request.form, arguments, keywords) as (arguments, keywords):
            made = self.cls(*arguments, **keywords)
        after = random_states(self.device)
        module = made.to(device=self.device, dtype=getattr(torch, request.dtype)) if request.dtype else made.to(self.device)
        if isinstance(made, torch.nn.Module) and not isinstance(module, torch.nn.Module):
            raise TypeError(f"to() returns {type(module).__name__}, not the module")
        if options := ast.literal_eval(request.options):
            module.register_forward_pre_hook(lambda _, args, given: (args, {**given, **options}), with_kwargs=True)
        if (numbers := ast.literal_eval(request.numbers)) or request.draws:
            module.register_forward_pre_hook(BeforeCalls(numbers, request.draws))
        self.modules[request.module] = module
        names, values = the_state(module)
        wanted = tuple(n for n, p in module.named_parameters() if p.requires_grad)
        has = interface(module, as_layer=stands_for_layer(self.cls)) if request.form == INTERFACE else ()
        has += (*of_subclass(self.cls, request, values), *_of_state_dict(module)) if has else ()
        has += (":arguments",) if has and (arguments, keywords) == tuple(map(ast.literal_eval, (
            request.arguments, request.keywords))) else ()
        return Made(tuple(names), wanted, structure(module), convolves(module), after, *kinds(module),
                    takes_assign(module), has), values

    def ask_layer(self, request: requests.AskLayer, tensors: Tensors) -> tuple[IsTheLayer, Tensors]:
        return IsTheLayer(is_the_layer(self.modules[request.module], request.structure,
                                       [x.to(self.device) for x in tensors])), []

    def load_state(self, request: requests.LoadState, tensors: Tensors) -> tuple[StateLoaded, Tensors]:
        module, prefix = self.modules[request.module], "0." if request.inside else ""
        whole = torch.nn.Sequential(module) if request.inside else module
        tells = not request.inside or tells_of_keys(module, request.names, tensors)
        whole.load_state_dict({prefix + n: v for n, v in zip(request.names, tensors, strict=True)})
        names, values = the_state(whole)
        given = {v.data_ptr() for v in tensors if v.numel()}
        there = tuple(n[len(prefix):] if n.startswith(prefix) else f"a {n} without prefix" for n in names)
        return StateLoaded(there, tells, any(v.data_ptr() in given for v in values)), values

    def left(self, request: requests.AskLeft, tensors: Tensors) -> tuple[Left, Tensors]:
        """The habit `left`, which needs data that the host keeps."""
        found, results = habits.left(self.modules[request.module], request, tensors, self.device, self.settings)
        self.loaded.raise_what_cuda_says()
        drawn = _drawn_anew(self.modules[request.module])
        sizes = [float(x.nan_to_num(0, 0, 0)) for first, _ in drawn.values() for x in (first.square().mean().sqrt(),
                                                                                       first.abs().amax())]
        return replace(found, idle=self.loaded.idle, drew=self.drew, settings=(*self.seeded, *found.settings),
                       resets=tuple(n for n, both in drawn.items() if not torch.equal(*both)), redrawn=tuple(drawn),
                       sizes=tuple(sizes)), results

    def two_instances(self, request: requests.TwoInstances, tensors: Tensors) -> tuple[Habit, Tensors]:
        found = networks.two_instances(self.modules[request.module], self.modules[request.other], request, tensors, self.device)
        self.loaded.raise_what_cuda_says()
        return found

    def open_window(self, request: requests.OpenWindow, tensors: Tensors) -> tuple[Nothing, Tensors]:
        self.window = Window(opened(tensors[0]))
        return Nothing(), []

    def open_slots(self, request: requests.OpenSlots, tensors: Tensors) -> tuple[Nothing, Tensors]:
        return self.batch.open(request, tensors, self.device)

    def warm_up(self, request: requests.WarmUp, tensors: Tensors) -> tuple[Nothing, Tensors]:
        return calls.warm_up(self.modules[request.module], request, tensors, self.device)

    def prepare(self, request: requests.Prepare, tensors: Tensors) -> tuple[Prepared, Tensors]:
        return self.batch.prepare(self.modules[request.module], request, tensors, self.device)

    def renew(self, request: requests.Renew, tensors: Tensors) -> tuple[Nothing, Tensors]:
        return self.batch.renew(request, tensors)

    def prepare_way(self, request: requests.PrepareWay, tensors: Tensors) -> tuple[Way | NoWay, Tensors]:
        return self.batch.prepare_way(request)

    def drop_ways(self, request: requests.DropWays, tensors: Tensors) -> tuple[Nothing, Tensors]:
        return self.batch.drop_ways(request.way, self.device)

    def run(self, request: requests.Run, tensors: Tensors) -> tuple[Done | NoWay, Tensors]:
        return self.batch.timed(request)


def _generators(device: str) -> tuple[object, ...]:
    """The states of the generators of torch and Python, as they are: much faster than their checksums."""
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), *(
        [] if device == "cpu" else [torch.cuda.get_rng_state(device).numpy().tobytes()])


def _drawn_anew(module: torch.nn.Module) -> dict[str, list[torch.Tensor]]:
    """Of each parameter whose part has reset_parameters() what that draws, and what it draws again under the same seed."""
    parameters = {n: p for n, p in module.named_parameters() if p.numel() and p.is_floating_point() and
                  callable(getattr(module.get_submodule(n.rpartition(".")[0]), "reset_parameters", None))}
    kept = [(one, one.detach().clone()) for one in (*module.parameters(), *module.buffers())]
    drawn: list[Tensors] = []
    with suppress(Exception):   # foreign code
        for _ in range(2):
            torch.manual_seed(0)
            for one in module.modules():
                if callable(reset := getattr(one, "reset_parameters", None)):
                    reset()
            drawn.append([p.detach().clone() for p in parameters.values()])
            restore([(p, p.detach() + 1) for p in parameters.values()])
    restore(kept)
    return dict(zip(parameters, map(list, zip(*drawn, strict=True)), strict=True)) if len(drawn) == 2 else {}


def _of_state_dict(module: torch.nn.Module) -> tuple[str, ...]:
    """":vars" if state_dict(keep_vars=True) gives tensors with the memory of the parameters that require a gradient as they do.
    ":plain" if state_dict() gives some that require none. ":into" if it fills a given dictionary, with a prefix before names.
    ":assign" if load_state_dict(assign=True) gives a copy the tensors of a state in bfloat16."""
    found, into = list[str](), dict[str, Any]()
    parameters = dict(torch.nn.Module.named_parameters(module, remove_duplicate=False))
    with suppress(Exception):   # foreign code
        plain = module.state_dict()
        found += [":plain"] if not any(v.requires_grad for n, v in plain.items() if n in parameters) else []
        module.state_dict(destination=into, prefix="of.")
        found += [":into"] if into.keys() == {f"of.{n}" for n in plain} else []
    with suppress(Exception):   # foreign code
        there = module.state_dict(keep_vars=True)
        both = [(p, there[n]) for n, p in parameters.items()]
        found += [":vars"] if all((p.requires_grad, p.data_ptr()) == (v.requires_grad, v.data_ptr()) for p, v in both) else []
    return (*found, *[":assign"][:_assigns(module)])


def _assigns(module: torch.nn.Module) -> bool:
    """True if that raises an exception, as it does for a scripted module."""
    with suppress(Exception):   # foreign code
        other = copy.deepcopy(module)
        given = {n: v.bfloat16() if isinstance(v, torch.Tensor) and v.is_floating_point() else v
                 for n, v in module.state_dict().items()}
        other.load_state_dict(given, assign=True)
        return all(v.dtype == given[n].dtype and torch.equal(v, given[n]) for n, v in zip(*the_state(other), strict=True))
    return True


def _is_known(default: Any) -> bool:
    """Whether the judge may change a default: a finite number, a text, or whole numbers in a tuple."""
    if isinstance(default, int | float):
        return math.isfinite(default)
    return type(default) is str or type(default) is tuple and all(type(n) is int for n in default)


def _shown(default: Any) -> str:
    """A default value as a text: of another kind of value its class."""
    return repr(default)[:_MOST_SHOWN] if default is None or _is_known(default) else f"a {type(default).__name__}"


def _of_forward(cls: Any) -> tuple[list[inspect.Parameter], bool]:
    """The parameters of forward, if the file defines it, and whether it also takes any others."""
    forward = inspect.unwrap(getattr(cls, "forward", None) or _of_forward)
    if getattr(getattr(forward, "__code__", None), "co_filename", "") != FILE:
        return [], True
    named = list(inspect.signature(forward).parameters.values())
    some = [p for p in named if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return some[1:], len(some) < len(named)


def _takes_size(cls: Any) -> bool:
    try:
        there = inspect.signature(cls.forward).parameters
        return "output_size" in there or any(p.kind is p.VAR_KEYWORD for p in there.values())
    except (AttributeError, TypeError, ValueError):
        return False


def main(argv: list[str]) -> int:
    request_fd, reply_fd, device = int(argv[0]), int(argv[1]), argv[2]
    for fd in (request_fd, reply_fd):
        os.set_inheritable(fd, False)
    if not torch.cuda.is_available():
        torch.set_num_threads(max(1, min(torch.get_num_threads(), len(os.sched_getaffinity(0)))))
    own = os.getpid()
    faulthandler.enable(all_threads=False)  # the log then says in which line a signal came
    host = Host()
    if device != "cpu":  # it takes seconds; the judge makes its own context meanwhile. `load` reports a failure
        with suppress(RuntimeError):
            torch.cuda.set_device(device)
            torch.ones(1, device=device)
    with os.fdopen(request_fd, "rb") as asked, os.fdopen(reply_fd, "wb", buffering=0) as replies:
        _send(replies, pack(keys_of(Ready(True))))
        if later := _LATER.get(argv[3]):
            gc.disable()
            importlib.import_module(later)
            gc.enable()
        while (message := receive_blocking(asked, host.window)) is not None:
            header, tensors = message
            number, op = header.pop("id"), header["op"]
            try:
                answer, results = host.answer(requests.read(header), tensors)
                through = (host.window,) if host.window else ()
                parts = pack({**keys_of(answer), "id": number}, results, *through)
            except BaseException as error:  # the boundary of the process: foreign code may raise anything
                parts = pack({"raised": _told(error, host), "id": number})
            if os.getpid() != own:  # a fork that the foreign code made has returned to this function
                os._exit(0)
            _send(replies, parts)
            message, tensors, results, parts = None, [], [], []  # while it waits, others may need the memory
            if host.window:
                give_back(device, op)
    return 0


def _send(stream: Any, parts: list[bytes | memoryview]) -> None:
    for part in parts:
        view = memoryview(part)
        while view:
            view = view[stream.write(view):]


def _told(error: BaseException, host: Host) -> Told:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f.lineno for f in reversed(frames) if f.filename == FILE]
    line = max(ours, key=ours.count) if isinstance(error, RecursionError) and ours else next(iter(ours), None)
    if isinstance(error, SyntaxError) and error.filename == FILE:
        line = error.lineno
    line = _line_of_triton(str(error), FILE) or line or _line_of(str(error), FILE, host.namespace)
    in_backward = any(f.name == "grad" and f.filename == torch.autograd.__file__ for f in frames)
    return Told(type(error).__name__, str(error)[:_MOST_MESSAGE], line, "backward" if in_backward else host.loaded.where,
                "".join(traceback.format_exception(error))[-6000:],
                Context("emulator" if isinstance(error, load.BuildFailed) else "", tuple(host.loaded.calls)))


def _line_of(message: str, file: str, namespace: dict[str, Any]) -> int | None:
    """The line that is meant, for an exception that no line of the file raised: the start of the function that was called
    wrongly, or the only launch of a kernel. `namespace`: that of the file."""
    lines = linecache.getlines(file)
    try:
        if found := _CALLED.match(message):
            return _of_function(_named(found[1], namespace), file, lines)
        if found := _BACKWARD.search(message):
            return _of_function(_named(f"{found[1]}.backward", namespace), file, lines)
        if found := _CLASS.match(message):
            return _only(lines, rf"\s*class {found[1] or found[2]}\b")
        if "You must implement either the backward" in message:
            return _only(lines, r"\s*class \w+\((?:[\w.]*\.)?Function\)")
        if message.startswith("CUDA error: "):
            return _only(lines, r"[^#]*<<<")
    except Exception:  # the namespace is foreign
        return None
    return None


def _line_of_triton(message: str, file: str) -> int | None:
    """The line that Triton's compiler shows: it counts lines from the start of the kernel."""
    shown = _TRITON.match(message)
    return _only(linecache.getlines(file), re.escape(shown[1]) + r"\s*$") if shown else None


def _named(path: str, namespace: dict[str, Any]) -> Any:
    first, *rest = path.split(".")
    found = namespace[first]
    for name in rest:
        found = getattr(found, name)
    return found


def _of_function(function: Any, file: str, lines: list[str]) -> int | None:
    code = function.__code__
    if code.co_filename != file:
        return None
    line: int = code.co_firstlineno
    while line < len(lines) and lines[line - 1].lstrip().startswith("@"):  # a function begins with its decorators
        line += 1
    return line


def _only(lines: list[str], pattern: str) -> int | None:
    """The only line that matches; None if there are more."""
    found = [n for n, words in enumerate(lines, 1) if re.match(pattern, words)]
    return found[0] if len(found) == 1 else None
