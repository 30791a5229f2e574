"""Counts the 32-byte sectors that hold chosen elements of a row-major tensor. The count is exact, but the code does not loop
over elements.

For each axis the chosen indices are given (`Axis`). The count is combined from blocks. For each alignment of its first element,
a block knows how many sectors it touches, and whether it touches the first and the last sector of its span. When two blocks are
joined, a sector that both touch counts once. A block is repeated by joining it with itself, in steps of doubling.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

SECTOR_BYTES = 32  # the unit in which a GPU's L2 reads DRAM
# (sectors touched, first sector touched, last sector touched, sectors spanned)
_Footprint = tuple[int, bool, bool, int]


@dataclass(frozen=True)
class Axis:
    """The chosen indices of one axis, as consecutive pieces: (period, chosen runs within a period, number of periods)."""

    size: int
    hits: int
    pieces: tuple[tuple[int, tuple[tuple[int, int], ...], int], ...]

    @property
    def whole(self) -> bool:
        return self.hits == self.size


def all_of(size: int) -> Axis:
    """Every index."""
    return Axis(size, size, ((size, ((0, size),), 1),))


def runs_axis(size: int, runs: Iterable[tuple[int, int]]) -> Axis:
    """The union of half-open runs of indices."""
    merged = tuple(_merged(runs))
    return Axis(size, sum(hi - lo for lo, hi in merged), ((size, merged, 1),))


def strided_axis(size: int, stride: int, runs: Mapping[int, Iterable[tuple[int, int]]]) -> Axis:
    """The indices residue + stride * m. `runs`: for each residue, half-open runs of m. All indices lie within the axis."""
    classes = {r: merged for r in sorted(runs) if (merged := _merged(runs[r]))}
    if stride == 1:
        return runs_axis(size, classes.get(0, []))
    # A bit mask says which residues are chosen between two edges. Between residues that are not consecutive there is a 0 bit.
    bit: dict[int, int] = {}
    residue: dict[int, int] = {}
    for r in classes:
        bit[r] = (bit[r - 1] + 1 if r - 1 in bit else len(bit) + len(residue) + 1)
        residue[bit[r]] = r
    turns: dict[int, int] = {}
    for r, merged in classes.items():
        for edge in (e for run in merged for e in run):
            turns[edge] = turns.get(edge, 0) ^ 1 << bit[r]
    edges = sorted(turns)
    pieces: list[tuple[int, tuple[tuple[int, int], ...], int]] = []
    hits = at = live = 0
    for lo, hi in zip(edges, edges[1:], strict=False):
        live ^= turns[lo]
        if not live:
            continue
        found = [(residue[first], residue[first] + length) for first, length in _bit_runs(live)]
        start = found[0][0]
        pattern = tuple((r0 - start, r1 - start) for r0, r1 in found)
        first = lo * stride + start
        if first > at:
            pieces.append((first - at, (), 1))
        hits += live.bit_count() * (hi - lo)
        if hi - lo > 1:
            pieces.append((stride, pattern, hi - lo - 1))
        pieces.append((pattern[-1][1], pattern, 1))  # the last period ends at its last chosen index
        at = first + (hi - lo - 1) * stride + pattern[-1][1]
    if size > at:
        pieces.append((size - at, (), 1))
    return Axis(size, hits, tuple(pieces))


def sector_count(axes: Sequence[Axis], elements_per_sector: int) -> int:
    """The number of sectors with at least one chosen element. The axes are given from the outermost; the tensor begins at a
    sector."""
    if not all(a.hits for a in axes):
        return 0
    at = len(axes)
    while at and axes[at - 1].whole:
        at -= 1
    unit = elements_per_sector
    inner = prod(a.size for a in axes[at:])
    if at == 0:
        return -(-inner // unit)
    block: _Block | None = None
    for axis in reversed(axes[:at]):
        block = _along(axis, block, inner, unit)
        inner = block.length
    assert block is not None
    return block.at(0)[0]


class _Block:
    """Consecutive elements of the tensor. `at(alignment)`: the footprint if the first element has that offset in its sector."""

    def __init__(self, length: int, unit: int, parts: tuple[_Block, _Block] | None, chosen: bool = False) -> None:
        self.length, self.unit, self.parts, self.chosen = length, unit, parts, chosen
        self.known: dict[int, _Footprint] = {}

    def at(self, alignment: int) -> _Footprint:
        found = self.known.get(alignment)
        if found is None:
            found = self.known[alignment] = self._compute(alignment)
        return found

    def _compute(self, alignment: int) -> _Footprint:
        if self.parts is None:
            span = (alignment + self.length - 1) // self.unit + 1
            return (span, True, True, span) if self.chosen else (0, False, False, span)
        left, right = self.parts
        joint = (alignment + left.length) % self.unit
        count, first, last, span = left.at(alignment)
        count2, first2, last2, span2 = right.at(joint)
        if not joint:
            return count + count2, first, last2, span + span2
        return (count + count2 - (last and first2), first or (span == 1 and first2), last2 or (span2 == 1 and last),
                span + span2 - 1)


def _along(axis: Axis, chosen: _Block | None, inner: int, unit: int) -> _Block:
    """The block of one axis. `chosen`: the block of `inner` elements that each chosen index holds (None: all are chosen)."""
    parts: list[_Block] = []
    for period, runs, repeats in axis.pieces:
        stretch: list[_Block] = []
        at = 0
        for lo, hi in runs:
            if lo > at:
                stretch.append(_Block((lo - at) * inner, unit, None))
            stretch.append(_Block((hi - lo) * inner, unit, None, True) if chosen is None
                           else _repeated(chosen, hi - lo, unit))
            at = hi
        if period > at:
            stretch.append(_Block((period - at) * inner, unit, None))
        parts.append(_repeated(_joined(stretch, unit), repeats, unit))
    return _joined(parts, unit)


def _joined(blocks: list[_Block], unit: int) -> _Block:
    while len(blocks) > 1:  # pairwise, so that the tree stays shallow
        blocks = [_Block(a.length + b.length, unit, (a, b)) for a, b in zip(blocks[::2], blocks[1::2], strict=False)
                  ] + (blocks[-1:] if len(blocks) % 2 else [])
    return blocks[0]


def _repeated(block: _Block, times: int, unit: int) -> _Block:
    result: _Block | None = None
    power = block
    while times:
        if times & 1:
            result = power if result is None else _Block(result.length + power.length, unit, (result, power))
        times >>= 1
        if times:
            power = _Block(2 * power.length, unit, (power, power))
    assert result is not None
    return result


def _bit_runs(mask: int) -> Iterator[tuple[int, int]]:
    """Runs of 1 bits, lowest first: (position, length)."""
    at = 0
    while mask:
        skip = (mask & -mask).bit_length() - 1
        mask >>= skip
        length = (~mask & (mask + 1)).bit_length() - 1
        yield at + skip, length
        mask >>= length
        at += skip + length


def _merged(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for lo, hi in sorted(runs):
        if merged and lo <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(hi, merged[-1][1]))
        elif hi > lo:
            merged.append((lo, hi))
    return merged
