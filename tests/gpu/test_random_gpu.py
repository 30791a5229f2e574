"""On a GPU: twenty random layers for each variant, drawn from all that it serves."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from tests.require import require
from workbench.core.candidate import Candidate, why_not
from workbench.core.errors import BadRequest
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.template import render
from workbench.core.variants import Variant, discover
from workbench.drive.running.request import RunRequest
from workbench.drive.running.runner import Runner

LAYERS, DRAWS, SEED = 20, 4_000, 20
CHANNELS = (1, 2, 3, 5, 8, 12, 16, 24, 32, 40, 48, 64, 96)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    require(torch.cuda.is_available(), "an NVIDIA GPU")
    with Runner() as shared:
        yield shared


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
    """The first few of these that the variant serves, in the form of the exported file's special case."""
    found = []
    for workload in workloads:
        candidate = Candidate(variant, workload.layer, "float32", {})
        if candidate.precision and why_not(candidate, sm=90) is None:
            found.append((candidate, workload))
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
    print(f"{len(found) - len(bad)} of {len(found)} random cases hold")
    assert not bad, "\n".join(bad)
