"""Files that are right when called plainly: what is asked of them beside; one that is wrong there, and one that is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from workbench.core.answers import Answer, Question
from workbench.drive.checking.attacks import Attack, attacks, modules, reference, right_files
from workbench.measure.check.party import Party
from workbench.measure.check.questions import habits

from . import models
from .conftest import failed, trial_of

REFERENCE = reference("mlp")
RIGHT = REFERENCE.replace("class Model(", "class ModelNew(").split("def get_inputs")[0]
# What is common to the two attacks that have a backward of their own, without what is wrong in it.
RIGHT_BACKWARD = modules()["no_input_gradient_alone"].replace(" if ctx.needs_input_grad[1] else (0 * x, None, None)", "")
LAYER = reference("layer_2d")
LAYER_RIGHT = LAYER.replace("class Model(", "class ModelNew(").split("def get_inputs")[0]
NORMED = reference("normed")
NORMED_RIGHT = NORMED.replace("class Model(", "class ModelNew(").split("def get_inputs")[0]
DOES_NOT_COUNT = NORMED_RIGHT.replace("return torch.tanh(self.norm(self.linear(x)))", """norm, y = self.norm, self.linear(x)
        y = nn.functional.batch_norm(y, norm.running_mean, norm.running_var, norm.weight, norm.bias, norm.training)
        return torch.tanh(y)""")


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], dict[str, Question]]]:
    yield from _asking(RIGHT, REFERENCE, tmp_path_factory)


@pytest.fixture(scope="module")
def ask_layer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], dict[str, Question]]]:
    yield from _asking(LAYER_RIGHT, LAYER, tmp_path_factory)


def _asking(right: str, against: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., dict[str, Question]]]:
    """The questions of one file after the other, in one process: each is right where it is called plainly. With `key` not
    those behind the question with this key."""
    with trial_of(right, against, tmp_path_factory.mktemp("habits")) as (trial, case):
        process = trial.candidate.process

        def questions(text: str, key: str = "") -> dict[str, Question]:
            trial.candidate = Party(process, text, class_name="ModelNew", emulate=False)
            assert not trial.run(case).problems
            found: dict[str, Question] = {}
            for question in habits.ask(trial, case, gradients=True):
                found[question.key] = question
                if question.key == key:
                    break
            return found
        yield questions


# All that can be asked in one process: what changes the settings of torch is asked by the self-test.
OF_DAILY_USE = [a for a in attacks() if a.reference == "mlp" and a.question in habits.ASKED and a.question != "settings"]
# These questions fail without another one.
ALONE = {"no_grad", "eval_mode", "second_backward", "views", "copied", "strides", "modes"}
# What each shows is shown by another one as well, at another call.
LONG = {"new_parameters_when_loaded", "keeps_the_memory_of_its_weight"}


def _marked(found: list[Attack]) -> list[object]:
    return [pytest.param(a, id=a.name, marks=[pytest.mark.long] * (a.name in LONG)) for a in found]


@pytest.mark.parametrize("attack", _marked(OF_DAILY_USE))
def test_what_is_wrong_in_one_way_of_calling_fails_that_question(ask, attack: Attack) -> None:
    questions = ask(modules()[attack.name])
    by_the_way = {"second_derivative"} - {attack.question}   # of a wrong backward it is wrong, too
    wrong = {q.key: q for q in questions.values() if q.answer is not Answer.PASSED and q.key not in by_the_way}
    assert attack.question in wrong and (len(wrong) == 1 or attack.question not in ALONE), wrong
    found = wrong[attack.question]
    assert found.answer.lower() == attack.answer and found.seen.startswith("No. ") and found.advice, found.seen
    assert found.status == attack.expected["cpu"]


# Those of memory, of threads, of training and of parameters. Each is wrong in its own way of calling; what is asked before is
# right. The processes here have no emulator, and the trial does not say that forward takes output_size.
OF_A_LAYER = [a for a in attacks() if a.reference == "layer_2d" and a.question in (
    "two_calls", "second_backward", "views", "parameters", "in_training", "kept")
    and not any(word in modules()[a.name] for word in ("load_inline", "output_size"))]


@pytest.mark.parametrize("attack", _marked(OF_A_LAYER))
def test_a_layer_that_is_wrong_in_one_way_of_calling_fails_that_question(ask_layer, attack: Attack) -> None:
    questions = ask_layer(modules()[attack.name], attack.question)
    wrong = [q for q in questions.values() if q.answer.lower() == attack.answer]
    assert [q.key for q in wrong] == [attack.question] and wrong[0].status == attack.expected["cpu"], wrong


def test_another_dtype_under_no_grad_fails(ask) -> None:
    start = RIGHT.index("return ", RIGHT.index("def forward"))
    line = RIGHT[start:].split("\n")[0]
    value = line.removeprefix("return ")
    questions = ask(RIGHT.replace(line, f"return {value} if torch.is_grad_enabled() else ({value}).double()"))
    wrong = questions["no_grad"]
    assert wrong.answer is Answer.FAILED and "Output is float64, expected float32." in wrong.seen


def test_every_question_of_daily_use_has_an_attack() -> None:
    assert {a.question for a in attacks() if a.question in habits.ASKED} == set(habits.ASKED)


@pytest.mark.parametrize("text", [RIGHT, RIGHT_BACKWARD], ids=["a copy", "its own backward"])
def test_what_is_right_in_all_of_them_passes(ask, text: str) -> None:
    """That backward raises for an input with three dimensions."""
    found = {key: q.answer for key, q in ask(text).items()}
    assert found.pop("leading") is (Answer.PASSED if text == RIGHT else Answer.WARNED)
    assert found == dict.fromkeys((*habits.KEYS, "second_derivative"), Answer.PASSED)


def test_a_report_says_which_way_of_calling_is_wrong(checked) -> None:
    report = checked(modules()["input_kept_on_self"], reference=REFERENCE)
    assert failed(report) == {"two_calls": "MISMATCH"} and report.headline.endswith("is wrong while two outputs are in use")
    assert report.kernelbench.values.strict and "Right while two outputs are in use?" in report.kernelbench.values.reason


def test_a_right_layer_is_asked_all_of_them(checked) -> None:
    report = checked(models.LAYER.replace("class Model(", "class ModelNew("), reference=models.LAYER)
    assert failed(report) == {}
    assert set(habits.KEYS) <= {q.key for q in report.questions if q.answer is Answer.PASSED}, report.questions


@pytest.mark.parametrize(("name", "key", "words"), [
    pytest.param("bfloat16_after_eval", "eval_mode", "After .eval(): The error of y is ", marks=pytest.mark.long),
    pytest.param("hidden_weight_decay", "second_backward", "of small gradients", marks=pytest.mark.long),
    ("weights_at_one_address", "parameters", "Where a parametrization, such as weight_norm, computes its weight"),
    pytest.param("bias_of_its_parameters", "parameters", "computes its weight and bias, autograd", marks=pytest.mark.long),
    ("takes_the_dtype_of_a_state", "state_dict", "A state in bfloat16 changes weight to bfloat16."),
    ("state_without_its_prefix", "state_dict", "In a network its state_dict has nothing, not weight, bias."),
    ("keeps_its_mask", "two_calls", "Under another seed: "),
    ("backward_sets_the_generator_back", "two_calls", "Its backward changes the state of the random numbers of torch."),
    ("gradient_of_the_plain_size", "other_arguments", "Wrong for output_size="),
    ("number_of_the_first_call", "numbers", "With 1.57 instead of 3.14: "),
    ("reads_as_many_rows_as_samples", "leading", "For inputs of 3 × 4 samples: "),
    ("first_stride_for_both", "other_arguments", "stride=(1, 2)"), ("always_the_mean", "other_arguments", "reduction=sum"),
    ("trains_its_filter", "state_dict", "Its blur is a parameter, the reference's is a buffer."),
    pytest.param("saves_without_its_prefix", "state_dict", "In a network load_state_dict raises ", marks=pytest.mark.long),
    ("load_returns_nothing", "state_dict", "load_state_dict(strict=False) does not return the missing and the unexpected"),
    pytest.param("folds_old_statistics", "eval_mode", "With running statistics that alone changed after .eval(): ",
                 marks=pytest.mark.long),
    ("seeds_when_constructed", "same_draw", "Under another seed weight differs."),
    ("two_tiles_of_channels", "other_arguments", "Wrong for in_channels=14, out_channels=7; in_channels=517, "),
    ("no_overlap", "other_arguments", "Wrong for kernel_size=2, padding=0; kernel_size=5, stride=5, padding=0; "),
    pytest.param("eight_rows_of_taps", "other_arguments", "For kernel_size=11, ", marks=pytest.mark.long),
    pytest.param("bias_of_its_group", "other_arguments", "For in_channels=6, groups=2, bias=True: ", marks=pytest.mark.long),
    pytest.param("no_zero_weight", "other_values", "With one channel of each parameter zero: ", marks=pytest.mark.long)])
def test_what_is_wrong_with_a_layer_in_a_network_fails_that_question_alone(checked, name: str, key: str, words: str) -> None:
    attack = next(a for a in attacks() if a.name == name)
    report = checked(modules()[name], reference=reference(attack.reference))
    assert set(failed(report)) == {key} and words in report.question(key).seen, report.questions


def test_a_constructor_that_draws_more_is_still_asked_for_its_parameters_under_other_arguments(checked) -> None:
    text = models.LAYER.replace("class Model(", "class ModelNew(").replace("    pass", """
    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        torch.rand(4)
        if self.stride != (2,):
            nn.init.zeros_(self.weight)""")
    report = checked(text, reference=models.LAYER)
    assert report.question("same_draw").answer is Answer.WARNED and set(failed(report)) == {"other_arguments"}, report.questions


@pytest.mark.parametrize(("name", "key", "words"), [
    ("other_numbers_raise", "numbers", "With 1.57 instead of 3.14: The module raised ValueError"),
    ("takes_more_channels", "refuses", "It returns a Tensor for an input with 6 channels."),
    ("bias_before_weight", "state_dict", "the order of its parameters is bias, weight; the reference's is weight, bias."),
    ("loads_any_names", "state_dict", "It loads a state with linear.weight_of_another and without linear.weight."),
    pytest.param("gradient_in_another_order", "strides", "linear.weight is not contiguous. ", marks=pytest.mark.long),
    pytest.param("takes_no_assign", "state_dict", "load_state_dict does not take assign=True.", marks=pytest.mark.long),
    pytest.param("no_garbage_collector", "settings", "It changes the garbage collector.", marks=pytest.mark.long),
    ("bias_of_its_constructor", "later_bias", "With a bias that was set later: "),
    pytest.param("resets_once", "resets", "reset_parameters() gives other values of bias, weight.", marks=pytest.mark.long),
    ("resets_to_larger_weights", "resets", "After reset_parameters() the root mean square of weight is "),
    ("one_scale_for_the_gradients", "other_values", "values of grad_input are not finite in samples that are finite in"),
    ("product_in_its_backward", "bfloat16", "Where only the backward runs under autocast to bfloat16: The error of grad_input"),
    ("eight_bits_in_bfloat16", "bfloat16", " for whole numbers that bfloat16 holds exactly. PyTorch's result is exact."),
    pytest.param("sides_behind_the_batch", "unbatched", "With output_size=(18, 17): output is ", marks=pytest.mark.long),
    pytest.param("patches_linear", "settings", "It changes torch.nn.Linear.forward.", marks=pytest.mark.long)])
def test_what_right_code_does_not_notice_is_a_warning(checked, name: str, key: str, words: str) -> None:
    report = checked(modules()[name], reference=reference(next(a.reference for a in attacks() if a.name == name)))
    assert failed(report) == {} and report.question(key).answer is Answer.WARNED and words in report.question(key).seen


@pytest.mark.parametrize(("text", "answer", "words"), [
    (NORMED_RIGHT, Answer.PASSED, "norm.running_mean"),
    (modules()["leaves_statistics"], Answer.FAILED, "norm.running_mean"),
    (DOES_NOT_COUNT, Answer.WARNED, "norm.num_batches_tracked")], ids=["right", "statistics", "a count alone"])
def test_buffers_that_a_call_should_have_changed(checked, text: str, answer: Answer, words: str) -> None:
    report = checked(text, reference=NORMED)
    question = report.question("buffers")
    assert question.answer is answer and words in question.seen, question
    assert set(failed(report)) == ({"buffers", "left_alone"} if answer is Answer.FAILED else set())


@pytest.mark.parametrize(("name", "against", "words"), [
    ("only_so_large", "mlp", "For batch 5: "), ("only_up_to_twice", "mlp", "For batch 9: "),
    ("layer_only_so_large", "layer_1d", "For a size above the given one: "),
    ("plan_by_number_of_values", "layer_2d", "For as many values in another shape: "),
    ("no_rest_of_the_batch", "layer_2d", "For batch 67: "), ("position_in_16_bits", "layer_1d", " positions: ")])
def test_a_size_above_the_given_one_is_asked(checked, name: str, against: str, words: str) -> None:
    report = checked(modules()[name], reference=reference(against))
    assert set(failed(report)) == {"other_sizes"} and words in report.question("other_sizes").seen


@pytest.mark.parametrize(("name", "against", "key", "words"), [
    ("fast_for_ramps", "layer_2d", "other_values", "With values in a ramp: "),
    ("ignores_output_size", "layer_2d", "other_arguments", "For output_size=(12, 17): "),
    ("every_maximum_gets_all", "largest", "other_values", "With values of which only four differ: ")])
def test_smooth_values_other_sizes_of_the_output_and_equal_values(checked, name: str, against: str, key: str, words: str
                                                                  ) -> None:
    """Of equal values the gradients are compared as sums, so the last one only gets a warning."""
    report = checked(modules()[name], reference=reference(against))
    question = report.question(key)
    assert words in question.seen and question.answer is (Answer.WARNED if against == "largest" else Answer.FAILED), question
    assert set(failed(report)) == ({key} if against != "largest" else set())


@pytest.mark.parametrize(("name", "words"), [
    ("log_of_a_label", "With rows of a single 1: "), ("divides_by_a_norm", "With a sample of zeros: "),
    pytest.param("divides_by_its_input", "With values half of them zero: ", marks=pytest.mark.long),
    pytest.param("maximum_from_minus_1e4", "With 1e9 subtracted from one row: ", marks=pytest.mark.long),
    ("takes_every_label", "With -100 in every other place of the whole numbers: "),
    ("mask_is_a_prefix", "With the masks of booleans flipped: "),
    ("nan_gradient_of_padding", "With a sample of whole numbers that are 0: "),
    ("relu_without_nan", "With one NaN among the inputs: "),
    ("layer_by_fft", "With one value 1e20 times larger than the others: ")])
def test_values_of_masks_padding_and_labels_are_a_warning(checked, name: str, words: str) -> None:
    report = checked(modules()[name], reference=reference(next(a.reference for a in attacks() if a.name == name)))
    question = report.question("other_values")
    assert question.answer is Answer.WARNED and words in question.seen and failed(report) == {}, question


def test_values_that_get_inputs_does_not_draw_are_asked_and_warned_of(checked) -> None:
    report = checked(modules()["identity_for_a_rectifier"], reference=reference("relu"))
    question = report.question("other_values")
    assert question.answer is Answer.WARNED and "With values of the other sign" in question.seen and failed(report) == {}
    right = checked(reference("relu").replace("class Model(", "class ModelNew("), reference=reference("relu"))
    assert right.question("other_values").answer is Answer.PASSED, right.question("other_values")


def test_an_empty_batch_alone_is_a_warning(checked) -> None:
    report = checked(models.RIGHT.replace("self.linear(x)", "self.linear(x.view(x.shape[0], x.numel() // x.shape[0]))"))
    question = report.question("empty_batch")
    assert failed(report) == {} and question.answer is Answer.WARNED
    assert " in all checks that ran, with 2 warnings, the first at “Right for one more leading dimension?”" in report.headline
    assert "cannot take an empty batch" in question.seen and question.seen.endswith("PyTorch returns 0 × 8.")


def test_rows_of_more_than_65536_values_are_asked_of_any_module(checked) -> None:
    right = reference("relu").replace("class Model(", "class ModelNew(").split("def get_inputs")[0]
    text = right.replace("torch.relu(x)", "torch.relu(x) * (torch.arange(x.shape[-1]) < 2**16)")
    report = checked(text, reference=reference("relu"))
    assert set(failed(report)) == {"other_sizes"} and "Wrong for last dimension 65701" in report.question("other_sizes").seen


@pytest.mark.parametrize(("line", "answer"), [
    ("return self.right(x)", Answer.PASSED), ("return self.right(x.float())", None),   # the weight is float64: it raises
    ("return self.right(x).float()", Answer.WARNED)])
def test_float64_must_be_as_exact_as_in_the_reference(checked, line: str, answer: Answer | None) -> None:
    text = modules()["float32_inside"]
    report = checked(text[:text.index("linear = self.linear")] + line + "\n", reference=reference("relu_mlp"))
    question = report.question("double")
    assert failed(report) == {} and (question.answer if question else None) is answer, question


def test_double_is_a_warning_for_work_in_float32(checked) -> None:
    report = checked(modules()["float32_inside"], reference=reference("relu_mlp"))
    assert failed(report) == {} and report.question("double").answer is Answer.WARNED, report.question("double")


@pytest.mark.parametrize(("line", "answer", "words"), [
    ("return self.right(x)", Answer.PASSED, "Yes."),
    ("assert x.dtype != torch.bfloat16\n        return self.right(x)", Answer.NOTE,
     "After .bfloat16() it raises AssertionError"),
    ("return self.right(x) * (1 + 0.05 * torch.is_autocast_enabled('cpu'))", Answer.WARNED,
     "No. Under autocast to bfloat16 the error of y is "),
    ("return self.right(x) if x.dtype != torch.bfloat16 else self.right(x).detach()", Answer.WARNED,
     "No. After .bfloat16() there is no grad_input."),
    ("x.dtype != torch.bfloat16 or __import__('os')._exit(7)\n        return self.right(x)", Answer.WARNED,
     "No. After .bfloat16(): ")])
def test_bfloat16_and_autocast_may_raise_but_not_be_wrong(checked, line: str, answer: Answer, words: str) -> None:
    text = modules()["one_kernel_for_16_bits"]
    report = checked(text[:text.index("if x.element_size()")] + line + "\n", reference=LAYER)
    question = report.question("bfloat16")
    assert failed(report) == {} and question.answer is answer and question.seen.startswith(words), question
    assert report.question("double").answer is Answer.PASSED


@pytest.mark.parametrize(("line", "warned"), [
    ("self.seen = [y.detach()]", False), ("self.seen = self.seen[-3:] + [x]", False), ("self.seen.append(x)", True),
    ("self.seen.append(self.seen); self.seen = [y]", True)], ids=["the last output", "four inputs", "all inputs", "a cycle"])
def test_tensors_that_each_call_keeps_are_a_warning(checked, line: str, warned: bool) -> None:
    report = checked(modules()["keeps_all_its_outputs"].replace("self.seen.append(y.detach())", line), reference=LAYER)
    assert failed(report) == {} and (report.question("kept") is not None) is warned, report.question("kept")


def test_a_backward_that_needs_no_tensor_saves_none(checked) -> None:
    """The reference saves its input. The backward of a sum of views needs only the shape."""
    pool, file = right_files()["kb44_average_pool_1d"]
    sums = "F.pad(x, (4, 4)).unfold(2, 8, 1).sum(3) / 8"
    report = checked(file.replace("self.pool(x)", sums).replace("= nn.AvgPool1d(", "= ("), reference=pool)
    assert report.question("kept") is None and report.question("values").answer is Answer.PASSED, report.question("kept")


@pytest.mark.parametrize(("line", "answer"), [
    ("return self.right(x)", Answer.PASSED), ("assert x.dim() == 4; return self.right(x)", None),
    ("return self.right(x) if x.dim() == 4 else self.right(x.flip(0))", Answer.WARNED)])
def test_a_sample_without_a_batch_may_be_refused(checked, line: str, answer: Answer | None) -> None:
    text = modules()["keeps_the_batch_of_one"]
    report = checked(text[:text.index("return self.right(x if")] + line + "\n", reference=LAYER)
    question = report.question("unbatched")
    assert failed(report) == {} and (question.answer if question else None) is answer, question


@pytest.mark.parametrize(("more", "answer"), [("", Answer.PASSED), ("@once_differentiable\n    ", Answer.NOTE)])
def test_second_derivatives_may_raise_but_not_be_wrong(checked, more: str, answer: Answer) -> None:
    text = modules()["detached_in_backward"].replace("(one.detach() for one in ctx.saved_tensors)", "ctx.saved_tensors")
    text = "from torch.autograd.function import once_differentiable\n" + text.replace(
        "@staticmethod\n    def backward", f"@staticmethod\n    {more}def backward")
    report = checked(text, reference=REFERENCE)
    assert failed(report) == {} and report.question("second_derivative").answer is answer, report.question("second_derivative")


@pytest.mark.parametrize(("text", "warned"), [
    (modules()["no_first_state"], True),
    (modules()["no_first_state"].replace("def forward(self, x, *more)", "def forward(self, x, h0=None)"), False)])
def test_an_argument_that_no_call_gives_is_named(checked, text: str, warned: bool) -> None:
    report = checked(text, reference=reference("recurrent"))
    assert any("argument h0 of forward" in one for one in report.not_asked) and failed(report) == {}
    assert (report.question("options") is not None) is warned


def test_a_changed_grad_output_is_told_by_one_question(checked) -> None:
    text = modules()["slope_is_a_constant"].replace(
        "return g * ctx.slope", "return g.mul_(ctx.slope) if g.is_contiguous() else g * ctx.slope").replace(
        "return Tanh.apply(self.linear(x)) * self.scale",
        "return (lambda y: y if self.scale == 1 else y * self.scale)(Tanh.apply(self.linear(x)))")
    assert failed(checked(text, reference=REFERENCE)) == {"left_alone": "INPUT_MODIFIED"}


@pytest.mark.parametrize(("line", "changed"), [
    ("import torch._dynamo as dynamo", ""),   # which puts a wrapper around torch.manual_seed
    ("torch.manual_seed = functools.wraps(torch.manual_seed)(functools.partial(torch.manual_seed))",
     "It changes torch.manual_seed.")])
def test_importing_dynamo_is_no_change_of_settings(checked_anew, line: str, changed: str) -> None:
    line = f"import functools\n        {line}\n        return "
    question = checked_anew(RIGHT.replace("return ", line, 1), reference=REFERENCE).question("settings")
    assert question.answer is (Answer.WARNED if changed else Answer.PASSED) and changed in question.seen, question


WRONG_FOR_ONE_GRADIENT = """
from torch import nn
from torch.nn import functional as F
import torch


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        wrong = 1 if all(ctx.needs_input_grad) else 2
        return wrong * (grad @ weight), wrong * (grad.T @ x), wrong * grad.sum(0)


class ModelNew(nn.Module):
    def __init__(self, features, scale=1):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.scale = scale

    def forward(self, x):
        return torch.relu(Linear.apply(x, self.linear.weight, self.linear.bias)) * self.scale
"""


@pytest.mark.parametrize("wrong", [False, True])
def test_at_effort_quick_daily_use_is_asked_after_the_times(wrong: bool, checked) -> None:
    """Because a file may compile another kernel for it. What is wrong then fails the check all the same."""
    text = WRONG_FOR_ONE_GRADIENT.replace("else 2", "else 2" if wrong else "else 1")
    report = checked(text, time=True, effort="quick")
    keys = [q.key for q in report.questions]
    assert report.times and failed(report) == ({"some_gradients": "MISMATCH"} if wrong else {}), failed(report)
    assert keys.index("batch_one") < keys.index("times") < keys.index("some_gradients") < keys.index("other_values")
    assert ("modes" in keys) != wrong
    keys = [q.key for q in checked(text, effort="quick", time=False).questions]
    assert keys.index("two_calls") < keys.index("some_gradients") < keys.index("left_alone") < keys.index("times")


@pytest.mark.parametrize(("name", "key", "words"), [
    ("own_forms_of_arguments", "forms", ("With all arguments by name it raises TypeError", "With lists instead of tuples it ",
                                         "With whole numbers of NumPy it raises TypeError",
                                         "Where torch's default dtype is float64 its weight is float32")),
    ("swallows_other_arguments", "forms", ("With dtype=torch.float64 its weight is float32, the reference's is float64.",)),
    ("not_quite_a_layer", "interface", ("Its forward does not take output_size.", "It has no method reset_parameters().",
                                        "Without a bias it has no attribute bias.", "print(module) raises AttributeError.")),
    ("short_way_to_forward", "interface", ("parameters() returns no iterator", "hooks that are registered for all modules"))])
def test_each_part_of_the_interface_of_a_layer_is_named(checked, name: str, key: str, words: tuple[str, ...]) -> None:
    report = checked(modules()[name], reference=LAYER)
    seen = report.question(key).seen
    assert failed(report) == {} and all(one in seen for one in words), seen


@pytest.mark.parametrize("forward", ["self, x", "self, x, **named"])
def test_a_layer_with_a_constructor_of_its_own_is_not_asked_for_that_of_pytorch(checked, forward: str) -> None:
    text = f"""
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, ci, co, k, stride=1, padding=0, output_padding=0, groups=1, bias=True, dilation=1):
        super().__init__()
        like = nn.ConvTranspose2d(ci, co, k, stride, padding, output_padding, groups, bias, dilation)
        self.weight, self.like = like.weight, [like]
        self.register_parameter("bias", like.bias)

    def forward({forward}):
        like = self.like[0]
        like.weight, like.bias = self.weight, self.bias
        return like({"x" if forward.endswith("x") else "x, **named"})
"""
    report = checked(text, reference=LAYER)
    assert report.question("interface") is report.question("forms") is None, report.questions
    assert any("output_size" in one for one in report.not_asked) is forward.endswith("x"), report.not_asked


@pytest.mark.parametrize(("change", "key", "words"), [
    ("self, ci, co, k, stride=1, padding=0, dilation=1, output_padding=0, groups=1, bias=True, padding_mode='zeros', "
     "device=None, dtype=None):\n        super().__init__(ci, co, k, stride, padding, output_padding, groups, bias, dilation)",
     "forms", "The order of its arguments is stride, padding, dilation, output_padding, "),
    ("self, *given):\n        super().__init__(*given)\n\n    def to(self, *given, **named):\n"
     "        super().to(*given, **named)", "constructs", "It raises TypeError: to() returns NoneType, not the module."),
    ("self, *given):\n        super().__init__(*given)\n\n    def named_parameters(self, *given, **named):\n"
     "        for name, value in super().named_parameters(*given, **named):\n"
     "            yield name.replace('weight', 'kernel'), value", "state_dict",
     "Its named_parameters() has kernel, its state_dict and the reference have weight."),
    ("self, *given):\n        super().__init__(*given)\n        type(self) is ModelNew or nn.init.zeros_(self.weight)",
     "interface", "A subclass that changes nothing has other parameters under the same seed.")],
    ids=["another order", "to() returns nothing", "other names", "another subclass"])
def test_a_wrong_constructor_has_its_own_cause_in_the_report(checked, change: str, key: str, words: str) -> None:
    text = f"import torch\nfrom torch import nn\n\n\nclass ModelNew(nn.ConvTranspose2d):\n    def __init__({change}\n"
    report = checked(text, reference=LAYER)
    assert words in report.question(key).seen and "pipe" not in report.headline, report.questions


def test_a_state_of_another_dtype_is_named(checked) -> None:
    of_floats = "nn.BatchNorm1d(features)\n        self.norm.num_batches_tracked = torch.zeros(())\n"
    report = checked(NORMED_RIGHT.replace("nn.BatchNorm1d(features)\n", of_floats), reference=NORMED)
    question = report.question("state_dict")
    assert question.seen == "No. Its norm.num_batches_tracked is float32, the reference's is int64.", question
    assert question.answer is Answer.FAILED and question.advice == "Give it the reference's dtype."


SAVES_ITS_OUTPUT = """


class Saved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        out = y + 0
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        return g.reshape(ctx.saved_tensors[0].shape)


class ModelNew(Right):
    def forward(self, x):
        return Saved.apply(super().forward(x))
"""


def test_a_saved_output_may_follow_any_module_but_a_layer(ask, ask_layer) -> None:
    """Behind a layer nn.ReLU(inplace=True) is usual. Elsewhere the gradient may need the output."""
    for asked, right, answer in ((ask, RIGHT, Answer.WARNED), (ask_layer, LAYER_RIGHT, Answer.FAILED)):
        found = asked(right.replace("class ModelNew(", "class Right(") + SAVES_ITS_OUTPUT, "overwritten")["overwritten"]
        assert found.answer is answer and "Its output was changed in place" in found.seen, found


def test_what_the_import_of_a_file_changes_is_named(checked) -> None:
    settings = ("random.seed(3)", "torch.manual_seed(3)", "logging.disable(30)",
                "multiprocessing.set_start_method('spawn', True)")
    text = "\n".join(("import logging, multiprocessing, random", RIGHT, *settings))
    question = checked(text, reference=REFERENCE).question("settings")
    assert question.answer is Answer.WARNED
    assert question.seen == "No. It changes the random numbers of torch at its import, the random numbers of Python at its " \
        "import, logging.disable, multiprocessing.set_start_method.", question
