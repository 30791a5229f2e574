"""A transposed convolution by other operators of PyTorch: tensors come in, the results of one direction go out.

core/pytorch_ways.py says which formulations there are and which layers they serve. Every call pays for laying out tensors anew,
also the weight, because it changes with every training step. Results come in the workload's memory format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from ...core.layer import BACKWARD, FORWARD, GRAD_INPUT, GRAD_WEIGHT, Workload
from . import folded, shuffled
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


PRODUCTS: dict[str, Product] = {
    "matmul_permute": shuffled.by_matmul,
    "shuffled": shuffled.by_convolution,
    "fold": folded.by_matmul,
    "dense": dense(eager),
    "dense_shuffled": dense(shuffled.by_convolution),
    "tf32x3": split(eager),
    "tf32x3_flipped": split(flipped),
    "tf32x3_matmul_permute": split(shuffled.by_matmul),
}
