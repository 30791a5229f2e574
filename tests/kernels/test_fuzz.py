"""Random layers through every general variant on the emulator: one build in the run-time form serves them all.

60 layers by default, the same every time; KW_FUZZ=500 draws that many new ones. A failing layer is shrunk to the smallest.
"""

from __future__ import annotations

import os
from math import prod

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from workbench.core.candidate import EMULATED_SM, why_not
from workbench.core.errors import BadRequest
from workbench.core.layer import DIRECTIONS, ConvTranspose, Workload
from workbench.core.variants import TEMPLATES, discover

from .cases import label, macs
from .harness import Library, build_emulated, candidate, run

LAYERS = int(os.environ.get("KW_FUZZ", "60"))
MOST_MACS, MOST_OUTPUTS = 150_000, 12_000
GENERAL = [v for v in discover(TEMPLATES) if "runtime" in v.forms and "ieee" in v.precision]
SETTINGS = settings(max_examples=LAYERS, deadline=None, derandomize="KW_FUZZ" not in os.environ, database=None,
                    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large])


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Any valid layer with 1 to 3 dimensions whose work stays small; about half of them have no output left and go."""
    dims = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 1, 2, 3, 5]))
    ci, co = (groups * draw(st.integers(1, 18 if groups == 1 else 4)) for _ in range(2))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(dims))

    kernel, stride, dilation = each(1, 7 if dims < 3 else 4), each(1, 5), each(1, 4)
    padding = each(0, 6)
    output_padding = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True))
    size = each(1, {1: 70, 2: 14, 3: 6}[dims])
    try:
        layer = ConvTranspose(dims, ci, co, kernel, stride, padding, output_padding, groups, draw(st.booleans()), dilation)
        work = Workload(layer, draw(st.integers(1, 3)), size, seed=draw(st.integers(0, 99)))
    except BadRequest:
        assume(False)
    assume(macs(work) <= MOST_MACS and prod(work.output_shape) <= MOST_OUTPUTS)
    return work


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    members = [candidate(v, Workload(ConvTranspose(1, 1, 1, 1), 1, (1,))) for v in GENERAL]
    assert {v.direction for v in GENERAL} >= set(DIRECTIONS)
    return build_emulated([one for one in members if why_not(one, sm=EMULATED_SM) is None], tmp_path_factory.mktemp("fuzz"))


@pytest.mark.xdist_group("fuzz")
def test_random_layers(library: Library) -> None:
    right: set[str] = set()

    @SETTINGS
    @given(workloads(), st.integers(1, 1000), st.booleans())
    def every_variant(work: Workload, order: int, integers: bool) -> None:
        name = label(work)
        assume(name not in right)  # drawn before: another one instead
        for variant in GENERAL:
            one = candidate(variant, work)
            if why_not(one, sm=EMULATED_SM) is None:
                outcome = run(library, one, work, order=order, values="integers" if integers else "floats")
                assert outcome.status == "OK", f"{variant.key} on {name}: {outcome.status} {outcome.text}"
        right.add(name)

    every_variant()
    print(f"{len(right)} layers, {len(GENERAL)} variants")
    assert len(right) == LAYERS
