"""What the report of a check holds beside its questions: why a build failed, the smallest failing case, times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FirstError:
    """`file` and `line`: the place in the template, if the log names one, else None."""

    file: str | None
    line: int | None
    message: str


@dataclass(frozen=True)
class Log:
    """The output of the compiler or of the file's process, for a question that failed; or all parts that did not run, one in
    each line. `log_path`: the file that keeps the log."""

    trace: str | None = None
    log: str | None = None
    first_error: FirstError | None = None
    log_path: str | None = None


@dataclass(frozen=True)
class Phase:
    """How long one part of a check took. `reference_s`, `candidate_s`: the seconds that the judge waited for the process of the
    reference and for that of the file. These include `truth_s` (results in float64) and `moved_s` (the transfer of tensors). In
    the remaining seconds the judge draws inputs and compares. Bytes are those of tensors in requests and answers. `starts`: the
    number of processes started."""

    name: str
    seconds: float
    reference_s: float = 0.0
    candidate_s: float = 0.0
    truth_s: float = 0.0
    moved_s: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    requests: int = 0
    starts: int = 0


@dataclass(frozen=True)
class Element:
    """One element of a result."""

    index: tuple[int, ...]
    expected: float
    got: float
    wrong: bool


@dataclass(frozen=True)
class SmallestCase:
    """The smallest case that still fails. Without `values` there was no result to compare."""

    layer: str
    arguments: dict[str, Any]            # of the constructor
    input: tuple[int, ...]
    dtype: str
    tensor: str
    problem: str
    expanded: bool                       # grad_output is 1, expanded
    values: tuple[Element, ...] | None = None
    x: tuple[float, ...] | None = None
    weight: tuple[float, ...] | None = None


@dataclass(frozen=True)
class LooksLike:
    """A known mistake that gives the same wrong output; `found` is "" if there is none. `differs`: the mistakes that give
    another output."""

    layer: str
    found: str
    advice: str
    tried: int
    differs: tuple[str, ...]


@dataclass(frozen=True)
class KernelBenchValues:
    """KernelBench's verdict on the values: with the tolerance 1e-4 (`strict`) and with its older rule (`loose`). `ours`: the
    verdict of this judge. `apart`: KernelBench's comparison found a difference."""

    strict: bool
    loose: bool
    why: str                             # the first reason against
    tolerance: float
    trials: int
    ours: bool = False
    reason: str = ""                     # why the two differ
    apart: bool = False


@dataclass(frozen=True)
class KernelBench:
    """`text`: why its static check rejects the text. `values` is None where the file does not run."""

    text: tuple[str, ...]
    values: KernelBenchValues | None = None


@dataclass(frozen=True)
class LeftOut:
    """A way of PyTorch's that was not timed."""

    name: str
    why: str


@dataclass(frozen=True)
class TimedWay:
    """A way of PyTorch that was timed beside the file. `why_not`: why the file is not compared with it, if it does not qualify.
    `held_back`: the sentence for a way that was timed again and for which the verdict is then no longer FASTER."""

    name: str
    median_ms: float
    precision: str
    ratio: float
    low: float | None
    high: float | None
    verdict: str
    drop_in: bool
    qualifies: bool
    why_not: str
    kernels: tuple[str, ...]
    held_back: str = ""


@dataclass(frozen=True)
class DirectionTimes:
    """module_ms of one direction. `baselines`: the fastest first. `against`: the baseline that the file is compared with, or
    "". Ratio, interval and verdict are those of this comparison. `implausible`: the time is below the floor, so it does not
    count."""

    median_ms: float
    samples: int
    spread: float | None
    calls: int
    checked: int
    precision: str
    default_precision: str
    default_kernels: tuple[str, ...]
    floor_ms: float | None
    floor_limit: str
    why_no_floor: str
    implausible: bool
    notes: tuple[str, ...]
    baselines: tuple[TimedWay, ...]
    left_out: tuple[LeftOut, ...]
    ratio: float | None
    low: float | None
    high: float | None
    against: str
    verdict: str
