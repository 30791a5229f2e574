"""Writes cells as the tables of README and docs/benchmark.md, between two marks, and tests whether the files are up to date."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from ...core import numbers
from ...core.errors import BadRequest
from ...core.layer import CONTIGUOUS, DIRECTIONS
from ...core.presets import PRESETS
from .cells import Cell, Group, groups_of, summary
from .modules import HEADER, Module, mean_ratio, rows, sentence
from .text import footnotes, means, strongest_words

_WIDTH = 128   # characters of a line of a document
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
_IN_README = ("kb74", "kb81", "models/hifigan-1", "models/pose", "models/nnunet-4")  # 1-D to 3-D, stride 1 and above
SUITE_NAMES = {"kernelbench": "KernelBench", "models": "Layers of published models"}
_CLASS = {"tf32": "TF32", "ieee": "fp32-accurate (`ieee`, `tf32x3`)", "fp16": "float16", "bf16": "bfloat16"}


def short(cells: Sequence[Cell], modules: Sequence[Module] = ()) -> str:
    """The tables of the README: for each suite a few layers in its first class, with one column for each direction, then one
    table with the geometric means of all suites and classes, and a sentence with those of whole modules."""
    lines = ["In bold: the speed-up, which is the time of PyTorch's fastest mode divided by ours. In brackets: the speed-up "
             "against the fastest formulation of the layer by any PyTorch operators. Then our time. "
             "[docs/benchmark.md](docs/benchmark.md) has all cells, with PyTorch's times, errors, variants and configs.", ""]
    for (suite, gpu), of_suite in _suites(cells).items():
        if gpu != cells[0].gpu:
            continue
        first, mine = next(iter(groups_of(of_suite).items()))
        lines += [f"| {SUITE_NAMES[suite]}, {headline(first)} | {' | '.join(DIRECTIONS)} |", "|---|---|---|---|"]
        presets = dict.fromkeys(c.name.preset for c in mine)
        for preset in [p for p in presets if p in _IN_README] or presets:
            of_layer = {c.name.direction: c for c in mine if c.name.preset == preset}
            lines.append(f"| {PRESETS[preset].title} | {' | '.join(_short_cell(of_layer.get(d)) for d in DIRECTIONS)} |")
        lines.append("")
    lines += ["Geometric means over all cells. *Of the floor*: the physical limit of the GPU divided by our time.", "",
              "| suite, class | cells | speed-up | against the strongest PyTorch | of the floor | slower than PyTorch |",
              "|---|---:|---:|---:|---:|---:|"]
    for (suite, gpu), of_suite in _suites(cells).items():
        lines += [_means_row(suite, gpu if gpu != cells[0].gpu else "", group, mine)
                  for group, mine in groups_of(of_suite).items()]
    lines += [f"\nWhole modules, {_modules_means(modules)}." if modules else ""]
    return "\n".join([*lines, "", *(f"- {SUITE_NAMES[suite]}: {origin(mine)}"
                                     for (suite, gpu), mine in _suites(cells).items() if gpu == cells[0].gpu)])


def _modules_means(modules: Sequence[Module]) -> str:
    """`forward + backward of ModelNew against nn.ConvTranspose (geometric means): KernelBench, TF32 4.23×; ...`"""
    found = [f"{SUITE_NAMES[group[0]]}, {headline(group)} {numbers.ratio(mean_ratio(mine, both=True))}"
             for group, mine in groups_of(modules).items()]
    return f"forward + backward of `ModelNew` against `nn.ConvTranspose` (geometric means): {'; '.join(found)}"


def _means_row(suite: str, gpu: str, group: Group, cells: Sequence[Cell]) -> str:
    found = summary(cells, group[2])
    words = [", ".join(filter(None, (SUITE_NAMES[suite], headline(group), gpu))), str(found.cells), numbers.ratio(found.ratio),
             numbers.ratio(found.strongest), numbers.share(found.of_floor), str(found.left)]
    return f"| {' | '.join(words)} |"


def long(cells: Sequence[Cell], modules: Sequence[Module] = ()) -> str:
    """The tables of docs/benchmark.md. Each suite and GPU has a section, and in it each class and memory format has a table
    with one row for each cell. Below a table are the missed targets with their reasons. Last are the tables of whole modules.
    """
    sections = []
    for (suite, gpu), of_suite in _suites(cells).items():
        lines = [f"### {SUITE_NAMES[suite]}" + (f", {gpu}" if gpu != cells[0].gpu else ""), "", origin(of_suite)]
        for group, mine in groups_of(of_suite).items():
            lines += _section(group, mine)
        sections.append("\n".join(lines))
    if modules:
        sections.append("\n".join(_modules_section(modules)))
    return "\n\n".join(sections)


def _modules_section(modules: Sequence[Module]) -> list[str]:
    lines = ["### Modules", "", f"Measured in `{'`, `'.join(sorted({m.session for m in modules}))}`."]
    for (suite, memory_format, precision, gpu), mine in groups_of(modules).items():
        words = f"{SUITE_NAMES[suite]}, {headline((suite, memory_format, precision, gpu))}, {gpu or 'emulated'}"
        lines += ["", f"#### {words}", "", f"| {' | '.join(HEADER)} |", f"|---{'|---:' * (len(HEADER) - 1)}|"]
        lines += [f"| {' | '.join(row)} |" for row in rows(mine, title=lambda name: PRESETS[name].label)]
        lines += ["", said] if (said := sentence(mine)) else []
    return lines


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
    lines = [part for line in table.split("\n") for part in _wrapped(line)]
    return "\n".join([f"{text[:text.index(BEGIN)]}{BEGIN}", *lines, text[text.index(END):]])


def _wrapped(line: str) -> list[str]:
    """The lines of a paragraph or of an item of a list. A row of a table stays one line."""
    if line.startswith("|"):
        return [line]
    return textwrap.wrap(line, _WIDTH, subsequent_indent="  " if line.startswith("- ") else "", break_long_words=False,
                         break_on_hyphens=False) or [""]


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
    """`**2.72×** (2.72×) 0.523 ms`: both ratios and our time."""
    if cell is None:
        return numbers.MISSING
    if cell.ms is None:
        return cell.reason
    ratio = f"**{numbers.ratio(cell.ratio)}**" if cell.ratio else "emulated" if cell.emulated else numbers.MISSING
    strongest = f" ({numbers.ratio(cell.strongest_ratio)})" if cell.strongest_ratio else ""
    return f"{ratio}{strongest} {numbers.milliseconds(cell.ms)} ms"


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
