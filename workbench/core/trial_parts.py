"""The objects inside the line of a trial: its device, build, resources and details."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from .typed import read_once


@read_once
@dataclass(frozen=True)
class TrialDevice:
    """The device of a trial. Two times may be compared only if `key` is equal. `sm` of the emulator is the one that it
    emulates."""

    kind: str                            # "cpu" | "cuda"
    index: int
    name: str
    arch: str
    sm: int
    key: str


Environment = dict[str, str | int | None]       # versions and hardware of the machine; only shown


@read_once
@dataclass(frozen=True)
class KernelNumbers:
    """What nvcc reports about one kernel. Bytes of spills and stack are per thread, those of (static) shared memory per block,
    those of constant memory per launch."""

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
    """How the library was made. In older sessions a build that ended early lacks the later fields."""

    seconds: float | None = None
    cached: bool = False
    compiler: str = ""


@dataclass(frozen=True)
class Against:
    """The verdict of the candidate against a baseline, from pairs of samples taken alternately."""

    baseline: str
    trial_id: str                        # of the baseline
    ratio: float
    low: float | None
    high: float | None
    verdict: str
    pairs: int
    dropped: int
    stop: str


@dataclass(frozen=True)
class Detail:
    """Details of an outcome, beyond its headline. Code reads the named fields; `shown` is only displayed. In the line of a
    trial all of them are keys of one object."""

    against: Against | None = None
    against_strongest: Against | None = None
    way: str | None = None               # of a baseline: a key of `pytorch_ways.WAYS`
    kernels: tuple[str, ...] | None = None       # that took most of the time of a baseline's call
    fresh_process: bool | None = None    # whether the baseline was measured in its own process
    left_to_pytorch: tuple[str, ...] | None = None   # directions of a module
    checked: tuple[str, ...] | None = None       # cases of a module
    log_tail: str | None = None
    shown: dict[str, Any] = field(default_factory=dict)

    def to_line(self) -> dict[str, Any]:
        named = {k: v for k, v in asdict(self).items() if k != "shown" and v is not None}
        return {**named, **self.shown}

    @classmethod
    def from_line(cls, data: dict[str, Any]) -> dict[str, Any]:
        """The `Detail` of an object in the line of a trial."""
        named = {f.name for f in fields(cls)} - {"shown"}
        return {**{k: v for k, v in data.items() if k in named}, "shown": {k: v for k, v in data.items() if k not in named}}
