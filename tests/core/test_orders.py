"""Each operation of a worker has one order and one reply, whose fields all have types. As JSON they come back as they were, and
what does not fit is refused by its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from workbench.core.answers import CheckReport
from workbench.core.check_parts import DirectionTimes, TimedWay
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.orders import ORDERS, Order
from workbench.core.process_orders import ForkOrder, HostAnswer, HostAsked, LauncherOrder
from workbench.core.replies import Checked
from workbench.core.trial import Status, Timing
from workbench.core.typed import Misfit, read, reader, to_json
from workbench.measure.worker import OPS

# What is written into a session or a report as it is, and what the class of an exported file is constructed with.
AS_IT_IS = {"shown", "arguments", "constructor_args"}


def untyped(kind: Any, seen: set[Any]) -> Iterator[str]:
    """Fields that may hold anything, of a class and of all that its fields hold."""
    if kind in seen or not is_dataclass(kind):
        return
    seen.add(kind)
    hints = get_type_hints(kind)
    for part in fields(kind):
        held = list(within(hints[part.name]))
        if Any in held and part.name not in AS_IT_IS:
            yield f"{kind.__name__}.{part.name}"
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


WORKLOAD = Workload(ConvTranspose(2, 3, 4, (3, 5), stride=(2, 1), groups=1), 2, (5, 6))


@dataclass(frozen=True)
class Parcel:
    library: Path
    workload: Workload
    status: Status
    times: dict[str, Timing] = field(default_factory=dict)
    guards: frozenset[str] = frozenset({"a"})
    samples: tuple[float, ...] = ()
    seed: int | None = None
    detail: dict[str, Any] = field(default_factory=dict)


TIMING = Timing(1.0, 0.5, 2.0, 0.25, 7, "noise", True)
WHOLE = Parcel(Path("/x/y.so"), WORKLOAD, Status.OK, {"forward": TIMING}, frozenset({"poison", "nan"}), (1.5, 2.0), 3,
               {"a": [1]})


def as_json(**changes: Any) -> dict[str, Any]:
    return {**json.loads(to_json(WHOLE)), **changes}


def test_what_is_sent_comes_back_as_it_was() -> None:
    assert read(Parcel, as_json()) == WHOLE
    assert read(Parcel, {k: v for k, v in as_json().items() if k in ("library", "workload", "status")}) == Parcel(
        WHOLE.library, WORKLOAD, Status.OK)


@pytest.mark.parametrize(("changes", "said"), [
    ({"colour": "red"}, "colour is not known"),
    ({"library": 7}, "library is 7, not a text"),
    ({"status": "FINE"}, "status is 'FINE', which is not known"),
    ({"samples": [1.5, "x"]}, "samples[1] is 'x', not a number"),
    ({"times": {"forward": {"median_ms": 1.0}}}, "times.forward.cold_l2 is missing"),
    ({"workload": {**WORKLOAD.to_json(), "seed": 0.5}}, "workload.seed is 0.5, not a whole number"),
    ({"workload": {**WORKLOAD.to_json(), "layer": {**WORKLOAD.layer.to_json(), "paddings": 1}}},
     "workload.layer.paddings is not known"),
    ({"seed": "x"}, "seed is 'x', not a whole number"),
    ({"guards": 1}, "guards is 1, not a list"),
])
def test_the_sentence_names_what_does_not_fit(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(Misfit) as refused:
        read(Parcel, as_json(**changes))
    assert str(refused.value) == said


def test_a_missing_key_is_named() -> None:
    data = as_json()
    del data["library"]
    with pytest.raises(Misfit, match="^library is missing$"):
        read(Parcel, data)


def test_a_value_that_cannot_be_says_so_itself() -> None:
    with pytest.raises(ValueError, match="batch is 0; it must be 1 or more"):
        read(Parcel, as_json(workload={**WORKLOAD.to_json(), "batch": 0}))


def test_equal_workloads_are_read_once() -> None:
    """A long session has ten thousand trials of a few layers."""
    first, again = read(Parcel, as_json()), read(Parcel, as_json())
    assert first.workload is again.workload and first.times["forward"] is not again.times["forward"]
    named = read(Parcel, as_json(workload={**WORKLOAD.to_json(), "preset": "kb74/small"}))
    assert named.workload == first.workload and (named.workload.preset, first.workload.preset) == ("kb74/small", "")


def test_the_types_of_a_class_are_looked_up_once() -> None:
    """A long session has ten thousand trials; to resolve type hints takes longer than to read one."""
    read(Parcel, as_json())
    before = reader.cache_info().misses
    read(Parcel, as_json())
    assert reader.cache_info().misses == before
