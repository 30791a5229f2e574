"""The Bench page in its states: recorded and own benches, filters, misses, a bench under way; and its heat maps."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import dist
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from workbench.core.trial import Trial
from workbench.core.trial_parts import TrialDevice
from workbench.drive.bench import text
from workbench.drive.bench.cells import cells_of, wanted_of
from workbench.drive.bench.execute import under_way
from workbench.drive.reporting import compare_plots, plots, tables
from workbench.drive.sessions.session import Session
from workbench.faces.ui import bench_page

from ..bench.made import CPU, pytorch, recorded, strong, trial, whole
from .test_belongs import said, titles

LAYERS = ("kb74", "kb81")


@pytest.fixture
def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path / "sessions"))
    return tmp_path / "sessions"


def of_h200() -> list[Trial]:
    """kb74 forward is limited by memory in TF32, and slower than PyTorch here; kb81 forward is fast."""
    return [*pytorch("kb74", "forward", 1.4, 3.0), trial("kb74", "forward", "mma", 2.8, "tf32"),
            *strong("kb81", "forward", tf32_ms=0.52, unconverted_ms=1.0),
            *pytorch("kb81", "forward", 1.62, 1.3), trial("kb81", "forward", "mma", 0.26, "tf32", config={"TILE": 4})]


def tab(**asked: str) -> AppTest:
    at = AppTest.from_function(_page, default_timeout=300)
    for name, value in asked.items():
        at.query_params[name] = value
    at.run()
    assert not at.exception
    return at


def _page() -> None:
    from workbench.faces.ui import bench_page, state
    state.guarded(bench_page.draw, "bench", bench_page.KEYS)()


def cells_shown(at: AppTest) -> set[tuple[str, str]]:
    table = at.dataframe[0].value
    return set(zip(table["layer"], table["direction"], strict=True))


def test_the_page_shows_the_cells_of_the_recorded_bench_and_the_reason_of_a_miss(sessions: Path) -> None:
    session = recorded(sessions, of_h200(), layers=LAYERS, directions=("forward",))
    modules = whole("kb81", (0.25, 0.5), (1.5, 2.0), (1.0, 2.25))
    recorded(sessions, modules, name="recorded-modules", layers=("kb81",), modules=True)
    at = tab()
    cells = cells_of([session])
    row = "".join(f"<td class=n>{word}</td>" for word in ("0.250", "1.00", "4.00×", "5.00×", "0.750", "3.25", "4.33×", "–"))
    assert "Whole modules, module_ms: KernelBench, TF32, NVIDIA H200" in said(at) and row in said(at)
    summary = text.means(bench_page.summary(cells, "tf32"))[0]
    assert summary in said(at) and "Measured on NVIDIA H200" in said(at)
    assert "slower than PyTorch (0.50×)" in said(at)
    table = at.dataframe[0].value.set_index("layer")
    assert table.loc["KernelBench #81", "ratio"] == pytest.approx(1.3 / 0.26)
    assert table.loc["KernelBench #81", "strongest"] == pytest.approx(2.0)
    assert table.loc["KernelBench #81", "limited by"] == "memory"
    assert table.loc["KernelBench #81", "config"] == "TILE=4"
    assert table.loc["KernelBench #74", "misses"].startswith("slower") and table["misses"].notna().sum() == 1
    assert table.loc["KernelBench #81", "of floor"] == pytest.approx(100 * cells[1].of_floor)
    maps = json.loads(at.get("plotly_chart")[0].proto.spec)
    assert [a["text"] for a in maps["layout"]["annotations"]] == [
        "time of nn.ConvTranspose over ours", "strongest formulation over ours", "floor over our time"]
    assert maps["data"][1]["text"] == ["0.50× †", "5.00×"]


def test_filters_stand_in_the_address_and_a_link_brings_them_back(sessions: Path) -> None:
    heavy = [*pytorch("kb57", "forward", 5.1, 9.0), trial("kb57", "forward", "mma", 3.2, "tf32")]
    recorded(sessions, [*of_h200(), *heavy], layers=("kb57", *LAYERS), directions=("forward",))
    at = tab()
    limits = at.dataframe[0].value.set_index(["layer", "direction"])["limited by"].dropna()
    of_memory = {place for place, limit in limits.items() if limit == "memory"}
    assert set(limits) == {"memory", "arithmetic"}
    at.button_group(key="bench_limits").set_value(["memory"]).run()
    shown = cells_shown(at)
    assert shown == of_memory
    assert at.session_state["address of bench"]["limits"] == ["memory"]
    assert cells_shown(tab(limits="memory")) == shown
    only = tab(missed="yes")
    assert cells_shown(only) < cells_shown(tab()) and ("KernelBench #81", "forward") not in cells_shown(only)
    assert "The precision class 'fp8' in the link is not known." in said(tab(**{"class": "fp8"}))


def test_an_own_bench_is_chosen_and_emulated_times_have_no_ratio(sessions: Path) -> None:
    recorded(sessions, of_h200(), layers=LAYERS, directions=("forward",))
    mine = recorded(sessions, [], name="mine", layers=("kb81",), directions=("forward",), size="small")
    mine.append(trial("kb81", "forward", "naive_gather", 4.0, "ieee", size="small", device=CPU, flags=("emulated",)))
    assert at_layers(tab()) == {"KernelBench #74", "KernelBench #81"}
    at = tab(sessions="mine")
    assert at_layers(at) == {"KernelBench #81 (small)"} and "EMULATED" in said(at)
    assert at.dataframe[0].value["ratio"].isna().all()
    assert "The session 'gone' in the link is not known." in said(tab(sessions="gone"))


def at_layers(at: AppTest) -> set[str]:
    return set(at.dataframe[0].value["layer"])


def test_without_a_bench_the_command_is_named(sessions: Path) -> None:
    Session.create(sessions, "plain")
    at = tab()
    assert "No session here has a bench" in said(at) and at.multiselect(key="bench_sessions").placeholder == "none with a bench"
    assert "python -m workbench bench --suite kernelbench --session NAME" in said(at)


def test_a_bench_under_way_is_seen_until_it_ends_or_falls_silent(sessions: Path) -> None:
    session = recorded(sessions, of_h200()[:3], name="mine", layers=LAYERS, directions=("forward",))
    assert "RUNNING" not in said(tab(sessions="mine"))
    session.event("run_started", run_id="r")
    session.event("heartbeat", run_id="r", done=1, of=4, message="building 4 candidates")
    text_ = said(tab(sessions="mine"))
    assert "A bench runs in mine: 1 of 2 cells have a result" in text_ and "Building 4 candidates" in text_
    assert under_way(session, datetime.now(UTC) + timedelta(minutes=1)) is None, "it was killed"
    session.event("run_finished", run_id="r")
    assert "RUNNING" not in said(tab(sessions="mine"))


def test_a_bench_is_started_stopped_and_its_session_shown(sessions: Path, monkeypatch) -> None:
    called, at = titles(monkeypatch), tab()
    assert "Measure a suite with Start on the left" in said(at)
    at.selectbox(key="bench_run_class").select("bf16").run()
    at.multiselect(key="bench_run_layers kernelbench contiguous").set_value(["kb81"]).run()
    at.button(key="bench_start").click().run()
    assert not at.exception and "RUNNING" in said(at) and "since start" in said(at)
    end = time.monotonic() + 200
    while not wanted_of([Session.open(p) for p in sessions.iterdir()]) and time.monotonic() < end:
        time.sleep(0.2)
    at.button(key="bench_stop").click().run()
    while "Stopped by you" not in said(at) and time.monotonic() < end:
        assert not at.exception
        time.sleep(0.5)
        at.run()
    assert "What was measured is kept. Start continues the session that is chosen." in said(at)
    assert any(title.startswith("● bench 0/") for title in called) and called[-1] == "– stopped, Bench"
    [session] = sessions.iterdir()
    assert at.multiselect(key="bench_sessions").value == [session.name]
    assert {w.preset for w in wanted_of([Session.open(session)])} == {"kb81"}
    assert " not measured yet." in said(at) and "Cells that miss a target" not in said(at).split("STOPPED")[-1]


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_a_number_is_readable_on_its_colour(mode: str) -> None:
    one = compare_plots.HeatMap("m", "ratio", {("a", "forward"): (16.0, "16.0×", ""), ("b", "forward"): (1.0, "1.000×", ""),
                                               ("c", "forward"): (0.25, "0.25×", "")})
    figure = compare_plots.heat_maps([one], ["a", "b", "c"], ["forward"], mode=mode)
    heat, words = figure.data
    assert [line[0] for line in heat.z] == [4, 0, -2] and (heat.zmin, heat.zmax) == (-2, 2)
    colours = plots.DARK if mode == "dark" else plots.LIGHT
    behind = [heat.colorscale[i][1] for i in (2, 1, 0)]
    for text_colour, colour in zip(words.textfont.color, behind, strict=True):
        assert contrast(text_colour, colour) > 3.6, (text_colour, colour)
    assert words.textfont.color[1] == colours["ink"]


def test_colours_are_told_apart_by_those_who_see_fewer() -> None:
    """Under the three kinds of colour blindness, simulated by the matrices of Machado, Oliveira and Fernandes (2009)."""
    seen_as = {"protan": ((.152286, 1.052583, -.204868), (.114503, .786281, .099216), (-.003882, -.048116, 1.051998)),
               "deutan": ((.367322, .860646, -.227968), (.280085, .672501, .047413), (-.011820, .042940, .968881)),
               "tritan": ((1.255528, -.076749, -.178779), (-.078411, .930809, .147602), (.004733, .691367, .303900))}

    def lab(colour: str, seen: tuple) -> list[float]:
        linear = [p / 12.92 if (p := int(colour[i:i + 2], 16) / 255) <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4
                  for i in (1, 3, 5)]
        r, g, b = (min(1.0, max(0.0, sum(k * v for k, v in zip(row, linear, strict=True)))) for row in seen)
        x, y, z = (c ** (1 / 3) if c > 0.008856 else 7.787 * c + 16 / 116 for c in (
            (.4124 * r + .3576 * g + .1805 * b) / .9505, .2126 * r + .7152 * g + .0722 * b,
            (.0193 * r + .1192 * g + .9505 * b) / 1.089))
        return [116 * y - 16, 500 * (x - y), 200 * (y - z)]

    for mode, colours in plots.CATEGORIES.items():
        for kind, seen in seen_as.items():
            found = [lab(c, seen) for c in colours]
            apart = min(dist(a, b) for i, a in enumerate(found) for b in found[:i])
            assert apart > 10, (mode, kind, apart)


def contrast(one: str, other: str) -> float:
    """By WCAG: 1 is equal, 21 is black on white."""
    def luminance(colour: str) -> float:
        parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_records_are_the_cells_with_their_units(sessions: Path) -> None:
    other = TrialDevice("cuda", 0, "Some GPU", "sm_80", 80, "some")
    cells = cells_of([recorded(sessions, [*(replace(t, device=other) for t in of_h200()[:3]), *of_h200()[3:]],
                               layers=LAYERS, directions=("forward",))])
    unknown, known = text.records(cells)
    assert unknown["limited_by"] is None and unknown["floor_ms"] is None and unknown["median_ms"] == 2.8
    assert (known["ratio"], known["pytorch"], known["channels_last_ms"]) == (pytest.approx(5.0), "eager, TF32 off", 1.0)
    lines = tables.csv_text(text.records(cells)).splitlines()
    assert lines[0].startswith("layer,preset,size,direction,") and len(lines) == 3 and "TILE=4" in lines[2]
