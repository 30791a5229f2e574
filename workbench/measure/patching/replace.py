"""The file with `patch(model)`, loaded beside a model. On the CPU its kernels are built for the emulator."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from torch import nn

from ...core.orders import LayerFile, ModuleOrder, PatchOrder
from ..module.subject import Subject


class PatchFile:
    """One patch file, executed. All else in it runs as it will run at the user's."""

    def __init__(self, order: PatchOrder) -> None:
        module = ModuleType(f"kernel_workbench_patch_{hashlib.sha256(order.text.encode()).hexdigest()[:16]}")
        sys.modules[module.__name__] = module  # as after an import: torch.compile looks there
        self.namespace: dict[str, Any] = module.__dict__
        exec(compile(order.text, "<patch file>", "exec"), self.namespace)
        if order.source.device == "cpu":
            files = {file.text: file for file in order.files}
            self.namespace["_load"] = lambda text, index: _on_emulator(files[text], order)

    def patch(self, model: nn.Module, paths: Iterable[str]) -> dict[str, str]:
        told: dict[str, str] = self.namespace["patch"](model, set(paths))
        return told

    def unpatch(self, model: nn.Module) -> list[str]:
        undone: list[str] = self.namespace["unpatch"](model)
        return undone


def _on_emulator(file: LayerFile, order: PatchOrder) -> Any:
    """conv_transpose of one exported file, built for the host."""
    subject = Subject(ModuleOrder(file.text, file.workload, (), "cpu", order.scratch))
    subject.namespace["_DEBUG_SYNC"] = False
    return subject.namespace["conv_transpose"]
