"""Where a result is wrong: shares by place, the smallest case, a known mistake that gives the same. And the sentence of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from . import numbers
from .check_parts import LooksLike

ALL = 1000     # shares are whole numbers: of a thousand values, so many are wrong
_ALIKE = 4     # parts whose shares differ by no more than a fourth of the largest are alike
_MOST_SAID = 3
SHORT = {"output": "y"}   # as sentences name it


@dataclass(frozen=True)
class Term:
    """What one tap adds to an element, summed over channels. `reads`: the position that the tap reads."""

    tap: tuple[int, ...]
    reads: tuple[int, ...]
    value: float


@dataclass(frozen=True)
class SmallestWrong:
    """The smallest batch and input of the layer on which the kernel is still wrong, and its first wrong element. `terms`: what
    the element is the sum of, without the bias; none for gradients of parameters. `said`: what the difference is equal to."""

    batch: int
    input_size: tuple[int, ...]
    index: tuple[int, ...]
    got: float
    expected: float
    terms: tuple[Term, ...] = ()
    bias: float | None = None
    said: str = ""


@dataclass(frozen=True)
class WrongValues:
    """Shares are of ALL. `shares`: the map, of `cells` cells along the positions (a filter's taps for grad_weight), last
    dimension fastest; a cell has `step` positions along each. `along`: what is counted -> the share of each of its parts.
    `decades`: (d, count): so many wrong values are off by 10^d to 10^(d+1) times the root mean square of the truth."""

    tensor: str
    inputs: str
    shape: tuple[int, ...]
    wrong: int
    not_finite: int
    cells: tuple[int, ...]
    step: tuple[int, ...]
    shares: tuple[int, ...]
    along: dict[str, tuple[int, ...]] = field(default_factory=dict)
    decades: tuple[tuple[int, int], ...] = ()
    smallest: SmallestWrong | None = None
    looks_like: LooksLike | None = None

    @property
    def count(self) -> int:
        """Values of the tensor."""
        product = 1
        for size in self.shape:
            product *= size
        return product


def sentence(found: WrongValues) -> str:
    """What tells most, in one to three sentences."""
    parts = [text for name, shares in found.along.items() if (text := _where(name, shares))]
    said = [f"Wrong are {'; '.join(parts[:_MOST_SAID])}." if parts else "No place is worse than the others."]
    if found.looks_like is not None and found.looks_like.found:
        said.append(f"Looks like: {found.looks_like.found}.")
    if found.smallest is not None:
        said.append(_smallest(found.tensor, found.smallest))
    return " ".join(said)


def _where(name: str, shares: Sequence[int]) -> str:
    """`only channel 3`, or `channel 3 (100 %) and 4 (50 %), others 0 %`; empty where all parts are alike."""
    most, least = max(shares), min(shares)
    if len(shares) < 2 or _ALIKE * (most - least) <= most:
        return ""
    bad = [part for part, share in enumerate(shares) if share > least + (most - least) // 2]
    rest = max(share for part, share in enumerate(shares) if part not in bad)
    listed = ", ".join(map(str, bad)) if len(bad) <= 4 else f"{bad[0]} to {bad[-1]}" \
        if bad == list(range(bad[0], bad[-1] + 1)) else f"{len(bad)} of {len(shares)}"
    if rest == 0:
        return f"only {name} {listed} ({most / 10:g} %)"
    return f"{name} {listed} ({most / 10:g} %), others {rest / 10:g} % at most"


def _smallest(tensor: str, case: SmallestWrong) -> str:
    size = f"a batch of {case.batch}, input size {numbers.shape(case.input_size)}"
    got = f"{case.got:g}" if case.got == case.got else "NaN or was never written"
    told = f"{size}: {numbers.index(SHORT.get(tensor, tensor), case.index)} is {got}, expected {case.expected:g}"
    return f"Smallest case: {told}{f'; {case.said}' if case.said else ''}."
