"""Runs a tune: it takes candidates from `feed`, has them judged, and returns the result. All state is in the session: results
are read from its trials. So a tune that was killed can be continued, and several processes may tune in one session.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path

from ...core.errors import BadRequest, Terminated
from ...core.layer import Workload
from ...core.replies import Device
from ...core.trial import Trial
from ..machine.doctor import resolve_device
from ..running.execution import Execution
from ..running.outcome import portable
from ..running.request import Run, RunRequest
from ..running.runner import Runner
from ..running.worker_process import WorkerDied, WorkerFailed, WorkerTimeout
from ..running.workers import is_elsewhere
from ..sessions.files import TUNE_WON
from ..sessions.session import Session
from . import store
from .feed import EFFORTS, EVENT, Search, TuneFeed, TuneRequest, same_work, spaces
from .finals import Final, default_of, finals, says_nothing
from .seen import Claims
from .space import Explained, key_of_trial, why_empty

WON = TUNE_WON              # event with the result of a direction
KEPT = "tune_kept"          # event after it: whether the winner is in the store of best known configs, or why not
_LOOK_S = 0.2               # interval between two looks at the state of the run
_MOST_SILENT_S = 25.0       # without a new line


@dataclass(frozen=True)
class Winner:
    """The best candidate of a direction. `final`: the result of the finals; None if the tune was stopped before. `untold`: the
    candidates of `final.untold`, for people."""

    direction: str
    trial: Trial
    final: Final | None
    stored: Path | None = None
    not_kept: str = ""
    untold: tuple[str, ...] = ()


@dataclass(frozen=True)
class TuneResult:
    """`state`: done, stopped or failed. The others are by direction. `failures`: status -> number of trials that ended with it.
    `fell`: how many were right in the search but wrong when they were judged again in the finals. `passed`: how many could not
    be judged again. `empty`: why nothing can be tried. `early`: somebody ended the search before its limit."""

    state: str
    message: str
    winners: dict[str, Winner]
    failures: dict[str, dict[str, int]] = field(default_factory=dict)
    trials: int = 0
    baselines: tuple[Trial, ...] = ()
    fell: dict[str, int] = field(default_factory=dict)
    passed: dict[str, int] = field(default_factory=dict)
    empty: dict[str, str] = field(default_factory=dict)
    early: bool = False


def asked(session: Session) -> TuneRequest:
    """The request of the session's last tune. Raises `BadRequest` if there was none."""
    event = next((e for e in reversed(session.events()) if e.get("event") == EVENT), None)
    if event is None:
        raise BadRequest(f"Session {session.name} holds no tune to resume; name a session of tune.", field="resume")
    try:
        return TuneRequest.from_json(event["request"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadRequest(f"The tune of session {session.name} cannot be read: {error}.", field="resume") from error


def limited(request: TuneRequest, trials: int | None, minutes: float | None, effort: str = "") -> TuneRequest:
    """The same request, with another limit if one is given."""
    if trials is not None or minutes is not None or effort:
        return replace(request, trials=trials, minutes=minutes, effort=effort or request.effort)
    return request


# more than seven: page, verb and notebook need different callbacks
def tune(request: TuneRequest, session: Session, runner: Runner, *, on_line: Callable[[str], None] = lambda line: None,
         on_space: Callable[[dict[str, Explained]], None] = lambda told: None, on_run: Callable[[Run], None] = lambda run: None,
         places: Sequence[str] = (), with_finals: bool = True, finish: threading.Event | None = None) -> TuneResult:
    """Run a tune, and keep the winners in the store if a GPU timed them. Candidates with a trial in the session are not run
    again. `on_run` gets the run when it begins. Stopping this run stops the tune. `places`: measuring processes; by default the
    requested device, and for "auto" every GPU of the same kind as the first one. After a stop, or without finals, the result
    has the best so far, and nothing is kept. `finish`: once it is set, the search ends, quick finals follow, and the winner is
    kept. The first Ctrl-C sets it; the second one stops the tune. Without `finish` the first one stops it. Raises `BadRequest`.
    """
    first = places[0] if places else resolve_device(request.device)
    device, places = _answering(runner, places or (every_gpu(first) if request.device == "auto" else (first,)))
    device_name = places[0]
    if device.kind == "cuda" and with_finals and not request.templates:
        store.must_be_writable()
    asked_for = spaces(request, device)
    on_space({d: space.explain() for d, space in asked_for.items()})
    there = {d: space for d, space in asked_for.items() if len(space)}
    session.event(EVENT, request=request.to_json(), device=device.name,
                  cluster=device.key if is_elsewhere(device_name) else "")
    near = {d: store.near(space, device) for d, space in there.items()}
    found: dict[str, Final | None] = {}    # of the directions whose finals came to their end
    fell: dict[str, list[Trial]] = {}
    passed: dict[str, list[Trial]] = {}    # passed over: they could not be judged again
    effort = EFFORTS[request.effort]
    said_at = time.monotonic()

    def say(line: str) -> None:
        nonlocal said_at
        said_at = time.monotonic()
        on_line(line)

    classes = " ".join(sorted({space.precision_class for space in there.values()}))

    def on_trial(trial: Trial, feed: TuneFeed) -> None:
        best = feed.searches[trial.direction].best
        if best and best.trial_id == trial.trial_id:
            say(f"[{feed.judged}, {feed.spent_s:.0f} s] {trial.direction}: {trial.kernel_median_ms:.4g} ms with "
                f"{described(trial)}")

    with Claims(session, {"workload": request.workload.to_json(), "device": device.key}) as claims:
        feed = TuneFeed(request, session, there, device, claims, used_s=used_s(session, request.workload, classes),
                        first=lambda s: near[s.direction], on_trial=on_trial,
                        finals_s=request.finals_s if with_finals else 0.0, finish=finish)

        early: list[bool] = []    # once the search has ended: whether somebody ended it

        def last(execution: Execution) -> None:
            early.append(feed.finish.is_set())
            if with_finals:
                execution.run.message = "the finals; they wait for the builds of other processes in this session"
                with claims.finals(execution.run.cancelled.is_set):
                    all_finals(execution)

        def all_finals(execution: Execution) -> None:
            feed.read()
            for direction, search in feed.searches.items():
                if final := _known_final(session, search, device):
                    found[direction] = final
                    continue
                say(f"{direction}: the best are timed again, alternately")
                final, not_right = finals(
                    execution, list(search.trials.values()), feed.baselines + execution.run.trials,
                    effort="quick" if request.effort == "quick" or early[0] else "normal",
                    space=search.space, seconds=request.race_s / len(feed.searches) if device.kind == "cuda" else 0.0)
                passed[direction] = [trial for trial in not_right if says_nothing(trial)]
                fell[direction] = [trial for trial in not_right if not says_nothing(trial)]
                for trial in fell[direction]:
                    search.take(trial, key_of_trial(trial))
                if final or not execution.run.cancelled.is_set():
                    found[direction] = final
                if final:
                    session.event(WON, direction=direction, precision_class=search.space.precision_class,
                                  trial_id=final.trial.trial_id, searched=final.searched, ties=list(final.ties),
                                  again=final.again, judged=len(search.trials), untold=list(final.untold),
                                  default=asdict(final.default) if final.default else None)

        run = runner.start(
            RunRequest(request.workload, (), device=device_name, directions=tuple(there), baselines=request.baselines,
                       effort="quick", in_turns=False, build_timeout_s=effort.build_timeout_s,
                       run_timeout_s=request.run_timeout_s, tune=classes),
            session, resume=True, feed=feed, then=last,
            places=places)
        try:
            on_run(run)
            said = ""
            while run.active:
                try:
                    while not run.wait(_LOOK_S):
                        if run.message != said and not feed.own_judged:   # the lines of the tune have more details
                            say(said := run.message)
                        elif time.monotonic() - said_at > _MOST_SILENT_S:
                            now = "the finals go on" if early else "the search goes on; nothing faster was found since"
                            say(f"[{feed.judged}, {feed.spent_s:.0f} s] {now if feed.own_judged else run.message or now}")
                except KeyboardInterrupt as interrupt:
                    nothing_yet = with_finals and not any(search.best for search in feed.searches.values())
                    if (finish is None or finish.is_set() or nothing_yet or run.state == "waiting"
                            or isinstance(interrupt, Terminated)):
                        raise
                    finish.set()
                    say(f"{'The finals are under way' if early else 'The search ends and the finals follow'}; then the "
                        "winner is kept. Press Ctrl-C again to stop at once.")
        except KeyboardInterrupt:
            runner.stop(run)
        finally:
            if run.active:
                runner.stop(run)
        feed.read()
    result = _result(run, feed, found, fell, session, device)
    return replace(result, early=any(early), passed={d: len(trials) for d, trials in passed.items() if trials},
                   failures={d: result.failures.get(d, {}) for d in asked_for},
                   empty={d: why_empty(space.left_out) for d, space in asked_for.items() if d not in there})


def _answering(runner: Runner, places: Sequence[str]) -> tuple[Device, Sequence[str]]:
    """The device of the first place that answers, and the list of places from that one on. Raises `BadRequest` if none answers.
    """
    why = ""
    for number, place in enumerate(places):
        try:
            return runner.device(place), places[number:]
        except (BadRequest, WorkerDied, WorkerFailed, WorkerTimeout) as error:
            why = why or str(error)
    raise BadRequest(f"{' and '.join(places)} cannot be used: {why}", field="device")


def every_gpu(first: str) -> tuple[str, ...]:
    """The given GPU, then the other GPUs of this machine with the same name."""
    from ...core.env import gpus
    cards = {f"cuda:{gpu.index}": gpu for gpu in gpus()}
    if first not in cards:
        return (first,)
    return (first, *(name for name, gpu in cards.items() if name != first and gpu.name == cards[first].name))


def used_s(session: Session, work: Workload, classes: str) -> float:
    """The seconds of the session's earlier tunes of a workload in these classes. A run counts from its start to its last event.
    """
    spans: dict[str, tuple[str, str]] = {}
    for event in session.events():
        run_id, at, what = str(event.get("run_id") or ""), str(event.get("at") or ""), event.get("event")
        begins = what == "run_started" and (event.get("workload"), event.get("tune")) == (work.to_json(), classes)
        if what == "waiting" and run_id in spans:
            spans[run_id] = ("", "")          # the run waited for the device; its time starts with the next event
        elif run_id and at and (begins or run_id in spans):
            spans[run_id] = (spans.get(run_id, (at, at))[0] or at, at)
    return sum((datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()
               for begin, end in spans.values() if begin)


def described(trial: Trial) -> str:
    """Variant, precision and config, for people."""
    config = " ".join(f"{k}={v}" for k, v in trial.config.items())
    return f"{trial.name} {trial.precision} {config}".rstrip()


def explain(request: TuneRequest, runner: Runner, place: str = "") -> dict[str, Explained]:
    """The space of each direction, before anything runs. `place`: the place, if it is not the requested device."""
    device = runner.device(place or resolve_device(request.device))
    return {d: space.explain() for d, space in spaces(request, device).items()}


def _result(run: Run, feed: TuneFeed, found: dict[str, Final | None], fell: dict[str, list[Trial]], session: Session,
            device: Device) -> TuneResult:
    winners, failures = dict[str, Winner](), dict[str, dict[str, int]]()
    for direction, search in feed.searches.items():
        final = found.get(direction)
        failures[direction] = dict(Counter(str(t.status) for t in search.trials.values() if not t.ok))
        if final:
            if feed.request.templates and device.kind == "cuda":
                kept, why = None, "its templates are not the shipped ones (--templates)."
            else:
                kept, why = store.keep(final.trial, session, feed.baselines, driver=device.driver,
                                       precision_class=search.space.precision_class)
            session.event(KEPT, direction=direction, trial_id=final.trial.trial_id, kept=kept is not None,
                          why=portable(why))   # sessions are packed and shown on other machines
            untold = tuple(described(t) for t in search.trials.values() if t.trial_id in final.untold)
            winners[direction] = Winner(direction, final.trial, final, kept, why, untold)
        elif direction not in found and search.best:
            winners[direction] = Winner(direction, search.best, None)
    return TuneResult(run.state, run.message, winners, failures, feed.judged, tuple(feed.baselines),
                      {d: len(trials) for d, trials in fell.items() if trials})


def _known_final(session: Session, search: Search, device: Device) -> Final | None:
    """The result of earlier finals of this direction, workload, class and GPU in the session, if no candidate was judged since
    then."""
    there, space = {t.trial_id: t for t in session.trials()}, search.space
    for event in reversed(session.events()):
        trial = there.get(str(event.get("trial_id"))) if event.get("event") == WON else None
        if (trial and (event.get("direction"), event.get("precision_class")) == (space.direction, space.precision_class)
                and same_work(trial, space.workload, device)):
            if event.get("judged") != len(search.trials):
                return None
            return Final(trial, str(event["searched"]), tuple(event["ties"]), tuple(event["again"]),
                         tuple(event.get("untold", ())), default_of(event))
    return None
