"""The figures of a tune: all trials with the best so far, one tunable at a time, two tunables as a heat map, parallel
coordinates. Each takes a `Tried`, the trials of one direction. Page, notebook and command line show the same figures. If not
all trials are drawn, `progress_note` and `parallel_note` say so.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import ceil, log10
from statistics import median
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...core import numbers
from . import report
from .plots import CATEGORIES, DARK, LIGHT, SYMBOLS, style, time_axis
from .tune_points import Matter, Point, Tried, label, tunables

TRIALS, TIME = "trials", "time"                    # the x axis of the first figure
VARIANT = "variant"                                # its colours show the variant; other choices are the names of tunables
BEST, MEDIAN, FAILED = "best", "median", "failed"  # what a cell of the heat map shows
MOST_DRAWN = 1500    # the most points of the first figure; SVG draws so many as fast as WebGL
MOST_LINES = 500     # the most lines of parallel coordinates; 10 000 take 14 s in a browser without a GPU
_MOST_SLICE = 400    # the most points of one slice
_BEST_KEPT = 250
_TIMES = {"light": ("#1F5FBF", "#A9C4EC", "#F1F4F9"), "dark": ("#9CC2FF", "#2F4A75", "#1A212B")}   # fast first
_OTHER = "others"
_PALE = {"light": "#D5DAE2", "dark": "#2A313B"}


def progress(found: Tried, *, x: str = TRIALS, colour: str = VARIANT, chosen: Iterable[str] = (), mode: str = "light"
             ) -> go.Figure:
    """Each trial as a point, the best so far as a line, and lines for PyTorch's best and the floor. Trials that are not right
    are in a row above the others, with the reason on hover. `colour`: `VARIANT` or the name of a tunable. `chosen`: trial ids
    that get a ring. The customdata of a point is its trial id."""
    colours, palette = _palette(mode), CATEGORIES["dark" if mode == "dark" else "light"]
    where: Callable[[Point], float] = (lambda p: p.seconds) if x == TIME else (lambda p: p.number)
    shown, end = _drawn(found), max((where(p) for p in found.points), default=1.0) or 1.0
    top = _top(found)
    rail = 1.07 * top
    figure = go.Figure()
    right = [p for p in shown if p.ms is not None]
    groups = _grouped(right, colour)
    shades = {name: colours["mute"] if name == _OTHER else palette[place % len(palette)] for place, name in enumerate(groups)}
    for place, (name, points) in enumerate(groups.items()):
        inside = [p for p in points if (p.ms or 0) <= top]
        figure.add_trace(go.Scatter(
            x=[where(p) for p in inside], y=[p.ms for p in inside], mode="markers", name=name,
            customdata=[p.trial.trial_id for p in inside], text=[_hover(p) for p in inside],
            hovertemplate="%{text}<extra></extra>",
            marker={"color": shades[name], "size": 7, "opacity": 0.62, "symbol": SYMBOLS[place % len(SYMBOLS)]}))
    over = [(p, name) for name, points in groups.items() for p in points if (p.ms or 0) > top]
    if over:
        figure.add_trace(go.Scatter(
            x=[where(p) for p, _ in over], y=[1.01 * top] * len(over), mode="markers", name=f"△ above {numbers.time(top)}",
            customdata=[p.trial.trial_id for p, _ in over], text=[_hover(p) for p, _ in over],
            hovertemplate="%{text}<extra></extra>",
            marker={"color": [shades[name] for _, name in over], "size": 6, "opacity": 0.5, "symbol": "triangle-up"}))
    for name, colour_name, wrong in (("not right", "bad", True), ("could not run", "caution", False)):
        points = [p for p in shown if p.ms is None and (p.trial.status in report.WRONG or p.status in report.WRONG) == wrong]
        if points:
            figure.add_trace(go.Scatter(
                x=[where(p) for p in points], y=[rail] * len(points), mode="markers", name=f"{'✕' if wrong else '!'} {name}",
                customdata=[p.trial.trial_id for p in points], text=[_hover(p) for p in points],
                hovertemplate="%{text}<extra></extra>",
                marker={"symbol": "x-thin" if wrong else "cross-thin", "size": 8,
                        "line": {"width": 1.5, "color": colours[colour_name]}, "color": colours[colour_name]}))
    steps = found.steps
    if steps:
        figure.add_trace(go.Scatter(
            x=[*(where(p) for p in steps), end], y=[min(p.ms or 0, top) for p in (*steps, steps[-1])], mode="lines",
            line={"shape": "hv", "color": colours["ink"], "width": 2}, name="best so far", hoverinfo="skip"))
        _mark_best(figure, found, steps[-1], where(steps[-1]), end, colours)
    rings = set(chosen)
    ringed = [p for p in found.right if p.trial.trial_id in rings]
    if ringed:
        figure.add_trace(go.Scatter(
            x=[where(p) for p in ringed], y=[min(p.ms or 0, top) for p in ringed], mode="markers", name="pinned",
            hoverinfo="skip", marker={"symbol": "circle-open", "size": 14, "line": {"width": 2, "color": colours["bad"]}}))
    _levels(figure, found, top, colours)
    style(figure, height=380, mode=mode, top=8)
    figure.update_layout(showlegend=True, hovermode="closest", legend={
        "orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0, "font": {"size": 11.5}, "itemsizing": "constant"})
    words = "time of the tune, s" if x == TIME else "trial"
    figure.update_xaxes(title_text=words, range=[-0.015 * end, 1.02 * end], rangemode="tozero")
    unit, ticks = time_axis(1.13 * top)
    figure.update_yaxes(title_text=f"median, {unit}" + (" on this CPU, kernels emulated" if found.emulated else ""),
                        range=[0, 1.13 * top], **(ticks or {"nticks": 7}))
    return figure


def progress_note(found: Tried) -> str:
    """A sentence about the trials that the first figure does not show; "" if it shows all."""
    shown, there = len(_drawn(found)), len(found.points)
    top = _top(found)
    over = sum((p.ms or 0) > top for p in found.right)
    parts = [f"{numbers.count(shown)} of {numbers.count(there)} trials are drawn: the {_BEST_KEPT} best, each one that was the "
             "best so far, and others at random."] if shown < there else []
    if over:
        parts.append(f"{numbers.count(over)} slower than {numbers.time(top)} {'is' if over == 1 else 'are'} drawn at the upper "
                     "edge.")
    return " ".join(parts)


def steps(found: Sequence[Tried], *, mode: str = "light") -> go.Figure:
    """The best so far of one or several tunes, over trials and over time, on a log axis. For a single tune, PyTorch and the
    floor are drawn too."""
    palette, colours = CATEGORIES["dark" if mode == "dark" else "light"], _palette(mode)
    figure = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.03)
    dashes = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
    ways: tuple[Callable[[Point], float], ...] = (lambda p: p.number, lambda p: p.seconds)
    for place, one in enumerate(found):
        for column, where in enumerate(ways, 1):
            fell = one.steps
            if not fell:
                continue
            figure.add_trace(go.Scatter(
                x=[*map(where, fell), max(map(where, one.points))], y=[p.ms for p in (*fell, fell[-1])], mode="lines",
                name=label(one), legendgroup=str(place), showlegend=column == 1,
                text=[_hover(p) for p in (*fell, fell[-1])],
                hovertemplate="%{text}<extra></extra>",
                line={"shape": "hv", "width": 2, "color": palette[place % len(palette)],
                      "dash": dashes[place % len(dashes)]}), row=1, col=column)
    single = found[0] if len(found) == 1 and not found[0].emulated else None
    levels = [("floor", single.floor_ms, "dot"), ("best PyTorch", single.baseline_ms, "solid")] if single else []
    for word, ms, dash in levels:
        if ms:
            figure.add_hline(y=ms, line={"color": colours["floor" if dash == "dot" else "pytorch"], "dash": dash, "width": 1.5})
            figure.add_annotation(x=1, xref="paper", y=log10(ms), text=f"{word} {numbers.time(ms)}", showarrow=False,
                                  xanchor="right", yanchor="bottom", font={"size": 11, "color": colours["mute"]})
    style(figure, height=400, mode=mode)
    figure.update_layout(showlegend=True, legend={"orientation": "h", "y": 1.12})
    shown, unit = [p for one in found for p in one.steps], "ms"
    if shown:
        times = [*(p.ms or 1.0 for p in shown), *(ms for _, ms, _ in levels if ms)]
        unit, ticks, words = _log_ticks(times)
        figure.update_yaxes(type="log", tickvals=ticks, ticktext=words,
                            range=[log10(0.9 * min(times)), log10(1.15 * max(times))])
    emulated = " on this CPU, kernels emulated" if any(one.emulated for one in found) else ""
    figure.update_yaxes(title_text=f"best so far, {unit}{emulated}", row=1, col=1)
    figure.update_xaxes(title_text="trial", row=1, col=1)
    figure.update_xaxes(title_text="time of the tune, s", row=1, col=2)
    return figure


def slices(found: Tried, family: str, order: Sequence[Matter] = (), *, mode: str = "light") -> go.Figure | None:
    """A panel for each tunable: the time of each right trial over the tunable's value, on a log axis. A line connects the best
    times of the values."""
    right = [p for p in found.right if p.family == family]
    mine = [p for p in right if not p.early]
    if not tunables(mine):   # all others were stopped early
        mine = right
    there = tunables(mine)
    names = [m.tunable for m in order if m.tunable in there] or there
    if not names:
        return None
    colours = _palette(mode)
    across = min(4, len(names))
    down = ceil(len(names) / across)
    figure = make_subplots(down, across, shared_yaxes=True, horizontal_spacing=0.02, vertical_spacing=0.42 / (down + 0.6))
    drawn = _thinned(mine, _MOST_SLICE)
    for place, name in enumerate(names):
        at = {"row": place // across + 1, "col": place % across + 1}
        values = sorted({p.trial.tunables[name] for p in mine if name in p.trial.tunables})
        where = {value: i for i, value in enumerate(values)}
        jitter = random.Random(0)
        points = [p for p in drawn if name in p.trial.tunables]
        figure.add_trace(go.Scatter(
            x=[where[p.trial.tunables[name]] + jitter.uniform(-0.22, 0.22) for p in points], y=[p.ms for p in points],
            mode="markers", customdata=[p.trial.trial_id for p in points], text=[_hover(p) for p in points],
            hovertemplate="%{text}<extra></extra>", marker={"size": 5, "opacity": 0.45, "color": colours["best"]}), **at)
        best = [min(p.ms or 0 for p in mine if p.trial.tunables.get(name) == value) for value in values]
        figure.add_trace(go.Scatter(x=list(range(len(values))), y=best, mode="lines", hoverinfo="skip",
                                    line={"color": colours["ink"], "width": 1.5}), **at)
        figure.update_xaxes(tickvals=list(range(len(values))), ticktext=[str(v) for v in values], title_text=name,
                            range=[-0.5, len(values) - 0.5], **at)
    style(figure, height=70 + 190 * down, mode=mode, top=10)
    unit, ticks, words = _log_ticks([p.ms or 1.0 for p in mine])
    figure.update_yaxes(type="log", tickvals=ticks, ticktext=words)
    for row in range(1, down + 1):
        figure.update_yaxes(title_text=f"median, {unit}{' *' if found.emulated else ''}", row=row, col=1)
    return figure


def importance(order: Sequence[Matter], *, mode: str = "light") -> go.Figure | None:
    """A bar for each tunable: the share of the variance of log time that the means of its values explain."""
    if not order:
        return None
    colours, rows = _palette(mode), list(reversed(order))
    figure = go.Figure(go.Bar(
        x=[100 * m.share for m in rows], y=list(range(len(rows))), orientation="h", width=0.6,
        marker={"color": colours["best"]}, text=[f"{numbers.share(m.share)}, fastest at {m.fastest}" for m in rows],
        textposition="outside", cliponaxis=False, textfont={"size": 11.5, "color": colours["ink"]},
        hovertemplate="%{text}<extra></extra>"))
    style(figure, height=64 + 27 * len(rows), mode=mode, top=6)
    figure.update_xaxes(title_text="share of the variance of log time, %", tickvals=[0, 25, 50, 75, 100],
                        range=[0, min(140.0, 160 * max(m.share for m in rows) + 10)])
    figure.update_yaxes(tickvals=list(range(len(rows))), ticktext=[m.tunable for m in rows], showgrid=False)
    return figure


def heat_map(found: Tried, family: str, x: str, y: str, *, of: str = BEST, mode: str = "light") -> go.Figure | None:
    """A heat map of two tunables of a family. A cell shows the best or the median time of its trials, or the share that failed.
    The best cell is bold. The title of the x axis says what the numbers are, with their unit."""
    mine = [p for p in found.points if p.family == family and {x, y} <= set(p.trial.tunables)]
    cells: dict[tuple[int, int], list[Point]] = {}
    for point in mine:
        cells.setdefault((point.trial.tunables[x], point.trial.tunables[y]), []).append(point)
    shown = {at: value for at, points in cells.items() if (value := _cell(points, of)) is not None}
    if not shown:
        return None
    kind = "dark" if mode == "dark" else "light"
    xs, ys = (sorted({at[i] for at in cells}) for i in (0, 1))
    fast, middle, slow = _TIMES[kind]
    low, high = min(shown.values()), max(shown.values())
    grid = [[None if (v := shown.get((a, b))) is None else v if of == FAILED else log10(v) for a in xs] for b in ys]
    figure = go.Figure(go.Heatmap(
        z=grid, x=list(range(len(xs))), y=list(range(len(ys))), xgap=2, ygap=2, showscale=False, hoverongaps=False,
        colorscale=[(0, fast), (0.45, middle), (1, slow)] if of != FAILED else [(0, slow), (1, _palette(mode)["caution"])],
        zmin=0 if of == FAILED else None, zmax=100 if of == FAILED else None,
        text=[[_cell_words(cells.get((a, b), []), x, a, y, b, shown.get((a, b)), of) for a in xs] for b in ys],
        hovertemplate="%{text}<extra></extra>"))
    ink, (unit, words) = _palette(mode)["ink"], numbers.times(list(shown.values()))
    for ((a, b), value), time in zip(shown.items(), words, strict=True) if len(xs) * len(ys) <= 120 else ():
        dark_cell = of != FAILED and (log10(value / low) < 0.3 * log10(high / low) if high > low else True)
        word = numbers.share(value / 100) if of == FAILED else time.strip()
        figure.add_annotation(
            x=xs.index(a), y=ys.index(b), text=f"<b>{word}</b>" if value == low and of != FAILED else word, showarrow=False,
            font={"size": 11.5, "color": (_palette(mode)["bg"] if dark_cell else ink)})
    style(figure, height=max(220, 70 + 34 * len(ys)), mode=mode, top=8)
    what = "not right, %" if of == FAILED else f"{of} time, {unit}"
    figure.update_xaxes(title_text=f"{x} (numbers: {what})", tickvals=list(range(len(xs))), ticktext=[str(v) for v in xs],
                        showgrid=False)
    figure.update_yaxes(title_text=y, tickvals=list(range(len(ys))), ticktext=[str(v) for v in ys], showgrid=False)
    return figure


def parallel(found: Tried, family: str, *, best_percent: int = 100, mode: str = "light") -> go.Figure | None:
    """Parallel coordinates: each right trial of a family is a line through its tunables to its time on a log axis. The fastest
    fifth has strong colours. Drag along an axis to select a part of it."""
    lines = _lines(found, family, best_percent)
    names = tunables(p for p in found.right if p.family == family)
    if not lines or not names:
        return None
    kind, colours, jitter = "dark" if mode == "dark" else "light", _palette(mode), random.Random(0)
    fifth = sorted(p.ms or 0 for p in lines)[(len(lines) - 1) // 5]
    lines = sorted(lines, key=lambda p: -(p.ms or 0))   # the fastest is drawn last, above the others
    axes: list[dict[str, Any]] = []
    for name in names:
        values = sorted({p.trial.tunables[name] for p in found.right if p.family == family and name in p.trial.tunables})
        where = {value: i for i, value in enumerate(values)}
        axes.append({"label": name, "tickvals": list(range(len(values))), "ticktext": [str(v) for v in values],
                     "range": [-0.15, max(1, len(values) - 1) + 0.15],
                     "values": [where[p.trial.tunables[name]] + jitter.uniform(-0.05, 0.05) for p in lines]})
    unit, ticks, words = _log_ticks([p.ms or 1.0 for p in lines])
    axes.append({"label": f"median, {unit}", "values": [log10(p.ms or 1) for p in lines], "tickvals": list(map(log10, ticks)),
                 "ticktext": words})
    figure = go.Figure(go.Parcoords(
        dimensions=axes, labelfont={"size": 12, "color": colours["mute"]}, tickfont={"size": 11, "color": colours["ink"]},
        rangefont={"size": 1, "color": "rgba(0,0,0,0)"},
        line={"color": [1 if (p.ms or 0) <= fifth else 0 for p in lines], "cmin": 0, "cmax": 1,
              "colorscale": [(0, _PALE[kind]), (1, colours["best"])], "showscale": False}))
    style(figure, height=330, mode=mode)
    figure.update_layout(margin={"l": 60, "r": 60, "t": 46, "b": 22})
    return figure


def parallel_note(found: Tried, family: str, best_percent: int = 100) -> str:
    """ "500 of 10 000 right trials are shown: the 250 best and 250 others at random." """
    there = sum(p.family == family for p in found.right)
    shown = len(_lines(found, family, best_percent))
    if shown == there:
        return f"All {numbers.count(there)} right trials of {family}. The fastest fifth is blue."
    kept = ceil(there * best_percent / 100)
    some = f"; of them the {_BEST_KEPT} best, and others at random" if shown < kept else ""
    return (f"{numbers.count(shown)} of {numbers.count(there)} right trials of {family}: the best {best_percent} %{some}. "
            "The fastest fifth of these is blue.")


def described(found: Tried) -> str:
    """The first figure in one sentence, for screen readers."""
    best = found.best
    if best is None:
        return f"{found.direction}: {len(found.points)} trials, none is right."
    return (f"{found.direction}: {len(found.points)} trials, {len(found.failed)} not right; the best is {best.family} with "
            f"{numbers.time(found.best_ms)}, found at trial {best.number}.")


def _palette(mode: str) -> dict[str, str]:
    return DARK if mode == "dark" else LIGHT


def _top(found: Tried) -> float:
    """The upper end of the axis: twice the best PyTorch, or a value above most of the points."""
    times = [p.ms or 0 for p in found.right]
    if not times:
        return 2 * (found.baseline_ms or 1.0)
    best, most = times[0], times[int(0.9 * (len(times) - 1))]
    pytorch = 0.0 if found.emulated else found.baseline_ms or 0.0
    wanted = max(2 * pytorch or min(1.15 * most, 6 * best), 1.5 * best)
    return max(min(wanted, 1.15 * times[-1]), 1.25 * best, 1.1 * pytorch)


def _drawn(found: Tried) -> list[Point]:
    return _thinned(found.points, MOST_DRAWN, always=found.steps)


def _thinned(points: Sequence[Point], most: int, always: Sequence[Point] = ()) -> list[Point]:
    """At most `most` points, in their order: the best ones, those of `always`, and a random sample of the others."""
    if len(points) <= most:
        return list(points)
    best = sorted((p for p in points if p.ms is not None), key=lambda p: p.ms or 0)[:min(_BEST_KEPT, most // 2)]
    kept = {p.number for p in (*best, *always)}
    others = [p for p in points if p.number not in kept]
    kept |= {p.number for p in random.Random(0).sample(others, max(0, min(len(others), most - len(kept))))}
    return [p for p in points if p.number in kept]


def _lines(found: Tried, family: str, best_percent: int) -> list[Point]:
    mine = [p for p in found.right if p.family == family]
    return _thinned(mine[:max(1, ceil(len(mine) * best_percent / 100))], MOST_LINES)


def _grouped(points: Sequence[Point], colour: str) -> dict[str, list[Point]]:
    """The points in groups: the six most frequent, and one for all others. Families are in the order of their best times,
    values in their own order."""
    def name_of(point: Point) -> str:
        if colour == VARIANT:
            return point.family
        value = point.trial.tunables.get(colour)
        return f"no {colour}" if value is None else f"{colour} = {value}"

    count = Counter(map(name_of, points))
    kept = {name for name, _ in count.most_common(len(SYMBOLS))}
    if colour == VARIANT:
        order = list(dict.fromkeys(name_of(p) for p in sorted(points, key=lambda p: p.ms or 0)))
    else:
        order = sorted(count, key=lambda name: (not name.rpartition(" ")[2].lstrip("-").isdigit(),
                                                int(name.rpartition(" ")[2]) if "=" in name else 0))
    groups: dict[str, list[Point]] = {name: [] for name in order if name in kept}
    if len(count) > len(kept):
        groups[_OTHER] = []
    for point in points:
        groups[name if (name := name_of(point)) in kept else _OTHER].append(point)
    return groups


def _hover(point: Point) -> str:
    """The text of a point on hover: the trial, its time or why it has none, its config."""
    if point.ms is None:
        said = f"{point.status}: {point.headline}"
    else:
        early = ", timed with only a few samples, because it is clearly slower than the best" if point.early else ""
        said = f"median {numbers.time(point.ms)}{early}"
    return (f"<b>trial {point.number}</b>, {point.family}, after {numbers.seconds(point.seconds)}<br>{_broken(said)}"
            f"<br>{_broken(point.config)}")


def _broken(text: str, width: int = 76) -> str:
    """Lines of a hover box."""
    lines = [""]
    for word in text.replace("&", "&amp;").replace("<", "&lt;").split(" "):
        if len(lines[-1]) + len(word) > width and lines[-1]:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "<br>".join(lines[:5])


def _mark_best(figure: go.Figure, found: Tried, last: Point, x: float, end: float, colours: dict[str, str]) -> None:
    """The value of the best so far, at the place where it was found."""
    figure.add_annotation(
        x=x, y=last.ms, text=f"<b>{numbers.time(last.ms)}</b>", showarrow=True, arrowhead=0, arrowcolor=colours["ink"], ax=0,
        ay=26 if (last.ms or 0) > 0.25 * _top(found) else -26, bgcolor=colours["bg"], borderpad=1,
        xanchor="right" if x > 0.85 * end else "left" if x < 0.15 * end else "center",
        font={"size": 12, "color": colours["ink"]})


def _levels(figure: go.Figure, found: Tried, top: float, colours: dict[str, str]) -> None:
    """PyTorch's best and the floor."""
    pytorch = "PyTorch on this CPU" if found.emulated else "best PyTorch"
    for ms, word, colour, dash in ((found.floor_ms, "floor", "floor", "dot"), (found.baseline_ms, pytorch, "pytorch", "solid")):
        if ms and ms <= 1.1 * top:
            figure.add_hline(y=ms, line={"color": colours[colour], "width": 1.5, "dash": dash})
            ink = colours["ink" if word == "floor" else "mute"]
            figure.add_annotation(x=1, xref="paper", y=ms, text=f"{word} {numbers.time(ms)}", showarrow=False, xanchor="right",
                                  yanchor="bottom", yshift=2, borderpad=1, bgcolor=colours["bg"], opacity=0.9,
                                  font={"size": 11, "color": ink})
        elif ms:
            figure.add_annotation(x=1, xref="paper", y=1.13 * top, text=f"{word} {numbers.time(ms)}, above this figure",
                                  showarrow=False, xanchor="right", yanchor="top", font={"size": 11, "color": colours["mute"]})


def _cell(points: Sequence[Point], of: str) -> float | None:
    times = [p.ms for p in points if p.ms is not None]
    if of == FAILED:
        return 100 * (len(points) - len(times)) / len(points)
    return None if not times else min(times) if of == BEST else median(times)


def _cell_words(points: Sequence[Point], x: str, a: int, y: str, b: int, value: float | None, of: str) -> str:
    """The text of a cell on hover."""
    if not points:
        return f"{x}={a}, {y}={b}: not tried"
    failed = sum(p.ms is None for p in points)
    time = "" if value is None else f"{of} {numbers.time(value)}, " if of != FAILED else ""
    return f"{x}={a}, {y}={b}: {time}{len(points)} tried, {failed} not right"


def _log_ticks(times: Sequence[float]) -> tuple[str, list[float], list[str]]:
    """(unit, places in ms, words) of the ticks 1, 2, 5, ... within the times; if fewer than two are there, of the ends of the
    range. The unit is µs if a time is below 0.01 ms, else ms."""
    low, high = min(times), max(times)
    ticks = [m * 10.0**e for e in range(-6, 6) for m in (1, 1.5, 2, 3, 5, 7) if low <= m * 10.0**e <= high]
    ticks = ticks if len(ticks) > 1 else sorted({low, high})
    unit, words = numbers.times([*ticks, low])
    return unit, ticks, [word.strip() for word in words[:-1]]
