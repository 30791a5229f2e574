"""What only a GPU can answer: the current stream, waiting, memory, torch.compile, CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from ....core import numbers
from ....core.answers import Answer, Question
from ....core.trial import Status
from ..foreign.process import Ended, Raised
from ..foreign.requests import AskMemory, AskWaits, Compile, Graph, OnGpu, SideStream
from ..trialrun import Outcome, TrialRun
from .cases import Case

R = TypeVar("R")
_CLOSE = 1e-2  # tolerance of these questions, which test the stream and the order, not the accuracy


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
