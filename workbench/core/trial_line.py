"""Rules for the line of a trial that types cannot state. A line that breaks one is not read."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any, TypedDict

from .layer import LAUNCHES, Workload
from .typed import Misfit, misfit, read

KINDS = ("candidate", "baseline", "module", "module_baseline")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


class _AnyDevice(TypedDict):
    kind: str


class _Device(_AnyDevice, total=False):
    key: str
    name: str
    arch: str
    index: int
    sm: int


class _Build(TypedDict, total=False):
    seconds: float
    cached: bool
    compiler: str


class _Against(TypedDict):
    """A verdict from pairs of samples."""

    trial_id: str
    ratio: float
    low: float | None
    high: float | None
    verdict: str


# The objects inside a trial that are read again. All else in `detail` and `environment` is only shown.
_INNER = {"device": misfit(_Device), "build": misfit(_Build), "resources": misfit(dict[str, dict[str, dict[str, Any]]])}
_WHOLE = misfit(int)


def unusable(data: dict[str, Any]) -> str | None:
    """What is wrong with the line, as a clause, or None. `data` has the types of a trial."""
    for key, there in (("kind", KINDS), ("direction", LAUNCHES)):
        if data[key] not in there:
            return f"{key} is {ascii(data[key])}, which is not known"
    if data["kind"] == "candidate":
        for name, value in data.get("config", {}).items():
            if not isinstance(value, int):
                return f"config.{name} is {ascii(value)[:40]}, not a whole number"
    for place, timing in (("kernel_ms", data.get("kernel_ms")), *data.get("module_ms", {}).items()):
        for name in ("median_ms", "q25_ms", "q75_ms", "min_ms") if timing else ():
            if not 0 < timing[name] < 1e12:
                return f"{place}.{name} is {timing[name]}, not a time"
    names = [*data.get("blobs", {}).values(), *(t["samples_blob"] for t in (data.get("kernel_ms"), *data.get(
        "module_ms", {}).values()) if t and t.get("samples_blob"))]
    if strange := next((name for name in names if not _SHA256.match(name)), None):
        return f"the blob {ascii(strange)[:40]} is no SHA-256"
    detail = data.get("detail", {})
    return next((why for key, ask in _INNER.items() if key in data and (why := ask(data[key], key))), None) or \
        ("against" in detail and misfit(_Against)(detail["against"], "detail.against")) or \
        _unusable_resources(data.get("resources", {})) or _unusable_workload(json.dumps(data["workload"]))


def _unusable_resources(resources: dict[str, Any]) -> str | None:
    for arch, kernels in resources.items():
        if not any(c.isdigit() for c in arch):
            return f"resources.{ascii(arch)} is no architecture"
        for name, kernel in kernels.items():
            for key, value in kernel.items():
                if (key in ("registers", "barriers") or key.endswith("_bytes")) and (why := _WHOLE(value, key)):
                    return f"resources.{arch}.{name}.{why}"
    return None


@lru_cache(maxsize=1024)
def _unusable_workload(text: str) -> str | None:
    try:
        read(Workload, json.loads(text))
    except Misfit as error:
        return str(error.within("workload"))
    except ValueError as error:
        return f"its workload is not valid: {error}"
    return None
