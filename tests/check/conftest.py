"""One way to check a text, with real processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from workbench.core import landlock
from workbench.core.answers import Answer, CheckReport
from workbench.core.confinement import VARIABLE
from workbench.core.presets import preset
from workbench.drive.checking.check import CheckRequest, check, judge_process, workload_reference
from workbench.drive.running.worker_process import WorkerProcess
from workbench.measure.check.foreign import requests
from workbench.measure.check.foreign.process import ForeignProcess, Limits
from workbench.measure.check.party import Party
from workbench.measure.check.questions.cases import Case, setting_of
from workbench.measure.check.questions.drawn import Drawn
from workbench.measure.check.trialrun import TrialRun

from .forked import ForkedProcess
from .models import REFERENCE

BAD_MODELS = Path(__file__).resolve().parents[1] / "bad_models"


class _ForkingWorker(WorkerProcess):
    _module = "tests.check.forked"


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., WorkerProcess]]:
    """The judge for the environment as it is now: a process keeps the one in which it was started. Forked processes are held
    as new ones are, but for bwrap."""
    there: dict[tuple[bool, frozenset[tuple[str, str]]], WorkerProcess] = {}
    with ExitStack() as stack:
        def one(*, forks: bool = False) -> WorkerProcess:
            now = forks, frozenset((k, v) for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST")
            if now not in there:
                there[now] = stack.enter_context(closing(_ForkingWorker(
                    "measure", log_path=tmp_path_factory.mktemp("judge") / "log", environment={"OMP_NUM_THREADS": "1"}))
                    if forks else judge_process("cpu"))
            return there[now]
        yield one


@pytest.fixture(scope="session")
def forking_judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """Its foreign processes are forked (forked.py): for all that no new interpreter and no bwrap is needed for."""
    with forking(tmp_path_factory) as worker:
        yield worker


@contextmanager
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """Another one, to itself."""
    ways = "none" if landlock.problem() else "landlock"
    worker = _ForkingWorker("measure", log_path=tmp_path_factory.mktemp("judge") / "log",
                            environment={VARIABLE: ways, "OMP_NUM_THREADS": "1"})
    try:
        yield worker
    finally:
        worker.close()


@pytest.fixture
def checked(forking_judge: WorkerProcess) -> Callable[..., CheckReport]:
    """One check whose foreign processes are forked."""
    return partial(_checked, lambda: forking_judge)


@pytest.fixture
def checked_held(judge: Callable[..., WorkerProcess]) -> Callable[..., CheckReport]:
    """One check confined as this environment has it, without bwrap, whose foreign processes are forked."""
    return partial(_checked, partial(judge, forks=True))


@pytest.fixture
def checked_anew(judge: Callable[[], WorkerProcess]) -> Callable[..., CheckReport]:
    """One check as everybody meets it: new interpreters, confined as this environment has it."""
    return partial(_checked, judge)


def _checked(judge: Callable[[], WorkerProcess], text: str, *, like: str = "", reference: str = REFERENCE,
             **options) -> CheckReport:
    name = "problem.py"
    if like:
        reference, name = workload_reference(preset(like).workload("small"))
        options = {"size": "small"} | options
    options = {"device": "cpu", "time": False, "nvcc": False, "memory_gib": 4.0, "call_s": 100.0, "seed": 1} | options
    return check(CheckRequest(text, reference, reference_name=name, **options), judge=judge())


def failed(report: CheckReport) -> dict[str, str]:
    """key -> exact status of what failed."""
    return {q.key: q.status for q in report.questions if q.answer is Answer.FAILED}


@contextmanager
def trial_of(text: str, reference: str, scratch: Path, *, kind: type[ForeignProcess] = ForkedProcess
             ) -> Iterator[tuple[TrialRun, Case]]:
    """Reference and candidate in processes of their own, as the judge has them, before any question is asked: on the CPU, with
    the given case of float32."""
    processes = [kind(name, device="cpu", limits=Limits(4 << 30), scratch=scratch) for name in ("reference", "candidate")]
    parties = [Party(process, source, class_name=name, emulate=False) for process, source, name in
               zip(processes, (reference, text), ("Model", "ModelNew"), strict=True)]
    try:
        facts = parties[0].load()
        answer, inputs = processes[0].ask(requests.Give(1))
        made, _ = processes[0].ask(requests.Make("first", answer.arguments, answer.keywords, 1))
        trial = TrialRun(*parties, device="cpu", dtype="float32", seed=20_011)
        trial.given, trial.parameters = inputs, list(facts.parameters)
        trial.attribute = made.structure.attribute if made.structure else ""
        setting = setting_of(facts.parameters, answer.arguments, answer.keywords, made.structure)
        if setting.layer is None:
            trial.drawn = Drawn(inputs, parties[0].draw, trial.generator)
        yield trial, Case("the given size", setting, tuple(tuple(x.shape) for x in inputs), ("float32",) * len(inputs))
    finally:
        for process in processes:
            process.close()
