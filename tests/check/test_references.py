"""References of many kinds: what is right against each passes, and what is wrong does not hide behind its own peculiarities."""

from __future__ import annotations

import pytest

from workbench.core.answers import Answer
from workbench.core.errors import BadRequest

from .conftest import failed

FORM = """
import torch
from torch import nn
from torch.nn import functional


class Model(nn.Module):
    def __init__(self, channels=3, kernel=3):
        super().__init__()
        LAYERS

    def forward(self, x):
        return RESULT


def get_inputs():
    return [torch.randn(SHAPE)]


def get_init_inputs():
    return []
"""
CONV = "self.conv = nn.ConvTranspose2d(channels, 4, kernel, stride=2)"
LINEAR = "self.conv = nn.Linear(16, 16)"


def reference(layers: str, result: str, shape: str = "2, 3, 5, 6") -> str:
    return FORM.replace("LAYERS", layers).replace("RESULT", result).replace("SHAPE", shape)


def file(layers: str, result: str, before: str = "") -> str:
    return before + reference(layers, result).split("def get_inputs")[0].replace("class Model(", "class ModelNew(")


@pytest.mark.parametrize(("layers", "result"), [
    (CONV, "functional.max_pool2d(self.conv(x), 2)"), (CONV, "self.conv(x) * 1.005"), (CONV, "torch.relu(self.conv(x))"),
    (CONV.replace("= nn", "= nn.utils.parametrizations.weight_norm(nn") + ")", "self.conv(x)"), (CONV, "self.conv(x).detach()"),
    (CONV + ".requires_grad_(False)", "self.conv(x)")],
    ids=["maximum", "nearly the layer", "rectifier", "normed weight", "no gradients", "frozen"])
def test_a_copy_passes_and_another_result_does_not(checked, layers: str, result: str) -> None:
    text = reference(layers, result)
    right = checked(file(layers, result), reference=text)
    assert failed(right) == {}, right.questions
    wrong = failed(checked(file(layers, result.replace("self.conv(x)", "self.conv(x * 1.01)")), reference=text))
    assert wrong.get("values") == "MISMATCH", wrong


def test_parameters_of_the_constructor_may_have_other_names(checked) -> None:
    """Another value of the second one, while the first has its default, is given by position."""
    for layers in (CONV, CONV.replace("kernel,", "kernel, bias=channels > 2,")):
        text = file(layers, "torch.relu(self.conv(x))").replace("channels", "a").replace("kernel", "b")
        report = checked(text, reference=reference(layers, "torch.relu(self.conv(x))"))
        assert failed(report) == {} and "kernel=4" in report.question("other_arguments").seen, report.questions


def test_a_module_that_is_one_layer_is_known_as_that(checked) -> None:
    assert "grad_weight" in checked(file(CONV, "self.conv(x)"), reference=reference(CONV, "self.conv(x)")).question(
        "gradients").seen


def test_an_output_of_another_shape_is_called_that(checked) -> None:
    report = checked(file(CONV, "self.conv(x).sum(1)"), reference=reference(CONV, "torch.relu(self.conv(x))"))
    assert failed(report)["kind"] == "WRONG_SHAPE"


@pytest.mark.parametrize(("seed", "rows"), [(1, 16384), pytest.param(2, 65536, marks=pytest.mark.long)])
def test_a_copy_of_what_rounds_passes(checked, seed: int, rows: int) -> None:
    """Among so many values PyTorch's own float32 rounds one to another whole number than float64."""
    text = reference(LINEAR, "(self.conv(x) * 100).round()", f"{rows}, 16")
    assert failed(checked(file(LINEAR, "(self.conv(x) * 100).round()"), reference=text, seed=seed)) == {}


def test_what_rounds_otherwise_is_wrong(checked) -> None:
    text = reference(LINEAR, "(self.conv(x) * 100).round()", "64, 16")
    assert failed(checked(file(LINEAR, "(self.conv(x) * 100).floor()"), reference=text))["values"] == "MISMATCH"


def test_a_reference_that_draws_is_called_under_one_seed(checked) -> None:
    """One whose values differ nevertheless is refused."""
    dropout = f"{LINEAR}; self.drop = nn.Dropout(0.5)"
    text = reference(dropout, "self.drop(self.conv(x))", "8, 16")
    right = checked(file(dropout, "self.drop(self.conv(x))"), reference=text)
    assert failed(right) == {} and "under the same seed" in right.question("random").seen
    assert failed(checked(file(dropout, "self.conv(x) * 0"), reference=text))["values"] == "MISMATCH"
    other = reference(LINEAR, "self.conv(x) * __import__('random').random()", "8, 16")
    with pytest.raises(BadRequest, match="also under one seed"):
        checked(file(LINEAR, "self.conv(x) * 0"), reference=other)


def test_what_the_reference_refuses_and_where_it_draws_is_not_asked(checked) -> None:
    """It views its input, which only works for one memory order; and the judge sets its probability of dropout."""
    layers = f"{CONV}; self.drop = nn.Dropout(rate)"
    result = "torch.relu(self.drop(self.conv(x.view(len(x), -1).view(x.shape))))"
    text = reference(layers, result).replace("kernel=3", "kernel=3, rate=0.0")
    report = checked(text.split("def get_inputs")[0].replace("class Model(", "class ModelNew("), reference=text)
    assert failed(report) == {} and report.question("random") is None, failed(report)
    assert "channels_last" not in report.question("noncontiguous").seen
    assert "rate=" not in report.question("other_arguments").seen.replace("rate=0.0", "")


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_gradient_that_is_zero_but_for_rounding_is_no_mistake(checked, seed: int) -> None:
    """The bias before a normalisation has none: each way to compute it leaves another noise."""
    layers = f"{CONV}; self.norm = nn.BatchNorm2d(4, track_running_stats=False)"
    by_hand = '''self.normed(self.conv(x))

    def normed(self, y):
        mean = y.mean((0, 2, 3), keepdim=True)
        scale = torch.rsqrt((y * y).mean((0, 2, 3), keepdim=True) - mean * mean + 1e-5) * self.norm.weight.view(1, -1, 1, 1)
        return y * scale + (self.norm.bias.view(1, -1, 1, 1) - mean * scale)'''
    text = reference(layers, "self.norm(self.conv(x))", "4, 3, 16, 16")
    assert set(failed(checked(file(layers, by_hand), reference=text, seed=seed))) == set()
    if seed != 1:
        return
    timed = checked(file(layers, "self.norm(self.conv(x))"), reference=text, time=True, effort="quick")
    assert timed.times["backward"].precision == "ieee" and timed.times["backward"].against, timed.times["backward"]
    wrong = by_hand.replace("return y", "return 0.999 * y")
    assert "gradient_values" in failed(checked(file(layers, wrong), reference=text)) or "values" in failed(
        checked(file(layers, wrong), reference=text))


PASSES_ON = """
import torch
calls = [0]


class PassesOn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return y.view_as(y)

    @staticmethod
    def backward(ctx, g):
        calls[0] += 1
        return GRADIENT

"""


def passing(gradient: str) -> str:
    """An identity with a backward of its own; `calls` counts it."""
    return PASSES_ON.replace("GRADIENT", gradient)


def test_what_is_wrong_when_called_again_is_found_without_timing(checked) -> None:
    """The sixth backward: three runs of the gradients, for their bits, come after the first case."""
    text = reference(LINEAR, "torch.tanh(self.conv(x))", "8, 16")
    report = checked(file(LINEAR, "torch.tanh(self.conv(PassesOn.apply(x)))", passing("2 * g if calls[0] == 6 else g")),
                     reference=text)
    assert failed(report)["gradient_values"] == "MISMATCH"
    assert "When it is called again, with other values" in report.question("gradient_values").seen


def test_zeros_are_wrong_however_inexact_pytorch_is(checked) -> None:
    text = reference(LINEAR, "self.conv(x) + 1e7 - 1e7", "64, 16")
    assert failed(checked(file(LINEAR, "self.conv(x) + 1e7 - 1e7"), reference=text)) == {}
    assert failed(checked(file(LINEAR, "0 * self.conv(x)"), reference=text))["values"] == "MISMATCH"


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_jumps_of_pytorchs_own_are_no_tolerance(checked, seed: int) -> None:
    """Among half a million values PyTorch's own float32 stands on the wrong side of a jump, too."""
    layers = "self.a = nn.Linear(256, 512); self.b = nn.Linear(512, 64)"
    text = reference(layers, "self.b(torch.relu(self.a(x)))", "1024, 256")
    report = checked(file(layers, "self.b(torch.relu(self.a(PassesOn.apply(x))))",
                          passing("g * (1 + 6e-4) if g.shape[0] > 1000 else g")), reference=text, seed=seed)
    assert failed(report)["gradient_values"] == "MISMATCH"


def test_one_wrong_value_of_many_is_not_called_rounding(checked) -> None:
    text = reference(LINEAR, "torch.tanh(self.conv(x))", "512, 16")
    question = checked(file(LINEAR, "torch.tanh(self.conv(PassesOn.apply(x)))", passing(
        "g + 0.02 * (torch.arange(g.numel()) == 7).view_as(g)")), reference=text).question("gradient_values")
    assert question.answer is Answer.FAILED and "values of grad_input is wrong" in question.seen, question
    assert "round" not in question.advice


TWO_INPUTS = """
import torch
from torch import nn
from torch.nn import functional


class Model(nn.Module):
    def __init__(self, features, wide=1 << 20, slope=0.125):
        super().__init__()
        self.linear, self.norm = nn.Linear(features, features), nn.LayerNorm(features)
        self.dropout = nn.Dropout(0.0)
        self.table, self.slope = torch.zeros(wide, 1 << 14), slope

    def forward(self, x, more, share=0.5):
        return self.dropout(functional.leaky_relu(self.norm(self.linear(x)) + more, self.slope)) * share


def get_inputs():
    return [torch.randn(4, 8), torch.randn(4, 8), 0.25]


def get_init_inputs():
    return [8, 4, 0.25]
"""
OWN_LAYERS = """
import torch
from torch import nn
from torch.nn import functional


class Weights(nn.Module):
    def __init__(self, like):
        super().__init__()
        self.weight, self.bias = like.weight, like.bias


class Linear(nn.Linear):
    pass


class ModelNew(nn.Module):
    def __init__(self, features, wide=3, slope=0.125):
        super().__init__()
        self.linear, self.norm, self.slope = Linear(features, features), Weights(nn.LayerNorm(features)), slope

    def forward(self, inputs, mask, share=0.5):
        y = functional.layer_norm(self.linear(inputs), inputs.shape[-1:], self.norm.weight, self.norm.bias)
        return functional.leaky_relu(y + mask, self.slope) * share
"""


def test_own_layers_and_own_names_are_only_notes(checked) -> None:
    """The default value of `wide` would need 64 GiB, so it is not left out. A dropout of 0 need not be there."""
    report = checked(OWN_LAYERS, reference=TWO_INPUTS)
    there = {q.key: q for q in report.questions}
    assert failed(report) == {} and not [q for q in report.questions if q.answer is Answer.WARNED], report.questions
    assert there["layers"].answer is there["names"].answer is Answer.NOTE
    assert "norm is no nn.LayerNorm." in there["layers"].seen and "The argument more of the reference is mask in the file." in \
        there["names"].seen and "inputs" not in there["names"].seen, report.questions
    assert there["left_out"].seen == "Yes: without share." and there["beside"].answer is Answer.PASSED, report.questions


@pytest.mark.parametrize(("right", "wrong", "key", "words"), [
    ("wide=3, slope=0.125", "wide=3, slope=0.01", "other_arguments", "slope is 0.125 in the reference, 0.01 in the file"),
    ("mask, share=0.5", "mask, share=None", "left_out", "TypeError"),
    ("y + mask", "y.add_(mask)", "beside", "The reference repeats the sample.")], ids=["constructor", "forward", "one sample"])
def test_what_may_be_left_out_or_repeated_is(checked, right: str, wrong: str, key: str, words: str) -> None:
    """The last one only raises an exception, which is a note."""
    report = checked(OWN_LAYERS.replace(right, wrong), reference=TWO_INPUTS)
    assert words in report.question(key).seen, report.questions
    assert report.question(key).answer is (Answer.NOTE if key == "beside" else Answer.FAILED), report.questions
