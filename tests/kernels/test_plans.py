"""A variant's header works out in expressions what its code works out in constants: both must say the same.

Every derived value is compared that `[plan]` does not leave empty, in every precision that the variant offers. The layers are
the presets and the awkward ones of the other kernel tests. Of one layer each in 1-D, 2-D and 3-D every legal config is
compared. Where there are more than plans.ALL_CONFIGS it is a seeded sample in which each pair of values of two tunables
occurs. `make test-long` compares all of them, except for implicit_gemm_mma, which has 345 600. Of all other layers it is the
default config and a seeded sample. Where taps are summed in groups (grad_weight's split_mma and register_blocked) the first
group is compared.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.require import require
from workbench.core.candidate import Candidate, derived_values, why_not
from workbench.core.env import find_toolchain
from workbench.core.layer import ConvTranspose
from workbench.core.presets import PRESETS
from workbench.core.template import render, render_batch
from workbench.core.toolchain import nvcc_problem
from workbench.core.variants import TEMPLATES, Variant, discover, find, parse
from workbench.measure.build.resources import parse_ptxas

from .plans import ALL_CONFIGS, MORE, ROOTS, chosen, compared, computed, configs, different, read

FEW_LAYERS = [PRESETS[name].layer for name in ("kb64", "kb71", "kb81")]
PLANNED = [v for v in discover(TEMPLATES) if v.derived]


@pytest.mark.parametrize(("variant", "all_configs"), [
    *((v, ALL_CONFIGS) for v in PLANNED if compared(v)),
    *(pytest.param(v, MORE, marks=pytest.mark.long) for v in PLANNED if compared(v) and ALL_CONFIGS < configs(v) <= MORE)],
    ids=lambda value: value.key if isinstance(value, Variant) else f"of {value}")
def test_header_and_code_agree(variant: Variant, all_configs: int, tmp_path: Path) -> None:
    candidates = chosen(variant, all_configs=all_configs)
    print(f"\n{variant.key}: {len(candidates)} configs of {len({one.layer for one in candidates})} layers")
    assert len({one.layer for one in candidates}) >= 10
    wrong = different(candidates, computed(candidates, tmp_path))
    assert not wrong, f"{len(wrong)} of {len(candidates)} disagree:\n" + "\n".join(wrong[:5])


@pytest.mark.parametrize(("key", "old", "new", "told"), [
    ("forward/implicit_gemm_mma", "and warps_m == 2 and", "and warps_m > 1 and", "channels is 32 in the header,  16"),
    ("forward/wgmma_packed", "CONSUMERS * BLOCKS_PER_SM > 2", "CONSUMERS == 3", "runs is "),
    ("forward/disjoint_mma", '">= Plan::SHARED_BYTES"', '">= Plan::SHARED_BYTES + 100000"', "smem_bytes is "),
])
def test_a_changed_header_is_noticed(key: str, old: str, new: str, told: str, tmp_path: Path) -> None:
    direction, name = key.split("/")
    variant = find(name, direction)
    assert variant.text.count(old) == 1, f"{key} no longer contains {old!r} once: name another line to change"
    candidates = chosen(parse(variant.text.replace(old, new), variant.path, direction), FEW_LAYERS)
    wrong = different(candidates, computed(candidates, tmp_path))
    assert any(told in sentence for sentence in wrong), wrong[:5]


def test_every_derived_value_is_read() -> None:
    unread = [f"{v.key}: {name}" for v in PLANNED for name, _ in v.derived if name not in read(v)]
    assert not unread, f"Neither needs nor the workbench ({', '.join(ROOTS)}) depends on {', '.join(unread)}; delete them."


def test_static_shared_memory_is_what_nvcc_counts(tmp_path: Path) -> None:
    """shared_weight_tiling's grad_weight has arrays and no plan."""
    tools = find_toolchain()
    problem = nvcc_problem(tools, None)
    require(problem is None, str(problem))
    variant, layer = find("shared_weight_tiling", "grad_weight"), ConvTranspose(2, 5, 7, 3)
    least, most = ({t.name: pick(t.values) for t in variant.tune} for pick in (min, max))
    tried = [Candidate(variant, layer, dtype, config, form="runtime")
             for dtype, config in (("float32", {}), ("float16", most), ("float64", least), ("float64", {}))]
    assert [why_not(one, sm=90) for one in tried] == [None] * 4
    header, nvcc = [], []
    for number, one in enumerate(tried):
        source = tmp_path / f"{number}.cu"
        source.write_text(render_batch([render(one)]), encoding="utf-8")
        made = subprocess.run([str(tools.nvcc), "-cubin", "-arch=sm_90", "-std=c++17", "-Xptxas=-v", str(source), "-o",
                               str(tmp_path / f"{number}.cubin")], capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr[:4000]
        kernels = parse_ptxas(made.stdout + made.stderr)["sm_90"]
        nvcc += [k["shared_bytes"] for name, k in kernels.items() if "shared_weight_tiling" in name]
        header.append(derived_values(one, sm=90)["smem_bytes"])
    assert header == nvcc


def test_what_strip_wgmma_leaves_open_can_run_wherever_some_config_can() -> None:
    """The default chooses columns, consumers and warps that copy so that they fit."""
    variant = find("strip_wgmma", "grad_weight")
    served = {one.layer for one in chosen(variant)}
    assert len(served) > 20
    assert [layer for layer in served if why_not(Candidate(variant, layer, "float32", {}), sm=90)] == []
