"""Searches compared on recorded spaces: each is run many times, then scored, as a table and as a chart."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import starmap
from math import exp, log
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ...core import numbers
from . import score
from .recorded_space import RecordedSpace
from .searches import search

if TYPE_CHECKING:
    import plotly.graph_objects as go

# Okabe and Ito's colours, told apart by the colour-blind too; each search has a dash of its own besides.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid")
_MOST_OFF = 400.0  # percent above the optimum: what is slower is cut


@dataclass(frozen=True, eq=False)
class Replayed:
    """One search on one space. `met_ms` and `met_seconds` are [repeats, evaluations]."""

    space: str
    search: str
    outcome: score.Outcome
    over_time: float | None  # the score over time; None where the space does not say what evaluations took
    met_seconds: score.Floats
    best_ms: float


def replay(spaces: Sequence[RecordedSpace], searches: Sequence[str], *, repeats: int = 100, trials: int = 100, batch: int = 1,
           jobs: int = 1) -> list[Replayed]:
    """Every search on every space, seeds 0 to `repeats` - 1, in `jobs` processes. Raises `BadRequest` before it begins for a
    search that there is not."""
    for name in searches:
        search(name)
    work = [(space, name, seed, trials, batch) for space in spaces for name in searches for seed in range(repeats)]
    with ExitStack() as stack:
        if jobs > 1:
            os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread a process
            pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
            stack.enter_context(pool)
            met = list(pool.map(_one, *zip(*work, strict=True), chunksize=4))
        else:
            met = list(starmap(_one, work))
    found = []
    for at, (space, name) in enumerate((space, name) for space in spaces for name in searches):
        points = np.array(met[at * repeats:(at + 1) * repeats])
        ms, seconds = space.ms[points], space.seconds[points]
        found.append(Replayed(space.name, name, score.outcome(space.ms, ms),
                              score.over_time(space.ms, space.seconds, ms, seconds) if trials >= score.LAST else None,
                              seconds, space.best_ms))
    return found


def table(replayed: Sequence[Replayed]) -> pd.DataFrame:
    """One row for each space and search, and one for each search over all spaces."""
    rows = [_row(one.space, one.search, [one]) for one in replayed]
    if len({one.space for one in replayed}) > 1:
        rows += [_row("all", name, [one for one in replayed if one.search == name])
                 for name in dict.fromkeys(one.search for one in replayed)]
    return pd.DataFrame(rows)


def text(frame: pd.DataFrame, *, trials: int) -> str:
    """The table as people read it."""
    shown = pd.DataFrame({
        "space": frame["space"], "search": frame["search"], "score": frame["score"].map("{:+.2f}".format),
        "over time": frame["score_over_time"].map(lambda x: numbers.MISSING if pd.isna(x) else f"{x:+.2f}"),
        f"% of best at {trials}": (100 * frame["share_of_best"]).map("{:.1f}".format),
        "runs within 5 %": (100 * frame["near"]).map("{:.0f} %".format)})
    widths = [max(len(str(cell)) for cell in (name, *shown[name])) for name in shown]
    lines = [list(shown.columns), *shown.astype(str).values.tolist()]
    return "\n".join("  ".join(cell.ljust(width) if i < 2 else cell.rjust(width)
                               for i, (cell, width) in enumerate(zip(line, widths, strict=True))).rstrip() for line in lines)


def figure(replayed: Sequence[Replayed]) -> go.Figure:
    """How far the best so far lies above the optimum: against trials, and against time where the spaces note it.

    A line is the median over repeats, then the mean over spaces.
    """
    from plotly import graph_objects as go
    from plotly.subplots import make_subplots

    from ..reporting.plots import style
    timed = [one for one in replayed if one.over_time is not None]
    chart = make_subplots(1, 2 if timed else 1, horizontal_spacing=0.1)
    for place, name in enumerate(dict.fromkeys(one.search for one in replayed)):
        line = {"color": _COLOURS[place % len(_COLOURS)], "dash": _DASHES[place % len(_DASHES)], "width": 2}
        curves = [_off(one.outcome.curve, one.best_ms) for one in replayed if one.search == name]
        ends = min(len(curve) for curve in curves)
        mean = np.mean([curve[:ends] for curve in curves], axis=0)
        chart.add_trace(go.Scatter(x=np.arange(1, ends + 1), y=mean, mode="lines", name=name, legendgroup=name, line=line,
                                   hovertemplate=f"{name}: %{{y:.1f}} % above the best after %{{x}} trials<extra></extra>"),
                        row=1, col=1)
        mine = [one for one in timed if one.search == name]
        if mine:
            clock, slower = _against_time(mine)
            chart.add_trace(go.Scatter(x=clock, y=slower, mode="lines", name=name, legendgroup=name, showlegend=False,
                                       line=line, hovertemplate=f"{name}: %{{y:.1f}} % above the best after %{{x:.0f}} s"
                                                                "<extra></extra>"), row=1, col=2)
    style(chart, height=420)
    chart.update_layout(showlegend=True, legend={"orientation": "h", "y": 1.12})
    chart.update_yaxes(title_text="best so far above the optimum, %", rangemode="tozero")
    chart.update_xaxes(title_text="trials", row=1, col=1)
    if timed:
        chart.update_xaxes(title_text="time of the trials, s", row=1, col=2)
    return chart


def _one(space: RecordedSpace, name: str, seed: int, trials: int, batch: int) -> list[int]:
    return search(name, batch=batch)(space, trials, seed)


def _row(space: str, name: str, of: Sequence[Replayed]) -> dict[str, str | float]:
    timed = [one.over_time for one in of if one.over_time is not None]
    return {"space": space, "search": name, "score": float(np.mean([one.outcome.score for one in of])),
            "score_over_time": float(np.mean(timed)) if timed else float("nan"),
            "share_of_best": exp(float(np.mean([log(one.outcome.share) for one in of]))),
            "near": float(np.mean([one.outcome.near for one in of]))}


def _off(curve: score.Floats, best_ms: float) -> score.Floats:
    return np.minimum(100 * (curve / best_ms - 1), _MOST_OFF)


def _against_time(of: Sequence[Replayed]) -> tuple[score.Floats, score.Floats]:
    """Seconds, and percent above the optimum; as far as the quickest space reaches."""
    ends = [np.cumsum(np.nan_to_num(one.met_seconds), axis=1) for one in of]
    clock = np.linspace(0, min(float(np.median(end[:, -1])) for end in ends), 200)
    rows = []
    for one, end in zip(of, ends, strict=True):
        curve = np.median([np.interp(clock, np.append(0, row), np.append(best[0], best))
                           for row, best in zip(end, np.minimum(one.outcome.best, 1e6), strict=True)], axis=0)
        rows.append(_off(curve, one.best_ms))
    return clock, np.mean(rows, axis=0)
