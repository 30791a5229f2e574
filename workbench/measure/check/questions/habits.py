"""Is the file right in daily use? One small case for which a plain call is right, called in the ways in which a network calls a
module. The truth is known from the plain call; only for .eval() and for other parameters the reference is asked again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial

import torch

from ....core.answers import Answer, Question
from ....core.trial import Status
from ..foreign.process import Raised
from ..foreign.replies import Habit, Left
from ..foreign.requests import (
    Aliases,
    AskLeft,
    EvalAlone,
    EvalMode,
    NoGrad,
    SecondBackward,
    SomeGradients,
    Stepped,
    Threads,
    TwoCalls,
    Views,
)
from ..party import Party, other_attributes, other_resets
from ..text.advice import ASKED, KEYS, STAYS
from ..trialrun import NotForReference, Outcome, TrialRun, problem_of, same_bits, wide
from . import magnitudes
from .asking import OTHER_COUNT, Not, Rounds, split
from .cases import Case, already_wrong, with_batch
from .networks import OF_A_CALL, OfNetworks
from .parameters import changed_state, little_changed

_MODES = ("After .eval()", "After .eval(), under no_grad", "Back from .eval()")
_OF_NO_GRAD = {
    "inference": "Under no_grad its output is an inference tensor: a layer behind it cannot be trained with it.",
    "graph": "Under no_grad its output requires a gradient: .numpy() then fails, and a loop of calls keeps all their tensors.",
    "graph of frozen": "Its output requires a gradient, but no input and no parameter does."}
_BY_DATA = "After a change through .data, which does not count as a new version"
_UNVERSIONED = ("", ", under no_grad", ", in inference_mode")
_DRAWS_FIRST = "Some of its calls, as the first one with a shape, draw random numbers. No call of the reference does."
_SAME_BUFFER = 1e-2   # relative L2 tolerance; the accuracy is tested by other questions
_SEED_OF_NEW = 45  # the state replaces what it draws
_MOST_NAMES = 4   # tensors whose gradient alone is wanted, and running statistics that change alone
_LARGE = 1 << 20  # values of all inputs
_LAYOUTS = ("reversed", "channels_last")
_IN_MEMORY = {"reversed": "", "channels_last": " in channels_last"}


def ask(trial: TrialRun, case: Case, *, gradients: bool) -> Iterator[Question]:
    """One after the other. `case`: one for which the candidate is right; of a large one two samples, where the reference takes
    so few. `gradients`: whether it has any."""
    if trial.candidate.given_up:   # it has ended too often
        yield from (Question(key, ASKED[key], Answer.SKIPPED, "Not asked: the process has ended too often.") for key in KEYS)
        return
    few = with_batch(case, 2, "batch 2")
    large = sum(torch.Size(s).numel() for s in case.shapes) > _LARGE and few.shapes < case.shapes
    try:
        first, second, other = magnitudes.answers(trial, few if large else case, gradients)
    except NotForReference:
        first, second, other = magnitudes.answers(trial, case, gradients)
    if first.problem() or second.problem():
        for key in KEYS:
            yield Question(key, ASKED[key], Answer.SKIPPED, already_wrong(first.case, trial.given))
        return
    asker = _Habits(trial, first, second, other)
    for one in (asker.no_grad, asker.threads, asker.two_calls, asker.some_gradients, asker.second_backward, asker.views,
                asker.in_training, asker.overwritten, asker.parameters, asker.copied, asker.numbers, asker.leading,
                asker.second_derivative, asker.eval_mode, asker.modes, asker.left):
        if not trial.candidate.given_up:
            found = one()
            if one == asker.no_grad:
                asker.right_without = found[0].answer is not Answer.FAILED
            asker.failed |= {q.key for q in found if q.answer is Answer.FAILED}
            yield from found


class _Habits(OfNetworks):
    """`second`: of other values. `other`: for another batch. Both have the state of `first`."""

    def __init__(self, trial: TrialRun, first: Outcome, second: Outcome, other: Outcome) -> None:
        super().__init__(trial, first)
        self.second, self.other, self._keeps = second, other, tuple[str, ...]()
        self._near = cache(partial(magnitudes.near, trial, first))
        self._changed = cache(lambda: trial.run(   # other parameters
            replace(first.case, integers=False), gradients=first.grad_output is not None,
            state=changed_state(first.case, first.names, first.state, trial.generator)))

    def no_grad(self) -> list[Question]:
        def wrong() -> str | tuple[str, Status]:
            facts, results = self._asked(NoGrad, [self.first])
            if len(results) != 3 + len(self.first.inputs):
                return OTHER_COUNT
            if not all(map(same_bits, results[3:], self.first.inputs)):
                return "Without gradients it changes the values of its input.", Status.INPUT_MODIFIED
            theirs = self.trial.reference.ask(partial(NoGrad, inputs=len(self.first.inputs)), self.trial.how(
                self.first.case), self.first.inputs, self.first.state)[0].first if facts.first else ()
            for one in facts.first:
                if one not in theirs:
                    return _OF_NO_GRAD[one]
            where = ("Under no_grad", "In inference_mode", "In another thread")
            return self._compared([(words, self.first, {"output": one}) for words, one in zip(where, results, strict=False)])
        return [self._question("no_grad", wrong, "Yes: the same as in grad mode.")]

    def threads(self) -> list[Question]:
        """Four threads at once. A warning: most programs call a module in one thread. Not asked of whole numbers."""
        both = [self.first, self.second]

        def wrong() -> str:
            _, results = self._asked(Threads, both)
            if len(results) != 2:
                return OTHER_COUNT
            said = self._compared([("In one of four threads", o, {"output": r}) for o, r in zip(both, results, strict=True)])
            if said:
                _, theirs = self.trial.reference.ask(partial(Threads, inputs=len(self.first.inputs), sets=2), self.trial.how(
                    self.first.case), [x for one in both for x in one.inputs], self.first.state)
                return "" if any(self._wrong(one, {"output": t}) for one, t in zip(both, theirs, strict=True)) else said
            return ""
        asked = self.right_without and self.first.got["output"].is_floating_point()
        return [self._question("threads", wrong, "Yes: in four threads at once.").as_warning()] if asked else []

    def two_calls(self) -> list[Question]:
        names = self.first.names if self.first.grad_output is not None else []

        def wrong_beside(beside: Outcome) -> str:
            both = [self.first, beside]
            facts, results = self._asked(TwoCalls, both, gradients=names)
            one, other = (facts.first, facts.second) if names else ([], [])
            plain = 4 if names else 2
            if len(results) != plain + len(one) + len(other):
                return OTHER_COUNT
            lost = self._lost(one, self.first) or self._lost(other, beside)
            if lost:
                return f"After a second call autograd gives no {lost}."
            again = [(f"The {which} of two outputs, after the second call{how}", outcome, {"output": result})
                     for how, start in (("", 0), (", with gradients", 2))[0 if self.right_without else 1:plain // 2]
                     for which, outcome, result in zip(("first", "second"), both, results[start:], strict=False)]
            split = plain + len(one)
            return self._compared((*again, ("Backward of the first call, after the second one", self.first,
                                            dict(zip(one, results[plain:split], strict=True))),
                                   ("Backward of the second call, after the backward of the first", beside,
                                    dict(zip(other, results[split:], strict=True)))))
        more = "; the backward of both is right, too" if names else ""

        def wrong() -> str:
            near = self._near()
            if near and (problem := near.problem()):
                return f"For inputs that differ little from earlier ones: {problem.seen}"
            others = [one for one in (self.second, None if self.other is self.second else self.other, near) if one]
            return next(filter(None, map(wrong_beside, others)), "") or self._many_calls() or \
                self._beside_another() or self._of_another_seed() or self._of_touched(self.second.inputs)
        asked = self._question("two_calls", wrong, f"Yes: the first output is unchanged after a second call{more}.")
        return [asked, *([replace(self._question("kept", lambda: self._keeps[0], "").as_warning(), advice=self._keeps[1])]
                         if self._keeps else [])]

    def some_gradients(self) -> list[Question]:
        """Gradients of only the parameters, only the inputs, each tensor alone, and all tensors except one."""
        names = self.first.names if self.first.grad_output is not None else []
        of_inputs = tuple(n for n in names if n.startswith("input "))
        of_parameters = tuple(n for n in names if n not in of_inputs)
        few = names[:_MOST_NAMES]
        choices = [c for c in dict.fromkeys((of_parameters, of_inputs, *((n,) for n in few),
                                             *(tuple(o for o in names if o != n) for n in few))) if 0 < len(c) < len(names)]
        if not choices:
            return []

        def words(choice: tuple[str, ...]) -> str:
            if choice in (of_parameters, of_inputs):
                return "Where the input needs no gradient" if choice == of_parameters else "Where the parameters are frozen"
            return f"Where only {' and '.join(map(self.trial.plain, choice))} {'is' if len(choice) == 1 else 'are'} wanted"

        def wrong() -> str:
            facts, results = self._asked(partial(SomeGradients, choices=tuple(choices)), [self.first], gradients=names)
            if not 0 < len(facts.choices) <= len(choices) or len(results) != sum(map(len, facts.choices)):
                return OTHER_COUNT
            found, start = [], 0
            for choice, there in zip(choices, facts.choices, strict=False):
                if lost := self._lost(list(there), self.first, list(choice)):
                    return f"{words(choice)} autograd gives no {lost}."
                found.append((words(choice), self.first,
                              dict(zip(there, results[start:start + len(there)], strict=True))))
                start += len(there)
            return self._compared(found)
        return [self._question("some_gradients", wrong, f"Yes: up to {len(choices)} choices of tensors that need one.")]

    def second_backward(self) -> list[Question]:
        names = self.first.names if self.first.grad_output is not None else []
        if not names:
            return []

        def wrong() -> str:
            factor = self._small()
            usual = partial(SecondBackward, inputs=len(self.first.inputs), gradients=tuple(names), factor=factor)
            for in_place in (True, False):  # a reference whose backward needs its output does not allow the first
                try:
                    self.trial.reference.ask(partial(usual, in_place=in_place), self.trial.how(self.first.case),
                                             [*self.first.inputs, self.first.grad_output], self.first.state)
                    break
                except Raised as error:
                    if not in_place:
                        raise Not(f"the reference raises {error.type}, too.") from error
            try:
                facts, results = self._asked(partial(SecondBackward, in_place=in_place, factor=factor), [self.first],
                                             gradients=names)
            except Raised as error:
                if not in_place or "modified by an inplace operation" not in error.message:
                    raise
                # Autograd refuses it, as for those of PyTorch's operators that keep their output. No value is wrong.
                facts, results = self._asked(partial(SecondBackward, factor=factor), [self.first], gradients=names)
            if len(results) != len(facts.first):
                return OTHER_COUNT
            if lost := self._lost(list(facts.first), self.first):
                return f"After three calls of backward there is no {lost}."
            said = "After three calls of backward" + " of small gradients" * (factor < 1)
            return self._compared([(f"{said}, two through one graph and one in another thread", self.first,
                                    {n: v / 3 for n, v in zip(facts.first, results, strict=True)})])
        return [self._question("second_backward", wrong, "Yes: gradients add up over three calls of backward.")]

    def views(self) -> list[Question]:
        names = self.first.names if self.first.grad_output is not None else []
        rounds = Rounds(self.trial, self.first, names)

        def asked(some: Sequence[str]) -> tuple[Habit, list[torch.Tensor]]:
            return self._asked(partial(Views, rounds=tuple(some)), [self.first], gradients=names)

        def wrong() -> str | tuple[str, Status]:
            try:
                found = rounds.parts(*asked([*rounds.asked]))
            except Raised:
                for one in rounds.asked:   # in which round
                    try:
                        asked([one])
                    except Raised as error:
                        return f"{rounds.words(one)}: {problem_of(error).seen}", problem_of(error).status
                raise
            if found is None:
                return OTHER_COUNT
            for one, there in found.items():
                if names and one != "repeated" and (lost := self._lost([*there], rounds.asked[one])):
                    return f"{rounds.words(one)} autograd gives no {lost}."
            return self._compared([(rounds.words(one), rounds.asked[one], {n: v for n, v in there.items() if n != "output" or
                                                                           not one.startswith("grad ")})
                                   for one, there in found.items()])
        return [self._question("views", wrong, "Yes: parts of larger tensors, and other inputs that are views" +
                               (", and a grad_output that is one." if names else "."))]

    def left(self) -> list[Question]:
        """What calls leave behind: parameters, grad_output, flags; torch's settings; and the order of the output in memory."""
        names = self.first.names if self.first.grad_output is not None else []
        found: list[Left] = []

        def asked(party: Party) -> tuple[Left, list[torch.Tensor]]:
            grad_outputs = [self.first.grad_output] if names else []
            request = partial(AskLeft, inputs=len(self.first.inputs), gradients=tuple(names))
            state = self.state if party is self.trial.candidate else self.first.state
            new = {} if state is None else {"seed": _SEED_OF_NEW}  # of a module that has not been called yet
            return party.ask(request, self.trial.how(self.first.case, **new), [*self.first.inputs, *grad_outputs], state)

        def wrong() -> tuple[str, Status]:
            facts, results = asked(self.trial.candidate)
            theirs, values = asked(self.trial.reference)
            found.extend((facts, theirs))
            if set(facts.state) != set(theirs.state) and self.trial.loads_state:
                return f"Its state_dict then has {', '.join(facts.state) or 'nothing'}.", Status.MISMATCH
            for words, ours, usual in (("requires_grad of", facts.frozen, theirs.frozen), ("the mode of", facts.modes,
                                                                                         theirs.modes)):
                if set(ours) - set(usual):
                    return f"It changes {words} {', '.join(n or 'itself' for n in ours[:3])}.", Status.MISMATCH
            if names and not same_bits(results[-1], self.first.grad_output):
                return "It changes the values of grad_output.", Status.INPUT_MODIFIED
            if seeded := set(facts.seeds) - set(theirs.seeds):
                return f"Each call sets the seed of {' and '.join(sorted(seeded))}: other code draws the same random numbers " \
                    "after each call.", Status.MISMATCH
            before = dict(zip(*self.first.state, strict=True))
            now_there = dict(zip(facts.state, results, strict=False))
            for name, usual in zip(theirs.state, values, strict=False):
                now = now_there.get(name, usual)
                if name in self.first.names and not same_bits(now.to(before[name].dtype), before[name]) and \
                        same_bits(usual.to(before[name].dtype), before[name]) and self.trial.loads_state:
                    return f"A call changes the values of {name}.", Status.INPUT_MODIFIED
                if name not in self.first.names and usual.is_floating_point() and now.shape == usual.shape and not (
                        (now.double() - usual.double()).norm() <= _SAME_BUFFER * usual.double().norm()):
                    return f"After a call without and one with gradients {name} is not what it is in the reference.", \
                        Status.MISMATCH
            return "", Status.OK
        questions = [self._question("left_alone", wrong, "Yes.")]
        if len(found) == 2:
            ours, theirs = found
            settings = [name for name in ours.settings if name not in theirs.settings]
            drawn = "It draws random numbers, the reference does not." if ours.draws and not theirs.draws else \
                _DRAWS_FIRST if ours.drew and not theirs.drew else ""
            said = [*([drawn] if drawn else []),
                    *(["It does not run forward hooks."] if theirs.hooks and not ours.hooks else []),
                    *([f"It changes {', '.join(settings[:4])}."] if settings else [])]
            questions.append(self._question("settings", lambda: " ".join(said), "Yes.").as_warning())
            if theirs.attributes:
                questions.append(self._question("attributes", lambda: other_attributes(ours, theirs), "Yes.").as_warning())
            lies = [f"Its strides are {ours.strides}, the reference's are {theirs.strides}."
                    ] if ours.strides != theirs.strides and ours.strides else []
            if scattered := [self.trial.plain(n) for n in ours.scattered if n not in theirs.scattered]:
                lies.append(f"{scattered[0]} is not contiguous. That of the reference is, so that .view(-1) works.")
            if lies:
                questions.append(self._question("strides", lambda: " ".join(lies), "").as_warning())
            if differ := other_resets(ours, theirs, dict(zip(*self.first.state, strict=True))):
                questions.append(self._question("resets", lambda: differ, "").as_warning())
            if ours.idle and not self.trial.candidate.process.deaths:
                idle = f"The CUDA code of {', '.join(ours.idle[:4])} launched nothing in this check. It is not judged."
                questions.append(self._question("kernels_ran", lambda: (idle, Status.SKIPPED), "").as_warning())
        return questions

    def eval_mode(self) -> list[Question]:
        """The question about .eval(), and the one about buffers if there are any."""
        buffers: list[str] = []
        left: list[tuple[str, bool]] = []  # what is wrong with a buffer, and whether it is more than a count

        def wrong() -> str:
            xs, (names, values), case = self.first.inputs, self.first.state, self.first.case
            gradients = self.first.names if self.first.grad_output is not None else []
            given = [*xs, *([self.first.grad_output] if gradients else [])]
            asked = partial(self.trial.reference.ask, partial(EvalMode, inputs=len(xs), gradients=tuple(gradients)))
            try:
                facts, truth = asked(self.trial.how(case, dtype="float64"), list(map(wide, given)),
                                     (names, list(map(wide, values))))
                _, own = asked(self.trial.how(case), given, self.first.state)
            except Raised as error:
                raise Not(f"The reference raises {error.sentence} after .eval().") from error
            if not all(bool(t.isfinite().all()) for t in truth):
                raise Not("The reference gives values that are not finite.")
            buffers.extend(facts.buffers)
            as_reference = facts.second   # of eval and train: those that do not return the module
            usual, split = list(facts.first), 3 + len(facts.first)
            facts, results = self._asked(EvalMode, [self.first], gradients=gradients)
            if nothing := [n for n in facts.second if n not in as_reference]:
                return f"{nothing[0]}() does not return the module: net = net.{nothing[0]}() then loses it."
            there, start = facts.buffers, 3 + len(facts.first)
            if len(results) != start + len(there):
                return OTHER_COUNT
            found = dict(zip(there, results[start:], strict=True))
            for place, name in enumerate(buffers, split):
                if name not in found:
                    continue  # then its state_dict was refused
                about = replace(self.first, grad_output=None, expected={name: truth[place]}, own={name: own[place]})
                if said := self._wrong(about, {name: found[name]}):
                    left.append((f"After one more call: {said}", truth[place].is_floating_point()))
            for words, result, expected, pytorch in zip(_MODES, results, truth, own, strict=False):
                if words == _MODES[1] and not self.right_without:
                    continue
                about = replace(self.first, grad_output=None, expected={"output": expected}, own={"output": pytorch})
                if said := self._wrong(about, {"output": result}):
                    return f"{words}: {said}"
            if lost := [n for n in usual if n not in facts.first and self.trial.plain(n) in self.first.expected]:
                return f"{_MODES[0]} autograd gives no {self.trial.plain(lost[0])}."
            of_eval = {self.trial.plain(n): place for place, n in enumerate(usual, 3)}
            about = replace(self.first, **{key: {"output": values[0]} | {
                n: self.trial.tangent(usual[place - 3], values[place]) for n, place in of_eval.items()
                if n in self.first.expected} for key, values in (("expected", truth), ("own", own))})
            return self._compared([(_MODES[0], about, dict(zip(facts.first, results[3:start], strict=True)))]) or \
                self._parts_in_eval() or self._eval_of_changed() or self._new_statistics(dict(zip(
                    buffers, own[split:], strict=True))) or self._of_touched(self.second.inputs, evaluated=True)
        found = [self._question("eval_mode", wrong, "Yes: the same as the reference in both modes.")]
        if buffers and found[0].answer is not Answer.SKIPPED and self.trial.loads_state:
            left += [(said, True) for said in self._buffers_of_few_values(buffers) if not left]
            found.append(self._of_buffers(buffers, left))
        return found

    def _eval_of_changed(self) -> str:
        other = self._changed_right()
        return self._changed_in_eval(other, self._values(other), "With parameters that changed after .eval()") if other else ""

    def _new_statistics(self, after: dict[str, torch.Tensor]) -> str:
        """`after`: the buffers after a call. Those that it has changed change in eval mode; a mask may be a constant."""
        before, how = dict(zip(*self.first.state, strict=True)), {"generator": self.trial.generator,
                                                                  "device": self.trial.generator.device}
        values = {n: v * (0.5 + 1.5 * torch.rand(v.shape, **how)).to(v) for n, v in after.items() if v.is_floating_point() and
                  n in before and not same_bits(v, before[n].to(v))}
        those = {"running statistics": values} | {n: {n: v} for n, v in [*values.items()][:_MOST_NAMES] if len(values) > 1}
        return next(filter(None, (self._changed_in_eval(self.first, one, f"With {words} that alone changed after .eval()")
                                  for words, one in those.items() if self.trial.loads_state)), "")

    def _parts_in_eval(self) -> str:
        """Each submodule alone, as in a frozen batch norm, where this changes the reference's output."""
        case, (names, values), usual = self.first.case, self.first.state, partial(EvalAlone, inputs=len(self.first.inputs))
        if not any("." in n for n in names):
            return ""
        facts, (plain, *truth) = self.trial.reference.ask(usual, self.trial.how(case, dtype="float64"), list(
            map(wide, self.first.inputs)), (names, list(map(wide, values))))
        expected = {n: t for n, t in zip(facts.first, truth, strict=True) if not torch.allclose(t, plain)}
        if not expected:
            return ""
        usual = partial(usual, parts=tuple(expected))
        facts, (_, *results) = self.trial.reference.ask(usual, self.trial.how(case), self.first.inputs, self.first.state)
        own = dict(zip(facts.first, results, strict=True))
        facts, (_, *results) = self._asked(partial(EvalAlone, parts=tuple(expected)), [self.first])
        return self._compared([(f"Where {n} alone is in eval mode", replace(
            self.first, grad_output=None, expected={"output": expected[n]}, own={"output": own[n]}), {"output": got})
            for n, got in zip(facts.first, results, strict=False) if n in own])

    def parameters(self) -> list[Question]:
        """Other values in the state that both were given when they were new."""
        if not self.trial.loads_state or not self.first.names or not any(n in self.first.state[0] for n in self.first.names):
            return []

        def wrong() -> str:
            try:
                outcome = self._changed()
            except NotForReference as error:
                raise Not(f"The reference does not accept other parameters: {error}") from error
            problem = outcome.problem(*OF_A_CALL)
            if problem:
                return problem.seen
            said = self._stepped(outcome)
            others = "" if said and not said.startswith(_BY_DATA) else self._changed_little(outcome) or \
                self._parametrized() or self._treated(outcome)
            return others or said   # a warning comes last
        question = self._question("parameters", wrong, "Yes: loaded, changed in place, and replaced.")
        return [question.as_warning() if question.seen.startswith(f"No. {_BY_DATA}") else question]

    def _beside_another(self) -> str:
        """Two instances in one graph, if a call with the parameters of the other one is right."""
        other = self._changed_right()
        return self._two_instances(other) if other else ""

    def _stepped(self, outcome: Outcome) -> str:
        """`outcome`: of the changed parameters, which were loaded there. Here they are changed in place, then replaced."""
        changed = {n: v for n, v in zip(*outcome.state, strict=True) if n in self.first.names}
        names = outcome.names if outcome.grad_output is not None else []
        given = [*outcome.inputs, *([outcome.grad_output] if names else []), *changed.values()]
        layouts = _LAYOUTS if any(v.dim() in (4, 5) for v in changed.values()) else _LAYOUTS[:1]
        request = partial(Stepped, inputs=len(outcome.inputs), gradients=tuple(names), parameters=tuple(changed),
                          layouts=tuple(layouts))
        facts, results = self._asks[0].ask(request, self.trial.how(outcome.case), given, self._asks[1])
        there, saved = list(facts.first) if names else [], results[:len(changed)]
        results = results[len(changed):]
        unversioned, rest = results[2 + len(there):5 + len(there)], results[5 + len(there):]
        others = split(layouts[:len(facts.choices)], facts, rest)
        if others is None or len(unversioned) != len(_UNVERSIONED):
            return OTHER_COUNT
        if stale := [n for (n, v), now in zip(changed.items(), saved, strict=True) if not same_bits(now.to(v.dtype), v)]:
            return f"After a change in place its state_dict has the old values of {stale[0]}."
        if lost := self._lost(there, outcome):
            return f"After a change in place autograd gives no {lost}."
        now = {"output": results[0], **dict(zip(there, results[2:2 + len(there)], strict=True))}
        return self._compared((("After a change in place", outcome, now),
                               *[("Then under no_grad", outcome, {"output": results[1]})][:self.right_without],
                               *((f"With other Parameter objects{_IN_MEMORY[one]}", outcome, there) for one, there in
                                 others.items()),
                               *((_BY_DATA + where, outcome, {"output": one}) for where, one in [*zip(
                                   _UNVERSIONED, unversioned, strict=True)][:3 if self.right_without else 1])))

    def _changed_little(self, outcome: Outcome) -> str:
        """The same call after a few values have changed. A file may keep something made of the parameters that a sample or the
        sum of their values does not show to be old."""
        how = self.trial.how(outcome.case)
        self.trial.candidate.call(how, outcome.inputs, state=outcome.state, no_grad=True)
        for words, state in little_changed(outcome.names, outcome.state, self.trial.generator):
            with suppress(NotForReference):
                other = self.trial.run(outcome.case, gradients=outcome.grad_output is not None, values=outcome.inputs,
                                       state=state)
                if problem := other.problem(*OF_A_CALL):
                    return f"After {words}: {problem.seen}"
                plain = self.trial.candidate.call(how, outcome.inputs, state=state, no_grad=True)[1][:1]
                if plain and self.right_without and (said := self._wrong(other, {"output": plain[0]})):
                    return f"After {words}, under no_grad: {said}"
        return ""

    def _many_calls(self) -> str:
        """Of many calls, each of whose outputs is changed. And a reference may return its own input, too."""
        places = ("The output of one of many calls", "The output, after the input was overwritten",
                  f"An output{' without gradients' if self.right_without else ''}, after more calls")
        ask = partial(Aliases, without=self.right_without)
        try:
            facts, results = self._asked(ask, [self.first])
            found = [{"output": one} for one in results]
            self._keeps = self._keeps or self._kept({*facts.buffers}, ask)
        except Raised as error:
            try:
                self.trial.reference.ask(partial(ask, inputs=len(self.first.inputs)), self.trial.how(self.first.case),
                                         self.first.inputs, self.first.state)
            except Raised:   # as where an input cannot be overwritten
                return ""
            raise error
        return self._compared([(words, self.first, one) for words, one in zip(places, found, strict=True)]) if \
            len(found) == len(places) else OTHER_COUNT

    def _kept(self, ours: set[str], ask: Callable[..., Aliases]) -> tuple[str, ...]:
        """`ours`: see `host.lifetimes.lifetimes`. What stays in memory, unlike that of the reference, and what to do."""
        if self._collected is not None or ours.isdisjoint(STAYS):
            return ()
        theirs, _ = self.trial.reference.ask(partial(ask, inputs=len(self.first.inputs)), self.trial.how(self.first.case),
                                             self.first.inputs, self.first.state)
        found = [told for key, told in STAYS.items() if key in ours and key not in theirs.buffers and (
            key != "holds" or "saves" in theirs.buffers)]
        return tuple(" ".join(dict.fromkeys(part)) for part in zip(*found, strict=True))
