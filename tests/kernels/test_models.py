"""The small forms of the suite `models` on the emulator, all directions by the first steps of the ladder."""

from __future__ import annotations

import pytest

from workbench.core.layer import DIRECTIONS
from workbench.core.presets import MODELS
from workbench.core.variants import find

from .harness import Library, build_emulated, candidate, run

VARIANTS = [find("naive_gather", direction) for direction in DIRECTIONS]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    any_layer = MODELS["models/sam-1"].workload("small")
    return build_emulated([candidate(v, any_layer) for v in VARIANTS], tmp_path_factory.mktemp("models"), flags=["-O2"])


@pytest.mark.parametrize("name", MODELS)
def test_a_small_form_is_computed_exactly(library: Library, name: str) -> None:
    workload = MODELS[name].workload("small")
    for variant in VARIANTS:
        outcome = run(library, candidate(variant, workload), workload)
        assert outcome.status == "OK", f"{variant.key}: {outcome.text}"
