"""Charts of comparisons: the roofline, the speed-up of each layer with its limit, and heat maps of a bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import ceil, floor, log2, log10
from statistics import median

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...core import numbers
from ...core.facts import bytes_moved, flops, intensity
from ...core.layer import BACKWARD, DIRECTIONS, FORWARD, GRAD_INPUT, GRAD_WEIGHT, Workload
from ...core.presets import PRESETS, called
from ...core.roofline import Ceilings, ceilings_for, memory_seconds
from ...core.trial import Trial
from ...core.verdict import SAME, UNSURE
from ..sessions.files import clocks_of, samples_of
from . import report
from .plots import CATEGORIES, DARK, LIGHT, SYMBOLS, style, time_label

# Each direction has its own marker and its own colour, so that the chart is readable without colours.
_MARKS = {FORWARD: ("circle", "#2F6FD0", "#6FA3F5"), GRAD_INPUT: ("diamond", "#E39A00", "#F0B23E"),
          GRAD_WEIGHT: ("square", "#12917A", "#35BFA3"), BACKWARD: ("triangle-up", "#B0559B", "#D884C4")}
_GLYPHS = {FORWARD: "●", GRAD_INPUT: "◆", GRAD_WEIGHT: "■", BACKWARD: "▲"}

_VERDICTS = {report.FASTER: ("triangle-up", "#0B7A5E", "#4CC9A4"), report.SLOWER: ("triangle-down", "#B3420C", "#FF8A5C"),
             SAME: ("square", "#5B6472", "#9AA4B2"), UNSURE: ("diamond", "#6B4FC0", "#A995F5")}
_PLACES = {name: place for place, name in enumerate(PRESETS)}
_GAP = "\u00a0\u00a0\u00a0"   # pixels between a marker and its number
_MOST_SAMPLES = 300  # so many samples of each trial are drawn, evenly spaced
_HEAT = (("#D9622B", "#F1F4F9", "#1F5FBF"), ("#C2562A", "#1A212B", "#7FAEF8"))  # bad, neither, good: light, dark
_TURNS = 0.55  # from this share of the full colour on, the number is written in the background's colour
# Precision -> the name of the units that compute it, the fastest first.
_ROOFS = {"bf16": "bfloat16 tensor cores", "fp16": "float16 tensor cores", "tf32": "TF32 tensor cores", "ieee": "fp32",
          "fp64": "fp64"}


@dataclass(frozen=True)
class HeatMap:
    """One map over layers and directions. `scale`: "ratio" (1 has the middle colour, 4 and more the strongest) or "share" (from
    0 to 1). `cells`: (row, column) -> (value, text, hover)."""

    title: str
    scale: str
    cells: Mapping[tuple[str, str], tuple[float, str, str]]


@dataclass(frozen=True)
class _Point:
    """One pair in a chart: our best trial for a layer and direction, and the trial that it is compared with."""

    label: str
    workload: Workload
    direction: str
    ours: Trial
    ours_ms: float
    theirs_ms: float
    floor_ms: float | None
    ratio: float
    theirs: str


def roofline(pairs: Sequence[report.Pair], *, every: bool = False, mode: str = "light") -> go.Figure | None:
    """Grey marks are B, blue marks are A; a line connects the two of a pair. None without a GPU whose ceilings are known.
    `every`: all pairs are drawn, not only the fastest A of each layer and direction. Only the largest ratio has a label; the
    others are shown on hover.

    x: FLOP per byte, each tensor once; y: TFLOP/s."""
    points = [p for p in _points(pairs, every=every) if p.direction in DIRECTIONS]
    ceilings = ceilings_for(points[0].ours.device.name) if points else None
    if ceilings is None:
        return None
    colours = DARK if mode == "dark" else LIGHT
    figure = go.Figure()
    xs = [intensity(p.workload, p.direction) for p in points]
    _roofs(figure, points, ceilings, 0.5 * min(xs), 3 * max(xs), colours)
    for p, x in zip(points, xs, strict=True):
        work = flops(p.workload, p.direction)
        ours, theirs = (work / ms / 1e9 for ms in (p.ours_ms, p.theirs_ms))
        symbol = _MARKS[p.direction][0]
        figure.add_trace(go.Scatter(x=[x, x], y=[theirs, ours], mode="lines", hoverinfo="skip",
                                    line={"color": colours["best"], "width": 1.5}))
        for y, colour, size, who in ((theirs, colours["pytorch"], 8, "B"), (ours, colours["best"], 11, "A")):
            figure.add_trace(go.Scatter(
                x=[x], y=[y], mode="markers", marker={"symbol": symbol, "size": size, "color": colour},
                customdata=[[p.ours.trial_id]],
                hovertemplate=f"{p.label} {p.direction}, {who}: {p.ours.name if who == 'A' else p.theirs}<br>%{{y:.3g}} "
                              f"TFLOP/s at {numbers.intensity(x)}; A is {numbers.ratio(p.ratio)} as fast<extra></extra>"))
    for x, y, text in (_best_label(points, xs),):
        figure.add_annotation(x=_log(x), y=_log(y), text=text, showarrow=False, xanchor="left", xshift=9,
                              yanchor="bottom", yshift=4, bgcolor=colours["bg"], opacity=0.9,
                              font={"size": 11, "color": colours["best"]})
    style(figure, height=380, mode=mode, top=10)
    ticks = [m * 10.0**e for e in range(-3, 5) for m in (1, 2, 5)]
    figure.update_xaxes(type="log", title_text="FLOP per byte, each tensor moved once", tickvals=ticks,
                        ticktext=[f"{t:g}" for t in ticks], range=[_log(0.5 * min(xs)), _log(3 * max(xs))])
    figure.update_yaxes(type="log", title_text="TFLOP/s", tickvals=ticks, ticktext=[f"{t:g}" for t in ticks])
    return figure


def speedups(pairs: Sequence[report.Pair], *, mode: str = "light") -> go.Figure | None:
    """Rows are layers; x is B / A on a log scale. The pale bar ends at the largest ratio that the floor allows."""
    points = _points(pairs)
    if not points:
        return None
    colours = DARK if mode == "dark" else LIGHT
    rows = list(dict.fromkeys(p.label for p in sorted(points, key=_in_suite)))
    place = {label: len(rows) - 1 - i for i, label in enumerate(rows)}
    figure = go.Figure()
    lowest, highest = min(0.9, *(p.ratio for p in points)), max(2.0, *(p.ratio for p in points))
    for label in rows:
        limits = [(p.theirs_ms / p.floor_ms, p.direction) for p in points if p.label == label and p.floor_ms]
        if limits and max(limits)[0] > 1:
            limit, direction = max(limits)
            highest = max(highest, limit)
            figure.add_shape(type="rect", x0=1, x1=limit, y0=place[label] - 0.3, y1=place[label] + 0.3, layer="below",
                             line={"width": 0}, fillcolor=colours["line"])
            figure.add_annotation(x=_log(limit), y=place[label], text=f"{numbers.ratio(limit)} {_GLYPHS[direction]}",
                                  showarrow=False, xanchor="left", xshift=6, font={"size": 11, "color": colours["mute"]})
    figure.add_shape(type="line", x0=1, x1=1, y0=-0.5, y1=len(rows) - 0.5, line={"color": colours["pytorch"], "width": 1.5})
    for p in points:
        symbol, light, dark = _MARKS[p.direction]
        figure.add_trace(go.Scatter(
            x=[p.ratio], y=[place[p.label]], mode="markers", customdata=[[p.ours.trial_id]],
            marker={"symbol": symbol, "size": 10, "color": dark if mode == "dark" else light},
            hovertemplate=f"{p.label} {p.direction}: {p.ours.name} {numbers.ratio(p.ratio)}<extra></extra>"))
    style(figure, height=70 + 34 * max(3, len(rows)), mode=mode, top=10)
    steps = _ratio_ticks(0.8 * lowest, 1.6 * highest)
    figure.update_xaxes(type="log", range=[_log(0.8 * lowest), _log(1.6 * highest)], tickvals=steps,
                        ticktext=[f"{s:g}×" for s in steps], title_text="B / A: times as fast as B, log scale")
    figure.update_yaxes(tickvals=list(place.values()), ticktext=list(place), showgrid=False,
                        range=[-0.6, len(rows) - 0.4])
    return figure


def dots(pairs: Sequence[report.Pair], names: Sequence[str], *, mode: str = "light") -> go.Figure | None:
    """B / A of each pair with its 95 % interval, one row for each pair, on a log axis; None without a ratio. `names`: the label
    of each row."""
    there = [(name, pair.verdict, pair.ratio, pair.a.trial_id) for name, pair in zip(names, pairs, strict=True) if pair.ratio]
    if not there:
        return None
    colours = DARK if mode == "dark" else LIGHT
    figure = go.Figure()
    ends = [v for _, _, r, _ in there for v in (r.value, r.low, r.high) if v is not None]
    low, high = min(0.95, *ends), max(1.05, *ends)
    span = log10(high / low)
    room = 0.2 if min(ends) < 1 else 0.05  # space for the numbers, which are on the side away from 1
    low, high = 10 ** (log10(low) - room * span), 10 ** (log10(high) + 0.2 * span)
    figure.add_shape(type="line", x0=1, x1=1, y0=-0.5, y1=len(there) - 0.5, line={"color": colours["pytorch"], "width": 1.5})
    for verdict, (symbol, light, dark) in _VERDICTS.items():
        mine = [(y, name, ratio, trial) for y, (name, word, ratio, trial) in enumerate(reversed(there)) if word == verdict]
        if not mine:
            continue
        colour, values = dark if mode == "dark" else light, [r.value for _, _, r, _ in mine]
        ys, highs = [y for y, _, _, _ in mine], [r.high or r.value for _, _, r, _ in mine]
        figure.add_trace(go.Scatter(
            x=values, y=ys, mode="markers", customdata=[trial for _, _, _, trial in mine],
            marker={"symbol": symbol, "size": 10, "color": colour},
            error_x={"type": "data", "symmetric": False, "thickness": 1.5, "width": 3, "color": colour,
                     "array": [high - value for high, value in zip(highs, values, strict=True)],
                     "arrayminus": [r.value - (r.low or r.value) for _, _, r, _ in mine]},
            hovertext=[f"{name}<br>{verdict}, {report.interval_words(r)}" for _, name, r, _ in mine],
            hovertemplate="%{hovertext}<extra></extra>"))
        figure.add_trace(go.Scatter(
            x=[high if value >= 1 else r.low or value for high, value, (_, _, r, _) in zip(highs, values, mine, strict=True)],
            y=ys, mode="text", hoverinfo="skip", text=[f"{_GAP}{numbers.ratio(v)}{_GAP}" for v in values],
            textposition=["middle right" if v >= 1 else "middle left" for v in values],
            textfont={"size": 11, "color": colours["mute"]}))
    style(figure, height=70 + 24 * max(3, len(there)), mode=mode, top=10)
    steps = _ratio_ticks(low, high)
    figure.update_xaxes(type="log", range=[log10(low), log10(high)], tickvals=steps, ticktext=[f"{s:g}×" for s in steps],
                        title_text="B / A: times as fast as B, log scale")
    figure.update_yaxes(tickvals=list(range(len(there)))[::-1], ticktext=[name for name, *_ in there], showgrid=False,
                        range=[-0.6, len(there) - 0.4])
    return figure


def samples_over_time(trials: Sequence[Trial], names: Sequence[str], *, mode: str = "light") -> go.Figure | None:
    """The samples of each trial in the order in which they were taken, on a log axis; PyTorch's are grey. Below them is the
    GPU's clock, if it was recorded. None if no session has samples."""
    colours = cycle(CATEGORIES["dark" if mode == "dark" else "light"])
    grey = (DARK if mode == "dark" else LIGHT)["pytorch"]
    found = [(name, values, clocks_of(one), grey if report.is_baseline(one) else next(colours), SYMBOLS[i % len(SYMBOLS)])
             for i, (one, name) in enumerate(zip(trials, names, strict=True))
             if (values := samples_of(one.kernel_ms) if one.kernel_ms else ())]
    if not found:
        return None
    rows = 2 if any(clocks for _, _, clocks, *_ in found) else 1
    figure = make_subplots(rows, 1, shared_xaxes=True, vertical_spacing=0.06, row_heights=[0.72, 0.28][:rows])
    for name, values, clocks, colour, symbol in found:
        step = ceil(len(values) / _MOST_SAMPLES)
        places = list(range(1, len(values) + 1, step))
        figure.add_trace(go.Scatter(
            x=places, y=list(values[::step]), mode="markers", name=name, marker={"size": 5, "color": colour, "symbol": symbol,
                                                                                 "opacity": 0.75},
            customdata=list(map(numbers.time, values[::step])),
            hovertemplate=f"{name}<br>sample %{{x}}: %{{customdata}}<extra></extra>"), row=1, col=1)
        if clocks:
            figure.add_trace(go.Scatter(
                x=places, y=list(clocks[::step]), mode="lines", name=name, showlegend=False,
                line={"color": colour, "width": 1.5, "shape": "hv"},
                hovertemplate=f"{name}<br>sample %{{x}}: SM clock %{{y}} MHz<extra></extra>"), row=2, col=1)
    style(figure, height=300 if rows == 1 else 400, mode=mode, top=10 + 20 * len(found))
    lowest, highest = (f(v for _, values, *_ in found for v in values) for f in (min, max))
    steps = _ms_ticks(lowest / 1.1, highest * 1.1)
    figure.update_layout(showlegend=True, legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"})
    figure.update_xaxes(title_text="sample, in order taken", row=rows, col=1)
    figure.update_yaxes(type="log", title_text="ms, log scale", range=[log10(lowest / 1.1), log10(highest * 1.1)],
                        tickvals=steps, ticktext=list(map(time_label, steps)), row=1, col=1)
    if rows == 2:
        known = [mhz for _, _, clocks, *_ in found for mhz in clocks]
        figure.update_yaxes(title_text="SM clock, MHz", range=[0.95 * min(known), 1.02 * max(known)], nticks=4, row=2, col=1)
    return figure


def steadiness(trial: Trial) -> str:
    """ "600 samples, ±0.4 %; the last tenth takes 1.2 % longer than the first; SM clock 1 755 to 1 980 MHz" """
    timing = trial.kernel_ms
    if timing is None:
        return "not timed"
    words = [f"{numbers.count(timing.samples)} samples, {numbers.spread(timing.spread)}"]
    values = samples_of(timing)
    tenth = len(values) // 10
    if tenth >= 3:
        change = median(values[-tenth:]) / median(values[:tenth]) - 1
        words.append(f"the last tenth takes {numbers.share(abs(change), decimals=1)} {'longer' if change > 0 else 'less'} "
                     "than the first")
    if clocks := clocks_of(trial):
        low, high = numbers.count(int(min(clocks))), numbers.count(int(max(clocks)))
        words.append(f"SM clock {low} MHz" if low == high else f"SM clock {low} to {high} MHz")
    if timing.dropped:
        words.append(f"{numbers.count(timing.dropped)} more were dropped because the GPU lowered its clocks")
    if "throttled" in trial.flags:
        words.append("the GPU lowered its clocks during some samples")
    return "; ".join(words)


def heat_maps(maps: Sequence[HeatMap], rows: Sequence[str], columns: Sequence[str], *, mode: str = "light") -> go.Figure:
    """Maps side by side with shared rows; the first row is at the top. Blue is good and orange is bad; each cell shows its
    number."""
    colours = DARK if mode == "dark" else LIGHT
    low, middle, high = _HEAT[mode == "dark"]
    figure = make_subplots(1, len(maps), shared_yaxes=True, horizontal_spacing=0.02, subplot_titles=[m.title for m in maps])
    for note in figure.layout.annotations:
        note.update(font={"size": 12, "color": colours["mute"]}, yshift=38)
    for number, one in enumerate(maps, 1):
        found = [[one.cells.get((row, column)) for column in columns] for row in rows]
        ratio = one.scale == "ratio"
        figure.add_trace(go.Heatmap(
            z=[[None if c is None else log2(c[0]) if ratio else c[0] for c in line] for line in found],
            hovertext=[["" if c is None else c[2] for c in line] for line in found],
            x=list(range(len(columns))), y=list(range(len(rows))), hoverinfo="text", hoverongaps=False, xgap=2, ygap=2,
            showscale=False, zmin=-2 if ratio else 0, zmax=2 if ratio else 1,
            colorscale=[[0, low], [0.5, middle], [1, high]] if ratio else [[0, middle], [1, high]]), row=1, col=number)
        there = [(x, y, c) for y, line in enumerate(found) for x, c in enumerate(line) if c is not None]
        strong = [abs(log2(c[0])) / 2 > _TURNS if ratio else c[0] > _TURNS for _, _, c in there]
        figure.add_trace(go.Scatter(
            x=[x for x, _, _ in there], y=[y for _, y, _ in there], text=[c[1] for _, _, c in there], mode="text",
            hoverinfo="skip", textfont={"size": 11.5, "color": [colours["bg"] if s else colours["ink"] for s in strong]}),
            row=1, col=number)
    style(figure, height=92 + 25 * len(rows), mode=mode, top=66)
    figure.update_xaxes(tickvals=list(range(len(columns))), ticktext=[c.replace("_", "_<br>") for c in columns], side="top",
                        showgrid=False, ticks="", fixedrange=True)
    figure.update_yaxes(tickvals=list(range(len(rows))), ticktext=list(rows), range=[len(rows) - 0.5, -0.5], showgrid=False,
                        ticks="", fixedrange=True)
    return figure


def legend(pairs: Sequence[report.Pair]) -> str:
    """ "forward ●, grad_input ◆": the marks that the charts use."""
    there = {p.direction for p in _points(pairs)}
    return ", ".join(f"{d} {glyph}" for d, glyph in _GLYPHS.items() if d in there)


def _points(pairs: Sequence[report.Pair], *, every: bool = False) -> list[_Point]:
    """The fastest of ours per layer and direction, among the pairs that have a ratio; `every`: all of them."""
    best: dict[tuple[str, str, str], _Point] = {}
    for pair in pairs:
        ours, theirs = (report.timing_of(t, pair.clock, pair.direction) for t in (pair.a, pair.b))
        if pair.ratio is None or ours is None or theirs is None or report.is_baseline(pair.a) and not every:
            continue
        if pair.clock == "module_ms":  # module times are in the table; here they would hide the times of the kernels
            continue
        workload = pair.a.workload
        label = called(workload).removeprefix("KernelBench ")
        point = _Point(label, workload, pair.direction, pair.a, ours.median_ms, theirs.median_ms, report.floor_ms(pair.a),
                       pair.ratio.value, pair.b.name)
        key = (label, pair.direction, pair.a.trial_id if every else "")
        if key not in best or point.ours_ms < best[key].ours_ms:
            best[key] = point
    return list(best.values())


def _in_suite(point: _Point) -> int:
    """The place of its layer in the suites. Layers of no suite come last."""
    name = point.workload.preset.rpartition("/")[0]
    return _PLACES.get(name, len(_PLACES))


def _roofs(figure: go.Figure, points: Sequence[_Point], ceilings: Ceilings, x0: float, x1: float,
           colours: dict[str, str]) -> None:
    """The roofs: the slope of the memory rate, computed for the reads and writes of the first layer, and the compute rate of
    each precision."""
    traffic = bytes_moved(points[0].workload, points[0].direction)
    rate = traffic.total_bytes / memory_seconds(traffic, ceilings) / 1e12
    there = {p.ours.precision.removesuffix("x3") for p in points}
    names = [name for name in _ROOFS if name in there or name == "ieee" and "tf32" in there]  # PyTorch may compute in fp32
    roofs = [(name, _ROOFS[name], "dash" if number else "solid") for number, name in enumerate(names)]
    top = max(ceilings.flops_per_s[name] for name, _, _ in roofs) / 1e12
    corner = min(top / rate, x1)
    figure.add_trace(go.Scatter(x=[x0, corner], y=[rate * x0, rate * corner], mode="lines", hoverinfo="skip",
                                line={"color": colours["ink"], "width": 1.5}))
    figure.add_annotation(x=0.01, xref="paper", y=0.99, yref="paper", text=f"slope: memory {numbers.byte_rate(rate * 1e12)}",
                          showarrow=False, xanchor="left", yanchor="top", font={"size": 11, "color": colours["mute"]})
    for name, word, dash in roofs:
        y = ceilings.flops_per_s[name] / 1e12
        if y / rate < x1:
            figure.add_trace(go.Scatter(x=[y / rate, x1], y=[y, y], mode="lines", hoverinfo="skip",
                                        line={"color": colours["ink"], "width": 1.5, "dash": dash}))
            figure.add_annotation(x=_log(x1), y=_log(y), text=f"{word} {y:.0f} TFLOP/s", showarrow=False, xanchor="right",
                                  yanchor="bottom", font={"size": 11, "color": colours["mute"]})


def _best_label(points: Sequence[_Point], xs: Sequence[float]) -> tuple[float, float, str]:
    """The label of the largest ratio. The others are shown on hover, so that labels do not overlap."""
    p, x = max(zip(points, xs, strict=True), key=lambda found: found[0].ratio)
    return x, flops(p.workload, p.direction) / p.ours_ms / 1e9, f"{p.label} {numbers.ratio(p.ratio)}"


def _ratio_ticks(low: float, high: float) -> list[float]:
    """About ten values between two ratios: powers of two, or steps of 0.01 and more if the two are close."""
    if high / low < 3:
        step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if (high - low) / s <= 8)
        return [round(step * i, 2) for i in range(ceil(low / step), floor(high / step) + 1)]
    first, last = ceil(log2(low)), floor(log2(high))
    return [2.0**e for e in range(first, last + 1) if e % max(1, ceil((last - first) / 9)) == 0]


def _ms_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten, or finer steps if the two are close."""
    if high / low < 3:
        step = 10.0 ** floor(log10(high - low)) / 2
        return [step * i for i in range(ceil(low / step), floor(high / step) + 1)][::2 if (high - low) / step > 10 else 1]
    steps = [m * 10.0**e for e in range(floor(log10(low)), ceil(log10(high)) + 1) for m in (1, 2, 5)]
    return [step for step in steps if low <= step <= high]


def _log(value: float) -> float:
    """Plotly's annotations and ranges on a log axis are exponents."""
    return log10(value)
