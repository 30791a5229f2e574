"""A transposed convolution by other operators of PyTorch: tensors come in, the results of one direction go out.

core/pytorch_ways.py says which formulations there are and which layers they serve. Every call pays for laying out tensors anew,
also the weight, because it changes with every training step. Results come in the workload's memory format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F

from ...core.layer import BACKWARD, FORWARD, GRAD_INPUT, GRAD_WEIGHT, Workload
from . import shuffled
from .aten import Tensors, as_convolution, call, channels_last

# The main result of one direction; with a bias in `tensors` the output has it added.
Product = Callable[[Workload, str, Tensors], torch.Tensor]
RESULT = {FORWARD: "output", GRAD_INPUT: "grad_input", GRAD_WEIGHT: "grad_weight"}
_SPLIT = {FORWARD: ("input", "weight"), GRAD_INPUT: ("grad_output", "weight"), GRAD_WEIGHT: ("input", "grad_output")}
_TF32_HALF, _TF32_MASK = 0x1000, ~0x1FFF   # of the 13 bits that float32 has and TF32 has not


def formulated(kind: str, workload: Workload, direction: str, tensors: Tensors) -> Tensors:
    """The results of a direction, as `aten.call` gives them."""
    if direction == BACKWARD:
        return {**formulated(kind, workload, GRAD_INPUT, tensors), **formulated(kind, workload, GRAD_WEIGHT, tensors)}
    found = PRODUCTS[kind](workload, direction, tensors)
    found = channels_last(found) if workload.memory_format == "channels_last" else found.contiguous()
    results = {RESULT[direction]: found}
    if direction == GRAD_WEIGHT and workload.layer.bias:
        results["grad_bias"] = tensors["grad_output"].sum(dim=(0, *range(2, 2 + workload.layer.dims)))
    return results


def eager(workload: Workload, direction: str, tensors: Tensors) -> torch.Tensor:
    return call(_without_bias(workload), direction, tensors)[RESULT[direction]]


def flipped(workload: Workload, direction: str, tensors: Tensors) -> torch.Tensor:
    return as_convolution(_without_bias(workload), direction, tensors)[RESULT[direction]]


def dense(inner: Product) -> Product:
    """The layer without groups, its weight zero between them."""
    def product(workload: Workload, direction: str, tensors: Tensors) -> torch.Tensor:
        layer = workload.layer
        whole = replace(workload, layer=replace(layer, groups=1))
        weight = tensors["weight"].new_zeros(whole.layer.weight_shape)
        if direction != GRAD_WEIGHT:  # the gradient asks for its shape alone
            own = tensors["weight"].reshape(layer.groups, -1, *layer.weight_shape[1:])
            _blocks(weight, layer.groups).copy_(own)
        if workload.memory_format == "channels_last":
            weight = channels_last(weight)
        found = inner(whole, direction, {**tensors, "weight": weight})
        return found if direction != GRAD_WEIGHT else _blocks(found, layer.groups).reshape(layer.weight_shape)
    return product


def split(inner: Product) -> Product:
    """Each operand as the sum of two TF32 numbers; of the four products the smallest is left out."""
    def product(workload: Workload, direction: str, tensors: Tensors) -> torch.Tensor:
        names = _SPLIT[direction]
        (big_a, small_a), (big_b, small_b) = (two_parts(tensors[name]) for name in names)
        bare = {**tensors, "bias": None}
        small = inner(workload, direction, {**bare, names[0]: big_a, names[1]: small_b})
        small += inner(workload, direction, {**bare, names[0]: small_a, names[1]: big_b})
        return small.add_(inner(workload, direction, {**tensors, names[0]: big_a, names[1]: big_b}))
    return product


def two_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(the nearest TF32 number, what is left): the rest loses at most its own 12th bit when it is made TF32."""
    big = (tensor.view(torch.int32) + _TF32_HALF).bitwise_and_(_TF32_MASK).view(torch.float32)
    return big, tensor - big


def _blocks(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """(group, in, out, *taps), a view: the blocks on the diagonal of a weight without groups."""
    rows, columns = weight.shape[0] // groups, weight.shape[1] // groups
    apart = weight.unflatten(1, (groups, columns)).unflatten(0, (groups, rows))
    return apart.diagonal(dim1=0, dim2=2).movedim(-1, 0)


def _without_bias(workload: Workload) -> Workload:
    """Its bias is added by the tensors that hold one; its gradient is made once, not by every product."""
    return replace(workload, layer=replace(workload.layer, bias=False))


def fold(workload: Workload, direction: str, tensors: Tensors) -> torch.Tensor:
    """A matrix product and F.fold; the gradients are F.unfold and a matrix product.

    F.fold works in 2-D. A 1-D layer becomes a 2-D layer with one row. A 3-D layer is folded plane by plane; the planes of each
    tap along the depth are added at the outputs that the tap reaches.
    """
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


PRODUCTS: dict[str, Product] = {
    "matmul_permute": shuffled.by_matmul,
    "shuffled": shuffled.by_convolution,
    "fold": fold,
    "dense": dense(eager),
    "dense_shuffled": dense(shuffled.by_convolution),
    "tf32x3": split(eager),
    "tf32x3_flipped": split(flipped),
    "tf32x3_matmul_permute": split(shuffled.by_matmul),
}
