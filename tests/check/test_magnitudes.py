"""Work done in float16 is told by its range: digits alone do not tell it from TF32, nor three parts of it from float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from workbench.core.answers import Answer, Question
from workbench.core.layer import ConvTranspose, Workload
from workbench.drive.checking.attacks import modules
from workbench.drive.checking.check import workload_reference
from workbench.measure.check.questions import magnitudes

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
