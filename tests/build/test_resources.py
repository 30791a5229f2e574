"""Registers, spills and memory of kernels, on any machine that has nvcc."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.shared import require
from workbench.core import sass
from workbench.core.candidate import Candidate
from workbench.core.env import find_toolchain
from workbench.core.layer import ConvTranspose
from workbench.core.orders import MachineCodeOrder, ResourcesOrder
from workbench.core.template import render, render_batch, symbol
from workbench.core.variants import find
from workbench.measure.build.machine_code import machine_code_op
from workbench.measure.build.resources import (
    NVCC_FLAGS,
    TORCH_NVCC_FLAGS,
    by_kernel,
    parse_ptxas,
    resources,
    resources_op,
    short_name,
)

SOURCE = """#line 1 "forward/two.cu"
namespace ns { struct Layer {}; struct Tune {}; }
__constant__ float table[100];
template <class L, class T, int N> __global__ void __launch_bounds__(256) shares(float* a, int i) {
  __shared__ float s[256];
  s[threadIdx.x] = a[threadIdx.x];
  __syncthreads();
  a[threadIdx.x] = s[threadIdx.x ^ N] + table[i];
}
__global__ void stacks(float* a) {
  float v[64];
  for (int i = 0; i < 64; ++i) v[i] = a[i * 7];
  for (int i = 0; i < 64; ++i) a[i] = v[int(a[i]) & 63];
}
void use(float* a) { shares<ns::Layer, ns::Tune, 4><<<1, 256>>>(a, 1); }
"""


@pytest.fixture(autouse=True)
def _nvcc() -> None:
    require(find_toolchain().nvcc, "nvcc")


def test_machine_code_without_a_gpu(tmp_path) -> None:
    require(find_toolchain().nvdisasm, "nvdisasm")
    order = MachineCodeOrder(SOURCE, "sm_90", tmp_path)
    found = machine_code_op(order, lambda event: None)
    assert found.status == "OK" and set(found.names.values()) == {"shares<4>", "stacks"}
    assert found.ptx.count(".entry") == 2 and 'file' in found.ptx and "/tmp" not in found.ptx + found.sass
    kernels = {found.names[k.name]: k for k in sass.read(found.sass, found.live)}
    assert {i.file for i in kernels["shares<4>"].code if i.file} == {"forward/two.cu"}
    assert any(i.kind == "BAR" for i in kernels["shares<4>"].code)
    assert any(i.kind.startswith("STL") for i in kernels["stacks"].code)
    assert all(i.control for i in kernels["stacks"].code) and kernels["stacks"].most_live
    assert machine_code_op(order, lambda event: None) == found, "from the cache"
    wrong = machine_code_op(replace(order, source="__global__ void f() { nobody(); }"), lambda event: None)
    assert wrong.status == "BUILD_FAILED" and "nobody" in wrong.headline


def test_every_number_on_two_archs_without_a_gpu() -> None:
    found = resources(SOURCE, ["sm_80", "sm_90"])
    assert set(found) == {"sm_80", "sm_90"}
    for arch, kernels in found.items():
        assert set(kernels) == {"shares<4>", "stacks"}, arch
        shares, stacks = kernels["shares<4>"], kernels["stacks"]
        assert (shares.shared_bytes, shares.barriers, shares.stack_bytes) == (1024, 1, 0)
        assert (stacks.shared_bytes, stacks.barriers, stacks.stack_bytes) == (0, 0, 256)
        assert 8 <= shares.registers <= 32 and shares.spill_store_bytes == 0
        assert shares.constant_bytes >= 400 + 12, "the table, the two parameters and the driver's own"


def test_a_limit_on_registers_makes_spills() -> None:
    many = "".join(f"  float v{i} = a[i * {i + 3}];\n" for i in range(64))
    total = " + ".join(f"v{i} * v{63 - i}" for i in range(64))
    source = f"__global__ void k(float* a, int i) {{\n{many}  __syncthreads();\n  a[i] = {total};\n}}\n"
    free = resources(source, ["sm_90"])["sm_90"]["k"]
    tight = resources(source, ["sm_90"], ["-maxrregcount=24"])["sm_90"]["k"]
    assert free.registers > 24 and free.spill_store_bytes == 0
    assert tight.registers <= 24 and tight.spill_store_bytes > 0 and tight.spill_load_bytes > 0


def test_the_operation_answers_from_the_cache_and_tells_errors(cache: Path) -> None:
    asked = ResourcesOrder(SOURCE, ("sm_90",), cache)
    first = resources_op(asked, lambda event: None)
    again = resources_op(asked, lambda event: None)
    assert (first.status, first.cached, again.cached) == ("OK", False, True)
    assert first.resources == again.resources and "shares<4>" in first.resources["sm_90"]
    wrong = resources_op(replace(asked, source=SOURCE.replace("float v[64];", "float v[size];")), lambda event: None)
    assert wrong.status == "BUILD_FAILED"
    assert wrong.headline == 'nvcc stopped at two.cu, line 10: identifier "size" is undefined.'
    assert wrong.first_error.file == "forward/two.cu"
    flag = resources_op(replace(asked, flags=("--no-such",)), lambda event: None)
    assert flag.headline == "nvcc stopped: Unknown option '--no-such'."
    large = resources_op(replace(asked, source=SOURCE.replace("s[256]", "s[256000]")), lambda event: None)
    assert "uses too much shared data" in large.headline


def test_the_shipped_template_compiles_for_both_archs_and_a_batch_keeps_its_members_apart() -> None:
    layer = ConvTranspose(1, 32, 64, (5,), dilation=(3,))
    variant = find("naive_gather", "forward")
    members = [render(Candidate(variant, layer, "float32", {"CO_PER_THREAD": n})) for n in (1, 8)]
    alone = [resources(render_batch([m]), ["sm_80", "sm_90"]) for m in members]
    assert all(set(a[arch]) == {"naive_gather"} for a in alone for arch in ("sm_80", "sm_90"))
    together = _ptxas_of(render_batch(members))
    for member, own in zip(members, alone, strict=True):
        only = f"c_{symbol(member).rpartition('_')[2]}::"
        assert by_kernel(together, only=only)["naive_gather"].registers == own["sm_90"]["naive_gather"].registers


def _ptxas_of(source: str) -> dict[str, dict[str, int]]:
    done = subprocess.run([str(find_toolchain().nvcc), "-cubin", "-arch=sm_90", *NVCC_FLAGS, *TORCH_NVCC_FLAGS, "-x",
                           "cu", "-", "-o", "/dev/null"], input=source, capture_output=True, text=True, check=True)
    return parse_ptxas(done.stderr)["sm_90"]


def test_ptxas_of_several_versions_is_read() -> None:
    log = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z1fPf' for 'sm_80'
ptxas info    : Function properties for _Z1fPf
    16 bytes stack frame, 24 bytes spill stores, 28 bytes spill loads
ptxas info    : Used 24 registers, used 1 barriers, 16 bytes cumulative stack size, 1024 bytes smem, 416 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Compiling entry function '_Z1gPf' for 'sm_90'
ptxas info    : Function properties for _Z1gPf
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers
"""  # noqa: E501
    found = parse_ptxas(log)
    assert found["sm_80"]["_Z1fPf"] == {
        "registers": 24, "spill_store_bytes": 24, "spill_load_bytes": 28, "stack_bytes": 16, "shared_bytes": 1024,
        "barriers": 1, "constant_bytes": 424}
    assert found["sm_90"]["_Z1gPf"]["registers"] == 8 and found["sm_90"]["_Z1gPf"]["shared_bytes"] == 0


@pytest.mark.parametrize(("full", "short"), [
    ("void forward_x::gather<c_1::Layer, c_1::Tune>(c_1::Layer, Sizes, c_1::Layer::scalar const*)", "gather"),
    ("void gather<Layer, Tune, 4, true>(Layer, Sizes)", "gather<4, true>"),
    ("void (anonymous namespace)::pack<float, (int)4>(float*)", "pack<float, (int)4>"),
    ("plain(float*)", "plain"),
    ("_Z5plainPf", "_Z5plainPf"),
])
def test_short_names(full: str, short: str) -> None:
    assert short_name(full) == short
