"""Runs inside the foreign process: loads a file with Model or ModelNew and answers the judge, one operation at a time.

The judge believes nothing that is said here: it compares tensors and takes the time itself.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import math
import os
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

from ..foreign.wire import Message, pack, receive_blocking
from . import calls, habits, jumps, load
from .module import arguments_of, convolves, is_the_layer, structure, the_state

FILE = "<model file>"
_monotonic = time.monotonic  # taken before a foreign file may put another clock in its place
_MOST_MESSAGE = 200_000  # a compiler's whole log may be in it


class Host:
    """What the process holds between two operations."""

    def __init__(self) -> None:
        self.namespace: dict[str, Any] = {}
        self.cls: Any = None
        self.device = "cpu"
        self.modules: dict[str, torch.nn.Module] = {}
        self.loaded = load.Loads()
        self.batch = calls.Batches()

    def load(self, request: dict[str, Any], tensors: list[torch.Tensor]) -> Message:
        """Run the file. Answers the constructor's parameters and the load_inline calls it made."""
        self.device = request["device"]
        if self.device != "cpu":
            torch.cuda.set_device(self.device)
            torch.ones(1, device=self.device)
        text = request["text"]
        linecache.cache[FILE] = (len(text), None, text.splitlines(True), FILE)
        self.namespace = {"__name__": "model_file", "__file__": FILE}
        begin = _monotonic()
        self.loaded.install(emulate=bool(request.get("emulate")))
        exec(compile(text, FILE, "exec"), self.namespace)
        if request.get("emulate"):
            self.loaded.adopt_export(self.namespace, request.get("cache") or "")
        name = request["class_name"]
        if name not in self.namespace:
            classes = [n for n, v in self.namespace.items() if isinstance(v, type) and issubclass(v, torch.nn.Module)]
            raise NameError(f"the file defines no class {name}; it has {', '.join(classes) or 'no module at all'}")
        self.cls = self.namespace[name]
        signature = inspect.signature(self.cls.__init__)
        named = [p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD][1:]
        defaults = {p.name: p.default for p in signature.parameters.values()
                    if isinstance(p.default, int | float) and math.isfinite(p.default)}
        return {"parameters": named, "defaults": defaults, "calls": self.loaded.calls,
                "seconds": round(_monotonic() - begin, 2), "own_export": self.loaded.own_export}, []

    def given(self, request: dict[str, Any], tensors: list[torch.Tensor]) -> Message:
        """get_init_inputs() and get_inputs() of a reference, under a seed."""
        torch.manual_seed(request["seed"])
        arguments, keywords = arguments_of(self.namespace.get("get_init_inputs", list)())
        inputs = [x for x in self.namespace["get_inputs"]()]
        odd = next((x for x in inputs if not isinstance(x, torch.Tensor)), None)
        if odd is not None:
            raise TypeError(f"get_inputs() gives a {type(odd).__name__}; only tensors are known here")
        return {"arguments": repr(arguments), "keywords": repr(keywords)}, inputs

    def make(self, request: dict[str, Any], tensors: list[torch.Tensor]) -> Message:
        """A module under a seed. "structure": the transposed convolution in it that has all its parameters."""
        arguments, keywords = ast.literal_eval(request["arguments"]), ast.literal_eval(request["keywords"])
        torch.manual_seed(request["seed"])
        module = self.cls(*arguments, **keywords)
        module = module.to(device=self.device, dtype=getattr(torch, request["dtype"])) if request.get("dtype") else \
            module.to(self.device)
        self.modules[request["module"]] = module
        names, values = the_state(module)
        return {"names": names, "parameters": [n for n, p in module.named_parameters() if p.requires_grad],
                "structure": structure(module), "convolves": convolves(module)}, values

    def is_the_layer(self, request: dict[str, Any], tensors: list[torch.Tensor]) -> Message:
        return {"answer": is_the_layer(self.modules[request["module"]], request["structure"],
                                       [x.to(self.device) for x in tensors])}, []

    def load_state(self, request: dict[str, Any], tensors: list[torch.Tensor]) -> Message:
        module = self.modules[request["module"]]
        module.load_state_dict(dict(zip(request["names"], tensors, strict=True)))
        names, values = the_state(module)
        return {"names": names}, values

    def forget(self, request: dict[str, Any], tensors: list[torch.Tensor]) -> Message:
        self.modules.clear()
        return {}, []

    def call(self, request: dict[str, Any], tensors: list[torch.Tensor]) -> Message:
        return calls.call(self.modules[request["module"]], request, tensors, self.device)

    def reach(self, request: dict[str, Any], tensors: list[torch.Tensor]) -> Message:
        return jumps.reach(self.modules[request["module"]], request, tensors, self.device)

    def habit(self, request: dict[str, Any], tensors: list[torch.Tensor]) -> Message:
        """One of the ways in which a network calls a module."""
        return habits.HABITS[request["what"]](self.modules[request["module"]], request, tensors, self.device)

    def special(self, request: dict[str, Any], tensors: list[torch.Tensor]) -> Message:
        """One of the calls that only a GPU allows: side stream, waiting, memory, torch.compile, CUDA graph."""
        return calls.SPECIAL[request["what"]](self.modules[request["module"]], tensors, self.device)

    def slots(self, request: dict[str, Any], tensors: list[torch.Tensor]) -> Message:
        return self.batch.open(request, tensors, self.device)

    def prepare(self, request: dict[str, Any], tensors: list[torch.Tensor]) -> Message:
        return self.batch.prepare(self.modules[request["module"]], request, tensors, self.device)

    def prepare_way(self, request: dict[str, Any], tensors: list[torch.Tensor]) -> Message:
        return self.batch.prepare_way(request, tensors)

    def drop_ways(self, request: dict[str, Any], tensors: list[torch.Tensor]) -> Message:
        return self.batch.drop_ways(request, tensors)

    def run(self, request: dict[str, Any], tensors: list[torch.Tensor]) -> Message:
        return self.batch.run(request, tensors)


def main(argv: list[str]) -> int:
    request_fd, reply_fd = int(argv[0]), int(argv[1])
    for fd in (request_fd, reply_fd):
        os.set_inheritable(fd, False)
    if not torch.cuda.is_available():
        torch.set_num_threads(max(1, min(torch.get_num_threads(), len(os.sched_getaffinity(0)))))
    own = os.getpid()
    host = Host()
    with os.fdopen(request_fd, "rb") as requests, os.fdopen(reply_fd, "wb", buffering=0) as replies:
        _send(replies, pack({"ready": True}))
        while (message := receive_blocking(requests)) is not None:
            request, tensors = message
            number = request["id"]
            try:
                header, results = _operation(host, request["op"])(request, tensors)
                parts = pack({**header, "id": number}, results)
            except BaseException as error:  # the boundary of the process: foreign code may raise anything
                parts = pack({"raised": _told(error, host), "id": number})
            if os.getpid() != own:  # a fork of foreign code has come back to us
                os._exit(0)
            _send(replies, parts)
    return 0


def _operation(host: Host, name: str) -> Callable[[dict[str, Any], list[torch.Tensor]], Message]:
    return getattr(host, name)


def _send(stream: Any, parts: list[bytes | memoryview]) -> None:
    for part in parts:
        view = memoryview(part)
        while view:
            view = view[stream.write(view):]


def _told(error: BaseException, host: Host) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    line = next((f.lineno for f in reversed(frames) if f.filename == FILE), None)
    if isinstance(error, SyntaxError) and error.filename == FILE:
        line = error.lineno
    detail = error.detail if isinstance(error, load.BuildFailed) else {}
    return {"type": type(error).__name__, "message": str(error)[:_MOST_MESSAGE], "line": line,
            "where": host.loaded.where, "detail": {**detail, "calls": host.loaded.calls},
            "trace": "".join(traceback.format_exception(error))[-6000:]}
