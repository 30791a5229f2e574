"""Questions that stand alone. What only a GPU can answer: the current stream, waiting, memory, torch.compile, CUDA graphs. Then
other types, a later bias, an input of a wrong shape, calls without optional arguments, and one sample beside a batch."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch

from ....core import numbers
from ....core.answers import Answer, Question
from ....core.trial import Status
from ...kernel.validate import distance
from ..foreign.process import Ended, Raised
from ..foreign.replies import LEAVES_GRAD_MODE, Made
from ..foreign.requests import AskMemory, AskWaits, AsTrained, Compile, Graph, OnGpu, SideStream
from ..party import Construction, Party, by_name
from ..text.advice import ASKED, OF_DAILY_USE, of_cuda
from ..trialrun import NotForReference, Outcome, State, TrialRun, problem_of, same_bits
from . import magnitudes
from .asking import OTHER_COUNT, Not, split
from .cases import Case, changed, few_channels
from .networks import OF_A_CALL, SEED_OF_SIZES, OfNetworks, at_a_new_size

R = TypeVar("R")
_TRIES = 3   # inputs of which one sample is given
_FIRST_IN_BFLOAT16 = "train bfloat16 trainable"
_OF_FIRST_TYPE = "Keep a tensor for each dtype, or keep it in the widest one."
_OF_8_BITS = "Keep the operands of a call in bfloat16, or in a wider type."
_OF_CONVERTED = "Convert the parameters in each call, or compare their version counters."
_OF_BACKWARD = "Switch autocast off in the backward, as torch.amp.custom_bwd does."
_WHOLE, _OF_WHOLE = 16, 3e-4   # added to few whole numbers, so that they need 5 bits; relative L2 tolerance
_CLOSE = 1e-2  # tolerance of these questions, which test the stream and the order, not the accuracy


def wrong_state(trial: TrialRun, how: Construction, reference: tuple[Made, list[torch.Tensor]], ours: Made
                ) -> tuple[str, str] | None:
    """What is wrong with a state whose names and shapes are right, and what to do. `ours`: of the file."""
    theirs, values = reference
    missing, others = ([n for n in a.parameters if n not in b] for a, b in ((theirs, ours.parameters), (ours, theirs.names)))
    if missing and others:
        trial.loads_state = False   # its gradients have other names, too
        return f"Its named_parameters() has {others[0]}, its state_dict and the reference have {missing[0]}.", \
            "Give the parameters the reference's names in the module, too, by submodules of these names."
    if said := _of_another_kind(theirs, ours):
        return said, "Register parameters and buffers as the reference does, and freeze what it freezes."
    said = _state_inside(trial, how, (theirs.names, values)) or _of_another_dtype(trial, how, (theirs.names, values))
    return (said, "Give it the reference's dtype." if said.startswith("Its ") else
            "Do not override state_dict or its parts.") if said else None


def _of_another_kind(theirs: Made, ours: Made) -> str:
    """Whether a name is a parameter in one file and a buffer in the other, or frozen in one of them. An optimizer then changes
    what it must not change, or does not train what it must train."""
    both = [{**dict.fromkeys(made.names, "a parameter"), **dict.fromkeys(made.buffers, "a buffer"),
             **dict.fromkeys(made.frozen, "a parameter that requires no gradient")} for made in (theirs, ours)]
    return next((f"Its {name} is {both[1][name]}, the reference's is {both[0][name]}." for name in theirs.names
                 if both[0][name] != both[1].get(name)), "")


def _state_inside(trial: TrialRun, how: Construction, state: State) -> str:
    """What is wrong with the state of the file in the state of a network that contains it."""
    names, values = state
    other = [v + 1 if v.is_floating_point() else v for v in values]
    try:
        facts, there = trial.candidate.inside(how, (names, other))
    except Raised as error:
        return f"In a network load_state_dict raises {error.sentence}."
    if facts.shares:
        return "load_state_dict does not copy what it is given: both modules then change together."
    if not facts.tells:
        return "load_state_dict(strict=False) does not return the missing and the unexpected keys."
    if set(facts.names) != set(names):
        return f"In a network its state_dict has {', '.join(facts.names) or 'nothing'}, not {', '.join(names)}."
    there = by_name(names, facts.names, there)
    for n, a, b in zip(names, other, there, strict=True):
        if a.dtype != b.dtype:
            ours, theirs = (str(one.dtype).removeprefix("torch.") for one in (b, a))
            return f"Its {n} is {ours}, the reference's is {theirs}."
        if not same_bits(a, b):
            return f"In a network load_state_dict does not change {n}."
    return ""


def _of_another_dtype(trial: TrialRun, how: Construction, state: State) -> str:
    """What is wrong if a state in another dtype is loaded: the reference's module keeps its own, and takes the rounded values.
    """
    names, values = state
    other = [v.to(torch.float32 if v.dtype is torch.bfloat16 else torch.bfloat16) if v.is_floating_point() else v
             for v in values]
    with suppress(Raised):   # of the reference
        facts, usual = trial.reference.inside(how, (names, other))
        try:
            ours, there = trial.candidate.inside(how, (names, other))
        except Raised as error:
            return f"For a state in {_named(other)} load_state_dict raises {error.sentence}."
        for n, a, b in zip(facts.names, usual, by_name(facts.names, ours.names, there), strict=False):
            if a.dtype != b.dtype:
                return f"A state in {_named(other)} changes {n} to {_named([b])}. In the reference it stays {_named([a])}."
            if not same_bits(a, b):
                return f"A state in {_named(other)} gives {n} other values than in the reference."
    return ""


def _named(tensors: list[torch.Tensor]) -> str:
    return next((str(v.dtype).removeprefix("torch.") for v in tensors if v.is_floating_point()), "another dtype")


def ask(trial: TrialRun, case: Case, outcome: Outcome) -> Iterator[Question]:
    """One question each, one after the other. If the process ends, only that question is lost."""
    return (one(trial, case, outcome) for one in (_stream, _waits, _memory))


def ask_last(trial: TrialRun, case: Case, outcome: Outcome) -> Iterator[Question]:
    """Two questions whose answers are notes. They come after the times, because compiling takes seconds."""
    return (one(trial, case, outcome) for one in (_graph, _compile))


def _stream(trial: TrialRun, case: Case, outcome: Outcome) -> Question:
    question = "Runs on the current stream?"
    try:
        _, results = _special(trial, SideStream, case, outcome)
    except (Raised, Ended) as error:
        return Question("stream", question, Answer.FAILED, f"No. On a side stream: {_said(error)}",
                        "Launch on at::cuda::getCurrentCUDAStream().", str(Status.LAUNCH_FAILED))
    if _close(results[0], outcome.got["output"]):
        return Question("stream", question, Answer.PASSED, "Yes: it waits for an input that arrives late on a side stream.")
    return Question("stream", question, Answer.FAILED, "No. On a side stream it reads the input before it has arrived: the "
                    "launch goes to another stream.", "Launch on at::cuda::getCurrentCUDAStream().", str(Status.MISMATCH))


def _waits(trial: TrialRun, case: Case, outcome: Outcome) -> Question:
    question = "Returns without waiting for the device?"
    try:
        facts, _ = _special(trial, AskWaits, case, outcome)
    except (Raised, Ended) as error:
        return Question("waits", question, Answer.WARNED, f"Not known: {_said(error)}")
    if facts.call_s > 0.5 * facts.all_s:
        return Question("waits", question, Answer.WARNED, "No. Each call waits until the device is idle.",
                        "Remove the synchronisation: PyTorch waits when it has to.")
    return Question("waits", question, Answer.PASSED, "Yes.")


def _memory(trial: TrialRun, case: Case, outcome: Outcome) -> Question:
    question = "Memory against PyTorch's?"
    try:
        ours = _special(trial, AskMemory, case, outcome)[0].peak_bytes
        theirs = trial.reference.ask(AskMemory, trial.how(case), outcome.inputs, outcome.state)[0].peak_bytes
    except (Raised, Ended) as error:
        return Question("memory", question, Answer.WARNED, f"Not known: {_said(error)}")
    seen = f"{numbers.memory(ours)} more than its inputs, PyTorch {numbers.memory(theirs)}; memory that it takes past " \
           "PyTorch's allocator is not counted."
    return Question("memory", question, Answer.WARNED if ours > 2 * max(theirs, 1 << 20) else Answer.PASSED, seen,
                    "Allocate less, or free it earlier." if ours > 2 * max(theirs, 1 << 20) else "")


def _graph(trial: TrialRun, case: Case, outcome: Outcome) -> Question:
    question = "Works in a CUDA graph?"
    try:
        _, results = _special(trial, Graph, case, outcome)
    except (Raised, Ended) as error:
        return Question("graph", question, Answer.NOTE, f"No. {_said(error)}")
    right = _close(results[0], outcome.got["output"])
    return Question("graph", question, Answer.NOTE, "Yes." if right else "No. Its replay gives other values.")


def _compile(trial: TrialRun, case: Case, outcome: Outcome) -> Question:
    question = "Works under torch.compile?"
    try:
        facts, results = _special(trial, Compile, case, outcome)
    except (Raised, Ended) as error:
        return Question("compile", question, Answer.NOTE, f"No. {_said(error)}")
    if not _close(results[0], outcome.got["output"]):
        return Question("compile", question, Answer.NOTE, "No. It gives other values.")
    breaks = facts.graph_breaks
    return Question("compile", question, Answer.NOTE, "Yes." if not breaks else f"Yes, with {breaks} graph "
                    f"break{'' if breaks == 1 else 's'}.")


def _special(trial: TrialRun, request: Callable[[str], OnGpu[R]], case: Case, outcome: Outcome
             ) -> tuple[R, list[torch.Tensor]]:
    return trial.candidate.ask(request, trial.how(case), outcome.inputs, outcome.state if trial.loads_state else None)


def _close(got: torch.Tensor, expected: torch.Tensor) -> bool:
    if got.shape != expected.shape:
        return False
    limit = _CLOSE * float(expected.double().square().mean().sqrt()) + 1e-30
    return bool(((got.double() - expected.double()).abs() <= limit).all())


def _said(error: Raised | Ended) -> str:
    return f"It raises {error.sentence}." if isinstance(error, Raised) else error.headline


def in_other_types(trial: TrialRun, case: Case) -> list[Question]:
    """The questions about another default dtype, float64 and bfloat16, and whether float32 is right after a call in bfloat16.
    They are not asked if the reference is in another type than float32."""
    if trial.dtype != "float32" or not trial.loads_state or trial.candidate.given_up:
        return []
    with suppress(NotForReference, Ended):
        usual = trial.run(case)
        if not usual.problems and usual.expected["output"].is_floating_point():
            found = [*_in_another_default(trial, usual), *magnitudes.in_double(trial, usual),
                     *magnitudes.in_bfloat16(trial, usual)]
            return [_more_in_bfloat16(trial, usual, q) if q.key == "bfloat16" else _more_in_double(trial, usual, q)
                    if q.key == "double" else q for q in found]
    return []


def _more_in_double(trial: TrialRun, usual: Outcome, question: Question) -> Question:
    with suppress(Raised, Ended):
        if question.answer is Answer.PASSED and (said := _of_all_bits(trial, usual)):
            return replace(question, answer=Answer.WARNED, seen=f"No. {said}", status=str(Status.MISMATCH),
                           advice=OF_DAILY_USE["double"])
    return question


def _more_in_bfloat16(trial: TrialRun, usual: Outcome, question: Question) -> Question:
    """The answer about bfloat16, or a warning about what is asked only if plain calls are right; the last one also if they
    raise an exception."""
    asked: list[tuple[Callable[[TrialRun, Outcome], str], str]] = [(_backward_alone, _OF_BACKWARD)]
    if question.answer is Answer.PASSED:
        of_layer = [(_of_whole_numbers, _OF_8_BITS), (_second_in_bfloat16, OF_DAILY_USE["second_derivative"])]
        asked = [*of_layer[:2 * (usual.case.setting.layer is not None)], (_after_bfloat16, _OF_FIRST_TYPE),
                 (_converted_once, _OF_CONVERTED), *asked]
    for one, advice in asked if question.answer in (Answer.PASSED, Answer.NOTE) else ():
        with suppress(NotForReference, Raised, Ended, Not):
            if said := one(trial, usual):
                seen = f"No. {said}" + f" {question.seen}" * (question.answer is Answer.NOTE)
                return replace(question, answer=Answer.WARNED, seen=seen, status=str(Status.MISMATCH), advice=advice)
    return question


def _of_whole_numbers(trial: TrialRun, usual: Outcome) -> str:
    """What is wrong with whole numbers. bfloat16 holds them and all their sums exactly; operands of 8 bits or less do not."""
    there = {"in_channels", "out_channels"} <= dict(usual.case.setting.keywords).keys()
    exact = trial.run(replace((few_channels(usual.case) if there else None) or usual.case, integers=True))
    if exact.problems or exact.grad_output is None:
        return ""
    larger = [v + _WHOLE * v.sign() * (torch.randint(8, v.shape, generator=trial.generator, device=v.device) == 0)
              for v in exact.state[1]]
    exact = replace(exact, state=(exact.state[0], larger))
    truth = magnitudes.results(trial, trial.reference, exact, "float64", wide=True)
    half = replace(exact, inputs=[x.bfloat16() for x in exact.inputs], grad_output=exact.grad_output.bfloat16())
    for words, one, dtype, autocast in (("After .bfloat16()", half, "bfloat16", ""),
                                        ("Under autocast to bfloat16", exact, "float32", "bfloat16")):
        theirs, got = (magnitudes.results(trial, party, one, dtype, autocast=autocast)
                       for party in (trial.reference, trial.candidate))
        for name, value in got.items():
            if name not in theirs or not torch.equal(theirs[name].double(), truth[name]) or value.shape != truth[name].shape:
                continue
            if not (off := distance(value.double(), truth[name])[0]) <= _OF_WHOLE:
                return f"{words} the error of {'y' if name == 'output' else name} is {numbers.error(off)} for whole numbers " \
                    "that bfloat16 holds exactly. PyTorch's result is exact."
    return ""


def _second_in_bfloat16(trial: TrialRun, usual: Outcome) -> str:
    """What is wrong with second derivatives after .bfloat16(), if they are right in float32."""
    asker, kinds = OfNetworks(trial, usual), ("parameters", "inputs")
    if usual.grad_output is None or asker.wrong_derivative(usual, "second", kinds):
        return ""
    inputs, values = ([x.bfloat16() if x.is_floating_point() else x for x in some] for some in (usual.inputs, usual.state[1]))
    half = replace(usual, inputs=inputs, state=(usual.state[0], values), grad_output=usual.grad_output.bfloat16())
    said = asker.wrong_derivative(half, "second", kinds, dtype="bfloat16")
    return f"After .bfloat16(): {said}" if said else ""


def _backward_alone(trial: TrialRun, usual: Outcome) -> str:
    """What is wrong with gradients if the backward alone runs under autocast, where the reference's are as exact as usual.
    Asked of a backward that is written by hand: those of PyTorch's products are in bfloat16 there, too."""
    if usual.grad_output is None:
        return ""
    how, given = trial.how(usual.case), {"state": usual.state, "gradients": usual.names, "grad_output": usual.grad_output}
    (_, theirs), (facts, got) = ((one, trial.named(one, found)) for one, found in (
        party.call(how, usual.inputs, autocast="backward bfloat16", **given) for party in (trial.reference, trial.candidate)))
    asked = facts.by_hand and not magnitudes.wrong(trial, usual, theirs)
    said = magnitudes.wrong(trial, usual, got) if asked else ""
    return f"Where only the backward runs under autocast to bfloat16: {said}" if said else ""


def _converted_once(trial: TrialRun, usual: Outcome) -> str:
    """What is wrong with the second of two calls under autocast and no_grad, between which the parameters change."""
    values = {n: v * -0.5 for n, v in zip(*usual.state, strict=True) if n in usual.names}
    rounds = ("train autocast", "eval autocast")
    ask = partial(AsTrained, inputs=len(usual.inputs), parameters=tuple(values), rounds=rounds)
    (_, theirs), (_, got) = (party.ask(ask, trial.how(usual.case), [*usual.inputs, *values.values()], usual.state)
                             for party in (trial.reference, trial.candidate))
    for one, x, y in zip(rounds, theirs, got, strict=False):
        if x.shape == y.shape and not distance(y.double(), x.double())[0] <= 2 * magnitudes.MOST_OFF:
            return f"Under autocast to bfloat16 and no_grad, in {one.partition(' ')[0]} mode, y is wrong after the " \
                "parameters have changed."
    return ""


def _of_all_bits(trial: TrialRun, usual: Outcome) -> str:
    """What is wrong in float64 with values that float32 does not hold."""
    inputs, values = ([v.double() / 3 if v.is_floating_point() else v for v in some] for some in (usual.inputs, usual.state[1]))
    one = replace(usual, inputs=inputs, state=(usual.state[0], values),
                  grad_output=None if usual.grad_output is None else usual.grad_output.double() / 3)
    theirs, got = (magnitudes.results(trial, party, one, "float64") for party in (trial.reference, trial.candidate))
    said = magnitudes.worse(got, theirs, dict.fromkeys(theirs, (magnitudes.OF_DOUBLE, " beside the reference in float64")))
    return f"After .double() {said}" if said else ""


def _in_another_default(trial: TrialRun, usual: Outcome) -> list[Question]:
    """Whether a call is right where torch's default dtype is float64; of a layer also one without a bias, in whose place a file
    may make zeros. And where it is bfloat16. It fails for a file that stands for nn.ConvTranspose, and is a warning for any
    other."""
    key, asked, facts, layer = "default_dtype", False, trial.candidate.facts, usual.case.setting.layer
    bare = changed(usual.case, {"bias": False}) if layer and layer.bias and "bias" in trial.parameters else None
    for outcome, dtype in ((usual, "float64"), *([(trial.run(bare), "float64")] if bare else []), (usual, "bfloat16")):
        ask = partial(AsTrained, inputs=len(outcome.inputs), gradients=tuple(outcome.names), rounds=(f"default {dtype}",))
        given = [*outcome.inputs, *([] if outcome.grad_output is None else [outcome.grad_output])]
        with suppress(Raised):
            if outcome.problems or _of_round(trial, ask, given, outcome, trial.reference):
                continue
            try:
                said, status = _of_round(trial, ask, given, outcome, trial.candidate), Status.MISMATCH
            except Raised as error:
                said, status = problem_of(error).seen, problem_of(error).status
            asked = True
            if said:
                words = f"Where torch.get_default_dtype() is {dtype}" + ", without a bias" * (outcome is not usual)
                return [Question(key, ASKED[key], Answer.FAILED if facts and facts.as_layer and layer else Answer.WARNED,
                                 f"No. {words}: {said}", OF_DAILY_USE[key], str(status))]
    return [Question(key, ASKED[key], Answer.PASSED, "Yes.")] if asked else []


def _of_round(trial: TrialRun, ask: partial[AsTrained], given: list[torch.Tensor], outcome: Outcome, party: Party) -> str:
    """What is wrong with the results of a round of `AsTrained`."""
    facts, (output, *grads) = party.ask(ask, trial.how(outcome.case), given, outcome.state)
    there = zip(facts.choices[0], grads, strict=True)
    return magnitudes.wrong(trial, outcome, {"output": output, **{trial.plain(n): trial.tangent(n, g) for n, g in there}})


def _after_bfloat16(trial: TrialRun, usual: Outcome) -> str:
    """What is wrong in float32 if the first call of a new module, at a size that no call had, was in bfloat16."""
    seed = SEED_OF_SIZES + 2
    try:
        outcome = at_a_new_size(trial, usual, _FIRST_IN_BFLOAT16, seed)
        return OfNetworks(trial, usual).called_first(outcome, _FIRST_IN_BFLOAT16, seed) if outcome else ""
    except (Raised, Ended) as error:
        return f"After a first call in bfloat16: {problem_of(error).seen}"


def later_bias(trial: TrialRun, small: Case) -> list[Question]:
    """Whether a layer without a bias uses one that it gets later, as when a batch norm is fused into it. Only a warning. The
    question is left out if the file has no such attribute."""
    key, layer = "later_bias", small.setting.layer
    other = changed(small, {"bias": not layer.bias}) if "bias" in trial.parameters else None
    if other is None or not trial.loads_state:
        return []
    biased, plain = (small, other) if layer.bias else (other, small)
    with suppress(NotForReference, Raised, Ended):
        outcome = trial.run(biased)
        state = dict(zip(*outcome.state, strict=True))
        name = next((n for n in state if n.rpartition(".")[2] == "bias"), "")
        if not name or outcome.problems:
            return []
        ask = partial(AsTrained, inputs=1, gradients=tuple(outcome.names), parameters=(name,), rounds=("biased",))
        given = [*outcome.inputs, outcome.grad_output, state.pop(name)]
        facts, results = trial.candidate.ask(ask, trial.how(plain), given, ([*state], [*state.values()]))
        found = split(("biased",), facts, results)
        got = {n if n == "output" else trial.plain(n): v for n, v in (found or {}).get("biased", {}).items()}
        said = magnitudes.wrong(trial, outcome, got) if got else OTHER_COUNT
        return [Question(key, ASKED[key], Answer.WARNED, f"No. With a bias that was set later: {said}", OF_DAILY_USE[key],
                         str(Status.MISMATCH)) if said else Question(key, ASKED[key], Answer.PASSED, "Yes.")]
    return []


def refuses(trial: TrialRun, small: Case, state: State) -> list[Question]:
    """Whether a layer raises an exception for an input with twice as many channels, as PyTorch does. Only a warning: right code
    does not give it such an input. Asked last, because the process of the file may end."""
    key, values = "refuses", [torch.cat([x, x], 1) for x in trial.inputs(small)]
    how = trial.how(small)
    try:
        facts, _ = trial.candidate.call(how, values, state=state if trial.loads_state else None)
        said = f"It returns a {facts.type}"
    except Raised as error:
        if LEAVES_GRAD_MODE in error.trace:
            return [Question(key, ASKED[key], Answer.WARNED, "Yes, but it leaves torch.is_grad_enabled() changed: a program "
                             "that goes on after the exception trains without gradients, for example.",
                             "Change the grad mode in a with statement.", str(Status.MISMATCH))]
        if not of_cuda(error):
            return [Question(key, ASKED[key], Answer.PASSED, "Yes.")]
        said = f"It reports {error.sentence}"
    except Ended as error:
        said = error.headline.rstrip(".")
    seen = f"No. {said} for an input with {values[0].shape[1]} channels. PyTorch raises an exception."
    return [Question(key, ASKED[key], Answer.WARNED, seen, OF_DAILY_USE[key], str(Status.MISMATCH))]


def of_other_inputs(trial: TrialRun, given: Case) -> list[Question]:
    """Calls without arguments of forward that may be left out, where the reference takes them. Then one sample of an input
    beside a batch of the others, where the reference repeats it."""
    return [*_without_options(trial, given), *_beside_a_batch(trial, given)]


def _without_options(trial: TrialRun, given: Case) -> list[Question]:
    theirs, ours, numbers, right = trial.reference.facts, trial.candidate.facts, trial.numbers, list[str]()
    there = ast.literal_eval(numbers)
    asked, count = partial(Question, "left_out", "Right without optional arguments?"), len(trial.given) + len(there)
    for kept in range(max(1, theirs.required), count) if theirs and ours and theirs.options else ():
        those = theirs.options[kept - theirs.required:count - theirs.required]
        few = replace(given, shapes=given.shapes[:kept - sum(p < kept for p in there)])
        trial.numbers = repr({p: v for p, v in there.items() if p < kept})
        try:
            outcome = trial.run(few, values=trial.inputs(given)[:len(few.shapes)])
        except (NotForReference, Ended):
            continue
        finally:
            trial.numbers = numbers
        own, pairs = dict(zip(ours.options, ours.shown, strict=False)), zip(theirs.options, theirs.shown, strict=True)
        right.append(f"without {' and '.join(those)}")
        if problem := outcome.problem(*OF_A_CALL):
            values = (f" The default value of {n} is {own[n]}, in the reference {v}." for n, v in pairs
                      if n in those and own.get(n, v) != v)
            return [asked(Answer.FAILED, f"No. {right[-1].capitalize()}: {problem.seen}{''.join(values)}",
                          "Give forward the default values of the reference's forward.", str(problem.status))]
    return [asked(Answer.PASSED, f"Yes: {', '.join(right)}.")] if right else []


def _beside_a_batch(trial: TrialRun, given: Case) -> list[Question]:
    """A warning for wrong values; a note for an exception. Not asked of losses, nor of operators without parameters."""
    batch, right = given.shapes[0][0] if given.shapes and given.shapes[0] else 0, False
    places = [i for i, x in enumerate(trial.given) if x.dim() > 1 and len(x) == batch and trial.drawn.structures[i] is None and
              (x.is_floating_point() or x.dtype is torch.bool)]
    asked = partial(Question, "beside", "Right for one sample beside a batch?")
    for place in places[:_TRIES] if batch > 1 < len(places) else ():
        values = trial.inputs(given)
        values[place] = values[place][:1].clone()
        try:
            outcome = trial.run(replace(given, shapes=tuple(tuple(x.shape) for x in values)), values=values)
        except (NotForReference, Ended):
            continue
        if outcome.expected["output"].shape[:1] != (batch,) or all(n.startswith("input ") for n in outcome.names):
            continue
        right = True
        if problem := outcome.problem(*OF_A_CALL):
            raised = problem.about == "call" and problem.status is Status.LAUNCH_FAILED
            return [asked(Answer.NOTE if raised else Answer.WARNED, f"No. With one sample of input {place} beside {batch} of "
                          f"the others: {problem.seen} The reference repeats the sample.",
                          "Repeat the sample as PyTorch's operators do, or raise an exception.", str(problem.status))]
    return [asked(Answer.PASSED, "Yes.")] if right else []
