"""Compares searches on recorded spaces. Each search is run many times and scored; the scores are shown as a table and as a
chart. The score is that of Willemsen et al., "A methodology for comparing optimization algorithms for auto-tuning", 2024, as in
their package autotuning_methodology. It is 0 for *calculated* random search and 1 for the optimum: the fraction of the distance
between them, averaged over a range of evaluations and then over spaces.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import random
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import starmap
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...core import numbers
from ...core.errors import BadRequest
from ..searching.points import Seen
from ..searching.propose import propose
from .recorded_space import RecordedSpace

if TYPE_CHECKING:
    import plotly.graph_objects as go

Search = Callable[[RecordedSpace, int, int], list[int]]
OURS = "surrogate"
KERNEL_TUNER = "kt:"  # followed by the name of a strategy: kt:genetic_algorithm
_PACKAGES = {"optuna": "optuna", "kernel_tuner": "kernel-tuner", "sklearn": "scikit-learn"}
_TREES, _FOREST_START = 64, 12   # of the search "forest": its trees, and the points before its first fit
FIRST, LAST = 10, 100  # evaluations over which the score is averaged
NEAR = 1.05            # times the optimum: counts as near it

Floats = NDArray[np.float64]
# Okabe and Ito's colours, which colour-blind people can distinguish. Each search also has its own line pattern.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid")
_MOST_OFF = 400.0  # percent above the optimum; larger values are cut off in the chart


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a search on one space. `best` is [repeats, evaluations]: the best time so far; infinite before the first
    config that ran."""

    score: float
    share: float  # optimum / best time at the end, the geometric mean over repeats
    near: float   # share of the repeats that end within 5 % of the optimum
    best: Floats
    curve: Floats
    baseline: Floats


@dataclass(frozen=True, eq=False)
class Replayed:
    """One search on one space. `met_ms` and `met_seconds` are [repeats, evaluations]."""

    space: str
    search: str
    outcome: Outcome
    over_time: float | None  # the score over time; None if the space has no times of evaluations
    met_seconds: Floats
    best_ms: float


def replay(spaces: Sequence[RecordedSpace], searches: Sequence[str], *, repeats: int = 100, trials: int = 100, batch: int = 1,
           jobs: int = 1) -> list[Replayed]:
    """Run every search on every space with the seeds 0 to `repeats` - 1, in `jobs` processes. Raises `BadRequest` for an
    unknown search before anything runs."""
    for name in searches:
        search(name)
    work = [(space, name, seed, trials, batch) for space in spaces for name in searches for seed in range(repeats)]
    with contextlib.ExitStack() as stack:
        if jobs > 1:
            os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread for each process
            pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
            stack.enter_context(pool)
            met = list(pool.map(_one, *zip(*work, strict=True), chunksize=4))
        else:
            met = list(starmap(_one, work))
    found = []
    for at, (space, name) in enumerate((space, name) for space in spaces for name in searches):
        points = np.array(met[at * repeats:(at + 1) * repeats])
        ms, seconds = space.ms[points], space.seconds[points]
        found.append(Replayed(space.name, name, outcome(space.ms, ms),
                              over_time(space.ms, space.seconds, ms, seconds) if trials >= LAST else None,
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
    """The table as text."""
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
    """How far the best time so far is above the optimum: over trials, and over time if the spaces have times of evaluations.

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


def search(name: str, *, batch: int = 1) -> Search:
    """The search of that name. `batch`: how many configs our own search proposes at a time. Raises `BadRequest` if the search
    is unknown or not installed."""
    if name == OURS:
        return partial(_surrogate, batch=batch)
    if name == "random":
        return _random
    if name == "tpe":
        _package("optuna")
        return _tpe
    if name == "forest":
        _package("sklearn.ensemble")
        return _forest
    if name.startswith(KERNEL_TUNER):
        strategies = _package("kernel_tuner.interface").strategy_map
        if name.removeprefix(KERNEL_TUNER) not in strategies:
            raise BadRequest(f"Kernel Tuner has no optimiser {name.removeprefix(KERNEL_TUNER)!r}; it has "
                             f"{', '.join(strategies)}.", field="searches")
        return partial(_kernel_tuner, strategy=name.removeprefix(KERNEL_TUNER))
    raise BadRequest(f"There is no search {name!r}; there are {OURS}, random, tpe, forest, and kt:NAME for an optimiser of "
                     f"Kernel Tuner, for example kt:genetic_algorithm.", field="searches")


def outcome(space_ms: Floats, met_ms: Floats, *, first: int = FIRST, last: int = LAST) -> Outcome:
    """`space_ms`: the time of every point, NaN where it failed; `met_ms`: [repeats, evaluations]."""
    ranked = np.sort(space_ms[np.isfinite(space_ms)])
    best = best_so_far(met_ms)
    last = min(last, best.shape[1], len(space_ms))
    first = min(first, last)
    curve = median_curve(ranked, best)
    baseline = random_curve(ranked, np.arange(1, best.shape[1] + 1))
    at = slice(first - 1, last)
    way = baseline[at] - ranked[0]
    gone = np.where(way > 0, (baseline[at] - curve[at]) / np.where(way > 0, way, 1.0), (curve[at] <= ranked[0]).astype(float))
    end = best[:, last - 1]
    share = exp(float(np.mean([log(ranked[0] / one) if np.isfinite(one) else log(ranked[0] / ranked[-1]) for one in end])))
    return Outcome(float(gone.mean()), share, float(np.mean(end <= NEAR * ranked[0])), best, curve, baseline)


def best_so_far(met_ms: Floats) -> Floats:
    return np.minimum.accumulate(np.where(np.isnan(met_ms), np.inf, met_ms), axis=1)


def random_curve(ranked: Floats, evaluations: NDArray[np.int_]) -> Floats:
    """The calculated average result of random search without replacement. Of N times, the best of M draws has the expected rank
    M (N + 1) / (M + 1), counted from the slowest. Failed points are left out, as in the methodology."""
    count = len(ranked)
    places = np.minimum(count - 1, np.round(evaluations * (count + 1) / (evaluations + 1)).astype(int))
    values: Floats = ranked[::-1][places]
    return values


def median_curve(ranked: Floats, best: Floats) -> Floats:
    """The time at the median rank over the repeats, for each evaluation."""
    ranks = np.minimum(np.searchsorted(ranked, best), len(ranked) - 1)
    values: Floats = ranked[np.round(np.median(ranks, axis=0)).astype(int)]
    return values


def over_time(space_ms: Floats, space_seconds: Floats, met_ms: Floats, met_seconds: Floats, *, first: int = FIRST,
              last: int = LAST, steps: int = 200) -> float | None:
    """The score, averaged over the time in which `first` to `last` evaluations of average length are made. None if the space
    has no times of evaluations."""
    if np.isnan(space_seconds).all():
        return None
    each = float(np.nanmean(space_seconds))
    ranked = np.sort(space_ms[np.isfinite(space_ms)])
    ends = np.cumsum(np.where(np.isnan(met_seconds), each, met_seconds), axis=1)
    best = best_so_far(met_ms)
    clock = np.linspace(first * each, last * each, steps)
    places = np.stack([np.searchsorted(row, clock, side="right") - 1 for row in ends])
    seen = np.where(places >= 0, np.take_along_axis(best, np.maximum(places, 0), axis=1), np.inf)
    curve = median_curve(ranked, seen)
    baseline = random_curve(ranked, np.maximum(1, np.round(clock / each)).astype(int))
    way = np.maximum(baseline - ranked[0], 1e-12)
    return float(np.mean((baseline - curve) / way))


def _one(space: RecordedSpace, name: str, seed: int, trials: int, batch: int) -> list[int]:
    return search(name, batch=batch)(space, trials, seed)


def _row(space: str, name: str, of: Sequence[Replayed]) -> dict[str, str | float]:
    timed = [one.over_time for one in of if one.over_time is not None]
    return {"space": space, "search": name, "score": float(np.mean([one.outcome.score for one in of])),
            "score_over_time": float(np.mean(timed)) if timed else float("nan"),
            "share_of_best": exp(float(np.mean([log(one.outcome.share) for one in of]))),
            "near": float(np.mean([one.outcome.near for one in of]))}


def _off(curve: Floats, best_ms: float) -> Floats:
    return np.minimum(100 * (curve / best_ms - 1), _MOST_OFF)


def _against_time(of: Sequence[Replayed]) -> tuple[Floats, Floats]:
    """Seconds, and the percent above the optimum at these seconds. The curve ends where the first space ends."""
    ends = [np.cumsum(np.nan_to_num(one.met_seconds), axis=1) for one in of]
    clock = np.linspace(0, min(float(np.median(end[:, -1])) for end in ends), 200)
    rows = []
    for one, end in zip(of, ends, strict=True):
        curve = np.median([np.interp(clock, np.append(0, row), np.append(best[0], best))
                           for row, best in zip(end, np.minimum(one.outcome.best, 1e6), strict=True)], axis=0)
        rows.append(_off(curve, one.best_ms))
    return clock, np.mean(rows, axis=0)


def _surrogate(space: RecordedSpace, count: int, seed: int, *, batch: int) -> list[int]:
    seen: list[Seen] = []
    while len(seen) < min(count, len(space.ms)):
        for point in propose(space.points, seen, (), min(batch, count - len(seen)), seed=seed):
            ms = float(space.ms[point])
            seen.append(Seen(point, None if np.isnan(ms) else ms))
    return [one.point for one in seen]


def _random(space: RecordedSpace, count: int, seed: int) -> list[int]:
    return random.Random(seed).sample(range(len(space.ms)), min(count, len(space.ms)))


def _tpe(space: RecordedSpace, count: int, seed: int) -> list[int]:
    """Optuna's TPE. Each tunable is a categorical parameter. A config outside of the space is reported to Optuna as pruned. A
    config that was tried already is reported with its known time. Neither counts as an evaluation."""
    optuna = _package("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    values = _values(space)
    place = {tuple(config.get(name) for name in values): i for i, config in enumerate(space.configs)}
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    met: dict[int, None] = {}
    for _ in range(50 * count):
        if len(met) >= min(count, len(space.ms)):
            break
        trial = study.ask()
        point = place.get(tuple(trial.suggest_categorical(name, known) for name, known in values.items()))
        ms = float("nan") if point is None else float(space.ms[point])
        if point is not None:
            met[point] = None
        study.tell(trial, None if np.isnan(ms) else np.log(ms),
                   state=optuna.trial.TrialState.PRUNED if point is None else
                   optuna.trial.TrialState.FAIL if np.isnan(ms) else optuna.trial.TrialState.COMPLETE)
    return _filled(list(met), space, count, seed)


def _forest(space: RecordedSpace, count: int, seed: int) -> list[int]:
    """Random forests of scikit-learn. The first points are those of our own search. Then each point has the least lower bound:
    the mean over the trees of the logarithm of the time, minus their standard deviation. A failed point counts as slow."""
    forest = _package("sklearn.ensemble")
    features = np.nan_to_num(space.points.features, nan=-1.0)
    met = propose(space.points, [], (), min(_FOREST_START, count, len(space.ms)), seed=seed)
    while len(met) < min(count, len(space.ms)):
        known = space.ms[met]
        slow = np.nanmax(known) if np.isfinite(known).any() else 1.0
        model = forest.RandomForestRegressor(_TREES, random_state=seed, n_jobs=1)
        model.fit(features[met], np.log(np.where(np.isnan(known), slow, known)))
        left = np.setdiff1d(np.arange(len(space.ms)), met)
        each = np.stack([tree.predict(features[left]) for tree in model.estimators_])
        met.append(int(left[np.argmin(each.mean(0) - each.std(0))]))
    return met


def _kernel_tuner(space: RecordedSpace, count: int, seed: int, *, strategy: str) -> list[int]:
    """A strategy of Kernel Tuner in its simulation mode, with a cache file that is written for it. Only the configs of the
    space are legal."""
    kernel_tuner = _package("kernel_tuner")
    constraint = import_module("constraint")  # it comes with Kernel Tuner
    values = _values(space)
    place: dict[str, int] = {}
    cache: dict[str, Any] = {}
    for i, config in enumerate(space.configs):
        key = ",".join(str(config.get(name)) for name in values)
        place[key] = i
        failed = bool(np.isnan(space.ms[i]))
        cache[key] = {**config, "time": "RuntimeFailedConfig" if failed else float(space.ms[i]), "compile_time": 0.0,
                      "verification_time": 0.0, "benchmark_time": 0.0, "strategy_time": 0.0, "framework_time": 0.0}
        cache[key] |= {"__error__": "RuntimeFailedConfig"} if failed else {}
    legal = constraint.FunctionConstraint(lambda *config: ",".join(map(str, config)) in place)
    random.seed(seed)
    np.random.seed(seed)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        file = Path(folder, "cache.json")
        file.write_text(json.dumps({"device_name": "replay", "kernel_name": "replay", "problem_size": [1],
                                    "tune_params_keys": list(values), "tune_params": values, "objective": "time",
                                    "cache": cache}), encoding="utf-8")
        results, _ = kernel_tuner.tune_kernel("replay", "", (1,), [], values, restrictions=[legal], strategy=strategy,
                                              strategy_options={"max_fevals": min(count, len(space.ms))}, cache=str(file),
                                              simulation_mode=True, lang="C", quiet=True)
    met = dict.fromkeys(place[",".join(str(one[name]) for name in values)] for one in results)
    return _filled(list(met), space, count, seed)


def _values(space: RecordedSpace) -> dict[str, list[Any]]:
    """The values of each tunable, sorted. Raises `BadRequest` for several families, because only our own search supports them.
    """
    if len(set(space.points.families)) > 1:
        raise BadRequest(f"{space.name} has several families, but tpe and kt:NAME support only one; choose {OURS} or random.")
    names = dict.fromkeys(name for config in space.configs for name in config)
    return {name: sorted({config[name] for config in space.configs}, key=lambda v: (isinstance(v, str), v)) for name in names}


def _filled(met: list[int], space: RecordedSpace, count: int, seed: int) -> list[int]:
    """Fill up a search that ends early with random points, so that all searches have the same number of evaluations."""
    left = [i for i in _random(space, len(space.ms), seed) if i not in set(met)]
    return [*met, *left][:count]


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        raise BadRequest(f"{package} is not installed; install it with: pip install {_PACKAGES[package]}.") from error
