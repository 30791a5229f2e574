"""The Compare page and its charts: a session against PyTorch of its own, and what the recorded one shows."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from workbench.core.presets import called, preset
from workbench.core.trial_parts import Against, Detail
from workbench.drive.reporting import compare_plots, html_report, plots, report, tables
from workbench.drive.sessions.session import Session, list_sessions
from workbench.faces.ui import results, state, workbench_page

from .test_belongs import said, tab, titles
from .test_report import CPU, H200, pytorch, timing, trial

SESSIONS = Path(__file__).resolve().parents[2] / "sessions"


def test_the_fastest_of_each_precision_meets_the_best_pytorch_that_may_be_compared() -> None:
    trials = [*pytorch(), trial("slow", 9.7), trial("fast", 2.2), trial("strip_mma", 0.647, "tf32")]
    found = {p.a.name: p for p in report.against_pytorch(trials)}
    assert {n: p.b.name for n, p in found.items()} == {"fast": "eager, TF32 off", "strip_mma": "eager, TF32 on"}
    assert found["fast"].ratio.value == pytest.approx(4.29 / 2.2) and found["fast"].verdict == report.FASTER
    default = {p.a.name: p for p in report.against_pytorch(trials, default=True)}
    assert default["fast"].b.name == "eager, TF32 on" and default["fast"].verdict == report.SLOWER
    assert default["fast"].note == "A computes in ieee, B in tf32"


def test_modules_have_a_pair_for_each_way_through_and_emulated_ones_no_ratio() -> None:
    ours = replace(trial("ModelNew", None, kind="module", direction="backward"),
                   module_ms={"forward": timing(2.0), "backward": timing(5.0)})
    theirs = replace(trial("nn.ConvTranspose", None, kind="module_baseline", direction="backward"),
                     module_ms={"forward": timing(4.0), "backward": timing(6.0)})
    assert [(p.direction, round(p.ratio.value, 2)) for p in report.against_pytorch([ours, theirs])] == [
        ("forward", 2.0), ("backward", 1.2)]
    pair, = report.against_pytorch([trial("v", 1.0, device=CPU), trial("eager", 2.0, kind="baseline", device=CPU)])
    assert pair.ratio is None and pair.verdict == report.EMULATED


def test_the_charts_show_ours_beside_pytorch_and_the_room_that_is_left() -> None:
    trials = [*pytorch(), trial("fast", 0.647, "tf32")]
    pairs = report.against_pytorch(trials)
    figure = compare_plots.roofline(pairs)
    dots = {trace.marker.color: trace for trace in figure.data if trace.mode == "markers"}
    flop = 85.9e9
    ys = sorted(trace.y[0] for trace in dots.values())
    assert ys == pytest.approx([flop / 1.65e-3 / 1e12, flop / 0.647e-3 / 1e12], rel=1e-2)
    assert any("#74 (full) 2.55×" in note.text for note in figure.layout.annotations)
    room = compare_plots.speedups(pairs)
    bar, = [shape for shape in room.layout.shapes if shape.type == "rect"]
    assert bar.x0 == 1 and bar.x1 == pytest.approx(1.65 / report.floor_ms(pairs[0].a))
    assert room.data[0].x[0] == pytest.approx(1.65 / 0.647)
    assert compare_plots.legend(pairs) == "forward ●"


def test_without_a_known_gpu_there_is_no_roofline_and_without_a_ratio_no_chart() -> None:
    unknown = replace(H200, name="Some GPU", key="some")
    pairs = report.against_pytorch([*pytorch(device=unknown), trial("v", 1.0, device=unknown)])
    assert compare_plots.roofline(pairs) is None and compare_plots.speedups(pairs) is not None
    pairs = report.against_pytorch([trial("v", 1.0, device=CPU), trial("eager", 2.0, kind="baseline", device=CPU)])
    assert compare_plots.speedups(pairs) is None


def _app() -> None:
    from workbench.faces.ui import compare_page
    compare_page.draw()


def test_the_page_opens_on_the_recorded_session_against_its_own_pytorch(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(SESSIONS))
    monkeypatch.setenv("KERNEL_WORKBENCH_CACHE", str(tmp_path))
    at = AppTest.from_function(_app, default_timeout=300)
    at.run()
    assert not at.exception
    text = "\n".join(element.body for element in at.get("html"))
    assert "A is faster in " in text and "its fastest mode of the same or a stricter precision" in text
    newest = Session.open(list_sessions(SESSIONS)[0])
    assert at.selectbox(key="compare_a").value == newest.name
    assert set(at.dataframe[0].value["layer"]) <= {called(t.workload) for t in newest.trials()}

    at.selectbox(key="compare_a").select("recorded-h200-models").run()
    assert {"models/pose (full)", "models/vae (full)"} <= set(at.dataframe[0].value["layer"])

    at.selectbox(key="compare_a").select("recorded-h200-kernelbench").run()
    table = at.dataframe[0].value
    assert "KernelBench #81 (full)" in set(table["layer"]) and table["B / A"].max() > 18
    assert len(at.get("plotly_chart")) == 3

    at.selectbox(key="compare_a").select("recorded-h200-general").run()
    verdicts = [v[0] for v in at.dataframe[0].value["verdict"]]
    assert verdicts.index("▼ SLOWER") < verdicts.index("▲ FASTER")  # what needs a look first


def opened(**asked: str) -> AppTest:
    at = AppTest.from_function(_app, default_timeout=300)
    for name, value in asked.items():
        at.query_params[name] = value
    at.run()
    assert not at.exception
    return at


@pytest.fixture
def two_sessions(tmp_path, monkeypatch) -> dict[str, list[str]]:
    """Two sessions with PyTorch, a and b; the second also has grad_input. Session -> ids of its candidates."""
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    ids = {}
    for name, more in (("mine", []), ("other", [trial("c", 1.0, direction="grad_input")])):
        session = Session.create(tmp_path, name)
        ours = [trial("a", 2.0 if name == "mine" else 4.0), trial("b", 1.0, config={"BLOCK": 64}), *more]
        for one in [*pytorch(), *ours]:
            session.append(one)
        ids[name] = [t.trial_id for t in ours]
    return ids


def test_pinned_trials_of_two_sessions_are_compared_with_the_one_that_is_chosen(two_sessions) -> None:
    mine, other = two_sessions["mine"], two_sessions["other"]
    pins = [f"mine:{mine[0]}", f"other:{other[0]}", f"other:{other[1]}", f"other:{other[2]}"]
    at = opened(compare_a="mine", trials=",".join(pins), **{"from": "other"})
    assert at.segmented_control(key="compare_against").value == "pinned trials"
    table = at.dataframe(key="compare_table").value
    assert list(table["A"]) == ["a ieee", "c ieee", "b ieee"] and set(table["session of A"]) == {"other"}
    table = table.set_index("A")
    assert table.loc["a ieee", "B / A"] == pytest.approx(0.5) and table.loc["a ieee", "verdict"] == ["▼ SLOWER"]
    assert table.loc["b ieee", "B / A"] == pytest.approx(2.0) and table.loc["b ieee", "verdict"] == ["▲ FASTER"]
    assert "different directions" in table.loc["c ieee", "note"] and pd.isna(table.loc["c ieee", "B / A"])
    at.selectbox(key="compare_base").select(pins[2]).run()
    table = at.dataframe(key="compare_table").value.set_index(["A", "session of A"])
    assert table.loc[("a ieee", "mine"), "B / A"] == pytest.approx(0.5)
    assert table.loc[("a ieee", "other"), "B / A"] == pytest.approx(0.25)
    picker = at.dataframe(key="compare_picker").value
    assert set(picker["session"]) == {"mine", "other"} and len(picker) == 9
    at.multiselect(key="compare_from").set_value([]).run()
    assert set(at.dataframe(key="compare_picker").value["session"]) == {"mine"}, "what can be pinned"
    assert len(at.dataframe(key="compare_table").value) == 3, "what is pinned stays"
    at.button(key="compare_unpin").click().run()
    assert [d.key for d in at.dataframe if d.key != "compare_picker"] == [] and "Pin two trials" in said(at)


def test_a_link_with_ids_alone_means_the_session_a_and_names_what_is_gone(two_sessions) -> None:
    at = tab("compare", compare_a="mine", trials=",".join([*two_sessions["mine"], "gone"]))
    assert len(at.dataframe(key="compare_table").value) == 1 and "The trial 'gone' in the link is not known." in said(at)
    at.segmented_control(key="compare_against").select("best PyTorch").run()
    assert len(at.dataframe[0].value) == 1  # of forward: the fastest, with PyTorch


def test_filters_of_direction_and_layer_hold_for_table_and_figures(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(SESSIONS))
    names = titles(monkeypatch)
    at = tab("compare", compare_a="recorded-h200-kernelbench", layer="KernelBench #81 (full)", directions="forward")
    assert re.fullmatch(r"▲ FASTER \d+, Compare", names[-1])
    table = at.dataframe[0].value
    assert set(zip(table["layer"], table["direction"], strict=True)) == {("KernelBench #81 (full)", "forward")}
    dots = json.loads(at.get("plotly_chart")[0].proto.spec)
    assert {name.split()[0] for name in dots["layout"]["yaxis"]["ticktext"]} == {"#81"}


def test_a_candidate_timed_in_turns_with_pytorch_has_that_verdict_among_pins() -> None:
    baseline = pytorch()[0]
    against = Against(baseline.name, baseline.trial_id, 3.0, 2.9, 3.1, report.FASTER, 50, 0, "noise")
    mine = trial("mine", 1.0, "tf32", detail=Detail(against=against))
    pair, = report.chosen_pairs([baseline, mine])
    assert (pair.ratio.value, pair.ratio.low) == (3.0, 2.9)


def test_dots_fit_on_their_axis_whatever_the_ratios() -> None:
    for times in ([0.001, 1.0, 60.0], [1.64, 1.65, 1.66]):
        trials = [*pytorch(), *(trial(f"v{i}", ms, "tf32") for i, ms in enumerate(times))]
        pairs = report.chosen_pairs([trials[0], *trials[2:]])
        figure = compare_plots.dots(pairs, [p.a.name for p in pairs])
        low, high = (10**end for end in figure.layout.xaxis.range)
        ends = [v for p in pairs for v in (p.ratio.low, p.ratio.high)]
        assert low < min(ends) and max(ends) < high, times
        assert 2 <= len([t for t in figure.layout.xaxis.tickvals if low <= t <= high]) <= 12, figure.layout.xaxis.tickvals
        drawn = {y: x for trace in figure.data if trace.mode == "markers" for x, y in zip(trace.x, trace.y, strict=True)}
        rows = [name for _, name in sorted(zip(figure.layout.yaxis.tickvals, figure.layout.yaxis.ticktext, strict=True))]
        assert {rows[y]: x for y, x in drawn.items()} == pytest.approx({p.a.name: p.ratio.value for p in pairs})
    assert compare_plots.dots([], []) is None


def test_samples_are_drawn_in_the_order_taken_and_the_clocks_are_told(tmp_path) -> None:
    session = Session.create(tmp_path, "s")
    values = [1.0 + 0.001 * i for i in range(100)]
    blob = session.put_blob(json.dumps(values).encode())
    one = trial("mine", 1.05, flags=("throttled",))
    timing = replace(one.kernel_ms, samples=100, samples_blob=blob, dropped=7)
    clocks = [1980] * 60 + [1755] * 40
    session.append(replace(one, kernel_ms=timing))
    session.append(replace(one, kernel_ms=timing, blobs={"clocks": session.put_blob(json.dumps(clocks).encode())}))
    found, clocked = session.trials()
    figure = compare_plots.samples_over_time([found, trial("without", 1.0)], ["mine", "without"])
    trace, = figure.data
    assert list(trace.y) == values and list(trace.x) == list(range(1, 101)) and figure.layout.yaxis.type == "log"
    words = compare_plots.steadiness(found)
    assert "the last tenth takes 9.0 % longer than the first" in words and "7 more were dropped" in words
    assert "lowered its clocks during some samples" in words
    grey, = compare_plots.samples_over_time([replace(found, kind="baseline")], ["eager"]).data
    assert (grey.marker.color, trace.marker.color) == (plots.LIGHT["pytorch"], plots.CATEGORIES["light"][0])
    assert compare_plots.samples_over_time([trial("without", 1.0)], ["x"]) is None and "SM clock" not in words
    assert "SM clock 1\u202f755 to 1\u202f980 MHz" in compare_plots.steadiness(clocked)
    both = compare_plots.samples_over_time([found, clocked], ["mine", "clocked"])
    assert [(t.mode, t.yaxis) for t in both.data] == [("markers", "y"), ("markers", "y"), ("lines", "y2")]
    assert list(both.data[2].y) == clocks and both.data[2].line.color == both.data[1].marker.color
    assert both.layout.yaxis2.title.text == "SM clock, MHz" and both.layout.xaxis2.title.text == "sample, in order taken"


def test_what_a_report_says_is_escaped(tmp_path) -> None:
    evil = trial("</script><img src=x onerror=alert(1)>", 1.0, "tf32")
    text = html_report.of_session([*pytorch(), evil], "<b>name")
    assert "<img" not in text and "&lt;b&gt;name" in text


def test_the_roofline_labels_the_best_alone_and_narrow_axes_are_in_microseconds() -> None:
    layers = [preset(f"kb{n}").workload("full") for n in (57, 61, 64, 65, 68, 69, 70, 71, 72, 73, 74, 75, 77, 78, 79, 81)]
    trials = [replace(t, workload=w) for i, w in enumerate(layers) for t in (*pytorch(), trial("fast", 0.6 + 0.01 * i, "tf32"))]
    figure = compare_plots.roofline(report.against_pytorch(trials))
    label, = [n.text for n in figure.layout.annotations if "×" in n.text]
    assert label == "#57 (full) 2.75×"
    roofs = [n.text for n in figure.layout.annotations if "TFLOP/s" in n.text]
    assert roofs == ["TF32 tensor cores 405 TFLOP/s", "fp32 51 TFLOP/s"]
    halves = [replace(t, precision="bf16", workload=replace(t.workload, dtype="bfloat16")) for t in trials]
    figure = compare_plots.roofline(report.against_pytorch(halves))
    assert [n.text for n in figure.layout.annotations if "TFLOP/s" in n.text] == ["bfloat16 tensor cores 989 TFLOP/s"]
    assert all("A is 2." in t.hovertemplate for t in figure.data if t.mode == "markers")
    figure = plots.bars([trial("tiny", 0.00481, "tf32"), trial("eager, TF32 on", 0.003, "tf32", kind="baseline")])
    assert figure.layout.xaxis.title.text == "<b>forward</b>, µs" and figure.layout.xaxis.ticktext[1] == "2"
    notes = plots.bars(pytorch(), floors={"forward": 1.0}).layout.annotations
    assert len({n.yshift for n in notes if n.text.startswith(("floor", "best"))}) == 2, "two labels never share a line of text"


def test_a_long_session_is_read_once_and_its_tables_are_made_once(tmp_path, monkeypatch) -> None:
    """Each rerun of a page asks for the trials many times. A copy of 10 000 takes a second."""
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    session = Session.create(tmp_path, "long")
    for one in [*pytorch(), *(trial("mine", 1.0 + i, config={"BLOCK": i}) for i in range(20))]:
        session.append(one)
    first = state.trials_of(session.path)
    assert all(a is b for a, b in zip(first, state.trials_of(session.path), strict=True))
    assert len({id(t.workload) for t in first}) == len({id(t.environment) for t in first}) == 1, "equal parts are one object"
    known_by = workbench_page._known_by(session.path, first)
    assert results._tables(known_by, first)[0] is results._tables(known_by, first)[0]
    session.append(trial("mine", 0.5))
    grown = state.trials_of(session.path)
    assert len(grown) == 23 and all(a is b for a, b in zip(first, grown, strict=False)), "only what was added is read"
    with (session.path / "trials.jsonl").open("a") as file:
        file.write('{"torn')
    assert len(state.trials_of(session.path)) == 23 and state.left_out(session.path).startswith("1 of 24 lines")
    session.append(trial("mine", 0.4))
    assert len(state.trials_of(session.path)) == 24
    assert workbench_page._known_by(session.path, state.trials_of(session.path)) != known_by, "it has grown: made anew"


def select(at: AppTest, key: str, *rows: int) -> AppTest:
    """Rows of a table, as by a click."""
    at.session_state[key] = {"selection": {"rows": list(rows), "columns": [], "cells": []}}
    at.run()
    assert not at.exception
    return at


def test_rows_are_pinned_and_compared_from_the_table_and_from_the_list_of_all_trials(two_sessions) -> None:
    at = tab("compare", compare_a="mine")
    assert at.button(key="compare_pin_rows").disabled and at.button(key="compare_inspect").disabled
    table = at.dataframe(key="compare_table").value
    row = list(table["A"]).index("b ieee")
    select(at, "compare_table", row).button(key="compare_pin_rows").click().run()
    pinned = at.session_state["compare_trials"]
    assert pinned[1] == f"mine:{two_sessions['mine'][1]}" and pinned[0].startswith("mine:") and len(pinned) == 2
    assert "2 trials are pinned." in at.toast[0].value
    at.segmented_control(key="compare_against").select("pinned trials").run()
    table = at.dataframe(key="compare_table").value
    assert list(table["B / A"]) == [pytest.approx(4.29)], "with PyTorch's, which is the first"
    at.multiselect(key="compare_from").set_value(["other"]).run()
    names = at.dataframe(key="compare_picker").value
    rows = [n for n, (session, name) in enumerate(zip(names["session"], names["variant"], strict=True))
            if (session, name) in (("other", "a"), ("other", "c"), ("mine", "b"))]
    select(at, "compare_picker", *rows)
    assert at.button(key="compare_pin").label == "Pin 2" and at.button(key="compare_unpin_rows").label == "Unpin"
    at.button(key="compare_pin").click().run()
    assert at.session_state["compare_trials"] == [*pinned, *(f"other:{two_sessions['other'][n]}" for n in (0, 2))]
    assert len(at.dataframe(key="compare_table").value) == 3
    assert at.session_state["address of compare"]["trials"] == [",".join(at.session_state["compare_trials"])]
    select(at, "compare_picker", *rows).button(key="compare_unpin_rows").click().run()
    assert pinned[1] not in at.session_state["compare_trials"] and len(at.session_state["compare_trials"]) == 1


def test_a_comparison_of_one_pair_that_no_ratio_has_is_counted_in_the_singular(two_sessions, tmp_path) -> None:
    for name, device in (("here", H200), ("there", CPU)):
        Session.create(tmp_path, name).append(trial("a", 0.002, device=device))
    at = tab("compare", compare_a="here", compare_b="there", against="session B")
    assert "1 pair of trials, but they ran on different devices, so their times are not compared" in said(at)
    table = at.dataframe(key="compare_table").value
    assert table["B / A"].isna().all() and not at.get("plotly_chart")
    assert table["time of A"][0].strip() == "2.00" and '"A, \\u00b5s"' in at.dataframe(key="compare_table").proto.columns


def test_the_report_of_a_comparison_holds_its_pairs_figures_and_machines() -> None:
    trials = [*pytorch(), trial("<mine>", 0.5, "tf32"), trial("other", 4.0)]
    pairs = report.against_pytorch(trials)
    text = html_report.of_pairs(pairs, "A <title>", ("FASTER", "A is faster in 2 of 2", "B & PyTorch"))
    assert "<title>A &lt;title&gt;" in text and "A is faster in 2 of 2" in text and "B &amp; PyTorch" in text
    assert "&lt;mine&gt;" in text and "<mine>" not in text and "NVIDIA H200" in text and "3.30×" in text
    for heading in ("Speed-up of A against B, with its 95 % interval", "Roofline: forward ●; grey is B, blue is A"):
        assert heading in text
    assert "http://" not in text.partition("<script")[0] and "Speed-up per layer" not in text, "of one layer there is none"
    assert len(html_report.of_pairs(pairs, "t", ("", "", ""), every=True)) < 5_000_000
    tiny = html_report.of_pairs(report.chosen_pairs([trial("b", 0.004), trial("a", 0.0026)]), "t", ("", "", ""))
    assert "A, µs" in tiny and ">2.60<" in tiny and ">4.00<" in tiny and "0.0026<" not in tiny
    tiny = html_report.of_session([trial("a", 0.0026), trial("bad", None, status="MISMATCH")], "t")
    assert "median, µs" in tiny and ">2.60<" in tiny and "A, ms" in text
    lines = tables.csv_text(tables.pair_records(pairs)).splitlines()
    assert lines[0].startswith("verdict,layer,direction,ratio,low,high,clock,a,") and len(lines) == 1 + len(pairs)
    first = dict(zip(lines[0].split(","), next(csv.reader(lines[1:2])), strict=True))
    assert (first["layer"], first["clock"]) == ("KernelBench #74 (full)", "kernel_ms") and float(first["ratio"]) > 1
