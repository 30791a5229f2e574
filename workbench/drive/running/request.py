"""The request to the runner (`RunRequest`, and a `Feed` of candidates), and its visible state (`Run`, with one `Row` per
candidate)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
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
DEFAULTS = "default"          # PyTorch in its default settings, in its own process
STRONG = "strong"             # all modes of nn.ConvTranspose, and other formulations of the layer in PyTorch
STRENGTHS = ("quick", STRONG, DEFAULTS)


@dataclass(frozen=True)
class Prebuilt:
    """A candidate's build from before its run, and the compiler's log."""

    build: Built
    log: Path


@dataclass(frozen=True)
class RunRequest:
    """One workload, one device, some candidates. `candidates` may be empty: then only PyTorch is measured."""

    workload: Workload
    candidates: tuple[Candidate, ...]
    device: str = "auto"                 # "auto" | "cpu" | "cuda:0"
    directions: tuple[str, ...] = ()     # directions of the baselines; () = those of the candidates
    baselines: bool = True
    # Of the baselines: "quick", "strong" (all ways) or "default" (PyTorch's default settings).
    strength: str = "quick"
    # precision classes of float32 candidates; strong baselines of other classes are not measured
    classes: tuple[str, ...] = CLASSES_OF["float32"]
    # Also strong baselines with Inductor's max-autotune, which takes a minute or more for each direction.
    max_autotune: bool = False
    modules: bool = False                # also judge the best recipe as a ModelNew: module_ms
    effort: str = "normal"
    time: bool = True
    cold_l2: bool = True
    in_turns: bool = True                # also time each right candidate alternately with the best PyTorch
    sanitize: str = ""                   # "" | "address": emulated kernels under AddressSanitizer
    build_timeout_s: float = 300.0
    run_timeout_s: float = 60.0          # limit in seconds without an event from the measuring process
    tune: str = ""                       # only for a tune: the precision classes that it searches
    # candidate_id -> a build made before the run.
    built: Mapping[str, Prebuilt] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_judging(self.effort, self.strength, self.max_autotune)

    @property
    def options(self) -> list[str]:
        """The options of judging that are not the defaults, as words of a command line."""
        words = [] if self.effort == "normal" else ["--effort", self.effort]
        words += [] if self.time else ["--no-time"]
        words += [] if self.cold_l2 else ["--hot-l2"]
        words += ["--sanitize", self.sanitize] if self.sanitize else []
        words += [] if self.build_timeout_s == 300.0 else ["--build-timeout", f"{self.build_timeout_s:g}"]
        return words + ([] if self.run_timeout_s == 60.0 else ["--run-timeout", f"{self.run_timeout_s:g}"])


def check_judging(effort: str, strength: str, max_autotune: bool) -> None:
    """Raises `BadRequest` for an unknown word, or for words that exclude each other."""
    for name, value, known in (("effort", effort, EFFORTS), ("strength", strength, STRENGTHS)):
        if value not in known:
            raise BadRequest(f"{name} {value!r} is not known; choose {', '.join(known)}.", field=name)
    if max_autotune and strength != STRONG:
        raise BadRequest(f"max-autotune belongs to the strong baselines, not to {strength}; give --baselines {STRONG}.",
                         field="max_autotune")


@dataclass
class Row:
    """One candidate of a run. `phase`: queued, building, checking, timing, rechecking, done."""

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
    """The source of the rows of a run. The simplest one is a list of candidates; a search chooses row by row. Only one thread
    at a time calls it."""

    @property
    def ahead(self) -> bool:
        """Whether the next rows are built while others are judged. If not, no compiler runs while a row is judged."""

    @property
    def over(self) -> bool:
        """Whether the run ends now: what was built and not yet judged is dropped."""

    def more(self, count: int) -> Sequence[Row] | None:
        """The next rows, about `count`; () when there are none just now, None when none will come."""

    def building(self, ended: Callable[[], bool]) -> AbstractContextManager[None]:
        """Held around each build that is made while others are judged. It may wait, until the run has `ended`."""

    def to_beat(self, row: Row) -> float | None:
        """The time in ms to compare with: timing may end early for a candidate that is clearly slower."""

    def told(self, row: Row, trial: Trial) -> None:
        """Called when the row has its trial and the session has recorded it."""


class Listed:
    """All rows at once, each judged in full."""

    ahead = over = False

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows: Sequence[Row] | None = rows

    def more(self, count: int) -> Sequence[Row] | None:
        rows, self._rows = self._rows, None
        return rows

    def building(self, ended: Callable[[], bool]) -> AbstractContextManager[None]:
        return nullcontext()

    def to_beat(self, row: Row) -> float | None:
        return None

    def told(self, row: Row, trial: Trial) -> None:
        pass


@dataclass
class Run:
    """A run. `state`: waiting, running, done, stopped, failed. `message`: the current step."""

    run_id: str
    request: RunRequest
    session: Path
    rows: list[Row]
    state: str = "waiting"
    message: str = "starting"
    trials: list[Trial] = field(default_factory=list)
    kept: list[Trial] = field(default_factory=list)    # for a resumed run: the trials that the session had before
    started_at: float = field(default_factory=time.time)
    device: Device | None = None                       # None until its process has reported it
    cancelled: threading.Event = field(default_factory=threading.Event)
    finished: threading.Event = field(default_factory=threading.Event)

    @property
    def known_device(self) -> Device:
        """The device; it is known whenever something is judged."""
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
        """Ask the run to end. Running compilers and kernels are killed; finished trials are kept."""
        self.cancelled.set()
