"""Compares results with the float64 truth, block by block. It has the tolerance of each precision.

Every test asks whether a value is "not within the limit": so a NaN always fails. Tolerances, with u = 2^-p the unit round-off
of p significant bits and R the length of the sum (inputs are random with mean zero, so errors add up as a random walk;
Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2 and Higham & Mary 2019):

    relative L2 allowed = operands + 2 * u_accumulate * sqrt(R) + u_result

An fp32 sum in one running variable has a relative L2 error near 0.3 * u * sqrt(R), so the middle term leaves a
factor of 6. Operands rounded to TF32 cost 2.9e-4 when rounded to nearest and 7.7e-4 when cut off (measured on an
H200); one bit less (bfloat16: 2.3e-3) must not pass. `ieee` stays below 1.5e-4 however long the sum, so TF32 is never
taken for it. One element may be off by 6 times as much, relative to its value plus the root mean square of the result.

Errors grow with the terms of a sum. The norm of the result measures these only if the result has many elements. In a grad_bias
of few elements the terms of all sums may cancel. There the errors are relative to the norm that such sums have on average
(`least_norm`, truth.py). Otherwise an unlucky seed would make a right kernel wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan, sqrt

import torch

from ...core.trial import Errors
from .buffers import count_poison

_ELEMENT_FACTOR = 6.0
_CHUNK = 1 << 24  # elements that `distance` compares at once
# The largest absolute error of a result near zero that is right. Below its normal range a dtype has no relative precision, and
# an operation may return zero there. Half precision keeps its subnormal values, so only its rounding remains.
_NEAR_ZERO = {torch.float16: 2.0**-25, **{d: torch.finfo(d).smallest_normal
                                          for d in (torch.float32, torch.bfloat16, torch.float64)}}
_KERNELBENCH = {torch.float32: 1e-4, torch.float64: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-2}


@dataclass(frozen=True)
class ErrorBound:
    """Relative error of each operand pair, unit round-offs of accumulator and stored result, and the most allowed."""

    operands: float
    accumulate: float
    result: float
    most: float


BOUNDS = {
    "ieee": ErrorBound(0.0, 2.0**-24, 2.0**-24, 1.5e-4),
    "tf32": ErrorBound(2 * 2.0**-11, 2.0**-24, 2.0**-24, 2e-3),
    # a = big + small, each in TF32. small * small (2^-22) is left out, and tensor cores truncate sums
    "tf32x3": ErrorBound(4 * 2.0**-22, 2 * 2.0**-24, 2.0**-24, 1.5e-4),
    "fp16": ErrorBound(0.0, 2.0**-24, 2.0**-11, 2e-3),
    "bf16": ErrorBound(0.0, 2.0**-24, 2.0**-8, 1.2e-2),
    "fp64": ErrorBound(0.0, 2 * 2.0**-53, 2.0**-53, 1e-11),  # twice: the truth has the same round-off
}
HALF = {"fp16": 2.0**11, "bf16": 2.0**8}  # and the whole numbers up to which all are exact


def allowed_rel_l2(precision: str, reduction: int, *, from_float32: bool = False) -> float:
    """The relative L2 error that a result of that precision may have when each element sums `reduction` products.
    `from_float32`: its operands are not of that precision yet; both are rounded first."""
    p = BOUNDS[precision]
    more = 2 * p.result if from_float32 and precision in HALF else 0.0
    return more + min(p.most, p.operands + 2 * p.accumulate * sqrt(reduction) + p.result)


class Comparison:
    """Adds up one result against the truth. `exact` demands the truth rounded once to the result's dtype.

    Errors are relative to the norm of the truth, or to `least_norm` where that is larger. `nan_safe=False` and `poisoned=False`
    exist for tests that show what each guard detects.
    """

    def __init__(self, shape: tuple[int, ...], *, allowed: float, rms: float, exact: bool, least_norm: float = 0.0,
                 poisoned: bool = True, nan_safe: bool = True) -> None:
        self._shape, self._allowed, self._rms, self.exact = shape, allowed, rms, exact
        self._poisoned, self._nan_safe = poisoned, nan_safe
        self._least_squares = least_norm**2
        self._squares = self._expected_squares = 0.0
        self._worst = (-1.0, (0,) * len(shape), 0.0, 0.0)  # distance, index, got, expected
        self._max_rel = self._expected_there = 0.0
        self._kernelbench = True
        self.count = self.wrong = self.unwritten = self.not_finite = 0
        self.first_unwritten: tuple[int, ...] | None = None
        self.last_unwritten: tuple[int, ...] | None = None
        self.first_not_finite: tuple[int, ...] | None = None

    def add(self, index: tuple[slice, ...], got: torch.Tensor, expected: torch.Tensor) -> None:
        """`got` in the result's dtype, `expected` in float64, both the block at `index`."""
        got = got.contiguous()
        dtype = got.dtype
        if self._poisoned and bool((unwritten := count_poison(got)).any()):
            places = unwritten.view(-1).nonzero().view(-1)
            self.unwritten += len(places)
            self.first_unwritten = self.first_unwritten or self._place(index, got, int(places[0]))
            self.last_unwritten = self._place(index, got, int(places[-1]))
        finite = torch.isfinite(got)
        if not bool(finite.all()):
            places = (~finite).view(-1).nonzero().view(-1)
            self.not_finite += len(places)
            if self.first_not_finite is None:
                self.first_not_finite = self._place(index, got, int(places[0]))
                self._expected_there = float(expected.reshape(-1)[int(places[0])])
        wide = got.double()
        distance = (wide - expected).abs()
        if self.exact:
            rounded = expected.to(dtype)
            wrong = ~(got == rounded) if self._nan_safe else (got < rounded) | (got > rounded)
        else:
            limit = element_limit(expected, self._allowed, self._rms).clamp(min=_NEAR_ZERO[dtype])
            wrong = ~(distance <= limit) if self._nan_safe else distance > limit
        tolerance = _KERNELBENCH[dtype]
        self._kernelbench = self._kernelbench and bool((distance <= tolerance + tolerance * expected.abs()).all())
        self.count += got.numel()
        self.wrong += int(wrong.sum())
        # NaN and Inf are counted above; errors are of the others
        distance = torch.where(finite & (distance > (0.0 if self.exact else _NEAR_ZERO[dtype])), distance, 0.0)
        self._squares += float(distance.square().sum())
        self._expected_squares += float(expected.square().sum())
        nonzero = expected != 0
        self._max_rel = max(self._max_rel, float(torch.where(nonzero, distance / expected.abs(), 0.0).max()))
        # Where the exact check finds wrong bits, the worst is looked for among those alone.
        candidates = torch.where(wrong & finite, distance, -1.0) if self.exact else torch.where(finite, distance, -1.0)
        flat = int(candidates.argmax())
        far = float(candidates.view(-1)[flat])
        if far > self._worst[0]:
            self._worst = (far, self._place(index, got, flat), float(wide.view(-1)[flat]),
                           float(expected.view(-1)[flat]))

    def add_whole(self, got: torch.Tensor, expected: torch.Tensor) -> None:
        """All blocks of a result, a few rows at a time, so that little memory is needed for a large result."""
        if not got.dim():
            self.add((), got, expected)
            return
        rows = max(1, _CHUNK // max(1, got[:1].numel()))
        for start in range(0, len(got), rows):
            self.add((slice(start, start + rows),), got[start:start + rows], expected[start:start + rows])

    @property
    def rel_l2(self) -> float:
        norm = max(self._expected_squares, self._least_squares)
        if norm == 0.0:
            return 0.0 if self._squares == 0.0 else float("inf")
        return sqrt(self._squares / norm)

    @property
    def rms_error(self) -> float:
        return sqrt(self._squares / self.count)

    @property
    def failed(self) -> bool:
        """Wrong elements, or too large an error altogether."""
        if self._nan_safe:
            return self.wrong > 0 or not self.rel_l2 <= self._allowed
        return self.wrong > 0 or self.rel_l2 > self._allowed

    def errors(self) -> Errors:
        """What was compared so far, summed up."""
        distance, index, got, expected = self._worst
        if distance <= 0 and self.first_not_finite is not None:   # JSON has no NaN: `got` stays 0
            index, got, expected = self.first_not_finite, 0.0, self._expected_there
        rel_l2 = self.rel_l2
        return Errors(max_abs=max(0.0, distance), max_rel=self._max_rel,
                      rel_l2=rel_l2 if rel_l2 < float("inf") and not isnan(rel_l2) else 1e308,
                      allowed=self._allowed, worst_index=index, got=got, expected=expected, wrong=self.wrong,
                      count=self.count, kernelbench_ok=self._kernelbench)

    def _place(self, index: tuple[slice, ...], block: torch.Tensor, flat: int) -> tuple[int, ...]:
        place = []
        for size in reversed(block.shape):
            flat, rest = divmod(flat, size)
            place.append(rest)
        place.reverse()
        return tuple(p + (index[d].start if d < len(index) else 0) for d, p in enumerate(place))


def element_limit(expected: torch.Tensor, allowed: float, rms: float) -> torch.Tensor:
    """The largest allowed error of one element. `allowed`: the relative L2 tolerance of the whole result. `rms`: the root mean
    square of the truth."""
    return _ELEMENT_FACTOR * allowed * (expected.abs() + rms)


def norm_apart(got: torch.Tensor, truth: torch.Tensor) -> float:
    """The L2 norm of the difference in float64, a chunk at a time. A NaN comes through."""
    got, truth = got.reshape(-1), truth.reshape(-1)
    return sqrt(sum(float((got[start:start + _CHUNK].double() - truth[start:start + _CHUNK].double()).square().sum())
                    for start in range(0, got.numel(), _CHUNK)))


def distance(got: torch.Tensor, truth: torch.Tensor) -> tuple[float, float, float]:
    """(relative L2, largest, rms of the truth), computed where `got` is, a chunk at a time: no float64 copy of a large result
    is made. A NaN comes through."""
    got, truth = got.reshape(-1), truth.reshape(-1)
    off, size, largest = (torch.zeros((), dtype=torch.float64, device=got.device) for _ in range(3))
    for start in range(0, got.numel(), _CHUNK):
        expected = truth[start:start + _CHUNK].to(got.device).double()
        difference = got[start:start + _CHUNK].double() - expected
        off += difference.square().sum()
        size += expected.square().sum()
        largest = torch.maximum(largest, difference.abs().max())
    return (float(off.sqrt()) / max(float(size.sqrt()), 1e-300), float(largest),
            float((size / max(1, got.numel())).sqrt()))


def beside_noise(found: list[tuple[float, float, float]], truths: list[torch.Tensor], least_norms: list[float]
                 ) -> list[tuple[float, float, float]]:
    """The same distances, relative to a norm of at least `least_norms`. For results whose exact value is zero."""
    kept = []
    for (off, worst, rms), truth, least in zip(found, truths, least_norms, strict=True):
        count = max(1, truth.numel())
        norm = max(rms * count**0.5, 1e-300)
        kept.append((off * norm / max(norm, least), worst, max(rms, least / count**0.5)))
    return kept
