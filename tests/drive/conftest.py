"""Ways to run the broken templates."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from workbench.core.candidate import Candidate
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.variants import find
from workbench.drive.running.request import Run, RunRequest
from workbench.drive.running.runner import Runner
from workbench.drive.sessions.session import Session

WORKLOAD = Workload(ConvTranspose(2, 6, 4, (3, 2), stride=(2, 3), padding=(1, 0), output_padding=(0, 1), groups=2), 2, (5, 7))


@pytest.fixture
def judge(runner: Runner, tmp_path: Path) -> Callable[..., tuple[Run, Session]]:
    """Run candidates to the end in a session of their own."""
    def run(*candidates: Candidate, workload: Workload = WORKLOAD, **options) -> tuple[Run, Session]:
        session = Session.create(tmp_path, options.pop("name", "s"))
        options = {"baselines": False, "effort": "quick", "device": "cpu"} | options
        done = runner.run(RunRequest(workload, candidates, **options), session)
        return done, session
    return run


def until(reached: Callable[[], bool], limit_s: float = 300) -> None:
    """Wait until something is so; it must come to be so within the limit. If looking takes long, it looks a third of the time:
    what is waited for needs the core."""
    end = time.monotonic() + limit_s
    begin = time.monotonic()
    while not reached():
        now = time.monotonic()
        assert now < end, "waited in vain"
        time.sleep(min(max(0.005, 2 * (now - begin)), 0.5))
        begin = time.monotonic()


def good(**config: int) -> Candidate:
    return Candidate(find("naive_gather", "forward"), WORKLOAD.layer, "float32", config)


def bad(root: Path, name: str, direction: str = "forward", **more) -> Candidate:
    return Candidate(find(name, direction, root=root), WORKLOAD.layer, "float32", {}, **more)
