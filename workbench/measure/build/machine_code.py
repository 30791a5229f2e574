"""PTX and SASS of a source, without a GPU: nvcc compiles, nvdisasm writes the machine code as text. Kept in the cache."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.cache import Cache, build_key
from ...core.env import find_toolchain, nvcc_problem
from ...core.orders import Emit, MachineCodeOrder
from ...core.replies import MachineCode
from ...core.toolchain import Toolchain
from ...core.trial import DEFAULT_ADVICE, Status
from .compiler_log import ending, first_error, headline
from .resources import NVCC_FLAGS, TORCH_NVCC_FLAGS, CompileFailed, demangle, short_name

_PTX, _SASS, _LIVE = "code.ptx", "code.sass", "live.txt"
_NO_NVDISASM = "No nvdisasm was found, so there is PTX but no SASS: pip install nvidia-cuda-nvdisasm."


@dataclass(frozen=True)
class _Meta:
    """The data that the cache keeps in addition to the texts."""

    names: dict[str, str]


def machine_code_op(order: MachineCodeOrder, emit: Emit) -> MachineCode:
    """Worker operation "machine_code"."""
    cache, tools = Cache(order.cache), find_toolchain()
    if problem := nvcc_problem(tools, None):
        return _result(Status.NO_COMPILER, problem)
    key = "asm-" + build_key(order.source, order.flags, device="cuda", arch=order.arch, compiler=tools.nvcc_label, torch="",
                             extra=(*TORCH_NVCC_FLAGS, *NVCC_FLAGS, str(tools.nvdisasm or "")))
    found = cache.find(key, _Meta)
    if found is None:
        try:
            with cache.building(key) as folder:
                (folder / "entry").mkdir()
                names = _texts(order, tools, folder / "entry")
                found = cache.publish(key, folder / "entry", _Meta(names))
        except CompileFailed as error:
            first = first_error(error.log, order.source)
            return _result(Status.BUILD_FAILED, headline("nvcc", first) if first else "nvcc stopped without an error line.")
    return _result(Status.OK, "" if tools.nvdisasm else _NO_NVDISASM, names=found.value.names,
                   **{field: (found.path / name).read_text(encoding="utf-8")
                      for field, name in (("ptx", _PTX), ("sass", _SASS), ("live", _LIVE))})


def _texts(order: MachineCodeOrder, tools: Toolchain, entry: Path) -> dict[str, str]:
    """Writes the three texts; the mangled name of each kernel -> its short one. Raises `CompileFailed`."""
    with tempfile.TemporaryDirectory(prefix="kernel-workbench-") as place:
        folder = Path(place).resolve()
        (folder / "source.cu").write_text(order.source, encoding="utf-8")
        host = ("-ccbin", str(tools.cxx)) if tools.cxx else ()
        flags = [flag for flag in NVCC_FLAGS if flag != "-Xptxas=-v"]
        _run([tools.nvcc, "-cubin", f"-arch={order.arch}", "-keep", *TORCH_NVCC_FLAGS, *flags, *host, *order.flags,
              "source.cu", "-o", "source.cubin"], folder)
        ptx = (folder / "source.ptx").read_text(encoding="utf-8", errors="replace")
        sass = live = ""
        if tools.nvdisasm:
            sass = _run([tools.nvdisasm, "-c", "-g", "-hex", "source.cubin"], folder)
            live = _run([tools.nvdisasm, "-c", "-lrm", "count", "source.cubin"], folder)
    for name, text in ((_PTX, ptx), (_SASS, sass), (_LIVE, live)):
        # The path of the build's folder is removed, and so are the blanks of nvdisasm's columns.
        plain = re.sub(r"(?<=\S) {2,}", "  ", text.replace(f"{folder}/", ""))
        (entry / name).write_text(re.sub(r"[ \t]+$", "", plain, flags=re.M), encoding="utf-8")
    mangled = re.findall(r"\.entry\s+(\w+)", ptx)
    return {name: short_name(full) for name, full in demangle(mangled).items()}


def _run(command: list[Any], folder: Path) -> str:
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True, errors="replace",
                          env={**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)}, check=False)
    if done.returncode:
        raise CompileFailed(f"{done.stdout}{done.stderr}\n{ending(Path(str(command[0])).name, done.returncode)}")
    return done.stdout


def _result(status: Status, text: str, **more: Any) -> MachineCode:
    return MachineCode(status=status, headline=text, advice="" if status is Status.OK else DEFAULT_ADVICE[status], **more)
