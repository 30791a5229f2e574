"""Files that break, by real processes: each yields a status and a sentence, and the judge lives on.
The self-test as a whole: every attack that the CPU can show gets its status. What the judge itself meets is told, too."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from workbench.core.answers import Answer
from workbench.core.layer import ConvTranspose, Workload
from workbench.drive.checking import selftest
from workbench.drive.checking.attacks import attacks
from workbench.drive.checking.check import Check, CheckRequest, check, judge_process, workload_reference
from workbench.measure.check.foreign.replies import InlineCall, Ran
from workbench.measure.check.party import Party
from workbench.measure.check.text import reached

from ..drive.conftest import until
from . import models
from .conftest import failed, forking, trial_of


@pytest.mark.parametrize(("name", "key", "status", "words"), [
    ("CRASHES", "values", "WORKER_DIED", "signal 11 (SIGSEGV: an address outside its memory) in line 14 while"),
    ("HANGS", "values", "RUN_TIMEOUT", "Still not done after 2 s"),
    ("EXITS", "values", "WORKER_DIED", "ended itself with exit code 0"),
    ("EXITS_AT_IMPORT", "builds", "WORKER_DIED", "ended itself with exit code 0 while the file was imported"),
    ("LEAVES", "builds", "BUILD_FAILED", "SystemExit in line 2"),
    ("PRINTS", "values", "WORKER_DIED", "printed more than 8 MiB"),
    ("FORKS", "values", "WORKER_DIED", "started more than 128 processes"),
    ("MEMORY", "values", "OUT_OF_MEMORY", "MemoryError"),
    ("SYNTAX", "builds", "BUILD_FAILED", "SyntaxError in line"),
])
def test_a_broken_file_has_a_status_and_a_sentence(name: str, key: str, status: str, words: str,
                                                   request: pytest.FixtureRequest) -> None:
    anew = name in ("CRASHES", "EXITS_AT_IMPORT", "FORKS")  # bwrap hands on a signal and an exit code, and holds all children
    checked = request.getfixturevalue("checked_anew" if anew else "checked")
    report = checked(getattr(models, name), call_s=2.0 if name == "HANGS" else 30.0)
    question = report.question(key)
    assert question.answer is Answer.FAILED and question.status == status, question
    assert words in question.seen and question.advice
    assert len([q for q in report.questions if q.answer is Answer.PASSED]) < len(report.questions)


def test_what_leaves_its_group_is_ended_and_told(checked_anew) -> None:
    mine = f"600.{os.getpid()}"
    report = checked_anew(models.DAEMON.replace("time.sleep(600)", f"os.execvp('sleep', ['sleep', '{mine}'])"))
    assert failed(report) == {}, failed(report)
    if not report.confined.bwrap:  # without bwrap's process namespace somebody has to end it
        assert report.question("processes").answer is Answer.WARNED
    until(lambda: f"sleep {mine}" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout)


def test_a_stop_ends_the_check_also_before_its_judge_has_started() -> None:
    check = Check(CheckRequest(models.HANGS, models.REFERENCE, "cpu", time=False, nvcc=False, call_s=1000.0)).start()
    check.stop()
    assert check.wait(300)
    assert check.report is None and check.problem == "Stopped by you."


def test_words_in_the_judges_pipe_are_no_answer(checked_anew) -> None:
    report = checked_anew(models.TALKS)
    assert report.question("builds").status == "WORKER_DIED"
    assert "judge's pipe" in report.question("builds").seen


def test_nothing_of_the_environment_is_handed_on(checked_anew, monkeypatch) -> None:
    monkeypatch.setenv("MY_SECRET_TOKEN", "hunter2")
    report = checked_anew(models.SECRET)
    assert report.question("values").answer is Answer.PASSED, report.question("values")


def test_there_is_no_network_in_the_sandbox(checked_anew) -> None:
    report = checked_anew(models.NETWORK)
    seen = report.question("values").seen
    assert report.question("values").answer is Answer.FAILED
    refused = "PermissionError" in seen and report.confined.landlock  # Landlock, in bwrap or not, is asked first
    assert "Network is unreachable" in seen or refused if report.confined.bwrap else report.confined.why


@pytest.mark.long
@pytest.mark.parametrize("kind", ["kernel", "module"])
def test_every_attack_gets_its_status(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    wanted = [a for a in attacks() if a.kind == kind and "cpu" in a.expected]
    found = selftest.selftest("cpu", wanted=wanted, judge=partial(forking, tmp_path_factory))
    missed = [(r.name, r.status, r.happened) for r in found if not r.caught]
    assert len(found) == len(wanted) and not missed, missed


TEXT = """
import torch


class {name}(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.rand(8, 1 << 20)]


def get_init_inputs():
    return []
"""
_LEFT = 4 << 20  # bytes: much, but less than one of the tensors


def test_a_judge_that_runs_out_of_memory_says_so_and_keeps_what_was_answered() -> None:
    with judge_process("cpu") as judge:
        def on_text(text: str) -> None:
            if text == "the given size":  # its own processes have been started: they do not inherit this
                pid = judge._process.pid
                used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
                resource.prlimit(pid, resource.RLIMIT_AS, (used + _LEFT, used + _LEFT))

        report = check(CheckRequest(TEXT.format(name="ModelNew"), TEXT.format(name="Model"), "cpu", time=False, nvcc=False,
                                    memory_gib=4.0), judge=judge, on_text=on_text)
    assert failed(report) == {"judge": "WORKER_DIED"}, report.questions
    told = report.question("judge")
    assert told.seen.startswith("No. It stopped at an unexpected reply: ") and told.advice == "Report this, with the file."
    assert "MemoryError" in told.seen or "can't allocate memory" in told.seen
    assert report.question("builds").answer == "PASSED" and not report.ran


_PARTS = """
import torch
from torch import nn
try:
    import triton
except ImportError:
    triton = None

def other(x):
    return x * 3

class Unused(nn.Module):
    def forward(self, x):
        return x

class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.n = n
        if n < 0:
            raise ValueError("n")
    def extra_repr(self):
        return "x"
    def half(self):
        return self
    def forward(self, x):
        y: int
        if x.shape[0] == 67:
            return other(x)
        elif self.n == 3:
            z = 1 if x.dim() == 3 else 2
        w = {3: lambda x: x + 1}.get(x.dim(), other)
        try:
            assert x.shape[0] != 5
        except AssertionError:
            return x
        for i in range(z):
            if i == 7:
                continue
        flat = x.dim() == 9 and other(x)
        if x.dim() == 3:
            return x * 2
        x = x + 1
        return x
if __name__ == "__main__":
    print(1)
"""
_NOT_RUN = ["line 10 (other is never called)", "line 25 (half is never called)", "line 29 (`x.shape[0] == 67` is never true)",
            "line 31 (`x.dim() == 3` is always true)", "line 32 (a lambda is never called)",
            "line 36 (`except AssertionError` is never entered)", "line 39 (`i == 7` is never true)",
            "line 40 (`other(x)` is never computed)", "lines 43–44 (never reached)"]


_RECORD = """
import json, sys
from workbench.measure.check.host import lines
text, calls = json.loads(sys.argv[1])
recorder, code = lines.Recorder(), compile(text, lines.FILE, "exec", dont_inherit=True)
recorder.begin(code)
exec(code, namespace := {"__name__": "model_file"})
exec(calls, namespace)
print(json.dumps(recorder.record))
"""


def _record(text: str, calls: str) -> tuple[str, ...]:
    """What a new Python records of that text while it runs the calls."""
    ran = subprocess.run([sys.executable, "-c", _RECORD, json.dumps([text, calls])], check=True, capture_output=True, text=True)
    return tuple(json.loads(ran.stdout))


def test_parts_that_no_call_runs_are_named_with_their_condition() -> None:
    first = _record(_PARTS, "import torch; ModelNew(3)(torch.ones(2, 3, 4))")
    found = reached.parts_that_did_not_run(_PARTS, "ModelNew", reached.joined([first]))
    assert [part.text for part in found] == _NOT_RUN
    both = reached.joined([first, _record(_PARTS, "import torch; ModelNew(3)(torch.ones(67, 3, 4))")])
    assert [part.text for part in reached.parts_that_did_not_run(_PARTS, "ModelNew", both)] == [
        one for one in _NOT_RUN if "67" not in one and "other is" not in one]
    assert reached.joined([first, first[1:]]) is None and reached.joined([("x",)]) is None
    assert reached.joined([(), first]) is None   # one of the records is lost
    assert reached.parts_that_did_not_run("pass", "ModelNew", [1] * 3) is None   # a record of another text


_SHORT = """
try:
    import nowhere
    THERE = True
except ImportError:
    THERE = False
def never():
    return 2
def ran(kernel_size, how=1 if THERE else 2):
    if kernel_size > 0 or never():
        return kernel_size
"""


def test_what_is_not_known_is_not_said() -> None:
    """Of imports that depend on the machine; of functions, if the file compiles some; of CUDA that nothing has counted."""
    call = InlineCall("x", (), (), ("__global__ void k() {}",), ())
    for more, named in (("", ["line 8 (never is never called)", "line 9 (`THERE` is never true)",
                              "line 10 (`never()` is never computed)"]),
                        ("import torch\nFAST = torch.compile", ["line 9 (`THERE` is never true)",
                                                                "line 10 (`never()` is never computed)"])):
        text = _SHORT + more
        record = _record(text, "ran(3)")
        parts = reached.parts_that_did_not_run(text, "ModelNew", reached.joined([record]))
        assert [part.text for part in parts] == named
    for native, what in ((None, "3 parts of its Python text, "), ((), "3 parts of its Python text and its CUDA, ")):
        question, = reached.ask(_SHORT, "ModelNew", [call], [Ran(_record(_SHORT, "ran(3)"), native)], device="cpu")
        assert question.answer is Answer.NOTE and what in question.seen
    deep = "y = " + " + ".join(["1 if x else 2"] * 900) + "\n"
    assert reached.parts_that_did_not_run(deep, "ModelNew", [(1 << 100_000) - 1]) is None
    lost = reached.ask(_SHORT, "ModelNew", [], [Ran(()), Ran(_record(_SHORT, "ran(3)"))], device="cpu")
    assert [q.answer for q in lost] == [Answer.SKIPPED]


def test_a_process_that_ends_before_it_was_asked_leaves_no_whole_record(tmp_path: Path) -> None:
    with trial_of(models.RIGHT, models.REFERENCE, tmp_path) as (trial, _):
        process = trial.candidate.process
        party = Party(process, models.RIGHT, class_name="ModelNew", emulate=False, record=True)
        for known in ([], [False], [False, True]):   # whether each record so far is whole
            party.load()
            assert [bool(one.codes) for one in party.ran] == known
            if known:
                party.note_what_ran()
            process.close()


def test_a_report_names_what_no_question_has_run(checked) -> None:
    text = models.RIGHT.replace("        return torch.relu", "        if x.shape[0] == 97:\n            x = x + 1\n"
                                                            "        return torch.relu")
    line = next(n for n, words in enumerate(text.splitlines(), 1) if "x = x + 1" in words)
    question = checked(text).question("reached")
    assert question.answer is Answer.NOTE and f"line {line} (`x.shape[0] == 97` is never true)" in question.seen
    report = checked(models.RIGHT)
    assert report.question("reached").answer is Answer.PASSED and report.badge.endswith("PASSED")


@pytest.mark.parametrize(("tensor", "beside"), [("x", "size"), ("x", "-16"), ("self.weight", "size")])
def test_a_read_beside_a_tensor_ends_the_process(checked, tensor: str, beside: str) -> None:
    """16 bytes before or behind it, also if the value is not used."""
    report = checked(f"""import ctypes
from torch import nn


class ModelNew(nn.ConvTranspose2d):
    def forward(self, x, output_size=None):
        size = {tensor}.numel() * {tensor}.element_size() // 16 * 16 + 16
        ctypes.c_float.from_address({tensor}.data_ptr() + {beside}).value
        return super().forward(x, output_size)
""", reference=workload_reference(Workload(ConvTranspose(2, 4, 6, 3, stride=2, padding=1), 1, (8, 9)))[0])
    assert "WORKER_DIED" in failed(report).values(), report.headline
    assert any("SIGSEGV: an address outside its memory" in q.seen for q in report.questions)
