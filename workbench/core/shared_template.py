"""A template that computes forward and grad_input: its header and its text for one of the two directions.

The header's tables `[forward]` and `[grad_input]` replace what stands above them. In the code, lines between
`#ifdef KW_FORWARD` (or `#ifndef`), `#else` and `#endif` belong to one direction; those of the other become empty lines, so that
line numbers stay.
"""

from __future__ import annotations

import re
from typing import Any

from .errors import RenderError
from .layer import FORWARD, GRAD_INPUT

FOLDER = "forward_and_grad_input"
DIRECTIONS_OF_FOLDER = (FORWARD, GRAD_INPUT)
_OPENS = re.compile(r"\s*#\s*if")
_ASKS = re.compile(r"\s*#\s*if(?P<n>n?)def\s+KW_FORWARD\b")
_ELSE = re.compile(r"\s*#\s*else\b")
_CLOSES = re.compile(r"\s*#\s*endif\b")


def header_of(head: dict[str, Any], direction: str, file: str) -> dict[str, Any]:
    """The header for `direction`: its table (`[forward]` or `[grad_input]`) replaces keys of the common part."""
    for name in DIRECTIONS_OF_FOLDER:
        if not isinstance(head.get(name, {}), dict):
            raise RenderError(f"The header of {file}: {name} is {head[name]!r}; write it as a table [{name}].")
    merged = {key: value for key, value in head.items() if key not in DIRECTIONS_OF_FOLDER}
    for key, value in head.get(direction, {}).items():
        below = merged.get(key, {})
        merged[key] = {**below, **value} if isinstance(value, dict) and isinstance(below, dict) else value
    return merged


def lines_of(text: str, direction: str, file: str) -> str:
    """The template's text in that direction. Raises `RenderError` for a condition with KW_FORWARD in another form, or without
    `#endif`."""
    if "KW_FORWARD" not in text:
        return text
    lines = text.split("\n")
    open_lines: list[tuple[int, bool | None]] = []  # line, and whether what follows is kept; None: some other condition
    for number, line in enumerate(lines):
        asks, ours = _ASKS.match(line), False
        if asks:
            open_lines.append((number, (direction == FORWARD) != bool(asks["n"])))
            ours = True
        elif _OPENS.match(line):
            if "KW_FORWARD" in line:
                raise RenderError(f"Line {number + 1} of {file} is {line.strip()!r}; write #ifdef KW_FORWARD or "
                                  f"#ifndef KW_FORWARD.")
            open_lines.append((number, None))
        elif _ELSE.match(line) and open_lines and open_lines[-1][1] is not None:
            open_lines[-1] = (open_lines[-1][0], not open_lines[-1][1])
            ours = True
        elif _CLOSES.match(line) and open_lines:
            ours = open_lines.pop()[1] is not None
        if ours or any(kept is False for _, kept in open_lines):
            lines[number] = ""
    if open_lines:
        raise RenderError(f"The condition in line {open_lines[-1][0] + 1} of {file} has no #endif.")
    return "\n".join(lines)
