"""The search proposes what it may, finds the best of spaces whose form is known, and is judged by the published score."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import time
from dataclasses import replace
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from workbench.core import best_known
from workbench.core.best_known import BestKnown
from workbench.core.errors import BadRequest
from workbench.core.presets import preset
from workbench.core.replies import Built, Judged
from workbench.core.trial import Status
from workbench.core.typed import Misfit, read
from workbench.drive.replaying.recorded_space import RecordedSpace, Results, csv_of, missing, session_spaces, spaces_of, t4_of
from workbench.drive.replaying.replay import figure, outcome, random_curve, replay, search, table, text
from workbench.drive.running.execution import Execution
from workbench.drive.running.request import Run, RunRequest
from workbench.drive.running.runner import Runner
from workbench.drive.searching.points import Points, Seen, points_from
from workbench.drive.searching.propose import _Belief, _features, _Kernel, _neighbours, propose
from workbench.drive.sessions.session import Session
from workbench.drive.tuning.feed import TuneFeed, TuneRequest, spaces
from workbench.drive.tuning.seen import Claims
from workbench.drive.tuning.space import TuneSpace
from workbench.faces.cli import main

from ..shared import require
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


def test_the_score_is_that_of_the_methodology() -> None:
    """Ten times 1 to 10 and one failure: after M draws, rank M * 11 / (M + 1) from the slowest, rounded."""
    ms = np.array([*range(1, 11), np.nan], float)
    assert random_curve(np.arange(1.0, 11.0), np.arange(1, 6)).tolist() == [4.0, 3.0, 2.0, 1.0, 1.0]
    runs = np.array([[np.nan, 9, 2, 5], [8, 6, 7, 1], [8, 4, 9, 10]], float)
    found = outcome(ms, runs, first=1, last=3)
    assert found.curve.tolist() == [8.0, 6.0, 4.0, 2.0]
    assert found.score == pytest.approx(np.mean([(4 - 8) / 3, (3 - 6) / 2, (2 - 4) / 1]))
    ends = outcome(ms, runs, first=1, last=4)
    assert ends.share == pytest.approx((1 / 2 * 1 * 1 / 4) ** (1 / 3)) and ends.near == pytest.approx(1 / 3)


def test_random_search_scores_near_zero_and_over_time_as_over_trials(space: RecordedSpace) -> None:
    """The median rank of random search lies a little before the mean rank that is calculated, so its score is above 0."""
    [one] = replay([space], ["random"], repeats=60, trials=100)
    assert -0.2 < one.outcome.score < 0.3
    assert one.over_time == pytest.approx(one.outcome.score, abs=0.05)


def t4_schema() -> dict[str, object]:
    """What schemas/T4.json of AutoTuningAssociation/autotuning_methodology asks of a file, in JSON Schema 2020-12. It names the
    fields, their types and their values; further fields are allowed everywhere. Left out: compilation_data, which is not
    written here."""
    def there(**fields: object) -> dict[str, object]:
        return {"type": "object", "properties": fields}

    text, number, texts, numbers = ({"type": "string"}, {"type": "number"}, {"type": "array", "items": {"type": "string"}},
                                    {"type": "array", "items": {"type": "number"}})
    spent = ("compilation_time", "framework", "search_algorithm", "validation", "data", "kernel_overhead", "profiling_runs",
             "profiling_overhead")
    measurement = there(name=text, value={"type": ["number", "string", "array"]}, unit=text, type={"enum": [
        "Int", "UnsignedInt", "Double", "Percent", "Throughput", "UtilizationLevel"]})
    result = there(timestamp=text, configuration={"type": "object"}, objectives=texts, correctness={"enum": [0, 1]},
                   times=there(runtimes=numbers, **dict.fromkeys(spent, number)),
                   invalidity={"enum": ["timeout", "compile", "runtime", "correctness", "constraints", "correct"]},
                   measurements={"type": "array", "items": measurement})
    result["required"] = ["configuration", "times", "invalidity", "correctness"]
    return there(schema_version={"type": "string", "pattern": r"^\d+\.\d+\.\d+$"}, results={"type": "array", "items": result},
                 metadata=there(compute_api={"enum": ["OpenCL", "CUDA", "Vulkan"]}, timeunit={"enum": [
                     "nanoseconds", "microseconds", "milliseconds", "seconds"]}, **dict.fromkeys(
                         ("platform", "device", "autotuner", "autotuner_version", "timestamp"), text)))


def test_t4_results_of_every_session_are_valid(tmp_path: Path) -> None:
    """A space of some shipped sessions, and every status there is. The check itself refuses what the schema excludes."""
    judge = Draft202012Validator(t4_schema())
    found = [t for file in sorted(SESSION.parent.glob("*.zip"))[:4] for space in session_spaces(Session.open(file))[:1]
             for t in space.trials]
    every = [replace(found[0], status=status, kernel_ms=found[0].kernel_ms if status == Status.OK else None)
             for status in Status]
    data = json.loads(json.dumps(t4_of([*found, *every])))
    judge.validate(data)
    for place, name, value in ((data["metadata"], "timeunit", "ms"), (data["results"][0], "correctness", 0.5),
                               (data["results"][0], "invalidity", "slow"), (data["results"][0]["times"], "framework", "1")):
        before = place.get(name)
        place[name] = value
        assert not judge.is_valid(data), name
        place.pop(name) if before is None else place.update({name: before})
    judge.validate(data)


def test_t4_results_of_a_session_are_read_back(tmp_path: Path) -> None:
    space = session_spaces(Session.open(SESSION))[0]
    data = t4_of(space.trials)
    for unit, factor in (("seconds", 1e3), ("nanoseconds", 1e-6), ("miliseconds", 1)):  # the last as in public files
        (tmp_path / "other.json").write_text(json.dumps({**data, "metadata": {"timeunit": unit}}))
        [other] = spaces_of(tmp_path / "other.json")
        assert np.allclose(other.ms, factor * space.ms, equal_nan=True)
        assert np.nanmax(other.seconds) == pytest.approx(factor * np.nanmax([
            t.build.seconds for t in space.trials if t.build and t.build.seconds is not None]))
    (tmp_path / "other.json").write_text(json.dumps({**data, "metadata": {"timeunit": "hours"}}))
    with pytest.raises(BadRequest, match="has the unit of time 'hours'; a T4 file has one of nanoseconds, "):
        spaces_of(tmp_path / "other.json")
    file = tmp_path / "space.json"
    file.write_text(json.dumps(data))
    [back] = spaces_of(file)
    assert back.configs == space.configs and back.points.families == space.points.families
    assert np.array_equal(back.ms, space.ms, equal_nan=True)
    assert np.isnan(back.ms).sum() == 1 and "runtime" in {one["invalidity"] for one in data["results"]}


@pytest.mark.parametrize(("path", "value"), [(("invalidity",), "slow"), (("correctness",), "yes"), (("configuration",), 3),
                                             (("times", "framework"), "1"), (("measurements",), [{"name": 3}])])
def test_the_check_refuses_what_the_schema_refuses(path: tuple[str, ...], value: object) -> None:
    data = t4_of(session_spaces(Session.open(SESSION))[0].trials)
    read(Results, data)
    place = data["results"][0]
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(Misfit):
        read(Results, data)


def test_a_session_says_what_it_lacks() -> None:
    space = next(s for s in session_spaces(Session.open(SESSION)) if s.name.startswith("kb78/full grad_weight"))
    said = missing(replace(space, trials=tuple(t for t in space.trials if t.name == "packed_wgmma")))
    assert said == ("packed_wgmma tf32x3: 251 of 252 legal configs were not tried.",)


def t1(path: Path, values: dict[str, object], *conditions: str) -> Path:
    """A T1 file, as the public ones are written: lists and conditions are Python expressions in texts."""
    path.write_text(json.dumps({"General": {"BenchmarkName": "made"}, "KernelSpecification": {}, "ConfigurationSpace": {
        "TuningParameters": [{"Name": name, "Type": "int", "Values": of, "Default": 1} for name, of in values.items()],
        "Conditions": [{"Expression": one, "Parameters": []} for one in conditions]}}))
    return path


def test_a_t1_file_says_which_legal_configs_the_results_lack(tmp_path: Path, capsys: pytest.CaptureFixture,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """The tunable ONE has one value, and the results do not name it."""
    results, values = written(tmp_path), {
        "X": "[16 * i for i in range(1, 17)]", "Y": "[1] + [2**i for i in range(1, 5)]", "TILE": [1, 2, 3, 4, 6, 8],
        "ONE": "[1]", "FLAG": "[0, 1]"}
    tried, all_ = len(kernel_like()[0]), 16 * 5 * 6 * 2

    def said(*conditions: str) -> list[str]:
        described = t1(tmp_path / "made_T1.json", values, *conditions)
        assert main(["replay", str(results), str(described), "--list"]) == 0
        return [line.strip() for line in capsys.readouterr().out.splitlines()[1:]]

    legal = "32 <= X * Y * ONE <= 1024"
    assert said(legal) == [f"made_T1: 0 of {tried} legal configs were not tried ({all_} configs before conditions)."]
    assert said() == [f"made_T1: {all_ - tried} of {all_} legal configs were not tried ({all_} configs before conditions)."]
    fewer = len([c for c in kernel_like()[0] if c["FLAG"] == 0 or c["X"] % 32 == 0])
    lacking, others = said(legal, "FLAG == 0 or not X % (64 / 2)")
    assert lacking == f"made_T1: 0 of {fewer} legal configs were not tried ({all_} configs before conditions)."
    assert others.startswith(f"made_T1: {tried - fewer} tried configs are not legal, for example X=112 Y=1 TILE=1 FLAG=1")
    monkeypatch.setattr("workbench.drive.replaying.recorded_space._MOST_VISITED", 500)
    assert said() == [f"made_T1: {tried} tried of {all_} configs before conditions, too many to count the legal ones."]
    assert main(["replay", str(results), str(t1(tmp_path / "made_T1.json", values, "TILE > 0 or X", "64 % (FLAG * Y) > 0")),
                 "--list"]) == 2
    assert "made_T1.json has no value for X=" in capsys.readouterr().err


def test_csv_has_a_row_for_each_config(space: RecordedSpace, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    frame = csv_of([space])
    assert len(frame) == len(space.ms) and {"X", "Y", "TILE", "FLAG", "ms", "seconds"} <= set(frame.columns)
    out = tmp_path / "space.csv"
    assert main(["replay", str(written(tmp_path)), "--csv", str(out)]) == 0
    assert len(out.read_text().splitlines()) == len(space.ms) + 1


def test_the_verb_prints_a_table_and_writes_a_chart(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    chart = tmp_path / "chart.html"
    words = ["replay", str(written(tmp_path)), "--searches", "surrogate,random", "--repeats", "2", "--trials", "15",
             "--batch", "4", "--plot", str(chart)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "surrogate" in said and "% of best at 15" in said
    assert "best so far above the optimum, %" in chart.read_text()


def test_the_chart_tells_searches_apart_by_colour_and_dash(space: RecordedSpace) -> None:
    done = replay([space], ["random", "surrogate"], repeats=2, trials=100)
    chart = figure(done)
    lines = {(t.name, t.line.color, t.line.dash) for t in chart.data}
    assert len(chart.data) == 4 and len(lines) == 2 and len({dash for _, _, dash in lines}) == 2
    assert [chart.layout.xaxis.title.text, chart.layout.xaxis2.title.text] == ["trials", "time of the trials, s"]
    assert "surrogate" in text(table(done), trials=100)


@pytest.mark.parametrize(("words", "said"), [
    (["nowhere.json"], "nowhere.json does not exist"),
    (["{broken}"], "is not JSON"),
    (["{other}"], "is neither a cache file of Kernel Tuner (it has no cache) nor a T4 file"),
    (["{t1}"], "is a T1 file: it describes a space of 2 tunables and holds no times; name the file of its results too (T4)"),
    (["{good}", "{t1}", "--list"], "is a T1 file with the tunables X, Z; no other given file has results of such configs"),
    (["{calls}"], "the values of X are \"open('/etc/passwd').read()\" (open('/etc/passwd').read() is not evaluated)"),
    (["{long}"], "the values of X are 'list(range(10**9))' (a list has more than 10000 values)"),
    (["{power}"], "the condition 'X < 9**9**9' cannot be evaluated (the power 9 ** 9 ** 9 is too large)"),
    (["{unknown}"], "the condition 'Y > 1' cannot be evaluated (Y is not evaluated)"),
    (["{folder}"], "is a folder without a session"),
    (["{good}", "--searches", "clever"], "There is no search 'clever'; there are surrogate, random, tpe"),
    (["{good}", "--repeats", "0"], "--repeats is 0; give 1 or more"),
    (["{good}", "--space", "gemm"], "No space has 'gemm' in its name"),
    (["{good}", "--t4", "{folder}/t4.json"], "is not from a session"),
], ids=lambda v: v if isinstance(v, str) else "")
def test_bad_input_gets_one_sentence(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    places = {name: tmp_path / f"{name}.json" for name in ("t1", "calls", "long", "power", "unknown", "broken", "other")}
    places |= {"folder": tmp_path, "good": written(tmp_path)}
    places["broken"].write_text('{"cache": {"1": ')
    places["other"].write_text('{"entries": []}')
    t1(places["t1"], {"X": "[1, 2]", "Z": "[3]"})
    t1(places["calls"], {"X": "open('/etc/passwd').read()"})
    t1(places["long"], {"X": "list(range(10**9))"})
    t1(places["power"], {"X": "[1, 2]"}, "X < 9**9**9")
    t1(places["unknown"], {"X": "[1, 2]"}, "Y > 1")
    assert main(["replay", *(word.format(**places) for word in words)]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.strip().splitlines()) == 1


def test_a_cache_that_was_left_open_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, "open.json")
    path.write_text(path.read_text().removesuffix("}}") + ",\n")
    assert len(spaces_of(path)[0].ms) == len(kernel_like()[0])


@pytest.mark.parametrize("name", ["tpe", "forest", "kt:genetic_algorithm"])
def test_an_optional_package_is_named_where_it_lacks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("optuna", "kernel_tuner", "sklearn"):
        monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(BadRequest, match=r"is not installed; install it with: pip install [a-z-]+\."):
        search(name)


def test_the_forest_of_scikit_learn_is_one_of_the_searches(space: RecordedSpace) -> None:
    require(find_spec("sklearn"), "scikit-learn is not installed")
    met = search("forest")(space, 20, 1)
    assert len(set(met)) == 20 and met == search("forest")(space, 20, 1)


@pytest.mark.parametrize("known", [True, False], ids=["the best is in the ranking", "it is not"])
def test_the_figures_of_an_own_session_are_printed(known: bool, tmp_path: Path, capsys: pytest.CaptureFixture,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """120 configs of a variant; all but one take at least a fifth longer than the best."""
    spec = spec_from_file_location("search_figures", ROOT / "tools" / "search_figures.py")
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    one = next(t for t in Session.open(SESSION).trials() if t.workload == KB74 and t.direction == "forward" and t.candidate_id
               and t.ok and t.kernel_ms and t.precision == "tf32")
    whole = TuneSpace(KB74, "forward", "tf32", H200, variants=("gathered_mma",))
    order = whole.points().order
    places = [*order, *(i for i in range(len(whole)) if i not in order)][:120]
    best = order[0] if known else places[-1]
    session = Session.create(tmp_path, "s")
    for number, place in enumerate(places):
        session.append(replace(one, trial_id=f"{number:012x}", **parts(whole, place), kernel_ms=replace(
            one.kernel_ms, median_ms=1.0 if place == best else 1.2 + number / 100)))
    assert script.own(session_spaces(session)) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith("forward float32: 120 configs, 0 failed, best 1.00 ms")
    assert said[1].startswith("  no known ranking: within 3 % of the best after 12 trials in ")
    assert said[2].startswith("  with the ranking: within 3 % of the best after 12 trials in ")
    met = int(said[2].split(" trials in ")[1].split()[0])
    assert met == 10 if known else met < 6, said
    off = "0.0" if known else "20.0"
    assert said[3] == f"  the fastest of the first {len(order)} of the ranking: {off} % above the best   at most 4 %"
    assert said[4] == f"  the same without what is known from this session: {off} % above the best", "it is not in the list"
    assert said[5].startswith("  the same without what is known of this layer: ")
    assert said[6].startswith("  not exhaustive: gathered_mma tf32: ")
    assert script.own([replace(session_spaces(session)[0], trials=())]) == 2
    file = tmp_path / "known.json"
    best_known.save([], file, [BestKnown(
        "sm_90", str(KB74.layer), "forward", "float32", "tf32", "gathered_mma", whole.candidate(best).config, "tf32",
        "constant", 1.0, KB74.batch, KB74.input_size, "NVIDIA H200", session.name)])
    monkeypatch.setattr(best_known, "FILE", file)
    assert script.own(session_spaces(session)) == 0
    assert [line.split(": ")[1].split(" %")[0] for line in capsys.readouterr().out.splitlines()[3:6]] == ["0.0", off, off]


def test_bookkeeping_of_a_trial_takes_less_than_twenty_milliseconds(runner: Runner, tmp_path: Path,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """With 1 000 trials in the session: read what is new, claim, render, write events, blobs and the trial, take it in. Clock
    of this thread alone, so a busy machine counts little. What the search itself takes is not in it."""
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
        begin, rounds = time.thread_time(), 40
        for _ in range(rounds):
            (row, rendered), = execution._prepared(execution._more(1))
            for phase in ("building", "checking", "timing"):
                execution._phase(row, phase, "")
            execution._finish(row, rendered, Built(status=Status.OK, headline=""), judged)
        spent_ms = 1e3 * (time.thread_time() - begin) / rounds
    print(f"bookkeeping {spent_ms:.2f} ms a trial at 1 000 trials")
    assert feed.judged == 1000 + rounds and spent_ms < 20
