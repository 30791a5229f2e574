"""Each operation of a worker has one order and one reply, whose fields all have types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

import pytest

from workbench.core.orders import ORDERS, Order
from workbench.core.typed import reader
from workbench.measure.worker import OPS

# What is written into a session or a report as it is, and what the class of an exported file is constructed with.
AS_IT_IS = {"shown", "detail", "smallest", "mistake", "kernelbench", "constructor_args"}


def untyped(kind: Any, seen: set[Any]) -> Iterator[str]:
    """Fields that may hold anything, of a class and of all that its fields hold."""
    if kind in seen or not is_dataclass(kind):
        return
    seen.add(kind)
    hints = get_type_hints(kind)
    for field in fields(kind):
        held = list(within(hints[field.name]))
        if Any in held and field.name not in AS_IT_IS:
            yield f"{kind.__name__}.{field.name}"
        for one in held:
            yield from untyped(one, seen)


def within(hint: Any) -> Iterator[Any]:
    yield hint
    for part in get_args(hint):
        yield from within(part)


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_every_field_that_crosses_the_border_has_a_type(order: type[Order[Any]]) -> None:
    for kind in (order, order.reply):
        assert is_dataclass(kind) and kind.__dataclass_params__.frozen and reader(kind)
        assert not list(untyped(kind, set()))


def test_a_field_without_a_type_is_seen() -> None:
    from dataclasses import make_dataclass
    inner = make_dataclass("Inner", [("notes", dict[str, Any]), ("detail", dict[str, Any])])
    assert list(untyped(make_dataclass("Outer", [("inner", tuple[inner, ...])]), set())) == ["Inner.notes"]


def test_every_operation_has_an_order() -> None:
    assert set(OPS) | {"ping", "warm"} == set(ORDERS)
