"""A tune: what is asked, the feed that asks the search for the next candidates, and what comes out.

The session is the only memory: what was seen is read from its trials each time, so a tune that was killed goes on, and several
processes may tune in one session.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from ...core.errors import BadRequest
from ...core.layer import DIRECTIONS, Workload
from ...core.replies import Device
from ...core.trial import Status, Trial
from ..exporting.best_recipe import DEFAULT_ARCH
from ..machine.devices import resolve_device
from ..running.execution import Execution
from ..running.request import Row, Run, RunRequest
from ..running.resume import NO_VERDICT, SLOWER
from ..running.runner import Runner
from ..searching.points import Points, Seen
from ..searching.propose import propose
from ..sessions.files import TRIALS
from ..sessions.session import Session
from . import store
from .finals import Final, finals, says_nothing
from .seen import Claims, Follower
from .space import Explained, TuneSpace, class_for, key_of, key_of_trial, why_empty

EVENT = "tune"              # what was asked; the last one of a session counts
WON = "tune_won"            # what came out of a direction
_LOOK_S = 0.2               # how often is looked what the run is doing
_BATCH = 4                  # proposals at a time
_HOPELESS = 8               # trials that the machine stood in the way of, and no other: the tune ends
_MACHINE = frozenset({Status.NO_COMPILER, Status.MACHINE_FAILED, Status.CANCELLED})


@dataclass(frozen=True)
class Effort:
    """`seconds`: None is no limit. `looks`: how many configs of one variant are looked at."""

    seconds: float | None
    looks: int
    build_timeout_s: float
    finals_s: float            # of the seconds, kept for the finals


EFFORTS = {"quick": Effort(60.0, 2_000, 60.0, 15.0), "normal": Effort(600.0, 8_000, 300.0, 60.0),
           "full": Effort(None, 200_000, 300.0, 0.0)}


@dataclass(frozen=True)
class TuneRequest:
    """What to tune. `trials` or `minutes` are the limit instead of the effort's."""

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
        """The time limit; None where the trials or the space are the limit."""
        if self.minutes is not None:
            return 60 * self.minutes
        return None if self.trials is not None else EFFORTS[self.effort].seconds

    @property
    def finals_s(self) -> float:
        """Of these seconds, those kept for the finals."""
        return min(EFFORTS[self.effort].finals_s or 60.0, (self.seconds or 0.0) / 4)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "workload": self.workload.to_json(),
                "templates": str(self.templates) if self.templates else None}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TuneRequest:
        lists = {name: tuple(data.get(name, ())) for name in ("directions", "variants")}
        templates = Path(data["templates"]) if data.get("templates") else None
        return cls(**{**data, **lists, "workload": Workload.from_json(data["workload"]), "templates": templates})


@dataclass(frozen=True)
class Winner:
    """The best of a direction. `final`: what the finals say of it; None where the tune was stopped before."""

    direction: str
    trial: Trial
    final: Final | None
    stored: Path | None = None
    not_kept: str = ""


@dataclass(frozen=True)
class TuneResult:
    """`state`: done, stopped or failed. `failures`: direction -> how many trials ended with which status; `fell`: how many were
    right in the search, and wrong when they were judged again for the finals; `passed`: how many could not be judged again;
    `empty`: why nothing of it can be tried."""

    state: str
    message: str
    winners: dict[str, Winner]
    failures: dict[str, dict[str, int]] = field(default_factory=dict)
    trials: int = 0
    baselines: tuple[Trial, ...] = ()
    fell: dict[str, int] = field(default_factory=dict)
    passed: dict[str, int] = field(default_factory=dict)
    empty: dict[str, str] = field(default_factory=dict)


def asked(session: Session) -> TuneRequest:
    """What the session's last tune was asked. Raises `BadRequest` where there was none."""
    event = next((e for e in reversed(session.events()) if e.get("event") == EVENT), None)
    if event is None:
        raise BadRequest(f"Session {session.name} holds no tune to resume; name a session of tune.", field="resume")
    try:
        return TuneRequest.from_json(event["request"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadRequest(f"The tune of session {session.name} cannot be read: {error}.", field="resume") from error


def limited(request: TuneRequest, trials: int | None, minutes: float | None, effort: str = "") -> TuneRequest:
    """The same tune with another limit, where one is given."""
    if trials is not None or minutes is not None or effort:
        return replace(request, trials=trials, minutes=minutes, effort=effort or request.effort)
    return request


def spaces(request: TuneRequest, device: Device) -> dict[str, TuneSpace]:
    """The space of each direction; some may be empty. Raises `BadRequest` where nothing at all can be tried."""
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
    """One direction: its space, what was seen of it, what is being judged."""

    def __init__(self, space: TuneSpace, first: Sequence[str]) -> None:
        self.space = space
        self.points: Points = space.points(first)
        self.seen: dict[int, Seen] = {}
        self.pending: set[int] = set()
        self.trials: dict[str, Trial] = {}     # key -> the trial that counts
        self.best: Trial | None = None
        self.counted: set[str] = set()         # trial ids
        self.busy_s = 0.0

    def take(self, trial: Trial, key: str) -> None:
        """A trial of this direction. Of one candidate the fastest counts, but a verdict that it is wrong counts more."""
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
        if place is not None:
            self.seen[place] = Seen(place, _ms(trial), bool(trial.kernel_ms and trial.kernel_ms.stop == SLOWER))
        timed = [t for t in (self.trials.values() if before is self.best else (self.best, trial)) if t and _ms(t) is not None]
        self.best = min(timed, key=lambda t: t.kernel_median_ms, default=None)

    def propose(self, count: int, others: set[int], seed: int) -> list[int]:
        busy = (self.pending | others) - self.seen.keys()
        if len(self.seen) + len(busy) >= len(self.points):
            return []
        return propose(self.points, list(self.seen.values()), sorted(busy), count, seed=seed)


class TuneFeed:
    """Feeds a run with what the search proposes. Several processes may feed theirs from one session."""

    ahead = True

    # more than seven: what it is made of
    def __init__(self, request: TuneRequest, session: Session, spaces: dict[str, TuneSpace], device: Device, claims: Claims, *,
                 used_s: float = 0.0, finals_s: float = 0.0, first: Callable[[TuneSpace], Sequence[str]] = lambda space: (),
                 on_trial: Callable[[Trial, TuneFeed], None] = lambda trial, feed: None) -> None:
        self.request, self.device, self.claims, self.on_trial = request, device, claims, on_trial
        self.searches = {d: Search(space, first(space)) for d, space in spaces.items()}
        self.baselines: list[Trial] = []
        self._trials = Follower(session, TRIALS)
        self._lock = threading.RLock()
        self._next: deque[Row] = deque()
        self._used_s, self._finals_s, self._begun = used_s, finals_s, 0.0
        self._own: Counter[str] = Counter()     # statuses of this process
        self.read()

    @property
    def judged(self) -> int:
        """Candidates of this tune that have a trial, whoever judged them."""
        return sum(len(search.trials) for search in self.searches.values())

    @property
    def own_judged(self) -> int:
        """Trials of this process."""
        return sum(self._own.values())

    @property
    def spent_s(self) -> float:
        """Seconds of tuning, those of earlier processes included."""
        return self._used_s + (time.monotonic() - self._begun if self._begun else 0.0)

    @property
    def over(self) -> bool:
        seconds = self.request.seconds
        if seconds is not None and self.spent_s >= seconds - self._finals_s:
            return True
        return self.own_judged >= _HOPELESS and not set(self._own) - _MACHINE

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
                        return () if others - self._judged_keys() else None
            return [self._next.popleft() for _ in range(min(count, len(self._next)))]

    def to_beat(self, row: Row) -> float | None:
        best = self.searches[row.direction].best
        return best.kernel_median_ms if best else None

    def told(self, row: Row, trial: Trial) -> None:
        with self._lock:
            self.read()   # so that all are seen in the order of the session
            search = self.searches[row.direction]
            search.take(trial, key_of(row.candidate))
            search.busy_s += time.time() - (row.started_at or time.time())
            self._own[trial.status] += 1
        self.on_trial(trial, self)

    def read(self) -> None:
        """What the session holds by now, other processes' trials included."""
        with self._lock:
            for trial in self._trials.trials():
                self._take(trial)

    def _take(self, trial: Trial) -> None:
        if not _same_work(trial, self.request.workload, self.device):
            return
        if trial.kind == "baseline":
            self.baselines.append(trial)
        elif trial.kind == "candidate" and not trial.compile_flags and trial.status not in _MACHINE:
            search = self.searches.get(trial.direction)
            if search and trial.precision in search.space.admitted:
                search.take(trial, key_of_trial(trial))

    def _propose(self, count: int, others: set[str]) -> bool:
        if self.request.trials is not None:
            own = sum(len(s.pending) for s in self.searches.values())
            left = self.request.trials - self.judged - own - len(others - self._judged_keys())
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
        """What a direction has had of the trials, or of the time, where that is the limit."""
        tried = len(search.seen) + len(search.pending)
        return (tried, 0.0) if self.request.trials is not None else (search.busy_s, tried)

    def _judged_keys(self) -> set[str]:
        return {key for search in self.searches.values() for key in search.trials}


# more than seven: who listens to what
def tune(request: TuneRequest, session: Session, runner: Runner, *, on_line: Callable[[str], None] = lambda line: None,
         on_space: Callable[[dict[str, Explained]], None] = lambda told: None, on_run: Callable[[Run], None] = lambda run: None,
         places: Sequence[str] = (), with_finals: bool = True) -> TuneResult:
    """Tune, and keep the winners in the store if a GPU timed them. What the session holds already is not run again.

    `on_run` is given the run when it begins; whoever stops that stops the tune.
    `places`: measuring processes; () is the one device that is asked for, and for "auto" every GPU of the first one's kind.
    After an interrupt the result has the best so far. Without finals it has, too, and nothing is kept. Raises `BadRequest`.
    """
    device_name = resolve_device(request.device)
    device = runner.device(device_name)
    if device.kind == "cuda" and with_finals and not request.templates:
        store.check()
    asked_for = spaces(request, device)
    on_space({d: space.explain() for d, space in asked_for.items()})
    there = {d: space for d, space in asked_for.items() if len(space)}
    session.event(EVENT, request=request.to_json(), device=device.name)
    near = {d: store.near(space, device) for d, space in there.items()}
    found: dict[str, Final | None] = {}    # of the directions whose finals came to their end
    fell: dict[str, list[Trial]] = {}
    passed: dict[str, list[Trial]] = {}    # over: judging them again was not possible
    effort = EFFORTS[request.effort]
    classes = " ".join(sorted({space.precision_class for space in there.values()}))

    def on_trial(trial: Trial, feed: TuneFeed) -> None:
        best = feed.searches[trial.direction].best
        if best and best.trial_id == trial.trial_id:
            on_line(f"[{feed.judged}, {feed.spent_s:.0f} s] {trial.direction}: {trial.kernel_median_ms:.4g} ms with "
                    f"{described(trial)}")

    with Claims(session, {"workload": request.workload.to_json(), "device": device.key}) as claims:
        feed = TuneFeed(request, session, there, device, claims, used_s=used_s(session, request.workload, classes),
                        first=lambda s: near[s.direction], on_trial=on_trial,
                        finals_s=request.finals_s if with_finals else 0.0)

        def last(execution: Execution) -> None:
            feed.read()
            for direction, search in feed.searches.items() if with_finals else ():
                if final := _known_final(session, search, device):
                    found[direction] = final
                    continue
                on_line(f"{direction}: the best are timed again, in turns")
                final, not_right = finals(
                    execution, list(search.trials.values()), feed.baselines + execution.run.trials,
                    effort="quick" if request.effort == "quick" else "normal", templates=request.templates)
                passed[direction] = [trial for trial in not_right if says_nothing(trial)]
                fell[direction] = [trial for trial in not_right if not says_nothing(trial)]
                for trial in fell[direction]:
                    search.take(trial, key_of_trial(trial))
                if final or not execution.run.cancelled.is_set():
                    found[direction] = final
                if final:
                    session.event(WON, direction=direction, precision_class=search.space.precision_class,
                                  trial_id=final.trial.trial_id, searched=final.searched, ties=list(final.ties),
                                  again=final.again, judged=len(search.trials))

        run = runner.start(
            RunRequest(request.workload, (), device=device_name, directions=tuple(there), baselines=request.baselines,
                       effort="quick", in_turns=False, build_timeout_s=effort.build_timeout_s,
                       run_timeout_s=request.run_timeout_s, tune=classes),
            session, resume=True, feed=feed, then=last,
            places=places or (every_gpu(device_name) if request.device == "auto" else (device_name,)))
        try:
            on_run(run)
            said = ""
            while not run.wait(_LOOK_S):
                if run.message != said and not feed.own_judged:   # its lines say more
                    on_line(said := run.message)
        except KeyboardInterrupt:
            runner.stop(run)
        finally:
            if run.active:
                runner.stop(run)
        feed.read()
    result = _result(run, feed, found, fell, session, device)
    return replace(result, passed={d: len(trials) for d, trials in passed.items() if trials},
                   failures={d: result.failures.get(d, {}) for d in asked_for},
                   empty={d: why_empty(space.left_out) for d, space in asked_for.items() if d not in there})


def every_gpu(first: str) -> tuple[str, ...]:
    """The GPUs of this machine that have the name of the first one, it before the others."""
    from ...core.env import gpus
    cards = {f"cuda:{gpu.index}": gpu for gpu in gpus()}
    if first not in cards:
        return (first,)
    return (first, *(name for name, gpu in cards.items() if name != first and gpu.name == cards[first].name))


def used_s(session: Session, work: Workload, classes: str) -> float:
    """Seconds of the session's earlier tunes of a workload in these classes: from the start of each run to the last that was
    heard of it."""
    spans: dict[str, tuple[str, str]] = {}
    for event in session.events():
        run_id, at = str(event.get("run_id") or ""), str(event.get("at") or "")
        begins = event.get("event") == "run_started" and (event.get("workload"), event.get("tune")) == (work.to_json(), classes)
        if run_id and at and (begins or run_id in spans):
            spans[run_id] = (spans.get(run_id, (at, at))[0], at)
    return sum((datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds() for begin, end in spans.values())


def described(trial: Trial) -> str:
    """Variant, precision and config, for people."""
    config = " ".join(f"{k}={v}" for k, v in trial.config.items())
    return f"{trial.name} {trial.precision} {config}".rstrip()


def explain(request: TuneRequest, runner: Runner) -> dict[str, Explained]:
    """The space of each direction, before anything runs."""
    device = runner.device(resolve_device(request.device))
    return {d: space.explain() for d, space in spaces(request, device).items()}


def _result(run: Run, feed: TuneFeed, found: dict[str, Final | None], fell: dict[str, list[Trial]], session: Session,
            device: Device) -> TuneResult:
    winners, failures = dict[str, Winner](), dict[str, dict[str, int]]()
    for direction, search in feed.searches.items():
        final = found.get(direction)
        failures[direction] = dict(Counter(str(t.status) for t in search.trials.values() if not t.ok))
        if final:
            if feed.request.templates and device.kind == "cuda":
                kept, why = None, "it is of other templates."
            else:
                kept, why = store.keep(final.trial, session, feed.baselines, driver=device.driver,
                                       precision_class=search.space.precision_class)
            winners[direction] = Winner(direction, final.trial, final, kept, why)
        elif direction not in found and search.best:
            winners[direction] = Winner(direction, search.best, None)
    return TuneResult(run.state, run.message, winners, failures, feed.judged, tuple(feed.baselines),
                      {d: len(trials) for d, trials in fell.items() if trials})


def _known_final(session: Session, search: Search, device: Device) -> Final | None:
    """What the session says of this direction, workload, class and GPU, if nothing was judged since."""
    there, space = {t.trial_id: t for t in session.trials()}, search.space
    for event in reversed(session.events()):
        trial = there.get(str(event.get("trial_id"))) if event.get("event") == WON else None
        if (trial and (event.get("direction"), event.get("precision_class")) == (space.direction, space.precision_class)
                and _same_work(trial, space.workload, device)):
            if event.get("judged") != len(search.trials):
                return None
            return Final(trial, str(event["searched"]), tuple(event["ties"]), tuple(event["again"]))
    return None


def _same_work(trial: Trial, work: Workload, device: Device) -> bool:
    return (trial.workload, trial.workload.preset, trial.device.key) == (work, work.preset, device.key)


def _ms(trial: Trial) -> float | None:
    return trial.kernel_median_ms if trial.ok and trial.kernel_ms else None


def _weight(trial: Trial) -> float:
    """Of several trials of one candidate the least counts: one that is wrong, then the fastest; without a verdict last."""
    if trial.status in NO_VERDICT or trial.status == Status.RUN_TIMEOUT:
        return float("inf")
    return (_ms(trial) or 1e30) if trial.ok else 0.0
