"""The resources that a kernel takes, from nvcc and ptxas: registers, spills, stack, shared and constant memory.

Needs nvcc but no GPU: `resources(source, archs)` compiles to a cubin for every arch and keeps none of them.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.cache import Cache, build_key
from ...core.env import find_toolchain, nvcc_problem
from ...core.orders import Emit, ResourcesOrder
from ...core.replies import Resources
from ...core.toolchain import Toolchain
from ...core.trial import DEFAULT_ADVICE, Status
from ...core.trial_parts import KernelNumbers, Kernels
from .compiler_log import disk_full, ending, first_error, headline, machine_failed

# The flags that load_inline adds for nvcc (torch.utils.cpp_extension.COMMON_NVCC_FLAGS). Without them the numbers would be
# those of another program.
TORCH_NVCC_FLAGS = ("-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__",
                    "-D__CUDA_NO_BFLOAT16_CONVERSIONS__", "-D__CUDA_NO_HALF2_OPERATORS__",
                    "--expt-relaxed-constexpr")
NVCC_FLAGS = ("-O3", "-lineinfo", "-std=c++20", "-Xptxas=-v")
_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
# Each number has its own pattern: which of them ptxas prints, and in what order, changes with arch and version.
_FIELDS = {
    "registers": re.compile(r"Used (\d+) registers"),
    "spill_store_bytes": re.compile(r"(\d+) bytes spill stores"),
    "spill_load_bytes": re.compile(r"(\d+) bytes spill loads"),
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "shared_bytes": re.compile(r"(\d+) bytes smem"),
    "barriers": re.compile(r"used (\d+) barriers"),
}
Numbers = dict[str, int]                 # of one kernel, as they are collected: the fields of `KernelNumbers`
_CONSTANT = re.compile(r"(\d+) bytes cmem\[\d+\]")


@dataclass(frozen=True)
class _Meta:
    """What the cache keeps."""

    resources: Kernels


class CompileFailed(Exception):
    """nvcc reported an error in the source. `log`: its complete output."""

    def __init__(self, log: str) -> None:
        super().__init__(log)
        self.log = log


def resources_op(order: ResourcesOrder, emit: Emit) -> Resources:
    """Worker operation "resources"."""
    started = time.monotonic()
    cache = Cache(order.cache)
    tools = find_toolchain()
    problem = nvcc_problem(tools, None)
    if problem:
        return _result(Status.NO_COMPILER, problem)
    source, flags, archs = order.source, order.flags, sorted(set(order.archs))
    key = "resources-" + build_key(source, flags, device="cuda", arch=",".join(archs), compiler=tools.nvcc_label,
                                   torch="", extra=(*TORCH_NVCC_FLAGS, *NVCC_FLAGS))
    if found := cache.find(key, _Meta):
        return _result(Status.OK, "", resources=found.value.resources, cached=True)
    try:
        measured = resources(source, archs, flags, toolchain=tools)
    except CompileFailed as error:
        if text := "The disk is full." if disk_full([error.log]) else machine_failed("nvcc", error.log):
            return _result(Status.MACHINE_FAILED, text)
        first = first_error(error.log, source)
        return _result(Status.BUILD_FAILED, headline("nvcc", first) if first else "nvcc stopped without an error line.",
                       first_error=first)
    with cache.building(key) as folder:
        (folder / "entry").mkdir()
        cache.publish(key, folder / "entry", _Meta(measured))
    return _result(Status.OK, "", resources=measured, seconds=round(time.monotonic() - started, 3))


def resources(source: str, archs: Sequence[str], flags: Sequence[str] = (), *,
              toolchain: Toolchain | None = None) -> Kernels:
    """The resources of every kernel in `source`. The archs are compiled in parallel. Raises `CompileFailed`."""
    tools = toolchain or find_toolchain()
    with tempfile.TemporaryDirectory(prefix="kernel-workbench-") as folder, ThreadPoolExecutor(len(archs)) as pool:
        file = Path(folder) / "source.cu"
        file.write_text(source, encoding="utf-8")
        found = pool.map(lambda arch: _of_arch(file, arch, flags, tools), archs)
        return dict(zip(archs, found, strict=True))


def parse_ptxas(log: str) -> dict[str, dict[str, Numbers]]:
    """{arch: {mangled kernel: numbers}} out of the log of `-Xptxas -v`. Constant memory is given as far as the log has it."""
    found: dict[str, dict[str, Numbers]] = {}
    current: Numbers | None = None
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            current = found.setdefault(entry[2], {}).setdefault(entry[1], dict.fromkeys(_FIELDS, 0))
            current["constant_bytes"] = 0
        elif current is not None:
            for name, pattern in _FIELDS.items():
                if value := pattern.search(line):
                    current[name] = int(value[1])
            current["constant_bytes"] += sum(map(int, _CONSTANT.findall(line)))
    return found


def cubin_constants(cubin: Path) -> dict[str, int]:
    """{mangled kernel: bytes of constant memory}: bank 0 (the launch parameters and the driver's own) and the file's
    __constant__ data. From sm_90 on, ptxas -v does not print these numbers; they are read from the sections of the ELF file."""
    own: dict[str, int] = {}
    shared = 0
    for name, size in _sections(cubin.read_bytes()):
        if name.startswith(".nv.constant0."):
            own[name.removeprefix(".nv.constant0.")] = size
        elif re.fullmatch(r"\.nv\.constant\d+", name):
            shared += size
    return {kernel: size + shared for kernel, size in own.items()}


def by_kernel(numbers: dict[str, Numbers], *, only: str = "") -> dict[str, KernelNumbers]:
    """Mangled names replaced by short ones; `only` keeps the kernels whose full name holds that text.

    Kernels that differ only in Layer and Tune have the same short name; of these, the one with the most registers is kept.
    """
    found: dict[str, KernelNumbers] = {}
    names = demangle(list(numbers))
    for mangled, values in numbers.items():
        full = names[mangled]
        if only in full:
            name = short_name(full)
            if name not in found or found[name].registers < values["registers"]:
                found[name] = KernelNumbers(**values)
    return found


def demangle(names: Sequence[str]) -> dict[str, str]:
    """C++ names as c++filt writes them; without c++filt they are unchanged."""
    tool = shutil.which("c++filt")
    if not tool or not names:
        return {name: name for name in names}
    done = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True, check=False)
    return dict(zip(names, done.stdout.splitlines(), strict=True)) if done.returncode == 0 else dict(zip(names, names,
                                                                                                         strict=True))


def short_name(demangled: str) -> str:
    """`void a::gather<c::Layer, c::Tune, 4>(c::Layer, Sizes)` -> `gather<4>`: the part that distinguishes kernels of one file.
    """
    head = _outside_brackets(demangled.removeprefix("void "))
    name, _, arguments = head.partition("<")
    kept = [a for a in _split(arguments.removesuffix(">")) if a.rpartition("::")[2] not in ("Layer", "Tune")]
    return name.rpartition("::")[2] + (f"<{', '.join(kept)}>" if kept else "")


def _of_arch(file: Path, arch: str, flags: Sequence[str], tools: Toolchain) -> dict[str, KernelNumbers]:
    cubin = file.with_name(f"{arch}.cubin")
    host = ("-ccbin", str(tools.cxx)) if tools.cxx else ()
    command = [str(tools.nvcc), "-cubin", f"-arch={arch}", *TORCH_NVCC_FLAGS, *NVCC_FLAGS, *host, *flags,
               file.name, "-o", cubin.name]
    done = subprocess.run(command, cwd=file.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", env={**os.environ, "LC_ALL": "C", "TMPDIR": str(file.parent)}, check=False)
    if done.returncode:
        raise CompileFailed(f"{done.stdout}\n{ending('nvcc', done.returncode)}")
    numbers = parse_ptxas(done.stdout).get(arch, {})
    for kernel, size in cubin_constants(cubin).items():
        if kernel in numbers:
            numbers[kernel]["constant_bytes"] = size
    return by_kernel(numbers)


def _sections(elf: bytes) -> Iterator[tuple[str, int]]:
    """(name, size) of the sections of a 64-bit little-endian ELF file."""
    if elf[:6] != b"\x7fELF\x02\x01":
        return
    table, = struct.unpack_from("<Q", elf, 0x28)
    step, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<II4Q", elf, table + i * step) for i in range(count)]
    names = headers[names_at][4]
    for header in headers:
        begin = names + header[0]
        yield elf[begin:elf.index(b"\0", begin)].decode(), header[5]


def _outside_brackets(text: str) -> str:
    """Everything before the parameter list, which begins at the first "(" outside of <>. `(anonymous namespace)` does not
    count."""
    text, depth = text.replace("(anonymous namespace)::", ""), 0
    for i, c in enumerate(text):
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0:
            return text[:i]
    return text


def _split(text: str) -> list[str]:
    """Template arguments at the commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "<([") - (c in ">)]")
        if c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [p for p in (*parts, text[start:].strip()) if p]


def _result(status: Status, text: str, **more: Any) -> Resources:
    return Resources(status=status, headline=text, advice="" if status is Status.OK else DEFAULT_ADVICE[status], **more)
