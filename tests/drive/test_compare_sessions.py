"""Two sessions in, verdicts from their samples out; a regression is named, and the command exits 1."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.page.test_report import trial
from workbench.core.trial import NOT_DROP_IN, Status, Timing, Trial
from workbench.drive import report, samples, tables
from workbench.drive.session import Session
from workbench.faces.cli import main


def _recorded(session: Session, name: str, ms: float, *, seed: int, share: float = 0.004, **more) -> Trial:
    taken = np.random.default_rng(seed).normal(ms, share * ms, 60).tolist()
    q25, median, q75 = np.quantile(taken, (0.25, 0.5, 0.75)).tolist()
    timing = Timing(median, q25, q75, min(taken), 60, "noise", True, session.put_blob(json.dumps(taken).encode()))
    made = replace(trial(name, ms, **more), kernel_ms=timing)
    session.append(made)
    return made


def _pair(folder: Path, *, after_ms: float, **more) -> tuple[Session, Session]:
    before, after = Session.create(folder, "before"), Session.create(folder, "after")
    _recorded(before, "mine", 1.0, seed=1)
    _recorded(after, "mine", after_ms, seed=2, **more)
    return before, after


@pytest.mark.parametrize(("after_ms", "verdict", "code"), [(1.05, "SLOWER", 1), (0.9, "FASTER", 0), (1.001, "SAME", 0)])
def test_verdict_and_exit_code(tmp_path: Path, capsys, after_ms: float, verdict: str, code: int) -> None:
    before, after = _pair(tmp_path, after_ms=after_ms)
    assert main(["compare", str(before.path), str(after.path)]) == code
    printed = capsys.readouterr().out
    assert verdict in printed and ("REGRESSION  mine forward" in printed) == (code == 1)


def test_a_result_that_is_no_longer_right_is_a_regression(tmp_path: Path) -> None:
    before, after = _pair(tmp_path, after_ms=0.5, status=Status.MISMATCH)
    rows = tables.compare(before.trials(), after.trials())
    assert tables.regressions(rows) == [f"mine forward on {rows[0]['workload']} was OK in A and is MISMATCH in B."]


def test_a_slower_pytorch_is_nobodys_regression(tmp_path: Path) -> None:
    before, after = Session.create(tmp_path, "a"), Session.create(tmp_path, "b")
    _recorded(before, "eager", 1.0, seed=1, kind="baseline")
    _recorded(after, "eager", 1.2, seed=2, kind="baseline")
    rows = tables.compare(before.trials(), after.trials())
    assert rows[0]["verdict"] == "SLOWER" and tables.regressions(rows) == []


def test_the_samples_decide_and_not_the_quartiles(tmp_path: Path) -> None:
    session = Session.create(tmp_path, "s")
    a, b = _recorded(session, "a", 1.0, seed=1), _recorded(session, "b", 1.03, seed=2)
    ratio = report.ratio_of(a.kernel_ms, b.kernel_ms)
    assert ratio.verdict == report.FASTER
    without = report.ratio_of(replace(a.kernel_ms, samples_blob=""), replace(b.kernel_ms, samples_blob=""))
    assert without.value == pytest.approx(ratio.value) and (without.low, without.high) != (ratio.low, ratio.high)


def test_samples_that_were_written_over_do_not_count(tmp_path: Path) -> None:
    session = Session.create(tmp_path, "s")
    made = _recorded(session, "a", 1.0, seed=3)
    name = made.kernel_ms.samples_blob
    (session.path / "blobs" / name).write_text("[0.001, 0.001, 0.001, 0.001, 0.001]")
    samples._read.cache_clear()
    assert samples.samples_of(name) == ()


def test_only_drop_in_baselines_are_the_ones_to_beat() -> None:
    there = [trial("eager, TF32 off", 2.0, kind="baseline"),
             replace(trial("channels_last", 1.0, kind="baseline"), flags=(NOT_DROP_IN,))]
    mine = trial("mine", 1.5)
    assert report.best_baseline(there, mine).name == "eager, TF32 off"
    assert report.headline([*there, mine]).sentence == "mine forward is 1.33× as fast as the best PyTorch (eager, TF32 off)"


def test_pairs_taken_in_turns_decide_against_their_baseline() -> None:
    baseline = trial("eager, TF32 off", 2.0, kind="baseline")
    against = {"baseline": baseline.name, "trial_id": baseline.trial_id, "ratio": 1.004, "low": 1.001, "high": 1.007,
               "verdict": "SAME"}
    mine = replace(trial("mine", 1.9), detail={"against": against})
    assert report.speedup(mine, baseline).verdict == "SAME"
    assert report.speedup(mine, replace(baseline, trial_id="another")).verdict == "FASTER"
