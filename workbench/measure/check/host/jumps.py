"""A module's gradients at many points near one, computed inside its process, so that tensors are sent only once."""

from __future__ import annotations

import torch

from ..foreign.replies import NoTensor, Output
from ..foreign.requests import Call, Reach
from ..foreign.wire import Tensors
from .calls import call


def reach(module: torch.nn.Module, request: Reach, tensors: Tensors, device: str) -> tuple[Output | NoTensor, Tensors]:
    """Inputs, then grad_output. Back comes how far each element of each gradient (`gradients` names them) moves at most,
    absolutely, when all inputs and the whole state are multiplied by 1 + step * normal, in so many `draws` under `seed`; then
    how far each gradient moves in one draw at most, as an L2 norm."""
    tensors = [t.to(device) for t in tensors]
    inputs = tensors[:request.inputs]
    once = Call(request.module, request.inputs, request.gradients)
    state = [v for v in module.state_dict().values() if isinstance(v, torch.Tensor) and v.is_floating_point()]
    kept = [v.clone() for v in state]
    generator = torch.Generator(device).manual_seed(request.seed)

    def moved(v: torch.Tensor) -> torch.Tensor:
        if not v.is_floating_point():
            return v
        return v * (1 + request.step * torch.randn(v.shape, generator=generator, dtype=v.dtype, device=v.device))

    facts, (_, *here) = call(module, once, tensors, device)
    farthest = [torch.zeros_like(g) for g in here]
    norms = [torch.zeros((), dtype=g.dtype, device=g.device) for g in here]
    try:
        for _ in range(request.draws):
            with torch.no_grad():
                for value, before in zip(state, kept, strict=True):
                    value.copy_(moved(before))
            _, (_, *there) = call(module, once, [*map(moved, inputs), *tensors[len(inputs):]], device)
            moves = [(a - b).abs() for a, b in zip(there, here, strict=True)]
            farthest = [torch.maximum(far, move) for far, move in zip(farthest, moves, strict=True)]
            norms = [torch.maximum(norm, move.norm()) for norm, move in zip(norms, moves, strict=True)]
    finally:
        with torch.no_grad():
            for value, before in zip(state, kept, strict=True):
                value.copy_(before)
    return facts, [*farthest, *norms]
