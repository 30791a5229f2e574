"""Other inputs for each timed launch, whose results are known without computing them: channels change their sign.

With a sign s for each input channel and t for each output channel, each tensor is multiplied by its own pattern: input and
grad_input by s, weight and grad_weight by s times t, bias, grad_bias, output and grad_output by t. Then all results are bit for
bit those from before, except for signs, because arithmetic rounds both signs in the same way. A launch that returns the results
of an earlier one is then wrong.
"""

from __future__ import annotations

from math import prod

import torch

from ...core.layer import Workload
from ..kernel.buffers import row_of

_ENOUGH = 8  # channels of one side: more combinations than launches
_S = ("input", "weight", "grad_input", "grad_weight")


class Signs:
    """`inputs`: the tensors that a launch reads. The side whose tensors are smaller changes, both if it has few channels."""

    def __init__(self, workload: Workload, inputs: dict[str, torch.Tensor], device: str) -> None:
        layer = self._layer = workload.layer
        self._inputs = inputs
        channels = {"s": layer.in_channels, "t": layer.out_channels}
        cost = {side: sum(x.numel() for n, x in inputs.items() if side in _sides(n)) for side in channels}
        cheap = min(cost, key=lambda side: (cost[side], side))
        self._changes = (cheap,) if channels[cheap] >= _ENOUGH else tuple(channels)
        self._of = {side: torch.ones(count, device=device) for side, count in channels.items()}
        self._taps = prod(layer.kernel_size)

    def draw(self) -> None:
        """New signs for the next launch."""
        self._change({side: 2.0 * torch.randint(2, self._of[side].shape, device=self._of[side].device) - 1
                      for side in self._changes})

    def end(self) -> None:
        """Restore the first inputs."""
        self._change({side: torch.ones_like(self._of[side]) for side in self._changes})

    def changed(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A result with the present signs. `tensor`: the result with the first inputs."""
        return tensor * self._wide(name, self._of, tensor)

    def changed_part(self, name: str, tensor: torch.Tensor, place: slice) -> torch.Tensor:
        """The same of a part of its row, in the order of memory."""
        pattern = self._pattern(name, self._of).reshape(-1)
        inner = tensor.stride(1) if tensor.dim() > 1 else 1
        start, stop, _ = place.indices(tensor.numel())
        channel = torch.arange(start, stop, device=pattern.device) // inner % len(pattern)
        return row_of(tensor)[place] * pattern[channel].to(tensor.dtype)

    def _change(self, new: dict[str, torch.Tensor]) -> None:
        turned = {side: self._of[side] * new.get(side, self._of[side]) for side in self._of}
        for name, tensor in self._inputs.items():
            if any(side in self._changes for side in _sides(name)):
                tensor.mul_(self._wide(name, turned, tensor))
        self._of.update(new)

    def _wide(self, name: str, of: dict[str, torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
        """The pattern with the dimensions of the tensor."""
        pattern = self._pattern(name, of).to(tensor.dtype)
        if tensor.dim() == 1:
            return pattern
        return pattern.view(*((1, -1) if pattern.dim() == 1 else pattern.shape), *(1,) * (tensor.dim() - 2))

    def _pattern(self, name: str, of: dict[str, torch.Tensor]) -> torch.Tensor:
        """For each channel, of a weight for each pair of channels."""
        s, t = of["s"], of["t"]
        if _sides(name) == "st":
            groups = self._layer.groups
            return s.view(-1, 1) * t.view(groups, -1).repeat_interleave(len(s) // groups, dim=0)
        return s if _sides(name) == "s" else t


def _sides(name: str) -> str:
    return {"weight": "st", "grad_weight": "st"}.get(name, "s" if name in _S else "t")
