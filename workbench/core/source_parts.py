"""A translation unit into the files that it was made of: its #line directives say which line of which file follows."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LINE = re.compile(r'#line (\d+)(?: "([^"]*)")?')
_ERROR_AT = re.compile(r"(?P<file>[\w./-]+\.cuh?), line (?P<line>\d+)")


def parts(source: str) -> dict[str, str]:
    """File -> its text, every line at its own number; {"": source} for a text without #line. What was inlined at other
    places is a blank line."""
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
    """The file of the variant itself; the last one of a unit that has none of its name."""
    return next((name for name in there if name.rpartition("/")[2] == f"{variant}.cu"), list(there)[-1])


def kernel_line(text: str) -> int:
    """The line on which the last kernel of a file begins, its template head included; 1 without one."""
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
