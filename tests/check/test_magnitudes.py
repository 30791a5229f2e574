"""Precision of a file. A convolution that is right in TF32, as PyTorch's default on a GPU is, is told so on the CPU. Work done
in float16 is told by its range: digits alone do not tell it from TF32, nor three parts of it from float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from workbench.core.answers import Answer, CheckReport, Question
from workbench.core.layer import ConvTranspose, Workload
from workbench.drive.checking.attacks import attacks, modules, reference
from workbench.drive.checking.check import workload_reference
from workbench.measure.check.host.ways import in_tf32, rounded
from workbench.measure.check.questions import cases, magnitudes

from . import models
from .conftest import failed, trial_of

LAYER = Workload(ConvTranspose(2, 4, 6, 3, stride=2, padding=1), 1, (8, 9))
Ask = Callable[..., Question]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """The question of one file, asked as on a GPU (TF32's tolerance) or as on the CPU, once its usual numbers are right."""
    def run(text: str, reference: str, *, of_float32: str = "ieee") -> Question:
        with trial_of(text, reference, tmp_path) as (trial, case):
            trial.of_float32 = of_float32
            given = trial.run(case)
            assert not given.problems, given.problems
            return magnitudes.ask(trial, given)
    return run


@pytest.mark.parametrize(("name", "of_float32", "status", "words"), [
    ("float16", "tf32", "NON_FINITE", "computes in float16"),
    ("float16_backward", "tf32", "NON_FINITE", "computes its backward in float16"),
    ("float16_parts", "ieee", "NON_FINITE", "computes in float16"),
    ("float16_normalised", "ieee", "MISMATCH", "computes in float16"),
    ("float16_for_usual_weights", "ieee", "NON_FINITE", "computes in float16"),
])
def test_work_in_float16_is_right_near_1_and_told_by_its_range(ask: Ask, name: str, of_float32: str, status: str,
                                                               words: str) -> None:
    text = modules()[name]
    question = ask(text, workload_reference(LAYER)[0], of_float32=of_float32)
    assert question.answer is Answer.FAILED and question.status == status and words in question.seen, question


PARTS_OF_BFLOAT16 = modules()["float16_parts"].replace(".half()", ".bfloat16()")
IN_DOUBLE = """
from torch import nn

class ModelNew(nn.{kind}):
    def forward(self, x):
        bias = None if self.bias is None else self.bias.double()
        return nn.functional.{function}(x.double(), self.weight.double(), bias, self.stride, self.padding,
                                        self.output_padding, self.groups, self.dilation).to(x.dtype)
"""


@pytest.mark.parametrize(("layer", "size", "text"), [
    (LAYER.layer, (8, 9), PARTS_OF_BFLOAT16),
    (ConvTranspose(1, 1, 1, 3, bias=False), (7,), ""),
    (ConvTranspose(3, 6, 4, (2, 3, 1), stride=(1, 2, 3), output_padding=(0, 1, 0), groups=2), (3, 4, 2), ""),
    (ConvTranspose(1, 6, 9, 4, stride=3, groups=3, dilation=2), (11,), IN_DOUBLE.format(
        kind="ConvTranspose1d", function="conv_transpose1d")),
], ids=["parts of bfloat16", "one channel", "3-D with groups", "in double"])
def test_what_keeps_float32_s_range_passes(ask: Ask, layer: ConvTranspose, size: tuple[int, ...], text: str) -> None:
    reference = workload_reference(Workload(layer, 2, size))[0]
    question = ask(text or reference.replace("class Model(", "class ModelNew("), reference)
    assert question.answer is Answer.PASSED, question


CLIPPED = models.REFERENCE.replace("self.linear(x)", "self.linear(x).clamp(-65504, 65504)")
TANH = models.LAYER.replace("    pass\n", "    def forward(self, x):\n        return torch.tanh(super().forward(x))\n")


@pytest.mark.parametrize(("reference", "text", "answer"), [
    (models.REFERENCE, models.REFERENCE, Answer.PASSED), (models.REFERENCE, CLIPPED, Answer.FAILED),
    (TANH, TANH, Answer.SKIPPED)], ids=["linear and relu", "clipped", "a layer and tanh"])
def test_of_any_module_it_is_asked_where_larger_inputs_give_only_larger_outputs(ask: Ask, reference: str, text: str,
                                                                               answer: Answer) -> None:
    question = ask(text.replace("class Model(", "class ModelNew("), reference)
    assert question.answer is answer, question


def test_other_types_are_not_asked(checked) -> None:
    reference = models.LAYER.replace("torch.rand(2, 3, 9)", "torch.rand(2, 3, 9, dtype=torch.bfloat16)")
    report = checked(reference.replace("class Model(", "class ModelNew("), reference=reference)
    assert failed(report) == {} and report.question("gradient_values").answer is Answer.PASSED
    assert not [q for q in report.questions if q.key == "range"]


SMALL = Workload(ConvTranspose(2, 4, 6, 3, stride=2, padding=1), 2, (8, 9))
# Operands through ROUND, in forward and backward; sums in float32, then through SUM.
FILE = """
import torch
from torch import nn
from torch.nn.functional import conv_transpose2d


def cut(v):
    return (v.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


def nearest(v):
    return ((v.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, layer):
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return SUM(conv_transpose2d(ROUND(x), ROUND(weight), None, *layer))

    @staticmethod
    def backward(ctx, g):
        with torch.enable_grad():
            x, weight = (ROUND(v.detach()).requires_grad_() for v in ctx.saved_tensors)
            return *torch.autograd.grad(conv_transpose2d(x, weight, None, *ctx.layer), (x, weight), ROUND(g)), None


class ModelNew(nn.ConvTranspose2d):
    def forward(self, x):
        layer = self.stride, self.padding, self.output_padding, self.groups, self.dilation
        y = Rounded.apply(x, self.weight, layer)
        return y if self.bias is None else y + self.bias.view(-1, 1, 1)
"""


def file(rounding: str, of_sums: str = "(lambda y: y)") -> str:
    return FILE.replace("ROUND(", f"{rounding}(").replace("SUM(", f"{of_sums}(")


@pytest.mark.parametrize(("rounding", "more", "seed"), [
    ("nearest", False, 1), ("cut", True, 1),
    ("cut", False, 23), ("cut", False, 30),      # at size 1 its error is larger than the tolerance of TF32
    ("nearest", True, 19), ("nearest", True, 45)])  # a value inside its backward is near a half of TF32's last bit
def test_right_in_tf32_is_a_warning_that_names_it(checked, rounding: str, more: bool, seed: int) -> None:
    reference, text = workload_reference(SMALL)[0], file(rounding)
    if more:
        reference = reference.replace("    pass\n", "    def forward(self, x):\n        "
                                      "return torch.tanh(super().forward(x))\n")
        text = text.replace("return y if self.bias is None else y + self.bias.view(-1, 1, 1)",
                            "return torch.tanh(y if self.bias is None else y + self.bias.view(-1, 1, 1))")
    report = checked(text, reference=reference, seed=seed)
    question = report.question("tf32")
    assert question.answer is Answer.WARNED, report.questions
    assert failed(report) == {}, report.questions
    assert "It computes in TF32" in question.seen and report.question("values").answer is Answer.PASSED


@pytest.mark.parametrize(("rounding", "wrong"), [("cut", 0), ("(lambda v: v.bfloat16().float())", 4)], ids=["TF32", "bfloat16"])
def test_operands_of_few_values_may_have_larger_errors_in_tf32(tmp_path, rounding: str, wrong: int) -> None:
    """As on a GPU, where TF32 is allowed. In two of these calls an error is larger than TF32 has with more values."""
    with trial_of(file(rounding), workload_reference(SMALL)[0], tmp_path) as (trial, case):
        trial.of_float32, found = "tf32", []
        few = [*(c for c in cases.sizes(case) if c.name == "size 1"),
               *(c for c in cases.arguments(case, trial) if c.name == "kernel_size=1")]
        for seed in (1, 37):
            trial.generator.manual_seed(seed)
            found += [trial.run(one).problem("values", "gradient_values") for one in few]
        assert sum(problem is not None for problem in found) == wrong, found


@pytest.mark.parametrize(("text", "key"), [
    (file("(lambda v: v.bfloat16().float())"), "values"), (file("nearest", "(lambda y: y.half().float())"), "values"),
    (file("nearest", "(lambda y: y * 1.0003)"), "values"), (file("(lambda v: v.half().float())"), "range"),
    (file("nearest").replace("(x, weight), nearest", "(x, weight), 1.0003 * nearest"), "gradient_values"),
    (modules()["half"], "values")],
    ids=["bfloat16", "float16 sums", "a factor", "float16 operands", "a factor in backward", "half"])
def test_what_tf32_does_not_explain_is_wrong(checked, text: str, key: str) -> None:
    assert key in failed(checked(text, reference=workload_reference(SMALL)[0]))


def test_rounding_is_that_of_tf32() -> None:
    x = torch.tensor([1 + 2.0**-11, 1 + 3 * 2.0**-11, -1 - 2.0**-11, 1 + 2.0**-12, 3.0], dtype=torch.float64)
    assert torch.equal(rounded(x, "away"), torch.tensor([1 + 2.0**-10, 1 + 2.0**-9, -1 - 2.0**-10, 1, 3]).double())
    assert torch.equal(rounded(x, "even"), torch.tensor([1, 1 + 2.0**-9, -1, 1, 3]).double())
    assert torch.equal(rounded(x, "cut"), torch.tensor([1, 1 + 2.0**-10, -1, 1, 3]).double())


def test_convolutions_and_their_backwards_round_their_operands() -> None:
    module = torch.nn.ConvTranspose1d(3, 4, 3, 2).double()
    x = torch.randn(2, 3, 7, dtype=torch.float64, requires_grad=True)
    g = torch.randn(2, 4, 15, dtype=torch.float64)
    with in_tf32("away"):
        y = module(x)
    grads = torch.autograd.grad(y, (x, module.weight, module.bias), g)
    a, w = (rounded(v, "away").requires_grad_() for v in (x, module.weight))
    expected = torch.nn.functional.conv_transpose1d(a, w, module.bias, 2)
    wanted = torch.autograd.grad(expected, (a, w), rounded(g, "away"))
    torch.testing.assert_close((y, *grads), (expected, *wanted, g.sum((0, 2))), rtol=1e-12, atol=1e-12)


def test_the_terms_of_one_bias_may_cancel_by_chance(tmp_path: Path) -> None:
    """Its gradient is compared on the scale of its terms. A larger error than their rounding is wrong all the same."""
    reference = models.LAYER.replace("return [3, 4, 3, 2]", "return [3, 1, 3, 2]")
    assert reference != models.LAYER
    with trial_of(reference.replace("class Model(", "class ModelNew("), reference, tmp_path) as (trial, case):
        outcome = trial.run(case)
        norm = float(outcome.grad_output.norm())
        outcome.expected["grad_bias"] = torch.tensor([1e-3 * norm], dtype=torch.float64)
        outcome.own["grad_bias"] = outcome.expected["grad_bias"].float()
        for off, problems in ((1e-7, []), (1e-4, ["gradient_values"])):
            outcome.got["grad_bias"] = (outcome.expected["grad_bias"] + off * norm).float()
            outcome.problems.clear()
            trial.compare(outcome)
            assert [p.about for p in outcome.problems] == problems


@pytest.mark.parametrize(("bits", "warned"), [("-65536", True), ("-1", False)])
def test_results_in_bfloat16_that_are_cut_off(checked: Callable[..., CheckReport], bits: str, warned: bool) -> None:
    """Each is within the tolerance, but all errors have the same sign."""
    text = f"""import torch
from torch import nn


class Cut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return (y.contiguous().view(torch.int32) & {bits}).view(torch.float32).bfloat16()

    @staticmethod
    def backward(ctx, g):
        return g.float()


class ModelNew(nn.ConvTranspose2d):
    def forward(self, x):
        if x.dtype != torch.bfloat16:
            return super().forward(x)
        rest = self.stride, self.padding, self.output_padding, self.groups, self.dilation
        bias = None if self.bias is None else self.bias.float()
        return Cut.apply(nn.functional.conv_transpose2d(x.float(), self.weight.float(), bias, *rest))
"""
    report = checked(text, reference=workload_reference(replace(LAYER, dtype="bfloat16"))[0])
    found = [q for q in report.questions if q.key == "rounding"]
    assert failed(report) == {} and [q.answer for q in found] == [Answer.WARNED] * warned
    assert not warned or "On average its outputs are 0.5" in found[0].seen and "cut off" in found[0].seen


@pytest.mark.parametrize(("name", "answer", "words"), [
    ("constant_in_default_dtype", Answer.FAILED, "Where torch.get_default_dtype() is bfloat16: The error of y is "),
    ("float64_of_29_bits", Answer.WARNED, "After .double() the error of y is "),
    ("converted_once_under_autocast", Answer.WARNED, "in train mode, y is wrong after the parameters have changed."),
    ("skips_zero_weights", Answer.WARNED, "With one NaN among the inputs, where half of the parameters is zero: "),
    ("nothing_if_the_sum_is_zero", Answer.FAILED, " of grad_input is wrong; "),
    ("padding_of_the_call_before", Answer.FAILED, "requested an output size of [11, 16]"),
    ("completes_a_state", Answer.WARNED, "It loads a state without weight."),
    ("another_folder", Answer.WARNED, "It changes os.chdir."),
    ("quiet_numpy", Answer.WARNED, "It changes logging.getLogger().setLevel, numpy.seterr.")])
def test_a_layer_is_wrong_only_under_another_setting_or_type(checked, name: str, answer: Answer, words: str) -> None:
    attack = next(a for a in attacks() if a.name == name)
    question = checked(modules()[name], reference=reference(attack.reference)).question(attack.question)
    assert question.answer is answer and words in question.seen, question
