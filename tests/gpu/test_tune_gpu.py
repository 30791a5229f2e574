"""Tunes on a GPU: a minute is enough for a layer that nobody measured, and two tunes agree."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.cli.test_cli import cli
from tests.shared import require
from workbench.core.env import gpus
from workbench.drive.sessions.session import Session

LAYER = ["--layer", "ConvTranspose2d(96, 80, (3, 5), stride=2, padding=1)", "--batch", "4", "--input-size", "60,44",
         "--direction", "forward", "--device", "cuda:0"]


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    require(gpus(), "no CUDA GPU")


def store(tmp_path: Path) -> dict[str, str]:
    return {"KERNEL_WORKBENCH_STORE": str(tmp_path / "tuned.json")}


def test_a_quick_tune_of_an_unseen_layer_ends_in_ninety_seconds_and_is_not_slower_than_the_default(tmp_path: Path) -> None:
    begin = time.monotonic()
    done = cli("tune", *LAYER, "--effort", "quick", "--json", sessions=tmp_path, **store(tmp_path))
    took_s = time.monotonic() - begin
    assert done.returncode == 0, done.stderr
    assert took_s < 90, f"{took_s:.0f} s\n{done.stderr}"
    winner = json.loads(done.stdout)["winners"]["forward"]
    assert winner["emulated"] is False and winner["stored"] == str(tmp_path / "tuned.json")
    default = cli("run", *LAYER, "--variant", winner["variant"], "--precision", winner["precision"], "--no-baselines", "--json",
                  sessions=tmp_path)
    assert default.returncode == 0, default.stderr
    default_ms = json.loads(default.stdout.splitlines()[-1])["kernel_ms"]["median_ms"]
    assert winner["ms"] <= 1.02 * default_ms
    taken = cli("run", *LAYER, "--best", "--no-baselines", "--json", sessions=tmp_path, **store(tmp_path))
    assert taken.returncode == 0, taken.stderr
    assert json.loads(taken.stdout.splitlines()[-1])["candidate_id"] == winner["candidate_id"]
    assert "tuned here on" in taken.stderr


def test_two_tunes_of_a_small_space_name_the_same_winner_or_a_tie(tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        done = cli("tune", *LAYER, "--variant", "gathered_mma", "--trials", "40", "--session", name, "--no-baselines", "--json",
                   sessions=tmp_path, **store(tmp_path))
        assert done.returncode == 0, done.stderr
        winner = json.loads(done.stdout)["winners"]["forward"]
        there = {t.trial_id: t.candidate_id for t in Session(tmp_path / name).trials()}
        found.append((winner["candidate_id"], {there[tied] for tied in winner["ties"]}, winner))
    (one, ties_of_one, _), (two, ties_of_two, _) = found
    assert one == two or one in ties_of_two or two in ties_of_one, found


def test_two_gpus_share_the_candidates(tmp_path: Path) -> None:
    require(len(gpus()) > 1, "one GPU only")
    done = cli("tune", *LAYER, "--variant", "gathered_mma", "--trials", "24", "--session", "one", "--no-baselines", "--json",
               sessions=tmp_path, **store(tmp_path))
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "one" / "trials.jsonl").read_text(encoding="utf-8").splitlines()
    assert {json.loads(line)["device"]["index"] for line in lines} == {gpu.index for gpu in gpus()
                                                                       if gpu.name == gpus()[0].name}
