"""The input of a timed call: a set of inputs that was sent before, multiplied by two strips of a long row of factors. The
starts of the strips are drawn at random for each call. So every element differs from that of the last call, and there are too
many possible inputs to compute all results in advance. The judge and the host use this module."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

_STRIPS, _STEP = 1 << 17, 8     # strips begin at multiples of this number of elements, so that reads are aligned
Begins = tuple[int, int]        # number of possible starts of the two strips
Drawn = tuple[int, Begins]      # the input of a call: a set, and where its strips begin


@dataclass(frozen=True)
class TimedInputs:
    """The tensors that the processes get before timed calls: the inputs of a backward (`fixed`), a row of factors for each
    tensor of a set, and the sets."""

    fixed: list[torch.Tensor]
    sets: list[list[torch.Tensor]]
    factors: list[torch.Tensor]

    @property
    def size(self) -> int:
        """The number of tensors in a set."""
        return len(self.factors)

    def tensors(self, *, most_sets: int | None = None) -> list[torch.Tensor]:
        """All tensors in the order in which they are sent."""
        return [*self.fixed, *self.factors, *(x for xs in self.sets[:most_sets] for x in xs)]

    def draw(self, source: random.Random, calls: int) -> list[Drawn]:
        return [(source.randrange(len(self.sets)), strips(source)) for _ in range(calls)]

    def renew(self, fresh: list[torch.Tensor], source: random.Random) -> list[Drawn]:
        """One call. `fresh` tensors, if any, replace the inputs of a backward, else the first set, which the call then has."""
        if not fresh:
            return self.draw(source, 1)
        replaced = self.fixed or self.sets[0]
        replaced[:] = fresh
        return self.draw(source, 1) if self.fixed else [(0, strips(source))]

    def of(self, which: int, begins: Begins) -> list[torch.Tensor]:
        """The input of a call: a set times its strips of factors."""
        return [timed_input(x, factors, begins) for x, factors in zip(self.sets[which], self.factors, strict=True)]


class Versions:
    """The state whose parameters change in place before each call: some change their sign. `names`: those that may. `state`: as
    it is after the last change."""

    def __init__(self, state: tuple[Sequence[str], list[torch.Tensor]], source: random.Random, names: Sequence[str]) -> None:
        self._plain, self._source, self._names = state, source, names
        self._now: set[str] = set()
        self.state = state

    def draw(self) -> tuple[str, ...]:
        """The names of those that change their sign now."""
        new = {n for n in self._names if self._source.randrange(2)}
        changed, self._now = self._now ^ new, new
        names, values = self._plain
        self.state = names, [-v if n in new else v for n, v in zip(names, values, strict=True)]
        return tuple(sorted(changed))


def timed_inputs(fixed: list[torch.Tensor], sets: list[list[torch.Tensor]], factor: float, varied: list[str],
                 generator: torch.Generator) -> TimedInputs:
    """Of these sets, all values multiplied by `factor`; `varied`: see `factors_for`."""
    sets = [[x * factor if x.is_floating_point() else x.clone() for x in xs] for xs in sets]
    return TimedInputs(fixed, sets, [factors_for(x, generator, how) for x, how in zip(sets[0], varied, strict=True)])


def factors_for(x: torch.Tensor, generator: torch.Generator, varied: str = "each") -> torch.Tensor:
    """Factors between 1/sqrt(2) and 1, with both signs if the values have both, so that a set times two strips stays in the
    range of the set. Empty for whole numbers, which may be indices. `varied`: "each" element has its own factor; in a "matrix"
    row i and column i have the same one, so that it stays symmetric and positive definite (the result then has a second
    dimension); "": no factors."""
    if not x.is_floating_point() or not varied:
        return torch.empty(0)
    matrix = varied == "matrix"
    size = (x.shape[-1] if matrix else x.numel()) + _STEP * _STRIPS
    how = {"generator": generator, "device": generator.device}
    factors = 0.5**0.5 + (1 - 0.5**0.5) * torch.rand(size, **how)
    if (x < 0).any():
        factors *= 1 - 2 * torch.randint(2, (size,), **how)
    return factors.to(x.dtype).view(1, -1) if matrix else factors.to(x.dtype)


def strips(source: random.Random) -> Begins:
    """Where the two strips begin."""
    return _STEP * source.randrange(_STRIPS), _STEP * source.randrange(_STRIPS)


def timed_input(x: torch.Tensor, factors: torch.Tensor, begins: Begins, into: torch.Tensor | None = None) -> torch.Tensor:
    """x times both strips. The roundings and their order are fixed, so judge and process compute the same bits."""
    if not factors.numel():
        return x if into is None else into.copy_(x)
    if factors.dim() > 1:
        one, other = (factors[0, begin:begin + x.shape[-1]] for begin in begins)
        both = one * other
        return torch.mul(x, both.unsqueeze(1) * both, out=into)
    one, other = (factors[begin:begin + x.numel()].view(x.shape) for begin in begins)
    return torch.mul(torch.mul(x, one, out=into), other, out=into)
