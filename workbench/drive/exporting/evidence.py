"""What was measured near a layer: a candidate comes in, rows go out by which an exported file chooses for other layers."""

from __future__ import annotations

from math import log2, prod
from typing import Any

from ...core.best_known import class_of, load
from ...core.candidate import Candidate, layer_fields
from ...core.command import parse_layer
from ...core.gpu import sm_of
from ...core.precision import CLASSED

_MOST = 12      # the nearest

Row = tuple[tuple[int, ...], int, float, dict[str, int]]


def evidence(candidate: Candidate, arch: str) -> list[Row]:
    """(layer's numbers, positions of the batch, times as fast as PyTorch, tunables that are not the default) of the best
    known cells of that GPU in the candidate's direction, dtype and precision class, the nearest first. 0 times where another
    variant or precision was the fastest, or PyTorch's time is not known: that speaks against the candidate."""
    direction, variant = candidate.direction, candidate.variant
    if candidate.precision not in CLASSED:
        return []
    cells: dict[tuple[Any, ...], Any] = {}
    for entry in load():
        if (entry.direction == direction and entry.dtype == candidate.dtype and not entry.derived
                and sm_of(entry.arch) == sm_of(arch) and entry.precision_class == class_of(candidate.precision)):
            cell = (tuple(layer_fields(parse_layer(entry.layer)).values()), entry.batch * prod(entry.input_size))
            if cell not in cells or entry.ms < cells[cell].ms:
                cells[cell] = entry
    default = variant.config({})
    rows = []
    for (layer, positions), entry in cells.items():
        ours = entry.variant == variant.name and entry.precision == candidate.precision and entry.form == candidate.form
        ratio = round(entry.baseline_ms / entry.ms, 2) if ours and entry.baseline_ms else 0.0
        tune = {k: v for k, v in entry.config.items() if default.get(k) != v} if ratio else {}
        rows.append((layer, positions, ratio, tune))
    own = tuple(layer_fields(candidate.layer).values())
    return sorted(rows, key=lambda row: _apart(row[0], own))[:_MOST]


def _apart(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    return sum(abs(log2((a + 1) / (b + 1))) for a, b in zip(one, other, strict=True))
