"""What `check` can only ask on a GPU: streams, waiting, memory, graphs, torch.compile; and the ladder of times to its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from tests.check import broken_files
from tests.check.broken_files import Broken
from tests.shared import require
from workbench.core.answers import Answer, CheckReport
from workbench.core.layer import Workload
from workbench.core.presets import preset
from workbench.drive.checking import selftest
from workbench.drive.checking.attacks import honest, right_files
from workbench.drive.checking.check import CheckRequest, check, judge_process, workload_reference
from workbench.drive.checking.check_text import report_text
from workbench.drive.running.worker_process import WorkerProcess
from workbench.measure.check.foreign import requests, window
from workbench.measure.check.foreign.process import Ended, ForeignProcess, Limits, Raised
from workbench.measure.check.party import Construction, Party

LAST = "        return self.conv_transpose2d(x)"
SIDE_STREAM = """        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            return self.conv_transpose2d(x)"""
WAITS = """        y = self.conv_transpose2d(x)
        torch.cuda.synchronize()
        return y"""
HOARDS = """        hoard = torch.empty(256 << 20, dtype=torch.uint8, device=x.device)
        return self.conv_transpose2d(x)"""
ASKS_THE_HOST = """        return self.conv_transpose2d(x) if x.sum().item() > -1e30 else x"""


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    require(torch.cuda.is_available(), "no CUDA GPU")


def checked(forward: str = LAST, **options) -> CheckReport:
    reference, name = workload_reference(preset("kb81").workload("small"))
    assert LAST in reference
    text = reference.replace("class Model(", "class ModelNew(").replace(LAST, forward)
    report = check(CheckRequest(text, reference, "cuda:0", reference_name=name, **{"time": False, **options}))
    print(report_text(report))
    return report


@pytest.fixture(scope="module")
def judge() -> Iterator[WorkerProcess]:
    """One for all broken files: none of them is timed."""
    with judge_process() as worker:
        yield worker


@pytest.mark.parametrize("file", broken_files.broken("cuda"), ids=lambda file: file.name)
def test_a_broken_file_is_told_by_its_first_cause(judge: WorkerProcess, file: Broken) -> None:
    request = CheckRequest(file.text, broken_files.reference(), "cuda:0", reference_name="problem.py", time=False, seed=1,
                           call_s=10.0 if file.status == "RUN_TIMEOUT" else 60.0)
    report = check(request, judge=judge)
    question = report.question(file.about)
    assert not file.differs(question), f"{file.differs(question)}\n{report_text(report)}"
    assert next(q for q in report.questions if q.answer is Answer.FAILED) == question


def test_a_right_module_passes_and_is_timed_against_the_whole_ladder() -> None:
    report = checked(time=True)
    assert not report.failed and report.badge.endswith("PASSED")
    for key in ("stream", "waits", "memory", "times"):
        assert report.question(key).answer is Answer.PASSED, report.question(key)
    assert report.question("graph").seen == "Yes." and report.question("compile").seen == "Yes."
    for direction in ("forward", "backward"):
        times = report.times[direction]
        ways = {b.name for b in times.baselines}
        assert {"eager", "eager, TF32 on", "eager, TF32 off", "eager, cudnn.benchmark", "torch.compile",
                "CUDA graph of the eager call", "channels_last, conversion counted"} <= ways, ways
        assert times.against and times.verdict != "FASTER" and times.default_precision in ("ieee", "tf32")
        assert times.checked >= 3 and all(b.kernels for b in times.baselines if b.name == "eager")


@pytest.mark.parametrize(("forward", "key", "answer", "words"), [
    (SIDE_STREAM, "stream", Answer.FAILED, "On a side stream it reads the input before it has arrived"),
    (WAITS, "waits", Answer.WARNED, "Each call waits until the device is idle"),
    (HOARDS, "memory", Answer.WARNED, "more than its inputs, PyTorch"),
    (ASKS_THE_HOST, "graph", Answer.NOTE, "No.")], ids=["side stream", "waits", "hoards", "asks the host"])
def test_what_only_a_gpu_shows(forward: str, key: str, answer: Answer, words: str) -> None:
    question = checked(forward).question(key)
    assert question.answer is answer and words in question.seen, question


def test_a_faster_module_stays_faster_when_its_process_is_gone() -> None:
    """Eight times the work in the reference; PyTorch, timed once more without the file, takes what it took beside it."""
    report = against("for _ in range(7):\n            super().forward(x)\n        return super().forward(x)",
                     "return super().forward(x)")
    times = report.times["forward"]
    assert not report.failed and times.verdict == "FASTER" and (times.ratio or 0.0) > 1.3
    assert not any("PyTorch is slower while" in note for note in times.notes)


def test_tensors_of_a_large_layer_pass_through_a_window(tmp_path: Path) -> None:
    """They arrive on the GPU, and what the process writes there later changes nothing. The next process gets a window, too."""
    process = ForeignProcess("reference", device="cuda:0", limits=Limits(8 << 30), scratch=tmp_path)
    process.share("cuda:0", 64 << 20)
    text = "import torch\nfrom torch import nn\nclass Model(nn.Module):\n    def forward(self, x):\n        return 2 * x\n"
    x = torch.randn(1 << 20, device="cuda:0")
    try:
        for life in range(2):
            process.ask(requests.Load(text, "Model", "cuda:0"))
            process.ask(requests.Make("m", "[]", "{}", 1))
            _, (y,) = process.ask(requests.Call("m", 1), [x])
            assert process._open_line.window is not None, life
            assert y.is_cuda and torch.equal(y, 2 * x)
            process.ask(requests.Call("m", 1), [torch.zeros_like(x)])
            assert torch.equal(y, 2 * x), "it is no copy"
            process.kill()
            with pytest.raises(Ended):
                process.ask(requests.Call("m", 1), [x])
    finally:
        process.close()


def test_processes_with_the_same_text_share_one_window(tmp_path: Path) -> None:
    """One had its own before: its memory is given back. What one wrote there does not change what the other returned."""
    text = "import torch\nfrom torch import nn\nclass Model(nn.Module):\n    def forward(self, x):\n        return 2 * x\n"
    first, second = (ForeignProcess(name, device="cuda:0", limits=Limits(8 << 30), scratch=tmp_path)
                     for name in ("reference", "compiler"))
    x = torch.randn(1 << 20, device="cuda:0")
    try:
        for process in (first, second):
            process.share("cuda:0", 1 << 30)
            process.ask(requests.Load(text, "Model", "cuda:0"))
            process.ask(requests.Make("m", "[]", "{}", 1))
        _, (y,) = second.ask(requests.Call("m", 1), [x])
        before = torch.cuda.memory_allocated()
        second.share_with(first)
        assert torch.cuda.memory_allocated() <= before - (1 << 30)
        for process, factor in ((second, 1), (first, 3), (second, 5)):
            _, (z,) = process.ask(requests.Call("m", 1), [factor * x])
            assert z.is_cuda and torch.equal(z, 2 * factor * x) and torch.equal(y, 2 * x)
        assert first._open_line.window is not None and second._open_line.window is not None
    finally:
        first.close()
        second.close()


def test_a_process_starts_again_after_an_error_that_cuda_keeps(tmp_path: Path) -> None:
    """A reference as BCE asserts on the device that its inputs are probabilities. Only a candidate has then died."""
    text = ("import torch\nfrom torch import nn\nclass Model(nn.Module):\n    def forward(self, x):\n"
            "        return nn.functional.binary_cross_entropy(x, torch.ones_like(x))\n")
    for beside in (None, ForeignProcess("reference", device="cpu", limits=Limits(8 << 30), scratch=tmp_path)):
        process = ForeignProcess("candidate" if beside else "reference", device="cuda:0", limits=Limits(8 << 30),
                                 scratch=tmp_path, beside=beside)
        party = Party(process, text, class_name="Model", emulate=False)
        try:
            for value, raises in ((0.5, False), (-1.0, True), (0.5, False)):
                with pytest.raises(Raised, match="device-side assert") if raises else nullcontext():
                    party.call(Construction(), [torch.full((8,), value)], state=None)
            assert (process.deaths, process.spent.starts) == (int(beside is not None), 2)
        finally:
            process.close()


def test_no_other_tensor_lies_in_memory_that_is_shared() -> None:
    """A process that opens it can read and write the whole allocation."""
    large = torch.empty(1 << 29, dtype=torch.uint8, device="cuda:0")
    beside = torch.empty(1 << 21, dtype=torch.uint8, device="cuda:0")
    del large  # its memory stays with PyTorch's allocator, which likes to cut it
    shared = window.allocate(40 << 20, "cuda:0")
    others = [beside, *(torch.empty(1 << 20, dtype=torch.uint8, device="cuda:0") for _ in range(100))]
    segments = [range(s["address"], s["address"] + s["total_size"]) for s in torch.cuda.memory_snapshot()]
    segment = next(s for s in segments if shared.data_ptr() in s)
    assert not any(t.data_ptr() in segment for t in others)


@pytest.mark.parametrize(("more", "fails"), [("", ""), (" * 1.01", "values")], ids=["right", "one percent off"])
def test_a_layer_whose_tensors_stay_on_the_gpu_is_judged_alike(more: str, fails: str) -> None:
    """At this size they do."""
    reference, name = workload_reference(Workload(preset("kb81").workload("small").layer, 2, (64, 64)))
    text = reference.replace("class Model(", "class ModelNew(")
    if more:
        assert "    pass\n" in text
        text = text.replace("    pass\n", f"    def forward(self, x):\n        return super().forward(x){more}\n")
    report = check(CheckRequest(text, reference, "cuda:0", reference_name=name))
    print(report_text(report))
    assert [q.key for q in report.questions if q.answer is Answer.FAILED][:1] == ([fails] if fails else [])
    if not fails:
        forward = report.times["forward"]
        assert {"eager", "torch.compile"} <= {b.name for b in forward.baselines}, forward.left_out


def test_pytorchs_ways_are_timed_through_a_rectifier_too() -> None:
    """In TF32 some of so many values stand on the other side of the jump; that is no reason to leave a way out."""
    report = against("return torch.relu(super().forward(x))", "return torch.relu(super().forward(x))")
    assert not report.failed
    for times in report.times.values():
        assert {"eager", "eager, TF32 on", "eager, TF32 off"} <= {b.name for b in times.baselines}, times.left_out


def against(theirs: str, ours: str) -> CheckReport:
    """Two bodies of forward, over a layer large enough to take a fifth of a millisecond."""
    plain, name = workload_reference(Workload(preset("kb81").workload("small").layer, 8, (48, 50)))
    assert "    pass\n" in plain
    reference, text = (plain.replace("    pass\n", f"    def forward(self, x):\n        {body}\n") for body in (theirs, ours))
    text = text.replace("class Model(", "class ModelNew(")
    report = check(CheckRequest(text, reference, "cuda:0", reference_name=name, effort="quick"))
    print(report_text(report))
    return report


def test_right_files_are_not_called_wrong() -> None:
    """Every fifth of them. `python -m workbench selftest --honest only` runs all."""
    found = selftest.selftest("cuda:0", wanted=honest()[::5])
    print(*(r for r in found if not r.caught), sep="\n")
    assert selftest.summary(found) == f"0 of {len(found)} right files called wrong" and len(found) > 40


def test_a_declared_precision_is_judged_and_named() -> None:
    reference, text = right_files()["transposed_in_bfloat16"]
    report = check(CheckRequest(text, reference, "cuda:0", time=True, effort="quick"))
    print(report_text(report))
    assert not report.failed and "is right in bfloat16, which it declares" in report.headline
    assert report.times["forward"].precision == "bf16"
    wrong = check(CheckRequest(text.replace(".bfloat16())", ".bfloat16() * 1.05)", 1), reference, "cuda:0", time=False))
    assert {q.key for q in wrong.failed} >= {"values"}, report_text(wrong)
