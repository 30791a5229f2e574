"""Calls the launchers of a built library: `Problem` and raw pointers, through ctypes. It does not synchronise or allocate."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

import torch

from ...core.candidate import problem_fields
from ...core.layer import BACKWARD, FORWARD, GRAD_INPUT, GRAD_WEIGHT, Workload

# Tensor arguments of each launcher, in the order of kernel_templates/contract/export.cuh.
ARGUMENTS = {
    FORWARD: ("input", "weight", "bias", "output"),
    GRAD_INPUT: ("grad_output", "weight", "grad_input"),
    GRAD_WEIGHT: ("input", "grad_output", "grad_weight", "grad_bias"),
    BACKWARD: ("input", "weight", "grad_output", "grad_input", "grad_weight", "grad_bias"),
}
OUT_OF_MEMORY_CODE = 2
ORDER = "CUDACPU_ORDER"  # the emulator's environment variable
# CUDA keeps returning these for the life of the process: CUDA Runtime API, "Data types used by CUDA Runtime".
STICKY_CODES = frozenset({700, 702, 710, 714, 715, 716, 717, 718, 719})
FAULTS = {700: "illegal memory access", 715: "illegal instruction", 716: "misaligned address",
          710: "device-side assert"}  # as torch's message has them
UNKNOWN_FAULT = 719
_WORDS = {1: "invalid argument", 2: "out of memory", 9: "invalid configuration argument", 98: "invalid device function",
          209: "no kernel image is available for execution on the device", 700: "an illegal memory access",
          701: "too many resources requested for launch", 719: "unspecified launch failure"}
STICKY_WORDS = (*FAULTS.values(), _WORDS[UNKNOWN_FAULT])  # in messages of torch


class MissingSymbol(LookupError):
    """The library does not export what the trial asks for."""


class Launcher:
    """One exported launcher. Raises OSError when the library cannot be loaded, `MissingSymbol` when it lacks it."""

    def __init__(self, library: Path, symbol: str, direction: str) -> None:
        self.direction = direction
        self._library = ctypes.CDLL(str(library))
        self._query = self._function(f"{symbol}_workspace", ctypes.c_longlong, 1)
        self._launch = self._function(symbol, ctypes.c_int, 1 + len(ARGUMENTS[direction]) + 2)

    def workspace_bytes(self, problem: ctypes.Array) -> int:
        """Bytes of scratch memory that the launcher needs; negative if it was built for another layer."""
        return int(self._query(ctypes.byref(problem)))

    def __call__(self, problem: ctypes.Array, tensors: Mapping[str, torch.Tensor | None],
                 workspace: torch.Tensor | None, stream: int) -> int:
        """Launch on `stream` (0: the default one); returns the launcher's cudaError_t. Absent tensors are null."""
        pointers = [_pointer(tensors.get(name)) for name in ARGUMENTS[self.direction]]
        return int(self._launch(ctypes.byref(problem), *pointers, _pointer(workspace), stream))

    def last_error(self) -> int:
        """The last error of the CUDA runtime, which this call clears; 0 if the library does not export it."""
        if not hasattr(self._library, "cudaGetLastError"):
            return 0
        return int(self._library.cudaGetLastError())

    def error_text(self, code: int) -> str:
        """The error in words: the emulator's own sentence where it left one, else CUDA's."""
        if hasattr(self._library, "cuda_on_cpu_last_error"):
            words = self._library.cuda_on_cpu_last_error
            words.restype = ctypes.c_char_p
            return (words() or b"").decode(errors="replace") or _WORDS.get(code, f"error {code}")
        if torch.cuda.is_available():
            runtime = torch.cuda.cudart()
            return str(runtime.cudaGetErrorString(runtime.cudaError(code)))
        return _WORDS.get(code, f"error {code}")

    def _function(self, name: str, result: type, arguments: int) -> ctypes._CFuncPtr:  # type: ignore[name-defined]
        if not hasattr(self._library, name):
            raise MissingSymbol(f"The library exports no {name}.")
        function = self._library[name]
        function.restype = result
        function.argtypes = [ctypes.c_void_p] * arguments
        return function


def problem_of(workload: Workload) -> ctypes.Array:
    """`struct Problem`: int64 members in the order of `problem_fields`."""
    values = list(problem_fields(workload).values())
    return (ctypes.c_longlong * len(values))(*values)


def _pointer(tensor: torch.Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr() if tensor is not None else None)
