"""How the questions of daily use ask the file, and where needed the reference, and compare the answers. Then the calls of the
question about views: in each round the inputs, or grad_output, lie in memory in another way. Most rounds have the values of a
plain call. In the others values repeat; for these the reference is asked what is right."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import cycle
from math import inf
from typing import Any

import torch

from ....core import numbers
from ....core.answers import Answer, Question
from ....core.check_parts import Log
from ....core.trial import Status
from ...kernel.validate import norm_apart
from ...module.cases import OTHER_GRADS, other_grad
from ..foreign.process import Ended, Raised
from ..foreign.replies import Habit
from ..foreign.requests import Altered, DailyUse, EvalMode, SecondDerivative, Views
from ..text.advice import ASKED, OF_DAILY_USE
from ..trialrun import NotForReference, Outcome, Problem, TrialRun, problem_of, same_bits, wide
from . import magnitudes
from .cases import other_size, with_batch

OTHER_COUNT = "It returns a different number of results."
_OF_BOTH = ("two_calls", "some_gradients", "second_backward", "views", "parameters", "in_training", "copied",
            "modes")   # asked of both
_REPEATED = "repeated"
_TOUCHES = 3     # changes of the input
_SECOND, _SECOND_OF_16 = 1e-2, 5e-2   # relative L2 tolerance of second derivatives: a wrong formula is farther off
_LITTLE = 1e-5   # beside the largest one
_FEW_VALUES = (1, 2, 4, 1 << 30)   # the largest size of each dimension behind the first two
_SMALL = 2.0**-10   # factor of buffers
_LEADING = 3     # the size of one more leading dimension
_OF_CHANNELS_LAST = ("part_of_channels", "some channels"), ("crop", "a crop")   # of a tensor of three or more dimensions
_OF_INPUTS = {
    "part_of_batch": "For slices of larger tensors", "part_of_channels": "For some channels of a larger tensor",
    "crop": "For a crop of a larger tensor", "shifted": "For an input that does not begin at a multiple of 16 bytes",
    _REPEATED: "For an expanded input (stride 0)",
    **{f"{how} in channels_last": f"For {words} of a larger tensor in channels_last" for how, words in _OF_CHANNELS_LAST}}
_OF_GRADS = {
    "grad reversed": "For a transposed grad_output", "grad channels_last": "For a grad_output in channels_last",
    "grad part_of_channels": "For a grad_output that is some channels of a larger tensor, as after torch.cat",
    "grad crop": "For a grad_output that is a crop of a larger tensor",
    "grad shifted": "For a grad_output that does not begin at a multiple of 16 bytes",
    **dict(zip((f"grad {how}" for how in OTHER_GRADS), (
        "For the grad_output of a sum over the spatial dimensions, which is expanded (stride 0)",
        "For the grad_output of a sum over samples and channels, which is expanded (stride 0)",
        "For a grad_output that is one expanded value, as that of y.mean()"), strict=True)),
    **{f"grad {how} in channels_last": f"For a grad_output that is {words} of a larger tensor in channels_last"
       for how, words in _OF_CHANNELS_LAST}}


class Not(Exception):
    """Raised if a question is not asked; the text gives the reason."""


class Asking:
    """Asks both files the same calls and compares the results. `first`: a right answer."""

    def __init__(self, trial: TrialRun, first: Outcome) -> None:
        self.trial, self.first = trial, first
        self.state = first.state if trial.loads_state else None
        self.right_without = True   # without gradients; an error there shows in every mode, and is reported once
        self.failed: set[str] = set()   # keys of the questions so far
        self._collected: dict[tuple[str, int], dict[str, torch.Tensor]] | None = None  # while the reference is asked
        self._asks = (trial.candidate, self.state)
        self._again: Callable[[], object] = lambda: None   # the question, if the reference can be asked it as well

    def _question(self, key: str, wrong: Callable[[], str | tuple[str, Status]], yes: str) -> Question:
        """`wrong` says what is wrong, and the status if that is not MISMATCH."""
        self._again = wrong if key in _OF_BOTH else lambda: None
        try:
            told = wrong()
            said, status = told if isinstance(told, tuple) else (told, Status.MISMATCH)
        except Not as error:
            return Question(key, ASKED[key], Answer.SKIPPED, f"Not asked: {error}")
        except (Raised, Ended) as error:
            problem: Problem = problem_of(error)
            return Question(key, ASKED[key], Answer.FAILED, f"No. {problem.seen}", problem.advice or OF_DAILY_USE[key],
                            str(problem.status), Log(log=problem.log[-3000:] or None))
        if not said:
            return Question(key, ASKED[key], Answer.PASSED, yes)
        return Question(key, ASKED[key], Answer.FAILED, f"No. {said}", OF_DAILY_USE[key], str(status))

    def _asked(self, kind: Callable[..., DailyUse], outcomes: list[Outcome], *, gradients: Sequence[str] = ()
               ) -> tuple[Habit, list[torch.Tensor]]:
        tensors = [x for one in outcomes for x in one.inputs]
        if gradients:
            tensors += [one.grad_output for one in outcomes]
        request = partial(kind, inputs=len(self.first.inputs), sets=len(outcomes), gradients=tuple(gradients))
        party, state = self._asks
        return party.ask(request, self.trial.how(self.first.case), tensors, state)

    def _small(self) -> float:
        """A factor for a grad_output. Small gradients show what a file adds to them."""
        return 1.0 if "float16" == self.trial.dtype or self.trial.declared == "fp16" else 2.0**-40

    def _lost(self, there: list[str], outcome: Outcome, wanted: list[str] | None = None) -> str:
        """Gradients that the reference has and that are missing."""
        plain = self.trial.plain
        return ", ".join(plain(n) for n in wanted or outcome.names if n not in there and plain(n) in outcome.expected)

    def _compared(self, those: Sequence[tuple[str, Outcome, dict[str, torch.Tensor]]]) -> str:
        """The first of these that is wrong, in words."""
        for words, outcome, there in those:
            got = {n if n == "output" else self.trial.plain(n): self.trial.tangent(n, v) for n, v in there.items()}
            if self._collected is not None:
                self._collected[words, id(outcome)] = got
            elif said := self._wrong(outcome, got):
                theirs = self._of_reference().get((words, id(outcome)))
                if theirs is None or (said := magnitudes.wrong_beside(self.trial, outcome, got, theirs, said)):
                    return f"{words}: {said}"
        return ""

    def _of_reference(self) -> dict[tuple[str, int], dict[str, torch.Tensor]]:
        """What the reference returns in its own precision if it gets the same calls."""
        found = self._collected = dict[tuple[str, int], dict[str, torch.Tensor]]()
        of_file, self._asks = self._asks, (self.trial.reference, self.first.state)
        with suppress(Raised, Ended, Not):
            self._again()
        self._collected, self._asks = None, of_file
        return found

    def _wrong(self, outcome: Outcome, got: dict[str, torch.Tensor]) -> str:
        return "" if self._collected is not None else magnitudes.wrong(self.trial, outcome, got)


class OtherCalls(Asking):
    """Calls with other random numbers, few other values, other numbers among the inputs, and one more leading dimension; and
    gradients of gradients. `second`: of other values."""

    second: Outcome

    def numbers(self) -> list[Question]:
        """Another number among the inputs, in a call of the same instance; of fractions also 0."""
        there: dict[int, float] = ast.literal_eval(self.trial.numbers)
        raised: list[str] = []

        def wrong() -> str | tuple[str, Status]:
            asked = False
            others = [(p, not v if isinstance(v, bool) else v + 1 if isinstance(v, int) else v / 2 or 0.5)
                      for p, v in there.items()]
            others += [(p, 0.0) for p, v in there.items() if isinstance(v, float) and v]
            for place, other in others:
                value = there[place]
                words = f"With {other} instead of {value}"
                try:
                    told = self._altered((words,), numbers=repr({**there, place: other}))
                except Raised as error:
                    raised.append(words)
                    return f"{words}: {problem_of(error).seen}", problem_of(error).status
                if told and told[0]:
                    return told[0]
                asked = asked or told is not None
            if not asked:
                raise Not("the reference does not accept other numbers.")
            return ""
        if not there:
            return []
        question = self._question("numbers", wrong, "Yes.")
        return [question.as_warning() if raised else question]

    def _of_another_seed(self) -> str:
        """Of a reference that draws random numbers in its calls: two calls after one seed, then both backwards."""
        if not self.trial.draws or self._collected is not None:
            return ""
        words = ("Under another seed", "In a second call under that seed")
        said, drew = self._altered(words, seed=self.trial.draws % 2**30 + 1) or ("", set())
        return said or (f"Its backward changes the state of the random numbers of {' and '.join(sorted(drew))}. That of the "
                        "reference does not." if drew else "")

    def _of_touched(self, others: list[torch.Tensor], *, evaluated: bool = False) -> str:
        """Few values of the input change between two calls. A file may keep its last output for an input that a sample or a sum
        of its values does not show to be another one. `others`: values that the input may have."""
        there = self.first.inputs
        free = [i for i, x in enumerate(there) if x.numel() and (not self.trial.drawn or self.trial.drawn.structures[i] is None)
                and x.dtype is not torch.bool]
        if not free or self._collected is not None:
            return ""
        how = {"generator": self.trial.generator, "device": self.trial.generator.device}
        changes = tuple(dict.fromkeys((which, int(torch.randint(there[which].numel(), (), **how)))
                                      for which, _ in zip(cycle(free), range(_TOUCHES), strict=False)))
        each = ["In a second call, after the output of the first was overwritten", *(
            f"After a change of {what} {place} of {'the input' if len(there) == 1 else f'input {which}'}"
            for which, place in changes for what in ("value", "the row of value"))]
        modes = ("after .eval() without gradients",) if evaluated else ("without gradients", "with gradients")
        words = tuple(f"{one}, {mode}" for mode in modes for one in each)
        said = self._altered(words, beside=others, changes=changes, evaluated=evaluated) if self.right_without else None
        return said[0] if said else ""

    def _buffers_of_few_values(self, names: Sequence[str]) -> list[str]:
        """What is wrong with the buffers of floats after a call with few values, if all of them are small before. A variance
        that is divided by n in place of n - 1 is as good as right for a large input."""
        batch, case = 2, self.first.case
        for size in _FEW_VALUES:
            few = with_batch(replace(case, shapes=tuple((*s[:2], *(min(n, size) for n in s[2:])) for s in case.shapes)), batch,
                             f"an input of {batch} samples")
            with suppress(NotForReference, Raised, Ended):
                if self.trial.run(few, gradients=False, state=self.first.state).problems:
                    return []
                inputs = self.trial.inputs(few)
                ask = partial(EvalMode, inputs=len(inputs))
                state, how = self.first.state[0], partial(self.trial.how, few)
                facts, after = self.trial.reference.ask(ask, how(), inputs, self.first.state)
                there = dict(zip(facts.buffers, after[3:], strict=True))   # a buffer that no call changes may be a constant
                small = [v * _SMALL if n in names and v.is_floating_point() and not same_bits(there.get(n, v), v) else v
                         for n, v in zip(*self.first.state, strict=True)]
                facts, truth = self.trial.reference.ask(ask, how(dtype="float64"), list(map(wide, inputs)),
                                                        (state, list(map(wide, small))))
                usual, own = self.trial.reference.ask(ask, how(), inputs, (state, small))
                ours, got = self.trial.candidate.ask(ask, how(), inputs, (state, small))
                found = [dict(zip(one.buffers, values[3:], strict=True)) for one, values in (
                    (facts, truth), (usual, own), (ours, got))]
                before = dict(zip(state, small, strict=True))
                said = (self._wrong(Outcome(few, expected={n: found[0][n]}, own={n: found[1][n]}), {n: found[2][n]})
                        for n in found[0] if n in found[2] and n in before and found[0][n].is_floating_point() and
                        bool(found[0][n].isfinite().all()) and not same_bits(found[1][n], before[n]))
                return [f"After one call with an input of {numbers.shape(few.shapes[0])}: {one}" for one in said if one]
        return []

    def _of_buffers(self, names: list[str], left: list[tuple[str, bool]]) -> Question:
        """What is wrong with the buffers. If only a count of calls differs, the module's results do not change."""
        key = "buffers"
        if not left:
            return Question(key, ASKED[key], Answer.PASSED, f"Yes: {', '.join(names)}.")
        left.sort(key=lambda one: not one[1])
        said, counts = left[0]
        return Question(key, ASKED[key], Answer.FAILED if counts else Answer.WARNED, f"No. {said}",
                        "Change the buffers as the reference does.", str(Status.MISMATCH))

    def second_derivative(self) -> list[Question]:
        """Gradients of gradients, as for a gradient penalty, where the reference has them. A file that raises an exception is
        not wrong. A derivative may jump near the first inputs, so both are wrong if a file is."""
        names = self.first.names if self.first.grad_output is not None else []
        raised: list[Raised] = []

        def wrong() -> str:
            said = ""
            for one in (self.first, self.second):
                try:
                    if not (said := self._wrong_second(one)):
                        break
                except Raised as error:
                    raised.append(error)
                    break
            return said
        bound = self.trial.drawn is not None and self.trial.drawn.bound   # a part of the gradients may be anything
        if bound or not any(n.startswith("input ") for n in names):
            return []
        question = self._question("second_derivative", wrong, "Yes.")
        if raised:
            said = f"It raises {raised[0].sentence}, so that no wrong value can be used."
            return [replace(question, answer=Answer.NOTE, seen=said)]
        return [] if question.answer is Answer.SKIPPED else [question.as_warning()]

    def _wrong_second(self, one: Outcome) -> str:
        """What is wrong with the second derivatives at these inputs, and with the third ones: of a layer, which has none, those
        of a layer and a tanh. Raises what the file raises, and `Not`."""
        if said := self.wrong_derivative(one, "second", ("parameters", "inputs")):
            return said
        with suppress(Not, Raised):
            if said := self.wrong_derivative(one, "second", ("frozen",)):
                return f"If all parameters are frozen: {said}"
        with suppress(Not, Raised):
            if said := self.wrong_derivative(one, "second", ("summed",)):
                return f"Of the sum of the gradients of y.sum(), which are expanded (stride 0): {said}"
        with suppress(Not, Raised):
            if one.case.setting.layer is None:
                return self.wrong_derivative(one, "third", ("third",))
            if said := self.wrong_derivative(one, "third", ("tanh",)):
                return f"If a tanh follows: {said}"
        return ""

    def wrong_derivative(self, one: Outcome, order: str, kinds: Sequence[str], *, dtype: str = "") -> str:
        """`kinds`: of the request; the first one that the reference answers. `dtype`: of the module, if it is another one."""
        given, (names, values) = [*one.inputs, one.grad_output], one.state
        how, tangent, limit = partial(self.trial.how, one.case), self.trial.tangent, _SECOND_OF_16 if dtype else _SECOND
        narrow, state = how(dtype=dtype or None), one.state if dtype else self.state
        for kind in kinds:
            ask = partial(SecondDerivative, inputs=len(one.inputs), gradients=tuple(one.names), of=kind)
            try:
                found = [self.trial.reference.ask(ask, how(dtype="float64"), list(map(wide, given)),
                                                  (names, list(map(wide, values)))),
                         self.trial.reference.ask(ask, narrow, given, one.state)]
                break
            except Raised as error:
                if kind == kinds[-1]:
                    raise Not(f"the reference raises {error.sentence}.") from error
        found.append(self.trial.candidate.ask(ask, narrow, given, state))
        truth, own, got = ({n: tangent(n, v).double() for n, v in zip(facts.first, results, strict=False)}
                           for facts, results in found)
        most = max((float(v.norm()) for v in truth.values()), default=0.0)
        for name, expected in truth.items():
            size = float(expected.norm())
            if not _LITTLE * most < size < inf or name not in own or not (
                    off := float((own[name] - expected).norm()) / size) < limit:
                continue   # zero but for rounding, or not exact in PyTorch either
            called = name if name == "grad_output" else self.trial.plain(name).removeprefix("gradient of ").replace("grad_", "")
            if name not in got or got[name].shape != expected.shape:
                return f"Autograd gives no {order} derivative for {called}. The reference has one."
            far = float((got[name] - expected).norm()) / size
            if not far <= max(limit, 8 * off, 8 * max(e.allowed for e in one.errors.values())):
                return f"The error of the {order} derivative for {called} is {numbers.error(far)}, that of PyTorch is " \
                    f"{numbers.error(off)}."
        return ""

    def _altered(self, words: tuple[str, ...], *, beside: Sequence[torch.Tensor] = (), **how: Any
                 ) -> tuple[str, set[str]] | None:
        """What is wrong in calls of one instance, and the generators that only the file's backward changes. None if the
        reference does not accept such calls. `words`: of each call. `beside`: a second set of inputs; without gradients."""
        names = self.first.names if self.first.grad_output is not None and not beside else []
        ask = partial(Altered, inputs=len(self.first.inputs), sets=1 + bool(beside), gradients=tuple(names),
                      calls=len(words), **how)
        given = [*self.first.inputs, *beside, *([self.first.grad_output] if names else [])]
        of, state, construction = self.trial.reference, self.first.state, partial(self.trial.how, self.first.case)
        try:
            _, truth = of.ask(ask, construction(dtype="float64"), list(map(wide, given)), (state[0], list(map(wide, state[1]))))
            usual, own = of.ask(ask, construction(), given, state)
        except Raised:
            return None
        truths, owns = split(words, usual, truth), split(words, usual, own)
        if truths is None or owns is None or not all(bool(one["output"].isfinite().all()) for one in truths.values()):
            return None
        facts, results = self._asks[0].ask(ask, construction(), given, self._asks[1])
        if (found := split(words, facts, results)) is None:
            return OTHER_COUNT, set()
        those = []
        for one, got in found.items():
            expected, narrow = ({n if n == "output" else self.trial.plain(n): self.trial.tangent(n, v) for n, v in part.items()
                                 if bool(truths[one][n].isfinite().all())} for part in (truths[one], owns[one]))
            about = replace(self.first, expected=expected, own=narrow,
                            grad_output=self.first.grad_output if len(truths[one]) > 1 else None)
            if lost := [n for n in truths[one] if n not in got and self.trial.plain(n) in expected]:
                return f"{one} autograd gives no {self.trial.plain(lost[0])}.", set()
            those.append((one, about, {n: v for n, v in got.items() if n == "output" or self.trial.plain(n) in expected}))
        return self._compared(those), {*facts.first} - {*usual.first}

    def leading(self) -> list[Question]:
        """Inputs with one more dimension ahead of the batch, as a linear layer takes them, if the reference gives the same
        values as for one large batch. A file that raises an exception gets a warning."""
        case, raised = self.first.case, list[str]()

        def wrong() -> str | tuple[str, Status]:
            batch = case.shapes[0][0]
            of_batch = [bool(s) and s[0] == batch for s in case.shapes]
            draws = [self.trial.inputs(case) for _ in range(2 if batch == _LEADING else _LEADING)]
            stacked = [torch.stack(xs) if one else xs[0] for xs, one in zip(zip(*draws, strict=True), of_batch, strict=True)]
            flat = [x.flatten(0, 1) if one else x for x, one in zip(stacked, of_batch, strict=True)]
            how, state = self.trial.how(case, dtype="float64"), (self.first.state[0], list(map(wide, self.first.state[1])))
            try:
                outputs = [self.trial.reference.call(how, xs, state=state, wide=True, no_grad=True)[1]
                           for xs in (flat, stacked)]
                if not all(outputs) or outputs[0][0].numel() != outputs[1][0].numel() or not torch.allclose(
                        outputs[1][0].reshape(outputs[0][0].shape), outputs[0][0]):
                    raise Not("the reference gives other values.")
                outcome = self.trial.run(replace(case, shapes=tuple(tuple(x.shape) for x in stacked)), values=stacked,
                                         gradients=self.first.grad_output is not None, state=self.first.state)
            except (Raised, NotForReference) as error:
                raise Not("the reference does not accept such inputs.") from error
            problem = outcome.problem("call", "kind", "values", "gradients", "gradient_values")
            if problem is None:
                return ""
            raised.extend([problem.about] if problem.about == "call" else [])
            return f"For inputs of {len(draws)} × {batch} samples: {problem.seen}", problem.status
        if case.setting.layer is not None:
            return self._without_batch()
        if not case.shapes or not case.shapes[0]:
            return []
        question = self._question("leading", wrong, "Yes.")
        return [] if question.answer is Answer.SKIPPED else [question.as_warning() if raised else question]

    def _without_batch(self) -> list[Question]:
        """One sample of a layer alone; then with another size of the output, where a file that takes the batch for a side finds
        sides that fit. A file may raise an exception."""
        found = self._of_sample(self.first, "")
        for case in other_size(self.first.case, equal=True)[:1] if self.trial.takes_size else ():
            with suppress(NotForReference, Ended):
                sized = self.trial.run(case, state=self.first.state, gradients=self.first.grad_output is not None)
                if not sized.problems and all(q.answer is Answer.PASSED for q in found):
                    found = self._of_sample(sized, f"With {case.name}: ") or found
        return found

    def _of_sample(self, outcome: Outcome, words: str) -> list[Question]:
        given, trial = outcome.grad_output, self.trial
        one = replace(outcome, inputs=[x[0] for x in outcome.inputs], grad_output=None if given is None else given[0])
        with suppress(Raised, Ended):
            truth = magnitudes.results(trial, trial.reference, one, "float64", wide=True)
            got = magnitudes.results(trial, trial.candidate, one, trial.dtype)
            if truth:
                lost, one = next((n for n in truth if n not in got), ""), replace(one, expected=truth, own={})
                said = magnitudes.wrong(trial, one if not lost else replace(one, grad_output=None), {
                    n: v for n, v in got.items() if not lost or n == "output"}) or (lost and f"There is no {lost}.")
                return [self._question("unbatched", lambda: f"{words}{said}" if said else "", "Yes.").as_warning()]
        return []


class Rounds:
    """`first`: a right answer. `names`: the gradients that are compared."""

    def __init__(self, trial: TrialRun, first: Outcome, names: Sequence[str]) -> None:
        self.trial, self.first, self._names = trial, first, tuple(names)

    def words(self, one: str) -> str:
        """What is special in this round."""
        return (_OF_INPUTS | _OF_GRADS)[one]

    @cached_property
    def asked(self) -> dict[str, Outcome]:
        """The rounds that the reference takes, and what is right in each."""
        most, dims = max((x.dim() for x in self.first.inputs), default=0), 0
        if self._names and (of_grad := self.first.grad_output) is not None:
            dims = of_grad.dim()
        rounds = [n for n in _OF_INPUTS if most > 2 or not n.endswith("channels_last")]
        rounds += [n for n in _OF_GRADS if self._names and (
            dims > (3 if n == "grad channels_last" else 2) or not n.endswith("channels_last"))]
        if self.trial.drawn is not None and any(self.trial.drawn.structures):
            rounds.remove(_REPEATED)   # of equal samples an input would not be what get_inputs() draws
        taken = self._one_by_one(rounds, lambda some: [self._of_reference(some, narrow=True)])
        other = [n for n in taken if n == _REPEATED or n.removeprefix("grad ") in OTHER_GRADS]
        truths = self._one_by_one(other, lambda some: [self._of_reference(some, narrow=narrow, dense=True)
                                                       for narrow in (False, True)])
        return {one: self._outcome(one, *truths[one]) if one in truths else self.first for one in taken
                if one not in other or one in truths and all(bool(x.isfinite().all()) for x in truths[one][0].values())}

    def parts(self, facts: Habit, results: list[torch.Tensor]) -> dict[str, dict[str, torch.Tensor]] | None:
        """The results of the rounds by name; None if there are more or fewer than were asked for."""
        return split(self.asked, facts, results)

    def _outcome(self, one: str, truth: dict[str, torch.Tensor], own: dict[str, torch.Tensor]) -> Outcome:
        """Gradients may cancel to zero, so that errors are also relative to those of the plain call."""
        if one == _REPEATED:
            inputs = [x[:1].expand(x.shape).contiguous() if x.dim() and len(x) else x for x in self.first.inputs]
            return replace(self.first, inputs=inputs, expected=truth, own=own, grad_output=None)
        scale = {n: float(v.double().square().mean().sqrt()) for n, v in self.first.expected.items() if v.numel()}
        # What is zero but for rounding in the plain call, as the gradient of a bias before a normalisation, has no scale.
        kept = [n for n, v in self.first.expected.items() if n not in self.first.own or
                norm_apart(self.first.own[n], v) <= float(v.double().norm())]
        return replace(self.first, expected={n: v for n, v in truth.items() if n in kept}, own=own, least_rms=scale,
                       grad_output=other_grad(self.first.grad_output, one.removeprefix("grad ")).contiguous())

    def _of_reference(self, rounds: Sequence[str], *, narrow: bool, dense: bool = False) -> dict[str, dict[str, torch.Tensor]]:
        """What the reference returns, in the given dtype or in float64. Raises `Raised`."""
        names, values = self.first.state
        given = [*self.first.inputs, *([self.first.grad_output] if self._names else [])]
        request = partial(Views, inputs=len(self.first.inputs), gradients=self._names, rounds=tuple(rounds), dense=dense)
        how = partial(self.trial.how, self.first.case)
        facts, results = self.trial.reference.ask(request, how(), given, self.first.state) if narrow else \
            self.trial.reference.ask(request, how(dtype="float64"), list(map(wide, given)), (names, list(map(wide, values))))
        found = split(rounds, facts, results)
        if found is None:
            return {}
        return {one: {n if n == "output" else self.trial.plain(n): self.trial.tangent(n, v) for n, v in there.items()}
                for one, there in found.items()}

    @staticmethod
    def _one_by_one(rounds: Sequence[str], ask: Callable[[Sequence[str]], list[dict[str, dict[str, torch.Tensor]]]]
                    ) -> dict[str, list[dict[str, torch.Tensor]]]:
        """All at once; if one of them raises an exception, each alone, without those that raise one."""
        found: dict[str, list[dict[str, torch.Tensor]]] = {}
        for some in _groups(rounds):
            if found.keys() >= set(rounds):
                break
            with suppress(Raised):
                answers = ask(some)
                found |= {one: [answer[one] for answer in answers] for one in some if all(one in a for a in answers)}
        return found


def _groups(rounds: Sequence[str]) -> Iterator[Sequence[str]]:
    if rounds:
        yield rounds
        yield from ([one] for one in rounds)


def split(rounds: Sequence[str] | dict[str, Outcome], facts: Habit, results: list[torch.Tensor]
           ) -> dict[str, dict[str, torch.Tensor]] | None:
    """Output and gradients of each round; None if there are more or fewer than were asked for."""
    if len(facts.choices) != len(rounds) or len(results) != sum(1 + len(names) for names in facts.choices):
        return None
    found, left = {}, iter(results)
    for one, names in zip(rounds, facts.choices, strict=True):
        found[one] = {"output": next(left), **{n: next(left) for n in names}}
    return found
