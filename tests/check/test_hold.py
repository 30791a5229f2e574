"""What a file has started stands still while it is not the file's turn to be timed."""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workbench.core.confinement import VARIABLE
from workbench.measure.check import confine, hold
from workbench.measure.check.party import Party
from workbench.measure.check.process import ForeignProcess, Limits, kill_orphans

# Three that count as fast as they can: a child, one that has left its parents and their group, and a thread whose process
# has lost its first thread, so that it looks dead.
COUNTS = """
import ctypes, mmap, os, struct, threading, time
from torch import nn

file = open(os.path.join(os.environ["HOME"], "counts"), "w+b")
file.truncate(4096)
counts = mmap.mmap(file.fileno(), 4096)

def count(place):
    number = 0
    while True:
        number += 1
        counts[8 * place:8 * place + 8] = struct.pack("q", number)

if os.fork() == 0:
    count(0)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        count(1)
    os._exit(0)
if os.fork() == 0:
    threading.Thread(target=count, args=(2,)).start()
    ctypes.CDLL(None).syscall(60, 0)

class ModelNew(nn.Identity):
    ...
"""


@pytest.fixture(params=["", "none"], ids=["as it is held here", "held by nothing"])
def candidate(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForeignProcess]:
    if request.param:
        monkeypatch.setenv(VARIABLE, request.param)
    confine.confinement.cache_clear()
    confine.adopt_orphans()
    for folder in (tmp_path, *tmp_path.parents[:2]):  # another user has to get through
        folder.chmod(0o755)
    process = ForeignProcess("candidate", device="cpu", limits=Limits(4 << 30), scratch=tmp_path)
    try:
        Party(process, COUNTS, class_name="ModelNew", emulate=False).load()
        until(lambda: all(counts(process)), "all count")
        yield process
    finally:
        process.close()
        kill_orphans()
        confine._libc.prctl(confine._PR_SET_CHILD_SUBREAPER, 0)
        confine.confinement.cache_clear()


def counts(process: ForeignProcess) -> tuple[int, ...]:
    return struct.unpack("3q", (process.scratch / "counts").read_bytes()[:24])


def until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)


def all_count_again(process: ForeignProcess) -> None:
    before = counts(process)
    until(lambda: all(now != then for now, then in zip(counts(process), before, strict=True)), "all count again")


def test_all_that_it_has_started_stops_and_goes_on(candidate: ForeignProcess) -> None:
    for _ in range(3):
        candidate.hold(strays=True)
        before = counts(candidate)
        time.sleep(0.3)
        assert counts(candidate) == before
        candidate.resume()
        all_count_again(candidate)
    assert not candidate.ran_while_held


def test_a_question_lets_it_go_on_and_an_end_ends_all(candidate: ForeignProcess) -> None:
    candidate.hold(strays=True)
    candidate.ask("make", {"module": "m", "arguments": "[]", "keywords": "{}", "seed": 1, "dtype": "float32"})
    all_count_again(candidate)
    candidate.hold(strays=True)
    pids = candidate._family(True)
    candidate.close()
    kill_orphans()
    until(lambda: not any(hold._states(pid) - {"Z", "X"} for pid in pids), "all have ended")


def test_what_goes_on_all_the_same_is_seen(candidate: ForeignProcess) -> None:
    candidate.hold(strays=True)
    pids = candidate._family(True)
    held_at, before_s = time.monotonic(), hold._spent_s(pids)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    until(lambda: hold._spent_s(pids) - before_s > 0.5 and hold._spent_s(pids) - before_s > 0.2 * (time.monotonic() - held_at),
          "it has taken time")
    candidate.resume()
    assert candidate.ran_while_held
