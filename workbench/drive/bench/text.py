"""Writes cells as a table for a terminal, with the geometric means; below it each missed target with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from ...core import numbers
from ..reporting.tables import aligned
from .cells import Cell, Summary, groups_of, summary

HEADER = ("layer", "direction", "median, ms", "variant and config", "computes in", "PyTorch, ms", "its name", "ratio",
          "verdict", "strongest, ms", "its name", "ratio", "channels_last, ms", "of floor", "error", "")


def table(cells: Sequence[Cell]) -> str:
    """One block for each suite, memory format and precision class: the cells, the geometric means, the misses."""
    if not cells:
        return "No cells: this session holds no bench."
    blocks = []
    for (suite, memory_format, precision), mine in groups_of(cells).items():
        lines = [f"{suite}, precision class {precision}, {memory_format}", *aligned([HEADER, *map(_row, mine)])]
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
    return [", ".join(filter(None, (ratio, strongest, share))) + f". Cells that miss a target: {found.missed}."]


def footnotes(cells: Sequence[Cell]) -> list[str]:
    """Why the second ratio is missing, in one line; nothing where no cell lacks it."""
    lack = [c for c in cells if c.best and c.strongest is None]
    where = "in this session" if len(lack) == len(cells) else f"for {len(lack)} of the {len(cells)} cells"
    return [f"Other formulations in PyTorch were not measured {where}."] if lack else []


def label(cell: Cell) -> str:
    """`kb74 forward`; with the size where it is not the full one."""
    size = "" if cell.name.size == "full" else f"/{cell.name.size}"
    return f"{cell.name.preset}{size} {cell.name.direction}"


def config_of(cell: Cell) -> str:
    """The variant and its config, as `run --set` takes the values."""
    if cell.best is None:
        return numbers.MISSING
    return " ".join([cell.best.name, *(f"{k}={v}" for k, v in cell.best.config.items())])


def strongest_words(cell: Cell) -> list[str]:
    """The strongest PyTorch in ms, its name, its ratio to ours; and PyTorch in channels_last, no conversion counted, in ms."""
    strongest, unconverted = cell.strongest, cell.unconverted
    return [numbers.milliseconds(strongest.kernel_ms.median_ms if strongest and strongest.kernel_ms else None),
            strongest.name if strongest else numbers.MISSING, numbers.ratio(cell.strongest_ratio),
            numbers.milliseconds(unconverted.kernel_ms.median_ms if unconverted and unconverted.kernel_ms else None)]


def _row(cell: Cell) -> list[str]:
    verdict = "EMULATED" if cell.emulated else cell.verdict.verdict if cell.verdict else ""
    return [label(cell).partition(" ")[0], cell.name.direction, numbers.milliseconds(cell.ms), config_of(cell),
            cell.best.precision if cell.best else numbers.MISSING, numbers.milliseconds(cell.baseline_ms),
            cell.baseline.name if cell.baseline else numbers.MISSING, numbers.ratio(cell.ratio), verdict,
            *strongest_words(cell), numbers.share(cell.of_floor), numbers.error(cell.rel_l2), "missed" if cell.missed else ""]
