"""The layers of both suites: shapes as published, three sizes, names, sources."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod

import pytest
import torch

from workbench.core.errors import BadRequest
from workbench.core.facts import bytes_moved, macs
from workbench.core.presets import (
    KERNELBENCH,
    MODELS,
    PRESETS,
    SIZES,
    SUITES,
    Preset,
    default_size,
    parse_preset,
    preset,
    trial_bytes,
)

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
    assert [p.number for p in KERNELBENCH.values()] == sorted(PUBLISHED)
    assert not any(p.layer.bias for p in KERNELBENCH.values())


@pytest.mark.parametrize("number", PUBLISHED)
def test_full_size_is_the_published_one(number: int) -> None:
    work = preset(f"kb{number}").workload()
    assert (work.input_shape, work.output_size) == PUBLISHED[number]
    assert work.preset == f"kb{number}/full"


@pytest.mark.parametrize("name", PRESETS)
def test_sizes_keep_the_layer_and_hold_their_promise(name: str) -> None:
    chosen = PRESETS[name]
    full, medium, small = (chosen.workload(s) for s in SIZES)
    assert full.layer == medium.layer and replace(small.layer, in_channels=1, out_channels=1, groups=1) == replace(
        full.layer, in_channels=1, out_channels=1, groups=1)
    assert small.layer == full.layer or chosen.small_channels  # the weight alone is too much for the emulator
    assert trial_bytes(medium) < 6e9
    assert medium.batch <= full.batch and medium.input_size == full.input_size
    l2 = 50 * 2**20
    assert medium == full or bytes_moved(medium, "forward").total_bytes > 4 * l2  # the medium size still misses L2
    assert 0.3e7 < macs(small) < 1.3e7 and prod(small.layer.weight_shape) < 600_000
    assert prod(small.output_shape) < 1_000_000


@pytest.mark.parametrize("text", ["kb74/small", "74/small", "#74/small", " KB74/Small ", "KernelBench #74/small",
                                  "kernelbench/kb74/small"])
def test_a_preset_is_found_by_its_number(text: str) -> None:
    assert parse_preset(text) == (PRESETS["kb74"], "small")


@pytest.mark.parametrize("text", ["models/sam-1/small", "sam-1/small", " Models/SAM-1/small"])
def test_a_preset_of_the_models_is_found_with_and_without_its_suite(text: str) -> None:
    assert parse_preset(text) == (PRESETS["models/sam-1"], "small")


@pytest.mark.parametrize("chosen", PRESETS.values(), ids=list(PRESETS))
def test_a_preset_is_found_by_all_its_names(chosen: Preset) -> None:
    assert preset(chosen.name) is preset(chosen.label) is chosen and chosen.title.startswith(chosen.label)
    assert chosen.listed.startswith(chosen.label) and len(chosen.listed) <= 35  # what the page's list has room for
    for size in SIZES:
        assert parse_preset(chosen.workload(size).preset) == (chosen, size)


def test_without_a_size_the_default_is_taken() -> None:
    assert parse_preset("81")[1] == "full"
    assert parse_preset("81", default_size=default_size("cpu"))[1] == "small"
    assert parse_preset("81", default_size=default_size("cuda:1"))[1] == "full"


@pytest.mark.parametrize(("text", "words"), [
    ("kb80", ["kb80", "kb79", "kb81"]), ("63", ["kb61", "kb64"]), ("kb7x", ["kb7x", "kb7"]),
    ("models/sam-3", ["models/sam-1", "models/sam-2"]), ("hifi", ["models/hifigan-2"]),
    ("models/sam-1/tiny", ["tiny", "models/sam-1/full"]), ("models/sam-1/small/small", ["small/small"]),
    ("kb74/tiny", ["tiny", "kb74/full", "kb74/medium", "kb74/small"]), ("", ["kb57", "kb81"])])
def test_a_wrong_name_is_answered_with_the_nearest(text: str, words: list[str]) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_preset(text)
    assert caught.value.field == "preset" or "size" in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", KERNELBENCH)
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
    assert [p.number for p in KERNELBENCH.values() if not p.order_known] == [65, 71, 72, 79]


# name -> input, weight and output shape of the full size, and whether there is a bias
LAYERS_OF_MODELS = {
    "hifigan-1": ((16, 512, 32), (512, 256, 16), (16, 256, 256), True),
    "hifigan-2": ((16, 256, 256), (256, 128, 16), (16, 128, 2048), True),
    "hifigan-3": ((16, 128, 2048), (128, 64, 4), (16, 64, 4096), True),
    "hifigan-4": ((16, 64, 4096), (64, 32, 4), (16, 32, 8192), True),
    "stream-2": ((1, 256, 64), (256, 128, 16), (1, 128, 512), True),
    "dac-1": ((8, 1536, 87), (1536, 768, 16), (8, 768, 696), True),
    "dac-3": ((8, 384, 5568), (384, 192, 8), (8, 192, 22272), True),
    "encodec-2": ((16, 256, 600), (256, 128, 10), (16, 128, 3005), True),
    "bigvgan-resample": ((4, 768, 1024), (768, 1, 12), (4, 768, 2058), False),
    "dcgan-2": ((128, 512, 4, 4), (512, 256, 4, 4), (128, 256, 8, 8), False),
    "dcgan-4": ((128, 128, 16, 16), (128, 64, 4, 4), (128, 64, 32, 32), False),
    "pix2pix": ((16, 256, 64, 64), (256, 64, 4, 4), (16, 64, 128, 128), True),
    "pose": ((64, 256, 32, 24), (256, 256, 4, 4), (64, 256, 64, 48), False),
    "vae": ((1, 512, 128, 128), (512, 256, 3, 3), (1, 256, 256, 256), True),
    "unet-2": ((8, 256, 128, 128), (256, 128, 2, 2), (8, 128, 256, 256), True),
    "sam-1": ((16, 256, 64, 64), (256, 64, 2, 2), (16, 64, 128, 128), True),
    "sam-2": ((16, 64, 128, 128), (64, 32, 2, 2), (16, 32, 256, 256), True),
    "maskrcnn": ((512, 256, 14, 14), (256, 256, 2, 2), (512, 256, 28, 28), True),
    "pillars": ((4, 256, 62, 54), (256, 128, 4, 4), (4, 128, 248, 216), False),
    "nnunet-1": ((2, 320, 8, 10, 12), (320, 320, 2, 2, 2), (2, 320, 16, 20, 24), True),
    "nnunet-4": ((2, 64, 64, 80, 96), (64, 32, 2, 2, 2), (2, 32, 128, 160, 192), True),
    "monai": ((4, 64, 48, 48, 48), (64, 32, 3, 3, 3), (4, 32, 96, 96, 96), True)}


def test_all_layers_of_the_models_are_there_with_their_source() -> None:
    assert [p.name for p in MODELS.values()] == [f"models/{name}" for name in LAYERS_OF_MODELS]
    assert all(p.suite == suite for suite, there in SUITES.items() for p in there.values())
    for chosen in PRESETS.values():
        assert re.fullmatch(r"[\w.-]+/[\w.-]+[ #].+", chosen.source), chosen.source  # owner/repository and the place in it


@pytest.mark.parametrize("name", LAYERS_OF_MODELS)
def test_a_layer_of_the_models_is_that_of_pytorch(name: str) -> None:
    """PyTorch's module made of the preset's parameters takes and gives the tensors that the table above names."""
    layer, work = preset(f"models/{name}").layer, preset(f"models/{name}").workload()
    with torch.device("meta"):
        module = getattr(torch.nn, f"ConvTranspose{layer.dims}d")(
            layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding, layer.output_padding,
            layer.groups, layer.bias, layer.dilation)
        shapes = work.input_shape, tuple(module.weight.shape), tuple(module(torch.empty(work.input_shape)).shape)
    assert (*shapes, module.bias is not None) == LAYERS_OF_MODELS[name]
    assert shapes[2] == work.output_shape and eval(str(layer), vars(torch.nn)).extra_repr() == module.extra_repr()
