"""How far right gradients may be from float64 because a derivative jumps, as that of a rectifier or a maximum does. Of many
values some are so near a jump that float32 rounds them to its other side. A right gradient is then not float64's.

Only the reference in float64 is asked: for its gradients at inputs and parameters that differ by a few times the error of the
output. If these gradients do not differ, rounding does not explain an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..foreign import requests
from ..foreign.replies import Output
from ..party import Construction, Party

_DRAWS = 24     # a value within rounding of a jump changes its side in nearly half of them
_TIMES = 4.0    # roundings inside are larger than the error of the output, in which many of them cancel
_LEAST = 2.0**-24


@dataclass(frozen=True)
class Reach:
    """How far float64's gradient moves: each element in any draw, and the L2 norm of a whole draw at most."""

    farthest: torch.Tensor
    norm: torch.Tensor

    def taken_out(self, got: torch.Tensor, expected: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        """`got` moved towards `expected` by what jumps explain: where float64 itself moves by more than `allowed`, by twice as
        much as it moved in any draw (two jumps may meet in one sum), and altogether by twice the norm of a draw. NaN stays."""
        off = got.double() - expected
        explained = off.sign() * torch.minimum(off.abs(), 2 * self.farthest)
        explained = torch.where(self.farthest > allowed, explained, 0.0)
        return got.double() - explained * (2 * self.norm / explained.norm().clamp(min=1e-300)).clamp(max=1.0)


# more than seven: a call of a module (construction, inputs, state, names, grad_output) is in no one object here
def reach(reference: Party, how: Construction, inputs: list[torch.Tensor], state: tuple[Sequence[str], list[torch.Tensor]],
          names: list[str], grad_output: torch.Tensor, off: float, generator: torch.Generator
          ) -> tuple[Output, list[Reach]]:
    """What the reference says of its gradients, and the reach of each one that there is. `inputs`, `state`, `grad_output`: in
    float64. `off`: relative L2 error of the output. Raises `Raised`, `Ended`."""
    request = requests.Reach(reference.ready(how, state), len(inputs), tuple(names), _DRAWS, _TIMES * max(off, _LEAST),
                             int(torch.randint(2**31, (), generator=generator, device=generator.device)))
    facts, results = reference.process.ask(request, [*inputs, grad_output], doing="float64 was asked near a jump",
                                           limit_s=reference.process.limits.build_s)
    count = len(results) // 2
    return facts, [Reach(*pair) for pair in zip(results[:count], results[count:], strict=True)]


def typical(own: float, candidate: float, allowed: float) -> float:
    """The error of an output from which `reach` starts: PyTorch's own, or the file's as far as its precision explains it."""
    return max(own, min(candidate, allowed / 3))


def pooled(inputs: Mapping[str, torch.Tensor], parts: Sequence[Mapping[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    """The parts, in which each gradient of an input is replaced by its mean over all places with the same value, in any input.
    `inputs`: gradient -> its input. Empty if no value repeats."""
    if not inputs:
        return []
    values, group, counts = torch.cat([x.flatten().double() for x in inputs.values()]).unique(
        return_inverse=True, return_counts=True)
    if len(values) == len(group):
        return []
    groups = dict(zip(inputs, group.split([x.numel() for x in inputs.values()]), strict=True))
    found = []
    for part in parts:
        there = {n: part[n].double() for n in inputs if n in part and part[n].shape == inputs[n].shape}
        sums = torch.zeros_like(values)
        for name, grad in there.items():
            sums.index_add_(0, groups[name], grad.flatten().to(sums.device))
        found.append({**part, **{n: (sums / counts)[groups[n]].view(g.shape).to(part[n].dtype).to(g.device)
                                 for n, g in there.items()}})
    return found
