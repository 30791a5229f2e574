"""`ConvTranspose`: a layer as PyTorch defines it. `Workload`: a layer with batch, size and dtype, which fix its tensors.

The definition (PyTorch's documentation of ConvTranspose): input position i and tap k contribute to output position o = i *
stride - padding + k * dilation, if 0 <= o < output_size.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

from .errors import BadRequest
from .typed import read, read_once

FORWARD, GRAD_INPUT, GRAD_WEIGHT, BACKWARD = "forward", "grad_input", "grad_weight", "backward"
DIRECTIONS = (FORWARD, GRAD_INPUT, GRAD_WEIGHT)
LAUNCHES = (*DIRECTIONS, BACKWARD)  # what one launch can compute; BACKWARD: both gradients
DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}  # bytes per element
MEMORY_FORMATS = CONTIGUOUS, CHANNELS_LAST = ("contiguous", "channels_last")
_PER_DIMENSION = ("kernel_size", "stride", "padding", "output_padding", "dilation")
_LOWEST = {"kernel_size": 1, "stride": 1, "dilation": 1, "padding": 0, "output_padding": 0}
INT32_MAX = 2**31 - 1
MOST_TAPS = 2**16  # the limit of taps in one dimension. Some code loops over the taps; no real layer has more


@dataclass(frozen=True)
class ConvTranspose:
    """A transposed convolution over 1, 2 or 3 spatial dimensions. The parameters have the names and meanings of PyTorch.

    An int is the value of every dimension. Raises `BadRequest`, which names the broken rule.
    """

    dims: int
    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...] = (1,)
    padding: tuple[int, ...] = (0,)
    output_padding: tuple[int, ...] = (0,)
    groups: int = 1
    bias: bool = True
    dilation: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        if self.dims not in (1, 2, 3):
            raise BadRequest(f"dims is {self.dims!r}; choose 1, 2 or 3.", field="dims")
        for name in ("in_channels", "out_channels", "groups"):
            _check_int(name, getattr(self, name), lowest=1)
        for name in ("in_channels", "out_channels"):
            if getattr(self, name) % self.groups:
                raise BadRequest(
                    f"{name} {getattr(self, name)} is not divisible by groups {self.groups}; "
                    f"choose groups that divide both channel counts.", field="groups")
        for name in _PER_DIMENSION:
            object.__setattr__(self, name, _per_dimension(name, getattr(self, name), self.dims))
        for s, d, op in zip(self.stride, self.dilation, self.output_padding, strict=True):
            if op >= max(s, d):
                raise BadRequest(f"output_padding {op} must be smaller than stride {s} or dilation {d}.",
                                 field="output_padding")
        if not isinstance(self.bias, int) or self.bias not in (0, 1):
            raise BadRequest(f"bias is {self.bias!r}; choose True or False.", field="bias")
        object.__setattr__(self, "bias", bool(self.bias))

    def output_size(self, input_size: Sequence[int]) -> tuple[int, ...]:
        """Spatial output size, in elements: (i - 1) * stride - 2 * padding + dilation * (k - 1) + output_padding + 1.

        Raises `BadRequest` when a dimension would have no output.
        """
        sizes = tuple((i - 1) * s - 2 * p + d * (k - 1) + op + 1 for i, k, s, p, op, d in zip(
            input_size, self.kernel_size, self.stride, self.padding, self.output_padding, self.dilation, strict=True))
        for dim, (i, o, p) in enumerate(zip(input_size, sizes, self.padding, strict=True)):
            if o < 1:
                raise BadRequest(
                    f"input size {i} with padding {p} leaves an output of {o} in dimension {dim}; "
                    f"lower padding or enlarge the input.", field="padding")
        return sizes

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """(in_channels, out_channels / groups, *kernel_size), as nn.ConvTranspose stores it."""
        return (self.in_channels, self.out_channels // self.groups, *self.kernel_size)

    @property
    def parameter_count(self) -> int:
        return prod(self.weight_shape) + (self.out_channels if self.bias else 0)

    def in_three_dimensions(self) -> ConvTranspose:
        """The same layer as a 3-D one: missing leading dimensions get kernel 1, stride 1, padding 0."""
        if self.dims == 3:
            return self
        lead = 3 - self.dims
        ones, zeros = (1,) * lead, (0,) * lead
        return ConvTranspose(3, self.in_channels, self.out_channels, ones + self.kernel_size, ones + self.stride,
                             zeros + self.padding, zeros + self.output_padding, self.groups, self.bias,
                             ones + self.dilation)

    def __str__(self) -> str:
        """The constructor call in PyTorch, without default values: `ConvTranspose1d(32, 64, 5, dilation=3)`."""
        words = [str(self.in_channels), str(self.out_channels), _short(self.kernel_size)]
        for name, default in (("stride", 1), ("padding", 0), ("output_padding", 0)):
            if any(v != default for v in getattr(self, name)):
                words.append(f"{name}={_short(getattr(self, name))}")
        if self.groups != 1:
            words.append(f"groups={self.groups}")
        if not self.bias:
            words.append("bias=False")
        if any(v != 1 for v in self.dilation):
            words.append(f"dilation={_short(self.dilation)}")
        return f"ConvTranspose{self.dims}d({', '.join(words)})"

    def to_json(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ConvTranspose:
        return read(cls, data)


@read_once
@dataclass(frozen=True)
class Workload:
    """A layer with all that determines its tensors. `input_size`: the spatial sizes, in elements."""

    layer: ConvTranspose
    batch: int
    input_size: tuple[int, ...]
    dtype: str = "float32"
    memory_format: str = "contiguous"
    seed: int = 0
    preset: str = field(default="", compare=False)  # "kb74/small", "models/sam-1/full"; "" for other layers

    def __post_init__(self) -> None:
        _check_int("batch", self.batch, lowest=1)
        size = self.input_size
        size = (size,) * self.layer.dims if isinstance(size, int) else tuple(size)
        if len(size) != self.layer.dims:
            raise BadRequest(f"input size {_short(size)} has {len(size)} numbers; a ConvTranspose{self.layer.dims}d "
                             f"takes {self.layer.dims}.", field="input_size")
        for value in size:
            _check_int("input size", value, lowest=1, field_name="input_size")
        object.__setattr__(self, "input_size", size)
        if self.dtype not in DTYPES:
            raise BadRequest(f"dtype {self.dtype!r} is not known; choose {', '.join(DTYPES)}.", field="dtype")
        if self.memory_format not in MEMORY_FORMATS:
            raise BadRequest(f"memory format {self.memory_format!r} is not known; choose "
                             f"{' or '.join(MEMORY_FORMATS)}.", field="memory_format")
        if self.memory_format == "channels_last" and self.layer.dims == 1:
            raise BadRequest("PyTorch has channels_last for 2-D and 3-D only; choose contiguous for a 1-D layer.",
                             field="memory_format")
        self.layer.output_size(size)  # raises where no output is left

    @property
    def output_size(self) -> tuple[int, ...]:
        return self.layer.output_size(self.input_size)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.batch, self.layer.in_channels, *self.input_size)

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (self.batch, self.layer.out_channels, *self.output_size)

    @property
    def element_bytes(self) -> int:
        return DTYPES[self.dtype]

    @cached_property
    def key(self) -> str:
        """A text that is equal for workloads with equal tensors. The preset's name is not part of it."""
        return json.dumps({k: v for k, v in self.to_json().items() if k != "preset"}, sort_keys=True)

    def in_three_dimensions(self) -> Workload:
        """The same work with three spatial dimensions, in the same memory format and the same order in memory."""
        return replace(self, layer=self.layer.in_three_dimensions(),
                       input_size=(1,) * (3 - self.layer.dims) + self.input_size)

    def result_elements(self, direction: str) -> int:
        """The number of elements that a direction writes, without grad_bias."""
        return prod({FORWARD: self.output_shape, GRAD_INPUT: self.input_shape,
                     GRAD_WEIGHT: self.layer.weight_shape}[direction])

    def to_json(self) -> dict[str, Any]:
        return {"layer": self.layer.to_json(), "batch": self.batch, "input_size": list(self.input_size),
                "dtype": self.dtype, "memory_format": self.memory_format, "seed": self.seed, "preset": self.preset}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Workload:
        return read(cls, data)


def _check_int(name: str, value: object, *, lowest: int, most: int = INT32_MAX, field_name: str | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequest(f"{name} is {value!r}; give a whole number.", field=field_name or name)
    if value < lowest:
        raise BadRequest(f"{name} is {value}; it must be {lowest} or more.", field=field_name or name)
    if value > most:
        raise BadRequest(f"{name} is {value}; give at most {most}.", field=field_name or name)


def _per_dimension(name: str, value: Any, dims: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if len(values) == 1:
        values *= dims
    if len(values) != dims:
        raise BadRequest(f"{name} {values} has {len(values)} numbers; a ConvTranspose{dims}d takes one"
                         f"{f' or {dims}' if dims > 1 else ''}.", field=name)
    for v in values:
        _check_int(name, v, lowest=_LOWEST[name], most=MOST_TAPS if name == "kernel_size" else INT32_MAX)
    return values


def _short(values: Sequence[int]) -> str:
    """(3, 3, 3) -> "3"; (3, 5) -> "(3, 5)"."""
    return str(values[0]) if len(set(values)) == 1 else f"({', '.join(map(str, values))})"
