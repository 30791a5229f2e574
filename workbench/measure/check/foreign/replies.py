"""What each operation of `host.py` may answer: its fields with their types, and its tensors. The judge tests an answer by these
rules before it reads a tensor of it. Anything else is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .wire import DTYPES, Kind, NotTheProtocol

_MOST_TEXT, _MOST_ITEMS = 1 << 22, 1 << 16
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
Test = Callable[[Any], bool]


def accept(op: str, request: dict[str, Any], sent: Sequence[torch.Tensor], header: dict[str, Any], kinds: list[Kind]) -> None:
    """`request` and `sent`: what was asked. Raises `NotTheProtocol`."""
    header = {k: v for k, v in header.items() if k != "id"}
    if "raised" in header:
        _demand("raised", {"raised": lambda v: isinstance(v, dict)}, header)
        _demand("raised", _RAISED, header["raised"])
        _count(kinds, 0)
        return
    forms = _SPECIAL.get(request.get("what"), ()) if op == "special" else _FIELDS.get(op, ())
    form = next((f for f in forms if f.keys() == header.keys()), None)
    if form is None:
        raise NotTheProtocol(f"the answer to {op} has the wrong fields: {', '.join(sorted(header))[:200] or 'none'}")
    _demand(op, form, header)
    _TENSORS.get(op, _none)(request, sent, header, kinds)


def _demand(op: str, form: dict[str, Test], found: dict[str, Any]) -> None:
    if found.keys() != form.keys():
        raise NotTheProtocol(f"the answer to {op} has the wrong fields: {', '.join(sorted(found))[:200] or 'none'}")
    wrong = next((name for name, test in form.items() if not test(found[name])), None)
    if wrong is not None:
        raise NotTheProtocol(f"the answer to {op} has a wrong value in the field {wrong}")


def _count(kinds: list[Kind], wanted: int) -> None:
    if len(kinds) != wanted:
        raise NotTheProtocol(f"{len(kinds)} tensors where {wanted} were asked for")


# -- tensors --------------------------------------------------------------------------------------------------------------

def _none(request: dict[str, Any], sent: Sequence[torch.Tensor], header: dict[str, Any], kinds: list[Kind]) -> None:
    _count(kinds, 0)


def _one_each(request: dict[str, Any], sent: Sequence[torch.Tensor], header: dict[str, Any], kinds: list[Kind]) -> None:
    _count(kinds, len(header["names"]))


def _some(request: dict[str, Any], sent: Sequence[torch.Tensor], header: dict[str, Any], kinds: list[Kind]) -> None:
    if len(kinds) > _MOST_ITEMS:
        raise NotTheProtocol(f"{len(kinds)} tensors")


def _special(request: dict[str, Any], sent: Sequence[torch.Tensor], header: dict[str, Any], kinds: list[Kind]) -> None:
    _count(kinds, 1 if request["what"] in ("side_stream", "compiled", "graphed") else 0)


def _call(request: dict[str, Any], sent: Sequence[torch.Tensor], header: dict[str, Any], kinds: list[Kind]) -> None:
    """The output, with "echo" the inputs again, then each gradient that there is."""
    if header["type"] != "Tensor" or "shape" not in header:
        _demand("call", {"type": lambda v: v != "Tensor"}, header)
        _count(kinds, 0)
        return
    inputs = [(x.dtype, tuple(x.shape)) for x in sent[:request["inputs"]]] if request.get("echo") else []
    there = _gradients(request, header)
    _count(kinds, 1 + len(inputs) + there)
    if (DTYPES.get(header["dtype"]), tuple(header["shape"])) != kinds[0]:
        raise NotTheProtocol("an output whose shape or dtype differs from its description")
    if kinds[1:1 + len(inputs)] != inputs:
        raise NotTheProtocol("an input that came back with another shape or dtype")
    _differentiable(kinds[1 + len(inputs):])


def _reach(request: dict[str, Any], sent: Sequence[torch.Tensor], header: dict[str, Any], kinds: list[Kind]) -> None:
    """How far each gradient moves, element by element, and then as a norm."""
    there = _gradients(request, header)
    _count(kinds, 2 * there)
    _differentiable(kinds)


def _gradients(request: dict[str, Any], header: dict[str, Any]) -> int:
    """How many there are."""
    names, found = request.get("gradients") or [], header.get("gradients", [])
    if found and (len(found) != len(names) or any(f not in (None, n) for f, n in zip(found, names, strict=True))):
        raise NotTheProtocol("gradients that were not asked for")
    return sum(f is not None for f in found)


def _differentiable(kinds: list[Kind]) -> None:
    if any(dtype not in _FLOATS for dtype, _ in kinds):
        raise NotTheProtocol("a gradient that is not floating point")


def _strided(request: dict[str, Any], sent: Sequence[torch.Tensor], header: dict[str, Any], kinds: list[Kind]) -> None:
    """The strides of results in a slot, by which the judge reads them. Another order takes the same space."""
    _count(kinds, 0)
    strides, shapes = header.get("strides"), [shape for _, shape in header.get("kinds", ())]
    if strides is not None and (len(strides) != len(shapes) or not all(map(_fits, shapes, strides))):
        raise NotTheProtocol("strides of other results")


def _fits(shape: list[int], strides: list[int]) -> bool:
    farthest = sum((n - 1) * s for n, s in zip(shape, strides, strict=False))
    return len(shape) == len(strides) and (0 in shape or farthest < math.prod(shape))


_TENSORS = {"make": _one_each, "load_state": _one_each, "given": _some, "call": _call, "reach": _reach, "special": _special,
            "prepare_way": _strided, "habit": _some}


# -- fields ---------------------------------------------------------------------------------------------------------------

def _text(v: Any) -> bool:
    return isinstance(v, str) and len(v) <= _MOST_TEXT


def _flag(v: Any) -> bool:
    return isinstance(v, bool)


def _whole(v: Any) -> bool:
    return type(v) is int and 0 <= v < 1 << 60


def _number(v: Any) -> bool:
    return type(v) is int and abs(v) < 10**300 or type(v) is float and math.isfinite(v)


def _seconds(v: Any) -> bool:
    return _number(v) and v >= 0


def _each(test: Test) -> Test:
    return lambda v: isinstance(v, list) and len(v) <= _MOST_ITEMS and all(map(test, v))


def _form(form: dict[str, Test]) -> Test:
    return lambda v: isinstance(v, dict) and v.keys() == form.keys() and all(test(v[name]) for name, test in form.items())


def _or_none(test: Test) -> Test:
    return lambda v: v is None or test(v)


def _values(v: Any) -> bool:
    return isinstance(v, dict) and len(v) <= _MOST_ITEMS and all(map(_text, v)) and \
        all(isinstance(x, bool) or _number(x) for x in v.values())


def _structure(v: Any) -> bool:
    return _LAYER(v) and 1 <= v["dims"] <= 3 and \
        all(len(v[name]) == v["dims"] for name in ("kernel_size", "stride", "padding", "output_padding", "dilation"))


def _kind(v: Any) -> bool:
    return isinstance(v, list) and len(v) == 2 and isinstance(v[0], str) and v[0] in DTYPES and _WHOLES(v[1])


_TEXTS, _WHOLES = _each(_text), _each(_whole)
_LAYER = _form({"attribute": _text, "dims": _whole, "in_channels": _whole, "out_channels": _whole, "kernel_size": _WHOLES,
                "stride": _WHOLES, "padding": _WHOLES, "output_padding": _WHOLES, "groups": _whole, "bias": _flag,
                "dilation": _WHOLES})
_CALLS = _each(_form({"name": _text, "functions": _TEXTS, "cpp_sources": _TEXTS, "cuda_sources": _TEXTS, "cuda_flags": _TEXTS}))
_RAISED = {"type": _text, "message": _text, "line": _or_none(_whole), "where": _text, "trace": _text,
           "detail": lambda v: isinstance(v, dict) and v.keys() <= {"build", "calls"} and _text(v.get("build", "")) and
           _CALLS(v.get("calls", []))}
_OUTPUT = {"type": _text, "dtype": _text, "shape": _WHOLES, "device": _text, "requires_grad": _flag}
_WITH_GRADIENTS = {**_OUTPUT, "gradients": _each(_or_none(_text))}
_FIELDS: dict[str, tuple[dict[str, Test], ...]] = {
    "ready": ({"ready": _flag},),
    "load": ({"parameters": _TEXTS, "defaults": _values, "calls": _CALLS, "seconds": _number, "own_export": _flag},),
    "given": ({"arguments": _text, "keywords": _text},),
    "make": ({"names": _TEXTS, "parameters": _TEXTS, "structure": _or_none(_structure), "convolves": _flag},),
    "is_the_layer": ({"answer": _flag},),
    "load_state": ({"names": _TEXTS},),
    "forget": ({},),
    "call": ({"type": _text}, _OUTPUT, _WITH_GRADIENTS),
    "reach": (_OUTPUT, _WITH_GRADIENTS),
    "slots": ({},),
    "prepare": ({"bytes": _whole, "kinds": _each(_kind)},),
    "prepare_way": ({"left_out": _text}, {"left_out": _text, "starved": _flag},
                    {"kinds": _each(_kind), "strides": _or_none(_each(_WHOLES)), "kernels": _TEXTS}),
    "drop_ways": ({},),
    "run": ({"done": _flag},),
    "habit": ({}, {"buffers": _TEXTS}, {"first": _TEXTS, "second": _TEXTS}, {"parameters": _TEXTS}, {"inputs": _TEXTS},
              {"parameters": _TEXTS, "inputs": _TEXTS}),
}
_SPECIAL: dict[Any, tuple[dict[str, Test], ...]] = {
    "side_stream": ({},), "waits": ({"call_s": _seconds, "all_s": _seconds},), "memory": ({"peak_bytes": _whole},),
    "compiled": ({"graph_breaks": _whole},), "graphed": ({},)}
