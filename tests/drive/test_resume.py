"""What counts as finished when a session is resumed, and what has to run again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.core.replies import Device
from workbench.core.trial import FORMULATION, Status, Trial
from workbench.drive.running.request import Run, RunRequest
from workbench.drive.running.resume import missing, missing_ways
from workbench.drive.running.runner import Runner
from workbench.drive.sessions.session import Session

from .conftest import WORKLOAD, bad, good

CPU = Device("cpu", 0, "x", "x86_64", 90, "cpu-x", 1, 1, "", "", 0, "", 0)
H200 = replace(CPU, kind="cuda", key="nvidia_h200")


@pytest.fixture(scope="module")
def finished(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """A right, timed trial of the default naive_gather."""
    session = Session.create(tmp_path_factory.mktemp("finished"), "s")
    runner.run(RunRequest(WORKLOAD, (good(),), device="cpu", baselines=False, effort="quick"), session)
    return replace(session.trials()[0], device=CPU.recorded)


def runs_again(trial: Trial, device: Device = CPU, **request: object) -> bool:
    return bool(missing([good()], [trial], RunRequest(WORKLOAD, (good(),), **request), device))


@pytest.mark.parametrize("status", ["NO_COMPILER", "CANCELLED", "WORKER_DIED", "BUILD_TIMEOUT", "OUT_OF_MEMORY"])
def test_what_the_machine_stood_in_the_way_of_runs_again(status: str, finished: Trial) -> None:
    assert runs_again(replace(finished, status=Status(status), kernel_ms=None))


@pytest.mark.parametrize("status", ["OK", "BUILD_FAILED", "MISMATCH", "RUN_TIMEOUT", "OUT_OF_BOUNDS"])
def test_a_verdict_stands(status: str, finished: Trial) -> None:
    timing = finished.kernel_ms if status == "OK" else None
    assert not runs_again(replace(finished, status=Status(status), kernel_ms=timing))


def test_what_was_only_checked_is_not_finished_for_a_run_that_times(finished: Trial) -> None:
    checked = replace(finished, kernel_ms=None)
    assert runs_again(checked) and not runs_again(checked, time=False)


def test_another_gpu_asks_anew(finished: Trial) -> None:
    there = replace(finished, device=H200.recorded, kernel_ms=replace(finished.kernel_ms, cold_l2=True))
    assert not runs_again(there, H200)
    assert runs_again(there, replace(H200, key="nvidia_h100")) and runs_again(there, CPU)


def test_a_warm_l2_is_another_question_on_a_gpu(finished: Trial) -> None:
    there = replace(finished, device=H200.recorded, kernel_ms=replace(finished.kernel_ms, cold_l2=True))
    assert not runs_again(there, H200) and runs_again(there, H200, cold_l2=False)


def test_right_without_the_sanitizer_is_not_right_with_it(finished: Trial) -> None:
    assert runs_again(finished, sanitize="address", time=False)


def test_what_was_skipped_or_not_rendered_stands_while_the_reason_does(judge: Callable[..., tuple[Run, Session]],
                                                                       runner: Runner, broken: Path) -> None:
    candidate = bad(broken, "undefined_tunable")
    run, session = judge(candidate)
    trial, device = session.trials()[0], runner.device("cpu")
    assert trial.status is Status.RENDER_FAILED
    assert missing([candidate], [trial], run.request, device) == []
    assert missing([candidate], [replace(trial, headline="another reason")], run.request, device) == [candidate]


def test_only_the_ways_of_pytorch_that_a_session_lacks_are_measured(runner: Runner, tmp_path: Path) -> None:
    """A session of quick baselines is completed by strong ones; a wrong or refused formulation is an answer, a dead worker
    not."""
    quick, strong = (RunRequest(WORKLOAD, (), directions=("forward",), strength=s, effort="quick", device="cpu")
                     for s in ("quick", "strong"))
    session = Session.create(tmp_path, "s")
    runner.run(quick, session)
    device = runner.device("cpu")
    assert missing_ways("forward", session.trials(), quick, device) == []
    assert missing_ways("forward", [], replace(strong, baselines=False), device) == [], "a request without baselines"
    lacking = missing_ways("forward", session.trials(), strong, device)
    assert "fold" in lacking and "default" not in lacking
    assert "default" in missing_ways("grad_input", session.trials(), strong, device)
    runner.run(strong, session, resume=True)
    trials = session.trials()
    assert missing_ways("forward", trials, strong, device) == []
    names = [t.name for t in trials]
    assert len(names) == len(set(names)) == len(lacking) + 1
    fold = next(t for t in trials if t.name == "matmul + fold")
    others = [t for t in trials if t is not fold]
    assert FORMULATION in fold.flags and missing_ways("forward", others, strong, device) == ["fold"]
    for status in (Status.MISMATCH, Status.SKIPPED, Status.OUT_OF_MEMORY):
        assert missing_ways("forward", [*others, replace(fold, status=status, kernel_ms=None)], strong, device) == []
    dead = [replace(t, status=Status.WORKER_DIED, kernel_ms=None, flags=()) for t in trials if t.name == "eager"]
    assert missing_ways("forward", dead, quick, device) == ["default"]


def test_a_formulation_that_takes_its_process_along_costs_no_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("""
import os, sys
class Deadly:
    def find_spec(self, name, path=None, target=None):
        if name == "workbench.measure.pytorch.formulations":
            import torch.nn.functional
            torch.nn.functional.fold = lambda *args, **kwargs: os._exit(9)
sys.meta_path.insert(0, Deadly())
""")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    request = RunRequest(WORKLOAD, (), directions=("forward",), strength="strong", effort="quick", device="cpu")
    with Runner() as runner:
        session = Session.create(tmp_path, "s")
        runner.run(request, session)
        status = {t.name: str(t.status) for t in session.trials()}
        assert status["matmul + fold"] == "WORKER_DIED" and status["eager"] == "OK", status
        assert missing_ways("forward", session.trials(), request, runner.device("cpu")) == []
