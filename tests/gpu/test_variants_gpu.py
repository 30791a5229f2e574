"""Every variant on a real GPU: awkward small layers in all dtypes and forms, #74, #64 and #81 at full size, random
layers; and what the tunables of the general variants are worth, from the best config to the worst."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.shared import require
from workbench.core.candidate import Candidate, why_not
from workbench.core.errors import BadRequest
from workbench.core.layer import BACKWARD, LAUNCHES, ConvTranspose, Workload
from workbench.core.presets import preset
from workbench.core.template import render
from workbench.core.variants import Variant, discover, find
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
    print(f"{len(cases) - len(bad)} of {len(cases)} cases are right")
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


GENERAL = ("naive_gather", "shared_weight_tiling", "warp_per_output")
DIRECTIONS = ("forward", "grad_input", "grad_weight")
WORTH = 1.5


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


LAYERS, DRAWS, SEED = 20, 4_000, 20
DTYPE_OF = {"fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
CHANNELS = (1, 2, 3, 5, 8, 12, 16, 24, 32, 40, 48, 64, 96)


def drawn(rng: random.Random) -> Workload | None:
    """A random small workload; None where PyTorch would refuse the parameters."""
    dims = rng.choice((1, 2, 3))

    def each(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(rng.choice(values) for _ in range(dims))

    groups = rng.choice((1, 1, 1, 2, 3, 0))  # 0: depthwise
    ci, co = rng.choice(CHANNELS), rng.choice(CHANNELS)
    groups, ci, co = (ci, ci, ci * rng.choice((1, 1, 2))) if groups == 0 else (groups, ci * groups, co * groups)
    stride, dilation = rng.choice(((1,) * dims, each((1, 2, 3, 4)))), rng.choice(((1,) * dims, each((1, 2, 3))))
    kernel = each((1, 2, 3, 4, 5, 7) if dims < 3 else (1, 2, 3))
    extent = {1: (1, 2, 7, 33, 150, 301), 2: (1, 3, 8, 17, 40), 3: (1, 2, 5, 9)}[dims]
    try:
        layer = ConvTranspose(dims, ci, co, kernel, stride=stride, dilation=dilation, groups=groups, bias=rng.random() < 0.5,
                              padding=tuple(rng.randrange(k + 1) for k in kernel),
                              output_padding=tuple(rng.randrange(max(s, d)) for s, d in zip(stride, dilation, strict=True)))
        return Workload(layer, rng.choice((1, 2, 3)), each(extent))
    except BadRequest:
        return None


def served(variant: Variant, workloads: list[Workload]) -> list[tuple[Candidate, Workload]]:
    """The first few of these that the variant serves, in its first precision and the exported file's special form."""
    dtype, found = DTYPE_OF.get(variant.precision[0], "float32"), []
    for workload in workloads:
        candidate = Candidate(variant, workload.layer, dtype, {})
        if candidate.precision and why_not(candidate, sm=90) is None:
            found.append((candidate, replace(workload, dtype=dtype)))
            if len(found) == LAYERS:
                break
    return found


@pytest.mark.parametrize("variant", discover(), ids=lambda v: v.key)
def test_twenty_random_layers(variant: Variant, runner: Runner) -> None:
    rng = random.Random(SEED)
    workloads = [w for w in (drawn(rng) for _ in range(DRAWS)) if w is not None]
    found = [(render(c), w) for c, w in served(variant, workloads)]
    assert len(found) == LAYERS
    built = runner.build_all([r for r, _ in found], "cuda:0")
    bad = []
    for rendered, workload in found:
        build = built[rendered.candidate_id]
        result = build if build.status != "OK" else runner.judge_once(
            "cuda:0", rendered, build, RunRequest(workload, (), effort="quick", time=False))
        if result.status != "OK":
            bad.append(f"{workload.layer} x {list(workload.input_shape)}: {result.status} {result.headline}")
    print(f"{len(found) - len(bad)} of {len(found)} random cases are right")
    assert not bad, "\n".join(bad)
