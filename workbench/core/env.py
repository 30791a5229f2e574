"""What this machine has, found without importing torch: GPUs, PyTorch, compilers, folders. Trials record a part of it."""

from __future__ import annotations

import ast
import csv
import importlib.util
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .errors import BadRequest
from .toolchain import Toolchain, cxx_problem, ninja_problem, nvcc_problem
from .toolchain import find_toolchain as _find_toolchain
from .trial_parts import Environment

_SMI_FIELDS = "index,name,uuid,compute_cap,memory.total,driver_version"
_SMI_LIMIT_S = 5
_CAP_SYS_ADMIN = 21           # linux/capability.h
MACHINES = ("x86_64", "aarch64")
OLDEST_PYTHON = (3, 11)
_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Gpu:
    """One GPU as `nvidia-smi` lists it. `index` is its number among the visible GPUs, the N of `cuda:N`."""

    index: int
    name: str
    uuid: str
    compute_cap: str
    memory_bytes: int
    driver: str

    @property
    def sm(self) -> int:
        """compute_cap 9.0 -> 90."""
        return int(self.compute_cap.replace(".", ""))


@dataclass(frozen=True)
class TorchInfo:
    """The installed PyTorch; `version` is "" when there is none, `cuda` is None for a CPU build."""

    version: str = ""
    cuda: str | None = None


def find_toolchain() -> Toolchain:
    """The compilers and tools of this machine. An nvcc whose major version is that of torch's CUDA is preferred."""
    return _find_toolchain(torch_info().cuda, cache=cache_dir())


def gpus() -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES makes visible; [] without a driver, or if `nvidia-smi` does not answer in 5 s."""
    try:
        done = subprocess.run(["nvidia-smi", f"--query-gpu={_SMI_FIELDS}", "--format=csv,noheader,nounits"],
                              capture_output=True, text=True, timeout=_SMI_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return _visible(parse_gpus(done.stdout), os.environ.get("CUDA_VISIBLE_DEVICES")) if done.returncode == 0 else []


def parse_gpus(text: str) -> list[Gpu]:
    """The GPUs in the lines of `nvidia-smi`. A line with a missing field ("[N/A]") is left out."""
    found = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        try:
            index, name, uuid, compute_cap, mib, driver = (v.strip() for v in row)
            found.append(Gpu(int(index), name, uuid, f"{float(compute_cap):.1f}", int(mib) * 2**20, driver))
        except ValueError:
            continue
    return found


def torch_info() -> TorchInfo:
    """Version of the installed PyTorch and of its CUDA, read from its files: importing it takes seconds."""
    spec = importlib.util.find_spec("torch")
    file = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    values = _constants(file) if file and file.is_file() else {}
    return TorchInfo(values.get("__version__", ""), values.get("cuda"))


def require_torch() -> None:
    """Raises `BadRequest` where PyTorch is not installed."""
    if not torch_info().version:
        raise BadRequest("PyTorch is not installed; every check needs it: pip install torch ('python -m "
                         "workbench doctor' says what else is missing).")


@lru_cache(maxsize=1)
def environment() -> Environment:
    """What a trial records of the machine it ran on: versions and kinds, no names of hosts or users."""
    tools, torch, found = find_toolchain(), torch_info(), gpus()
    return {"python": platform.python_version(), "system": f"{platform.system()} {platform.release()}",
            "machine": platform.machine(), "cpu": _cpu_name(), "cores": len(os.sched_getaffinity(0)),
            "torch": torch.version, "cuda": torch.cuda, "cxx": tools.cxx_label, "nvcc": tools.nvcc_label,
            "driver": found[0].driver if found else None}


def counters_restricted(driver: Path = Path("/proc/driver/nvidia/params"), own: Path = Path("/proc/self/status")) -> bool:
    """Whether only administrators may read the GPU's counters and this process lacks the right (CAP_SYS_ADMIN)."""
    try:
        only = "RmProfilingAdminOnly: 1" in driver.read_text(encoding="utf-8", errors="replace")
        held = re.search(r"^CapEff:\s*([0-9a-f]+)", own.read_text(encoding="utf-8", errors="replace"), re.M)
    except OSError:
        return False
    return only and not (held is not None and int(held[1], 16) >> _CAP_SYS_ADMIN & 1)


def cache_dir() -> Path:
    """$KERNEL_WORKBENCH_CACHE, else `kernel-workbench` in the user's cache folder. It is not created here."""
    named = os.environ.get("KERNEL_WORKBENCH_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "kernel-workbench"


def platform_problem() -> str | None:
    """None on Linux x86-64 or aarch64 with Python 3.11 or newer, else the sentence that says what to do."""
    here = f"{platform.system()} on {platform.machine()}"
    if platform.system() != "Linux" or platform.machine() not in MACHINES:
        return (f"Kernel Workbench runs on Linux x86-64 and aarch64, this is {here}: use a Linux machine, WSL or a "
                f"container.")
    if sys.version_info < OLDEST_PYTHON:
        return (f"Kernel Workbench needs Python 3.11 or newer, this is {platform.python_version()}: install a newer "
                f"one.")
    return None


def _visible(found: list[Gpu], chosen: str | None) -> list[Gpu]:
    """The visible GPUs. CUDA_VISIBLE_DEVICES is read as CUDA reads it: numbers or UUID prefixes, up to the first that names
    no GPU."""
    if chosen is None:
        return found
    picked: list[Gpu] = []
    for word in (w.strip() for w in chosen.split(",")):
        match = [g for g in found if (str(g.index) == word if word.isdigit() else word and g.uuid.startswith(word))]
        if not match:
            break
        picked.append(match[0])
    return [Gpu(i, g.name, g.uuid, g.compute_cap, g.memory_bytes, g.driver) for i, g in enumerate(picked)]


def _constants(file: Path) -> dict[str, str]:
    values: dict[str, str] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant) and isinstance(value.value, str) and isinstance(targets[0], ast.Name):
            values[targets[0].id] = value.value
    return values


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def shipped(name: str) -> Path:
    """The path of `kernel_templates`, `sessions` or `app.py`: inside an installed package, or at the top of a checkout."""
    inside = _PACKAGE / "shipped" / name
    return inside if inside.exists() else _PACKAGE.parent / name


__all__ = ["Gpu", "Toolchain", "TorchInfo", "cache_dir", "counters_restricted", "cxx_problem", "environment", "find_toolchain",
           "gpus", "ninja_problem", "nvcc_problem", "parse_gpus", "platform_problem",
           "shipped", "torch_info"]
