"""Is the file right as a part of a network? Its state is saved with that of the network, two instances are in one graph, an
optimizer changes its parameters between forward and backward, a parametrization such as weight_norm computes its weight, and an
input of a wrong shape shall be refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from ....core.answers import Answer, Question
from ....core.trial import Status
from ..advice import ASKED, OF_DAILY_USE, of_cuda
from ..foreign.process import Ended, Raised
from ..foreign.requests import Overwritten, Parametrized, TwoInstances
from ..party import Construction
from ..trialrun import Outcome, State, TrialRun, same_bits, wide
from .asking import OTHER_COUNT, Asking, Not
from .cases import Case

# Of a weight, in calls one after the other: the memory of a computed weight is then used again. Powers of two: no result has
# another rounding error.
_FACTORS = (0.5, 2.0, -1.0, 0.25, -0.5, 4.0, 1.0, -2.0, -0.25, 8.0, -4.0, 0.125)
_SEED_OF_ANOTHER = 46   # the state replaces what it draws


def state_inside(trial: TrialRun, how: Construction, state: State) -> str:
    """What is wrong with the state of the file in the state of a network that contains it."""
    names, values = state
    other = [v + 1 if v.is_floating_point() else v for v in values]
    try:
        facts, there = trial.candidate.inside(how, (names, other))
    except Raised as error:
        return f"In a network load_state_dict raises {error.sentence}."
    if tuple(facts.names) != tuple(names):
        return f"In a network its state_dict has {', '.join(facts.names) or 'nothing'}, not {', '.join(names)}."
    wrong = next((n for n, a, b in zip(names, other, there, strict=True) if not same_bits(a, b)), "")
    return f"In a network load_state_dict does not change {wrong}." if wrong else ""


class OfNetworks(Asking):
    """These questions."""

    def overwritten(self) -> list[Question]:
        """Inputs, then parameters, that change before the backward. A file may raise an exception. If the reference raises one,
        no code can depend on these gradients, so wrong ones are only a warning."""
        names = self.first.names if self.first.grad_output is not None else []
        raises: list[bool] = []

        def wrong_for(parameters: bool) -> str:
            kind = partial(Overwritten, parameters=parameters)
            request = partial(kind, inputs=len(self.first.inputs), gradients=tuple(names))
            given = [*self.first.inputs, self.first.grad_output]
            said = f"Its {'parameters were' if parameters else 'input was'} changed in place before the backward"
            raises.clear()
            try:
                facts, results = self.trial.reference.ask(request, self.trial.how(self.first.case), given, self.first.state)
                if self._compared([(said, self.first, dict(zip(facts.first, results, strict=True)))]):
                    raise Not("the reference itself gives other gradients.")
            except Raised:
                raises.append(True)
            try:
                facts, results = self._asked(kind, [self.first], gradients=names)
            except Raised:
                return ""
            if len(results) != len(facts.first):
                return OTHER_COUNT
            return self._compared([(said, self.first, dict(zip(facts.first, results, strict=True)))])

        def wrong() -> str:
            asked, why = False, Not("")
            for parameters in (False, True)[:1 + any(not n.startswith("input ") for n in names)]:
                try:
                    if said := wrong_for(parameters):
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
        """A layer whose weight is computed in each call, as by weight_norm, spectral_norm or pruning. A file that raises an
        exception then is not wrong."""
        weights = tuple(n for n, v in zip(*self.first.state, strict=True) if n in self.first.names and v.dim() > 1)
        if self.first.case.setting.layer is None or not weights:
            return ""
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
            return ""
        if len(results) != len(_FACTORS) + len(facts.first):
            return OTHER_COUNT
        words = "Where a parametrization, such as weight_norm, computes its weight"
        if lost := [n for n in usual if n not in facts.first]:
            return f"{words}, autograd gives no {self.trial.plain(lost[0])}."
        count = len(_FACTORS)
        those = [(words, replace(self.first, grad_output=None, expected={"output": t}, own={"output": o}), {"output": got})
                 for t, o, got in zip(truth[:count], own[:count], results[:count], strict=True)][:count * self.right_without]
        named = [{self.trial.plain(n): v for n, v in zip(there, part[count:], strict=True)}
                 for there, part in ((usual, truth), (usual, own))]
        return self._compared([*those, (words, replace(self.first, expected=named[0], own=named[1]),
                                        dict(zip(facts.first, results[count:], strict=True)))])


def refuses(trial: TrialRun, small: Case, state: State) -> list[Question]:
    """Whether a layer raises an exception for an input with twice as many channels, as PyTorch does. Only a warning: right code
    does not give it such an input. Asked last, because the process of the file may end."""
    key, values = "refuses", [torch.cat([x, x], 1) for x in trial.inputs(small)]
    how = trial.how(small)
    try:
        facts, _ = trial.candidate.call(how, values, state=state if trial.loads_state else None, no_grad=True)
        said = f"It returns a {facts.type}"
    except Raised as error:
        if not of_cuda(error):
            return [Question(key, ASKED[key], Answer.PASSED, "Yes.")]
        said = f"It reports {error.sentence}"
    except Ended as error:
        said = error.headline.rstrip(".")
    seen = f"No. {said} for an input with {values[0].shape[1]} channels. PyTorch raises an exception."
    return [Question(key, ASKED[key], Answer.WARNED, seen, OF_DAILY_USE[key], str(Status.MISMATCH))]
