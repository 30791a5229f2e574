"""Loads the text of an exported file and makes its class ready for calls on a device. On the CPU its kernels are built for the
emulator; all other code runs unchanged."""

from __future__ import annotations

import ctypes
import inspect
import re
import warnings
from collections.abc import Callable
from dataclasses import asdict
from types import ModuleType
from typing import Any

import torch

from ...core.env import cache_dir
from ...core.layer import BACKWARD, FORWARD
from ...core.orders import BuildOrder, Emit, ModuleOrder
from ...core.precision import precision_of
from ...core.replies import Event
from ...core.template import restored
from ...core.toolchain import emulated
from ...core.trial import Status
from ..build.build import build
from ..build.compiler_log import first_error
from ..kernel.findings import Finding, launch_error
from .cases import Arguments

# Whatever foreign Python may raise; not SystemExit and KeyboardInterrupt.
FOREIGN = (ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, OSError, RuntimeError,
           SyntaxError, TypeError, ValueError)


class Subject:
    """One exported file, executed. Raises `Finding` when it cannot be."""

    def __init__(self, order: ModuleOrder) -> None:
        self.attribute, self.device, self.dtype = order.attribute, order.device, order.workload.dtype
        self.ran_templates = False      # of which the file holds only what a GPU runs
        self._libraries: list[ctypes.CDLL] = []
        self.module = ModuleType("exported")
        self.namespace: dict[str, Any] = vars(self.module)
        try:
            exec(compile(order.text, "<exported file>", "exec"), self.namespace)
            self.cls = self.namespace[order.class_name]
            self.parameters = tuple(inspect.signature(self.cls.__init__).parameters)[1:]
        except FOREIGN as error:
            raise Finding(Status.RENDER_FAILED, f"The exported file does not run: {_said(error)}.",
                          "Export it again; if you changed it, correct the line that Python names.") from error
        missing = {"_build", "_DEVICE_TYPE", "_DEBUG_SYNC", "_ANY_LAYER", "_KERNELS"} - set(self.namespace)
        if missing:
            raise Finding(Status.RENDER_FAILED, f"The exported file defines no {min(missing)}.",
                          "Keep the names of the exported file.")
        self.namespace["_DEBUG_SYNC"] = True  # so that an error names the kernel that failed
        for kernel in self.namespace["_KERNELS"] if self.device != "cpu" else ():
            kernel.proven = None        # it is judged here, also if nobody has measured it on such a GPU
        if self.device == "cpu":  # there its kernels run on the emulator
            self.namespace["_DEVICE_TYPE"], self.namespace["_ANY_LAYER"] = "cpu", True
            self.namespace["_build"] = self._build_for_host

    def make(self, arguments: Arguments, dtype: torch.dtype | None = None) -> torch.nn.Module:
        """The module with these constructor arguments, on the device."""
        return self.call(lambda: self.cls(**arguments).to(self.device, dtype or getattr(torch, self.dtype)))

    def holder(self, module: torch.nn.Module) -> torch.nn.Module:
        """What holds weight and bias: the module itself, or its attribute of the original's name."""
        if not self.attribute:
            return module
        if not hasattr(module, self.attribute):
            raise Finding(Status.MISMATCH, f"The module has no attribute {self.attribute}, which the original has.",
                          "Keep the original's attribute name: its state_dict needs it.")
        return getattr(module, self.attribute)

    def build_all(self, emit: Emit) -> None:
        """Compile every kernel of the file that this device can run, before anything is measured."""
        device = torch.device(self.device)
        kernels = [k for k in self.namespace["_KERNELS"] if not k.misfit(device)]
        for number, kernel in enumerate(kernels, 1):
            emit(Event("build", f"kernel {number} of {len(kernels)}: {kernel.name}"))
            try:
                kernel.load(kernel.layer, device)
            except FOREIGN as error:
                first = first_error(str(error), kernel.source())
                raise Finding(Status.BUILD_FAILED, f"{kernel.name} does not build: {_said(error)}.",
                              detail={"first_error": asdict(first)} if first else {}) from error

    def call(self, what: Callable[[], Any]) -> Any:
        """Run code of the file. Raises `Finding` if it raises an exception, or if a kernel was not used, because PyTorch's
        result would then say nothing about the kernel."""
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".* is not used: .* PyTorch computes it instead")
                result = what()
            if self.device != "cpu":
                torch.cuda.synchronize(self.device)
            for kernel in self.namespace["_KERNELS"]:
                for reason in kernel.refused.values():
                    raise RuntimeError(f"{kernel.name} could not be launched: {reason}.")
            return result
        except torch.cuda.OutOfMemoryError:
            raise
        except FOREIGN as error:
            raise self._finding(error) from error

    def precision(self, direction: str, *, own: bool) -> tuple[str, bool]:
        """(precision, whether a kernel computes it), where all results are wanted; `own`: for the layer it was made for."""
        device = torch.device(self.device)
        for name in [direction] if direction == FORWARD else [BACKWARD, direction]:
            for kernel in self.namespace["_KERNELS"]:
                other = kernel.any_layer and self.namespace["_ANY_LAYER"]
                if kernel.direction == name and (own or other) and not kernel.misfit(device):
                    return kernel.precision, True
        return precision_of(self.dtype, of_float32="tf32"), False

    def _finding(self, error: Exception) -> Finding:
        cuda = self.device != "cpu"
        code = re.search(r"CUDA error (-?\d+)", str(error))
        if code and int(code[1]) > 0:
            found = launch_error(int(code[1]), self._emulator_says() or _said(error), cuda=cuda)
            return Finding(found.status, f"{str(error).split(' could not')[0]}: {found.headline}", found.advice,
                           found.detail, restart=found.restart)
        if "failed while it ran" in str(error) or "CUDA error" in str(error):
            return Finding(Status.KERNEL_FAULT, f"{_said(error)}.", restart=cuda)
        return Finding(Status.LAUNCH_FAILED, f"The module raised {_said(error)}.", "Accept the same arguments as the original.")

    def _emulator_says(self) -> str:
        for library in self._libraries:
            words = library.cuda_on_cpu_last_error
            words.restype = ctypes.c_char_p
            if text := (words() or b"").decode(errors="replace"):
                return text
        return ""

    def _build_for_host(self, source: str, flags: tuple[str, ...], min_sm: int, device: torch.device) -> ctypes.CDLL:
        """Stands in the place of the exported file's `_build`: the same source with the emulator's parts of its templates."""
        whole = restored(source)
        self.ran_templates = self.ran_templates or whole != source
        result = build(BuildOrder(whole, "cpu", cache_dir(), flags=emulated(flags)), lambda event: None)
        if result.status != Status.OK:
            raise Finding(result.status, result.headline, result.advice,
                          {"first_error": asdict(result.first_error) if result.first_error else None})
        library = ctypes.CDLL(result.library)
        self._libraries.append(library)
        return library


def _said(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    text = lines[0].strip().rstrip(".")
    return text if isinstance(error, RuntimeError) else f"{type(error).__name__}: {text}"
