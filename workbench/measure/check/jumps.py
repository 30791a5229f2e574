"""How far gradients move when everything moves by rounding. A derivative may jump, as a rectifier's or a maximum's does; of
many values some stand so near a jump that float32 rounds them to its other side, and then a right gradient is not float64's.

Asked of float64 alone: the reference's gradients at inputs and parameters that are off by a few times what the output was off
by. Where none of these gradients differ, no rounding explains a difference.
"""

from __future__ import annotations

from typing import Any

import torch

from .party import Construction, Party

_DRAWS = 24     # what stands within rounding of a jump changes its side in nearly half of them
_TIMES = 4.0    # the error of an output is what a sum of many roundings left of them
_LEAST = 2.0**-24


def reach(reference: Party, how: Construction, inputs: list[torch.Tensor], state: tuple[list[str], list[torch.Tensor]],
          names: list[str], grad_output: torch.Tensor, off: float, generator: torch.Generator
          ) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """What the reference says of its gradients, and the largest absolute move of each one that there is, in float64.
    `inputs`, `state`, `grad_output`: in float64. `off`: relative L2 error of the output. Raises `Raised`, `Ended`."""
    request = {"module": reference.ready(how, state), "inputs": len(inputs), "gradients": names, "draws": _DRAWS,
               "step": _TIMES * max(off, _LEAST), "seed": int(torch.randint(2**31, (), generator=generator))}
    return reference.process.ask("reach", request, [*inputs, grad_output], doing="float64 was asked near a jump",
                                 limit_s=reference.process.limits.build_s)


def without(got: torch.Tensor, expected: torch.Tensor, reach: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """`got` moved towards `expected` by what a jump explains: where float64 itself moves by more than `allowed`, by twice as
    much as it moved in any draw (two jumps may meet in one sum). NaN stays NaN."""
    off = got.double() - expected
    left = off.sign() * (off.abs() - 2 * reach).clamp(min=0)
    return torch.where(reach > allowed, expected + left, got.double())
