"""Does the file compute in float16? float16 has as many digits as TF32, but a smaller range. The given case is asked again with
numbers multiplied by powers of two. In float32 and TF32 the results keep their digits and are only multiplied. float16 ends at
65504, and loses digits below 2^-14.

Each input, parameter and output channel has its factor. grad_output is divided by the factor of the output. So the product of
output and grad_output stays the same, and the gradient of a tensor is divided by the factor of that tensor. In a transposed
convolution each channel is multiplied or divided at random, so that no single factor brings a whole tensor back into range. A
file could read these factors from the parameters. So each sample is multiplied or divided, too, which no parameter shows. The
question is asked once more with the usual parameters, where only samples are multiplied or divided.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import torch

from ....core.answers import Answer, Question
from ....core.check_parts import Log
from ....core.layer import ConvTranspose
from ....core.trial import Status
from ...kernel.validate import distance
from ..foreign.process import Ended, Raised
from ..trialrun import NotForReference, Outcome, Problem, State, TrialRun
from . import cases
from .drawn import OF_SUM_1

UP = 17             # a half times 2^17 is above 65504; 1 times 2^-17 is below the normal numbers of float16
_SAME = 1e-9        # of float64
_KEY, _QUESTION = "range", "Keeps the range of float32?"
_OTHER_KEY, _OTHER = "other_values", "Right for other values?"
# The largest relative L2 error of PyTorch's own gradients for which the question is asked; NaN also exceeds it.
_MOST_OWN = 1e-3
_ROUNDINGS = 6
_LARGER = 64.0      # softmax without its maximum overflows; with one scale for all samples small ones lose their digits
_SHIFT = 256.0      # the mean of the squares minus the square of the mean loses the variance
_SMOOTH = ("all equal", "in a ramp", "all zero but one", "that repeat in all rows")
_OF_MASK = "1e9 subtracted from one row"
_MASK, _NO_LABEL = 1e9, -100   # what masks subtract from scores; the default of ignore_index
_FEW = "of which only four differ"
_OF_STATE = ("one channel of each parameter zero", "all parameters zero", "all taps of a weight equal")
_ONE_SIGN, _SPARSE = "above zero", "nearly all zero"
_NUMBERS = f"With values 2^{UP} times larger and smaller, which are in the range of float32 and TF32"


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


def ask_others(trial: TrialRun, given: cases.Case, *, gradients: bool) -> Question:
    """Values of which half are zero; in a transposed convolution one sample then has no gradient. A transposed convolution is
    also asked for zeros among the parameters, equal taps, smooth values, values of one sign, and values that are nearly all
    zero. Anything else is also asked for values of the other sign, larger ones, and few different ones. It is not known
    whether such a module may get these, so a wrong result is a warning. Its derivative may jump at zero, where each gradient
    between both sides is right: only NaN and infinite gradients count there. Equal values may share their gradients in any
    way, so the sums are compared."""
    if trial.drawn is not None and any(trial.drawn.structures) or not any(x.is_floating_point() for x in trial.given):
        return _of_masks(trial, given, [], gradients=gradients) or _skipped(
            "Not asked: other values would not have the structure that get_inputs() gives them.", _OTHER_KEY, _OTHER)
    right: list[str] = []
    one_sign = any(x.is_floating_point() and bool((x >= 0).all() or (x <= 0).all()) for x in trial.given)
    asked: list[tuple[str, float | str]] = [("half of them zero", 0.0)]
    if trial.drawn is None:
        asked += [(words, 1.0) for words in _OF_STATE if trial.loads_state]
        asked += [(words, words) for words in (*_SMOOTH, _ONE_SIGN, _SPARSE)]
    else:
        asked += [("of the other sign", -1.0)] if one_sign else []
        asked += [(f"{_LARGER:g} times larger in every other sample", _LARGER), ("4096 times smaller", 2.0**-12),
                  (f"{_SHIFT:g} larger", _SHIFT), (_FEW, _FEW)]
    state: State | None = None
    for words, factor in asked:
        said = words if words in _OF_STATE else f"values {words}"
        values = [_changed(v, factor, trial.generator) if v.is_floating_point() else v for v in trial.inputs(given)]
        if not factor:
            values = [_half(v, trial.generator, ones=trial.drawn is not None) for v in values]
        try:
            case = replace(given, tied=factor == _FEW, silent=not factor and trial.drawn is None)
            outcome = trial.run(case, values=values, gradients=gradients and factor not in (_SHIFT, *_SMOOTH),
                                state=_zeroed(words, state))
            state = state or outcome.state
            if not factor and trial.drawn is not None or factor == _LARGER:
                # Where an input is zero the derivative may jump. Of a saturated softmax the gradients are rounding errors.
                problem = outcome.problem("call", "values") or _not_finite(outcome, "gradient_values")
            else:
                problem = outcome.problem("call", "values", *("gradients", "gradient_values") * _exact(outcome))
        except (NotForReference, Ended):
            continue
        if problem is not None:
            return _wrong_for(said, problem, Answer.FAILED if trial.drawn is None else Answer.WARNED)
        right.append(said)
    if trial.drawn is not None and (question := _of_masks(trial, given, right, gradients=gradients)):
        return question
    if not right:
        return _skipped("Not asked: the reference does not accept other values.", _OTHER_KEY, _OTHER)
    return Question(_OTHER_KEY, _OTHER, Answer.PASSED, f"Yes: with {'; '.join(right)}.")


def _of_masks(trial: TrialRun, given: cases.Case, right: list[str], *, gradients: bool) -> Question | None:
    """The question with values as padding, masks and labels have them, for which the results of the reference are finite. A
    wrong result is a warning. `right` gets those for which the file is right. None if there are none."""
    for said, values in _masked(trial, given):
        try:
            outcome = trial.run(given, values=values, gradients=gradients)
        except (NotForReference, Ended):
            continue
        # Beside 1e9 a right formula may have large rounding errors.
        of_values = outcome.problem("values") if said != _OF_MASK and _exact(outcome) else _not_finite(outcome, "values")
        if problem := outcome.problem("call") or of_values or _not_finite(outcome, "gradient_values"):
            return _wrong_for(said, problem, Answer.WARNED)
        right.append(said)
    return Question(_OTHER_KEY, _OTHER, Answer.PASSED, f"Yes: with {'; '.join(right)}.") if right else None


def _masked(trial: TrialRun, given: cases.Case) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """The values, and how they differ from those that get_inputs() draws. Inputs with a structure keep it."""
    structures, kinds = trial.drawn.structures, trial.given
    free = [place for place, x in enumerate(kinds) if structures[place] is None and x.dim() > 1 and x.is_floating_point()]
    whole = [place for place, x in enumerate(kinds) if structures[place] is None and x.dtype in (torch.int32, torch.int64)]
    sums = [place for place, s in enumerate(structures) if s and s.word == OF_SUM_1]
    for said, places, change in (("a sample of zeros", free, _without_first), (_OF_MASK, free, _masked_row),
                                 *(("rows of a single 1", [place], _one_hot) for place in sums),
                                 ("-100 in every other place of the whole numbers", whole, _ignored)):
        if places:
            yield said, [change(x) if place in places and x.numel() else x for place, x in enumerate(trial.inputs(given))]


def _without_first(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.zeros_like(x[:1]), x[1:]])


def _masked_row(x: torch.Tensor) -> torch.Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return torch.cat([rows[:-1], rows[-1:] - _MASK]).view(x.shape)


def _one_hot(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x).scatter_(-1, x.argmax(-1, keepdim=True), 1.0)


def _ignored(x: torch.Tensor) -> torch.Tensor:
    """Cross entropy leaves such labels out."""
    changed = x.flatten().clone()
    changed[::2] = _NO_LABEL
    return changed.view(x.shape)


def _not_finite(outcome: Outcome, about: str) -> Problem | None:
    return next((p for p in outcome.problems if p.about == about and p.status is Status.NON_FINITE), None)


def _wrong_for(said: str, problem: Problem, answer: Answer) -> Question:
    return Question(_OTHER_KEY, _OTHER, answer, f"No. With {said}: {problem.seen}",
                    "See whether the file may get such values. Then compute what the reference computes.", str(problem.status))


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
                             values=cases.nearly(first.inputs, trial.generator))
    return None


def wrong(trial: TrialRun, outcome: Outcome, got: dict[str, torch.Tensor]) -> str:
    """What is wrong with these results of unusual calls, in words. Their accuracy is the business of other questions."""
    about = replace(outcome, case=replace(outcome.case, long=True), problems=[], got=got, errors=dict(outcome.errors))
    trial.compare(about)
    return about.problems[0].seen if about.problems else ""


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


def _exact(outcome: Outcome) -> bool:
    """Whether PyTorch's own results are exact enough."""
    return all(distance(v, outcome.expected[n])[0] <= _MOST_OWN for n, v in outcome.own.items() if n in outcome.expected)


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


def _changed(v: torch.Tensor, factor: float | str, generator: torch.Generator) -> torch.Tensor:
    """Samples that differ in size, or values that differ little: a formula may be right only where they do not. Or smooth
    values, or few different ones of the given ones: code may be wrong only for these."""
    if isinstance(factor, str):
        return _of_kind(v, factor, generator) if v.numel() else v
    if factor == _SHIFT:
        return v + factor
    if factor == _LARGER and v.dim() and len(v) > 1:
        v = v.clone()
        v[::2] *= factor
        return v
    return v * (factor or 1.0)


def _zeroed(words: str, state: State | None) -> State | None:
    """The parameters of a layer: one channel is zero, as in a pruned network; or all are zero; or the taps of a weight are
    equal, as in a filter that averages. None: as usual."""
    if words not in _OF_STATE or state is None:
        return None
    if words == _OF_STATE[2]:
        return state[0], [v.flatten(2)[..., :1].view(*v.shape[:2], *(1,) * (v.dim() - 2)).expand(v.shape).contiguous()
                          if v.dim() > 2 else v for v in state[1]]
    changed = [v.clone() if words == _OF_STATE[0] else torch.zeros_like(v) for v in state[1]]
    for v in changed:
        v[:1] = 0
        if v.dim() > 1:
            v[:, :1] = 0
    return state[0], changed


def _of_kind(v: torch.Tensor, kind: str, generator: torch.Generator) -> torch.Tensor:
    if kind == _ONE_SIGN:
        return v.abs() + 2.0**-10
    if kind == _SPARSE:   # a sixteenth is left
        return v * (torch.randint(16, v.shape, generator=generator, device=v.device) == 0)
    some = v.flatten()[torch.randint(v.numel(), (4,), generator=generator, device=v.device)]
    if kind == _FEW:
        return some[torch.randint(4, v.shape, generator=generator, device=v.device)]
    if kind == _SMOOTH[0]:
        return torch.full_like(v, float(some[some.abs().argmax()]) or 1.0)
    if kind == _SMOOTH[1]:
        steps = sum(torch.arange(n, dtype=v.dtype, device=v.device).view(-1, *(1,) * (v.dim() - d - 1))
                    for d, n in enumerate(v.shape))
        return steps + torch.zeros_like(v)
    if kind == _SMOOTH[2]:
        one = torch.zeros_like(v)
        one.view(-1)[torch.randint(v.numel(), (1,), generator=generator, device=v.device)] = 1
        return one
    return v[..., :1, :].expand(v.shape).contiguous() if v.dim() > 3 else v[..., :1].expand(v.shape).contiguous()


def _half(v: torch.Tensor, generator: torch.Generator, *, ones: bool) -> torch.Tensor:
    """Half of the values become zero; of probabilities zero or one."""
    if not v.is_floating_point():
        return v
    chosen, one = (torch.randint(2, v.shape, generator=generator, device=v.device).to(v.dtype) for _ in range(2))
    return v * chosen + (1 - chosen) * one if ones and bool(((v >= 0) & (v <= 1)).all()) else v * chosen


def _failed(wrong: Problem) -> Question:
    where = {"values": "", "gradient_values": " its backward"}.get(wrong.about)
    what = "No. " if where is None else f"No. It computes{where} in float16 or another format with a small range. "
    return Question(_KEY, _QUESTION, Answer.FAILED, f"{what}{_NUMBERS}: {wrong.seen}",
                    "Compute in float32 or TF32, or in parts in bfloat16. The largest float16 is 65504.", str(wrong.status),
                    Log(log=wrong.log[-3000:] or None))


def _skipped(why: str, key: str = _KEY, question: str = _QUESTION) -> Question:
    return Question(key, question, Answer.SKIPPED, why)
