"""The searches that a replay compares: the project's own, random, Optuna's TPE, and the optimisers of Kernel Tuner.

Each is a function of a space, a number of evaluations and a seed; it hands back the points it evaluated, in that order.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import tempfile
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import BadRequest
from ..searching.points import Seen
from ..searching.propose import propose
from .recorded_space import RecordedSpace

Search = Callable[[RecordedSpace, int, int], list[int]]
OURS = "surrogate"
KERNEL_TUNER = "kt:"  # and the name of its strategy: kt:genetic_algorithm
_PACKAGES = {"optuna": "optuna", "kernel_tuner": "kernel-tuner"}


def search(name: str, *, batch: int = 1) -> Search:
    """The search of that name. `batch`: our own proposes so many at a time. Raises `BadRequest`: unknown, or not installed."""
    if name == OURS:
        return partial(_surrogate, batch=batch)
    if name == "random":
        return _random
    if name == "tpe":
        _package("optuna")
        return _tpe
    if name.startswith(KERNEL_TUNER):
        strategies = _package("kernel_tuner.interface").strategy_map
        if name.removeprefix(KERNEL_TUNER) not in strategies:
            raise BadRequest(f"Kernel Tuner has no optimiser {name.removeprefix(KERNEL_TUNER)!r}; it has "
                             f"{', '.join(strategies)}.", field="searches")
        return partial(_kernel_tuner, strategy=name.removeprefix(KERNEL_TUNER))
    raise BadRequest(f"There is no search {name!r}; there are {OURS}, random, tpe, and kt:NAME for an optimiser of Kernel "
                     f"Tuner, for example kt:genetic_algorithm.", field="searches")


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
    """Each tunable is a categorical parameter. A config outside the space is told as pruned and costs no evaluation. One that
    was met before is told its time again and costs none either."""
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


def _kernel_tuner(space: RecordedSpace, count: int, seed: int, *, strategy: str) -> list[int]:
    """In its simulation mode, from a cache file that is written for it; only the configs of the space are legal."""
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
    """The values of each tunable, sorted. Raises `BadRequest` for several families: only our own search knows them."""
    if len(set(space.points.families)) > 1:
        raise BadRequest(f"{space.name} has several families; tpe and kt: search one only. Choose {OURS} or random.")
    names = dict.fromkeys(name for config in space.configs for name in config)
    return {name: sorted({config[name] for config in space.configs}, key=lambda v: (isinstance(v, str), v)) for name in names}


def _filled(met: list[int], space: RecordedSpace, count: int, seed: int) -> list[int]:
    """A search that gives up before its time goes on at random, so that all are judged on as many evaluations."""
    left = [i for i in _random(space, len(space.ms), seed) if i not in set(met)]
    return [*met, *left][:count]


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        raise BadRequest(f"{package} is not installed; install it with: pip install {_PACKAGES[package]}.") from error
