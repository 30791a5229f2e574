"""Is the file right as a part of a network? Its state is saved with that of the network, two instances are in one graph, an
optimizer changes its parameters between forward and backward, a parametrization such as weight_norm computes its weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import count, product
from math import prod

import torch

from ....core import numbers
from ....core.answers import Question
from ..foreign.process import Ended, Raised
from ..foreign.requests import AsTrained, Copied, InModes, Overwritten, Parametrized, TwoInstances
from ..trialrun import NotForReference, Outcome, TrialRun, problem_of, wide
from .asking import OTHER_COUNT, Not, OtherCalls, split
from .cases import Case, resized, with_batch
from .drawn import fill

# Of a weight, in calls one after the other, so that its memory is used again. Powers of two: no other rounding error.
_FACTORS = (0.5, 2.0, -1.0, 0.25, -0.5, 4.0, 1.0, -2.0, -0.25, 8.0, -4.0, 0.125)
_SEED_OF_ANOTHER = 46   # the state replaces what it draws
_OF_PARAMETERS = {
    "moved": "After .to() and load_state_dict, with parameters that an optimizer had before",
    "averaged": "After a change of the tensors that state_dict() gives",
    "flat": "With parameters that are parts of one flat buffer",
    "channels_last": "With input, parameters and grad_output in channels_last",
    "renewed": "In a new module, which may lie in the memory of one that is gone"}
_IN_TRAINING = {
    "hooks": "With a backward hook of the module",
    "many": "In a backward after many other forwards, and before other backwards",
    "without": "After a call that raised an exception", "backward": "After a backward that raised an exception",
    "rewritten": "For an input into which NumPy has written",
    "sized": "In a call without output_size after one with another output_size",
    "larger": "For a grad_output 8192 times larger, as a loss scaler makes it"}
# Left out if this question failed: the error would be reported twice. An input of a module with a backward hook is a view.
_IF_RIGHT = {"hooks": "views", "many": "two_calls"}
_WITHOUT_GRADIENTS = ("without", "rewritten", "sized")   # asked of a module without a backward, too
_EVAL, _PLAIN_MODE = "eval", "train grad trainable"
_OUTPUT_ONLY = ("moved", "averaged", "rewritten", "sized", _EVAL, "renewed")
# Of a new module the first mode is that of its first call.
_MODES = {"train": "in train mode", "eval": "in eval mode", "grad": "with gradients", "no_grad": "under no_grad",
          "inference_mode": "in inference_mode", "bfloat16": "in bfloat16", "trainable": "", "frozen": "all parameters frozen"}
_ALL_MODES = [" ".join(words) for words in product(("train", "eval"), ("no_grad", "grad", "inference_mode"),
                                                   ("trainable", "frozen"))]
# Beside the first of all. The last gives a warning only: a right file may keep a constant, which autograd then cannot use.
_FIRST_CALLS = ("eval no_grad trainable", "train grad frozen", "eval inference_mode trainable")
_SEED_OF_MODES, SEED_OF_SIZES, _LEAST_SIZE = 47, 53, 4   # and the next numbers: the state replaces what they draw
_OF_INFERENCE = "Keep no tensor that such a call makes, or make it under torch.inference_mode(False)."
_OTHER_REASON = {"no_grad", "eval_mode", "some_gradients", "parameters"}   # if one of these fails, so does "modes"
_GRAPH = "support the deepcopy protocol"   # how PyTorch refuses to copy a tensor that has a graph
_COPIES = {"copy": "A copy, after the original's parameters were set to zero", "saved": "What torch.save and torch.load give",
           "changed": "A copy whose parameters have changed in place"}
OF_A_CALL = ("call", "kind", "values", "gradients", "gradient_values")
_DETERMINISTIC = "Under torch.use_deterministic_algorithms(True)"
_WITH_THREADS, _THREADS = "Where torch.get_num_threads() is", (3, 5, 8, 17)
_BATCH, _FEW_VALUES, _FEW_PRODUCTS = 11, 1 << 17, 1 << 20   # no number of threads divides it; of its inputs; for a tap
_SEED_OF_FIRST = 51   # the state replaces what it draws
_SAVES_OTHERS = ("Its first call saves other tensors for the backward than the second one: torch.utils.checkpoint with "
                 "use_reentrant=False then raises an exception.")
_NO_HOOK, _A_VIEW = "It does not run backward hooks.", "is a view and is being modified inplace"


class OfNetworks(OtherCalls):
    """These questions. `_changed`: of other parameters."""

    _changed: Callable[[], Outcome]

    def overwritten(self) -> list[Question]:
        """Inputs, parameters, or the output change before the backward. Where only the file raises for its output, a layer
        fails: nn.ReLU(inplace=True) may follow. If the reference raises, wrong gradients are only a warning."""
        names, raises = self.first.names if self.first.grad_output is not None else [], list[bool]()

        def wrong_for(of: str) -> str:
            kind = partial(Overwritten, of=of)
            request = partial(kind, inputs=len(self.first.inputs), gradients=tuple(names))
            given = [*self.first.inputs, self.first.grad_output]
            said = f"Its {of} {'were' if of == 'parameters' else 'was'} changed in place before the backward"
            raises.clear()
            try:
                facts, results = self.trial.reference.ask(request, self.trial.how(self.first.case), given, self.first.state)
                if self._compared([(said, self.first, dict(zip(facts.first, results, strict=True)))]):
                    raise Not("the reference itself gives other gradients.")
            except Raised:
                raises.append(True)
            try:
                facts, results = self._asked(kind, [self.first], gradients=names)
            except Raised as error:
                if of != "output" or raises:
                    return ""
                raises.extend([True] * (self.first.case.setting.layer is None or _A_VIEW in error.message))
                why = ", because its output is a view" * (_A_VIEW in error.message)
                return f"{said}, as by nn.ReLU(inplace=True). Then it raises {error.type}{why}. The reference does not."
            if len(results) != len(facts.first):
                return OTHER_COUNT
            return self._compared([(said, self.first, dict(zip(facts.first, results, strict=True)))])

        def wrong() -> str:
            asked, why = False, Not("")
            for of in ("input", *["parameters"][:any(not n.startswith("input ") for n in names)], "output"):
                try:
                    if said := wrong_for(of):
                        return said
                    asked = True
                except Not as error:
                    why = error
            if not asked:
                raise why
            return ""
        if not names:
            return []
        question = self._question("overwritten", wrong, "Yes: it raises, or its gradients are those of the first values.")
        return [question.as_warning() if raises else question]

    def _two_instances(self, other: Outcome) -> str:
        """`other`: a right answer with another state, which another instance has. Both are in one graph."""
        names = self.first.names if self.first.grad_output is not None else []
        party, _ = self._asks
        name = party.ready(self.trial.how(self.first.case, seed=_SEED_OF_ANOTHER), other.state)
        both = [self.first, other]
        facts, results = self._asked(partial(TwoInstances, other=name), both, gradients=names)
        ones = [facts.first, facts.second] if names else [(), ()]
        if len(results) != 2 + sum(map(len, ones)):
            return OTHER_COUNT
        outputs, grads = results[:2], iter(results[2:])
        those = []
        for which, outcome, output, there in zip(("first", "second"), both, outputs, ones, strict=True):
            if lost := self._lost(list(there), outcome):
                return f"Of the {which} of two instances autograd gives no {lost}."
            those.append((f"The {which} of two instances with other parameters", outcome,
                          {"output": output, **{n: next(grads) for n in there}}))
        return self._compared(those)

    def _parametrized(self) -> str:
        """A layer whose weight is computed in each call, as by weight_norm of torch.nn.utils.parametrizations. A file that
        raises an exception then is not wrong."""
        own = [(n, v.dim() > 1) for n, v in zip(*self.first.state, strict=True) if n in self.first.names]
        if self.first.case.setting.layer is None or not any(weight for _, weight in own):
            return ""
        both, weights = tuple(n for n, _ in own), tuple(n for n, weight in own if weight)
        said = self._of_parametrized(both) if both != weights else None
        return (self._of_parametrized(weights) or "") if said is None else said   # it may refuse that of a bias

    def _of_parametrized(self, weights: tuple[str, ...]) -> str | None:
        """What is wrong if these are computed in each call. None if the reference or the file raises an exception."""
        gradients = tuple(self.first.names) if self.first.grad_output is not None else ()
        ask = partial(Parametrized, inputs=len(self.first.inputs), gradients=gradients, parameters=weights, factors=_FACTORS)
        how, given = partial(self.trial.how, self.first.case, seed=_SEED_OF_ANOTHER), [
            *self.first.inputs, *([self.first.grad_output] if gradients else [])]
        names, values = self.first.state
        try:
            _, truth = self.trial.reference.ask(ask, how(dtype="float64"), list(map(wide, given)),
                                                (names, list(map(wide, values))))
            facts, own = self.trial.reference.ask(ask, how(), given, self.first.state)
            usual = facts.first
            facts, results = self._asks[0].ask(ask, how(), given, self._asks[1])
        except Raised:
            return None
        if len(results) != len(_FACTORS) + len(facts.first):
            return OTHER_COUNT
        names_of = [n.rpartition(".")[2] for n in weights]
        words = f"Where a parametrization, such as weight_norm, computes its {' and '.join(names_of)}"
        if lost := [n for n in usual if n not in facts.first]:
            return f"{words}, autograd gives no {self.trial.plain(lost[0])}."
        count = len(_FACTORS)
        those = [(words, replace(self.first, grad_output=None, expected={"output": t}, own={"output": o}), {"output": got})
                 for t, o, got in zip(truth[:count], own[:count], results[:count], strict=True)][:count * self.right_without]
        named = [{self.trial.plain(n): v for n, v in zip(there, part[count:], strict=True)}
                 for there, part in ((usual, truth), (usual, own))]
        return self._compared([*those, (words, replace(self.first, expected=named[0], own=named[1]),
                                        dict(zip(facts.first, results[count:], strict=True)))])

    def in_training(self) -> list[Question]:
        """What a training loop does before or between calls."""
        names = self.first.names if self.first.grad_output is not None else []
        finite = self.trial.dtype != "float16" and self.trial.declared != "fp16"   # there such gradients may overflow
        rounds = {one: words for one, words in _IN_TRAINING.items()
                  if (names or one in _WITHOUT_GRADIENTS) and (self.right_without or one not in _OUTPUT_ONLY)
                  and (self.trial.takes_size and self.first.case.setting.layer is not None or one != "sized")
                  and (finite or one != "larger") and _IF_RIGHT.get(one) not in self.failed}

        def wrong() -> str:
            ran: list[str] = []
            said = self._as_trained(rounds, self.first, beside=self.second, ran=ran) or self._with_threads()
            if said or self._collected is not None or (said := self._first_call_saves_others()):
                return said
            if ran or "hooks" not in rounds:
                return self._deterministic()
            ask = partial(AsTrained, inputs=len(self.first.inputs), gradients=tuple(names), rounds=("hooks",))
            given = [*self.first.inputs, self.first.grad_output]
            theirs, _ = self.trial.reference.ask(ask, self.trial.how(self.first.case), given, self.first.state)
            return _NO_HOOK if theirs.buffers else self._deterministic()
        question = self._question("in_training", wrong, f"Yes: {'hooks, ' * bool(names)}exceptions, rewritten inputs"
                                  f"{', many forwards, larger gradients' * bool(names)}, other numbers of threads.")
        if question.seen.startswith(f"No. {_WITH_THREADS}"):
            return [replace(question, advice="Compute the same values for each torch.get_num_threads().")]
        if question.seen.startswith(f"No. {_DETERMINISTIC}"):
            return [replace(question.as_warning(), advice="Use operations that PyTorch has in a deterministic form.")]
        return [question.as_warning() if question.seen.endswith((_NO_HOOK, _SAVES_OTHERS)) else question]

    def _with_threads(self) -> str:
        """Where PyTorch's operators have another number of threads."""
        return self._as_trained({f"{n} threads": f"{_WITH_THREADS} {n}" for n in _THREADS}, self._many_samples)

    @cached_property
    def _many_samples(self) -> Outcome:
        """Of a batch that none of these numbers divides; if that is large or not right, the first one."""
        many = with_batch(self.first.case, _BATCH, f"batch {_BATCH}")
        with suppress(NotForReference):
            if sum(map(prod, many.shapes)) <= _FEW_VALUES and not (other := self.trial.run(
                    many, state=self.first.state, gradients=self.first.grad_output is not None)).problems:
                return other
        return self.first

    def _first_call_saves_others(self) -> str:
        """Whether a new module's first call saves other tensors for the backward than the second, unlike the reference's."""
        if not self.trial.loads_state or self.first.grad_output is None:
            return ""
        ask = partial(AsTrained, inputs=len(self.first.inputs), rounds=("first",))
        how = self.trial.how(self.first.case, seed=_SEED_OF_FIRST)
        with suppress(Raised):
            for party in (self.trial.candidate, self.trial.reference):
                found = bool(party.ask(ask, how, self.first.inputs, self.first.state)[0].buffers)
                if found is (party is self.trial.reference):
                    return ""
            return _SAVES_OTHERS
        return ""

    def _deterministic(self) -> str:
        said = self._as_trained({"deterministic": _DETERMINISTIC}, self.first)
        return "" if "uses CuBLAS" in said else said   # it needs a setting of the environment, whatever file calls it

    def copied(self) -> list[Question]:
        """A file that cannot be copied at all is not asked: a handle of an extension cannot."""
        def wrong() -> str:
            other = self._changed_right()
            sets, values = ([self.first, other], self._values(other)) if other else ([self.first], {})
            names = tuple(self.first.names) if self.first.grad_output is not None else ()
            ask = partial(Copied, inputs=len(self.first.inputs), sets=len(sets), gradients=names, parameters=tuple(values))
            given = [*(x for one in sets for x in one.inputs), *(one.grad_output for one in sets if names), *values.values()]
            try:
                facts, results = self._asks[0].ask(ask, self.trial.how(self.first.case), given, self._asks[1])
            except Raised as error:
                if _GRAPH in error.message and not self._reference_raises(ask, self.first, given):
                    return f"copy.deepcopy raises {error.type} after a call with the output of another layer: the module " \
                        "keeps a tensor with its graph."
                raise Not(f"copy.deepcopy raises {error.sentence}.") from error
            found = split(facts.first, facts, results)
            if found is None or not found.keys() <= _COPIES.keys():
                return OTHER_COUNT
            with suppress(Raised):   # of the reference: then no file can be asked for more
                if "saved" not in found and "saved" in self.trial.reference.ask(
                        ask, self.trial.how(self.first.case), given, self.first.state)[0].first:
                    return "torch.save or torch.load raises an exception, although copy.deepcopy does not."
            those = [(one, sets[one == "changed" and len(sets) - 1], there) for one, there in found.items()]
            lost = ((one, self._lost([*there], outcome)) for one, outcome, there in those if names)
            return next((f"{_COPIES[one]}: autograd gives no {name}." for one, name in lost if name), "") or self._compared(
                [(_COPIES[one], outcome, there) for one, outcome, there in those])
        return [self._question("copied", wrong, "Yes.").as_warning()]

    def modes(self) -> list[Question]:
        """Each combination of modes; each of some of them in the first call of a new module."""
        if not _OTHER_REASON.isdisjoint(self.failed):
            return []

        def wrong() -> str:
            said, all_asked = self._in_all_modes(self._changed_right() or self.first)
            if said or not all_asked or not self.trial.loads_state:
                return said
            return next(filter(None, map(self._called_first, range(len(_FIRST_CALLS)))), "")
        question = self._question("modes", wrong, "Yes: train and eval, with and without gradients, trainable and frozen.")
        only_warns = question.seen.startswith(f"No. {_first_was(_FIRST_CALLS[-1])}")
        return [replace(question.as_warning(), advice=_OF_INFERENCE) if only_warns else question]

    def _changed_right(self) -> Outcome | None:
        """A right answer with other parameters, if there are any."""
        with suppress(NotForReference):
            if self.trial.loads_state and self.first.state[0] and not (other := self._changed()).problem(*OF_A_CALL):
                return other
        return None

    def _in_all_modes(self, outcome: Outcome) -> tuple[str, bool]:
        """What is wrong in all modes, after a change of the parameters in place; whether there was time for all modes."""
        values = self._values(outcome) if outcome is not self.first else {}
        names = tuple(n for n in outcome.names if n.startswith("input ")) if outcome.grad_output is not None else ()
        rounds = [one for one in _ALL_MODES if self.first.state[0] or not one.endswith("frozen")]
        ask = partial(InModes, inputs=len(outcome.inputs), gradients=names, parameters=tuple(values), rounds=tuple(rounds))
        how = partial(self.trial.how, outcome.case, **{"seed": _SEED_OF_MODES} if self.trial.loads_state else {})
        given = [*outcome.inputs, *([outcome.grad_output] if names else []), *values.values()]
        (stated, state), usual = self.first.state, self.trial.reference
        try:
            truth = split(rounds, *usual.ask(ask, how(dtype="float64"), list(map(wide, given)),
                                             (stated, list(map(wide, state)))))
            own = split(rounds, *usual.ask(ask, how(), given, self.first.state))
        except Raised as error:
            raise Not(f"the reference raises {error.sentence}.") from error
        start = f"After a call in each mode{' and a change of the parameters in place' if values else ''}, "
        try:
            facts, results = self._asks[0].ask(ask, how(), given, self._asks[1])
        except Raised as error:
            return f"{start}in one of {len(rounds)} modes: {problem_of(error).seen}", True
        there = split(rounds[:len(facts.choices)], facts, results)
        if there is None:
            return OTHER_COUNT, True
        return self._compared_modes(outcome, start, there, (truth or {}, own or {})), len(there) == len(rounds)

    def _compared_modes(self, outcome: Outcome, start: str, there: dict[str, dict[str, torch.Tensor]],
                        theirs: Sequence[dict[str, dict[str, torch.Tensor]]]) -> str:
        """`theirs`: in each mode the truth, and the reference's own results."""
        those = []
        for one, got in there.items():
            usual = [{n if n == "output" else self.trial.plain(n): self.trial.tangent(n, v) for n, v in of[one].items()
                      if n == "output" or self.trial.plain(n) in outcome.expected} for of in theirs if one in of]
            if len(usual) != len(theirs) or not all(bool(v.isfinite().all()) for v in usual[0].values()):
                continue
            words = start + _in_words(one)
            if lost := [n for n in theirs[0][one] if n not in got and self.trial.plain(n) in usual[0]]:
                return f"{words} autograd gives no {self.trial.plain(lost[0])}."
            # How far a gradient may jump is known in train mode only; `eval_mode` has compared those in eval mode.
            if one.startswith("eval") and outcome.case.setting.layer is None:
                got = {"output": got["output"]}
            about = replace(outcome, grad_output=outcome.grad_output if len(got) > 1 else None)
            those.append((words, replace(about, expected=usual[0], own=usual[1]), got))
        return self._compared(those)

    def _called_first(self, number: int) -> str:
        """A new module whose first call is in the mode of this number, then a plain call. In inference_mode the size is also
        new, if the reference takes one: the file may keep a tensor for each size, for all its modules."""
        first, new = _FIRST_CALLS[number], self._of_a_new_size if number == len(_FIRST_CALLS) - 1 else None
        return self.called_first(new or self.first, first, _SEED_OF_MODES + 1 + number)

    def called_first(self, outcome: Outcome, first: str, seed: int) -> str:
        """The same for another right answer and another mode."""
        names = tuple(outcome.names) if outcome.grad_output is not None else ()
        ask = partial(InModes, inputs=len(outcome.inputs), gradients=names, rounds=(first, _PLAIN_MODE))
        given = [*outcome.inputs, *([outcome.grad_output] if names else [])]
        words = _first_was(first) + ("" if outcome is self.first else f", with inputs of {outcome.case.name}")
        try:
            found = split((first, _PLAIN_MODE), *self._asks[0].ask(ask, self.trial.how(outcome.case, seed=seed), given,
                                                                   self._asks[1]))
        except Raised as error:
            return f"{words}: {problem_of(error).seen}"
        if found is None:
            return OTHER_COUNT
        if lost := self._lost([*found[_PLAIN_MODE]], outcome) if names else "":
            return f"{words} autograd then gives no {lost}."
        return self._compared([(words, outcome, found[_PLAIN_MODE])])

    @cached_property
    def _of_a_new_size(self) -> Outcome | None:
        return at_a_new_size(self.trial, self.first, _FIRST_CALLS[-1], SEED_OF_SIZES)

    def _treated(self, outcome: Outcome) -> str:
        """`outcome`: that of the call with the changed parameters, which were loaded."""
        values = self._values(outcome)
        dims = {v.dim() for v in (*values.values(), *outcome.inputs) if v.dim() > 3}
        rounds = {one: words for one, words in _OF_PARAMETERS.items() if (one != "channels_last" or dims in ({4}, {5}))
                  and (self.right_without or one not in _OUTPUT_ONLY)}
        return self._as_trained(rounds, outcome, values=values)

    def _changed_in_eval(self, outcome: Outcome, values: dict[str, torch.Tensor], words: str) -> str:
        """`values`: of parameters or buffers, written after a call in eval mode. The reference is asked what is right there."""
        ask = partial(AsTrained, inputs=len(outcome.inputs), parameters=tuple(values), rounds=(_EVAL,))
        (names, state), given = self.first.state, [*outcome.inputs, *values.values()]
        if not self.right_without or not values:
            return ""
        try:
            _, (truth,) = self.trial.reference.ask(ask, self.trial.how(outcome.case, dtype="float64"), list(map(wide, given)),
                                                   (names, list(map(wide, state))))
            _, (own,) = self.trial.reference.ask(ask, self.trial.how(outcome.case), given, self.first.state)
        except Raised:
            return ""
        evaluated = replace(outcome, grad_output=None, expected={"output": truth}, own={"output": own})
        return self._as_trained({_EVAL: words}, evaluated, values=values) \
            if bool(truth.isfinite().all()) else ""

    def _values(self, outcome: Outcome) -> dict[str, torch.Tensor]:
        """The changed parameters."""
        return {n: v for n, v in zip(*outcome.state, strict=True) if n in self.first.names}

    def _as_trained(self, rounds: dict[str, str], outcome: Outcome, *, beside: Outcome | None = None,
                    values: dict[str, torch.Tensor] | None = None, ran: list[str] | None = None) -> str:
        """What is wrong in one of these rounds. `ran` gets what the file says about hooks."""
        names = outcome.names if outcome.grad_output is not None else []
        sets = [one for one in (outcome, beside) if one]
        given = [*(x for one in sets for x in one.inputs), *([outcome.grad_output] if names else []), *(values or {}).values()]
        ask = partial(AsTrained, inputs=len(outcome.inputs), sets=len(sets), gradients=tuple(names),
                      parameters=tuple(values or {}))
        how = self.trial.how(outcome.case)

        def asked(some: Sequence[str]) -> dict[str, dict[str, torch.Tensor]] | None:
            facts, results = self._asks[0].ask(partial(ask, rounds=tuple(some)), how, given, self._asks[1])
            if ran is not None:
                ran.extend(facts.buffers)
            return split(some, facts, results)
        found: dict[str, dict[str, torch.Tensor]] = {}
        for some in ([*rounds], *([one] for one in rounds)):
            try:
                there = asked(some)
            except Raised as error:
                if len(some) == 1 and not self._reference_raises(partial(ask, rounds=tuple(some)), outcome, given):
                    return f"{rounds[some[0]]}: {problem_of(error).seen}"
                continue
            if there is None:
                return OTHER_COUNT
            found |= there
            if len(found) == len(rounds):
                break
        for one, there in found.items():
            if names and one not in _OUTPUT_ONLY and (lost := self._lost([*there], outcome)):
                return f"{rounds[one]} autograd gives no {lost}."
        return self._compared([(rounds[one], outcome, there) for one, there in found.items()])

    def _reference_raises(self, ask: Callable[..., AsTrained | Copied], outcome: Outcome, given: list[torch.Tensor]) -> bool:
        with suppress(Raised):
            self.trial.reference.ask(ask, self.trial.how(outcome.case), given, self.first.state)
            return False
        return True


def _in_words(mode: str) -> str:
    return ", ".join(filter(None, map(_MODES.__getitem__, mode.split())))


def _first_was(mode: str) -> str:
    return f"Where the first call of a new module was {_in_words(mode)}"


def at_a_new_size(trial: TrialRun, first: Outcome, mode: str, seed: int) -> Outcome | None:
    """What is right at a size that no call had, in a plain call after one in this mode. None if the reference takes no such
    size, or raises an exception, too. The truth is that of another module, which may keep nothing of a call in that mode."""
    gradients, (names, values) = tuple(first.names) if first.grad_output is not None else (), first.state
    for case in _of_new_size(first.case, trial.seen):
        with suppress(NotForReference, Raised, Ended):
            inputs, how = trial.inputs(case), partial(trial.how, case)
            ask = partial(InModes, inputs=len(inputs), rounds=(mode, _PLAIN_MODE))
            shape = tuple(getattr(case.workload, "output_shape", ()) or trial.reference.ask(
                ask, how(seed=seed), inputs, first.state)[1][-1].shape)
            trial.seen.update(*case.shapes, shape)
            grad_output = fill(replace(case, shapes=(shape,), dtypes=(trial.dtype,)), [], trial.generator)[0]
            given, ask = [*inputs, *[grad_output][:len(gradients)]], partial(ask, gradients=gradients)
            own = split((mode, _PLAIN_MODE), *trial.reference.ask(ask, how(seed=seed), given, first.state))
            truth = split((_PLAIN_MODE,), *trial.reference.ask(
                partial(ask, rounds=(_PLAIN_MODE,)), how(seed=seed + 1, dtype="float64"), list(map(wide, given)),
                (names, list(map(wide, values)))))
            expected, usual = ({n if n == "output" else trial.plain(n): trial.tangent(n, v) for n, v in (
                found or {}).get(_PLAIN_MODE, {}).items()} for found in (truth, own))
            if expected and all(bool(v.isfinite().all()) for v in expected.values()):
                return replace(first, case=case, inputs=inputs, grad_output=grad_output if gradients else None,
                               expected=expected, own=usual, problems=[], got={}, errors={})
    return None


def _of_new_size(case: Case, seen: set[int]) -> Iterator[Case]:
    """The case with numbers of samples and positions that no tensor had in any dimension."""
    if not (first := case.shapes[0] if case.shapes else ()):
        return
    batch, layer = next(n for n in count(_LEAST_SIZE) if n not in seen), case.setting.layer
    if layer is not None:
        sizes = (resized(case, batch, (*first[2:-1], n)) for n in count(_LEAST_SIZE) if n not in seen)
        found = next(one for one in sizes if one and one.workload.output_shape[-1] not in seen)
        if prod(found.workload.output_shape) * layer.in_channels > _FEW_PRODUCTS:
            found = resized(found, first[0], found.shapes[0][2:]) or found
        yield replace(found, integers=False, name=numbers.shape(found.shapes[0]))
        return
    many = with_batch(case, batch, "")
    for d in dict.fromkeys((len(first) - 2, len(first) - 1, *range(1, len(first)))):
        size = next(n for n in count(first[d] + 1) if n not in seen)
        shapes = tuple((*s[:d], size, *s[d + 1:]) if len(s) > d and s[d] == first[d] else s for s in many.shapes)
        if d > 0:
            yield replace(many, shapes=shapes, name=numbers.shape(shapes[0]))
    yield replace(many, name=numbers.shape(many.shapes[0]))
