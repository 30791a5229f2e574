"""Runs one case with the reference and with the candidate, and compares the candidate's results with the float64 truth."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from math import prod

import torch

from ...core import numbers
from ...core.precision import precision_of
from ...core.trial import DEFAULT_ADVICE, Errors, Status, advice_for
from ...core.typed import keys_of
from ..kernel import findings
from ..kernel.inputs import reduction_length, shapes
from ..kernel.validate import HALF, Comparison, allowed_rel_l2, distance, norm_apart
from ..truth import FEW, norm_of_random_sums
from .foreign.process import Ended, Raised
from .foreign.replies import Default, NoTensor, Output
from .party import Construction, Party
from .questions import drawn
from .questions.cases import Case, Setting, positional
from .questions.drawn import Drawn, fill, of_rectifier
from .text.advice import advice_for_call, status_of

State = tuple[Sequence[str], list[torch.Tensor]]
Called = tuple[Output | NoTensor, list[torch.Tensor]]
_GENERIC_SUM = 4096
# If PyTorch's own error is more than `_NOISE` times the norm of the truth, the truth counts as zero. Then an error of up to
# `_OF_NOISE` times PyTorch's error passes.
_NOISE, _OF_NOISE = 1e3, 30.0
_MOST = 0.5  # the largest relative L2 error that passes, even if PyTorch itself is inexact. All zeros have an error of 1
_OF_LONG = 16.0  # the tolerance of gradients of long rows is multiplied by this, because sums of many terms cancel there
_FRESH = ("Write each element of the result: round the grid size up, and store zeros where nothing is summed. New memory, of "
          "torch.empty() for example, holds NaN in this check.")
_ADVICE_FOR_ANY = {
    Status.MISMATCH: "Compare with the reference at the worst index.", Status.WRONG_SHAPE: "Return the reference's shape.",
    Status.NON_FINITE: "Look for a division by 0, an overflow, or memory read before it is written."}


@dataclass(frozen=True)
class Problem:
    """What went wrong. `about`: call, kind, values, gradients, gradient_values, inputs."""

    about: str
    status: Status
    seen: str
    advice: str = ""
    log: str = ""


@dataclass(frozen=True)
class ResultErrors(Errors):
    """`own`: PyTorch's relative L2 error. `least_norm`: what errors are relative to where the truth is smaller."""

    own: float = 0.0
    least_norm: float = 0.0


@dataclass
class Outcome:
    """Everything one case showed; the first problem of each kind. `least_rms`: the scale of errors of a gradient whose own
    values cancel. `not_finite`: gradients of the reference with NaN or infinity, which are not compared. `names`: the tensors
    whose gradients are taken. `factors`: powers of two by which results are divided before they are compared. `own`:
    PyTorch's results in this dtype on this device."""

    case: Case
    problems: list[Problem] = field(default_factory=list)
    facts: Output | NoTensor | None = None
    got: dict[str, torch.Tensor] = field(default_factory=dict)
    expected: dict[str, torch.Tensor] = field(default_factory=dict)
    inputs: list[torch.Tensor] = field(default_factory=list)
    state: State | None = None
    errors: dict[str, ResultErrors] = field(default_factory=dict)
    least_rms: dict[str, float] = field(default_factory=dict)
    not_finite: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    grad_output: torch.Tensor | None = None
    factors: dict[str, torch.Tensor] = field(default_factory=dict)
    own: dict[str, torch.Tensor] = field(default_factory=dict)

    def problem(self, *about: str) -> Problem | None:
        return next((p for p in self.problems if not about or p.about in about), None)

    def distance(self, name: str) -> str:
        """A sentence with the distance of a result from float64; "" if it was not compared."""
        if (e := self.errors.get(name)) is None:
            return ""
        return f"{name}: {numbers.error(e.rel_l2)} from float64, {numbers.error(e.allowed)} allowed."


class NotForReference(Exception):
    """The reference itself does not accept the case."""


class NotDrawn(NotForReference):
    """The inputs that get_inputs() draws cannot be cut to that size."""


class TrialRun:
    """Reference and candidate under one device and one secret seed. `home`: where the judge's tensors are."""

    def __init__(self, reference: Party, candidate: Party, *, device: str, dtype: str, seed: int, home: str = "cpu") -> None:
        self.reference, self.candidate, self.device, self.dtype = reference, candidate, device, dtype
        self.generator = torch.Generator(home).manual_seed(seed)
        self._shapes: dict[tuple[Setting, tuple[tuple[int, ...], ...]], tuple[int, ...]] = {}   # of outputs
        self.given: list[torch.Tensor] = []
        self.drawn: Drawn | None = None   # of anything but one transposed convolution
        self.attribute, self.takes_size, self.draws = "", False, 0   # `draws`: see `requests.Make`
        self.loads_state = True       # else both draw under the same seed
        self.numbers = "{}"               # inputs that are no tensors; see `requests.Make`
        self.parameters: list[str] = []   # of the reference's constructor
        self.defaults: dict[str, Default] = {}   # of those parameters whose defaults are known
        self.words: dict[str, tuple[str, ...]] = {}   # what the reference's text compares them with
        self.convolves, self.seen = False, set[int]()   # whether PyTorch does, in a layer; sizes of inputs and outputs so far
        self.explained: Callable[[TrialRun, Outcome], bool] = lambda trial, outcome: False  # see `magnitudes`
        self.declared = ""       # the precision that the file declares for float32
        self.of_float32 = "ieee" if device == "cpu" else "tf32"  # what PyTorch's default allows: convolutions alone, on a GPU

    def how(self, case: Case, *, dtype: str | None = None, seed: int = 42) -> Construction:
        texts, options = positional(case.setting, self.parameters, self.defaults).texts, repr(dict(case.options))
        return Construction(*texts, seed, self.dtype if dtype is None else dtype, self.numbers, options, self.draws)

    def inputs(self, case: Case) -> list[torch.Tensor]:
        """For a layer numbers that the judge draws; else what get_inputs() draws, cut to the case. Raises `NotForReference` if
        the cut inputs would not be of the kind that the reference is made for."""
        if self.drawn is None:
            return fill(case, self.given, self.generator)
        if why := self.drawn.why_not(case.shapes):
            raise NotDrawn(why)
        try:
            return self.drawn.inputs(case.shapes)
        except Raised as error:
            raise NotForReference(error.sentence) from error

    def run(self, case: Case, *, gradients: bool = True, values: list[torch.Tensor] | None = None,
            state: State | None = None, least_rms: dict[str, float] | None = None, at_once: bool = False) -> Outcome:
        """An error of the candidate becomes a problem of the outcome. An error of the reference raises `NotForReference` or
        `Ended`. `values`, `state`: inputs and parameters to use instead of new ones. `at_once`: the candidate is called, and
        builds what it has to build, while the reference computes."""
        with ThreadPoolExecutor(1) as pool:  # whatever happens, at its end the candidate has answered
            return self._run(Outcome(case, least_rms=least_rms or {}), values, state, gradients=gradients,
                             pool=pool if at_once else None)

    def _run(self, outcome: Outcome, values: list[torch.Tensor] | None, state: State | None, *, gradients: bool,
             pool: ThreadPoolExecutor | None) -> Outcome:
        case = outcome.case
        inputs = outcome.inputs = [v.to(self.generator.device) for v in values] if values else self.inputs(case)
        try:
            facts, drawn = self.reference.make(self.how(case))
            state = outcome.state = state or (facts.names, self._state(case, facts.names, drawn))
            names = outcome.names = [*(f"input {i}" for i, x in enumerate(inputs) if self._differentiable(i, x)),
                                     *facts.parameters]
            grad_output = None
            if gradients and (shape := self._output_shape(case, inputs, state)) is not None:
                grad_output = outcome.grad_output = torch.ones(
                    shape, dtype=getattr(torch, self.dtype), device=self.generator.device) if case.expanded else \
                    fill(replace(case, shapes=(shape,), dtypes=(self.dtype,)), [], self.generator)[0]
                if not case.expanded:
                    grad_output = outcome.grad_output = of_rectifier(case, grad_output, self.generator)
            early = pool.submit(self._called, outcome, _sent(outcome)) if pool else None
            wide_facts, truth = self.reference.call(
                self.how(case, dtype="float64"), inputs, state=state, gradients=names, wide=True, expanded=case.expanded,
                grad_output=_sent(outcome))
            outcome.own = {} if case.integers else self.own(outcome)  # it may not take inputs in that memory format
        except Raised as error:
            raise NotForReference(error.sentence) from error
        self.seen.update(*case.shapes, *(y.shape for y in truth[:1]))
        if values is None and truth and grad_output is not None and truth[0].shape != grad_output.shape:
            self._shapes.pop((case.setting, case.shapes), None)  # the shape depends on the values
            _ended(early)
            return self._run(Outcome(case, least_rms=outcome.least_rms), inputs, state, gradients=gradients, pool=None)
        if not truth:
            raise NotForReference(f"it returns a {wide_facts.type}, not one tensor")
        if not wide_facts.requires_grad:
            _ended(early)
            outcome.grad_output = early = None  # the reference has no gradients: none are asked for
        outcome.expected = self.named(wide_facts, truth)
        if not bool(truth[0].isfinite().all()):  # NaN is never right: its identical copy would be wrong
            raise NotForReference("its output is not finite on inputs that get_inputs() draws; change get_inputs")
        outcome.not_finite = [n for n, v in outcome.expected.items() if not bool(v.isfinite().all())]
        for name in outcome.not_finite:
            del outcome.expected[name]
        self.judge(outcome, early)
        if outcome.problems and self.explained(self, outcome):
            outcome.problems.clear()
        return outcome

    def own(self, outcome: Outcome) -> dict[str, torch.Tensor]:
        """PyTorch's own results in this dtype on this device, which show its accuracy."""
        facts, results = self.reference.call(
            self.how(outcome.case), outcome.inputs, state=outcome.state, gradients=outcome.names, grad_output=_sent(outcome),
            expanded=outcome.case.expanded, layout=outcome.case.layout)
        return self.named(facts, results, outcome.factors)

    def _output_shape(self, case: Case, inputs: list[torch.Tensor], state: State) -> tuple[int, ...] | None:
        """Known for a transposed convolution; of anything else the reference is asked, once for equal shapes. None: it gives
        whole numbers, which have no gradient."""
        if case.workload is not None:
            return case.workload.output_shape
        if (there := self._shapes.get((case.setting, case.shapes))) is not None:
            return there
        facts, results = self.reference.call(self.how(case, dtype="float64"), inputs, state=state, wide=True)
        if facts.type != "Tensor":
            raise NotForReference(f"it returns a {facts.type}, not one tensor")
        if not results[0].is_floating_point():
            return None
        self._shapes[case.setting, case.shapes] = tuple(results[0].shape)
        return tuple(results[0].shape)

    def judge(self, outcome: Outcome, early: Future[Called] | None = None) -> None:
        """Calls the candidate with the inputs of the outcome and compares its results with the expected ones. If only gradients
        are wrong, errors that a jump of a derivative explains are left out (a transposed convolution has no jumps). `early`:
        that call, if it has begun."""
        names, grad_output = outcome.names, outcome.grad_output
        try:
            facts, results = early.result() if early else self._called(outcome, _sent(outcome))
        except (Raised, Ended) as error:
            outcome.problems.append(problem_of(error))
            return
        outcome.facts = facts
        if problem := self._kind(outcome):
            outcome.problems.append(problem)
            return
        after = results[1:1 + len(outcome.inputs)]
        outcome.got = self.named(facts, [results[0], *results[1 + len(outcome.inputs):]], outcome.factors)
        for place, (x, now) in enumerate(zip(outcome.inputs, after, strict=True)):
            count = int((_bits(x) != _bits(now)).sum())
            if count:
                name = "x" if len(after) == 1 else f"input {place}"
                outcome.problems.append(Problem("inputs", Status.INPUT_MODIFIED, f"The module changed "
                                                f"{numbers.count(count)} values of {name}.",
                                                "Write the results to new tensors, not into the inputs."))
        self._compare(outcome, "output", "values")
        if grad_output is None:
            return
        if not facts.requires_grad:
            outcome.problems.append(Problem(
                "gradients", Status.NO_GRADIENT, "The output requires no grad: there is no backward to check.",
                "Remove detach() and no_grad(), or wrap the call in a torch.autograd.Function with a backward."))
            return
        missing = [self.plain(n) for n in names if n not in facts.gradients and self.plain(n)
                   in outcome.expected]
        if missing:
            outcome.problems.append(Problem("gradients", Status.NO_GRADIENT, f"Autograd gives no {', '.join(missing)}.",
                                            "Return that gradient from backward." if self.loads_state else
                                            "Keep the reference's parameter names."))
        self._judge_gradients(outcome)

    def _called(self, outcome: Outcome, grad_output: torch.Tensor | None) -> Called:
        """The results of the candidate."""
        case = outcome.case
        return self.candidate.call(
            self.how(case), outcome.inputs, state=outcome.state if self.loads_state else None, layout=case.layout,
            gradients=outcome.names, poison=True, echo=True, expanded=case.expanded, grad_output=grad_output)

    def compare(self, outcome: Outcome) -> None:
        """Compares `got` with `expected` again, without a call. Without a grad_output nothing of it is a gradient."""
        for name in outcome.got:
            if name == "output" or outcome.grad_output is None:
                self._compare(outcome, name, "values")
        if outcome.grad_output is not None:
            self._judge_gradients(outcome)

    def _judge_gradients(self, outcome: Outcome) -> None:
        """A jump may also put PyTorch's own gradients off. That part of their error does not widen the tolerance."""
        alone = outcome.case.setting.layer is None  # of one transposed convolution no derivative jumps
        tied = outcome.case.tied   # among equal values a jump would explain anything
        own_is_off = alone and not tied and any(distance(outcome.own[n].double(), v)[0] > self._allowed(outcome.case, n)[1]
                                                for n, v in outcome.expected.items() if n != "output" and n in outcome.own)
        reached = self._reached(outcome) if own_is_off else {}
        self._compare_gradients(outcome, reached)
        if alone and not reached and _gradients_alone(outcome) and not self._right_as_sums(outcome) and not tied and (
                reached := self._reached(outcome)):
            outcome.problems.clear()
            self._compare_gradients(outcome, reached)

    def _right_as_sums(self, outcome: Outcome) -> bool:
        """Whether gradients are right if equal values of the inputs may share theirs in any way, as equal maxima do."""
        parts = drawn.pooled({self.plain(n): outcome.inputs[int(n[6:])] for n in outcome.names if n.startswith("input ")},
                             [outcome.got, outcome.expected, outcome.own])
        if not parts:
            return False
        got, expected, own = parts
        about = replace(outcome, problems=[], got=got, expected=expected, own=own)
        self._compare_gradients(about, {})
        if not about.problems:
            outcome.problems.clear()
        return not about.problems

    def _reached(self, outcome: Outcome) -> dict[str, drawn.Reach]:
        """The reach of each gradient; empty if the reference cannot be asked."""
        if (output := outcome.errors.get("output")) is None:  # an empty one
            return {}
        names, values = outcome.state
        try:
            facts, reached = drawn.reach(
                self.reference, self.how(outcome.case, dtype="float64"), [wide(x) for x in outcome.inputs],
                (names, [wide(v) for v in values]), outcome.names, outcome.grad_output.double(),
                drawn.typical(output.own, output.rel_l2, self._allowed(outcome.case, "output")[1]), self.generator)
        except (Raised, Ended):
            return {}
        parts = [self.named(facts, [outcome.expected["output"], *part], outcome.factors)
                 for part in ([r.farthest for r in reached], [r.norm for r in reached])]
        return {n: drawn.Reach(parts[0][n], parts[1][n]) for n in parts[0] if n != "output"}

    def _compare_gradients(self, outcome: Outcome, reached: dict[str, drawn.Reach]) -> None:
        for name in outcome.expected:
            if name != "output" and name in outcome.got:
                self._compare(outcome, name, "gradient_values", reached.get(name))

    def _kind(self, outcome: Outcome) -> Problem | None:
        facts, expected = outcome.facts, outcome.expected["output"]
        if facts.type != "Tensor":
            nothing = facts.type == "NoneType"
            what = {"NoneType": "None", "ndarray": "a numpy array"}.get(facts.type, f"a {facts.type}")
            return Problem("kind", Status.WRONG_SHAPE, f"It returns {what}, the reference returns a tensor.",
                           "Write return before the output in forward." if nothing else "Return the output tensor alone.")
        if facts.shape != tuple(expected.shape):
            reshaped = prod(facts.shape) == expected.numel()
            return Problem("kind", Status.WRONG_SHAPE, f"Output is {numbers.shape(facts.shape)}, expected "
                           f"{numbers.shape(expected.shape)}.", f"Return it as {numbers.shape(expected.shape)}: it has as many "
                           "elements." if reshaped else _advice(Status.WRONG_SHAPE, outcome.case))
        if problem := self._dtype(outcome, facts.dtype):
            return problem
        if facts.device.split(":")[0] == self.device.split(":")[0]:
            return None
        text = f"Output is on {facts.device}, expected {self.device}."
        return Problem("kind", Status.WRONG_DEVICE, text, DEFAULT_ADVICE[Status.WRONG_DEVICE])

    def _dtype(self, outcome: Outcome, dtype: str) -> Problem | None:
        expected = outcome.expected["output"]
        wanted = self.dtype if expected.is_floating_point() else str(expected.dtype).removeprefix("torch.")
        text = f"Output is {dtype}, expected {wanted}."
        return None if dtype == wanted else Problem("kind", Status.WRONG_DTYPE, text, DEFAULT_ADVICE[Status.WRONG_DTYPE])

    def _compare(self, outcome: Outcome, name: str, about: str, reached: drawn.Reach | None = None) -> None:
        got, expected, own = outcome.got[name], outcome.expected[name].double(), outcome.own.get(name)
        if tuple(got.shape) != tuple(expected.shape):
            outcome.problems.append(Problem(about, Status.WRONG_SHAPE, f"{name} is {numbers.shape(got.shape)}, expected "
                                            f"{numbers.shape(expected.shape)}."))
            return
        if name == "output" and not outcome.factors and (other := self._dtype(outcome, str(got.dtype).removeprefix("torch."))):
            outcome.problems.append(other)
            return
        if not got.numel():
            return
        whole = not got.is_floating_point()
        got, expected = (got.double() if whole else got).to(self.device), expected.to(self.device)
        own = None if own is None else own.to(self.device)
        precision, allowed = self._allowed(outcome.case, name)
        least_norm = outcome.least_rms.get(name, 0.0) * expected.numel()**0.5
        if not outcome.factors and expected.numel() <= FEW and (tensors := self._of_layer(outcome, name)):
            least_norm = max(least_norm, norm_of_random_sums(outcome.case.workload, name, tensors))
        if reached is not None:
            reached = drawn.Reach(reached.farthest.to(self.device), reached.norm.to(self.device))
            usual = max(float(expected.norm()), least_norm) / expected.numel()**0.5
            limit = allowed * (expected.abs() + usual)
            got = reached.taken_out(got, expected, limit).to(got.dtype)
            own = None if own is None else reached.taken_out(own, expected, limit)
        own_off = norm_apart(own, expected) if own is not None else 0.0
        norm = max(float(expected.norm()), least_norm)
        if own_off > _NOISE * norm:  # the exact value is zero: PyTorch's own rounding noise is the scale
            finer = self.allowed(outcome.case, name, precision_of(self.dtype))  # the noise of PyTorch's own precision
            least_norm = norm = _OF_NOISE * own_off / finer
        own_off /= max(norm, 1e-300)
        allowed = max(allowed, min(2 * own_off, _MOST))
        rms = max(float(expected.norm()), least_norm) / expected.numel()**0.5
        integers = outcome.case.integers and self.loads_state  # parameters that are drawn are no integers
        exact = whole or integers and self.dtype in ("float32", "float64") and float(
            expected.abs().max()) < HALF.get(precision, 2.0**23)
        values = got.round() if exact else got  # a term too many or too few is at least 1 here

        def compared(values: torch.Tensor) -> Comparison:
            made = Comparison(tuple(got.shape), allowed=allowed, rms=rms, exact=exact, poisoned=False, least_norm=least_norm)
            made.add_whole(values, expected)
            return made

        comparison = compared(values)
        if comparison.failed and own is not None and not exact:  # a value equal to PyTorch's is right, even if float64 differs
            comparison = compared(torch.where(values == own.to(values.dtype), expected.to(values.dtype), values))
        outcome.errors[name] = ResultErrors(**keys_of(comparison.errors()), own=own_off, least_norm=least_norm)
        if comparison.failed:
            found = findings.wrong_result(name, comparison, kind="", precision=precision)
            rounding = found.status is Status.MISMATCH and found.advice  # the one mismatch that it has advice for
            advice = "The error is small: if the formula is right, sum in a wider type." if rounding else \
                _FRESH if found.status is Status.NON_FINITE and _as_allocated(got) else \
                found.advice or _advice(found.status, outcome.case)
            outcome.problems.append(Problem(about, found.status, found.headline, advice))

    def _of_layer(self, outcome: Outcome, name: str) -> dict[str, torch.Tensor]:
        """The tensors of one transposed convolution; empty for any other module."""
        if (workload := outcome.case.workload) is None or name not in (sizes := shapes(workload)):
            return {}
        state = {n.rpartition(".")[2]: v for n, v in zip(*outcome.state, strict=True)} if outcome.state else {}
        found = {"input": outcome.inputs[0], **state, **({} if (gy := outcome.grad_output) is None else {"grad_output": gy})}
        return found if all(tuple(t.shape) == sizes.get(n) for n, t in found.items()) else {}

    def _allowed(self, case: Case, name: str) -> tuple[str, float]:
        precision = precision_of(self.dtype, of_float32=self.of_float32)
        return precision, self.allowed(case, name, precision)

    def allowed(self, case: Case, name: str, precision: str) -> float:
        """Relative L2 of a result in that precision, by the length of its sums where that is known."""
        workload = case.workload
        known = name in ("output", "grad_input", "grad_weight", "grad_bias")
        length = reduction_length(workload, name) if workload and known else \
            max(_GENERIC_SUM, *case.shapes[0]) if case.far else _GENERIC_SUM
        return self.limit(precision, length) * case.more(precision) * (_OF_LONG if case.long and name != "output" else 1.0)

    def limit(self, precision: str, length: int) -> float:
        return allowed_rel_l2(precision, max(1, length), from_float32=self.dtype == "float32")

    def _state(self, case: Case, names: Sequence[str], drawn: list[torch.Tensor]) -> list[torch.Tensor]:
        """For a transposed convolution values of our own; elsewhere what the reference drew."""
        if case.setting.layer is None or not self.loads_state:
            return drawn
        return [fill(replace(case, shapes=(tuple(v.shape),), dtypes=(self.dtype,)), [], self.generator)[0] *
                (1.0 if case.integers else _scale(v)) for v in drawn]

    def named(self, facts: Output, results: list[torch.Tensor], factors: dict[str, torch.Tensor] | None = None
              ) -> dict[str, torch.Tensor]:
        """The results of a call by name: the output and the gradients."""
        there = [n for n in facts.gradients if n]
        found = {"output": results[0], **{self.plain(n): self.tangent(n, g) for n, g in zip(there, results[1:], strict=True)}}
        return {n: v / factors[n] if factors else v for n, v in found.items()}

    def tangent(self, name: str, grad: torch.Tensor) -> torch.Tensor:
        """The part of a gradient that is compared: some inputs may change only so that they stay what get_inputs() draws."""
        return self.drawn.tangent(int(name[6:]), grad) if self.drawn and name.startswith("input ") else grad

    def _differentiable(self, place: int, x: torch.Tensor) -> bool:
        return self.drawn.differentiable(place) if self.drawn else x.is_floating_point()

    def plain(self, name: str) -> str:
        prefix = f"{self.attribute}." if self.attribute else ""
        return {"input 0": "grad_input", f"{prefix}weight": "grad_weight", f"{prefix}bias": "grad_bias"}.get(
            name, f"gradient of {name}")


def _advice(status: Status, case: Case) -> str:
    general = _ADVICE_FOR_ANY.get(status, DEFAULT_ADVICE[status])
    return advice_for(status, layer.stride) if (layer := case.setting.layer) else general


def problem_of(error: Raised | Ended) -> Problem:
    """Of a call."""
    if isinstance(error, Raised):
        who = "Its backward" if error.where == "backward" else "The module"
        return Problem("call", status_of(error), f"{who} raised {error.sentence}.", advice_for_call(error), error.trace)
    return Problem("call", Status(error.status), error.headline, error.advice, error.log)


def new_seed() -> int:
    """A random seed that foreign code cannot know."""
    return secrets.randbits(31)


def _ended(early: Future[Called] | None) -> None:
    """Wait for a call whose answer is not wanted: until then the candidate cannot be asked again."""
    if early:
        early.exception()


def _sent(outcome: Outcome) -> torch.Tensor | None:
    """The grad_output as it is sent: of an expanded one the one value."""
    there = outcome.grad_output
    return there.new_ones(()) if there is not None and outcome.case.expanded else there


def wide(x: torch.Tensor) -> torch.Tensor:
    """Floats as float64."""
    return x.double() if x.is_floating_point() else x


def _as_allocated(x: torch.Tensor) -> bool:
    """Whether all values that are not finite have the bit pattern of new memory (filled by `calls.call`)."""
    odd = x[~x.isfinite()]
    return same_bits(odd, torch.full_like(odd, torch.nan))


def _scale(v: torch.Tensor) -> float:
    return 2.0 ** -round((max(1, v[0].numel() if v.dim() else 1)).bit_length() / 2)


def _bits(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous().reshape(-1)
    return x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(x.itemsize, torch.int64))


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.shape, a.dtype) == (b.shape, b.dtype) and torch.equal(_bits(a), _bits(b))


def _gradients_alone(outcome: Outcome) -> bool:
    """Whether all that is wrong is the values of gradients."""
    return {(p.about, p.status) for p in outcome.problems} == {("gradient_values", Status.MISMATCH)}
