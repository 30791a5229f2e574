"""Cells as a table for a terminal, with the geometric means; below it each missed target with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from ...core import numbers
from ..reporting.tables import aligned
from .cells import Cell, Summary, groups_of, summary

HEADER = ("layer", "direction", "median, ms", "variant and config", "computes in", "PyTorch, ms", "its name", "ratio",
          "verdict", "of floor", "error", "")


def table(cells: Sequence[Cell]) -> str:
    """One block for each suite, memory format and precision class: the cells, the geometric means, the misses."""
    if not cells:
        return "No cells: this session holds no bench."
    blocks = []
    for (suite, memory_format, precision), mine in groups_of(cells).items():
        lines = [f"{suite}, precision class {precision}, {memory_format}", *aligned([HEADER, *map(_row, mine)])]
        lines += means(summary(mine, precision))
        lines += [f"MISSED  {label(c)}: {c.reason}" for c in mine if c.missed]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def means(found: Summary) -> list[str]:
    """The geometric means as one sentence."""
    if not found.counted:
        return ["No GPU times, so no geometric mean."]
    ratio = f"Geometric mean of {found.counted} of {found.cells} cells: {numbers.ratio(found.ratio)}"
    share = f"{numbers.share(found.of_floor)} of the floor" if found.of_floor else ""
    return [", ".join(filter(None, (ratio, share))) + f". Cells that miss a target: {found.missed}."]


def label(cell: Cell) -> str:
    """`kb74 forward`; with the size where it is not the full one."""
    size = "" if cell.name.size == "full" else f"/{cell.name.size}"
    return f"{cell.name.preset}{size} {cell.name.direction}"


def config_of(cell: Cell) -> str:
    """The variant and its config, as `run --set` takes the values."""
    if cell.best is None:
        return numbers.MISSING
    return " ".join([cell.best.name, *(f"{k}={v}" for k, v in cell.best.config.items())])


def _row(cell: Cell) -> list[str]:
    verdict = "EMULATED" if cell.emulated else cell.verdict.verdict if cell.verdict else ""
    return [label(cell).partition(" ")[0], cell.name.direction, numbers.milliseconds(cell.ms), config_of(cell),
            cell.best.precision if cell.best else numbers.MISSING, numbers.milliseconds(cell.baseline_ms),
            cell.baseline.name if cell.baseline else numbers.MISSING, numbers.ratio(cell.ratio), verdict,
            numbers.share(cell.of_floor), numbers.error(cell.rel_l2), "missed" if cell.missed else ""]
