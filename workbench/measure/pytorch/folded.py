"""A matrix product and F.fold in place of a transposed convolution; its gradients are F.unfold and a matrix product.

F.fold works in 2-D. A 1-D layer becomes a 2-D layer with one row. A 3-D layer is folded plane by plane; the planes of each tap
along the depth are added at the outputs that the tap reaches.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from ...core.layer import FORWARD, GRAD_INPUT, Workload
from .aten import Tensors


def by_matmul(workload: Workload, direction: str, tensors: Tensors) -> torch.Tensor:
    solid = {name: _in_three_dimensions(t, workload) for name, t in tensors.items()
             if name in ("input", "weight", "grad_output")}
    work = workload.in_three_dimensions()
    if direction == FORWARD:
        found = _output(work, solid["input"], solid["weight"])
        found = found.reshape(workload.output_shape)
        return found if tensors.get("bias") is None else found.add_(tensors["bias"].view(-1, *[1] * workload.layer.dims))
    gradient = _grad_input if direction == GRAD_INPUT else _grad_weight
    return gradient(work, solid).reshape(workload.input_shape if direction == GRAD_INPUT else workload.layer.weight_shape)


def _output(work: Workload, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    layer, (depth, *size) = work.layer, work.output_size
    planes = _planes(x, layer.groups)
    deep = None
    for tap, reached in _depth(work):
        columns = _tap(weight, tap, layer.groups).transpose(1, 2) @ planes
        folded = F.fold(columns.flatten(1, 2), size, **_window(work))
        folded = folded.unflatten(0, (work.batch, -1)).transpose(1, 2)
        if layer.kernel_size[0] == 1 and layer.stride[0] == 1 and layer.padding[0] == 0:  # no plane but its own
            return folded
        if deep is None:
            deep = folded.new_zeros(work.batch, layer.out_channels, depth + 2 * layer.padding[0], *size)
        deep[:, :, reached] += folded
    assert deep is not None
    return deep[:, :, layer.padding[0]:layer.padding[0] + depth]


def _grad_input(work: Workload, tensors: Tensors) -> torch.Tensor:
    total = None
    for tap, columns in _columns(work, tensors["grad_output"]):
        found = _tap(tensors["weight"], tap, work.layer.groups) @ columns
        total = found if total is None else total.add_(found)
    assert total is not None
    return total.reshape(work.batch, work.input_size[0], work.layer.in_channels, -1).transpose(1, 2)


def _grad_weight(work: Workload, tensors: Tensors) -> torch.Tensor:
    layer = work.layer
    planes = _planes(tensors["input"], layer.groups)
    taps = []
    for _, columns in _columns(work, tensors["grad_output"]):
        sums = len(planes) * layer.in_channels * columns.shape[2]
        found = ((planes @ columns.transpose(2, 3)).sum(0) if sums <= planes.numel() + columns.numel() else
                 torch.einsum("ngip,ngop->gio", planes, columns))
        taps.append(found.reshape(layer.in_channels, layer.weight_shape[1], *layer.kernel_size[1:]))
    return taps[0] if len(taps) == 1 else torch.stack(taps, dim=2)


def _columns(work: Workload, gy: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """For each tap along the depth: (tap, the outputs that meet each input: plane, group, channel and tap, position)."""
    padding = work.layer.padding[0]
    deep = F.pad(gy, (0, 0, 0, 0, padding, padding)) if padding else gy
    for tap, reached in _depth(work):
        met = deep[:, :, reached].transpose(1, 2).flatten(0, 1)
        yield tap, F.unfold(met, **_window(work)).unflatten(1, (work.layer.groups, -1))


def _planes(x: torch.Tensor, groups: int) -> torch.Tensor:
    """(plane, group, channel, position): the planes of all samples."""
    return x.transpose(1, 2).flatten(0, 1).flatten(2).unflatten(1, (groups, -1))


def _tap(weight: torch.Tensor, tap: int, groups: int) -> torch.Tensor:
    """(group, in, out and taps of a plane)."""
    return weight[:, :, tap].reshape(groups, len(weight) // groups, -1)


def _depth(work: Workload) -> Iterator[tuple[int, slice]]:
    """(tap, the planes of the padded output that it reaches from all inputs)."""
    layer = work.layer
    for tap in range(layer.kernel_size[0]):
        begin = tap * layer.dilation[0]
        yield tap, slice(begin, begin + (work.input_size[0] - 1) * layer.stride[0] + 1, layer.stride[0])


def _window(work: Workload) -> dict[str, tuple[int, ...]]:
    layer = work.layer
    return {"kernel_size": layer.kernel_size[1:], "dilation": layer.dilation[1:], "padding": layer.padding[1:],
            "stride": layer.stride[1:]}


def _in_three_dimensions(t: torch.Tensor, workload: Workload) -> torch.Tensor:
    lead = 3 - workload.layer.dims
    return t.reshape(*t.shape[:2], *[1] * lead, *t.shape[2:]) if lead else t


