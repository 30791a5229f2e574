"""Reads and writes values of a type as JSON. `reader` refuses JSON that does not fit the type; the error names the place and
the reason. `to_json` writes. Sessions, files and the pipes to the workers use it."""

from __future__ import annotations

import json
import marshal
import sys
import types
from collections.abc import Callable, Set
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

T = TypeVar("T")
Reader = Callable[[Any], Any]
_LARGEST = int(sys.float_info.max)
_MOST_REMEMBERED = 4096
_READ_ONCE: set[type[Any]] = set()


class Misfit(ValueError):
    """JSON that does not fit a type. `clause` says what is wrong at `place`, which is a path of names: `kernel_ms.median_ms`.
    """

    def __init__(self, clause: str, place: str = "") -> None:
        super().__init__(clause)
        self.clause, self.place = clause, place

    def within(self, place: str) -> Misfit:
        """The same error with one more name in front of its place."""
        self.place = place + (f".{self.place}" if self.place and self.place[0] != "[" else self.place)
        return self

    def __str__(self) -> str:
        return f"{self.place or 'it'} {self.clause}"


def read(kind: type[T], data: Any) -> T:
    """A value of that type from JSON. Raises `Misfit`, a ValueError, which names what does not fit."""
    make: Callable[[Any], T] = reader(kind)  # type: ignore[arg-type]  # a type is hashable
    return make(data)


def read_once(kind: type[T]) -> type[T]:
    """Marks a frozen dataclass whose few values repeat often in a file. Equal JSON is then read only once."""
    _READ_ONCE.add(kind)
    return kind


def misfit(hint: Any) -> Callable[[Any, str], str | None]:
    """A function for one type. It takes a value and the name of its place, and returns what is wrong with it, or None."""
    made = reader(hint)

    def ask(value: Any, place: str) -> str | None:
        try:
            made(value)
        except Misfit as error:
            return str(error.within(place) if place else error)
        return None
    return ask


@lru_cache(maxsize=512)
def reader(hint: Any) -> Reader:
    """For str, int, float, bool, None, Path, Any, unions, dict[str, T], tuple[T, ...] and frozenset[T] (lists in JSON), a
    StrEnum, a dataclass of these types, or a TypedDict. A TypedDict may have more keys and stays a dict."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return _as_it_is
    if origin in (Union, types.UnionType):
        return _any_of(parts)
    if origin in (tuple, frozenset, list):
        return _list_of(reader(parts[0]), origin)
    if origin is dict:
        return _object_of(parts[1])
    if isinstance(hint, type) and is_dataclass(hint):
        needed = {f.name for f in fields(hint) if f.default is MISSING and f.default_factory is MISSING}
        made = _fields_of(hint, needed, hint)
        return _remembered(made) if hint in _READ_ONCE else made
    if is_typeddict(hint):
        return _fields_of(hint, hint.__required_keys__, None)
    if issubclass(hint, StrEnum):
        return _word_of(hint)
    if hint is Path:
        return lambda value: Path(_text(value))
    return {str: _text, int: _whole, float: _number, bool: _truth, type(None): _null}[hint]


def to_json(value: Any) -> str:
    """The value as one line of JSON, which the `reader` of its type can read."""
    return json.dumps(value, default=_parts)


def keys_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass, as `to_json` writes them."""
    return {f.name: getattr(value, f.name) for f in fields(value)}


def _parts(value: Any) -> Any:
    if is_dataclass(value):
        return keys_of(value)
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON")


def _as_it_is(value: Any) -> Any:
    return value


def _text(value: Any) -> Any:
    if type(value) is str and value.isascii():
        return value  # the most frequent case: a long session has a million of these values
    if not isinstance(value, str):
        raise Misfit(f"is {_short(value)}, not a text")
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise Misfit(f"is {_short(value)}, which holds half of a surrogate pair")
    return value


def _whole(value: Any) -> Any:
    if type(value) is int and -_LARGEST <= value <= _LARGEST:
        return value
    if type(value) is not int:
        raise Misfit(f"is {_short(value)}, not a whole number")
    raise Misfit(f"is {_short(value)}, which is too large")


def _number(value: Any) -> Any:
    if type(value) is float or type(value) is int and -_LARGEST <= value <= _LARGEST:
        return value
    if type(value) is not int:
        raise Misfit(f"is {_short(value)}, not a number")
    raise Misfit(f"is {_short(value)}, which is too large")


def _truth(value: Any) -> Any:
    if value is True or value is False:
        return value
    raise Misfit(f"is {_short(value)}, not true or false")


def _null(value: Any) -> Any:
    if value is None:
        return None
    raise Misfit(f"is {_short(value)}, not null")


def _word_of(kind: type[StrEnum]) -> Reader:
    known: dict[Any, StrEnum] = {str(word): word for word in kind}

    def made(value: Any) -> Any:
        if not isinstance(value, str) or value not in known:
            raise Misfit(f"is {_short(value)}, which is not known")
        return known[value]
    return made


def _any_of(parts: tuple[Any, ...]) -> Reader:
    made_of = [reader(part) for part in parts]
    exact = {part: made for part, made in zip(parts, made_of, strict=True) if part in (str, int, float, bool, type(None))}

    def made(value: Any) -> Any:
        if first := exact.get(type(value)):
            return first(value)
        said = None
        for one in made_of:
            try:
                return one(value)
            except Misfit as error:
                said = said or error
        assert said is not None
        raise said
    return made


def _list_of(item: Reader, kind: type) -> Reader:
    def made(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise Misfit(f"is {_short(value)}, not a list")
        found: list[Any] = []
        try:
            for one in value:
                found.append(item(one))
        except Misfit as error:
            raise error.within(f"[{len(found)}]") from None
        return kind(found)
    return made


def _object_of(hint: Any) -> Reader:
    item = reader(hint)

    def made(value: Any) -> Any:
        if not isinstance(value, dict):
            raise Misfit(f"is {_short(value)}, not an object")
        if hint is Any:
            return value
        key, found = "", {}
        try:
            for key, one in value.items():
                found[key] = item(one)
        except Misfit as error:
            raise error.within(key) from None
        return found
    return made


def _fields_of(kind: Any, needed: Set[str], make: Callable[..., Any] | None) -> Reader:
    """The reader of an object's fields. `make` constructs the dataclass; with None the object is a TypedDict and is returned
    unchanged."""
    made_of: dict[str, Reader] = {}

    def made(value: Any) -> Any:
        if not made_of:  # read at the first use, because a class may contain values of its own type
            made_of.update({name: reader(hint) for name, hint in get_type_hints(kind).items()
                            if make is None or name in {f.name for f in fields(kind)}})
        if not isinstance(value, dict):
            raise Misfit(f"is {_short(value)}, not an object")
        if not needed <= value.keys():
            raise Misfit("is missing", min(needed - value.keys()))
        if make is not None and not value.keys() <= made_of.keys():
            raise Misfit("is not known", min(value.keys() - made_of.keys()))
        key, found = "", {}
        try:
            for key, one in value.items():
                if key in made_of:
                    found[key] = made_of[key](one)
        except Misfit as error:
            raise error.within(key) from None
        return value if make is None else make(**found)
    return made


def _remembered(make: Reader) -> Reader:
    """`make` with a cache: for equal JSON it returns the same object. The key is written by `marshal`, the fastest serializer
    of Python."""
    known: dict[bytes, Any] = {}

    def made(value: Any) -> Any:
        try:
            key = marshal.dumps(value, 2)  # version 2: equal values give equal bytes
        except ValueError:                 # nested too deeply
            return make(value)
        if key not in known:
            if len(known) >= _MOST_REMEMBERED:
                known.clear()
            known[key] = make(value)
        return known[key]
    return made


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
