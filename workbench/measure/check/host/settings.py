"""What a file can change for all modules of its process: torch's switches, hooks, functions and threads."""

from __future__ import annotations

import threading

import torch
from torch.nn.modules import module as modules

Settings = dict[str, object]
_PLACES = {"torch": torch, "torch.nn.functional": torch.nn.functional, "torch.Tensor": torch.Tensor,
           "torch.nn.Module": torch.nn.Module, "torch.autograd": torch.autograd}


def changed(before: Settings) -> tuple[str, ...]:
    """The names of changed settings. New names do not count, because modules of torch are imported when they are needed."""
    then = now()
    return tuple(name for name, value in before.items() if then.get(name) != value)[:20]


def now() -> Settings:
    """The present settings. Called before and after the file is loaded."""
    backends = torch.backends
    tiny = torch.tensor([1e-40])
    found: Settings = {
        "torch.get_default_dtype": torch.get_default_dtype(), "torch.get_num_threads": torch.get_num_threads(),
        "torch.is_grad_enabled": torch.is_grad_enabled(),
        "torch.get_float32_matmul_precision": torch.get_float32_matmul_precision(),
        "torch.are_deterministic_algorithms_enabled": torch.are_deterministic_algorithms_enabled(),
        "torch.is_anomaly_enabled": torch.is_anomaly_enabled(), "torch.set_flush_denormal": bool((tiny * 1 == 0).any()),
        "torch.backends.mkldnn.enabled": backends.mkldnn.enabled, "torch.backends.cudnn.enabled": backends.cudnn.enabled,
        "torch.backends.cudnn.benchmark": backends.cudnn.benchmark,
        "torch.backends.cudnn.deterministic": backends.cudnn.deterministic,
        "torch.backends.cudnn.allow_tf32": backends.cudnn.allow_tf32,
        "torch.backends.cuda.matmul.allow_tf32": backends.cuda.matmul.allow_tf32,
        "hooks of all modules": [len(hooks) for name, hooks in vars(modules).items()
                                 if name.startswith("_global_") and name.endswith("_hooks")],
        "threads of Python": threading.active_count()}
    for place, holder in _PLACES.items():
        found |= {f"{place}.{name}": id(one) for name, one in vars(holder).items() if callable(one)}
    return found
