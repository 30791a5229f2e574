"""The 17 KernelBench layers: shapes as published, three sizes, names."""

from __future__ import annotations

from math import prod

import pytest

from workbench.core.errors import BadRequest
from workbench.core.facts import bytes_moved, macs
from workbench.core.presets import PRESETS, SIZES, default_size, parse_preset, preset, trial_bytes

# input shape -> output spatial size, as published
PUBLISHED = {57: ((8, 64, 1024, 1024), (1026, 1026)), 58: ((16, 32, 16, 32, 64), (18, 36, 70)),
             61: ((8, 48, 64, 64, 64), (66, 66, 66)), 64: ((64, 128, 65536), (65538,)),
             65: ((8, 64, 512, 512), (514, 518)), 68: ((16, 32, 64, 64, 64), (66, 68, 68)),
             69: ((64, 64, 128, 256), (130, 260)), 70: ((8, 48, 96, 96, 96), (98, 98, 98)),
             71: ((8, 32, 512, 1024), (514, 1026)), 72: ((8, 32, 12, 24, 48), (24, 48, 96)),
             73: ((4, 32, 32, 64, 128), (63, 127, 255)), 74: ((32, 32, 131072), (131084,)),
             75: ((16, 32, 128, 256), (257, 766)), 77: ((16, 32, 16, 32, 32), (33, 65, 65)),
             78: ((8, 32, 512, 1024), (512, 1024)), 79: ((16, 32, 131072), (262145,)),
             81: ((16, 32, 64, 128), (318, 638))}


def test_all_seventeen_are_there() -> None:
    assert [p.number for p in PRESETS.values()] == sorted(PUBLISHED)
    assert not any(p.layer.bias for p in PRESETS.values())


@pytest.mark.parametrize("number", PUBLISHED)
def test_full_size_is_the_published_one(number: int) -> None:
    work = preset(f"kb{number}").workload()
    assert (work.input_shape, work.output_size) == PUBLISHED[number]
    assert work.preset == f"kb{number}/full"


@pytest.mark.parametrize("name", PRESETS)
def test_sizes_keep_the_layer_and_hold_their_promise(name: str) -> None:
    chosen = PRESETS[name]
    full, medium, small = (chosen.workload(s) for s in SIZES)
    assert full.layer == medium.layer == small.layer
    assert trial_bytes(medium) < 6e9
    assert medium.batch <= full.batch and medium.input_size == full.input_size
    l2 = 50 * 2**20
    assert medium == full or bytes_moved(medium, "forward").total_bytes > 4 * l2  # the medium size still misses L2
    assert 0.8e7 < macs(small) < 1.25e7
    assert prod(small.output_shape) < 1_000_000


@pytest.mark.parametrize("text", ["kb74/small", "74/small", "#74/small", " KB74/Small "])
def test_a_preset_is_found_by_its_number(text: str) -> None:
    assert parse_preset(text) == (PRESETS["kb74"], "small")


def test_without_a_size_the_default_is_taken() -> None:
    assert parse_preset("81")[1] == "full"
    assert parse_preset("81", default_size=default_size("cpu"))[1] == "small"
    assert parse_preset("81", default_size=default_size("cuda:1"))[1] == "full"


@pytest.mark.parametrize(("text", "words"), [
    ("kb80", ["kb80", "kb79", "kb81"]), ("63", ["kb61", "kb64"]), ("kb7x", ["kb7x", "kb7"]),
    ("kb74/tiny", ["tiny", "kb74/full", "kb74/medium", "kb74/small"]), ("", ["kb57", "kb81"])])
def test_a_wrong_name_is_answered_with_the_nearest(text: str, words: list[str]) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_preset(text)
    assert caught.value.field == "preset" or "size" in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", PRESETS)
def test_the_constructor_can_say_the_layer(name: str) -> None:
    """Every parameter that differs from PyTorch's default stands in the constructor, else Model could not be built."""
    chosen = PRESETS[name]
    assert chosen.constructor[:5] == ("in_channels", "out_channels", "kernel_size", "stride", "padding")
    assert chosen.constructor[-1] == "bias" and len(set(chosen.constructor)) == len(chosen.constructor)
    for parameter, default in (("output_padding", 0), ("dilation", 1)):
        if any(v != default for v in getattr(chosen.layer, parameter)):
            assert parameter in chosen.constructor and parameter not in chosen.ignored
    assert chosen.layer.groups == 1 or "groups" in chosen.constructor
    assert chosen.attribute == ("conv1d_transpose" if chosen.layer.dims == 1 else f"conv_transpose{chosen.layer.dims}d")


def test_known_constructors() -> None:
    def rest(number: int) -> tuple[str, ...]:
        return PRESETS[f"kb{number}"].constructor[5:]

    assert rest(74) == ("dilation", "bias") and rest(78) == ("bias",)
    assert rest(64) == ("output_padding", "groups", "bias") and rest(75) == ("dilation", "groups", "bias")
    assert rest(69) == rest(70) == ("output_padding", "dilation", "groups", "bias")
    assert PRESETS["kb73"].ignored == ("output_padding",)
    assert [p.number for p in PRESETS.values() if not p.order_known] == [65, 71, 72, 79]
