"""Facts about a device, "cpu" or "cuda:N": its name, architecture, memory and library versions."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import torch

from ..core.candidate import EMULATED_SM
from ..core.errors import BadRequest
from ..core.orders import DeviceOrder, Emit
from ..core.replies import Device

# The memory format that PyTorch calls channels_last, by the number of a tensor's dimensions; other tensors have none.
CHANNELS_LAST_LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}


def describe(order: DeviceOrder, emit: Emit = lambda event: None) -> Device:
    """Facts about a device. Raises `BadRequest` if it is absent."""
    name, torch_version, cuda = order.device, str(torch.__version__), torch.version.cuda or ""
    if name == "cpu":
        total, free = host_memory()
        machine = platform.machine()
        return Device("cpu", 0, _cpu_name(), machine, EMULATED_SM, f"cpu-{machine}", total_bytes=total, free_bytes=free,
                      torch=torch_version, cuda=cuda, cudnn=0, driver="", l2_bytes=0)
    index = _cuda_index(name)
    facts = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    sm = 10 * facts.major + facts.minor
    key = re.sub(r"[^a-z0-9]+", "_", facts.name.lower()).strip("_")
    return Device("cuda", index, facts.name, f"sm_{sm}", sm, key, total_bytes=total, free_bytes=free + _cached(index),
                  torch=torch_version, cuda=cuda, cudnn=torch.backends.cudnn.version() or 0, driver=_driver(),
                  l2_bytes=l2_bytes(index))


def free_bytes(device: str) -> int:
    """Bytes that can still be allocated there, the caching allocator's unused part included."""
    if device == "cpu":
        return host_memory()[1]
    index = _cuda_index(device)
    return torch.cuda.mem_get_info(index)[0] + _cached(index)


def out_of_memory(error: Exception) -> bool:
    """CUDA's error, Python's own, or the bare RuntimeError of PyTorch's allocator for the host."""
    return isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)) or "DefaultCPUAllocator" in str(error)


def l2_bytes(index: int) -> int:
    """Size of the GPU's L2 cache in bytes."""
    facts = torch.cuda.get_device_properties(index)
    # The attribute came with torch 2.2; 64 MiB is more than any GPU before had.
    return int(getattr(facts, "L2_cache_size", 0)) or 64 << 20


def host_memory() -> tuple[int, int]:
    """(total, available) bytes of this machine, or of the control group when that is tighter."""
    info = {k: int(v.split()[0]) * 1024 for k, v in
            (line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())}
    total, free = info["MemTotal"], info["MemAvailable"]
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and used.is_file() and (text := limit.read_text().strip()).isdigit():
        total, free = min(total, int(text)), min(free, max(0, int(text) - int(used.read_text())))
    return total, free


def _cuda_index(name: str) -> int:
    found = re.fullmatch(r"cuda(?::(\d+))?", name)
    if not found:
        raise BadRequest(f"device {name!r} is not known; choose cpu or cuda:0.", field="device")
    index, there = int(found[1] or 0), torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= there:
        raise BadRequest(f"{name} does not exist: torch {torch.__version__} sees {there} CUDA devices; choose cpu.",
                         field="device")
    return index


def _cached(index: int) -> int:
    return torch.cuda.memory_reserved(index) - torch.cuda.memory_allocated(index)


def _cpu_name() -> str:
    path = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", path.read_text(), re.M) if path.is_file() else None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _driver() -> str:
    path = Path("/proc/driver/nvidia/version")
    found = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", path.read_text()) if path.is_file() else None
    return found[1] if found else ""
