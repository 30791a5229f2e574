"""Writes cells as the tables of README and docs/benchmark.md, between two marks, and tests whether the files are up to date."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...core import numbers
from ...core.errors import BadRequest
from ...core.layer import CONTIGUOUS, DIRECTIONS
from ...core.presets import PRESETS
from .cells import Cell, Group, groups_of, summary
from .text import footnotes, means, strongest_words

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
_IN_README = ("kb74", "kb81", "models/hifigan-1", "models/pose", "models/nnunet-4")  # 1-D to 3-D, stride 1 and above
SUITE_NAMES = {"kernelbench": "KernelBench", "models": "Layers of published models"}
_CLASS = {"tf32": "TF32", "ieee": "fp32-accurate (`ieee`, `tf32x3`)", "fp16": "float16", "bf16": "bfloat16"}


def short(cells: Sequence[Cell]) -> str:
    """The tables of the README: for each suite a few layers in its first class, with one column for each direction, then the
    geometric means of all classes."""
    lines = ["Each cell has two or three lines:", "",
             "1. the speed-up (PyTorch's time divided by ours), our time and PyTorch's in ms, and the name of PyTorch's "
             "fastest mode;",
             "2. the speed-up against the fastest formulation of the layer by any PyTorch operators (\"strongest\"), and the "
             "ms of nn.ConvTranspose on channels_last tensors; a cell without these measurements lacks this line;",
             "3. the physical limit of the GPU (the *floor*) divided by our time, and the relative L2 error to float64.", "",
             "A † marks a cell that misses a target: it is slower than PyTorch by more than 1 %, its error is too large, or "
             "it misses the speed target of a KernelBench layer. [docs/benchmark.md](docs/benchmark.md) has the targets, all "
             "cells, variants and configs, and the reason of a miss where it is known."]
    for (suite, gpu), of_suite in _suites(cells).items():
        if gpu != cells[0].gpu:
            continue
        groups = groups_of(of_suite)
        first, mine = next(iter(groups.items()))
        lines += ["", f"{SUITE_NAMES[suite]}. {origin(of_suite)}", "",
                  f"| {headline(first)} | {' | '.join(DIRECTIONS)} |", "|---|---|---|---|"]
        presets = dict.fromkeys(c.name.preset for c in mine)
        for preset in [p for p in presets if p in _IN_README] or presets:
            of_layer = {c.name.direction: c for c in mine if c.name.preset == preset}
            lines.append(f"| {PRESETS[preset].title} | {' | '.join(_short_cell(of_layer.get(d)) for d in DIRECTIONS)} |")
        lines.append("")
        for group, there in groups.items():
            lines += [f"{headline(group)}: {sentence}" for sentence in means(summary(there, group[2]))]
        lines += footnotes(of_suite)
    others = [(group, mine) for group, mine in groups_of(cells).items() if group[3] != cells[0].gpu]
    lines += ["", *(f"{SUITE_NAMES[group[0]]} on {group[3]}, {headline(group)}: {sentence}"
                    for group, mine in others for sentence in means(summary(mine, group[2])))] if others else []
    return "\n".join(lines)


def long(cells: Sequence[Cell]) -> str:
    """The tables of docs/benchmark.md. Each suite and GPU has a section, and in it each class and memory format has a table
    with one row for each cell. Below a table are the missed targets with their reasons."""
    sections = []
    for (suite, gpu), of_suite in _suites(cells).items():
        lines = [f"### {SUITE_NAMES[suite]}" + (f", {gpu}" if gpu != cells[0].gpu else ""), "", origin(of_suite)]
        for group, mine in groups_of(of_suite).items():
            lines += _section(group, mine)
        sections.append("\n".join(lines))
    return "\n\n".join(sections)


def _section(group: Group, mine: Sequence[Cell]) -> list[str]:
    lines = ["", f"#### {headline(group)}", "", *means(summary(mine, group[2])), "",
              "| layer | direction | ms | variant and config | PyTorch, ms | its name | ratio | verdict | strongest, ms "
              "| its name | ratio | channels_last, ms | of floor | error |",
              "|---|---|---:|---|---:|---|---:|---|---:|---|---:|---:|---:|---:|"]
    lines += [_long_row(c) for c in mine]
    lines += [line for note in footnotes(mine) for line in ("", note)]
    misses = [c for c in mine if c.missed]
    if misses:
        lines += ["", "Cells that miss a target:", ""]
        lines += [f"- {PRESETS[c.name.preset].title}, {c.name.direction}: {c.reason}." for c in misses]
    return lines


def placed(text: str, table: str, *, file: Path) -> str:
    """The file's text with the table between its marks. Raises `BadRequest` unless each mark occurs exactly once."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise BadRequest(f"{file.name} needs the lines {BEGIN} and {END} once each: the table goes between them.")
    return f"{text[:text.index(BEGIN)]}{BEGIN}\n{table}\n{text[text.index(END):]}"


def has_marks(text: str) -> bool:
    return BEGIN in text or END in text


def _suites(cells: Sequence[Cell]) -> dict[tuple[str, str], list[Cell]]:
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.group[0], cell.gpu), []).append(cell)
    return found


def headline(group: Group) -> str:
    """`TF32`, or `bfloat16, channels_last`."""
    _, memory_format, precision, _ = group
    return ", ".join([_CLASS[precision], *([memory_format] if memory_format != CONTIGUOUS else [])])


def origin(cells: Sequence[Cell]) -> str:
    """Where the times are from: GPU, size, clock and sessions, as sentences."""
    sessions = sorted({c.session for c in cells if c.best})
    gpus = dict.fromkeys(c.best.device.name for c in cells if c.best)
    sizes = dict.fromkeys(c.name.size for c in cells)
    emulated = " These times are emulated: they do not predict a GPU." if any(c.emulated for c in cells) else ""
    return (f"Measured on {', '.join(gpus) or 'no device yet'}, {'/'.join(sizes)} size, `kernel_ms` (median, cold L2), "
            f"PyTorch in the same session ({', '.join(f'`{s}`' for s in sessions)}).{_held_down(cells)}{emulated}")


def _held_down(cells: Sequence[Cell]) -> str:
    """A sentence with the number of cells with a time that was measured while the GPU had lowered its clock."""
    count = sum(any(t is not None and "throttled" in t.flags for t in (c.best, c.baseline)) for c in cells)
    return (f" In {count} of {len(cells)} cells the GPU lowered its clock during the timing, because of its power limit."
            if count else "")


def _short_cell(cell: Cell | None) -> str:
    if cell is None:
        return numbers.MISSING
    if cell.ms is None:
        return cell.reason
    mark = " †" if cell.missed else ""
    ratio = f"**{numbers.ratio(cell.ratio)}**{mark}" if cell.ratio else "emulated" if cell.emulated else numbers.MISSING
    against = (f" / {numbers.milliseconds(cell.baseline_ms)} ({cell.baseline.name})" if cell.baseline else "")
    _, _, strongest, unconverted = strongest_words(cell)
    more = [f"{word} {value}" for word, value in (("strongest", strongest), ("channels_last", unconverted))
            if value != numbers.MISSING]
    lines = [f"{ratio} {numbers.milliseconds(cell.ms)}{against}", *([", ".join(more)] if more else []),
             f"{numbers.share(cell.of_floor)}, {numbers.error(cell.rel_l2)}"]
    return "<br>".join(lines)


def _long_row(cell: Cell) -> str:
    best = cell.best
    config = (f"{best.name} `{' '.join(f'{k}={v}' for k, v in best.config.items())}` in {best.precision}" if best
              else cell.reason)
    verdict = "EMULATED" if cell.emulated else cell.verdict.verdict if cell.verdict else ""
    words = [PRESETS[cell.name.preset].label, cell.name.direction, numbers.milliseconds(cell.ms), config,
             numbers.milliseconds(cell.baseline_ms), cell.baseline.name if cell.baseline else numbers.MISSING,
             numbers.ratio(cell.ratio), verdict + (" †" if cell.missed else ""), *strongest_words(cell),
             numbers.share(cell.of_floor), numbers.error(cell.rel_l2)]
    return f"| {' | '.join(words)} |"
