"""What counts as finished when a session is resumed, and what has to run again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.core.replies import Device
from workbench.core.trial import Status, Trial
from workbench.drive.running.request import Run, RunRequest
from workbench.drive.running.resume import missing
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
    return replace(session.trials()[0], device=recorded(CPU))


def recorded(device: Device) -> dict[str, str]:
    """What a trial keeps of it."""
    return {"kind": device.kind, "key": device.key}


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
    there = replace(finished, device=recorded(H200), kernel_ms=replace(finished.kernel_ms, cold_l2=True))
    assert not runs_again(there, H200)
    assert runs_again(there, replace(H200, key="nvidia_h100")) and runs_again(there, CPU)


def test_a_warm_l2_is_another_question_on_a_gpu(finished: Trial) -> None:
    there = replace(finished, device=recorded(H200), kernel_ms=replace(finished.kernel_ms, cold_l2=True))
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
