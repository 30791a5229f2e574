"""Where a result is wrong: the shares of wrong values by place, the smallest case, a known mistake that gives the same values,
and a sentence about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from . import numbers
from .check_parts import LooksLike

ALL = 1000     # shares are whole numbers: the wrong values of a thousand
_ALIKE = 4     # parts count as equal if their shares differ by at most a fourth of the largest share
_MOST_SAID = 3
INTEGERS = "exact integers"   # the kind of inputs whose sums have no rounding error
_MOST_ROWS = 12
SHORT = {"output": "y"}   # the names of the results in sentences


@dataclass(frozen=True)
class Tile:
    """A tunable that is the extent of a tile. `axis`: "W", "C" (channels of the result), "CO" or "CI"."""

    name: str
    axis: str
    extent: int


@dataclass(frozen=True)
class Term:
    """What one tap adds to an element, summed over channels. `reads`: the position that the tap reads. For grad_weight and
    grad_bias, what one position adds, summed over the batch: `reads` is a position of the input, or of grad_output. `factors`:
    the pairs of numbers that are multiplied, if they are few; a bias's gradient has none."""

    tap: tuple[int, ...]
    reads: tuple[int, ...]
    value: float
    factors: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class SmallestWrong:
    """The smallest batch and input of the layer on which the kernel is still wrong, and its first wrong element. `terms`: the
    summands of the element, without the bias; if there are very many, only the first. `said`: a sentence that says which
    summands the difference equals."""

    batch: int
    input_size: tuple[int, ...]
    index: tuple[int, ...]
    got: float
    expected: float
    terms: tuple[Term, ...] = ()
    bias: float | None = None
    said: str = ""

    @property
    def complete(self) -> bool:
        """Whether the terms are all that the element is the sum of."""
        total = sum(term.value for term in self.terms) + (self.bias or 0.0)
        return bool(self.terms) and abs(total - self.expected) <= 1e-6 * max(1.0, abs(self.expected))


@dataclass(frozen=True)
class WrongValues:
    """All shares are numbers out of ALL. `shares`: a map with `cells` cells along each dimension of the positions (for
    grad_weight: the taps of a filter), the last dimension fastest. A cell has `step` positions along each dimension. `along`:
    an index, such as the channel -> the share of each of its values. `ratios`: (b, count): the errors of `count` values, right
    or wrong, are 10^(b/2) to 10^((b+1)/2) times the largest allowed error; errors of 0 are left out. `decades` are in sessions
    of older releases: (d, count): `count` wrong values differ by 10^d to 10^(d+1) times the root mean square of the truth."""

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
    ratios: tuple[tuple[int, int], ...] = ()
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
    """The most useful facts, in one to three sentences."""
    parts = [text for name, shares in found.along.items() if (text := _where(name, shares))]
    said = [_smallest(found.tensor, found.smallest)] if found.smallest is not None else []
    if found.looks_like is not None and found.looks_like.found:
        said.append(f"Looks like: {found.looks_like.found}.")
    said.append(f"Wrong values are {'; '.join(parts[:_MOST_SAID])}." if parts else "No place is worse than the others.")
    return " ".join(said)


def advice_of(found: WrongValues) -> str:
    """What to do about the known mistake that gives the same values; "" if there is none."""
    return found.looks_like.advice if found.looks_like is not None and found.looks_like.found else ""


def case_rows(case: SmallestWrong, tensor: str) -> list[tuple[str, str, str, str]]:
    """The summands of the wrong element, as texts: (tap, what it reads, its products, their sum); then the bias, the expected
    sum, and what the kernel gave."""
    read = "grad_y" if tensor in ("grad_input", "grad_bias") else "x"
    rows = [(numbers.index("w", term.tap) if term.tap else "", numbers.index(read, term.reads),
             " + ".join(f"{a:g}·{f'({b:g})' if b < 0 else f'{b:g}'}" for a, b in term.factors), f"{term.value:g}")
            for term in case.terms[:_MOST_ROWS]]
    if rest := case.terms[_MOST_ROWS:]:
        many = f"{len(rest)} more" if case.complete else f"{len(rest)} more, and others"
        rows.append((many, "", "", f"{sum(term.value for term in rest):g}"))
    rows += [("bias", "", "", f"{case.bias:g}")] if case.bias is not None else []
    got = f"{case.got:g}" if case.got == case.got else "NaN or never written"
    return [*rows, ("expected", "", "", f"{case.expected:g}"), ("the kernel gave", "", "", got)]


def _where(name: str, shares: Sequence[int]) -> str:
    """`only in channel 3 (5 % of it)`, or `in channel 3, 4 (at most 50 % of each), and in at most 9 % of each other`; empty
    where all parts are alike."""
    most, least = max(shares), min(shares)
    if len(shares) < 2 or _ALIKE * (most - least) <= most:
        return ""
    bad = [part for part, share in enumerate(shares) if share > least + (most - least) // 2]
    rest = max(share for part, share in enumerate(shares) if part not in bad)
    listed = ", ".join(map(str, bad)) if len(bad) <= 4 else f"{bad[0]} to {bad[-1]}" \
        if bad == list(range(bad[0], bad[-1] + 1)) else f"{len(bad)} of {len(shares)}"
    share = f"{most / 10:g} % of it" if len(bad) == 1 else f"at most {most / 10:g} % of each"
    if rest == 0:
        return f"only in {name} {listed} ({share})"
    return f"in {name} {listed} ({share}), and in at most {rest / 10:g} % of each other"


def _smallest(tensor: str, case: SmallestWrong) -> str:
    size = f"a batch of {case.batch}, input size {numbers.shape(case.input_size)}"
    got = f"{case.got:g}" if case.got == case.got else "NaN or was never written"
    told = f"{size}: {numbers.index(SHORT.get(tensor, tensor), case.index)} is {got}, expected {case.expected:g}"
    return f"Smallest case: {told}{f'; {case.said}' if case.said else ''}."
