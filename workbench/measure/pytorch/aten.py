"""A layer by PyTorch's own operators: the transposed convolution, and at stride 1 the convolution with flipped weight."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ...core.layer import BACKWARD, FORWARD, GRAD_INPUT, GRAD_WEIGHT, Workload
from ..device import CHANNELS_LAST_LAYOUTS

Tensors = dict[str, torch.Tensor]
# (grad_input, grad_weight, grad_bias) that aten::convolution_backward is asked for; grad_bias only with a bias
_WANTED = {GRAD_INPUT: (True, False, False), GRAD_WEIGHT: (False, True, True), BACKWARD: (True, True, True)}
_GRADIENTS = ("grad_input", "grad_weight", "grad_bias")


def call(workload: Workload, direction: str, tensors: Tensors) -> Tensors:
    """The results of one direction by PyTorch's transposed convolution, in the memory format of the tensors."""
    layer = workload.layer
    if direction == FORWARD:
        operator = getattr(F, f"conv_transpose{layer.dims}d")
        return {"output": operator(tensors["input"], tensors["weight"], tensors.get("bias"), layer.stride,
                                   layer.padding, layer.output_padding, layer.groups, layer.dilation)}
    gx, gw, gb = _WANTED[direction]
    gradients = torch.ops.aten.convolution_backward(
        tensors["grad_output"], tensors["input"], tensors["weight"], [layer.out_channels] if layer.bias else None,
        layer.stride, layer.padding, layer.dilation, True, layer.output_padding, layer.groups,
        [gx, gw, gb and layer.bias])
    return dict(zip(_GRADIENTS, gradients, strict=True))


def as_convolution(workload: Workload, direction: str, tensors: Tensors) -> Tensors:
    """The same at stride 1 by a plain convolution: taps flipped, channels swapped within each group, the input padded by
    what `padding` leaves of d (k - 1)."""
    layer = workload.layer
    spatial = tuple(range(2, 2 + layer.dims))
    left = [d * (k - 1) - p for d, k, p in zip(layer.dilation, layer.kernel_size, layer.padding, strict=True)]
    uneven = any(layer.output_padding) or min(left) < 0
    sides = [side for one, extra in zip(reversed(left), reversed(layer.output_padding), strict=True)
             for side in (one, one + extra)]
    x = F.pad(tensors["input"], sides) if uneven else tensors["input"]
    padding = (0,) * layer.dims if uneven else tuple(left)
    weight = _swapped(tensors["weight"], layer.groups).flip(spatial)
    if direction == FORWARD:
        operator = getattr(F, f"conv{layer.dims}d")
        return {"output": operator(x, weight, tensors.get("bias"), 1, padding, layer.dilation, layer.groups)}
    gx, gw, gb = _WANTED[direction]
    one, none = [1] * layer.dims, [0] * layer.dims
    found = dict(zip(_GRADIENTS, torch.ops.aten.convolution_backward(
        tensors["grad_output"], x, weight, [layer.out_channels] if layer.bias else None, one, padding, layer.dilation,
        False, none, layer.groups, [gx, gw, gb and layer.bias]), strict=True))
    if gx and uneven:
        found["grad_input"] = F.pad(found["grad_input"], [-side for side in sides])
    if gw:
        found["grad_weight"] = _swapped(found["grad_weight"].flip(spatial), layer.groups)
    return found


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """Activations and weight both are laid out so, as PyTorch advises; what has no such layout stays as it is."""
    layout = CHANNELS_LAST_LAYOUTS.get(tensor.dim())
    return tensor.contiguous(memory_format=layout) if layout else tensor


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Whether the tensor is laid out so, without gaps. A tensor with one channel, or one position, may also be contiguous."""
    layout = CHANNELS_LAST_LAYOUTS.get(tensor.dim())
    return layout is not None and tensor.is_contiguous(memory_format=layout)


def _swapped(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """(in, out / groups, taps) <-> (out, in / groups, taps), group by group."""
    rows, columns = weight.shape[0] // groups, weight.shape[1]
    return weight.reshape(groups, rows, columns, *weight.shape[2:]).transpose(1, 2).reshape(
        groups * columns, rows, *weight.shape[2:])
