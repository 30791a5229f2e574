"""Finds the line for an exception that no line of the file raised: the start of the function that was called wrongly, or the
only launch of a kernel."""

from __future__ import annotations

import linecache
import re
from typing import Any

_CALLED = re.compile(r"([\w.]{1,200})\(\) (?:missing|takes|got) ")
_BACKWARD = re.compile(r"[Ff]unction (\w{1,200})Backward returned an (?:incorrect|invalid)")
_TRITON = re.compile(r"at \d{1,6}:\d{1,6}:\n(?:.*\n){0,200}?(.*)\n *\^")  # the line above the mark
_CLASS = re.compile(r'Module \[(\w{1,200})\] is missing the required "forward" function|(\w{1,200}) is not an nn\.Module$')


def line_of(message: str, file: str, namespace: dict[str, Any]) -> int | None:
    """The line in `file`, if there is one. `namespace`: that of the file."""
    lines = linecache.getlines(file)
    try:
        if found := _CALLED.match(message):
            return _of_function(_named(found[1], namespace), file, lines)
        if found := _BACKWARD.search(message):
            return _of_function(_named(f"{found[1]}.backward", namespace), file, lines)
        if found := _CLASS.match(message):
            return _only(lines, rf"\s*class {found[1] or found[2]}\b")
        if "You must implement either the backward" in message:
            return _only(lines, r"\s*class \w+\((?:[\w.]*\.)?Function\)")
        if message.startswith("CUDA error: "):
            return _only(lines, r"[^#]*<<<")
    except Exception:  # the namespace is foreign
        return None
    return None


def of_triton(message: str, file: str) -> int | None:
    """The line that Triton's compiler shows: it counts lines from the start of the kernel."""
    shown = _TRITON.match(message)
    return _only(linecache.getlines(file), re.escape(shown[1]) + r"\s*$") if shown else None


def _named(path: str, namespace: dict[str, Any]) -> Any:
    first, *rest = path.split(".")
    found = namespace[first]
    for name in rest:
        found = getattr(found, name)
    return found


def _of_function(function: Any, file: str, lines: list[str]) -> int | None:
    code = function.__code__
    if code.co_filename != file:
        return None
    line: int = code.co_firstlineno
    while line < len(lines) and lines[line - 1].lstrip().startswith("@"):  # a function begins with its decorators
        line += 1
    return line


def _only(lines: list[str], pattern: str) -> int | None:
    """The only line that matches; None if there are more."""
    found = [n for n, words in enumerate(lines, 1) if re.match(pattern, words)]
    return found[0] if len(found) == 1 else None
