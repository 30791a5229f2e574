"""The time of a foreign module: PyTorch's ways beside it, which of them count, the floor, and what is not believed."""

from __future__ import annotations

import random
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from workbench.core.check_parts import DirectionTimes
from workbench.core.confinement import VARIABLE
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.orders import CheckOrder
from workbench.core.presets import preset
from workbench.core.replies import CheckTimes, Device
from workbench.core.typed import read
from workbench.core.verdict import UNSURE
from workbench.drive.checking import check_times
from workbench.drive.checking.attacks import modules, reference
from workbench.drive.checking.check import CheckRequest, check, workload_reference
from workbench.drive.checking.check_text import report_text
from workbench.measure.check.begin import _others
from workbench.measure.check.clock.ladder import LADDER, in_the_running
from workbench.measure.check.clock.slots import Limit, Slots, differs, rounded
from workbench.measure.check.clock.timed_input import Versions, timed_input
from workbench.measure.check.foreign import requests
from workbench.measure.check.host import calls, ways

from . import models
from .models import REFERENCE

STRIDE_1 = Workload(ConvTranspose(2, 6, 4, 3, padding=1, groups=2), 2, (9, 8))
H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 90, "nvidia_h200", 1 << 37, 1 << 37, "", "", 0, "", l2_bytes=50 << 20)
KB81 = preset("kb81").workload("full")


def found(ours_ms: float, precision: str, *baselines: tuple[str, float, str]) -> dict:
    """What the judge says: our time, and each way's key, time and precision."""
    def timing(ms: float) -> dict:
        return {"median_ms": ms, "q25_ms": ms, "q75_ms": ms, "min_ms": ms, "samples": 12, "stop": "samples", "cold_l2": False}

    def samples(ms: float) -> list[float]:
        return [ms * (1 + 1e-4 * (i % 3)) for i in range(12)]

    return {"ours": timing(ours_ms), "samples": samples(ours_ms), "bounds": [], "precision": precision, "calls": 9,
            "checked": 3, "throttled": 0, "left_out": [], "alone": [], "singly": None, "empty_ms": 0.1, "baselines": [
                {"name": LADDER[key].name, "key": key, "timing": timing(ms), "samples": samples(ms), "bounds": [],
                 "precision": p, "process": "reference", "kernels": [f"{key}_kernel"],
                 "drop_in": LADDER[key].drop_in,
                 "why_not": "" if LADDER[key].drop_in else "another memory format"} for key, ms, p in baselines]}


def timed(one: dict, direction: str, workload: Workload, gpu: Device | None) -> DirectionTimes:
    """For the report, as it comes from the judge's process."""
    return check_times.timed(read(CheckTimes, one), direction, workload, gpu)


LADDER_81 = (("default", 1.62, "tf32"), ("tf32_off", 1.22, "ieee"), ("benchmark", 1.10, "tf32"),
             ("channels_last", 0.40, "tf32"), ("compile", 1.60, "tf32"))


@pytest.mark.parametrize(("precision", "against", "ms", "shown"), [
    ("tf32", "eager, cudnn.benchmark", 1.10, "4.23×"), ("ieee", "eager, TF32 off", 1.22, "4.69×")])
def test_the_headline_is_against_the_best_drop_in_way_that_qualifies(precision: str, against: str, ms: float,
                                                                     shown: str) -> None:
    times = timed(found(0.26, precision, *LADDER_81), "forward", KB81, H200)
    assert times.against == against and times.ratio == pytest.approx(ms / 0.26, rel=1e-3)
    assert check_times.sentence("forward", times) == f"forward is {shown} as fast as the best PyTorch ({against})"
    assert times.default_precision == "tf32" and times.default_kernels == ("default_kernel",)
    by_name = {b.name: b for b in times.baselines}
    assert [b.median_ms for b in times.baselines] == [0.40, 1.10, 1.22, 1.60, 1.62]
    assert by_name["channels_last, conversion not counted"].why_not == "another memory format"
    assert by_name["eager"].why_not == ("" if precision == "tf32" else "computes in tf32, the file in ieee")


def test_the_headline_is_against_the_one_that_is_hardest_turn_by_turn() -> None:
    """Ours goes with the machine's slow turns, and so does `benchmark`; `default` has the lower median by luck."""
    one = found(1.0, "tf32", ("default", 1.0, "tf32"), ("benchmark", 1.0, "tf32"))
    slow = [1.0, 2.0] * 6
    one["samples"] = slow
    for baseline, samples, median in zip(one["baselines"], ([1.05, 2.1] * 6, slow), (1.4, 1.5), strict=True):
        baseline["samples"], baseline["timing"]["median_ms"] = samples, median
    times = timed(one, "forward", KB81, H200)
    assert [b.name for b in times.baselines] == ["eager", "eager, cudnn.benchmark"]
    assert times.against == "eager, cudnn.benchmark" and (times.ratio, times.verdict) == (1.0, "SAME")


def test_ways_that_cannot_win_take_part_in_the_first_turns_only() -> None:
    noise = [1.0, 1.1, 0.9, 1.05, 0.95]
    times = {"default": 1.0, "benchmark": 1.2, "as_convolution": 1.6, "channels_last": 0.5, "tf32_on": 0.4}
    samples = {"": noise, **{key: [ms * n for n in noise] for key, ms in times.items()}}
    precisions = dict.fromkeys(times, "ieee") | {"tf32_on": "tf32"}
    assert in_the_running(samples, precisions, "ieee") == ["default", "benchmark"]
    assert in_the_running(samples, precisions, "tf32") == ["tf32_on"]
    assert in_the_running({**samples, "as_convolution": [1.6, 1.0, 1.6, 1.0, 1.6]}, precisions, "ieee") == [
        "default", "benchmark", "as_convolution"]
    short = found(0.3, "ieee", *((key, ms, "ieee") for key, ms in times.items() if LADDER[key].drop_in))
    for baseline in short["baselines"]:
        baseline["samples"] = baseline["samples"][:12 if baseline["key"] == "tf32_on" else 5]
    rows = {r.name: r for r in timed(short, "forward", STRIDE_1, None).baselines}
    assert [rows[LADDER[key].name].verdict for key in ("tf32_on", "as_convolution")] == ["FASTER", "FASTER"]


def test_a_looser_pytorch_alone_is_no_one_to_beat() -> None:
    times = timed(found(0.26, "ieee", ("default", 1.62, "tf32")), "forward", KB81, H200)
    assert times.against == "" and times.verdict == ""
    assert check_times.sentence("forward", times) == "forward: there is no PyTorch mode of the file's precision to compare with"


def test_the_floor_stands_beside_and_below_it_nothing_counts() -> None:
    times = timed(found(0.26, "tf32", *LADDER_81), "forward", KB81, H200)
    assert 0.1 < times.floor_ms < 0.26 and times.floor_limit == "bytes" and not times.implausible
    assert f"{100 * times.floor_ms / 0.26:.0f} % of the limit" in check_times.floor_text(times)
    too_fast = timed(found(0.5 * times.floor_ms, "tf32", *LADDER_81), "forward", KB81, H200)
    assert too_fast.implausible and "the time does not count" in check_times.sentence("forward", too_fast)
    # what fits into the caches may be below it: these calls find their inputs there
    cached = replace(H200, l2_bytes=1 << 40)
    assert not timed(found(1e-3, "tf32", *LADDER_81), "forward", KB81, cached).implausible


def test_launch_bound_and_too_small_are_called_so() -> None:
    notes = timed(found(0.008, "tf32", ("default", 0.02, "tf32"), ("graph", 0.005, "tf32")), "forward", KB81,
                              H200).notes
    assert notes[0].startswith("Too short") and notes[1].startswith("Launch-bound: PyTorch's own call takes 0.0200 ms")
    assert timed(found(1.0, "tf32", ("default", 2.0, "tf32"), ("graph", 1.9, "tf32")), "forward", KB81,
                             H200).notes == ()


def test_what_may_have_been_waiting_is_said_and_is_no_victory() -> None:
    quiet = found(1.0, "tf32", ("default", 2.0, "tf32"))
    quiet["bounds"], quiet["baselines"][0]["bounds"] = [[0.99, 1.0]] * 12, [[1.99, 2.0]] * 12
    busy = {**quiet, "bounds": [[0.5, 1.2]] * 12, "baselines": [{**quiet["baselines"][0], "bounds": [[0.8, 2.0]] * 12}]}
    quiet, busy = (timed(one, "forward", KB81, None) for one in (quiet, busy))
    assert (quiet.verdict, quiet.notes) == ("FASTER", ())
    assert busy.verdict == "UNSURE" and busy.ratio == quiet.ratio and busy.low < 1
    assert busy.notes == ("Other processes used the cores: up to 58 % of a call's time may be waiting for a core.",)


@pytest.mark.parametrize(("key", "precision", "ms", "against", "verdict"), [
    ("default", "tf32", 0.9, "eager, without the file's process", "UNSURE"),
    ("default", "tf32", 1.5, "eager, without the file's process", "FASTER"),
    ("default", "tf32", 1.95, "eager", "FASTER"),
    ("default", "tf32", 2.5, "eager", "FASTER"),
    ("benchmark", "tf32", 0.9, "eager, cudnn.benchmark, without the file's process", "UNSURE"),
    ("benchmark", "fp16", 0.9, "eager", "FASTER")],
    ids=["no victory is left", "a smaller one", "a later moment", "slower alone", "had no memory", "another class"])
def test_pytorch_without_the_files_process_counts_where_it_is_faster(key: str, precision: str, ms: float, against: str,
                                                                     verdict: str) -> None:
    one = found(1.0, "tf32", ("default", 2.0, "tf32"))
    one["alone"] = [{"key": key, "name": LADDER[key].name, "precision": precision, "samples": [ms] * 8}]
    times = timed(one, "forward", KB81, H200)
    assert (times.against, times.verdict) == (against, verdict)
    assert times.ratio == pytest.approx(2.0 if against == "eager" else ms, rel=1e-3)
    assert any("PyTorch is slower while" in note for note in times.notes) == ("without" in against)


def test_clocks_that_were_held_down_are_said() -> None:
    throttled = {**found(1.0, "tf32", ("default", 2.0, "tf32")), "throttled": 3}
    left_out = {**throttled, "ours": {**throttled["ours"], "dropped": 3}}
    said = [timed(one, "forward", KB81, H200).notes for one in (throttled, left_out)]
    assert said == [("The GPU lowered its clocks in 3 turns; all were counted, because too few would be left.",),
                    ("The GPU lowered its clocks in 3 turns; 3 were left out.",)]


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("key", ["channels_last", "channels_last_counted", "as_convolution",
                                 pytest.param("compile", marks=pytest.mark.long)])
def test_every_way_computes_what_the_module_computes(key: str, direction: str) -> None:
    layer = STRIDE_1.layer
    module = nn.ConvTranspose2d(layer.in_channels, layer.out_channels, layer.kernel_size, padding=layer.padding,
                                groups=layer.groups)
    x = torch.randn(STRIDE_1.input_shape)
    inputs = [torch.randn(STRIDE_1.input_shape if direction == "forward" else STRIDE_1.output_shape)]
    values = inputs[0].clone()
    fixed = [] if direction == "forward" else [x]
    expected = ways.bind(LADDER["default"], module, direction, fixed, [t.clone() for t in inputs])
    bound = ways.bind(LADDER[key], module, direction, fixed, inputs)
    factors = torch.randn(values.numel() + 24)
    for begins in ((0, 16), (24, 0), (8, 8)):  # other values each time, as in timed calls
        for one in (expected, bound):
            timed_input(values, factors, begins, one.inputs[0].detach())
        for got, want in zip(bound.results(), expected.results(), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_on_the_cpu_what_can_run_is_timed_and_the_rest_says_why(forking_judge) -> None:
    reference, name = workload_reference(STRIDE_1)
    text = reference.replace("class Model(", "class ModelNew(")
    report = check(CheckRequest(text, reference, "cpu", reference_name=name, effort="quick", nvcc=False, memory_gib=4.0),
                   judge=forking_judge)
    assert not report.failed
    for times in report.times.values():
        ways = [b for b in times.baselines if not b.held_back]  # by chance the file looks faster, and PyTorch is asked again
        assert {b.name for b in ways} == {"eager", "as convolution, flipped weight"}
        assert all(b.precision == "ieee" for b in ways) and times.precision == "ieee"
        assert all(b.kernels for b in ways if b.name == "eager")  # another way may have been given up before its end
        assert times.against.startswith(("eager", "as convolution, flipped weight"))
        why = {one.name: one.why for one in times.left_out}
        assert len(ways) + len(why) == len(LADDER)
        assert why["CUDA graph of the eager call"] == "CUDA graphs need a GPU"
        assert why["eager, TF32 off"] == "this CPU has no TF32"
        assert why["channels_last, conversion counted"] == "effort quick leaves out what cannot replace the layer"
    text = report_text(report)
    assert "PyTorch's default computes in ieee" in text and "the limits of this CPU are not measured" in text
    assert f"({report.times['forward'].against})" in text and "KernelBench, text          failed  it contains 'pass'" in text
    assert "module_ms: " in report.evidence


def test_torch_compile_works_beside_the_questions_on_the_cpu_too(forking_judge) -> None:
    """In a process of its own, which starts with the check; only where the file will be timed."""
    reference, _ = workload_reference(Workload(ConvTranspose(1, 3, 2, 3, bias=False), 2, (9,)))
    text = reference.replace("class Model(", "class ModelNew(")
    order = CheckOrder(text, "ModelNew", reference, "cpu", 4 << 30, 60.0, 60.0)
    assert _others(order) == ("compiler",)
    assert not _others(replace(order, time=False)) and not _others(replace(order, effort="quick"))
    assert not _others(replace(order, text=f"from torch.utils.cpp_extension import load_inline\n{text}"))
    said: list[str] = []
    report = check(CheckRequest(text, reference, "cpu", nvcc=False, memory_gib=4.0), judge=forking_judge, on_text=said.append)
    assert not report.failed and said.index("waiting for torch.compile") < said.index("forward: drawing inputs")
    names = [p.name for p in report.phases]
    assert names.index("waiting for torch.compile") < names.index("forward: preparing torch.compile")
    waiting = report.phases[names.index("waiting for torch.compile")]
    assert waiting.reference_s > 0.9 * waiting.seconds, "the judge itself does nothing then"
    for times in report.times.values():
        assert "torch.compile" in {b.name for b in times.baselines}, times.left_out


def test_a_reference_in_float64_is_timed_in_both_directions(forking_judge) -> None:
    """Its truth is computed in the precision that is timed, beside the backward's graph."""
    reference = models.LAYER.replace("torch.rand(2, 3, 9)", "torch.rand(2, 3, 9, dtype=torch.float64)")
    text = reference.replace("class Model(", "class ModelNew(")
    report = check(CheckRequest(text, reference, "cpu", effort="quick", nvcc=False, memory_gib=4.0), judge=forking_judge)
    assert not report.failed and set(report.times) == {"forward", "backward"}, report.question("times").seen
    assert {t.precision for t in report.times.values()} == {"fp64"}


LESS_WHEN_TIMED = """
import sys
from torch import nn

class ModelNew(nn.ConvTranspose2d):
    def forward(self, x):
        output, frame = super().forward(x), sys._getframe()
        while frame:
            if frame.f_code.co_name == "{where}" and frame.f_code.co_filename.endswith("host/calls.py"):
                return output * 1.0003
            frame = frame.f_back
        return output
"""


@pytest.mark.parametrize("where", ["run", pytest.param("nowhere", marks=pytest.mark.long)])
def test_what_is_timed_is_as_exact_as_what_is_not(where: str, forking_judge) -> None:
    reference, name = workload_reference(STRIDE_1)
    report = check(CheckRequest(LESS_WHEN_TIMED.format(where=where), reference, "cpu", reference_name=name, effort="quick",
                                nvcc=False, memory_gib=4.0), judge=forking_judge)
    assert [(q.key, q.status) for q in report.failed] == ([("times", "MISMATCH")] if where == "run" else [])


SLOW_WHERE_IT_IS_HELD = """
import fcntl
import time

def wanted():
    with open({path!r}) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep({seconds})
""" + REFERENCE.replace("return torch.relu", "wanted()\n        return torch.relu").replace("(4, 8)", "(256, 512)").replace(
    "[8]", "[512]").replace("torch.relu", "torch.tanh")  # whose derivative has no jump for so many values to stand at
HOLDS = """
held = open({path!r}, "a")
fcntl.flock(held, fcntl.LOCK_EX)
"""


def kept_waiting(times: dict) -> bool:
    """The machine that runs the tests had too little left for them; what is sure is then said of less."""
    return any("Other processes used the cores" in note for note in times.notes)


@pytest.mark.long
@pytest.mark.parametrize("holds", [True, False])
def test_what_a_stopped_file_still_holds_makes_no_victory(holds: bool, judge, tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock stands for the GPU's memory: who holds it is stopped while PyTorch is timed, and holds it all the same."""
    monkeypatch.setenv(VARIABLE, "none")
    path = str(tmp_path / "wanted")
    Path(path).touch()
    reference = SLOW_WHERE_IT_IS_HELD.format(path=path, seconds=0.02)
    text = SLOW_WHERE_IT_IS_HELD.format(path=path, seconds=0).replace("class Model(", "class ModelNew(")
    text += HOLDS.format(path=path) if holds else ""
    report = check(CheckRequest(text, reference, "cpu", effort="quick", nvcc=False, memory_gib=4.0), judge=judge())
    assert not report.failed, report.failed
    times = report.times["forward"]
    beside = next(b for b in times.baselines if b.name == "eager")
    if not holds:
        assert beside.median_ms < 20 or kept_waiting(times), times
        return
    assert beside.median_ms > 20
    if kept_waiting(times) and times.verdict == UNSURE:  # no victory to doubt: PyTorch need not be asked again
        return
    assert times.against == "eager, without the file's process", times
    assert any("PyTorch is slower while" in note for note in times.notes)
    assert times.ratio < beside.ratio


def test_a_victory_stays_one_when_the_files_process_is_gone(forking_judge) -> None:
    """The reference does everything five times. PyTorch is timed once more, and takes what it took beside the file."""
    once = REFERENCE.replace("(4, 8)", "(256, 512)").replace("[8]", "[512]").replace("torch.relu", "torch.tanh")
    often = once.replace("return torch.tanh", "[self.linear(x) for _ in range(4)]\n        return torch.tanh")
    said: list[str] = []
    report = check(CheckRequest(once.replace("class Model(", "class ModelNew("), often, "cpu", effort="quick", nvcc=False,
                                memory_gib=4.0), judge=forking_judge, on_text=said.append)
    times = report.times["forward"]
    busy = kept_waiting(times)
    asked = "forward: PyTorch once more, without the file's process" in said
    assert times.against.startswith("eager") and (asked and times.verdict == "FASTER" or busy), times


def test_an_answer_mended_from_the_last_one_is_no_victory(forking_judge) -> None:
    """Of a layer that takes PyTorch some ms; when each call's input had eight new elements, this was three times as fast."""
    reference = """
import torch
from torch import nn

class Model(nn.ConvTranspose2d):
    pass

def get_inputs():
    return [torch.randn(4, 64, 32, 32)]

def get_init_inputs():
    return [64, 64, 5, 2, 2]
"""
    text = modules()["mends_last_answer"]
    report = check(CheckRequest(text, reference, "cpu", effort="quick", nvcc=False, memory_gib=4.0), judge=forking_judge)
    times = report.times["forward"]
    assert not report.failed and (times.verdict != "FASTER" or times.ratio < 1.5), report.speed


@pytest.mark.parametrize(("name", "against", "note"), [
    pytest.param("skips_the_copy", "large_relu", "below a quarter of the time to copy the input and the result",
                 marks=pytest.mark.long),
    ("looks_ahead", "relu_mlp", "")])
def test_help_from_the_host_that_it_runs_in_is_no_victory(name: str, against: str, note: str, judge) -> None:
    """One writes its results where the judge reads them, so that nobody copies what is subtracted; one computes all calls of a
    batch at the first."""
    report = check(CheckRequest(modules()[name], reference(against), "cpu", effort="quick", nvcc=False, memory_gib=4.0),
                   judge=judge())
    times = report.times["forward"]
    assert not report.failed, report.failed
    if kept_waiting(times) or any("Too short for an exact time" in said for said in times.notes):
        return  # there was no sure time to begin with
    assert times.verdict != "FASTER" or times.ratio < 1.5, report.speed
    assert any(note in said for said in times.notes) or not note, times.notes


def test_calls_one_by_one_are_compared_too(forking_judge) -> None:
    """Right in batches, in which it looks ahead; alone a call gets the last answer. The reference is slow, so that it wins."""
    report = check(CheckRequest(modules()["stale_when_alone"], reference("slow_mlp"), "cpu", effort="quick", nvcc=False,
                                memory_gib=4.0), judge=forking_judge)
    if report.times and kept_waiting(report.times["forward"]) and report.times["forward"].verdict == UNSURE:
        return  # no victory to doubt: nothing is timed one by one
    assert {q.key: q.status for q in report.failed} == {"times": "MISMATCH"} and not report.times, report.speed
    assert "A timed call gave a wrong result" in report.question("times").seen


def test_the_inputs_of_timed_calls_cannot_be_computed_ahead(forking_judge) -> None:
    report = check(CheckRequest(modules()["computes_all"], reference("relu_mlp"), "cpu", effort="quick", nvcc=False,
                                memory_gib=4.0), judge=forking_judge)
    assert not report.failed and set(report.times) == {"forward", "backward"}, report.question("times")


@pytest.mark.parametrize("name", ["wrong_once_in_a_batch", "skips_every_fifth"])
def test_every_result_of_timed_calls_is_compared(name: str, forking_judge) -> None:
    report = check(CheckRequest(modules()[name], reference("mlp"), "cpu", effort="quick", nvcc=False, memory_gib=4.0),
                   judge=forking_judge)
    assert {q.key: q.status for q in report.failed} == {"times": "MISMATCH"} and not report.times, report.speed


def test_results_of_two_processes_are_compared_call_by_call() -> None:
    limits = [Limit("float32", [3, 5], 1e-4, 1.0), Limit("float16", [7], 1e-3, 1.0)]
    calls, stride = 9, sum(rounded(n) for n in (60, 14))
    theirs = torch.zeros(calls, stride, dtype=torch.uint8)
    first, second = theirs[:, :60].view(torch.float32), theirs[:, 256:270].view(torch.float16)
    first.normal_(), second.normal_()
    ours = theirs.clone()
    assert not differs(ours, theirs, limits)
    for start, dtype, wrong in ((0, torch.float32, 0.01), (256, torch.float16, 0.1), (0, torch.float32, float("nan"))):
        changed = ours.clone()
        changed[4, start:start + 4].view(dtype)[0] += wrong
        assert differs(changed, theirs, limits)
    near = ours.clone()
    near[:, :60].view(torch.float32)[:] *= 1 + 1e-5
    assert not differs(near, theirs, limits)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_each_part_of_a_large_result_is_compared(dtype: str) -> None:
    """Large results are compared in parts that fit into the cache."""
    kind, count = getattr(torch, dtype), 3 * 2**16 + 5
    theirs = torch.randn(2, count).to(kind)
    limit = Limit(dtype, [count], 1e-3, 1.0)
    assert not differs(theirs.view(torch.uint8), theirs.view(torch.uint8), [limit])
    for place in (0, 2**16, count - 1):
        for wrong in (1.0, float("nan")):
            ours = theirs.clone()
            ours[1, place] += wrong
            assert differs(ours.view(torch.uint8), theirs.view(torch.uint8), [limit]), (place, wrong)
    everywhere = (theirs.double() + 2e-3 * (1 - 2 * torch.randint(2, theirs.shape))).to(kind)
    assert differs(everywhere.view(torch.uint8), theirs.view(torch.uint8), [limit])


def test_what_a_process_has_not_written_is_no_number(tmp_path: Path) -> None:
    """A process can shorten the file of its slots. An older copy then does not stand for what is missing."""
    path = tmp_path / "slots"
    path.write_bytes(torch.ones(3, 64).numpy().tobytes())
    with path.open("r+b", buffering=0) as file:
        slots = object.__new__(Slots)
        slots.stride, slots._files, slots._copies = 256, {"candidate": file}, {}
        assert bool((slots.all("candidate", 3).view(torch.float32) == 1).all())
        file.truncate(300)
        shortened = slots.all("candidate", 3).view(torch.float32)
    assert bool((shortened[0] == 1).all()) and int(shortened.isnan().sum()) == 3 * 64 - 75


def test_inputs_that_cannot_be_changed_are_not_timed(forking_judge) -> None:
    reference = models.REFERENCE.replace("torch.randn(4, 8)", "torch.randint(0, 8, (4, 8))").replace(
        "nn.Linear(features, features)", "nn.Embedding(features, features)")
    text = reference.replace("class Model(", "class ModelNew(")
    report = check(CheckRequest(text, reference, "cpu", effort="quick", nvcc=False, memory_gib=4.0), judge=forking_judge)
    assert not report.failed and not report.times
    assert "would no longer have the structure that get_inputs() gives them" in report.question("times").seen


@pytest.mark.parametrize(("ours", "theirs", "against", "verdict"), [
    ([1.0] * 10, [0.9] * 10, "eager, one call at a time", "UNSURE"),
    ([1.0] * 10, [1.1] * 10, "eager, one call at a time", "FASTER"),
    ([1.0] * 10, [1.9] * 10, "eager, one call at a time", "FASTER"),
    ([1.0] * 10, [2.0, 1.9] * 5, "eager", "FASTER"),
    ([1.0] * 10, [2.1] * 10, "eager", "FASTER")])
def test_calls_one_by_one_count_where_they_say_something_else(ours: list[float], theirs: list[float], against: str,
                                                              verdict: str) -> None:
    one = {**found(1.0, "tf32", ("default", 2.0, "tf32")), "singly": {"ours": ours, "theirs": theirs}}
    times = timed(one, "forward", KB81, H200)
    assert (times.against, times.verdict) == (against, verdict)


@pytest.mark.parametrize("way", ["", "default"])
def test_the_inputs_of_a_backward_are_new_before_a_call_that_is_timed_alone(way: str) -> None:
    """And its graph is, so results that an earlier backward has kept are of no use."""
    file: dict = {}
    exec(modules()["keeps_the_derivative"], file)
    module, (x, other, grad_output), factors = file["ModelNew"](), torch.randn(3, 4, 8), torch.ones(1 << 18)
    batches = calls.Batches()
    batches.device, batches.slots = "cpu", torch.zeros(256, dtype=torch.uint8)
    batches.prepare(module, requests.Prepare("module", "backward", 1, 1), [x, factors, grad_output], "cpu")
    if way:
        batches.prepare_way(requests.PrepareWay(way))
    for given in (x, other):
        if given is other:
            batches.renew(requests.Renew(way, True), [other])
        batches.run(requests.Run((0, 0, 0), 256, way))
        given = given.clone().requires_grad_()
        expected, = torch.autograd.grad(module.right(given), given, grad_output)
        torch.testing.assert_close(batches.slots[:128].view(torch.float32).view(4, 8), expected)
    held = [weakref.ref(t) for t in (*batches.plain, *batches.dummy, batches.slots)]
    batches.drop_ways("", "cpu")
    assert not any(one() is not None for one in held), "the next direction needs their memory"


def test_each_call_that_is_timed_alone_has_new_versions_of_the_parameters() -> None:
    """Some change their sign. The state that the judge knows is the same."""
    module = nn.Linear(3, 2)
    plain, begin = [p.detach().clone() for p in module.parameters()], module.weight._version
    batches = calls.Batches()
    batches.device, batches.slots = "cpu", torch.zeros(256, dtype=torch.uint8)
    batches.prepare(module, requests.Prepare("module", "forward", 0, 1), [torch.ones(1 << 18), torch.randn(4, 3)], "cpu")
    versions = Versions((["weight", "bias"], plain), random.Random(1), ["weight", "bias"])
    seen = set()
    for number in range(8):
        batches.renew(requests.Renew(negated=versions.draw()), [])
        assert all(map(torch.equal, module.parameters(), versions.state[1])) and module.weight._version > begin + number
        seen.add(tuple(bool(torch.equal(p, v)) for p, v in zip(module.parameters(), plain, strict=True)))
    assert len(seen) > 2


def test_less_than_a_pass_over_its_tensors_is_no_victory() -> None:
    times = timed(one := {**found(0.26, "tf32", ("default", 2.0, "tf32")), "empty_ms": 1.1}, "forward", KB81, None)
    assert times.verdict == "UNSURE" and times.notes[-1].endswith("does not count as faster.")
    assert check_times.sentence("forward", times).startswith("forward: 0.260 ms is too short to count as faster than the best")
    # Its backward need not read what no tap reaches. Where the floor of the GPU is known, the floor decides.
    assert timed(one, "backward", KB81, None).verdict == timed(one, "forward", KB81, H200).verdict == "FASTER"
    assert timed({**one, "empty_ms": 2.0}, "backward", KB81, None).verdict == "UNSURE"
