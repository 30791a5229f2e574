"""-v and KW_LOG tell on stderr what the worker processes were asked and did; stdout stays as it is."""

from __future__ import annotations

import json
from pathlib import Path

from .test_cli import SMALL, cli

WORDS = ["run", *SMALL, "--direction", "forward", "--variant", "naive_gather", "--no-baselines", "--no-time", "--json"]


def test_it_is_off_by_default_and_never_on_stdout(tmp_path: Path) -> None:
    quiet, told, asked = (cli(*WORDS, *more, sessions=tmp_path, **env) for more, env in (
        ((), {}), (("-v",), {}), ((), {"KW_LOG": "debug"})))
    assert "worker" not in quiet.stderr
    for loud in (told, asked):
        assert "measure worker" in loud.stderr and ": judge OK after" in loud.stderr, loud.stderr
        assert [json.loads(line)["status"] for line in loud.stdout.splitlines()] == ["OK"]


def test_another_level_says_less(tmp_path: Path) -> None:
    assert "worker" not in cli(*WORDS, sessions=tmp_path, KW_LOG="warning").stderr
