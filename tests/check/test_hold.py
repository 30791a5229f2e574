"""What a file has started stands still while it is not the file's turn to be timed."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from workbench.core.confinement import VARIABLE
from workbench.drive.checking.check import CheckRequest, check
from workbench.drive.checking.check_text import report_text
from workbench.drive.running.worker_process import WorkerProcess
from workbench.faces.ui import check_page
from workbench.measure.check.clock import times
from workbench.measure.check.clock.contestant import Beside
from workbench.measure.check.foreign import confine, hold, requests
from workbench.measure.check.foreign.process import ForeignProcess, Limits, kill_orphans
from workbench.measure.check.foreign.replies import Done, NoWay
from workbench.measure.check.host import calls
from workbench.measure.check.party import Party

from . import models
from .conftest import trial_of
from .forked import ForkedProcess

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
    end = time.monotonic() + 300
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
    candidate.ask(requests.Make("m", "[]", "{}", 1, "float32"))
    all_count_again(candidate)
    candidate.hold(strays=True)
    pids = candidate.family(True)
    candidate.close()
    kill_orphans()
    until(lambda: not any(hold._states(pid) - {"Z", "X"} for pid in pids), "all have ended")


def test_what_goes_on_all_the_same_is_seen(candidate: ForeignProcess) -> None:
    candidate.hold(strays=True)
    pids = candidate.family(True)
    held_at, before_s = time.monotonic(), hold._spent_s(pids)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    until(lambda: hold._spent_s(pids) - before_s > 0.5 and hold._spent_s(pids) - before_s > 0.2 * (time.monotonic() - held_at),
          "it has taken time")
    candidate.resume()
    assert candidate.ran_while_held


# One that is never idle, so that nothing but a stop puts it to rest.
SPINS = """
import os

if os.fork() == 0:
    while True:
        pass
""" + models.RIGHT


class Watched(ForeignProcess):
    """Notes, whenever one process is asked for timed calls, which of all were at rest."""

    all: list[ForeignProcess] = []
    seen: list[tuple[str, dict[str, bool]]] = []

    def ask(self, request: requests.Request, *args, **options):
        if isinstance(request, requests.Run):
            self.seen.append((self.name, {p.name: at_rest(p) for p in self.all}))
        return super().ask(request, *args, **options)

    def begin(self) -> None:
        if self not in self.all:
            self.all.append(self)
        super().begin()


# A backward for which the memory does not suffice: PyTorch raises this where a GPU has too little.
STARVED = """
import torch

class Starved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return y.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
""" + models.RIGHT.replace("return torch.relu(self.linear(x)) * self.scale",
                           "return Starved.apply(torch.relu(self.linear(x)) * self.scale)")


# The same, but only in a timed call.
STARVED_WHEN_TIMED = STARVED.replace('        raise', """        import sys

        frame = sys._getframe()
        while frame and not (frame.f_code.co_name == "run" and frame.f_code.co_filename.endswith("host/calls.py")):
            frame = frame.f_back
        if not frame:
            return gradient
        raise""")


def at_rest(process: ForeignProcess) -> bool:
    return all(hold._states(pid) <= hold._RESTING for pid in process.family())


def test_while_one_is_timed_the_other_is_stopped(tmp_path: Path) -> None:
    with trial_of(SPINS, models.REFERENCE, tmp_path, kind=Watched) as (trial, case):
        found, _ = times.measure(trial, times.Plan(case, "quick"), backward=False, emit=lambda event: None)
        assert set(found) == {"forward"}, found
        assert {name for name, _ in Watched.seen} == {"reference", "candidate"}
        for name, resting in Watched.seen:
            other = "reference" if name == "candidate" else "candidate"
            assert resting[other] and not resting[name], (name, resting)
        assert not at_rest(trial.candidate.process) and not trial.candidate.process.ran_while_held
        ours = found["forward"]
        assert all(0 < least <= sample <= most for sample, (least, most) in zip(ours.samples, ours.bounds, strict=True))


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count it")
def test_what_has_no_core_is_seen_to_wait() -> None:
    """Two that never rest on one core: each has it half of the time."""
    core = min(os.sched_getaffinity(0))
    spins = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
    both = [subprocess.Popen([sys.executable, "-c", spins]) for _ in range(2)]
    try:
        before = [hold.waited_s([p.pid]) for p in both]
        until(lambda: all(hold.waited_s([p.pid]) - then > 0.2 for p, then in zip(both, before, strict=True)), "both wait")
    finally:
        for process in both:
            process.kill()
            process.wait()


def test_what_waited_may_be_its_own_or_not() -> None:
    took, empty = hold.Took(1.0, 0.3), hold.Took(0.2, 0.1)
    least, most = hold.alone(took, empty)
    assert (least, hold.middle(took, empty), most) == pytest.approx((0.5, 0.8, 0.9))
    assert hold.alone(hold.Took(1.0), hold.Took(0.2)) == pytest.approx((0.8, 0.8))
    assert hold.alone(hold.Took(1.0, 5.0), empty)[0] > 0


def test_without_memory_for_a_backward_the_times_of_forward_stay(tmp_path: Path) -> None:
    with trial_of(STARVED, models.REFERENCE, tmp_path) as (trial, case):
        found, missing = times.measure(trial, times.Plan(case, "quick"), backward=True, emit=lambda event: None)
        assert set(found) == {"forward"} and found["forward"].samples
        assert missing.why == "Not timed: cpu does not have enough free memory for the results."


def test_the_report_says_that_backward_was_not_timed(forking_judge: WorkerProcess) -> None:
    report = check(CheckRequest(STARVED_WHEN_TIMED, models.REFERENCE, "cpu", effort="quick", nvcc=False, memory_gib=4.0),
                   judge=forking_judge)
    why = "backward: not timed: cpu does not have enough free memory for the results."
    assert not report.failed and set(report.times) == {"forward"}
    assert report.question("times").seen.startswith("module_ms: forward ") and report.question("times").seen.endswith(why)
    assert report.evidence.endswith(why) and "\nmodule_ms, backward: not timed: " in report_text(report)
    assert report.to_json()["untimed"] == {"backward": "Not timed: cpu does not have enough free memory for the results."}
    assert f"B{why[1:]}" in check_page._speed(report)


# PyTorch's eager call has too little memory in its timed calls from a certain request on. The other way computes the layer by
# other operators, without this forward.
_FRAME = """
import sys

def frame_of(name):
    frame = sys._getframe()
    while frame and not (frame.f_code.co_name == name and frame.f_code.co_filename.endswith("host/calls.py")):
        frame = frame.f_back
    return frame
"""
STARVED_EAGER = _FRAME + models.LAYER.replace("3, 4, 3, 2]", "3, 4, 3]").replace("    pass", """    runs = []

    def forward(self, x):
        frame = frame_of("run")
        request = frame and frame.f_locals["request"]
        if frame and request.way == "default":
            if not self.runs or request is not self.runs[-1]:
                self.runs.append(request)
            if len(self.runs) > ENOUGH_FOR:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().forward(x)""")
STARVED_AT_ONCE = _FRAME + models.REFERENCE.replace("        return torch.relu", """        if frame_of("prepare"):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return torch.relu""")


@pytest.mark.parametrize("enough_for", [0, 1, 4], ids=["the first call", "before the turns", "in a turn"])
def test_a_way_that_has_too_little_memory_when_it_runs_is_left_out(enough_for: int, tmp_path: Path) -> None:
    reference = STARVED_EAGER.replace("ENOUGH_FOR", str(enough_for))
    text = models.LAYER.replace("class Model(", "class ModelNew(")
    with trial_of(text, reference, tmp_path) as (trial, case):
        found, missing = times.measure(trial, times.Plan(case, "quick"), backward=False, emit=lambda event: None)
    assert missing is None, missing
    forward = found["forward"]
    assert [b.key for b in forward.baselines] == ["as_convolution"] and forward.starved == ("default",)
    assert [one.why for one in forward.left_out if one.name == "eager"] == ["it needs more memory than cpu has left"]
    assert {len(forward.samples)} == {len(b.samples) for b in forward.baselines}


def test_the_file_gets_the_memory_of_the_way_that_was_prepared_last(tmp_path: Path) -> None:
    """Here its calls have too little memory until a way is given up."""
    layer = models.LAYER.replace("3, 4, 3, 2]", "3, 4, 3]")
    text = (_FRAME + "class Runs:\n    left = 1\n" + layer).replace("class Model(", "class ModelNew(").replace("    pass", """
    def forward(self, x):
        if frame_of("run") and Runs.left:
            Runs.left -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().forward(x)""")
    with trial_of(text, layer, tmp_path) as (trial, case):
        found, missing = times.measure(trial, times.Plan(case, "quick"), backward=False, emit=lambda event: None)
    assert missing is None, missing
    assert [b.key for b in found["forward"].baselines] == ["default"] and found["forward"].starved == ("as_convolution",)


def test_what_a_way_with_too_little_memory_holds_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it runs, and when its graph is built anew. The error that torch.compile raises hides PyTorch's own."""
    layer = torch.nn.Linear(8, 8)
    batches = calls.Batches()
    batches.device, batches.slots = "cpu", torch.zeros(1024, dtype=torch.uint8)
    batches.prepare(layer, requests.Prepare("module", "backward", 1, 1), [
        torch.randn(4, 8), torch.ones(1 << 18), torch.randn(4, 8)], "cpu")
    run = requests.Run((0, 0, 0), 1024, "default")
    for starve in ("run", "renew"):
        batches.prepare_way(requests.PrepareWay("default"))
        held = weakref.ref(batches.bound["default"])
        with monkeypatch.context() as starved:
            starved.setattr(torch.nn.functional, "linear", _starves)
            if starve == "run":
                batches.bound["default"].results = _starves
            else:
                batches.renew(requests.Renew("default", True), [torch.randn(4, 8)])
            answer, _ = batches.timed(run)
        assert answer == NoWay("it needs more memory than cpu has left", starved=True) and held() is None
        if starve == "run":   # the plain call goes on; a renewal has changed its parameters
            assert batches.timed(requests.Run((0, 0, 0), 1024))[0] == Done(True)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=_starves))
    assert batches.prepare_way(requests.PrepareWay("compile"))[0] == answer


def _starves(*given: object, **named: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def test_the_timing_goes_on_without_a_process_that_has_too_little_memory(tmp_path: Path) -> None:
    """That for cudnn.benchmark: only its own ways need it."""
    processes = [ForkedProcess(name, device="cpu", limits=Limits(4 << 30), scratch=tmp_path) for name in ("benchmark", "spare")]
    benchmark = Party(processes[0], STARVED_AT_ONCE, class_name="Model", emulate=False)
    try:
        benchmark.load()
        with trial_of(models.RIGHT, models.REFERENCE, tmp_path) as (trial, case):
            plan = times.Plan(case, "quick", Beside(benchmark, None, processes[1]))
            found, missing = times.measure(trial, plan, backward=True, emit=lambda event: None)
        assert missing is None and set(found) == {"forward", "backward"}, missing
        assert all(b.process == "reference" for one in found.values() for b in one.baselines)
    finally:
        for process in processes:
            process.close()
