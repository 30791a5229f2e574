"""Compare: two sessions side by side, trial against trial of one workload, direction, variant and config."""

from __future__ import annotations

from html import escape

import streamlit as st

from ...core import numbers
from ...core.layer import LAUNCHES, Workload
from ...drive import report
from . import state, theme

_FIRST = (report.SLOWER, report.UNSURE, "", report.FASTER, report.SAME, report.EMULATED)
_WORDS = ((report.FASTER, "the whole 95 % interval of B / A is above 1.01"),
          (report.SLOWER, "the whole interval is below 0.99"),
          (report.SAME, "the whole interval lies within 1 % of 1"),
          (report.UNSURE, "the interval crosses a border; more samples may settle it"),
          (report.EMULATED, "times of the CPU emulator say nothing about a GPU: no verdict"))


def draw() -> None:
    with st.sidebar:
        name_a = state.choose_session("Session A", key="compare_a", default=st.session_state.get("session"))
        names = [n for n in state.session_paths() if n != name_a]
        name_b = state.choose_session("Session B", key="compare_b", default=names[0] if names else None)
        directions = st.pills("Direction", LAUNCHES, default=LAUNCHES, selection_mode="multi", key="compare_pills")
        theme.html(theme.heading("What the words mean") + "".join(
            f"<div>{theme.badge(w)}<br><span class=mute>{escape(text)}</span></div>" for w, text in _WORDS))
    paths = state.session_paths()
    if not name_a or not name_b:
        theme.html(theme.strip("READY", "No session to compare yet", "Run candidates on the Workbench, or reopen a "
                               "session that was saved."))
        return
    if name_a == name_b:
        theme.html(theme.strip("READY", "A session is not compared with itself", "Choose another one for A or B; there "
                               f"{'are ' + str(len(paths)) if len(paths) > 1 else 'is only this one'} to choose from."))
        return
    pairs = report.pairs(state.trials_of(paths[name_a]), state.trials_of(paths[name_b]))
    pairs = [p for p in pairs if p.direction in (directions or LAUNCHES)]
    pairs.sort(key=lambda p: (report.is_baseline(p.a), _FIRST.index(p.verdict)))
    theme.html(_strip([p for p in pairs if not report.is_baseline(p.a)], name_a, name_b))
    if pairs:
        theme.html(theme.table(
            ("verdict", "layer", "direction", "variant", "config", "A", "A, ms", "B", "B, ms", "B / A", "95 % interval",
             "note"), [_row(p) for p in pairs], right=(6, 8, 9)))


def _strip(pairs: list[report.Pair], a: str, b: str) -> str:
    if not pairs:
        return theme.strip("READY", "These two sessions have no trial in common",
                           "A trial is matched by workload, direction, variant, precision and config.")
    count = {v: sum(p.verdict == v for p in pairs) for v in _FIRST if v}
    compared = sum(n for v, n in count.items() if v != report.EMULATED)
    evidence = f"A is {state.session_label(a)}; B is {state.session_label(b)}. B / A above 1: A is the faster one."
    if not compared:
        word = report.EMULATED if count[report.EMULATED] else "NOTE"
        return theme.strip(word, f"{len(pairs)} trials in common, none with two times that may be compared", evidence)
    word = max((report.FASTER, report.SLOWER, report.SAME, report.UNSURE), key=lambda v: count[v])
    return theme.strip(word, f"{count[report.FASTER]} of {compared} comparisons are faster in A, "
                       f"{count[report.SLOWER]} slower, {count[report.SAME]} the same, {count[report.UNSURE]} unsure",
                       evidence, badge_text=f"{word} {count[word]}")


def _row(pair: report.Pair) -> tuple[str, ...]:
    a, b, ratio = pair.a, pair.b, pair.ratio
    workload = Workload.from_json(a.workload)
    star = [" *" if report.is_emulated(t) else "" for t in (a, b)]
    timings = [report.timing_of(t, pair.clock, pair.direction) for t in (a, b)]
    times = [numbers.milliseconds(timing.median_ms) if timing else "–" for timing in timings]
    clock = "module_ms" if pair.clock == "module_ms" else ""
    return (theme.badge(pair.verdict) if pair.verdict else "–",
            f"<span class=nw>{escape(workload.preset)}</span>" if workload.preset else escape(str(workload.layer)),
            escape(pair.direction), f"<span class=nw>{escape(a.name)}</span> {escape(a.precision)}",
            f"<span class=foot>{escape(' '.join(f'{k}={v}' for k, v in a.config.items()))}</span>",
            theme.badge(str(a.status)), times[0] + star[0], theme.badge(str(b.status)), times[1] + star[1],
            f"<b>{numbers.ratio(ratio.value)}</b>" if ratio else "–",
            f"<span class=nw>{numbers.interval(ratio.low, ratio.high, ratio.value)}</span>" if ratio else "–",
            f"<span class='mute note'>{escape(' '.join(filter(None, (clock, pair.note))))}</span>")


