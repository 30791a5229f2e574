"""What this machine has, what works with it, and for each missing part the command that installs it. No torch, no GPU code."""

from __future__ import annotations

import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ...core import landlock, numbers
from ...core.confinement import Confinement, bwrap, bwrap_problem, landlock_problem, seccomp_problem, user_problem
from ...core.env import (
    Gpu,
    TorchInfo,
    counters_restricted,
    find_toolchain,
    gpus,
    nvcc_problem,
    platform_problem,
    torch_info,
)
from ...core.errors import BadRequest
from ...core.roofline import ceilings_for, kept
from ...core.toolchain import Toolchain

_FOR_A_GPU = ("torch", "torch for the GPU", "nvcc")
_PACKAGES = {"numpy": "needed for every check", "pandas": "tables of trials, also on the command line",
             "plotly": "figures", "streamlit": "the page"}


@dataclass(frozen=True)
class Finding:
    """One part that was searched for. `found`: None if it is missing. `command`: the command that installs it, or None if there
    is nothing to do."""

    name: str
    found: str | None
    works: str
    command: str | None = None

    @property
    def ok(self) -> bool:
        return self.found is not None and self.command is None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


def examine() -> list[Finding]:
    """All findings. Each comes after the ones that it depends on."""
    tools, torch, cards = find_toolchain(), torch_info(), gpus()
    found: list[Finding | None] = [_platform(), _torch(torch), *map(_package, _PACKAGES), _compiler(tools),
                                    _ninja(tools), _gpu(cards)]
    found += [_ceilings(name) for name in dict.fromkeys(card.name for card in cards)]
    found.append(_nvcc(tools, torch, bool(cards)))
    found += [_torch_for_gpu(torch, bool(cards)),
              _optional("nvdisasm", tools.nvdisasm, "shows the machine code of a kernel, without a GPU",
                        "pip install nvidia-cuda-nvdisasm"),
              _optional("compute-sanitizer", tools.compute_sanitizer,
              "names the source line of a memory error on a GPU", "part of the CUDA toolkit"),
              _ncu(tools, bool(cards)), _sandbox(), _browser()]
    return [f for f in found if f]


def devices(findings: list[Finding] | None = None) -> list[str]:
    """The devices on which kernels can run now, GPUs first."""
    findings = findings or examine()
    found = {f.name: f for f in findings}
    usable = [f"cuda:{gpu.index}" for gpu in gpus()] if found["GPU"].ok and gpu_lacks(findings) is None else []
    return [*usable, "cpu"] if all(found[name].found for name in ("torch", "numpy", "C++ compiler")) else usable


def gpu_lacks(findings: list[Finding] | None = None) -> Finding | None:
    """The finding because of which kernels cannot run on the machine's GPU: torch, its CUDA, or a compiler. None if they can.
    """
    if findings is None:  # only these three: `examine` would also try the sandbox
        torch = torch_info()
        findings = [f for f in (_torch(torch), _torch_for_gpu(torch, True), _nvcc(find_toolchain(), torch, True)) if f]
    found = {f.name: f for f in findings}
    return next((f for name in _FOR_A_GPU if (f := found.get(name)) and not f.ok), None)


def resolve_device(name: str) -> str:
    """The device for a name. "auto" is "cuda:0" if kernels can run on a GPU, else "cpu". Raises `BadRequest` for a device that
    does not exist, and for a GPU that this torch cannot use. A GPU can be named without nvcc, for work without a build."""
    if name == "cpu":
        return name
    there = [f"cuda:{gpu.index}" for gpu in gpus()]
    lacks = gpu_lacks() if there else None
    if name == "auto":
        return there[0] if there and lacks is None else "cpu"
    name = "cuda:0" if name == "cuda" else name
    if name not in there:
        raise BadRequest(f"Device {name!r} is not on this machine; choose {', '.join([*there, 'cpu'])}.", field="device")
    if lacks is not None and lacks.name != "nvcc":
        raise BadRequest(f"{name} cannot be used. {lacks.name}: {lacks.works}. Choose cpu, or install it: {lacks.command}",
                         field="device")
    return name


def summary(findings: list[Finding]) -> str:
    """One sentence that says what works now."""
    where = devices(findings)
    if not where:
        need = next(f for f in findings if not f.ok and f.command)
        return f"Nothing can be built yet: {need.name} is missing. {need.command}"
    if where == ["cpu"]:
        return ("Every kernel runs on this machine's CPU through the emulator. The checks are real; times here do not predict "
                "a GPU.")
    return f"Kernels run on {', '.join(where)}; the emulator works too."


def _platform() -> Finding:
    problem = platform_problem()
    label = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return Finding("platform", label, problem or "supported", problem)


def _torch(torch: TorchInfo) -> Finding:
    if not torch.version:
        return Finding("torch", None, "needed for every check",
                       f"{sys.executable} -m pip install torch")
    cuda = f", CUDA {torch.cuda}" if torch.cuda else ", CPU build"
    return Finding("torch", f"{torch.version}{cuda}", "computes the expected values of every check")


def _package(name: str) -> Finding:
    try:
        return Finding(name, metadata.version(name), _PACKAGES[name])
    except metadata.PackageNotFoundError:
        return Finding(name, None, _PACKAGES[name], f"{sys.executable} -m pip install {name}")


def _compiler(tools: Toolchain) -> Finding:
    if not tools.cxx:
        return Finding("C++ compiler", None, "builds the kernels for the emulator", _apt("g++"))
    return Finding("C++ compiler", f"{tools.cxx} {tools.cxx_version}", "device cpu: kernels run on the emulator")


def _ninja(tools: Toolchain) -> Finding:
    if not tools.ninja:
        return Finding("ninja", None, "needed by load_inline to build", f"{sys.executable} -m pip install ninja")
    return Finding("ninja", str(tools.ninja), "needed by load_inline to build")


def _gpu(cards: list[Gpu]) -> Finding:
    if not cards:
        return Finding("GPU", None, "needed for real times; everything else works without a GPU")
    names = ", ".join(f"cuda:{c.index} {c.name}" for c in cards)
    return Finding("GPU", names, f"driver {cards[0].driver}; times and speed-ups are real")


def _ceilings(name: str) -> Finding:
    known, here = ceilings_for(name), kept(name)
    if known is None:
        return Finding("ceilings", None, f"not known for {name}, so floors are not shown; the first timed run measures them")
    rates = ", ".join(f"{what} {numbers.byte_rate(rate)}" for what, rate in (
        ("read", known.read_bytes_per_s), ("write", known.write_bytes_per_s), ("copy", known.copy_bytes_per_s)))
    flops = ", ".join(f"{p} {numbers.flop_rate(rate)}" for p, rate in known.flops_per_s.items())
    return Finding("ceilings", f"{rates}; {flops}", "the physical limit of a kernel, " + (
        "measured on this machine" if here else "as shipped; the first timed run measures them"))


def _nvcc(tools: Toolchain, torch: TorchInfo, has_gpu: bool) -> Finding:
    if not tools.nvcc:
        works = "builds kernels for the GPU; without it registers and occupancy are unknown"
        return Finding("nvcc", None, works, _nvcc_command(torch))
    problem = nvcc_problem(tools, torch.cuda)
    works = "registers, spills, shared memory and occupancy for sm_80 and sm_90" + (
        ", kernels for the GPU" if has_gpu else ", without a GPU")
    return Finding("nvcc", f"{tools.nvcc} {tools.nvcc_version}", problem or works, problem)


def _torch_for_gpu(torch: TorchInfo, has_gpu: bool) -> Finding | None:
    if not has_gpu or not torch.version or torch.cuda:
        return None
    return Finding("torch for the GPU", None, "there is a GPU, but this torch is a CPU build",
                   f"{sys.executable} -m pip install --force-reinstall torch")


def _optional(name: str, path: Path | None, works: str, how: str) -> Finding:
    return Finding(name, str(path) if path else None, works if path else f"{works} ({how}; optional)")


def _ncu(tools: Toolchain, has_gpu: bool) -> Finding:
    """The finding for ncu. Whether the driver refuses access to the counters is certain only when ncu runs."""
    works = "counts what limits a kernel on a GPU (the verb profile)"
    if not tools.ncu:
        return _optional("ncu", None, works, "Nsight Compute, part of the CUDA toolkit")
    lacks = "; there is no GPU here" if not has_gpu else "; only administrators may read the GPU's counters here" if (
        counters_restricted()) else ""
    return Finding("ncu", str(tools.ncu), works + lacks)


def _sandbox() -> Finding:
    """The finding for the sandbox of a checked file. Only a check finds out whether the file can run as another user."""
    why = bwrap_problem()
    sockets = "" if seccomp_problem() else "all"
    more = f"; sockets are not refused: {seccomp_problem()}" if seccomp_problem() else ""
    if not why:
        alone = f"; Landlock inside bwrap would prevent more: {landlock_problem()}" if landlock_problem() else ""
        return Finding("sandbox", bwrap(), "a checked file has no network and can write only to its scratch folder; "
                       f"{'on the CPU it has no sockets' if sockets else 'it has unix sockets'}{more}{alone}")
    command = None if bwrap() else _apt("bubblewrap")
    if not landlock_problem():
        held = Confinement(landlock=landlock.version(), sockets=sockets)
        works = (f"{why}; Landlock for a checked file: {held.held}{more}; bwrap would prevent more: it hides other processes "
                 "and the services of the machine")
        return Finding("sandbox", f"Landlock {held.landlock}", works, command)
    no_user = user_problem()
    works = f"{why}; {landlock_problem()}; " + (f"{no_user}: a checked file runs with your rights, so read it first" if no_user
                                                else "a checked file runs as another user if possible")
    return Finding("sandbox", None, works, command)


def _browser() -> Finding:
    path = shutil.which("chromium") or shutil.which("google-chrome")
    return Finding("Chromium", path, "needed only by the browser tests of the page (optional)")


def _apt(package: str) -> str:
    return f"sudo apt-get install {package}" if shutil.which("apt-get") else f"install {package} with your package manager"


def _nvcc_command(torch: TorchInfo) -> str:
    major = torch.cuda or "13.0"
    return f'{sys.executable} -m pip install "cuda-toolkit[nvcc,cudart,cccl,nvrtc]=={major}.*"'
