"""Every template compiles with nvcc for sm_80 and sm_90 (sm_90a where it asks for it), in all dtypes and forms; no
spills at the default config on the layers tried here (docs/kernels.md names the ones that do spill elsewhere)."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from tests.require import require
from workbench.core.candidate import Candidate, why_not
from workbench.core.env import find_toolchain
from workbench.core.gpu import gpu_limits
from workbench.core.layer import ConvTranspose
from workbench.core.template import render, render_batch
from workbench.core.toolchain import nvcc_problem
from workbench.core.variants import TEMPLATES, Variant, discover, find
from workbench.measure.build.resources import NVCC_FLAGS, TORCH_NVCC_FLAGS, parse_ptxas

from .test_matrix import dtypes

VARIANTS = discover(TEMPLATES)
LAYERS = [ConvTranspose(1, 32, 64, 5, dilation=3, bias=False), ConvTranspose(2, 32, 64, 3, 5, 1, dilation=2),
          ConvTranspose(3, 32, 32, (3, 5, 7), 2, (1, 2, 3), 1, 4)]
DEPTHWISE = [ConvTranspose(1, 64, 64, 12, 2, groups=64, bias=False), ConvTranspose(2, 64, 64, 4, 2, 1, groups=64),
             ConvTranspose(3, 32, 64, 3, 2, 1, 1, 32)]


def layers(variant: Variant) -> list[ConvTranspose]:
    """Layers that the variant serves: those for depthwise layers serve no others."""
    return DEPTHWISE if variant.name.startswith("depthwise") else LAYERS


def served(variant: Variant, number: int, dtype: str, form: str, sm: int) -> list[Candidate]:
    """Of these what runs there; another one comes first for each dtype."""
    at = number % len(LAYERS)
    made = (Candidate(variant, layer, dtype, shared_memory(variant, sm), form=form)
            for layer in (*layers(variant)[at:], *layers(variant)[:at]))
    return [one for one in made if why_not(one, sm=sm) is None]


def shared_memory(variant: Variant, sm: int) -> dict[str, int]:
    """The default config; where that may ask for more shared memory than the GPU has, the most of it that there is."""
    name, most = "SHARED_KB", gpu_limits(sm)["shared_per_block"] // 1024
    tunable = next((t for t in variant.tune if t.name == name), None)
    if tunable is None or tunable.default <= most:
        return {}
    return {name: max(v for v in tunable.values if v <= most)}


@pytest.mark.parametrize(("direction", "arch", "rest"), [
    pytest.param(direction, arch, rest, marks=[pytest.mark.long] if rest or arch == "sm_80" else [],
                 id=f"{direction}-{arch}-{'the other layers' if rest else 'a layer of each dtype'}")
    for direction, arch in sorted({(v.direction, arch) for v in VARIANTS
                                   for arch in ([v.arch] if v.arch else ["sm_80", "sm_90"])})
    for rest in ((False,) if (direction, arch) == ("grad_weight", "sm_90a") else (False, True))])  # there each serves one layer
def test_compiles_without_spills(direction: str, arch: str, rest: bool, tmp_path: Path) -> None:
    tools = find_toolchain()
    problem = nvcc_problem(tools, None)
    require(problem is None, str(problem))
    own, sm = arch if arch.endswith("a") else "", int(arch[3:5])
    chosen = [v for v in VARIANTS if v.direction == direction and v.arch == own]
    found = [served(v, number, dtype, form, sm) for v in chosen for number, dtype in enumerate(dtypes(v)) for form in v.forms
             if not rest or number == 0 and form == "constant"]
    members = [one for those in found for one in (those[1:] if rest else those[:1])]
    assert members and (rest or {one.variant.name for one in members} == {v.name for v in chosen})
    started = time.monotonic()
    source = tmp_path / "batch.cu"
    source.write_text(render_batch([render(one) for one in members]), encoding="utf-8")
    command = [str(tools.nvcc), "-cubin", f"-arch={arch}", *TORCH_NVCC_FLAGS, *NVCC_FLAGS, str(source), "-o",
               str(tmp_path / "batch.cubin")]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, (made.stdout + made.stderr)[:6000]
    kernels = parse_ptxas(made.stdout + made.stderr)[arch]
    print(f"\n{direction} {arch}: {len(members)} candidates, {time.monotonic() - started:.1f} s, "
          f"registers up to {max(k['registers'] for k in kernels.values())}")
    assert len(kernels) >= len(members)
    spilled = {name: k["spill_store_bytes"] for name, k in kernels.items() if k["spill_store_bytes"]}
    assert not spilled, spilled


@pytest.mark.parametrize("key", ["forward/implicit_gemm_mma", "forward/persistent_wgmma"])
def test_no_load_of_a_16_bit_bias_can_leave_its_guard(key: str, tmp_path: Path) -> None:
    """CUDA's __ldg of a 16-bit float is inline assembly (ld.global.nc.b16), which nvcc moves ahead of the test of the channel:
    it read behind a bias of 33 channels. Only a GPU's memcheck sees that."""
    tools = find_toolchain()
    problem = nvcc_problem(tools, None)
    require(problem is None, str(problem))
    direction, name = key.split("/")
    one = Candidate(find(name, direction), ConvTranspose(2, 64, 33, 3, 2, 1, 1), "bfloat16", {})
    source, made = tmp_path / "one.cu", tmp_path / "one.ptx"
    source.write_text(render(one).source, encoding="utf-8")
    subprocess.run([str(tools.nvcc), "-ptx", "-w", f"-arch={one.variant.arch or 'sm_90'}", *NVCC_FLAGS, str(source), "-o",
                    str(made)], check=True)
    assert "ld.global.nc.b16" not in made.read_text(encoding="utf-8")
