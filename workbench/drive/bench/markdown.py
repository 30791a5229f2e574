"""Cells as the tables of README and docs/benchmark.md, between two marks; and whether the files still say just that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...core import numbers
from ...core.errors import BadRequest
from ...core.layer import DIRECTIONS
from ...core.presets import PRESETS
from .cells import Cell, summary
from .text import footnotes, means, strongest_words

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
_IN_README = ("kb57", "kb64", "kb72", "kb74", "kb81")   # one of each kind: 2-D, 1-D, grouped 3-D, dilated, long stride
_CLASS = {"tf32": "TF32", "ieee": "fp32-exact (`ieee`, `tf32x3`)"}


def short(cells: Sequence[Cell], *, sessions: Sequence[str]) -> str:
    """README's table: a few layers, a column a direction, of the first class; the geometric means of all."""
    classes = _classes(cells)
    lines = [_origin(cells, sessions), ""]
    lines += ["Each cell: **PyTorch / ours**, our ms against the fastest mode of nn.ConvTranspose that qualifies; the same "
              "ratio against the strongest of all formulations in PyTorch, and PyTorch's ms in channels_last with no "
              "conversion counted; share of the physical limit, relative L2 error to float64. "
              "[docs/benchmark.md](docs/benchmark.md) has every cell, variant and config, and the reason where a target is "
              "missed (†).", ""]
    mine = [c for c in cells if c.name.precision == classes[0]]
    lines += [f"| {_CLASS[classes[0]]} | {' | '.join(DIRECTIONS)} |", "|---|---|---|---|"]
    presets = dict.fromkeys(c.name.preset for c in mine)
    for preset in [p for p in presets if p in _IN_README] or presets:
        of_layer = {c.name.direction: c for c in mine if c.name.preset == preset}
        lines.append(f"| {PRESETS[preset].title} | {' | '.join(_short_cell(of_layer.get(d)) for d in DIRECTIONS)} |")
    lines.append("")
    for precision in classes:
        lines += [f"{_CLASS[precision]}: {sentence}" for sentence in means(summary(cells, precision))]
    lines += footnotes(cells)
    return "\n".join(lines)


def long(cells: Sequence[Cell], *, sessions: Sequence[str]) -> str:
    """The tables of docs/benchmark.md: a row a cell, one table a class, the misses below with their reasons."""
    lines = [_origin(cells, sessions)]
    for precision in _classes(cells):
        mine = [c for c in cells if c.name.precision == precision]
        lines += ["", f"### {_CLASS[precision]}", "", *means(summary(cells, precision)), "",
                  "| layer | direction | ms | variant and config | PyTorch, ms | its name | ratio | verdict | strongest, ms "
                  "| its name | ratio | channels_last, ms | of floor | error |",
                  "|---|---|---:|---|---:|---|---:|---|---:|---|---:|---:|---:|---:|"]
        lines += [_long_row(c) for c in mine]
        lines += [line for note in footnotes(mine) for line in ("", note)]
        misses = [c for c in mine if c.missed]
        if misses:
            lines += ["", "Cells that miss a target:", ""]
            lines += [f"- {PRESETS[c.name.preset].title}, {c.name.direction}: {c.reason}." for c in misses]
    return "\n".join(lines)


def placed(text: str, table: str, *, file: Path) -> str:
    """The file's text with the table between its marks. Raises `BadRequest` when the marks are not there once each."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise BadRequest(f"{file.name} needs the lines {BEGIN} and {END} once each: the table goes between them.")
    return f"{text[:text.index(BEGIN)]}{BEGIN}\n{table}\n{text[text.index(END):]}"


def has_marks(text: str) -> bool:
    return BEGIN in text or END in text


def _classes(cells: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(c.name.precision for c in cells))


def _origin(cells: Sequence[Cell], sessions: Sequence[str]) -> str:
    gpus = dict.fromkeys(c.best.device.get("name", "") for c in cells if c.best)
    sizes = dict.fromkeys(c.name.size for c in cells)
    emulated = " These times are emulated: they say nothing about a GPU." if any(c.emulated for c in cells) else ""
    return (f"Measured on {', '.join(gpus) or 'no device yet'}, {'/'.join(sizes)} size, `kernel_ms` (median, cold L2), "
            f"PyTorch in the same session ({', '.join(f'`{s}`' for s in sessions)}).{_held_down(cells)}{emulated}")


def _held_down(cells: Sequence[Cell]) -> str:
    """How many of the cells show a time that was taken while the GPU's clocks were held down."""
    count = sum(any(t is not None and "throttled" in t.flags for t in (c.best, c.baseline)) for c in cells)
    return (f" In {count} of the {len(cells)} cells of all classes the GPU held its clocks down (power) while ours or "
            "PyTorch's was timed." if count else "")


def _short_cell(cell: Cell | None) -> str:
    if cell is None:
        return numbers.MISSING
    if cell.ms is None:
        return cell.reason
    mark = " †" if cell.missed else ""
    ratio = f"**{numbers.ratio(cell.ratio)}**{mark}" if cell.ratio else "emulated" if cell.emulated else numbers.MISSING
    against = (f" / {numbers.milliseconds(cell.baseline_ms)} ({cell.baseline.name})" if cell.baseline else "")
    _, _, strongest, unconverted = strongest_words(cell)
    return (f"{ratio} {numbers.milliseconds(cell.ms)}{against}<br>strongest {strongest}, channels_last {unconverted}<br>"
            f"{numbers.share(cell.of_floor)}, {numbers.error(cell.rel_l2)}")


def _long_row(cell: Cell) -> str:
    best = cell.best
    config = (f"{best.name} `{' '.join(f'{k}={v}' for k, v in best.config.items())}` in {best.precision}" if best
              else cell.reason)
    verdict = "EMULATED" if cell.emulated else cell.verdict.verdict if cell.verdict else ""
    words = [f"#{PRESETS[cell.name.preset].number}", cell.name.direction, numbers.milliseconds(cell.ms), config,
             numbers.milliseconds(cell.baseline_ms), cell.baseline.name if cell.baseline else numbers.MISSING,
             numbers.ratio(cell.ratio), verdict + (" †" if cell.missed else ""), *strongest_words(cell),
             numbers.share(cell.of_floor), numbers.error(cell.rel_l2)]
    return f"| {' | '.join(words)} |"
