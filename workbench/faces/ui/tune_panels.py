"""The panels of the Tune page: every trial, heat map, a closer look, variants, the best in a table.

They read the session, also if another process tunes in it. Each panel is a fragment: a choice in it redraws only this panel,
and is in the address.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from ...core import numbers
from ...core.layer import Workload
from ...core.trial import Trial
from ...drive.reporting import tune_plots, tune_points
from ...drive.reporting.tune_points import UNTOLD, Family, Point, Tried
from ...drive.sessions.files import EVENTS, lines, stamp
from ...drive.sessions.session import Session
from ...drive.tuning import text
from ...drive.tuning.feed import EVENT, TuneRequest
from ...drive.tuning.finals import default_of
from ...drive.tuning.tune import KEPT, WON
from . import address, compare_page, pages, state, theme

_WANTED = ('"tune', '"run_', '"heartbeat', '"waiting')  # only these events are read, because there are ten times as many phases
_LOOKS = _IMPORTANCE, _SLICES, _PARALLEL = "importance", "slices", "parallel coordinates"
_CELLS = (tune_plots.BEST, tune_plots.MEDIAN, tune_plots.FAILED)
_PERCENTS = (5, 10, 25, 50, 100)
_MOST_ROWS = 500    # the most rows of the table
_MOST_PINS = 8
_MOST_LETTERS = 56  # the most characters of a config beside its variant
KEYS = ("tune_shown", "tune_axis", "tune_colour", "tune_look", "tune_family", "tune_x", "tune_y", "tune_cell", "tune_best",
        "tune_pins")  # the keys of the widgets here


@dataclass(frozen=True)
class _View:
    """The data of the panels: the trials and their key in the cache."""

    found: Tried
    known_by: tuple
    session: str

    @property
    def family(self) -> Family | None:
        """The chosen family, else that of the best trial."""
        there = [f for f in self.found.families if f.right]
        asked = st.session_state.get("tune_family")
        return next((f for f in there if f.name == asked), there[0] if there else None)


def panels(path: Path, workload: Workload, request: TuneRequest, *, live: bool) -> None:
    """Draw all panels. `live`: they are redrawn every two seconds."""
    directions = list(request.directions)
    shown = directions[0]
    if directions[1:]:
        state.seed("tune_shown", directions, shown, name="show", what="direction")
        shown = st.segmented_control("Direction", directions, key="tune_shown", required=True, label_visibility="collapsed",
                                     persist_state="session") or shown
        address.note("show", shown, directions[0])
    asked = [i for i in address.wants("pins").split(",") if i]
    st.session_state.setdefault("tune_pins", asked)

    def view() -> _View:
        known_by = (*_known_by(path), workload.key, workload.preset, shown)
        return _View(tried_of(path, workload, shown), known_by, Session(path).name)

    def panel(draw: Callable[[_View], None]) -> None:
        @st.fragment(run_every=2 if live else None)
        def drawn() -> None:
            draw(view())
            if not live:
                address.again("tune", draw.__name__)
        drawn()

    if not view().found.points and not live:
        theme.html(f'<span class="foot">No candidate of {escape(shown)} was judged.</span>')
        return
    grid = st.grid(2, min_column_width=470, gap="medium")
    with grid.container():
        panel(_trials)
    with grid.container():
        panel(_pair)
    panel(_families)
    panel(_best)
    panel(_closer)


def asked_of(path: Path | None, workload: Workload) -> TuneRequest | None:
    """The request of the session's last tune of that workload; None if there was none."""
    work = workload.to_json()
    for event in reversed(events_of(path)):
        if event.get("event") == EVENT and event.get("request", {}).get("workload") == work:
            return read_request(event)
    return None


def read_request(event: Mapping[str, Any]) -> TuneRequest | None:
    try:
        return TuneRequest.from_json(event["request"])
    except (KeyError, TypeError, ValueError):
        return None


def ended(path: Path | None, workload: Workload) -> tuple[str, str]:
    """(run_finished, run_stopped or run_failed, its message) of the last tune of that workload; ("", "") if it was killed, or
    is running in another process."""
    run, work = "", workload.to_json()
    found = ("", "")
    for event in events_of(path):
        if event.get("event") == "run_started" and event.get("tune") and event.get("workload") == work:
            run, found = str(event.get("run_id")), ("", "")
        elif run and event.get("run_id") == run and event.get("event") in ("run_finished", "run_stopped", "run_failed"):
            found = (str(event["event"]), str(event.get("message") or ""))
    return found


def kept(path: Path | None, found: Sequence[Tried]) -> list[str]:
    """A sentence for each winner: that it is stored as best known, or why not."""
    told = {str(e.get("trial_id")): e for e in events_of(path) if e.get("event") == KEPT}
    sentences = []
    for one in found:
        event = told.get(one.final.trial_id) if one.final is not None else None
        if event and event.get("kept"):
            sentences.append(f"{one.direction} is stored as best known: export --best, run --best and patch use it.")
        elif event and event.get("why"):
            sentences.append(f"{one.direction} is not stored: {event['why']}")
        elif event and one.emulated:
            sentences.append(f"{one.direction} is not stored, because emulated times do not predict a GPU.")
    return sentences


def beside_winner(path: Path | None, found: Sequence[Tried]) -> list[str]:
    """Sentences about each winner: how fast it is beside the default config, and how many may be as fast."""
    won = {str(e.get("trial_id")): e for e in events_of(path) if e.get("event") == WON and "default" in e}
    sentences = []
    for one in found:
        if one.final is not None and (event := won.get(one.final.trial_id)):
            sentences.append(f"{one.direction}: {text.against_default(one.final, default_of(event))}")
            if count := sum(word == UNTOLD for word in one.finals.values()):
                sentences.append(f"{one.direction}: {count} {UNTOLD}; they were not timed in turns.")
    return sentences


def tried_of(path: Path, workload: Workload, direction: str) -> Tried:
    """The trials of a direction; made again only when the session has grown."""
    return _tried((*_known_by(path), workload.key, workload.preset), direction, path, workload)


def events_of(path: Path | None) -> list[dict[str, Any]]:
    """The session's events about tunes and runs."""
    return _events(str(path), _events_stamp(path)) if path is not None else []


@st.cache_resource(max_entries=32, show_spinner=False)
def _events(path: str, stamp: tuple[int, int]) -> list[dict[str, Any]]:
    found = []
    for _, line in lines(Path(path), EVENTS):
        if any(f'"event": {word}' in line for word in _WANTED):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


@st.cache_resource(max_entries=16, show_spinner=False)
def _tried(known_by: tuple, direction: str, _path: Path, _workload: Workload) -> Tried:
    return tune_points.tried(state.trials_of(_path), events_of(_path), _workload, direction)


def _known_by(path: Path) -> tuple:
    return str(path), stamp(path), _events_stamp(path)


def _events_stamp(path: Path) -> tuple[int, int]:
    file = path if path.suffix == ".zip" else path / EVENTS
    try:
        stat = file.stat()
    except OSError:
        return (0, 0)
    return stat.st_mtime_ns, stat.st_size


def _trials(view: _View) -> None:
    """The figure of all trials and the best so far. A click on a point shows its details."""
    names = tune_points.tunables(view.found.points)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        x = _choice("Along the axis", "tune_axis", (tune_plots.TRIALS, tune_plots.TIME), "x")
        colour = _select("Colour", "tune_colour", (tune_plots.VARIANT, *names), "colour")
    theme.html(theme.heading("Every trial, and the best so far"))
    pins = tuple(st.session_state["tune_pins"])
    event = theme.chart(_progress(view.known_by, x, colour, pins, theme.mode(), view.found), key="tune_progress",
                        alt=tune_plots.described(view.found), on_select="rerun", selection_mode="points")
    if note := tune_plots.progress_note(view.found):
        theme.html(f'<span class="foot">{escape(note)}</span>')
    points = event["selection"]["points"] if event else []
    clicked = next((p["customdata"] for p in points if p.get("customdata")), None)
    clicked = clicked[0] if isinstance(clicked, list) else clicked
    point = next((p for p in view.found.points if p.trial.trial_id == clicked), None)
    if point is not None:
        _about(view, point)


def _about(view: _View, point: Point) -> None:
    """The point that was clicked."""
    said = (f"median {numbers.time(point.ms)}" if point.ms is not None else f"{point.headline} {point.trial.advice}")
    theme.html(f'<div>{theme.badge(point.status)} <b>trial {point.number}</b> {escape(point.family)}: {escape(said)}'
               f'<br><span class="mono">{escape(point.config)}</span></div>')
    with st.container(horizontal=True):
        if point.ms is not None:
            pinned = point.trial.trial_id in st.session_state["tune_pins"]
            if theme.button("Unpin" if pinned else "Pin to compare", key="tune_pin"):
                _pin([point.trial.trial_id])
                st.rerun()
        if theme.button("Inspect", key="tune_inspect"):
            _inspect(view.session, point.trial)


def _pair(view: _View) -> None:
    """Two tunables as a heat map."""
    family = view.family
    names = tune_points.tunables(p for p in view.found.points if family and p.family == family.name)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        if family is None or len(names) < 2:
            theme.html('<span class="foot">The heat map appears when two tunables of a variant have several values.</span>')
            return
        order = [m.tunable for m in _matters(view.known_by, family.name, view.found)] or names
        x = _select("Across", "tune_x", names, "tx", usual=order[0])
        y = _select("Down", "tune_y", [n for n in names if n != x], "ty", usual=next(n for n in [*order, *names] if n != x))
    with st.container(horizontal=True, vertical_alignment="bottom"):
        _family_box(view, family)
        of = _select("Cell", "tune_cell", _CELLS, "cell")
    words = {tune_plots.BEST: "Best median of each pair", tune_plots.MEDIAN: "Median over all other tunables",
             tune_plots.FAILED: "Share that is not right"}[of]
    theme.html(theme.heading(f"{words}: {family.name}{' *' if view.found.emulated else ''}"))
    figure = _heat(view.known_by, family.name, x, y, of, theme.mode(), view.found)
    if figure is None:
        theme.html('<span class="foot">No trial of this variant has both.</span>')
        return
    theme.chart(figure, key="tune_heat", alt=f"{words} of {family.name} over {x} and {y}")


def _family_box(view: _View, family: Family) -> None:
    there = [f.name for f in view.found.families if f.right]
    if st.session_state.get("tune_family") not in there:
        asked = address.wants("family")
        st.session_state["tune_family"] = asked if asked in there else family.name
    chosen = st.selectbox("Variant", there, key="tune_family", persist_state="session")
    address.note("family", chosen, there[0])


def _families(view: _View) -> None:
    """The best result of each variant, and the gap between the first two."""
    found = view.found
    if sentence := tune_points.gap(found):
        theme.html(f"<div>{escape(sentence)}</div>")
    best = found.right[0].ms if found.right else None
    mark = " *" if found.emulated else ""
    rows = [(f"<span class='mono nw'>{escape(f.name)}</span>",
             numbers.time(f.best.ms) + mark if f.best else numbers.MISSING,
             numbers.ratio(f.best.ms / best) if f.best and f.best.ms and best else numbers.MISSING, numbers.count(f.tried),
             numbers.count(f.tried - f.right),
             _short(f.best.config if f.best else "")) for f in found.families]
    if rows:
        theme.html(theme.heading("Variants") + theme.table(
            ("variant", "best median", "time / best time", "tried", "not right", "its best config"), rows,
            right=(1, 2, 3, 4)))


def _short(config: str) -> str:
    """A config in one line, with its full text on hover."""
    shown = config if len(config) <= _MOST_LETTERS else f"{config[:_MOST_LETTERS].rpartition(' ')[0]} …"
    return f"<span class='mono mute'{theme.hint(config) if shown != config else ''}>{escape(shown)}</span>"


def _best(view: _View) -> None:
    """The table of the fastest right trials. Selected rows can be pinned; pinned trials can be compared."""
    found = view.found
    shown = found.right[:_MOST_ROWS]
    theme.html(theme.heading("The best" if len(shown) == len(found.right) else
                             f"The best {_MOST_ROWS} of {numbers.count(len(found.right))} right trials"))
    selected: list[int] = []
    if shown:
        table, unit = _rows(view.known_by, found)
        pins = set(st.session_state["tune_pins"])
        if pins:
            table = table.copy()
            table.insert(1, "pin", ["pinned" if p.trial.trial_id in pins else None for p in shown])
        column = st.column_config
        event = st.dataframe(
            table, hide_index=True, row_height=29, height=min(11, 1 + len(shown)) * 29 + 9, key="tune_table",
            on_select="rerun", selection_mode="multi-row", placeholder="–", alt="The fastest right trials, one row each",
            column_config={
                "rank": column.NumberColumn(width=44), "pin": column.TextColumn(width=60),
                "variant": column.TextColumn(width=190), "config": column.TextColumn(width=380),
                "median": column.TextColumn(f"median, {unit}", width=86, alignment="right", help="Median of the samples, "
                                            "kernel_ms. *: on the CPU emulator, which does not predict a GPU."),
                "vs PyTorch": column.TextColumn(width=80, alignment="right", help="Time of the best PyTorch divided by this "
                                                                                  "time"),
                "of limit": column.TextColumn(width=64, alignment="right", help="Floor divided by this time"),
                "trial": column.NumberColumn(width=56, help="Found at this trial"),
                "after": column.NumberColumn("after, s", format="%.1f", width=70, help="Time since the tune began"),
                "finals": column.TextColumn(width=120, help="The best are timed again alternately; the winner is judged again "
                                                            "on new inputs and odd sizes.")})
        selected = event["selection"]["rows"] if event else []
    ids = [shown[i].trial.trial_id for i in selected if i < len(shown)]
    there = {p.trial.trial_id for p in found.right}
    pins = [i for i in st.session_state["tune_pins"] if i in there]
    address.note("pins", ",".join(st.session_state["tune_pins"]))
    with st.container(horizontal=True, vertical_alignment="center"):
        if theme.button(f"Pin {len(ids)}" if ids[1:] else "Pin", disabled=not ids, key="tune_pin_rows",
                        help="Pinned trials have a ring in the figure. Pin a trial again to unpin it." if ids else
                        "Select rows in the table"):
            _pin(ids)
            st.rerun()
        words = f"Compare {len(pins)} pinned" if pins[1:] else "Compare pinned"
        if theme.button(words, disabled=len(pins) < 2, key="tune_compare", help="Opens Compare with these trials; the others "
                        "are compared with the first" if pins[1:] else "Pin two trials or more"):
            compare_page.show(view.session, pins)
            st.switch_page(pages.page("compare"))
        if theme.button("Inspect", disabled=not ids, key="tune_inspect_row", help=None if ids else "Select a row in the table"):
            _inspect(view.session, next(p.trial for p in shown if p.trial.trial_id == ids[0]))
        if pins and theme.button("Unpin all", key="tune_unpin", type="tertiary"):
            st.session_state["tune_pins"] = []
            st.rerun()


def _closer(view: _View) -> None:
    """One of several further figures. Only the chosen one is drawn."""
    asked = address.wants("look")
    st.session_state.setdefault("tune_look", asked if asked in _LOOKS else None)
    look = st.segmented_control("Look closer", _LOOKS, key="tune_look", persist_state="session")
    address.note("look", look)
    family = view.family
    if look is None:
        return
    if family is None:
        theme.html('<span class="foot">There is no right trial yet.</span>')
        return
    mode, found = theme.mode(), view.found
    order = _matters(view.known_by, family.name, found)
    star = " *" if found.emulated else ""
    if look == _IMPORTANCE:
        figure = tune_plots.importance(order, mode=mode)
        theme.html(theme.heading(f"How much each tunable matters: {family.name}{star}"))
        words = ("The share of the variance of log time that the means of its values explain, corrected for chance. Tunables "
                 "that matter only in combination have small shares.") if figure else (
                 f"{tune_points.FEWEST} right trials of {family.name} are needed; there are {family.right}.")
    elif look == _SLICES:
        figure = _sliced(view.known_by, family.name, mode, found)
        theme.html(theme.heading(f"Median over each tunable: {family.name}{star}; the line is the best of each value"))
        words = "" if figure else "No tunable of this variant has two values yet."
    else:
        percent = st.select_slider("Best, %", _PERCENTS, key="tune_best", value=_percent(), persist_state="session",
                                   help="Only the fastest part of the right trials is drawn.")
        address.note("best", str(percent), "100")
        figure = _parallel(view.known_by, family.name, percent, mode, found)
        theme.html(theme.heading(f"Which values make it fast: {family.name}{star}. Drag along an axis to select a part of it"))
        words = tune_plots.parallel_note(found, family.name, percent) if figure else "No tunable has two values yet."
    if figure is not None:
        theme.chart(figure, key=f"tune_{look}", alt=f"{look} of the tunables of {family.name}, {found.direction}")
    if words:
        theme.html(f'<span class="foot">{escape(words)}</span>')


def _percent() -> int:
    asked = address.wants("best")
    return int(asked) if asked in map(str, _PERCENTS) else 100


def _choice(label: str, key: str, options: tuple[str, ...], name: str) -> str:
    state.seed(key, options, options[0], name=name)
    chosen = st.segmented_control(label, options, key=key, required=True, persist_state="session") or options[0]
    address.note(name, chosen, options[0])
    return chosen


def _select(label: str, key: str, options: Any, name: str, *, usual: str = "") -> str:
    usual = usual or options[0]
    state.seed(key, options, usual, name=name)
    chosen = st.selectbox(label, options, key=key, persist_state="session")
    address.note(name, chosen, usual)
    return chosen


def _pin(ids: list[str]) -> None:
    """Pin the selected trials that are not pinned, and unpin the others."""
    pins = [i for i in st.session_state["tune_pins"] if i not in ids]
    new = [i for i in ids if i not in st.session_state["tune_pins"]]
    st.session_state["tune_pins"] = [*pins, *new][-_MOST_PINS:]


def _inspect(session: str, trial: Trial) -> None:
    st.session_state["inspect_session"], st.session_state["inspect_trial"] = session, trial.trial_id
    st.switch_page(pages.page("inspect"))


@st.cache_resource(max_entries=8, show_spinner=False)
def _progress(known_by: tuple, x: str, colour: str, pins: tuple[str, ...], mode: str, _found: Tried) -> go.Figure:
    return tune_plots.progress(_found, x=x, colour=colour, chosen=pins, mode=mode)


@st.cache_resource(max_entries=8, show_spinner=False)
def _heat(known_by: tuple, family: str, x: str, y: str, of: str, mode: str, _found: Tried) -> go.Figure | None:
    return tune_plots.heat_map(_found, family, x, y, of=of, mode=mode)


@st.cache_resource(max_entries=8, show_spinner=False)
def _sliced(known_by: tuple, family: str, mode: str, _found: Tried) -> go.Figure | None:
    return tune_plots.slices(_found, family, tune_points.matters(_found, family), mode=mode)


@st.cache_resource(max_entries=8, show_spinner=False)
def _parallel(known_by: tuple, family: str, percent: int, mode: str, _found: Tried) -> go.Figure | None:
    return tune_plots.parallel(_found, family, best_percent=percent, mode=mode)


@st.cache_resource(max_entries=8, show_spinner=False)
def _matters(known_by: tuple, family: str, _found: Tried) -> list[tune_points.Matter]:
    return tune_points.matters(_found, family)


@st.cache_resource(max_entries=8, show_spinner=False)
def _rows(known_by: tuple, _found: Tried) -> tuple[Any, str]:
    """The table of the best, and the unit of its times."""
    table = tune_points.best_table(_found, most=_MOST_ROWS)
    mark = " *" if _found.emulated else ""
    unit, medians = numbers.times(list(table["median_ms"]))
    return table.assign(**{
        "median": [cell + mark for cell in medians],
        "vs PyTorch": [numbers.padded(numbers.ratio(_found.against_pytorch(p))) for p in _found.right[:_MOST_ROWS]],
        "of limit": [numbers.padded(numbers.of_limit(_found.floor_ms, ms)) for ms in table["median_ms"]],
        "after": table["after_s"], "finals": [word or None for word in table["finals"]]})[
        ["rank", "variant", "median", "vs PyTorch", "of limit", "trial", "after", "finals", "config"]], unit
