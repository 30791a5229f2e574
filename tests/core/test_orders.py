"""Each operation of a worker has one order and one reply, whose fields all have types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args, get_type_hints

import pytest

from workbench.core.answers import CheckReport
from workbench.core.check_parts import DirectionTimes, TimedWay
from workbench.core.orders import ORDERS, Order
from workbench.core.process_orders import ForkOrder, HostAnswer, HostAsked, LauncherOrder
from workbench.core.replies import Checked
from workbench.core.typed import Misfit, read, reader
from workbench.measure.worker import OPS

# What is written into a session or a report as it is, and what the class of an exported file is constructed with.
AS_IT_IS = {"shown", "arguments", "constructor_args"}


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


@pytest.mark.parametrize("kind", [ForkOrder, LauncherOrder, HostAnswer, *get_args(HostAsked)])
def test_the_processes_that_fork_others_are_asked_in_types_too(kind: type[Any]) -> None:
    assert is_dataclass(kind) and kind.__dataclass_params__.frozen and not list(untyped(kind, set()))
    with pytest.raises(Misfit, match="more is not known|is missing"):
        read(kind, {"more": 1})


def test_a_field_without_a_type_is_seen() -> None:
    from dataclasses import make_dataclass
    inner = make_dataclass("Inner", [("notes", dict[str, Any]), ("shown", dict[str, Any])])
    assert list(untyped(make_dataclass("Outer", [("inner", tuple[inner, ...])]), set())) == ["Inner.notes"]


SMALLEST = {"layer": "ConvTranspose1d(1, 1, 1)", "arguments": {"stride": [2]}, "input": [1, 1, 1], "dtype": "float32",
            "tensor": "output", "problem": "It differs.", "expanded": False}
CHECKED = {"questions": [], "confined": {}, "smallest": SMALLEST, "kernelbench": {"text": ["it contains 'pass'"]}}


@pytest.mark.parametrize(("changes", "said"), [
    ({"smallest": {**SMALLEST, "colour": 1}}, "smallest.colour is not known"),
    ({"smallest": {k: v for k, v in SMALLEST.items() if k != "tensor"}}, "smallest.tensor is missing"),
    ({"mistake": {"found": ""}}, "mistake.advice is missing"),
    ({"kernelbench": {"text": [], "values": {"strict": True}}}, "kernelbench.values.loose is missing"),
    ({"kernelbench": {"text": [], "strict": True}}, "kernelbench.strict is not known")])
def test_a_section_of_a_check_that_does_not_fit_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    assert read(Checked, CHECKED).smallest
    with pytest.raises(Misfit) as refused:
        read(Checked, {**CHECKED, **changes})
    assert str(refused.value) == said


def test_a_report_leaves_out_what_is_not_known() -> None:
    """Its JSON is that of the schema, whatever the classes hold."""
    found = read(Checked, CHECKED)
    way = TimedWay("eager", 2.0, "ieee", 2.0, 1.9, None, "FASTER", True, True, "", ())
    ways = (way, replace(way, held_back="x"))
    times = DirectionTimes(1.0, 12, None, 3, 2, "ieee", "", (), None, "", "no GPU", False, (), ways, (), 2.0, None, None,
                           "eager", "FASTER")
    told = CheckReport("a.py", "b.py", "cpu", (), found.smallest, None, found.kernelbench, {"forward": times}).to_json()
    assert told["smallest"].keys() == SMALLEST.keys() and told["mistake"] == {}
    assert told["kernelbench"] == {"text": ("it contains 'pass'",)}
    assert told["times"]["forward"]["floor_ms"] is None
    assert ["held_back" in row for row in told["times"]["forward"]["baselines"]] == [False, True]


def test_every_operation_has_an_order() -> None:
    assert set(OPS) | {"ping", "warm"} == set(ORDERS)
