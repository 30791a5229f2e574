"""Recorded spaces: they are replayed, scored, written as T4 and CSV and read back; and the figures of two tunes."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from workbench.core import best_known
from workbench.core.best_known import BestKnown
from workbench.core.errors import BadRequest
from workbench.core.trial import Status
from workbench.core.typed import Misfit, read
from workbench.drive.replaying.recorded_space import RecordedSpace, Results, csv_of, missing, session_spaces, spaces_of, t4_of
from workbench.drive.replaying.replay import completed, figure, outcome, random_curve, replay, search, table, text
from workbench.drive.searching.points import points_from
from workbench.drive.sessions.session import Session
from workbench.drive.tuning.space import TuneSpace
from workbench.drive.tuning.tune import WON
from workbench.faces.cli import main

from ..shared import require
from .test_search import kernel_like, written
from .test_tune import H200, KB74, parts

ROOT = Path(__file__).resolve().parents[2]
SESSION = ROOT / "sessions" / "recorded-h200-kernelbench.zip"


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> RecordedSpace:
    [found] = spaces_of(written(tmp_path_factory.mktemp("spaces")))
    return found


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
    """What schemas/T4.json of AutoTuningAssociation/autotuning_methodology (version of commit 15c1ebb) asks of a file, in JSON
    Schema 2020-12: its fields, their types and their values, without compilation_data, which is not written here. Further
    fields are allowed everywhere."""
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
    """Every space of the shipped sessions, and every status there is. The check itself refuses what the schema excludes."""
    judge = Draft202012Validator(t4_schema())
    spaces = [space for file in sorted(SESSION.parent.glob("*.zip")) for space in session_spaces(Session.open(file))]
    for space in spaces:
        judge.validate(json.loads(json.dumps(t4_of(space.trials))))
    assert len(spaces) > 200, "a session has many layers and directions"
    found = spaces[0].trials
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
    scores, steps = capsys.readouterr().out.split("\n\n")
    assert "surrogate" in scores and "% of best at 15" in scores
    assert steps.splitlines()[1].split() == ["space", "search", "10", "15"]
    assert all("in 10.0 s " in line and line.endswith("in 15.0 s") for line in steps.splitlines()[2:]), "each takes 1 s"
    assert "best so far above the optimum, %" in chart.read_text()


def test_the_chart_tells_searches_apart_by_colour_and_dash(space: RecordedSpace) -> None:
    done = replay([space], ["random", "surrogate"], repeats=2, trials=100)
    chart = figure(done)
    lines = {(t.name, t.line.color, t.line.dash) for t in chart.data}
    assert len(chart.data) == 4 and len(lines) == 2 and len({dash for _, _, dash in lines}) == 2
    assert [chart.layout.xaxis.title.text, chart.layout.xaxis2.title.text] == ["trials", "time of the trials, s"]
    frame = table(done)
    for count in (10, 20, 50, 100):
        best = done[0].outcome.best[:, count - 1]
        assert frame[f"share_at_{count}"][0] == pytest.approx((space.best_ms / best[0] * space.best_ms / best[1]) ** 0.5)
        assert frame[f"seconds_at_{count}"][0] == pytest.approx(count)
    told = text(table(replay([replace(space, seconds=np.full(len(space.ms), np.nan))], ["random"], repeats=2)), trials=100)
    assert told.splitlines()[-2].split()[2:] == ["10", "20", "50", "100"] and " in " not in told.splitlines()[-1]


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


def test_the_forest_tells_families_with_the_same_tunables_apart() -> None:
    """Each config exists in both families, and the points of the slow one are first."""
    configs, names = tuple({"X": x} for x in range(20)) * 2, ["slow"] * 20 + ["fast"] * 20
    ms = np.array([1 + abs(one["X"] - 9) / 10 + 3 * (name == "slow") for one, name in zip(configs, names, strict=True)])
    keys = [f"{name} {one['X']}" for one, name in zip(configs, names, strict=True)]
    space = RecordedSpace("made", points_from(configs, keys=keys, families=names), configs, ms, np.full(40, np.nan))
    require(find_spec("sklearn"), "scikit-learn is not installed")
    met = search("forest")(space, 20, 1)
    assert len(set(met)) == 20 and sum(names[i] == "fast" for i in met[12:]) >= 7, met


def test_other_searches_run_on_a_space_of_several_families() -> None:
    """Neither optuna nor Kernel Tuner is in requirements-test.txt: their searches are tested where they are installed."""
    there = [name for package, name in (("optuna", "tpe"), ("kernel_tuner", "kt:genetic_algorithm")) if find_spec(package)]
    for space in spaces_of(SESSION.with_name("recorded-h200-spaces.zip")):
        configs = completed(space)
        assert {tuple(config) for config in configs} == {tuple(configs[0])} and len(configs[0]) > len(space.configs[0])
        assert len({tuple(config.values()) for config in configs}) == len(space.ms)
        assert [config["candidate_family"] for config in configs] == list(space.points.families)
        for name in there:
            met = search(name)(space, 30, 1)
            assert len(set(met)) == 30 and met == search(name)(space, 30, 1)
            # The search proposed all points. If it had ended early, the last would be the first of random search that is left.
            assert met[-1] != next(i for i in search("random")(space, len(space.ms), 1) if i not in met[:-1]), name


def figures() -> ModuleType:
    spec = spec_from_file_location("search_figures", ROOT / "tools" / "search_figures.py")
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_two_tunes_of_a_recorded_space_agree(capsys: pytest.CaptureFixture) -> None:
    """54 configs of this space are equally fast. Two tunes that time only the first finalists in turns name others."""
    [space] = (s for s in spaces_of(SESSION.with_name("recorded-h200-spaces.zip")) if "grad_weight" in s.name)
    assert figures().agree([space], pairs=4, trials=60) == 0
    said = [line.split(": ")[1].split(",")[:2] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    first, all_ = (sum(int(words.split()[-1]) for words in line) for line in said)
    assert first < all_ == 4, said


def test_recorded_tunes_name_the_same_winner_or_a_tie(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    script, trials = figures(), [t for t in Session.open(SESSION).trials() if t.kind == "candidate" and t.ok
                                 and (t.workload, t.direction) == (KB74, "forward")][:3]

    def session(name: str, won: int, **more: list[str]) -> Session:
        made = Session.create(tmp_path, name)
        for trial in trials:
            made.append(trial)
        made.event(WON, direction="forward", precision_class="tf32", trial_id=trials[won].trial_id, **{"ties": []} | more)
        return made

    one, second = session("one", 0), trials[1].trial_id
    for two, word in ((session("two", 0), "same winner"), (session("tie", 2, ties=[trials[0].trial_id]), "a declared tie"),
                      (session("near", 2, untold=[trials[0].trial_id]), "declared as not told apart"),
                      (session("other", 2, ties=[second]), "another winner")):
        assert script.same(one, two) == (word == "another winner")
        assert capsys.readouterr().out == f"kb74/full forward tf32: {word}\n"
    shipped = sorted(SESSION.parent.glob("recorded-*-tunes-*.zip"))
    for first, again in zip(shipped[::2], shipped[1::2], strict=True):
        assert script.same(Session.open(first), Session.open(again)) == 0, capsys.readouterr().out


@pytest.mark.parametrize("known", [True, False], ids=["the best is in the ranking", "it is not"])
def test_the_figures_of_an_own_session_are_printed(known: bool, tmp_path: Path, capsys: pytest.CaptureFixture,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """120 configs of a variant; all but one take at least a fifth longer than the best."""
    script = figures()
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
