"""The measured rates of this machine's GPUs. Each GPU has one JSON file in the cache folder, which is found by the GPU's name.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from .env import cache_dir
from .replies import Rates
from .roofline import Ceilings, ceilings_of
from .typed import read

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
