"""Known wrong formulas of a transposed convolution, evaluated in float64: which of them gives the wrong output?

Right is, per dimension: output o and tap k read input (o + padding - k * dilation) / stride, where that is whole and
inside. Every mistake changes one piece of that; two may come together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from math import prod

import numpy as np
import torch

from ..core.layer import ConvTranspose

_NEAR = 1e-3  # of the output's root mean square: far below any wrong term, above every round-off of float32 and TF32
_MOST_WORK = 3e9        # multiply-adds of all formulas that are tried, a few seconds
_WORK_OF_PAIRS = 3e6    # of one formula: there are about a hundred pairs
_ROWS = {1: ("positions",), 2: ("rows", "columns"), 3: ("planes", "rows", "columns")}


@dataclass(frozen=True)
class Mistake:
    """`name` is the text of the report. `advice` is one step; it quotes the corrected line of code if one line is enough."""

    key: str
    name: str
    advice: str


MISTAKES = {m.key: m for m in (
    Mistake("no_test", "no divisibility test", "Add the test: if (t % stride != 0) continue;"),
    Mistake("truncated", "integer division that truncates towards zero, no divisibility test",
            "Test t before dividing: if (t < 0 || t % stride != 0) continue;"),
    Mistake("padding_late", "padding subtracted after the division",
            "Add padding before dividing: t = o + padding - k * dilation."),
    Mistake("padding_sign", "padding with the wrong sign", "Write t = o + padding - k * dilation."),
    Mistake("padding_missing", "padding ignored", "Write t = o + padding - k * dilation."),
    Mistake("flipped", "taps flipped", "Read weight[ci, co, k], not weight[ci, co, K - 1 - k]."),
    Mistake("output_padding", "output_padding shifts the index",
            "Use output_padding in the output size only, never in the index."),
    Mistake("dilation", "dilation ignored", "Write k * dilation where the tap's place is computed."),
    Mistake("stride", "stride ignored", "Divide by stride after the divisibility test."),
    Mistake("channels", "channels of the weight swapped", "The weight is [in_channels, out_channels / groups, ...]."),
    Mistake("groups", "groups ignored: every output sums over all input channels",
            "Sum over the in_channels / groups channels of the output's own group."),
    Mistake("first_group", "groups ignored: every output reads the first group's input",
            "Start at group * in_channels / groups."),
    Mistake("bias", "bias missing", "Add bias[co] to every output."),
)}
_PER_DIMENSION = ("no_test", "truncated", "padding_late", "padding_sign", "flipped", "output_padding", "dilation",
                  "stride")


@dataclass(frozen=True)
class Guess:
    """`found`: the mistakes that reproduce the output. `tried`: the number of formulas. `differs`: single mistakes that give
    another output."""

    found: str
    advice: str
    tried: int
    differs: tuple[str, ...]


def guess(layer: ConvTranspose, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
          got: torch.Tensor) -> Guess | None:
    """The known mistake that gives the wrong output, or None. Tensors on the CPU, any float dtype."""
    wide = layer.in_three_dimensions()
    lead = (1,) * (3 - layer.dims)
    x3 = x.double().reshape(*x.shape[:2], *lead, *x.shape[2:])
    w3 = weight.double().reshape(*weight.shape[:2], *lead, *weight.shape[2:])
    b = None if bias is None else bias.double()
    target = got.double().reshape(*got.shape[:2], *lead, *got.shape[2:])
    work = prod(target.shape) * prod(w3.shape[2:]) * max(1, w3.shape[0])
    limit = _NEAR * float(target.square().mean().sqrt())
    right = evaluate(wide, x3, w3, b, target.shape, ())
    tried, differs = 0, []
    for mistakes in _combinations(layer, pairs=work < _WORK_OF_PAIRS):
        if work * tried > _MOST_WORK:
            break
        tried += 1
        wrong = evaluate(wide, x3, w3, b, target.shape, mistakes)
        if torch.equal(wrong, right):
            continue  # on this layer it is no mistake, or two that undo each other
        if bool(((wrong - target).abs() <= limit).all()):
            return Guess(_named(layer, mistakes), MISTAKES[mistakes[0][0]].advice, tried, tuple(differs[:6]))
        if len(mistakes) == 1 and mistakes[0][1] == _all(layer):
            differs.append(MISTAKES[mistakes[0][0]].name)
    return None


def evaluate(layer: ConvTranspose, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
             shape: tuple[int, ...], mistakes: tuple[tuple[str, tuple[int, ...]], ...]) -> torch.Tensor:
    """The layer with these mistakes, three spatial dimensions, float64. () is the right formula.

    A mistake is (key, the dimensions 0..2 it is made in).
    """
    keys = {key: dims for key, dims in mistakes}
    maps = [_reads(layer, d, x.shape[2 + d], shape[2 + d], frozenset(k for k, dims in mistakes if d in dims))
            for d in range(3)]
    if "channels" in keys:
        weight = weight.reshape(weight.shape[1], weight.shape[0], *weight.shape[2:]).transpose(0, 1)
    flips = tuple(2 + d for d in keys.get("flipped", ()))
    if flips:
        weight = weight.flip(flips)
    groups, ci, co = layer.groups, layer.in_channels // layer.groups, weight.shape[1]
    output = x.new_zeros((x.shape[0], layer.out_channels, *shape[2:]))
    for taps in np.ndindex(*layer.kernel_size):
        read = x
        for d, tap in enumerate(taps):
            read = _gather(read, 2 + d, maps[d][:, tap])
        tap_weight = weight[(..., *taps)]
        for g in range(groups):
            source = slice(0, ci) if "first_group" in keys else slice(g * ci, (g + 1) * ci)
            if "groups" in keys:
                w = tap_weight
                source = slice(0, layer.in_channels)
            else:
                w = tap_weight[g * ci:(g + 1) * ci]
            output[:, g * co:(g + 1) * co] += torch.einsum("nixyz,io->noxyz", read[:, source], w)
    if bias is not None and "bias" not in keys:
        output += bias.reshape(1, -1, 1, 1, 1)
    return output


def _reads(layer: ConvTranspose, d: int, inputs: int, outputs: int, made: frozenset[str]) -> torch.Tensor:
    """[output, tap] -> the input it reads, or -1."""
    s, p, op = layer.stride[d], layer.padding[d], layer.output_padding[d]
    dilation = 1 if "dilation" in made else layer.dilation[d]
    s = 1 if "stride" in made else s
    o = torch.arange(outputs).unsqueeze(1)
    t = o - dilation * torch.arange(layer.kernel_size[d])
    t = t - (op if "output_padding" in made else 0)
    if "padding_late" in made:
        i, whole = torch.div(t, s, rounding_mode="floor") + p, t % s == 0
    else:
        t = t + (-p if "padding_sign" in made else 0 if "padding_missing" in made else p)
        i, whole = torch.div(t, s, rounding_mode="floor"), t % s == 0
    if "no_test" in made:
        whole = t >= 0
    if "truncated" in made:
        i, whole = torch.div(t, s, rounding_mode="trunc"), torch.ones_like(t, dtype=torch.bool)
    return torch.where(whole & (i >= 0) & (i < inputs), i, -1)


def _gather(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    picked = x.index_select(dim, index.clamp(min=0))
    shape = [1] * x.dim()
    shape[dim] = -1
    return picked * (index >= 0).reshape(shape)


def _combinations(layer: ConvTranspose, *, pairs: bool):
    """Singles in all dimensions, singles in one, then pairs."""
    everywhere = _all(layer)
    here = [key for key in MISTAKES if _can(layer, key)]
    for key in here:
        yield ((key, everywhere),)
    if layer.dims > 1:
        for key in here:
            if key in _PER_DIMENSION:
                for d in everywhere:
                    yield ((key, (d,)),)
    if pairs:
        for one, other in combinations(here, 2):
            yield ((one, everywhere), (other, everywhere))


def _can(layer: ConvTranspose, key: str) -> bool:
    """Whether the mistake changes anything for this layer."""
    rules: dict[str, Callable[[ConvTranspose], bool]] = {
        "no_test": lambda y: max(y.stride) > 1, "truncated": lambda y: max(y.stride) > 1,
        "stride": lambda y: max(y.stride) > 1, "dilation": lambda y: max(y.dilation) > 1,
        "padding_late": lambda y: max(y.padding) > 0 and max(y.stride) > 1,
        "padding_sign": lambda y: max(y.padding) > 0, "padding_missing": lambda y: max(y.padding) > 0,
        "output_padding": lambda y: max(y.output_padding) > 0, "flipped": lambda y: max(y.kernel_size) > 1,
        "groups": lambda y: y.groups > 1, "first_group": lambda y: y.groups > 1, "bias": lambda y: y.bias,
        "channels": lambda y: y.in_channels * y.out_channels > 1 and y.groups == 1}
    return rules[key](layer)


def _all(layer: ConvTranspose) -> tuple[int, ...]:
    return tuple(range(3 - layer.dims, 3))


def _named(layer: ConvTranspose, mistakes: tuple[tuple[str, tuple[int, ...]], ...]) -> str:
    words = []
    for key, dims in mistakes:
        where = "" if dims == _all(layer) else f", {_ROWS[layer.dims][dims[0] - (3 - layer.dims)]} only"
        words.append(f"{MISTAKES[key].name}{where}")
    return " and ".join(words)
