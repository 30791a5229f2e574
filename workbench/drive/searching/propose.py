"""Proposes the points to try next, from the results so far. The first proposals are the best of a known ranking, a few of each
family, and points far from each other. Later proposals come from a Gaussian process over the log of the time, which predicts
where an improvement is likely. Every fourth of them is a neighbour of the best point. A point without a result yet counts as if
it had the predicted time. The process has a Matern 5/2 kernel with one length for each feature. The lengths are fitted to the
measured times by maximum likelihood with a weak prior. The code needs only NumPy, and a proposal takes milliseconds.
docs/tuning.md compares it with other searches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, erf, log, pi, sqrt

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from .points import Points, Seen

Floats = NDArray[np.float64]

START = 12           # points before the model is used; more if there are many families
RANKED = 16          # at most this many of them come from the known ranking
RANKED_OF_ALL = 8    # these are shared evenly among the families, but at least two of each
FAILED_AS = 0.75     # a failed point counts as slower than this share of the measured ones
# Above the median, differences of log time are multiplied by this, because differences among slow points matter little.
CURBED = 0.5
# Only what improves on the best time by more than this counts as an improvement. The unit is the standard deviation of the
# results. Otherwise the model's small gains around a local optimum outweigh the chance of a better one elsewhere.
MARGIN = 0.2
# Every fourth point is the fastest prediction among those that differ from the best one in at most two tunables.
NEIGHBOUR_EVERY, NEIGHBOUR_CHANGES = 4, 2
FITTED, BELIEVED = 128, 256   # the most points to which the lengths are fitted, and from which times are predicted
CANDIDATES = 5000    # the most points whose times are predicted
NEAR_BEST = 1500     # this many of them are the nearest to the best points
REFITS = (1, 1, 2, 32)  # trials after which the lengths are fitted again: below 24, 60 and 200 results, and above
MOST_TWOS = 6        # factors of 2 are counted up to 2^6
WIDEST = 36          # the most features, including sums of pairs
_LENGTH, _LENGTH_SPREAD = 1.5, 1.0  # prior of a length: its median, and the deviation of its logarithm
_NOISE, _NOISE_SPREAD = 0.05, 1.5   # the same for the variance of the noise; times are scaled to variance 1
_STEPS = 60
# Bounds of the logarithms of lengths, variance and noise.
_BOUNDS = (np.log(0.05), np.log(20.0)), (-4.0, 4.0), (np.log(1e-5), 0.0)


def propose(points: Points, seen: Sequence[Seen], pending: Sequence[int], count: int, *, seed: int) -> list[int]:
    """At most `count` points that are neither seen nor pending; fewer if the space has no more. The same arguments give the
    same answer, because a search has no other state.
    """
    # BLAS uses one thread here, because its threads spin while they wait, and builds need the cores. With more threads it was
    # 200 times slower on a busy machine.
    with _threads().limit(limits=1, user_api="blas"):
        return _proposed(points, seen, pending, count, seed)


def _proposed(points: Points, seen: Sequence[Seen], pending: Sequence[int], count: int, seed: int) -> list[int]:
    taken = {one.point for one in seen} | set(pending)
    count = min(count, len(points) - len(taken))
    if count <= 0:
        return []
    start = _start(points, seed)
    chosen = [i for i in start if i not in taken][:max(0, min(count, len(start) - len(taken)))]
    if len(chosen) == count:
        return chosen
    # There are no times yet: take points as far as possible from the tried ones.
    if sum(one.ms is not None for one in seen) < 2:
        return [*chosen, *_spread(points, [*taken, *chosen], count - len(chosen), seed)]
    return [*chosen, *_likely(points, tuple(seen), [*pending, *chosen], count - len(chosen), seed)]


@lru_cache(maxsize=1)
def _threads() -> ThreadpoolController:
    return ThreadpoolController()


def _likely(points: Points, seen: tuple[Seen, ...], waiting: Sequence[int], count: int, seed: int) -> list[int]:
    """The points of the greatest expected improvement, and some neighbours of the best point, one after the other."""
    features = _features(points)
    times = _times(seen)
    places = np.array([one.point for one in seen])
    kernel = _kernel(points, seen[:_fitted_at(len(seen))], seed)
    used = _subset(times, BELIEVED, seed)
    taken = np.zeros(len(points), bool)
    taken[places] = True
    taken[list(waiting)] = True
    candidates = _candidates(features, taken, places[np.argsort(times)[:8]], seed, len(seen))
    scaled = (times - times.mean()) / (times.std() + 1e-9)
    asked = np.concatenate([candidates, np.array(waiting, int)])
    belief = _Belief(kernel, features[places[used]], scaled[used], features[asked])
    for i in range(len(candidates), len(asked)):
        belief.suppose(i)
    value, best = min((value, one.point) for value, one in zip(scaled, seen, strict=True) if one.ms is not None)
    beat = float(value) - MARGIN
    near = _neighbours(points, best, candidates)
    mean = belief.mean[:len(candidates)].astype(np.float64)
    chosen: list[int] = []
    open_ = np.ones(len(candidates), bool)
    while len(chosen) < count:
        if (len(seen) + len(waiting) + len(chosen) + 1) % NEIGHBOUR_EVERY == 0 and (near & open_).any():
            place = int(np.argmin(np.where(near & open_, mean, np.inf)))
        else:
            gain = _log_improvement(mean, belief.deviation[:len(candidates)], beat)
            place = int(np.argmax(np.where(open_, gain, -np.inf)))
        if not open_[place]:
            rest = set(np.flatnonzero(~taken).tolist()) - set(chosen)
            return [*chosen, *sorted(rest)[:count - len(chosen)]]
        open_[place] = False
        chosen.append(int(candidates[place]))
        if len(chosen) < count:
            belief.suppose(place)
    return chosen


@lru_cache(maxsize=64)
def _kernel(points: Points, seen: tuple[Seen, ...], seed: int) -> _Kernel:
    """The kernel fitted to the first results, up to a certain number, so that several proposals share it."""
    times = _times(seen)
    used = _subset(times, FITTED, seed)
    places = np.array([one.point for one in seen])[used]
    return _fit(_features(points)[places], (times[used] - times[used].mean()) / (times[used].std() + 1e-9))


def _fitted_at(count: int) -> int:
    step = next((step for limit, step in zip((24, 60, 200), REFITS, strict=False) if count < limit), REFITS[-1])
    return max(2, count // step * step)


def _times(seen: Sequence[Seen]) -> Floats:
    """The log of each time. A failed point counts as slow. A point whose timing was stopped early counts as at least as slow as
    the median."""
    known = np.log([one.ms for one in seen if one.ms is not None and not one.at_least] or
                   [one.ms for one in seen if one.ms is not None] or [1.0])
    middle, slow = np.median(known), np.quantile(known, FAILED_AS)
    times = np.array([slow if one.ms is None else max(log(one.ms), middle) if one.at_least else log(one.ms) for one in seen])
    return np.where(times > middle, middle + CURBED * (times - middle), times)


def _subset(times: Floats, most: int, seed: int) -> NDArray[np.int_]:
    """The indices of all times, or of `most`: two thirds of these are the best ones, the others are drawn at random."""
    if len(times) <= most:
        return np.arange(len(times))
    ranked = np.argsort(times, kind="stable")
    best = 2 * most // 3
    others = np.random.default_rng((seed, len(times))).choice(ranked[best:], most - best, replace=False)
    return np.sort(np.concatenate([ranked[:best], others]))


def _candidates(features: Floats, taken: NDArray[np.bool_], best: NDArray[np.int_], seed: int, at: int) -> NDArray[np.int_]:
    """All points that are left. If there are too many: those near the best points, and a random sample of the others."""
    left = np.flatnonzero(~taken)
    if len(left) <= CANDIDATES:
        return left
    reduced = features[left].astype(np.float32)
    apart = np.min([((reduced - features[i].astype(np.float32)) ** 2).sum(1) for i in best], axis=0)
    near = np.argpartition(apart, NEAR_BEST)[:NEAR_BEST]
    far = np.setdiff1d(np.arange(len(left)), near, assume_unique=True)
    drawn = np.random.default_rng((seed, at)).choice(far, CANDIDATES - NEAR_BEST, replace=False)
    return np.sort(left[np.concatenate([near, drawn])])


def _neighbours(points: Points, best: int, candidates: NDArray[np.int_]) -> NDArray[np.bool_]:
    """Which candidates belong to the best point's family and differ from it in at most NEIGHBOUR_CHANGES tunables."""
    tunables = np.array([i for i, name in enumerate(points.columns) if name not in points.derived], int)
    rows, row = points.features[np.ix_(candidates, tunables)], points.features[best, tunables]
    changes = ((rows != row) & ~(np.isnan(rows) & np.isnan(row))).sum(1)
    family = np.array([points.families[i] == points.families[best] for i in candidates], bool)
    near: NDArray[np.bool_] = family & (changes <= NEIGHBOUR_CHANGES)
    return near


def _log_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """The log of the expected improvement on `best`. For z far below 0 the asymptotic formula is used, because the plain one
    gives 0."""
    z = (best - mean) / deviation
    density = np.exp(-0.5 * z * z) / sqrt(2 * pi)
    plain = density + z * _normal(z)
    tail = -0.5 * z * z - 0.5 * log(2 * pi) - 2 * np.log(np.maximum(np.abs(z), 1e-9))
    value: Floats = np.log(deviation) + np.where(z > -4, np.log(np.maximum(plain, 1e-300)), tail)
    return value


_GRID = np.linspace(-8, 8, 4097)
_BELOW = np.array([0.5 * (1 + erf(x / sqrt(2))) for x in _GRID])


def _normal(z: Floats) -> Floats:
    below: Floats = np.interp(z, _GRID, _BELOW)
    return below


@lru_cache(maxsize=16)
def _start(points: Points, seed: int) -> tuple[int, ...]:
    families = Counter(points.families)
    each = max(2, ceil(RANKED_OF_ALL / len(families)))
    ranked: list[int] = []
    of: Counter[str] = Counter()
    for i in dict.fromkeys(points.order):
        if of[points.families[i]] < each and len(ranked) < max(RANKED, len(families)):
            ranked.append(i)
            of[points.families[i]] += 1
    spread: list[int] = []
    for family in sorted(set(families) - set(of)):  # one point of each family that is not in the ranking
        inside = [i for i, name in enumerate(points.families) if name == family]
        spread.append(inside[int(np.random.default_rng((seed, len(spread))).integers(len(inside)))])
    more = max(START - len(ranked) // 2, len(ranked) + len(spread)) - len(ranked) - len(spread)
    more = min(more, len(points) - len(ranked) - len(spread))
    return tuple([*ranked, *spread, *_spread(points, [*ranked, *spread], more, seed)])


def _spread(points: Points, known: Iterable[int], count: int, seed: int) -> list[int]:
    """Points far from the known ones and from each other. Of many random draws, the one with the largest distances is taken."""
    known = list(known)
    if count <= 0:
        return []
    left = np.setdiff1d(np.arange(len(points)), known)
    features = _plain(points)
    rng = np.random.default_rng((seed, len(known)))
    best, found = -np.inf, left[:count]
    for _ in range(200 if count > 1 else 1):
        drawn = rng.choice(left, count, replace=False)
        mine = features[drawn]
        others = np.concatenate([mine, features[known]]) if known else mine
        apart = ((mine[:, None] - others[None]) ** 2).sum(-1)
        apart[np.arange(count), np.arange(count)] = np.inf
        if (value := apart.min() + 0.2 * apart.min(1).mean()) > best:
            best, found = value, drawn
    return [int(i) for i in found]


@lru_cache(maxsize=4)
def _features(points: Points) -> Floats:
    """The features of the model, each between 0 and 1: the place of each tunable's value, the family, the odd part of a value
    (1 for a power of two, which often divides a size without remainder), how often 2 divides it, and sums of the logs of two
    tunables. A sum of logs stands for a product, such as the threads of a block or the elements of a tile."""
    plain = _plain(points)
    extra: list[Floats] = []
    logs: list[tuple[int, Floats]] = []
    for name, column in zip(points.columns, points.features.T.astype(np.float64), strict=True):
        known = np.unique(column[~np.isnan(column)])
        filled = np.where(np.isnan(column), known.mean() if len(known) else 0.0, column)
        if len(known) < 3:
            continue
        integers = bool((known == np.round(known)).all())
        whole = np.maximum(np.round(filled), 1).astype(np.int64)
        twos = whole & -whole
        odd = whole // twos
        if integers and name not in points.logs and known.min() > 0 and len(set(odd)) > 1:
            extra.append(_unit(np.log2(odd)))
        if integers and len(known) > 4 and known.max() >= 16:
            extra.append(np.minimum(np.log2(twos), MOST_TWOS) / MOST_TWOS)
        logs.append((len(known), np.log2(filled) if known.min() > 0 and known.max() > 16 else filled))
    logs.sort(key=lambda one: -one[0])
    room = WIDEST - plain.shape[1] - len(extra)
    pairs = [_unit(logs[a][1] + logs[b][1]) for a in range(len(logs)) for b in range(a)]
    return np.column_stack([plain, *extra, *pairs[:max(0, room)]])


@lru_cache(maxsize=4)
def _plain(points: Points) -> Floats:
    """The place of each value in its sorted column (0.5 if a family lacks the tunable), and one column for each family except
    one."""
    columns = []
    for column in points.features.T:
        there = ~np.isnan(column)
        known, place = np.unique(column[there], return_inverse=True)
        made = np.full(len(column), 0.5)
        made[there] = place / max(1, len(known) - 1)
        columns.append(made)
    names = sorted(set(points.families))
    columns += [np.array([float(name == one) for one in points.families]) for name in names[1:]]
    return np.column_stack(columns) if columns else np.zeros((len(points), 1))


def _unit(column: Floats) -> Floats:
    low, high = column.min(), column.max()
    return (column - low) / (high - low) if high > low else np.zeros_like(column)


@dataclass(frozen=True, eq=False)
class _Kernel:
    """The fitted kernel."""

    lengths: Floats
    variance: float
    noise: float

    def between(self, a: Floats, b: Floats) -> NDArray[np.float32]:
        left, right = (a / self.lengths).astype(np.float32), (b / self.lengths).astype(np.float32)
        squared = (left * left).sum(1)[:, None] + (right * right).sum(1)[None] - 2 * left @ right.T
        np.maximum(squared, 0, out=squared)
        root = np.sqrt(5 * squared)
        values: NDArray[np.float32] = np.float32(self.variance) * (1 + root + np.float32(5 / 3) * squared) * np.exp(-root)
        return values


class _Belief:
    """The predicted mean and deviation of each candidate. `suppose` treats a candidate as if it had its mean as result, so that
    the points of a batch are far apart."""

    def __init__(self, kernel: _Kernel, seen: Floats, times: Floats, candidates: Floats) -> None:
        covariance = kernel.between(seen, seen).astype(np.float64) + kernel.noise * np.eye(len(seen))
        inverse = np.linalg.inv(_root(covariance))
        self._kernel, self._candidates = kernel, candidates
        self._whitened = inverse.astype(np.float32) @ kernel.between(seen, candidates)
        self.mean = (inverse @ times).astype(np.float32) @ self._whitened
        self._variance = kernel.variance - (self._whitened * self._whitened).sum(0)

    @property
    def deviation(self) -> Floats:
        deviation: Floats = np.sqrt(np.maximum(self._variance, 1e-6)).astype(np.float64)
        return deviation

    def suppose(self, place: int) -> None:
        row = self._kernel.between(self._candidates[place:place + 1], self._candidates)[0]
        row -= self._whitened[:, place] @ self._whitened
        row /= np.sqrt(max(float(self._variance[place]), 1e-6) + self._kernel.noise)
        self._whitened = np.vstack([self._whitened, row])
        self._variance = self._variance - row * row


def _root(covariance: Floats) -> Floats:
    """The Cholesky factor of a covariance. Because it is rounded to float32, a small value is added to its diagonal, and a
    larger one if that is not enough."""
    added = 1e-6
    while True:
        try:
            return np.linalg.cholesky(covariance + added * np.eye(len(covariance))).astype(np.float64)
        except np.linalg.LinAlgError:
            if added > 1e3:
                raise
            added *= 10


def _fit(seen: Floats, times: Floats) -> _Kernel:
    """The kernel that makes `times` (mean 0, variance 1) most likely."""
    count, width = seen.shape
    left, right = np.tril_indices(count, -1)
    apart = np.ascontiguousarray(((seen[left] - seen[right]) ** 2).T)
    prior = np.array([*[np.log(_LENGTH)] * width, 0.0, np.log(_NOISE)])
    spread = np.array([*[_LENGTH_SPREAD] * width, 1.0, _NOISE_SPREAD])
    low, high = (np.array([*[_BOUNDS[0][i]] * width, _BOUNDS[1][i], _BOUNDS[2][i]]) for i in (0, 1))

    def unlikely(at: Floats) -> tuple[float, Floats]:
        scales = np.exp(-2 * at[:width])
        variance, noise = np.exp(at[width]), np.exp(at[width + 1])
        squared = scales @ apart
        root = np.sqrt(5 * squared)
        decay = variance * np.exp(-root)
        values = (1 + root + 5 / 3 * squared) * decay
        covariance = np.zeros((count, count))
        covariance[left, right] = values
        covariance += covariance.T
        covariance[np.diag_indices(count)] = variance + noise + 1e-6
        try:
            factor = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            return np.inf, np.zeros_like(at)
        half = np.linalg.inv(factor)
        inverse = half.T @ half
        weights = inverse @ times
        off = inverse[left, right] - weights[left] * weights[right]
        on = float(0.5 * (np.diag(inverse) - weights * weights).sum())
        slope = np.empty_like(at)
        slope[:width] = (apart @ (off * (-5 / 6) * (1 + root) * decay)) * (-2 * scales)
        slope[width] = off @ values + on * variance
        slope[width + 1] = on * noise
        z = (at - prior) / spread
        return float(0.5 * times @ weights + np.log(np.diag(factor)).sum() + 0.5 * z @ z), slope + z / spread

    at = _least(unlikely, prior, low, high)
    return _Kernel(np.exp(at[:width]), float(np.exp(at[width])), float(np.exp(at[width + 1])))


def _least(of: Callable[[Floats], tuple[float, Floats]], at: Floats, low: Floats, high: Floats) -> Floats:
    """The minimum of a smooth function within bounds, by BFGS."""
    value, slope = of(at)
    inverse = np.eye(len(at)) / max(1.0, float(np.abs(slope).max()))
    for _ in range(_STEPS):
        way = -inverse @ slope
        if way @ slope >= 0:  # no descent in this direction: reset the curvature
            inverse = np.eye(len(at)) / max(1.0, float(np.abs(slope).max()))
            way = -inverse @ slope
        way *= min(1.0, 2.0 / float(np.abs(way).max() + 1e-12))
        for _ in range(8):
            there = np.clip(at + way, low, high)
            new, new_slope = of(there)
            if new <= value + 1e-4 * float(slope @ (there - at)):
                break
            way = way / 2
        else:
            return at
        moved, turned = there - at, new_slope - slope
        done = value - new < 1e-6
        at, value, slope = there, new, new_slope
        if done:
            return at
        if (bend := float(moved @ turned)) > 1e-10:
            shift = np.eye(len(at)) - np.outer(moved, turned) / bend
            inverse = shift @ inverse @ shift.T + np.outer(moved, moved) / bend
    return at
