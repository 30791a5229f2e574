"""Every variant on a real GPU: awkward small layers in all dtypes and forms, then #74, #64 and #81 at full size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.require import require
from workbench.core.candidate import Candidate, why_not
from workbench.core.layer import BACKWARD, LAUNCHES
from workbench.core.presets import preset
from workbench.core.variants import discover
from workbench.drive.checking.variant_tests import Chosen, validate
from workbench.drive.running.request import RunRequest
from workbench.drive.running.runner import Runner
from workbench.drive.sessions.session import Session


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    require(torch.cuda.is_available(), "an NVIDIA GPU")
    with Runner() as shared:
        yield shared


def test_every_variant_on_awkward_layers_in_all_dtypes_and_forms(runner: Runner) -> None:
    cases = validate(runner, Chosen("full"), device="cuda:0")
    bad = [c.line for c in cases if not c.ok]
    print(f"{len(cases) - len(bad)} of {len(cases)} cases hold")
    assert len(cases) > 1000 and not bad, "\n".join(bad[:40])
    named = {(v.key, precision) for v in discover() for precision in v.precision}
    assert {(c.variant, c.precision) for c in cases} == named


@pytest.mark.parametrize("direction", LAUNCHES)
@pytest.mark.parametrize("name", ["kb74", "kb64", "kb81"])
def test_full_size(name: str, direction: str, runner: Runner, tmp_path: Path) -> None:
    workload = preset(name).workload("full")
    chosen = [Candidate(v, workload.layer, "float32", {}) for v in discover() if v.direction == direction]
    chosen = [c for c in chosen if c.precision and why_not(c, sm=90) is None]
    session = Session.create(tmp_path, "full")
    runner.run(RunRequest(workload, tuple(chosen), device="cuda:0", baselines=False, effort="quick", time=False,
                          run_timeout_s=120), session)
    trials = session.trials()
    assert len(trials) == len(chosen) >= (0 if direction == BACKWARD else 3)
    assert all(t.ok for t in trials), [f"{t.name}: {t.headline}" for t in trials if not t.ok]
