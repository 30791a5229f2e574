"""Compile flags are nvcc's. On the emulator g++ gets those that mean the same to both; nvcc, where there is one, is still asked
about all of them, so that a flag it refuses fails here as it would on a GPU."""

from __future__ import annotations

from collections.abc import Iterable

_SHARED = ("-D", "-U", "-I", "-O0", "-O1", "-O2", "-O3", "-std=")


def emulated(flags: Iterable[str]) -> tuple[str, ...]:
    """Those that g++ takes too."""
    return tuple(f for f in flags if f.startswith(_SHARED))
