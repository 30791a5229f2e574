"""The search space: its size, what each constraint takes away, and samples that repeat; the language of the constraints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from workbench.core.candidate import Candidate, tiles_of
from workbench.core.errors import RenderError
from workbench.core.expressions import evaluate, names_in
from workbench.core.layer import MEMORY_FORMATS
from workbench.core.presets import PRESETS, preset
from workbench.core.space import MEMORY_FORMAT, SHARED_MEMORY, SearchSpace
from workbench.core.variants import TEMPLATES, Variant, discover, find, parse
from workbench.core.wrong_values import Tile

GPUS = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}  # compute capability -> KB of shared memory for a block


@pytest.fixture
def space(tmp_path: Path) -> SearchSpace:
    path = tmp_path / "forward" / "tiled.cu"
    header = """/* variant
name = "tiled"
computes = ["forward"]
idea = "x"
precision = ["ieee"]
needs = ["TILE % CO == 0", "TILE <= 64 * layer.kernel_w"]
[tune]
TILE = {values = [32, 64, 1024, 2048], default = 64}
CO = {values = [1, 2, 3], default = 1}
[derived]
smem_bytes = "512 * TILE * CO"
*/
"""
    return SearchSpace(parse(header, path), preset("kb74").layer, "float32", sm=90)


def test_the_size_is_explained_as_a_subtraction(space: SearchSpace) -> None:
    """kernel_w 5 allows TILE up to 320; the shared memory of sm_90 (232 448 bytes) then takes nothing more."""
    assert space.size == 12
    assert space.explain() == [("all", 12), ("TILE % CO == 0", -4), ("TILE <= 64 * layer.kernel_w", -4), ("valid", 4)]
    assert sum(n for _, n in space.explain()[:-1]) == space.explain()[-1][1] == len(list(space))


def test_shared_memory_is_a_constraint_of_its_own(space: SearchSpace) -> None:
    freed = SearchSpace(parse(space.variant.text.replace('"TILE <= 64 * layer.kernel_w"', ""), space.variant.path),
                        space.layer, "float32", sm=90)
    assert dict(freed.explain()) == {"all": 12, "TILE % CO == 0": -4, SHARED_MEMORY: -4, "valid": 4}
    assert dict(SearchSpace(freed.variant, freed.layer, "float32", sm=86).explain())["valid"] == 4


def test_the_tiles_of_a_config_are_those_that_its_tunables_name(space: SearchSpace) -> None:
    def tiles(variant: Variant, **config: int) -> tuple[Tile, ...]:
        return tiles_of(Candidate(variant, preset("kb74").layer, "float32", config), sm=90)
    assert tiles(space.variant) == (Tile("TILE", "W", 64),)
    gathered = find("gathered_mma", "forward")
    assert {tile.name: tile.axis for tile in tiles(gathered)} == {"TILE_M": "C", "TILE_N": "W"}, "resolved"
    assert tiles(find("naive_gather", "forward"), CO_PER_THREAD=2) == (Tile("CO_PER_THREAD", "CO", 2),)


def test_a_config_for_channels_last_is_for_that_alone(space: SearchSpace) -> None:
    text = space.variant.text.replace('[tune]\n', '[tune]\nCHANNELS_LAST = {values = [0, 1], default = 0}\n')
    variant = parse(text, space.variant.path)
    contiguous, last = (SearchSpace(variant, space.layer, "float32", 90, memory_format=name) for name in MEMORY_FORMATS)
    assert dict(contiguous.explain())[MEMORY_FORMAT] == -12 and MEMORY_FORMAT not in dict(last.explain())
    assert dict(last.explain())["valid"] == 2 * dict(contiguous.explain())["valid"] == 8
    assert contiguous.default["CHANNELS_LAST"] == 0 and last.default["CHANNELS_LAST"] == 1 and next(iter(last)) == last.default
    wrong = {**contiguous.default, "CHANNELS_LAST": 1}
    assert contiguous.why_not(wrong) == "Not run: CHANNELS_LAST=1 is for channels_last; the activations are contiguous."
    assert contiguous.nearest(wrong) == contiguous.default
    with pytest.raises(RenderError, match="the tunable CHANNELS_LAST has neither the values 0 and 1"):
        parse(text.replace("[0, 1]", "[0, 2]"), space.variant.path)


def test_a_variant_for_channels_last_alone_says_so_where_activations_are_contiguous() -> None:
    variant = find("channels_last_wgmma", "forward")
    contiguous, last = (SearchSpace(variant, preset("models/pose").layer, "bfloat16", 90, memory_format=name)
                        for name in MEMORY_FORMATS)
    reason = contiguous.why_not(variant.default_config)
    assert reason == "Not run: channels_last_wgmma is for channels_last; the activations are contiguous."
    assert not contiguous.depends_on_config(reason) and dict(contiguous.explain())["valid"] == 0
    assert last.why_not(last.default) is None


def test_configs_are_valid_different_and_start_with_the_default(space: SearchSpace) -> None:
    configs = list(space)
    assert configs[0] == {"TILE": 64, "CO": 1}
    assert len({tuple(c.items()) for c in configs}) == len(configs)
    assert all(c["TILE"] % c["CO"] == 0 and c["TILE"] <= 320 for c in configs)


def test_the_nearest_config_changes_few_tunables_and_these_by_little(space: SearchSpace) -> None:
    def nearest(tile: int, co: int, sm: int = 90) -> dict[str, int] | None:
        return SearchSpace(space.variant, space.layer, "float32", sm=sm).nearest({"TILE": tile, "CO": co})

    assert nearest(64, 2) == {"TILE": 64, "CO": 2}                 # it can run
    assert nearest(64, 3) == {"TILE": 64, "CO": 2}                 # one place in the list of CO
    assert nearest(2048, 1) == {"TILE": 64, "CO": 1}               # two places; CO alone does not help
    assert nearest(2048, 3) == {"TILE": 64, "CO": 2}               # both have to change
    groups = replace(space.variant, needs=("layer.groups == 2",))
    assert SearchSpace(groups, space.layer, "float32", sm=90).nearest({"TILE": 64, "CO": 1}) is None


def test_only_a_reason_that_a_config_can_change_is_searched_around(space: SearchSpace) -> None:
    made = replace(space, variant=replace(space.variant, needs=("layer.groups == 1", "TILE >= 64")))
    assert not made.depends_on_config("Not run: x needs layer.groups == 1; here layer.groups is 4.")
    assert made.depends_on_config("Not run: x needs TILE >= 64; here TILE is 32.")
    assert made.depends_on_config("Not run: A=1 needs 300 000 bytes of shared memory, this GPU has 232 448.")
    assert not made.depends_on_config("Not run: x needs sm_90, this GPU is sm_80.")


def test_a_sample_repeats_with_its_seed(space: SearchSpace) -> None:
    assert space.sample(3, seed=1) == space.sample(3, seed=1)
    assert sorted(map(str, space.sample(99, seed=2))) == sorted(map(str, space))
    assert len({str(space.sample(4, seed=s)) for s in range(20)}) > 3


def test_general_variants_have_a_valid_default_on_every_preset() -> None:
    """Fast variants serve the layers their `needs` admit; the general ones serve all."""
    general = [v for v in discover(TEMPLATES) if "runtime" in v.forms]
    assert len(general) >= 9
    for variant in general:
        for chosen in PRESETS.values():
            for sm in GPUS:
                for dtype in ("float32", "float16", "float64"):
                    reason = SearchSpace(variant, chosen.layer, dtype, sm=sm).why_not(variant.default_config)
                    assert reason is None, (variant.key, chosen.name, sm, dtype, reason)


@pytest.mark.parametrize(("sm", "kb"), GPUS.items())
def test_what_a_gpu_lacks_is_said(space: SearchSpace, sm: int, kb: int) -> None:
    """Shared memory to the byte, and instructions of sm_90a, which no newer GPU has."""
    def reason(kilobytes: int, **more: object) -> str | None:
        fixed = replace(space.variant, needs=(), derived=(("smem_bytes", f"1024 * {kilobytes} + CO - 1"),), **more)
        return SearchSpace(fixed, space.layer, "float32", sm=sm).why_not(fixed.default_config)

    assert reason(kb) is None
    asked, limit = (f"{size:,}".replace(",", " ") for size in (1024 * (kb + 1), 1024 * kb))
    assert reason(kb + 1) == f"Not run: TILE=64 CO=1 needs {asked} bytes of shared memory, this GPU has {limit}."
    hopper = reason(kb, min_sm=90, arch="sm_90a")
    if sm == 90:
        assert hopper is None
    else:
        lack = "sm_90" if sm < 90 else "the instructions of sm_90a"
        assert hopper == f"Not run: tiled needs {lack}, this GPU is sm_{sm}."


def test_no_shipped_variant_for_sm_90a_runs_elsewhere() -> None:
    hopper = [v for v in discover(TEMPLATES) if v.arch]
    assert len(hopper) >= 10 and {v.arch for v in hopper} == {"sm_90a"}
    for variant in hopper:
        dtype = "float32" if "tf32" in variant.precision else "bfloat16"
        taken = MEMORY_FORMATS[variant.only_channels_last]
        for name in ("kb61", "models/pose", "models/sam-1"):
            for sm in GPUS:
                space = SearchSpace(variant, preset(name).layer, dtype, sm=sm, memory_format=taken)
                reason = space.why_not(variant.default_config)
                assert sm == 90 or (reason or "").endswith(f", this GPU is sm_{sm}.")


NAMES = {"TILE": 64, "layer": {"groups": 4, "stride_w": 2}, "dtype": "float32"}


@pytest.mark.parametrize(("text", "value"), [
    ("4 * TILE + 1", 257), ("TILE % 3 == 1", True), ("TILE // layer.groups", 16), ("-TILE", -64), ("2 ** 5", 32),
    ("ceil_div(TILE, 60)", 2), ("max(TILE, 100) - min(1, 2) + abs(-3)", 102), ("TILE << 2 >> 1", 128),
    ("1 < layer.stride_w <= 2", True), ("TILE in [32, 64] and not layer.groups == 1", True),
    ("8 if dtype == 'float64' else 4", 4), ("dtype not in ['float16']", True)])
def test_value(text: str, value: object) -> None:
    assert evaluate(text, NAMES) == value


@pytest.mark.parametrize(("text", "words"), [
    ("TILLE + 1", ["TILLE", "which is not defined", "TILE"]), ("layer.strides", ["layer.strides", "stride_w"]),
    ("TILE.real", ["TILE.real"]), ("__import__('os')", ["__import__"]), ("(lambda: 1)()", ["lambda"]),
    ("[x for x in [1]]", ["for x in"]), ("TILE / 2", ["TILE / 2"]), ("f'{TILE}'", ["f'{TILE}'"]), ("1.5", ["1.5"]),
    ("layer['groups']", ["layer['groups']"]), ("4 +", ["cannot be read"]), ("TILE // 0", ["no value", "zero"]),
    ("dtype + 1", ["no value"]), ("min(TILE, key=1)", ["key=1"])])
def test_what_is_not_in_the_grammar_is_named(text: str, words: list[str]) -> None:
    with pytest.raises(RenderError) as caught:
        evaluate(text, NAMES)
    for word in (repr(text), *words):
        assert word in str(caught.value)


def test_names_of_an_expression() -> None:
    assert names_in("4 * TILE + layer.groups") >= {"TILE", "layer.groups"}
