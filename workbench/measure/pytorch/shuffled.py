"""Products of stride 1 and a pixel shuffle in place of a stride: padded output position o = cell * stride + phase.

A tap k reaches phase (k * dilation) mod stride, in the cell that lies (k * dilation) div stride further. So each phase is a
convolution of stride 1 over the cells. If kernel = stride, it has one tap and is a matrix product.
"""

from __future__ import annotations

from math import prod

import torch
import torch.nn.functional as F

from ...core.layer import FORWARD, GRAD_INPUT, ConvTranspose, Workload
from .aten import Tensors, channels_last

Cells = tuple[int, ...]   # a number of cells for each dimension


def by_matmul(workload: Workload, direction: str, tensors: Tensors) -> torch.Tensor:
    """For kernel = stride: x and the weight of all taps in one product. In channels_last without groups the channels of a
    position lie together, else those of a sample are its rows."""
    layer, first = workload.layer, (0,) * workload.layer.dims
    positions = tuple(range(2, 2 + layer.dims))
    rows = workload.memory_format == "channels_last" and layer.groups == 1
    if direction == FORWARD:
        x, weight = tensors["input"], tensors["weight"]
        if rows:
            found = x.movedim(1, -1).reshape(-1, layer.in_channels) @ _rows_of(weight)
            found = found.view(workload.batch, *workload.input_size, *layer.kernel_size, layer.out_channels)
            phases = tuple(range(1 + layer.dims, 1 + 2 * layer.dims))
            woven = found.permute(0, -1, *phases, *range(1, 1 + layer.dims))
        else:
            found = _grouped(weight, layer).transpose(1, 2) @ _grouped_sample(x, layer)
            woven = found.view(workload.batch, layer.out_channels, *layer.kernel_size, *workload.input_size)
        return _shuffle(workload, woven, first, tensors.get("bias"))
    apart = _unshuffle(workload, tensors["grad_output"], first, workload.input_size)
    if rows:
        by_position = apart.permute(0, *(p + layer.dims for p in positions), *positions, 1).reshape(
            -1, layer.out_channels * prod(layer.kernel_size))
    if direction == GRAD_INPUT:
        if rows:
            found = by_position @ _rows_of(tensors["weight"]).t()
            return found.view(workload.batch, *workload.input_size, layer.in_channels).movedim(-1, 1)
        found = _grouped(tensors["weight"], layer) @ _grouped_sample(apart, layer)
        return found.view(workload.input_shape)
    if rows:
        found = tensors["input"].movedim(1, -1).reshape(-1, layer.in_channels).t() @ by_position
        return found.view(layer.in_channels, *layer.kernel_size, layer.out_channels).movedim(-1, 1)
    return sum_over_samples(tensors["input"], apart, layer).view(layer.weight_shape)


def by_convolution(workload: Workload, direction: str, tensors: Tensors) -> torch.Tensor:
    """A convolution over the cells whose channels are (channel, phase), in channels_last without groups (phase, channel)."""
    layer = workload.layer
    taps, first, last = _cells(workload)
    count = tuple(b - a + 1 for a, b in zip(first, last, strict=True))
    convolve = getattr(F, f"conv{layer.dims}d")
    if direction == FORWARD:
        left = tuple(m - 1 - a for m, a in zip(taps, first, strict=True))
        right = tuple(b - i + 1 for b, i in zip(last, workload.input_size, strict=True))
        x, padding = _padded(tensors["input"], left, right)
        kernel = _phases(workload, tensors["weight"], taps).unflatten(0, (layer.groups, -1)).transpose(1, 2).flatten(0, 1)
        kernel = _laid(workload, kernel.flip(tuple(range(2, 2 + layer.dims))))
        bias = tensors.get("bias")
        if bias is not None:
            phases = prod(layer.stride)
            bias = bias.repeat(phases) if _phases_first(workload) else bias.repeat_interleave(phases)
        found = convolve(x, kernel, bias, 1, padding, 1, layer.groups)
        return _shuffle(workload, _apart(workload, found), first)
    cells = _together(workload, _unshuffle(workload, tensors["grad_output"], first, count))
    right = tuple(i + m - 2 - b for i, m, b in zip(workload.input_size, taps, last, strict=True))
    cells, padding = _padded(cells, first, right)
    if direction == GRAD_INPUT:
        return convolve(cells, _laid(workload, _phases(workload, tensors["weight"], taps)), None, 1, padding, 1, layer.groups)
    if workload.memory_format == "contiguous":  # one cell has any stride, and PyTorch may take it for channels_last
        cells = cells.contiguous().view(-1).view(cells.shape)
    like = _laid(workload, cells.new_empty(layer.in_channels, cells.shape[1] // layer.groups, *taps))
    _, found, _ = torch.ops.aten.convolution_backward(
        tensors["input"], cells, like, None, [1] * layer.dims, padding, [1] * layer.dims, False, [0] * layer.dims,
        layer.groups, [False, True, False])
    return _taps_of(workload, found, taps)


def sum_over_samples(x: torch.Tensor, other: torch.Tensor, layer: ConvTranspose) -> torch.Tensor:
    """(group, channels of x, rows of other): the product over samples and positions. `other` is (sample, channel, any,
    *positions). Samples are added up one way or the other, whichever moves less memory."""
    n, groups = len(x), layer.groups
    sums = x.shape[1] // groups * (other.numel() // n // prod(x.shape[2:])) * n
    if n == 1 or sums <= x.numel() + other.numel():
        found = _grouped_sample(x, layer) @ _grouped_sample(other, layer, like=x).transpose(2, 3)
        return found[0] if n == 1 else found.sum(0)

    def wide(t: torch.Tensor) -> torch.Tensor:
        rows = tuple(range(1, t.dim() - layer.dims))
        return t.permute(*rows, 0, *range(t.dim() - layer.dims, t.dim())).reshape(groups, -1, n * prod(x.shape[2:]))

    return wide(x) @ wide(other).transpose(1, 2)


def _cells(workload: Workload) -> tuple[Cells, Cells, Cells]:
    """(taps of a phase's convolution, the first cell and the last that some kept output lies in)."""
    layer = workload.layer
    taps = tuple(d * (k - 1) // s + 1 for k, s, d in zip(layer.kernel_size, layer.stride, layer.dilation, strict=True))
    first = tuple(p // s for p, s in zip(layer.padding, layer.stride, strict=True))
    last = tuple((p + o - 1) // s for p, o, s in zip(layer.padding, workload.output_size, layer.stride, strict=True))
    return taps, first, last


def _shuffle(workload: Workload, apart: torch.Tensor, first: Cells, bias: torch.Tensor | None = None) -> torch.Tensor:
    """(n, channels, *phases, *cells) -> the output: interleaved in one pass, what `padding` takes off left out."""
    layer = workload.layer
    dims, cells = layer.dims, apart.shape[2 + layer.dims:]
    woven = apart.permute(0, 1, *(axis for j in range(dims) for axis in (2 + dims + j, 2 + j)))
    shape = (*apart.shape[:2], *(c * s for c, s in zip(cells, layer.stride, strict=True)))
    sides = [-side for side in _sides(workload, first, cells)]
    if any(sides):
        found = F.pad(woven.reshape(shape), sides)
        return found if bias is None else found.add_(bias.view(-1, *[1] * dims))
    found = _laid(workload, apart.new_empty(shape))
    into = found
    for j in reversed(range(dims)):
        into = into.unflatten(2 + j, (cells[j], layer.stride[j]))
    if bias is None:
        into.copy_(woven)
    elif torch.compiler.is_compiling():  # Inductor makes one pass of it, and cannot write through `out` into a view
        into.copy_(woven + bias.view(-1, *[1] * (2 * dims)))
    else:
        torch.add(woven, bias.view(-1, *[1] * (2 * dims)), out=into)
    return found


def _unshuffle(workload: Workload, gy: torch.Tensor, first: Cells, cells: Cells) -> torch.Tensor:
    """grad_output -> (n, channels, *phases, *cells), a view where nothing is cut off or added."""
    dims, sides = workload.layer.dims, _sides(workload, first, cells)
    apart = F.pad(gy, sides) if any(sides) else gy
    for j in reversed(range(dims)):
        apart = apart.unflatten(2 + j, (cells[j], workload.layer.stride[j]))
    return apart.permute(0, 1, *(3 + 2 * j for j in range(dims)), *(2 + 2 * j for j in range(dims)))


def _sides(workload: Workload, first: Cells, cells: Cells) -> list[int]:
    """What to add around the output, as F.pad takes it, so that it is whole cells from `first` on."""
    layer = workload.layer
    return [side for p, o, s, a, c in reversed(list(zip(
        layer.padding, workload.output_size, layer.stride, first, cells, strict=True)))
        for side in (p - a * s, (a + c) * s - p - o)]


def _padded(x: torch.Tensor, left: Cells, right: Cells) -> tuple[torch.Tensor, list[int]]:
    """`x` and the padding that a convolution is to give it; where the two sides differ or cut off, it is in `x` already."""
    if left == right and min(left) >= 0:
        return x, list(left)
    sides = [side for both in reversed(list(zip(left, right, strict=True))) for side in both]
    return F.pad(x, sides), [0] * len(left)


def _phases_first(workload: Workload) -> bool:
    return workload.memory_format == "channels_last" and workload.layer.groups == 1


def _together(workload: Workload, apart: torch.Tensor) -> torch.Tensor:
    """(n, channels, *phases, *cells) -> (n, channels and phases, *cells)."""
    dims = workload.layer.dims
    if not _phases_first(workload):
        return _laid(workload, apart.flatten(1, 1 + dims))
    cells = range(2 + dims, 2 + 2 * dims)
    return apart.permute(0, *cells, *range(2, 2 + dims), 1).flatten(1 + dims).movedim(-1, 1)


def _apart(workload: Workload, together: torch.Tensor) -> torch.Tensor:
    """The way back: (n, channels, *phases, *cells), a view."""
    stride = workload.layer.stride
    if not _phases_first(workload):
        return together.unflatten(1, (-1, *stride))
    return together.unflatten(1, (*stride, -1)).movedim(1 + len(stride), 1)


def _phases(workload: Workload, weight: torch.Tensor, taps: Cells) -> torch.Tensor:
    """(in, out / groups, *kernel) -> (in, out / groups and phases, *taps): zeros where the dilation leaves gaps."""
    layer, dims = workload.layer, workload.layer.dims
    wide = weight.new_zeros(*weight.shape[:2], *(m * s for m, s in zip(taps, layer.stride, strict=True)))
    wide[_set_taps(layer)] = weight
    for j in reversed(range(dims)):
        wide = wide.unflatten(2 + j, (taps[j], layer.stride[j]))
    return _together(workload, wide.permute(0, 1, *(3 + 2 * j for j in range(dims)), *(2 + 2 * j for j in range(dims))))


def _taps_of(workload: Workload, found: torch.Tensor, taps: Cells) -> torch.Tensor:
    """The way back of `_phases`, for the gradient."""
    layer, dims = workload.layer, workload.layer.dims
    apart = _apart(workload, found)
    wide = apart.permute(0, 1, *(axis for j in range(dims) for axis in (2 + dims + j, 2 + j))).reshape(
        *apart.shape[:2], *(m * s for m, s in zip(taps, layer.stride, strict=True)))
    return wide[_set_taps(layer)]


def _set_taps(layer: ConvTranspose) -> tuple[slice, ...]:
    return (slice(None), slice(None), *(slice(0, d * (k - 1) + 1, d) for k, d in
                                        zip(layer.kernel_size, layer.dilation, strict=True)))


def _grouped(weight: torch.Tensor, layer: ConvTranspose) -> torch.Tensor:
    return weight.reshape(layer.groups, layer.in_channels // layer.groups, -1)


def _grouped_sample(t: torch.Tensor, layer: ConvTranspose, *, like: torch.Tensor | None = None) -> torch.Tensor:
    """(n, group, rows, positions)."""
    return t.reshape(len(t), layer.groups, -1, prod((t if like is None else like).shape[-layer.dims:]))


def _rows_of(weight: torch.Tensor) -> torch.Tensor:
    """(in, taps and out)."""
    return weight.movedim(1, -1).reshape(len(weight), -1)


def _laid(workload: Workload, t: torch.Tensor) -> torch.Tensor:
    return channels_last(t) if workload.memory_format == "channels_last" else t
