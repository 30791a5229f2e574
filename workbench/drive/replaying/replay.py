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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import starmap
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...core import numbers
from ...core.errors import BadRequest
from ..searching.points import Seen
from ..searching.propose import propose
from .recorded_space import FAMILY, RecordedSpace

if TYPE_CHECKING:
    import plotly.graph_objects as go

Search = Callable[[RecordedSpace, int, int], list[int]]
OURS = "surrogate"
KERNEL_TUNER = "kt:"  # followed by the name of a strategy: kt:genetic_algorithm
_PACKAGES = {"optuna": "optuna", "kernel_tuner": "kernel-tuner", "sklearn": "scikit-learn"}
_TREES, _FOREST_START = 64, 12   # of the search "forest": its trees, and the points before its first fit
FIRST, LAST = 10, 100  # evaluations over which the score is averaged
NEAR = 1.05            # times the optimum: counts as near it
_TOLD = (10, 20, 50, 100, 200, 500)  # trials after which the best so far is printed, beside the last trial
_SHARE_AT, _SECONDS_AT = "share_at_", "seconds_at_"  # columns of the table, followed by the number of trials

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
    share_at: dict[int, float]  # the share after some numbers of evaluations


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
    """One row for each space and search, and one for each search over all spaces. `share_at_10`: the best of the space divided
    by the best so far after 10 trials, the geometric mean over repeats. `seconds_at_10`: the time of these trials in s, the
    mean over repeats. A number is NaN where the space has fewer trials or no times of evaluations."""
    rows = [_row(one.space, one.search, [one]) for one in replayed]
    if len({one.space for one in replayed}) > 1:
        rows += [_row("all", name, [one for one in replayed if one.search == name])
                 for name in dict.fromkeys(one.search for one in replayed)]
    return pd.DataFrame(rows)


def text(frame: pd.DataFrame, *, trials: int) -> str:
    """The table as text: the scores, then the best so far after some numbers of trials."""
    def each(column: str, form: str) -> list[str]:
        return [numbers.MISSING if pd.isna(x) else form.format(x) for x in frame[column]]

    scores = {"space": list(frame["space"]), "search": list(frame["search"]), "score": each("score", "{:+.2f}"),
              "over time": each("score_over_time", "{:+.2f}"),
              f"% of best at {min(trials, LAST)}": [f"{100 * x:.1f}" for x in frame["share_of_best"]],
              "runs within 5 %": [f"{100 * x:.0f} %" for x in frame["near"]]}
    steps = {"space": scores["space"], "search": scores["search"]}
    for count in sorted(int(name.removeprefix(_SHARE_AT)) for name in frame if name.startswith(_SHARE_AT)):
        steps[str(count)] = [
            numbers.MISSING if pd.isna(share) else f"{100 * share:.1f}" + ("" if pd.isna(s) else f" in {numbers.seconds(s)}")
            for share, s in zip(frame[f"{_SHARE_AT}{count}"], frame[f"{_SECONDS_AT}{count}"], strict=True)]
    return (f"{_aligned(scores)}\n\nBest so far after so many trials, in % of the best of the space, and the time of these "
            f"trials:\n{_aligned(steps)}")


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
    def share(count: int) -> float:
        return exp(float(np.mean(np.log(ranked[0] / np.minimum(best[:, count - 1], ranked[-1])))))

    all_ = best.shape[1]
    near = float(np.mean(best[:, last - 1] <= NEAR * ranked[0]))
    return Outcome(float(gone.mean()), share(last), near, best, curve, baseline,
                   {count: share(count) for count in (*(n for n in _TOLD if n < all_), all_)})


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
    row: dict[str, str | float] = {
        "space": space, "search": name, "score": float(np.mean([one.outcome.score for one in of])),
        "score_over_time": float(np.mean(timed)) if timed else float("nan"),
        "share_of_best": _mean_share([one.outcome.share for one in of]),
        "near": float(np.mean([one.outcome.near for one in of]))}
    for count in of[0].outcome.share_at:
        if all(count in one.outcome.share_at for one in of):
            row |= {f"{_SHARE_AT}{count}": _mean_share([one.outcome.share_at[count] for one in of]),
                    f"{_SECONDS_AT}{count}": float(np.mean([_seconds(one, count) for one in of]))}
    return row


def _mean_share(shares: Sequence[float]) -> float:
    return exp(float(np.mean(np.log(shares))))


def _seconds(of: Replayed, count: int) -> float:
    """The time of the first trials, the mean over repeats. A trial without a time counts as the mean of the others."""
    known = of.met_seconds[np.isfinite(of.met_seconds)]
    if not known.size:
        return float("nan")
    return float(np.where(np.isnan(of.met_seconds), known.mean(), of.met_seconds)[:, :count].sum(axis=1).mean())


def _aligned(columns: Mapping[str, Sequence[str]]) -> str:
    """A table as text. The first two columns are names."""
    rows = [list(columns), *(list(row) for row in zip(*columns.values(), strict=True))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) if i < 2 else cell.rjust(width)
                               for i, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip() for row in rows)


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
    """Optuna's TPE. Each tunable is a categorical parameter. Where there are several families, the family is one too, and each
    family has its own parameters. A config outside of the space is reported to Optuna as pruned. A config that was tried
    already is reported with its known time. Neither counts as an evaluation."""
    optuna = _package("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    families = {family: _values([space.configs[i] for i in points]) for family, points in _families(space).items()}
    place = {(family, *(config.get(name) for name in families[family])): i
             for i, (family, config) in enumerate(zip(space.points.families, space.configs, strict=True))}
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    met: dict[int, None] = {}
    for _ in range(50 * count):
        if len(met) >= min(count, len(space.ms)):
            break
        trial = study.ask()
        several = len(families) > 1
        family = trial.suggest_categorical(FAMILY, list(families)) if several else next(iter(families))
        point = place.get((family, *(trial.suggest_categorical(f"{family} {name}" if several else name, known)
                                     for name, known in families[family].items())))
        ms = float("nan") if point is None else float(space.ms[point])
        if point is not None:
            met[point] = None
        study.tell(trial, None if np.isnan(ms) else np.log(ms),
                   state=optuna.trial.TrialState.PRUNED if point is None else
                   optuna.trial.TrialState.FAIL if np.isnan(ms) else optuna.trial.TrialState.COMPLETE)
    return _filled(list(met), space, count, seed)


def _forest(space: RecordedSpace, count: int, seed: int) -> list[int]:
    """Random forests of scikit-learn. The first points are those of our own search. Then each point has the least lower bound:
    the mean over the trees of the logarithm of the time, minus their standard deviation. A failed point counts as slow. Each of
    several families is a feature: 1 for its points, otherwise 0."""
    forest = _package("sklearn.ensemble")
    features = np.nan_to_num(space.points.features, nan=-1.0)
    if len(families := _families(space)) > 1:
        of_family = [np.isin(np.arange(len(features)), points) for points in families.values()]
        features = np.column_stack([features, *of_family]).astype(np.float32)
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
    space are legal. Where there are several families, the family is a tunable too."""
    kernel_tuner = _package("kernel_tuner")
    constraint = import_module("constraint")  # it comes with Kernel Tuner
    unassigned = import_module("constraint.domain").Unassigned
    configs = completed(space)
    values = _values(configs)
    place: dict[str, int] = {}
    cache: dict[str, Any] = {}
    for i, config in enumerate(configs):
        key = ",".join(str(config.get(name)) for name in values)
        place[key] = i
        failed = bool(np.isnan(space.ms[i]))
        cache[key] = {**config, "time": "RuntimeFailedConfig" if failed else float(space.ms[i]), "compile_time": 0.0,
                      "verification_time": 0.0, "benchmark_time": 0.0, "strategy_time": 0.0, "framework_time": 0.0}
        cache[key] |= {"__error__": "RuntimeFailedConfig"} if failed else {}
    parts: dict[tuple[int, ...], set[tuple[Any, ...]]] = {}

    def legal(*config: Any) -> bool:
        """Whether a config of the space has these values. Kernel Tuner also asks for configs with some values only; without
        them it would go through all combinations of all tunables, which are too many for several families."""
        given = tuple(i for i, value in enumerate(config) if value is not unassigned)
        if given not in parts:
            rows = [[known.get(name) for name in values] for known in configs]
            parts[given] = {tuple(row[i] for i in given) for row in rows}
        return tuple(config[i] for i in given) in parts[given]

    random.seed(seed)
    np.random.seed(seed)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        file = Path(folder, "cache.json")
        file.write_text(json.dumps({"device_name": "replay", "kernel_name": "replay", "problem_size": [1],
                                    "tune_params_keys": list(values), "tune_params": values, "objective": "time",
                                    "cache": cache}), encoding="utf-8")
        results, _ = kernel_tuner.tune_kernel("replay", "", (1,), [], values,
                                              restrictions=[constraint.FunctionConstraint(legal, assigned=False)],
                                              strategy=strategy, strategy_options={"max_fevals": min(count, len(space.ms))},
                                              cache=str(file), simulation_mode=True, lang="C", quiet=True)
    met = dict.fromkeys(place[",".join(str(one[name]) for name in values)] for one in results)
    return _filled(list(met), space, count, seed)


def completed(space: RecordedSpace) -> list[dict[str, Any]]:
    """The configs of the space. Where there are several families, the family is a tunable too, and a tunable that a family
    lacks has its least value there, so that it distinguishes no configs of that family."""
    if len(_families(space)) == 1:
        return [dict(config) for config in space.configs]
    least = {name: known[0] for name, known in _values(space.configs).items()}
    return [{FAMILY: family, **least, **config}
            for family, config in zip(space.points.families, space.configs, strict=True)]


def _families(space: RecordedSpace) -> dict[str, list[int]]:
    """The points of each family."""
    found: dict[str, list[int]] = {}
    for i, family in enumerate(space.points.families):
        found.setdefault(family, []).append(i)
    return found


def _values(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The values of each tunable, sorted."""
    names = dict.fromkeys(name for config in configs for name in config)
    return {name: sorted({config[name] for config in configs if name in config}, key=lambda v: (isinstance(v, str), v))
            for name in names}


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
