"""The floor of a direction: the longer of the time for its bytes and the time for its FLOPs, at the GPU's rates. And the rates
measured on this machine: each GPU has one JSON file in the cache folder, which is found by the GPU's name."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from .env import cache_dir
from .errors import BadRequest
from .facts import Traffic, bytes_moved, flops
from .layer import Workload
from .replies import Rates
from .typed import read


@dataclass(frozen=True)
class Ceilings:
    """Rates of one GPU. `predicted` names the ones taken from the data sheet or derived; all others were measured.

    Rates are per second; `copy` counts bytes read plus bytes written. `flops` is by precision.
    """

    name: str
    read_bytes_per_s: float
    write_bytes_per_s: float
    copy_bytes_per_s: float
    flops_per_s: Mapping[str, float]
    l2_bytes: int
    predicted: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Floor:
    """The least time of a direction in ms. `limit`: what determines it, "bytes" or "compute"."""

    ms: float
    limit: str
    bytes_ms: float
    compute_ms: float
    predicted: bool  # true if a rate used for it was not measured


def floor(workload: Workload, direction: str, precision: str, ceilings: Ceilings | None) -> Floor | None:
    """The floor on that GPU; None without ceilings (on the emulator, or on a GPU whose rates are unknown). Raises `BadRequest`
    for a precision that the ceilings do not have.
    """
    if ceilings is None:
        return None
    if precision not in ceilings.flops_per_s:
        raise BadRequest(f"precision {precision!r} has no rate on {ceilings.name}; choose "
                         f"{', '.join(ceilings.flops_per_s)}.", field="precision")
    traffic = bytes_moved(workload, direction)
    bytes_ms = 1e3 * memory_seconds(traffic, ceilings)
    compute_ms = 1e3 * flops(workload, direction) / ceilings.flops_per_s[precision]
    limit = "bytes" if bytes_ms >= compute_ms else "compute"
    used = {precision} if limit == "compute" else {"copy", "write" if traffic.written_bytes > traffic.read_bytes
                                                   else "read"}
    return Floor(max(bytes_ms, compute_ms), limit, bytes_ms, compute_ms, bool(used & ceilings.predicted))


def memory_seconds(traffic: Traffic, ceilings: Ceilings) -> float:
    """The time for the bytes read and written. The copy rate holds for equal amounts of both, and the rate of reading or of
    writing for the rest. So pure reading, pure writing and copying take exactly the measured times.
    """
    both = min(traffic.read_bytes, traffic.written_bytes)
    return (2 * both / ceilings.copy_bytes_per_s + (traffic.read_bytes - both) / ceilings.read_bytes_per_s
            + (traffic.written_bytes - both) / ceilings.write_bytes_per_s)


def ceilings_of(gpu_name: str) -> Ceilings | None:
    """The ceilings for a GPU's name from the driver: those of the longest known name that it contains, or None."""
    known = [c for c in CEILINGS if all(word in gpu_name.lower().replace("-", " ").split()
                                        for word in c.name.lower().replace("-", " ").split())]
    return max(known, key=lambda c: len(c.name), default=None)


_ALL = frozenset({"read", "write", "copy", "ieee", "tf32", "tf32x3", "fp16", "bf16", "fp64"})


def _rates(ieee: float, tf32: float, fp16: float, fp64: float) -> Mapping[str, float]:
    """TFLOP/s -> FLOP/s by precision; tf32x3 is three products per product."""
    return MappingProxyType({"ieee": ieee * 1e12, "tf32": tf32 * 1e12, "tf32x3": tf32 * 1e12 / 3,
                             "fp16": fp16 * 1e12, "bf16": fp16 * 1e12, "fp64": fp64 * 1e12})


def _from_data_sheet(name: str, bytes_per_s: float, l2_bytes: int, rates: Mapping[str, float]) -> Ceilings:
    return Ceilings(name, bytes_per_s, bytes_per_s, bytes_per_s, rates, l2_bytes, _ALL)


_MIB = 2**20
# H200 measured: copy of large tensors 4.26 TB/s (read + write), fill 4.65 TB/s, matmul 51 (fp32) and 405 (TF32) TFLOP/s; torch
# 2.11, CUDA 13.0. Reading alone was not measured; it has the copy rate. fp16, bf16 and fp64 are from NVIDIA's data sheet
# (dense). The rates of the other GPUs are from NVIDIA's data sheets; fp64 is that of the tensor cores.
CEILINGS: tuple[Ceilings, ...] = (
    Ceilings("H200", 4.26e12, 4.65e12, 4.26e12, _rates(51, 405, 989, 67), 50 * _MIB,
             frozenset({"read", "fp16", "bf16", "fp64"})),
    _from_data_sheet("H100", 3.35e12, 50 * _MIB, _rates(67, 494, 989, 67)),
    _from_data_sheet("H100 PCIe", 2.0e12, 50 * _MIB, _rates(51, 378, 756, 51)),
    _from_data_sheet("A100", 1.935e12, 40 * _MIB, _rates(19.5, 156, 312, 19.5)),
    _from_data_sheet("A100 SXM4 80GB", 2.039e12, 40 * _MIB, _rates(19.5, 156, 312, 19.5)),
    _from_data_sheet("A100 SXM4 40GB", 1.555e12, 40 * _MIB, _rates(19.5, 156, 312, 19.5)),
    _from_data_sheet("A100 PCIE 40GB", 1.555e12, 40 * _MIB, _rates(19.5, 156, 312, 19.5)),
)


_SCHEMA = "kernel-workbench/ceilings/1"


def folder() -> Path:
    return cache_dir() / "ceilings"


def keep(measured: Rates) -> Path:
    """Write the rates of a GPU to its file. They replace those of an earlier measurement."""
    which = re.sub(r"[^A-Za-z0-9-]+", "-", measured.uuid or measured.name).strip("-")
    path = folder() / f"{which}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps({"schema": _SCHEMA, **asdict(measured)}, indent=1), encoding="utf-8")
    partial.replace(path)
    return path


def kept(gpu_name: str) -> Ceilings | None:
    """The newest ceilings measured on a GPU of exactly that name, or None. A file that does not hold ceilings is ignored."""
    place = folder()
    try:
        return _read(place, place.stat().st_mtime_ns).get(gpu_name)
    except OSError:
        return None


def ceilings_for(gpu_name: str) -> Ceilings | None:
    """The ceilings measured on this machine, else those that the project ships, else None."""
    return kept(gpu_name) or ceilings_of(gpu_name)


@lru_cache(maxsize=8)
def _read(place: Path, changed_ns: int) -> dict[str, Ceilings]:
    """By GPU name; read again when the folder has changed."""
    found = {}
    for path in sorted(place.glob("*.json"), key=lambda p: p.stat().st_mtime):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data.pop("schema") == _SCHEMA:
                rates = read(Rates, data)
                found[rates.name] = Ceilings(rates.name, rates.read_bytes_per_s, rates.write_bytes_per_s,
                                             rates.copy_bytes_per_s, MappingProxyType(rates.flops_per_s), rates.l2_bytes)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return found
