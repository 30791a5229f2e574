"""Checks a foreign ModelNew file and returns a `CheckReport`. The file runs in its own process, never in this one.

A check runs foreign code on this machine. The report says in which sandbox.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shlex
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...core import numbers
from ...core.answers import Answer, CheckReport, Question
from ...core.check_parts import DirectionTimes, Phase, SmallestCase
from ...core.command import PROGRAM
from ...core.confinement import Confinement
from ...core.env import cache_dir, environment
from ...core.errors import BadRequest
from ...core.layer import Workload
from ...core.orders import CheckOrder
from ...core.plain_text import plain
from ...core.presets import Preset, parse_preset, problem_of
from ...core.replies import Checked, Event
from ...core.trial import DEFAULT_ADVICE, Status
from ..exporting.export import constructor_arguments
from ..machine.background import Background
from ..machine.device_lock import held
from ..running.worker_process import WorkerDied, WorkerFailed, WorkerProcess, WorkerTimeout
from . import check_times

MOST_TEXT_BYTES = 5 << 20
MOST = {"memory_gib": 1 << 20, "call_s": 1_000_000, "build_s": 1_000_000}  # above them the operating system's timers overflow
# Numbers of the judges of this process. The first one starts a new interpreter; later ones are forked from a process with
# torch.
_judges = itertools.count()
_REFERENCE_DEFAULTS = {"stride": "1", "padding": "0", "output_padding": "0", "groups": "1", "bias": "False", "dilation": "1"}
_REFERENCE_INPUTS = '''

def get_inputs():
    return [torch.rand({shape}, dtype=torch.{dtype})]


def get_init_inputs():
    return {arguments}
'''


@dataclass(frozen=True)
class CheckRequest:
    """The request for a check. `text` defines `class_name`. `reference` is the text of a file, or the text that
    `workload_reference` makes for a layer. `size` is that of a preset: "full" (KernelBench's own), "medium" or "small"."""

    text: str
    reference: str
    device: str
    name: str = "model_new.py"
    reference_name: str = "the reference"
    size: str = ""
    class_name: str = "ModelNew"
    memory_gib: float = 16.0
    call_s: float = 60.0
    build_s: float = 300.0
    limit_s: float = 1800.0
    time: bool = True
    nvcc: bool = True
    effort: str = "normal"
    seed: int | None = None
    command: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        for name, text in (("candidate", self.text), ("reference", self.reference)):
            if not text.strip():
                raise BadRequest(f"The {name} is empty; give a Python file.", field=name)
            if len(text) > MOST_TEXT_BYTES:
                raise BadRequest(f"The {name} has {len(text)} characters; give at most {MOST_TEXT_BYTES}.", field=name)
        for name, most in MOST.items():
            if not 0 < getattr(self, name) <= most:  # false for NaN, too
                raise BadRequest(f"{name} is {getattr(self, name):g}; it must be above 0 and at most {most}.", field=name)
        if self.effort not in ("quick", "normal", "full"):
            raise BadRequest(f"effort {self.effort!r} is not known; choose quick, normal or full.", field="effort")


def workload_reference(workload: Workload) -> tuple[str, str]:
    """(text, name) of the reference for a layer or a preset. `size_of` returns the preset's size."""
    name = parse_preset(workload.preset)[0].label if workload.preset else f"nn.{workload.layer}"
    return _reference_text(workload, problem_of(workload)), name


def _reference_text(workload: Workload, preset: Preset | None = None) -> str:
    """The text of a reference in KernelBench's form (Model, get_inputs, get_init_inputs). The constructor is that of the
    preset, else that of nn.ConvTransposeNd. The text was written for this project; it is not KernelBench's."""
    kind = f"ConvTranspose{workload.layer.dims}d"
    if preset is None:
        body = f"class Model(nn.{kind}):\n    pass\n"
    else:
        signature = ", ".join(f"{n}={_REFERENCE_DEFAULTS[n]}" if n in _REFERENCE_DEFAULTS else n for n in preset.constructor)
        given = ", ".join(f"{n}={n}" for n in preset.constructor if n not in preset.ignored)
        body = (f"class Model(nn.Module):\n    def __init__(self, {signature}):\n        super().__init__()\n"
                f"        self.{preset.attribute} = nn.{kind}({given})\n\n"
                f"    def forward(self, x):\n        return self.{preset.attribute}(x)\n")
    inputs = _REFERENCE_INPUTS.format(shape=workload.input_shape, dtype=workload.dtype,
                                      arguments=constructor_arguments(workload.layer, preset))
    return f"import torch\nfrom torch import nn\n\n\n{body}{inputs}"


def size_of(workload: Workload) -> str:
    """The size of a preset: "full", "medium" or "small"; "" for a layer."""
    return parse_preset(workload.preset)[1] if workload.preset else ""


class Check(Background):
    """One check, running or done. `text`: the current step. `answers`: the answers known so far, each with its seconds from the
    start, in the order in which they became known. A later answer to the same question replaces an earlier one. `report` is set
    when the check is `done`, also after `stop`."""

    def __init__(self, request: CheckRequest) -> None:
        super().__init__("check")
        self.request = request
        self.answers: list[tuple[float, Question]] = []
        self.smallest: tuple[float, SmallestCase] | None = None   # seconds from the start, and the smallest case that fails
        self.report: CheckReport | None = None

    def _work(self) -> None:
        try:
            self.report = check(self.request, on_text=self._say, on_answers=self._know, on_smallest=self._explain,
                                stopped=self._stopped)
            self._know(self.report.questions)
        except (BadRequest, WorkerFailed) as error:
            self.problem = plain(str(error))
        except RuntimeError as error:
            self.problem = "Stopped by you." if self._stopped.is_set() else plain(str(error))

    def _know(self, questions: tuple[Question, ...]) -> None:
        there = [q for _, q in self.answers]
        self.answers += [(self.elapsed_s, q) for q in questions if q not in there]

    def _explain(self, smallest: SmallestCase) -> None:
        self.smallest = self.smallest or (self.elapsed_s, smallest)


@contextlib.contextmanager
def judge_process(device: str = "cuda") -> Iterator[WorkerProcess]:
    """A judge process for several checks, one after the other. That saves importing torch for each check. Each check has its
    own foreign processes. On a GPU give each timed check its own judge, because its GPU memory is freed only when the judge
    ends."""
    with tempfile.TemporaryDirectory(prefix="kernel-workbench-", ignore_cleanup_errors=True) as folder:
        worker = WorkerProcess("measure", log_path=Path(folder) / "judge.log", device=device, at_once=next(_judges) == 0)
        try:
            yield worker
        finally:
            worker.close()


def check(request: CheckRequest, *, on_text: Callable[[str], None] = lambda text: None,
          on_answers: Callable[[tuple[Question, ...]], None] = lambda questions: None,
          on_smallest: Callable[[SmallestCase], None] = lambda smallest: None,
          stopped: threading.Event | None = None, device_held: bool = False, judge: WorkerProcess | None = None
          ) -> CheckReport:
    """Judge the file and wait for the report. `on_answers` is called with all known answers whenever there is a new one,
    `on_smallest` with the smallest failing case once it is known.
    `stopped`: once it is set, the check ends and the report has the answers known so far. `device_held`: the caller already
    holds the device's lock. `judge`: a process from `judge_process` that does nothing else meanwhile; by default a new one.
    Raises `BadRequest` if the reference itself does not run.
    """
    order = CheckOrder(request.text, request.class_name, request.reference, request.device, int(request.memory_gib * 2**30),
                       request.call_s, request.build_s, request.seed, request.time, request.nvcc, request.effort)

    begun, started_s, now = time.monotonic(), 0.0, ""
    so_far: Checked | None = None

    def on_event(event: Event) -> None:
        nonlocal so_far, now, started_s
        if event.so_far is None:
            now = event.text
            on_text(now)
        else:
            started_s = started_s or time.monotonic() - begun - event.so_far.seconds
            so_far = _from_the_start(event.so_far, started_s)
            on_answers(_questions(request, so_far))
            if so_far.smallest is not None:
                on_smallest(so_far.smallest)

    try:
        with (contextlib.nullcontext() if device_held else held(request.device, on_text, stopped),
              contextlib.nullcontext(judge) if judge else judge_process(request.device) as worker):
            begun = time.monotonic()
            result = worker.call(order, limit_s=request.limit_s, on_event=on_event, stop=stopped)
    except WorkerFailed as error:
        if error.bad_request:
            raise BadRequest(plain(str(error))) from error
        raise
    except RuntimeError as error:
        seconds = round(time.monotonic() - begun, 1)
        if isinstance(error, (WorkerDied, WorkerTimeout)):
            ended = Question("judge", "Did the judge run to the end?", Answer.FAILED, "No. The judge process ended early: "
                                                                                      f"{error}",
                             "Use a smaller size, or raise the limits.", "WORKER_DIED", seconds=seconds)
            known = so_far or Checked((), Confinement(why="not known"))
            return _report(request, replace(known, questions=(*known.questions, ended), seconds=seconds))
        if so_far is None or stopped is None or not stopped.is_set():
            raise
        return _report(request, replace(so_far, seconds=seconds), stopped=f"after {seconds:g} s ({now})")
    return _report(request, _from_the_start(result, started_s))


def _from_the_start(known: Checked, started_s: float) -> Checked:
    """The same result, with the time that the judge's process took to start added to all times."""
    return replace(known, seconds=round(known.seconds + started_s, 1),
                   questions=tuple(replace(q, seconds=round(q.seconds + started_s, 1)) for q in known.questions),
                   phases=(Phase("starting the judge", started_s, starts=1), *known.phases))


def _report(request: CheckRequest, result: Checked, *, stopped: str = "") -> CheckReport:
    """Makes foreign text safe before it becomes part of a report. What a worker sends is plain text already."""
    questions, times = _questions(request, result), _times(result)
    return CheckReport(
        name=plain(request.name), reference=plain(request.reference_name), size=request.size,
        device=f"{request.device} (emulator)" if result.emulated else request.device, questions=questions,
        smallest=result.smallest, mistake=result.mistake, kernelbench=result.kernelbench, times=times,
        speed="; ".join([*(check_times.sentence(d, t) for d, t in times.items()), *check_times.without_times(result.untimed)]),
        untimed=result.untimed, confined=result.confined,
        declared=result.declared, seed=result.seed, seconds=result.seconds, phases=result.phases, stopped=stopped,
        environment=environment(), options=result.options,
        command=plain(shlex.join([*PROGRAM.split(), "check", *request.command])) if request.command else "")


def _questions(request: CheckRequest, result: Checked) -> tuple[Question, ...]:
    times = _times(result)
    questions = _with_log(result.questions, plain(request.name))
    return tuple(_with_times(q, times, check_times.without_times(result.untimed)) for q in questions) if times else questions


def _times(result: Checked) -> dict[str, DirectionTimes]:
    return {d: check_times.timed(found, d, result.workload, result.gpu) for d, found in result.times.items()}


def _with_log(questions: tuple[Question, ...], name: str) -> tuple[Question, ...]:
    """The log of the first failure is kept until a file of the same name is checked again."""
    place = next((n for n, q in enumerate(questions) if q.answer is Answer.FAILED and q.detail.log), None)
    if place is None:
        return questions
    first = questions[place]
    path = cache_dir() / "check" / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)[:100]}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(first.detail.log or "", encoding="utf-8")
    except OSError:  # the report contains the log anyway
        return questions
    return (*questions[:place], replace(first, detail=replace(first.detail, log_path=str(path))), *questions[place + 1:])


def _with_times(question: Question, times: dict[str, DirectionTimes], without: list[str]) -> Question:
    """`without`: what is said of a direction that was not timed."""
    if question.key != "times":
        return question
    impossible = next((d for d, t in times.items() if t.implausible), None)
    if impossible:
        said = [check_times.sentence(impossible, times[impossible]), *without]
        return replace(question, answer=Answer.FAILED, seen=f"No. {'; '.join(said)}.",
                       status=str(Status.IMPLAUSIBLE), advice=DEFAULT_ADVICE[Status.IMPLAUSIBLE])
    words = [": ".join([", ".join(filter(None, [f"{d} {numbers.time(t.median_ms)}", t.verdict])),
                        check_times.sentence(d, t)]) for d, t in times.items()]
    return replace(question, seen=f"module_ms: {'; '.join([*words, *without])}.")
