"""Charts of comparisons: the roofline, the speed-up of each layer with its limit, and heat maps of a bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2, log10

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...core import numbers
from ...core.ceilings import ceilings_for
from ...core.facts import bytes_moved, flops, intensity
from ...core.layer import BACKWARD, DIRECTIONS, FORWARD, GRAD_INPUT, GRAD_WEIGHT, Workload
from ...core.presets import called
from ...core.roofline import Ceilings, memory_seconds
from ...core.trial import Trial
from . import report
from .plots import DARK, LIGHT, style

# Marker and colour by direction; colour is never the only carrier.
_MARKS = {FORWARD: ("circle", "#2F6FD0", "#6FA3F5"), GRAD_INPUT: ("diamond", "#E39A00", "#F0B23E"),
          GRAD_WEIGHT: ("square", "#12917A", "#35BFA3"), BACKWARD: ("triangle-up", "#B0559B", "#D884C4")}
_GLYPHS = {FORWARD: "●", GRAD_INPUT: "◆", GRAD_WEIGHT: "■", BACKWARD: "▲"}

_HEAT = (("#D9622B", "#F1F4F9", "#1F5FBF"), ("#C2562A", "#1A212B", "#7FAEF8"))  # bad, neither, good: light, dark
_TURNS = 0.55  # of the way to a strong colour: from there on the number is written in the background's colour
_MOST_LABELS, _ROOM_X, _ROOM_Y = 5, 0.6, 0.12   # of the roofline; what a label covers, in powers of ten


@dataclass(frozen=True)
class HeatMap:
    """One map over layers and directions. `scale`: "ratio" (1 is the middle, 4 and more the end) or "share" (of 1).
    `cells`: (row, column) -> (value, text, hover)."""

    title: str
    scale: str
    cells: Mapping[tuple[str, str], tuple[float, str, str]]


@dataclass(frozen=True)
class _Point:
    """The best of ours for one layer and direction, beside what it is compared with."""

    label: str
    workload: Workload
    direction: str
    ours: Trial
    ours_ms: float
    theirs_ms: float
    floor_ms: float | None
    ratio: float


def roofline(pairs: Sequence[report.Pair], *, mode: str = "light") -> go.Figure | None:
    """Grey dots are B, blue diamonds A, a line between the two; None without a GPU whose ceilings are known.

    x: FLOP per byte, each tensor once; y: TFLOP/s."""
    points = [p for p in _points(pairs) if p.direction in DIRECTIONS]
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
                hovertemplate=f"{p.label} {p.direction}, {who}: %{{y:.3g}} TFLOP/s at {numbers.intensity(x)}<extra></extra>"))
    for x, y, text in _labels(points, xs):
        figure.add_annotation(x=_log(x), y=_log(y), text=text, showarrow=False, xanchor="left", xshift=9,
                              yanchor="bottom", bgcolor=colours["bg"], opacity=0.9, font={"size": 11, "color": colours["best"]})
    style(figure, height=380, mode=mode, top=10)
    ticks = [m * 10.0**e for e in range(-3, 5) for m in (1, 2, 5)]
    figure.update_xaxes(type="log", title_text="FLOP per byte, each tensor moved once", tickvals=ticks,
                        ticktext=[f"{t:g}" for t in ticks], range=[_log(0.5 * min(xs)), _log(3 * max(xs))])
    figure.update_yaxes(type="log", title_text="TFLOP/s", tickvals=ticks, ticktext=[f"{t:g}" for t in ticks])
    return figure


def speedups(pairs: Sequence[report.Pair], *, mode: str = "light") -> go.Figure | None:
    """Rows are layers; x is B / A on a log scale. The pale bar reaches from 1× to what the floor would allow."""
    points = _points(pairs)
    if not points:
        return None
    colours = DARK if mode == "dark" else LIGHT
    rows = list(dict.fromkeys(p.label for p in points))
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
    steps = [0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128]
    figure.update_xaxes(type="log", range=[_log(0.8 * lowest), _log(1.6 * highest)], tickvals=steps,
                        ticktext=[f"{s:g}×" for s in steps], title_text="B / A: times as fast as B, log scale")
    figure.update_yaxes(tickvals=list(place.values()), ticktext=list(place), showgrid=False,
                        range=[-0.6, len(rows) - 0.4])
    return figure


def heat_maps(maps: Sequence[HeatMap], rows: Sequence[str], columns: Sequence[str], *, mode: str = "light") -> go.Figure:
    """Maps side by side over shared rows, the first on top. Blue is good and orange is bad; each cell has its number."""
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


def _points(pairs: Sequence[report.Pair]) -> list[_Point]:
    """The fastest of ours per layer, clock and direction, among the pairs that have a ratio."""
    best: dict[tuple[str, str], _Point] = {}
    for pair in pairs:
        ours, theirs = (report.timing_of(t, pair.clock, pair.direction) for t in (pair.a, pair.b))
        if pair.ratio is None or ours is None or theirs is None or report.is_baseline(pair.a):
            continue
        if pair.clock == "module_ms":  # what the user gets stands in the table; here it would hide the kernels' own
            continue
        workload = pair.a.workload
        label = called(workload).removeprefix("KernelBench ")
        point = _Point(label, workload, pair.direction, pair.a, ours.median_ms, theirs.median_ms, report.floor_ms(pair.a),
                       pair.ratio.value)
        held = best.get((label, pair.direction))
        if held is None or point.ours_ms < held.ours_ms:
            best[label, pair.direction] = point
    return list(best.values())


def _roofs(figure: go.Figure, points: Sequence[_Point], ceilings: Ceilings, x0: float, x1: float,
           colours: dict[str, str]) -> None:
    """The slope of the memory, by the first layer's own mix of reads and writes, under the rate of each precision."""
    traffic = bytes_moved(points[0].workload, points[0].direction)
    rate = traffic.total_bytes / memory_seconds(traffic, ceilings) / 1e12
    roofs = [("tf32", "TF32 tensor cores", "solid"), ("ieee", "fp32", "dash")]
    if not any(p.ours.precision.startswith("tf32") for p in points):
        roofs = [("ieee", "fp32", "solid")]
    top = max(ceilings.flops_per_s[name] for name, _, _ in roofs) / 1e12
    corner = min(top / rate, x1)
    figure.add_trace(go.Scatter(x=[x0, corner], y=[rate * x0, rate * corner], mode="lines", hoverinfo="skip",
                                line={"color": colours["ink"], "width": 1.5}))
    figure.add_annotation(x=_log(x0), y=_log(rate * x0), text=f"memory {numbers.byte_rate(rate * 1e12)}", showarrow=False,
                          xanchor="left", yanchor="bottom", xshift=4, yshift=26, font={"size": 11, "color": colours["mute"]})
    for name, word, dash in roofs:
        y = ceilings.flops_per_s[name] / 1e12
        if y / rate < x1:
            figure.add_trace(go.Scatter(x=[y / rate, x1], y=[y, y], mode="lines", hoverinfo="skip",
                                        line={"color": colours["ink"], "width": 1.5, "dash": dash}))
            figure.add_annotation(x=_log(x1), y=_log(y), text=f"{word} {y:.0f} TFLOP/s", showarrow=False, xanchor="right",
                                  yanchor="bottom", font={"size": 11, "color": colours["mute"]})


def _labels(points: Sequence[_Point], xs: Sequence[float]) -> list[tuple[float, float, str]]:
    """Labels of the largest ratios, one a layer at its fastest direction, where there is room; the others say it on hover."""
    best: dict[str, tuple[float, float, str, float]] = {}
    for p, x in zip(points, xs, strict=True):
        y = flops(p.workload, p.direction) / p.ours_ms / 1e9
        if p.label not in best or p.ratio > best[p.label][3]:
            best[p.label] = (x, y, f"{p.label} {numbers.ratio(p.ratio)}", p.ratio)
    found: list[tuple[float, float, str]] = []
    for x, y, text, _ in sorted(best.values(), key=lambda found: -found[3]):
        if all(abs(_log(x / u)) > _ROOM_X or abs(_log(y / v)) > _ROOM_Y for u, v, _ in found):
            found.append((x, y, text))
    return found[:_MOST_LABELS]


def _log(value: float) -> float:
    """Plotly's annotations and ranges on a log axis are exponents."""
    return log10(value)
