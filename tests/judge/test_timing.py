"""The stop rule and the summary, on samples made by hand; nothing here depends on how fast this machine is. Two contestants
in turns on the emulator: pairs of samples, watched launches, and what becomes of one that cheats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.core.candidate import Candidate
from workbench.core.orders import InterleaveOrder, JudgeOrder
from workbench.core.variants import find
from workbench.measure.check.clock.ladder import settled
from workbench.measure.clock import timing
from workbench.measure.clock.timing import (
    EFFORTS,
    Effort,
    Watch,
    measure,
    measure_in_turns,
    noise,
    quantile,
    summary,
    why_stop,
    without_slow,
)
from workbench.measure.kernel.interleave import interleave
from workbench.measure.kernel.judge import implausible

from .conftest import LAYER, WORKLOAD, Built, bad_candidate, order

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


def _order(built: Built, candidate: Candidate, scratch: Path) -> JudgeOrder:
    return order(built, candidate, WORKLOAD, scratch, time=True)


@pytest.fixture
def mine(naive: Built, scratch: Path) -> JudgeOrder:
    return _order(naive, Candidate(find("naive_gather", "forward"), LAYER, "float32", {}, form="runtime"), scratch)


@pytest.mark.parametrize("theirs", ["way", "candidate"])
def test_as_many_samples_of_both_pair_by_pair(mine: dict[str, Any], theirs: str) -> None:
    for _ in range(4):  # who comes last in a turn is drawn: a launch must never be taken for the other's
        result = interleave(InterleaveOrder(mine, "default" if theirs == "way" else mine), lambda event: None)
        assert result.status == "OK", result.headline
        assert len(result.ours) == len(result.theirs) >= 5
        assert result.dropped == 0 and result.flags == ("emulated",)


def test_a_kernel_that_changes_while_timed_has_no_ratio(bad: Built, bad_root: Path, scratch: Path) -> None:
    cheat = _order(bad, bad_candidate(bad_root, "right_at_first"), scratch)
    result = interleave(InterleaveOrder(cheat, "default"), lambda event: None)
    assert result.status == "MISMATCH" and "While timed" in result.headline
    assert result.ours == result.theirs == ()


def test_a_watch_looks_before_its_own_launches_alone() -> None:
    seen: list[str] = []
    runs = [lambda: seen.append("a"), lambda: seen.append("b")]
    watches = [Watch(lambda: seen.append("before a"), lambda: seen.append("after")), Watch()]
    measured = measure_in_turns(runs, device="cpu", effort="quick", watches=watches)
    assert len(measured[0].samples) == len(measured[1].samples)
    assert all(seen[i + 1] == "a" for i, word in enumerate(seen) if word == "before a")
    assert seen.count("after") == len(measured[0].samples)


def test_samples_of_a_throttled_gpu_are_dropped_and_counted() -> None:
    slow = [False] * 30 + [True] * 10
    kept, dropped = without_slow([[1.0] * 30 + [2.0] * 10, [3.0] * 40], slow, 20)
    assert dropped == 10 and kept[0] == [1.0] * 30 and len(kept[1]) == 30
    kept, dropped = without_slow([[1.0] * 40], slow, 35)  # too few would be left: the GPU is like that
    assert dropped == 0 and len(kept[0]) == 40
    assert timing.summary([1.0] * 30, stop="noise", cold_l2=True, dropped=10).dropped == 10


def test_turns_end_early_only_for_a_clear_winner() -> None:
    noise = [1.0, 1.01, 0.99, 1.0, 1.02, 0.98]
    precisions = {"default": "ieee", "tf32_on": "tf32"}

    def ends(ours: float, precision: str = "ieee", bounds: tuple[float, float] | None = None) -> bool:
        samples = {"": [ours * n for n in noise], "default": noise, "tf32_on": [0.5 * n for n in reversed(noise)]}
        between = {key: [tuple(b * s for b in bounds) for s in taken] if bounds else [] for key, taken in samples.items()}
        return settled(samples, between, precisions, precision)

    assert ends(0.8) and ends(1.2) and not ends(1.0) and not ends(0.97) and not ends(1.04)
    assert not ends(0.5, "tf32") and ends(1.2, "tf32")       # the fastest that counts decides
    assert not ends(0.8, bounds=(0.7, 1.0)), "a time that may be waiting settles nothing"
    assert not settled({"": noise, "tf32_on": noise}, {"": [], "tf32_on": []}, {"tf32_on": "tf32"}, "ieee")
