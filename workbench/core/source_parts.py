"""Splits a translation unit into its files: #line directives give file and number of the next line. Also puts two texts side
by side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest

_LINE = re.compile(r'#line (\d+)(?: "([^"]*)")?')
_LOGGED = re.compile(r"^(?P<file>[^:()\n]+?)(?::(?P<colon>\d+)(?::\d+)?|\((?P<paren>\d+)\)): (?:fatal |catastrophic )?[Ee]rror"
                     r"(?: #[\w-]+)?: (?P<text>.+)$", re.M)
_ERROR_AT = re.compile(r"(?P<file>[\w./-]+\.cuh?), line (?P<line>\d+)")


def parts(source: str) -> dict[str, str]:
    """File -> its text, in which every line has its original number; {"": source} for a text without #line. Lines that stand
    elsewhere in the unit are blank."""
    found: dict[str, dict[int, str]] = {}
    name, number = "", 1
    for line in source.splitlines():
        if directive := _LINE.match(line):
            name, number = directive[2] or name, int(directive[1])
        else:
            found.setdefault(name, {})[number] = line
            number += 1
    return {name: "\n".join(lines.get(n, "") for n in range(1, max(lines) + 1)) for name, lines in found.items()}


def own_part(there: Sequence[str], variant: str) -> str:
    """The file of the variant itself. If no file has its name, the last file."""
    return next((name for name in there if name.rpartition("/")[2] == f"{variant}.cu"), list(there)[-1])


def kernel_line(text: str) -> int:
    """The line on which the last kernel of a file begins, including its `template` line and comment. 1 without a kernel."""
    lines = text.splitlines()
    at = next((n for n in range(len(lines) - 1, -1, -1) if re.match(r"(?:static\s+)?__global__", lines[n])), 0)
    while at > 0 and re.match(r"template\b|//", lines[at - 1]):
        at -= 1
    return at + 1


def error_place(sentence: str, there: Sequence[str]) -> tuple[str, int] | None:
    """The file and line that a sentence such as "nvcc stopped at x.cu, line 88: ..." names, if the unit has that file."""
    found = _ERROR_AT.search(sentence)
    name = next((n for n in there if found and (n == found["file"] or n.endswith(f"/{found['file']}"))), None)
    return (name, int(found["line"])) if found and name else None


def error_lines(source: str, log: str, headline: str) -> list[tuple[int, str]]:
    """(line of the whole text, message) of the errors in this text, a rendering or a template. They are read from the
    compiler's log, or else from the headline. Each line has at most one error."""
    there = parts(source)
    found = [(m["file"].rpartition("/")[2], int(m["colon"] or m["paren"]), m["text"]) for m in _LOGGED.finditer(log)]
    if not found and (told := _ERROR_AT.search(headline)):
        found = [(told["file"].rpartition("/")[2], int(told["line"]), headline[told.end():].lstrip(": ") or headline)]
    places: dict[tuple[str, int], int] = {}
    name, number = "", 1
    for at, line in enumerate(source.splitlines(), 1):
        if directive := _LINE.match(line):
            name, number = (directive[2] or name).rpartition("/")[2], int(directive[1])
        else:
            places[name, number] = at
            number += 1
    whole = set(there) == {""}
    known = [(places.get(("" if whole and file.endswith(".cu") else file, line)), text) for file, line, text in found]
    return sorted({at: text for at, text in reversed(known) if at is not None}.items())

@dataclass(frozen=True)
class DiffRow:
    """A line of each of two texts, counted from 1; None if a text has no line in this row. `skipped`: how many equal lines are
    left out here."""

    left: int | None
    right: int | None
    left_text: str = ""
    right_text: str = ""
    skipped: int = 0

    @property
    def same(self) -> bool:
        return self.left is not None and self.right is not None and self.left_text == self.right_text


def side_by_side(left: str, right: str, *, context: int | None = 3) -> list[DiffRow]:
    """The lines of both texts, side by side. `context`: how many equal lines are kept around each change (None: all)."""
    a, b = left.splitlines(), right.splitlines()
    rows: list[DiffRow] = []
    steps = SequenceMatcher(None, a, b, autojunk=len(a) + len(b) > 4_000).get_opcodes()
    for number, (kind, i, i_end, j, j_end) in enumerate(steps):
        if kind != "equal":
            rows += [DiffRow(m, n, a[m - 1] if m else "", b[n - 1] if n else "")
                     for m, n in zip_longest(range(i + 1, i_end + 1), range(j + 1, j_end + 1))]
            continue
        count = i_end - i
        head = count if context is None else 0 if number == 0 else min(context, count)
        tail = 0 if context is None or number == len(steps) - 1 else min(context, count - head)
        gap = count - head - tail
        equal = [DiffRow(m + 1, n + 1, a[m], b[n]) for m, n in zip(range(i, i_end), range(j, j_end), strict=True)]
        rows += equal[:head] + ([DiffRow(None, None, skipped=gap)] if gap else []) + equal[head + gap:]
    return rows


def unified(rows: Sequence[DiffRow]) -> list[DiffRow]:
    """The rows in the form of a unified diff: removed lines before added ones, each in its own row."""
    found: list[DiffRow] = []
    came: list[DiffRow] = []
    for row in rows:
        if row.same or row.skipped:
            found += [*came, row]
            came = []
            continue
        if row.left is not None:
            found.append(DiffRow(row.left, None, row.left_text))
        if row.right is not None:
            came.append(DiffRow(None, row.right, "", row.right_text))
    return found + came
