"""The charts of page and notebook, as plotly figures made from trials: bars for each direction, module bars, timing samples.

Grey bars are PyTorch, blue bars are ours, the dotted line is the floor. A wrong result has no bar. `mode`: "light" or "dark".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log10

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...core import numbers
from ...core.layer import BACKWARD, DIRECTIONS, FORWARD, LAUNCHES
from ...core.precision import QUALIFIES
from ...core.trial import FORMULATION, NOT_DROP_IN, Status, Timing, Trial
from ...core.wrong_values import WrongValues
from . import report

LIGHT = {"ink": "#1B2028", "mute": "#5B6472", "line": "#E1E4EA", "grid": "#EEF0F3", "bg": "#FFFFFF", "bg2": "#F5F6F8",
         "pytorch": "#9AA3B1", "hatched": "#C5CBD4", "best": "#2F6FD0", "other": "#B4CBEF", "floor": "#1B2028",
         "bad": "#B3420C", "caution": "#8A6100"}
DARK = {"ink": "#E3E7ED", "mute": "#9AA4B2", "line": "#2A313B", "grid": "#1E242C", "bg": "#0F1318", "bg2": "#171C23",
        "pytorch": "#717C8B", "hatched": "#434C58", "best": "#6FA3F5", "other": "#2F4A75", "floor": "#E3E7ED",
        "bad": "#FF8A5C", "caution": "#E8B84A"}
# Colours of variants or trials in their order. Each also has its own marker, so that the chart is readable without colours.
CATEGORIES = {"light": ("#2F6FD0", "#E39A00", "#12917A", "#B0559B", "#57B7E6", "#7A6A4F"),
              "dark": ("#6FA3F5", "#F0B23E", "#35BFA3", "#D884C4", "#8AD3F7", "#B8A684")}
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
CONFIG = {"displayModeBar": "hover", "displaylogo": False,
          "modeBarButtonsToRemove": ["lasso2d", "select2d", "zoomIn2d", "zoomOut2d", "autoScale2d"],
          "toImageButtonOptions": {"format": "svg", "filename": "kernel-workbench"}}
_FONT = "Source Sans, Source Sans Pro, sans-serif"
_CUT_AT = 2.6      # bars longer than this multiple of the best PyTorch are cut off
_INSIDE_AT = 0.68  # share of the panel's width; the text of a longer bar is inside it
_NO_BARS = 0.4          # width of a panel without bars, compared with one with bars
_ROOM = 0.2             # of the panel that a time needs to stand left of its whisker


@dataclass(frozen=True)
class _Bar:
    timing: Timing
    colour: str
    text: str
    hover: str
    trial_id: str
    hatched: bool = False


@dataclass
class _Panel:
    """One column of the chart: a bar or a word for each row, and two lines (the best PyTorch and the floor)."""

    title: str
    cells: dict[str, _Bar | str] = field(default_factory=dict)
    floor_ms: float | None = None
    best_ms: float | None = None
    emulated: bool = False

    @property
    def end(self) -> float:
        longest = max((c.timing.q75_ms for c in self.cells.values() if isinstance(c, _Bar)), default=0.0)
        if self.best_ms and not self.emulated:
            return max(_CUT_AT * self.best_ms, 1.25 * (self.floor_ms or 0))
        return max(1.12 * longest, (1.12 if longest else 3.0) * (self.floor_ms or 0)) or 1.0


def bars(trials: Iterable[Trial], *, expected: Mapping[str, Sequence[str]] | None = None,
         absent: Mapping[str, Mapping[str, str]] | None = None,
         floors: Mapping[str, float] | None = None, waiting: str = "not run yet", mode: str = "light") -> go.Figure:
    """Three panels (forward, grad_input, grad_weight; a fourth if `backward` ran) with shared rows: our variants, the fastest
    first, then PyTorch. Emulated variants are not ranked: they keep their order, and no bar is marked as the best.

    `trials` are of one workload and one device; each variant shows its best config. `expected`: direction -> the requested
    variants. `absent`: direction -> variant -> why it was not requested; a variant that is not there does not compute that
    direction. `floors`: direction -> ms. Each bar's customdata is (trial_id, row).
    """
    trials = [t for t in trials if t.kind in ("candidate", "baseline")]
    ran = any(t.direction == BACKWARD and t.kind == "candidate" and t.status is not Status.SKIPPED for t in trials)
    directions = LAUNCHES if ran else DIRECTIONS
    trials = [t for t in trials if t.direction in directions]
    expected = {d: names for d, names in (expected or {}).items() if d in directions}
    emulated = any(report.is_emulated(t) for t in trials)
    ours = _row_order([t for t in trials if t.kind == "candidate"], expected)
    theirs = list(dict.fromkeys(t.name for t in trials if t.kind == "baseline" and t.ok))
    panels = []
    for direction in directions:
        here = [t for t in trials if t.direction == direction]
        panel = _Panel(f"<b>{direction}</b>, ms{', emulated' if emulated else ''}",
                       floor_ms=(floors or {}).get(direction), emulated=emulated)
        best = _best_pytorch(here)
        panel.best_ms = best.kernel_ms.median_ms if best and best.kernel_ms else None
        fastest = report.best_candidate(here, direction)
        for row in ours:
            name = row.split(" ")[0]
            why_none = "not run" if absent is None else absent.get(direction, {}).get(name, numbers.MISSING)
            otherwise = waiting if name in expected.get(direction, ()) else why_none
            panel.cells[row] = _our_cell(row, here, trials, fastest, panel, mode) or otherwise
        for name in theirs:
            trial = min((t for t in here if t.kind == "baseline" and t.name == name and t.ok and t.kernel_ms),
                        key=lambda t: t.kernel_median_ms, default=None)
            if trial and trial.kernel_ms:
                panel.cells[name] = _pytorch_bar(trial, trial.kernel_ms, mode)
        panels.append(panel)
    return _draw(panels, [*ours, *theirs], mode)


def module_bars(trials: Iterable[Trial], *, mode: str = "light") -> go.Figure | None:
    """`module_ms` of ModelNew against nn.ConvTranspose, forward and backward side by side. None without such times."""
    trials = [t for t in trials if t.module_ms and t.ok]
    if not any(not report.is_baseline(t) for t in trials):
        return None
    panels = []
    rows = list(dict.fromkeys(t.name for t in sorted(trials, key=report.is_baseline)))
    for direction in (FORWARD, BACKWARD):
        theirs = [t.module_ms[direction].median_ms for t in trials
                  if report.is_baseline(t) and direction in t.module_ms]
        emulated = any(report.is_emulated(t) for t in trials)
        panel = _Panel(f"<b>{direction}</b>, module_ms{', emulated' if emulated else ''}",
                       best_ms=min(theirs, default=None), emulated=emulated)
        for trial in trials:
            timing = trial.module_ms.get(direction)
            if timing is None:
                continue
            if report.is_baseline(trial):
                panel.cells[trial.name] = _pytorch_bar(trial, timing, mode)
            else:
                baseline = report.best_baseline(trials, trial, clock="module_ms", direction=direction)
                ratio = report.speedup(trial, baseline, clock="module_ms", direction=direction)
                panel.cells[trial.name] = _bar(trial, timing, _palette(mode)["other" if emulated else "best"],
                                               ratio.value if ratio and not report.is_emulated(trial) else None, None)
        panels.append(panel)
    return _draw(panels, rows, mode)


def samples(values_ms: Sequence[float], *, median_ms: float, floor_ms: float | None = None, clocks_mhz: Sequence[float] = (),
            mode: str = "light") -> go.Figure:
    """Timing samples in the order taken, from 0, with the median and the floor as lines. Below them the GPU's clock at each
    sample, if `clocks_mhz` is given."""
    colours = _palette(mode)
    rows = 2 if clocks_mhz else 1
    figure = make_subplots(rows, 1, shared_xaxes=True, vertical_spacing=0.08, row_heights=[0.7, 0.3][:rows])
    places = list(range(1, len(values_ms) + 1))
    figure.add_trace(go.Scatter(
        x=places, y=list(values_ms), mode="markers", marker={"size": 6, "color": colours["best"]},
        customdata=list(map(numbers.time, values_ms)), hovertemplate="sample %{x}: %{customdata}<extra></extra>"), row=1, col=1)
    if clocks_mhz:
        figure.add_trace(go.Scatter(
            x=places, y=list(clocks_mhz), mode="lines", line={"color": colours["best"], "width": 1.5, "shape": "hv"},
            hovertemplate="sample %{x}: SM clock %{y} MHz<extra></extra>"), row=2, col=1)
    for value, word, dash, width in ((median_ms, "median", "solid", 1), (floor_ms, "floor", "dot", 1.5)):
        if value:
            figure.add_hline(y=value, line={"color": colours["ink"], "width": width, "dash": dash}, row=1, col=1)
            figure.add_annotation(x=1, xref="paper", y=value, text=f"{word} {time_label(value)}",
                                  showarrow=False, xanchor="right", yanchor="bottom",
                                  font={"size": 11, "color": colours["ink"]})
    style(figure, height=206 if rows == 1 else 286, mode=mode)
    figure.update_xaxes(title_text="number of the sample, in the order taken", row=rows, col=1)
    top = 1.15 * max([*values_ms, floor_ms or 0])
    unit, ticks = time_axis(top)
    figure.update_yaxes(title_text=unit, range=[0, top], **(ticks or {"nticks": 5}), row=1, col=1)
    if clocks_mhz:
        ends = [0.95 * min(clocks_mhz), 1.02 * max(clocks_mhz)]
        figure.update_yaxes(title_text="clock, MHz", range=ends, nticks=4, row=2, col=1)
    return figure


def wrong_map(found: WrongValues, *, mode: str = "light") -> go.Figure:
    """Share of wrong values by position: a strip in 1-D, an image in 2-D, slices along D in 3-D."""
    colours = _palette(mode)
    dims = len(found.cells)
    slices = found.cells[0] if dims == 3 else 1
    rows, columns = (found.cells[-2] if dims > 1 else 1), found.cells[-1]
    across = min(slices, 4)
    of_slice = "tap along D" if found.tensor == "grad_weight" else "D"
    titles = [_slice(of_slice, n * found.step[0], found.step[0], found.shape[2]) for n in range(slices)] if slices > 1 else None
    figure = make_subplots(rows=-(-slices // across), cols=across, subplot_titles=titles, horizontal_spacing=0.04)
    most, gap = max(found.shares) / 10, int(max(rows, columns) <= 32)
    taps = found.tensor == "grad_weight"
    names = ["tap along H", "tap along W"] if taps else ["H", "W"]
    for number in range(slices):
        flat = found.shares[number * rows * columns:(number + 1) * rows * columns]
        row, column = number // across + 1, number % across + 1
        figure.add_trace(go.Heatmap(
            z=[[share / 10 for share in flat[r * columns:(r + 1) * columns]] for r in range(rows)], zmin=0, zmax=most,
            x0=0, dx=found.step[-1], y0=0, dy=found.step[-2] if dims > 1 else 1, xgap=gap, ygap=gap,
            colorscale=[(0, colours["grid"]), (1e-6, colours["other"]), (1, colours["bad"])],
            showscale=number == 0, colorbar={"title": {"text": "wrong, %"}, "thickness": 12, "outlinewidth": 0,
                                                 **({"tickvals": [0, most], "tickformat": ".3~g"} if dims == 1 else {})},
            hovertemplate=f"{names[0]} %{{y}}, {names[1]} %{{x}}: %{{z:.1f}} % wrong<extra></extra>"), row, column)
        figure.update_xaxes(title_text=names[1], title_standoff=2, row=row, col=column)
        figure.update_yaxes(title_text=names[0] if dims > 1 and column == 1 else "", autorange="reversed",
                            showticklabels=dims > 1, ticks="outside" if dims > 1 else "", row=row, col=column)
    return style(figure, height=120 if dims == 1 else 320 if slices == 1 else 200 * -(-slices // across), mode=mode,
                 top=26 if slices > 1 else 10)


def _slice(name: str, first: int, count: int, size: int) -> str:
    return f"{name} {first}" if count == 1 else f"{name} {first} to {min(first + count, size) - 1}"


def wrong_shares(found: WrongValues, *, mode: str = "light") -> go.Figure | None:
    """Share of wrong values in each image, channel, phase and place in a warp. None if none of these has several values."""
    if not found.along:
        return None
    colours = _palette(mode)
    across = min(2, len(found.along))
    rows = -(-len(found.along) // across)
    figure = make_subplots(rows=rows, cols=across, vertical_spacing=0.5 / max(2, rows), horizontal_spacing=0.12)
    for number, (name, shares) in enumerate(found.along.items()):
        at = {"row": number // across + 1, "col": number % across + 1}
        figure.add_trace(go.Bar(x=list(range(len(shares))), y=[share / 10 for share in shares], marker_color=colours["bad"],
                                hovertemplate=f"{name} %{{x}}: %{{y:.1f}} % wrong<extra></extra>"), **at)
        figure.update_xaxes(title_text=name, title_standoff=2, dtick=1 if len(shares) <= 8 else None, **at)
        figure.update_yaxes(title_text="wrong, %" if at["col"] == 1 else "", rangemode="tozero", nticks=4, **at)
    return style(figure, height=130 * rows, mode=mode, top=10)


def wrong_errors(found: WrongValues, *, mode: str = "light") -> go.Figure | None:
    """How many values have which error, as a multiple of the largest allowed error, with a line at 1. Of a session of an older
    release: the errors of the wrong values, by powers of ten of the root mean square of the truth. None if there is no error to
    show."""
    colours = _palette(mode)
    if not found.ratios:
        return _errors_by_decade(found, colours, mode) if found.decades else None
    lowest, highest = min(-2, found.ratios[0][0]), max(1, found.ratios[-1][0])
    there = dict(found.ratios)
    steps = list(range(lowest, highest + 1))
    figure = go.Figure(go.Bar(
        x=[(step + 0.5) / 2 for step in steps], y=[there.get(step, 0) or None for step in steps], width=0.46,
        marker_color=[colours["bad"] if step >= 0 else colours["best"] for step in steps],
        customdata=[[f"{10 ** (step / 2):.2g}", f"{10 ** ((step + 1) / 2):.2g}"] for step in steps],
        hovertemplate="%{y} values: %{customdata[0]} to %{customdata[1]} times the allowed error<extra></extra>"))
    figure.add_vline(x=0, line={"color": colours["ink"], "width": 1.5, "dash": "dot"})
    figure.add_annotation(x=0, y=1, yref="paper", text="allowed", showarrow=False, xanchor="left", yanchor="top", xshift=4,
                          font={"size": 11, "color": colours["ink"]})
    style(figure, height=190, mode=mode, top=10)
    decades = range(lowest // 2, -(-highest // 2) + 1, max(1, (highest - lowest) // 16))
    figure.update_xaxes(title_text="error / largest allowed error of the value", tickvals=list(decades),
                        ticktext=["1" if d == 0 else f"1e{d}" for d in decades], range=[lowest / 2, (highest + 1) / 2])
    figure.update_yaxes(title_text="values", type="log", dtick=1, range=[-0.3, 0.3 + log10(max(there.values()))])
    return figure


def _errors_by_decade(found: WrongValues, colours: dict[str, str], mode: str) -> go.Figure:
    figure = go.Figure(go.Bar(x=[f"1e{decade}" for decade, _ in found.decades], y=[count for _, count in found.decades],
                              marker_color=colours["best"], hovertemplate="%{y} values from %{x}<extra></extra>"))
    style(figure, height=190, mode=mode, top=10)
    figure.update_xaxes(title_text="error / root mean square of the truth (each bar up to 10 times its label)", type="category")
    figure.update_yaxes(title_text="wrong values", rangemode="tozero", nticks=5)
    return figure


def style(figure: go.Figure, *, height: int, mode: str = "light", top: int = 26) -> go.Figure:
    """Apply the project's style: transparent, thin grid, no title, no legend."""
    colours = _palette(mode)
    figure.update_layout(
        height=height, margin={"l": 8, "r": 12, "t": top, "b": 8}, paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)", showlegend=False, template="none", separators=". ",
        font={"family": _FONT, "size": 12, "color": colours["ink"]},
        modebar={"bgcolor": colours["bg"], "color": colours["mute"], "activecolor": colours["ink"]},
        hoverlabel={"bgcolor": colours["bg2"], "bordercolor": colours["line"], "align": "left",
                    "font": {"color": colours["ink"], "size": 12, "family": _FONT}})
    for axes in (figure.update_xaxes, figure.update_yaxes):
        axes(exponentformat="none", gridcolor=colours["grid"], linecolor=colours["line"], zeroline=False,
             automargin=True, tickfont={"color": colours["mute"], "size": 11.5},
             title_font={"color": colours["mute"], "size": 12})
    return figure


def describe(trials: Iterable[Trial]) -> str:
    """The chart in one sentence, for screen readers."""
    trials = list(trials)
    parts = []
    for direction in LAUNCHES:
        best = report.best_candidate(trials, direction)
        emulated = sum(t.direction == direction and t.ok and t.kernel_ms is not None and report.is_emulated(t) for t in trials)
        if best and best.kernel_ms:
            parts.append(f"{direction} best {best.name} {numbers.time(best.kernel_ms.median_ms)}")
        elif emulated:
            parts.append(f"{direction} {emulated} on the CPU emulator, which does not predict a GPU")
    return "Times per direction and variant. " + ("; ".join(parts) or "Nothing measured yet") + "."


def row_name(trial: Trial) -> str:
    """The row of a candidate: its variant, and its precision if it is not the usual one of its dtype."""
    return trial.name if trial.precision in ("ieee", "fp16", "bf16", "fp64", "") else f"{trial.name} {trial.precision}"


def _palette(mode: str) -> dict[str, str]:
    return DARK if mode == "dark" else LIGHT


def _row_order(candidates: list[Trial], expected: Mapping[str, Sequence[str]]) -> list[str]:
    """The rows, the fastest first, sorted by the mean over directions of (time / fastest time in that direction). Rows without
    a time come last."""
    fastest = {d: report.best_candidate(candidates, d) for d in LAUNCHES}
    scores: dict[str, list[float]] = {}
    for trial in candidates:
        best = fastest.get(trial.direction)
        score = scores.setdefault(row_name(trial), [])
        if trial.ok and trial.kernel_ms and best and best.kernel_ms:
            score.append(trial.kernel_ms.median_ms / best.kernel_ms.median_ms)
    rows = sorted(scores, key=lambda r: sum(scores[r]) / len(scores[r]) if scores[r] else float("inf"))
    named = {row.split(" ")[0] for row in rows}
    return [*rows, *dict.fromkeys(v for names in expected.values() for v in names if v not in named)]


def _our_cell(row: str, here: list[Trial], trials: list[Trial], fastest: Trial | None, panel: _Panel, mode: str
              ) -> _Bar | str | None:
    """The bar or the word of a row; None if no candidate of the row has a trial."""
    mine = [t for t in here if t.kind == "candidate" and row_name(t) == row]
    timed = [(t, t.kernel_ms) for t in mine if t.ok and t.kernel_ms]
    if timed:
        best, timing = min(timed, key=lambda pair: pair[1].median_ms)
        ratio = report.speedup(best, report.best_baseline(trials, best))
        colour = _palette(mode)["best" if best is fastest else "other"]
        return _bar(best, timing, colour, ratio.value if ratio and not report.is_emulated(best) else None,
                    panel.floor_ms, configs=len(timed))
    if mine:
        return f"{mine[-1].status}" + (", not timed" if mine[-1].ok else "")
    return None


def _best_pytorch(here: list[Trial]) -> Trial | None:
    """The baseline of the line in the chart: the fastest one that qualifies for all right candidates shown, or else the fastest
    of all."""
    timed = [t for t in here if t.kind == "baseline" and t.ok and t.kernel_ms
             and not {NOT_DROP_IN, FORMULATION} & set(t.flags)]
    ours = [t for t in here if t.kind == "candidate" and t.ok]
    if ours:
        accepted = set.intersection(*(set(QUALIFIES.get(t.precision, ())) for t in ours))
        timed = [t for t in timed if t.precision in accepted] or timed
    return min(timed, key=lambda t: t.kernel_median_ms, default=None)


def _bar(trial: Trial, timing: Timing, colour: str, ratio: float | None, limit: float | None, *, configs: int = 1) -> _Bar:
    """`configs`: how many right configs the variant has; the trial is the fastest of them."""
    text = time_label(timing.median_ms) + (f"  <b>{numbers.ratio(ratio)}</b>" if ratio else "")
    spread = numbers.spread(timing.spread)
    config = " ".join(f"{k}={v}" for k, v in trial.config.items()) if trial.kind == "candidate" else ""
    hover = (f"<b>{trial.name}</b> {trial.direction} {trial.precision}"
             + (f"<br>{config}" if config else "") + (f", the fastest of {configs} configs" if configs > 1 else "")
             + f"<br>median {numbers.time(timing.median_ms)}, {spread}, {timing.samples} samples"
             + (f"<br>{numbers.ratio(ratio)} the best PyTorch" if ratio else "")
             + (f"<br>{numbers.of_limit(limit, timing.median_ms)} of the limit"
                if limit and not report.is_emulated(trial) else "")
             + ("<br>on the CPU emulator, which does not predict a GPU" if report.is_emulated(trial) else ""))
    return _Bar(timing, colour, text, hover, trial.trial_id)


def _pytorch_bar(trial: Trial, timing: Timing, mode: str) -> _Bar:
    hatched = NOT_DROP_IN in trial.flags
    plain = _bar(trial, timing, _palette(mode)["hatched" if hatched else "pytorch"], None, None)
    return _Bar(plain.timing, plain.colour, plain.text, plain.hover, plain.trial_id, hatched)


def time_label(ms: float) -> str:
    """A time for an axis in ms. A time that would be shown as zeros is given in µs with its unit."""
    return numbers.milliseconds(ms) if round(ms, 4) >= 0.01 else numbers.time(ms)


def _draw(panels: list[_Panel], rows: list[str], mode: str) -> go.Figure:
    colours = _palette(mode)
    barred = [any(isinstance(cell, _Bar) for cell in panel.cells.values()) for panel in panels]
    widths = [1 if some or not any(barred) else _NO_BARS for some in barred]
    figure = make_subplots(1, len(panels), shared_yaxes=True, horizontal_spacing=0.025, column_widths=widths)
    place = {row: len(rows) - 1 - i for i, row in enumerate(rows)}  # row 0 is at the top
    for column, panel in enumerate(panels, 1):
        at = {"row": 1, "col": column}
        for row in rows:
            cell = panel.cells.get(row)
            if isinstance(cell, _Bar):
                _draw_bar(figure, cell, row, place[row], panel.end, colours, at)
            elif cell:
                glyph, colour = _mark(cell)
                figure.add_annotation(x=panel.end, y=place[row], text=f"{glyph}{cell}", showarrow=False,
                                      xanchor="right", bgcolor=colours["bg"],
                                      font={"size": 11, "color": colours[colour]}, **at)
        _draw_lines(figure, panel, len(rows), colours, at)
        unit, ticks = time_axis(panel.end)
        figure.update_xaxes(title_text=panel.title.replace(" ms", f" {unit}"), range=[0, panel.end], **(ticks or {"nticks": 6}),
                            showticklabels=widths[column - 1] == 1, showgrid=widths[column - 1] == 1, **at)
    style(figure, height=70 + 27 * max(1, len(rows)), mode=mode, top=40)
    figure.update_layout(bargap=0.3, barmode="overlay")
    figure.update_yaxes(tickmode="array", tickvals=list(place.values()), ticktext=list(place), showgrid=False,
                        range=[-0.5, max(1, len(rows)) - 0.5])
    return figure


def _mark(cell: str) -> tuple[str, str]:
    """The symbol and the colour of a word that replaces a bar: wrong, could not run, or something else."""
    word = cell.split(",")[0]
    if not word.replace("_", "").isupper() or word in (Status.OK, Status.SKIPPED, Status.CANCELLED):
        return "", "mute"
    return ("✕ ", "bad") if word in report.WRONG else ("! ", "caution")


def _draw_bar(figure: go.Figure, bar: _Bar, row: str, y: int, end: float, colours: dict[str, str], at: dict[str, int]) -> None:
    timing = bar.timing
    cut = timing.median_ms > end
    width = min(timing.median_ms, end)
    inside = max(width, 0 if cut else timing.q75_ms) > _INSIDE_AT * end
    whisker = None if cut or timing.samples < 5 else {
        "type": "data", "symmetric": False, "array": [timing.q75_ms - timing.median_ms],
        "arrayminus": [timing.median_ms - timing.q25_ms], "color": colours["ink"], "thickness": 1, "width": 3}
    figure.add_trace(go.Bar(
        y=[y], x=[width], orientation="h", width=0.62, error_x=whisker, customdata=[[bar.trial_id, row]],
        marker={"color": bar.colour, "line": {"width": 0},
                "pattern": {"shape": "/" if bar.hatched else "", "fgcolor": colours["pytorch"], "size": 5}},
        hovertemplate=bar.hover + "<extra></extra>"), **at)
    if crowded := inside and whisker is not None and timing.q25_ms < _ROOM * end:  # a spread over the whole panel
        x, shift = end, -2
    else:
        x, shift = _text_at(timing, width, inside, whisker is not None), -10 if inside else 7
    figure.add_annotation(
        x=x, y=y, text=("▸ " if cut else "") + bar.text, showarrow=False, borderpad=0, xanchor="right" if inside else "left",
        xshift=shift, bgcolor=None if inside and not crowded else colours["bg"], font={"size": 11.5, "color": colours["ink"]},
        **at)


def _text_at(timing: Timing, width: float, inside: bool, has_whisker: bool) -> float:
    """The place of the text: beyond the error bar, so that they do not overlap."""
    if not has_whisker:
        return width
    return min(width, timing.q25_ms) if inside else max(width, timing.q75_ms)


def _draw_lines(figure: go.Figure, panel: _Panel, rows: int, colours: dict[str, str], at: dict[str, int]) -> None:
    """Each line has its label above the panel, in its own line of text, because on a narrow screen the two would overlap."""
    pytorch = "PyTorch on this CPU" if panel.emulated else "best PyTorch"
    for ms, word, colour, dash, shift in ((panel.floor_ms, "floor", "floor", "dot", 0),
                                          (panel.best_ms, pytorch, "pytorch", "solid", 14)):
        if not ms or ms > panel.end:
            continue
        figure.add_shape(type="line", x0=ms, x1=ms, y0=-0.5, y1=rows - 0.5,
                         line={"color": colours[colour], "width": 1.5, "dash": dash}, **at)
        figure.add_annotation(x=ms, y=rows - 0.5, text=f"{word} {time_label(ms)}", showarrow=False, yanchor="bottom",
                              xanchor="right" if ms > 0.6 * panel.end else "left", yshift=shift, borderpad=0,
                              font={"size": 11, "color": colours["ink" if word == "floor" else "mute"]}, **at)


def time_axis(end_ms: float) -> tuple[str, dict[str, object]]:
    """(unit, its ticks) of an axis from 0: in µs if it ends below 0.01 ms, else in ms with Plotly's own ticks."""
    if end_ms >= 0.01:
        return "ms", {}
    step = next(s * 10.0**e for e in range(-7, 1) for s in (1, 2, 5) if s * 10.0**e >= end_ms / 5)
    values = [step * i for i in range(6) if step * i <= end_ms]
    return "µs", {"tickvals": values, "ticktext": [f"{1e3 * v:.3g}" for v in values]}
