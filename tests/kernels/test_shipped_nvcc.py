"""What `--best` gives compiles without spills for its architecture: of the shipped file one entry of each variant and
precision, and every entry where everything is required (KW_REQUIRE_ALL, as CI sets it)."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from tests.require import require
from workbench.core.best_known import CLASSES, BestKnown, load, sm_of
from workbench.core.candidate import why_not
from workbench.core.command import parse_layer
from workbench.core.layer import DIRECTIONS, Workload
from workbench.core.presets import PRESETS
from workbench.drive.bench.spills import Nvcc


def chosen() -> list[BestKnown]:
    if os.environ.get("KW_REQUIRE_ALL"):
        return load()
    first: dict[tuple[str, ...], BestKnown] = {}
    for entry in load():
        first.setdefault((entry.arch, entry.direction, entry.variant, entry.precision), entry)
    return list(first.values())


def test_every_shipped_config_compiles_without_spills() -> None:
    with Nvcc() as nvcc:
        require(nvcc.problem is None, str(nvcc.problem))

        def problem(entry: BestKnown) -> str:
            work = Workload(parse_layer(entry.layer), entry.batch, entry.input_size, entry.dtype)
            candidate = entry.candidate(work)
            reason = why_not(candidate, sm=sm_of(entry.arch))
            spilled = None if reason else nvcc.spills(candidate, entry.arch)
            return "" if spilled == 0 else f"{entry.key} {entry.variant} {entry.config}: {reason or f'spills {spilled} bytes'}"

        entries = chosen()
        with ThreadPoolExecutor(nvcc.size) as pool:
            problems = [text for text in pool.map(problem, entries) if text]
    print(f"{len(entries)} of {len(load())} shipped configs compiled")
    assert not problems, "\n".join(problems)


def test_every_layer_of_the_suite_has_a_shipped_config_on_both_architectures() -> None:
    there = {entry.key for entry in load()}
    missing = [(arch, layer, direction, precision_class) for arch in ("sm_80", "sm_90") for precision_class in CLASSES
               for direction in DIRECTIONS for layer in (str(p.workload().layer) for p in PRESETS.values())
               if (arch, layer, direction, "float32", precision_class) not in there]
    assert not missing, missing
