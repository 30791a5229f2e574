"""`struct Problem` of the headers and `problem_fields` of the library are the same list, in the same order."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from workbench.core.candidate import layer_fields, problem_fields
from workbench.core.presets import preset
from workbench.core.variants import TEMPLATES

from ..require import require

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
