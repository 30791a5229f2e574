"""Is the file right in daily use? One small case for which a plain call is right, called in the ways in which a network calls a
module. The truth is known from the plain call; only for .eval() and for other parameters the reference is asked again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from ....core.answers import Answer, Question
from ....core.check_parts import Log
from ....core.trial import Status
from ..foreign.process import Ended, Raised
from ..foreign.replies import Habit
from ..foreign.requests import DailyUse, EvalMode, NoGrad, SomeGradients, TwoCalls
from ..trialrun import NotForReference, Outcome, Problem, TrialRun, problem_of, wide
from .cases import Case, with_batch

ASKED = {
    "no_grad": "Right under no_grad and in inference_mode?", "eval_mode": "Right after .eval(), and back again?",
    "buffers": "Changes its buffers as the reference does?", "two_calls": "Right while two outputs are in use?",
    "some_gradients": "Right when only some gradients are wanted?", "parameters": "Right when its parameters have changed?"}
KEYS = tuple(key for key in ASKED if key != "buffers")  # of those there may be none
_ADVICE = {
    "no_grad": "Compute the same values with and without gradient recording.",
    "eval_mode": "Do the same as the reference if self.training is False.",
    "two_calls": "Allocate a new output in each call. Save tensors for backward in ctx, not in self.",
    "some_gradients": "Test ctx.needs_input_grad for each input separately.",
    "parameters": "Read the parameters in each call. Do not keep a copy of them."}
_MODES = ("After .eval()", "After .eval(), under no_grad", "Back from .eval()")
_OTHER_COUNT = "It returns a different number of results."
_LARGE = 1 << 20  # values of all inputs
_CHANGED = 0.2  # a changed parameter differs by at most this part of its value


class _Not(Exception):
    """Why a question is not asked."""


def ask(trial: TrialRun, case: Case, *, gradients: bool) -> Iterator[Question]:
    """One after the other. `case`: one for which the candidate is right; of a large one two samples, where the reference takes
    so few. `gradients`: whether it has any."""
    few = with_batch(case, 2, "batch 2")
    large = sum(torch.Size(s).numel() for s in case.shapes) > _LARGE and few.shapes < case.shapes
    try:
        first, second = _two_answers(trial, few if large else case, gradients)
    except NotForReference:
        first, second = _two_answers(trial, case, gradients)
    if first.problem() or second.problem():
        for key in KEYS:
            yield Question(key, ASKED[key], Answer.SKIPPED, "Not asked: this case is already wrong at a small size.")
        return
    asker = _Habits(trial, first, second)
    for one in (asker.no_grad, asker.two_calls, asker.some_gradients, asker.parameters, asker.eval_mode):
        if not trial.candidate.given_up:
            found = one()
            if one == asker.no_grad:
                asker.right_without = found[0].answer is not Answer.FAILED
            yield from found


def _two_answers(trial: TrialRun, case: Case, gradients: bool) -> tuple[Outcome, Outcome]:
    first = trial.run(case, gradients=gradients)
    return first, trial.run(case, gradients=gradients, state=first.state)


class _Habits:
    """`first`, `second`: two right answers of one state for other values."""

    def __init__(self, trial: TrialRun, first: Outcome, second: Outcome) -> None:
        self.trial, self.first, self.second = trial, first, second
        self.state = first.state if trial.loads_state else None
        self.right_without = True   # without gradients; an error there shows in every mode, and is reported once

    def no_grad(self) -> list[Question]:
        def wrong() -> str:
            _, results = self._asked(NoGrad, [self.first])
            if len(results) != 2:
                return _OTHER_COUNT
            return self._compared((("Under no_grad", self.first, {"output": results[0]}),
                                   ("In inference_mode", self.first, {"output": results[1]})))
        return [self._question("no_grad", wrong, "Yes: the same as in grad mode.")]

    def two_calls(self) -> list[Question]:
        names = self.first.names if self.first.grad_output is not None else []

        def wrong() -> str:
            both = [self.first, self.second]
            facts, results = self._asked(TwoCalls, both, gradients=names)
            one, other = (facts.first, facts.second) if names else ([], [])
            plain = 4 if names else 2
            if len(results) != plain + len(one) + len(other):
                return _OTHER_COUNT
            lost = self._lost(one, self.first) or self._lost(other, self.second)
            if lost:
                return f"After a second call autograd gives no {lost}."
            again = [(f"The {which} of two outputs, after the second call{how}", outcome, {"output": result})
                     for how, start in (("", 0), (", with gradients", 2))[0 if self.right_without else 1:plain // 2]
                     for which, outcome, result in zip(("first", "second"), both, results[start:], strict=False)]
            split = plain + len(one)
            return self._compared((*again, ("Backward of the first call, after the second one", self.first,
                                            dict(zip(one, results[plain:split], strict=True))),
                                   ("Backward of the second call, after the backward of the first", self.second,
                                    dict(zip(other, results[split:], strict=True)))))
        more = "; the backward of both is right, too" if names else ""
        return [self._question("two_calls", wrong, f"Yes: the first output is unchanged after a second call{more}.")]

    def some_gradients(self) -> list[Question]:
        names = self.first.names if self.first.grad_output is not None else []
        of_inputs = [n for n in names if n.startswith("input ")]
        if not of_inputs or len(of_inputs) == len(names):
            return []

        def wrong() -> str:
            facts, results = self._asked(SomeGradients, [self.first], gradients=names)
            parts = [facts.parameters, facts.inputs]
            if len(results) != sum(map(len, parts)):
                return _OTHER_COUNT
            wanted = [[n for n in names if (n in of_inputs) == inputs] for inputs in (False, True)]
            where = ("Where the input needs no gradient", "Where the parameters are frozen")
            for there, those, words in zip(parts, wanted, where, strict=True):
                if lost := self._lost(there, self.first, those):
                    return f"{words} autograd gives no {lost}."
            split = len(parts[0])
            return self._compared(((where[0], self.first, dict(zip(parts[0], results[:split], strict=True))),
                                   (where[1], self.first, dict(zip(parts[1], results[split:], strict=True)))))
        return [self._question("some_gradients", wrong, "Yes: for the parameters only, and for the input only.")]

    def eval_mode(self) -> list[Question]:
        """And the buffers, where there are any."""
        buffers: list[str] = []
        left: list[tuple[str, bool]] = []  # what is wrong with a buffer, and whether it is more than a count

        def wrong() -> str:
            xs, (names, values), case = self.first.inputs, self.first.state, self.first.case
            asked = partial(self.trial.reference.ask, partial(EvalMode, inputs=len(xs)))
            try:
                facts, truth = asked(self.trial.how(case, dtype="float64"), list(map(wide, xs)),
                                     (names, list(map(wide, values))))
                _, own = asked(self.trial.how(case), xs, self.first.state)
            except Raised as error:
                raise _Not(f"The reference raises {error.sentence} after .eval().") from error
            if not all(bool(t.isfinite().all()) for t in truth):
                raise _Not("The reference gives values that are not finite.")
            buffers.extend(facts.buffers)
            facts, results = self._asked(EvalMode, [self.first])
            there = facts.buffers
            if len(results) != 3 + len(there):
                return _OTHER_COUNT
            found = dict(zip(there, results[3:], strict=True))
            for place, name in enumerate(buffers, 3):
                if name not in found:
                    continue  # then its state_dict was refused
                about = replace(self.first, grad_output=None, expected={name: truth[place]}, own={name: own[place]})
                if said := self._wrong(about, {name: found[name]}):
                    left.append((said, truth[place].is_floating_point()))
            for words, result, expected, pytorch in zip(_MODES, results, truth, own, strict=False):
                if words == _MODES[1] and not self.right_without:
                    continue
                about = replace(self.first, grad_output=None, expected={"output": expected}, own={"output": pytorch})
                if said := self._wrong(about, {"output": result}):
                    return f"{words}: {said}"
            return ""
        found = [self._question("eval_mode", wrong, "Yes: the same as the reference in both modes.")]
        if buffers and found[0].answer is not Answer.SKIPPED and self.trial.loads_state:
            found.append(self._of_buffers(buffers, left))
        return found

    def parameters(self) -> list[Question]:
        """Other values in the state that both were given when they were new."""
        if not self.trial.loads_state or not self.first.names or not any(n in self.first.state[0] for n in self.first.names):
            return []

        def wrong() -> str:
            try:
                outcome = self.trial.run(replace(self.first.case, integers=False), state=self._changed(),
                                         gradients=self.first.grad_output is not None)
            except NotForReference as error:
                raise _Not(f"The reference does not accept other parameters: {error}") from error
            problem = outcome.problem("call", "kind", "values", "gradients", "gradient_values")
            return problem.seen if problem else ""
        return [self._question("parameters", wrong, "Yes: it uses the changed parameters.")]

    # -- the pieces ---------------------------------------------------------------------------------------------

    def _question(self, key: str, wrong: Callable[[], str], yes: str) -> Question:
        try:
            said = wrong()
        except _Not as error:
            return Question(key, ASKED[key], Answer.SKIPPED, f"Not asked: {error}")
        except (Raised, Ended) as error:
            problem: Problem = problem_of(error)
            return Question(key, ASKED[key], Answer.FAILED, f"No. {problem.seen}", problem.advice or _ADVICE[key],
                            str(problem.status), Log(log=problem.log[-3000:] or None))
        if not said:
            return Question(key, ASKED[key], Answer.PASSED, yes)
        return Question(key, ASKED[key], Answer.FAILED, f"No. {said}", _ADVICE[key], str(Status.MISMATCH))

    def _of_buffers(self, names: list[str], left: list[tuple[str, bool]]) -> Question:
        """Whether a buffer only counts calls. Another count does not change the module's results."""
        key = "buffers"
        if not left:
            return Question(key, ASKED[key], Answer.PASSED, f"Yes: {', '.join(names)}.")
        left.sort(key=lambda one: not one[1])
        said, counts = left[0]
        return Question(key, ASKED[key], Answer.FAILED if counts else Answer.WARNED, f"No. After one more call: {said}",
                        "Change the buffers as the reference does.", str(Status.MISMATCH))

    def _asked(self, kind: type[DailyUse], outcomes: list[Outcome], *, gradients: Sequence[str] = ()
               ) -> tuple[Habit, list[torch.Tensor]]:
        tensors = [x for one in outcomes for x in one.inputs]
        if gradients:
            tensors += [one.grad_output for one in outcomes]
        request = partial(kind, inputs=len(self.first.inputs), sets=len(outcomes), gradients=tuple(gradients))
        return self.trial.candidate.ask(request, self.trial.how(self.first.case), tensors, self.state)

    def _lost(self, there: list[str], outcome: Outcome, wanted: list[str] | None = None) -> str:
        """Gradients that the reference has and that are missing."""
        plain = self.trial.plain
        return ", ".join(plain(n) for n in wanted or outcome.names if n not in there and plain(n) in outcome.expected)

    def _compared(self, those: tuple[tuple[str, Outcome, dict[str, torch.Tensor]], ...]) -> str:
        """The first of these that is wrong, in words."""
        for words, outcome, got in those:
            if said := self._wrong(outcome, {n if n == "output" else self.trial.plain(n): self.trial.tangent(n, v)
                                             for n, v in got.items()}):
                return f"{words}: {said}"
        return ""

    def _wrong(self, outcome: Outcome, got: dict[str, torch.Tensor]) -> str:
        about = replace(outcome, problems=[], got=got, errors=dict(outcome.errors))
        self.trial.compare(about)
        return about.problems[0].seen if about.problems else ""

    def _changed(self) -> tuple[list[str], list[torch.Tensor]]:
        """All parameters, by a fifth of each value at most; those that are nothing but zeros become something. Tensors that are
        equal stay so: they may be one."""
        names, values = self.first.state
        made: list[tuple[torch.Tensor, torch.Tensor]] = []
        changed = []
        for name, value in zip(names, values, strict=True):
            if name not in self.first.names or not value.is_floating_point():
                changed.append(value)
                continue
            new = next((n for old, n in made if old.shape == value.shape and torch.equal(old, value)), None)
            if new is None:
                drawn = 2 * torch.rand(value.shape, generator=self.trial.generator) - 1
                new = (value * (1 + _CHANGED * drawn) if bool(value.any()) else _CHANGED * drawn).to(value.dtype)
                made.append((value, new))
            changed.append(new)
        return names, changed

