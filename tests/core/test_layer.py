"""The layer obeys PyTorch's rules, and says which one is broken in one sentence. `struct Problem` of the headers and
`problem_fields` of the library are the same list. The layers of both suites: shapes as published, sizes, names, sources."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shared import parameters, require
from workbench.core.candidate import layer_fields, problem_fields
from workbench.core.errors import BadRequest
from workbench.core.facts import bytes_moved, macs
from workbench.core.layer import ConvTranspose, Workload
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
from workbench.core.variants import TEMPLATES

MODULES = {1: torch.nn.ConvTranspose1d, 2: torch.nn.ConvTranspose2d, 3: torch.nn.ConvTranspose3d}
GOOD = {"dims": 2, "in_channels": 4, "out_channels": 6, "kernel_size": 3}


@pytest.mark.parametrize(("changed", "field", "words"), [
    ({"padding": -1}, "padding", ["padding is -1", "0 or more"]),
    ({"stride": 0}, "stride", ["stride is 0", "1 or more"]),
    ({"dilation": (1, 0)}, "dilation", ["dilation is 0", "1 or more"]),
    ({"kernel_size": 0}, "kernel_size", ["kernel_size is 0", "1 or more"]),
    ({"kernel_size": 2.5}, "kernel_size", ["kernel_size", "2.5"]),
    ({"kernel_size": "33"}, "kernel_size", ["'33'", "whole number"]),
    ({"padding": None}, "padding", ["None", "whole number"]),
    ({"kernel_size": (3, "a")}, "kernel_size", ["'a'", "whole number"]),
    ({"stride": (2, 2, 2)}, "stride", ["stride (2, 2, 2) has 3 numbers", "one or 2"]),
    ({"output_padding": 2, "stride": 2}, "output_padding", ["output_padding 2", "stride 2", "dilation 1"]),
    ({"groups": 4}, "groups", ["out_channels 6", "groups 4"]),
    ({"groups": 3}, "groups", ["in_channels 4", "groups 3"]),
    ({"in_channels": 0}, "in_channels", ["in_channels is 0"]),
    ({"groups": True}, "groups", ["groups is True", "whole number"]),
    ({"dims": 4}, "dims", ["dims is 4", "1, 2 or 3"]),
    ({"stride": 2**31}, "stride", ["2147483648", "give at most 2147483647"]),
    ({"kernel_size": 65537}, "kernel_size", ["65537", "give at most 65536"]),
])
def test_a_broken_rule_is_one_sentence_with_the_value(changed: dict, field: str, words: list[str]) -> None:
    with pytest.raises(BadRequest) as caught:
        ConvTranspose(**GOOD | changed)
    sentence = str(caught.value)
    assert caught.value.field == field
    assert sentence.endswith(".") and "\n" not in sentence and len(sentence) < 160
    for word in words:
        assert word in sentence


@pytest.mark.parametrize(("changed", "field", "words"), [
    ({"batch": 0}, "batch", ["batch is 0"]),
    ({"input_size": (4,)}, "input_size", ["input size 4 has 1 numbers", "takes 2"]),
    ({"input_size": (4, 0)}, "input_size", ["input size is 0"]),
    ({"dtype": "int8"}, "dtype", ["int8", "float32"]),
    ({"memory_format": "nhwc"}, "memory_format", ["nhwc", "channels_last"]),
    ({"layer": ConvTranspose(**GOOD | {"padding": 9})}, "padding", ["padding 9", "output of -"]),
    ({"layer": ConvTranspose(1, 4, 6, 3), "input_size": (8,), "memory_format": "channels_last"}, "memory_format",
     ["2-D and 3-D"]),
])
def test_a_workload_that_has_no_tensors_says_why(changed: dict, field: str, words: list[str]) -> None:
    good = {"layer": ConvTranspose(**GOOD), "batch": 2, "input_size": (8, 8)}
    with pytest.raises(BadRequest) as caught:
        Workload(**good | changed)
    assert caught.value.field == field
    for word in words:
        assert word in str(caught.value)


@settings(max_examples=150, deadline=None)
@given(parameters(), st.data())
def test_output_size_is_pytorchs(chosen: dict, data: st.DataObject) -> None:
    dims = len(chosen["kernel_size"])
    size = tuple(data.draw(st.integers(1, 9)) for _ in range(dims))
    layer = ConvTranspose(dims, **chosen)
    module = MODULES[dims](**chosen, device="meta")
    assert tuple(module.weight.shape) == layer.weight_shape
    assert sum(p.numel() for p in module.parameters()) == layer.parameter_count
    tensor = torch.empty(2, layer.in_channels, *size, device="meta")
    try:
        work = Workload(layer, 2, size)
    except BadRequest:
        try:  # PyTorch refuses some empty outputs and returns others, by batch size and backend
            assert module(tensor).numel() == 0
        except RuntimeError as error:
            assert "too small" in str(error) or "negative" in str(error), error
    else:
        assert tuple(module(tensor).shape) == work.output_shape


@settings(max_examples=60, deadline=None)
@given(parameters(), st.integers(1, 6), st.integers(1, 7))
def test_output_padding_is_refused_exactly_where_pytorch_refuses_it(chosen: dict, extra: int, size: int) -> None:
    dims = len(chosen["kernel_size"])
    chosen |= {"output_padding": (extra,) * dims, "padding": (0,) * dims}
    module = MODULES[dims](**chosen)
    tensor = torch.zeros(1, chosen["in_channels"], *(size,) * dims)
    try:
        ConvTranspose(dims, **chosen)
    except BadRequest:
        with pytest.raises(RuntimeError, match="output padding"):
            module(tensor)
    else:
        module(tensor)


@settings(max_examples=50, deadline=None)
@given(parameters())
def test_a_layer_survives_json_and_reads_as_pytorch_code(chosen: dict) -> None:
    dims = len(chosen["kernel_size"])
    layer = ConvTranspose(dims, **chosen)
    assert ConvTranspose.from_json(layer.to_json()) == layer
    module = eval(str(layer), {f"ConvTranspose{dims}d": MODULES[dims]})
    assert (module.stride, module.padding, module.dilation) == (layer.stride, layer.padding, layer.dilation)
    assert (module.output_padding, module.groups) == (layer.output_padding, layer.groups)
    assert (module.bias is not None) == layer.bias


def test_three_dimensions_hold_the_same_work() -> None:
    work = Workload(ConvTranspose(1, 4, 6, 5, stride=2, padding=1, dilation=3), 2, (7,))
    flat = work.in_three_dimensions()
    assert flat.output_size == (1, 1, *work.output_size)
    assert flat.layer.kernel_size == (1, 1, 5) and flat.layer.weight_shape == (4, 6, 1, 1, 5)


HEADER = TEMPLATES / "contract" / "problem.cuh"


def test_every_member_stands_where_the_library_writes_it(tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    require(compiler, "a C++ compiler (g++)")
    (tmp_path / "cuda_runtime.h").write_text("#define __host__\n#define __device__\n")
    fields = list(problem_fields(preset("kb72").workload()))
    source = tmp_path / "layout.cpp"
    source.write_text("\n".join([
        "#include <cstddef>", f'#include "{HEADER}"',
        *(f'static_assert(offsetof(Problem, {name}) == {8 * i}, "{name}");' for i, name in enumerate(fields)),
        f'static_assert(sizeof(Problem) == {8 * len(fields)}, "size");']))
    done = subprocess.run([compiler, "-std=c++17", "-fsyntax-only", f"-I{tmp_path}", str(source)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_layers_own_fields_are_those_of_the_header() -> None:
    block = HEADER.read_text().split("#define KW_LAYER_FIELDS(X)", 1)[1].split("\n\n", 1)[0]
    assert re.findall(r"X\((\w+)\)", block) == list(layer_fields(preset("kb72").layer))


def test_values_are_those_of_the_workload() -> None:
    fields = problem_fields(preset("kb74").workload("small"))
    assert (fields["batch"], fields["in_d"], fields["in_h"], fields["in_w"], fields["out_w"]) == (2, 1, 1, 500, 512)
    assert (fields["kernel_d"], fields["kernel_w"], fields["dilation_w"], fields["has_bias"]) == (1, 5, 3, 0)


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
    ("kb80", ["kb80", "kb79", "kb81"]), ("kb47", ["the nearest are kb74, "]), ("63", ["kb61", "kb64"]),
    ("kb7x", ["kb7x", "kb7"]), ("models/sam-3", ["models/sam-1", "models/sam-2"]), ("hifi", ["models/hifigan-2"]),
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
