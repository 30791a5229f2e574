"""The Tune page in each of its states, and its figures: what is tried, what is not right, what is best."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from math import log10
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from workbench.core.candidate import Candidate
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.trial import Status, Trial
from workbench.core.variants import find
from workbench.drive.reporting import tune_plots, tune_points
from workbench.drive.running.request import Row, Run, RunRequest
from workbench.drive.running.runner import Runner
from workbench.drive.sessions.session import Session
from workbench.drive.tuning.feed import EVENT, TuneRequest
from workbench.drive.tuning.tune import tune
from workbench.faces.cli import main
from workbench.faces.ui import running, state, tune_page

from ..drive.conftest import until
from .test_report import CPU, WORK, pytorch, timing, trial

TINY = Workload(ConvTranspose(1, 3, 5, (3,), stride=(2,)), 2, (17,))
REQUEST = TuneRequest(TINY, ("forward",), device="cpu", variants=("naive_gather",), baselines=False, trials=3)


@pytest.fixture
def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("sessions", "locks"):
        monkeypatch.setenv(f"KERNEL_WORKBENCH_{name.upper()}", str(tmp_path / name))
    return tmp_path / "sessions"


def tuned(runner: Runner, sessions: Path, *, stop: bool = False, **asked: object) -> Session:
    """A tune of the tiny layer, in a session called s; `stop`: after its first candidate."""
    session, runs = Session.create(sessions, "s"), list[Run]()

    def on_line(line: str) -> None:
        if stop and runs and line.startswith("["):
            runs[0].stop()
    tune(replace(REQUEST, **asked), session, runner, on_run=runs.append, on_line=on_line)
    return session


def tab(**asked: str) -> AppTest:
    at = AppTest.from_function(_page, default_timeout=300)
    for name, value in asked.items():
        at.query_params[name] = value
    return drawn(at)


def drawn(at: AppTest) -> AppTest:
    at.run()
    assert not at.exception
    return at


def _page() -> None:
    from workbench.faces.ui import state, tune_page
    state.guarded(tune_page.draw, "tune", tune_page.KEYS)()


def _workbench() -> None:
    from workbench.faces.ui import workbench_page
    workbench_page.draw()


def said(at: AppTest) -> str:
    return unescape("\n".join(element.body for element in at.get("html")))


def address(at: AppTest) -> dict[str, list[str]]:
    return at.session_state["address of tune"]


def test_without_a_tune_the_page_says_what_start_will_do(sessions: Path) -> None:
    at = tab(preset="kb74", effort="quick", directions="forward")
    assert "Nothing tuned yet for this layer" in said(at) and "Start searches forward on cpu: about 60 seconds." in said(at)
    assert not at.get("plotly_chart") and not at.button(key="tune_start").disabled
    assert address(at)["effort"] == ["quick"] and address(at)["directions"] == ["forward"]
    at.text_input(key="tune_trials").input("-3")
    assert "trials is -3; give a number above 0." in said(drawn(at)) and at.button(key="tune_start").disabled
    at.text_input(key="tune_trials").input("40")
    assert "Start searches forward on cpu: 40 candidates." in said(drawn(at)) and address(at)["trials"] == ["40"]
    at.toggle(key="tune_explain").set_value(True)
    space = re.sub("<[^>]*>", " ", said(drawn(at)))
    assert re.search(r"implicit_gemm_mma tf32 .* PAD == 1 or element_bytes == 2: .*  PAD = 0 ", space), "covered values"
    assert re.search(r"left out .* depthwise_rows ieee\s+depthwise_rows needs layer.in_channels == layer.groups; here", space)


def test_the_time_left_of_a_full_tune_follows_from_its_space(sessions: Path) -> None:
    tuning = running.Tuning(replace(REQUEST, effort="full", trials=None), Session.create(sessions, "s"), None)
    tuning.candidates, tuning._begun = 1000, tuning._begun - 100
    candidate = Candidate(find("naive_gather", "forward"), TINY.layer, TINY.dtype, {})
    tuning.run = Run("0" * 8, RunRequest(TINY, ()), sessions / "s", [Row(candidate, phase="done")] * 10, state="running")
    assert tune_page._left(tuning, 10) == "about 2.8 h left, then the finals"
    assert "RUNNING 0 of 1\u202f000" in re.sub("<[^>]*>", "", tune_page.running_strip(tuning))
    tuning.finish.set()
    assert tune_page._left(tuning, 10).startswith("the search has ended")


def test_a_finished_tune_is_shown_from_its_session_and_fills_the_form(sessions: Path, runner: Runner) -> None:
    tuned(runner, sessions)
    at = tab(session="s")
    text = said(at)
    assert "ConvTranspose1d(3, 5, 3, stride=2)" in text and "✓ TUNED" in text and "EMULATED" in text
    listed = tab(preset="kb79")
    listed.selectbox(key="session").select("s")
    assert "ConvTranspose1d(3, 5, 3, stride=2)" in said(drawn(listed)) and "✓ TUNED" in said(listed)
    assert "then judged again on new inputs and odd sizes" in text and "3 candidates were judged." in text
    assert "forward is not stored, because emulated times do not predict a GPU." in text
    assert re.search(r"forward: (It is|Not measurably .* than|\S+ times as fast as) the default config of naive_gather", text)
    assert at.button(key="tune_export").label == "Export ModelNew"
    assert at.text_input(key="tune_trials").value == "3" and at.multiselect(key="tune_variants").value == ["naive_gather"]
    assert at.button(key="tune_start").label == "Resume"
    table = at.dataframe[0].value
    assert list(table["trial"]) and list(table["finals"]).count("winner") == 1 and table["median"].str.endswith(" *").all()
    at.segmented_control(key="tune_axis").select("time")
    at.segmented_control(key="tune_look").select("slices")
    drawn(at)
    assert address(at)["x"] == ["time"] and address(at)["look"] == ["slices"] and "of each value" in said(at)
    link = {name: values[0] for name, values in address(at).items()}
    other = tab(**link)
    assert other.segmented_control(key="tune_axis").value == "time" and "✓ TUNED" in said(other)
    pins = [t.trial_id for t in Session(sessions / "s").trials() if t.kind == "candidate" and t.ok][:2]
    pinned = tab(**link, pins=",".join(pins))
    assert pinned.button(key="tune_compare").label == "Compare 2 pinned" and not pinned.button(key="tune_compare").disabled
    assert list(pinned.dataframe[0].value["pin"]).count("pinned") == 2 and at.button(key="tune_compare").disabled


def test_a_tune_that_was_stopped_says_so_and_keeps_what_it_knows(sessions: Path, runner: Runner) -> None:
    tuned(runner, sessions, stop=True, trials=40)
    text = said(tab(session="s"))
    assert "– STOPPED" in text and "Stopped. Best so far: forward " in text and "Resume continues" in text


def test_a_tune_that_finds_nothing_right_counts_the_reasons(sessions: Path, runner: Runner, broken: Path, tmp_path: Path
                                                                ) -> None:
    shutil.copytree(broken, tmp_path / "templates")
    tuned(runner, sessions, variants=("no_divisibility_test", "makes_nan"), templates=tmp_path / "templates", trials=2)
    at = tab(session="s")
    assert "NOTHING RIGHT" in said(at) and "forward: none of 2 is right" in said(at)
    assert "Not right: forward: 1 MISMATCH, 1 NON_FINITE." in said(at) or "1 NON_FINITE, 1 MISMATCH" in said(at)
    assert len(at.get("plotly_chart")) == 1, "they lie on the rail"


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A compiler that compiles nothing for an hour, and workers of its own: those of another test have found theirs already."""
    script = tmp_path / "g++"
    script.write_text(f'#!/bin/sh\ncase " $* " in *" -c "*) sleep 3600;; esac\nexec {shutil.which("g++")} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("KERNEL_WORKBENCH_CXX", str(script))
    monkeypatch.setenv("KERNEL_WORKBENCH_CACHE", str(tmp_path / "cache"))
    with Runner() as own:
        monkeypatch.setattr(state, "runner", lambda: own)
        yield
        for one in running.tunes_under_way():
            one.stop()
            assert one.wait(60)


def test_start_runs_until_stop_in_every_tab(sessions: Path, waiting: None) -> None:
    at = tab(preset="free1", in_channels="3", out_channels="5", kernel_size="3", batch="2", input_size="17",
             directions="forward", variants="naive_gather", trials="3")
    at.button(key="tune_start").click()
    drawn(at)
    name = at.session_state["session"]
    one, = running.tunes_under_way()
    assert "RUNNING" in said(at) or "WAITING" in said(at)
    assert address(at)["session"] == [name] and at.button(key="tune_stop").label == "Stop"
    until(lambda: one.run is not None)
    assert (one.request.trials, one.request.variants, one.request.workload.input_size) == (3, ("naive_gather",), (17,))
    reloaded = tab(**{key: values[0] for key, values in address(at).items()})
    assert reloaded.button(key="tune_stop").label == "Stop" and "closing the browser does not stop it" in said(reloaded)
    elsewhere = tab(preset="kb79")
    named = state.session_label(name)
    assert f"in session {named}" in said(elsewhere) and name not in said(elsewhere)
    assert "Nothing tuned yet for this layer" in said(elsewhere)
    workbench = drawn(AppTest.from_function(_workbench, default_timeout=300))
    assert f" is tuned on cpu in session {named}: 0 judged" in said(workbench)
    assert "Nothing measured yet for this layer" in said(workbench)
    elsewhere.button(key=f"go tune {name}").click()
    assert drawn(elsewhere).button(key="tune_stop").label == "Stop"
    del running.tunings()[name]   # as in a process that has not begun it
    other = said(tab(**{key: values[0] for key, values in address(at).items()}))
    assert "Another process tunes in this session." in other and "RUNNING 0" in other
    running.tunings()[name] = one
    reloaded.button(key="tune_stop").click()
    drawn(reloaded)
    until(lambda: one.done, 60)
    assert "Stopped before a candidate was right" in said(drawn(at)) and at.button(key="tune_start").label == "Resume"
    at.button(key="tune_start").click()
    drawn(at)
    two = running.tunings()[name]
    until(lambda: two.run is not None and two.run.state == "running")
    at.button(key="tune_finish").click()
    assert drawn(at).button(key="tune_finish").disabled or two.done
    until(lambda: two.done, 60)
    assert two.result.state == "done" and two.result.early and not two.stopped, "the compiler of an hour was ended"


def story(count: int = 40, **more: object) -> list[Trial]:
    """PyTorch, `count` right candidates of two variants that get faster, and two that are not right."""
    ours = [trial(("fast", "slow")[i % 2], 1.0 - i / (2 * count) + (i % 2) * 0.2, "tf32",
                  config={"TILE": (32, 64, 128)[i % 3], "WARPS": 2 + 2 * (i % 4 > 1), "STAGES": i // 6}, **more)
            for i in range(count)]
    wrong = [trial("fast", None, "tf32", status=Status.MISMATCH, headline="58 % are <wrong>", config={"TILE": 7}, **more),
             trial("slow", None, "tf32", status=Status.BUILD_FAILED, headline="nvcc stopped", config={"TILE": 8}, **more)]
    return [replace(t, at=f"2026-11-20T00:{i // 60:02}:{i % 60:02}.000+00:00")
            for i, t in enumerate([*pytorch(), *ours[:5], *wrong, *ours[5:]])]


def test_every_trial_is_a_point_and_pytorch_and_the_floor_are_lines() -> None:
    found = tune_points.tried(story(), [], WORK, "forward")
    figure = tune_plots.progress(found)
    names = [t.name for t in figure.data]
    assert names == ["fast tf32", "slow tf32", "✕ not right", "! could not run", "best so far"]
    assert sum(len(t.x) for t in figure.data[:2]) == 40 and figure.data[2].x == (6,) and figure.data[3].x == (7,)
    assert "MISMATCH: 58 % are &lt;wrong>" in figure.data[2].text[0]
    assert min(figure.data[4].y) == found.right[0].ms and figure.data[4].line.shape == "hv"
    lines = {note.text.split(" 0")[0].split(" 1")[0] for note in figure.layout.annotations}
    assert {"floor", "best PyTorch"} <= lines and found.baseline.name == "eager, TF32 on"
    assert figure.layout.xaxis.title.text == "trial" and figure.layout.yaxis.title.text == "median, ms"
    timed = tune_plots.progress(found, x=tune_plots.TIME, colour="TILE", chosen=[found.right[3].trial.trial_id])
    assert timed.layout.xaxis.title.text == "time of the tune, s"
    assert [t.name for t in timed.data][:3] == ["TILE = 32", "TILE = 64", "TILE = 128"] and timed.data[-1].name == "pinned"


def test_times_below_a_hundredth_of_a_millisecond_are_in_microseconds_in_every_figure() -> None:
    tiny = [replace(t, kernel_ms=timing(t.kernel_median_ms / 200)) if t.ok else t for t in story()[2:]]   # 2.5 to 6 µs
    found = tune_points.tried(tiny, [], WORK, "forward")
    heat = tune_plots.heat_map(found, "fast tf32", "TILE", "WARPS")
    assert heat.layout.xaxis.title.text == "TILE (numbers: best time, µs)"
    assert "<b>2.62</b>" in [note.text for note in heat.layout.annotations]
    time = tune_plots.parallel(found, "fast tf32").data[0].dimensions[-1]
    assert time.label == "median, µs" and list(time.ticktext) == ["3.00", "5.00"] and time.tickvals[0] == log10(0.003)
    sliced, fell = tune_plots.slices(found, "fast tf32"), tune_plots.steps([found])
    assert sliced.layout.yaxis.title.text == "median, µs" and sliced.layout.yaxis.ticktext == time.ticktext
    assert fell.layout.yaxis.title.text == "best so far, µs" and fell.layout.yaxis.ticktext[:3] == ("3.00", "5.00", "7.00")
    assert tune_plots.progress(found).layout.yaxis.title.text == "median, µs"


def test_emulated_trials_are_not_compared_with_pytorch() -> None:
    found = tune_points.tried(story(device=CPU), [], WORK, "forward")
    assert found.emulated and found.floor_ms is None and found.against_pytorch(found.right[0]) is None
    assert "on this CPU, kernels emulated" in tune_plots.progress(found).layout.yaxis.title.text


def test_thousands_of_trials_are_thinned_and_the_figures_say_so() -> None:
    many = [replace(t, trial_id=f"m{i}", config={"TILE": i % 50, "STAGES": i // 50}) for i, t in enumerate(story(3000)[2:3000])]
    found = tune_points.tried([*pytorch(), *many], [], WORK, "forward")
    figure = tune_plots.progress(found)
    assert sum(len(t.x) for t in figure.data if t.mode == "markers") == tune_plots.MOST_DRAWN
    assert "trials are drawn: the 250 best" in tune_plots.progress_note(found)
    drawn_ids = {i for t in figure.data if t.customdata is not None for i in t.customdata}
    assert {p.trial.trial_id for p in (*found.steps, *found.right[:200])} <= drawn_ids
    lines = tune_plots.parallel(found, "fast tf32")
    assert len(lines.data[0].dimensions[0].values) == tune_plots.MOST_LINES
    assert "500 of 1" in tune_plots.parallel_note(found, "fast tf32")


def test_the_tunable_that_decides_matters_most() -> None:
    trials = [trial("v", 1.0 + (i % 4) + 0.001 * (i // 4 % 3), "tf32",
                    config={"TILE": 2 ** (i % 4), "PAD": i // 4 % 3, "ONE": 1}) for i in range(24)]
    found = tune_points.tried([replace(t, config={**t.config, "SEED": i}) for i, t in enumerate(trials)], [], WORK, "forward")
    order = tune_points.matters(found, "v tf32")
    assert order[0].tunable == "TILE" and order[0].share > 0.99 and order[0].fastest == 1
    assert next(m for m in order if m.tunable == "PAD").share < 0.05 and not any(m.tunable == "ONE" for m in order)
    assert tune_points.matters(replace(found, points=found.points[:4]), "v tf32") == []
    figure = tune_plots.heat_map(found, "v tf32", "TILE", "PAD")
    assert [note.text for note in figure.layout.annotations].count("<b>1.00</b>") == 1
    assert figure.layout.xaxis.title.text == "TILE (numbers: best time, ms)"
    assert tune_plots.slices(found, "v tf32", order).layout.xaxis.title.text == "TILE"
    early = [found.points[0], *(replace(p, early=True) for p in found.points[1:])]
    assert tune_plots.slices(replace(found, points=early), "v tf32", order).layout.xaxis.title.text == "TILE"


def test_the_gap_between_variants_is_a_sentence() -> None:
    found = tune_points.tried(story(), [], WORK, "forward")
    fast, slow = (next(p.ms for p in found.right if p.family == f"{name} tf32") for name in ("fast", "slow"))
    assert tune_points.gap(found) == f"The best of fast tf32 is {slow / fast:.2f}× as fast as the best of slow tf32."
    assert tune_points.sentence(found).startswith(f"forward {fast:.3f} ms, ")


def test_time_between_two_runs_and_of_other_tunes_is_no_time_of_the_tune() -> None:
    at = "2026-11-20T00:{}+00:00".format
    events = [{"event": "run_started", "run_id": "other", "at": "2026-11-19T00:00:00+00:00", "tune": "tf32"},
              {"event": "run_stopped", "run_id": "other", "at": "2026-11-19T01:00:00+00:00"},
              {"event": "run_started", "run_id": "a", "at": at("00:00"), "workload": WORK.to_json(), "tune": "tf32"},
              {"event": "run_stopped", "run_id": "a", "at": at("00:10")},
              {"event": "run_started", "run_id": "b", "at": at("10:00"), "workload": WORK.to_json(), "tune": "tf32"}]
    ours = [replace(trial("v", 1.0, "tf32", config={"A": i}), at=at(when), run_id=run)
            for i, (run, when) in enumerate((("a", "00:04"), ("b", "10:05")))]
    found = tune_points.tried([*ours, trial("v", 1.0, "bf16")], events, WORK, "forward")
    assert [p.seconds for p in found.points] == [4, 15], "and what is of another class is no trial of it"


def test_replay_prints_and_plots_how_the_best_of_a_session_fell(sessions: Path, capsys: pytest.CaptureFixture) -> None:
    session = Session.create(sessions, "told")
    for one in story():
        session.append(one)
    chart = sessions / "steps.json"
    assert main(["replay", "told", "--steps", "--plot", str(chart)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("kb74/full forward float32 on NVIDIA H200: 42 trials, 2 not right (1 MISMATCH, 1 BUILD_FAILED)\n"
                           "best PyTorch 1.65 ms (eager, TF32 on); floor 0.3")
    found = tune_points.tried(story(), [], WORK, "forward")
    assert len(said.splitlines()) == 3 + len(found.steps)
    assert said.splitlines()[-1].endswith("fast tf32 TILE=128 WARPS=4 STAGES=6")
    figure = json.loads(chart.read_text())
    assert [figure["layout"][axis]["title"]["text"] for axis in ("xaxis", "xaxis2", "yaxis")] == [
        "trial", "time of the tune, s", "best so far, ms"]
    assert figure["data"][0]["y"][-1] == found.right[0].ms
    assert main(["replay", "told", "--steps", "--json", "--space", "kb81"]) == 2
    assert "No candidate was judged there" in capsys.readouterr().err


def test_parallel_coordinates_of_the_best_part_are_drawn_and_stand_in_the_address(sessions: Path) -> None:
    session = Session.create(sessions, "told")
    session.event(EVENT, request=TuneRequest(WORK, ("forward",), device="cuda:7").to_json(), device="NVIDIA H200", cluster="")
    for one in story():
        session.append(one)
    at = tab(preset="kb74", size="full", session="told", look="parallel coordinates", best="50")
    spec = json.loads(at.get("plotly_chart")[-1].proto.spec)
    lines, = spec["data"]
    assert lines["type"] == "parcoords"
    assert [d["label"] for d in lines["dimensions"]] == ["TILE", "WARPS", "STAGES", "median, ms"]
    assert len(lines["dimensions"][0]["values"]) == 10, "the best half of the 20 of that variant"
    assert lines["dimensions"][0]["ticktext"] == ["32", "64", "128"]
    assert "10 of 20 right trials of fast tf32: the best 50 %. The fastest fifth of these is blue." in said(at)
    assert address(at)["look"] == ["parallel coordinates"] and address(at)["best"] == ["50"]
    at.select_slider(key="tune_best").set_value(100)
    assert "All 20 right trials of fast tf32. The fastest fifth is blue." in said(drawn(at)) and "best" not in address(at)
