"""The ways PyTorch has of computing one direction: a key of the ladder comes in, a call on the workload's tensors goes out.

`quick` is what a user would try first; `strong` is everything that costs a PyTorch user no CUDA. A way is *drop-in* when
tensors come and go in the caller's memory format and no switch beyond TF32 and cudnn.benchmark is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ...core.layer import BACKWARD, FORWARD, GRAD_INPUT, GRAD_WEIGHT, Workload
from ..memory_formats import CHANNELS_LAST

Tensors = dict[str, torch.Tensor]
# (grad_input, grad_weight, grad_bias) that aten::convolution_backward is asked for; grad_bias only with a bias
_WANTED = {GRAD_INPUT: (True, False, False), GRAD_WEIGHT: (False, True, True), BACKWARD: (True, True, True)}
_GRADIENTS = ("grad_input", "grad_weight", "grad_bias")


class Unavailable(Exception):
    """This way does not exist for this workload; the text says why."""


@dataclass(frozen=True)
class Way:
    """`kind` says how it is computed; `tf32` and `benchmark` are cuDNN's switches (None: as PyTorch stands)."""

    name: str
    kind: str = "eager"
    tf32: bool | None = None
    benchmark: bool | None = None
    drop_in: bool = True
    replayed: bool = True     # timed as a CUDA graph of the call, so that PyTorch's host time is not counted


WAYS = {
    "default": Way("eager"),
    "tf32_on": Way("eager, TF32 on", tf32=True, benchmark=True),
    "tf32_off": Way("eager, TF32 off", tf32=False, benchmark=True),
    "tf32_off_plain": Way("eager, TF32 off, no cudnn.benchmark", tf32=False, benchmark=False),
    "benchmark": Way("eager, cudnn.benchmark", benchmark=True),
    "host": Way("eager, called by the host", replayed=False),
    "channels_last": Way("channels_last, conversion not counted", "channels_last", benchmark=True, drop_in=False),
    "channels_last_counted": Way("channels_last, conversion counted", "converted", benchmark=True, drop_in=False),
    "as_convolution": Way("as convolution, flipped weight", "flipped", benchmark=True),
    "as_convolution_tf32_off": Way("as convolution, flipped weight, TF32 off", "flipped", tf32=False, benchmark=True),
    "compile": Way("torch.compile", "compiled", benchmark=True),
    "compile_tf32_off": Way("torch.compile, TF32 off", "compiled", tf32=False, benchmark=True),
}


def ladder(strength: str, workload: Workload, device: str) -> list[str]:
    """Keys of WAYS for "quick", "strong" or "default" (PyTorch as it stands, alone). Ways that cannot be for this layer
    are left out, not reported missing.
    At stride 1 a convolution with flipped weight belongs to both: it is drop-in, and often faster (H200, #74 forward).

    Those with cudnn.benchmark come first: a process keeps the algorithm that cuDNN chose first for a problem (H200, torch
    2.11, 3 x 7 taps in fp32: 7.50 ms when benchmark came first, 8.62 ms after the default), and the strong
    one counts.
    """
    if strength == "default":
        return ["default"]
    dense = ["as_convolution"] if set(workload.layer.stride) == {1} else []
    if device == "cpu":
        return ["default", *(dense if strength == "strong" else [])]
    single = workload.dtype == "float32"
    if single:
        dense += [f"{key}_tf32_off" for key in dense]
    if strength != "strong":
        return [*(["tf32_on", "tf32_off"] if single else ["default"]), *dense]
    layouts = ["channels_last", "channels_last_counted"] if (
        workload.layer.dims > 1 and workload.memory_format == "contiguous") else []
    if not single:
        return ["benchmark", *layouts, *dense, "compile", "default", "host"]
    return ["tf32_on", "tf32_off", *layouts, *dense, "compile", "compile_tf32_off", "default", "tf32_off_plain", "host"]


def bind(kind: str, workload: Workload, direction: str, plain: Tensors) -> Callable[[], Tensors]:
    """A call without arguments that computes the direction's results from contiguous tensors `plain`.

    Raises `Unavailable`. What a way may do once and for all (laying out its inputs) happens here, uncounted.
    """
    if kind == "channels_last":
        there = {name: channels_last(t) for name, t in plain.items()}
        return lambda: call(workload, direction, there)
    if kind == "converted":
        def converted() -> Tensors:
            found = call(workload, direction, {name: channels_last(t) for name, t in plain.items()})
            return {name: t.contiguous() if t is not None else t for name, t in found.items()}
        return converted
    own = {name: channels_last(t) if workload.memory_format == "channels_last" else t for name, t in plain.items()}
    if kind == "flipped":
        if set(workload.layer.stride) != {1}:
            raise Unavailable("Only a layer of stride 1 is a convolution with flipped weight.")
        return lambda: as_convolution(workload, direction, own)
    if kind == "compiled":
        torch._dynamo.reset()
        compiled = torch.compile(lambda tensors: call(workload, direction, tensors), dynamic=False)
        try:
            compiled(own)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:  # what dynamo and inductor raise derives from it
            raise Unavailable(f"torch.compile gave up: {str(error).splitlines()[0][:120]}") from error
        return lambda: compiled(own)
    return lambda: call(workload, direction, own)


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
    layout = CHANNELS_LAST.get(tensor.dim())
    return tensor.contiguous(memory_format=layout) if layout else tensor


@contextmanager
def switches(way: Way) -> Iterator[None]:
    """PyTorch's switches for one way, put back afterwards."""
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.benchmark
    if way.tf32 is not None:
        cudnn.allow_tf32 = way.tf32
    if way.benchmark is not None:
        cudnn.benchmark = way.benchmark
    try:
        yield
    finally:
        cudnn.allow_tf32, cudnn.benchmark = before


def _swapped(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """(in, out / groups, taps) <-> (out, in / groups, taps), group by group."""
    rows, columns = weight.shape[0] // groups, weight.shape[1]
    return weight.reshape(groups, rows, columns, *weight.shape[2:]).transpose(1, 2).reshape(
        groups * columns, rows, *weight.shape[2:])
