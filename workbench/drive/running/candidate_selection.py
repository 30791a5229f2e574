"""Makes candidates from names of variants and values of tunables that a user gives. Page, CLI and notebook use it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from ...core.candidate import Candidate
from ...core.errors import BadRequest, or_nearest
from ...core.layer import LAUNCHES, Workload
from ...core.precision import PRECISIONS_OF
from ...core.variants import FORMS, Variant, broken, discover, refuse_broken

Settings = Mapping[str, Mapping[str, Sequence[int]]]  # variant name (or "*") -> tunable -> values to try
Given = Mapping[str, Mapping[str, int | Sequence[int]]]  # the same from a program: a single value counts as a list


class Options(TypedDict, total=False):
    """Keywords of `candidates` that a face hands on."""

    directions: Iterable[str]
    settings: Given | None
    precision: str
    form: str
    compile_flags: Sequence[str]
    templates: Path | None


# more than seven: the options by which verbs, page and notebook choose candidates
def candidates(workload: Workload, *, directions: Iterable[str] = LAUNCHES, variants: Iterable[str] = (),
               settings: Given | None = None, precision: str = "", form: str = "constant", compile_flags: Sequence[str] = (),
               templates: Path | None = None) -> list[Candidate]:
    """Every chosen variant in every chosen direction, once for each combination of the values in `settings`.

    Without `variants`: all that offer the dtype and precision. A single name or value counts as a list with one element. Raises
    `BadRequest` for an unknown name.
    """
    checked = _checked(settings or {})
    wanted, directions = list(names_of(variants, "variants")), names_of(directions, "directions")
    there = discover(templates)
    refuse_broken([*wanted, *checked], directions, templates)
    check_names(there, wanted, list(directions), checked)
    if precision and precision not in PRECISIONS_OF[workload.dtype]:
        raise BadRequest(f"{workload.dtype} does not have the precision {precision!r}; choose "
                         f"{', '.join(PRECISIONS_OF[workload.dtype])}.", field="precision")
    if form not in FORMS:
        raise BadRequest(f"form {form!r} is not known; choose {' or '.join(FORMS)}.", field="form")
    if not all(flag.strip() for flag in names_of(compile_flags, "compile_flags")):
        raise BadRequest("A compile flag is empty; write it like --flag=--use_fast_math, or leave it out.",
                         field="compile_flags")
    if not directions:
        raise BadRequest(f"No direction is chosen; choose from {', '.join(LAUNCHES)}.", field="directions")
    found = []
    for variant in there:
        if not _chosen(variant, wanted, directions) or (not wanted and not _offers(variant, workload, precision)):
            continue
        if precision and precision not in variant.precision:
            continue
        shape = form if form in variant.forms else variant.forms[0]
        for config in _configs(variant, checked, workload):
            found.append(Candidate(variant, workload.layer, workload.dtype, config, precision, shape,
                                   names_of(compile_flags, "compile_flags")))
    if not found:
        left_out = "".join(f" {error}" for error in broken(templates).values())
        named = [v for v in there if wanted and (v.name in wanted or v.key in wanted)]
        if named and not any(v.direction in directions for v in named):
            raise BadRequest(f"{', '.join(dict.fromkeys(v.name for v in named))} does not compute {', '.join(directions)}; "
                             f"choose {', '.join(dict.fromkeys(v.direction for v in named))}.", field="variant")
        raise BadRequest(f"No variant computes {', '.join(directions)} in {precision or workload.dtype}; "
                         f"'python -m workbench variants' lists them.{left_out}", field="variant")
    _check_used(checked, {c.variant for c in found})
    return found


def names_of(given: object, what: str) -> tuple[str, ...]:
    """One name, or several, as a tuple. A string is one name, not a list of letters. Raises `BadRequest`."""
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (given,)
    for name in names:
        if not isinstance(name, str):
            raise BadRequest(f"{what} is {given!r}; give a name or a list of names.", field=what)
    return names


def parse_settings(words: Iterable[str]) -> dict[str, dict[str, list[int]]]:
    """`naive_gather.BLOCK=64,128` or `BLOCK=64` (every variant that has it) -> settings. Raises `BadRequest`."""
    settings: dict[str, dict[str, list[int]]] = {}
    for word in words:
        name, sign, values = word.partition("=")
        variant, dot, tunable = name.rpartition(".")
        example = "write TUNABLE=VALUE[,VALUE] or VARIANT.TUNABLE=VALUE[,VALUE]"
        if not sign or not values or not tunable:
            raise BadRequest(f"The setting {word!r} cannot be read; {example}.", field="set")
        given = settings.setdefault(variant if dot else "*", {})
        if tunable in given:
            raise BadRequest(f"{name} is set twice; give its values together: {name}="
                             f"{','.join(map(str, given[tunable]))},{values}.", field="set")
        numbers = given[tunable] = []
        for value in values.split(","):
            try:
                numbers.append(int(value))
            except ValueError as error:
                raise BadRequest(f"In the setting {word!r} {value!r} is not a whole number; {example}.", field="set") from error
    return settings


def values_for(variant: Variant, settings: Settings, workload: Workload) -> dict[str, Sequence[int]]:
    """The values of this variant's tunables: the settings, else the defaults for the workload's memory format. A setting with a
    more specific name replaces one with a more general name."""
    chosen: dict[str, Sequence[int]] = {k: (v,) for k, v in variant.default_for(workload.memory_format).items()}
    chosen |= {k: v for k, v in settings.get("*", {}).items() if k in chosen}
    for name in (variant.name, variant.key):  # "naive_gather", then "forward/naive_gather", which is only for that direction
        chosen |= settings.get(name, {})
    return chosen


def check_names(there: list[Variant], wanted: Sequence[str], directions: Iterable[str], settings: Settings) -> None:
    """Raises `BadRequest` for an unknown direction, variant or tunable."""
    for direction in directions:
        if direction not in LAUNCHES:
            raise BadRequest(f"direction {direction!r} is not known; choose {', '.join(LAUNCHES)}.", field="direction")
    known = sorted({v.name for v in there})
    for name in [*wanted, *(n for n in settings if n != "*")]:
        if name not in known and name not in {v.key for v in there}:
            hint = or_nearest(name, known, "'python -m workbench variants' lists them.")
            raise BadRequest(f"There is no variant {name!r}; {hint}", field="variant")
    tunables = {t.name for v in there for t in v.tune}
    for tunable in settings.get("*", {}):
        if tunable not in tunables:
            raise BadRequest(f"No variant has a tunable {tunable}; {or_nearest(tunable, sorted(tunables))}", field="set")


def _checked(settings: object) -> dict[str, dict[str, tuple[int, ...]]]:
    """The settings from a program, with lists of whole numbers as values. Raises `BadRequest`."""
    example = "write {'naive_gather': {'BLOCK': [64, 128]}}"
    checked: dict[str, dict[str, tuple[int, ...]]] = {}
    if not isinstance(settings, Mapping):
        raise BadRequest(f"settings is {settings!r}; {example}.", field="set")
    for variant, tunables in settings.items():
        if not isinstance(tunables, Mapping):
            raise BadRequest(f"settings[{variant!r}] is {tunables!r}; {example}.", field="set")
        for name, given in tunables.items():
            values = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
            if not values or not all(isinstance(v, int) and not isinstance(v, bool) for v in values):
                raise BadRequest(f"settings[{variant!r}][{name!r}] is {given!r}; give whole numbers: {example}.", field="set")
            checked.setdefault(variant, {})[name] = values
    return checked


def _chosen(variant: Variant, wanted: list[str], directions: Iterable[str]) -> bool:
    return variant.direction in directions and (not wanted or variant.name in wanted or variant.key in wanted)


def _check_used(settings: Settings, chosen: set[Variant]) -> None:
    """Raises `BadRequest` for a setting that no chosen variant takes, because it would be ignored without a message."""
    for name, tunables in settings.items():
        for tunable in tunables:
            if not any(name in ("*", v.name, v.key) and (name != "*" or tunable in {t.name for t in v.tune}) for v in chosen):
                word = tunable if name == "*" else f"{name}.{tunable}"
                raise BadRequest(f"{word} is set, but no chosen variant takes it; there are "
                                 f"{', '.join(sorted(v.key for v in chosen))}.", field="set")


def _offers(variant: Variant, workload: Workload, precision: str) -> bool:
    return any(p in variant.precision for p in ([precision] if precision else PRECISIONS_OF[workload.dtype]))


def _configs(variant: Variant, settings: Settings, workload: Workload) -> list[dict[str, int]]:
    chosen = values_for(variant, settings, workload)
    return [dict(zip(chosen, values, strict=True)) for values in itertools.product(*chosen.values())]
