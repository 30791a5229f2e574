"""Makes the tensors of a workload, the same ones each time: random floats, near 1 or beyond float16's range, and small
integers whose sums are exact.

A tensor is filled in blocks, each from its own seed, so that it can be compared with itself made again without a
second copy. Values depend on the kind of device (torch's CPU and CUDA generators differ), on nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from math import ceil, gcd, log2, prod, sqrt

import torch

from ...core.layer import BACKWARD, FORWARD, GRAD_INPUT, GRAD_WEIGHT, ConvTranspose, Workload
from ...core.wrong_values import INTEGERS

NORMAL, RECHECK = "random floats", "new random floats"
FAR = "new random floats beyond float16"
FAR_SAMPLES = f"{FAR} with usual parameters"
NEEDED = {FORWARD: ("input", "weight", "bias"), GRAD_INPUT: ("grad_output", "weight"),
          GRAD_WEIGHT: ("input", "grad_output"), BACKWARD: ("input", "weight", "grad_output")}
BLOCK = 1 << 24           # elements filled from one seed
# For FAR, in float32: each channel and each sample is this much larger or smaller. Many inputs are then above float16's 65504
# or below its normal numbers, whatever factor a whole tensor is multiplied by. float32 and TF32 lose no digit by it.
_FAR = 2.0**17
_LARGEST = 2              # integers are drawn from -2, -1, 1, 2: without 0, so that a missing term always shows
_MOST_EXACT = 256         # whole numbers up to here are exact in bfloat16
_EXACT_FLOAT32 = 2.0**24  # whole numbers up to here are exact in the accumulator of every dtype but float64
_MOST_FLOAT16 = 60_000.0  # just under the largest finite float16
_SIGMAS = 8.0             # sums of zero-mean terms stay within so many standard deviations


def shapes(workload: Workload) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of the workload; bias and grad_bias only where the layer has a bias."""
    bias = {"bias": (workload.layer.out_channels,), "grad_bias": (workload.layer.out_channels,)}
    return {"input": workload.input_shape, "weight": workload.layer.weight_shape, "output": workload.output_shape,
            "grad_output": workload.output_shape, "grad_input": workload.input_shape,
            "grad_weight": workload.layer.weight_shape, **(bias if workload.layer.bias else {})}


def needed(workload: Workload, direction: str) -> tuple[str, ...]:
    """Names of the tensors that the launcher of a direction reads."""
    return tuple(n for n in NEEDED[direction] if n != "bias" or workload.layer.bias)


def results(workload: Workload, direction: str) -> tuple[str, ...]:
    """Names of the tensors that the launcher of a direction writes."""
    names = {FORWARD: ("output",), GRAD_INPUT: ("grad_input",), GRAD_WEIGHT: ("grad_weight", "grad_bias"),
             BACKWARD: ("grad_input", "grad_weight", "grad_bias")}[direction]
    return tuple(n for n in names if n != "grad_bias" or workload.layer.bias)


def torch_dtype(workload: Workload) -> torch.dtype:
    return getattr(torch, workload.dtype)


def fill(tensor: torch.Tensor, name: str, workload: Workload, kind: str) -> None:
    """Write the values of tensor `name` for a kind: NORMAL, INTEGERS, or a name that begins with RECHECK or FAR. Each such name
    gives other values. They do not depend on the order of memory."""
    made = tensor if tensor.is_contiguous() else torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    flat = made.view(-1)
    for start, values in _blocks(flat, name, workload, kind):
        flat[start:start + len(values)] = values
    if made is not tensor:
        tensor.copy_(made)


def changed(tensor: torch.Tensor, name: str, workload: Workload, kind: str) -> tuple[int, int | None]:
    """(elements whose bits differ from what `fill` wrote, flat index of the first or None)."""
    flat, count, first = tensor.contiguous().view(-1), 0, None
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.dtype.itemsize]
    for start, values in _blocks(flat, name, workload, kind):
        differs = flat[start:start + len(values)].view(whole) != values.view(whole)
        here = int(differs.sum())
        if here and first is None:
            first = start + int(differs.to(torch.uint8).argmax())
        count += here
    return count, first


def beyond_float16(workload: Workload, kind: str) -> bool:
    """Whether the values of that kind are such that float16 cannot hold them."""
    return kind.startswith(FAR) and workload.dtype == "float32"


def factors(workload: Workload, name: str, kind: str) -> torch.Tensor | None:
    """The powers of two by which a tensor, an input or a result, is multiplied for FAR: one for each sample and channel, in a
    shape that broadcasts to the tensor's. None: nothing is multiplied. They are chosen so that all products in a sum have the
    same factor: that of the result. Those of channels could be read from the weights, those of samples cannot. For FAR_SAMPLES
    only samples are multiplied, so that nobody sees from the parameters that the inputs are unusual."""
    if not beyond_float16(workload, kind):
        return None
    layer = workload.layer
    usual = kind.startswith(FAR_SAMPLES)
    x, y, of_sample = (_far(f"{workload.seed}/{side}/{kind}", count) for side, count in
                       (("in", layer.in_channels), ("out", layer.out_channels), ("sample", workload.batch)))
    if usual:
        x, y = torch.ones_like(x), torch.ones_like(y)
        of_sample = of_sample if workload.batch > 1 else of_sample.fill_(_FAR)
    ones = (1,) * layer.dims
    if name in ("weight", "grad_weight"):
        of_group = layer.out_channels // layer.groups
        weight = y.view(layer.groups, of_group).repeat_interleave(layer.in_channels // layer.groups, dim=0) / x.view(-1, 1)
        return (weight if name == "weight" else 1 / weight).view(*weight.shape, *ones)
    if name == "bias":  # in the samples with a small factor it counts
        return y if usual else y * of_sample.min()
    if name == "grad_bias":  # the sum over all samples: small ones are lost in it
        return 1 / (y * of_sample.min())
    channels, samples = x if name in ("input", "grad_input") else y, of_sample
    if name == "output" and usual and layer.bias:
        samples = of_sample.clamp(min=1)  # where all the rest is smaller, the bias remains
    found = samples.view(-1, 1) * channels
    return (found if name in ("input", "output") else 1 / found).view(*found.shape, *ones)


def of_part(of_all: torch.Tensor, index: tuple[slice, ...]) -> torch.Tensor:
    """The factors of the part of a tensor that is at `index`."""
    return of_all[tuple(part if of_all.shape[d] > 1 else slice(None) for d, part in enumerate(index))]


def _far(words: str, count: int) -> torch.Tensor:
    """Half of them up, half down; a single channel goes either way."""
    generator = torch.Generator().manual_seed(_seed(words))
    first = int(torch.randint(2, (), generator=generator))
    return _FAR ** (1 - 2.0 * ((torch.randperm(count, generator=generator) + first) % 2))


def _seed(words: str) -> int:
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "little") >> 1


def reduction_length(workload: Workload, result: str) -> int:
    """The most products (for grad_bias: terms) that are summed into one element of a result."""
    layer = workload.layer
    if result == "grad_bias":
        return workload.batch * prod(workload.output_size)
    if result == "grad_weight":
        return workload.batch * prod(workload.input_size)
    if result == "grad_input":
        return layer.out_channels // layer.groups * prod(layer.kernel_size)
    return layer.in_channels // layer.groups * _taps_per_output(layer, workload.input_size) + layer.bias


def _taps_per_output(layer: ConvTranspose, input_size: tuple[int, ...]) -> int:
    # Taps that meet one output are a period stride / gcd(stride, dilation) apart; each meets another input.
    return prod(min(i, ceil(k / (s // gcd(s, d)))) for i, k, s, d in
                zip(input_size, layer.kernel_size, layer.stride, layer.dilation, strict=True))


def _blocks(flat: torch.Tensor, name: str, workload: Workload, kind: str) -> Iterator[tuple[int, torch.Tensor]]:
    generator = torch.Generator(device=flat.device)
    of_channels, inner = factors(workload, name, kind), prod(shapes(workload)[name][2:])
    if of_channels is not None:
        of_channels = of_channels.reshape(-1).to(flat.device, flat.dtype)
    for start in range(0, flat.numel(), BLOCK):
        values = torch.empty(min(BLOCK, flat.numel() - start), dtype=flat.dtype, device=flat.device)
        generator.manual_seed(_seed(f"{workload.seed}/{name}/{kind}/{start}"))
        if kind == INTEGERS:
            largest = _largest(workload, name)
            values.random_(-largest, largest, generator=generator)
            values += values >= 0
            if (halvings := _thinning(workload, name)) > 0:
                keep = torch.empty_like(values).random_(0, 2**halvings, generator=generator) == 0
                values *= keep
        else:
            values.normal_(generator=generator)
            values *= _scale(workload, name)
            if of_channels is not None:  # those of the samples and channels that this block has, one for each element
                first, last = start // inner, (start + len(values) - 1) // inner + 1
                rows = of_channels[torch.arange(first, last, device=flat.device) % len(of_channels)].repeat_interleave(inner)
                values *= rows[start - first * inner:][:len(values)]
            if kind.startswith((RECHECK, FAR)) and name in ("input", "grad_output"):  # as after a rectifier
                values *= torch.empty_like(values).random_(0, 4, generator=generator) != 0
        yield start, values


def _scale(workload: Workload, name: str) -> float:
    """A power of two that keeps results near 1 (forward) and inside float16 (grad_weight), whatever the size."""
    if name == "weight":
        return 2.0 ** -round(log2(max(1, reduction_length(workload, "output"))) / 2)
    if name == "grad_output":
        return 2.0 ** -max(0, ceil(log2(_longest_gradient_sum(workload)) / 2) - 8)
    return 1.0


def _largest(workload: Workload, name: str) -> int:
    """The largest integer of a tensor. In 16-bit dtypes the integers are so large that sums of a few products are exact in
    float32, but not in 16 bits. So a kernel that keeps parts of a sum in 16 bits gives another result."""
    if workload.dtype not in ("float16", "bfloat16"):
        return _LARGEST
    most = _MOST_FLOAT16 / _SIGMAS   # of a result, at one standard deviation
    of_activations = _whose_variance(most / sqrt(_longest_gradient_sum(workload)))
    if name not in ("weight", "grad_weight"):
        return of_activations
    longest = max(reduction_length(workload, result) for result in ("output", "grad_input"))
    return _whose_variance(most**2 / longest / _variance(of_activations))


def _variance(largest: int) -> float:
    """Of whole numbers from -largest to largest without 0."""
    return (largest + 1) * (2 * largest + 1) / 6


def _whose_variance(most: float) -> int:
    """The largest integer for which the variance is at most that."""
    return max(_LARGEST, min(_MOST_EXACT, int((sqrt(1 + 48 * most) - 3) / 4)))


def _thinning(workload: Workload, name: str) -> int:
    """How often to halve the share of non-zeros in grad_output, so that long sums stay exact (and in float16)."""
    if name != "grad_output" or workload.dtype == "float64":
        return 0
    limit = _MOST_FLOAT16 if workload.dtype == "float16" else _EXACT_FLOAT32
    variance = 2.5  # of one number; a product of two has its square
    sigma = variance * sqrt(_longest_gradient_sum(workload))
    return max(0, ceil(2 * log2(_SIGMAS * sigma / limit)))


def _longest_gradient_sum(workload: Workload) -> int:
    return max(reduction_length(workload, "grad_weight"), reduction_length(workload, "grad_bias"))
