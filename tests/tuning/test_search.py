"""The search proposes what it may, finds the best of spaces whose form is known, and is judged by the published score."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from workbench.core.best_known import best_config
from workbench.core.layer import Workload
from workbench.core.presets import preset
from workbench.core.replies import Built, Judged
from workbench.core.trial import Status
from workbench.core.variants import find
from workbench.drive.replaying.recorded_space import RecordedSpace, spaces_of
from workbench.drive.replaying.replay import replay
from workbench.drive.running.execution import Execution
from workbench.drive.running.request import Run, RunRequest
from workbench.drive.running.runner import Runner
from workbench.drive.searching.points import Points, Seen, points_from
from workbench.drive.searching.propose import _Belief, _features, _Kernel, _neighbours, propose
from workbench.drive.tuning import store
from workbench.drive.tuning.feed import TuneFeed, TuneRequest, spaces
from workbench.drive.tuning.seen import Claims
from workbench.drive.tuning.space import TuneSpace, class_for, key_of

from .test_tune import H200, KB74, WORK, parts, tuned

ROOT = Path(__file__).resolve().parents[2]
SESSION = ROOT / "sessions" / "recorded-h200-kernelbench.zip"


def kernel_like() -> tuple[list[dict], list[float | None]]:
    """Time falls with the threads of a block up to 256 and with the tile up to 4; odd blocks are slow; large tiles fail."""
    configs, times = [], []
    for x, y, tile, flag in itertools.product(range(16, 272, 16), (1, 2, 4, 8, 16), (1, 2, 3, 4, 6, 8), (0, 1)):
        if not 32 <= x * y <= 1024:
            continue
        configs.append({"X": x, "Y": y, "TILE": tile, "FLAG": flag})
        fits = x * y * tile <= 4096
        ms = 1 + abs(math.log2(x * y / 256)) / 2 + abs(math.log2(tile / 4)) / 3 + (x % 32 != 0) * 0.4 + flag * 0.2 + 0.01 * y
        times.append(ms if fits else None)
    return configs, times


def written(folder: Path, name: str = "made.json.gz") -> Path:
    """The space above as a cache file of Kernel Tuner."""
    configs, times = kernel_like()
    cache = {",".join(map(str, c.values())): {**c, "time": "RuntimeFailedConfig" if ms is None else ms, "compile_time": 900.0,
                                              "benchmark_time": 100.0} for c, ms in zip(configs, times, strict=True)}
    data = json.dumps({"device_name": "none", "tune_params_keys": list(configs[0]), "objective": "time", "cache": cache})
    path = folder / name
    path.write_bytes(gzip.compress(data.encode()) if name.endswith(".gz") else data.encode())
    return path


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> RecordedSpace:
    [found] = spaces_of(written(tmp_path_factory.mktemp("spaces")))
    return found


def told(space: RecordedSpace, points: list[int]) -> list[Seen]:
    return [Seen(i, None if np.isnan(space.ms[i]) else float(space.ms[i])) for i in points]


def test_a_proposal_is_pure_and_never_seen_nor_pending(space: RecordedSpace) -> None:
    seen = told(space, list(range(0, 400, 10)))
    pending = [1, 2, 3]
    first = propose(space.points, seen, pending, 7, seed=1)
    assert first == propose(space.points, list(seen), tuple(pending), 7, seed=1)
    again = points_from(space.configs)  # equal points in another object, as in another process
    assert first == propose(again, seen, pending, 7, seed=1)
    assert len(set(first)) == 7 and not set(first) & ({one.point for one in seen} | set(pending))
    assert propose(space.points, [], (), 7, seed=1) != propose(space.points, [], (), 7, seed=2)


@pytest.mark.parametrize("batch", [1, 5])
def test_a_small_space_is_walked_once_and_wholly(batch: int) -> None:
    points = points_from([{"A": a, "B": b} for a in (1, 2, 4) for b in (1, 2, 3, 5, 7)])
    seen: list[Seen] = []
    while more := propose(points, seen, (), batch, seed=0):
        seen += [Seen(i, None if i % 4 == 0 else 1.0 + i) for i in more]
    assert sorted(one.point for one in seen) == list(range(15))
    assert propose(points, seen, (), 1, seed=0) == []


@pytest.mark.parametrize("points", [points_from([{"A": 1}]), points_from([{"A": 1}] * 20, keys=map(str, range(20)))],
                         ids=["one", "all alike"])
def test_a_space_without_features_is_searched_too(points: Points) -> None:
    seen: list[Seen] = []
    while more := propose(points, seen, (), 3, seed=0):
        seen += [Seen(i, 1.0) for i in more]
    assert len(seen) == len(points)


def test_the_known_ranking_comes_first_a_few_of_each_family() -> None:
    configs = [{"A": a} for a in range(30)]
    families = ["one"] * 15 + ["two"] * 15
    points = points_from(configs, families=families, order=[*range(10), 29, 28])
    assert propose(points, [], (), 6, seed=0) == [0, 1, 2, 3, 29, 28]


def test_every_family_is_tried_at_the_start() -> None:
    families = [f"family {i % 20}" for i in range(400)]
    points = points_from([{"A": i} for i in range(400)], families=families)
    assert {families[i] for i in propose(points, [], (), 20, seed=3)} == set(families)


def test_the_search_finds_the_best_of_a_kernel_like_space(space: RecordedSpace) -> None:
    """Random search ends within 5 % of the best in one run of ten; this one in nearly all."""
    done = {one.search: one.outcome for one in replay([space], ["surrogate", "random"], repeats=4, trials=50)}
    assert done["surrogate"].near >= 3 / 4
    assert done["surrogate"].share > done["random"].share + 0.05
    assert done["surrogate"].score > 0.5 > done["random"].score + 0.2


def test_every_fourth_proposal_is_a_neighbour_of_the_best(space: RecordedSpace) -> None:
    """It differs from the best config in at most two tunables. The others go further: not all of them are neighbours."""
    seen = told(space, [int(i) for i in np.random.default_rng(1).choice(len(space.ms), 40, replace=False)])
    best = space.configs[min((one for one in seen[:-1] if one.ms is not None), key=lambda one: one.ms).point]
    changes = [sum(space.configs[i][name] != best[name] for name in best)
               for i in propose(space.points, seen[:-1], [seen[-1].point], 20, seed=0)]
    assert all(count <= 2 for count in changes[3::4]) and max(changes) > 2


def test_the_model_sees_the_occupancy_which_is_no_tunable_of_a_neighbour() -> None:
    """Threads, shared memory and resident warps follow from the tunables; they do not make two configs differ more."""
    points = TuneSpace(KB74, "forward", "tf32", H200, variants=("gathered_mma", "naive_gather")).points()
    place = {name: i for i, name in enumerate(points.columns)}
    warps = points.features[:, place["resident_warps"]]
    assert points.derived == {"threads", "smem_bytes", "resident_warps"} and len(set(warps[~np.isnan(warps)])) > 3
    assert set(warps[~np.isnan(warps)]) <= set(range(1, 65))
    tunables = [i for name, i in place.items() if name not in points.derived]
    mine = points.features[:, tunables]
    one = next(i for i, name in enumerate(points.families) if name.startswith("gathered_mma"))
    differ = ((mine != mine[one]) & ~(np.isnan(mine) & np.isnan(mine[one]))).sum(1)
    near = _neighbours(points, one, np.arange(len(points)))
    assert (near == ((differ <= 2) & (np.array(points.families) == points.families[one]))).all() and near.sum() > 20


def test_failures_and_early_stops_teach_the_search(space: RecordedSpace) -> None:
    seen = told(space, [int(i) for i in np.random.default_rng(0).choice(len(space.ms), 60, replace=False)])
    proposed = propose(space.points, seen, (), 20, seed=0)
    assert np.isnan(space.ms[proposed]).mean() < np.isnan(space.ms).mean() / 2
    best = min((one for one in seen if one.ms is not None), key=lambda one: one.ms)
    early = [Seen(one.point, one.ms and max(one.ms, 1.2 * best.ms), one is not best and one.ms is not None) for one in seen]
    assert all(0 <= i < len(space.ms) for i in propose(space.points, early, (), 5, seed=0))


def test_a_space_in_which_nothing_runs_is_still_walked(space: RecordedSpace) -> None:
    seen = [Seen(i, None) for i in range(40)]
    assert len(set(propose(space.points, seen, (), 5, seed=0)) - set(range(40))) == 5


def test_a_proposal_in_a_large_space_takes_milliseconds() -> None:
    """100 ms is the aim, on one core; the limit here is twenty times that. Threads of BLAS that spin do not count."""
    values = ((16, 32, 64, 128, 256), (1, 2, 3, 4, 5), (1, 2, 4, 8), (1, 2, 4), (0, 1), (0, 1), range(20))
    configs = [dict(zip("ABCDEFG", config, strict=True)) for config in itertools.product(*values)]
    points = points_from(configs)
    seen = [Seen(20 * i, 1 + (i * 7919 % 100) / 50) for i in range(1000)]
    propose(points, seen[:20], (), 1, seed=0)
    begun = time.thread_time()
    propose(points, seen, (), 1, seed=0)
    assert time.thread_time() - begun < 2.0


def test_the_model_sees_the_odd_part_of_a_value() -> None:
    """96 = 3 * 32 has the odd part 3, and powers of two have 1. Where all values are powers of two there is no such feature."""
    wide = _features(points_from([{"A": a} for a in (32, 64, 96, 160)]))
    assert any(np.allclose(column, np.log2([1, 1, 3, 5]) / np.log2(5)) for column in wide.T)
    assert _features(points_from([{"A": a} for a in (2, 4, 8)])).shape == (3, 1)
    assert _features(points_from([{"A": a} for a in (1, 2, 3)])).shape == (3, 2)


def test_a_model_whose_covariance_is_rounded_badly_still_predicts() -> None:
    """Many nearly equal points, a large variance and no noise: float32 leaves no room for the usual addition."""
    seen = np.random.default_rng(0).random((200, 3)) * 1e-4
    kernel = _Kernel(np.ones(3), 50.0, 0.0)
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.cholesky(kernel.between(seen, seen).astype(np.float64) + 1e-6 * np.eye(200))
    belief = _Belief(kernel, seen, np.sin(np.arange(200.0)), seen[:5] + 0.5)
    assert np.isfinite(belief.mean).all() and (belief.deviation > 0).all()


def test_bookkeeping_of_a_trial_takes_less_than_twenty_milliseconds(runner: Runner, tmp_path: Path,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """With 1 000 trials in the session: read what is new, claim, render, write events, blobs and the trial, take it in. The
    mean by the clock of this thread alone, and the least by the wall clock, so a busy machine counts little. What the search
    itself takes is not in it."""
    _, session = tuned(runner, tmp_path, variants=("naive_gather",), trials=1)
    one = next(t for t in session.trials() if t.ok and t.workload == WORK)
    request = TuneRequest(preset("kb74").workload("small", "float32"), ("forward",), device="cpu", effort="quick")
    device = runner.device("cpu")
    there = spaces(request, device)
    space = there["forward"]
    for i in range(1000):
        session.append(replace(one, trial_id=f"{i:012x}", workload=request.workload, **parts(space, i)))

    def next_ones(points: Points, seen: list[Seen], pending: list[int], count: int, *, seed: int) -> list[int]:
        gone = {one.point for one in seen} | set(pending)
        return [i for i in range(len(points)) if i not in gone][:count]

    monkeypatch.setattr("workbench.drive.tuning.feed.propose", next_ones)
    judged = Judged(status=Status.OK, headline="Right in all checks.", errors=one.errors, kernel_ms=one.kernel_ms,
                    samples=(1.0,) * 60)
    with Claims(session) as claims:
        feed = TuneFeed(request, session, there, device, claims)
        assert feed.judged == 1000
        run = Run("0" * 8, RunRequest(request.workload, (), device="cpu", baselines=False), session.path, [], device=device)
        execution = Execution(run, session, runner.workers, ("cpu",), resume=True, feed=feed)
        execution.free_bytes = device.free_bytes
        begin, rounds, walls = time.thread_time(), 40, list[float]()
        for _ in range(rounds):
            began = time.perf_counter()
            (row, rendered), = execution._prepared(execution._more(1))
            for phase in ("building", "checking", "timing"):
                execution._phase(row, phase, "")
            execution._finish(row, rendered, Built(status=Status.OK, headline=""), judged)
            walls.append(1e3 * (time.perf_counter() - began))
        spent_ms = 1e3 * (time.thread_time() - begin) / rounds
    print(f"bookkeeping {spent_ms:.2f} ms of CPU, {median(walls):.2f} ms of time (median) a trial at 1 000 trials")
    assert feed.judged == 1000 + rounds and spent_ms < 20 and min(walls) < 20


def test_the_space_is_the_same_each_time_and_holds_default_and_known_configs(tmp_path: Path) -> None:
    work = preset("kb74").workload("full", "float32")
    one, two = (TuneSpace(work, "forward", "tf32", H200, looks=500) for _ in range(2))
    assert one.keys == two.keys and len(set(one.keys)) == len(one) == len(one.points())
    known = best_config("forward", work, "tf32", "sm_90")
    assert known and key_of(known.candidate(work)) == one.keys[one.points().order[0]]
    assert not any("naive_gather" in key for key in one.keys), "on a GPU nobody asked for it"
    start = find("implicit_gemm_mma", "forward")
    assert any(key_of(one.candidate(i)) == one.keys[i] and one.candidate(i).config == start.default_config
               for i in one.points().order)


def test_a_tune_begins_with_configs_of_near_layers() -> None:
    layer = replace(preset("kb74").layer, in_channels=40, out_channels=56)
    work = Workload(layer, 16, (100_000,))
    space = TuneSpace(work, "forward", "tf32", H200, looks=200_000,
                      variants=("gathered_mma", "wgmma_residues", "persistent_wgmma", "wgmma_ping_pong"))
    assert class_for(work, "forward", "sm_90") == "tf32"
    near = store.near(space, H200)
    assert near and space.points(near).order[:len(near)] == tuple(space.place_of[key] for key in near)
