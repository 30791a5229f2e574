"""What crosses a border as JSON: it comes back as it was, and what does not fit is refused by its place."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from workbench.core.layer import ConvTranspose, Workload
from workbench.core.trial import Status, Timing
from workbench.core.typed import Misfit, read, reader, to_json

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
