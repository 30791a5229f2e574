"""The layer obeys PyTorch's rules, and says which one is broken in one sentence. `struct Problem` of the headers and
`problem_fields` of the library are the same list."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shared import parameters, require
from workbench.core.candidate import layer_fields, problem_fields
from workbench.core.errors import BadRequest
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.presets import preset
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
