"""What is asked of any module, and what a wrong one is answered."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.core.answers import Answer, CheckReport, Question
from workbench.core.check_parts import KernelBench, KernelBenchValues
from workbench.core.errors import BadRequest
from workbench.core.orders import CheckOrder
from workbench.drive.checking.check import CheckRequest
from workbench.drive.checking.check_text import not_asked_text, report_text
from workbench.faces.verbs import check as verb
from workbench.measure.check.clock.contestant import no_room, why_not_timed
from workbench.measure.check.foreign.process import Raised
from workbench.measure.check.foreign.replies import Context, Told
from workbench.measure.check.text.build_question import build_question
from workbench.measure.kernel.validate import distance

from . import models
from .conftest import BAD_MODELS, failed, trial_of


@pytest.mark.parametrize(("right", "wrong", "reference", "size"), [
    ("torch.relu(", "1.1 * torch.relu(", models.REFERENCE, "the given"),
    ("    pass", "    def forward(self, x):\n        return 1.1 * super().forward(x)",
     models.LAYER.replace("torch.rand(2, 3, 9)", "torch.rand(4, 3, 50)"), "a small")],
    ids=["generic", "layer"])
def test_what_is_not_asked_of_a_wrong_file_names_the_size_at_which_it_is_wrong(checked, right: str, wrong: str,
                                                                               reference: str, size: str) -> None:
    text = reference.replace("class Model(", "class ModelNew(").split("def get_inputs")[0]
    assert right in text
    report = checked(text.replace(right, wrong), reference=reference)
    said = {q.seen for q in report.questions if "file is already wrong" in q.seen}
    assert said == {f"Not asked: the file is already wrong at {size} size."}, said


def test_a_right_file_passes_everything_and_is_timed(checked_anew) -> None:
    report = checked_anew(models.RIGHT, time=True, effort="quick")
    assert failed(report) == {}
    assert {"values", "gradients", "gradient_values", "other_arguments", "batch_one", "empty_batch", "same_bits",
            "inputs", "times"} <= {q.key for q in report.questions if q.answer is Answer.PASSED}
    assert set(report.times) == {"forward", "backward"}
    assert report.times["forward"].checked >= 3 and report.times["forward"].median_ms > 0
    assert report.kernelbench.values.strict and report.kernelbench.values.ours
    data = json.loads(json.dumps(report.to_json()))
    assert data["badge"].endswith("PASSED") and data["failed"] == 0
    assert {"another rounding mode of the processor", "how often memory is allocated"} <= set(data["not_asked"])


@pytest.mark.parametrize(("name", "expected"), [
    ("OTHER_NAMES_AND_DRAW", {"state_dict": "MISMATCH", "same_draw": "MISMATCH"}),
    ("WRONG_GRADIENT", {"gradient_values": "MISMATCH"}),
    ("IN_PLACE_WITHOUT_SCALE", {"inputs": "INPUT_MODIFIED", "other_arguments": "MISMATCH"}),
    ("RANDOM", {"values": "MISMATCH", "same_bits": "NONDETERMINISTIC"}),
])
def test_a_wrong_file_fails_the_question_it_should(checked, name: str, expected: dict[str, str]) -> None:
    found = failed(checked(getattr(models, name)))
    assert expected.items() <= found.items(), found
    assert "constructs" not in found and "builds" not in found


def test_no_gradient_is_said_in_those_words(checked) -> None:
    report = checked(models.NO_GRADIENT)
    assert "The output requires no grad: there is no backward to check." in report.question("gradients").seen
    assert report.question("gradient_values").answer is Answer.SKIPPED
    assert report.kernelbench.values.strict and not report.kernelbench.values.ours  # KernelBench never looks
    assert "only the forward pass" in report.kernelbench.values.reason


def test_an_answer_kept_by_address_is_not_timed(checked) -> None:
    """Right on fresh tensors, wrong as soon as the values behind an address change: only the timed calls show it."""
    report = checked(models.STALE, time=True, effort="quick")
    assert any(q.key in ("times", "values", "same_bits") and q.answer is not Answer.PASSED for q in report.questions)
    assert not report.times


def test_right_only_for_stride_1_is_told_with_its_smallest_case(checked) -> None:
    report = checked(models.ONLY_STRIDE_1, like="kb81")
    assert {"values": "MISMATCH", "other_arguments": "MISMATCH"}.items() <= failed(report).items()
    seen = report.question("other_arguments").seen   # few were tried
    assert "right for stride=1" in seen and seen.partition(". For ")[0].count("=") < 16, seen
    assert all("because the values are already wrong: " in report.question(f"other_{n}").seen for n in ("arguments", "sizes"))
    assert report.mistake.found == "no divisibility test"
    assert report.smallest.layer.startswith("ConvTranspose2d(1, 1, 1, stride=") and any(v.wrong for v in report.smallest.values)
    text = report_text(report)
    assert text.startswith(report.badge) and "Same output: no divisibility test" in text
    assert text.index("x FAILED") < text.index("+ PASSED") and "\nagainst KernelBench #81 (small)\non cpu, seed" in text
    assert "forward only, 1 input, at the small size, which is not KernelBench's own" in text
    assert f"this judge                 failed  {len(report.failed)} of {len(report.answered)} questions" in text
    assert "other dtypes than" not in text and "\n  - other dtypes than the given one" in not_asked_text(report)


def test_two_mistakes_in_a_real_layer_are_both_named(checked_anew) -> None:
    """#81 is too much work for all pairs; with few channels it is not."""
    report = checked_anew(models.TWO_MISTAKES, like="kb81")
    assert report.mistake.found == "padding with the wrong sign and taps flipped"
    assert "padding with the wrong sign" in report.mistake.differs and "taps flipped" in report.mistake.differs
    assert "\n".join(line for line in report_text(report).splitlines() if len(line) > 118) == ""


def test_arguments_that_are_fractions_are_tried_too(checked) -> None:
    reference = models.REFERENCE.replace("scale=1", "scale=1.5")
    report = checked(models.KEEPS_ITS_SCALE.replace("scale=1)", "scale=1.5)"), reference=reference)
    assert report.question("values").answer is Answer.PASSED
    seen = report.question("other_arguments").seen
    assert seen.startswith("No. Wrong for scale=1.75; scale=0.75; scale=0.0. For scale=1.75: ") and "% of y is wrong" in seen


@pytest.mark.parametrize(("name", "expected"), [
    ("ONLY_BATCH_4", {"batch_one": ("No. The module raised RuntimeError in line", "Correct the shapes in line"),
                      "other_sizes": ("No. Wrong for batch 3; batch 5; batch 9; batch 65537 and 1 more. For batch 3: The "
                                      "module raised RuntimeError in line",
                                      "Correct the shapes in line")}),
    ("RETURNS_TWO", {"noncontiguous": ("No. For an input with strides: It returns a tuple, the reference returns a tensor.",
                                       "Return the output tensor alone.")}),
    ("RANDOM", {"values": ("No. 100 % of y is wrong; worst y[", "Compare with the reference at the worst index.")}),
])
def test_a_case_is_named_once_and_the_advice_is_for_any_module(checked, name: str, expected: dict) -> None:
    report = checked(getattr(models, name))
    for key, (seen, advice) in expected.items():
        question = report.question(key)
        assert question.seen.startswith(seen) and question.advice.startswith(advice), question


def test_what_could_not_be_run_here_is_not_called_passed() -> None:
    error = Raised(Told("AssertionError", "Torch not compiled with CUDA enabled", None, "", "", Context()))
    builds = build_question(error, "", emulated=True)
    report = CheckReport("m.py", "r.py", "cpu", (builds, Question("values", "Right values?", Answer.SKIPPED, "Not asked.")))
    assert report.badge == "NOT RUN" and not report.ran and not report.failed
    assert report.evidence.startswith("Not answered: \u201cImports and builds?\u201d and 1 more. It needs a GPU")


def test_only_triton_itself_is_named_as_missing() -> None:
    for module, answer in (("triton", Answer.SKIPPED), ("triton.language", Answer.SKIPPED), ("triton_extras", Answer.FAILED)):
        error = Raised(Told("ModuleNotFoundError", f"No module named '{module}'", None, "", "", Context()))
        assert build_question(error, "", emulated=True).answer is answer, module


def test_a_class_of_another_name_is_told_the_name_it_needs() -> None:
    error = Raised(Told("NameError", "the file defines no class ModelNew; it has Modelnew", None, "", "", Context()))
    assert build_question(error, "", emulated=False).advice == "Rename Modelnew to ModelNew."


def test_a_reference_that_does_not_run_is_a_bad_request(checked) -> None:
    with pytest.raises(BadRequest, match="The reference does not run: NameError"):
        from workbench.drive.checking.check import check
        check(CheckRequest(models.RIGHT, "nonsense\n", "cpu"))


@pytest.mark.parametrize(("change", "words"), [
    (("* self.scale", "* self.scale, x"), "does not give expected values in float64: it returns a tuple, not one tensor."),
    (("return torch.relu", "assert x.dtype == torch.float32\n        return torch.relu"),
     "does not give expected values in float64: AssertionError in line"),
    (("return [8]", "return [8, nn.ReLU()]"), "something other than numbers, strings, tuples and lists"),
])
def test_a_reference_that_gives_no_truth_is_a_bad_request(checked, change: tuple[str, str], words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        checked(models.RIGHT, reference=models.REFERENCE.replace(*change))


def test_whole_numbers_are_compared_exactly_and_have_no_gradient(checked) -> None:
    def places(model: str) -> str:
        return model.replace("return torch.relu(self.linear(x)) * self.scale", "return self.linear(x).argmax(1)")

    reference = places(models.REFERENCE)
    report = checked(places(models.RIGHT), reference=reference)
    assert report.ran and failed(report) == {} and report.question("gradients").answer is Answer.SKIPPED
    assert report.question("no_grad").answer is Answer.PASSED and report.question("threads") is None
    wrong = places(models.RIGHT).replace("argmax(1)", "argmin(1)")
    assert failed(checked(wrong, reference=reference))["values"] == "MISMATCH"


def test_an_empty_file_is_a_bad_request() -> None:
    with pytest.raises(BadRequest, match="The candidate is empty"):
        CheckRequest(" \n", models.REFERENCE, "cpu")


@pytest.mark.parametrize(("line", "status"), [(models.ZEROS_WHERE_EXPANDED, "MISMATCH"), (models.ONLY_DENSE, "LAUNCH_FAILED")])
def test_an_expanded_grad_output_is_a_grad_output(checked, line: str, status: str) -> None:
    """Right for every dense one: only y.sum().backward() shows it."""
    report = checked(models.reads_grad_output(line))
    assert failed(report)["gradient_values"] == status
    question = report.question("gradient_values")
    assert question.seen.endswith(", for the grad_output of y.sum().backward(), which is expanded (stride 0).")
    assert question.advice == "Read grad_output by its strides, or take grad_output.contiguous() first."
    assert not report.times


def test_an_expanded_grad_output_of_a_layer_has_its_smallest_case(checked) -> None:
    report = checked(models.LAYER_ZEROS_WHERE_EXPANDED, reference=models.LAYER)
    assert failed(report) == dict.fromkeys(("gradient_values", "views"), "MISMATCH")
    assert report.smallest.expanded and report.smallest.layer.startswith("ConvTranspose1d(1, 1, 1")
    assert report.smallest.input == (1, 1, 1) and any(v.wrong for v in report.smallest.values)
    assert "float32, grad_output 1, expanded" in report_text(report)


def test_gradients_that_cancel_are_not_called_wrong(checked) -> None:
    """The sum of a softmax is 1: its gradient is rounding alone, and another formula's rounding is another."""
    soft = "return torch.softmax(self.linear(x), -1)"
    other = "e = torch.exp(self.linear(x))\n        return e / e.sum(-1, keepdim=True)"
    line = "return torch.relu(self.linear(x)) * self.scale"
    report = checked(models.RIGHT.replace(line, other), reference=models.REFERENCE.replace(line, soft))
    assert failed(report) == {} and report.question("gradient_values").answer is Answer.PASSED


def test_a_sum_that_float16_cannot_hold_is_not_called_wrong(checked) -> None:
    """Of an output of 72008 positions grad_bias is 72008, which is infinite in float16, PyTorch's own, too."""
    model = "from torch import nn\n\n\nclass ModelNew(nn.ConvTranspose1d):\n    pass\n"
    report = checked(model, reference=models.LAYER.replace("torch.rand(2, 3, 9)", "torch.rand(8, 3, 4500).half()"))
    assert failed(report) == {} and report.question("gradient_values").answer is Answer.PASSED


def test_a_reference_whose_output_is_not_finite_is_a_bad_request(checked) -> None:
    def logarithm(model: str) -> str:
        return model.replace("torch.relu(self.linear(x))", "torch.log(x)")

    with pytest.raises(BadRequest, match="its output is not finite on inputs that get_inputs.. draws; change get_inputs.$"):
        checked(logarithm(models.RIGHT), reference=logarithm(models.REFERENCE))


def test_inputs_stay_in_the_range_of_those_of_get_inputs(checked) -> None:
    """log(x - 1) is finite above 1, and nowhere else is it asked."""
    def above_one(model: str) -> str:
        return model.replace("self.linear(x)", "self.linear(torch.log(x - 1))").replace("torch.randn(4, 8)",
                                                                                       "torch.rand(4, 8) + 2")

    report = checked(above_one(models.RIGHT), reference=above_one(models.REFERENCE))
    assert failed(report) == {} and report.question("values").answer is Answer.PASSED


def test_gradients_that_are_not_finite_in_the_reference_are_left_out(checked) -> None:
    def rooted(model: str) -> str:
        return model.replace("self.linear(x)", "self.linear(torch.where(x > 0, x, 0 * x).sqrt())")

    report = checked(rooted(models.RIGHT), reference=rooted(models.REFERENCE), time=True, effort="quick")
    assert failed(report) == {}
    seen = report.question("gradient_values").seen
    assert seen.endswith("Not compared: grad_input, not finite in the reference.") and "linear.weight" in seen
    assert set(report.times) == {"forward"}


@pytest.mark.parametrize("limit", [{"memory_gib": float("nan")}, {"memory_gib": float("inf")}, {"call_s": float("nan")},
                                   {"build_s": -1.0}])
def test_a_limit_that_is_none_is_a_bad_request(limit: dict[str, float]) -> None:
    with pytest.raises(BadRequest, match=f"{next(iter(limit))} is (nan|inf|-1); it must be above 0 and at most"):
        CheckRequest(models.RIGHT, models.REFERENCE, "cpu", **limit)


def test_a_report_says_which_size_was_judged() -> None:
    right = (Question("values", "Right values?", Answer.PASSED, "Yes."),)
    found = KernelBench((), KernelBenchValues(strict=True, loose=True, why="", tolerance=1e-4, trials=5, ours=True))
    small, full, layer = (CheckReport("m.py", name, "cpu", right, kernelbench=found, size=size) for name, size in (
        ("KernelBench #81", "small"), ("KernelBench #81", "full"), ("nn.ConvTranspose1d(3, 4, 5)", "")))
    assert small.headline == "m.py matches KernelBench #81 (small) in all checks that ran"
    assert layer.headline == "m.py matches nn.ConvTranspose1d(3, 4, 5) in all checks that ran"
    warned = [Question(key, f"{key}?", Answer.WARNED, "No.") for key in ("strides", "settings")]
    one, two = (CheckReport("m.py", "r.py", "cpu", (*right, *warned[:count])) for count in (1, 2))
    assert one.headline == "m.py matches r.py in all checks that ran, with 1 warning at “strides?”"
    assert two.headline.endswith(", with 2 warnings, the first at “strides?”") and two.to_json()["headline"] == two.headline
    for report, against, own in ((small, "KernelBench #81 (small)", False), (full, "KernelBench #81 (full)", True),
                                 (layer, "nn.ConvTranspose1d(3, 4, 5)", True)):
        text = report_text(report)
        assert f"\nagainst {against}\non cpu, seed" in text
        lines = [line for line in text.splitlines() if line.startswith("  KernelBench, 1e-")]
        assert len(lines) == 2 and all(("not KernelBench's own" in line) is not own for line in lines)


def test_the_command_hands_the_size_on(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    file.write_text(models.RIGHT)
    (reference := tmp_path / "r.py").write_text(models.REFERENCE)
    for words, size in ((["--preset", "kb81/medium"], "medium"), (["--preset", "kb81"], "small"),
                        (["--layer", "ConvTranspose1d(3, 4, 5)", "--input-size", "9"], ""),
                        (["--reference", str(reference)], "")):
        parser = argparse.ArgumentParser()
        verb.add(parser)
        assert verb.request_from(parser.parse_args([str(file), "--device", "cpu", *words])).size == size


JUMPS = """
import torch
from torch import nn

class Jumping(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return torch.relu(z)

    @staticmethod
    def backward(ctx, grad_output):
        mask = ctx.saved_tensors[0] > 0
        ModelNew.backwards += 1
        if ANYWHERE:
            mask[0, 0] = ~mask[0, 0]
        return grad_output * mask


class ModelNew(nn.Module):
    backwards = 0

    def __init__(self, features, scale=1):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.scale = scale

    def forward(self, x):
        z = self.linear(x)
        return Jumping.apply(z + 3e-6 * torch.cos(1e4 * z.detach())) * self.scale
"""
MANY = models.REFERENCE.replace("(4, 8)", "(8192, 64)").replace("[8]", "[64]")
FEWER = MANY.replace("8192", "2048")


@pytest.mark.parametrize(("anywhere", "wrong"), [("False", False), ("True", True), ("ModelNew.backwards == 1", True)],
                         ids=["near the jump", "always", "the first time"])
def test_a_derivative_that_jumps_is_not_called_wrong(tmp_path: Path, anywhere: str, wrong: bool) -> None:
    """Of half a million values some stand on the other side of a rectifier's jump when its input is off by 3e-6."""
    with trial_of(JUMPS.replace("ANYWHERE", anywhere), MANY, tmp_path) as (trial, case):
        outcome = trial.run(case)
    problems = {(p.about, str(p.status)) for p in outcome.problems}
    off, _, _ = distance(outcome.got["grad_input"].double(), outcome.expected["grad_input"])
    assert off > 10 * outcome.errors["grad_input"].allowed  # some stood there: without the rule all three are wrong
    assert problems == ({("gradient_values", "MISMATCH")} if wrong else set())


def test_a_jumping_derivative_is_timed(checked) -> None:
    """Of many calls some have a value there."""
    report = checked(JUMPS.replace("ANYWHERE", "False"), reference=FEWER, time=True, effort="quick")
    assert not failed(report) and report.times["backward"].verdict, report.question("times")


def test_pytorch_is_timed_once_more_without_the_file_in_both_directions(forking_judge) -> None:
    """Calls one by one have replaced the inputs of a backward before, and the truth is that of the new ones."""
    layer = models.LAYER.replace("torch.rand(2, 3, 9)", "torch.rand(4, 8, 512)").replace("[3, 4, 3, 2]", "[8, 8, 3, 2]")
    slow = layer.replace("    pass", "    def forward(self, x):\n"
                                     "        return sum(super(Model, self).forward(x) for _ in range(16)) / 16")
    order = CheckOrder(layer.replace("class Model(", "class ModelNew("), "ModelNew", slow, "cpu", 4 << 30, 60.0, 60.0,
                       effort="quick", nvcc=False)
    found = forking_judge.call(order, limit_s=120.0, on_event=lambda event: None).times
    assert set(found) == {"forward", "backward"} and all(times.doubted and times.singly for times in found.values())
    for direction, times in found.items():
        assert [one.key for one in times.alone] == list(times.doubted), direction


def test_too_little_memory_is_told_as_such() -> None:
    """Whichever process raises it. And a CUDA graph, which keeps all its tensors twice, is left out before."""
    told = Told("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB. Process 4693 has 612 MiB in use", 351, "",
                "", Context("", ()))
    assert why_not_timed(Raised(told), "cuda:0").why == "Not timed: cuda:0 does not have enough free memory for the results."
    assert no_room("graph", "cpu", 1 << 45) == "it needs more memory than cpu has left"
    assert not no_room("graph", "cpu", 1 << 10) and not no_room("default", "cpu", 1 << 45)


def test_the_first_gradients_import_no_sympy() -> None:
    """It is most of the time of a small check. The gradients are PyTorch's, and so are the strides of grad_output. The timed
    backward does not import it either, and to name the kernels of a call does not import the compiler."""
    program = """
import sys
import torch
from workbench.core.pytorch_ways import WAYS
from workbench.measure.check.host.calls import gradients_of
from workbench.measure.check.host.ways import bind
from workbench.measure.pytorch.baselines import kernels

seen = []
x = torch.rand(4, 5, requires_grad=True)
given = [torch.ones(()).expand(4, 5), torch.rand(5, 4).T, torch.rand(4, 5)]
found = []
for g in given:
    y = torch.relu(x - 0.5)
    y.grad_fn.register_prehook(lambda grads: seen.append(grads[0].stride()))
    found.append(gradients_of(y, g, [x])[0])
layer, again = torch.nn.Linear(5, 2), x.detach()
timed = bind(WAYS["default"], layer, "backward", [again], [torch.rand(4, 2)])
assert any("linear" in name or "mm" in name for name in kernels(lambda: layer(x), "cpu"))
for _ in range(2):
    timed.inputs[0].mul_(2)
    grads = timed.results()
assert not {"sympy", "torch._inductor", "torch._dynamo"} & sys.modules.keys(), "too much is imported"
for one, expected in zip(grads, torch.autograd.grad(layer(again.requires_grad_()), [again, layer.weight, layer.bias],
                                                    timed.inputs[0])):
    assert torch.equal(one, expected)
assert seen == [(0, 0), (1, 4), (5, 1)], seen
for g, grad in zip(given, found):
    assert torch.equal(grad, torch.autograd.grad(torch.relu(x - 0.5), x, g)[0])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=BAD_MODELS.parents[1])
    assert done.returncode == 0, done.stderr


def test_an_output_whose_shape_depends_on_the_values_has_its_gradients(tmp_path: Path) -> None:
    """The reference is asked once for the shape of equal inputs. Here each call has another one."""
    some = models.REFERENCE.replace("(4, 8)", "(40, 8)").replace("return torch.relu(self.linear(x))",
                                                                "return torch.relu(self.linear(x[x[:, 0] > 0]))")
    with trial_of(some.replace("class Model(", "class ModelNew("), some, tmp_path) as (trial, case):
        outcomes = [trial.run(case) for _ in range(3)]
    assert len({o.expected["output"].shape for o in outcomes}) > 1
    for outcome in outcomes:
        assert not outcome.problems and "grad_input" in outcome.errors


def test_what_every_call_raises_is_said_once(checked) -> None:
    report = checked(models._in_forward('raise ValueError("no")'))
    said = [q for q in report.questions if "ValueError" in q.seen]
    assert [q.key for q in said] == ["values"] and said[0].answer is Answer.FAILED, report.questions
    for key in ("other_sizes", "other_arguments", "empty_batch"):
        assert report.question(key).seen == "Not asked, because the call raises.", report.question(key)


def test_a_list_of_get_init_inputs_arrives_as_a_list(checked) -> None:
    """The reference of KernelBench gives lists; a right file may add to one."""
    reference = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, widths):
        super().__init__()
        widths = [8] + WIDTHS
        self.layers = nn.Sequential(*(nn.Linear(i, o) for i, o in zip(widths, widths[1:])))

    def forward(self, x):
        return self.layers(x)


def get_inputs():
    return [torch.randn(4, 8)]


def get_init_inputs():
    return [[6, 4]]
"""
    text = reference.replace("Model(", "ModelNew(").split("def get_inputs")[0]
    report = checked(text.replace("WIDTHS", "widths"), reference=reference.replace("WIDTHS", "list(widths)"))
    assert failed(report) == {} and "widths=[7, 4]" in report.question("other_arguments").seen, report.questions


ADDS_AT_PLACES = """
import torch
from torch import nn


class ModelNew(nn.ConvTranspose1d):
    def forward(self, x):
        (s,), (p,), (d,), k, n = self.stride, self.padding, self.dilation, self.weight.shape[2], x.shape[2]
        to = (torch.arange(k)[:, None] * d + torch.arange(n) * s).flatten()
        parts = torch.einsum("bgil,giok->bgokl", x.unflatten(1, (self.groups, -1)), self.weight.unflatten(0, (self.groups, -1)))
        y = x.new_zeros(len(x), self.out_channels, (n - 1) * s + (k - 1) * d + self.output_padding[0] + 1)
        y = y.index_add(2, to, parts.reshape(len(x), -1, k * n))
        y = y[..., p:y.shape[2] - p]
        return y if self.bias is None else y + self.bias[:, None]
"""
KEEPS_A_TABLE = """
import functools
import torch
from torch import nn


@functools.lru_cache
def table(n):
    return torch.arange(n).float().cos()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return self.linear(x) * table(x.shape[1]).to(x.dtype)[:, None]


def get_inputs():
    return [torch.randn(3, 9, 6)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(("text", "reference", "keys"), [
    (ADDS_AT_PLACES, models.LAYER.replace("2, 3, 9", "2, 8, 33").replace("[3, 4, 3, 2]", "[8, 12, 5, 2, 1]"), ["other_values"]),
    (KEEPS_A_TABLE.replace("Model(", "ModelNew("), KEEPS_A_TABLE, ["modes", "bfloat16"]),
    (models.REFERENCE.replace("Model(", "ModelNew(").replace("torch.relu(", "torch.relu(x) + torch.relu("),
     models.REFERENCE.replace("torch.relu(", "x.clamp(min=0) + torch.relu("), ["other_values"])],
    ids=["a product with a zero beside the input", "a table of the reference, too", "a jump at zero"])
def test_of_what_the_reference_itself_does_nobody_is_warned(checked, text: str, reference: str, keys: list[str]) -> None:
    report = checked(text, reference=reference)
    assert failed(report) == {} and [report.question(key).answer for key in keys] == [Answer.PASSED] * len(keys), \
        [report.question(key) for key in keys]
