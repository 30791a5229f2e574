"""The request to the runner (`RunRequest`, and a `Feed` of candidates), and its visible state (`Run`, with one `Row` per
candidate)."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ...core.candidate import Candidate
from ...core.errors import BadRequest
from ...core.layer import Workload
from ...core.precision import CLASSES_OF
from ...core.replies import Built, Device
from ...core.trial import Status, Trial

EFFORTS = ("quick", "normal", "full")
DEFAULTS = "default"          # PyTorch with no switch touched, in a process in which nothing else ran
STRONG = "strong"             # all modes of PyTorch and its other formulations of the layer
STRENGTHS = ("quick", STRONG, DEFAULTS)


@dataclass(frozen=True)
class Prebuilt:
    """A candidate's build that was done before its run, and the compiler's log."""

    build: Built
    log: Path


@dataclass(frozen=True)
class RunRequest:
    """One workload, one device, some candidates. `candidates` may be empty: then only PyTorch is measured."""

    workload: Workload
    candidates: tuple[Candidate, ...]
    device: str = "auto"                 # "auto" | "cpu" | "cuda:0"
    directions: tuple[str, ...] = ()     # of the baselines; () = those of the candidates
    baselines: bool = True
    strength: str = "quick"              # of the baselines: "quick"; "strong", the whole ladder; "default", no switch touched
    # what float32 candidates compute in: strong baselines of other classes are not asked
    classes: tuple[str, ...] = CLASSES_OF["float32"]
    max_autotune: bool = False           # strong baselines by Inductor's max-autotune as well: a minute or more a direction
    modules: bool = False                # also judge the best recipe as a ModelNew: module_ms
    effort: str = "normal"
    time: bool = True
    cold_l2: bool = True
    in_turns: bool = True                # time each right candidate in turns with the best PyTorch as well
    sanitize: str = ""                   # "" | "address": emulated kernels under AddressSanitizer
    build_timeout_s: float = 300.0
    run_timeout_s: float = 60.0          # without a sign of life from the measuring process
    tune: str = ""                       # of a tune: the precision classes that it searches
    built: Mapping[str, Prebuilt] = field(default_factory=dict, compare=False, repr=False)  # id -> made before

    def __post_init__(self) -> None:
        check_judging(self.effort, self.strength, self.max_autotune)

    @property
    def options(self) -> list[str]:
        """How it is judged, where that is not the default, as words of a command line."""
        words = [] if self.effort == "normal" else ["--effort", self.effort]
        words += [] if self.time else ["--no-time"]
        words += [] if self.cold_l2 else ["--hot-l2"]
        words += ["--sanitize", self.sanitize] if self.sanitize else []
        words += [] if self.build_timeout_s == 300.0 else ["--build-timeout", f"{self.build_timeout_s:g}"]
        return words + ([] if self.run_timeout_s == 60.0 else ["--run-timeout", f"{self.run_timeout_s:g}"])


def check_judging(effort: str, strength: str, max_autotune: bool) -> None:
    """Raises `BadRequest` for a word that is not known, or for words that do not go together."""
    for name, value, known in (("effort", effort, EFFORTS), ("strength", strength, STRENGTHS)):
        if value not in known:
            raise BadRequest(f"{name} {value!r} is not known; choose {', '.join(known)}.", field=name)
    if max_autotune and strength != STRONG:
        raise BadRequest(f"max-autotune is one of the strong baselines, not of {strength}; give --baselines {STRONG}.",
                         field="max_autotune")


@dataclass
class Row:
    """One candidate on its way. `phase`: queued, building, checking, timing, rechecking, done."""

    candidate: Candidate
    phase: str = "queued"
    text: str = "queued"
    status: Status | None = None
    trial_id: str = ""
    log_path: Path | None = None
    started_at: float = 0.0

    @property
    def variant(self) -> str:
        return self.candidate.variant.name

    @property
    def direction(self) -> str:
        return self.candidate.direction

    @property
    def precision(self) -> str:
        return self.candidate.precision

    @property
    def config(self) -> dict[str, int]:
        return self.candidate.config

    @property
    def label(self) -> str:
        return f"{self.variant} {self.direction}"


class Feed(Protocol):
    """Where the rows of a run come from. A list of candidates is the simplest one; a search decides row by row. Threads ask it,
    one at a time."""

    @property
    def ahead(self) -> bool:
        """Whether the next rows are built while others are judged. Else the builders are idle meanwhile."""

    @property
    def over(self) -> bool:
        """Whether the run ends now: what was built and not yet judged is dropped."""

    def more(self, count: int) -> Sequence[Row] | None:
        """The next rows, about `count`; () when there are none just now, None when none will come."""

    def to_beat(self, row: Row) -> float | None:
        """ms: timing may end early for a candidate that is clearly slower."""

    def told(self, row: Row, trial: Trial) -> None:
        """The row has its trial, which the session holds."""


class Listed:
    """All rows at once, each judged in full."""

    ahead = over = False

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows: Sequence[Row] | None = rows

    def more(self, count: int) -> Sequence[Row] | None:
        rows, self._rows = self._rows, None
        return rows

    def to_beat(self, row: Row) -> float | None:
        return None

    def told(self, row: Row, trial: Trial) -> None:
        pass


@dataclass
class Run:
    """A run under way. `state`: waiting, running, done, stopped, failed; `message` says what it is doing."""

    run_id: str
    request: RunRequest
    session: Path
    rows: list[Row]
    state: str = "waiting"
    message: str = "starting"
    trials: list[Trial] = field(default_factory=list)
    kept: list[Trial] = field(default_factory=list)    # of a resumed run: what the session had finished before
    started_at: float = field(default_factory=time.time)
    device: Device | None = None                       # None until its process has said what it is
    cancelled: threading.Event = field(default_factory=threading.Event)
    finished: threading.Event = field(default_factory=threading.Event)

    @property
    def known_device(self) -> Device:
        """Where something is judged the device is known."""
        assert self.device is not None
        return self.device

    @property
    def active(self) -> bool:
        return not self.finished.is_set()

    @property
    def done_rows(self) -> int:
        return sum(row.phase == "done" for row in self.rows)

    def wait(self, timeout: float | None = None) -> bool:
        """True when the run has ended within `timeout` seconds."""
        return self.finished.wait(timeout)

    def stop(self) -> None:
        """Ask it to end: compilers and kernels under way are killed; finished trials stay."""
        self.cancelled.set()
