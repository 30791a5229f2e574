"""The id of a candidate: a hash of what the compiler reads of its source.

Comments, `#line`, `#pragma once` and insignificant white space are removed first. Texts that are then equal are the same
program. White space in literals is kept; in preprocessor lines each run of it becomes one blank.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache

_PIECE = re.compile(r"""
    (?P<literal>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"   # a raw string
      | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*')
  | (?P<word>[A-Za-z_]\w* | \.?\d(?:[eEpP][+-]|'?[\w.])*)                   # 1'000 is a number, not a character
  | (?P<idle>//(?:\\\n|[^\n])* | /\*.*?\*/ | \\\r?\n)
""", re.VERBOSE | re.DOTALL)
_PLACE_ONLY = re.compile(r"#\s*(?:line\b|\d|pragma\s+once\b)")
_KEPT = re.compile(r"\0(\d+)\0")   # the placeholder of a literal while blanks are removed
_BLANK = re.compile(r"\s+")
_WORD, _OPERATOR = re.compile(r"[\w\"'.\0]"), re.compile(r"[-+*/%&|^<>=!:.#~?]")


def candidate_id(*parts: str, compile_flags: Iterable[str]) -> str:
    """Hash of what the compiler reads of the source, and of the flags. The source is given whole or in parts. The hash does not
    depend on the arch."""
    digest = hashlib.sha256()
    for part in (canonical(*parts), *compile_flags):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


def canonical(*parts: str) -> str:
    """The parts as one source: preprocessor lines, and between them all code in one line."""
    lines: list[str] = []
    for line in (line for part in parts for line in _lines(part)):
        if lines and not line.startswith("#") and not lines[-1].startswith("#"):
            lines[-1] += " " * _matters(lines[-1][-1], line[0]) + line
        else:
            lines.append(line)
    return "\n".join(lines)


@lru_cache(maxsize=512)  # a header is part of hundreds of sources
def _lines(part: str) -> tuple[str, ...]:
    literals: list[str] = []

    def keep(piece: re.Match[str]) -> str:
        if piece["literal"] is None:
            return piece["word"] or " "
        literals.append(piece["literal"])
        return f"\0{len(literals) - 1}\0"

    lines: list[str] = []
    code: list[str] = []
    for line in _PIECE.sub(keep, part).split("\n"):
        line = line.strip()
        if not line.startswith("#"):
            code.append(line)
        elif not _PLACE_ONLY.match(line):
            lines += [_packed(" ".join(code)), _BLANK.sub(" ", line)]
            code = []
    lines.append(_packed(" ".join(code)))
    return tuple(_KEPT.sub(lambda kept: literals[int(kept[1])], line) for line in lines if line)


def _packed(code: str) -> str:
    """The code with blanks only where two tokens would otherwise become one."""
    code = code.strip()
    return _BLANK.sub(lambda blank: " " * _matters(code[blank.start() - 1], code[blank.end()]), code)


def _matters(before: str, after: str) -> bool:
    return any(kind.match(before) and kind.match(after) for kind in (_WORD, _OPERATOR)) or (
        before in "eEpP" and after in "+-")
