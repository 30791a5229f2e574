"""Computes the float64 truth: a workload's tensors come in, expected results go out block by block.

All three directions are the definition, tap by tap: input i and tap k meet at output o = i * stride - padding +
k * dilation, so one tap is one matrix product over a strided slice. Whole numbers stay exact. A small result is kept
in a file, where a kernel cannot reach it, and is read after the kernel has run. A large one is computed again for each
comparison, from inputs that were found unchanged. So no float64 tensor of its size is ever made.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from math import prod, sqrt
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from ..core.layer import ConvTranspose, Workload
from .kernel.inputs import factors, of_part, reduction_length, results, shapes

_KEPT_BYTES = {"cpu": 2 << 30, "cuda": 256 << 20}    # above: computed again instead of kept
_BLOCK_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 24}  # of the larger of a block's input and output
FEW = 256  # in a result of at most so many elements the sums may all cancel
Index = tuple[slice, ...]


class Truth:
    """The expected results of one direction for one kind of inputs, divided by their `factors`. `scratch`: a folder that the
    kernel cannot access."""

    def __init__(self, workload: Workload, direction: str, kind: str, *, device: str, scratch: Path) -> None:
        self._workload = workload
        self._names = results(workload, direction)
        self._device = device
        self._kind = kind
        self._scratch = scratch
        self.rms: dict[str, float] = {}  # root mean square of a result's non-zero elements
        self.least_norm: dict[str, float] = {}  # of few elements: the norm of such sums on average; else 0
        self.reduction = {name: reduction_length(workload, name) for name in self._names}

    def prepare(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Compute before the kernel runs: files for what is small, magnitudes for everything."""
        for name in self._names:
            path = self._path(name)
            if path.with_suffix(".json").is_file():  # the same workload was judged before
                known = json.loads(path.with_suffix(".json").read_text())
                self.rms[name], self.least_norm[name] = known["rms"], known["least_norm"]
                continue
            self.rms[name], self.least_norm[name] = self._compute(name, path, tensors)

    def blocks(self, name: str, tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[Index, torch.Tensor]]:
        """(where, expected float64 values on the device) for all of result `name`."""
        if not self._kept(name):
            yield from self._expected(name, tensors)
            return
        shape = shapes(self._workload)[name]
        stored = np.memmap(self._path(name), dtype=np.float64, mode="r", shape=shape)
        for index in _plan(shape, 1, _BLOCK_ELEMENTS[_kind(self._device)], prod(shape[1:])):
            yield index, torch.from_numpy(np.array(stored[index])).to(self._device)

    def _compute(self, name: str, path: Path, tensors: Mapping[str, torch.Tensor]) -> tuple[float, float]:
        kept = np.empty(shapes(self._workload)[name]) if self._kept(name) else None
        squares, nonzero = 0.0, 0
        for index, values in self._expected(name, tensors):
            squares += float(values.square().sum())
            nonzero += int(torch.count_nonzero(values))
            if kept is not None:
                kept[index] = values.cpu().numpy()
        by = factors(self._workload, name, self._kind)
        least_norm = norm_of_random_sums(self._workload, name, tensors, by) if nonzero <= FEW else 0.0
        rms = max(sqrt(squares), least_norm) / sqrt(nonzero) if nonzero else 0.0
        if kept is not None:
            _write(path, kept.tobytes())
            _write(path.with_suffix(".json"), json.dumps({"rms": rms, "least_norm": least_norm}).encode())
        return rms, least_norm

    def _expected(self, name: str, tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[Index, torch.Tensor]]:
        by = factors(self._workload, name, self._kind)
        for index, values in expected_blocks(self._workload, name, tensors):
            yield index, values if by is None else values / of_part(by, index).to(values.device, values.dtype)

    def _kept(self, name: str) -> bool:
        return 8 * prod(shapes(self._workload)[name]) <= _KEPT_BYTES[_kind(self._device)]

    def _path(self, name: str) -> Path:
        what = {**self._workload.to_json(), "preset": "", "memory_format": ""}
        key = json.dumps([what, name, self._kind, self._device, torch.__version__], sort_keys=True)
        return self._scratch / f"truth-{hashlib.sha256(key.encode()).hexdigest()[:24]}.f64"


def norm_of_random_sums(workload: Workload, name: str, tensors: Mapping[str, torch.Tensor], by: torch.Tensor | None = None
                        ) -> float:
    """The norm that a result, divided by its factors, has on average if the signs of its terms are random. Its square is the
    sum of all squared terms: the same result computed from squared tensors."""
    squared = {key: _Squared(tensor) for key, tensor in tensors.items()}
    return sqrt(sum(float((values if by is None else values / of_part(by, index).to(values.device, values.dtype)**2).sum())
                    for index, values in expected_blocks(workload, name, squared)))


class _Squared:
    """A tensor whose blocks are squared when they are read, in float64, so that no squared copy of the whole is made."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self.device, self.shape = tensor, tensor.device, tensor.shape

    def __getitem__(self, index: Index) -> torch.Tensor:
        return self._tensor[index].double().square()

    def double(self) -> torch.Tensor:
        return self._tensor.double().square()


def expected_blocks(workload: Workload, name: str,
                    tensors: Mapping[str, torch.Tensor | _Squared]) -> Iterator[tuple[Index, torch.Tensor]]:
    """Float64 values of result `name` in blocks of bounded size; gradients of parameters come as one block."""
    layer = workload.layer
    if name == "grad_weight":
        yield _everything(layer.weight_shape), _grad_weight(workload, tensors["input"], tensors["grad_output"])
        return
    given = tensors["input"] if name == "output" else tensors["grad_output"]
    limit = _BLOCK_ELEMENTS[given.device.type]
    largest = max(prod(workload.output_shape[1:]), prod(workload.input_shape[1:]))
    if name == "grad_bias":
        total = torch.zeros(layer.out_channels, dtype=torch.float64, device=given.device)
        for index in _plan(given.shape, 1, limit, largest):
            part = given[index].double()
            total[index[1]] += part.sum(dim=(0, *range(2, part.dim())))
        yield _everything((layer.out_channels,)), total
        return
    weight, groups = tensors["weight"], layer.groups
    for index in _plan(shapes(workload)[name], groups, limit, largest):
        n, c = index
        here = c.start // (shapes(workload)[name][1] // groups)
        whole = c == slice(0, shapes(workload)[name][1])
        ci, co = _group_slices(layer, slice(0, groups) if whole else slice(here, here + 1))
        count = groups if whole else 1
        if name == "output":
            w = weight if whole else weight[ci, c.start - co.start:c.stop - co.start]
            values = _scatter(workload, given[n, ci].double(), w.double(), count)
            if layer.bias:
                values += tensors["bias"][c].double().view(1, -1, *[1] * layer.dims)
        else:
            values = _gather(workload, given[n, co].double(), weight[c].double(), count)
        yield index, values


def _scatter(workload: Workload, x: torch.Tensor, w: torch.Tensor, groups: int) -> torch.Tensor:
    """Forward without bias: every tap adds its product into the strided slice of outputs that it meets."""
    layer = workload.layer
    n, co = len(x), groups * w.shape[1]
    padded = x.new_zeros((n, co, *_padded_size(workload)))
    flat = x.reshape(n, groups, -1, prod(workload.input_size))
    for k in np.ndindex(layer.kernel_size):
        tap = w[(..., *k)].reshape(groups, -1, w.shape[1]).transpose(1, 2)
        padded[(..., *_met(workload, k))] += (tap @ flat).reshape(n, co, *workload.input_size)
    cropped = (slice(p, p + o) for p, o in zip(layer.padding, workload.output_size, strict=True))
    return padded[(..., *cropped)].contiguous()


def _gather(workload: Workload, gy: torch.Tensor, w: torch.Tensor, groups: int) -> torch.Tensor:
    """grad_input: every input sums over the outputs it met; outputs that were cropped away count as zero."""
    n, ci = len(gy), len(w)
    padded = _pad(workload.layer, gy)
    total = gy.new_zeros((n, groups, ci // groups, prod(workload.input_size)))
    for k in np.ndindex(workload.layer.kernel_size):
        met = padded[(..., *_met(workload, k))].reshape(n, groups, w.shape[1], -1)
        total += w[(..., *k)].reshape(groups, ci // groups, -1) @ met
    return total.reshape(n, ci, *workload.input_size)


def _grad_weight(workload: Workload, x: torch.Tensor | _Squared, gy: torch.Tensor | _Squared) -> torch.Tensor:
    layer = workload.layer
    total = torch.zeros(layer.weight_shape, dtype=torch.float64, device=x.device)
    largest = max(prod(workload.output_shape[1:]), prod(workload.input_shape[1:]))
    for n, c in _plan(gy.shape, layer.groups, _BLOCK_ELEMENTS[x.device.type], largest):
        whole = c == slice(0, layer.out_channels)
        here = c.start // (layer.out_channels // layer.groups)
        groups = layer.groups if whole else 1
        ci, co = _group_slices(layer, slice(0, groups) if whole else slice(here, here + 1))
        columns = slice(None) if whole else slice(c.start - co.start, c.stop - co.start)
        flat = x[n, ci].double().reshape(n.stop - n.start, groups, -1, prod(workload.input_size))
        padded = _pad(layer, gy[n, c].double())
        for k in np.ndindex(layer.kernel_size):
            met = padded[(..., *_met(workload, k))].reshape(len(flat), groups, -1, flat.shape[-1])
            product = torch.einsum("ngip,ngop->gio", flat, met)
            total[(ci, columns, *k)] += product.reshape(-1, product.shape[-1])
    return total


def _padded_size(workload: Workload) -> tuple[int, ...]:
    """Output size before `padding` is cropped from both sides."""
    return tuple(o + 2 * p for o, p in zip(workload.output_size, workload.layer.padding, strict=True))


def _met(workload: Workload, tap: tuple[int, ...]) -> Index:
    """The uncropped outputs that tap k meets: one for every input."""
    layer = workload.layer
    return tuple(slice(k * d, k * d + (i - 1) * s + 1, s) for k, d, i, s in
                 zip(tap, layer.dilation, workload.input_size, layer.stride, strict=True))


def _pad(layer: ConvTranspose, gy: torch.Tensor) -> torch.Tensor:
    return F.pad(gy, [p for p in reversed(layer.padding) for _ in range(2)])


def _group_slices(layer: ConvTranspose, groups: slice) -> tuple[slice, slice]:
    ci, co = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    return slice(groups.start * ci, groups.stop * ci), slice(groups.start * co, groups.stop * co)


def _plan(shape: tuple[int, ...], groups: int, limit: int, largest: int) -> Iterator[Index]:
    """Blocks of whole samples; where one sample is above the limit, of channels that share a group."""
    if len(shape) == 1:
        yield _everything(shape)
        return
    samples = max(1, limit // max(1, largest))
    for n in range(0, shape[0], samples):
        batch = slice(n, min(shape[0], n + samples))
        if samples > 1 or largest <= limit:
            yield batch, slice(0, shape[1])
            continue
        per_group = shape[1] // groups
        step = min(per_group, max(1, limit // prod(shape[2:])))
        for start in (g * per_group + c for g in range(groups) for c in range(0, per_group, step)):
            yield batch, slice(start, min(start + step, (start // per_group + 1) * per_group))


def _everything(shape: tuple[int, ...]) -> Index:
    return tuple(slice(0, n) for n in shape[:2])


def _kind(device: str) -> str:
    return "cuda" if device.startswith("cuda") else "cpu"


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_bytes(data)
    partial.replace(path)
