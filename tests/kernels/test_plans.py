"""A variant's header works out in expressions what its code works out in constants: both must say the same.

Every derived value is compared that `[plan]` does not leave empty, in every precision that the variant offers. The layers are
the presets and the awkward ones of the other kernel tests. Of one layer each in 1-D, 2-D and 3-D every legal config is
compared. Where there are more than ALL_CONFIGS it is a seeded sample in which each pair of values of two tunables
occurs. `make test-long` compares all of them, except for implicit_gemm_mma, which has 345 600. Of all other layers it is the
default config and a seeded sample. Where taps are summed in groups (grad_weight's split_mma, rolling_mma and register_blocked)
the first group is compared.
"""

from __future__ import annotations

import ctypes
import operator
import random
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product
from math import prod
from pathlib import Path

import pytest

from tests.shared import require
from workbench.core.awkward import CASES
from workbench.core.candidate import Candidate, derived_values, layer_fields, why_not
from workbench.core.env import find_toolchain
from workbench.core.expressions import names_in
from workbench.core.layer import ConvTranspose
from workbench.core.precision import PRECISIONS_OF
from workbench.core.presets import PRESETS
from workbench.core.template import render, render_batch
from workbench.core.toolchain import nvcc_problem
from workbench.core.variants import TEMPLATES, Variant, discover, find, parse
from workbench.measure import emulator
from workbench.measure.build.resources import parse_ptxas

from .harness import ALONG, EXTREME, compile_quickly

SM = 90             # what an older GPU can run, this one can
ALL_CONFIGS = 64    # a layer with more configs, before any condition, is tested with each pair of values of two tunables
DRAWN = 20          # configs that are drawn besides these pairs
SAMPLE = 1          # draws for every other layer, beside the default config
MORE = 4000         # instead of ALL_CONFIGS in `make test-long`
UNIT = 1000         # candidates in one translation unit
LAYERS = list(dict.fromkeys([p.layer for p in PRESETS.values()] + [w.layer for w in (*CASES, *EXTREME, *ALONG)]))
SOME = [layer for number, layer in enumerate(LAYERS) if number < len(PRESETS) or number % 4 == 0]
ROOTS = ("smem_bytes", "threads")  # read by the workbench itself
_HOLDS = {"": operator.eq, ">=": operator.ge}
_SCALARS = {"float32": ("float", "float"), "float64": ("double", "double"), "float16": ("__half", "float"),
            "bfloat16": ("__nv_bfloat16", "float")}


def chosen(variant: Variant, layers: Sequence[ConvTranspose] = LAYERS, *, all_configs: int = ALL_CONFIGS,
           draws: int = DRAWN) -> list[Candidate]:
    """Legal candidates in every precision, always the same ones: of the first layer of each number of dimensions that the
    variant serves every config (above `all_configs`: pairs and draws); of every other layer the default and a few."""
    found: list[Candidate] = []
    for dtype, precision in ((d, p) for d, offered in PRECISIONS_OF.items() for p in variant.precision if p in offered):
        draw, whole = random.Random(f"{variant.key} {precision}"), set()
        for layer in layers:
            few = _legal(variant, dtype, precision, layer, [{}, *(_any(variant, draw) for _ in range(SAMPLE))])
            found += few
            if few and layer.dims not in whole:
                whole.add(layer.dims)
                found += _many(variant, draw, (all_configs, draws),
                               lambda configs, at=(variant, dtype, precision, layer): _legal(*at, configs))
    return list({(one.layer, one.precision, tuple(one.config.items())): one for one in found}.values())


def computed(candidates: Sequence[Candidate], folder: Path) -> list[dict[str, int]]:
    """What the code makes of each of them, by the derived value's name. Candidates of one variant."""
    units = (candidates[at:at + UNIT] for at in range(0, len(candidates), UNIT))
    return [found for number, unit in enumerate(units) for found in _computed(unit, folder, f"plans{number}")]


def different(candidates: Sequence[Candidate], code: Sequence[dict[str, int]]) -> list[str]:
    """A sentence for each candidate whose header and code disagree."""
    found = []
    for one, constants in zip(candidates, code, strict=True):
        header, how = derived_values(one, sm=SM), compared(one.variant)
        wrong = [f"{name} is {int(header[name])} in the header, {sign} {constants[name]} in the code"
                 for name, (sign, _) in how.items() if not _HOLDS[sign](int(header[name]), constants[name])]
        if wrong:
            found.append(f"{one.layer} {one.precision} {one.config}: {'; '.join(wrong)}")
    return found


def compared(variant: Variant) -> dict[str, tuple[str, str]]:
    """Derived value -> ("" or ">=", the C++ expression it is compared with); without those that no constant stands for."""
    plan = dict(variant.plan)
    texts = {name: plan.get(name, f"Plan::{name.upper()}") for name, _ in variant.derived}
    return {name: (">=" if text.startswith(">=") else "", text.removeprefix(">=")) for name, text in texts.items() if text}


def configs(variant: Variant) -> int:
    """How many configs differ in what decides anything."""
    return prod(len(t.values) for t in variant.tune if t.name in read(variant))


def read(variant: Variant) -> set[str]:
    """Tunables and derived values that decide whether a config is legal, or that the workbench reads."""
    derived = dict(variant.derived)
    names: set[str] = set()
    waiting = [*ROOTS, *(name for text in variant.needs for name in names_in(text))]
    while waiting:
        name = waiting.pop()
        if name not in names:
            names.add(name)
            waiting += names_in(derived[name]) if name in derived else ()
    return names


def _legal(variant: Variant, dtype: str, precision: str, layer: ConvTranspose,
           configs: Sequence[dict[str, int]]) -> list[Candidate]:
    made = (Candidate(variant, layer, dtype, config, precision=precision) for config in configs)
    return [one for one in made if why_not(one, sm=SM) is None]


def _any(variant: Variant, draw: random.Random) -> dict[str, int]:
    return {t.name: draw.choice(t.values) for t in variant.tune}


def _many(variant: Variant, draw: random.Random, most: tuple[int, int],
          legal: Callable[[list[dict[str, int]]], list[Candidate]]) -> Iterator[Candidate]:
    tune = [t for t in variant.tune if t.name in read(variant)]
    all_configs, draws = most
    if configs(variant) <= all_configs:
        names = [t.name for t in tune]
        yield from legal([dict(zip(names, values, strict=True)) for values in product(*(t.values for t in tune))])
        return
    yield from legal([_any(variant, draw) for _ in range(draws)])
    met: set[tuple[tuple[str, int], ...]] = set()
    for a, b in combinations(tune, 2):
        for pair in product(((a.name, v) for v in a.values), ((b.name, v) for v in b.values)):
            for _ in range(6):  # draws; a pair may have no legal config at all
                if pair not in met and (one := legal([_any(variant, draw) | dict(pair)])):
                    met |= set(combinations(((t.name, one[0].config[t.name]) for t in tune), 2))
                    yield one[0]


def _computed(candidates: Sequence[Candidate], folder: Path, stem: str) -> list[dict[str, int]]:
    source, library = folder / f"{stem}.cpp", folder / f"{stem}.so"
    names = list(compared(candidates[0].variant))
    text, structs = _source(candidates)
    source.write_text(emulator.translate(text), encoding="utf-8")
    made = compile_quickly(source, library)
    if made.returncode:
        named = sorted(set(re.findall(r"\b(?:Layer|Tune)\d+\b", made.stderr[:4000])))
        raise AssertionError("\n".join([made.stderr[:4000], *(structs[name] for name in named)]))
    answers = (ctypes.POINTER(ctypes.c_longlong) * len(candidates)).in_dll(ctypes.CDLL(str(library)), "answers")
    return [dict(zip(names, answer[:len(names)], strict=True)) for answer in answers]


def _source(candidates: Sequence[Candidate]) -> tuple[str, dict[str, str]]:
    """The translation unit, and its structs of layers and configs by name: each stands in it once."""
    variant = candidates[0].variant
    headers: dict[str, str] = {}
    for one in {one.dtype: one for one in candidates}.values():
        headers |= dict(render(one).headers)
    types = "".join(f"  using {name} = {text};\n" for name, text in variant.plan if name[:1].isupper())
    values = ", ".join(f"(long long)({text})" for _, text in compared(variant).values())
    asked = (f"template <class Layer, class Tune>\nstruct Asked {{\n{types}"
             f"  static constexpr long long values[] = {{{values}}};\n}};")
    numbers: dict[str, str] = {}
    answers = []
    for one in candidates:
        layer, tune = _layer(one), _tune(one)
        numbers.setdefault(layer, f"Layer{len(numbers)}")
        numbers.setdefault(tune, f"Tune{len(numbers)}")
        answers.append(f"Asked<{numbers[layer]}, {numbers[tune]}>::values")
    structs = {name: f"struct {name} {{ {members} }};" for members, name in numbers.items()}
    return "\n".join([*headers.values(), render(candidates[0]).body, asked, *structs.values(),
                      'extern "C" const long long* const answers[];',
                      f"const long long* const answers[] = {{{', '.join(answers)}}};\n"]), structs


def _layer(one: Candidate) -> str:
    scalar, accumulator = _SCALARS[one.dtype]
    return (f"using scalar = {scalar}; using accumulator = {accumulator}; static constexpr bool is_constant = true; "
            + _constants(layer_fields(one.layer)))


def _tune(one: Candidate) -> str:
    return f"static constexpr Precision precision = Precision::{one.precision}; " + _constants(one.config)


def _constants(values: dict[str, int]) -> str:
    return " ".join(f"static constexpr int {name} = {value};" for name, value in values.items())


FEW_LAYERS = [PRESETS[name].layer for name in ("kb64", "kb71", "kb81")]
PLANNED = [v for v in discover(TEMPLATES) if v.derived]


def _headers() -> list:
    """Each variant with every of its configs; for `make test` with some, and of two directions that share a file, and so a
    header, one: of the next file the other one."""
    files = sorted({v.path for v in PLANNED})

    def soon(variant: Variant) -> bool:
        both = [v for v in PLANNED if v.path == variant.path]
        return variant is both[files.index(variant.path) % len(both)]

    return [pytest.param(v, every, id=f"{v.key}-{'every' if every else 'some'}", marks=[pytest.mark.long] * every)
            for every in (False, True) for v in PLANNED if compared(v) and (every or soon(v))]


@pytest.mark.parametrize(("variant", "every"), _headers())
def test_header_and_code_agree(variant: Variant, every: bool, tmp_path: Path) -> None:
    candidates = chosen(variant, LAYERS, all_configs=MORE, draws=5 * DRAWN) if every else chosen(variant, SOME)
    if len({one.layer for one in candidates}) < 10:
        candidates = chosen(variant)
    print(f"\n{variant.key}: {len(candidates)} configs of {len({one.layer for one in candidates})} layers")
    assert len({one.layer for one in candidates}) >= 10
    wrong = different(candidates, computed(candidates, tmp_path))
    assert not wrong, f"{len(wrong)} of {len(candidates)} disagree:\n" + "\n".join(wrong[:5])


@pytest.mark.parametrize(("key", "old", "new", "told"), [
    ("forward/implicit_gemm_mma", "and warps_m == 2 and", "and warps_m > 1 and", "channels is 32 in the header,  16"),
    ("forward/wgmma_packed", "128 if BLOCKS_PER_SM == 2", "64 if BLOCKS_PER_SM == 2", "runs is "),
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


def test_register_blocked_refuses_exactly_what_does_not_compile(tmp_path: Path) -> None:
    """In grad_weight, by the static_assert of its plan. With several groups of taps the header may refuse a little more."""
    variant, draw = find("register_blocked", "grad_weight"), random.Random(1)
    tried = []
    for number in range(60):
        few, many = draw.choice((1, 3, 8, 40)), draw.choice((64, 256, 520))
        layer = ConvTranspose(1, *((few, many) if number % 4 else (many, few)), draw.choice((1, 3, 4, 9)),
                              stride=draw.choice((1, 2, 4)), padding=draw.choice((0, 1)), dilation=draw.choice((1, 1, 3)))
        tried.append(Candidate(variant, layer, "float32", _any(variant, draw) | {"SHARED_KB": 72}))
    refused = {render(one).candidate_id for one in tried if why_not(one, sm=SM)}
    several = {render(one).candidate_id for one in tried if one.layer.kernel_size[0] > 8}
    source = tmp_path / "batch.cpp"
    source.write_text(emulator.translate(render_batch([render(one) for one in tried])), encoding="utf-8")
    said = compile_quickly(source, tmp_path / "batch.so", ["-fsyntax-only"]).stderr
    broken = set(re.findall(r"FmaWeightPlan<c_([0-9a-f]{16})::.* evaluates to false", said))
    print(f"{len(tried)} configs, {len(refused)} refused, {len(broken)} do not compile")
    assert broken <= refused and refused - several == broken - several
    assert min(len(broken - several), len(broken & several)) > 1 and len(refused) < len(tried) // 2
