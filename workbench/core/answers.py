"""The report of a check of a foreign file: questions and answers. Terminal, JSON and page show the same report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import groupby
from typing import Any

from .check_parts import DirectionTimes, KernelBench, KernelBenchValues, Log, LooksLike, Phase, SmallestCase
from .confinement import Confinement
from .trial_parts import Environment

SCHEMA = "kernel-workbench/check/1"


class Answer(StrEnum):
    """The members are in the order in which a report shows them."""

    FAILED = "FAILED"
    SKIPPED = "SKIPPED"
    WARNED = "WARNED"
    PASSED = "PASSED"
    NOTE = "NOTE"


@dataclass(frozen=True)
class Question:
    """One question with its answer and what was seen. `status`: for a failure, its `core.trial.Status`. `seconds`: from the
    start of the check until the answer was known."""

    key: str
    question: str
    answer: Answer
    seen: str
    advice: str = ""
    status: str = ""
    detail: Log = Log()
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "answer": str(self.answer), "detail": _there(self.detail)}

    def as_warning(self) -> Question:
        """The same, with a warning in place of a failure."""
        return replace(self, answer=Answer.WARNED) if self.answer is Answer.FAILED else self


FEW_PARTS = 4   # so many parts that did not run are named where there is little room
# What a check does not test.
NOT_ASKED = ("other dtypes than the given one, bfloat16 and float64", "torch.func, tracing and forward-mode derivatives",
              "infinite and denormal inputs", "autocast to float16, and float64 under autocast",
              "tensors of more than 2^31 values",
              "memory that C++ or CUDA code never frees", "how often memory is allocated",
              "another rounding mode of the processor",
              "several devices, and wrappers such as DataParallel", "what it prints, and the types of its errors",
              "sizes and arguments far above the given ones",
              "inputs that the reference refuses, except too many channels",
              "numbers among the inputs that are given as tensors",
              "attributes that are set later, and parameters of other shapes", "values of methods other than forward",
              "forward() called without the module's hooks",
              "words for the constructor that the reference's text does not compare",
              "arguments that the reference's constructor does not have", "outputs of many calls that are all in use",
              "hundreds of calls", "inputs whose sign is only noted (x.conj().imag)", "parameters far larger than drawn ones",
              "parametrizations of other modules than a layer", "hooks of the part that owns the weight",
              "derivatives of values exactly at a kink", "whole numbers above 2^31",
              "subclasses of tensors", "calls of a subclass, and calls in a forked process",
              "construction on the meta device", "memory that parameters share",
              "how often the weight is read in a call", "another PYTHONHASHSEED", "python -O",
              "sizes that share an entry of a table of the file, if its text does not show it",
              "on the CPU, CUDA threads or blocks that change one value without an atomic or a memory fence",
              "on the CPU, what only a GPU refuses at a launch (too many registers)",
              "on the CPU, copies that do not wait (non_blocking), and how exact __sinf and the like are",
              "on the CPU, memory of the host that a kernel gets, and memory of a GPU that the host gets",
              "several streams at once",
              "warp functions with a mask of lanes that do not call them", "whether the file recognises a check")


@dataclass(frozen=True)
class CheckReport:
    """The report of one check. `smallest`: the smallest failing case. `mistake`: the known mistake that gives the same wrong
    values. `kernelbench`: KernelBench's verdicts, beside ours. `times`: module_ms, if everything was right. `speed`: the same
    as a sentence. `confined`: the sandbox. `size`: the size of a KernelBench preset; "full" is KernelBench's own.
    `declared`, `options`, `untimed`: see `replies.Checked`. `phases`: how long each part took. `stopped`: when and where a
    person ended the check; "" if it was not ended."""

    name: str
    reference: str
    device: str
    questions: tuple[Question, ...]
    smallest: SmallestCase | None = None
    mistake: LooksLike | None = None
    kernelbench: KernelBench | None = None
    times: dict[str, DirectionTimes] = field(default_factory=dict)
    speed: str = ""
    confined: Confinement = Confinement()
    seed: int = 0
    seconds: float = 0.0
    environment: Environment = field(default_factory=dict)
    command: str = ""
    size: str = ""
    phases: tuple[Phase, ...] = ()
    stopped: str = ""
    declared: str = ""
    options: tuple[str, ...] = ()
    untimed: dict[str, str] = field(default_factory=dict)
    schema: str = SCHEMA

    @property
    def ordered(self) -> list[Question]:
        """Failed first, then skipped, warned, passed, notes; each in the order asked."""
        order = list(Answer)
        return sorted(self.questions, key=lambda q: order.index(q.answer))

    @property
    def rows(self) -> list[list[Question]]:
        """`ordered`, as rows. Consecutive questions that were skipped for the same reason are one row."""
        def row(q: Question) -> tuple[str, str]:
            return (q.seen, q.advice) if q.answer is Answer.SKIPPED else (q.key, q.question)
        return [list(alike) for _, alike in groupby(self.ordered, key=row)]

    @property
    def failed(self) -> list[Question]:
        return [q for q in self.questions if q.answer is Answer.FAILED]

    @property
    def answered(self) -> list[Question]:
        return [q for q in self.questions if q.answer in (Answer.FAILED, Answer.WARNED, Answer.PASSED)]

    @property
    def ran(self) -> bool:
        """Whether values were compared. Without that, a check without a failure is not a pass."""
        values = self.question("values")
        return values is not None and values.answer in (Answer.PASSED, Answer.FAILED)

    @property
    def against(self) -> str:
        """`problem.py`, or `KernelBench #81 (small)`: a preset with the size that was judged."""
        return f"{self.reference} ({self.size})" if self.size else self.reference

    @property
    def badge(self) -> str:
        """`3 OF 11 FAILED`, `14 OF 14 PASSED`, `STOPPED`, or `NOT RUN`."""
        if self.failed:
            return f"{len(self.failed)} OF {len(self.answered)} FAILED"
        if self.stopped:
            return "STOPPED"
        if not self.ran:
            return "NOT RUN"
        good = sum(q.answer is Answer.PASSED for q in self.answered)
        return f"{good} OF {len(self.answered)} PASSED"

    @property
    def not_asked(self) -> tuple[str, ...]:
        """What the check did not test."""
        return (*(f"the argument {name} of forward, which get_inputs() does not give" for name in self.options), *NOT_ASKED)

    @property
    def warned(self) -> list[Question]:
        return [q for q in self.questions if q.answer is Answer.WARNED]

    @property
    def headline(self) -> str:
        """The sentence at the top of the report: what is wrong. If nothing is, also how many warnings there are."""
        if self.failed or self.stopped or not self.warned:
            return self._verdict
        count = len(self.warned)
        first = f"“{self.warned[0].question}”"
        return f"{self._verdict}, with {f'{count} warnings, the first at' if count > 1 else '1 warning at'} {first}"

    @property
    def _verdict(self) -> str:
        if self.stopped and not self.failed:
            count = len(self.answered)
            answers = f"{count} question{'s' if count > 1 else ''} answered, nothing wrong so far"
            return f"The check of {self.name} was stopped {self.stopped}: {answers if count else 'no question was answered'}"
        if not self.failed:
            if self.ran and self.declared:
                return (f"{self.name} is right in {self.declared}, which it declares, but not in the precision of "
                        f"{self.against}")
            if self.ran:
                return f"{self.name} matches {self.against} in all checks that ran"
            return f"{self.name} could not run on this machine; the other checks found nothing wrong"
        keys = {q.key for q in self.failed}
        words = [_short(q) for q in self.failed if q.key in _IN_SHORT
                 and not ("values" in keys and q.key.startswith("other_"))]  # they fail for the same reason
        words = words[:3] or ["fails"]
        stopped = f"; the check was stopped {self.stopped}" if self.stopped else ""
        return f"{self.name} {joined(words)}{stopped}"

    @property
    def evidence(self) -> str:
        """The line below the headline: the two most important facts."""
        facts = []
        if self.mistake and self.mistake.found:
            facts.append(f"Looks like: {self.mistake.found}.")
        explained = ("values", "other_sizes", "other_arguments") if facts else ()
        facts += [q.seen.removeprefix("No. ") for q in self.failed if q.key not in explained]
        if not self.failed and self.speed:
            facts = [f"module_ms: {self.speed}."]
        not_run = self.question("reached")
        if not self.failed and not_run and not_run.answer is Answer.NOTE and len(
                (not_run.detail.log or "").splitlines()) <= FEW_PARTS:
            facts.append(not_run.seen.removeprefix("No. "))
        if not facts:
            skipped = [q for q in self.questions if q.answer is Answer.SKIPPED]
            more = f" and {len(skipped) - 1} more" if len(skipped) > 1 else ""
            facts = [f"Not answered: \u201c{skipped[0].question}\u201d{more}. {skipped[0].seen}"] if skipped else []
        return " ".join(facts[:2])

    def question(self, key: str) -> Question | None:
        return next((q for q in self.questions if q.key == key), None)

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        data["questions"] = [q.to_json() for q in self.ordered]
        data["smallest"], data["mistake"] = _there(self.smallest), _there(self.mistake)
        found = self.kernelbench
        data["kernelbench"] = {**_there(found.values), "text": found.text} if found else {}
        for row in (row for times in data["times"].values() for row in times["baselines"]):
            if not row["held_back"]:
                del row["held_back"]
        return {**data, "badge": self.badge, "headline": self.headline, "evidence": self.evidence,
                "failed": len(self.failed), "not_asked": self.not_asked}


_DOES_NOT_RUN = ("WORKER_DIED", "RUN_TIMEOUT", "OUT_OF_MEMORY", "LAUNCH_FAILED", "KERNEL_FAULT")
_IN_SHORT = {
    "builds": "does not import and build", "constructs": "cannot be constructed",
    "state_dict": "does not take the reference's state_dict", "same_draw": "initialises its parameters differently",
    "kind": "returns the wrong shape, dtype or device", "values": "computes wrong outputs",
    "other_sizes": "is wrong at other sizes", "other_arguments": "is wrong with other constructor arguments",
    "noncontiguous": "is wrong for a non-contiguous input", "batch_one": "is wrong for batch 1",
    "no_grad": "is wrong under no_grad", "eval_mode": "is wrong after .eval()", "buffers": "changes its buffers differently",
    "numbers": "is wrong for other numbers among its inputs", "leading": "is wrong for one more leading dimension",
    "two_calls": "is wrong while two outputs are in use", "some_gradients": "is wrong when only some gradients are wanted",
    "parameters": "ignores changed parameters", "gradients": "has no gradient",
    "gradient_values": "computes wrong gradients", "stream": "ignores the current stream",
    "inputs": "changes its inputs", "same_bits": "gives different bits in each run", "times": "is wrong when timed",
    "judge": "stops the judge"}


def _there(part: Log | SmallestCase | LooksLike | KernelBenchValues | None) -> dict[str, Any]:
    """Its fields without those that are None."""
    return {k: v for k, v in asdict(part).items() if v is not None} if part else {}


def _short(question: Question) -> str:
    if question.key == "values" and question.status in _DOES_NOT_RUN:
        return "raises an error" if question.status == "LAUNCH_FAILED" else "does not finish"
    return _IN_SHORT[question.key]


def joined(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
