"""Compare: trials of one session or of several, side by side: with PyTorch, with a second session, or those pinned."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import streamlit as st

from ...core import numbers
from ...core.layer import LAUNCHES
from ...core.presets import called
from ...core.trial import Trial
from ...core.variants import texts_stamp
from ...drive.reporting import compare_plots, html_report, report, tables
from ...drive.sessions import files
from ...drive.sessions.recorded import has_changed
from . import address, pages, results, state, theme

if TYPE_CHECKING:
    import pandas

_AGAINST = _BEST, _DEFAULT, _SESSION, _PINS = "best PyTorch", "default PyTorch", "session B", "pinned trials"
_VERDICTS = (report.SLOWER, report.UNSURE, report.FASTER, report.SAME, report.EMULATED)
_MOST_ROWS = 14     # the most rows that are visible without scrolling; the charts are below them
_MOST_DOTS = 40
_MOST_SAMPLED = 6   # trials whose samples are drawn together
_MOST_PINS = 24
_SHOW_RATIO = "The time of B divided by the time of A. Above 1, A is faster"
_WORDS = ((report.FASTER, "A is faster: the whole 95 % interval of B / A is above 1.01 "
           "(the threshold is higher if the interval is wide)"),
          (report.SLOWER, "A is slower: the whole interval is below 0.99 "
           "(the threshold is lower if the interval is wide)"),
          (report.SAME, "same time: B / A differs from 1 by at most 1 %, and the interval is narrow"),
          (report.UNSURE, "not decided: the interval is too wide; more samples can help"),
          (report.EMULATED, "no verdict, because times of the CPU emulator do not predict a GPU"))
KEYS = ("compare_a", "compare_b", "compare_against", "compare_pills", "compare_trials", "compare_from", "compare_layers",
        "compare_base", "compare_only ", "compare_table", "compare linked rows")  # the keys of the widgets here
_MORE = {"status": "Status", "variant": "Variant", "precision": "Precision", "device": "Device"}  # filters of A


class _Ref(NamedTuple):
    """A trial by its session's name and its id; `session:id` in the address."""

    session: str
    trial: str

    def __str__(self) -> str:
        return ":".join(self)


def draw() -> None:
    with st.sidebar:
        against, (name_a, name_b), pins = _choices()
        filters = st.container()
        theme.html(theme.heading("Verdicts") + "".join(
            f"<div>{theme.badge(w)}<br><span class=mute>{escape(text)}</span></div>" for w, text in _WORDS))
    paths = state.session_paths()
    if state.dead_link():
        return
    if against == _PINS:
        pairs, a = report.chosen_pairs(list(pins.values())), "each pinned trial"
        first = next(iter(pins), None)
        b = f"{pins[first].name} {pins[first].direction} of {state.session_label(first.session)}" if first else ""
    elif not name_a or not name_b:
        theme.html(theme.strip("READY", "No session to compare yet", "Run candidates on the Workbench, or reopen a "
                               "saved session."))
        return
    elif against == _SESSION and name_a == name_b:
        theme.html(theme.strip("READY", "A and B are the same session", "Choose another session for A or B. "
                               f"{len(paths)} session{' is' if len(paths) == 1 else 's are'} available."))
        return
    elif against == _SESSION:
        pairs = report.pairs(state.trials_of(paths[name_a]), state.trials_of(paths[name_b]))
        a, b = state.session_label(name_a), state.session_label(name_b)
    else:
        pairs = _against_pytorch(str(paths[name_a]), files.stamp(paths[name_a]), against == _DEFAULT)
        a, b = state.session_label(name_a), "PyTorch in the same session, " + (
            "its fastest mode of the same or a stricter precision" if against == _BEST else "with default settings")
    with filters:
        only = _filters([p.a for p in pairs] if against != _PINS else
                        [t for session in _sources(name_a) for t in state.trials_of(paths.get(session))])
    pairs = tables.in_order((p for p in pairs if p.direction in only.directions and called(p.a.workload) in only.layers
                             and only.lets(p.a)), baselines_last=against != _PINS)
    counted = pairs if against == _PINS else [p for p in pairs if not report.is_baseline(p.a)]
    strip = _strip(counted, f"A is {a}; B is {b}.", against)
    earlier = _of_earlier_text([t for p in pairs for t in (p.a, p.b)])
    of = f"templates of {len(earlier)} trials have" if earlier[1:] else "template of one trial has"
    note = f" The {of} changed since; see the column note." if earlier else ""
    theme.html(theme.strip(*strip[:2], strip[2] + note, badge_text=strip[3], more_badges=["CHANGED"] if earlier else []))
    if against == _PINS:
        _picker(name_a, pins, only)
    if pairs:
        state.title(f"{theme.mark(strip[0])[0]} {strip[3] or strip[0]}, Compare")
        _shown(pairs, against, list(pins.values()), strip, earlier)


@st.fragment
def _shown(pairs: list[report.Pair], against: str, pins: list[Trial], strip: tuple[str, str, str, str | None],
           earlier: list[str]) -> None:
    """Table and charts. Selecting a row redraws only these."""
    chosen = _table(pairs, against, earlier)
    _actions(pairs, chosen, against, strip)
    _charts(pairs, against, chosen, pins)
    address.again("compare", "rows")


def _of_earlier_text(trials: Sequence[Trial]) -> list[str]:
    """The ids of the trials whose template has changed since. Recorded sessions are left out: a test ensures that the shipped
    templates still give their sources."""
    mine = {t.trial_id: t for t in trials if t.kind == "candidate" and not Path(t.kept_in).name.startswith("recorded-")}
    return _changed(tuple(mine), texts_stamp(), list(mine.values()))


@st.cache_resource(max_entries=16, show_spinner=False)
def _changed(known_by: tuple[str, ...], texts: tuple, _trials: list[Trial]) -> list[str]:
    """Only one trial of each variant and run is looked at, because a run reads each template once."""
    found: dict[tuple[str, ...], bool] = {}
    for t in _trials:
        key = (t.kept_in, t.run_id, t.name, t.direction, t.precision)
        if key not in found:
            found[key] = has_changed(t)
    return [t.trial_id for t in _trials if found[t.kept_in, t.run_id, t.name, t.direction, t.precision]]


def show(session: str, trials: list[str]) -> None:
    """Set what the page shows when it is next opened: that session, or those of its trials; the first trial is then B."""
    st.session_state["compare_a"] = session
    st.session_state["compare_trials"] = [str(_Ref(session, trial)) for trial in trials]
    st.session_state["compare_against"] = _PINS if trials else _BEST
    for key in ("compare_base", "compare_from"):
        st.session_state.pop(key, None)


def _choices() -> tuple[str, tuple[str, str], dict[_Ref, Trial]]:
    """The choices: what A is compared with, the two sessions, and the pinned trials. The first pinned trial is the one with
    which the others are compared."""
    asked = [i for i in address.wants("trials").split(",") if i]
    usual = _PINS if asked or st.session_state.get("compare_trials") else _SESSION if address.wants("compare_b") else _BEST
    if lost := address.seed("compare_against", _AGAINST, usual, name="against"):
        state.not_known("comparison", lost, f"A is compared with {usual}.")
    against = st.segmented_control("Compare with", _AGAINST, required=True, key="compare_against", width="stretch",
                                   persist_state="session") or _BEST
    address.note("against", against, _BEST)
    name_a = state.choose_session("Trials from" if against == _PINS else "Session A", key="compare_a",
                                  default=st.session_state.get("session"))
    names = [n for n in state.session_paths() if n != name_a]
    pins = _pins(name_a, asked)
    address.note("trials", ",".join(map(str, pins)) if against == _PINS else "")
    if against != _PINS:
        return against, (name_a, state.choose_session("Session B", key="compare_b", default=names[0] if names else None)
                         if against == _SESSION else name_a), pins
    linked = address.wants_all("from")
    st.session_state["compare_from"] = [n for n in st.session_state.get("compare_from", linked) if n in names]
    more = st.multiselect("and from", names, key="compare_from", persist_state="session", placeholder="no other session",
                          format_func=state.session_labels(names).get)
    address.note("from", more)
    if pins:
        options = list(map(str, pins))
        labels = state.distinct({str(r): _called(t, r.session) for r, t in pins.items()})
        state.seed("compare_base", options, options[0], name="base", what="trial", shown=labels[options[0]])
        base = st.selectbox("Compare with the trial", options, key="compare_base", persist_state="session",
                            format_func=labels.get)
        address.note("base", base, options[0])
        pins = dict(sorted(pins.items(), key=lambda pin: str(pin[0]) != base))
        if theme.button("Unpin all", key="compare_unpin", width="stretch"):
            st.session_state["compare_trials"] = []
            st.rerun()
    return against, (name_a, name_a), pins


def _sources(name_a: str) -> list[str]:
    """The sessions whose trials can be pinned."""
    return [name_a, *st.session_state.get("compare_from", [])] if name_a else []


def _pins(session: str, asked: Sequence[str]) -> dict[_Ref, Trial]:
    """The pinned trials that exist. If a link names another one, the page reports it."""
    kept = st.session_state.setdefault("compare_trials", list(asked))
    paths = state.session_paths()
    found: dict[_Ref, Trial] = {}
    by_id: dict[str, dict[str, Trial]] = {}
    for word in kept:
        name, _, trial = word.rpartition(":")
        ref = _Ref(name or session, trial)
        if ref.session not in by_id:
            by_id[ref.session] = {t.trial_id: t for t in state.trials_of(paths.get(ref.session))}
        if trial in by_id[ref.session]:
            found[ref] = by_id[ref.session][trial]
        elif asked:
            state.not_known("trial", word, "The page compares the other trials.")
    st.session_state["compare_trials"] = list(map(str, found))
    return found


def _called(trial: Trial, session: str) -> str:
    config = " ".join(f"{k}={v}" for k, v in trial.config.items())
    return f"{_who(trial)} {trial.direction}, {called(trial.workload)} · {state.session_label(session)} {config}"


class _Only(NamedTuple):
    """What is shown. `others`: filter -> its chosen values; a filter without any lets all trials through."""

    directions: list[str]
    layers: set[str]
    others: dict[str, list[str]]

    def lets(self, trial: Trial) -> bool:
        return all(_value(trial, name) in chosen for name, chosen in self.others.items() if chosen)


def _value(trial: Trial, name: str) -> str:
    """The value of a trial for one of the filters `_MORE`."""
    return {"status": str(trial.status), "variant": trial.name, "precision": trial.precision,
            "device": trial.device.name}[name]


def _filters(trials: Sequence[Trial]) -> _Only:
    """The choices of the filters. A filter with one value is not drawn."""
    asked = [d for d in address.wants("directions").split(",") if d in LAUNCHES]
    st.session_state.setdefault("compare_pills", asked or list(LAUNCHES))
    directions = st.pills("Direction", LAUNCHES, selection_mode="multi", key="compare_pills", persist_state="session")
    address.note("directions", ",".join(directions or LAUNCHES), ",".join(LAUNCHES))
    names = list(dict.fromkeys(called(t.workload) for t in trials))
    layers = state.some("Layers", names, key="compare_layers", name="layer", alone=True)
    others = {name: state.some(label, [_value(t, name) for t in trials], key=f"compare_only {name}", name=name)
              for name, label in _MORE.items()}
    return _Only(directions or list(LAUNCHES), set(layers or names), others)


@st.cache_data(max_entries=16, show_spinner=False)
def _against_pytorch(path: str, stamp: tuple[int, int], default: bool) -> list[report.Pair]:
    """The result of `report.against_pytorch`. It is computed again only if the session's file has changed."""
    return report.against_pytorch(state.trials_of(Path(path)), default=default)


@st.fragment
def _picker(name_a: str, pins: dict[_Ref, Trial], only: _Only) -> None:
    """Every trial of the chosen sessions, to be pinned."""
    paths = state.session_paths()
    with st.expander("Pin trials", expanded=len(pins) < 2):
        sources = [n for n in _sources(name_a) if n in paths]
        known_by = tuple((str(paths[n]), files.stamp(paths[n])) for n in sources)
        table, unit = _all_trials(known_by, tuple(sources))
        table = table[table["direction"].isin(only.directions) & table["layer"].isin(only.layers)]
        for name, chosen in only.others.items():
            words = list(map(theme.chip, chosen)) if name == "status" else chosen
            values = table[name].str[0] if name == "status" else table[name]
            table = table[values.isin(words)] if chosen else table
        column = st.column_config
        event = st.dataframe(
            table, hide_index=True, row_height=29, height=min(11, 1 + len(table)) * 29 + 9, key="compare_picker",
            on_select="rerun", selection_mode="multi-row", placeholder="–", alt="All trials, one row each",
            column_config={
                "session": column.TextColumn(width=140), "status": results.chips("status", _statuses(), 124),
                "layer": column.TextColumn(width=150), "direction": column.TextColumn(width=84),
                "variant": column.TextColumn(width=180), "precision": column.TextColumn(width=62),
                "median": column.TextColumn(f"median, {unit}", width=76, alignment="right", help="ModelNew: module_ms"),
                "vs PyTorch": column.NumberColumn(width=74, format="%.2f×", help="Time of the best PyTorch divided by this "
                                                                                 "time"),
                "of limit": column.NumberColumn(width=64, format="%d %%", help="Floor divided by this time"),
                "config": column.TextColumn(width=260), "device": column.TextColumn(width=120), "ref": None})
        rows = [r for r in (event["selection"]["rows"] if event else []) if r < len(table)]
        refs = list(dict.fromkeys(table["ref"].iloc[r] for r in rows))
        new = [r for r in refs if r not in map(str, pins)]
        with st.container(horizontal=True, vertical_alignment="center"):
            if theme.button(f"Pin {len(new)}" if new[1:] else "Pin", key="compare_pin", disabled=not new, type="primary"):
                st.session_state["compare_trials"] = [*map(str, pins), *new][:_MOST_PINS]
                st.rerun()
            old = [r for r in refs if r in map(str, pins)]
            if old and theme.button(f"Unpin {len(old)}" if old[1:] else "Unpin", key="compare_unpin_rows"):
                st.session_state["compare_trials"] = [str(r) for r in pins if str(r) not in old]
                st.rerun()
            theme.html(f'<span class="foot">{len(pins)} pinned, {_MOST_PINS} at most. Select rows of any session. Click a '
                       "column head to sort, the magnifier to search.</span>")


def _statuses() -> list[str]:
    from ...core.trial import Status
    return [str(s) for s in Status]


@st.cache_resource(max_entries=8, show_spinner=False)  # 10 000 trials take a second
def _all_trials(known_by: tuple, names: tuple[str, ...]) -> tuple[pandas.DataFrame, str]:
    """The table, and the unit of its times."""
    import pandas as pd
    parts = []
    for (path, _), name in zip(known_by, names, strict=True):
        trials = state.trials_of(Path(path))
        layers = {t.trial_id: called(t.workload) for t in trials}
        devices = {t.trial_id: t.device.name for t in trials}
        frame = report.frame(trials)
        parts.append(pd.DataFrame({
            "session": state.session_label(name), "status": [[theme.chip(s)] for s in frame["status"]],
            "layer": frame["trial_id"].map(layers), "direction": frame["direction"], "variant": frame["variant"],
            "precision": frame["precision"], "median": frame["median_ms"],
            "vs PyTorch": pd.to_numeric(frame["speedup"]), "of limit": pd.to_numeric(frame["of_limit"]),
            "config": frame["config"], "device": frame["trial_id"].map(devices),
            "ref": [str(_Ref(name, i)) for i in frame["trial_id"]]}))
    if not parts:
        return pd.DataFrame(columns=["status", "layer", "direction", "variant", "precision", "device", "ref"]), "ms"
    table = pd.concat(parts, ignore_index=True)
    times = [None if pd.isna(ms) else ms for ms in table["median"]]
    unit, cells = numbers.times(times)
    table["median"] = [ms and cell for ms, cell in zip(times, cells, strict=True)]
    return table, unit


def _charts(pairs: list[report.Pair], against: str, chosen: list[report.Pair], pins: list[Trial]) -> None:
    mode, every = theme.mode(), against == _PINS
    grid = st.grid(2, min_column_width=470, gap="medium")
    shown = [p for p in pairs if p.ratio][:_MOST_DOTS]
    figure = compare_plots.dots(shown, [html_report.row_name(p) for p in shown], mode=mode)
    if figure is not None:
        some = f", the first {_MOST_DOTS} rows of the table" if sum(p.ratio is not None for p in pairs) > _MOST_DOTS else ""
        with grid.container():
            theme.html(theme.heading(f"B / A with its 95 % interval{some}"))
            theme.chart(figure, key="compare_dots", alt=f"B / A of {len(shown)} pairs with intervals")
    roof = compare_plots.roofline(pairs, every=every, mode=mode)
    marks = compare_plots.legend(pairs)
    with grid.container():
        if roof is not None:
            theme.html(theme.heading(f"Roofline: {marks}; grey is B, blue is A"))
            theme.chart(roof, key="compare_roofline", alt="TFLOP per second against FLOP per byte of each pair")
        layers = compare_plots.speedups(pairs, mode=mode)
        if layers is not None and len({p.a.workload.key for p in pairs}) > 1:
            theme.html(theme.heading(f"Speed-up per layer, kernel_ms: {marks}; bar: distance to the physical limit"))
            theme.chart(layers, key="compare_speedups", alt=_said(pairs))
    _samples(list({t.trial_id: t for p in chosen for t in (p.b, p.a)}.values()) or (pins if every else []))


def _samples(trials: Sequence[Trial]) -> None:
    """The samples of some trials in the order taken, and what happened to the clocks meanwhile."""
    if not trials:
        theme.html('<span class="foot">Select rows of the table to see their samples in the order taken.</span>')
        return
    some = trials[:_MOST_SAMPLED]
    names = [html_report.trial_name(t) for t in some]
    names = [n if names.count(n) == 1 else f"{n} {t.direction} {t.trial_id[:4]}" for n, t in zip(names, some, strict=True)]
    figure = compare_plots.samples_over_time(some, names, mode=theme.mode())
    more = f" of the first {_MOST_SAMPLED} trials" if len(trials) > _MOST_SAMPLED else ""
    theme.html(theme.heading(f"Samples in the order taken{more}"))
    if figure is not None:
        theme.chart(figure, key="compare_samples", alt=f"Timing samples of {', '.join(names)}")
    theme.html("".join(f"<div class=foot><b>{escape(n)}</b>: {escape(compare_plots.steadiness(t))}"
                       f"{'' if files.samples_of(t.kernel_ms) else '; its samples are not in the session'}</div>"
                       for n, t in zip(names, some, strict=True) if t.kernel_ms))


def _said(pairs: list[report.Pair]) -> str:
    """The chart in a sentence."""
    best = max((p for p in pairs if p.ratio), key=lambda p: p.ratio.value if p.ratio else 0.0)
    return (f"Speed-up per layer; the largest is {called(best.a.workload)} {best.direction} with "
            f"{numbers.ratio(best.ratio.value if best.ratio else None)}")


def _strip(pairs: list[report.Pair], sides: str, against: str) -> tuple[str, str, str, str | None]:
    """The parts of the status line: badge, sentence, evidence, and the text of the badge."""
    if not pairs and against == _PINS:
        return ("READY", "Pin two trials or more", "Choose them in the table below. They may be of several sessions. Each is "
                "compared with the first.", None)
    if not pairs and against != _SESSION:
        return ("READY", "This session has nothing to compare with PyTorch", "A comparison needs a right "
                "candidate with a time, and PyTorch's time for the same layer, direction and device.", None)
    if not pairs:
        return ("READY", "These two sessions have no trial in common",
                "Trials are matched by workload, direction, variant and precision. Trials with the same "
                "config are matched first.", None)
    word, sentence = tables.counted(pairs)
    same = sum(p.verdict == word for p in pairs)
    return (word, sentence, f"{sides} If B / A is above 1, A is faster.",
            None if word in ("NOTE", report.EMULATED) else f"{word} {same}")


def _table(pairs: list[report.Pair], against: str, earlier: list[str]) -> list[report.Pair]:
    """The table with one row for each pair, which can be sorted and searched. SLOWER and UNSURE pairs are first. Returns the
    selected pairs. `earlier`: ids of trials whose template has changed since."""
    import pandas as pd  # imported here, because it takes half a second that the first view does not need
    rows, records, changed = [], tables.pair_records(pairs), set(earlier)
    unit, times = numbers.times([r[side] for side in ("a_ms", "b_ms") for r in records])
    for pair, r, ours, theirs in zip(pairs, records, times[:len(records)], times[len(records):], strict=True):
        share = r["floor_ms"] / r["a_ms"] if r["floor_ms"] and r["a_ms"] else None
        rows.append({
            "verdict": [theme.chip(pair.verdict)] if pair.verdict else [], "layer": r["layer"],
            "direction": r["direction"], "B / A": r["ratio"], "A": _who(pair.a), "time of A": r["a_ms"] and ours,
            "B": _who(pair.b), "time of B": r["b_ms"] and theirs,
            "95 % interval": numbers.padded(numbers.interval(r["low"], r["high"], r["ratio"])) if pair.ratio else None,
            "of floor": 100 * share if share else None,
            "note": ". ".join(filter(None, ("module_ms" if pair.clock == "module_ms" else "", pair.note, *(
                f"the template of {side} has changed since" for side, t in (("A", pair.a), ("B", pair.b))
                if t.trial_id in changed)))),
            "session of A": state.session_label(r["a_session"]) if against == _PINS else None,
            "config of A": r["a_config"] if pair.a.kind == "candidate" else ""})
    column = st.column_config
    medians = {f"time of {side}": column.TextColumn(f"{side}, {unit}", width=68, alignment="right", help=f"Median of {side}; "
                                                    "kernel_ms: only the kernels, with allocated outputs") for side in "AB"}
    event = st.dataframe(
        pd.DataFrame(rows), hide_index=True, row_height=29, height=min(_MOST_ROWS * 29 + 38, 38 + 29 * len(rows)),
        key="compare_table", placeholder="–", alt="Pairs of times, one row each, the verdict first", on_select="rerun",
        selection_mode="multi-row", selection_default=_linked_rows(pairs),
        column_config={
            "verdict": results.chips("verdict", _VERDICTS, 94), "layer": column.TextColumn(width=150),
            "direction": column.TextColumn(width=84),
            "B / A": column.NumberColumn(width=64, format="%.2f×", help=_SHOW_RATIO),
            "A": column.TextColumn(width=168), "B": column.TextColumn(width=168), **medians,
            "95 % interval": column.TextColumn(width=112, alignment="right", help="The 95 % bootstrap interval of B / A"),
            "of floor": column.NumberColumn(width=64, format="%d %%", help="Floor (shortest time that the GPU allows) divided "
                                            "by the time of A"),
            "session of A": column.TextColumn(width=140) if against == _PINS else None,
            "note": column.TextColumn(width=230), "config of A": column.TextColumn(width=260)})
    chosen = [pairs[r] for r in (event["selection"]["rows"] if event else []) if r < len(pairs)]
    address.note("rows", ",".join(map(_word, chosen)))
    return chosen


def _linked_rows(pairs: list[report.Pair]) -> dict[str, Any]:
    """The rows that the link selects. They are looked up once, because later ones would replace what was selected since."""
    asked = address.wants("rows").split(",")
    default: dict[str, Any] = st.session_state.setdefault("compare linked rows", {"selection": {"rows": [
        number for number, pair in enumerate(pairs) if _word(pair) in asked]}})
    return default


def _word(pair: report.Pair) -> str:
    """A row in the address."""
    return f"{pair.a.trial_id}.{pair.direction}"


def _actions(pairs: list[report.Pair], chosen: list[report.Pair], against: str,
             strip: tuple[str, str, str, str | None]) -> None:
    """The buttons for the rows: inspect one, pin some, download all."""
    records = tables.pair_records(pairs)
    with st.container(horizontal=True, vertical_alignment="center"):
        if theme.button("Inspect A", key="compare_inspect", disabled=not chosen or report.is_baseline(chosen[0].a),
                        help="Select a row of a candidate in the table"):
            session = tables.pair_records(chosen[:1])[0]["a_session"]
            st.session_state["inspect_session"], st.session_state["inspect_trial"] = session, chosen[0].a.trial_id
            st.switch_page(pages.page("inspect"))
        if against != _PINS and theme.button("Pin", key="compare_pin_rows", disabled=not chosen,
                                             help="Pins A and B of the selected rows; they can be compared with trials of any "
                                                  "session"):
            refs = [str(_Ref(r[f"{side}_session"], r[f"{side}_trial"])) for r in tables.pair_records(chosen) for side in "ba"]
            st.session_state["compare_trials"] = list(dict.fromkeys([*st.session_state["compare_trials"], *refs]))[:_MOST_PINS]
            st.toast(f"{len(st.session_state['compare_trials'])} trials are pinned. “pinned trials” on the left compares them.")
        st.download_button("CSV", tables.csv_text(records), key="compare_csv", file_name="compare.csv", mime="text/csv",
                           on_click="ignore")
        st.download_button("JSON", json.dumps(records, indent=1), key="compare_json", file_name="compare.json",
                           mime="application/json", on_click="ignore")
        st.download_button("HTML report", lambda: html_report.of_pairs(pairs, "Comparison", strip[:3], every=against == _PINS),
                           key="compare_html", file_name="compare.html", mime="text/html", on_click="ignore",
                           help="One HTML file with the table and the figures. It needs no network, so you can send it by mail")


def _who(trial: Trial) -> str:
    """Name and precision, the status if it is not right, and a star if it was emulated."""
    return " ".join(filter(None, (trial.name, trial.precision, "" if trial.ok else theme.chip(str(trial.status)),
                                  "*" if report.is_emulated(trial) else "")))
