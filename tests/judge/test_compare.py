"""Two contestants in turns on the emulator: pairs of samples, watched launches, and what becomes of one that cheats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from workbench.core.candidate import Candidate
from workbench.core.orders import CompareOrder, JudgeOrder
from workbench.core.variants import find
from workbench.measure.clock import timing
from workbench.measure.clock.timing import Watch, measure_in_turns, without_slow
from workbench.measure.kernel.interleave import compare

from .bench import LAYER, WORKLOAD, Built, bad_candidate, order


def _order(built: Built, candidate: Candidate, scratch: Path) -> JudgeOrder:
    return order(built, candidate, WORKLOAD, scratch, time=True)


@pytest.fixture
def mine(naive: Built, scratch: Path) -> JudgeOrder:
    return _order(naive, Candidate(find("naive_gather", "forward"), LAYER, "float32", {}, form="runtime"), scratch)


@pytest.mark.parametrize("theirs", ["way", "candidate"])
def test_as_many_samples_of_both_pair_by_pair(mine: dict[str, Any], theirs: str) -> None:
    for _ in range(4):  # who comes last in a turn is drawn: a launch must never be taken for the other's
        result = compare(CompareOrder(mine, "default" if theirs == "way" else mine), lambda event: None)
        assert result.status == "OK", result.headline
        assert len(result.ours) == len(result.theirs) >= 5
        assert result.dropped == 0 and result.flags == ("emulated",)


def test_a_kernel_that_changes_while_timed_has_no_ratio(bad: Built, bad_root: Path, scratch: Path) -> None:
    cheat = _order(bad, bad_candidate(bad_root, "right_at_first"), scratch)
    result = compare(CompareOrder(cheat, "default"), lambda event: None)
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
