"""The stop rule and the summary, on samples made by hand; nothing here depends on how fast this machine is."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.measure.clock.timing import EFFORTS, Effort, measure, noise, quantile, summary, why_stop
from workbench.measure.kernel.judge import implausible

EFFORT = Effort(least=10, most=100, wall_s=1.0)
STEADY = [1.0, 1.001] * 10
NOISY = [1.0, 1.5] * 10


@pytest.mark.parametrize("n", [1, 2, 5, 10, 33])
def test_quantiles_are_numpys(n: int) -> None:
    samples = sorted(np.random.default_rng(n).random(n).tolist())
    for share in (0.25, 0.5, 0.75):
        assert quantile(samples, share) == pytest.approx(np.quantile(samples, share))


@pytest.mark.parametrize(("samples", "elapsed_s", "stop"), [
    (STEADY, 0.1, "noise"), (NOISY, 0.1, ""), (NOISY, 1.0, "limit"), (NOISY * 5, 0.1, "samples"),
    (STEADY[:9], 0.1, ""), ([], 5.0, ""), ([3.0], 5.0, "limit")])
def test_stop_rule(samples: list[float], elapsed_s: float, stop: str) -> None:
    assert why_stop(samples, effort=EFFORT, elapsed_s=elapsed_s, wall_s=1.0) == stop


def test_low_noise_ends_it_only_after_the_least_time() -> None:
    patient = Effort(least=10, most=100, wall_s=1.0, least_s=0.3)
    assert why_stop(STEADY, effort=patient, elapsed_s=0.2, wall_s=1.0) == ""
    assert why_stop(STEADY, effort=patient, elapsed_s=0.3, wall_s=1.0) == "noise"
    assert why_stop(STEADY * 5, effort=patient, elapsed_s=0.2, wall_s=1.0) == "samples"


def test_noise_is_the_interval_of_the_median() -> None:
    rng = np.random.default_rng(0)
    covered, trials = 0, 400
    for _ in range(trials):
        samples = (10 + rng.normal(size=101)).tolist()
        covered += abs(quantile(sorted(samples), 0.5) - 10) <= noise(samples) * quantile(sorted(samples), 0.5)
    assert covered / trials > 0.9
    assert noise([2.0] * 20) == 0.0
    assert noise((10 + rng.normal(size=4000)).tolist()) < noise((10 + rng.normal(size=100)).tolist())


def test_summary_and_spread() -> None:
    few = summary([3.0, 1.0, 2.0, 4.0], stop="limit", cold_l2=True)
    assert (few.median_ms, few.min_ms, few.samples, few.stop, few.spread) == (2.5, 1.0, 4, "limit", None)
    enough = summary([1.0, 2.0, 3.0, 4.0, 5.0], stop="noise", cold_l2=False)
    assert enough.spread == pytest.approx((4.0 - 2.0) / 2 / 3.0)


def test_the_emulator_is_timed_and_says_so() -> None:
    calls: list[int] = []
    result = measure(lambda: calls.append(1), device="cpu", effort="quick")
    assert result.flags == ["emulated"] and len(result.samples) == len(calls)
    assert len(calls) >= EFFORTS["cpu"]["quick"].least or result.timing.stop == "limit"
    assert result.timing.stop in ("noise", "samples", "limit") and not result.timing.cold_l2


def test_implausible_only_where_caches_cannot_explain_it() -> None:
    l2 = 50 << 20
    assert implausible(0.031, 0.199, traffic_bytes=5 * l2, l2=l2, cold_l2=True)
    assert not implausible(0.17, 0.199, traffic_bytes=5 * l2, l2=l2, cold_l2=True)     # above 0.8 of the floor
    assert not implausible(0.031, 0.199, traffic_bytes=3 * l2, l2=l2, cold_l2=True)
    assert not implausible(0.031, 0.199, traffic_bytes=5 * l2, l2=l2, cold_l2=False)
    assert not implausible(0.031, None, traffic_bytes=5 * l2, l2=l2, cold_l2=True)
