"""Replaces load_inline inside the foreign process: records each call, tests its arguments, and without a GPU builds for the
emulator."""

from __future__ import annotations

import ctypes
import functools
import inspect
import mmap
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.utils import cpp_extension

from ....core.orders import BuildOrder
from ....core.template import restored
from ....core.toolchain import emulated
from ....core.trial import Status
from ... import emulator
from ..foreign.replies import InlineCall
from .lines import COUNTED, WRITES_COUNTS, Native

_SHIM = Path(__file__).with_name("torch_cuda_on_cpu.h")
_CUDA_HEADER = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"](?:ATen/cuda|c10/cuda|cuda_runtime|cuda\.h|'
                          r'cuda_fp16|cuda_bf16|cuda_pipeline|device_launch_parameters)[^>"]*[>"]', re.M)
# A copy to the host is a copy here too: host code may read it.
_TO_HOST = re.compile(r"\.(?:cpu\(\)|to\(\s*(?:torch|at|c10)::kCPU\s*\))")
_PAGE = mmap.PAGESIZE
_ON_GPU = ((re.compile(r"(\.|->)is_cuda\(\)"), r"\1is_cpu()"), (re.compile(r"\b(torch|at|c10)::kCUDA\b"), r"\1::kCPU"),
           (re.compile(r"\bc10::DeviceType::CUDA\b"), "c10::DeviceType::CPU"))


class BuildFailed(RuntimeError):
    """The emulator's build of a CUDA source; the message is what the compiler said."""


class Loads:
    """Takes the place of torch's load_inline and load after `install`."""

    def __init__(self) -> None:
        self.calls: list[InlineCall] = []
        self.native = Native()
        self.where = ""               # "load_inline" while one runs
        self.own_export = False
        self._emulate = False
        self._ours = False            # while the workbench's own build calls load_inline
        self._libraries: list[ctypes.CDLL] = []
        self._emulated: list[ctypes.CDLL] = []   # of load_inline
        self._kernels: list[tuple[str, ctypes.CDLL]] = []   # those with kernels, and their names

    def install(self, *, emulate: bool) -> None:
        self._emulate = emulate
        self._real: Callable[..., Any] = cpp_extension.load_inline
        signature = inspect.signature(self._real)

        @functools.wraps(self._real)  # inspect.signature returns that of the real function
        def load_inline(*args: Any, **kwargs: Any) -> Any:
            if self._ours:
                return self._real(*args, **kwargs)
            self.where = "load_inline arguments"
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = bound.arguments
            for flags in ("extra_cflags", "extra_cuda_cflags", "extra_ldflags"):
                if isinstance(given[flags], str):
                    raise TypeError(f"{flags} must be a list of strings, not a string")
            texts = {k: _texts(given.get(k)) for k in ("cpp_sources", "cuda_sources")}
            names = given["functions"]
            names = [names] if isinstance(names, str) else list(names or [])
            self.calls.append(InlineCall(str(given["name"]), tuple(names), tuple(texts["cpp_sources"]),
                                         tuple(texts["cuda_sources"]), tuple(map(str, given["extra_cuda_cflags"] or []))))
            self.where = "load_inline"
            if emulate and texts["cuda_sources"]:
                result = self._on_host(given, texts, names)
                self._emulated.append(ctypes.CDLL(getattr(result, "__file__", result)))
                self.native.add(len(self.calls) - 1, self._emulated[-1])
                if any("__global__" in text for text in texts["cuda_sources"]):
                    self._kernels.append((str(given["name"]), self._emulated[-1]))
            else:
                result = self._real(*args, **kwargs)
            self.where = ""
            return result

        cpp_extension.load_inline = load_inline
        if emulate:  # operations that move tensors to the GPU leave them on the CPU; a copy to the host makes a copy
            setattr(torch.Tensor, "cpu", lambda tensor, *args, **kwargs: tensor.clone())  # noqa: B010
            setattr(torch.Tensor, "cuda", lambda tensor, *args, **kwargs: tensor)  # noqa: B010
            setattr(torch.nn.Module, "cuda", lambda module, *args, **kwargs: module)  # noqa: B010

    @property
    def idle(self) -> tuple[str, ...]:
        """The names of those whose kernels have not been launched."""
        return tuple(name for name, library in self._kernels if not library.cuda_on_cpu_launched())

    def raise_what_cuda_says(self) -> None:
        """Raises the unchecked error of an earlier launch, as PyTorch does on a GPU after the next kernel."""
        for library in self._emulated:
            if library.cudaGetLastError():
                library.cuda_on_cpu_last_error.restype = ctypes.c_char_p
                raise RuntimeError(f"CUDA error: {library.cuda_on_cpu_last_error().decode(errors='replace')}")

    def adopt_export(self, namespace: dict[str, Any], cache: str) -> None:
        """A file that this project exported: its `_build` goes to the emulator, as when the export was proved."""
        if not {"_build", "_DEVICE_TYPE", "_DEBUG_SYNC", "_Kernel", "_KERNELS"} <= set(namespace):
            return
        self.own_export = True
        namespace["_DEVICE_TYPE"] = "cpu"
        namespace["_ANY_LAYER"] = True

        ahead: dict[BuildOrder, int] = {}   # the process that builds it

        def ordered(source: str, flags: tuple[str, ...]) -> BuildOrder:
            return BuildOrder(restored(source), "cpu", Path(cache), flags=emulated(flags))

        def build_together(kernels: list[Any], device: torch.device) -> None:
            """All but the first in forks, which have torch already; what fails there is built again below."""
            from ...build.build import build
            for order in [ordered(k.source(), k.flags) for k in kernels[1:] if k]:
                if order in ahead:
                    continue
                ahead[order] = os.fork()
                if not ahead[order]:
                    try:
                        build(order, lambda event: None)
                    finally:
                        os._exit(0)

        def build_for_host(source: str, flags: tuple[str, ...], min_sm: int, device: torch.device) -> ctypes.CDLL:
            from ...build.build import build
            self._ours, order = True, ordered(source, flags)
            if child := ahead.get(order):
                with suppress(ChildProcessError):  # it has been waited for
                    os.waitpid(child, 0)
            result = build(order, lambda event: None)
            if result.status != Status.OK:
                raise BuildFailed(result.headline)
            self._ours = False
            self._libraries.append(ctypes.CDLL(result.library))
            return self._libraries[-1]

        def refuse(kernel: Any, reason: str, *_: object) -> None:
            raise (BuildFailed if self._ours else RuntimeError)(f"{kernel.name} is not used: {reason}.")

        namespace["_build"], namespace["_build_together"] = build_for_host, build_together
        namespace["_Kernel"].refuse = refuse  # otherwise it would continue with PyTorch, and its kernels would not be tested

    def _on_host(self, given: dict[str, Any], texts: dict[str, list[str]], names: list[str]) -> Any:
        folder = Path(cpp_extension._get_build_directory(f"emulated_{given['name']}", False))
        # One unit, which takes half the time. The bindings come before the definitions, so they refer to what cpp_sources
        # declares. A definition with other arguments is another function: the name is undefined at loading, as with torch.
        # cpp_sources know CUDA's names only if they include its headers, as with g++ on a GPU.
        kernels = emulator.translate(_without_cuda("\n".join(texts["cuda_sources"])))
        shim = f'#include "{_SHIM}"'
        above = [shim] if any(map(_CUDA_HEADER.search, texts["cpp_sources"])) else []
        unit = "\n".join(["#include <torch/extension.h>", *above, '#line 1 "cpp_sources"',
                          *map(_without_cuda, texts["cpp_sources"]), '#line 1 "bindings"', *_bindings(names), shim,
                          kernels.replace("#line 1\n", '#line 1 "cuda_sources"\n', 1), '#line 1 "counts"', WRITES_COUNTS])
        _write(folder / "unit.cpp", unit)
        flags = [f for f in emulator.COMPILE_FLAGS if f not in ("-Wall", "-O1")]
        # Behind all others: torch's own headers must find the C library's assert.h, not the emulator's.
        behind = ["-O0", "-w", "-fsanitize-recover=alignment", "-fmax-errors=20", *COUNTED,
                  *(w for d in emulator.INCLUDE_DIRS for w in ("-idirafter", str(d)))]
        try:
            built = cpp_extension.load(
                given["name"], [str(folder / "unit.cpp")], extra_cflags=[*flags, *behind],
                extra_ldflags=["-pthread", "-Wl,-Bsymbolic", "--coverage"], with_cuda=False, build_directory=str(folder),
                extra_include_paths=[str(p) for p in given["extra_include_paths"] or []],
                is_python_module=given["is_python_module"])
        except (RuntimeError, ImportError, OSError) as error:
            raise BuildFailed(str(error)) from error
        if given["is_python_module"]:
            _close_device_memory(built)
        return built


def _texts(value: Any) -> list[str]:
    return [] if value is None or value == "" else [value] if isinstance(value, str) else [str(v) for v in value]


def _close_device_memory(module: Any) -> None:
    """Close the memory of the tensors while one of the library's functions runs, because on a GPU its host code could not
    access them either. Only whole pages can be closed, so small tensors stay accessible."""
    close = ctypes.CDLL(module.__file__).cuda_on_cpu_set_device_memory
    alone = threading.RLock()  # in another thread the memory of a tensor of both would be closed while a kernel reads it

    def closing(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            ranges = [*_pages([*args, *kwargs.values()])]
            with alone:
                close((ctypes.c_size_t * len(ranges))(*ranges), len(ranges) // 2, 1)
                try:
                    return function(*args, **kwargs)
                finally:
                    close(None, 0, 1)
        return call

    for name, value in list(vars(module).items()):
        if inspect.isbuiltin(value):
            setattr(module, name, closing(value))


def _pages(values: Iterable[Any]) -> Iterator[int]:
    """Start and bytes of the whole pages of each tensor's storage."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _pages(value)
        elif isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.layout == torch.strided:
            storage = value.untyped_storage()
            start = -(-storage.data_ptr() // _PAGE) * _PAGE
            size = (storage.data_ptr() + storage.nbytes()) // _PAGE * _PAGE - start
            if size > 0:
                yield from (start, size)


def _without_cuda(text: str) -> str:
    text = _TO_HOST.sub(".clone()", _CUDA_HEADER.sub("", text))
    for pattern, instead in _ON_GPU:
        text = pattern.sub(instead, text)
    return text


def _bindings(names: list[str]) -> list[str]:
    if not names:
        return []
    return ["PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {", *(f'm.def("{n}", &{n});' for n in names), "}"]


def _write(path: Path, text: str) -> None:
    """Only what changed, so that ninja has nothing to do after a restart."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
