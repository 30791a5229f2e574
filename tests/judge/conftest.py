"""Built once per worker process of pytest: the bad kernels, and the naive variants in every direction and dtype."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.core.candidate import Candidate
from workbench.core.layer import DIRECTIONS, DTYPES
from workbench.core.variants import discover, find
from workbench.drive.checking.attacks import attacks, kernels

from .bench import LAYER, Built, bad_candidate, build_batch

NOT_BUILT = {"undefined_identifier", "undefined_tunable", "builds_for_minutes"}
WANTED = {"remembers_the_answer", "one_thread_reads", "past_its_shared", "reads_past_its_shared"}
IN_A_NEW_PROCESS = ["reads_the_next_value", "reads_the_value_before", "grid_of_the_first_launch", "two_blocks_add",
                    "always_grad_bias", "aligns_down", "constant_weights", "fence_for_an_atomic", "last_block_no_fence",
                    "adds_in_shared", "plan_by_count", "vectors_of_weights", "keeps_its_scratch", "never_frees",
                    "default_stream"]
LATELY = ["looks_for_the_guard", "one_factor_for_a_tensor", "products_in_float16"]   # found by the last comparison


@pytest.fixture(scope="session")
def bad_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kernels(tmp_path_factory.mktemp("attacks"))


@pytest.fixture(scope="session")
def bad(bad_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Bad kernels that can be built; the self-test has more."""
    of_others = {a.name for a in attacks() if a.kind == "kernel" and a.source != "findings"}
    left = NOT_BUILT | of_others - {*WANTED, *IN_A_NEW_PROCESS, *LATELY}
    candidates = [bad_candidate(bad_root, v.name, direction=v.direction) for v in discover(bad_root) if v.name not in left]
    candidates += [bad_candidate(bad_root, "many_defects", FIRST=first) for first in range(1, 5)]
    return build_batch(candidates, tmp_path_factory.mktemp("bad"))


@pytest.fixture(scope="session")
def naive(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """naive_gather in three directions and four dtypes, for any layer."""
    candidates = [Candidate(find("naive_gather", direction), LAYER, dtype, {}, form="runtime")
                  for direction in DIRECTIONS for dtype in DTYPES]
    return build_batch(candidates, tmp_path_factory.mktemp("naive"))


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("truth")


