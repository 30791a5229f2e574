"""Exact facts of a workload before anything runs: multiply-adds, bytes that must move, phases, structural zeros.

The code does not loop over a tensor: the outputs that a tap reaches along an axis are an arithmetic progression, whose length
is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from .layer import BACKWARD, FORWARD, GRAD_INPUT, GRAD_WEIGHT, ConvTranspose, Workload
from .sectors import SECTOR_BYTES, Axis, all_of, runs_axis, sector_count, strided_axis


@dataclass(frozen=True)
class Traffic:
    """Bytes that must be read from and written to DRAM, in whole 32-byte sectors. Each tensor is counted once."""

    read_bytes: int
    written_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.read_bytes + self.written_bytes


@dataclass(frozen=True)
class Phases:
    """Residue classes of (output + padding) mod stride in one dimension. `taps`: class -> the taps that can reach its outputs.

    Only classes with a tap are listed; the other `stride - len(taps)` are structurally zero.
    """

    stride: int
    taps: dict[int, tuple[int, ...]]


def macs(workload: Workload) -> int:
    """Multiply-adds of one direction: pairs of input and tap that land inside the output, times channels and batch."""
    layer = workload.layer
    pairs = prod(sum(hi - lo for lo, hi in _inputs_per_tap(d)) for d in _dimensions(workload))
    return workload.batch * layer.in_channels * (layer.out_channels // layer.groups) * pairs


def tensor_bytes(workload: Workload, direction: str) -> int:
    """Bytes of all inputs and results of a launch. channels_last activations count twice, because the judge holds two copies.
    """
    activations, weight = prod(workload.input_shape) + prod(workload.output_shape), prod(workload.layer.weight_shape)
    if direction == BACKWARD:
        activations, weight = activations + prod(workload.input_shape), 2 * weight
    copies = 2 if workload.memory_format == "channels_last" else 1
    return workload.element_bytes * (copies * activations + weight)


def flops(workload: Workload, direction: str = FORWARD) -> int:
    """Two per multiply-add. The number is the same for each single direction; `backward` has twice as many. Bias is not
    counted."""
    return 2 * macs(workload) * (2 if direction == BACKWARD else 1)


@lru_cache(maxsize=256)
def bytes_moved(workload: Workload, direction: str, with_bias: bool | None = None) -> Traffic:
    """The least bytes that a direction must read and write. Each tensor is counted once.

    Read: elements that some tap reaches, in the sectors that hold them. Written: all of the result. With `with_bias` (default:
    as the layer has it), `forward` also reads the bias, and the gradients include grad_bias, for which every element of
    grad_output must be read.
    """
    layer, e = workload.layer, workload.element_bytes
    bias = layer.bias if with_bias is None else with_bias
    output_elements = prod(workload.output_shape)

    def whole(elements: int) -> int:
        return -(-elements * e // SECTOR_BYTES) * SECTOR_BYTES

    def read_input() -> int:
        return _tensor(workload, layer.in_channels, [_reached_inputs(d) for d in _dimensions(workload)])

    def read_weight() -> int:
        axes = [all_of(n) for n in layer.weight_shape[:2]] + [_used_taps(d) for d in _dimensions(workload)]
        return SECTOR_BYTES * sector_count(axes, SECTOR_BYTES // e)

    def read_grad_output(everything: bool) -> int:
        if everything:
            return whole(output_elements)
        return _tensor(workload, layer.out_channels, [_touched_outputs(d) for d in _dimensions(workload)])

    write_weight = whole(prod(layer.weight_shape)) + (whole(layer.out_channels) if bias else 0)
    match direction:
        case "forward":
            read = read_input() + read_weight() + (whole(layer.out_channels) if bias else 0)
            return Traffic(read, whole(output_elements))
        case "grad_input":
            return Traffic(read_grad_output(False) + read_weight(), whole(prod(workload.input_shape)))
        case "grad_weight":
            return Traffic(read_input() + read_grad_output(bias), write_weight)
        case "backward":
            return Traffic(read_input() + read_weight() + read_grad_output(bias),
                           whole(prod(workload.input_shape)) + write_weight)
    raise ValueError(f"direction {direction!r} is none of {FORWARD}, {GRAD_INPUT}, {GRAD_WEIGHT}, {BACKWARD}")


def intensity(workload: Workload, direction: str = FORWARD) -> float:
    """FLOP per byte, each tensor once."""
    return flops(workload, direction) / bytes_moved(workload, direction).total_bytes


def phases(layer: ConvTranspose) -> tuple[Phases, ...]:
    """The taps of each class of outputs: tap k is in class k * dilation mod stride of (output + padding)."""
    found = []
    for k, s, d in zip(layer.kernel_size, layer.stride, layer.dilation, strict=True):
        taps: dict[int, list[int]] = {}
        for tap in range(k):
            taps.setdefault(tap * d % s, []).append(tap)
        found.append(Phases(s, {r: tuple(taps[r]) for r in sorted(taps)}))
    return tuple(found)


def zero_share(workload: Workload) -> float:
    """Share of outputs that no tap reaches from any input, 0 to 1: there the result is the bias alone."""
    touched = prod(_touched_outputs(d).hits for d in _dimensions(workload))
    return 1 - touched / prod(workload.output_size)


@dataclass(frozen=True)
class _Dimension:
    inputs: int
    outputs: int
    kernel: int
    stride: int
    padding: int
    dilation: int


def _dimensions(workload: Workload) -> list[_Dimension]:
    layer = workload.layer
    return [_Dimension(*v) for v in zip(workload.input_size, workload.output_size, layer.kernel_size, layer.stride,
                                        layer.padding, layer.dilation, strict=True)]


@lru_cache(maxsize=256)
def _inputs_per_tap(d: _Dimension) -> tuple[tuple[int, int], ...]:
    """Per tap k the inputs [lo, hi) that land inside: 0 <= i * stride - padding + k * dilation < outputs."""
    found = []
    for k in range(d.kernel):
        shift = k * d.dilation - d.padding
        lo = max(0, -(shift // d.stride))
        hi = min(d.inputs, (d.outputs - 1 - shift) // d.stride + 1)
        found.append((lo, max(lo, hi)))
    return tuple(found)


def _used_taps(d: _Dimension) -> Axis:
    return runs_axis(d.kernel, [(k, k + 1) for k, (lo, hi) in enumerate(_inputs_per_tap(d)) if hi > lo])


def _reached_inputs(d: _Dimension) -> Axis:
    return runs_axis(d.inputs, [r for r in _inputs_per_tap(d) if r[1] > r[0]])


@lru_cache(maxsize=256)
def _touched_outputs(d: _Dimension) -> Axis:
    """The outputs o = i * stride + k * dilation - padding with 0 <= o < output size. In each residue class they are a union of
    runs, each as long as the input."""
    runs: dict[int, list[tuple[int, int]]] = {}
    for k, (lo, hi) in enumerate(_inputs_per_tap(d)):
        if hi > lo:
            first = lo * d.stride + k * d.dilation - d.padding
            runs.setdefault(first % d.stride, []).append((first // d.stride, first // d.stride + hi - lo))
    return strided_axis(d.outputs, d.stride, runs)


def _tensor(workload: Workload, channels: int, spatial: list[Axis]) -> int:
    """Bytes of the sectors that hold the chosen positions of a tensor (batch x channels x spatial), in its memory format."""
    outer, inner = [all_of(workload.batch)], [all_of(channels)]
    axes = outer + spatial + inner if workload.memory_format == "channels_last" else outer + inner + spatial
    return SECTOR_BYTES * sector_count(axes, SECTOR_BYTES // workload.element_bytes)
