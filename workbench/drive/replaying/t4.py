"""T4 results, the exchange form of autotuners: their types, and trials written as such.

The form is results-schema.json 1.0.0 of https://github.com/odgaard/TuningSchema (FAIR sharing of data in autotuning research,
Hellsten et al., 2024). The types below are what that schema asks for. Times are in ms.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, NotRequired, TypedDict

from ...core.errors import BadRequest
from ...core.trial import Status, Trial
from ...core.typed import Misfit, read

SCHEMA_VERSION = "1.0.0"
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


def t4_of(trials: Iterable[Trial]) -> dict[str, Any]:
    """The T4 results of candidates. What failed at run time has no time; its status is among its measurements."""
    results = [_result(trial) for trial in trials]
    if not results:
        raise BadRequest("There are no trials to write as T4 results.")
    data = {"schema_version": SCHEMA_VERSION, "metadata": results[0]["metadata"],
            "results": [{k: v for k, v in one.items() if k != "metadata"} for one in results]}
    try:
        read(Results, data)
    except Misfit as error:  # nobody else may get a file that does not fit the schema
        raise ValueError(f"The T4 results do not fit their schema: {error}") from error
    return data


def family_of(trial: Trial) -> str:
    """`tiled_gather tf32`: variant, precision, and the form where it is not the usual one."""
    return " ".join(part for part in (trial.name, trial.precision, trial.form if trial.form != "constant" else "") if part)


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
            "metadata": {"timeunit": "milliseconds", "device": trial.device.name, "direction": trial.direction,
                         "workload": trial.workload.to_json()}}
