"""How far gradients move when everything moves by rounding. A derivative may jump, as a rectifier's or a maximum's does; of
many values some stand so near a jump that float32 rounds them to its other side, and then a right gradient is not float64's.

Asked of float64 alone: the reference's gradients at inputs and parameters that are off by a few times what the output was off
by. Where none of these gradients differ, no rounding explains a difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..party import Construction, Party

_DRAWS = 24     # what stands within rounding of a jump changes its side in nearly half of them
_TIMES = 4.0    # the error of an output is what a sum of many roundings left of them
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


# more than seven: one call of a module, and how far its output is off
def reach(reference: Party, how: Construction, inputs: list[torch.Tensor], state: tuple[list[str], list[torch.Tensor]],
          names: list[str], grad_output: torch.Tensor, off: float, generator: torch.Generator
          ) -> tuple[dict[str, Any], list[Reach]]:
    """What the reference says of its gradients, and the reach of each one that there is. `inputs`, `state`, `grad_output`: in
    float64. `off`: relative L2 error of the output. Raises `Raised`, `Ended`."""
    request = {"module": reference.ready(how, state), "inputs": len(inputs), "gradients": names, "draws": _DRAWS,
               "step": _TIMES * max(off, _LEAST), "seed": int(torch.randint(2**31, (), generator=generator))}
    facts, results = reference.process.ask("reach", request, [*inputs, grad_output], doing="float64 was asked near a jump",
                                           limit_s=reference.process.limits.build_s)
    count = len(results) // 2
    return facts, [Reach(*pair) for pair in zip(results[:count], results[count:], strict=True)]


def typical(own: float, candidate: float, allowed: float) -> float:
    """The error of an output from which `reach` starts: PyTorch's own, or the file's as far as its precision explains it."""
    return max(own, min(candidate, allowed / 3))
