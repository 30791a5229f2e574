"""A Gaussian process over the features of a space: what a point is likely to take, and how sure that is. NumPy only.

Matern 5/2 with one length for each feature; the lengths are those that make the seen times likely, with a weak prior. A tree
ensemble was slower and found less (docs/tuning.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_LENGTH, _LENGTH_SPREAD = 1.5, 1.0  # prior of a length: its median, and the deviation of its logarithm
_NOISE, _NOISE_SPREAD = 0.05, 1.5   # the same of the noise's variance; the times have a variance of 1
_STEPS = 25
_BOUNDS = (np.log(0.05), np.log(20.0)), (-4.0, 4.0), (np.log(1e-5), 0.0)  # of lengths, variance, noise; logarithms


@dataclass(frozen=True, eq=False)
class Kernel:
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


class Belief:
    """Mean and deviation at each candidate; `suppose` takes one as evaluated at its mean, so that a batch spreads out."""

    def __init__(self, kernel: Kernel, seen: Floats, times: Floats, candidates: Floats) -> None:
        covariance = kernel.between(seen, seen).astype(np.float64) + kernel.noise * np.eye(len(seen)) + 1e-6 * np.eye(len(seen))
        inverse = np.linalg.inv(np.linalg.cholesky(covariance))
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


def fit(seen: Floats, times: Floats) -> Kernel:
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
    return Kernel(np.exp(at[:width]), float(np.exp(at[width])), float(np.exp(at[width + 1])))


def _least(of: Callable[[Floats], tuple[float, Floats]], at: Floats, low: Floats, high: Floats) -> Floats:
    """Where a smooth function is small: BFGS, kept between bounds."""
    value, slope = of(at)
    inverse = np.eye(len(at)) / max(1.0, float(np.abs(slope).max()))
    for _ in range(_STEPS):
        way = -inverse @ slope
        if way @ slope >= 0:  # no way down: forget the curvature
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
        done = value - new < 1e-3
        at, value, slope = there, new, new_slope
        if done:
            return at
        if (bend := float(moved @ turned)) > 1e-10:
            shift = np.eye(len(at)) - np.outer(moved, turned) / bend
            inverse = shift @ inverse @ shift.T + np.outer(moved, moved) / bend
    return at
