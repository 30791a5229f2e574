"""The request of a tune, and its feed. Any number of places share the feed: each takes the next candidate from it and reports
the trial to it. Several processes may tune in one session; each has its own feed."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...core.errors import BadRequest
from ...core.layer import DIRECTIONS, Workload
from ...core.replies import Device
from ...core.trial import Status, Trial
from ..exporting.best_recipe import DEFAULT_ARCH
from ..running.request import Row
from ..running.resume import NO_VERDICT, SLOWER
from ..searching.points import Points, Seen
from ..searching.propose import propose
from ..sessions.files import TRIALS
from ..sessions.session import Session
from .finals import odd_workloads, says_nothing
from .seen import Claims, Follower
from .space import TuneSpace, class_for, key_of, key_of_trial, why_empty

EVENT = "tune"              # event with the request of a tune; the last one of a session counts
_BATCH = 4                  # proposals at a time
_HOPELESS = 8               # after so many consecutive trials that failed because of the machine, the tune ends
_MACHINE = frozenset({Status.NO_COMPILER, Status.MACHINE_FAILED, Status.CANCELLED})


@dataclass(frozen=True)
class Effort:
    """`seconds`: the time limit, or None. `looks`: the most configs of one variant that are examined."""

    seconds: float | None
    looks: int
    build_timeout_s: float
    finals_s: float            # the part of the seconds that is kept for the finals


EFFORTS = {"quick": Effort(60.0, 2_000, 60.0, 20.0), "normal": Effort(600.0, 8_000, 300.0, 60.0),
           "full": Effort(None, 200_000, 300.0, 0.0)}


@dataclass(frozen=True)
class TuneRequest:
    """The request of a tune. `trials` or `minutes` replace the limit of the effort."""

    workload: Workload
    directions: tuple[str, ...] = DIRECTIONS
    precision: str = ""                  # class; "": that of PyTorch's default
    device: str = "auto"
    effort: str = "normal"
    trials: int | None = None
    minutes: float | None = None
    variants: tuple[str, ...] = ()
    templates: Path | None = None
    seed: int = 0
    baselines: bool = True
    run_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.effort not in EFFORTS:
            raise BadRequest(f"effort {self.effort!r} is not known; choose {', '.join(EFFORTS)}.", field="effort")
        for name, value in (("trials", self.trials), ("minutes", self.minutes)):
            if value is not None and not value > 0:
                raise BadRequest(f"{name} is {value}; give a number above 0.", field=name)
        for direction in self.directions:
            if direction not in DIRECTIONS:
                raise BadRequest(f"direction {direction!r} cannot be tuned; choose {', '.join(DIRECTIONS)}.",
                                 field="directions")

    @property
    def seconds(self) -> float | None:
        """The time limit; None if the number of trials or the size of the space is the limit."""
        if self.minutes is not None:
            return 60 * self.minutes
        return None if self.trials is not None else EFFORTS[self.effort].seconds

    @property
    def finals_s(self) -> float:
        """The part of `seconds` that is kept for the finals."""
        return min(EFFORTS[self.effort].finals_s or 60.0, (self.seconds or 0.0) / 3)

    @property
    def race_s(self) -> float:
        """How long finalists are timed in turns beyond the first ones. The rest of the finals is for builds, the first ones,
        and the winner, which is judged again."""
        return 0.4 * (self.finals_s or EFFORTS[self.effort].finals_s or 60.0)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "workload": self.workload.to_json(),
                "templates": str(self.templates) if self.templates else None}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TuneRequest:
        lists = {name: tuple(data.get(name, ())) for name in ("directions", "variants")}
        templates = Path(data["templates"]) if data.get("templates") else None
        return cls(**{**data, **lists, "workload": Workload.from_json(data["workload"]), "templates": templates})


def spaces(request: TuneRequest, device: Device) -> dict[str, TuneSpace]:
    """The space of each direction. Some may be empty; raises `BadRequest` if all are."""
    arch = device.arch if device.kind == "cuda" else DEFAULT_ARCH
    found = {d: TuneSpace(request.workload, d, class_for(request.workload, d, arch, request.precision), device,
                          looks=EFFORTS[request.effort].looks, variants=request.variants, templates=request.templates)
             for d in request.directions}
    if not any(map(len, found.values())):
        why = "; ".join(why_empty(space.left_out) for space in found.values() if space.left_out)
        raise BadRequest(f"No variant can be tried on {request.workload.layer} in {', '.join(request.directions)}. "
                         f"{why or why_empty({})}", field="variant")
    return found


class Search:
    """The search in one direction: its space, the results so far, and the candidates that are being judged."""

    def __init__(self, space: TuneSpace, first: Sequence[str]) -> None:
        self.space = space
        self.points: Points = space.points(first)
        self.seen: dict[int, Seen] = {}
        self.pending: set[int] = set()
        self.trials: dict[str, Trial] = {}     # key -> the trial that counts
        self.best: Trial | None = None
        self.passed: set[int] = set()          # not judged because of the machine, so they have no result
        self.counted: set[str] = set()         # trial ids
        self.busy_s = 0.0

    def take(self, trial: Trial, key: str) -> None:
        """Add a trial of this direction. If a candidate has several trials, one that found it wrong counts, else the fastest.
        """
        if trial.trial_id in self.counted:
            return
        self.counted.add(trial.trial_id)
        place = self.space.place_of.get(key)
        if place is not None:
            self.pending.discard(place)
        before = self.trials.get(key)
        if before is not None and _weight(before) <= _weight(trial):
            return
        self.trials[key] = trial
        if place is not None and trial.status in _MACHINE:
            self.passed.add(place)
        elif place is not None:
            self.seen[place] = Seen(place, _ms(trial), bool(trial.kernel_ms and trial.kernel_ms.stop == SLOWER))
        timed = [t for t in (self.trials.values() if before is self.best else (self.best, trial)) if t and _ms(t) is not None]
        self.best = min(timed, key=lambda t: t.kernel_median_ms, default=None)

    def propose(self, count: int, others: set[int], seed: int) -> list[int]:
        busy = (self.pending | self.passed | others) - self.seen.keys()
        if len(self.seen) + len(busy) >= len(self.points):
            return []
        return propose(self.points, list(self.seen.values()), sorted(busy), count, seed=seed)


class TuneFeed:
    """Gives a run the candidates that the search proposes. Several processes may tune in one session; each has its own feed."""

    ahead = True

    # more than seven: the inputs of a tune (request, spaces, claims), its limits, and a callback
    def __init__(self, request: TuneRequest, session: Session, spaces: dict[str, TuneSpace], device: Device, claims: Claims, *,
                 used_s: float = 0.0, finals_s: float = 0.0, first: Callable[[TuneSpace], Sequence[str]] = lambda space: (),
                 on_trial: Callable[[Trial, TuneFeed], None] = lambda trial, feed: None,
                 finish: threading.Event | None = None) -> None:
        self.request, self.device, self.claims, self.on_trial = request, device, claims, on_trial
        self.finish = finish or threading.Event()   # set: the search ends now, and the finals follow
        self.searches = {d: Search(space, first(space)) for d, space in spaces.items()}
        self.baselines: list[Trial] = []
        self._trials = Follower(session, TRIALS)
        self._lock = threading.RLock()
        self._next: deque[Row] = deque()
        self._used_s, self._finals_s, self._begun = used_s, finals_s, 0.0
        self._judged = 0                        # trials of this process
        self._last: deque[Status] = deque(maxlen=_HOPELESS)   # the statuses of its last trials
        self._odd = odd_workloads(request.workload)
        self._given_up: set[str] = set()        # keys of candidates that a process could not judge because of the machine
        self.read()

    @property
    def judged(self) -> int:
        """The number of candidates of this tune with a trial, from all processes."""
        return sum(len(search.trials) for search in self.searches.values())

    @property
    def own_judged(self) -> int:
        """The number of trials of this process."""
        return self._judged

    @property
    def spent_s(self) -> float:
        """The seconds of tuning, including those of earlier processes."""
        return self._used_s + (time.monotonic() - self._begun if self._begun else 0.0)

    @property
    def over(self) -> bool:
        seconds = self.request.seconds
        if self.finish.is_set() or seconds is not None and self.spent_s >= seconds - self._finals_s:
            return True
        return len(self._last) == _HOPELESS and not set(self._last) - _MACHINE

    def more(self, count: int) -> Sequence[Row] | None:
        self._begun = self._begun or time.monotonic()
        if self.over:
            return None
        with self._lock:
            if not self._next:
                with self.claims.exclusive():
                    others = self.claims.of_others()
                    self.read()
                    if not self._propose(max(count, _BATCH), others):
                        return () if self._awaited(others) else None
            return [self._next.popleft() for _ in range(min(count, len(self._next)))]

    def building(self, ended: Callable[[], bool]) -> AbstractContextManager[None]:
        return self.claims.building(ended)

    def to_beat(self, row: Row) -> float | None:
        best = self.searches[row.direction].best
        return best.kernel_median_ms if best else None

    def told(self, row: Row, trial: Trial) -> None:
        with self._lock:
            self.read()   # so that trials are taken in the order of the session
            search = self.searches[row.direction]
            search.take(trial, key_of(row.candidate))
            search.busy_s += time.time() - (row.started_at or time.time())
            self._judged += 1
            self._last.append(trial.status)
        self.on_trial(trial, self)

    def read(self) -> None:
        """Read the new trials of the session, including those of other processes."""
        with self._lock:
            for trial in self._trials.trials():
                self._take(trial)

    def _take(self, trial: Trial) -> None:
        if not same_work(trial, self.request.workload, self.device) and not self._wrong_elsewhere(trial):
            return
        if trial.kind == "baseline":
            self.baselines.append(trial)
        elif trial.kind == "candidate" and not (trial.compile_flags or trial.forked_from) and comparable(trial):
            search = self.searches.get(trial.direction)
            if search and trial.precision in search.space.admitted:
                if trial.status in _MACHINE:
                    self._given_up.add(key_of_trial(trial))
                else:
                    search.take(trial, key_of_trial(trial))

    def _wrong_elsewhere(self, trial: Trial) -> bool:
        """Whether it is the trial of a finalist that was wrong on other inputs or on an odd size. The finalist then counts as
        wrong."""
        return (trial.device.key == self.device.key and trial.workload in self._odd and not trial.ok
                and not says_nothing(trial))

    def _propose(self, count: int, others: set[str]) -> bool:
        if self.request.trials is not None:
            own = sum(len(s.pending) for s in self.searches.values())
            left = self.request.trials - self.judged - own - len(self._awaited(others))
            count = min(count, -(-left // len(self.searches)))
        if count <= 0:
            return False
        for search in sorted(self.searches.values(), key=self._share):
            busy = {search.space.place_of[key] for key in others if key in search.space.place_of}
            chosen = search.propose(count, busy, self.request.seed)
            if chosen:
                search.pending |= set(chosen)
                self.claims.claim([search.space.keys[place] for place in chosen])
                self._next.extend(Row(search.space.candidate(place)) for place in chosen)
                return True
        return False

    def _share(self, search: Search) -> tuple[float, float]:
        """How many trials a direction has had; or how much time, if time is the limit."""
        tried = len(search.seen) + len(search.pending)
        return (tried, 0.0) if self.request.trials is not None else (search.busy_s, tried)

    def _awaited(self, others: set[str]) -> set[str]:
        """The candidates that other processes have begun and not yet finished."""
        return others - self._given_up - {key for search in self.searches.values() for key in search.trials}


def same_work(trial: Trial, work: Workload, device: Device) -> bool:
    return (trial.workload, trial.workload.preset, trial.device.key) == (work, work.preset, device.key)


def comparable(trial: Trial) -> bool:
    """Whether a trial can be used in a tune. A right one must be timed, with a cold cache and without AddressSanitizer."""
    if trial.ok and (trial.kernel_ms is None or "--sanitize" in trial.command):
        return False
    return not trial.ok or trial.device.kind == "cpu" or trial.kernel_ms is None or trial.kernel_ms.cold_l2


def _ms(trial: Trial) -> float | None:
    return trial.kernel_median_ms if trial.ok and trial.kernel_ms else None


def _weight(trial: Trial) -> float:
    """The weight of a trial. Of several trials of a candidate the one with the least weight counts: a wrong one comes first,
    then the fastest; one without a verdict comes last."""
    if trial.status in NO_VERDICT or trial.status == Status.RUN_TIMEOUT:
        return float("inf")
    return (_ms(trial) or 1e30) if trial.ok else 0.0
