"""A recorded line with one value replaced: it is a trial that everything can show, or a sentence says why it is none."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from workbench.core.trial import Trial
from workbench.core.trial_parts import KernelNumbers
from workbench.drive.reporting import tables
from workbench.drive.sessions import files
from workbench.drive.sessions.recorded import occupancy_of
from workbench.drive.sessions.session import Session

RECORDED = Path(__file__).resolve().parents[2] / "sessions"
KERNEL = asdict(KernelNumbers(8, 0, 0, 0, 0, 1, 512))
BAD = (None, "x", -1, 0, 1.5, [], {}, True, float("nan"), 1e999, 10**400, "\ud800", [["x"]], {"a": {"b": 1}})


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for _, line in files.lines(RECORDED / f"{name}.zip", files.TRIALS)]


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if place:
        yield place
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value[:1])):
            yield from places(value[key], (*place, key))


def replaced(line: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    line = copy.deepcopy(line)
    inner = line
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return line


@pytest.mark.parametrize(("session", "kind"), [
    ("recorded-h200-kernelbench", "candidate"), ("recorded-h200-kernelbench", "baseline"), ("recorded-h200-modules", "module")])
def test_no_value_in_any_place_is_more_than_a_line_left_out(session: str, kind: str) -> None:
    there = [line for line in lines(session) if line["kind"] == kind and line["status"] == "OK"]
    line = next((t for t in there if "against" in t.get("detail", {})), there[0])
    refused = shown = 0
    for place in places(line):
        for value in BAD:
            try:
                trial = Trial.from_json(replaced(line, place, value))
            except ValueError as error:
                assert str(error), (place, value)
                refused += 1
                continue
            shown += 1
            if shown % 4 == 0:  # every fourth of them
                assert tables.text_table([trial]) and json.dumps(trial.to_json()), (place, value)
                tables.compare_text(tables.compare_sessions([trial], [Trial.from_json(line)]))
                occupancy_of(trial)
    assert refused > 300 and shown > 100


def test_the_recorded_sessions_are_read_whole() -> None:
    for path in sorted(RECORDED.glob("recorded-*.zip")):
        session = Session.open(path)
        assert len(session.trials()) == len(lines(path.stem)) > 0 and session.unreadable == []


def test_a_recorded_trial_is_written_as_it_was_read() -> None:
    for path in sorted(RECORDED.glob("recorded-*.zip")):
        for line in lines(path.stem):
            written = json.loads(json.dumps(Trial.from_json(line).to_json()))
            for timing in filter(None, (line.get("kernel_ms"), *line.get("module_ms", {}).values())):
                timing.setdefault("dropped", 0)  # the oldest lines lack it
            assert written == line and list(written) == list(line), line["trial_id"]


@pytest.mark.parametrize(("place", "value", "sentence"), [
    (("workload", "colour"), "red", "workload.colour is not known"),
    (("device", "colour"), "red", "device.colour is not known"),
    (("build", "colour"), "red", "build.colour is not known"),
    (("build", "seconds"), "long", "build.seconds is 'long', not a number"),
    (("resources", "sm_90"), {"k": {"registers": 8}}, "resources.sm_90.k.barriers is missing"),
    (("resources", "sm_90"), {"k": {**KERNEL, "registers": "8"}}, "resources.sm_90.k.registers is '8', not a whole number"),
    (("resources", "sm_90"), {"k": {**KERNEL, "colour": 1}}, "resources.sm_90.k.colour is not known"),
    (("resources", "older"), {"k": KERNEL}, "resources.'older' is not an architecture"),
    (("device",), {"kind": "cpu"}, "device.arch is missing"),
    (("detail",), {"against": {"ratio": 2.0}}, "detail.against.baseline is missing"),
    (("detail", "against"), [1], "detail.against is [1], not an object"),
    (("detail", "kernels"), [7], "detail.kernels[0] is 7, not a text"),
    (("detail", "fresh_process"), "yes", "detail.fresh_process is 'yes', not true or false"),
    (("kernel_ms", "median_ms"), "fast", "kernel_ms.median_ms is 'fast', not a number"),
    (("kernel_ms", "median_ms"), -1.0, "kernel_ms.median_ms is -1.0, not a time"),
    (("workload", "layer", "stride"), "2", "workload.layer.stride is '2', not a list"),
    (("workload", "batch"), 0, "its workload is not valid: batch is 0; it must be 1 or more."),
    (("direction",), "sideways", "direction is 'sideways', which is not known"),
    (("blobs", "source"), "../../etc/passwd", "the blob '../../etc/passwd' is not a SHA-256"),
])
def test_the_sentence_names_the_place(place: tuple[str, ...], value: Any, sentence: str) -> None:
    line = next(t for t in lines("recorded-h200-kernelbench") if t["kind"] == "candidate" and "source" in t.get("blobs", {})
                and t["status"] == "OK")
    with pytest.raises(ValueError) as error:
        Trial.from_json(replaced(line, place, value))
    assert str(error.value) == sentence
