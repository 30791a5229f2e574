"""What a timed call is given: a set that was sent ahead, times two strips of a long row of factors, each beginning where it was
drawn, so that every element is another one than in the call before and there are too many inputs to compute them all ahead.
Used on both sides."""

from __future__ import annotations

import random

import torch

_STRIPS, _STEP = 1 << 17, 8     # each strip begins so many elements after the last, so that reads stay aligned
Begins = tuple[int, int]        # of the two strips


def factors_for(x: torch.Tensor, generator: torch.Generator, varied: str = "each") -> torch.Tensor:
    """Between 1/sqrt(2) and 1, and of either sign where the values are: a set times two strips of them stays in its range.
    Nothing for whole numbers, which may be indices. `varied`: "each" element; of a "matrix" each row and the column of that
    number together, which leaves it symmetric, and positive definite (told by a second dimension); or "" nothing."""
    if not x.is_floating_point() or not varied:
        return torch.empty(0)
    matrix = varied == "matrix"
    size = (x.shape[-1] if matrix else x.numel()) + _STEP * _STRIPS
    factors = 0.5**0.5 + (1 - 0.5**0.5) * torch.rand(size, generator=generator)
    if (x < 0).any():
        factors *= 1 - 2 * torch.randint(2, (size,), generator=generator)
    return factors.to(x.dtype).view(1, -1) if matrix else factors.to(x.dtype)


def strips(source: random.Random) -> Begins:
    """Where the two begin."""
    return _STEP * source.randrange(_STRIPS), _STEP * source.randrange(_STRIPS)


def timed_input(x: torch.Tensor, factors: torch.Tensor, begins: Begins, into: torch.Tensor | None = None) -> torch.Tensor:
    """x times the factors from both beginnings on. The same roundings in the same order, so judge and process get the same bits
    wherever they compute it."""
    if not factors.numel():
        return x if into is None else into.copy_(x)
    if factors.dim() > 1:
        one, other = (factors[0, begin:begin + x.shape[-1]] for begin in begins)
        both = one * other
        return torch.mul(x, both.unsqueeze(1) * both, out=into)
    one, other = (factors[begin:begin + x.numel()].view(x.shape) for begin in begins)
    return torch.mul(torch.mul(x, one, out=into), other, out=into)
