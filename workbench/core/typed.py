"""JSON in; None when it has the shape that a type says, else a clause that names the place and what is wrong there."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Set
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

Misfit = Callable[[Any, str], str | None]
_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", dict: "an object"}


@lru_cache(maxsize=256)
def misfit(hint: Any) -> Misfit:
    """The question for one type: str, int, float, bool, None, Any, unions, dict[str, T], tuple[T, ...] (a list in
    JSON), a StrEnum, a dataclass of such, or a TypedDict, which may have more keys. It gets the value and the name of its
    place."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value, place: None
    if origin in (Union, types.UnionType):
        return _any_of([misfit(part) for part in parts])
    if origin is tuple:
        return _list_of(misfit(parts[0]))
    if origin is dict:
        return _object_of(misfit(parts[1]))
    if isinstance(hint, type) and is_dataclass(hint):
        needed = {f.name for f in fields(hint) if f.default is MISSING and f.default_factory is MISSING}
        return _fields_of(hint, needed, more=False)
    if is_typeddict(hint):
        return _fields_of(hint, hint.__required_keys__, more=True)
    if issubclass(hint, StrEnum):
        return lambda value, place: None if value in list(hint) else f"{place} is {_short(value)}, which is not known"
    return _plain(hint)


def _plain(kind: type) -> Misfit:
    takes: type | tuple[type, ...] = (int, float) if kind is float else kind

    def ask(value: Any, place: str) -> str | None:
        if type(value) is kind and kind in (float, bool) or type(value) is str and kind is str and value.isascii():
            return None  # nearly all there is: a long session has a million of them
        if isinstance(value, takes) and (kind is bool or not isinstance(value, bool)):
            if isinstance(value, int) and abs(value) > sys.float_info.max:
                return f"{place} is {_short(value)}, which is too large"
            half = isinstance(value, str) and not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value)
            return f"{place} is {_short(value)}, which holds half a letter" if half else None
        return f"{place} is {_short(value)}, not {_WORDS.get(kind, 'null')}"
    return ask


def _any_of(asked: list[Misfit]) -> Misfit:
    def ask(value: Any, place: str) -> str | None:
        answers = [one(value, place) for one in asked]
        return None if None in answers else answers[0]
    return ask


def _list_of(item: Misfit) -> Misfit:
    def ask(value: Any, place: str) -> str | None:
        if not isinstance(value, (list, tuple)):
            return f"{place} is {_short(value)}, not a list"
        bad = next((i for i, v in enumerate(value) if item(v, "")), None)  # the place is written for what is wrong alone
        return None if bad is None else item(value[bad], f"{place}[{bad}]")
    return ask


def _object_of(item: Misfit) -> Misfit:
    def ask(value: Any, place: str) -> str | None:
        if not isinstance(value, dict):
            return f"{place} is {_short(value)}, not an object"
        bad = next((k for k, v in value.items() if item(v, "")), None)
        return None if bad is None else item(value[bad], f"{place}.{bad}")
    return ask


def _fields_of(kind: type, needed: Set[str], *, more: bool) -> Misfit:
    asked = {name: misfit(hint) for name, hint in get_type_hints(kind).items()}

    def ask(value: Any, place: str) -> str | None:
        if not isinstance(value, dict):
            return f"{place or 'it'} is {_short(value)}, not an object"
        dot = f"{place}." if place else ""
        if missing := needed - value.keys():
            return f"{dot}{min(missing)} is missing"
        if not more and (strange := value.keys() - asked.keys()):
            return f"{dot}{min(strange)} is not known"
        bad = next((k for k, v in value.items() if k in asked and asked[k](v, "")), None)
        return None if bad is None else asked[bad](value[bad], f"{dot}{bad}")
    return ask


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
