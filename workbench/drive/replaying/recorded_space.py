"""`RecordedSpace`: configs and their measured times. It is read from a session, or from a cache file or T4 file of Kernel
Tuner.

Cache files have `cache: {text of the config: its result}`, Kernel Tuner's own format. T4 files have `results: [...]`, the
exchange format of autotuners. Both may be compressed with gzip. A T1 file describes the space of such results: its tunables
with their values, and conditions (`Described`). The types below follow results-schema.json of
https://github.com/odgaard/TuningSchema and its successor schemas/T4.json of
https://github.com/AutoTuningAssociation/autotuning_methodology. Times are in ms; of a T4 file, in its unit of time.
"""

from __future__ import annotations

import ast
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...core import numbers
from ...core.errors import BadRequest
from ...core.expressions import evaluate_python, parse_python
from ...core.space import SearchSpace
from ...core.trial import NOT_JUDGED, Status, Trial
from ...core.typed import Misfit, read
from ...core.variants import find
from ..searching.points import Points, Value, config_text, points_from
from ..sessions.files import is_session
from ..sessions.session import Session

SMALLEST = 2  # the fewest points of a space: a smaller one is not worth a search
_MOST_COUNTED = 20_000  # configs before constraints: enumerating more takes minutes
_TIMES = ("compile_time", "verification_time", "benchmark_time", "strategy_time", "framework_time")  # ms
SCHEMA_VERSION = "1.0.0"
# The public T4 files write "miliseconds".
_UNITS_MS = {"nanoseconds": 1e-6, "microseconds": 1e-3, "milliseconds": 1.0, "miliseconds": 1.0, "seconds": 1e3}
_MOST_VISITED = 1_000_000  # partial configs of a T1 file that are examined to count the legal ones
FAMILY = "candidate_family"  # in our files: variant, precision and form, beside the tunables
TIME = "time"


class Invalidity(StrEnum):
    TIMEOUT = "timeout"
    COMPILE = "compile"
    RUNTIME = "runtime"
    CORRECTNESS = "correctness"
    CONSTRAINTS = "constraints"
    CORRECT = "correct"


class Times(TypedDict, total=False):
    compilation_time: float
    runtimes: list[Any]
    framework: float
    search_algorithm: float
    validation: float


class Measurement(TypedDict, total=False):
    name: str
    value: Any  # a number, a text or a list
    unit: str


class Result(TypedDict):
    configuration: dict[str, Any]
    times: Times
    invalidity: Invalidity
    correctness: float
    timestamp: NotRequired[str]
    objectives: NotRequired[list[Any]]
    measurements: NotRequired[list[Measurement]]


class Results(TypedDict):
    results: list[Result]
    schema_version: NotRequired[str]


CORRECT = Invalidity.CORRECT
_INVALID = {Status.BUILD_FAILED: Invalidity.COMPILE, Status.RENDER_FAILED: Invalidity.COMPILE,
            Status.BUILD_TIMEOUT: Invalidity.TIMEOUT, Status.RUN_TIMEOUT: Invalidity.TIMEOUT,
            Status.SKIPPED: Invalidity.CONSTRAINTS, Status.OK: Invalidity.CORRECT,
            **dict.fromkeys((Status.WRONG_SHAPE, Status.WRONG_DTYPE, Status.WRONG_DEVICE, Status.UNWRITTEN,
                             Status.OUT_OF_BOUNDS, Status.NON_FINITE, Status.MISMATCH, Status.INPUT_MODIFIED,
                             Status.NO_GRADIENT, Status.NONDETERMINISTIC, Status.IMPLAUSIBLE), Invalidity.CORRECTNESS)}


@dataclass(frozen=True, eq=False)
class RecordedSpace:
    """`ms[i]`: the time of point i; NaN if it failed. `seconds[i]`: how long its evaluation took; NaN if that is not recorded.
    """

    name: str
    points: Points
    configs: tuple[dict[str, Value], ...]
    ms: NDArray[np.float64]
    seconds: NDArray[np.float64]
    trials: tuple[Trial, ...] = ()  # only for a space from a session, like the session's name
    session: str = ""

    @property
    def best_ms(self) -> float:
        return float(np.nanmin(self.ms))

    @property
    def failed(self) -> int:
        return int(np.isnan(self.ms).sum())

    def __str__(self) -> str:
        """`A100: 4 362 configs, 161 failed, best 0.554 ms`."""
        return (f"{self.name}: {numbers.count(len(self.ms))} configs, {self.failed} failed, best "
                f"{numbers.time(self.best_ms)}")


@dataclass(frozen=True)
class _Result:
    """One config with its result, from any source."""

    config: dict[str, Value]
    ms: float | None
    seconds: float | None = None
    family: str = "all"


@dataclass(frozen=True)
class Described:
    """A T1 file: the values of each tunable, and the conditions that a legal config meets."""

    path: Path
    values: dict[str, tuple[Value, ...]]
    conditions: tuple[ast.expr, ...]

    @property
    def name(self) -> str:
        return self.path.name.removesuffix(".gz").removesuffix(".json")

    def fits(self, space: RecordedSpace) -> bool:
        """Whether it describes the tunables of that space. The results need not name a tunable that has one value."""
        there = set().union(*space.configs[:1])
        return not space.trials and there <= set(self.values) and all(
            name in there or len(values) == 1 for name, values in self.values.items())

    def legal(self, names: Sequence[str]) -> set[tuple[Value, ...]] | None:
        """The legal configs as values of `names`; None if there are too many to enumerate."""
        found: set[tuple[Value, ...]] = set()
        order = list(self.values)
        # A condition is checked as soon as all its tunables have a value.
        checked: list[list[ast.expr]] = [[] for _ in order]
        for condition in self.conditions:
            used = [order.index(n.id) for n in ast.walk(condition) if isinstance(n, ast.Name) and n.id in self.values]
            checked[max(used, default=0)].append(condition)
        stack: list[dict[str, Value]] = [{}]
        visited = 0
        while stack:
            config = stack.pop()
            visited += 1
            if visited > _MOST_VISITED:
                return None
            try:
                if config and not all(evaluate_python(c, config) for c in checked[len(config) - 1]):
                    continue
            except (ValueError, TypeError, ArithmeticError) as error:
                raise BadRequest(f"A condition of {self.path} has no value for {config_text(config)}: {error}. Repair the "
                                 "condition.") from error
            if len(config) == len(order):
                found.add(tuple(config[name] for name in names))
            else:
                stack += [{**config, order[len(config)]: value} for value in self.values[order[len(config)]]]
        return found


def spaces_in(paths: Iterable[Path]) -> tuple[list[RecordedSpace], list[Described]]:
    """The spaces of all files and sessions, and the T1 files among them.

    Raises `BadRequest` if a T1 file describes none of the spaces."""
    spaces: list[RecordedSpace] = []
    described: list[Described] = []
    for path in paths:
        there = _found(path)
        if isinstance(there, Described):
            described.append(there)
        else:
            spaces += there
    for one in described:
        if not any(one.fits(space) for space in spaces):
            raise BadRequest(_no_times(one) if not spaces else f"{one.path} is a T1 file with the tunables "
                             f"{', '.join(one.values)}; no other given file has results of such configs. Name their file.")
    return spaces, described


def spaces_of(path: Path) -> list[RecordedSpace]:
    """The spaces that a file or a session holds; a session holds one for each layer, direction, dtype and device.

    Raises `BadRequest` if there is none."""
    there = _found(path)
    if isinstance(there, Described):
        raise BadRequest(_no_times(there))
    return there


def _no_times(described: Described) -> str:
    return (f"{described.path} is a T1 file: it describes a space of {len(described.values)} tunables and holds no times; name "
            "the file of its results too (T4), or the cache file.")


def _found(path: Path) -> list[RecordedSpace] | Described:
    if not path.exists():
        raise BadRequest(f"{path} does not exist; name a session, a cache file of Kernel Tuner, or a T4 file.")
    if is_session(path):
        found = session_spaces(Session.open(path))
        if not found:
            raise BadRequest(f"{path} has no layer with {SMALLEST} timed candidates; choose a session that has.")
        return found
    if path.is_dir():
        raise BadRequest(f"{path} is a folder without a session; name a session, a cache file of Kernel Tuner, or a T4 file.")
    data = _json(path)
    if isinstance(data, dict) and isinstance(data.get("ConfigurationSpace"), dict):
        return _described(path, data["ConfigurationSpace"])
    name = path.name.removesuffix(".gz").removesuffix(".json")
    return [_space(name, _results(path, data))]


def session_spaces(session: Session) -> list[RecordedSpace]:
    """One space for each combination of layer, direction, dtype and device with enough timed candidates. The largest space is
    first."""
    groups: dict[tuple[Any, ...], dict[str, Trial]] = {}
    for trial in session.trials():
        if trial.kind != "candidate" or trial.forked_from:
            continue
        if trial.ok and trial.kernel_ms or not trial.ok and trial.status not in NOT_JUDGED:
            group = groups.setdefault((trial.workload.key, trial.direction, trial.workload.dtype, trial.device.key), {})
            group[f"{family_of(trial)} "
                  f"{config_text(trial.tunables)}"] = trial  # of several trials of one config the newest counts
    found = []
    for group in groups.values():
        if sum(t.kernel_ms is not None for t in group.values()) >= SMALLEST:
            found.append(_session_space(list(group.values()), session.name))
    return sorted(found, key=lambda space: -len(space.ms))


def missing(space: RecordedSpace, described: Iterable[Described] = ()) -> tuple[str, ...]:
    """One sentence for each family with legal configs that were not tried, for the space of a session. For results in a file,
    sentences from the T1 files that describe them. It enumerates all legal configs, which takes seconds."""
    if not space.trials:
        return tuple(sentence for one in described if one.fits(space) for sentence in _lacking(space, one))
    families: dict[str, list[Trial]] = {}
    for trial in space.trials:
        families.setdefault(family_of(trial), []).append(trial)
    said = []
    for name, of_family in families.items():
        one = of_family[0]
        try:
            whole = SearchSpace(find(one.name, one.direction), one.workload.layer, one.workload.dtype, one.device.sm,
                                one.precision, one.form or "constant", one.workload.memory_format)
            if whole.size > _MOST_COUNTED:
                said.append(f"{name}: {numbers.count(len(of_family))} tried of {numbers.count(whole.size)} configs before "
                            f"constraints, too many to count the legal ones.")
                continue
            legal = {config_text(config) for config in whole}
        except BadRequest as error:
            said.append(f"{name}: its legal configs are not known. {error}")
            continue
        tried = {config_text(t.tunables) for t in of_family}
        if lacking := len(legal - tried):
            said.append(f"{name}: {lacking} of {len(legal)} legal configs "
                        f"were not tried.")
    return tuple(said)


def _lacking(space: RecordedSpace, described: Described) -> Iterator[str]:
    """Which legal configs of a T1 file were not tried, and which tried ones are not legal."""
    names = list(space.configs[0])
    legal = described.legal(names)
    size = prod(len(values) for values in described.values.values())
    if legal is None:
        yield (f"{described.name}: {numbers.count(len(space.configs))} tried of {numbers.count(size)} configs before "
               "conditions, too many to count the legal ones.")
        return
    tried = {tuple(config[name] for name in names) for config in space.configs}
    lacking, others = len(legal - tried), sorted(tried - legal, key=str)
    yield (f"{described.name}: {numbers.count(lacking)} of {numbers.count(len(legal))} legal configs were not tried "
           f"({numbers.count(size)} configs before conditions).")
    if others:
        yield (f"{described.name}: {numbers.count(len(others))} tried configs are not legal, for example "
               f"{config_text(dict(zip(names, others[0], strict=True)))}.")


def csv_of(spaces: Sequence[RecordedSpace]) -> pd.DataFrame:
    """One row for each config: space, family, its tunables, ms (empty where it failed), seconds of its evaluation."""
    frames = [pd.DataFrame({"space": space.name, "family": space.points.families,
                            **{name: [config.get(name) for config in space.configs] for name in
                               dict.fromkeys(name for config in space.configs for name in config)},
                            "ms": space.ms, "seconds": space.seconds}) for space in spaces]
    return pd.concat(frames, ignore_index=True)


def t4_of(trials: Iterable[Trial]) -> dict[str, Any]:
    """The T4 results of candidates. A candidate that failed at run time has no time, and its status is one of its measurements.
    """
    results = [_result(trial) for trial in trials]
    if not results:
        raise BadRequest("There are no trials to write as T4 results.")
    data = {"schema_version": SCHEMA_VERSION, "metadata": results[0]["metadata"],
            "results": [{k: v for k, v in one.items() if k != "metadata"} for one in results]}
    try:
        read(Results, data)
    except Misfit as error:  # never write a file that does not fit the schema
        raise ValueError(f"The T4 results do not fit their schema: {error}") from error
    return data


def family_of(trial: Trial) -> str:
    """`tiled_gather tf32`: variant, precision, and the form where it is not the usual one."""
    return " ".join(part for part in (trial.name, trial.precision, trial.form if trial.form != "constant" else "") if part)


def _session_space(trials: Sequence[Trial], session: str) -> RecordedSpace:
    first = trials[0]
    workload = first.workload
    name = f"{workload.preset or workload.layer} {first.direction} {workload.dtype}"
    return _space(name, [_Result(dict(t.tunables), t.kernel_median_ms if t.ok else None, _seconds(t), family_of(t))
                         for t in trials], tuple(trials), session)


def _seconds(trial: Trial) -> float | None:
    """The seconds of build and samples. The session does not record the rest of the evaluation's time."""
    parts = [trial.build.seconds if trial.build else None,
             trial.kernel_ms.median_ms * trial.kernel_ms.samples / 1e3 if trial.kernel_ms else None]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _space(name: str, results: Iterable[_Result], trials: tuple[Trial, ...] = (), session: str = "") -> RecordedSpace:
    listed = list(results)
    ms = np.array([np.nan if r.ms is None else r.ms for r in listed], np.float64)
    if np.isfinite(ms).sum() < SMALLEST:
        raise BadRequest(f"{name} has fewer than {SMALLEST} configs with a time; choose a larger file.")
    configs = tuple(r.config for r in listed)
    families = [r.family for r in listed]
    keys = [f"{family} {config_text(config)}" for family, config in zip(families, configs, strict=True)]
    seconds = np.array([np.nan if r.seconds is None else r.seconds for r in listed], np.float64)
    return RecordedSpace(name, points_from(configs, keys=keys, families=families), configs, ms, seconds, trials,
                         session)


def _json(path: Path) -> Any:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        text = data.decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise BadRequest(f"{path} cannot be read: {error}.") from error
    # A stopped tuner leaves its cache file without the closing brackets, possibly after a comma.
    for end in ("", "}\n}", "\n}\n}"):
        try:
            return json.loads((text.rstrip().rstrip(",") if end else text) + end)
        except ValueError:
            continue
    raise BadRequest(f"{path} is not JSON; name a session, a cache file of Kernel Tuner, or a T4 file.")


def _results(path: Path, data: Any) -> list[_Result]:
    """Raises `BadRequest` for JSON that is neither a cache nor T4 results."""
    if isinstance(data, dict) and isinstance(data.get("cache"), dict):
        names = data.get("tune_params_keys")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise BadRequest(f"{path} is not a cache file of Kernel Tuner: it has no list tune_params_keys; name another file.")
        lines = list(data["cache"].items())
        return [_cached(path, key, line, names, str(data.get("objective") or "time")) for key, line in lines]
    if isinstance(data, dict) and isinstance(data.get("results"), list):
        try:
            metadata = data.get("metadata")
            unit = metadata.get("timeunit", "milliseconds") if isinstance(metadata, dict) else "milliseconds"
            if unit not in _UNITS_MS:
                raise BadRequest(f"{path} has the unit of time {unit!r}; a T4 file has one of {', '.join(_UNITS_MS)}.")
            return [_of_t4(one, _UNITS_MS[unit]) for one in read(Results, data)["results"]]
        except Misfit as error:
            raise BadRequest(f"{path} is not a T4 file: {error}; name another file.") from error
    raise BadRequest(f"{path} is neither a cache file of Kernel Tuner (it has no cache) nor a T4 file (it has no results); "
                     "name another file.")


def _described(path: Path, space: Mapping[str, Any]) -> Described:
    """Raises `BadRequest` if a tunable has no list of values, or if `evaluate_python` refuses an expression."""
    def refused(what: str) -> BadRequest:
        return BadRequest(f"{path} is not a T1 file that can be read: {what}; name another file.")

    values: dict[str, tuple[Value, ...]] = {}
    for tunable in space.get("TuningParameters") or ():
        name = tunable.get("Name") if isinstance(tunable, dict) else None
        if not isinstance(name, str):
            raise refused("a tunable has no name")
        text = tunable.get("Values")
        try:
            listed = evaluate_python(parse_python(text), {}) if isinstance(text, str) else text
        except (ValueError, TypeError, ArithmeticError) as error:
            raise refused(f"the values of {name} are {text!r} ({error})") from error
        if not isinstance(listed, list) or not listed or not all(isinstance(v, (int, float, str)) for v in listed):
            raise refused(f"the values of {name} are {text!r}, not a list of numbers or texts")
        values[name] = tuple(dict.fromkeys(listed))
    if not values:
        raise refused("it has no tunables")
    conditions = []
    first = {name: of[0] for name, of in values.items()}
    for one in space.get("Conditions") or ():
        text = one.get("Expression") if isinstance(one, dict) else None
        try:
            conditions.append(parse_python(str(text)))
            evaluate_python(conditions[-1], first)
        except ArithmeticError:
            pass  # the first values need not be a legal config
        except (ValueError, TypeError) as error:
            raise refused(f"the condition {text!r} cannot be evaluated ({error})") from error
    return Described(path, values, tuple(conditions))


def _cached(path: Path, key: str, line: Any, names: Sequence[str], objective: str) -> _Result:
    lacking = next((name for name in names if not isinstance(line, dict) or name not in line), None)
    if lacking is not None:
        raise BadRequest(f"{path} is not a cache file of Kernel Tuner: its entry {key!r} has no {lacking}; name another file.")
    parts = [line[name] for name in _TIMES if _is_number(line.get(name))]
    return _Result(_config({name: line[name] for name in names}, f"{path}, entry {key!r}"), _time(line.get(objective)),
                   sum(parts) / 1e3 if parts else None)


def _of_t4(one: Mapping[str, Any], unit_ms: float) -> _Result:
    objective = (one.get("objectives") or ["time"])[0]
    value = next((m.get("value") for m in one.get("measurements", []) if m.get("name") == objective), None)
    parts = [unit_ms * t for name, t in one["times"].items() if name != "runtimes" and _is_number(t)]
    config = _config(one["configuration"], "a result")
    family = str(config.pop(FAMILY, "all"))
    ms = _time(value) if one["invalidity"] == CORRECT else None
    return _Result(config, None if ms is None else unit_ms * ms, sum(parts) / 1e3 if parts else None, family)


def _config(values: Mapping[str, Any], place: str) -> dict[str, Value]:
    strange = next((name for name, value in values.items() if not isinstance(value, (int, float, str))), None)
    if strange is not None:
        raise BadRequest(f"{place}: the value of {strange} is {values[strange]!r}, neither a number nor a text; "
                         "name another file.")
    return dict(values)


def _time(value: Any) -> float | None:
    """Kernel Tuner writes the name of an error, or 1e20, for a config that failed."""
    return float(value) if _is_number(value) and 0 < value < 1e19 else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def _result(trial: Trial) -> dict[str, Any]:
    timing = trial.kernel_ms
    times: dict[str, Any] = {"runtimes": [timing.median_ms] if timing else []}
    if trial.build and trial.build.seconds is not None:
        times["compilation_time"] = 1e3 * trial.build.seconds
    measurements: list[dict[str, Any]] = [{"name": "status", "value": str(trial.status), "unit": ""}]
    if timing:
        measurements = [{"name": TIME, "value": timing.median_ms, "unit": "ms"},
                        {"name": "samples", "value": timing.samples, "unit": ""}, *measurements]
    return {"timestamp": trial.at, "configuration": {FAMILY: family_of(trial), **trial.tunables}, "times": times,
            "invalidity": str(_INVALID.get(trial.status, Invalidity.RUNTIME)), "correctness": 1.0 if trial.ok else 0.0,
            "measurements": measurements, "objectives": [TIME],
            "metadata": {"timeunit": "milliseconds", "autotuner": "kernel-workbench", "device": trial.device.name,
                         "direction": trial.direction, "workload": trial.workload.to_json()}}
