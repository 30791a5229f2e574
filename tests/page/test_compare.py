"""The Compare page and its charts: a session against PyTorch of its own, and what the recorded one shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from workbench.core.presets import preset
from workbench.drive.reporting import compare_plots, plots, report
from workbench.drive.sessions.session import Session
from workbench.faces.ui import results, state, workbench_page

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
    assert {"KernelBench #57 (full)", "KernelBench #81 (full)"} <= set(at.dataframe[0].value["layer"])  # newest of the recorded

    at.selectbox(key="compare_a").select("recorded-h200-kernelbench").run()
    table = at.dataframe[0].value
    assert "KernelBench #81 (full)" in set(table["layer"]) and table["B / A"].max() > 18
    assert len(at.get("plotly_chart")) == 2

    at.selectbox(key="compare_a").select("recorded-h200-general").run()
    verdicts = [v[0] for v in at.dataframe[0].value["verdict"]]
    assert verdicts.index("▼ SLOWER") < verdicts.index("▲ FASTER")  # what needs a look first


def test_chosen_rows_of_one_session_are_compared_with_the_first(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    session = Session.create(tmp_path, "mine")
    trials = [*pytorch(), trial("a", 2.0), trial("b", 1.0, config={"BLOCK": 64}), trial("c", 1.0, direction="grad_input")]
    for one in trials:
        session.append(one)
    ids = [t.trial_id for t in trials]
    at = AppTest.from_function(_app, default_timeout=300)
    at.query_params["compare_a"], at.query_params["trials"] = "mine", ",".join([*ids[2:], "gone"])
    at.run()
    assert not at.exception and at.segmented_control(key="compare_against").value == "chosen rows"
    table = at.dataframe[0].value.set_index("A")
    assert table.loc["b ieee", "B / A"] == pytest.approx(2.0) and table.loc["b ieee", "verdict"] == ["▲ FASTER"]
    assert "different directions" in table.loc["c ieee", "note"] and pd.isna(table.loc["c ieee", "B / A"])
    at.segmented_control(key="compare_against").select("best PyTorch").run()
    assert len(at.dataframe[0].value) == 1  # of forward: the fastest, with PyTorch; of grad_input nothing to compare with


def test_the_roofline_labels_what_has_room_and_narrow_axes_are_in_microseconds() -> None:
    layers = [preset(f"kb{n}").workload("full") for n in (57, 61, 64, 65, 68, 69, 70, 71, 72, 73, 74, 75, 77, 78, 79, 81)]
    trials = [replace(t, workload=w) for w in layers for t in (*pytorch(), trial("fast", 0.6, "tf32"))]
    notes = compare_plots.roofline(report.against_pytorch(trials)).layout.annotations
    labels = [n for n in notes if "×" in n.text]
    assert 1 <= len(labels) <= 5
    assert all(abs(a.x - b.x) > 0.5 or abs(a.y - b.y) > 0.1 for a in labels for b in labels if a is not b)
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
