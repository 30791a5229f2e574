"""The cases of a check: the given size, other sizes, other constructor arguments."""

from __future__ import annotations

import ast
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from ....core.errors import BadRequest
from ....core.layer import ConvTranspose, Workload
from ..foreign.replies import Default, Structure

if TYPE_CHECKING:
    from ..trialrun import TrialRun

Change = dict[str, int | tuple[int, ...]]   # fields of a layer
_SMALL = {1: 12, 2: 5, 3: 3}
_BEYOND_A_GRID = (1 << 16) + 1   # blocks in the second or third dimension of a grid end at 65 535
_AS_MANY = "as many values in another shape"
_MOST_PAIRS = 15  # of constructor arguments that are changed together
_MOST_ENTRIES = 4   # of a tuple that are changed
# What PyTorch's modules take for one argument.
_WORDS = (("mean", "sum", "none"), ("mean", "sum", "batchmean"), ("zeros", "reflect", "replicate", "circular"),
          ("none", "tanh"), ("tanh", "relu"), ("same", "valid"), ("nearest", "bilinear", "bicubic"),
          ("constant", "reflect", "replicate"))
_CHANNELS = 3   # so many times the given input channels: a loop over tiles of channels may be unrolled for the given ones
_MOST_CHANNELS = 1 << 14  # input channels times output channels of that case
_LONGER = 29                 # taps that a kernel is longer, in its first or last dimension
_FAR_APART = 41              # stride: 41 times float32's 1 / 41 is below 1
_MANY_TAPS, _MANY_CHANNELS, _FAR_TAPS = 261, 517, 139
_LATENT: Change = {"in_channels": 6, "out_channels": 4, "groups": 2, "kernel_size": 4, "stride": 2, "padding": 1}
_AT_ONE_POSITION = (_LATENT | {"dilation": 1, "output_padding": 0},)   # as the input of a generator
_WIDE = 11                   # taps of a square kernel; the inputs have as many positions, so that all taps reach one output
_FEW, _OF_FEW = 64, 1.6   # values of an operand; see `Case.more`
_LONG, _MOST_LONG, _LONG_S = (1025, 4097), 1 << 17, 0.5   # columns; values of the inputs; seconds
_MOST_TWICE = 1 << 20   # values of the inputs of a case of more than twice the given size; of a layer: products for a tap
_BATCHES = (67, 131, 263, 521, 1031)   # primes: a file that computes so many samples at a time leaves a rest
# A long row: its positions do not fit into 16 bits with sign, its outputs not into 16 bits. Its values; at most so many bytes.
_FAR_IN, _FAR_OUT, _MOST_FAR, _FAR_BYTES = (1 << 15) + 333, (1 << 16) + 165, 1 << 20, 64 << 20
_LONG_SIDE, _LONG_SEQUENCE = 1100, 2100
LAYOUTS = {"strided": "an input with strides", "channels_last": "an input in channels_last",
           "loose": "one channel, whose stride is 1"}
_FAR_S = 1.0   # seconds that such a row may take, as a shorter one shows


@dataclass(frozen=True)
class Setting:
    """Constructor arguments by position and by name, and the layer they make where it is a transposed convolution."""

    arguments: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...] = ()
    layer: ConvTranspose | None = None

    @property
    def texts(self) -> tuple[str, str]:
        return repr(list(self.arguments)), repr(dict(self.keywords))


@dataclass(frozen=True)
class Case:
    """One call. `like`: the given inputs, whose range and dtype generic inputs take. `shapes`: of all inputs. `expanded`: its
    grad_output is that of y.sum().backward(), one 1 with stride 0 in all dimensions. `long`: of many columns. `tied`: values
    repeat, and equal ones may share their gradients in any way. `silent`: the grad_output of the first sample is zero. `far`:
    of one row that is so long that its gradients are not compared."""

    name: str
    setting: Setting
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    layout: str = "contiguous"
    integers: bool = False
    expanded: bool = False
    long: bool = False
    tied: bool = False
    silent: bool = False
    far: bool = False
    options: tuple[tuple[str, tuple[int, ...]], ...] = ()   # keyword arguments of forward

    @property
    def workload(self) -> Workload | None:
        if self.setting.layer is None or self.shapes[0][0] < 1 or self.options:
            return None
        return Workload(self.setting.layer, self.shapes[0][0], self.shapes[0][2:], self.dtypes[0])

    def more(self, precision: str) -> float:
        """How much larger an error in that precision may be: by chance, for few values, and more so in bfloat16."""
        layer = self.setting.layer
        if precision != "tf32" or layer is None:
            return 1.0
        weights = layer.in_channels * layer.out_channels // layer.groups * prod(layer.kernel_size)
        return _OF_FEW if min(weights, prod(self.shapes[0])) < _FEW else 1.0


def setting_of(parameters: Sequence[str], arguments: str, keywords: str, structure: Structure | None) -> Setting:
    """The reference's own arguments. Raises `BadRequest` when they are no literals."""
    try:
        given, named = list(ast.literal_eval(arguments)), dict(ast.literal_eval(keywords))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise BadRequest("get_init_inputs() gives something other than numbers, strings, tuples and lists; the check cannot "
                         "pass this to another process.") from error
    layer = structure.layer if structure else None
    names = parameters[:len(given)]
    if len(names) == len(given):  # by name they can be changed one at a time
        return Setting((), (*zip(names, map(_hashable, given), strict=True), *((k, _hashable(v)) for k, v in named.items())),
                       layer)
    return Setting(tuple(map(_hashable, given)), tuple((k, _hashable(v)) for k, v in named.items()), layer)


def positional(setting: Setting, parameters: list[str], defaults: dict[str, Default]) -> Setting:
    """The same arguments by position: a candidate may name its parameters differently. Those before one that is given take
    their defaults, where these are known."""
    values = dict(setting.keywords)
    order = parameters[:max((parameters.index(n) + 1 for n in values if n in parameters), default=0)]
    there = {**defaults, **values}
    if setting.arguments or not set(values) <= set(order) or not set(order) <= set(there):
        return setting
    return replace(setting, arguments=tuple(there[n] for n in order), keywords=())


def sizes(given: Case, output: Sequence[int] = ()) -> Iterator[Case]:
    """Other sizes with the given arguments. `output`: the shape of the output."""
    if given.setting.layer is None:
        yield from _generic_sizes(given, output)
        return
    small = small_case(given)
    spatial = small.shapes[0][2:]
    as_many = (1, (2 * spatial[0], *spatial[1:])) if spatial == spatial[::-1] else (2, spatial[::-1])
    for name, batch, size in (("a small size", 2, spatial), ("an odd size", 3, tuple(n + 5 for n in spatial)),
                              ("a lopsided size", 1, (*(n + 9 for n in spatial[:1]), *spatial[1:])),
                              ("size 1", 1, tuple(1 for _ in spatial)), (_AS_MANY, *as_many)):
        if (case := resized(small, batch, size)) is not None:
            yield replace(case, name=name)
    if (case := resized(given, given.shapes[0][0] + 1, tuple(n + 1 for n in given.shapes[0][2:]))) is not None:
        yield replace(case, name="a size above the given one")
    if (case := resized(given, 2 * given.shapes[0][0] + 1, tuple(2 * n + 1 for n in given.shapes[0][2:]))) is not None and \
            prod(case.workload.output_shape) * given.setting.layer.in_channels <= _MOST_TWICE:
        yield replace(case, name="more than twice the given size")
    if (case := _many_of_layer(given)) is not None:
        yield case
    for place in range(given.setting.layer.dims) if given.setting.layer.dims > 1 else ():   # a block has 1024 threads at most
        size = tuple(_LONG_SIDE if d == place else n for d, n in enumerate((2, 3, 4)[:given.setting.layer.dims]))
        if (case := resized(_narrow(given), 1, size)) is not None and prod(case.workload.output_shape) <= _MOST_TWICE:
            yield replace(case, integers=False, name=f"{_LONG_SIDE} positions in dimension {place + 2}")
    if given.setting.layer.dims == 1 and (case := _far(given)) is not None:
        yield replace(case, name=f"batch 1 and {case.shapes[0][-1]} positions")


def _many(batch: int) -> int:
    """A batch well above that one."""
    return next((n for n in _BATCHES if 2 * n > 3 * batch), 2 * batch + 1)


def _many_of_layer(given: Case) -> Case | None:
    """A batch well above the given one, at a few positions. If that is much work, with few channels."""
    batch, found = _many(given.shapes[0][0]), None
    for case in (given, _narrow(given)):
        for size in (tuple(range(2, 2 + given.setting.layer.dims)), small_case(given).shapes[0][2:]):
            layer = case.setting.layer
            found = resized(case, batch, size)
            if found and prod((*found.workload.output_shape, layer.in_channels, *layer.kernel_size)) <= _MOST_TWICE:
                return replace(found, integers=False, name=f"batch {batch}")
    return replace(found, integers=False, name=f"batch {batch}") if found else None


def _narrow(given: Case) -> Case:
    """The layer with few channels, where its constructor takes them."""
    there = {"in_channels", "out_channels"} <= dict(given.setting.keywords).keys()
    return (few_channels(given) if there else None) or given


def _far(given: Case) -> Case | None:
    """A layer with one long row. None if it needs too much memory."""
    case, length = _narrow(given), _FAR_IN
    while (found := resized(case, 1, (length,))) is None or found.workload.output_shape[-1] < _FAR_OUT:
        length += (_FAR_OUT - found.workload.output_shape[-1]) // case.setting.layer.stride[0] + 1 if found else length
    values = prod(found.shapes[0]) + prod(found.workload.output_shape)
    return replace(found, integers=False) if values * 4 <= _FAR_BYTES else None


def other_size(given: Case, *, equal: bool = False) -> list[Case]:
    """A layer whose forward gets the output_size that another output_padding would give. `equal`: its sides are equal."""
    small = (resized(given, 2, given.shapes[0][-1:] * given.setting.layer.dims) if equal else None) or small_case(given)
    if small.workload is None or set(small.setting.layer.stride) == {1}:
        return []
    layer, shape = small.setting.layer, small.workload.output_shape
    size = tuple(n - p + (p + 1 + place) % s for place, (n, p, s) in enumerate(
        zip(shape[2:], layer.output_padding, layer.stride, strict=True)))   # another step in each dimension
    found, bare = [(small, size)], None if equal else changed(small, {"output_padding": 0})
    if bare and bare.workload:   # the largest, as in output_size=x.size()
        found.append((bare, tuple(n + s - 1 for n, s in zip(bare.workload.output_shape, (1, 1, *layer.stride), strict=True))))
    return [replace(case, options=(("output_size", one),), name=f"output_size={_short(one)}") for case, one in found]


def arguments(given: Case, trial: TrialRun) -> Iterator[Case]:
    """Other constructor arguments, one change at a time, then several; only those the constructor has. Last those without a
    default value alone."""
    of_layer = given.setting.layer is not None
    yield from _arguments_of_layer(given, trial.parameters) if of_layer else _generic_arguments(given, trial)
    if of_layer and (case := _required_alone(given, trial)) is not None:
        yield case


def _required_alone(given: Case, trial: TrialRun) -> Case | None:
    """Only the arguments that have no default value in the reference. None if no others are given, or if not both stand for
    nn.ConvTranspose: another file may be made for calls with all arguments."""
    others = [n for n in dict(given.setting.keywords) if n in trial.defaults and n in trial.parameters]
    if not others or given.setting.arguments or not all(
            party.facts is not None and party.facts.as_layer for party in (trial.candidate, trial.reference)):
        return None
    case = changed(given, {n: v for n, v in trial.defaults.items() if n in trial.parameters
                           and hasattr(given.setting.layer, n)})
    return case and replace(case, name="the default arguments", integers=False, setting=replace(
        case.setting, keywords=tuple((n, v) for n, v in case.setting.keywords if n not in others)))


def _arguments_of_layer(given: Case, parameters: list[str]) -> Iterator[Case]:
    layer = given.setting.layer
    s, p, k = layer.stride, layer.padding, layer.kernel_size
    many, co = _CHANNELS * layer.in_channels // layer.groups + 5, layer.out_channels // layer.groups
    changes: list[Change] = [
        {"stride": 1, "output_padding": 0}, {"stride": tuple(v + 1 for v in s)}, {"stride": 2}, {"stride": 3},
        {"padding": 0}, {"padding": tuple(v + 1 for v in p)}, {"dilation": 1, "output_padding": 0},
        {"dilation": tuple(v + 1 for v in layer.dilation)}, {"kernel_size": tuple(v + 1 for v in k)}, {"kernel_size": 1},
        {"bias": not layer.bias}, *({"in_channels": 6, "out_channels": 2 * n, "groups": n, "bias": True} for n in (2, 1, 3)),
        {"in_channels": 5, "out_channels": 3, "groups": 1}, {"in_channels": 4, "out_channels": 4, "groups": 4},
        {"in_channels": many, "out_channels": max(1, min(co + 3, _MOST_CHANNELS // many)), "groups": 1},
        {"stride": 2, "output_padding": 1}, {"kernel_size": tuple(4 - n for n in range(layer.dims)), "padding": tuple(
            n % 2 for n in range(layer.dims)), "dilation": tuple(1 + n % 2 for n in range(layer.dims)), "output_padding": 0},
        {"stride": 3, "padding": 2, "dilation": 2, "kernel_size": 4, "output_padding": tuple(
            2 - n for n in range(layer.dims))},
        {"stride": tuple(2 + n % 2 for n in range(layer.dims)), "padding": tuple(1 - n % 2 for n in range(layer.dims)),
         "bias": True},
        {"kernel_size": (*k[:-1], k[-1] + _LONGER)},
        {"in_channels": 6, "out_channels": 4, "groups": 2, "kernel_size": 3, "stride": 3, "padding": 1, "dilation": 2,
         "output_padding": 1, "bias": False},
        {"in_channels": 4, "out_channels": 8, "groups": 4, "kernel_size": 2, "stride": 1, "padding": 0, "dilation": 3,
         "output_padding": 0, "bias": True},
        {"kernel_size": 1, "stride": 2, "output_padding": 1, "padding": 0, "bias": not layer.bias},
        {"stride": 1, "padding": 1, "dilation": 3, "output_padding": 0, "bias": not layer.bias},
        {"stride": 1, "dilation": 2, "output_padding": 1},
        *({"kernel_size": 3, "stride": stride[:layer.dims], "dilation": dilation[:layer.dims], "padding": 1,
           "output_padding": 0} for stride, dilation in (((2, 3, 2), (3, 2, 3)), ((1, 2, 1), (2, 2, 2)))), *_usual(layer),
        *_AT_ONE_POSITION]
    seen = set()
    for change in changes:
        alone, change = change in _AT_ONE_POSITION, {key: change[key] for key in parameters if key in change}
        if not change or set(change) == {"output_padding"}:
            continue
        case = changed(given, change)
        if case is None or case.setting.layer == layer or case.setting in seen:
            continue
        if alone or max(case.setting.layer.kernel_size) == _WIDE:
            those = zip(case.shapes[0][2:], case.setting.layer.kernel_size, strict=True)
            case = resized(case, 2, tuple(1 if alone else max(n, k) for n, k in those)) or case
        seen.add(case.setting)
        words = ", ".join(f"{key}={_short(v)}" for key, v in change.items()
                          if getattr(case.setting.layer, key) != getattr(layer, key))
        yield replace(case, name=words + ", at one position" * alone, integers=False)


def _usual(layer: ConvTranspose) -> list[Change]:
    """Layers that networks often have, for which a file may have a path of its own: kernel = stride (the decoder of a U-Net),
    kernel 1, kernel 4 at stride 2 (a generator), kernel 3 with output_padding, a vocoder, one channel. Then strides and
    dilations with a common divisor, where some outputs get no product, and long kernels in other dimensions. Then more padding
    than the kernel reaches, a stride whose reciprocal is rounded wrongly, more taps or channels than a block has threads."""
    plain: Change = {"padding": 0, "output_padding": 0, "dilation": 1}
    wide = (_WIDE,) * min(layer.dims, 2) + (2,) * (layer.dims - 2)
    return [
        plain | {"kernel_size": 2, "stride": 2}, plain | {"kernel_size": 1, "stride": 1},
        plain | {"kernel_size": 4, "stride": 2, "padding": 1},
        plain | {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1}, plain | {"kernel_size": 5, "stride": 5},
        plain | {"kernel_size": 3, "stride": 3, "output_padding": 2},
        *([plain | {"kernel_size": 16, "stride": 8, "padding": 4}] if layer.dims == 1 else []),
        {"out_channels": 1, "groups": 1}, {"in_channels": 1, "groups": 1}, {"in_channels": 1, "out_channels": 1, "groups": 1},
        {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 2, "output_padding": 1},
        {"kernel_size": 3, "stride": 4, "padding": 2, "dilation": 6, "output_padding": 0},
        {"kernel_size": (layer.kernel_size[0] + _LONGER, *layer.kernel_size[1:])},
        plain | {"kernel_size": wide, "stride": 1, "padding": tuple(k // 2 for k in wide)},
        plain | {"kernel_size": 1, "stride": 1, "padding": 1},
        plain | {"kernel_size": 2, "stride": (*layer.stride[:-1], _FAR_APART)},
        plain | {"in_channels": 3, "out_channels": 2, "groups": 1, "kernel_size": (*(1,) * (layer.dims - 1), _MANY_TAPS),
                 "stride": 1},
        {"in_channels": _MANY_CHANNELS, "out_channels": 2, "groups": 1},
        plain | {"in_channels": 3, "out_channels": 2, "groups": 1, "kernel_size": (*(1,) * (layer.dims - 1), 3), "stride": 1,
                 "dilation": _FAR_TAPS}]


def changed(given: Case, change: Change) -> Case | None:
    """A small case with other layer parameters; None if PyTorch does not accept them."""
    try:
        layer = replace(given.setting.layer, **change)
    except BadRequest:
        return None
    keywords = dict(given.setting.keywords)
    if given.setting.arguments:
        return None
    for key in change:
        value = getattr(layer, key)
        keywords[key] = value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value
    setting = Setting((), tuple(keywords.items()), layer)
    case = replace(given, setting=setting, shapes=((2, layer.in_channels, *given.shapes[0][2:]),), integers=True)
    return small_case(case)


def already_wrong(case: Case, given: list[torch.Tensor]) -> str:
    """Why other questions about the case are not asked."""
    size = "the given" if case.shapes == tuple(tuple(x.shape) for x in given) else "a small"
    return f"Not asked: the file is already wrong at {size} size."


def of_one_channel(given: Case, parameters: Sequence[str]) -> Case | None:
    """With one input channel, where the constructor takes it."""
    return changed(given, {n: 1 for n in ("in_channels", "groups") if n in parameters}) if "in_channels" in parameters else None


def few_channels(given: Case) -> Case | None:
    """The given layer with a few channels in each group, small; None where the constructor does not take them."""
    groups = given.setting.layer.groups
    ci, co = (2 * groups, 3 * groups) if groups > 1 else (5, 3)
    return changed(given, {"in_channels": ci, "out_channels": co})


def small_case(case: Case) -> Case:
    """Batch 2 and a few positions, more where the padding would crop all of them. A row has a multiple of 8: code for such rows
    loads several values at once."""
    layer = case.setting.layer
    *before, last = (min(n, _SMALL[layer.dims] + d) for d, n in enumerate(case.shapes[0][2:]))
    size = (*before, min(case.shapes[0][-1], last + -last % 8))
    while True:
        found = resized(case, 2, size)
        if found is not None:
            return found
        size = tuple(2 * n for n in size)


def resized(case: Case, batch: int, size: tuple[int, ...]) -> Case | None:
    try:
        case.setting.layer.output_size(size)
    except BadRequest:
        return None
    return replace(case, shapes=((batch, case.setting.layer.in_channels, *size),))


def with_batch(case: Case, batch: int, name: str) -> Case:
    """The same with another first dimension of every input that shares it."""
    first = case.shapes[0][0] if case.shapes and case.shapes[0] else None
    shapes = tuple((batch, *s[1:]) if s and s[0] == first else s for s in case.shapes)
    return replace(case, shapes=shapes, name=name)


def _generic_sizes(given: Case, output: Sequence[int]) -> Iterator[Case]:
    shapes = tuple((*s[:-2], s[-1], s[-2]) if len(s) > 1 and s[-2:] == given.shapes[0][-2:] else s for s in given.shapes)
    if shapes != given.shapes and sum(map(prod, shapes)) <= _MOST_TWICE:
        yield replace(given, shapes=shapes, name=_AS_MANY)
    batch = given.shapes[0][0] if given.shapes and given.shapes[0] else 0
    for size in dict.fromkeys((3, batch + 1, 2 * batch + 1, _BEYOND_A_GRID)) if batch else ():
        case = with_batch(given, size, f"batch {size}")
        if size != batch and (size <= batch + 1 or sum(map(prod, case.shapes)) <= _MOST_TWICE):
            yield case
    last = given.shapes[0][-1] if given.shapes else 0
    for size in (last + 1, max(1, last // 2), 2 * last + 1, 1):
        shapes = tuple((*s[:-1], size) if len(s) > 1 and s[-1] == last else s for s in given.shapes)
        if shapes != given.shapes and (size <= last + 1 or sum(map(prod, shapes)) <= _MOST_TWICE):
            yield replace(given, shapes=shapes, name=f"last dimension {size}")
        everywhere = tuple(tuple(size if n == last else n for n in s) for s in given.shapes)  # a product sums over two of them
        if everywhere not in (shapes, given.shapes) and size != 2 * last + 1:
            yield replace(given, shapes=everywhere, name=f"{size} for each dimension of {last}")
    rows = given.shapes[0][-2] if given.shapes and len(given.shapes[0]) > 2 else 0
    for size in (rows + 1, 2 * rows + 1) if rows else ():
        shapes = tuple((*s[:-2], size, s[-1]) if len(s) > 2 and s[-2] == rows else s for s in given.shapes)
        if sum(map(prod, shapes)) <= _MOST_TWICE:
            yield replace(given, shapes=shapes, name=f"second to last dimension {size}")
    yield from _other_dimensions(given, output)
    if batch and (case := _many_samples(given, batch)) is not None:
        yield case
    yield from _long_rows(given)


def _many_samples(given: Case, batch: int) -> Case | None:
    """A batch well above the given one. If that is much, the dimensions behind the first two are cut down in all inputs."""
    case = with_batch(given, _many(batch), f"batch {_many(batch)}")
    while sum(map(prod, case.shapes)) > _MOST_TWICE:
        large = max((n for s in case.shapes for n in s[2:]), default=1)
        if large < 2:
            return None
        case = replace(case, shapes=tuple((*s[:2], *(n // 2 if n == large else n for n in s[2:])) for s in case.shapes))
    return case


def _other_dimensions(given: Case, output: Sequence[int]) -> Iterator[Case]:
    """One larger and more than twice as large: those not changed by `_generic_sizes`. Together in all inputs that have the
    number at the same place; where that is refused, a product may sum over it, at another place in each input. Of several
    inputs also one alone: each dimension one larger, then one smaller. A dimension of 1 may be broadcast: it gets the sizes of
    the others, and that of the output."""
    seen = {given.shapes}
    for place, shape in enumerate(given.shapes):
        for d, n in enumerate(shape):
            known = not place and d in (0, len(shape) - 1, len(shape) - 2)
            tried = [] if known else [
                one for size in (n + 1, 2 * n + 1) for one in (
                    (tuple((*s[:d], size, *s[d + 1:]) if len(s) > d and s[d] == n else s for s in given.shapes),
                     f"dimension {d} {size}"),
                    (tuple(tuple(size if m == n else m for m in s) for s in given.shapes),
                     f"{size} for each dimension of {n}"))]
            tried += [(tuple((*s[:d], size, *s[d + 1:]) if i == place else s for i, s in enumerate(given.shapes)),
                       f"dimension {d} of input {place} {size}")
                      for size in (n + 1, n - 1, *(_at_that_place((*given.shapes, output), len(shape) - d) if n == 1 else ()))
                      if size and len(given.shapes) > 1]
            for shapes, where in tried:
                if shapes not in seen and sum(map(prod, shapes)) <= _MOST_TWICE:
                    seen.add(shapes)
                    yield replace(given, shapes=shapes, name=where)


def _at_that_place(shapes: Iterable[Sequence[int]], from_end: int) -> list[int]:
    """The sizes above 1 in that dimension, counted from the end as for broadcasting."""
    return sorted({shape[-from_end] for shape in shapes if len(shape) >= from_end and shape[-from_end] > 1})


def _long_rows(given: Case) -> Iterator[Case]:
    """A block of a GPU has 1024 threads at most. Of a large batch two samples. It ends where one takes long. Then one row whose
    positions do not fit into 16 bits."""
    last = given.shapes[0][-1] if given.shapes and given.shapes[0] else 0
    took = 0.0
    for size in _LONG:
        begin = time.monotonic()
        for case in (given, with_batch(given, 2, "")):
            shapes = tuple((*s[:-1], size) if len(s) > 1 and s[-1] == last else s for s in case.shapes)
            if last < size and shapes != case.shapes and sum(map(prod, shapes)) <= _MOST_LONG:
                yield replace(given, shapes=shapes, name=f"last dimension {size}", long=True)
                break
        took = time.monotonic() - begin
        if took > _LONG_S:
            return
    one = with_batch(given, 1, "")
    rows = given.shapes[0][-2] if given.shapes and len(given.shapes[0]) == 3 else 0   # as of a sequence of vectors
    shapes = tuple((*s[:-2], _LONG_SEQUENCE, s[-1]) if len(s) > 2 and s[-2] == rows else s for s in one.shapes)
    if 0 < rows < _LONG_SEQUENCE and sum(map(prod, shapes)) <= _MOST_LONG:
        yield replace(given, shapes=shapes, name=f"second to last dimension {_LONG_SEQUENCE}", long=True, far=True)
    shapes = tuple((*s[:-1], _FAR_OUT) if len(s) > 1 and s[-1] == last else s for s in one.shapes)
    if took * _FAR_OUT / _LONG[-1] < _FAR_S and shapes != one.shapes and sum(map(prod, shapes)) <= _MOST_FAR:
        yield replace(given, shapes=shapes, name=f"last dimension {_FAR_OUT}", long=True, far=True)


def _generic_arguments(given: Case, trial: TrialRun) -> Iterator[Case]:
    """One argument at a time, then two whole numbers or switches together; what the reference does not accept is left out."""
    if given.setting.arguments:
        return
    there = dict(given.setting.keywords)
    everything = [*there.items(), *((k, v) for k, v in trial.defaults.items() if k not in there)]
    for name, value in everything:
        for other in _other_values(value, trial.words.get(name, ())):
            keywords = tuple({**there, name: other}.items())
            yield replace(given, setting=replace(given.setting, keywords=keywords), name=f"{name}={other}")
    options = {name: not value if isinstance(value, bool) else value + 1 for name, value in everything
               if isinstance(value, int)}
    for pair in islice(combinations(options, 2), _MOST_PAIRS):
        keywords = tuple({**there, **{name: options[name] for name in pair}}.items())
        yield replace(given, setting=replace(given.setting, keywords=keywords),
                      name=", ".join(f"{name}={options[name]}" for name in pair))


def _other_values(value: Any, words: Sequence[str]) -> list[Any]:
    """Whole numbers one up or one down, fractions clearly up, halved or zero, switches the other way; a tuple with one number
    one up; the other words of the sets that have a word, and these `words`."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1]
    if isinstance(value, float):
        return [value + 0.25, value / 2, *[0.0] * bool(value)]
    if isinstance(value, str):
        return [*dict.fromkeys(word for some in (words, *_WORDS) if some is words or value in some for word in some
                               if word != value)]
    if isinstance(value, tuple) and all(type(n) is int for n in value):
        return [type(value)((*value[:d], n + 1, *value[d + 1:])) for d, n in enumerate(value[:_MOST_ENTRIES])]
    return []


class _List(tuple[Any, ...]):
    """A list of get_init_inputs(), hashable; the constructors get a list again."""

    def __repr__(self) -> str:
        return repr(list(self))


def _hashable(value: Any) -> Any:
    return (_List if isinstance(value, list) else tuple)(map(_hashable, value)) if isinstance(value, list | tuple) else value


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return str(value[0]) if len(set(value)) == 1 else str(value)
    return str(value)
