"""Is the file right for other values than those of a call that `get_inputs()` would make: zeros, smooth and equal values, masks
and labels, a NaN, one huge number?

For a transposed convolution all finite values are legal, so most of these fail. Nothing is known of any other module, so there
they only warn. A NaN and one huge number only warn for all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import torch

from ....core import numbers
from ....core.answers import Answer, Question
from ....core.trial import Status
from ...kernel.validate import distance
from ..foreign.process import Ended, Raised
from ..trialrun import NotForReference, Outcome, Problem, State, TrialRun
from . import magnitudes
from .cases import Case
from .drawn import OF_SUM_1, of_ties

_KEY, _ASKED = "other_values", "Right for other values?"
# The largest relative L2 error of PyTorch's own gradients for which the question is asked; NaN also exceeds it.
_MOST_OWN = 1e-3
_LARGER = 64.0      # softmax without its maximum overflows; with one scale for all samples small ones lose their digits
_SHIFT = 256.0      # the mean of the squares minus the square of the mean loses the variance
_SMOOTH = ("all equal", "in a ramp", "all zero but one", "that repeat in all rows")
_OF_MASK = "1e9 subtracted from one row"
_MASK, _NO_LABEL = 1e9, -100   # what masks subtract from scores; the default of ignore_index
_FEW, _TIES = "of which only four differ", "whole numbers, and many equal rows in each parameter"
_OF_STATE = ("one channel of each parameter zero", "all parameters zero", "all taps of a weight equal")
_ONE_SIGN, _SPARSE, _NO_SAMPLE = "above zero", "nearly all zero", "all zero in one sample"
_ZEROS, _ZERO_INDICES, _HALVED = "a sample of zeros", "a sample of whole numbers that are 0", "every other whole number halved"
_FLIPPED, _ONE_VALUE = "the masks of booleans flipped", "a row of equal whole numbers"
_NAN, _NAN_WEIGHT = "one NaN among the inputs", "one NaN in a parameter, where half of an input is zero"
_NAN_ZEROS = "one NaN among the inputs, where half of the parameters is zero"
_NAN_GRAD, _HUGE = "NaN in the first sample of grad_output", "one value {} times larger than the others"
_TIMES, _GENEROUS = ("1e20", "1e5"), 8.0   # of an error, beside the huge value
_TINY = "2^80 times smaller, without a bias"   # beside which such values would not count
_SMALL, _DIGITS, _NORMAL, _FEWEST = 1e-4, 1e-4, 1e-30, 8   # of outputs that a formula may lose
_TRIES = 3   # places of a NaN: the reference may not use each


def ask(trial: TrialRun, given: Case, *, gradients: bool) -> Question:
    """Values of which half are zero; in a transposed convolution one sample then has no gradient. A transposed convolution is
    also asked for zeros among the parameters, equal taps, smooth values, values of one sign, and values that are nearly all
    zero. Anything else is also asked for values of the other sign, larger ones, and few different ones. It is not known
    whether such a module may get these, so a wrong result is a warning. Its derivative may jump at zero, where each gradient
    between both sides is right: only NaN and infinite gradients count there. Equal values may share their gradients in any
    way, so the sums are compared."""
    if trial.candidate.given_up:
        return Question(_KEY, _ASKED, Answer.SKIPPED, "Not asked: the process has ended too often.")
    right: list[str] = []
    warned: list[tuple[str, Problem]] = []
    free = not (trial.drawn is not None and any(trial.drawn.structures)) and any(x.is_floating_point() for x in trial.given)
    for said, problem in _of_inputs(trial, given, gradients=gradients) if free else ():
        if problem is None:
            right.append(said)
        elif trial.drawn is None:
            return _wrong_for([(said, problem)], Answer.FAILED)
        else:
            warned.append((said, problem))
    for said, problem in _that_only_warn(trial, given, gradients=gradients):
        if problem is None:
            right.append(said)
        else:
            warned.append((said, problem))
    if warned:
        return _wrong_for(warned, Answer.WARNED)
    if not right:
        why = "the reference does not accept other values" if free else \
            "other values would not have the structure that get_inputs() gives them"
        return Question(_KEY, _ASKED, Answer.SKIPPED, f"Not asked: {why}.")
    return Question(_KEY, _ASKED, Answer.PASSED, f"Yes: with {'; '.join(right)}.")


def _of_inputs(trial: TrialRun, given: Case, *, gradients: bool) -> Iterator[tuple[str, Problem | None]]:
    """Changed inputs or parameters, and what is wrong for each."""
    one_sign = any(x.is_floating_point() and bool((x >= 0).all() or (x <= 0).all()) for x in trial.given)
    asked: list[tuple[str, float | str]] = [("half of them zero", 0.0)]
    if trial.drawn is None:
        asked += [(words, 1.0) for words in _OF_STATE if trial.loads_state]
        asked += [(words, words) for words in (*_SMOOTH, _ONE_SIGN, _SPARSE, _NO_SAMPLE)]
        asked += [(_TINY, 2.0**-80)] if _keeps_its_range(trial) and trial.loads_state else []
    else:
        asked += [("of the other sign", -1.0)] if one_sign else []
        asked += [(f"{_LARGER:g} times larger in every other sample", _LARGER), ("4096 times smaller", 2.0**-12),
                  *([("2^37 times smaller", 2.0**-37)] if _keeps_its_range(trial) else []),
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
        yield said, problem or (_small_are_lost(outcome) if trial.drawn is not None else None)
    if trial.drawn is not None and state and trial.loads_state and trial.dtype == "float32" and trial.declared in ("", "ieee"):
        yield from _with_larger_biases(trial, given, state)


def _keeps_its_range(trial: TrialRun) -> bool:
    return trial.dtype != "float16" and trial.declared != "fp16"


def _with_larger_biases(trial: TrialRun, given: Case, state: State) -> Iterator[tuple[str, Problem | None]]:
    """Each of the first biases alone is larger, and so is what a normalisation behind it gets: E[x²] - E[x]² loses digits."""
    buffers = trial.reference.make(trial.how(given))[0].buffers   # the mask of an attention may be called bias
    for place in [at for at, n in enumerate(state[0]) if n.rpartition(".")[2] == "bias" and n not in buffers][:_TRIES]:
        larger = [v + _SHIFT if at == place else v for at, v in enumerate(state[1])]
        with suppress(NotForReference, Ended):
            outcome = trial.run(given, gradients=False, state=(state[0], larger))
            yield f"{_SHIFT:g} added to {state[0][place]}", outcome.problem("call", "values")


def _small_are_lost(outcome: Outcome) -> Problem | None:
    """Outputs far below the largest one that PyTorch computes with all digits, and the file with none: 1 + x loses them, for
    example, where log1p(x) does not. The distance of all outputs does not show it."""
    expected, own, got = (found.get("output") for found in (outcome.expected, outcome.own, outcome.got))
    if expected is None or own is None or got is None or not expected.is_floating_point() or not expected.numel():
        return None
    expected = expected.double()
    size = expected.abs()
    small = (size > _NORMAL) & (size < _SMALL * size.max()) & ((own.double() - expected).abs() < _DIGITS * size)
    lost = int((small & ~((got.double() - expected).abs() < size / 2)).sum())
    if (count := int(small.sum())) < _FEWEST or 4 * lost < count:
        return None
    return Problem("values", Status.MISMATCH, f"{numbers.count(lost)} of {numbers.count(count)} outputs that are "
                   f"{1 / _SMALL:g} times smaller than the largest one have no right digit. Those of PyTorch have.")


def _that_only_warn(trial: TrialRun, given: Case, *, gradients: bool) -> Iterator[tuple[str, Problem | None]]:
    """Values as padding, masks and labels have them, for which the results of the reference are finite; then one NaN and one
    huge value. With each what is wrong."""
    for said, values in _masked(trial, given) if trial.drawn is not None else ():
        try:
            outcome = trial.run(given, values=values, gradients=gradients)
        except (NotForReference, Ended):
            continue
        # Beside 1e9 a right formula may have large rounding errors.
        compared = said in (_FLIPPED, _ONE_VALUE, _HALVED, _ZERO_INDICES) or said == _ZEROS and outcome.problem(
            "gradients", "gradient_values") is not None and magnitudes.is_smooth(trial, outcome)
        about = ("values", *("gradients", "gradient_values") * compared)
        of_values = outcome.problem(*about) if said != _OF_MASK and _exact(outcome) else _not_finite(outcome, "values")
        yield said, outcome.problem("call") or of_values or _not_finite(outcome, "gradient_values")
    places = [place for place, x in enumerate(trial.given) if x.is_floating_point() and x.numel() > 1 and (
        trial.drawn is None or trial.drawn.structures[place] is None)]
    huge = [(_HUGE.format(times), partial(_beside_a_huge_one, times=float(times))) for times in _TIMES]
    swallowed = ((_NAN, _swallowed), (_NAN_ZEROS, partial(_swallowed, zeros=True)), (_NAN_WEIGHT, _swallowed_of_state))
    for said, problem in (*swallowed, *huge) if places else ():
        try:
            usual = trial.run(given, gradients=False)
            found = [problem(trial, usual, place) for place in places[:2]] if not usual.problems else []
        except (NotForReference, Raised, Ended):  # a file may refuse them
            continue
        if any(asked for asked, _ in found):
            yield said, next((wrong for _, wrong in found if wrong), None)
    with suppress(NotForReference, Raised, Ended):
        asked, wrong = _swallowed_gradient(trial, given) if gradients else (False, None)
        if asked:
            yield _NAN_GRAD, wrong
    with suppress(NotForReference, Raised, Ended):
        if trial.drawn and not any(trial.drawn.structures) and (tied := of_ties(trial, given)):
            yield _TIES, tied.problem("call", "values")


def _swallowed_gradient(trial: TrialRun, given: Case) -> tuple[bool, Problem | None]:
    """Whether the reference's gradients have NaN if the first sample of grad_output is NaN, and what is wrong if the file's
    have none there: GradScaler needs them, and whoever looks whether a training diverges."""
    usual = trial.run(given)
    if usual.grad_output is None or usual.problems or not usual.grad_output.is_floating_point() or not usual.grad_output.dim():
        return False, None
    with_nan, state = usual.grad_output.clone(), usual.state
    with_nan[:1] = torch.nan
    theirs, exact, got = (dict(zip([n for n in facts.gradients if n], results[1:], strict=False)) for facts, results in (
        party.call(trial.how(given, dtype="float64" if wide else None), usual.inputs, state=state if loads else None,
                   gradients=usual.names, grad_output=with_nan, wide=wide) for party, loads, wide in (
            (trial.reference, True, False), (trial.reference, True, True), (trial.candidate, trial.loads_state, False))))
    both = {n: g.isnan() & exact[n].isnan() for n, g in theirs.items() if n in exact}
    asked = {n: nan for n, nan in both.items() if bool(nan.any())}
    for name, nan in asked.items():
        there = got.get(name)
        lost = int((nan & there.isfinite()).sum()) if there is not None and there.shape == nan.shape else 0
        if lost:
            of = numbers.count(int(nan.sum()))
            return True, Problem("gradient_values", Status.MISMATCH, f"{numbers.count(lost)} of {of} NaN in the reference's "
                                 f"{trial.plain(name)} are finite numbers in the file's.")
        if there is not None and name.startswith("input ") and (
                wrong := _spread(trial.plain(name), theirs[name], there, "gradient_values")):
            return True, wrong
    return bool(asked), None


def _swallowed(trial: TrialRun, usual: Outcome, place: int, *, zeros: bool = False) -> tuple[bool, Problem | None]:
    """Whether the reference's output has NaN if that input has one, and what is wrong if the file's has none there. The file
    may have more of them in the samples that have one. `zeros`: half of each parameter is zero; a file may skip products."""
    names, values = usual.state
    if zeros and not trial.loads_state:
        return False, None
    state = names, [_half(v, trial.generator, ones=False) if zeros and n in usual.names else v
                    for n, v in zip(names, values, strict=True)]
    tried = ((_with_one(trial, usual, place, torch.nan), state) for _ in range(_TRIES))
    return next((found for inputs, state in tried if (found := _lost_nan(trial, usual, inputs, state))[0]), (False, None))


def _swallowed_of_state(trial: TrialRun, usual: Outcome, place: int) -> tuple[bool, Problem | None]:
    """The same of a parameter, where half of that input is zero: a file may skip its products."""
    names, values = usual.state
    those = [at for at, (n, v) in enumerate(zip(names, values, strict=True)) if n in usual.names and v.dim() > 1 and v.numel()]
    if not those or not trial.loads_state:
        return False, None
    inputs = [x.clone() for x in usual.inputs]
    inputs[place] = _half(inputs[place], trial.generator, ones=False)
    with_nan = [v.clone() if at == those[0] else v for at, v in enumerate(values)]
    with_nan[those[0]].view(-1)[0] = torch.nan
    return _lost_nan(trial, usual, inputs, (names, with_nan))


def _lost_nan(trial: TrialRun, usual: Outcome, inputs: list[torch.Tensor], state: State) -> tuple[bool, Problem | None]:
    theirs = trial.reference.call(trial.how(usual.case), inputs, state=state, no_grad=True)[1]
    exact = _reached_by_nan(trial, usual.case, inputs, state)
    nan = theirs[0].isnan() & exact if theirs and exact is not None and theirs[0].shape == exact.shape else torch.zeros(())
    if not bool(nan.any()):
        return False, None
    got = trial.candidate.call(trial.how(usual.case), inputs, state=state if trial.loads_state else None, no_grad=True)[1]
    if not got or got[0].shape != nan.shape:
        return True, None
    if count := int((nan & got[0].isfinite()).sum()):
        return True, Problem("values", Status.MISMATCH, f"{numbers.count(count)} of {numbers.count(int(nan.sum()))} NaN in the "
                             "reference's output are finite numbers in the file's.")
    batch = len({len(x) for x in (*inputs, theirs[0]) if x.dim() and x.is_floating_point()}) == 1
    return True, _spread("output", theirs[0], got[0], "values") if batch else None


def _spread(name: str, theirs: torch.Tensor, got: torch.Tensor, about: str) -> Problem | None:
    """What is wrong if samples that are finite in the reference's result are not in the file's: one scale for the whole batch
    carries a NaN from one sample to all. Within a sample another right algorithm may spread it."""
    if got.shape != theirs.shape or theirs.dim() < 2 or not theirs.is_floating_point():
        return None
    others = theirs.flatten(1).isfinite().all(1)
    count = int((~got[others].isfinite()).sum())
    return Problem(about, Status.NON_FINITE, f"{numbers.count(count)} values of {name} are not finite in samples that are "
                   "finite in the reference's.") if count else None


def _reached_by_nan(trial: TrialRun, case: Case, inputs: list[torch.Tensor], state: State) -> torch.Tensor | None:
    """Which outputs are NaN in float64. Of a layer: which have a product with the NaN. PyTorch may also multiply it by a zero
    beside the input, which another right algorithm has not."""
    names, values = state
    if trial.drawn is None:   # 1 in place of the NaN, and 0 beside it in that tensor; no bias
        inputs, values = ([v.isnan().to(v.dtype) if bool(v.isnan().any()) else torch.ones_like(v) if v.dim() > 1 else
                           torch.zeros_like(v) for v in some] for some in (inputs, values))
    found = trial.reference.call(trial.how(case, dtype="float64"), inputs, state=(names, values), wide=True, no_grad=True)[1]
    return (found[0] != 0 if trial.drawn is None else found[0].isnan()) if found else None


def _beside_a_huge_one(trial: TrialRun, usual: Outcome, place: int, *, times: float) -> tuple[bool, Problem | None]:
    """Compares the outputs that do not depend on the huge value: their truth in float64 is as without it. A formula that
    scales, shifts or transforms a whole row loses their digits."""
    if "float16" in (trial.dtype, trial.declared) or trial.declared == "fp16":
        return False, None
    inputs = _with_one(trial, usual, place, times)
    how, without = trial.how(usual.case), usual.expected["output"]
    truth = trial.reference.call(trial.how(usual.case, dtype="float64"), inputs, state=usual.state, wide=True, no_grad=True)[1]
    alone = truth[0] == without if truth and truth[0].shape == without.shape else torch.zeros(())
    if not without.is_floating_point() or not 0 < int(alone.sum()) < alone.numel() or not bool(without[alone].any()):
        return False, None
    own = trial.reference.call(how, inputs, state=usual.state, no_grad=True)[1]
    got = trial.candidate.call(how, inputs, state=usual.state if trial.loads_state else None, no_grad=True)[1]
    if not got or got[0].shape != without.shape:
        return False, None
    own_off, off = (distance(one[0][alone].double(), without[alone])[0] for one in (own, got))
    limit = _GENEROUS * max(own_off, usual.errors["output"].allowed)   # NaN if the reference's own is NaN
    if not limit < 1:
        return False, None
    return True, None if off <= limit else Problem(
        "values", Status.MISMATCH, f"The error of the outputs that do not depend on it is {numbers.error(off)}, that of "
        f"PyTorch is {numbers.error(own_off)}.")


def _with_one(trial: TrialRun, usual: Outcome, place: int, factor: float) -> list[torch.Tensor]:
    """The inputs, in which one value of one of them is another one."""
    inputs = [x.clone() for x in usual.inputs]
    flat = inputs[place].view(-1)
    flat[int(torch.randint(flat.numel(), (), generator=trial.generator, device=trial.generator.device))] = \
        factor * float(flat.abs().max())
    return inputs


def _masked(trial: TrialRun, given: Case) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """The values, and how they differ from those that get_inputs() draws. Inputs with a structure keep it."""
    structures, kinds = trial.drawn.structures, trial.given
    free = [place for place, x in enumerate(kinds) if structures[place] is None and x.dim() > 1 and x.is_floating_point()]
    whole = [place for place, x in enumerate(kinds) if structures[place] is None and x.dtype in (torch.int32, torch.int64)]
    masks = [place for place, x in enumerate(kinds) if x.dtype is torch.bool and x.dim()]
    sums = [place for place, s in enumerate(structures) if s and s.word == OF_SUM_1]
    for said, places, change in ((_ZEROS, free, partial(_first, 0)), (_OF_MASK, free, _masked_row),
                                 ("a sample of False", masks, partial(_first, 0)),
                                 ("a sample of True", masks, partial(_first, 1)),
                                 (_ZERO_INDICES, whole, partial(_first, 0)),
                                 *(("rows of a single 1", [place], _one_hot) for place in sums), (_FLIPPED, masks, _flipped),
                                 (_HALVED, whole, _every_other_halved),
                                 *((_ONE_VALUE, [place], partial(_row_of_one, _least(trial, given, place)))
                                   for place in whole if kinds[place].dim()),
                                 *((f"{value} in every other place of the whole numbers", whole, partial(_ignored, value))
                                   for value in (_NO_LABEL, -1))):   # -1 is the last row of a table
        if places:
            yield said, [change(x) if place in places and x.numel() else x for place, x in enumerate(trial.inputs(given))]


def _flipped(x: torch.Tensor) -> torch.Tensor:
    """As many of each row are True: a mask of padding then begins with the padding. If that is the same, every third value is
    another one."""
    changed = x.flip(-1)
    if torch.equal(changed, x):
        changed.view(-1)[1::3].logical_not_()
    return changed


def _row_of_one(least: int, x: torch.Tensor) -> torch.Tensor:
    """The first row has its smallest value alone, the last one the smallest of all."""
    rows = x.reshape(-1, x.shape[-1]).clone()
    rows[0], rows[-1] = rows[0].min(), least
    return rows.view(x.shape)


def _least(trial: TrialRun, given: Case, place: int) -> int:
    """The smallest whole number of some draws, which often is that of padding."""
    return min(int(x.min()) if x.numel() else 0 for x in (
        trial.given[place], *(trial.inputs(given)[place] for _ in range(_TRIES))))


def _every_other_halved(x: torch.Tensor) -> torch.Tensor:
    """As lengths of sequences differ in a batch."""
    changed = x.flatten().clone()
    changed[1::2] //= 2
    return changed.view(x.shape)


def _first(value: int, x: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.full_like(x[:1], value), x[1:]])


def _masked_row(x: torch.Tensor) -> torch.Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return torch.cat([rows[:-1], rows[-1:] - _MASK]).view(x.shape)


def _one_hot(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x).scatter_(-1, x.argmax(-1, keepdim=True), 1.0)


def _ignored(value: int, x: torch.Tensor) -> torch.Tensor:
    """Cross entropy leaves such labels out."""
    changed = x.flatten().clone()
    changed[::2] = value
    return changed.view(x.shape)


def _exact(outcome: Outcome) -> bool:
    """Whether PyTorch's own results are exact enough."""
    return all(distance(v, outcome.expected[n])[0] <= _MOST_OWN for n, v in outcome.own.items() if n in outcome.expected)


def _not_finite(outcome: Outcome, about: str) -> Problem | None:
    """NaN or infinity, where the reference in its own precision has none in any output or gradient."""
    own = [v for name, v in outcome.own.items() if (name == "output") == (about == "values")]
    found = next((p for p in outcome.problems if p.about == about and p.status is Status.NON_FINITE), None)
    return found if all(bool(v.isfinite().all()) for v in own) else None


def _wrong_for(wrong: Sequence[tuple[str, Problem]], answer: Answer) -> Question:
    (said, problem), *others = wrong
    more = f" Also wrong with {'; '.join(other for other, _ in others)}." if others else ""
    return Question(_KEY, _ASKED, answer, f"No. With {said}: {problem.seen}{more}",
                    "See whether the file may get such values. Then compute what the reference computes.", str(problem.status))


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
    equal, as in a filter that averages. Or only its bias is zero. None: as usual."""
    if words == _TINY and state is not None:
        return state[0], [torch.zeros_like(v) if v.dim() == 1 else v for v in state[1]]
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
    if kind == _NO_SAMPLE:   # as a sample of padding alone, or one that is only to be trained
        return _first(0, v)
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
