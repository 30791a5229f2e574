"""From a person's words (names of variants, values of tunables) to candidates. One function for page, CLI, notebook."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..core.candidate import Candidate
from ..core.errors import BadRequest
from ..core.layer import BACKWARD, DIRECTIONS, Workload
from ..core.variants import PRECISIONS_OF, Variant, discover

Settings = Mapping[str, Mapping[str, Sequence[int]]]  # variant name (or "*") -> tunable -> values to try


def candidates(workload: Workload, *, directions: Iterable[str] = DIRECTIONS, variants: Iterable[str] = (),
               settings: Settings | None = None, precision: str = "", form: str = "constant",
               compile_flags: Sequence[str] = (), templates: Path | None = None) -> list[Candidate]:
    """Every chosen variant in every chosen direction, once for each combination of the values in `settings`.

    Without `variants`: all that offer the dtype and precision. Raises `BadRequest` for a name nobody knows.
    """
    settings = settings or {}
    wanted = list(variants)
    there = discover(templates)
    _check_names(there, wanted, list(directions), settings)
    if precision and precision not in PRECISIONS_OF[workload.dtype]:
        raise BadRequest(f"precision {precision!r} does not go with {workload.dtype}; choose "
                         f"{', '.join(PRECISIONS_OF[workload.dtype])}.", field="precision")
    found = []
    for variant in there:
        if not _chosen(variant, wanted, directions) or (not wanted and not _offers(variant, workload, precision)):
            continue
        if precision and precision not in variant.precision:
            continue
        shape = form if form in variant.forms else variant.forms[0]
        for config in _configs(variant, settings):
            found.append(Candidate(variant, workload.layer, workload.dtype, config, precision, shape,
                                   tuple(compile_flags)))
    if not found:
        raise BadRequest(f"No variant computes {', '.join(directions)} in {precision or workload.dtype}; "
                         f"'python -m workbench variants' lists them.", field="variant")
    return found


def parse_settings(words: Iterable[str]) -> dict[str, dict[str, list[int]]]:
    """`naive_gather.BLOCK=64,128` or `BLOCK=64` (every variant that has it) -> settings. Raises `BadRequest`."""
    settings: dict[str, dict[str, list[int]]] = {}
    for word in words:
        name, sign, values = word.partition("=")
        variant, dot, tunable = name.rpartition(".")
        try:
            numbers = [int(v) for v in values.split(",")]
        except ValueError:
            numbers = []
        if not sign or not numbers or not tunable:
            raise BadRequest(f"The setting {word!r} cannot be read; write VARIANT.TUNABLE=VALUE[,VALUE].", field="set")
        settings.setdefault(variant if dot else "*", {})[tunable] = numbers
    return settings


def _chosen(variant: Variant, wanted: list[str], directions: Iterable[str]) -> bool:
    return (not wanted or variant.name in wanted or variant.key in wanted) and (
        variant.direction in directions or (variant.direction == BACKWARD and set(variant.computes) <= set(directions)))


def _offers(variant: Variant, workload: Workload, precision: str) -> bool:
    return any(p in variant.precision for p in ([precision] if precision else PRECISIONS_OF[workload.dtype]))


def _configs(variant: Variant, settings: Settings) -> list[dict[str, int]]:
    own = {t.name for t in variant.tune}
    chosen = {k: v for k, v in settings.get("*", {}).items() if k in own} | dict(settings.get(variant.name, {}))
    return [dict(zip(chosen, values, strict=True)) for values in itertools.product(*chosen.values())]


def _check_names(there: list[Variant], wanted: list[str], directions: list[str], settings: Settings) -> None:
    for direction in directions:
        if direction not in (*DIRECTIONS, BACKWARD):
            raise BadRequest(f"direction {direction!r} is not known; choose {', '.join(DIRECTIONS)}.", field="direction")
    known = sorted({v.name for v in there})
    for name in [*wanted, *(n for n in settings if n != "*")]:
        if name not in known and name not in {v.key for v in there}:
            raise BadRequest(f"There is no variant {name!r}; there are {', '.join(known)}.", field="variant")
    tunables = {t.name for v in there for t in v.tune}
    for tunable in settings.get("*", {}):
        if tunable not in tunables:
            raise BadRequest(f"No variant has a tunable {tunable}; there are {', '.join(sorted(tunables))}.", field="set")
