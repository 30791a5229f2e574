"""Tunes as real processes: one is killed, two share a session, one is interrupted. Nothing is lost and nothing runs twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from workbench.core.trial import Trial
from workbench.drive.sessions.session import Session
from workbench.drive.tuning.seen import BEGUN
from workbench.drive.tuning.space import key_of_trial
from workbench.drive.tuning.tune import WON, asked

from ..cli.test_cli import cli
from ..drive.conftest import until

ROOT = Path(__file__).resolve().parents[2]
LAYER = ["--layer", "ConvTranspose1d(3, 5, 3, stride=2)", "--input-size", "17", "--device", "cpu", "--direction", "forward"]
NAIVE = ["--variant", "naive_gather", "--no-baselines"]


def started(place: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "workbench", "tune", *words], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env={**os.environ, "KERNEL_WORKBENCH_SESSIONS": str(place), **environment})


def of_the_search(session: Session) -> Counter[str]:
    """How often each candidate has a trial of the search. The finals judge the winner again: the trials that WON names."""
    again = {e["trial_id"] for e in session.events() if e["event"] == WON}
    own = asked(session).workload
    return Counter(key_of_trial(t) for t in session.trials()
                   if t.kind == "candidate" and t.workload == own and t.trial_id not in again)


def begun(session: Session) -> set[str]:
    return {key for e in session.events() if e["event"] == BEGUN for key in e["keys"]}


def test_a_killed_tune_goes_on_with_nothing_lost_and_nothing_twice(tmp_path: Path) -> None:
    process = started(tmp_path, *LAYER, *NAIVE, "--trials", "9", "--session", "one")
    session = Session(tmp_path / "one")
    until(lambda: (tmp_path / "one" / "trials.jsonl").is_file() and len(session.trials()) >= 2)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before: list[Trial] = session.trials()
    done = cli("tune", "--resume", "one", sessions=tmp_path)
    assert done.returncode == 0, done.stderr
    counts = of_the_search(session)
    assert session.trials()[:len(before)] == before
    assert len(counts) == 9 and set(counts.values()) == {1}, counts
    assert begun(session) >= set(counts)
    assert "9 candidates were judged." in done.stdout and "say nothing about a GPU" in done.stdout
    more = cli("tune", "--resume", "one", "--trials", "11", sessions=tmp_path)
    counts = of_the_search(session)
    assert len(counts) == 11 and set(counts.values()) == {1} and more.returncode == 0, more.stderr


def test_two_processes_tune_one_session(tmp_path: Path) -> None:
    words = [*LAYER, *NAIVE, "--trials", "12", "--session", "one"]
    both = [started(tmp_path, *words, KERNEL_WORKBENCH_LOCKS=str(tmp_path / f"locks{number}")) for number in (1, 2)]
    for process in both:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    session = Session(tmp_path / "one")
    counts = of_the_search(session)
    assert len(counts) == 12 and set(counts.values()) == {1}, counts
    again = {e["trial_id"] for e in session.events() if e["event"] == WON}
    judged = Counter(t.run_id for t in session.trials() if t.trial_id not in again)
    assert len(judged) == 2 and min(judged.values()) >= 2, "both have judged some"
    assert not list((tmp_path / "one").glob(".tune-*")), "no claim is left"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_prints_the_best_so_far_and_how_to_go_on(number: int, tmp_path: Path) -> None:
    process = started(tmp_path, *LAYER, *NAIVE, "--trials", "20", "--session", "one")
    session = Session(tmp_path / "one")
    until(lambda: (tmp_path / "one" / "trials.jsonl").is_file() and any(t.ok for t in session.trials()))
    process.send_signal(number)
    told, said = process.communicate(timeout=300)
    assert process.returncode == 130, said
    assert "Stopped before the best were timed again" in told and "naive_gather ieee BLOCK=" in told
    assert said.splitlines()[-1].endswith("python -m workbench tune --resume one"), said
