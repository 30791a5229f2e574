"""What a foreign process may answer, sent by real ones: files that rewrite their process's answers. Whatever comes, the judge
gives a report, and judges the next file in the same process."""

from __future__ import annotations

import fcntl
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.core.test_orders import untyped
from workbench.core.answers import Answer
from workbench.core.typed import to_json
from workbench.drive.running.worker_process import WorkerProcess
from workbench.measure.check.foreign import requests, window, wire
from workbench.measure.check.foreign.process import Ended, ForeignProcess, Limits, Raised
from workbench.measure.check.foreign.replies import Told
from workbench.measure.check.foreign.requests import REQUESTS
from workbench.measure.check.foreign.wire import NotTheProtocol
from workbench.measure.check.host import host

from . import models
from .conftest import failed
from .forked import ForkedProcess

# Of the operation whose answer has the field, the line and the bytes behind it are changed before they are sent.
_CHANGES = models.RIGHT + '''
from workbench.measure.check.host import host
import json

_real = host.pack


def _changed(header, tensors=()):
    line, *payload = map(bytes, _real(header, tensors))
    if {field!r} not in header:
        return [line, *payload]
    message = json.loads(line)
    kinds = message["tensors"]
    raw = None
    {change}
    return [(json.dumps(message).encode() if raw is None else raw) + b"\\n", *payload]


host.pack = _changed
'''
_OF_A_CALL = {
    "a negative shape": "kinds[0]['shape'] = [-4, 8]",
    "two negative sizes, whose product is not": "kinds[0]['shape'] = [-4, -8]",
    "a huge shape": "kinds[0]['shape'] = [1 << 40, 8]",
    "a GiB that never comes": "kinds[0]['shape'] = message['shape'] = [1 << 28]",
    "a shape that is too large for any tensor": "kinds[0]['shape'] = [0, 1 << 40, 1 << 40]; payload = []",
    "an empty shape of another output": "kinds[0]['shape'] = [0]; payload[0] = b''",
    "a shape of booleans": "kinds[0]['shape'] = [True, True]",
    "a shape of texts": "kinds[0]['shape'] = ['4', '8']",
    "a shape that is a number": "kinds[0]['shape'] = 32",
    "another size than it says": "message['shape'] = [8, 8]",
    "quint8": "kinds[0]['dtype'] = 'quint8'",
    "a function of torch's": "kinds[0]['dtype'] = 'load'",
    "a class's attribute": "kinds[0]['dtype'] = '__class__'",
    "a dtype that is a list": "kinds[0]['dtype'] = ['float32']",
    "a complex echo": "kinds[1]['dtype'] = 'complex64'; payload[1] *= 2",
    "an echo of another size": "kinds[1]['shape'] = [2, 8]; payload[1] = payload[1][:64]",
    "a gradient of whole numbers": "kinds[-1]['dtype'] = 'int32'",
    "results that are missing": "del kinds[1:], payload[1:]",
    "no result at all": "kinds.clear(), payload.clear()",
    "more results than were asked for": "kinds += kinds[:1] * 3; payload += payload[:1] * 3",
    "a gradient nobody asked for": "message['gradients'] = ['weight of another'] * 3",
    "gradients that are no list": "message['gradients'] = {'input 0': 1}",
    "a key that is missing": "del message['requires_grad']",
    "a key too many": "message['passed'] = True",
    "a number for a flag": "message['requires_grad'] = 1",
    "no tensors": "del message['tensors']",
    "tensors that are a number": "message['tensors'] = 3",
    "a boolean for its number": "message['id'] = True",
    "NaN": "message['shape'] = [float('nan')]",
    "Infinity": "message['id'] = float('inf')",
    "a text of 10 MB": "message['device'] = 'x' * 10_000_000",
    "deep nesting": "raw = b'[' * 1_000_000",
    "deep nesting in a field": "raw = b'{\"detail\":' * 100_000",
    "a list": "raw = b'[1, 2]'",
    "null": "raw = b'null'",
    "a number of a million digits": "raw = b'9' * 1_000_000",
    "bytes that are no UTF-8": "raw = b'\\xff\\xfe\\x80' + json.dumps(message).encode()",
    "nothing": "raw = b''; payload = []",
}
_OF_OTHERS = [
    ("names that are numbers", "names", "message['names'] = [1, 2]", "constructs"),
    ("names without their tensors", "names", "message['names'] = message['names'] * 2", "constructs"),
    ("a state of quint8", "names", "kinds[0]['dtype'] = 'quint8'", "constructs"),
    ("calls that are none", "calls", "message['calls'] = [{'cuda_sources': 3}]", "builds"),
    ("nested calls", "calls", "message['calls'] = [[[[]]]]", "builds"),
    ("seconds that are a text", "calls", "message['seconds'] = 'soon'", "builds"),
    ("a default of NaN", "calls", "message['defaults'] = {'scale': float('nan')}", "builds"),
    ("an exception without a message", "calls", "message = {'raised': {'type': 'X'}, 'id': message['id'], 'tensors': []}",
     "builds"),
    ("an exception that is a text", "calls", "message = {'raised': 'x', 'id': message['id'], 'tensors': []}", "builds"),
    ("an exception in a line that is none", "calls", "message = {'id': message['id'], 'tensors': [], 'raised': {'type': 'X', "
     "'message': 'm', 'line': {}, 'trace': '', 'where': '', 'detail': {}}}", "builds"),
]


@contextmanager
def survives(judge: WorkerProcess) -> Iterator[None]:
    """The judge's process is the same afterwards; other tests share it, and may have had it started anew before."""
    before = judge.starts if judge.alive else judge.starts + 1
    yield
    assert judge.alive and judge.starts == before


# One reader refuses them all, and the last test of this file gives it many more. So in `make test` real processes send every
# third of these, in `make test-long` the rest.
def _soon(cases: Sequence) -> list:
    return [pytest.param(*([case] if isinstance(case, str) else case), marks=() if number % 3 == 0 else pytest.mark.long)
            for number, case in enumerate(cases)]


@pytest.mark.parametrize("name", _soon(list(_OF_A_CALL)))
def test_what_is_no_answer_to_a_call_is_a_verdict(checked, forking_judge, name: str) -> None:
    with survives(forking_judge):
        report = checked(_CHANGES.format(field="requires_grad", change=_OF_A_CALL[name]))
    said(report.question("values"))


@pytest.mark.parametrize(("name", "field", "change", "key"), _soon(_OF_OTHERS))
def test_what_is_no_answer_to_another_question_is_a_verdict(checked, forking_judge, name: str, field: str, change: str, key: str
                                                             ) -> None:
    with survives(forking_judge):
        report = checked(_CHANGES.format(field=field, change=change))
    said(report.question(key))


def said(question) -> None:
    assert question.answer is Answer.FAILED and question.status == "WORKER_DIED", question
    assert "into the judge's pipe" in question.seen and question.seen.isprintable() and len(question.seen) < 400, question.seen


def test_bytes_that_never_come_are_a_timeout(checked) -> None:
    report = checked(_CHANGES.format(field="requires_grad", change="payload[-1] = payload[-1][:-4]"), call_s=2.0)
    assert report.question("values").status == "RUN_TIMEOUT"


@pytest.mark.parametrize("second", ["(y,)", "y[:2]", *(
    pytest.param(second, marks=pytest.mark.long) for second in ("y.to(torch.complex64)", "y.double()", "None"))])
def test_another_kind_of_output_when_called_again_is_told(checked, second: str) -> None:
    """The first call is right; what comes later is compared with it all the same."""
    body = "y = torch.relu(self.linear(x)) * self.scale\n        self.calls += 1\n        return y if self.calls < 4 else "
    text = models.RIGHT.replace("return torch.relu(self.linear(x)) * self.scale", body + second).replace(
        "self.scale = scale", "self.scale, self.calls = scale, 0")
    report = checked(text)
    assert failed(report) and "judge" not in failed(report), failed(report)


def test_a_dtype_of_which_only_the_name_is_known_is_the_files_own_failure(checked) -> None:
    text = models.RIGHT.replace("return torch.relu(", "return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)\n"
                                "        return torch.relu(")
    question = checked(text).question("values")
    assert question.status == "LAUNCH_FAILED" and "dtype quint8" in question.seen, question


def test_a_result_that_is_only_announced_takes_no_memory(tmp_path: Path) -> None:
    """Here the size is allowed, because nothing says what is expected."""
    process = ForeignProcess("candidate", device="cpu", limits=Limits(8 << 30), scratch=tmp_path)
    try:
        text = _CHANGES.format(field="requires_grad", change="kinds[0]['shape'] = message['shape'] = [1 << 30]")
        process.ask(requests.Load(text, "ModelNew", "cpu"))
        process.ask(requests.Make("m", "[8]", "{}", 1))
        before = peak_bytes()
        with pytest.raises(Ended, match="Still not done after 1.5 s"):
            process.ask(requests.Call("m", 1), [wire.torch.zeros(4, 8)], limit_s=1.5)
        assert peak_bytes() - before < 64 << 20
    finally:
        process.close()


def test_time_without_a_core_does_not_count_towards_the_limit(tmp_path: Path) -> None:
    """Four processes share a core. The call needs a second of it, about four by the clock. A call that sleeps gets no more."""
    spins = [sys.executable, "-c", "while True: pass"]
    process = ForeignProcess("candidate", device="cpu", limits=Limits(8 << 30), scratch=tmp_path)
    others: list[subprocess.Popen[bytes]] = []
    body = "import time\n        begin = time.process_time()\n        time.sleep(30 * (x[0, 0] > 0))\n        " \
           "while time.process_time() < begin + 1:\n            pass\n        return torch.relu("
    try:
        text = models.RIGHT.replace("return torch.relu(", body)
        process.ask(requests.Load(text, "ModelNew", "cpu"))
        process.ask(requests.Make("m", "[8]", "{}", 1))
        core = min(os.sched_getaffinity(0))
        others += [subprocess.Popen(spins) for _ in range(3)]
        for pid in (*process.family(), *(one.pid for one in others)):
            os.sched_setaffinity(pid, {core})
        begin = time.monotonic()
        process.ask(requests.Call("m", 1), [wire.torch.zeros(4, 8)], limit_s=1.5)
        assert time.monotonic() - begin > 1.6
        with pytest.raises(Ended, match="Still not done after 1.5 s"):
            process.ask(requests.Call("m", 1), [wire.torch.ones(4, 8)], limit_s=1.5)
        assert time.monotonic() - begin < 20
    finally:
        for one in others:
            one.kill()
        process.close()


def test_large_tensors_pass_through_a_shared_window_and_are_copied() -> None:
    """The other side may write to the window at any time. What has been received stays as it was."""
    memory = wire.torch.zeros(1 << 20, dtype=wire.torch.uint8)
    shared = window.Window(memory)
    large, small = wire.torch.arange(1 << 15, dtype=wire.torch.float64), wire.torch.ones(3, dtype=wire.torch.bool)
    turned, too_large = large[:1 << 14].view(128, 128).t(), wire.torch.randn(1 << 19)
    line, *parts = wire.pack({"id": 1}, [large, small, turned, too_large], shared)
    assert [bool("at" in kind) for kind in json.loads(line)["tensors"]] == [True, False, True, False]
    assert sum(map(len, parts)) == small.nbytes + too_large.nbytes
    stream = b"".join(map(bytes, parts))
    taken = 0

    def read(size: int) -> bytearray:
        nonlocal taken
        taken += size
        return bytearray(stream[taken - size:taken])

    header, received = wire.unpack(line, read, window=shared)
    memory.fill_(255)
    assert header == {"id": 1}
    for one, sent in zip(received, (large, small, turned, too_large), strict=True):
        assert one.dtype == sent.dtype and wire.torch.equal(one, sent)


@pytest.mark.parametrize("place", [-256, 1, 256.0, True, "0", 1 << 62, (1 << 20) - 256, None, [0]], ids=repr)
def test_a_tensor_that_does_not_lie_in_the_window_is_refused(place: object) -> None:
    shared = window.Window(wire.torch.zeros(1 << 20, dtype=wire.torch.uint8))
    line, = wire.pack({}, [wire.torch.ones(1 << 15)], shared)
    with pytest.raises(NotTheProtocol):
        wire.unpack(line, bytearray)    # none is open
    changed = json.loads(line)
    changed["tensors"][0]["at"] = place
    if place is None:   # then it comes through the pipe
        changed["tensors"][0] |= {"shape": [1]}
        assert float(wire.unpack(json.dumps(changed).encode(), bytearray, window=shared)[1][0]) == 0.0
        return
    with pytest.raises(NotTheProtocol, match="outside the shared memory"):
        wire.unpack(json.dumps(changed).encode(), bytearray, window=shared)


def peak_bytes() -> int:
    line = next(s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def test_a_shared_file_that_is_cut_short_leaves_the_judge_alive(checked, forking_judge) -> None:
    """Timed results lie in a file that the process has opened, and may shorten while the judge reads."""
    text = models.RIGHT + '''
import mmap
import os

_open = mmap.mmap
_kept = []


def _mapped(fd, *rest):
    _kept.append(os.dup(fd))
    return _open(fd, *rest)


mmap.mmap = _mapped
from workbench.measure.check.host import calls as host_calls

_wait = host_calls._wait


def _cut(device):
    _wait(device)
    for fd in _kept:
        os.ftruncate(fd, 0)


host_calls._wait = _cut
'''
    with survives(forking_judge):
        report = checked(text, time=True, effort="quick")
    assert not report.times, report.question("times")


def test_every_request_has_an_operation_and_every_operation_a_request() -> None:
    own = {name for name, value in vars(host.Host).items() if callable(value) and not name.startswith("_")} - {"answer"}
    assert own | host._CALLS.keys() == REQUESTS.keys()


@pytest.mark.parametrize("request_type", REQUESTS.values(), ids=REQUESTS)
def test_every_field_of_a_request_and_its_answer_has_a_type(request_type: type[requests.Request]) -> None:
    for kind in (request_type, *(get_args(request_type.answer) or (request_type.answer,))):
        assert is_dataclass(kind) and kind.__dataclass_params__.frozen
        assert not list(untyped(kind, set()))


MAKE = {"module": "m", "arguments": "[8]", "keywords": "{}", "seed": 1}


@pytest.mark.parametrize(("op", "request_", "said"), [
    ("make", {**MAKE, "sede": 2}, "sede is not known"),
    ("make", {k: v for k, v in MAKE.items() if k != "keywords"}, "keywords is missing"),
    ("make", {**MAKE, "seed": "1"}, "seed is '1', not a whole number"),
    ("call", {"module": "m", "inputs": 1, "poisoned": True}, "poisoned is not known"),
    ("run", {"order": [0, 8, 16, 1], "stride": 4}, "order is not three numbers a call")])
def test_a_request_that_does_not_fit_is_refused_by_name(tmp_path: Path, op: str, request_: dict, said: str) -> None:
    """By the process itself, which goes on."""
    process = ForkedProcess("candidate", device="cpu", limits=Limits(4 << 30), scratch=tmp_path)
    try:
        process.ask(requests.Load(models.RIGHT, "ModelNew", "cpu"))
        process.ask(requests.Make("m", "[8]", "{}", 1))
        with pytest.raises(Raised) as refused:
            process.ask(Untyped(op, request_))
        assert refused.value.message == f"The request {op!r} cannot be read: {said}."
        assert process.ask(requests.Call("m", 1), [wire.torch.zeros(4, 8)])[0].shape == (4, 8)
    finally:
        process.close()


class Untyped(dict, requests.Request):
    """Goes through the pipe as it is."""

    def __init__(self, op: str, keys: dict) -> None:
        super().__init__(keys)
        self.op, self.answer = op, requests.Done


def test_a_request_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="The operation 'load_all' is not known"):
        requests.read({"op": "load_all", "request": {}})
    with pytest.raises(ValueError, match="has the keys op and request, not also, op, request"):
        requests.read({"op": "drop_ways", "request": {}, "also": 1})


@pytest.mark.parametrize(("request_", "answer", "said"), [
    (requests.Run((), 4), {"done": True, "passed": True}, "passed is not known"),
    (requests.Give(1), {"arguments": "[]"}, "keywords is missing"),
    (requests.Prepare("m", "forward", 0, 1), {"bytes": -1, "kinds": []}, "bytes is beyond its range"),
    (requests.Prepare("m", "forward", 0, 1), {"bytes": 4, "kinds": [{"dtype": "load", "shape": [1]}]},
     "kinds[0].dtype is not known"),
    (requests.AskWaits("m"), {"call_s": float("inf"), "all_s": 1.0}, "call_s is beyond its range"),
    (requests.Load("", "Model", "cpu"), {"parameters": [], "defaults": {"scale": 1e999}, "calls": [], "seconds": 1,
                                         "own_export": False}, "defaults holds a number that is not finite")])
def test_a_field_that_does_not_fit_is_refused_by_name(request_: requests.Request, answer: dict, said: str) -> None:
    with pytest.raises(NotTheProtocol) as refused:
        request_.accept((), answer, [])
    assert str(refused.value) == f"the answer to {request_.op} does not fit: {said}"


# -- malformed answers, many, straight into the judge's reader ---------------------------------------------------------------

_X = wire.torch.arange(32, dtype=wire.torch.float32).reshape(4, 8)
_SENT = (_X, _X + 1)
_OUTPUT = {"type": "Tensor", "dtype": "float32", "shape": [4, 8], "device": "cpu", "requires_grad": True}
_KINDS = [{"dtype": "float32", "shape": [4, 8]}]
# request, its right answer, the tensors that come with it
_RIGHT = [
    (requests.Call("m", 1, ("input 0", "weight"), echo=True), {**_OUTPUT, "gradients": ["input 0", None]}, (2 * _X, _X, _X)),
    (requests.Make("m", "[8]", "{}", 1), {"names": ["weight", "bias"], "parameters": ["weight"], "structure": None,
                                          "convolves": False}, (_X, _X[0])),
    (requests.Give(1), {"arguments": "[8]", "keywords": "{}"}, (_X,)),
    (requests.Load("", "Model", "cpu"), {"parameters": ["size"], "defaults": {"scale": 2.0}, "calls": [
        {"name": "x", "functions": ["f"], "cpp_sources": [], "cuda_sources": ["y"], "cuda_flags": []}], "seconds": 0.5,
        "own_export": False}, ()),
    (requests.TwoCalls("m", 1, 2), {"buffers": [], "first": ["output"], "second": ["output"], "parameters": [], "inputs": []},
     (_X, _X)),
    (requests.Prepare("m", "forward", 0, 1), {"bytes": 128, "kinds": _KINDS}, ()),
    (requests.PrepareWay("eager"), {"kinds": _KINDS, "strides": [[8, 1]], "kernels": ["k"]}, ()),
    (requests.AskWaits("m"), {"call_s": 0.5, "all_s": 1.0}, ()),
    (requests.Run((), 4), {"done": True}, ()),
    (requests.Run((), 4), {"raised": {"type": "X", "message": "m", "line": 3, "where": "", "trace": "",
                                      "detail": {"build": "", "calls": []}}}, ()),
]
_ODD = (None, True, False, -1, 0, 1, 7, 1 << 28, 1 << 63, 1 << 200, -0.5, 1e308, 1e999, float("nan"), "", "float32", "quint8",
        "Tensor", "\x1b[2J", "x" * 3000, [], {}, [[]], [-4, 8], [1 << 40, 1 << 40], {"shape": [4, 8]}, [[[[[[]]]]]], _KINDS)


def malformed(drawn: random.Random) -> tuple[requests.Request, bytes]:
    """A request, and what a process might send for its answer: the right message with some changes."""
    request, answer, tensors = drawn.choice(_RIGHT)
    line, *payload = map(bytes, wire.pack({**answer, "id": 5}, tensors))
    if drawn.random() < 0.7:
        message = json.loads(line)
        for _ in range(drawn.choice((1, 1, 2, 5))):
            holder, key = drawn.choice(list(places(message)))
            change = drawn.random()
            if change < 0.2:
                del holder[key]
            elif change < 0.3 and isinstance(holder, list) and len(holder) < 100:
                holder *= drawn.choice((2, 2, 2, 50))
            elif change < 0.4 and isinstance(holder, dict):
                holder[drawn.choice(("passed", "id", "tensors", "raised", ""))] = deepcopy(drawn.choice(_ODD))
            else:
                holder[key] = deepcopy(drawn.choice(_ODD))
            if not message:
                break
        line = json.dumps(message).encode() + b"\n"
    data = bytearray(b"".join((line, *payload)))
    if drawn.random() < 0.4:
        for _ in range(drawn.choice((1, 3, 20))):
            at = drawn.randrange(len(data) + 1)
            data[at:at + drawn.choice((0, 0, 1, 4, 100))] = drawn.choice((b"", b"\n", b"[" * 2000, b"\xff", b"{}", b"9" * 5000,
                                                                         drawn.randbytes(3)))
    return request, bytes(data[:(1 << 20) - 1])  # what a pipe holds


def places(value: object) -> Iterator[tuple[Any, Any]]:
    """All pairs of a list or dict and one of its keys."""
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()):
        yield value, key
        yield from places(inner)


def read_by_the_judge(request: requests.Request, data: bytes) -> wire.Received | None:
    """Through a pipe, as in `ForeignProcess.ask`. None for what is refused; any other exception is a crash."""
    process = ForeignProcess.__new__(ForeignProcess)
    process._number = 5
    from_read, from_write = os.pipe()
    fcntl.fcntl(from_write, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.write(from_write, data)
    os.close(from_write)
    line = wire.Line(os.open(os.devnull, os.O_WRONLY), from_read, lambda: None, lambda: 0.0)
    try:
        return line.receive(time.monotonic() + 20, most_bytes=1 << 26, accept=partial(process._accept, request, _SENT))
    except (NotTheProtocol, EOFError):
        return None
    finally:
        line.close()


@pytest.mark.parametrize(("count", "seed"), [(1000, 1), pytest.param(100_000, 2, marks=pytest.mark.long)])
def test_malformed_answers_are_refused_or_read_as_they_are(count: int, seed: int) -> None:
    """What is accepted says exactly what was sent: the same fields of the same types, and the same bytes. So a verdict about it
    is a verdict about what the process sent."""
    drawn, accepted = random.Random(seed), 0
    before = peak_bytes()
    for _ in range(count):
        request, data = malformed(drawn)
        read = read_by_the_judge(request, data)
        if read is None:
            continue
        accepted += 1
        answer, tensors = read
        line, _, payload = data.partition(b"\n")
        sent = json.loads(line)
        said = to_json({"raised": answer} if isinstance(answer, Told) else answer)
        kinds = sent.pop("tensors")
        assert sent.pop("id") == 5 and same(json.loads(said), sent), (said, sent)
        assert [{"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape)} for t in tensors] == kinds
        assert payload.startswith(b"".join(bytes(part) for part in wire.pack({}, tensors)[1:]))
    assert count / 100 < accepted < count / 2, accepted
    assert peak_bytes() - before < 256 << 20


def same(read: object, sent: object) -> bool:
    """Equal, and of equal types but for whole numbers in the place of floats. A field that was left out has its default."""
    if isinstance(read, dict) and isinstance(sent, dict):
        return sent.keys() <= read.keys() and all(same(read[key], sent[key]) for key in sent)
    if isinstance(read, list) and isinstance(sent, list):
        return len(read) == len(sent) and all(map(same, read, sent))
    return read == sent and isinstance(read, bool) == isinstance(sent, bool) and isinstance(read, str) == isinstance(sent, str)
