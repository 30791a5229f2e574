"""The judge reads an answer of a foreign process before it reads a tensor of it: its fields as `answers` has them, and as many
tensors as they say. Anything else is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ....core.typed import Misfit, reader
from .answers import ANSWERS, SPECIAL, NoTensor, Output, Told, Way
from .wire import DTYPES, Kind, NotTheProtocol

_MOST_TENSORS = 1 << 16
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def accept(op: str, request: dict[str, Any], sent: Sequence[torch.Tensor], header: dict[str, Any], kinds: list[Kind]) -> Any:
    """The answer, a `Told` for what foreign code raised. `request` and `sent`: what was asked. Raises `NotTheProtocol`."""
    try:
        if header.keys() == {"raised"}:
            told = reader(Told)(header["raised"])
            _count(kinds, 0)
            return told
        answer = reader(SPECIAL[request["what"]] if op == "special" else ANSWERS[op])(header)
    except Misfit as error:
        raise NotTheProtocol(f"the answer to {op} does not fit: {ascii(str(error))[1:-1][:200]}") from None
    except KeyError:
        raise NotTheProtocol(f"an answer to {op}, which is no operation") from None
    _TENSORS.get(op, _none)(request, sent, answer, kinds)
    return answer


def _count(kinds: list[Kind], wanted: int) -> None:
    if len(kinds) != wanted:
        raise NotTheProtocol(f"{len(kinds)} tensors where {wanted} were asked for")


def _none(request: dict[str, Any], sent: Sequence[torch.Tensor], answer: Any, kinds: list[Kind]) -> None:
    _count(kinds, 0)


def _one_each(request: dict[str, Any], sent: Sequence[torch.Tensor], answer: Any, kinds: list[Kind]) -> None:
    _count(kinds, len(answer.names))


def _some(request: dict[str, Any], sent: Sequence[torch.Tensor], answer: Any, kinds: list[Kind]) -> None:
    if len(kinds) > _MOST_TENSORS:
        raise NotTheProtocol(f"{len(kinds)} tensors")


def _special(request: dict[str, Any], sent: Sequence[torch.Tensor], answer: Any, kinds: list[Kind]) -> None:
    _count(kinds, 1 if request["what"] in ("side_stream", "compiled", "graphed") else 0)


def _call(request: dict[str, Any], sent: Sequence[torch.Tensor], answer: Output | NoTensor, kinds: list[Kind]) -> None:
    """The output, with "echo" the inputs again, then each gradient that there is."""
    if isinstance(answer, NoTensor) is (answer.type == "Tensor"):
        raise NotTheProtocol("the answer to call has a wrong value in the field type")
    if isinstance(answer, NoTensor):
        _count(kinds, 0)
        return
    inputs = [(x.dtype, tuple(x.shape)) for x in sent[:request["inputs"]]] if request.get("echo") else []
    there = _gradients(request, answer)
    _count(kinds, 1 + len(inputs) + there)
    if (DTYPES.get(answer.dtype), answer.shape) != kinds[0]:
        raise NotTheProtocol("an output whose shape or dtype differs from its description")
    if kinds[1:1 + len(inputs)] != inputs:
        raise NotTheProtocol("an input that came back with another shape or dtype")
    _differentiable(kinds[1 + len(inputs):])


def _reach(request: dict[str, Any], sent: Sequence[torch.Tensor], answer: Output, kinds: list[Kind]) -> None:
    """How far each gradient moves, element by element, and then as a norm."""
    _count(kinds, 2 * _gradients(request, answer))
    _differentiable(kinds)


def _gradients(request: dict[str, Any], answer: Output) -> int:
    """How many there are."""
    names, found = request.get("gradients") or [], answer.gradients
    if found and (len(found) != len(names) or any(f not in (None, n) for f, n in zip(found, names, strict=True))):
        raise NotTheProtocol("gradients that were not asked for")
    return sum(f is not None for f in found)


def _differentiable(kinds: list[Kind]) -> None:
    if any(dtype not in _FLOATS for dtype, _ in kinds):
        raise NotTheProtocol("a gradient that is not floating point")


def _strided(request: dict[str, Any], sent: Sequence[torch.Tensor], answer: Any, kinds: list[Kind]) -> None:
    """The strides of results in a slot, by which the judge reads them. Another order takes the same space."""
    _count(kinds, 0)
    if isinstance(answer, Way) and answer.strides is not None:
        shapes = [kind.shape for kind in answer.kinds]
        if len(answer.strides) != len(shapes) or not all(map(_fits, shapes, answer.strides)):
            raise NotTheProtocol("strides of other results")


def _fits(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    farthest = sum((n - 1) * s for n, s in zip(shape, strides, strict=False))
    return len(shape) == len(strides) and (0 in shape or farthest < math.prod(shape))


_TENSORS = {"make": _one_each, "load_state": _one_each, "given": _some, "call": _call, "reach": _reach, "special": _special,
            "prepare_way": _strided, "habit": _some}
