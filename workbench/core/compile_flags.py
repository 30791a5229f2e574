"""Compile flags are flags of nvcc. For the emulator g++ gets those that mean the same to both compilers. If nvcc is installed,
it is asked about all flags, so that a flag which nvcc refuses fails on the emulator too."""

from __future__ import annotations

from collections.abc import Iterable

_SHARED = ("-D", "-U", "-I", "-O0", "-O1", "-O2", "-O3", "-std=")


def emulated(flags: Iterable[str]) -> tuple[str, ...]:
    """Those that g++ takes too."""
    return tuple(f for f in flags if f.startswith(_SHARED))
