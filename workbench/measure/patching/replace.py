"""The file with `patch(model)`, loaded beside a model. On the CPU its kernels are built for the emulator."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch
from torch import nn

from ...core.env import cache_dir
from ...core.orders import BuildOrder
from ...core.template import restored
from ...core.toolchain import emulated
from ...core.trial import Status
from ..build.build import build


class PatchFile:
    """One patch file, executed. Except for the build, the file runs as it will on the user's machine."""

    def __init__(self, text: str, device: str) -> None:
        module = ModuleType(f"kernel_workbench_patch_{hashlib.sha256(text.encode()).hexdigest()[:16]}")
        sys.modules[module.__name__] = module  # as after an import: torch.compile looks there
        self.namespace: dict[str, Any] = module.__dict__
        exec(compile(text, "<patch file>", "exec"), self.namespace)
        self._forwards: dict[nn.Module, Any] = {}
        for kernel in self.namespace["_KERNELS"]:
            kernel.proven = None        # it runs whether it was measured on such a GPU or not: it is judged and timed here
        if device == "cpu":
            self.namespace |= {"_DEVICE_TYPE": "cpu", "_build": _build_for_host}

    def patch(self, model: nn.Module, paths: Iterable[str]) -> dict[str, str]:
        """As the file's own, but a module that is patched again gets the same object again: torch.compile guards on it, and a
        new one at each turn would compile anew until its limit."""
        told: dict[str, str] = self.namespace["patch"](model, set(paths))
        for module in model.modules():
            if type(forward := vars(module).get("forward")) is self.namespace["_Forward"]:
                module.forward = self._forwards.setdefault(module, forward)
        return told

    def unpatch(self, model: nn.Module) -> list[str]:
        undone: list[str] = self.namespace["unpatch"](model)
        return undone


def _build_for_host(source: str, flags: tuple[str, ...], min_sm: int, device: torch.device) -> ctypes.CDLL:
    """In the place of the file's own `_build`. An error of it is a kernel that is not used, as there."""
    result = build(BuildOrder(restored(source), "cpu", cache_dir(), flags=emulated(flags)), lambda event: None)
    if result.status != Status.OK:
        raise RuntimeError(result.headline)
    return ctypes.CDLL(result.library)
