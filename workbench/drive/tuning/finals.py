"""The finals of a direction: the best few candidates are timed alternately, ties are broken by a fixed rule, and the winner is
judged again on new inputs and odd sizes. Meanwhile nothing is built."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from ...core.candidate import derived_values
from ...core.errors import BadRequest, RenderError
from ...core.layer import Workload
from ...core.orders import InterleaveOrder
from ...core.replies import Built
from ...core.template import Rendered, render
from ...core.trial import SHOWS_NOTHING, Status, Trial
from ...core.typed import Misfit, read
from ...core.verdict import FASTER, SLOWER, Verdict, from_quartiles, from_samples
from ..running.execution import Execution
from ..running.request import Row, RunRequest
from ..running.worker_process import WorkerDied, WorkerFailed, WorkerTimeout
from ..sessions.recorded import candidate_of
from .space import TuneSpace, key_of, key_of_trial

# A finalist's first time is within its noise of this many times the best. Two times that differ by 1 % are the same. The ratio
# of two first times differs from that of the times in turns by up to 1 % (45 of 47 pairs of the session recorded-h200-spaces).
NEAR = 1.03
FAR = 1.1              # one whose first time is more than this many times the best is not near, however noisy its samples are
FIRST = {"quick": 3, "normal": 8}   # the fastest ones, which find the leader, by effort
_AT_ONCE = 4           # how many of the others are built at once
_MOST = 64             # the most finalists
_NOT_BUILT = Built(status=Status.BUILD_FAILED, headline="It was not built.")
_ARCH = "sm_90"        # on the emulator, ties are broken by the registers on this architecture
_ODD = (1, 3, 7, 13, 37)   # input sizes; the smallest ones that the layer accepts are used


@dataclass(frozen=True)
class Final:
    """`trial`: the winner, judged again. `searched`: id of its trial in the search. `ties`: trials whose time does not
    measurably differ from that of the fastest; the winner was chosen among them by `rule`. `again`: the cases on which it was
    judged again. `untold`: trials that may be as fast, but were not timed in turns, because the time was over or because they
    could not be timed. `default`: the default config of its variant, timed in turns with the winner."""

    trial: Trial
    searched: str
    ties: tuple[str, ...]
    again: tuple[str, ...]
    untold: tuple[str, ...] = ()
    default: AgainstDefault | None = None


@dataclass(frozen=True)
class AgainstDefault:
    """`ratio`: the time of the default config divided by the winner's. `verdict`: the word, in which "ours" is the winner; ""
    if the winner is the default config itself."""

    ratio: float
    verdict: str


def default_of(won: Mapping[str, Any]) -> AgainstDefault | None:
    """That of the event of a winner; None if the event does not have it, as in older sessions."""
    try:
        return read(AgainstDefault, won["default"])
    except (KeyError, Misfit):
        return None


@dataclass(eq=False)
class _Finalist:
    trial: Trial
    row: Row
    rendered: Rendered
    default: bool
    near: bool                   # its first time does not exclude that it is as fast as the best
    build: Built = _NOT_BUILT

    @property
    def family(self) -> tuple[str, str]:
        return self.trial.name, self.trial.precision

    def rule(self) -> tuple[bool, bool, int, int, str]:
        """The sort key for equally fast candidates; the first one wins. The order: a default config, because every tune tries
        it; fewest registers, least shared memory, then the name. One that was slower at first comes last: if it ties, its times
        were noisy."""
        arch = self.trial.device.arch if self.trial.device.kind == "cuda" else _ARCH
        arch = self.row.candidate.variant.arch or arch
        kernels = self.trial.resources.get(arch, {}).values()
        shared = derived_values(self.row.candidate, sm=self.trial.device.sm).get("smem_bytes", 0)
        return (not self.near, not self.default, max((k.registers for k in kernels), default=0),
                max([shared, *(k.shared_bytes for k in kernels)]), key_of(self.row.candidate))


def finals(execution: Execution, trials: Sequence[Trial], baselines: Sequence[Trial], *, effort: str,
           space: TuneSpace | None = None, seconds: float = 0.0) -> tuple[Final | None, list[Trial]]:
    """The winner among the right trials of one direction, or None; and the trials of finalists that were not right when they
    were judged again. Of these, trials with `says_nothing` have no verdict; the others are wrong. Every comparison is recorded
    as an event of the session. `effort`: a key of `FIRST`. `space`: the space of the tune, which knows the default configs.

    First the fastest candidates and the default configs of the variants are timed in turns. Then, for `seconds`, all others
    whose first time does not exclude that they are as fast, in the order of `rule`. So the time limit hardly changes the
    winner: what is left out comes after it by `rule`."""
    right = sorted((t for t in trials if t.ok and t.kernel_ms), key=lambda t: t.kernel_median_ms)
    fell: list[Trial] = []
    ends = 0.0
    while right and not execution.run.cancelled.is_set():
        near = [t for t in right if _may_be_as_fast(t, right[0])]
        first = {t.trial_id for t in near[:FIRST[effort]]}
        known = _prepared(near[:_MOST], _slower_defaults(near[:_MOST], right, space), space)
        race = _Race(execution, effort)
        race.run([one for one in known if one.trial.trial_id in first or one.default])
        ends = ends or time.monotonic() + seconds
        others = sorted((one for one in known if one.trial.trial_id not in first and not one.default), key=_Finalist.rule)
        while others and time.monotonic() < ends:
            race.run(others[:_AT_ONCE], ends=ends)
            del others[:_AT_ONCE]
        for one in sorted(race.tied, key=_Finalist.rule):
            again, trial = _judged_again(execution, one, baselines)
            execution.record(trial)
            if trial.ok:
                ties = tuple(t.trial.trial_id for t in race.tied if t is not one)
                untold = tuple(t.trial_id for t in near if t.trial_id not in race.told)
                return Final(trial, one.trial.trial_id, ties, again, untold, race.against_default(one)), fell
            fell.append(trial)
        gone = {one.trial.trial_id for one in race.tied} or {t.trial_id for t in near}
        right = [t for t in right if t.trial_id not in gone]
    return None, fell


def says_nothing(trial: Trial) -> bool:
    """Whether the trial was ended by the machine or by a limit. Then it does not show that the finalist is wrong."""
    return trial.status in SHOWS_NOTHING


def odd_workloads(workload: Workload) -> list[Workload]:
    """The same layer with other inputs: with another seed, and with the smallest odd sizes that it accepts, in batches of 1 and
    3."""
    found = [replace(workload, seed=workload.seed + 1)] if workload.batch else []
    for batch, skip in ((1, 0), (3, 1)):
        sizes = []
        for size in _ODD[skip:]:
            try:
                sizes.append(replace(workload, batch=batch, preset="", input_size=tuple(
                    size + 2 * axis for axis in range(len(workload.input_size)))))
            except BadRequest:
                continue
        found += sizes[skip:skip + 1]
    return found


def _may_be_as_fast(trial: Trial, best: Trial) -> bool:
    """Whether the first times do not exclude that both are equally fast."""
    ours, theirs = best.kernel_ms, trial.kernel_ms
    if ours is None or theirs is None:
        return False
    told = from_quartiles((ours.median_ms, ours.q25_ms, ours.q75_ms, ours.samples),
                          (theirs.median_ms, theirs.q25_ms, theirs.q75_ms, theirs.samples))
    return told.value <= (NEAR if told.low is None else FAR) and (told.low or 0.0) <= NEAR


def _slower_defaults(near: list[Trial], right: Sequence[Trial], space: TuneSpace | None) -> list[Trial]:
    """The default configs of the variants of `near` that are not among them."""
    families, there = {(t.name, t.precision) for t in near}, {t.trial_id for t in near}
    return [t for t in right if t.trial_id not in there and (t.name, t.precision) in families
            and space and key_of_trial(t) in space.starts]


def _prepared(near: Sequence[Trial], others: Sequence[Trial], space: TuneSpace | None) -> list[_Finalist]:
    found = []
    for place, trial in enumerate((*near, *others)):
        try:
            candidate = candidate_of(trial, templates=space.templates if space else None)
            found.append(_Finalist(trial, Row(candidate), render(candidate), bool(space and key_of(candidate) in space.starts),
                                   place < len(near)))
        except (BadRequest, RenderError):
            continue  # the template has changed since then
    return found


class _Race:
    """Times finalists in turns with the fastest so far, the leader. `tied`: the leader, then those that are not clearly slower.
    `told`: the trials that were timed in turns with the leader, or with one that was slower than it."""

    def __init__(self, execution: Execution, effort: str) -> None:
        self._execution, self._effort = execution, effort
        self._verdicts: dict[tuple[str, str], Verdict] = {}
        self._defaults: dict[tuple[str, str], _Finalist] = {}
        self.tied: list[_Finalist] = []
        self.told: set[str] = set()

    def run(self, finalists: Sequence[_Finalist], *, ends: float = inf) -> None:
        """No comparison begins after `ends`, a time of the monotonic clock."""
        waiting = self._built(finalists)
        self._defaults |= {one.family: one for one in waiting if one.default}
        if waiting and not self.tied:
            self._lead(waiting.pop(0))
        left = 2 * (len(waiting) + len(self.tied))   # a new leader is compared again with what was as fast as the last one
        while waiting and left and time.monotonic() < ends and not self._execution.run.cancelled.is_set():
            left -= 1
            other, leader = waiting.pop(0), self.tied[0]
            verdict = self._compared(leader, other)
            if verdict is None:
                continue
            if verdict.verdict == SLOWER:
                waiting = [*self.tied[1:], *waiting]
                self.told -= {one.trial.trial_id for one in self.tied[1:]}
                self._lead(other)
                continue
            self.told.add(other.trial.trial_id)
            if verdict.verdict != FASTER and (other.near or verdict.value <= NEAR):
                self.tied.append(other)
        for one in finalists:
            one.row.phase, one.row.status, one.row.text = "done", one.trial.status, "timed alternately"

    def against_default(self, winner: _Finalist) -> AgainstDefault | None:
        """The winner beside the default config of its variant, from their times in turns."""
        default = self._defaults.get(winner.family)
        if winner.default or default is None:
            return AgainstDefault(1.0, "") if winner.default else None
        verdict = self._verdicts.get((winner.trial.trial_id, default.trial.trial_id)) or self._compared(winner, default)
        return AgainstDefault(verdict.value, verdict.verdict) if verdict else None

    def _lead(self, one: _Finalist) -> None:
        self.tied = [one]
        self.told.add(one.trial.trial_id)

    def _built(self, finalists: Sequence[_Finalist]) -> list[_Finalist]:
        """Build them. Few at once are built one by one, as in the search, so the builds come from the cache."""
        self._execution.run.rows.extend(one.row for one in finalists)
        built = self._execution.build([(one.row, one.rendered) for one in finalists]) if finalists else {}
        for one in finalists:
            one.build = built.get(one.rendered.candidate_id, _NOT_BUILT)
        return [one for one in finalists if one.build.status == Status.OK]

    def _compared(self, leader: _Finalist, other: _Finalist) -> Verdict | None:
        """The verdict, in which "ours" is the leader; None if the two could not be timed together."""
        execution, ids = self._execution, (leader.trial.trial_id, other.trial.trial_id)
        ours, theirs = (execution.workers.judge_order(execution.name, one.rendered, one.build, execution.request)
                        for one in (leader, other))
        execution.run.message = f"timing {other.row.label} alternately with the fastest"
        try:
            result = execution.interleave(InterleaveOrder(ours, theirs, effort=self._effort))
        except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
            execution.session.event("tune_final", ours=ids[0], theirs=ids[1], failed=str(error))
            return None
        if result.status != Status.OK:
            execution.session.event("tune_final", ours=ids[0], theirs=ids[1], failed=result.headline)
            return None
        verdict = self._verdicts[ids] = from_samples(result.ours, result.theirs, paired=True)
        execution.session.event("tune_final", ours=ids[0], theirs=ids[1], ratio=verdict.value, low=verdict.low,
                                high=verdict.high, verdict=verdict.verdict, pairs=len(result.ours))
        return verdict


def _judged_again(execution: Execution, one: _Finalist, baselines: Sequence[Trial]) -> tuple[tuple[str, ...], Trial]:
    """Judge a finalist again. Returns the cases, and one trial: the first that is not right, or else that of the workload
    itself."""
    request: RunRequest = execution.request
    told = []
    for work in odd_workloads(request.workload):
        told.append(f"batch {work.batch}, input size {' x '.join(map(str, work.input_size))}, seed {work.seed}")
        trial = execution.judge_again(one.row, one.rendered, one.build, replace(request, workload=work, time=False))
        if not trial.ok:
            return tuple(told), trial
    trial = execution.judge_again(one.row, one.rendered, one.build, replace(request, effort="normal", in_turns=True),
                                  baselines=baselines)
    return tuple(told), trial
