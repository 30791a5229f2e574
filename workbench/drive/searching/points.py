"""What a search sees: an enumerated space as numbers, and what its points took."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Points:
    """An enumerated search space. Row i of `features` describes the point `keys[i]`."""

    keys: tuple[str, ...]  # identity of each point, the same in every process
    columns: tuple[str, ...]  # names of the features
    features: NDArray[np.float32]  # [points, columns]; log2 of powers of two; NaN: the family lacks it
    families: tuple[str, ...]  # family (variant, precision) of each point
    order: tuple[int, ...] = ()  # a ranking known beforehand, the best first; it may be short

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
    ms: float | None  # None: it failed
    at_least: bool = False  # stopped early: it takes at least `ms`
