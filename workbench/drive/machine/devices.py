"""The name of a device as a user gives it -> "cpu" or "cuda:N" of this machine."""

from __future__ import annotations

from ...core.env import gpus
from ...core.errors import BadRequest
from .doctor import gpu_lacks


def resolve_device(name: str) -> str:
    """"auto" -> "cuda:0" where kernels run on a GPU, else "cpu". Raises `BadRequest` for a device that is not there, and
    for a GPU that this torch cannot use; without nvcc it can still be named, for what needs no build."""
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
        raise BadRequest(f"{name} cannot be used, {lacks.works}: choose cpu, or install it with {lacks.command}",
                         field="device")
    return name
