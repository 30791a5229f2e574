"""The objects inside the line of a trial: on what it ran, how it was built, what its kernels take."""

from __future__ import annotations

from dataclasses import dataclass

from .typed import read_once


@read_once
@dataclass(frozen=True)
class TrialDevice:
    """Two times may be compared only where `key` is equal. The emulator has the `sm` that it emulates."""

    kind: str                            # "cpu" | "cuda"
    index: int
    name: str
    arch: str
    sm: int
    key: str


@read_once
@dataclass(frozen=True)
class KernelNumbers:
    """What nvcc says of one kernel. Bytes are per thread for spills and stack, per block for (static) shared memory, per
    launch for constant memory."""

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    shared_bytes: int
    barriers: int
    constant_bytes: int


Kernels = dict[str, dict[str, KernelNumbers]]   # architecture -> short name -> numbers


@dataclass(frozen=True)
class TrialBuild:
    """How the library was made. Older sessions leave out what was not reached."""

    seconds: float | None = None
    cached: bool = False
    compiler: str = ""
