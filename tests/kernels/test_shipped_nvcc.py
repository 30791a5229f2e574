"""What `--best` gives compiles without spills for its architecture: of the shipped file one entry of each variant and
precision, and in `make test-long` the fastest of every cell."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest

from tests.require import require
from workbench.core.best_known import BestKnown, load
from workbench.core.candidate import why_not
from workbench.core.command import parse_layer
from workbench.core.gpu import sm_of
from workbench.core.layer import BACKWARD, DIRECTIONS, LAUNCHES, Workload
from workbench.core.precision import CLASSES_OF
from workbench.core.presets import KERNELBENCH
from workbench.drive.bench.best import Nvcc
from workbench.drive.exporting.best_recipe import best_recipe, left_to_pytorch


def chosen(every: bool) -> list[BestKnown]:
    """The fastest of each variant and precision; or of every cell. Cells share some of their entries."""
    fastest: dict[tuple[str, ...], BestKnown] = {}
    for entry in sorted(load(), key=lambda e: e.ms):
        fastest.setdefault(entry.key if every else (entry.arch, entry.direction, entry.variant, entry.precision), entry)
    different = {(e.arch, e.layer, e.direction, e.variant, e.precision, *e.config.items()): e for e in fastest.values()}
    return list(different.values())


@pytest.mark.timeout(1800)  # all of one pair take two minutes on an idle core, and the cores are not idle
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)], ids=["some", "every"])
@pytest.mark.parametrize(("arch", "direction"), list(product(("sm_80", "sm_90"), LAUNCHES)))
def test_shipped_configs_compile_without_spills(arch: str, direction: str, every: bool) -> None:
    entries = [e for e in chosen(every) if (e.arch, e.direction) == (arch, direction)]
    assert entries or (arch, direction) == ("sm_80", BACKWARD)  # nobody has asked for both gradients at once there
    with Nvcc() as nvcc:
        require(nvcc.problem is None, str(nvcc.problem))

        def problem(entry: BestKnown) -> str:
            work = Workload(parse_layer(entry.layer), entry.batch, entry.input_size, entry.dtype)
            candidate = entry.candidate(work)
            reason = why_not(candidate, sm=sm_of(entry.arch))
            spilled = None if reason else nvcc.spills(candidate, entry.arch)
            return "" if spilled == 0 else f"{entry.key} {entry.variant} {entry.config}: {reason or f'spills {spilled} bytes'}"

        with ThreadPoolExecutor(nvcc.size) as pool:
            problems = [text for text in pool.map(problem, entries) if text]
    print(f"{len(entries)} of {len(load())} shipped configs compiled")
    assert not problems, "\n".join(problems)


def test_every_layer_of_the_suite_has_a_shipped_config_on_both_architectures() -> None:
    there = {entry.key[:5] for entry in load()}
    missing = [(arch, layer, direction, precision_class) for arch in ("sm_80", "sm_90")
               for precision_class in CLASSES_OF["float32"] for direction in DIRECTIONS
               for layer in (str(p.workload().layer) for p in KERNELBENCH.values())
               if (arch, layer, direction, "float32", precision_class) not in there]
    assert not missing, missing


@pytest.mark.parametrize("precision", ["", *CLASSES_OF["float32"]])
def test_for_the_a100_every_layer_is_exported_in_every_direction(precision: str) -> None:
    """What PyTorch took on the GPU that was measured says nothing of an A100: no direction is left to it for that."""
    for preset in KERNELBENCH.values():
        recipe, entries = best_recipe(preset.workload(), "sm_80", precision=precision)
        assert set(recipe.precision) == set(DIRECTIONS) and all(e.predicted for e in entries), preset.name
        assert not left_to_pytorch(recipe, "sm_80")
