"""The calls on which an exported module is judged: its own workload, and other inputs that it must serve."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ...core.errors import BadRequest
from ...core.layer import ConvTranspose, Workload
from ..kernel.inputs import INTEGERS, NORMAL
from ..pytorch.aten import channels_last

_SMALL_SIZE = 12
_OF_MEAN = -0.375
OTHER_GRADS = ("summed", "summed over samples", "averaged")


Arguments = dict[str, int | bool | tuple[int, ...]]   # of the constructor of a transposed convolution


@dataclass(frozen=True)
class ModuleCase:
    """One call of the module. `own`: with the layer its kernels were chosen for; `layout` of input and grad_output."""

    name: str
    workload: Workload
    arguments: Arguments
    layout: str = "contiguous"          # "contiguous" | "channels_last" | "strided"
    own: bool = True
    kinds: tuple[str, ...] = (INTEGERS,)


def cases(workload: Workload, arguments: Arguments) -> list[ModuleCase]:
    """The workload itself, with exact integers and with random floats. All other cases are small and have exact integers."""
    small = _small(workload, workload.layer)
    larger = replace(small, batch=3, input_size=tuple(i + 5 for i in small.input_size))
    found = [ModuleCase("its own workload", workload, arguments, workload.memory_format, kinds=(INTEGERS, NORMAL)),
             ModuleCase("another size", larger, arguments),
             ModuleCase("a non-contiguous input", small, arguments, "strided")]
    if workload.layer.dims > 1:
        found.append(ModuleCase("a channels_last input", small, arguments, "channels_last"))
    for name, changes in _other_arguments(workload.layer, arguments):
        layer = replace(workload.layer, **changes)
        found.append(ModuleCase(name, _small(workload, layer), {**arguments, **changes}, own=False))
    return found


def laid_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values in another layout (a copy), or the tensor itself when it is to be contiguous. `part_of_batch`,
    `part_of_channels`, `crop`: a part of a larger tensor; with " in channels_last" of one whose channels come last in memory,
    also of one of three dimensions. `shifted`: dense, and begins one element behind an address where new memory begins.
    `reversed`: the last dimension has the largest stride. `loose`: dimensions of size 1 have stride 1, as after permute; the
    tensor is contiguous all the same."""
    if layout == "channels_last":
        return channels_last(tensor)
    layout, of, _ = layout.partition(" in ")
    whole = _of_last_channels if of else lambda x: x
    if layout in ("part_of_batch", "part_of_channels"):
        dim = 0 if layout == "part_of_batch" else 1
        if tensor.dim() <= dim or not tensor.shape[dim]:
            return tensor
        other = tensor.narrow(dim, 0, 1)
        return whole(torch.cat([other + 1 if tensor.is_floating_point() else other, tensor, other], dim)).narrow(
            dim, 1, tensor.shape[dim])
    if layout == "crop":
        dims = min(tensor.dim(), max(1, tensor.dim() - 2))
        wide = whole(torch.nn.functional.pad(tensor, (1, 2) * dims, value=1))
        return wide[(..., *(slice(1, -2) for _ in range(dims)))] if dims else tensor
    if layout == "shifted":
        return torch.cat([tensor.new_ones(1), tensor.reshape(-1)])[1:].view(tensor.shape)
    if layout == "loose":
        return tensor.as_strided(tensor.shape, [1 if n == 1 else s for n, s in zip(tensor.shape, tensor.stride(), strict=True)])
    if layout == "reversed":
        order = tuple(reversed(range(tensor.dim())))
        return tensor.permute(order).contiguous().permute(order)
    if layout == "strided":  # every second element of a row that runs the other way round
        wide = tensor.new_zeros((*tensor.shape[:-1][::-1], 2 * tensor.shape[-1]))
        view = wide.permute(*reversed(range(tensor.dim() - 1)), tensor.dim() - 1)[..., ::2]
        return view.copy_(tensor)
    return tensor


def _of_last_channels(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.movedim(1, -1).contiguous().movedim(-1, 1) if tensor.dim() > 2 else tensor


def other_grad(grad_output: torch.Tensor, how: str) -> torch.Tensor:
    """A grad_output of other values. `how`: one of `OTHER_GRADS`. The first two are those of a sum of the output over some
    dimensions, and have stride 0 there. "averaged" is that of a mean of all values: one value that is not 1."""
    if how == "averaged":
        return grad_output.new_full((), _OF_MEAN).expand(grad_output.shape)
    first = min(2, grad_output.dim() - 1)   # spatial dimension
    chosen = [(d >= first) == (how == "summed") for d in range(grad_output.dim())]
    return grad_output[tuple(slice(0, 1) if one else slice(None) for one in chosen)].expand(grad_output.shape)


def _other_arguments(layer: ConvTranspose, arguments: Arguments) -> list[tuple[str, Arguments]]:
    """Changes the constructor can express, which no kernel for one layer serves. output_padding stays valid: it must
    be smaller than stride or dilation, and these only grow."""
    wider = {"kernel_size": tuple(k + 1 for k in layer.kernel_size), "stride": tuple(s + 1 for s in layer.stride),
             "dilation": tuple(d + 1 for d in layer.dilation)}
    grouped = {"in_channels": 6, "out_channels": 4, "groups": 2, "bias": not layer.bias,
               "padding": tuple(p + 1 for p in layer.padding)}
    found = [("another kernel, stride and dilation", {k: v for k, v in wider.items() if k in arguments}),
             ("other channels, groups and bias", {k: v for k, v in grouped.items() if k in arguments})]
    if "groups" not in arguments:
        found[1][1]["out_channels"] = 5
    return found


def _small(workload: Workload, layer: ConvTranspose) -> Workload:
    """At most 2 samples and some 12 positions a dimension, more where the output would vanish."""
    size = tuple(min(i, _SMALL_SIZE if layer.dims < 3 else 5) for i in workload.input_size)
    while True:
        try:
            return Workload(layer, min(workload.batch, 2), size, workload.dtype, seed=workload.seed)
        except BadRequest:  # the padding crops all of it
            size = tuple(2 * i for i in size)
