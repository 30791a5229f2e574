"""Facts about a module inside the foreign process: its arguments, its state, and which layer it is."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_CLASSES = {nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2, nn.ConvTranspose3d: 3}


def arguments_of(given: Any) -> tuple[list[Any], dict[str, Any]]:
    """KernelBench's get_init_inputs() is a list; newer ones also give [args, kwargs] or a dict."""
    if isinstance(given, dict):
        return [], given
    given = list(given)
    if len(given) == 2 and isinstance(given[0], list | tuple) and isinstance(given[1], dict):
        return list(given[0]), given[1]
    return given, {}


def the_state(module: nn.Module) -> tuple[list[str], list[torch.Tensor]]:
    state = {name: value for name, value in module.state_dict().items() if isinstance(value, torch.Tensor)}
    return list(state), list(state.values())


def structure(module: nn.Module) -> dict[str, Any] | None:
    """The one transposed convolution that has all parameters of the module; None for anything else."""
    for name, layer in module.named_modules():
        dims = next((d for cls, d in _CLASSES.items() if isinstance(layer, cls)), None)
        if dims and sum(p.numel() for p in layer.parameters()) == sum(p.numel() for p in module.parameters()):
            return {"attribute": name, "dims": dims, "in_channels": layer.in_channels,
                    "out_channels": layer.out_channels, "kernel_size": list(layer.kernel_size),
                    "stride": list(layer.stride), "padding": list(layer.padding),
                    "output_padding": list(layer.output_padding), "groups": layer.groups,
                    "bias": layer.bias is not None, "dilation": list(layer.dilation)}
    return None
