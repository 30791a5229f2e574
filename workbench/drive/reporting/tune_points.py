"""The trials of a tune in one direction, in the form that figures and tables need: `Tried`, with a `Point` for each candidate.
From them it computes the best so far, the families and the gap between them, and how much each tunable matters."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from math import inf, log
from statistics import mean
from typing import TYPE_CHECKING, Any

from ...core import numbers
from ...core.layer import Workload
from ...core.precision import CLASSES
from ...core.trial import Status, Trial
from ..running.resume import NO_VERDICT, SLOWER
from ..sessions.files import TUNE_WON
from .report import FASTER, Baselines, best_baseline, floor_of, is_baseline, is_emulated, speedup
from .report import SLOWER as SLOWER_IN_TURNS

if TYPE_CHECKING:
    import pandas

FEWEST = 8          # the fewest right trials of a family for statements about its tunables
_MACHINE = frozenset({Status.NO_COMPILER, Status.MACHINE_FAILED})


@dataclass(frozen=True)
class Point:
    """One candidate. `number`: its place in the order of the tune. `seconds`: the time since the tune began, without the time
    between runs and without tunes that hold no trial of this direction. `ms`: None if it is not right; `status` and `headline`
    then say why. `early`: clearly slower than the best, so its timing ended early."""

    number: int
    seconds: float
    trial: Trial
    family: str
    status: str
    headline: str
    ms: float | None
    early: bool = False

    @property
    def config(self) -> str:
        return " ".join(f"{k}={v}" for k, v in self.trial.config.items())


UNTOLD = "not told apart from the winner"   # in `Tried.finals`


@dataclass(frozen=True)
class Tried:
    """One direction of a tune. `finals`: trial id in the search -> the result of the finals for it."""

    direction: str
    points: tuple[Point, ...]
    baseline: Trial | None = None
    floor_ms: float | None = None
    limit: str = ""                      # what determines the floor: bytes or compute
    emulated: bool = False
    winner: str = ""                     # trial id in the search
    final: Trial | None = None           # the winner, judged again
    finals: Mapping[str, str] = field(default_factory=dict)

    @property
    def baseline_ms(self) -> float | None:
        return self.baseline.kernel_median_ms if self.baseline else None

    @cached_property
    def right(self) -> list[Point]:
        """The right candidates, the fastest first."""
        return sorted((p for p in self.points if p.ms is not None), key=lambda p: (p.ms or inf, p.number))

    @cached_property
    def failed(self) -> list[Point]:
        return [p for p in self.points if p.ms is None]

    @cached_property
    def best(self) -> Point | None:
        """The winner of the finals, else the fastest so far."""
        return next((p for p in self.right if p.trial.trial_id == self.winner), self.right[0] if self.right else None)

    @property
    def best_ms(self) -> float | None:
        """The best time; for the winner of the finals, the time of its last trial."""
        if self.final is not None and self.final.kernel_ms:
            return self.final.kernel_ms.median_ms
        return self.best.ms if self.best else None

    @cached_property
    def steps(self) -> list[Point]:
        """The points that were the best so far when they were judged."""
        found: list[Point] = []
        for point in self.points:
            if point.ms is not None and (not found or point.ms < (found[-1].ms or inf)):
                found.append(point)
        return found

    @cached_property
    def families(self) -> list[Family]:
        """The families, the fastest first. Those without a right trial are last."""
        found = []
        for name in dict.fromkeys(p.family for p in self.points):
            mine = [p for p in self.points if p.family == name]
            found.append(Family(name, len(mine), next((p for p in self.right if p.family == name), None),
                                sum(p.ms is not None for p in mine)))
        return sorted(found, key=lambda f: f.best.ms or inf if f.best else inf)

    @property
    def reasons(self) -> str:
        """"7 MISMATCH, 2 BUILD_FAILED": the statuses of the points that are not right."""
        counts = Counter(p.status for p in self.failed)
        return ", ".join(f"{numbers.count(n)} {status}" for status, n in counts.most_common())

    def against_pytorch(self, point: Point) -> float | None:
        """How many times as fast as the best PyTorch; None on the emulator."""
        if self.emulated or self.baseline is None:
            return None
        trial = self.final if self.final is not None and point.trial.trial_id == self.winner else point.trial
        found = speedup(trial, self.baseline)
        return found.value if found else None


@dataclass(frozen=True)
class Family:
    """A variant in one precision. `best`: None if none of its trials is right."""

    name: str
    tried: int
    best: Point | None
    right: int


@dataclass(frozen=True)
class Matter:
    """How much a tunable matters: `share` of the variance of log time that the means of its values explain."""

    tunable: str
    share: float
    fastest: int


# more than two by place: the contents of a session, and which part of them
def tried(trials: Iterable[Trial], events: Sequence[Mapping[str, Any]], workload: Workload, direction: str) -> Tried:
    """The candidates of that workload and direction on the device that was used last. `events` are those of the session."""
    trials, classes = list(trials), _classes(events, workload)
    admitted = {p for name in classes for p in CLASSES.get(name, (name,))}
    same = [t for t in trials if (t.workload, t.workload.preset) == (workload, workload.preset)]
    mine = [t for t in same if t.kind == "candidate" and t.direction == direction and not t.compile_flags
            and t.status != Status.CANCELLED and (not admitted or t.precision in admitted)]
    device = mine[-1].device.key if mine else ""
    mine = [t for t in mine if t.device.key == device]
    points = _points(mine, _clock(events, {t.run_id for t in mine}))
    found = Tried(direction, tuple(points), emulated=any(is_emulated(t) for t in mine))
    final, searched, told = _finals(events, mine, classes)
    found = replace(found, winner=searched, final=final, finals=told)
    if (best := found.best) is None:
        return replace(found, baseline=_any_baseline(same, direction, device))
    limits = [] if found.emulated else [floor_of(workload, direction, p, best.trial.device.name)
                                        for p in dict.fromkeys(p.trial.precision for p in found.right)]
    least = min((one for one in limits if one), key=lambda one: one.ms, default=None)
    return replace(found, baseline=best_baseline(Baselines(same), best.trial), floor_ms=least.ms if least else None,
                   limit=str(least.limit) if least else "")


def sentence(found: Tried) -> str:
    """ "forward 0.647 ms, 2.55× the best PyTorch, 58 % of the limit"; or that nothing is right."""
    if found.best is None:
        return f"{found.direction}: " + (f"none of {len(found.points)} is right" if found.points else "no trial yet")
    ratio = found.against_pytorch(found.best)
    return ", ".join(filter(None, (
        f"{found.direction} {numbers.time(found.best_ms)}", f"{numbers.ratio(ratio)} the best PyTorch" if ratio else "",
        f"{numbers.of_limit(found.floor_ms, found.best_ms)} of the limit" if found.floor_ms else "")))


def of_session(trials: Iterable[Trial], events: Sequence[Mapping[str, Any]]) -> list[Tried]:
    """What was tried of each workload and direction of a session, in the order of their first trials."""
    trials = list(trials)
    work = {(t.workload.key, t.workload.preset, t.direction): t for t in reversed(trials) if t.kind == "candidate"}
    found = (tried(trials, events, t.workload, t.direction) for t in reversed(work.values()))
    return [one for one in found if one.points]


def label(found: Tried) -> str:
    """ "kb74/full forward float32"; of a layer without a name its parameters."""
    work = found.points[0].trial.workload
    return f"{work.preset or work.layer} {found.direction} {work.dtype}"


def steps_text(found: Tried) -> str:
    """A table with one line for each improvement of the best time."""
    trial = found.points[0].trial
    failed = f", {numbers.count(len(found.failed))} not right ({found.reasons})" if found.failed else ""
    pytorch = f"best PyTorch {numbers.time(found.baseline_ms)} ({found.baseline.name})" if found.baseline else ""
    floor = f"floor {numbers.time(found.floor_ms)}" if found.floor_ms else ""
    lines = [f"{label(found)} on {trial.device.name}: {numbers.count(len(found.points))} trials{failed}",
             *filter(None, ("; ".join(filter(None, (pytorch, floor))),)),
             "* on the CPU emulator, which does not predict a GPU" if found.emulated else ""]
    star = " *" if found.emulated else ""
    cells = [("trial", "after", "best so far", "vs PyTorch", "candidate"),
             *((numbers.count(p.number), numbers.seconds(p.seconds), numbers.time(p.ms) + star,
                numbers.ratio(found.against_pytorch(p)), f"{p.family} {p.config}") for p in found.steps)]
    widths = [max(len(row[i]) for row in cells) for i in range(4)]
    lines += ["  ".join([*(cell.rjust(width) for cell, width in zip(row[:4], widths, strict=True)), row[4]])
              for row in cells] if found.steps else ["No trial is right."]
    return "\n".join(filter(None, lines))


def as_json(found: Tried) -> dict[str, Any]:
    """The improvements as plain values."""
    return {"space": label(found), "device": found.points[0].trial.device.name, "trials": len(found.points),
            "not_right": len(found.failed), "pytorch_ms": found.baseline_ms, "floor_ms": found.floor_ms,
            "emulated": found.emulated, "steps": [
                {"trial": p.number, "seconds": p.seconds, "ms": p.ms, "family": p.family, "config": p.trial.config,
                 "trial_id": p.trial.trial_id} for p in found.steps]}


def best_table(found: Tried, *, most: int = 10) -> pandas.DataFrame:
    """The fastest right trials, one row each; units stand in the column names."""
    import pandas as pd
    return pd.DataFrame([{
        "rank": rank, "variant": p.family, "median_ms": p.ms, "vs_pytorch": found.against_pytorch(p),
        "of_limit": found.floor_ms / p.ms if found.floor_ms and p.ms else None, "trial": p.number, "after_s": p.seconds,
        "finals": found.finals.get(p.trial.trial_id, "few samples" if p.early else ""), "config": p.config,
        "trial_id": p.trial.trial_id} for rank, p in enumerate(found.right[:most], 1)])


def gap(found: Tried) -> str:
    """How far the best family is ahead of the next one, in a sentence; "" where fewer than two have a right trial."""
    there = [(f, f.best.ms) for f in found.families if f.best and f.best.ms is not None]
    if len(there) < 2:
        return ""
    (first, best), (second, other) = there[:2]
    ratio = other / best
    clock = " on this CPU, where kernels are emulated" if found.emulated else ""
    if ratio < 1.01:
        return f"The best of {first.name} and of {second.name} take the same time within 1 %{clock}."
    return f"The best of {first.name} is {numbers.ratio(ratio)} as fast as the best of {second.name}{clock}."


def matters(found: Tried, family: str) -> list[Matter]:
    """The tunables of a family, the one that matters most first; [] below `FEWEST` right trials.

    The share is the epsilon squared of a one-way analysis of variance, which corrects for what many values explain by chance.
    """
    mine = [p for p in found.right if p.family == family]
    if len(mine) < FEWEST:
        return []
    logs = [log(p.ms or inf) for p in mine]
    middle = mean(logs)
    total = sum((x - middle) ** 2 for x in logs)
    told = []
    for name in tunables(mine):
        groups: dict[int, list[float]] = {}
        for point, x in zip(mine, logs, strict=True):
            groups.setdefault(point.trial.tunables.get(name, 0), []).append(x)
        within = sum((x - mean(group)) ** 2 for group in groups.values() for x in group)
        free = len(mine) - len(groups)
        chance = (len(groups) - 1) * within / free if free else total
        share = max(0.0, (total - within - chance) / total) if total > 0 else 0.0
        told.append(Matter(name, share, min(groups, key=lambda value: min(groups[value]))))
    return sorted(told, key=lambda m: -m.share)


def tunables(points: Iterable[Point]) -> list[str]:
    """The tunables of which at least two values were tried."""
    values: dict[str, set[int]] = {}
    for point in points:
        for name, value in point.trial.tunables.items():
            values.setdefault(name, set()).add(value)
    return [name for name, there in values.items() if len(there) > 1]


def _points(trials: Sequence[Trial], clock: _Clock) -> list[Point]:
    """One point for each candidate, in the order in which they were first judged. If a later trial found the candidate wrong,
    the point is wrong."""
    found: dict[tuple[str, str, str, tuple[tuple[str, int | str], ...]], Point] = {}
    for trial in trials:
        key = (trial.name, trial.precision, trial.form, tuple(sorted(trial.config.items())))
        before = found.get(key)
        if before is None or before.status in _MACHINE:
            ms = trial.kernel_ms.median_ms if trial.ok and trial.kernel_ms else None
            found[key] = Point(before.number if before else len(found) + 1, clock.seconds(trial), trial,
                               f"{trial.name} {trial.precision}", str(trial.status), trial.headline, ms,
                               bool(trial.kernel_ms and trial.kernel_ms.stop == SLOWER))
        elif not trial.ok and trial.status not in NO_VERDICT and trial.status != Status.RUN_TIMEOUT:
            found[key] = replace(before, status=str(trial.status), headline=f"When judged again: {trial.headline}", ms=None)
    return list(found.values())


def _finals(events: Sequence[Mapping[str, Any]], trials: Sequence[Trial], classes: Sequence[str]
            ) -> tuple[Trial | None, str, dict[str, str]]:
    """The winner's last trial, the id of its first one, and the result of each finalist in words."""
    there = {t.trial_id: t for t in trials}
    won = next((e for e in reversed(events) if e.get("event") == TUNE_WON and str(e.get("trial_id")) in there
                and (not classes or str(e.get("precision_class")) in classes)), None)
    if won is None or any(t.at > str(won.get("at")) for t in trials):   # a tune that goes on has no winner yet
        return None, "", {}
    searched = str(won.get("searched"))
    told = {str(e["ours" if e["verdict"] == SLOWER_IN_TURNS else "theirs"]): "slower in turns" for e in events
            if e.get("event") == "tune_final" and e.get("verdict") in (SLOWER_IN_TURNS, FASTER)}
    told |= {str(i): "as fast as the winner when timed in turns" for i in won.get("ties", ())}
    told |= {str(i): UNTOLD for i in won.get("untold", ())} | {searched: "winner"}
    return there[str(won["trial_id"])], searched, told


def _classes(events: Sequence[Mapping[str, Any]], workload: Workload) -> list[str]:
    """The precision classes of the last tune of that workload."""
    work = workload.to_json()
    last = next((e for e in reversed(events) if e.get("event") == "run_started" and e.get("tune")
                 and e.get("workload") == work), None)
    return str(last["tune"]).split() if last else []


def _any_baseline(trials: Sequence[Trial], direction: str, device: str) -> Trial | None:
    """The fastest PyTorch of a direction, for a figure without a right candidate."""
    there = [t for t in trials if is_baseline(t) and t.ok and t.kernel_ms and t.direction == direction
             and (not device or t.device.key == device)]
    return min(there, key=lambda t: t.kernel_median_ms, default=None)


class _Clock:
    """The seconds of tuning up to a moment, without the time between runs."""

    def __init__(self, spans: Iterable[tuple[float, float]]) -> None:
        merged: list[tuple[float, float]] = []
        for begin, end in sorted(spans):
            if merged and begin <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((begin, end))
        self._begins = [begin for begin, _ in merged]
        self._before = [sum(end - begin for begin, end in merged[:i]) for i in range(len(merged))]

    def seconds(self, trial: Trial) -> float:
        moment = _moment(trial.at)
        at = bisect_right(self._begins, moment) - 1
        return max(0.0, self._before[at] + moment - self._begins[at]) if at >= 0 else 0.0


def _clock(events: Sequence[Mapping[str, Any]], runs: Collection[str]) -> _Clock:
    """A clock that counts only these runs: a session may also hold tunes of other layers and directions."""
    spans: dict[str, tuple[float, float]] = {}
    for event in (e for e in events if e.get("run_id") in runs):
        run, at, what = str(event.get("run_id") or ""), str(event.get("at") or ""), event.get("event")
        if what == "waiting" and run in spans:
            spans[run] = (0.0, 0.0)   # the run waited for the device; its time starts with the next event
        elif run and at and (what == "run_started" or run in spans):
            spans[run] = (spans.get(run, (0.0, 0.0))[0] or _moment(at), _moment(at))
    return _Clock(span for span in spans.values() if span[0])


def _moment(at: str) -> float:
    try:
        return datetime.fromisoformat(at).timestamp()
    except ValueError:
        return 0.0
