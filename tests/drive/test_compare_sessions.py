"""Two sessions in, verdicts from their samples out; a regression is named, and the command exits 1."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.page.test_report import trial
from workbench.core.trial import NOT_DROP_IN, Status, Timing, Trial
from workbench.core.trial_parts import Against, Detail
from workbench.drive.reporting import report, tables
from workbench.drive.sessions import files
from workbench.drive.sessions.session import Session
from workbench.faces.cli import main


def _recorded(session: Session, name: str, ms: float, *, seed: int, share: float = 0.004, **more) -> Trial:
    taken = np.random.default_rng(seed).normal(ms, share * ms, 60).tolist()
    q25, median, q75 = np.quantile(taken, (0.25, 0.5, 0.75)).tolist()
    timing = Timing(median, q25, q75, min(taken), 60, "noise", True, session.put_blob(json.dumps(taken).encode()))
    made = replace(trial(name, ms, **more), kernel_ms=timing)
    session.append(made)
    return session.trials()[-1]


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
    rows = tables.compare_sessions(before.trials(), after.trials())
    assert tables.regressions(rows) == [f"mine forward on {rows[0].workload} was OK in A and is MISMATCH in B."]


def test_a_slower_pytorch_is_nobodys_regression(tmp_path: Path) -> None:
    before, after = Session.create(tmp_path, "a"), Session.create(tmp_path, "b")
    _recorded(before, "eager", 1.0, seed=1, kind="baseline")
    _recorded(after, "eager", 1.2, seed=2, kind="baseline")
    rows = tables.compare_sessions(before.trials(), after.trials())
    assert rows[0].verdict == "SLOWER" and tables.regressions(rows) == []


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
    files._samples.cache_clear()
    assert files.samples_of(made.kernel_ms) == ()


def test_only_drop_in_baselines_are_the_ones_to_beat() -> None:
    there = [trial("eager, TF32 off", 2.0, kind="baseline"),
             replace(trial("channels_last", 1.0, kind="baseline"), flags=(NOT_DROP_IN,))]
    mine = trial("mine", 1.5)
    assert report.best_baseline(there, mine).name == "eager, TF32 off"
    assert report.headline([*there, mine]).sentence == "mine forward is 1.33× as fast as the best PyTorch (eager, TF32 off)"


def test_pairs_taken_in_turns_decide_against_their_baseline() -> None:
    baseline = trial("eager, TF32 off", 2.0, kind="baseline")
    against = Against(baseline.name, baseline.trial_id, 1.004, 1.001, 1.007, "SAME", 30, 0, "noise")
    mine = replace(trial("mine", 1.9), detail=Detail(against=against))
    assert report.speedup(mine, baseline).verdict == "SAME"
    assert report.speedup(mine, replace(baseline, trial_id="another")).verdict == "FASTER"


def _compared(folder: Path, before: list[tuple], after: list[tuple]) -> tuple[int, list[dict], list[str]]:
    """(name, ms, options) of each trial, recorded; exit code, rows and regressions of A against B."""
    sessions = Session.create(folder, "before"), Session.create(folder, "after")
    for session, trials, start in zip(sessions, (before, after), (1, 101), strict=True):
        for seed, (name, ms, more) in enumerate(trials, start):
            _recorded(session, name, ms, seed=seed, **more)
    rows = tables.compare_sessions(*(s.trials() for s in sessions))
    return main(["compare", *(str(s.path) for s in sessions)]), rows, tables.regressions(rows)


def _block(size: int, **more) -> dict:
    return {"config": {"BLOCK": size}, **more}


def test_a_slower_new_default_is_a_regression_and_the_row_names_both_configs(tmp_path: Path, capsys) -> None:
    code, rows, found = _compared(tmp_path, [("mine", 1.0, _block(64))], [("mine", 1.3, _block(128))])
    assert code == 1 and len(rows) == 1 and rows[0].verdict == "SLOWER"
    assert found[0].endswith("(configs differ: BLOCK=64 in A, BLOCK=128 in B).")
    assert "configs differ: BLOCK=64 in A, BLOCK=128 in B\n" in capsys.readouterr().out


def test_the_fastest_right_config_of_each_side_decides_where_configs_differ(tmp_path: Path) -> None:
    before = [("mine", 1.0, _block(64)), ("mine", 2.0, _block(32)), ("mine", 0.5, _block(16, status=Status.MISMATCH))]
    after = [("mine", 2.0, _block(32)), ("mine", 1.0, _block(128)), ("mine", 3.0, _block(256))]
    code, rows, found = _compared(tmp_path, before, after)
    assert [(r.config["BLOCK"], r.config_b.get("BLOCK"), r.verdict) for r in rows] == [
        (32, 32, "SAME"), (64, 128, "SAME"), (16, None, ""), (256, 256, "")]
    assert (code, found) == (0, [])


def test_slower_configs_beside_an_unchanged_best_are_no_regression(tmp_path: Path) -> None:
    code, rows, found = _compared(tmp_path, [("mine", 1.0, _block(64)), ("mine", 2.0, _block(32))],
                                  [("mine", 1.0, _block(64)), ("mine", 3.0, _block(256))])
    assert (code, found) == (0, []) and [r.why for r in rows] == ["", "only in A", "only in B"]


def test_a_new_config_that_is_wrong_is_a_regression(tmp_path: Path) -> None:
    code, _, found = _compared(tmp_path, [("mine", 1.0, _block(64))],
                               [("mine", 0.5, _block(128, status=Status.MISMATCH))])
    assert code == 1 and "was OK in A and is MISMATCH in B (configs differ" in found[0]


def test_a_variant_that_is_gone_is_a_regression_once_and_only_if_it_was_right(tmp_path: Path) -> None:
    before = [("mine", 1.0, _block(64)), ("mine", 1.1, _block(32)), ("other", 1.0, {}),
              ("wrong", 1.0, {"status": Status.MISMATCH}), ("eager", 1.0, {"kind": "baseline"})]
    code, rows, found = _compared(tmp_path, before, [("other", 1.0, {})])
    assert code == 1 and found == [f"mine forward on {rows[0].workload} was OK in A and is missing in B."]


def test_another_precision_is_another_variant(tmp_path: Path) -> None:
    code, _, found = _compared(tmp_path, [("mine", 1.0, {"precision": "ieee"})], [("mine", 0.5, {"precision": "tf32"})])
    assert code == 1 and "is missing in B" in found[0]


@pytest.mark.parametrize("before", [[], [("mine", 1.0, {})], [("eager", 1.0, {"kind": "baseline"})]])
def test_an_empty_session_after_is_a_regression(tmp_path: Path, capsys, before: list) -> None:
    code, _, found = _compared(tmp_path, before, [])
    assert code == 1 and found == ["B has no trials, so it cannot be compared with A."]
    assert "REGRESSION  B has no trials" in capsys.readouterr().out


def test_an_empty_session_before_is_none(tmp_path: Path) -> None:
    assert _compared(tmp_path, [], [("mine", 1.0, {})])[0] == 0


def test_the_page_pairs_differing_configs_too_and_says_so() -> None:
    pair, = report.pairs([trial("mine", 1.0, **_block(64))], [trial("mine", 2.0, **_block(128))])
    assert pair.ratio.value == pytest.approx(2.0) and pair.note == "configs differ: BLOCK=64 in A, BLOCK=128 in B"
