"""The finals of a direction: the best few candidates are timed alternately, ties are broken by a fixed rule, and the winner is
judged again on new inputs and odd sizes. Meanwhile nothing is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...core.candidate import derived_values
from ...core.errors import BadRequest, RenderError
from ...core.layer import Workload
from ...core.orders import InterleaveOrder
from ...core.replies import Built
from ...core.template import Rendered, render
from ...core.trial import SHOWS_NOTHING, Status, Trial
from ...core.verdict import FASTER, SLOWER, from_samples
from ..running.execution import Execution
from ..running.request import Row, RunRequest
from ..running.worker_process import WorkerDied, WorkerFailed, WorkerTimeout
from ..sessions.recorded import candidate_of
from .space import key_of

NEAR = 1.05            # times the best median; the search's short timings are noisy by about this much
MOST = {"quick": 3, "normal": 8}   # the most finalists, by effort
_COMPARISONS = 14      # the most comparisons; a new leader is compared again with its ties
_ARCH = "sm_90"        # on the emulator, ties are broken by the registers on this architecture
_ODD = (1, 3, 7, 13, 37)   # input sizes; the smallest ones that the layer accepts are used


@dataclass(frozen=True)
class Final:
    """`trial`: the winner, judged again. `searched`: id of its trial in the search. `ties`: trials whose time does not
    measurably differ from the winner's; the winner was chosen among them by `rule`. `again`: the cases on which it was judged
    again."""

    trial: Trial
    searched: str
    ties: tuple[str, ...]
    again: tuple[str, ...]


@dataclass
class _Finalist:
    trial: Trial
    row: Row
    rendered: Rendered
    build: Built

    def rule(self) -> tuple[int, int, str]:
        """The sort key for equally fast candidates; the first one wins. The order: fewest registers, least shared memory, then
        the name."""
        arch = self.trial.device.arch if self.trial.device.kind == "cuda" else _ARCH
        arch = self.row.candidate.variant.arch or arch
        kernels = self.build.resources.get(arch, {}).values()
        shared = derived_values(self.row.candidate, sm=self.trial.device.sm).get("smem_bytes", 0)
        return (max((k.registers for k in kernels), default=0), max([shared, *(k.shared_bytes for k in kernels)]),
                key_of(self.row.candidate))


def finals(execution: Execution, trials: Sequence[Trial], baselines: Sequence[Trial], *, effort: str,
           templates: Path | None = None) -> tuple[Final | None, list[Trial]]:
    """The winner among the right trials of one direction, or None; and the trials of finalists that were not right when they
    were judged again. Of these, trials with `says_nothing` have no verdict; the others are wrong. Every comparison is recorded
    as an event of the session. `effort`: a key of `MOST`."""
    right = sorted((t for t in trials if t.ok and t.kernel_ms), key=lambda t: t.kernel_median_ms)
    fell: list[Trial] = []
    while right and not execution.run.cancelled.is_set():
        first = [t for t in right if t.kernel_median_ms <= NEAR * right[0].kernel_median_ms][:MOST[effort]]
        near = _built(execution, first, templates)
        if not near:
            right = right[len(first):]
            continue
        leader, ties = _race(execution, near, effort)
        for one in sorted([leader, *ties], key=_Finalist.rule):
            again, trial = _judged_again(execution, one, baselines)
            execution.record(trial)
            if trial.ok:
                others = tuple(t.trial.trial_id for t in [leader, *ties] if t is not one)
                return Final(trial, one.trial.trial_id, others, again), fell
            fell.append(trial)
        gone = {one.trial.trial_id for one in [leader, *ties]}
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


def _built(execution: Execution, trials: Sequence[Trial], templates: Path | None) -> list[_Finalist]:
    """Build the finalists, with nvcc's numbers for each. Most builds come from the cache."""
    wave, of = [], {}
    for trial in trials:
        try:
            candidate = candidate_of(trial, templates=templates)
            row = Row(candidate)
            wave.append((row, rendered := render(candidate)))
            of[rendered.candidate_id] = trial
        except (BadRequest, RenderError):
            continue  # the template has changed since then
    execution.run.rows.extend(row for row, _ in wave)
    built = execution.build(wave) if wave else {}
    return [_Finalist(of[r.candidate_id], row, r, built[r.candidate_id]) for row, r in wave if r.candidate_id in built]


def _race(execution: Execution, near: list[_Finalist], effort: str) -> tuple[_Finalist, list[_Finalist]]:
    """The fastest finalist, and those that are not clearly slower."""
    leader, waiting, ties = near[0], near[1:], list[_Finalist]()
    for _ in range(_COMPARISONS):
        if not waiting or execution.run.cancelled.is_set():
            break
        other = waiting.pop(0)
        verdict = _compared(execution, leader, other, effort)
        if verdict == SLOWER:          # the leader cannot be timed
            leader, waiting, ties = other, [*ties, *waiting], []
        elif verdict not in (FASTER, ""):
            ties.append(other)
    for one in near:
        one.row.phase, one.row.status, one.row.text = "done", one.trial.status, "timed alternately"
    return leader, ties


def _compared(execution: Execution, leader: _Finalist, other: _Finalist, effort: str) -> str:
    """The word of the verdict, in which "ours" is the leader; "" if the two could not be timed together."""
    ours, theirs = (execution.workers.judge_order(execution.name, one.rendered, one.build, execution.request)
                    for one in (leader, other))
    execution.run.message = f"timing {other.row.label} alternately with the fastest"
    try:
        result = execution.interleave(InterleaveOrder(ours, theirs, effort=effort))
    except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
        execution.session.event("tune_final", ours=leader.trial.trial_id, theirs=other.trial.trial_id, failed=str(error))
        return ""
    if result.status != Status.OK:
        execution.session.event("tune_final", ours=leader.trial.trial_id, theirs=other.trial.trial_id, failed=result.headline)
        return ""
    verdict = from_samples(result.ours, result.theirs, paired=True)
    execution.session.event("tune_final", ours=leader.trial.trial_id, theirs=other.trial.trial_id, ratio=verdict.value,
                            low=verdict.low, high=verdict.high, verdict=verdict.verdict, pairs=len(result.ours))
    return verdict.verdict


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
