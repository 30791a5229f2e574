"""Does the file compute in float16? float16 has as many digits as TF32, but a smaller range. The given case is asked again with
numbers multiplied by powers of two. In float32 and TF32 the results keep their digits and are only multiplied. float16 ends at
65504, and loses digits below 2^-14.

Each input, parameter and output channel has its factor. grad_output is divided by the factor of the output. So the product of
output and grad_output stays the same, and the gradient of a tensor is divided by the factor of that tensor. In a transposed
convolution each channel is multiplied or divided at random, so that no single factor brings a whole tensor back into range. A
file could read these factors from the parameters. So each sample is multiplied or divided, too, which no parameter shows. The
question is asked once more with the usual parameters, where only samples are multiplied or divided.

Does the file compute in TF32 on the CPU? On a GPU TF32 is allowed, because PyTorch's default computes float32 convolutions so.
The size of the error does not prove TF32. So float64 computes the same convolution with operands rounded to TF32. Each result
must be as near to that as a float32 result is to the truth. Sums in float16, or a few wrong terms, are near to neither. An
operand that was computed inside, as in a backward, is off by a rounding of float32. So it may be kept as the next number of
TF32. An element may be off by twice what such operands explain.

Are its results in float64 as exact as the reference's, also if a network around it is converted? Is it right in bfloat16 and
under autocast?
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ....core import numbers
from ....core.answers import Answer, Question
from ....core.check_parts import Log
from ....core.layer import ConvTranspose
from ....core.trial import Status
from ...kernel.validate import distance
from ..foreign.process import Ended, Raised
from ..foreign.replies import Output
from ..foreign.requests import AsTrained
from ..host.ways import DOWN, ROUNDINGS
from ..host.ways import UP as UPWARDS
from ..party import Party
from ..text.advice import ASKED, OF_DAILY_USE
from ..trialrun import NotForReference, Outcome, Problem, TrialRun, problem_of, wide
from . import cases, drawn

UP = 17             # a half times 2^17 is above 65504; 1 times 2^-17 is below the normal numbers of float16
_SAME = 1e-9        # of float64
OF_DOUBLE = 1e-11   # relative L2 of results in float64
_LITTLE = 1e-5      # beside the largest one; by which inputs are moved
_WAYS = 3
# Relative L2 of results in bfloat16: at least that of rounded operands and results, twice. A reference that is farther off than
# the second number is no measure.
_OF_BFLOAT16, MOST_OFF = 0.025, 0.1
TF32_KEY, TF32_ASKED = "tf32", "Computes in float32?"
_KEY, _QUESTION = "range", "Keeps the range of float32?"
# The largest relative L2 error of PyTorch's own gradients for which the question is asked; NaN also exceeds it.
_MOST_OWN = 1e-3
_ROUNDINGS = 6
_LARGER = 2.0**9    # of inputs and parameters, so that outputs of about 1 are beyond float16
_CUT_OFF, _ENOUGH, _LITTLE_OF_RMS = 0.05, 256, 1 / 16   # of a last place; outputs; of the root mean square
_FIVE_SIGMA = 5 / 12**0.5   # of the mean of rounding errors, times the root of their number
_NUMBERS = f"With values 2^{UP} times larger and smaller, which are in the range of float32 and TF32"


def in_its_dtype(trial: TrialRun, given: Outcome) -> list[Question]:
    """Of float32 whether the file keeps its range, of 16 bits whether it rounds, and is infinite beyond float16."""
    return [ask(trial, given)] if trial.dtype == "float32" else [*rounded(trial, given), *_overflows(trial, given)]


def ask(trial: TrialRun, given: Outcome) -> Question:
    """Ask whether the file keeps the range of float32. `given`: the outcome of the given case, which is in float32 and right.
    """
    if trial.declared == "fp16":
        return _skipped("Not asked: the file declares float16.")
    if not trial.loads_state and given.state[0]:
        return _skipped("Not asked: its parameters cannot be set.")
    if trial.drawn is not None and trial.drawn.of_values:
        return _skipped("Not asked: scaled inputs would not have the structure that get_inputs() gives them.")
    x, of_state, y = _factors(trial, given)
    try:
        if not _scales(trial, given, x, of_state, y):
            return _skipped("Not asked: the output of the reference is not proportional to its inputs.")
        all_scaled = [_scaled(trial, given, x, of_state, y)]
        if (layer := given.case.setting.layer) is not None and given.inputs[0].dim() == layer.dims + 2 and len(given.inputs[0]):
            one = torch.ones((), device=y.device)
            all_scaled = [_of_samples(trial, given, all_scaled[0], usual=False),
                          _of_samples(trial, given, _scaled(trial, given, one, [one] * len(of_state), one), usual=True)]
        for scaled in all_scaled:
            scaled.own = trial.own(scaled)
    except (Raised, Ended):
        return _skipped("Not asked: the reference does not accept such values.")
    allowed = {n: errors.allowed for n, errors in given.errors.items()}
    for scaled in all_scaled:
        if not all(distance(scaled.own[n], scaled.expected[n])[0] <= limit for n, limit in allowed.items() if n in scaled.own):
            return _skipped("Not asked: PyTorch's own results are not exact for such values.")
        trial.judge(scaled)
        if (wrong := scaled.problem()) is not None:
            return _failed(wrong)
    return Question(_KEY, _QUESTION, Answer.PASSED, f"Yes: the same accuracy with values 2^{UP} times larger and smaller.")


def rounded(trial: TrialRun, given: Outcome) -> list[Question]:
    """A warning if outputs in 16 bits are cut off: they are then half of a last place too near to zero on average."""
    dtype = getattr(torch, trial.dtype)
    if "output" not in given.got or given.got["output"].dtype != dtype or dtype.itemsize != 2:
        return []
    truth = given.expected["output"].double().flatten()
    least = max(_LITTLE_OF_RMS * float(truth.square().mean().sqrt()), torch.finfo(dtype).tiny)
    usual = truth.isfinite() & (truth.abs() > least)
    if int(usual.sum()) < _ENOUGH:
        return []
    place = torch.exp2(truth[usual].abs().log2().floor()) * torch.finfo(dtype).eps
    mine, own = (float(((v.double().flatten()[usual] - truth[usual]) * truth[usual].sign() / place).mean())
                 for v in (given.got["output"], given.own["output"]))
    if not mine < -max(_CUT_OFF, _FIVE_SIGMA / int(usual.sum())**0.5) or abs(own) > _CUT_OFF / 2:
        return []
    return [Question("rounding", "Rounds results to the nearest?", Answer.WARNED,
                     f"No. On average its outputs are {-mine:.2f} of a last place too near to zero, PyTorch's {abs(own):.2f}: "
                     "they are cut off. Such errors add up from layer to layer.",
                     "Convert with __float2bfloat16_rn or __float2half_rn, which round to the nearest number.",
                     str(Status.MISMATCH))]


def _overflows(trial: TrialRun, given: Outcome) -> list[Question]:
    """A warning if outputs beyond float16 are finite numbers where the reference's are infinite. Inputs and parameters are
    multiplied."""
    if trial.dtype != "float16" or trial.drawn is not None and trial.drawn.of_values or not trial.loads_state:
        return []
    inputs, values = ([v * _LARGER if v.is_floating_point() else v for v in some] for some in (given.inputs, given.state[1]))
    given = replace(given, inputs=inputs, state=(given.state[0], values), names=[], grad_output=None)
    with contextlib.suppress(Raised, Ended):
        truth, own, got = (results(trial, party, given, dtype, wide=dtype == "float64")["output"] for party, dtype in (
            (trial.reference, "float64"), (trial.reference, trial.dtype), (trial.candidate, trial.dtype)))
        asked = own.isinf() & (truth.abs() > 2 * torch.finfo(own.dtype).max)
        if lost := int((asked & got.isfinite()).sum()) if got.shape == own.shape else 0:
            return [Question("overflow", "Infinite beyond float16?", Answer.WARNED, f"No. Of {numbers.count(int(asked.sum()))} "
                             f"outputs beyond 65504, which are infinite in PyTorch, {numbers.count(lost)} are finite numbers. "
                             "A loss scaler skips a step if it finds one.", "Do not clamp the results.", str(Status.MISMATCH))]
    return []


def answers(trial: TrialRun, case: cases.Case, gradients: bool) -> tuple[Outcome, Outcome, Outcome]:
    """Two right answers for the case, and one for another batch if the reference accepts it."""
    first = trial.run(case, gradients=gradients)
    second = trial.run(case, gradients=gradients, state=first.state)
    batch = case.shapes[0][0] if case.shapes and case.shapes[0] else 0
    with contextlib.suppress(NotForReference):
        other = trial.run(cases.with_batch(case, batch + 1, f"batch {batch + 1}"), gradients=gradients, state=first.state)
        return first, second, second if other.problem() else other
    return first, second, second


def near(trial: TrialRun, first: Outcome) -> Outcome | None:
    """Of nearly the same inputs, where these may be multiplied."""
    if trial.drawn is None or not any(trial.drawn.structures):
        with contextlib.suppress(NotForReference):
            return trial.run(replace(first.case, integers=False), state=first.state, gradients=first.grad_output is not None,
                             values=drawn.nearly(first.inputs, trial.generator))
    return None


def is_smooth(trial: TrialRun, outcome: Outcome) -> bool:
    """Whether the reference's gradients in float64 stay nearly the same if all inputs are moved a little. Where a derivative
    jumps, each gradient between those of both sides is right."""
    how, (names, values) = trial.how(outcome.case, dtype="float64"), outcome.state
    for _ in range(_WAYS):
        moved = [x.double() + _LITTLE * (2 * torch.rand(x.shape, generator=trial.generator, device=x.device) - 1)
                 if x.is_floating_point() else x for x in outcome.inputs]
        try:
            found = trial.named(*trial.reference.call(
                how, moved, state=(names, list(map(wide, values))), gradients=outcome.names, wide=True,
                grad_output=None if outcome.grad_output is None else outcome.grad_output.double()))
        except (Raised, Ended):   # as for probabilities below 0
            return False
        if not all(n in found and distance(found[n], v)[0] <= _MOST_OWN for n, v in outcome.expected.items()):
            return False
    return True


def wrong(trial: TrialRun, outcome: Outcome, got: dict[str, torch.Tensor]) -> str:
    """What is wrong with these results of unusual calls, in words. Their accuracy is the business of other questions."""
    about = replace(outcome, case=replace(outcome.case, long=True), problems=[], got=got, errors=dict(outcome.errors))
    trial.compare(about)
    return about.problems[0].seen if about.problems else ""


def under_no_grad(trial: TrialRun, outcome: Outcome) -> Problem | None:
    """What is wrong with the output without gradients, for which a file may have other code, in a case that is right with them.
    None if the reference's output is another one then, too."""
    how, no_grad = trial.how(outcome.case), {"layout": outcome.case.layout, "no_grad": True}
    try:
        got = trial.candidate.call(how, outcome.inputs, state=outcome.state if trial.loads_state else None, **no_grad)[1][:1]
        said = wrong(trial, outcome, {"output": got[0]}) if got else ""
        found = Problem("values", Status.MISMATCH, f"Under no_grad: {said}") if said else None
    except (Raised, Ended) as error:
        found = problem_of(error)
    if found is None:
        return None
    try:
        theirs = trial.reference.call(how, outcome.inputs, state=outcome.state, **no_grad)[1][:1]
    except (Raised, Ended):
        return None
    return found if theirs and not wrong(trial, outcome, {"output": theirs[0]}) else None


def wrong_beside(trial: TrialRun, outcome: Outcome, got: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], said: str
                 ) -> str:
    """The same, if the reference returned `theirs` for the same calls in its own precision. `said`: what is wrong beside the
    plain call. Rounding is another one in another call, and so is the reference's own error: it counts where it is larger. If
    that error is no rounding, the reference is wrong in such calls. Then only the truth and the reference's results are right.
    """
    if not set(got) <= set(theirs) or any(theirs[n].shape != outcome.expected[n].shape for n in got):
        return said
    off, usual = ({n: distance(v[n].double(), outcome.expected[n])[0] for n in got if n in v} for v in (theirs, outcome.own))
    most = {n: max(_MOST_OWN, 4 * usual.get(n, 0.0)) for n in got}
    if all(far <= most[n] for n, far in off.items()):
        larger = {n: theirs[n] for n in got if off[n] > usual.get(n, 0.0)}
        if not all(wrong(trial, replace(outcome, own={**outcome.own, **own}), got) for own in (theirs, larger)):
            return ""   # the first: a value equal to the reference's is right, even if it is the more exact one
        largest = {**outcome.own, **larger}   # of few elements one error may be small by chance
        usual = {n: max(off[n], usual.get(n, 0.0)) for n in got}
        for own in _rounded_otherwise(trial, outcome):
            for name in (n for n in got if n in own):
                if usual[name] < (far := distance(own[name].double(), outcome.expected[name])[0]) <= most[name]:
                    usual[name], largest[name] = far, own[name]
        return wrong(trial, replace(outcome, own=largest), got)
    of_theirs = {n: theirs[n].double() for n in got}
    return said if wrong(trial, replace(outcome, expected={**outcome.expected, **of_theirs}, own={}), got) else ""


def _rounded_otherwise(trial: TrialRun, outcome: Outcome) -> list[dict[str, torch.Tensor]]:
    """The reference's own results for inputs that are moved by at most one rounding."""
    def moved(x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            return x
        part = torch.finfo(x.dtype).eps * (2 * torch.rand(x.shape, generator=trial.generator, device=x.device) - 1)
        return (x.double() * (1 + part.double())).to(x.dtype)
    with contextlib.suppress(Raised):
        return [trial.own(replace(outcome, inputs=[*map(moved, outcome.inputs)])) for _ in range(_ROUNDINGS)]
    return []


def _factors(trial: TrialRun, given: Outcome) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
    """Of each input, of each tensor of the state, and of the output."""
    if given.case.setting.layer is not None:
        x, parameters, y = _by_channel(given.case.setting.layer, trial.generator)
    else:
        x = y = torch.tensor(2.0**UP)
        parameters = {"bias": x}
    return x, [parameters.get(n.rpartition(".")[2], torch.tensor(1.0)) for n in given.state[0]], y


def _scaled(trial: TrialRun, given: Outcome, x: torch.Tensor, of_state: list[torch.Tensor], y: torch.Tensor) -> Outcome:
    """The same case with other values, whose results are the expected ones multiplied by `factors`."""
    names, values = given.state
    of = {f"input {i}": x for i in range(len(given.inputs))} | dict(zip(names, of_state, strict=True))
    return Outcome(given.case, names=given.names, expected=given.expected, inputs=[_times(v, x) for v in given.inputs],
                   state=(names, list(map(_times, values, of_state))),
                   grad_output=None if given.grad_output is None else given.grad_output / y,
                   factors={"output": y, **{trial.plain(n): 1 / of[n] for n in given.names}})


def _of_samples(trial: TrialRun, given: Outcome, scaled: Outcome, *, usual: bool) -> Outcome:
    """`scaled` of a layer, where each sample is also multiplied. `usual`: its parameters are not. The expected results follow
    from those of the given case: only the bias, and its gradient, are not proportional to each sample."""
    x, layer = scaled.inputs[0], given.case.setting.layer
    by = (_up_or_down(len(x), trial.generator) if len(x) > 1 or not usual else torch.full((1,), 2.0**UP, device=x.device)
          ).view(-1, *(1,) * (layer.dims + 1))
    least, of_output = by.min(), by
    expected, (names, values), state = dict(given.expected), given.state, list(scaled.state[1])
    for place, name in enumerate(names):
        if name.rpartition(".")[2] == "bias":
            bias, of_bias = values[place].double().view(1, -1, *(1,) * layer.dims), torch.ones_like(least) if usual else least
            state[place] = state[place] * of_bias
            of_output = by.clamp(min=of_bias)
            expected["output"] = (by * (expected["output"] - bias) + of_bias * bias) / of_output
            if (gradient := trial.plain(name)) in expected:
                dims = (0, *range(2, x.dim()))
                expected[gradient] = (given.grad_output.double() * (least / by)).sum(dims)
                scaled.factors[gradient] = scaled.factors[gradient] / least
    of = {"output": of_output, trial.plain("input 0"): 1 / by}
    return replace(scaled, expected=expected, inputs=[x * by], state=(names, state),
                   grad_output=None if scaled.grad_output is None else scaled.grad_output / by,
                   factors={n: f * of.get(n, 1.0) for n, f in scaled.factors.items()})


def _up_or_down(count: int, generator: torch.Generator) -> torch.Tensor:
    """Half of them up, half down; a single one goes either way."""
    how = {"generator": generator, "device": generator.device}
    first = int(torch.randint(2, (), **how))
    return 2.0 ** (UP * (1 - 2.0 * ((torch.randperm(count, **how) + first) % 2)))


def _by_channel(layer: ConvTranspose, generator: torch.Generator
                ) -> tuple[torch.Tensor, dict[str, torch.Tensor], torch.Tensor]:
    """Factors of the input, of weight and bias, and of the output."""
    ones, per_group = (1,) * layer.dims, layer.out_channels // layer.groups
    x, y = (_up_or_down(count, generator) for count in (layer.in_channels, layer.out_channels))
    weight = y.view(layer.groups, per_group).repeat_interleave(layer.in_channels // layer.groups, dim=0) / x.view(-1, 1)
    return (x.view(1, -1, *ones), {"weight": weight.view(layer.in_channels, per_group, *ones), "bias": y},
            y.view(1, -1, *ones))


def _scales(trial: TrialRun, given: Outcome, x: torch.Tensor, of_state: list[torch.Tensor], y: torch.Tensor) -> bool:
    """Whether the reference's output in float64 is multiplied by the expected factor. For a layer this is tested at a small
    size."""
    small = cases.small_case(given.case) if given.case.setting.layer is not None else given.case
    inputs = [v.double() if v.is_floating_point() else v for v in trial.inputs(small)]
    names, values = given.state
    wide = [v.double() if v.is_floating_point() else v for v in values]

    def output(factor: torch.Tensor, factors: list[torch.Tensor]) -> torch.Tensor:
        return trial.reference.call(trial.how(small, dtype="float64"), [_times(v, factor) for v in inputs],
                                    state=(names, list(map(_times, wide, factors))))[1][0]

    one = torch.tensor(1.0)
    before, after = output(one, [one] * len(values)), output(x, of_state)
    return before.is_floating_point() and distance(after / y, before)[0] <= _SAME


def _times(v: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return v * factor if v.is_floating_point() else v


def _failed(wrong: Problem) -> Question:
    where = {"values": "", "gradient_values": " its backward"}.get(wrong.about)
    what = "No. " if where is None else f"No. It computes{where} in float16 or another format with a small range. "
    return Question(_KEY, _QUESTION, Answer.FAILED, f"{what}{_NUMBERS}: {wrong.seen}",
                    "Compute in float32 or TF32, or in parts in bfloat16. The largest float16 is 65504.", str(wrong.status),
                    Log(log=wrong.log[-3000:] or None))


def _skipped(why: str) -> Question:
    return Question(_KEY, _QUESTION, Answer.SKIPPED, why)


def explained_by_tf32(trial: TrialRun, outcome: Outcome) -> bool:
    """Whether only values are wrong, and all of them are right in TF32."""
    wrong = {(p.about, p.status) for p in outcome.problems}
    if not (trial.convolves and trial.device == "cpu" and trial.dtype == "float32") or not wrong or wrong - {
            ("values", Status.MISMATCH), ("gradient_values", Status.MISMATCH)} or outcome.case.integers:
        return False
    left = {n for n in outcome.expected if n in outcome.got and not _near(trial, outcome, n, outcome.expected)}
    for rounding in ROUNDINGS:
        try:
            in_tf32 = _truth_in_tf32(trial, outcome, rounding)
            left = {n for n in left if not _near(trial, outcome, n, in_tf32)}
            if left:
                moved = [_truth_in_tf32(trial, outcome, rounding + way) for way in (UPWARDS, DOWN)]
                left = {n for n in left if not _near(trial, outcome, n, in_tf32, moved)}
        except (Raised, Ended):
            return False
        if not left:
            return True
    return False


def tf32_warning(outcome: Outcome) -> Question:
    """Of an outcome that was explained."""
    off = max(e.rel_l2 for e in outcome.errors.values())
    return Question(TF32_KEY, TF32_ASKED, Answer.WARNED, f"No. It computes in TF32: its error of up to {numbers.error(off)} is "
                    "that of operands rounded to TF32. PyTorch computes in float32 on this CPU. On a GPU its convolutions use "
                    "TF32 by default, so this check uses the tolerance of TF32.",
                    "Export with precision ieee or tf32x3 if you need float32.")


def _truth_in_tf32(trial: TrialRun, outcome: Outcome, rounding: str) -> dict[str, torch.Tensor]:
    """What float64 gives if the operands of convolutions are rounded so."""
    names, values = outcome.state
    facts, truth = trial.reference.call(
        trial.how(outcome.case, dtype="float64"), [wide(x) for x in outcome.inputs],
        state=(names, [wide(v) for v in values]), gradients=outcome.names, tf32=rounding,
        grad_output=None if outcome.grad_output is None else outcome.grad_output.double())
    return trial.named(facts, truth)


def _near(trial: TrialRun, outcome: Outcome, name: str, truth: dict[str, torch.Tensor],
          moved: Sequence[dict[str, torch.Tensor]] = ()) -> bool:
    """By the tolerance of float32, and no element far off. `moved`: the truth for operands that are a little different."""
    got, expected = outcome.got[name], truth.get(name)
    if expected is None or got.shape != expected.shape:
        return False
    if moved:
        off = got.double() - expected
        reach = torch.stack([(other[name] - expected).abs() for other in moved]).amax(0)
        got = got.double() - off.sign() * torch.minimum(off.abs(), 2 * reach)
    allowed = trial.allowed(outcome.case, name, "ieee")
    off, worst, rms = distance(got, expected)
    least = outcome.least_rms.get(name, 0.0)
    return off * rms <= allowed * max(rms, least) and worst <= 60 * allowed * (rms + float(expected.abs().max()))


def in_double(trial: TrialRun, usual: Outcome) -> list[Question]:
    """Whether module and inputs in float64 give results that are less exact than the reference's. A file that raises an
    exception is not asked, nor one that declares that it is less exact."""
    key = "double"
    if trial.declared not in ("", "ieee"):
        return []
    with contextlib.suppress(Raised, Ended):
        got = results(trial, trial.candidate, usual, "float64", wide=True)
        if said := worse(got, usual.expected, {n: (OF_DOUBLE, " beside the reference in float64") for n in got}):
            return [Question(key, ASKED[key], Answer.WARNED, f"No. After .double() {said}", OF_DAILY_USE[key],
                             str(Status.MISMATCH))]
        said = _in_a_double_network(trial, usual)
        return [Question(key, ASKED[key], Answer.FAILED, f"No. {said}", "Register tensors as buffers: a network that is "
                         "converted does not call .to() of its parts.", str(Status.MISMATCH)) if said else
                Question(key, ASKED[key], Answer.PASSED, "Yes.")]
    return []


def worse(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], allowed: dict[str, tuple[float, str]]) -> str:
    """The first result of another shape, or whose relative L2 error is larger than allowed. `allowed`: also the words that
    follow the error."""
    most = max(float(v.norm()) for v in expected.values())
    for name, value in expected.items():
        size, y = max(float(value.norm()), _LITTLE * most), "y" if name == "output" else name
        if name not in got or name not in allowed or not size or not value.is_floating_point():
            continue
        if got[name].shape != value.shape:
            return f"{y} is {numbers.shape(got[name].shape)}, expected {numbers.shape(value.shape)}."
        if not (off := float((got[name].double() - value).norm()) / size) <= allowed[name][0]:
            return f"the error of {y} is {numbers.error(off)}{allowed[name][1]}."
    return ""


def in_bfloat16(trial: TrialRun, usual: Outcome) -> list[Question]:
    """Whether the module is right after .bfloat16(), and under autocast, as far as the reference is. It may raise an exception,
    which the answer then names: a network that is trained so cannot use the file."""
    key, raised, asked = "bfloat16", "", False
    inputs, values = ([x.bfloat16() if x.is_floating_point() else x for x in some] for some in (usual.inputs, usual.state[1]))
    half = replace(usual, inputs=inputs, grad_output=None if usual.grad_output is None else usual.grad_output.bfloat16())
    other = replace(half, state=(usual.state[0], [v / 2 if v.is_floating_point() else v for v in usual.state[1]]))
    for words, one, dtype, autocast in (
            ("After .bfloat16()", replace(half, state=(usual.state[0], values)), "bfloat16", ""),
            ("Under autocast to bfloat16", usual, "float32", "bfloat16"),
            ("Under autocast to bfloat16, with an input in bfloat16 and other parameters", other, "float32", "bfloat16")):
        with contextlib.suppress(Raised):
            truth = results(trial, trial.reference, one, "float64", wide=True)
            theirs = results(trial, trial.reference, one, dtype, autocast=autocast)
            off = {n: distance(v.double(), truth[n])[0] for n, v in theirs.items() if n in truth}
            allowed = {n: (max(_OF_BFLOAT16, 4 * far), f", that of PyTorch is {numbers.error(far)}")
                       for n, far in off.items() if far <= MOST_OFF}
            try:
                got = results(trial, trial.candidate, one, dtype, autocast=autocast)
            except Raised as error:
                raised = raised or f"{words} it raises {error.sentence}"
                continue
            except Ended as error:
                return [Question(key, ASKED[key], Answer.WARNED, f"No. {words}: {error.headline}", OF_DAILY_USE[key],
                                 str(problem_of(error).status))]
            asked, missing = True, next((n for n in allowed if n not in got), "")
            if said := worse(got, truth, allowed) or (missing and f"there is no {missing}."):
                return [Question(key, ASKED[key], Answer.WARNED, f"No. {words} {said}", OF_DAILY_USE[key],
                                 str(Status.MISMATCH))]
    if raised:
        return [Question(key, ASKED[key], Answer.NOTE, f"{raised}, so that no wrong value can be used.", OF_DAILY_USE[key])]
    return [Question(key, ASKED[key], Answer.PASSED, "Yes.")] if asked else []


def results(trial: TrialRun, party: Party, one: Outcome, dtype: str, **more: Any) -> dict[str, torch.Tensor]:
    """Output and gradients of the call of an outcome, with the module in another dtype. `more`: fields of `requests.Call`."""
    facts, found = party.call(trial.how(one.case, dtype=dtype), one.inputs, state=one.state, gradients=one.names,
                              grad_output=one.grad_output, **more)
    return trial.named(facts, found) if isinstance(facts, Output) else {}


def _in_a_double_network(trial: TrialRun, usual: Outcome) -> str:
    """What is wrong if not the module is converted to float64, but a network that contains it."""
    ask, how = partial(AsTrained, inputs=len(usual.inputs), rounds=("converted",)), trial.how(usual.case)
    words = "It is right after .to(torch.float64), but not in a network after net.double()"
    with contextlib.suppress(Raised):
        trial.reference.ask(ask, how, usual.inputs, usual.state)
        try:
            _, found = trial.candidate.ask(ask, how, usual.inputs, usual.state)
        except Raised as error:
            return f"{words}: {problem_of(error).seen}"
        said = wrong(trial, replace(usual, grad_output=None), {"output": found[0]}) if found else "it returns no result"
        return f"{words}: {said}" if said else ""
    return ""
