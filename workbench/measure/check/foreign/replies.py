"""What a foreign process may answer to each operation of `host.py`: frozen dataclasses, read with `core.typed`. The judge reads
an answer before it reads a tensor of it: its fields, and as many tensors as they say. Anything else is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from ....core.layer import ConvTranspose
from ....core.typed import Misfit, reader
from .wire import DTYPES, Kind, NotTheProtocol

_LARGEST, _MOST_ITEMS = 1 << 60, 1 << 16
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Answer:
    """Numbers count or measure something: none is negative, infinite or beyond all sizes."""

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]  # each answer is a dataclass
            if not _fits(getattr(self, field.name)):
                raise Misfit("is beyond its range", field.name)


@dataclass(frozen=True)
class Nothing(Answer):
    pass


@dataclass(frozen=True)
class Ready(Answer):
    ready: bool


@dataclass(frozen=True)
class InlineCall(Answer):
    """What load_inline was called with."""

    name: str
    functions: tuple[str, ...]
    cpp_sources: tuple[str, ...]
    cuda_sources: tuple[str, ...]
    cuda_flags: tuple[str, ...]


@dataclass(frozen=True)
class Context(Answer):
    """Of an exception: who was building, and the calls of load_inline until then."""

    build: str = ""
    calls: tuple[InlineCall, ...] = ()


@dataclass(frozen=True)
class Told(Answer):
    """What the foreign code raised. `line`: in the foreign file; `where`: "load_inline" while one runs."""

    type: str
    message: str
    line: int | None
    where: str
    trace: str
    detail: Context


@dataclass(frozen=True)
class Loaded(Answer):
    """`parameters` of the class's constructor, and the `defaults` of those that are numbers."""

    parameters: tuple[str, ...]
    defaults: dict[str, bool | int | float]
    calls: tuple[InlineCall, ...]
    seconds: float
    own_export: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(map(math.isfinite, self.defaults.values())):
            raise Misfit("holds a number that is not finite", "defaults")


@dataclass(frozen=True)
class Given(Answer):
    """Arguments of the constructor, as Python writes them."""

    arguments: str
    keywords: str


@dataclass(frozen=True)
class Structure(Answer):
    """The one transposed convolution of a module."""

    attribute: str
    dims: int
    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    output_padding: tuple[int, ...]
    groups: int
    bias: bool
    dilation: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        each = (self.kernel_size, self.stride, self.padding, self.output_padding, self.dilation)
        if not 1 <= self.dims <= 3 or any(len(values) != self.dims for values in each):
            raise Misfit("is that of no layer", "dims")

    @property
    def layer(self) -> ConvTranspose:
        """Raises `BadRequest` where there is no such layer."""
        return ConvTranspose(self.dims, self.in_channels, self.out_channels, self.kernel_size, self.stride, self.padding,
                             self.output_padding, self.groups, self.bias, self.dilation)


@dataclass(frozen=True)
class Made(Answer):
    """`names` of the state, whose tensors come with it; `parameters`: those that require a gradient."""

    names: tuple[str, ...]
    parameters: tuple[str, ...]
    structure: Structure | None
    convolves: bool


@dataclass(frozen=True)
class IsTheLayer(Answer):
    answer: bool


@dataclass(frozen=True)
class StateLoaded(Answer):
    names: tuple[str, ...]


@dataclass(frozen=True)
class Output(Answer):
    """One tensor. `gradients`: the names that were asked for, None for one that is missing."""

    type: str
    dtype: str
    shape: tuple[int, ...]
    device: str
    requires_grad: bool
    gradients: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class NoTensor(Answer):
    """The type of something else."""

    type: str


@dataclass(frozen=True)
class ResultKind(Answer):
    """One kind of result in a slot."""

    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype not in DTYPES:
            raise Misfit("is not known", "dtype")


@dataclass(frozen=True)
class Prepared(Answer):
    bytes: int
    kinds: tuple[ResultKind, ...]


@dataclass(frozen=True)
class Way(Answer):
    """A way of PyTorch's is bound. `strides` of the results, where they are not contiguous."""

    kinds: tuple[ResultKind, ...]
    strides: tuple[tuple[int, ...], ...] | None
    kernels: tuple[str, ...]


@dataclass(frozen=True)
class NoWay(Answer):
    """Why it is left out. `starved`: for want of memory."""

    left_out: str
    starved: bool = False


@dataclass(frozen=True)
class Done(Answer):
    done: bool


@dataclass(frozen=True)
class Habit(Answer):
    """Names of the tensors that come with it: buffers, or gradients of each call."""

    buffers: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    second: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Waits(Answer):
    call_s: float
    all_s: float


@dataclass(frozen=True)
class Memory(Answer):
    peak_bytes: int


@dataclass(frozen=True)
class Compiled(Answer):
    graph_breaks: int


# By operation; those of "special" by what is asked for.
ANSWERS: dict[str, Any] = {
    "ready": Ready, "load": Loaded, "given": Given, "make": Made, "is_the_layer": IsTheLayer, "load_state": StateLoaded,
    "forget": Nothing, "call": Output | NoTensor, "reach": Output, "slots": Nothing, "prepare": Prepared,
    "prepare_way": Way | NoWay, "drop_ways": Nothing, "run": Done, "habit": Habit}
SPECIAL: dict[str, Any] = {"side_stream": Nothing, "waits": Waits, "memory": Memory, "compiled": Compiled, "graphed": Nothing}


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
    if len(kinds) > _MOST_ITEMS:
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
        if len(answer.strides) != len(shapes) or not all(map(_within, shapes, answer.strides)):
            raise NotTheProtocol("strides of other results")


def _within(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    farthest = sum((n - 1) * s for n, s in zip(shape, strides, strict=False))
    return len(shape) == len(strides) and (0 in shape or farthest < math.prod(shape))


def _fits(value: Any) -> bool:
    if isinstance(value, tuple):
        return len(value) <= _MOST_ITEMS and all(map(_fits, value))
    if isinstance(value, float):
        return 0 <= value < math.inf
    return not isinstance(value, int) or 0 <= value < _LARGEST


_TENSORS = {"make": _one_each, "load_state": _one_each, "given": _some, "call": _call, "reach": _reach, "special": _special,
            "prepare_way": _strided, "habit": _some}
