"""Computes a `Verdict` from the samples of two contestants: the ratio of their times, its interval, and FASTER, SLOWER, SAME or
UNSURE.

The interval is a percentile bootstrap of the median ratio (Efron and Tibshirani, An Introduction to the Bootstrap,
chapter 13), seeded, so that the same samples always give the same verdict. Samples taken in turns are resampled as
pairs: if something slows the machine for a moment, it slows both samples of a pair, and the ratio stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt

import numpy as np
import numpy.typing as npt

FASTER, SLOWER, SAME, UNSURE = "FASTER", "SLOWER", "SAME", "UNSURE"
MARGIN = 0.01              # two times that differ by less are the same time
CLEAR = 0.2                # an interval must keep a distance from 1 of this part of its width. For equal contestants one 95 %
                           # interval in 20 excludes 1, but only one in 150 by this distance (normal samples; as a 99.4 %
                           # interval)
TOO_WIDE = 0.05            # an interval with an end farther from 1 than this is too wide for SAME
FEWEST = 5                 # below so many samples there is no interval
_RESAMPLES = 1000
_MOST = 600                # the most samples of one side that are used; because of MARGIN, more would not change a verdict
_SEED = 20_011

_Samples = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Verdict:
    """The ratio theirs / ours (above 1: ours is faster), its 95 % interval (None below five samples), and the word."""

    value: float
    low: float | None
    high: float | None
    verdict: str


def from_samples(ours: Sequence[float], theirs: Sequence[float], *, paired: bool = False) -> Verdict:
    """The verdict of two lists of times in ms. `paired`: ours[i] and theirs[i] were taken one after the other.

    Raises ValueError for an empty list, for a time that is not above zero, and for pairs of unequal length.
    """
    a, b = np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float)
    if not len(a) or not len(b) or not (a > 0).all() or not (b > 0).all():
        raise ValueError("a verdict needs times above zero from both sides")
    if paired and len(a) != len(b):
        raise ValueError(f"pairs need as many times on either side, not {len(a)} and {len(b)}")
    value = float(np.median(b / a)) if paired else float(np.median(b) / np.median(a))
    if min(len(a), len(b)) < FEWEST:
        return Verdict(value, None, None, UNSURE)
    random = np.random.default_rng(_SEED)
    if paired:
        drawn = _medians(random, _thinned(b / a))
    else:
        drawn = _medians(random, _thinned(b)) / _medians(random, _thinned(a))
    low, high = (float(x) for x in np.quantile(drawn, (0.025, 0.975)))
    return Verdict(value, min(low, value), max(high, value), word(value, low, high))


def widened(verdict: Verdict, ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> Verdict:
    """The verdict of pairs whose times are known only within bounds: (least, most) of each sample. The verdict is one that
    holds for all times within the bounds. Without bounds it is unchanged."""
    if not ours or not theirs:
        return verdict
    worst = from_samples([most for _, most in ours], [least for least, _ in theirs], paired=True)
    best = from_samples([least for least, _ in ours], [most for _, most in theirs], paired=True)
    if verdict.low is None or verdict.high is None or worst.low is None or best.high is None:
        return verdict
    low, high = min(verdict.low, worst.low), max(verdict.high, best.high)
    return Verdict(verdict.value, low, high, word(verdict.value, low, high))


def from_quartiles(ours: tuple[float, float, float, int], theirs: tuple[float, float, float, int]) -> Verdict:
    """The verdict without samples, from (median, q25, q75, count) of each side.

    Each median's standard error is taken as 0.93 * IQR / sqrt(n): the IQR's estimate of sigma, times 1.253 for a
    median of normal samples (McGill, Tukey and Larsen 1978).
    """
    value = theirs[0] / ours[0]
    if min(ours[3], theirs[3]) < FEWEST:
        return Verdict(value, None, None, UNSURE)
    error = sqrt(sum((0.93 * (q75 - q25) / sqrt(n) / median) ** 2 for median, q25, q75, n in (ours, theirs)))
    low, high = exp(log(value) - 1.96 * error), exp(log(value) + 1.96 * error)
    return Verdict(value, low, high, word(value, low, high))


def word(value: float, low: float, high: float) -> str:
    """FASTER: the interval is above 1.01 and clear of 1 (`CLEAR`). SLOWER: it is below 0.99 and clear of 1. SAME: it is within
    1 % of 1; or the ratio is within 1 % of 1, and the interval contains 1 and is not `TOO_WIDE`. Else UNSURE."""
    clear = (high / low) ** CLEAR
    if low > max(1 + MARGIN, clear):
        return FASTER
    if high < min(1 - MARGIN, 1 / clear):
        return SLOWER
    within_margin = 1 - MARGIN <= low and high <= 1 + MARGIN
    within_noise = abs(value - 1) <= MARGIN and low <= 1 <= high and max(1 - low, high - 1) <= TOO_WIDE
    return SAME if within_margin or within_noise else UNSURE


def more_samples(verdict: Verdict, samples: int) -> int | None:
    """An estimate of how many more samples would decide an UNSURE verdict. The width of the interval is taken as proportional
    to 1 / sqrt(number of samples).

    None if it is settled, if there is no interval, or if the ratio is at a limit between two verdicts.
    """
    if verdict.verdict != UNSURE or verdict.low is None or verdict.high is None:
        return None
    away = abs(verdict.value - 1)
    room = min(abs(away - MARGIN), away / (1 + 2 * CLEAR) if away > MARGIN else MARGIN)
    half = (verdict.high - verdict.low) / 2
    if room < MARGIN / 10 or half <= room:
        return None
    return max(1, round(samples * ((half / room) ** 2 - 1)))


def _medians(random: np.random.Generator, values: _Samples) -> _Samples:
    medians: _Samples = np.median(values[random.integers(0, len(values), (_RESAMPLES, len(values)))], axis=1)
    return medians


def _thinned(values: _Samples) -> _Samples:
    """Evenly spaced samples, so that all of a long run is represented."""
    if len(values) <= _MOST:
        return values
    kept: _Samples = values[np.linspace(0, len(values) - 1, _MOST).round().astype(int)]
    return kept
