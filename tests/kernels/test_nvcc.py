"""Every template compiles with nvcc for sm_80 and sm_90 (sm_90a where it asks for it), in all dtypes and forms; no spills at
the default config on the layers tried here (docs/kernels.md names the ones that do spill elsewhere). What `--best` gives
compiles for its architecture, and without spills where nobody measured it: one shipped entry of each variant and precision, and
in `make test-long` the fastest of every cell."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from tests.shared import require
from workbench.core.best_known import BestKnown, load
from workbench.core.candidate import Candidate, why_not
from workbench.core.command import parse_layer
from workbench.core.derived_best import best_or_derived
from workbench.core.env import find_toolchain
from workbench.core.gpu import gpu_limits, sm_of
from workbench.core.layer import BACKWARD, CHANNELS_LAST, CONTIGUOUS, DIRECTIONS, FORWARD, LAUNCHES, ConvTranspose, Workload
from workbench.core.precision import CLASSES_OF
from workbench.core.presets import KERNELBENCH, MODELS
from workbench.core.space import SearchSpace
from workbench.core.start_config import Start, start
from workbench.core.template import render, render_batch
from workbench.core.toolchain import nvcc_problem
from workbench.core.variants import TEMPLATES, Variant, discover, find
from workbench.drive.bench.best import Nvcc
from workbench.drive.exporting.best_recipe import best_recipe, left_to_pytorch
from workbench.measure.build.resources import NVCC_FLAGS, TORCH_NVCC_FLAGS, parse_ptxas

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = discover(TEMPLATES)
LAYERS = [ConvTranspose(1, 32, 64, 5, dilation=3, bias=False), ConvTranspose(2, 32, 64, 3, 5, 1, dilation=2),
          ConvTranspose(3, 32, 32, (3, 5, 7), 2, (1, 2, 3), 1, 4)]
DEPTHWISE = [ConvTranspose(1, 64, 64, 12, 2, groups=64, bias=False), ConvTranspose(2, 64, 64, 4, 2, 1, groups=64),
             ConvTranspose(3, 32, 64, 3, 2, 1, 1, 32)]
STRIDE_2 = [ConvTranspose(1, 60, 130, 4, 2, 1), ConvTranspose(2, 64, 32, 2, 2), ConvTranspose(3, 48, 40, 3, 2, 1, 1)]


def layers(variant: Variant) -> list[ConvTranspose]:
    """Layers that the variant serves: those for depthwise layers or for stride 2 serve no others."""
    return DEPTHWISE if variant.name.startswith("depthwise") else \
        STRIDE_2 if variant.key == "grad_weight/register_wgmma" else LAYERS


def served(variant: Variant, number: int, dtype: str, form: str, sm: int) -> list[Candidate]:
    """Of these what runs there, with the config nearest to the default; another one comes first for each dtype."""
    at, found = number % len(LAYERS), []
    for layer in (*layers(variant)[at:], *layers(variant)[:at]):
        kept = CHANNELS_LAST if variant.default_config.get("CHANNELS_LAST") else CONTIGUOUS
        space = SearchSpace(variant, layer, dtype, sm, form=form, memory_format=kept)
        config = space.nearest(variant.default_config | shared_memory(variant, sm))
        found += [Candidate(variant, layer, dtype, config, form=form)] if config else []
    return found


def in_each_format(one: Candidate) -> list[Candidate]:
    """The candidate, and where the variant has it, that for channels_last activations."""
    native = one.variant.default_for(CHANNELS_LAST)
    changed = {name: value for name, value in native.items() if value != one.variant.default_config[name]}
    return [one, *([replace(one, config={**one.config, **changed})] if changed else [])]


def shared_memory(variant: Variant, sm: int) -> dict[str, int]:
    """The default config; where that may ask for more shared memory than the GPU has, the most of it that there is."""
    name, most = "SHARED_KB", gpu_limits(sm)["shared_per_block"] // 1024
    tunable = next((t for t in variant.tune if t.name == name), None)
    if tunable is None or tunable.default <= most:
        return {}
    return {name: max(v for v in tunable.values if v <= most)}


def in_turn(variant: Variant, dtype: str) -> bool:
    """For `make test`: of float16 and bfloat16 one variant has the one, the next the other. Their code differs in the storage
    type alone. Where one engine computes grad_input too, that has one dtype."""
    if variant.direction != FORWARD and variant.path.parent.name == "forward_and_grad_input":
        return dtype == variant.dtypes[VARIANTS.index(variant) % len(variant.dtypes)]
    return dtype != ("float16", "bfloat16")[VARIANTS.index(variant) % 2]


def now(direction: str, arch: str) -> bool:
    """For `make test`: sm_90a, and of the other targets one direction."""
    return arch == "sm_90a" or (arch, direction) == ("sm_90", FORWARD)


@pytest.mark.parametrize(("direction", "arch", "rest"), [
    pytest.param(direction, arch, rest, marks=[] if now(direction, arch) and not rest else [pytest.mark.long],
                 id=f"{direction}-{arch}-{'the other layers' if rest else 'a layer of each dtype'}")
    for direction, arch in sorted({(v.direction, arch) for v in VARIANTS
                                   for arch in ([v.arch] if v.arch else ["sm_80", "sm_90"])})
    for rest in (False, True)])
def test_compiles_without_spills(direction: str, arch: str, rest: bool, tmp_path: Path) -> None:
    tools = find_toolchain()
    problem = nvcc_problem(tools, None)
    require(problem is None, str(problem))
    own, sm = arch if arch.endswith("a") else "", int(arch[3:5])
    chosen = [v for v in VARIANTS if v.direction == direction and v.arch == own]
    kept = [(v, number, dtype, in_turn(v, dtype)) for v in chosen for number, dtype in enumerate(v.dtypes)]
    if rest:
        members = [one for v, number, dtype, _ in kept if number == 0 for one in served(v, number, dtype, "constant", sm)[1:]]
        members += [one for v, number, dtype, now in kept if not now for form in v.forms
                    for one in served(v, number, dtype, form, sm)[:1]]
    else:
        members = [made for v, number, dtype, now in kept if now for form in v.forms
                   for one in served(v, number, dtype, form, sm)[:1] for made in in_each_format(one)]
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


def chosen(every: bool) -> list[BestKnown]:
    """The fastest of each variant and precision; or of every cell. Cells share some of their entries."""
    fastest: dict[tuple[str, ...], BestKnown] = {}
    for entry in sorted(load(), key=lambda e: e.ms):
        fastest.setdefault(entry.key if every else (entry.arch, entry.direction, entry.variant, entry.precision), entry)
    different = {(e.arch, e.layer, e.direction, e.variant, e.precision, *e.config.items()): e for e in fastest.values()}
    return list(different.values())


@pytest.mark.parametrize(("every", "arch", "direction"), [
    pytest.param(every, arch, direction, marks=[] if now(direction, arch) and not every else [pytest.mark.long],
                 id=f"{arch}-{direction}-{'every' if every else 'some'}")
    for arch, direction, every in product(("sm_80", "sm_90"), LAUNCHES, (False, True))])
def test_shipped_configs_compile_and_derived_ones_do_not_spill(arch: str, direction: str, every: bool) -> None:
    entries = [e for e in chosen(every) if (e.arch, e.direction) == (arch, direction)]
    assert entries or (arch, direction) == ("sm_80", BACKWARD)  # nobody has asked for both gradients at once there
    with Nvcc() as nvcc:
        require(nvcc.problem is None, str(nvcc.problem))

        def problem(entry: BestKnown) -> str:
            work = Workload(parse_layer(entry.layer), entry.batch, entry.input_size, entry.dtype)
            candidate = entry.candidate(work)
            reason = why_not(candidate, sm=sm_of(entry.arch))
            spilled = None if reason else nvcc.spills(candidate, entry.arch)
            if spilled == 0 or (spilled and not entry.derived):  # a measured one counts by its time
                return ""
            return f"{entry.key} {entry.variant} {entry.config}: {reason or f'spills {spilled} bytes'}"

        with ThreadPoolExecutor(nvcc.size) as pool:
            problems = [text for text in pool.map(problem, entries) if text]
    print(f"{len(entries)} of {len(load())} shipped configs compiled")
    assert not problems, "\n".join(problems)


def test_every_layer_of_the_suite_has_a_shipped_config_on_both_architectures() -> None:
    there = {entry.key[:5] for entry in load()}
    missing = [(arch, layer, direction, precision_class) for arch in ("sm_80", "sm_90")
               for precision_class in CLASSES_OF["float32"] for direction in DIRECTIONS
               for layer in (str(p.workload().layer) for p in KERNELBENCH.values())
               if (arch, layer, direction, "float32", precision_class) not in there]
    assert not missing, missing


@pytest.mark.parametrize("precision", ["", *CLASSES_OF["float32"]])
def test_for_the_a100_every_layer_is_exported_in_every_direction(precision: str) -> None:
    """What PyTorch took on the GPU that was measured says nothing of an A100: no direction is left to it for that."""
    for preset in KERNELBENCH.values():
        recipe, entries = best_recipe(preset.workload(), "sm_80", precision=precision)
        assert set(recipe.precision) == set(DIRECTIONS) and all(e.derived for e in entries), preset.name
        assert not left_to_pytorch(recipe, "sm_80")


def test_the_table_of_all_gpus_finds_what_spills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches share one log: each candidate gets its own bytes, and what is known is not asked again."""
    monkeypatch.setenv("KERNEL_WORKBENCH_CACHE", str(tmp_path))
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import compile_table as tool
    tools = find_toolchain()
    require(nvcc_problem(tools, None) is None, "nvcc is installed")
    answers = tool.Answers(tools)
    clean, crowded = (tool.Asked("kb78", one, "sm_80", render(one).candidate_id) for one in (
        Candidate(find("implicit_gemm_mma", "forward"), KERNELBENCH["kb78"].layer, "float32", {"BLOCKS": blocks}, "tf32")
        for blocks in (2, 3)))
    tool.compile_all([clean, crowded], answers, 1)
    assert answers.of(clean) == 0 and (answers.of(crowded) or 0) > 0
    assert (tool.Answers(tools).of(clean), tool.Answers(tools).of(crowded)) == (0, answers.of(crowded))
    text = tool.table([clean, crowded], Counter({("sm_80", "forward/wgmma_packed", "instructions"): 2}), answers)
    assert "| forward/implicit_gemm_mma | 1 clean, **1 spill** |" in text
    assert "| forward/wgmma_packed | 2 instructions |" in text
    assert f"sm_80 forward/implicit_gemm_mma kb78 tf32: {answers.of(crowded)} bytes" in text


@pytest.mark.parametrize("arch", ["sm_86", "sm_120"])
def test_other_gpus_get_configs_that_fit_and_compile(arch: str) -> None:
    """A sample; tools/compile_table.py asks for every layer."""
    work = MODELS["models/sam-2"].workload()
    found = [best_or_derived(direction, work, "tf32", arch) for direction in DIRECTIONS]
    with Nvcc() as nvcc:
        require(nvcc.problem is None, str(nvcc.problem))
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(lambda one: nvcc.spills(one.candidate(work), arch), found)) == [0] * 3


@pytest.mark.parametrize(("key", "preset", "arch"), [("grad_weight/persistent_wgmma", "models/encodec-2", "sm_90"),
                                                     ("forward/disjoint_mma", "models/sam-1", "sm_100")])
def test_a_default_that_is_known_to_spill_does_and_what_stands_in_does_not(key: str, preset: str, arch: str) -> None:
    """The shorter of the ones in core/start_config.py; the tool asks for all."""
    direction, name = key.split("/")
    variant, layer = find(name, direction), MODELS[preset].layer
    space = SearchSpace(variant, layer, "float32", sm_of(arch), "tf32")
    with Nvcc() as nvcc:
        require(nvcc.problem is None, str(nvcc.problem))
        asked = [space.candidate(config) for config in (variant.default_config, (start(space, arch) or Start({})).config)]
        with ThreadPoolExecutor(2) as pool:
            default, instead = pool.map(lambda one: nvcc.spills(one, arch), asked)
    assert default and instead == 0
