"""Every variant inside a ModelNew: given an input that is not contiguous, one that is channels_last, and other sizes, it does
what PyTorch does. (A launcher alone only ever sees contiguous tensors: test_matrix.py.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.core.candidate import EMULATED_SM, Candidate, why_not
from workbench.core.layer import BACKWARD, DIRECTIONS, ConvTranspose, Workload
from workbench.core.variants import TEMPLATES, discover
from workbench.drive.exporting.export import Recipe, export_text
from workbench.drive.running.worker_process import WorkerProcess

from .recipes import run

WORKLOADS = [Workload(ConvTranspose(2, 6, 4, (3, 2), stride=(2, 3), padding=(1, 0), groups=2), 2, (5, 6)),
             Workload(ConvTranspose(2, 16, 24, 3, padding=1), 1, (4, 16)),
             Workload(ConvTranspose(2, 5, 5, 3, stride=2, groups=5), 2, (4, 7)),
             Workload(ConvTranspose(2, 8, 16, 2, stride=2), 1, (3, 18)),
             Workload(ConvTranspose(2, 16, 24, (1, 3)), 1, (4, 16))]


def recipes() -> list[Recipe]:
    """As few as hold every variant once: up to one of each direction, on the first layer that they serve, in one precision."""
    waiting: dict[tuple[int, str], dict[str, list[Candidate]]] = {}
    for variant in discover(TEMPLATES):
        number, one = next((n, c) for n, c in ((n, Candidate(variant, w.layer, w.dtype, {})) for n, w in enumerate(WORKLOADS))
                           if why_not(c, sm=EMULATED_SM) is None)
        waiting.setdefault((number, one.precision), {}).setdefault(variant.direction, []).append(one)
    found = []
    for (number, _), by_direction in waiting.items():
        both = by_direction.pop(BACKWARD, [])
        found += [Recipe(WORKLOADS[number], backward=one) for one in both]
        for turn in range(max(map(len, by_direction.values()), default=0)):
            found.append(Recipe(WORKLOADS[number], **{d: c[turn] for d, c in by_direction.items() if turn < len(c)}))
    return found


RECIPES = recipes()


def _id(recipe: Recipe) -> str:
    return "+".join(f"{d}.{c.variant.name}" for d in (*DIRECTIONS, BACKWARD) if (c := getattr(recipe, d)))


def test_each_variant_is_among_them() -> None:
    inside = [c.variant.key for r in RECIPES for d in (*DIRECTIONS, BACKWARD) if (c := getattr(r, d))]
    assert sorted(inside) == sorted(v.key for v in discover(TEMPLATES))


@pytest.mark.parametrize("recipe", RECIPES, ids=_id)
def test_it_takes_any_layout(recipe: Recipe, folder: Path, worker: WorkerProcess) -> None:
    result = run(worker, export_text(recipe), recipe.workload, folder)
    assert result.status == "OK", result
    assert {"a non-contiguous input", "a channels_last input"} <= set(result.detail.checked)
