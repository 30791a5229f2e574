"""On a GPU: what the tunables of each general variant are worth, from its best to its worst config."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.require import require
from workbench.core.candidate import Candidate, why_not
from workbench.core.presets import preset
from workbench.core.variants import Variant, find
from workbench.drive.running.request import RunRequest
from workbench.drive.running.runner import Runner
from workbench.drive.sessions.session import Session

GENERAL = ("naive_gather", "shared_weight_tiling", "warp_per_output")
DIRECTIONS = ("forward", "grad_input", "grad_weight")
WORTH = 1.5


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    require(torch.cuda.is_available(), "an NVIDIA GPU")
    with Runner() as shared:
        yield shared


def corners(variant: Variant) -> list[dict[str, int]]:
    """The default, and each tunable alone at its smallest and at its largest value."""
    configs = [variant.default_config]
    for tunable in variant.tune:
        configs += [{**variant.default_config, tunable.name: value} for value in (min(tunable.values), max(tunable.values))]
    return [c for i, c in enumerate(configs) if c not in configs[:i]]


def test_the_best_config_is_worth_it(runner: Runner, tmp_path: Path) -> None:
    workload = preset("kb74").workload("medium")
    chosen = [Candidate(find(name, direction), workload.layer, "float32", config)
              for name in GENERAL for direction in DIRECTIONS for config in corners(find(name, direction))]
    chosen = [c for c in chosen if why_not(c, sm=90) is None]
    session = Session.create(tmp_path, "corners")
    runner.run(RunRequest(workload, tuple(chosen), device="cuda:0", baselines=False, effort="quick"), session)
    trials = session.trials()
    assert len(trials) == len(chosen) and all(t.ok for t in trials), [t.headline for t in trials if not t.ok]
    small = []
    for name in GENERAL:
        for direction in DIRECTIONS:
            times = sorted((t.kernel_ms.median_ms, t.config) for t in trials if (t.name, t.direction) == (name, direction))
            (best, best_config), (worst, worst_config) = times[0], times[-1]
            print(f"{direction}/{name}: {worst / best:.1f}x between {best:.3f} ms {best_config} and {worst:.3f} ms "
                  f"{worst_config}", flush=True)
            if worst / best < WORTH:
                small.append(f"{direction}/{name} {worst / best:.2f}x")
    assert not small, small
