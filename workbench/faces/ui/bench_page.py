"""Bench: the tables of the suites as heat maps, and the cells that miss a target. The cells are those of drive/bench.

It shows the recorded sessions, or the chosen benches of this machine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

import plotly.graph_objects as go
import streamlit as st

from ...core import numbers
from ...core.layer import LAUNCHES, MEMORY_FORMATS
from ...core.presets import PRESETS
from ...drive.bench import markdown, modules, text
from ...drive.bench.cells import NOT_YET, Cell, Group, cells_of, groups_of, summary, wanted_of
from ...drive.bench.execute import is_of_modules, under_way
from ...drive.bench.modules import Module
from ...drive.bench.plan import BenchPlan, suite_layers
from ...drive.reporting import compare_plots, report, tables
from ...drive.reporting.compare_plots import HeatMap
from ...drive.sessions.files import EVENTS, stamp
from ...drive.sessions.session import Session
from . import address, compare_page, pages, results, running, state, theme

KEYS = ("bench_sessions", "bench_suite", "bench_class", "bench_format", "bench_limits",
        "bench_missed")  # the keys of the widgets for the choices of what is shown
_GPUS = {"": "emulated"}
_SUITES = {"kernelbench": "KernelBench", "models": "Models"}
_CLASSES = {"tf32": "TF32", "ieee": "fp32-accurate", "fp16": "float16", "bf16": "bfloat16"}
_LIMITS = ("memory", "arithmetic")
_LIMIT_HELP = ("The floor is the shortest time that the GPU allows. It is set by the bytes that must move, or by the "
               "arithmetic of the direct algorithm.")
_COMMAND = "python -m workbench bench --suite {suite} --session NAME --time-limit 540"
_MOST_ROWS = 16
_REFRESH_S = 3
_VERDICTS = (report.FASTER, report.SLOWER, report.SAME, report.UNSURE, report.EMULATED)
_Known = tuple[tuple[str, tuple[int, int], tuple[int, int]], ...]


def draw() -> None:
    now = next((one for one in reversed(running.benches().values()) if not one.done), None)
    paths = state.session_paths()
    there = {name: path for name, path in paths.items() if _about(str(path), _events_stamp(path))}
    with st.sidebar:
        chosen = _sessions(there)
        known_by = tuple((str(there[n]), stamp(there[n]), _events_stamp(there[n])) for n in chosen)
        cells, whole = list(_cells(known_by)), _modules(known_by)
        group, shown = _filters(cells)
        _measure(now, [n for n in chosen if not n.startswith("recorded-")], paths)
    own = [n for n in chosen if not n.startswith("recorded-")]
    if now is not None:
        _measuring(now)
    else:
        _ended(own)
    if not cells or group is None:
        if whole:
            _whole(whole)
        elif now is None:
            command = _COMMAND.format(suite="kernelbench")
            theme.html(theme.strip("READY", "No session here has a bench",
                                   f"Measure a suite with Start on the left, or with {command}"))
        return
    for name in own:
        if (now is None or name != now.session.name) and under_way(Session.open(there[name]), datetime.now(UTC)) is not None:
            _running(name, there[name])
    theme.html(_strip(shown, cells, group))
    if not shown:
        return
    if not any(c.emulated for c in shown):  # its cells are ratios, and emulated times have none
        figure = _figure(tuple(map(_known_by, shown)), theme.mode(), shown)
        theme.chart(figure, key="bench_map", alt=_said(shown))
        theme.html('<span class="foot">Blue: faster than PyTorch, orange: slower; † misses a target. Point at a cell for '
                   'times, variant and config. An empty cell is hidden by a filter on the left, or it was not measured.</span>')
    _misses(shown)
    _table(shown, group)
    if of_group := [m for m in whole if m.group == group]:
        _whole(of_group)


def _sessions(there: dict[str, Path]) -> list[str]:
    """The sessions whose cells are shown; the recorded ones if none is chosen."""
    usual = [n for n in there if n.startswith("recorded-")]
    asked = [n for n in address.wants("sessions").split(",") if n]
    for gone in (n for n in asked if n not in there):
        state.not_known("session", gone, "There is no session of that name here, or it holds no bench.")
    st.session_state["bench_sessions"] = [
        n for n in st.session_state.get("bench_sessions", [n for n in asked if n in there]) if n in there]
    if (begun := st.session_state.get("bench next")) in there:
        st.session_state["bench_sessions"] = [begun]
        del st.session_state["bench next"]
    labels = state.session_labels(list(there))
    empty = "the recorded sessions" if usual else "Choose one" if there else "none with a bench"
    chosen = st.multiselect("Sessions", list(there), key="bench_sessions", format_func=lambda n: labels[n],
                            persist_state="session", placeholder=empty,
                            help="A cell comes from the latest of these sessions that measured it. Times of two sessions are "
                                 "never compared. If no session is chosen, the recorded ones are shown.")
    address.note("sessions", ",".join(chosen))
    return chosen or usual


def _filters(cells: Sequence[Cell]) -> tuple[Group | None, list[Cell]]:
    """The GPU, suite, memory format and class that are shown, and the cells of these that pass the filters."""
    groups = groups_of(cells)
    if not groups:
        return None, []
    gpus = list(dict.fromkeys(g[3] for g in groups))
    gpu = _one_of("GPU", "gpu", gpus, _GPUS) if gpus[1:] else gpus[0]
    groups = {g: there for g, there in groups.items() if g[3] == gpu}
    suite = _one_of("Suite", "suite", list(dict.fromkeys(g[0] for g in groups)), _SUITES)
    classes = list(dict.fromkeys(g[2] for g in groups if g[0] == suite))
    precision = _one_of("Precision class", "class", classes, _CLASSES)
    formats = [g[1] for g in groups if (g[0], g[2]) == (suite, precision)]
    group = (suite, _one_of("Memory format", "format", formats, {}) if formats[1:] else formats[0], precision, gpu)
    asked = [limit for limit in address.wants("limits").split(",") if limit in _LIMITS]
    st.session_state.setdefault("bench_limits", asked or list(_LIMITS))
    limits = st.pills("Limited by", _LIMITS, selection_mode="multi", key="bench_limits", persist_state="session",
                      help=_LIMIT_HELP)
    address.note("limits", ",".join(limits or _LIMITS), ",".join(_LIMITS))
    st.session_state.setdefault("bench_missed", address.wants("missed") == "yes")
    missed = st.toggle("Only cells that miss a target", key="bench_missed", persist_state="session")
    address.note("missed", "yes" if missed else "")
    return group, [c for c in groups[group] if text.limited_by(c) in ("", *(limits or _LIMITS)) and (c.missed or not missed)]


def _one_of(label: str, name: str, options: list[str], words: dict[str, str]) -> str:
    key = f"bench_{name}"
    state.seed(key, options, options[0], name=name, what=label.lower(), shown=words.get(options[0], options[0]))
    chosen = st.segmented_control(label, options, key=key, required=True, persist_state="session", width="stretch",
                                  format_func=lambda o: words.get(o) or theme.markdown(o)) or options[0]
    address.note(name, chosen, options[0])
    return chosen


def _strip(shown: Sequence[Cell], cells: Sequence[Cell], group: Group) -> str:
    if not shown:
        return theme.strip("READY", "No cell passes the filters on the left",
                           "Choose another limit, or show all cells again.")
    found = summary(shown, group[2])
    where = f"{markdown.SUITE_NAMES[group[0]]}, {markdown.headline(group).replace('`', '')}"
    word = report.EMULATED if any(c.emulated for c in shown) else "NOTE" if not found.ratio else \
        report.FASTER if found.ratio > 1 else report.SLOWER
    left_out = len(groups_of(cells)[group]) - len(shown)
    evidence = markdown.origin(shown).replace("`", "") + (f" {left_out} cells are left out by the filters." if left_out else "")
    return theme.strip(word, f"{where}. {' '.join(text.means(found))}", evidence,
                       badge_text=f"{found.cells} CELLS" if word == "NOTE" else word)


def _measure(now: running.Benching | None, own: list[str], paths: dict[str, Path]) -> None:
    """What to measure on this machine; Start, or Stop while it runs."""
    with st.expander("Measure a suite here", expanded=now is not None):
        if now is not None:
            st.button("Stop", key="bench_stop", width="stretch", on_click=now.stop, shortcut=theme.STOP_KEY,
                      help=f"Ends the compilers and the kernel of this bench. Finished trials are kept. Key: {theme.STOP_KEY}")
            return
        devices = list(state.device_names())
        asked = {name: st.selectbox(label, options, key=f"bench_{name}", persist_state="session", format_func=words)
                 for name, label, options, words in (
                     ("run_suite", "Suite", list(_SUITES), lambda o: _SUITES[o]),
                     ("run_class", "Precision class", list(_CLASSES), lambda o: _CLASSES[o]),
                     ("run_format", "Memory format", list(MEMORY_FORMATS), str),
                     ("run_device", "Device", devices, state.device_label))}
        layers = suite_layers(asked["run_suite"], asked["run_format"])
        chosen = st.multiselect("Layers", layers, key=f"bench_run_layers {asked['run_suite']} {asked['run_format']}",
                                persist_state="session", placeholder="all")
        emulated = asked["run_device"] == state.CPU
        name = own[0] if len(own) == 1 else ""
        words = f"Continues session {state.session_label(name)}; " if name else "Makes a new session; "
        theme.html(f'<div class="foot">{escape(words)}{"small sizes, emulated" if emulated else "full sizes"}. '
                   "A suite takes minutes on a GPU.</div>")
        later = theme.later()
        if theme.button("Start", key="bench_start", type="primary", width="stretch", shortcut=theme.RUN_KEY,
                        help=f"Judges and times the kernels of each layer, and PyTorch. Key: {theme.RUN_KEY}"):
            plan = BenchPlan(layers=tuple(chosen or layers), precision=asked["run_class"], memory_format=asked["run_format"],
                             size="small" if emulated else "full", effort="quick" if emulated else "normal")
            session = Session.open(paths[name]) if name else Session.create()
            running.benches()[session.name] = running.Benching(plan, session, state.runner(), asked["run_device"]).start()
            later["bench next"] = session.name
            st.rerun()


@st.fragment(run_every=1)
def _measuring(bench: running.Benching) -> None:
    """The status line of a bench that this server runs, and its cells, as they are finished."""
    path = bench.session.path
    cells = _cells(((str(path), stamp(path), _events_stamp(path)),))
    measured = sum(c.best is not None or bool(c.candidates) for c in cells)
    before = st.session_state.get("bench drawn")
    st.session_state["bench drawn"] = drawn = (bench.session.name, measured)
    if bench.done or before is not None and before[0] == drawn[0] and before != drawn:
        st.rerun()
    state.title(f"● bench {measured}/{len(cells)}")
    suite, session = _SUITES[PRESETS[bench.plan.layers[0]].suite], state.session_label(bench.session.name)
    theme.html(theme.strip("RUNNING", f"{suite} in session {session}: {measured} of {len(cells) or '?'} cells have a result",
                           f"{bench.text.strip()} · {bench.elapsed_s:.0f} s since start · closing the browser does not stop it",
                           badge_text=f"RUNNING {measured}"))


def _ended(own: Sequence[str]) -> None:
    """The result of the newest bench of this server in the shown sessions."""
    own = [*own, st.session_state.get("bench next", "")]
    last = next((one for name, one in reversed(running.benches().items()) if name in own), None)
    if last is None:
        return
    ended = last.result.state if last.result else "failed"
    state.title(f"{ {'done': '✓ done', 'stopped': '– stopped'}.get(ended, '✕ failed')}, Bench")
    if last.result is None or ended == "failed":
        theme.html(theme.strip("FAILED", last.result.sentence if last.result else last.problem or "The bench ended early.",
                               "What was measured is kept. Start continues the session that is chosen."))
    elif ended == "stopped":
        theme.html(theme.strip("STOPPED", f"Stopped by you; {last.result.judged} candidates were judged",
                               "What was measured is kept. Start continues the session that is chosen."))


@st.fragment(run_every=_REFRESH_S)
def _running(name: str, path: Path) -> None:
    """A bench of another process, such as the command line. Its finished cells appear as they are measured."""
    said = under_way(Session.open(path), datetime.now(UTC))
    before = st.session_state.get("bench drawn")
    st.session_state["bench drawn"] = now = (name, stamp(path))
    if said is None or before is not None and before[0] == name and before != now:
        st.rerun()
    cells = _cells(((str(path), stamp(path), _events_stamp(path)),))
    measured = sum(c.best is not None or bool(c.candidates) for c in cells)
    state.title(f"● bench {measured}/{len(cells)}")
    theme.html(theme.strip("RUNNING", f"A bench runs in {state.session_label(name)}: {measured} of {len(cells)} cells have a "
                           "result", f"{said[:1].upper()}{said[1:]} · It runs in another process. Stop it there, with Ctrl-C. "
                           f"The same command with --session {name} continues it.", badge_text=f"RUNNING {measured}"))


def _misses(shown: Sequence[Cell]) -> None:
    """The missed targets, with their reasons; and how many cells wait for their turn."""
    missed = [c for c in shown if c.missed and c.missed != (NOT_YET,)]
    waiting = sum(c.missed == (NOT_YET,) for c in shown)
    if waiting:
        words = "cell is" if waiting == 1 else "cells are"
        theme.html(f'<span class="foot">{numbers.count(waiting)} {words} not measured yet.</span>')
    if not missed:
        return
    theme.html(theme.heading(f"Cells that miss a target: {len(missed)}") + theme.table(
        ("layer", "direction", "ratio", "limited by", "reason"),
        [(f"<span class=nw>{escape(_title(c))}</span>", c.name.direction, numbers.ratio(c.ratio),
          text.limited_by(c) or numbers.MISSING, escape(c.reason)) for c in missed], right=(2,)))


def _table(shown: Sequence[Cell], group: Group) -> None:
    """A table with one row for each cell, which can be sorted and searched. A row can be opened in Inspect or Compare."""
    import pandas as pd  # imported here, because it takes half a second that the first view does not need
    records = text.records(shown)
    unit, times = numbers.times([r[name] for name in ("median_ms", "pytorch_ms") for r in records])
    column = st.column_config
    frame = pd.DataFrame([{
        "layer": _label(c), "direction": r["direction"], "limited by": r["limited_by"], "ratio": r["ratio"],
        "95 % interval": None if r["low"] is None else numbers.padded(numbers.interval(r["low"], r["high"], r["ratio"])),
        "verdict": [theme.chip(r["verdict"])] if r["verdict"] else [],
        "ours": None if r["median_ms"] is None else ours, "theirs": None if r["pytorch_ms"] is None else theirs,
        "PyTorch": r["pytorch"], "strongest": r["strongest_ratio"], "strongest is": r["strongest"],
        "of floor": None if r["of_floor"] is None else 100 * r["of_floor"], "error": r["rel_l2"],
        "variant": r["variant"], "computes in": r["computes_in"],
        "config": " ".join(f"{k}={v}" for k, v in r["config"].items()), "misses": r["missed"]}
        for c, r, ours, theirs in zip(shown, records, times[:len(records)], times[len(records):], strict=True)])
    theme.html(theme.heading(f"All {len(shown)} cells"))
    event = st.dataframe(
        frame, hide_index=True, row_height=29, height=min(_MOST_ROWS * 29 + 38, 38 + 29 * len(frame)), key="bench_table",
        placeholder="–", on_select="rerun", selection_mode="single-row", alt="The cells of the bench, one row each",
        column_config={
            "layer": column.TextColumn(width=140), "direction": column.TextColumn(width=84),
            "limited by": column.TextColumn(width=76, help=_LIMIT_HELP),
            "ratio": column.NumberColumn(width=60, format="%.2f×", help="PyTorch's time divided by ours. PyTorch is the "
                                                                        "fastest mode of nn.ConvTranspose in the same or a "
                                                                        "stricter precision"),
            "95 % interval": column.TextColumn(width=112, alignment="right"),
            "verdict": results.chips("verdict", _VERDICTS, 92),
            "ours": column.TextColumn(unit, width=64, alignment="right", help="Median of kernel_ms with a cold L2: only the "
                                      "kernels, with allocated outputs"),
            "theirs": column.TextColumn(f"PyTorch, {unit}", width=78, alignment="right"),
            "PyTorch": column.TextColumn(width=150),
            "strongest": column.NumberColumn(width=70, format="%.2f×", help="The time of the strongest formulation in PyTorch "
                                                                            "divided by ours. – if other formulations were not "
                                                                            "measured"),
            "strongest is": column.TextColumn(width=170),
            "of floor": column.ProgressColumn(width=80, format="%d %%", min_value=0, max_value=100, color="primary",
                                              help="Floor (shortest time that the GPU allows) divided by our time"),
            "error": column.NumberColumn(width=62, format="%.1e", help="Relative L2 error to float64"),
            "variant": column.TextColumn(width=140), "computes in": column.TextColumn(width=78),
            "config": column.TextColumn(width=260), "misses": column.TextColumn(width=220)})
    rows = [r for r in (event["selection"]["rows"] if event else []) if r < len(shown)]
    _actions(shown[rows[0]] if rows else None, records, group)


def _whole(shown: Sequence[Module]) -> None:
    """The modules, one row each, and what they add to their kernels."""
    for group, mine in groups_of(shown).items():
        gpu = _GPUS.get(group[3], group[3])
        words = f"{markdown.SUITE_NAMES[group[0]]}, {markdown.headline(group)}, {gpu}".replace("`", "")
        cells = [[escape(word) for word in row] for row in modules.rows(mine, title=lambda name: PRESETS[name].title)]
        added = modules.sentence(mine).replace("`", "")
        theme.html(theme.heading(f"Whole modules, module_ms: {words}")
                   + theme.table(modules.HEADER, cells, right=range(1, len(modules.HEADER))))
        theme.html(f'<span class="foot">One ModelNew of the best known kernels, against the faster of nn.ConvTranspose with '
                   f'TF32 on and off. “of the kernels” is the same quotient of kernel_ms; there PyTorch has its fastest mode. '
                   f'{escape(added)} To measure modules here, add --modules to the command.</span>')


def _actions(cell: Cell | None, records: list[dict], group: Group) -> None:
    best = cell.best if cell else None
    name = "bench-" + "-".join(group[:3])
    choose = None if best else "Select a row in the table"
    with st.container(horizontal=True, vertical_alignment="center"):
        if theme.button("Inspect", key="bench_inspect", disabled=best is None, help=choose) and cell and best:
            st.session_state["inspect_session"], st.session_state["inspect_trial"] = cell.session, best.trial_id
            st.switch_page(pages.page("inspect"))
        others = [t.trial_id for t in ((cell.baseline, cell.strongest, cell.unconverted) if cell else ()) if t is not None]
        if theme.button("Compare", key="bench_compare", disabled=best is None or not others,
                        help=choose or "This kernel and PyTorch's ways, with samples") and cell and best:
            compare_page.show(cell.session, list(dict.fromkeys([*others, best.trial_id])))
            st.switch_page(pages.page("compare"))
        st.download_button("CSV", tables.csv_text(records), key="bench_csv", file_name=f"{name}.csv", mime="text/csv",
                           on_click="ignore")
        st.download_button("JSON", json.dumps(records, indent=1), key="bench_json", file_name=f"{name}.json",
                           mime="application/json", on_click="ignore")
        theme.html(f'<span class="foot">To measure this suite here: <span class=mono>'
                   f'{escape(_COMMAND.format(suite=group[0]))}</span></span>')


@st.cache_resource(max_entries=16, show_spinner=False)
def _figure(known_by: tuple, mode: str, _shown: Sequence[Cell]) -> go.Figure:
    rows = list(dict.fromkeys(_label(c) for c in _shown))
    columns = [d for d in LAUNCHES if any(c.name.direction == d for c in _shown)]
    maps = [HeatMap("time of nn.ConvTranspose over ours", "ratio", {
        (_label(c), c.name.direction): (c.ratio, numbers.ratio(c.ratio) + (" †" if c.missed else ""), _hover(c))
        for c in _shown if c.ratio})]
    if strongest := {(_label(c), c.name.direction): (c.strongest_ratio, numbers.ratio(c.strongest_ratio), _hover(c))
                     for c in _shown if c.strongest_ratio}:
        maps.append(HeatMap("strongest formulation over ours", "ratio", strongest))
    maps.append(HeatMap("floor over our time", "share", {
        (_label(c), c.name.direction): (c.of_floor, numbers.share(c.of_floor), _hover(c)) for c in _shown if c.of_floor}))
    return compare_plots.heat_maps(maps, rows, columns, mode=mode)


def _known_by(cell: Cell) -> tuple[str, ...]:
    """A key that is equal for equal cells."""
    return (str(cell.name), cell.session, cell.reason,
            *(t.trial_id if t else "" for t in (cell.best, cell.baseline, cell.strongest, cell.unconverted)))


def _hover(cell: Cell) -> str:
    """The text of a cell on hover, one fact in each line."""
    against = [f"{numbers.ratio(ratio)} {word}: {other.name}, {numbers.time(other.kernel_ms.median_ms)}"
               for word, ratio, other in (("nn.ConvTranspose", cell.ratio, cell.baseline),
                                          ("strongest", cell.strongest_ratio, cell.strongest))
               if other is not None and other.kernel_ms]
    limit = (f"floor {numbers.time(cell.floor.ms)}, limited by {text.limited_by(cell)}; we reach {numbers.share(cell.of_floor)}"
             if cell.floor else "")
    computes = f" in {cell.best.precision}" if cell.best else ""
    interval = report.interval_words(cell.verdict) if cell.verdict else ""
    missed = f"misses: {cell.reason}" if cell.missed else ""
    return "<br>".join(filter(None, (
        f"<b>{_title(cell)}</b>, {cell.name.direction}", f"{numbers.time(cell.ms)}: {text.config_of(cell)}{computes}", *against,
        interval, limit, missed)))


def _title(cell: Cell) -> str:
    size = "" if cell.name.size == "full" else f" ({cell.name.size})"
    return PRESETS[cell.name.preset].title + size


def _label(cell: Cell) -> str:
    size = "" if cell.name.size == "full" else f" ({cell.name.size})"
    return PRESETS[cell.name.preset].label + size


def _said(shown: Sequence[Cell]) -> str:
    """The maps in one sentence, for screen readers."""
    timed = [c for c in shown if c.ratio]
    if not timed:
        return "Heat maps of the bench; no cell has a ratio."
    low, high = (f(timed, key=lambda c: c.ratio or 0.0) for f in (min, max))
    return (f"Heat maps of {len(shown)} cells. The largest ratio is {numbers.ratio(high.ratio)} ({_label(high)} "
            f"{high.name.direction}), the smallest {numbers.ratio(low.ratio)} ({_label(low)} {low.name.direction}).")


@st.cache_resource(max_entries=16, show_spinner=False)
def _modules(known_by: _Known) -> list[Module]:
    """The modules of these sessions, with their cells."""
    return modules.modules_of([Session.open(Path(path)) for path, _, _ in known_by], _cells(known_by))


@st.cache_resource(max_entries=16, show_spinner="Reading the bench", show_time=True)
def _cells(known_by: _Known) -> list[Cell]:
    """The cells of these sessions; made again only when one of them has grown."""
    return cells_of([Session.open(Path(path)) for path, _, _ in known_by])


@st.cache_data(max_entries=256, show_spinner=False)
def _about(path: str, events: tuple[int, int]) -> bool:
    """Whether the session holds a bench of candidates or of whole modules."""
    session = Session.open(Path(path))
    return bool(wanted_of([session])) or any(map(is_of_modules, session.events()))


def _events_stamp(path: Path) -> tuple[int, int]:
    """The same as `stamp`, for the session's events."""
    file = path if path.suffix == ".zip" else path / EVENTS
    if not file.is_file():
        return (0, 0)
    stat = file.stat()
    return stat.st_mtime_ns, stat.st_size
