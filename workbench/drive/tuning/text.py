"""Describes a tune in sentences: what it searches, and its result."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ...core import numbers
from ...core.trial import Trial
from ...core.verdict import FASTER
from ..reporting.report import Baselines, best_baseline, is_emulated
from ..sessions.session import Session
from .feed import TuneRequest
from .finals import AgainstDefault
from .space import Explained, Family, why_empty
from .tune import TuneResult, Winner, described

_NAMED = 3                # of the candidates that were not told apart from the winner, so many are named
EMULATED = ("The device is the CPU, which emulates the kernels. These times do not predict a GPU, so nothing is stored as "
            "best known.")


def planned(request: TuneRequest, *, emulated: bool) -> str:
    """How long the tune takes at most; first that its times do not count, if they do not."""
    seconds = request.seconds
    if request.trials and not request.minutes:
        limit = f"judges {numbers.count(request.trials)} candidates"
    elif not seconds:
        limit = "goes on until every candidate has been tried"
    else:
        limit = f"takes about {seconds / 60:g} minutes" if seconds > 90 else f"takes about {seconds:.0f} seconds"
    return (f"{EMULATED} " if emulated else "") + (
        f"The tune of {', '.join(request.directions)} {limit}; --minutes, --trials or --effort change that.")


def _families(many: int) -> str:
    return "1 family" if many == 1 else f"{many} families"


def explained(told: dict[str, Explained], *, short: bool = False) -> str:
    """A paragraph for each direction. `short`: its first line."""
    lines = []
    for direction, space in told.items():
        if not space.points:
            lines.append(f"{direction}: nothing can be tried. {why_empty(space.left_out)}")
            continue
        lines.append(f"{direction}: {numbers.count(space.points)} candidates of {_families(len(space.families))}, class "
                     f"{space.precision_class}; {numbers.count(space.size)} configs before constraints.")
        if not short:
            for family in space.families:
                lines += _family(family)
            lines += [f"  {name}: left out; {reason}" for name, reason in space.left_out.items()]
    return "\n".join(lines)


def result(found: TuneResult) -> str:
    """The winners, how they were verified, and what failed."""
    lines = []
    for direction, counts in found.failures.items():
        winner = found.winners.get(direction)
        failed = ", ".join(f"{count} {status}" for status, count in sorted(counts.items(), key=lambda kv: -kv[1]))
        if direction in found.empty:
            lines.append(f"{direction}: nothing can be tried. {found.empty[direction]}")
            continue
        passed = found.passed.get(direction)
        unsure = [f"  Not judged again, because of the machine or a time limit: {passed}."] if passed else []
        if winner is None and passed:
            lines += [f"{direction}: no winner.", *unsure, *([f"  Not right: {failed}."] if failed else [])]
            continue
        if winner is None:
            lines.append(f"{direction}: no candidate is right; {failed}." if failed else
                         f"{direction}: the tune ended before a candidate was judged.")
            if fell := found.fell.get(direction):
                lines.append(f"  Candidates that were right in the search, but wrong on other inputs and sizes: {fell}.")
            continue
        lines += [f"{direction}: {_time(winner.trial)} with {described(winner.trial)}", *_proof(winner, found), *unsure,
                  *([f"  Not right: {failed}."] if failed else [])]
    lines.append(f"{numbers.count(found.trials)} candidates were judged.")
    if any(is_emulated(w.trial) for w in found.winners.values()):
        lines.append(EMULATED)
    return "\n".join(lines)


def as_json(found: TuneResult, session: Session) -> dict[str, Any]:
    return {"state": found.state, "message": found.message, "session": session.name, "trials": found.trials,
            "ended_early": found.early,
            "failures": found.failures, "winners": {d: {
                "variant": w.trial.name, "precision": w.trial.precision, "config": w.trial.config,
                "ms": w.trial.kernel_median_ms, "trial_id": w.trial.trial_id,
                "candidate_id": w.trial.candidate_id, "emulated": is_emulated(w.trial),
                "ties": list(w.final.ties) if w.final else None,
                "not_told_apart": list(w.final.untold) if w.final else None,
                "default": asdict(w.final.default) if w.final and w.final.default else None,
                "stored": str(w.stored) if w.stored else None}
                for d, w in found.winners.items()}}


def against_default(winner: Trial, default: AgainstDefault | None) -> str:
    """How fast the winner is beside the default config of its variant, in a sentence."""
    name = f"{winner.name} {winner.precision}"
    if default is None:
        return f"The default config of {name} was not timed beside it, because it has no right trial."
    if not default.verdict:
        return f"It is the default config of {name}: nothing is measurably faster."
    if default.verdict == FASTER:
        return f"{default.ratio:.3g} times as fast as the default config of {name}, timed in turns."
    return f"Not measurably faster than the default config of {name}: {default.ratio:.3g} times as fast, timed in turns."


def gaps(family: Family) -> str:
    """The values of tunables that occur in no config that can be tried: "PAD = 0; TILE = 64, 128"; "" if all occur."""
    return "; ".join(f"{c.tunable} = {', '.join(map(str, c.left_out))}" for c in family.coverage if c.left_out)


def _family(family: Family) -> list[str]:
    about = "" if family.whole else "about "
    sampled = "" if family.whole else f"; a sample of {numbers.count(family.points)} can be tried"
    lines = [f"  {family.name} {family.precision}: {numbers.count(family.size)} configs, "
             f"{about}{numbers.count(family.legal)} legal{sampled}"]
    lines += [f"    {about}{numbers.count(one.configs)} removed by: {one.why}" for one in family.removed]
    if absent := gaps(family):
        lines.append(f"    values that no legal config has: {absent}")
    whole = [c.tunable for c in family.coverage if not c.left_out]
    if whole:
        lines.append(f"    all values are tried of: {', '.join(whole)}")
    return lines


def _proof(winner: Winner, found: TuneResult) -> list[str]:
    lines = []
    baseline = best_baseline(Baselines(found.baselines), winner.trial)
    if baseline and not is_emulated(winner.trial):
        against = winner.trial.detail.against
        ratio = against.ratio if against else baseline.kernel_median_ms / winner.trial.kernel_median_ms
        lines.append(f"  {ratio:.3g} times as fast as the best PyTorch ({baseline.name}, {_time(baseline)})"
                     + (f": {against.verdict}" if against else ""))
    if winner.final is None:
        lines.append("  The tune stopped before the finals; this is the best median so far.")
        return lines
    lines.append(f"  {against_default(winner.final.trial, winner.final.default)}")
    if winner.final.ties:
        others = "1 other candidate is" if len(winner.final.ties) == 1 else f"{len(winner.final.ties)} other candidates are"
        lines.append(f"  {others} as fast. A default config wins a tie, else the fewest registers, then the least shared "
                     "memory, then the name that is first in the alphabet.")
    if winner.untold:
        more = len(winner.untold) - _NAMED
        lines.append(f"  Not told apart from the winner: {'; '.join(winner.untold[:_NAMED])}"
                     f"{f'; and {more} more' if more > 0 else ''}. Their first times are near the best, but they were not "
                     "timed in turns.")
    lines.append(f"  It was judged again and is right with {'; '.join(winner.final.again)}.")
    if fell := found.fell.get(winner.direction):
        lines.append(f"  {fell} others were as fast or faster, but were wrong when judged again.")
    if winner.stored:
        lines.append(f"  Kept in {winner.stored}: export --best, run --best and patch use it.")
    if winner.not_kept:
        lines.append(f"  It is not kept: {winner.not_kept}")
    return lines


def _time(trial: Trial) -> str:
    return numbers.time(trial.kernel_median_ms)
