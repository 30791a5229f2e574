"""The input of a search: an enumerated space as numbers, and the times of its points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Value = int | float | str | bool


@dataclass(frozen=True, eq=False)
class Points:
    """An enumerated search space. Row i of `features` describes the point `keys[i]`."""

    keys: tuple[str, ...]  # the identity of each point, which is the same in every process
    columns: tuple[str, ...]  # names of the features
    features: NDArray[np.float32]  # [points, columns]; powers of two as their log2; NaN if the family lacks the tunable
    families: tuple[str, ...]  # family (variant, precision) of each point
    order: tuple[int, ...] = ()  # points in a ranking that is known beforehand, the best first; it need not contain all points
    logs: frozenset[str] = frozenset()  # columns that hold log2 of their values
    derived: frozenset[str] = frozenset()  # columns that are no tunables: they follow from the others

    def __post_init__(self) -> None:
        count = len(self.keys)
        if self.features.shape != (count, len(self.columns)) or len(self.families) != count:
            raise ValueError(f"{count} points with {len(self.columns)} columns have features of shape {self.features.shape} "
                             f"and {len(self.families)} families.")
        if any(not 0 <= i < count for i in self.order):
            raise ValueError(f"order names a point outside the {count} points.")

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True)
class Seen:
    """One finished evaluation."""

    point: int
    ms: float | None  # None if it failed
    at_least: bool = False  # the timing was stopped early; the point takes at least `ms`


def points_from(configs: Sequence[Mapping[str, Value]], *, keys: Sequence[str] | None = None,
                families: Sequence[str] | None = None, order: Sequence[int] = (), derived: Iterable[str] = ()) -> Points:
    """Points of configs. A tunable with the same value in all configs is not a feature. A text is replaced by its place in the
    alphabetical order. `keys`: the identity of each config (default: its text). `families`: the family of each config (default:
    the same for all). `derived`: values in the configs that are no tunables.
    """
    names = list(dict.fromkeys(name for config in configs for name in config))
    columns: dict[str, NDArray[np.float32]] = {}
    logs: set[str] = set()
    for name in names:
        values = [config.get(name) for config in configs]
        if len(set(values)) > 1:
            columns[name], logged = _column(values)
            logs |= {name} if logged else set()
    features = np.column_stack(list(columns.values())) if columns else np.zeros((len(configs), 0), np.float32)
    return Points(tuple(keys) if keys is not None else tuple(map(config_text, configs)), tuple(columns), features,
                  tuple(families) if families is not None else ("all",) * len(configs), tuple(order), frozenset(logs),
                  frozenset(derived) & columns.keys())


def config_text(config: Mapping[str, Value]) -> str:
    """`BLOCK=32 TILE=2`."""
    return " ".join(f"{name}={value}" for name, value in config.items())


def _column(values: Sequence[Value | None]) -> tuple[NDArray[np.float32], bool]:
    """The values as numbers, and whether these are their logs."""
    there = [v for v in values if v is not None]
    logged = False
    if any(isinstance(v, str) for v in there):
        place = {text: float(i) for i, text in enumerate(sorted({str(v) for v in there}))}
        numbers = [np.nan if v is None else place[str(v)] for v in values]
    else:
        numbers = [np.nan if v is None else float(v) for v in values]
        known = {x for x in numbers if x == x}
        logged = all(x > 0 and float(np.log2(x)).is_integer() for x in known)
        if logged:
            numbers = [float(np.log2(x)) for x in numbers]
    return np.array(numbers, np.float32), logged
