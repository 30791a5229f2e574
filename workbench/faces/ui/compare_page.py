"""Compare: two sessions side by side, trial against trial of one workload, direction and variant."""

from __future__ import annotations

from html import escape
from math import log

import streamlit as st

from ...core import numbers
from ...core.layer import LAUNCHES
from ...core.presets import called
from ...drive.reporting import compare_plots, report
from . import address, state, theme

_FIRST = (report.SLOWER, report.UNSURE, "", report.FASTER, report.SAME, report.EMULATED)
_LEAST, _MOST = 0.5, 8.0   # of the dots' scale
_BOX = "position:relative;width:150px;height:14px;margin:0 14px"
_AGAINST = _BEST, _DEFAULT, _SESSION = "best PyTorch", "default PyTorch", "session B"
_WORDS = ((report.FASTER, "A is faster: the whole 95 % interval of B / A is above 1.01 "
           "(the threshold is higher if the interval is wide)"),
          (report.SLOWER, "A is slower: the whole interval is below 0.99 "
           "(the threshold is lower if the interval is wide)"),
          (report.SAME, "same time: B / A differs from 1 by at most 1 %, and the interval is narrow"),
          (report.UNSURE, "not decided: the interval is too wide; more samples can help"),
          (report.EMULATED, "no verdict, because times of the CPU emulator do not predict a GPU"))
KEYS = ("compare_a", "compare_b", "compare_against", "compare_pills")  # the keys of the widgets here


def draw() -> None:
    with st.sidebar:
        name_a = state.choose_session("Session A", key="compare_a", default=st.session_state.get("session"))
        names = [n for n in state.session_paths() if n != name_a]
        usual = _SESSION if address.wants("compare_b") else _BEST
        if lost := address.seed("compare_against", _AGAINST, usual, name="against"):
            state.not_known("comparison", lost, f"A is compared with {usual}.")
        against = st.segmented_control("A against", _AGAINST, required=True, key="compare_against", width="stretch",
                                       persist_state="session") or _BEST
        address.note("against", against, _BEST)
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
    else:
        pairs = report.against_pytorch(state.trials_of(paths[name_a]), default=against == _DEFAULT)
        b = "PyTorch in the same session, " + ("its fastest mode of the same or a stricter precision" if against == _BEST
                                               else "with default settings")
    pairs = [p for p in pairs if p.direction in (directions or LAUNCHES)]
    pairs.sort(key=lambda p: (report.is_baseline(p.a), _FIRST.index(p.verdict), -p.ratio.value if p.ratio else 0))
    theme.html(_strip([p for p in pairs if not report.is_baseline(p.a)], name_a, b, own=against != _SESSION))
    if pairs:
        theme.html(theme.table(
            ("verdict", "layer", "direction", "A", "ms", "B", "ms", "B / A", "95 % interval", _SCALE, "note"),
            [_row(p) for p in pairs], right=(4, 6, 7), plain=(9,)))
        _charts(pairs)


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


def _row(pair: report.Pair) -> tuple[str, ...]:
    a, b, ratio = pair.a, pair.b, pair.ratio
    workload = a.workload
    timings = [report.timing_of(t, pair.clock, pair.direction) for t in (a, b)]
    times = [(numbers.milliseconds(timing.median_ms) if timing else "–") + (" *" if report.is_emulated(t) else "")
             for t, timing in zip((a, b), timings, strict=True)]
    clock = "module_ms" if pair.clock == "module_ms" else ""
    return (theme.badge(pair.verdict) if pair.verdict else "–",
            f"<span class=nw>{escape(called(workload))}</span>" if workload.preset else escape(called(workload)),
            escape(pair.direction), _who(a), times[0], _who(b), times[1],
            f"<b>{numbers.ratio(ratio.value)}</b>" if ratio else "–",
            f"<span class=nw>{numbers.interval(ratio.low, ratio.high, ratio.value)}</span>" if ratio else "–",
            _dot(pair), f"<span class='mute'>{escape(' '.join(filter(None, (clock, pair.note))))}</span>")


def _who(trial: report.Trial) -> str:
    """Name and precision, the config where the pointer rests; the status where it is not right."""
    config = " ".join(f"{k}={v}" for k, v in trial.config.items()) if trial.kind == "candidate" else ""
    wrong = "" if trial.ok else f" {theme.badge(str(trial.status))}"
    return (f"<span title='{escape(config, quote=True)}'>{escape(trial.name)} <span class=mute>{escape(trial.precision)}"
            f"</span></span>{wrong}")


def _dot(pair: report.Pair) -> str:
    """Ratio and interval on a log scale from 0.5× to 8×, in the verdict's colour, with a tick at 1×."""
    if pair.ratio is None:
        return ""
    value, low, high = (_at(v) for v in (pair.ratio.value, pair.ratio.low or pair.ratio.value,
                                         pair.ratio.high or pair.ratio.value))
    colour = {"good": "--good", "bad": "--bad", "uns": "--uns"}.get(theme.mark(pair.verdict)[1], "--mute")
    line = f"position:absolute;background:var({colour})"
    return (f"<div style='{_BOX}'>"
            f"<i style='position:absolute;left:{_at(1.0):.1f}%;top:0;height:14px;width:1px;background:var(--mute)'></i>"
            f"<i style='{line};left:{low:.1f}%;width:{high - low:.1f}%;top:6px;height:2px'></i>"
            f"<i style='{line};left:calc({value:.1f}% - 4px);top:3px;height:8px;width:8px;border-radius:4px'></i></div>")


def _at(ratio: float) -> float:
    """Percent of the scale's width; what lies beyond stands at its end."""
    return 100 * min(1.0, max(0.0, log(ratio / _LEAST) / log(_MOST / _LEAST))) if ratio > 0 else 0.0


_SCALE = f"<div style='{_BOX}'>" + "".join(
    f"<span style='position:absolute;left:{_at(v):.1f}%;transform:translateX(-50%)'>{v:g}×</span>"
    for v in (0.5, 1, 2, 4, 8)) + "</div>"
