"""Compare: two sessions side by side, trial against trial of one workload, direction and variant."""

from __future__ import annotations

from html import escape
from pathlib import Path

import streamlit as st

from ...core import numbers
from ...core.layer import LAUNCHES
from ...core.presets import called
from ...drive.reporting import compare_plots, report
from ...drive.sessions import files
from . import address, results, state, theme

_FIRST = (report.SLOWER, report.UNSURE, "", report.FASTER, report.SAME, report.EMULATED)
_AGAINST = _BEST, _DEFAULT, _SESSION, _TRIALS = "best PyTorch", "default PyTorch", "session B", "chosen rows"
_VERDICTS = tuple(v for v in _FIRST if v)
_MOST_ROWS = 14  # on the screen at once: the charts begin below them
_WORDS = ((report.FASTER, "A is faster: the whole 95 % interval of B / A is above 1.01 "
           "(the threshold is higher if the interval is wide)"),
          (report.SLOWER, "A is slower: the whole interval is below 0.99 "
           "(the threshold is lower if the interval is wide)"),
          (report.SAME, "same time: B / A differs from 1 by at most 1 %, and the interval is narrow"),
          (report.UNSURE, "not decided: the interval is too wide; more samples can help"),
          (report.EMULATED, "no verdict, because times of the CPU emulator do not predict a GPU"))
KEYS = ("compare_a", "compare_b", "compare_against", "compare_pills", "compare_trials")  # the keys of the widgets here


def draw() -> None:
    with st.sidebar:
        name_a = state.choose_session("Session A", key="compare_a", default=st.session_state.get("session"))
        names = [n for n in state.session_paths() if n != name_a]
        chosen = _chosen_trials(name_a)
        usual = _TRIALS if chosen else _SESSION if address.wants("compare_b") else _BEST
        there = _AGAINST if chosen else _AGAINST[:3]
        if lost := address.seed("compare_against", there, usual, name="against"):
            state.not_known("comparison", lost, f"A is compared with {usual}.")
        against = st.segmented_control("A against", there, required=True, key="compare_against", width="stretch",
                                       persist_state="session") or _BEST
        address.note("against", against, _TRIALS if chosen else _BEST)
        address.note("trials", ",".join(chosen) if against == _TRIALS else "")
        name_b = state.choose_session("Session B", key="compare_b", default=names[0] if names else None) \
            if against == _SESSION else name_a
        asked = [d for d in address.wants("directions").split(",") if d in LAUNCHES]
        st.session_state.setdefault("compare_pills", asked or list(LAUNCHES))
        directions = st.pills("Direction", LAUNCHES, selection_mode="multi", key="compare_pills", persist_state="session")
        address.note("directions", ",".join(directions or LAUNCHES), ",".join(LAUNCHES))
        theme.html(theme.heading("Verdicts") + "".join(
            f"<div>{theme.badge(w)}<br><span class=mute>{escape(text)}</span></div>" for w, text in _WORDS))
    paths = state.session_paths()
    if state.dead_link():
        return
    if not name_a or not name_b:
        theme.html(theme.strip("READY", "No session to compare yet", "Run candidates on the Workbench, or reopen a "
                               "saved session."))
        return
    if against == _SESSION and name_a == name_b:
        theme.html(theme.strip("READY", "A and B are the same session", "Choose another session for A or B. "
                               f"{len(paths)} session{' is' if len(paths) == 1 else 's are'} available."))
        return
    if against == _SESSION:
        pairs, b = report.pairs(state.trials_of(paths[name_a]), state.trials_of(paths[name_b])), state.session_label(name_b)
    elif against == _TRIALS:
        by_id = {t.trial_id: t for t in state.trials_of(paths[name_a])}
        pairs = report.chosen_pairs([by_id[i] for i in chosen])
        b = f"{by_id[chosen[0]].name} {by_id[chosen[0]].direction}, the first of the chosen rows"
    else:
        pairs = _against_pytorch(str(paths[name_a]), files.stamp(paths[name_a]), against == _DEFAULT)
        b = "PyTorch in the same session, " + ("its fastest mode of the same or a stricter precision" if against == _BEST
                                               else "with default settings")
    pairs = [p for p in pairs if p.direction in (directions or LAUNCHES)]
    pairs.sort(key=lambda p: (report.is_baseline(p.a), _FIRST.index(p.verdict), -p.ratio.value if p.ratio else 0))
    theme.html(_strip([p for p in pairs if not report.is_baseline(p.a)], name_a, b, own=against != _SESSION))
    if pairs:
        _table(pairs)
        _charts(pairs)


def show(session: str, trials: list[str]) -> None:
    """What the page shows when it is opened next: that session, or those trials of it, the first of which is B."""
    st.session_state["compare_a"], st.session_state["compare_trials"] = session, trials
    st.session_state["compare_against"] = _TRIALS if trials else _BEST


def _chosen_trials(session: str) -> list[str]:
    """The ids of rows that were chosen for comparison, where the session has two of them or more."""
    asked = st.session_state.setdefault("compare_trials", [i for i in address.wants("trials").split(",") if i])
    there = {t.trial_id for t in state.trials_of(state.session_paths().get(session))} if asked else set()
    found = [i for i in asked if i in there]
    for gone in asked if address.wants("trials") else ():
        if gone not in there:
            state.not_known("trial", gone, "The other rows are compared.")
    return found if found[1:] else []


@st.cache_data(max_entries=16, show_spinner=False)
def _against_pytorch(path: str, stamp: tuple[int, int], default: bool) -> list[report.Pair]:
    """As `report.against_pytorch`; read again only when the session's file has changed."""
    return report.against_pytorch(state.trials_of(Path(path)), default=default)


def _charts(pairs: list[report.Pair]) -> None:
    mode = theme.mode()
    roof, layers = compare_plots.roofline(pairs, mode=mode), compare_plots.speedups(pairs, mode=mode)
    if layers is None:
        return
    marks = compare_plots.legend(pairs)
    grid = st.grid(2, min_column_width=470, gap="medium")
    if roof is not None:
        with grid.container():
            theme.html(theme.heading(f"Roofline: {marks}; grey is B, blue is A"))
            theme.chart(roof, key="compare_roofline", alt="TFLOP per second against FLOP per byte of each pair")
    with grid.container():
        theme.html(theme.heading(f"Speed-up per layer, kernel_ms: {marks}; bar: distance to the physical limit"))
        theme.chart(layers, key="compare_speedups", alt=_said(pairs))


def _said(pairs: list[report.Pair]) -> str:
    """The chart in a sentence."""
    best = max((p for p in pairs if p.ratio and not report.is_baseline(p.a)), key=lambda p: p.ratio.value)
    return (f"Speed-up per layer; the largest is {called(best.a.workload)} {best.direction} with "
            f"{numbers.ratio(best.ratio.value)}")


def _strip(pairs: list[report.Pair], a: str, b: str, *, own: bool) -> str:
    if not pairs and own:
        return theme.strip("READY", "This session has nothing to compare with PyTorch", "A comparison needs a right "
                           "candidate with a time, and PyTorch's time for the same layer, direction and device.")
    if not pairs:
        return theme.strip("READY", "These two sessions have no trial in common",
                           "Trials are matched by workload, direction, variant and precision. Trials with the same "
                           "config are matched first.")
    count = {v: sum(p.verdict == v for p in pairs) for v in _FIRST if v}
    compared = sum(n for v, n in count.items() if v != report.EMULATED)
    evidence = f"A is {state.session_label(a)}; B is {b}. If B / A is above 1, A is faster."
    if not compared:
        word = report.EMULATED if count[report.EMULATED] else "NOTE"
        common = f"{len(pairs)} trial{'' if len(pairs) == 1 else 's'} in common"
        return theme.strip(word, f"{common}, but no two times can be compared", evidence)
    word = max((report.FASTER, report.SLOWER, report.SAME, report.UNSURE), key=lambda v: count[v])
    return theme.strip(word, f"A is faster in {count[report.FASTER]} of {compared}, "
                       f"slower in {count[report.SLOWER]}, the same in {count[report.SAME]}, unsure in {count[report.UNSURE]}",
                       evidence, badge_text=f"{word} {count[word]}")


def _table(pairs: list[report.Pair]) -> None:
    """One row a pair; a click on a head sorts, the loupe searches. What needs a look stands first."""
    import pandas as pd  # half a second, which the page's first look need not wait for
    rows = []
    for pair in pairs:
        timings = [report.timing_of(t, pair.clock, pair.direction) for t in (pair.a, pair.b)]
        ours, theirs = (None if t is None else t.median_ms for t in timings)
        ratio = pair.ratio
        rows.append({
            "verdict": [theme.chip(pair.verdict)] if pair.verdict else [], "layer": called(pair.a.workload),
            "direction": pair.direction, "B / A": ratio.value if ratio else None, "A": _who(pair.a), "A, ms": ours,
            "B": _who(pair.b), "B, ms": theirs,
            "95 % interval": numbers.interval(ratio.low, ratio.high, ratio.value) if ratio else None,
            "note": " ".join(filter(None, ("module_ms" if pair.clock == "module_ms" else "", pair.note))),
            "config of A": " ".join(f"{k}={v}" for k, v in pair.a.config.items()) if pair.a.kind == "candidate" else ""})
    column = st.column_config
    milliseconds = {side: column.NumberColumn(width=68, format="%.4g", help=f"Median of {side[0]} in ms; kernel_ms: only the "
                                              "kernels, with allocated outputs") for side in ("A, ms", "B, ms")}
    st.dataframe(
        pd.DataFrame(rows), hide_index=True, row_height=29, height=min(_MOST_ROWS * 29 + 38, 38 + 29 * len(rows)),
        key="compare_table", placeholder="–", alt="Pairs of times, one row each, the verdict first",
        column_config={
            "verdict": results.chips("verdict", _VERDICTS, 94), "layer": column.TextColumn(width=150),
            "direction": column.TextColumn(width=84),
            "B / A": column.NumberColumn(width=64, format="%.3g×", help="The time of B over that of A: above 1, A is faster"),
            "A": column.TextColumn(width=168), "B": column.TextColumn(width=168), **milliseconds,
            "95 % interval": column.TextColumn(width=96, help="The 95 % bootstrap interval of B / A"),
            "note": column.TextColumn(width=230), "config of A": column.TextColumn(width=260)})


def _who(trial: report.Trial) -> str:
    """Name and precision; the status where it is not right, and a star where it was emulated."""
    return " ".join(filter(None, (trial.name, trial.precision, "" if trial.ok else theme.chip(str(trial.status)),
                                  "*" if report.is_emulated(trial) else "")))
