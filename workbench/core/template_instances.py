"""With which types and numbers the templates of a kernel are instantiated, and which conditions of `if constexpr` then always
have the same value.

It follows class templates, their bases, aliases and constants, constexpr functions of integers, and the template arguments
that a text writes out. Arguments that the compiler deduces, and anything else, are unknown (`None`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from .constant_values import (
    SIZES,
    UNKNOWN,
    Code,
    Declared,
    Env,
    Expression,
    Function,
    GivenUp,
    Scope,
    Template,
    Type,
    Value,
)
from .cuda_pieces import Token, behind_angles, matching, split, statement

T = TypeVar("T")
_MOST_INSTANCES = 40       # of a template: with more, its arguments count as unknown


class Constants(Declared):
    """`texts`: all texts of one kernel, as they stand in one direction. `instance`: its `Layer` and `Tune`. `roots`: the
    functions that are called with these two."""

    def __init__(self, texts: Mapping[str, str], instance: str, roots: Iterable[str]) -> None:
        self._values: dict[tuple[Type, str], Value] = {}
        self._envs: dict[Scope, dict[Env, None]] = {}
        self._waiting: list[tuple[Scope, Env]] = []
        self._answers: dict[tuple[str, int], set[Value]] = {}
        self.steps = [0]
        self._given: dict[Scope, set[Env]] = {}           # of a member function template: its own arguments
        self._struct_envs: dict[Scope, set[Env]] = {}
        self._passed = set[str]()                           # templates that are template arguments
        self._passes_any = False                            # whether a template that is not known is instantiated
        super().__init__({**texts, "": instance})
        if not self.is_known:
            return
        for scope in [*(s for s in self._global.inner if not s.parameters), *self._unclear]:
            self._reach(scope, self._unknown(scope))
        for name in self._in_macros:
            self._all(name)
        top = _Here(self, self._global, {})
        for code in filter(None, self._global.aliases.values()):
            self._names(top, code)
        both = (("Layer", Type("Layer")), ("Tune", Type("Tune")))
        for root in roots:
            for scope in self._by_name.get(root, ()):
                self._reach(scope, both if [n for n, *_ in scope.parameters] == ["Layer", "Tune"] else self._unknown(scope))
        while self._waiting:
            self._walk(*self._waiting.pop())
            if self._passes_any and not self._waiting:
                for name in sorted(self._passed):
                    self._all(name)

    def answers(self, name: str) -> dict[int, bool]:
        """The place of an `if constexpr` in that text -> the value that its condition always has; the place of a partial
        specialisation -> False if it is never instantiated."""
        special = [scope for found in self._specialised.values() for scope, _ in found if scope.text == name]
        return {place: bool(next(iter(found))) for (text, place), found in self._answers.items()
                if text == name and None not in found and len({*map(bool, found)}) == 1} | {
                    scope.tokens[0].start: False for scope in special if scope not in self._envs and self.is_known}

    def runs(self, name: str, place: int) -> bool:
        """Whether the kernel may have that `if constexpr` of that text: it stands in a part that is used."""
        return not self.is_known or (name, place) in self._answers

    def shapes(self) -> dict[str, set[int]]:
        """A template that is only declared -> the numbers with which it is used; those that are not known are absent."""
        return {name: found for name, found in self.declared.items() if all(isinstance(one, int) for one in found)
                } if self.is_known else {}

    def literals(self, name: str) -> dict[tuple[str, str], str]:
        """(struct, constant) in that text -> the number that the constant always is."""
        found = dict[tuple[str, str], str]()
        for struct in [s for s in self._structs.values() if s and s.text == name and self.is_known]:
            for constant in struct.constants:
                values = {_Here(self, struct, dict(env)).member(Type(struct.name, env), constant)
                          for env in self._envs.get(struct, ())}
                if len(values) == 1 and (value := values.pop()) is not None:
                    found[struct.name, constant] = str(bool(value)).lower() if constant in struct.booleans else str(value)
        return found

    # ---- Which templates are instantiated

    def _unknown(self, scope: Scope) -> Env:
        return tuple((name, None) for name, *_ in scope.parameters)

    def _reach(self, scope: Scope, env: Env) -> None:
        there = self._envs.setdefault(scope, {})
        if len(there) >= _MOST_INSTANCES:
            env = (*((n, v) for n, v in env if n not in {p for p, *_ in scope.parameters}), *self._unknown(scope))
        if env not in there:
            there[env] = None
            self._waiting.append((scope, env))

    def _walk(self, scope: Scope, env: Env) -> None:
        """Visits what the scope uses, except in branches that are never taken."""
        here = _Here(self, scope, dict(env))
        for inner in scope.inner:
            if not inner.parameters:
                self._reach(inner, env)
        if scope.is_struct:
            for inner in scope.inner:
                for given in tuple(self._given.get(inner, ())):
                    self._reach(inner, (*env, *given))
            self._struct_envs.setdefault(scope, set()).add(env)
            for code in filter(None, scope.aliases.values()):
                self._names(here, code)
        code, at = scope.tokens, 0
        while at < len(code):
            token = code[at]
            if token.text == "constexpr" and at and code[at - 1].text == "if":
                end = matching(code, at + 1)
                value = here.value(code[at + 2:end - 1])
                self._answers.setdefault((scope.text, token.start), set()).add(value)
                if value is not None:
                    then = statement(code, end)
                    has_else = then < len(code) and code[then].text == "else"
                    self._names(here, code[at + 2:end - 1])
                    part = code[end:then] if value else code[then + 1:statement(code, then + 1)] if has_else else ()
                    self._part(scope, env, part)
                    at = statement(code, then + 1) if has_else else then
                    continue
            at = self._use(here, code, at)

    def _part(self, scope: Scope, env: Env, code: Code) -> None:
        part = Scope(scope.name, scope.text, code, [], scope.outer, False, scope.constants, scope.aliases, scope.functions,
                      hidden=scope.hidden)
        self._walk(part, env)

    def _names(self, here: _Here, code: Code) -> None:
        at = 0
        while at < len(code):
            at = self._use(here, code, at)

    def _use(self, here: _Here, code: Code, at: int) -> int:
        """Visits the template that is named there; returns the next place."""
        name = code[at].text
        following = code[at + 1].text if at + 1 < len(code) else ""
        if code[at].kind == "directive":
            for word in re.findall(r"\w+", code[at].text):
                self._all(word)
        if code[at].kind != "word":
            return at + 1
        before = code[at - 1].text if at else ""
        functions = [f for f in self._by_name.get(name, ()) if f.outer is self._global or f.outer is here.scope.outer
                     or before in (".", "->", "::", "template")]
        is_argument = at and before in ("<", ",") and following in (",", ">")
        if name in self._structs and following != "<" and self._has_parameters(name) and not here.is_within(name):
            self._passed.add(name)
            if not is_argument:
                self._all(name)
        if following == "<" and name in here.env:
            name = self._template(name, here.env[name])
        if following == "<" and (functions or any(name in there for there in (
                self._structs, self.declared, self._alias_templates))):
            try:
                end = behind_angles(code, at + 1)
            except (ValueError, IndexError):
                self._all(name)
                return at + 1
            given = [here.argument(one) for one in split(code[at + 2:end - 1])]
            if name in self._structs:
                here.instance(name, given)
            elif name in self.declared:
                self.declared[name].add(given[0] if given else None)
            if name in self._alias_templates:
                here.alias(name, given)
            for scope in functions:
                self._call(scope, given)
        else:
            for scope in functions:
                named = following == "(" or (scope.outer is self._global and name not in here.scope.hidden)
                if scope.parameters and named and not _declares(scope, here, code[at]):
                    self._call(scope, [])
        return at + 1

    def _all(self, name: str) -> None:
        """The templates of that name may be instantiated with any arguments."""
        for scope in self._by_name.get(name, ()):
            self._call(scope, [])
        for struct in (self._structs.get(name), *(special for special, _ in self._specialised.get(name, ()))):
            if struct is not None:
                self._reach(struct, self._unknown(struct))

    def _has_parameters(self, name: str) -> bool:
        struct = self._structs[name]
        return struct is None or bool(struct.parameters)

    def _template(self, name: str, value: Value) -> str:
        """The name of the template for which a parameter stands."""
        if isinstance(value, Template):
            return value.name
        self._passes_any = self._passes_any or name in self._template_parameters
        return ""

    def _call(self, scope: Scope, given: Sequence[Value]) -> None:
        bound = tuple((name, given[i] if i < len(given) else None) for i, (name, *_) in enumerate(scope.parameters))
        if scope.outer is self._global or scope.outer is None:
            self._reach(scope, bound)
        elif scope.parameters:
            self._given.setdefault(scope, set()).add(bound)
            for env in tuple(self._struct_envs.get(scope.outer, ())):
                self._reach(scope, (*env, *bound))


class _Here:
    """A place in a scope, with the values of the template parameters there."""

    def __init__(self, all_of: Constants, scope: Scope, env: Mapping[str, Value],
                 local: dict[str, Value] | None = None) -> None:
        self.all, self.scope, self.env, self.local = all_of, scope, env, local or {}
        self.steps = all_of.steps
        self._busy: set[str] = set()

    def value(self, code: Code) -> Value:
        """The value of a constant expression; None if it is not known."""
        self.steps[0] = 0
        try:
            return Expression(self, code).value()
        except UNKNOWN:
            return None

    def argument(self, code: Code) -> Value:
        """The value of a template argument: a type or a number."""
        if not code:
            return None
        try:
            found = self.type(code)
        except UNKNOWN:
            found = None
        return found if found is not None else self.value(code)

    def inside(self, local: dict[str, Value]) -> _Here:
        """The same place in a call of a constexpr function."""
        return _Here(self.all, self.scope, self.env, local)

    def enumerators(self, name: str) -> Sequence[str]:
        return self.all._enumerators.get(name, ())

    def is_template(self, name: str) -> bool:
        return name in self.all._structs

    def type(self, code: Code) -> Value:
        code = [t for t in code if t.text not in ("typename", "const")]
        if not code or code[0].kind != "word":
            return None
        if len(code) == 1 and code[0].text in self.all._structs and self.all._has_parameters(code[0].text) and not (
                self.is_within(code[0].text)):
            return Template(code[0].text)
        if len(code) == 1 and code[0].text in SIZES:
            return code[0].text
        found, at = self._first_type(code)
        while found is not None and at < len(code):
            if code[at].text != "::" or not isinstance(found, Type):
                return None
            at += 1
            if code[at].text == "template":
                return None
            found, at = self.all_member_type(found, code[at].text), at + 1
        return found

    def _first_type(self, code: Code) -> tuple[Value, int]:
        name = code[0].text
        if [t.text for t in code[:4]] == ["std", "::", "conditional_t", "<"]:
            return self._conditional(code)
        if len(code) > 1 and code[1].text == "<":
            end = behind_angles(code, 1)
            given = [self.argument(one) for one in split(code[2:end - 1])]
            if name in self.env:
                name = self.all._template(name, self.env[name])
            return self.instance(name, given) if name in self.all._structs else self.alias(name, given), end
        return self.named_type(name), 1

    def _conditional(self, code: Code) -> tuple[Value, int]:
        """std::conditional_t<condition, one, two>."""
        end = behind_angles(code, 3)
        condition, *both = split(code[4:end - 1])
        one, two = (self.type(part) for part in both)
        try:
            asked = Expression(self, condition).value()
        except UNKNOWN:
            asked = None
        return None if asked is None else one if asked else two, end

    def named_type(self, name: str) -> Value:
        if name in self.env:
            return self.env[name] if isinstance(self.env[name], (Type, Template, str)) else None
        if name in self._busy:
            raise GivenUp
        scope: Scope | None = self.scope
        while scope is not None:
            if name in scope.aliases:
                code = scope.aliases[name]
                self._busy.add(name)
                try:
                    return None if code is None else self.type(code)
                finally:
                    self._busy.discard(name)
            if scope.is_struct and scope.name == name:
                return Type(name, tuple((n, self.env.get(n)) for n, *_ in scope.parameters))
            scope = scope.outer
        struct = self.all._structs.get(name)
        if struct is not None and not struct.parameters:
            self.all._reach(struct, ())
            return Type(name)
        if name in self.all._global.aliases:
            found = self.all._global.aliases[name]
            return None if found is None else _Here(self.all, self.all._global, {}).type(found)
        return None

    def instance(self, name: str, given: Sequence[Value]) -> Value:
        """The struct with these arguments, and with its defaults."""
        struct = self.all._structs.get(name)
        if struct is None:
            return None
        env: dict[str, Value] = {}
        for number, (parameter, _, default) in enumerate(struct.parameters):
            env[parameter] = given[number] if number < len(given) else (
                _Here(self.all, self.all._global, env).argument(default) if default else None)
        found: Env | None = tuple(env.items())
        for special, pattern in self.all._specialised.get(name, ()):
            if (own := self._matched(special, pattern, [*env.values()])) != ():
                struct, found = special, own
                break
        if found is None:          # it may be any of them
            self.all._all(name)
            return None
        self.all._reach(struct, found)
        return Type(struct.name, found)

    def _matched(self, special: Scope, pattern: Sequence[Code], given: Sequence[Value]) -> Env | None:
        """The arguments of a specialisation; () if it is not the one for these arguments, None if that is not known."""
        names, bound, is_clear = {n for n, *_ in special.parameters}, dict[str, Value](), True
        for value, code in zip(given, pattern, strict=False):
            if len(code) == 1 and code[0].text in names:
                bound[code[0].text] = value
                continue
            wanted = _Here(self.all, self.all._global, {}).argument(code)
            if None not in (value, wanted) and value != wanted:
                return ()
            is_clear = is_clear and None not in (value, wanted)
        return tuple((n, bound.get(n)) for n, *_ in special.parameters) if is_clear and len(given) == len(pattern) else None

    def alias(self, name: str, given: Sequence[Value]) -> Value:
        """What a template alias stands for with these arguments."""
        found = self.all._alias_templates.get(name)
        if found is None:
            return None
        parameters, code = found
        env = {n: given[i] if i < len(given) else None for i, n in enumerate(parameters)}
        here = _Here(self.all, self.all._global, env)
        self.all._names(here, code)
        return here.type(code)

    def is_within(self, name: str) -> bool:
        scope: Scope | None = self.scope
        while scope is not None and not (scope.is_struct and scope.name == name):
            scope = scope.outer
        return scope is not None

    def of_bases(self, look: Callable[[Type], T | None]) -> T | None:
        """What the first base of this struct has, that has it. None where a base is not known: it may have another one."""
        for base in self.scope.bases:
            found = self.type(base)
            if not isinstance(found, Type):
                return None
            if (inner := look(found)) is not None:
                return inner
        return None

    def all_member_type(self, of: Type, name: str) -> Value:
        struct = self.all._structs.get(of.name)
        if struct is None:
            return None
        here = _Here(self.all, struct, dict(of.arguments))
        if name in struct.aliases:
            code = struct.aliases[name]
            return None if code is None else here.type(code)
        return here.of_bases(partial(self.all_member_type, name=name))

    def member(self, of: Type, name: str) -> Value:
        """The value of a constant of a struct."""
        key = of, name
        if key in self.all._values:
            return self.all._values[key]
        self.all._values[key] = None           # while it is computed
        self.all._values[key] = found = self._member(of, name)
        return found

    def _member(self, of: Type, name: str) -> Value:
        struct = self.all._structs.get(of.name)
        if struct is None:
            return None
        here = _Here(self.all, struct, dict(of.arguments))
        if name in struct.constants:
            code = struct.constants[name]
            if code is None:
                return None
            try:
                return Expression(here, code).value()
            except UNKNOWN:
                return None
        if name in struct.functions or name in struct.hidden:
            return None
        return here.of_bases(partial(self.member, name=name))

    def function(self, of: Type, name: str) -> tuple[Function, _Here] | None:
        struct = self.all._structs.get(of.name)
        if struct is None:
            return None
        here = _Here(self.all, struct, dict(of.arguments))
        if name in struct.functions:
            found = struct.functions[name]
            return None if found is None else (found, here)
        return here.of_bases(partial(self.function, name=name))

    def name(self, name: str) -> Value:
        """The value of a name without a path."""
        if name in self.local:
            return self.local[name]
        scope: Scope | None = self.scope
        while scope is not None:
            if name in scope.constants:
                code = scope.constants[name]
                if code is None or name in scope.hidden or name in self._busy:
                    raise GivenUp
                if scope.is_struct:
                    return self.member(Type(scope.name, tuple((n, self.env.get(n)) for n, *_ in scope.parameters)), name)
                self._busy.add(name)
                try:
                    return Expression(self, code).value()
                finally:
                    self._busy.discard(name)
            if name in scope.hidden and name not in {p for p, *_ in scope.parameters}:
                raise GivenUp
            if name in {p for p, *_ in scope.parameters}:
                return self.env.get(name)
            scope = scope.outer
        return self.env.get(name)

    def plain_function(self, name: str) -> tuple[Function, _Here] | None:
        scope: Scope | None = self.scope
        while scope is not None:
            if name in scope.functions:
                found = scope.functions[name]
                here = _Here(self.all, scope, self.env if scope.is_struct else {})
                return None if found is None else (found, here)
            scope = scope.outer
        return None


def _declares(scope: Scope, here: _Here, token: Token) -> bool:
    """Whether the token is the name of the function in its own declaration."""
    return scope.text == here.scope.text and any(t.start == token.start for t in scope.tokens[:40])
