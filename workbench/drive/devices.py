"""Which device is meant: a name from a user -> "cpu" or "cuda:N" of this machine."""

from __future__ import annotations

from ..core.env import gpus
from ..core.errors import BadRequest


def resolve_device(name: str) -> str:
    """"auto" -> "cuda:0" where there is a GPU, else "cpu". Raises `BadRequest` for a device that is not there."""
    if name == "cpu":
        return name
    there = [f"cuda:{gpu.index}" for gpu in gpus()]
    if name == "auto":
        return there[0] if there else "cpu"
    name = "cuda:0" if name == "cuda" else name
    if name not in there:
        raise BadRequest(f"Device {name!r} is not on this machine; choose {', '.join([*there, 'cpu'])}.", field="device")
    return name
