"""The value of a constant expression of C++, and of a call of a constexpr function of integers. What cannot be computed is
unknown: `None`, or `GivenUp` in the middle of an expression."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .cuda_pieces import (
    Piece,
    Token,
    behind_angles,
    constants_of,
    declare,
    function_macros,
    matching,
    pieces_of,
    split,
    statement,
    words_of_directive,
)

Code = Sequence[Token]
Value = Any                # a number, a type, the name of an enumerator
Env = tuple[tuple[str, Value], ...]    # template parameter -> its value
SIZES = {"float": 4, "double": 8, "__half": 2, "__nv_bfloat16": 2, "int": 4, "unsigned": 4, "float2": 8, "float4": 16,
         "uint4": 16, "uint2": 8}
_LEVELS = (("||",), ("&&",), ("==", "!="), ("<", ">", "<=", ">="), ("+", "-"), ("*", "/", "%"))
_NUMBER = re.compile(r"(\d+)(?:LL)?")
_NUMBER_TYPES = {"const", "constexpr", "int", "bool", "auto", "long"}
_NO_DECLARATION = {"return", "else", "case", "typename", "template", "if", "constexpr", "while", "for", "do", "using"}
_MOST_STEPS = 20_000       # of a constexpr function: a loop without end is given up


class GivenUp(Exception):
    """The value of an expression is not known."""


UNKNOWN = (GivenUp, IndexError, KeyError, ValueError, ZeroDivisionError, RecursionError, StopIteration)


@dataclass(frozen=True)
class Type:
    """A struct with its template arguments."""

    name: str
    arguments: Env = ()


@dataclass(frozen=True)
class Template:
    """A struct template that is an argument itself."""

    name: str


@dataclass(frozen=True, eq=False)
class Function:
    parameters: tuple[str, ...]
    body: Code


@dataclass(eq=False)
class Scope:
    """A struct, a function or a whole text: what it declares. `parameters`: (name, whether it is a type, its default)."""

    name: str
    text: str                      # name of the text
    tokens: Code                   # outside of `inner`
    parameters: list[tuple[str, bool, Code]] = field(default_factory=list)
    outer: Scope | None = None
    is_struct: bool = False
    constants: dict[str, Code | None] = field(default_factory=dict)    # None: declared in several ways
    aliases: dict[str, Code | None] = field(default_factory=dict)
    functions: dict[str, Function | None] = field(default_factory=dict)
    bases: list[Code] = field(default_factory=list)
    inner: list[Scope] = field(default_factory=list)
    booleans: set[str] = field(default_factory=set)                    # constants of that type
    hidden: set[str] = field(default_factory=set)                      # names of variables and parameters


class Place(Protocol):
    """Where an expression stands: what its names mean there. `local`: the variables of a constexpr function."""

    local: dict[str, Value]
    steps: list[int]       # one number: the statements that were run so far

    def type(self, code: Code) -> Value: ...
    def name(self, name: str) -> Value: ...
    def member(self, of: Type, name: str) -> Value: ...
    def function(self, of: Type, name: str) -> tuple[Function, Place] | None: ...
    def plain_function(self, name: str) -> tuple[Function, Place] | None: ...
    def enumerators(self, name: str) -> Sequence[str]: ...
    def is_template(self, name: str) -> bool: ...
    def inside(self, local: dict[str, Value]) -> Place: ...


class Reader(ABC):
    """Reads one expression from left to right: the operators. What stands between them is `_one`'s."""

    _code: Code
    _at = 0
    _silent = False            # in a part that is not computed

    @abstractmethod
    def _one(self) -> Value: ...

    def _choice(self) -> Value:
        asked = self._level(0)
        if not self._next("?"):
            return asked
        one = self._choice()
        if not self._next(":"):
            raise GivenUp
        two = self._choice()
        return (one if one == two else None) if asked is None else one if asked else two

    def _level(self, number: int) -> Value:
        if number == len(_LEVELS):
            return self._one()
        left = self._level(number + 1)
        while sign := next((s for s in _LEVELS[number] if self._next(s)), ""):
            before = self._silent
            self._silent = before or (sign in ("&&", "||") and (left is None or bool(left) == (sign == "||")))
            right = self._level(number + 1)
            self._silent = before
            left = self._both(sign, left, right)
        return left

    def _both(self, sign: str, left: Value, right: Value) -> Value:
        if sign in ("&&", "||"):
            strong = sign == "||"
            if strong in [bool(v) for v in (left, right) if v is not None]:
                return int(strong)
            return None if None in (left, right) else int(not strong)
        if sign in ("==", "!=") and isinstance(left, str) and isinstance(right, str):
            return int((left == right) == (sign == "=="))
        if not isinstance(left, int) or not isinstance(right, int):
            return None
        return {"==": lambda: int(left == right), "!=": lambda: int(left != right), "<": lambda: int(left < right),
                ">": lambda: int(left > right), "<=": lambda: int(left <= right), ">=": lambda: int(left >= right),
                "+": lambda: left + right, "-": lambda: left - right, "*": lambda: left * right,
                "/": lambda: _quotient(left, right), "%": lambda: left - right * _quotient(left, right)}[sign]()

    def _bracketed(self) -> Value:
        found = self._choice()
        if not self._next(")"):
            raise GivenUp
        return found

    def _next(self, text: str) -> bool:
        there = self._at < len(self._code) and self._code[self._at].text == text
        self._at += there
        return there


class Expression(Reader):
    """An expression at a place."""

    def __init__(self, here: Place, code: Code) -> None:
        self._here, self._code = here, code

    def value(self) -> Value:
        found = self._choice()
        if self._at != len(self._code):
            raise GivenUp
        return found

    def _one(self) -> Value:
        if self._next("!"):
            found = self._one()
            return None if found is None else int(not found)
        if self._next("-"):
            found = self._one()
            return None if found is None else -found
        if self._next("("):
            return self._bracketed()
        token = self._code[self._at]
        self._at += 1
        if token.kind == "number":
            if not (number := _NUMBER.fullmatch(token.text)):
                raise GivenUp
            return int(number[1])
        if token.kind != "word":
            raise GivenUp
        if token.text in ("true", "false"):
            return int(token.text == "true")
        if token.text in ("int", "bool") and self._next("("):
            found = self._bracketed()
            return found if token.text == "int" or found is None else int(bool(found))
        if token.text == "sizeof" and self._next("("):
            end = matching(self._code, self._at - 1)
            named, self._at = self._code[self._at:end - 1], end
            return SIZES.get(str(self._here.type(named)))
        return self._named(self._at - 1)

    def _named(self, begin: int) -> Value:
        """A name, a member of a type, or a call. `begin`: where its path begins."""
        last = begin
        if self._code[last].text == "typename":
            last += 1
        while True:
            at = last + 1
            if at < len(self._code) and self._code[at].text == "<" and self._here.is_template(self._code[last].text):
                at = behind_angles(self._code, at)
            if at + 1 >= len(self._code) or self._code[at].text != "::":
                break
            last = at + 1
        name, self._at = self._code[last].text, last + 1
        path = self._code[begin:last - 1] if last > begin else ()
        is_call = self._at < len(self._code) and self._code[self._at].text == "("
        if self._at < len(self._code) and self._code[self._at].text in (".", "->", "[", "{"):
            raise GivenUp
        if len(path) == 1 and name in self._here.enumerators(path[0].text):
            return f"{path[0].text}::{name}"
        if is_call and not path and (listed := self._here.enumerators(name)):
            self._at += 1
            number = self._bracketed()
            return None if number is None else f"{name}::{listed[number]}"
        if path:
            of = self._here.type(path)
            if not isinstance(of, Type):
                if is_call:
                    self._at = matching(self._code, self._at)
                return None
            return self._call(self._here.function(of, name)) if is_call else self._here.member(of, name)
        if is_call:
            return self._call(self._here.plain_function(name))
        if self._next("++"):
            if self._silent:
                raise GivenUp
            before = self._here.local[name]
            self._here.local[name] = before + 1
            return before
        return self._here.name(name)

    def _call(self, called: tuple[Function, Place] | None) -> Value:
        end = matching(self._code, self._at)
        given = [Expression(self._here, one).value() for one in split(self._code[self._at + 1:end - 1])] if called else []
        self._at = end
        if called is None or None in given or len(given) != len(called[0].parameters):
            return None
        function, here = called
        return _Run(here.inside(dict(zip(function.parameters, given, strict=True)))).result(function.body)


class _Run:
    """A call of a constexpr function of integers."""

    def __init__(self, here: Place) -> None:
        self._here = here

    def result(self, body: Code) -> Value:
        return self._block(body, 0, len(body))[1]

    def _value(self, code: Code) -> Value:
        found = Expression(self._here, code).value()
        if found is None:
            raise GivenUp
        return found

    def _block(self, code: Code, at: int, end: int) -> tuple[bool, Value]:
        """(whether it returned, what)."""
        while at < end:
            done, found = self._statement(code, at)
            if done:
                return True, found
            at = statement(code, at)
        return False, None

    def _statement(self, code: Code, at: int) -> tuple[bool, Value]:
        self._here.steps[0] += 1
        if self._here.steps[0] > _MOST_STEPS:
            raise GivenUp
        text, behind = code[at].text, statement(code, at)
        if text == "{":
            return self._block(code, at + 1, behind - 1)
        if text == "return":
            return True, self._value(code[at + 1:behind - 1])
        if text in ("if", "while"):
            opens = at + (2 if code[at + 1].text == "constexpr" else 1)
            body = matching(code, opens)
            then = statement(code, body)
            while self._value(code[opens + 1:body - 1]):
                done, found = self._statement(code, body)
                if done or text == "if":
                    return done, found
            if text == "if" and then < len(code) and code[then].text == "else":
                return self._statement(code, then + 1)
            return False, None
        if text == "for":
            return self._loop(code, at)
        self._simple(code[at:behind - 1])
        return False, None

    def _loop(self, code: Code, at: int) -> tuple[bool, Value]:
        body = matching(code, at + 1)
        begin, asked, step = split(code[at + 2:body - 1], ";")
        if begin:
            self._simple(begin)
        while not asked or self._value(asked):
            done, found = self._statement(code, body)
            if done:
                return True, found
            if step:
                self._simple(step)
        return False, None

    def _simple(self, code: Code) -> None:
        """`int a = 1, b = 2`, `a = 1`, `a /= 2`, `++a`."""
        local = self._here.local
        if code[0].text in ("++", "--") and len(code) == 2:
            local[code[1].text] = self._value(code[1:]) + (1 if code[0].text == "++" else -1)
            return
        typed = next(i for i, t in enumerate(code) if t.text not in _NUMBER_TYPES)
        is_new, code = typed > 0, code[typed:]
        for one in split(code):
            name, sign, value = one[0].text, one[1].text, self._value(one[2:])
            if sign == "=" and (is_new or name in local):
                local[name] = value
            elif sign in ("+=", "-=", "*=", "/=") and not is_new and local.get(name) is not None:
                before = local[name]
                local[name] = _quotient(before, value) if sign == "/=" else {
                    "+=": before + value, "-=": before - value, "*=": before * value}[sign]
            else:
                raise GivenUp


def _quotient(a: int, b: int) -> int:
    """As C++ divides: towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def function_of(code: Code) -> Function | None:
    """A constexpr function whose parameters are numbers."""
    place = next((i for i, t in enumerate(code) if t.text == "(" and code[i - 1].kind == "word"
                  and code[i - 1].text != "__launch_bounds__"), None)
    if place is None:
        return None
    behind = matching(code, place)
    brace = next((i for i in range(behind, len(code)) if code[i].text == "{"), None)
    words = split(code[place + 1:behind - 1])
    if brace is None or any(t.kind != "word" for one in words for t in one):
        return None
    return Function(tuple(one[-1].text for one in words), code[brace + 1:matching(code, brace) - 1])


def parameter_of(code: Code) -> tuple[str, bool, Code]:
    """(name, whether it is a type, its default) of a template parameter."""
    equal = next((i for i, t in enumerate(code) if t.text == "="), len(code))
    return code[equal - 1].text, code[0].text in ("class", "typename"), code[equal + 1:]


def read_body(scope: Scope) -> None:
    """Notes the aliases and constants that a function declares, and the names of its variables."""
    code, declared = scope.tokens, set[int]()
    for at, token in enumerate(code):
        if token.text == "using" and at + 2 < len(code) and code[at + 2].text == "=":
            end = next(i for i in range(at, len(code)) if code[i].text == ";")
            declare(scope.aliases, code[at + 1].text, code[at + 3:end])
            declared.add(at + 1)
        elif token.text == "constexpr" and at and code[at - 1].text != "if":
            end = at
            while end < len(code) and code[end].text != ";":
                end = matching(code, end) if code[end].text in ("(", "[", "{") else end + 1
            declared |= {at + place for place in constants_of(code[at:end + 1], scope.constants)}
    scope.hidden = {t.text for at, t in enumerate(code) if at and t.kind == "word" and at not in declared
                    and code[at - 1].kind == "word" and code[at - 1].text not in _NO_DECLARATION}
    scope.hidden.discard(scope.name)
    opens = next((at for at, t in enumerate(code) if t.text == "(" and at and code[at - 1].text == scope.name), None)
    for one in split(code[opens + 1:matching(code, opens) - 1]) if opens else ():
        named = [t.text for t in one[:next((i for i, t in enumerate(one) if t.text in ("=", "[")), len(one))]
                 if t.kind == "word"]
        scope.hidden.update(named[-1:])


class Declared:
    """What the texts of a kernel declare."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._structs: dict[str, Scope | None] = {}
        self._global = Scope("", "", ())
        self._by_name: dict[str, list[Scope]] = {}
        self._enumerators: dict[str, list[str]] = {}     # of an enum
        self._alias_templates: dict[str, tuple[list[str], Code] | None] = {}
        self._unclear: list[Scope] = []                    # other specialised structs, templates within structs
        self._specialised: dict[str, list[tuple[Scope, list[Code]]]] = {}   # partially: with the arguments for which
        self._in_macros = set[str]()
        self._template_parameters = set[str]()
        # A template that is only declared -> the first argument of each of its instances: it is specialised by a macro.
        self.declared: dict[str, set[Value]] = {}
        self.is_known = True
        macros = function_macros(texts.values())
        for name, text in texts.items():
            pieces = pieces_of(text, frozenset(m for m in macros if m in text))
            if pieces is None:
                self.is_known = False
                return
            for piece in pieces:
                self._add(piece, name, self._global)

    def _add(self, piece: Piece, text: str, outer: Scope) -> None:
        code = piece.tokens
        if piece.kind == "macro":
            if not piece.names[0].startswith("KW_EXPORT_"):
                self._in_macros.update(words_of_directive(code[0].text))
            return
        if piece.kind in ("directive", "undef"):
            return
        at, parameters = 0, list[tuple[str, bool, Code]]()
        while code[at].text == "template":
            end = behind_angles(code, at + 1)
            parts = split(code[at + 2:end - 1])
            parameters = [parameter_of(one) for one in parts]
            self._template_parameters.update(parameter_of(one)[0] for one in parts if one[0].text == "template")
            at = end
        if piece.kind == "alias" and not parameters:
            declare(outer.aliases, piece.names[0], code[at + 3:-1])
        elif piece.kind == "alias":
            there = None if piece.names[0] in self._alias_templates or outer is not self._global else (
                [name for name, *_ in parameters], code[at + 3:-1])
            self._alias_templates[piece.names[0]] = there
            if there is None:
                self._unclear.append(Scope("", text, code, parameters, outer))
        elif piece.kind == "type" and code[at].text in ("struct", "class"):
            self._struct(piece, at, parameters, text, outer)
        elif piece.kind == "type":
            listed = split(code[next(i for i, t in enumerate(code) if t.text == "{") + 1:-2])
            if piece.names and all(len(one) == 1 for one in listed):
                self._enumerators[piece.names[0]] = [one[0].text for one in listed]
        elif piece.kind == "value":
            names = set(outer.constants)
            constants_of(code[at:], outer.constants)
            if any(t.text == "bool" for t in code[at:at + 4]):
                outer.booleans |= set(outer.constants) - names
            outer.inner.append(Scope("", text, code, outer=outer))
        else:
            name = piece.names[0] if piece.kind == "function" else ""
            scope = Scope(name, text, code[at:], parameters, outer)
            outer.inner.append(scope)
            read_body(scope)
            if name:
                self._by_name.setdefault(name, []).append(scope)
                if any(t.text == "constexpr" for t in scope.tokens[:8]):
                    declare(outer.functions, name, function_of(scope.tokens))
                else:
                    outer.functions[name] = None

    def _struct(self, piece: Piece, at: int, parameters: list[tuple[str, bool, Code]], text: str, outer: Scope) -> None:
        name = piece.names[0] if piece.names else ""
        head = piece.head or piece.tokens
        if name and not piece.head and not piece.inner:
            self.declared.setdefault(name, set())
        scope = Scope(name, text, head, parameters, outer, is_struct=True)
        outer.inner.append(scope)
        if not name or not piece.head:
            return
        place = next(i for i, t in enumerate(head) if t.text == name and head[i - 1].text != ":" and i >= at)
        if parameters and head[place + 1].text == "<" and outer is self._global and self._structs.get(name):
            end = behind_angles(head, place + 1)
            scope.name = f"{name}<{len(self._specialised.setdefault(name, []))}>"
            self._structs[scope.name] = scope
            self._specialised[name].append((scope, split(head[place + 2:end - 1])))
        elif piece.specialised or head[place + 1].text == "<" or name in self._structs or outer is not self._global:
            if first := self._structs.get(name):
                self._unclear.append(first)
            self._structs[name] = None
            if outer is self._global or parameters:
                self._unclear.append(scope)
        else:
            self._structs[name] = scope
        colon = next((i for i in range(place, len(head)) if head[i].text == ":"), None)
        if colon is not None:
            end = next(i for i in range(colon, len(head)) if head[i].text in ("{", ";", "}"))
            scope.bases = [[t for t in one if t.text not in ("public", "private")] for one in split(head[colon + 1:end])]
        for inner in piece.inner:
            self._add(inner, text, scope)
