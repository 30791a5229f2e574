"""Timings in, the samples behind them out: by the SHA-256 of their blob, from whichever session holds it.

Trials travel without their session (page, notebook, tables), and a blob is named by its content: where a session was
read or written in this process, its samples are found again here.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path

_places: dict[str, Path] = {}  # sha256 -> the file


def remember(name: str, path: Path) -> None:
    """Note where the blob of that name lies."""
    _places[name] = path


def samples_of(name: str) -> tuple[float, ...]:
    """The times in ms, in the order they were taken; () when the blob is not there or is not what its name says."""
    path = _places.get(name)
    return _read(name, path) if path else ()


@lru_cache(maxsize=4096)
def _read(name: str, path: Path) -> tuple[float, ...]:
    try:
        data = path.read_bytes()
    except OSError:
        return ()
    if hashlib.sha256(data).hexdigest() != name:  # somebody wrote over it
        return ()
    try:
        return tuple(float(x) for x in json.loads(data))
    except (ValueError, TypeError):  # a blob of something else
        return ()
