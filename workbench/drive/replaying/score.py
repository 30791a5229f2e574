"""How good a search is, from the times that it met, in the order it met them.

The score is that of Willemsen et al., "A methodology for comparing optimization algorithms for auto-tuning", 2024, as their
package autotuning_methodology computes it: how much of the way from *calculated* random search (0) to the optimum (1) the
search has gone, averaged over a range of evaluations, then over spaces.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log

import numpy as np
from numpy.typing import NDArray

FIRST, LAST = 10, 100  # evaluations over which the score is averaged
NEAR = 1.05            # of the optimum: near enough

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Outcome:
    """A search on one space. `best` is [repeats, evaluations], the best time so far; infinite before the first that ran."""

    score: float
    share: float  # of the optimum at the end, the geometric mean over repeats
    near: float   # share of the repeats that end within 5 % of the optimum
    best: Floats
    curve: Floats
    baseline: Floats


def outcome(space_ms: Floats, met_ms: Floats, *, first: int = FIRST, last: int = LAST) -> Outcome:
    """`space_ms`: the time of every point, NaN where it failed; `met_ms`: [repeats, evaluations]."""
    ranked = np.sort(space_ms[np.isfinite(space_ms)])
    best = best_so_far(met_ms)
    last = min(last, best.shape[1], len(space_ms))
    first = min(first, last)
    curve = median_curve(ranked, best)
    baseline = random_curve(ranked, np.arange(1, best.shape[1] + 1))
    at = slice(first - 1, last)
    way = baseline[at] - ranked[0]
    gone = np.where(way > 0, (baseline[at] - curve[at]) / np.where(way > 0, way, 1.0), (curve[at] <= ranked[0]).astype(float))
    end = best[:, last - 1]
    share = exp(float(np.mean([log(ranked[0] / one) if np.isfinite(one) else log(ranked[0] / ranked[-1]) for one in end])))
    return Outcome(float(gone.mean()), share, float(np.mean(end <= NEAR * ranked[0])), best, curve, baseline)


def best_so_far(met_ms: Floats) -> Floats:
    return np.minimum.accumulate(np.where(np.isnan(met_ms), np.inf, met_ms), axis=1)


def random_curve(ranked: Floats, evaluations: NDArray[np.int_]) -> Floats:
    """What random search without replacement finds on average, calculated: of N times the best of M draws is expected at rank
    M (N + 1) / (M + 1), counted from the slowest. Failed points are left out, as in the methodology."""
    count = len(ranked)
    places = np.minimum(count - 1, np.round(evaluations * (count + 1) / (evaluations + 1)).astype(int))
    values: Floats = ranked[::-1][places]
    return values


def median_curve(ranked: Floats, best: Floats) -> Floats:
    """The time at the median rank over the repeats, for each evaluation."""
    ranks = np.minimum(np.searchsorted(ranked, best), len(ranked) - 1)
    values: Floats = ranked[np.round(np.median(ranks, axis=0)).astype(int)]
    return values


def over_time(space_ms: Floats, space_seconds: Floats, met_ms: Floats, met_seconds: Floats, *, first: int = FIRST,
              last: int = LAST, steps: int = 200) -> float | None:
    """The score over the time that `first` to `last` evaluations of average length take. None where times are not noted."""
    if np.isnan(space_seconds).all():
        return None
    each = float(np.nanmean(space_seconds))
    ranked = np.sort(space_ms[np.isfinite(space_ms)])
    ends = np.cumsum(np.where(np.isnan(met_seconds), each, met_seconds), axis=1)
    best = best_so_far(met_ms)
    clock = np.linspace(first * each, last * each, steps)
    places = np.stack([np.searchsorted(row, clock, side="right") - 1 for row in ends])
    seen = np.where(places >= 0, np.take_along_axis(best, np.maximum(places, 0), axis=1), np.inf)
    curve = median_curve(ranked, seen)
    baseline = random_curve(ranked, np.maximum(1, np.round(clock / each)).astype(int))
    way = np.maximum(baseline - ranked[0], 1e-12)
    return float(np.mean((baseline - curve) / way))
