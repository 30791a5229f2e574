"""Asks every question about what a file computes, in order. The file has been built before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf

import torch

from ...core import numbers
from ...core.answers import Answer, Question
from ...core.check_parts import KernelBench, Log
from ...core.errors import BadRequest
from ...core.orders import DeviceOrder
from ...core.replies import Checked, Event
from ...core.trial import DEFAULT_ADVICE, Status
from ..device import describe
from ..kernel.validate import distance
from . import shrink
from .clock import times
from .clock.contestant import Beside
from .foreign.process import Ended, Raised
from .foreign.replies import Output
from .party import Party, unlike
from .progress import Progress
from .questions import apart, cases, drawn, habits, kernelbench, magnitudes, other_values
from .questions.cases import Case
from .questions.parameters import other_draw
from .text.advice import advice_for_construction
from .trialrun import NotDrawn, NotForReference, Outcome, Problem, ResultErrors, State, TrialRun, new_seed, same_bits

_RUNS, _OTHER_ORDER = 3, 1e-3   # relative L2 by which float32 runs may differ: sums may be in another order
_KEEP_NAMES = "Keep the reference's parameter names and shapes."
_OF_VALUES = ("values", "gradients", "gradient_values")
_MOST_VALUES = 1 << 24   # gradients of a further case are compared only if its inputs have at most so many values
_ASKED = {
    "constructs": "Constructs with the same arguments?", "state_dict": "Takes the reference's state_dict?",
    "same_draw": "Draws the same parameters?", "kind": "Right shape, dtype, device?",
    "values": "Right values at the given size?", "gradients": "Has gradients?",
    "gradient_values": "Right grad_input, grad_weight, grad_bias?", "other_sizes": "Right at other sizes?",
    "other_arguments": "Right with other constructor arguments?", "noncontiguous": "Right for a non-contiguous input?",
    "batch_one": "Right for batch 1?", "empty_batch": "Takes an empty batch?", "inputs": "Leaves its inputs alone?",
    "same_bits": "Same bits each time?", "times": "How fast?",
    magnitudes.TF32_KEY: magnitudes.TF32_ASKED, **habits.ASKED}


class Examination:
    """The questions about values and gradients. `run` asks all of them and adds answers and further findings to `progress`."""

    def __init__(self, trial: TrialRun, given: Case, progress: Progress, *, emulated: bool,
                 timed: bool, effort: str, beside: Beside | None = None) -> None:
        self.trial, self.given, self.progress = trial, given, progress
        self.questions, self.emit = progress.questions, progress.emit
        self.emulated, self.timed, self.effort, self.beside = emulated, timed, effort, beside
        self.times_first = effort == "quick" and timed and not emulated   # a file may compile more for daily use
        self.first_wrong: Outcome | None = None
        self.explained, self.values_wrong = False, False   # at the given size
        self.gradients_known = True    # the reference's are finite; without that there is no truth for timed calls
        self.errors: dict[str, ResultErrors] = {}   # of the given size
        self.raised = ""     # what its call raised there

    @property
    def found(self) -> Checked:
        """The findings that are not answers."""
        return self.progress.known

    @found.setter
    def found(self, found: Checked) -> None:
        self.progress.known = found

    def run(self) -> None:
        """Ask everything."""
        if not self._parameters():
            return
        self.emit(Event("check", "the given size"))
        self.questions += drawn.in_calls(self.trial, self.given)
        given = self._as_tf32(self._at_the_given_size())
        if self.trial.of_float32 == "tf32":  # the error of a sum of few numbers may be larger than the tolerance
            self.trial.explained = magnitudes.explained_by_tf32
        self._given(self._of_whole_numbers(given))
        self.errors = given.errors
        self.raised = next((p.seen for p in given.problems if p.about == "call" and p.status is Status.LAUNCH_FAILED), "")
        broken, gradients = given.problem("call", "kind") is not None, given.problem("gradients", "call") is None
        self.values_wrong = given.problem("values") is not None
        self._explain()
        if not broken:
            self._range(given)
            self._same_bits(given)
        right = self._called_once_more(given)
        self._others("other_sizes", cases.sizes(self.given, tuple(given.expected["output"].shape)), gradients)
        arguments = [*cases.arguments(self.given, self.trial), *drawn.that_may_be_left_out(self.trial, self.given)]
        self._others("other_arguments", arguments + (cases.other_size(self.given) if self.trial.takes_size else []), gradients)
        small = self.given if self.given.setting.layer is None else cases.small_case(self.given)
        daily_use = not broken and (right if small is self.given else self._small_is_right(small, gradients))
        if daily_use or broken:
            self._layouts(small, gradients)
        else:
            self._skip(("noncontiguous", "batch_one", *habits.KEYS), cases.already_wrong(small, self.trial.given))
        if daily_use and not self.times_first:
            self._daily_use(small, gradients)
        self._others("empty_batch", [cases.with_batch(small, 0, "an empty batch")], gradients)
        if self.trial.device != "cpu" and not broken:
            self.emit(Event("check", "streams, memory"))
            self.questions += apart.ask(self.trial, self.given, given)
        if not given.problems:  # no later question needs the other tensors, and they may be large
            given = Outcome(self.given, inputs=given.inputs, state=given.state, got={"output": given.got["output"]})
        self._kernelbench()
        self.trial.candidate.note_what_ran()   # the timing may end the process
        self._times()
        if daily_use and self.times_first:
            self._daily_use(small, gradients)
        if self.trial.device != "cpu" and not broken:
            self.emit(Event("check", "graphs, torch.compile"))
            self.questions += apart.ask_last(self.trial, self.given, given)
        if not broken and self.first_wrong is None:
            self.questions += apart.in_other_types(self.trial, small)
        self._explain(last=True)
        if not (self.first_wrong or broken or self.trial.candidate.given_up or self.given.setting.layer is None):
            self.questions += [*apart.later_bias(self.trial, small), *apart.refuses(self.trial, small, given.state)]

    def _explain(self, *, last: bool = False) -> None:
        """Explain the first wrong case: at once if the given size is wrong, otherwise at last, because a file may keep what
        makes later calls wrong."""
        wrong = self.first_wrong
        if wrong is not None and self.given.setting.layer is not None and not self.explained and (wrong.got or last):
            self.explained = True
            shrink.explain(self.trial, self.given, wrong, self.progress)

    def _daily_use(self, small: Case, gradients: bool) -> None:
        self.emit(Event("check", "without gradients, after .eval(), twice at once"))
        self.questions += habits.ask(self.trial, small, gradients=gradients)
        self.questions.append(other_values.ask(self.trial, small, gradients=gradients))

    def _at_the_given_size(self) -> Outcome:
        """Ask at the given size. Raises `BadRequest` if the reference gives no truth there."""
        try:
            return self.trial.run(self.given, at_once=True)
        except NotForReference as error:
            why = str(error).rstrip(".")
            raise BadRequest(f"The reference does not give expected values in float64: {why}.") from error
        except Ended as error:
            raise BadRequest(f"The reference does not run: {error.headline}") from error

    def _as_tf32(self, given: Outcome) -> Outcome:
        """Whether the file's convolutions compute in TF32 on the CPU. It is then judged as on a GPU, and the report says so."""
        if given.problems and self.trial.declared in ("", "tf32") and magnitudes.explained_by_tf32(self.trial, given):
            self.questions += [] if self.trial.declared else [magnitudes.tf32_warning(given)]
            self.trial.of_float32 = "tf32"
            given.problems.clear()
            self.trial.compare(given)
        return given

    def _of_whole_numbers(self, given: Outcome) -> Outcome:
        """That outcome, or the one for whole numbers if only this one has problems."""
        if self.given.setting.layer is None or given.problems:
            return given
        try:
            return exact if (exact := self.trial.run(replace(self.given, integers=True))).problems else given
        except NotForReference:
            return given

    def _called_once_more(self, given: Outcome) -> bool:
        """Whether the given case is right, and is right again with other values. If it is wrong with other values, the passed
        question becomes a failure. A transposed convolution is not called again: its other cases have other values."""
        if given.problems or self.given.setting.layer is not None:
            return not given.problems
        try:
            problem = self.trial.run(self.given).problem("call", "kind", "values", "gradients", "gradient_values")
        except NotForReference:
            return True
        if problem is None:
            return True
        key = {"gradients": "gradients", "gradient_values": "gradient_values"}.get(problem.about, "values")
        self.questions.drop(key)
        self._fail(key, replace(problem, seen=f"No. When it is called again, with other values: {problem.seen}",
                                advice=DEFAULT_ADVICE[Status.NONDETERMINISTIC]))
        return False

    def _small_is_right(self, small: Case, gradients: bool) -> bool:
        try:
            return self.trial.run(small, gradients=gradients).problem() is None
        except NotForReference:
            return True

    def _layouts(self, small: Case, gradients: bool) -> None:
        one = small.setting.layer and cases.of_one_channel(small, self.trial.parameters)
        of = {"channels_last": small if small.shapes and len(small.shapes[0]) in (4, 5) else None, "loose": one}
        self._others("noncontiguous", [replace(case, layout=layout, name=name) for layout, name in cases.LAYOUTS.items()
                                       if (case := of.get(layout, small))], gradients)
        self._others("batch_one", [cases.with_batch(small, 1, "batch 1")], gradients)

    # -- before any value ---------------------------------------------------------------------------------------

    def _parameters(self) -> bool:
        how = self.trial.how(self.given)
        facts, theirs = self.trial.reference.make(how)
        try:
            ours_facts, ours = self.trial.candidate.make(how)
        except (Raised, Ended) as error:
            self._fail("constructs", Problem("call", Status.LAUNCH_FAILED if isinstance(error, Raised) else
                                             Status(error.status), f"No. {_said(error)}", advice_for_construction(error),
                                             error.trace if isinstance(error, Raised) else error.log))
            self._skip(("values", "gradients"), "Not asked: the module cannot be constructed.")
            return False
        self._pass("constructs", "Yes.")
        names = facts.names
        try:
            if wrong := unlike(names, theirs, ours_facts.names, ours):
                self.trial.loads_state = False
                self._fail("state_dict", Problem("state", Status.MISMATCH, f"No. {wrong}", _KEEP_NAMES))
            elif told := apart.wrong_state(self.trial, how, (facts, theirs), ours_facts):
                self._fail("state_dict", Problem("state", Status.MISMATCH, f"No. {told[0]}", told[1]))
            elif warned := drawn.no_assign(ours_facts, _ASKED["state_dict"]) or \
                    drawn.any_state(self.trial, how, (names, theirs), _ASKED["state_dict"]) or \
                    drawn.other_order(facts, ours_facts, _ASKED["state_dict"]):
                self.questions += warned
            else:
                self._pass("state_dict", f"Yes, {len(names)} tensor{'s' * (len(names) != 1)}.")
        except (Raised, Ended) as error:
            self.trial.loads_state = False
            self._fail("state_dict", Problem("state", Status.MISMATCH, f"No. {_said(error)}", _KEEP_NAMES))
        if differs := drawn.unequal(self.trial, how):
            self._fail("same_draw", Problem("state", Status.MISMATCH, f"No. {differs}",
                                               "Draw the parameters as the reference does, in the same order."))
        elif wrong := drawn.under_another_seed(self.trial, how, new_seed()):
            self._fail("same_draw", Problem("state", Status.MISMATCH, f"No. {wrong}", "Set no seed in the constructor."))
        else:
            self.questions += drawn.drawn_more(self.trial, how, _ASKED["same_draw"]) or [Question(
                "same_draw", _ASKED["same_draw"], Answer.PASSED,
                "Yes: equal bits under each of two seeds." if names else "There are no parameters.")]
        if not self.trial.loads_state and differs:
            self._skip(_OF_VALUES, "Not asked: its parameters cannot be made equal to the reference's.")
            return False
        return True

    # -- values -------------------------------------------------------------------------------------------------

    def _given(self, outcome: Outcome) -> None:
        if problem := outcome.problem("call"):
            self._fail("values", problem, prefix="No. ")
            self._skip(("gradients", "gradient_values"), "Not asked: the call itself fails.")
            return
        kind = outcome.problem("kind")
        if kind is not None:
            self._fail("kind", kind, prefix="No. ")
            self._skip(("values", "gradients", "gradient_values"), "Not asked: the output has another shape, dtype or device.")
            return
        facts = outcome.facts
        self._pass("kind", f"Yes: {numbers.shape(facts.shape)}, {facts.dtype}, {facts.device}.")
        self._answer("values", outcome, "values", f"Yes. {outcome.distance('output')}")
        self._answer("inputs", outcome, "inputs", "Yes: their bits are unchanged.")
        missing = outcome.problem("gradients")
        if missing is not None and missing.seen.startswith("The output"):
            self._fail("gradients", missing, prefix="No. ")
            self._skip(("gradient_values",), "Not asked: there is no gradient to compare.")
            return
        if not [n for n in outcome.expected if n != "output"]:
            why = f"has no finite {' or '.join(outcome.not_finite)}" if outcome.not_finite else "has none"
            self._skip(("gradients", "gradient_values"), f"The reference {why}: nothing to compare.")
            return
        self._answer("gradients", outcome, "gradients", f"Yes: {', '.join(n for n in outcome.got if n != 'output')}.")
        if outcome.problem("gradients", "gradient_values") is None and not self._right_if_expanded(outcome):
            return
        self.gradients_known = not outcome.not_finite
        left_out = f" Not compared: {', '.join(outcome.not_finite)}, not finite in the reference." if outcome.not_finite else ""
        self._answer("gradient_values", outcome, "gradient_values", "Yes. " + " ".join(
            outcome.distance(n) for n in outcome.got if n in outcome.expected and n != "output") + left_out + self._bound())

    def _bound(self) -> str:
        bound = self.trial.drawn.bound if self.trial.drawn else []
        return f" Compared only for input changes that keep the inputs {' and '.join(dict.fromkeys(bound))}." if bound else ""

    def _right_if_expanded(self, dense: Outcome) -> bool:
        """The gradients once more, for y.sum().backward(). There they may cancel to zero (for example those of a softmax). So
        errors are relative to the gradients for the dense grad_output, if these are larger. For a layer the values are whole
        numbers of both signs. If they are wrong, the question is answered here."""
        self.emit(Event("check", "an expanded grad_output"))
        scale = {n: max(float(v.double().square().mean().sqrt()), (dense.errors[n].least_norm if n in dense.errors else 0.0) /
                        v.numel()**0.5) for n, v in dense.expected.items() if v.numel()}
        whole = dense.case.integers or self.given.setting.layer is not None and self.trial.loads_state
        try:
            outcome = self.trial.run(replace(dense.case, expanded=True, integers=whole), least_rms=scale)
        except NotForReference:
            return True
        wrong = outcome.problem("call", "gradients", "gradient_values")
        most = max((float(v.abs().max()) for v in outcome.expected.values() if v.numel()), default=0.0)
        if wrong is None or wrong.status is Status.NON_FINITE and most > torch.finfo(getattr(torch, self.trial.dtype)).max:
            return True  # a sum that float16 cannot hold, PyTorch's own neither
        if wrong.about == "gradient_values":
            self.first_wrong = self.first_wrong or outcome
        advice = "Read grad_output by its strides, or take grad_output.contiguous() first."
        self._fail("gradient_values", replace(wrong, seen=f"{wrong.seen.rstrip('.')}, for the grad_output of "
                                             "y.sum().backward(), which is expanded (stride 0).",
                                              advice=advice), prefix="No. ")
        return False

    def _range(self, outcome: Outcome) -> None:
        """Not asked if the file is wrong for numbers near 1."""
        right = not any(q.answer is Answer.FAILED for q in self.questions if q.key in _OF_VALUES)
        if right:
            self.emit(Event("check", "large and small numbers"))
            self.questions += magnitudes.in_its_dtype(self.trial, outcome)

    def _same_bits(self, outcome: Outcome) -> None:
        self.emit(Event("check", "same bits each time"))
        try:
            others, apart = self._called_again(outcome, outcome.state if self.trial.loads_state else None)
        except (Raised, Ended) as error:
            status = Status.LAUNCH_FAILED if isinstance(error, Raised) else error.status
            return self._fail("same_bits", Problem("call", status, f"No. When called again: {_said(error)}"))
        if not others:
            self._same_gradients(outcome)
            return
        seen = f"No. {others} of {_RUNS - 1} further runs gave different bits, up to {numbers.error(apart)} apart."
        wrong, advice = outcome.problem("values") is not None, DEFAULT_ADVICE[Status.NONDETERMINISTIC]
        little = apart < _OTHER_ORDER and not wrong
        self.questions.append(Question("same_bits", _ASKED["same_bits"], Answer.WARNED if little else Answer.FAILED, seen,
                                       advice, str(Status.NONDETERMINISTIC)))

    def _same_gradients(self, outcome: Outcome) -> None:
        """Have the outputs the same bits? If the gradients have other bits, and the reference's do not, it is a warning."""
        few = sum(x.numel() for x in outcome.inputs) <= _MOST_VALUES
        names = outcome.names if few and outcome.grad_output is not None and not outcome.problems else []
        try:
            other, apart = self._unlike_gradients(self.trial.candidate, outcome) if names else ("", 0.0)
            if other and not self._unlike_gradients(self.trial.reference, outcome)[0]:
                wrong = apart > 2 * outcome.errors[self.trial.plain(other)].allowed
                self.questions.append(Question(
                    "same_bits", _ASKED["same_bits"], Answer.FAILED if wrong else Answer.WARNED,
                    f"No. The output has equal bits in {_RUNS} runs, but {self.trial.plain(other)} has not. That of the "
                    "reference has.", "Sum in a fixed order, without atomics.",
                    str(Status.NONDETERMINISTIC)))
                return
        except (Raised, Ended):  # other questions find it
            names = []
        self._pass("same_bits", f"Yes, {_RUNS} runs{', also of the gradients' if names else ''}.")

    def _unlike_gradients(self, party: Party, outcome: Outcome) -> tuple[str, float]:
        """The first gradient that has other bits in a further run, and how far apart both are, relative L2."""
        first: list[torch.Tensor] = []
        state = outcome.state if party is self.trial.reference or self.trial.loads_state else None
        for _ in range(_RUNS):
            facts, results = party.call(self.trial.how(self.given), outcome.inputs, state=state, layout=self.given.layout,
                                        gradients=outcome.names, grad_output=outcome.grad_output)
            there, grads = [n for n in facts.gradients if n] if isinstance(facts, Output) else [], results[1:]
            first = first or grads
            for n, a, b in zip(there, first, grads, strict=False):
                if not same_bits(a, b):
                    return n, distance(b, a)[0] if a.shape == b.shape else inf
        return "", 0.0

    def _called_again(self, outcome: Outcome, state: State | None) -> tuple[int, float]:
        """How many of some further runs gave other bits than the first of them, and how far apart they were."""
        first: torch.Tensor | None = None
        others, apart = 0, 0.0
        for _ in range(_RUNS):
            _, results = self.trial.candidate.call(self.trial.how(self.given), outcome.inputs, layout=self.given.layout,
                                                   no_grad=True, state=state)
            got = results[0] if results else torch.empty(0)
            first = got if first is None else first
            if not same_bits(got, first):
                others += 1
                alike = (got.shape, got.dtype) == (first.shape, first.dtype)
                apart = max(apart, float((got.double() - first.double()).abs().nan_to_num(1e308).max()) if alike else inf)
        return others, apart

    def _others(self, key: str, tried: Iterable[Case], gradients: bool) -> None:
        """One question about several cases. Its answer lists those that are wrong. Of a wrong file few are run."""
        tried, left = shrink.few_cases(tried, self.given) if self.values_wrong else (tried, [])
        not_asked = f" Not asked, because the values are already wrong: {_listed([c.name for c in left])}." if left else ""
        wrong: list[tuple[str, Problem, Outcome]] = []
        right, not_drawn, repeated = list[str](), "", False
        drawn_alike = any(q.key == "same_draw" and q.answer is not Answer.FAILED for q in self.questions)
        for case in tried:
            if self.trial.candidate.given_up:
                break
            part = key.replace("_", " ")
            self.emit(Event(part, part if case.name == part else f"{part}: {case.name}"))
            try:
                few = sum(torch.Size(s).numel() for s in case.shapes) <= _MOST_VALUES
                outcome = self.trial.run(case, gradients=gradients and few and not case.far)
            except NotDrawn as error:
                not_drawn = str(error)
                continue
            except NotForReference:  # these arguments may need other inputs
                if drawn_alike and key == "other_arguments" and (found := other_draw(self.trial, case)):
                    wrong.append((case.name, found, Outcome(case)))
                continue
            except Ended as error:
                self._skip((key,), f"The reference ended: {error.headline}")
                return
            found = outcome.problem("call", "kind", "values", "gradients", "gradient_values")
            if found is None and key == "other_sizes":
                found = magnitudes.under_no_grad(self.trial, outcome)
            if found is None and key == "other_arguments" and drawn_alike:
                found = other_draw(self.trial, case)
            if found is not None and case.setting.layer is None and not drawn.alike(self.trial, case):
                continue  # with these arguments the reference draws random numbers: a probability of dropout
            if found is None:
                right.append(case.name)
            elif self.raised and found.seen == self.raised:
                repeated = True
            else:
                wrong.append((case.name, found, outcome))
        if repeated and not right and not wrong:
            self._skip((key,), "Not asked, because the call raises.")
        elif not right and not wrong and self.trial.candidate.given_up:
            self._skip((key,), "Not asked: the process has ended too often.")
        elif not wrong and left:   # the few cases that ran do not answer it
            self._skip((key,), (f"Right for {_listed(right)}." * bool(right) + not_asked).strip())
        elif not right and not wrong and not_drawn:
            self._skip((key,), f"Not asked: {not_drawn}.")
        elif not right and not wrong:
            self._skip((key,), "Not asked: the reference accepts no other arguments." if key == "other_arguments"
                       else "Not asked: the reference does not accept such an input.")
        elif not wrong:
            self._pass(key, f"Yes: {_listed(right)}." if len(right) > 1 or key.startswith("other") else "Yes.")
        elif key == "empty_batch":
            _, problem, outcome = wrong[0]
            self.questions.append(Question(
                key, _ASKED[key], Answer.WARNED, f"No. It cannot take an empty batch: {problem.seen} PyTorch returns "
                f"{numbers.shape(outcome.expected['output'].shape)}.", "Return an empty output where the batch is 0.",
                str(problem.status)))
        else:
            name, problem, outcome = wrong[0]
            if problem.about != "state" and (self.first_wrong is None or (not self.first_wrong.got and outcome.got)):
                self.first_wrong = outcome
            good = f"; right for {_listed(right)}." if right else "."
            if len(wrong) > 1 or right:
                seen = f"No. Wrong for {_listed([w[0] for w in wrong])}{good} For {name}: {problem.seen}"
            else:  # the question itself already names the case
                seen = f"No. {problem.seen}" if key in ("batch_one", "empty_batch") else f"No. For {name}: {problem.seen}"
            self._fail(key, replace(problem, seen=seen + not_asked))

    def _kernelbench(self) -> None:
        self.emit(Event("check", "KernelBench's own verdict"))
        values = kernelbench.beside(self.trial, self.given, self.questions)
        self.found = replace(self.found, kernelbench=KernelBench((), values))

    def _times(self) -> None:
        failed = [q for q in self.questions if q.answer is Answer.FAILED and q.key in
                  ("values", "kind", "gradient_values", "range", "same_bits", "inputs", "constructs", "state_dict")]
        if not self.timed:
            self._skip(("times",), "Not requested.")
        elif self.emulated:
            self._skip(("times",), "A time of the CPU emulator does not predict a GPU.")
        elif failed:
            self._skip(("times",), "A wrong module is not timed. Correct the values first.")
        else:
            self.emit(Event("time", "in turns with PyTorch"))
            bound = self.trial.drawn is not None and self.trial.drawn.bound  # the exact gradient is not always known
            backward = self.gradients_known and not bound and any(q.key == "gradient_values" and q.answer is Answer.PASSED
                                                    for q in self.questions)
            plan = times.Plan(self.given, self.effort, self.beside, self.errors, self._factor())
            timed, missing = times.measure(self.trial, plan, backward=backward, emit=self.emit)
            if missing and missing.wrong:
                self._fail("times", Problem("times", Status.MISMATCH, missing.why, missing.advice))
            elif not timed:
                self._skip(("times",), missing.why if missing else "")
            else:
                gpu = None if self.trial.device == "cpu" else describe(DeviceOrder(self.trial.device))
                self.found = replace(self.found, times=timed, workload=self.given.workload, gpu=gpu,
                                     untimed={"backward": missing.why} if missing else {})
                self._pass("times", "Timed in turns with PyTorch.")

    def _factor(self) -> float:
        """The factor for the values of timed calls: a value beyond float16's range if the layer was right there, else 1."""
        passed = any(q.key == "range" and q.answer is Answer.PASSED for q in self.questions)
        return 2.0**magnitudes.UP if passed and self.given.setting.layer is not None else 1.0

    # -- bookkeeping --------------------------------------------------------------------------------------------

    def _answer(self, key: str, outcome: Outcome, about: str, yes: str) -> None:
        if problem := outcome.problem(about):
            self.first_wrong = self.first_wrong or (outcome if about in ("values", "gradient_values") else None)
            self._fail(key, problem, prefix="No. ")
        else:
            self._pass(key, yes)

    def _pass(self, key: str, seen: str) -> None:
        self.questions.append(Question(key, _ASKED[key], Answer.PASSED, seen.strip()))

    def _fail(self, key: str, problem: Problem, *, prefix: str = "") -> None:
        advice = shrink.advice_of(self.found.mistake, key) or problem.advice or DEFAULT_ADVICE[problem.status]
        self.questions.append(Question(key, _ASKED[key], Answer.FAILED, prefix + problem.seen, advice, str(problem.status),
                                       Log(log=problem.log[-3000:] or None)))

    def _skip(self, keys: tuple[str, ...], seen: str) -> None:
        self.questions += [Question(key, _ASKED[key], Answer.SKIPPED, seen) for key in keys]


def _said(error: Raised | Ended) -> str:
    return f"It raises {error.sentence}." if isinstance(error, Raised) else error.headline


def _listed(words: list[str], most: int = 4) -> str:
    """Names, the first few of them; changed arguments hold commas themselves."""
    shown = "; ".join(words[:most])
    return shown if len(words) <= most else f"{shown} and {len(words) - most} more"
