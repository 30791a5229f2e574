"""The header of strip_wgmma works out in expressions what its code works out in constants: both must say the same."""

from __future__ import annotations

import ctypes
import random
import subprocess
from pathlib import Path

from workbench.core.candidate import Candidate, derived_values, layer_fields, why_not
from workbench.core.presets import PRESETS
from workbench.core.variants import TEMPLATES, find
from workbench.measure import emulator

from .cases import CASES

VARIANT = find("strip_wgmma", "grad_weight")
# Derived value of the header -> the constant of the code.
SAME = {"u_is_gy": "Plan::U_IS_GY", "n": "Plan::N", "pair": "Plan::PAIR", "rows_h": "Plan::ROWS_H",
        "block_groups": "Plan::BLOCK_GROUPS", "slabs": "Plan::SLABS", "consumers": "Plan::CONSUMERS",
        "two_stages": "Plan::bytes(2)", "copy_warps": "Units::WARPS", "raw_bytes": "Units::BYTES",
        "threads": "Registers::THREADS", "entry": "Registers::ENTRY", "own_registers": "Registers::OWN",
        "copy_registers": "Registers::LEFT"}
LAYERS = list(dict.fromkeys([p.workload("full").layer for p in PRESETS.values()] + [w.layer for w in CASES]))


def chosen() -> list[Candidate]:
    """Layers of the benchmark and awkward ones, each with the default config and some others, as far as they run."""
    draw = random.Random(1)
    configs = [{}, *({t.name: draw.choice(t.values) for t in VARIANT.tune} for _ in range(10))]
    tried = [Candidate(VARIANT, layer, "float32", config, form="constant") for layer in LAYERS for config in configs]
    return [one for one in tried if why_not(one, sm=90) is None]


def constants(candidates: list[Candidate], folder: Path) -> list[dict[str, int]]:
    """What the code makes of each of them, compiled for the host."""
    parts, calls = ['#include "families/strip_wgmma/stage.cuh"'], []
    for number, one in enumerate(candidates):
        layer = "".join(f"static constexpr int {k} = {v};" for k, v in layer_fields(one.layer).items())
        tune = "".join(f"static constexpr int {k} = {v};" for k, v in one.config.items())
        parts.append(f"struct Layer{number} {{ using scalar = float; static constexpr bool is_constant = true; {layer} }};\n"
                     f"struct Tune{number} {{ static constexpr Precision precision = Precision::tf32; {tune} }};")
        calls.append(f"fill<Layer{number}, Tune{number}>(out + {number * len(SAME)});")
    stores = "".join(f"out[{i}] = {text};" for i, text in enumerate(SAME.values()))
    parts.append("template <class Layer, class Tune> void fill(long long* out) {\n"
                 "using Units = StripUnits<Layer, Tune>; using Plan = RollingPlan<Layer, Tune, Units::BYTES>;\n"
                 f"using Registers = RollingRegisters<Plan, Units::WARPS>; {stores} }}\n"
                 f'extern "C" void fill_all(long long* out) {{ {"".join(calls)} }}')
    source, library = folder / "plans.cpp", folder / "plans.so"
    source.write_text(emulator.translate("\n".join(parts)), encoding="utf-8")
    includes = [f"-I{path}" for path in (*emulator.INCLUDE_DIRS, TEMPLATES)]
    made = subprocess.run(["g++", *emulator.COMPILE_FLAGS, *includes, str(source), *emulator.LINK_FLAGS, "-o", str(library)],
                          capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[:6000]
    out = (ctypes.c_longlong * (len(SAME) * len(candidates)))()
    ctypes.CDLL(str(library)).fill_all(out)
    return [dict(zip(SAME, out[i * len(SAME):(i + 1) * len(SAME)], strict=True)) for i in range(len(candidates))]


def test_header_and_code_agree(tmp_path: Path) -> None:
    candidates = chosen()
    assert len(candidates) > 150
    different = []
    for one, code in zip(candidates, constants(candidates, tmp_path), strict=True):
        header = {name: int(derived_values(one, sm=90)[name]) for name in SAME}
        if header != code:
            wrong = {name: (header[name], code[name]) for name in SAME if header[name] != code[name]}
            different.append(f"{one.layer} {one.config}: header, code {wrong}")
    assert not different, "\n".join(different[:5])


def test_what_a_config_leaves_open_can_run_wherever_some_config_can() -> None:
    """The default chooses columns, consumers and warps that copy so that they fit."""
    for layer in dict.fromkeys(one.layer for one in chosen()):
        assert why_not(Candidate(VARIANT, layer, "float32", {}, form="constant"), sm=90) is None, layer
