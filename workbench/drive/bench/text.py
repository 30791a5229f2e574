"""Writes cells as a table for a terminal, with the geometric means. Below it are the missed targets with their reasons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core import numbers
from ...core.presets import PRESETS
from ..reporting.tables import aligned
from .cells import Cell, Summary, groups_of, summary

HEADER = ("layer", "direction", "median, ms", "variant and config", "computes in", "PyTorch, ms", "its name", "ratio",
          "verdict", "strongest, ms", "its name", "ratio", "channels_last, ms", "of floor", "error", "")


def table(cells: Sequence[Cell]) -> str:
    """One block for each suite, memory format, precision class and GPU: the cells, the geometric means, the misses."""
    if not cells:
        return "No cells: this session holds no bench."
    blocks = []
    for (suite, memory_format, precision, gpu), mine in groups_of(cells).items():
        words = [suite, f"precision class {precision}", memory_format, *([gpu] if gpu != cells[0].gpu else [])]
        lines = [", ".join(words), *aligned([HEADER, *map(_row, mine)])]
        lines += [*means(summary(mine, precision)), *footnotes(mine)]
        lines += [f"MISSED  {label(c)}: {c.reason}" for c in mine if c.missed]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def means(found: Summary) -> list[str]:
    """The geometric means as one sentence."""
    if not found.counted:
        return ["No GPU times, so no geometric mean."]
    ratio = f"Geometric mean of {found.counted} of {found.cells} cells: {numbers.ratio(found.ratio)}"
    strongest = (f"{numbers.ratio(found.strongest)} against the strongest PyTorch"
                 + (f" ({found.asked} of them)" if found.asked < found.counted else "") if found.strongest else "")
    share = f"{numbers.share(found.of_floor)} of the floor" if found.of_floor else ""
    where = "the ratio below 1 counts" if found.left == 1 else f"the {found.left} ratios below 1 count"
    left = f" {numbers.ratio(found.with_left)} if {where} as 1." if found.left else ""
    return [", ".join(filter(None, (ratio, strongest, share))) + f".{left} Cells that miss a target: {found.missed}."]


def footnotes(cells: Sequence[Cell]) -> list[str]:
    """One line about the cells without the ratio to the strongest PyTorch; empty if all cells have it."""
    lack = [c for c in cells if c.best and c.strongest is None]
    where = "in this session" if len(lack) == len(cells) else f"for {len(lack)} of the {len(cells)} cells"
    return [f"Other formulations in PyTorch were not measured {where}."] if lack else []


def label(cell: Cell) -> str:
    """The name of a cell: `kb74 forward`; with the size if it is not full."""
    size = "" if cell.name.size == "full" else f"/{cell.name.size}"
    return f"{cell.name.preset}{size} {cell.name.direction}"


def config_of(cell: Cell) -> str:
    """The variant and its config. The values have the form that `run --set` takes."""
    if cell.best is None:
        return numbers.MISSING
    return " ".join([cell.best.name, *(f"{k}={v}" for k, v in cell.best.config.items())])


def strongest_words(cell: Cell) -> list[str]:
    """The ms of the strongest PyTorch, its name and its ratio to our time; then the ms of PyTorch in channels_last without
    conversion."""
    strongest, unconverted = cell.strongest, cell.unconverted
    return [numbers.milliseconds(strongest.kernel_ms.median_ms if strongest and strongest.kernel_ms else None),
            strongest.name if strongest else numbers.MISSING, numbers.ratio(cell.strongest_ratio),
            numbers.milliseconds(unconverted.kernel_ms.median_ms if unconverted and unconverted.kernel_ms else None)]


def limited_by(cell: Cell) -> str:
    """What determines the floor: "memory" or "arithmetic"; "" without a floor."""
    return {"bytes": "memory", "compute": "arithmetic"}[cell.floor.limit] if cell.floor else ""


def records(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """The cells as plain values, for a table, CSV or JSON. Times in ms are kernel_ms medians; a ratio is PyTorch's time over
    ours."""
    return [{
        "layer": PRESETS[c.name.preset].label, "preset": c.name.preset, "size": c.name.size, "direction": c.name.direction,
        "precision_class": c.name.precision, "memory_format": c.name.memory_format, "limited_by": limited_by(c) or None,
        "ratio": c.ratio, "low": c.verdict.low if c.verdict else None, "high": c.verdict.high if c.verdict else None,
        "verdict": _verdict(c) or None, "median_ms": c.ms, "pytorch_ms": c.baseline_ms,
        "pytorch": c.baseline.name if c.baseline else None, "strongest_ratio": c.strongest_ratio,
        "strongest_ms": c.strongest.kernel_ms.median_ms if c.strongest and c.strongest.kernel_ms else None,
        "strongest": c.strongest.name if c.strongest else None,
        "channels_last_ms": c.unconverted.kernel_ms.median_ms if c.unconverted and c.unconverted.kernel_ms else None,
        "floor_ms": c.floor.ms if c.floor else None, "of_floor": c.of_floor, "rel_l2": c.rel_l2,
        "variant": c.best.name if c.best else None, "computes_in": c.best.precision if c.best else None,
        "config": dict(c.best.config) if c.best else {}, "device": c.best.device.name if c.best else None,
        "missed": c.reason if c.missed else None, "session": c.session, "trial_id": c.best.trial_id if c.best else None}
        for c in cells]


def _verdict(cell: Cell) -> str:
    return "EMULATED" if cell.emulated else cell.verdict.verdict if cell.verdict else ""


def _row(cell: Cell) -> list[str]:
    return [label(cell).partition(" ")[0], cell.name.direction, numbers.milliseconds(cell.ms), config_of(cell),
            cell.best.precision if cell.best else numbers.MISSING, numbers.milliseconds(cell.baseline_ms),
            cell.baseline.name if cell.baseline else numbers.MISSING, numbers.ratio(cell.ratio), _verdict(cell),
            *strongest_words(cell), numbers.share(cell.of_floor), numbers.error(cell.rel_l2), "missed" if cell.missed else ""]
