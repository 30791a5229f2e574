"""What a foreign process may answer to the `requests`: frozen dataclasses, read with `core.typed`. Anything else is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from ....core.layer import ConvTranspose
from ....core.typed import Misfit
from .wire import DTYPES, Kind, NotTheProtocol

MOST_ITEMS = 1 << 16
Default = bool | int | float | str | tuple[int, ...]
_LARGEST = 1 << 60


class Answer:
    """The base of all answers. Their numbers are counts or measurements, so none is negative, infinite or unreasonably large.
    """

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
    """The context of an exception: whether load_inline was building, and its calls so far."""

    build: str = ""
    calls: tuple[InlineCall, ...] = ()


# A note in the trace of an exception that leaves another grad mode behind than there was before the call.
LEAVES_GRAD_MODE = "(torch.is_grad_enabled() is changed)"


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
    """`parameters` of the class's constructor, and the `defaults` of those that are numbers, texts or whole numbers in a tuple.
    `options`: the parameters of forward that have a default value, if the file itself defines it. `takes_size`: forward takes
    output_size by name. `required`: how many of its parameters have no default value, if the file itself defines it.
    `as_layer`: it stands for nn.ConvTranspose itself, because it is a subclass or has the constructor's device and dtype.
    `shown`: the default values of the options, as texts. `forward`: all its parameters, unless it takes any others."""

    parameters: tuple[str, ...]
    defaults: dict[str, Default]
    calls: tuple[InlineCall, ...]
    seconds: float
    own_export: bool
    options: tuple[str, ...] = ()
    takes_size: bool = False
    required: int = 0
    as_layer: bool = False
    shown: tuple[str, ...] = ()
    forward: tuple[str, ...] = ()

    def not_given(self, inputs: int) -> tuple[str, ...]:
        """The options that a call with so many inputs leaves out."""
        return self.options[max(0, inputs - self.required):]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(math.isfinite(v) for v in self.defaults.values() if isinstance(v, int | float)):
            raise Misfit("holds a number that is not finite", "defaults")


@dataclass(frozen=True)
class Given(Answer):
    """Arguments of the constructor, as Python writes them; and `numbers`: place -> value of each input that is no tensor."""

    arguments: str
    keywords: str
    numbers: str


@dataclass(frozen=True)
class Structure(Answer):
    """The parameters of the only transposed convolution of a module."""

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
    """`names` of the state, whose tensors come with it; `parameters`: those that require a gradient. `after`: the states of the
    random number generators after the construction. `buffers`; `frozen`: parameters that require no gradient. `assigns`:
    load_state_dict takes assign=True. `has`: see `host.module.interface`."""

    names: tuple[str, ...]
    parameters: tuple[str, ...]
    structure: Structure | None
    convolves: bool
    after: tuple[str, ...]
    buffers: tuple[str, ...]
    frozen: tuple[str, ...]
    assigns: bool
    has: tuple[str, ...] = ()


@dataclass(frozen=True)
class IsTheLayer(Answer):
    answer: bool


@dataclass(frozen=True)
class StateLoaded(Answer):
    """`tells`: load_state_dict(strict=False) returns the missing and the unexpected keys. `shares`: the module has the memory
    of the tensors that were loaded."""

    names: tuple[str, ...]
    tells: bool = True
    shares: bool = False


@dataclass(frozen=True)
class Output(Answer):
    """One tensor. `gradients`: the names that were asked for, None for one that is missing. `by_hand`: whether a backward that
    Python defines is behind it; known only where the backward alone runs under autocast."""

    type: str
    dtype: str
    shape: tuple[int, ...]
    device: str
    requires_grad: bool
    gradients: tuple[str | None, ...] = ()
    by_hand: bool = False


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
    """A way of PyTorch is bound. `strides`: those of the results, if they are not contiguous."""

    kinds: tuple[ResultKind, ...]
    strides: tuple[tuple[int, ...], ...] | None
    kernels: tuple[str, ...]


@dataclass(frozen=True)
class NoWay(Answer):
    """The reason for which a way is left out. `starved`: there was not enough memory."""

    left_out: str
    starved: bool = False


@dataclass(frozen=True)
class NativeLine(Answer):
    """A line of the sources of a load_inline call (its number) that did not run; `half`: it ran, but a branch of it did not.
    `source`: cuda_sources or cpp_sources."""

    call: int
    source: str
    line: int
    half: bool


@dataclass(frozen=True)
class Ran(Answer):
    """`codes`: for each code object of the file the instructions that ran, as a hexadecimal number; empty if they are not
    known. `native`: what of its CUDA and C++ did not run; None if nothing counted it."""

    codes: tuple[str, ...]
    native: tuple[NativeLine, ...] | None = None


@dataclass(frozen=True)
class Done(Answer):
    done: bool


@dataclass(frozen=True)
class Habit(Answer):
    """Names of the tensors that come with it: buffers, gradients of each call, or gradients of each choice of tensors."""

    buffers: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    second: tuple[str, ...] = ()
    choices: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Left(Answer):
    """What calls have left behind. `state`: names of the state_dict afterwards, whose tensors come with it. `frozen`: those
    parameters whose requires_grad has changed; `modes`: modules whose training flag has; `draws`: whether a call draws random
    numbers; `seeds`: generators that have the same state after each call; `hooks`: whether a forward hook ran; `strides` of the
    output; `settings`: settings of torch that have changed since before the file was loaded; `idle`: names of its load_inline
    calls whose kernels the emulator has not run; `resets`: parameters that reset_parameters() does not draw anew; `scattered`:
    tensors whose gradients are not contiguous; `attributes`: tensors of the module that a call has set and that are no
    parameters or buffers; `norms` of these; `trained`: those that have a gradient; `drew`: whether some plain call so far, as
    the first one with a shape, has drawn random numbers; `redrawn`: parameters that reset_parameters() draws; `sizes`: of each
    its root mean square and its largest value then."""

    state: tuple[str, ...]
    frozen: tuple[str, ...]
    modes: tuple[str, ...]
    draws: bool
    seeds: tuple[str, ...]
    hooks: bool
    strides: tuple[int, ...]
    settings: tuple[str, ...]
    idle: tuple[str, ...] = ()
    resets: tuple[str, ...] = ()
    scattered: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    norms: tuple[float, ...] = ()
    trained: tuple[str, ...] = ()
    drew: bool = False
    redrawn: tuple[str, ...] = ()
    sizes: tuple[float, ...] = ()


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


def _fits(value: Any) -> bool:
    if isinstance(value, tuple):
        return len(value) <= MOST_ITEMS and all(map(_fits, value))
    if isinstance(value, float):
        return 0 <= value < math.inf
    return not isinstance(value, int) or 0 <= value < _LARGEST


def not_too_many(kinds: list[Kind]) -> None:
    if len(kinds) > MOST_ITEMS:
        raise NotTheProtocol(f"{len(kinds)} tensors")


def gradients_there(names: tuple[str, ...], answer: Output) -> int:
    """How many there are."""
    found = answer.gradients
    if found and (len(found) != len(names) or any(f not in (None, n) for f, n in zip(found, names, strict=True))):
        raise NotTheProtocol("gradients that were not asked for")
    return sum(f is not None for f in found)
