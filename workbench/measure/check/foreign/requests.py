"""The requests to a foreign process: one frozen dataclass for each operation. `answer` is the type of the answer. `fits`
refuses tensors that do not belong to it, and is called before a tensor is read.

Requests go through the pipe as JSON; `read` refuses a key that is unknown, missing or of another type. The tensors of a
request follow its line, in the order that the function of `host` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch

from ....core import typed
from .replies import (
    Compiled,
    Done,
    Given,
    Habit,
    IsTheLayer,
    Left,
    Loaded,
    Made,
    Memory,
    NoTensor,
    Nothing,
    NoWay,
    Output,
    Prepared,
    Ran,
    Ready,
    StateLoaded,
    Structure,
    Told,
    Waits,
    Way,
    gradients_there,
    not_too_many,
)
from .wire import DTYPES, Kind, NotTheProtocol, count, differentiable, within

R_co = TypeVar("R_co", covariant=True)


class Request(Generic[R_co]):
    op: ClassVar[str]   # its name on the wire
    answer: ClassVar[Any]

    def accept(self, sent: Sequence[torch.Tensor], header: dict[str, Any], kinds: list[Kind]) -> R_co | Told:
        """The answer, a `Told` for what foreign code raised. `sent`: the tensors of this request; `kinds`: of those that come
        back. Raises `NotTheProtocol`."""
        try:
            if header.keys() == {"raised"}:
                told = typed.read(Told, header["raised"])
                count(kinds, 0)
                return told
            answer: R_co = typed.read(self.answer, header)
        except typed.Misfit as error:
            raise NotTheProtocol(f"the answer to {self.op} does not fit: {ascii(str(error))[1:-1][:200]}") from None
        self.fits(sent, answer, kinds)
        return answer

    def fits(self, sent: Sequence[torch.Tensor], answer: Any, kinds: list[Kind]) -> None:
        """Most answers have no tensors."""
        count(kinds, 0)


@dataclass(frozen=True)
class Begin(Request[Ready]):
    """Never sent: the process reports that it is ready without a request."""

    op = "begin"
    answer = Ready


@dataclass(frozen=True)
class Load(Request[Loaded]):
    """Run the file. `emulate`: its kernels, on the CPU. `cache`: for builds of an exported file. `record`: what runs of it."""

    op = "load"
    answer = Loaded
    text: str
    class_name: str
    device: str
    emulate: bool = False
    cache: str = ""
    record: bool = False


@dataclass(frozen=True)
class AskRan(Request[Ran]):
    op = "ran"
    answer = Ran


@dataclass(frozen=True)
class Give(Request[Given]):
    """Call get_init_inputs() and get_inputs() of a reference under a seed."""

    op = "give"
    answer = Given
    seed: int

    def fits(self, sent: Sequence[torch.Tensor], answer: Given, kinds: list[Kind]) -> None:
        not_too_many(kinds)


@dataclass(frozen=True)
class Make(Request[Made]):
    """Construct a module under a seed and keep it under this name. `arguments`, `keywords`: as Python writes them. `numbers`:
    place -> value of the inputs that are no tensors; each call gets them. `options`: keyword arguments of each call.
    `draws`: each call begins under this seed, unless it is 0. `form`: see `host.module.in_form`."""

    op = "make"
    answer = Made
    module: str
    arguments: str
    keywords: str
    seed: int
    dtype: str = ""                # "" leaves it as it is
    numbers: str = "{}"
    options: str = "{}"
    draws: int = 0
    form: str = ""

    def fits(self, sent: Sequence[torch.Tensor], answer: Made, kinds: list[Kind]) -> None:
        count(kinds, len(answer.names))


@dataclass(frozen=True)
class AskLayer(Request[IsTheLayer]):
    """Whether the module does nothing but this layer."""

    op = "ask_layer"
    answer = IsTheLayer
    module: str
    structure: Structure


@dataclass(frozen=True)
class LoadState(Request[StateLoaded]):
    """`inside`: as part of the state of a network."""

    op = "load_state"
    answer = StateLoaded
    module: str
    names: tuple[str, ...]
    inside: bool = False

    def fits(self, sent: Sequence[torch.Tensor], answer: StateLoaded, kinds: list[Kind]) -> None:
        count(kinds, len(answer.names))


@dataclass(frozen=True)
class OfModule(Request[R_co]):
    module: str   # which is called


@dataclass(frozen=True)
class Call(OfModule[Output | NoTensor]):
    """See `host.calls.call`. `gradients`: names of those requested. `tf32`: how convolutions round their operands."""

    op = "call"
    answer = Output | NoTensor
    inputs: int
    gradients: tuple[str, ...] = ()
    layout: str = "contiguous"
    echo: bool = False             # the inputs come back, too
    poison: bool = False           # fresh memory holds NaN
    expanded: bool = False         # grad_output is one value, to be expanded
    no_grad: bool = False
    tf32: str = ""
    autocast: str = ""             # its dtype; "backward" before it: only the backward runs under it
    wide: bool = False             # inputs and grad_output become float64 there: half of the bytes are sent

    def fits(self, sent: Sequence[torch.Tensor], answer: Output | NoTensor, kinds: list[Kind]) -> None:
        """The output, with `echo` the inputs again, then each gradient that there is."""
        if isinstance(answer, NoTensor) is (answer.type == "Tensor"):
            raise NotTheProtocol("the answer to call has a wrong value in the field type")
        if isinstance(answer, NoTensor):
            return count(kinds, 0)
        inputs = [(x.dtype, tuple(x.shape)) for x in sent[:self.inputs]] if self.echo else []
        count(kinds, 1 + len(inputs) + gradients_there(self.gradients, answer))
        if (DTYPES.get(answer.dtype), answer.shape) != kinds[0]:
            raise NotTheProtocol("an output whose shape or dtype differs from its description")
        if kinds[1:1 + len(inputs)] != inputs:
            raise NotTheProtocol("an input that came back with another shape or dtype")
        differentiable(kinds[1 + len(inputs):])


@dataclass(frozen=True)
class Reach(OfModule[Output]):
    """See `host.calls.reach`."""

    op = "reach"
    answer = Output
    inputs: int
    gradients: tuple[str, ...]
    draws: int
    step: float
    seed: int

    def fits(self, sent: Sequence[torch.Tensor], answer: Output, kinds: list[Kind]) -> None:
        """How far each gradient moves, element by element, and then as a norm."""
        count(kinds, 2 * gradients_there(self.gradients, answer))
        differentiable(kinds)


@dataclass(frozen=True)
class DailyUse(OfModule[Habit]):
    """See `host.habits`. `sets` of so many `inputs`, then a grad_output for each, where `gradients` are wanted."""

    answer = Habit
    inputs: int
    sets: int = 1
    gradients: tuple[str, ...] = ()

    def fits(self, sent: Sequence[torch.Tensor], answer: Habit, kinds: list[Kind]) -> None:
        not_too_many(kinds)


class NoGrad(DailyUse):
    op = "no_grad"


class Threads(DailyUse):
    op = "threads"


class EvalMode(DailyUse):
    op = "eval_mode"


class TwoCalls(DailyUse):
    op = "two_calls"


@dataclass(frozen=True)
class SomeGradients(DailyUse):
    """`choices`: the names that need a gradient, all others are frozen."""

    op = "some_gradients"
    choices: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class SecondBackward(DailyUse):
    op = "second_backward"
    in_place: bool = False   # the output of the last call is changed before its backward
    factor: float = 1.0      # of each grad_output


@dataclass(frozen=True)
class Views(DailyUse):
    op = "views"
    rounds: tuple[str, ...] = ()
    dense: bool = False


@dataclass(frozen=True)
class Aliases(DailyUse):
    op = "aliases"
    without: bool = True   # half of the calls are made without gradients


@dataclass(frozen=True)
class Stepped(DailyUse):
    """`parameters`: names of those whose new values follow the other tensors. `layouts`: see `host.habits.stepped`."""

    op = "stepped"
    parameters: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()


@dataclass(frozen=True)
class AsTrained(DailyUse):
    """`parameters`: as in `Stepped`. `rounds`: names of functions of `host.networks`, or modes (`InModes`)."""

    op = "as_trained"
    parameters: tuple[str, ...] = ()
    rounds: tuple[str, ...] = ()


class InModes(AsTrained):
    op = "in_modes"


@dataclass(frozen=True)
class Overwritten(DailyUse):
    op = "overwritten"
    of: str = "input"   # or "parameters", or "output": what is overwritten


@dataclass(frozen=True)
class TwoInstances(DailyUse):
    op = "two_instances"
    other: str = ""   # the second module


@dataclass(frozen=True)
class Parametrized(DailyUse):
    op = "parametrized"
    parameters: tuple[str, ...] = ()   # names of the weights that are computed
    factors: tuple[float, ...] = ()    # one for each call without gradients


@dataclass(frozen=True)
class EvalAlone(DailyUse):
    op = "eval_alone"
    parts: tuple[str, ...] = ()   # names of submodules, each of which is in eval mode once


@dataclass(frozen=True)
class Altered(DailyUse):
    """So many `calls` with other `numbers` among the inputs (see `Make`), after one `seed` for all of them, or with `changes`
    of few values: an input, and a place in it; `evaluated`: in eval mode."""
    op = "altered"
    evaluated: bool = False
    calls: int = 1
    numbers: str = "{}"
    seed: int = 0
    changes: tuple[tuple[int, int], ...] = ()


class Copied(AsTrained):
    op = "copied"


@dataclass(frozen=True)
class SecondDerivative(DailyUse):
    op = "second_derivative"
    of: str = "inputs"   # or "frozen", "summed"; "parameters": of the gradients of these, too; "third", "tanh": of second ones


@dataclass(frozen=True)
class AskLeft(OfModule[Left]):
    """Inputs, then a grad_output, if any; that comes back last."""

    op = "left"
    answer = Left
    inputs: int
    gradients: tuple[str, ...] = ()

    def fits(self, sent: Sequence[torch.Tensor], answer: Left, kinds: list[Kind]) -> None:
        count(kinds, len(answer.state) + (len(sent) > self.inputs))


class OnGpu(OfModule[R_co]):
    """What only a GPU allows."""

    outputs: ClassVar[int] = 0   # come back

    def fits(self, sent: Sequence[torch.Tensor], answer: Any, kinds: list[Kind]) -> None:
        count(kinds, self.outputs)


class SideStream(OnGpu[Nothing]):
    op = "side_stream"
    answer = Nothing
    outputs = 1


class AskWaits(OnGpu[Waits]):
    op = "waits"
    answer = Waits


class AskMemory(OnGpu[Memory]):
    op = "memory"
    answer = Memory


class Compile(OnGpu[Compiled]):
    op = "compiled"
    answer = Compiled
    outputs = 1


class Graph(OnGpu[Nothing]):
    op = "graphed"
    answer = Nothing
    outputs = 1


@dataclass(frozen=True)
class OpenSlots(Request[Nothing]):
    """Map the file of so many bytes; without a path the tensor is a pickled handle of the judge's GPU memory."""

    op = "open_slots"
    answer = Nothing
    path: Path | None = None
    bytes: int = 0


@dataclass(frozen=True)
class OpenWindow(Request[Nothing]):
    """The tensor is a pickled handle of memory through which large tensors pass from now on."""

    op = "open_window"
    answer = Nothing


@dataclass(frozen=True)
class Prepare(Request[Prepared]):
    """See `host.calls.Batches.prepare`. `benchmark`: use cudnn.benchmark."""

    op = "prepare"
    answer = Prepared
    module: str
    direction: str
    fixed: int
    inputs: int
    benchmark: bool = False


@dataclass(frozen=True)
class Renew(Request[Nothing]):
    """All parameters are multiplied in place: those in `negated` by -1, the others by 1. These tensors, if any, replace the
    first set of the timed calls; with `fixed` the inputs of a backward, of which `way` then computes an output."""

    op = "renew"
    answer = Nothing
    way: str = ""
    fixed: bool = False
    negated: tuple[str, ...] = ()


@dataclass(frozen=True)
class WarmUp(Request[Nothing]):
    """Call these ways of PyTorch's once in both directions, with inputs of this kind: what they compile is then cached."""

    op = "warm_up"
    answer = Nothing
    module: str
    ways: tuple[str, ...]


@dataclass(frozen=True)
class PrepareWay(Request[Way | NoWay]):
    """Bind one of PyTorch's ways (a key of `LADDER`) to the prepared module. `profile`: say which kernels run."""

    op = "prepare_way"
    answer = Way | NoWay
    way: str
    profile: bool = False

    def fits(self, sent: Sequence[torch.Tensor], answer: Way | NoWay, kinds: list[Kind]) -> None:
        """The strides of results in a slot, by which the judge reads them. Another order takes the same space."""
        count(kinds, 0)
        if isinstance(answer, Way) and answer.strides is not None:
            shapes = [kind.shape for kind in answer.kinds]
            if len(answer.strides) != len(shapes) or not all(map(within, shapes, answer.strides)):
                raise NotTheProtocol("strides of other results")


@dataclass(frozen=True)
class DropWays(Request[Nothing]):
    op = "drop_ways"
    answer = Nothing
    way: str = ""   # "": all of them, with the inputs and slots


@dataclass(frozen=True)
class Run(Request[Done | NoWay]):
    """Timed calls. `order`: three numbers for each, the set and where its two strips of factors begin; one list, because it is
    read while the clock runs. `stride`: bytes of a slot. `only_copy`: compute nothing. `NoWay`: a way has too little memory."""

    op = "run"
    answer = Done | NoWay
    order: tuple[int, ...]
    stride: int
    way: str = ""
    only_copy: bool = False

    def __post_init__(self) -> None:
        if len(self.order) % 3:
            raise typed.Misfit("is not three numbers a call", "order")


REQUESTS: dict[str, type[Request[Any]]] = {request.op: request for request in (
    Load, Give, Make, AskLayer, LoadState, Call, Reach, NoGrad, Threads, EvalMode, TwoCalls, SomeGradients,
    SecondBackward, Views, Aliases, Stepped, AsTrained, InModes, Overwritten, TwoInstances, Parametrized, EvalAlone, Altered,
    Copied, SecondDerivative, AskLeft, SideStream, Renew, AskWaits, AskMemory, Compile, Graph, OpenSlots, OpenWindow, WarmUp,
    Prepare, PrepareWay, DropWays, Run, AskRan)}


def read(header: dict[str, Any]) -> Request[Any]:
    """From the first line of a message, without its number. Raises ValueError, which names what does not fit."""
    name = header.get("op")
    if header.keys() != {"op", "request"}:
        raise ValueError(f"A request has the keys op and request, not {', '.join(sorted(header)) or 'none'}.")
    if name not in REQUESTS:
        raise ValueError(f"The operation {name!r} is not known.")
    try:
        return typed.read(REQUESTS[name], header.get("request"))
    except typed.Misfit as error:
        raise ValueError(f"The request {name!r} cannot be read: {error}.") from error
