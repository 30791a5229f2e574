"""CUDA texts without what can never run: preprocessor branches that are decided, and declarations that nothing uses.

What stays is letter for letter as it was, with its comments. The compiler makes the same program of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from .cuda_pieces import Piece, Token, pieces_of, tokens_of, words, words_of_directive

_DIRECTIVE = re.compile(r"\s*#\s*(\w+)\s*((?:.|\n)*)")
_ASKS = re.compile(r"\s*(&&|\|\||!|\(|\)|defined\s*\(\s*\w+\s*\)|defined\s+\w+|(?:(?!&&|\|\|)[^()!]|!=)+)")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"[^\n]*\n?', re.M)
_EMPTY_IF = re.compile(r"^[ \t]*#[ \t]*if[^\n]*\n(?:\s*|[ \t]*#[ \t]*else[^\n]*\n)*[ \t]*#[ \t]*endif[^\n]*\n?", re.M)
_FUNCTION_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\(", re.M)


def without_branches(text: str, known: Mapping[str, bool]) -> str:
    """Without the `#if` branches that are never taken if just these macros are defined, or are not; of others nothing is
    known. A condition that is only partly decided loses that part."""
    kept: list[str] = []
    levels: list[_Level] = []
    at = 0
    for token in tokens_of(text):
        found = _DIRECTIVE.match(token.text) if token.kind == "directive" else None
        if found is None or found[1] not in ("if", "ifdef", "ifndef", "elif", "else", "endif"):
            continue
        if all(level.open for level in levels):
            kept.append(text[at:token.start])
        at = token.end
        if found[1].startswith("if"):
            levels.append(_Level())
        line = levels[-1].line(token.text, found[1], found[2], known)
        if line and all(level.open for level in levels[:-1]):
            kept.append(line)
        else:
            at += text[at:at + 1] == "\n"
        if found[1] == "endif":
            levels.pop()
    return "".join([*kept, text[at:]])


def reduced(texts: Mapping[str, str], roots: Iterable[str], *, whole: Iterable[str] = ()) -> dict[str, str]:
    """The texts, in the order in which they are joined, without the declarations that nothing reaches from `roots`, names that
    the code behind them uses. Of the texts `whole` everything stays, and is a root."""
    macros = {name for text in texts.values() for name in _FUNCTION_MACRO.findall(text)}
    pieces = {name: pieces_of(text, frozenset(m for m in macros if m in text)) for name, text in texts.items()
              if name not in whole}
    used = _Used(roots)
    for name in whole:
        if name in texts:
            used.add(words(texts[name]))
    used.reach([p for found in pieces.values() for p in found])
    result = {name: text if name in whole else _cut(text, pieces[name], used) for name, text in texts.items()}
    result = {name: text for name, text in result.items() if text}
    return {name: _INCLUDE.sub(lambda line: line[0] if line[1] in result or line[1] not in texts else "", text)
            for name, text in result.items()}


def keeps(part: str, own: str, full: str) -> bool:
    """Whether the code of `part` has all that `own` has, and nothing that `full` has not, in the same order."""
    return _is_within(_code(own), _code(part)) and _is_within(_code(part), _code(full))


class _Level:
    """One `#if` with its branches, of which some are dropped."""

    def __init__(self) -> None:
        self.open = False      # whether the branch at hand is kept
        self.asked = False     # whether a condition is left
        self.taken = False     # whether a branch is certain, so that no later one counts

    def line(self, line: str, word: str, condition: str, known: Mapping[str, bool]) -> str:
        """What stands in the place of that line; empty where nothing does."""
        if word == "endif":
            return line if self.asked else ""
        if self.taken:
            self.open = False
            return ""
        condition = condition.split("//")[0].strip()
        asks = {"ifdef": f"defined({condition})", "ifndef": f"!defined({condition})"}.get(word, condition)
        found = True if word == "else" else _decided(asks, known)
        self.open, self.taken = found is not False, found is True
        if isinstance(found, bool):
            return (line if word == "else" else "#else") if found and self.asked else ""
        first, self.asked = not self.asked, True
        same = found == " ".join(asks.split()) and (word != "elif" or not first)
        return line if same else f"#{'if' if first else 'elif'} {found}"


def _decided(condition: str, known: Mapping[str, bool]) -> bool | str:
    """True, False, or the condition without what is known."""
    parts = _ASKS.findall(condition)
    place = 0

    def either() -> bool | str:
        return joined("||", both, True)

    def both() -> bool | str:
        return joined("&&", one, False)

    def joined(sign: str, inner: Callable[[], bool | str], strong: bool) -> bool | str:
        nonlocal place
        found = [inner()]
        while place < len(parts) and parts[place] == sign:
            place += 1
            found.append(inner())
        if strong in [f for f in found if isinstance(f, bool)]:
            return strong
        open_ones = [f for f in found if not isinstance(f, bool)]
        if not open_ones:
            return not strong
        return f" {sign} ".join(f"({f})" if "||" in f and sign == "&&" and len(open_ones) > 1 else f for f in open_ones)

    def one() -> bool | str:
        nonlocal place
        part = parts[place].strip()
        place += 1
        if part == "!":
            found = one()
            return not found if isinstance(found, bool) else f"!{found}" if re.fullmatch(r"defined\(\w+\)", found) else (
                f"!({found})")
        if part == "(":
            found = either()
            place += 1
            return found
        if asked := re.fullmatch(r"defined\s*\(?\s*(\w+)\s*\)?", part):
            return known.get(asked[1], f"defined({asked[1]})")
        return str(part)

    return either()


class _Used:
    """The names in use, and the pieces that are."""

    def __init__(self, roots: Iterable[str]) -> None:
        self.names, self.prefixes = set(roots), set[str]()
        self.pieces: set[int] = set()       # by id

    def add(self, names: Iterable[str]) -> None:
        self.names.update(names)

    def reach(self, pieces: Sequence[Piece]) -> None:
        makes = {p.names[0]: set(re.findall(r"\b(?:struct|class)\s+(\w+)", p.tokens[0].text)) for p in pieces
                 if p.kind == "macro"}
        before = (-1, -1)
        while before != (len(self.pieces), len(self.names)):
            before = len(self.pieces), len(self.names)
            for piece in pieces:
                self._visit(piece, makes)

    def is_used(self, piece: Piece, makes: Mapping[str, set[str]]) -> bool:
        names = tuple(makes[piece.names[0]]) if piece.kind == "call" and makes.get(piece.names[0]) else (
            () if piece.kind == "call" else piece.names)
        return not names or any(n in self.names or any(n.startswith(p) for p in self.prefixes) for n in names)

    def _visit(self, piece: Piece, makes: Mapping[str, set[str]]) -> None:
        if id(piece) not in self.pieces and self.is_used(piece, makes):
            self.pieces.add(id(piece))
            if piece.kind == "undef":
                return
            for token in piece.head if piece.inner else piece.tokens:
                self._take(token, piece)
        if id(piece) in self.pieces:
            for inner in piece.inner:
                self._visit(inner, makes)

    def _take(self, token: Token, piece: Piece) -> None:
        if token.kind == "word":
            self.names.add(token.text)
        elif token.kind == "directive":
            if piece.kind == "directive" and not piece.names:
                return
            self.names.update(words_of_directive(token.text))
            self.prefixes.update(found for found in re.findall(r"(\w+)##", token.text) if found.isupper() or "_" in found)


def _cut(text: str, pieces: Sequence[Piece], used: _Used) -> str:
    """The text without the pieces that are not used; empty if only comments and directives remain."""
    spans = list(_unused(text, pieces, used))
    if not any(id(p) in used.pieces and p.kind not in ("directive", "undef") for p in pieces):
        return ""
    spans += _comments_of_nothing(text, pieces, used)
    for start, end in sorted(spans, reverse=True):
        text = text[:start] + text[end:]
    while (shorter := _EMPTY_IF.sub("", text)) != text:
        text = shorter
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def _unused(text: str, pieces: Sequence[Piece], used: _Used) -> Iterator[tuple[int, int]]:
    for piece in pieces:
        if id(piece) in used.pieces:
            yield from _unused(text, piece.inner, used)
        else:
            line_end = text.find("\n", piece.end)
            rest = text[piece.end:line_end]
            whole_line = not rest.strip() or rest.strip().startswith("//")
            yield piece.start, line_end + 1 if whole_line and line_end >= 0 else piece.end


def _comments_of_nothing(text: str, pieces: Sequence[Piece], used: _Used) -> Iterator[tuple[int, int]]:
    """Comments that stand alone, before declarations of which none is left."""
    alone = [m.span() for m in re.finditer(r"(?<=\n\n)(?://[^\n]*\n)+(?=\n)", text)]
    for (start, end), following in zip(alone, [s for s, _ in (*alone, (len(text), 0))][1:], strict=True):
        about = [p for p in pieces if end <= p.start < following and p.kind not in ("directive", "undef")]
        if about and not any(id(p) in used.pieces for p in about):
            yield start, end


def _code(text: str) -> list[str]:
    """What the compiler reads; of a directive the words, and without those that only say where a line stands."""
    return [word for t in tokens_of(text) if t.kind != "comment" for word in (
        t.text.split("//")[0].replace("\\\n", " ").split() if t.kind == "directive" else [t.text])]


def _is_within(some: Sequence[str], every: Sequence[str]) -> bool:
    rest = iter(every)
    return all(word in rest for word in some)
