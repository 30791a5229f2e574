"""What a timed call is given: a set that was sent ahead, times a strip of a long row of factors, so that every element is
another one than in the call before. Used on both sides."""

from __future__ import annotations

import random

import torch

_STRIPS, _STEP = 1 << 17, 8     # each strip begins so many elements after the last, so that reads stay aligned


def factors_for(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Between 1/2 and 1, and of either sign where the values are: a set times a strip of them stays in its range. Nothing for
    whole numbers, which may be indices."""
    if not x.is_floating_point():
        return torch.empty(0)
    size = x.numel() + _STEP * _STRIPS
    factors = 0.5 + 0.5 * torch.rand(size, generator=generator)
    if (x < 0).any():
        factors *= 1 - 2 * torch.randint(2, (size,), generator=generator)
    return factors.to(x.dtype)


def strip(source: random.Random) -> int:
    """Where one begins."""
    return _STEP * source.randrange(_STRIPS)


def timed_input(x: torch.Tensor, factors: torch.Tensor, begin: int, into: torch.Tensor | None = None) -> torch.Tensor:
    """x times the factors from `begin` on. One rounding, so judge and process get the same bits wherever they compute it."""
    if not x.is_floating_point():
        return x if into is None else into.copy_(x)
    return torch.mul(x, factors[begin:begin + x.numel()].view(x.shape), out=into)
