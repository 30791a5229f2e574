"""Removes from CUDA texts what can never run: preprocessor branches whose condition is known to be false, and unused
declarations. The rest stays unchanged, with its comments. The compiler makes the same program from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .constant_values import UNKNOWN, Reader
from .cuda_pieces import (
    Piece,
    Token,
    every_piece,
    function_macros,
    is_balanced,
    matching,
    pieces_of,
    statement,
    tokens_of,
    with_lines,
    without_spans,
    words,
    words_of_directive,
)

_DIRECTIVE = re.compile(r"\s*#\s*(\w+)\s*((?:.|\n)*)")
_ASKS = re.compile(r"\s*(&&|\|\||!|\(|\)|defined\s*\(\s*\w+\s*\)|defined\s+\w+|(?:(?!&&|\|\|)[^()!]|!=)+)")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"[^\n]*\n?', re.M)
_EMPTY_IF = re.compile(r"^[ \t]*#[ \t]*if[^\n]*\n(?:\s*|[ \t]*#[ \t]*else[^\n]*\n)*[ \t]*#[ \t]*endif[^\n]*\n?", re.M)
_BYTES = {"float": 4, "double": 8, "__half": 2, "__nv_bfloat16": 2}
_MACRO_HEAD = re.compile(r"[ \t]*#[ \t]*define[ \t]+\w+\([^()]*\)")
_SPECIALISES = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\((\w+)[^)]*\)(?:\s|\\\n)*template <>(?:\s|\\\n)*"
                          r"struct (\w+)<\2>", re.M)


def without_branches(text: str, known: Mapping[str, bool]) -> str:
    """The text without the `#if` branches that are never taken. `known`: macro -> whether it is defined; comparison, such as
    `__CUDA_ARCH__ >= 800` -> whether it is true. Anything else may be either. From a condition that is partly known, the known
    part is removed."""
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


def settled(texts: Mapping[str, str], instance: str, tune: Mapping[str, int] | None = None) -> dict[str, dict[int, bool]]:
    """Name of a text -> the place of an `if constexpr` in it -> the value of its condition, if the precision, the type and the
    tunables of the kernel determine it. `texts`: all texts of one kernel. `instance`: its `Layer` and `Tune`. `tune`: the
    tunables that have the same value wherever the text is used. A name counts as known if all its declarations have the same
    value."""
    codes = {name: _codes(text) for name, text in texts.items()}
    known = _Known([code[0] for code in codes.values()], instance, tune or {})
    return {name: {code[at].start: bool(found) for code in parts for at in range(1, len(code) - 2)
                   if code[at].text == "constexpr" and code[at - 1].text == "if"
                   and (found := known.value(code[at + 2:matching(code, at + 1) - 1], code)) is not None}
            for name, parts in codes.items()}


def without_statements(text: str, answers: Mapping[int, bool]) -> str:
    """The text without the branches of `if constexpr` that are never taken, and the specialisations of structs that are never
    instantiated. `answers`: those of `settled` and of `Constants`."""
    if not answers or not is_balanced(text):
        return text
    comments = [t for t in tokens_of(text) if t.kind == "comment"]
    spans = [span for code in _codes(text) for span in _never_taken(text, code, comments, answers)]
    return without_spans(text, [(a, b) for a, b in spans if not any(
        c <= a and b <= d and (a, b) != (c, d) for c, d in spans)])


def without_shapes(text: str, texts: Sequence[str], used: Mapping[str, set[int]]) -> str:
    """The text without the calls of macros that specialise a struct for a number with which nothing uses it. `texts`: those in
    which the macros may be defined. `used`: the struct -> these numbers; others are not known."""
    macros = {m[1]: m[3] for one in texts for m in _SPECIALISES.finditer(one) if m[3] in used}
    every = frozenset(name for name in function_macros(texts) if name in text)
    calls = [p for p in pieces_of(text, every) or () if p.kind == "call" and p.names[0] in macros] if macros else []
    return without_spans(text, [(p.start, with_lines(text, p.tokens[0].start, p.end, ())[1]) for p in calls
                                if p.tokens[2].text not in map(str, used[macros[p.names[0]]])])


def _codes(text: str) -> list[Sequence[Token]]:
    """The tokens of the text without comments, then those of the body of each function-like macro."""
    code = [t for t in tokens_of(text) if t.kind != "comment"]
    found: list[Sequence[Token]] = [code]
    for token in code:
        head = _MACRO_HEAD.match(token.text) if token.kind == "directive" else None
        if head and is_balanced(body := token.text[head.end():]):
            at = token.start + head.end()
            found.append([Token(t.kind, t.text, t.start + at, t.end + at) for t in tokens_of(body) if t.kind != "comment"])
    return found


def _never_taken(text: str, code: Sequence[Token], comments: Sequence[Token], answers: Mapping[int, bool]
                 ) -> Iterator[tuple[int, int]]:
    for at, token in enumerate(code):
        if token.start not in answers:
            continue
        if token.text == "template":          # of a struct
            end = matching(code, next(i for i in range(at, len(code)) if code[i].text == "{"))
            yield with_lines(text, token.start, code[end].end, comments)
            continue
        first, body = code[at - 1], matching(code, at + 1)
        in_block = code[at - 2].text in (";", "{", "}")
        end = statement(code, body)
        other = statement(code, end + 1) if end < len(code) and code[end].text == "else" else end
        if answers[token.start]:
            if in_block or other == len(code) or code[other].text != "else":   # else the next `else` would be this one's
                yield code[end - 1].end, code[other - 1].end
        elif other > end:
            yield first.start, code[end + 1].start
        elif not in_block:       # it is the only statement of a loop or a condition, which needs one: an empty statement stays
            if code[end - 1].text == ";":
                yield first.start, code[end - 1].start
            else:
                yield first.start, code[body].start
                yield code[body].end, code[end - 1].start
        else:
            yield with_lines(text, first.start, code[end - 1].end, comments)


def reduced(texts: Mapping[str, str], roots: Iterable[str], *, whole: Iterable[str] = (),
            before: Mapping[str, str] | None = None) -> dict[str, str]:
    """The texts, in the order in which they are joined, without unused declarations. A declaration is used if it can be reached
    from `roots`, the names that the code behind the texts uses. The texts `whole`, and texts that cannot be split, stay
    complete, and all their names are roots too. `before`: the texts before `with_literals`. The comments of a declaration that
    was used there stay: they say what the numbers mean."""
    pieces, used = _used(texts, roots, whole)
    if before:
        there, earlier = _used(before, roots, whole)
        used.explained = {p.names for found in there.values() for p in every_piece(found or ()) if id(p) in earlier.pieces}
    result = {name: text if (found := pieces[name]) is None else _cut(text, found, used) for name, text in texts.items()}
    result = {name: text for name, text in result.items() if text}
    return {name: _with_includes(text, texts, result) for name, text in result.items()}


def _used(texts: Mapping[str, str], roots: Iterable[str], whole: Iterable[str]
          ) -> tuple[dict[str, list[Piece] | None], _Used]:
    """The declarations of the texts, and those that are used."""
    macros = function_macros(texts.values())
    pieces = {name: None if name in whole else pieces_of(text, frozenset(m for m in macros if m in text))
              for name, text in texts.items()}
    used = _Used(roots)
    used.names.update(*(words(texts[name]) for name, found in pieces.items() if found is None))
    used.reach([p for found in pieces.values() for p in found or ()])
    return pieces, used


def keeps(part: str, own: str, full: str) -> bool:
    """Whether the code of `part` contains all of `own` and is contained in `full`, in the same order."""
    return _is_within(_code(own), _code(part)) and _is_within(_code(part), _code(full))


class _Level:
    """One `#if` with its branches, of which some are dropped."""

    def __init__(self) -> None:
        self.open = False      # whether the current branch is kept
        self.asked = False     # whether the output has an `#if` for it
        self.taken = False     # whether an earlier branch is always taken, so that no later one is

    def line(self, line: str, word: str, condition: str, known: Mapping[str, bool]) -> str:
        """The line that replaces this directive; empty if none does."""
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
    """True, False, or the condition without the part that is known."""
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
        return known.get(" ".join(str(part).split()), str(part))

    return either()


class _Known(Reader):
    """The values of the constants in a kernel's texts, as far as its precision, its type and its tunables determine them."""

    def __init__(self, codes: Iterable[Sequence[Token]], instance: str, tune: Mapping[str, int]) -> None:
        codes = [*codes]
        self.precisions = set(re.findall(r"Precision::(\w+)", instance))
        self.bytes = {_BYTES.get(scalar) for scalar in re.findall(r"using scalar = (\w+);", instance)}
        self.values: dict[str, int | None] = {}    # name -> its value; unknown names are absent
        if form := re.search(r"\bis_constant = (true|false);", instance):
            self.values["is_constant"] = int(form[1] == "true")
        found: dict[str, list[tuple[Sequence[Token], Sequence[Token]]]] = {}
        other = set[str]()
        for code in codes:
            declared = set()
            for at, token in enumerate(code):
                if token.text == "constexpr" and code[at - 1].text != "if":
                    for name, place, value in _constants(code, at):
                        found.setdefault(name, []).append((value, code))
                        declared.add(place)
                elif token.text == "Precision" and code[at + 1].text == "::" and code[at - 1].text not in ("==", "!="):
                    self.precisions.add(code[at + 2].text)
            other |= {t.text for at, t in enumerate(code) if t.kind == "word" and at not in declared and at
                      and code[at - 1].kind == "word" and code[at - 1].text not in ("return", "else", "case")}
        found = {name: kept for name, all_of in found.items() if name.isupper() and name not in other
                 and (kept := [(value, code) for value, code in all_of if not _copies(value, name)])}
        self.tune = {name: value for name, value in tune.items() if name not in found and name not in other}
        self.values.update(self.tune)
        if any(code[at - 1].text == ":" and code[at].text == "Tune" for code in codes for at in range(1, len(code))):
            # A struct that inherits from Tune: a constant with the name of a tunable may be either.
            found = {name: all_of for name, all_of in found.items() if name not in words(instance)}
        while any([self._settle(name, all_of) for name, all_of in found.items() if name not in self.values]):
            continue

    def _settle(self, name: str, declared: Sequence[tuple[Sequence[Token], Sequence[Token]]]) -> bool:
        each = {self.value(value, code) for value, code in declared}
        if len(each) == 1 and None not in each:
            self.values[name] = each.pop()
        return name in self.values

    def value(self, words: Sequence[Token], text: Sequence[Token]) -> int | None:
        """The value of an expression of that text; None if it is not known."""
        self._code, self._at, self._text = words, 0, text
        try:
            found = self._choice()
        except UNKNOWN:
            return None
        return found if self._at == len(words) and isinstance(found, int) else None

    def _both(self, sign: str, left: Any, right: Any) -> Any:
        if sign in ("==", "!=") and isinstance(right, str):
            same = None if right in self.precisions and len(self.precisions) > 1 else right in self.precisions
            return None if same is None else int(same == (sign == "=="))
        return super()._both(sign, left, right)

    def _one(self) -> Any:
        if self._next("!"):
            found = self._one()
            return None if found is None else int(not found)
        if self._next("("):
            return self._bracketed()
        token = self._code[self._at]
        self._at += 1
        if token.kind == "number":
            return int(token.text) if token.text.isdigit() else None
        if token.kind != "word":
            raise ValueError("no value")
        if token.text in ("true", "false"):
            return int(token.text == "true")
        if token.text == "sizeof" and self._next("("):
            end = matching(self._code, self._at - 1)
            named, self._at = self._code[self._at:end - 1], end
            return self._size(named)
        path = [token.text]
        while self._next("::"):
            path.append(self._code[self._at].text)
            self._at += 1
        if path[0] == "Precision":
            return path[-1]
        if self._at < len(self._code) and self._code[self._at].text in ("(", "<"):
            raise ValueError("a call or a template")
        return (self.tune if path[0] == "Tune" else self.values).get(path[-1])

    def _size(self, named: Sequence[Token]) -> int | None:
        """The size of the layer's type. None for another type, because a template parameter may be any type."""
        last = named[-1].text
        own = last == "scalar" or (last == "Scalar" and not any(
            t.text == "Scalar" and self._text[at - 1].text in ("class", "typename") for at, t in enumerate(self._text) if at))
        return next(iter(self.bytes)) if own and len(self.bytes) == 1 else None


def _copies(value: Sequence[Token], name: str) -> bool:
    """`constexpr bool THREE = Plan::THREE;`"""
    return value[-1].text == name and all(t.kind == "word" or t.text == "::" for t in value)


def _constants(code: Sequence[Token], at: int) -> Iterator[tuple[str, int, Sequence[Token]]]:
    """(name, its place, its value) of the constants in that declaration, but not of those in a function."""
    place = begin = at + 1
    name_at = 0
    while place < len(code):
        text = code[place].text
        if name_at and text in (",", ";"):
            yield code[name_at].text, name_at, code[begin:place]
            name_at = 0
        elif not name_at and text == "=" and code[place - 1].kind == "word":
            name_at, begin = place - 1, place + 1
        if text == ";" or (not name_at and text in ("(", "{")):
            return
        place = matching(code, place) if text in ("(", "[", "{") else place + 1


class _Used:
    """The names and the pieces that are in use."""

    def __init__(self, roots: Iterable[str]) -> None:
        self.names, self.prefixes = set(roots), set[str]()
        self.pieces: set[int] = set()       # by id
        self.explained: set[tuple[str, ...]] = set()   # names of pieces whose comments stay

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
    text = without_spans(text, spans)
    while (shorter := _EMPTY_IF.sub("", text)) != text:
        text = shorter
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def _with_includes(text: str, texts: Mapping[str, str], kept: Mapping[str, str]) -> str:
    """The text, in which an include of a removed text is replaced by the includes of that text: what it includes may be used
    without an include of its own."""
    there = set(_INCLUDE.findall(text))

    def instead_of(name: str, removed: set[str]) -> Iterator[str]:
        for inner in _INCLUDE.findall(texts[name]):
            if inner in kept and inner not in there:
                there.add(inner)
                yield f'#include "{inner}"\n'
            elif inner in texts and inner not in kept and inner not in removed:
                yield from instead_of(inner, removed | {inner})

    return _INCLUDE.sub(lambda line: line[0] if line[1] in kept or line[1] not in texts
                        else "".join(instead_of(line[1], {line[1]})), text)


def _unused(text: str, pieces: Sequence[Piece], used: _Used) -> Iterator[tuple[int, int]]:
    for piece in pieces:
        if id(piece) in used.pieces:
            yield from _unused(text, piece.inner, used)
        else:
            start, end = with_lines(text, piece.tokens[0].start, piece.end, ())
            yield (start if piece.names in used.explained else piece.start), end


def _comments_of_nothing(text: str, pieces: Sequence[Piece], used: _Used) -> Iterator[tuple[int, int]]:
    """Comments that stand alone before declarations that were all removed."""
    alone = [m.span() for m in re.finditer(r"(?<=\n\n)(?://[^\n]*\n)+(?=\n)", text)]
    for (start, end), following in zip(alone, [s for s, _ in (*alone, (len(text), 0))][1:], strict=True):
        about = [p for p in pieces if end <= p.start < following and p.kind not in ("directive", "undef")]
        if about and not any(id(p) in used.pieces or p.names in used.explained for p in about):
            yield start, end


def _code(text: str) -> list[str]:
    """The code that the compiler reads. A directive is reduced to its words; `#line` directives are left out."""
    return [word for t in tokens_of(text) if t.kind != "comment" for word in (
        t.text.split("//")[0].replace("\\\n", " ").split() if t.kind == "directive" else [t.text])]


def _is_within(some: Sequence[str], every: Sequence[str]) -> bool:
    rest = iter(every)
    return all(word in rest for word in some)
