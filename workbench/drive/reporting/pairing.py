"""Pairs the trials of two sessions: each config with the same config. If a variant has other configs, its fastest trial in one
session is paired with its fastest trial in the other."""

from __future__ import annotations

import json
from collections.abc import Iterable

from ...core.trial import Trial


def matched(before: Iterable[Trial], after: Iterable[Trial]) -> list[tuple[Trial | None, Trial | None]]:
    """Pairs of A and B, None where a side has no trial. If a candidate was judged again, the last trial counts.

    Trials with the same config, form and compile flags are a pair. If a variant has configs on only one side, its fastest right
    trial in A and its fastest right trial in B are also a pair, because the choice of the config may be the cause of a
    slowdown.
    """
    a, b = _by_variant(before), _by_variant(after)
    found: list[tuple[Trial | None, Trial | None]] = []
    for variant in sorted({*a, *b}):
        ours, theirs = a.get(variant, {}), b.get(variant, {})
        same = [(ours[q], theirs[q]) for q in sorted({*ours} & {*theirs})]
        left: list[tuple[Trial | None, Trial | None]] = [(ours[q], None) for q in sorted({*ours} - {*theirs})]
        left += [(None, theirs[q]) for q in sorted({*theirs} - {*ours})]
        if left and ours and theirs and (best := (_best(ours.values()), _best(theirs.values()))) not in same:
            left = [best, *((x, y) for x, y in left if (x or y) not in best)]
        found += [*same, *left]
    return found


def fastest_right(trials: Iterable[Trial]) -> Trial | None:
    """The fastest right trial, or None. A trial without a time counts as slower than any with one."""
    return min((t for t in trials if t.ok), key=_ms, default=None)


def variant_of(trial: Trial) -> tuple[str, ...]:
    """A key that is equal for trials of the same variant, workload, direction and precision with any config. The preset's name
    is not part of it."""
    return (trial.place[1], trial.direction, trial.kind, trial.name, trial.precision)


def differences(a: Trial, b: Trial) -> str:
    """"configs differ: BLOCK=64 in A, BLOCK=128 in B", with the tunables that differ; "" for equal configs."""
    tunables = sorted(k for k in {*a.config, *b.config} if a.config.get(k) != b.config.get(k))
    if tunables:
        sides = (" ".join(f"{k}={t.config[k]}" for k in tunables if k in t.config) or "none of them" for t in (a, b))
        return "configs differ: {} in A, {} in B".format(*sides)
    if a.form != b.form:
        return f"configs differ: {a.form} in A, {b.form} in B"
    return "configs differ: other compile flags" if a.compile_flags != b.compile_flags else ""


def _by_variant(trials: Iterable[Trial]) -> dict[tuple[str, ...], dict[str, Trial]]:
    found: dict[tuple[str, ...], dict[str, Trial]] = {}
    for t in trials:
        question = json.dumps([t.config, t.form, list(t.compile_flags)], sort_keys=True)
        found.setdefault(variant_of(t), {})[question] = t
    return found


def _best(trials: Iterable[Trial]) -> Trial:
    trials = list(trials)
    return fastest_right(trials) or trials[-1]


def _ms(trial: Trial) -> float:
    if trial.kernel_ms:
        return trial.kernel_ms.median_ms
    return sum(t.median_ms for t in trial.module_ms.values()) if trial.module_ms else float("inf")
