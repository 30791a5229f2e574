"""Splits a CUDA text into tokens and pieces: its declarations, those within its structs, and the names that each declares. Also
replaces the values of constants."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

_TOKEN = re.compile(r"""
    (?P<directive>(?<![^\n])[ \t]*\#(?:\\\n|[^\n])*)
  | (?P<blank>\n+ | [^\S\n]+ | \\\r?\n)
  | (?P<comment>//(?:\\\n|[^\n])* | /\*.*?\*/)
  | (?P<literal>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)" | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*')
  | (?P<number>\.?\d(?:[eEpP][+-]|'?[\w.])*)
  | (?P<word>[A-Za-z_]\w*)
  | (?P<sign>\.\.\.|::|->|&&|\|\||==|!=|<=|>=|\+\+|--|[-+*/%&|^]=|.)
""", re.VERBOSE | re.DOTALL)
_WORD = re.compile(r"\b[A-Za-z_]\w*")
_IN_DIRECTIVE = re.compile(r"""^\s*\#\s*\w+ | "(?:\\.|[^"\\\n])*" | //[^\n]* | /\*.*?\*/""", re.X | re.S)
_FUNCTION_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\(", re.M)
_OPENS, _CLOSES = {"(": ")", "[": "]", "{": "}"}, set(")]}")
_TYPES = {"struct", "class", "union", "enum"}
_ATTRIBUTES = {"__launch_bounds__", "__align__", "alignas", "__attribute__", "decltype", "noexcept", "sizeof"}
_ACCESS = {"public", "private", "protected"}
_KEYWORDS = {"auto", "bool", "char", "class", "const", "constexpr", "double", "enum", "explicit", "extern", "float", "inline",
             "int", "long", "operator", "short", "static", "struct", "template", "typename", "union", "unsigned", "using",
             "void", "volatile"}

Constant = tuple[str, str]    # a struct and the name of a constant in it


class Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


@dataclass(slots=True)
class Piece:
    """One declaration. `names`: the names that it declares. A piece without names, such as an assertion, is never removed.
    `start`: where it begins, with the comment directly above it. `inner`: the pieces of a namespace or a struct. `head`: the
    tokens of that namespace or struct outside of its pieces."""

    kind: str                       # function, type, alias, value, macro, undef, call, other
    names: tuple[str, ...]
    start: int
    end: int
    tokens: Sequence[Token]         # without comments and blanks
    inner: list[Piece] = field(default_factory=list)
    head: Sequence[Token] = ()
    specialised: bool = False


@lru_cache(maxsize=1024)   # a header is part of many sources
def tokens_of(text: str) -> tuple[Token, ...]:
    """The tokens of the text, without blanks. A directive with its continuation lines is one token."""
    return tuple(Token(m.lastgroup or "", m[0], m.start(), m.end()) for m in _TOKEN.finditer(text) if m.lastgroup != "blank")


@lru_cache(maxsize=256)
def pieces_of(text: str, macros: frozenset[str]) -> list[Piece] | None:
    """The declarations of a whole text; None if it cannot be split. `macros`: the names of the function-like macros of all
    texts that are joined."""
    with suppress(IndexError, ValueError):
        return _pieces(text, tokens_of(text), macros, inside="") if is_balanced(text) else None
    return None


def every_piece(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """These declarations, and those within them."""
    for piece in pieces:
        yield piece
        yield from every_piece(piece.inner)


def is_balanced(text: str) -> bool:
    """Whether the brackets of the text match, counting all branches of `#if`."""
    waiting: list[str] = []
    for token in tokens_of(text):
        if token.kind == "sign" and token.text in _OPENS:
            waiting.append(_OPENS[token.text])
        elif token.kind == "sign" and token.text in _CLOSES and (not waiting or waiting.pop() != token.text):
            return False
    return not waiting


def words(text: str) -> set[str]:
    """The identifiers of a piece of code and of its directives, without those in comments and literals."""
    return {w for t in tokens_of(text) for w in ([t.text] if t.kind == "word" else words_of_directive(t.text)
                                                 if t.kind == "directive" else [])}


@lru_cache(maxsize=4096)
def words_of_directive(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(_IN_DIRECTIVE.sub(" ", text)))


def matching(tokens: Sequence[Token], at: int) -> int:
    """The place behind the bracket that closes the one at `at`; the end of the tokens if none closes it."""
    depth = 0
    for place in range(at, len(tokens)):
        if tokens[place].text in _OPENS and tokens[place].kind == "sign":
            depth += 1
        elif tokens[place].text in _CLOSES and tokens[place].kind == "sign":
            depth -= 1
            if depth == 0:
                return place + 1
    return len(tokens)


def split(code: Sequence[Token], sign: str = ",") -> list[Sequence[Token]]:
    """The parts between the commas that are in no brackets."""
    found, begin, at = list[Sequence[Token]](), 0, 0
    while at < len(code):
        text = code[at].text
        if text == sign:
            found.append(code[begin:at])
            begin = at + 1
        if text in ("(", "[", "{"):
            at = matching(code, at)
        elif text == "<" and at and code[at - 1].kind == "word" and sign == ",":
            try:
                at = behind_angles(code, at)
            except (ValueError, IndexError):
                at += 1
        else:
            at += 1
    return [*found, code[begin:]] if len(code) > begin or found else []


def statement(code: Sequence[Token], at: int) -> int:
    """The place behind the statement that begins at `at`."""
    token = code[at]
    if token.kind == "directive":
        return statement(code, at + 1)
    if token.text == "{":
        return matching(code, at)
    if token.text in ("if", "for", "while"):
        at += 2 if code[at + 1].text == "constexpr" else 1
        at = statement(code, matching(code, at))
        return statement(code, at + 1) if token.text == "if" and at < len(code) and code[at].text == "else" else at
    while code[at].text != ";":
        at = matching(code, at) if code[at].text in ("(", "[", "{") else at + 1
    return at + 1


def values_of(pieces: Sequence[Piece]) -> dict[tuple[str, str], Sequence[Token] | None]:
    """(struct, constant) -> its value, of these declarations; None if it is declared in several ways."""
    found = dict[tuple[str, str], Sequence[Token] | None]()
    for inner, name in [(inner, p.names[0]) for p in pieces if p.kind == "type" and p.names for inner in p.inner]:
        one = dict[str, Sequence[Token] | None]()
        if inner.kind == "value":
            constants_of(inner.tokens, one)
        for constant, code in one.items():
            declare(found, (name, constant), code)
    return found


def declare(there: dict[Any, Any], name: Any, what: Any) -> None:
    there[name] = None if name in there else what


def constants_of(code: Sequence[Token], there: dict[str, Any]) -> set[int]:
    """Adds the constants of `constexpr int A = 1, B = 2;`. Returns the places of their names."""
    places, begin = set[int](), next((i for i, t in enumerate(code) if t.text == "constexpr"), 0) + 1
    for one in split(code[begin:-1]):
        equal = next((i for i, t in enumerate(one) if t.text == "="), None)
        if equal and one[equal - 1].kind == "word":
            declare(there, one[equal - 1].text, one[equal + 1:])
            places.update(i for i, t in enumerate(code) if t.start == one[equal - 1].start)
    return places


def with_literals(text: str, literals: Mapping[Constant, str], macros: Iterable[str], answers: Mapping[int, bool]
                  ) -> tuple[str, dict[int, bool]]:
    """The text with these literals as the values of the constants, where they are shorter; and the answers at their new
    places."""
    edits = sorted((a, b, literals[name]) for name, (a, b) in places_of_values(text, macros).items()
                   if len(literals.get(name, text)) < b - a)
    moved = {place + sum(len(new) - (b - a) for a, b, new in edits if b <= place): answer for place, answer in answers.items()}
    return edited(text, edits), moved


def without_literals(text: str, literals: Mapping[Constant, str], macros: Iterable[str], full: str) -> str:
    """The text with the values that the constants have in `full`, where it has those literals instead."""
    theirs = places_of_values(full, macros)
    return edited(text, [(a, b, full[slice(*theirs[name])]) for name, (a, b) in places_of_values(text, macros).items()
                          if name in theirs and literals.get(name) == text[a:b]])


def places_of_values(text: str, macros: Iterable[str]) -> dict[Constant, tuple[int, int]]:
    """(struct, constant) -> where its value stands."""
    found = values_of(pieces_of(text, frozenset(m for m in macros if m in text)) or ())
    return {name: (code[0].start, code[-1].end) for name, code in found.items() if code}


def edited(text: str, edits: Iterable[tuple[int, int, str]]) -> str:
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def without_spans(text: str, spans: Iterable[tuple[int, int]]) -> str:
    return edited(text, [(start, end, "") for start, end in spans])


def function_macros(texts: Iterable[str]) -> set[str]:
    return {name for text in texts for name in _FUNCTION_MACRO.findall(text)}


def with_lines(text: str, start: int, end: int, comments: Sequence[Token]) -> tuple[int, int]:
    """The span, extended by the comment directly above and the one behind it, if its lines contain nothing else."""
    line, until = text.rfind("\n", 0, start) + 1, text.find("\n", end) + 1
    if text[line:start].strip() or text[end:until].split("//")[0].strip() or not until:
        return start, end
    return with_comment(text, start, comments), until


def with_comment(text: str, start: int, comments: Sequence[Token]) -> int:
    """The start of the comment directly above; without one, the start of the line."""
    begin = text.rfind("\n", 0, start) + 1
    if text[begin:start].strip():
        return start
    for comment in reversed([c for c in comments if c.end <= begin]):
        between = text[comment.end:begin]
        line = text.rfind("\n", 0, comment.start) + 1
        if between.count("\n") != 1 or between.strip() or text[line:comment.start].strip():
            break
        begin = line
    return begin


def _pieces(text: str, every: Sequence[Token], macros: Set[str], inside: str) -> list[Piece]:
    code = [t for t in every if t.kind != "comment"]
    comments = [t for t in every if t.kind == "comment"]
    found: list[Piece] = []
    at = 0
    while at < len(code):
        end = _end_of(code, at, macros)
        piece = _piece(text, every, code[at:end], macros, inside)
        piece.start = with_comment(text, piece.start, comments)
        found.append(piece)
        at = end
    return found


def _end_of(code: Sequence[Token], at: int, macros: Set[str]) -> int:
    first = code[at]
    if first.kind == "directive":
        return at + 1
    if first.text in _ACCESS and code[at + 1].text == ":":
        return at + 2
    if first.text in macros and at + 1 < len(code) and code[at + 1].text == "(":
        end = matching(code, at + 1)
        return end + 1 if end < len(code) and code[end].text == ";" else end
    place, is_type, assigned = at, False, False
    while place < len(code):
        token = code[place]
        if token.kind == "sign":
            if token.text == ";":
                return place + 1
            if token.text == "{":
                place = matching(code, place)
                if is_type or assigned or (place < len(code) and code[place].text in (";", ",")):
                    continue           # up to the semicolon
                return place
            if token.text in _OPENS:
                is_type = is_type and token.text != "("
                place = matching(code, place)
                continue
            assigned = assigned or token.text == "="
        elif token.text == "template" and place + 1 < len(code) and code[place + 1].text == "<":
            place = behind_angles(code, place + 1)
            continue
        elif token.text in _TYPES:
            is_type = True
        place += 1
    return place


def behind_angles(code: Sequence[Token], at: int) -> int:
    depth = 0
    while at < len(code):
        token = code[at]
        if token.text in _OPENS:
            at = matching(code, at)
            continue
        depth += {"<": 1, ">": -1}.get(token.text, 0)
        at += 1
        if depth == 0:
            return at
    raise ValueError("a template's parameters are not closed")


def _piece(text: str, every: Sequence[Token], code: Sequence[Token], macros: Set[str], inside: str) -> Piece:
    start, end = code[0].start, code[-1].end

    def made(kind: str, *names: str, specialised: bool = False) -> Piece:
        return Piece(kind, names, start, end, code, specialised=specialised)

    if code[0].kind == "directive":
        word = re.match(r"\s*#\s*(define|undef)\s+(\w+)", code[0].text)
        return made({"define": "macro", "undef": "undef"}[word[1]], word[2]) if word else made("directive")
    if code[0].text in macros:
        return made("call", code[0].text)
    if code[0].text in _ACCESS or code[0].text == "static_assert":
        return made("other")
    at = 0
    specialised = False
    while code[at].text == "template":
        specialised = code[at + 1].text == "<" and code[at + 2].text == ">"
        at = behind_angles(code, at + 1)
    if code[at].text == "namespace" or (code[at].text == "extern" and code[at + 1].kind == "literal"):
        return made("other")
    if code[at].text == "using":
        return made("alias", code[at + 1].text) if code[at + 2].text == "=" else made("other")
    if code[at].text in _TYPES:
        return _type(text, every, code, at, macros, made("type", specialised=specialised))
    return _function_or_value(code, at, inside, made)


def _type(text: str, every: Sequence[Token], code: Sequence[Token], at: int, macros: Set[str], piece: Piece) -> Piece:
    place = at + 1
    while code[place].text in _TYPES or code[place].text in _ATTRIBUTES:
        place = matching(code, place + 1) if code[place + 1].text == "(" else place + 1
    name = code[place].text
    brace = next((i for i in range(place, len(code)) if code[i].text == "{"), None)
    enum = code[at].text == "enum"
    if brace is None:
        piece.names = (name,) if len(code) == place + 2 or code[place + 1].text in ("<", ";") else ()
        return piece
    behind = matching(code, brace)
    if code[behind].text != ";" or name == "{":
        piece.names = ()                     # it also declares an object
        return piece
    piece.names = (name,)
    if not enum:
        first, last = (bisect_left(every, place, key=_start) for place in (code[brace].end, code[behind - 1].start))
        piece.inner = _pieces(text, every[first:last], macros, name)
        piece.head = [*code[:brace], *code[behind:]]
    else:
        listed = code[brace + 1:behind - 1]
        piece.names += tuple(t.text for i, t in enumerate(listed) if t.kind == "word" and (i == 0 or listed[i - 1].text == ",")
                             ) if code[at + 1].text not in ("class", "struct") else ()
    return piece


def _start(token: Token) -> int:
    return token.start


def _function_or_value(code: Sequence[Token], at: int, inside: str,
                       made: Callable[..., Piece]) -> Piece:
    place, name = at, ""
    while place < len(code):
        token = code[place]
        if token.text == "operator":
            return made("other")
        if token.text in _ATTRIBUTES:
            place = matching(code, place + 1) if code[place + 1].text == "(" else place + 1
            continue
        if token.text == "(":
            if not name or name == inside or code[place - 2].text == "~" or code[place - 1].text == ">":
                return made("other")           # a constructor, or text that cannot be split
            return made("function", name)
        if token.text in ("=", "[", ";", "{", ","):
            break
        if token.text == "<":
            place = behind_angles(code, place)
            continue
        if token.kind == "word" and token.text not in _KEYWORDS:
            name = token.text
        place += 1
    constant = any(t.text == "constexpr" for t in code[at:place])
    if not name or (inside and not constant):
        return made("other")                   # a member of every object
    return made("value", *_declarators(code[at:]) if constant else (name,))


def _declarators(code: Sequence[Token]) -> list[str]:
    """All names of `constexpr int A = 1, B = 2;`."""
    names, place = [], 0
    while place < len(code):
        token = code[place]
        if token.text in _OPENS:
            place = matching(code, place)
            continue
        if token.text in ("=", "{") and code[place - 1].kind == "word":
            names.append(code[place - 1].text)
        elif token.text == "=" and code[place - 1].text == "]":
            back = next(i for i in range(place, -1, -1) if code[i].text == "[")
            names.append(code[back - 1].text)
        place += 1
    return names
