"""The figure of a `PatchReport`: the share of each layer in the time of the step, and the speed-up of each layer and of the
whole model."""

from __future__ import annotations

from math import log10

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...core import numbers
from ...core.patching import INFERENCE, TRAINING, Pairs, PatchReport
from ..reporting.plots import DARK, LIGHT, style

_MARKS = {INFERENCE: "circle", TRAINING: "diamond"}
_WHOLE = "the whole model"


def figure(report: PatchReport, *, mode: str = "light") -> go.Figure:
    """Each row is a layer; the last row is the whole model. Left: the layer's share of the step's time before the patch, blue
    if the layer is patched and grey if not. Right, if it was timed: original / patched with its 95 % interval, ● for inference
    and ◆ for the training step."""
    colours = DARK if mode == "dark" else LIGHT
    timed = bool(report.times) or any(row.times for row in report.layers)
    names = [row.found.name for row in report.layers] + ([_WHOLE] if report.times else [])
    place = {name: len(names) - 1 - i for i, name in enumerate(names)}
    made = make_subplots(rows=1, cols=2 if timed else 1, shared_yaxes=True, horizontal_spacing=0.05)
    for name, row in zip(names, report.layers, strict=False):
        share = row.found.share or 0.0
        made.add_trace(go.Bar(
            y=[place[name]], x=[100 * share], orientation="h", width=0.6, customdata=[[name, row.kept]],
            marker={"color": colours["best" if row.kept else "pytorch"]},
            hovertemplate=f"{name}: {numbers.share(row.found.share)} of the step, {row.reason}<extra></extra>"), row=1, col=1)
        made.add_annotation(x=100 * share, y=place[name], text=numbers.share(row.found.share), showarrow=False, xanchor="left",
                            xshift=6, font={"size": 11.5, "color": colours["ink"]}, row=1, col=1)
    style(made, height=90 + 34 * max(2, len(names)), mode=mode, top=26)
    largest = max([row.found.share or 0.0 for row in report.layers], default=0.0)
    made.update_xaxes(title_text="share of the step's time in PyTorch, %", range=[0, 100 * min(1.15, 1.25 * largest + 0.02)],
                      row=1, col=1)
    made.update_yaxes(tickvals=list(place.values()), ticktext=list(place), showgrid=False, range=[-0.6, len(names) - 0.4],
                      row=1, col=1)
    if timed:
        _speeds(made, report, place, colours)
    return made


def described(report: PatchReport) -> str:
    """The figure in one sentence, for screen readers."""
    rows = [f"{row.found.name} {numbers.share(row.found.share)}, {'patched' if row.kept else 'left'}"
            for row in report.layers]
    return "Share of each layer in the time of the step: " + ("; ".join(rows) or "there is none") + "."


def _speeds(made: go.Figure, report: PatchReport, place: dict[str, int], colours: dict[str, str]) -> None:
    points = [(row.found.name, name, pairs, row.kept) for row in report.layers for name, pairs in row.times.items()]
    points += [(_WHOLE, name, pairs, not report.undone) for name, pairs in report.times.items()]
    bounds = [b for _, _, pairs, _ in points for b in _bounds(pairs)]
    for where, name, pairs, kept in points:
        low, high = _bounds(pairs)
        made.add_trace(go.Scatter(
            x=[pairs.ratio], y=[place[where]], mode="markers", customdata=[[where, name]],
            marker={"symbol": _MARKS[name], "size": 10, "color": colours["best" if kept else "pytorch"]},
            error_x={"type": "data", "symmetric": False, "array": [high - pairs.ratio], "arrayminus": [pairs.ratio - low],
                     "color": colours["ink"], "thickness": 1, "width": 3},
            hovertemplate=f"{where}, {name}: {pairs.verdict} {numbers.ratio(pairs.ratio)}<extra></extra>"), row=1, col=2)
    made.add_vline(x=1, line={"color": colours["pytorch"], "width": 1.5}, row=1, col=2)
    steps = [0.25, 0.5, 1, 2, 4, 8, 16]
    made.update_xaxes(type="log", range=[log10(0.85 * min(0.9, *bounds)), log10(1.15 * max(1.5, *bounds))], tickvals=steps,
                      ticktext=[f"{s:g}×" for s in steps], title_text="original / patched: ● inference, ◆ training step",
                      row=1, col=2)


def _bounds(pairs: Pairs) -> tuple[float, float]:
    return pairs.low or pairs.ratio, pairs.high or pairs.ratio
