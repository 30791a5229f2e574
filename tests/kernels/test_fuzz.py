"""Random layers on the emulator, in every precision: the general variants in the run-time form, where one build serves all
layers; every other variant with the layer as constants, in each memory format that its launcher takes.

`make test` runs few layers, the same every time. KW_FUZZ=500 runs 500 of each, KW_FUZZ_SEED=2 other ones. Of the general
variants a failing layer is shrunk to the smallest.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, seed, settings
from hypothesis import strategies as st

from workbench.core.candidate import EMULATED_SM, Candidate
from workbench.core.errors import BadRequest
from workbench.core.layer import CHANNELS_LAST, CONTIGUOUS, DIRECTIONS, ConvTranspose, Workload
from workbench.core.precision import PRECISIONS_OF
from workbench.core.space import SearchSpace
from workbench.core.variants import TEMPLATES, Variant, discover

from .harness import Library, build_emulated, label, macs, run

ASKED, SEED = os.environ.get("KW_FUZZ"), int(os.environ.get("KW_FUZZ_SEED", "0"))
AS_CONSTANTS, NOW = int(ASKED or 8), 2  # layers; `make test` runs the first NOW
MOST_MACS, MOST_OUTPUTS = 150_000, 12_000
DTYPE = {precision: dtype for dtype, several in PRECISIONS_OF.items() for precision in several}
VARIANTS = discover(TEMPLATES)
OTHERS = ("fp16", "bf16", "fp64")
GENERAL = [v for v in VARIANTS if "runtime" in v.forms and "ieee" in v.precision]


def layer_of(pick: Callable[[Sequence[int]], int]) -> Workload | None:
    """A layer with 1 to 3 dimensions whose work stays small. None for parameters that are no such layer, about half of them."""
    dims = pick((1, 2, 3))
    groups = pick((1, 1, 1, 2, 3, 5))
    ci, co = (groups * pick(range(1, 19 if groups == 1 else 5)) for _ in range(2))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(pick(range(low, high + 1)) for _ in range(dims))

    kernel, stride, dilation = each(1, 7 if dims < 3 else 4), each(1, 5), each(1, 4)
    padding = each(0, 6)
    output_padding = tuple(pick(range(max(s, d))) for s, d in zip(stride, dilation, strict=True))
    size = each(1, {1: 70, 2: 14, 3: 6}[dims])
    try:
        layer = ConvTranspose(dims, ci, co, kernel, stride, padding, output_padding, groups, bool(pick((0, 1))), dilation)
        work = Workload(layer, pick((1, 2, 3)), size, seed=pick(range(100)))
    except BadRequest:
        return None
    return work if macs(work) <= MOST_MACS and prod(work.output_shape) <= MOST_OUTPUTS else None


@st.composite
def workloads(draw: st.DrawFn, dtype: str) -> Workload:
    work = layer_of(lambda values: draw(st.sampled_from(values)))
    assume(work is not None)
    return replace(work, dtype=dtype)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    assert {v.direction for v in GENERAL} >= set(DIRECTIONS)
    return build_emulated([general(v, p) for v in GENERAL for p in v.precision], tmp_path_factory.mktemp("fuzz"))


def general(variant: Variant, precision: str) -> Candidate:
    return Candidate(variant, ConvTranspose(1, 1, 1, 1), DTYPE[precision], {}, precision=precision, form="runtime")


@pytest.mark.xdist_group("fuzz")
@pytest.mark.parametrize(("precision", "layers"), [("ieee", int(ASKED or 60)), *((p, int(ASKED or 15)) for p in OTHERS)])
def test_general_variants(precision: str, layers: int, library: Library) -> None:
    right: set[Workload] = set()
    members = [general(v, precision) for v in GENERAL if precision in v.precision]

    @seed(SEED)
    @settings(max_examples=layers, deadline=None, database=None, suppress_health_check=[
        HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large])
    @given(workloads(DTYPE[precision]))
    def every_variant(work: Workload) -> None:
        assume(work not in right)  # drawn before: another one instead
        for one in members:
            outcome = run(library, one, work, order=work.seed + 1, values=("integers", "floats")[work.seed % 2])
            assert outcome.status == "OK", f"{one.variant.key} on {label(work)}: {outcome.status} {outcome.text}"
        right.add(work)

    every_variant()
    print(f"{len(right)} layers, {len(members)} variants")
    assert len(right) == layers


def as_constants(work: Workload) -> Iterator[Candidate]:
    """Each variant that serves the layer, in every precision and memory format; at its default config or the nearest one."""
    for variant in VARIANTS:
        for precision in (p for p in variant.precision if "runtime" not in variant.forms):
            for kept in (CONTIGUOUS, CHANNELS_LAST):
                space = SearchSpace(variant, work.layer, DTYPE[precision], EMULATED_SM, precision, "constant", kept)
                config = space.nearest(space.default)
                if config and space.candidate(config).takes_channels_last == (kept == CHANNELS_LAST):
                    yield space.candidate(config)


@pytest.mark.parametrize("number", [pytest.param(n, marks=[] if ASKED or n < NOW else [pytest.mark.long])
                                    for n in range(AS_CONSTANTS)])
def test_variants_for_one_layer(number: int, tmp_path: Path) -> None:
    draw = random.Random(f"{SEED} {number}")
    work = next(filter(None, iter(lambda: layer_of(draw.choice), 0)))
    asked = list(as_constants(work))
    if not ASKED and number < NOW:  # of each variant one
        asked = list({one.variant.key: one for one in draw.sample(asked, len(asked))}.values())
    library = build_emulated(asked, tmp_path)
    wrong = []
    for one in asked:
        outcome = run(library, one, replace(work, dtype=one.dtype), order=draw.randint(1, 1000),
                      values=draw.choice(("integers", "floats")))
        kept = CHANNELS_LAST if one.takes_channels_last else CONTIGUOUS
        print(one.variant.key, one.precision, kept, outcome.status)
        wrong += [f"{one.variant.key} {one.precision} {kept}: {outcome.status} {outcome.text}"] * (outcome.status != "OK")
    assert not wrong and len(asked) > 5, "\n".join([label(work), *wrong])
