"""A variant's `[derived]` values beside what its code makes of the same configs, compiled for the host.

    cases = chosen(variant)                     # candidates: every config, or enough of them that each pair of values meets
    for case, code in zip(cases, computed(cases, folder)): ...
"""

from __future__ import annotations

import ctypes
import random
import re
import subprocess
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations, product
from math import prod
from pathlib import Path

from workbench.core.candidate import Candidate, derived_values, layer_fields, why_not
from workbench.core.expressions import names_in
from workbench.core.layer import ConvTranspose
from workbench.core.presets import PRESETS
from workbench.core.template import render
from workbench.core.variants import PRECISIONS_OF, TEMPLATES, Variant
from workbench.measure import emulator

from .cases import FEW, CASES

SM = 90            # what fits an older GPU fits this one too
ALL_CONFIGS = 200  # of a layer: with more of them, enough that each pair of values meets
SAMPLE = 2         # configs of every other layer, beside the default
LAYERS = list(dict.fromkeys([p.layer for p in PRESETS.values()] + [w.layer for w in (*FEW, *CASES)]))
_SCALAR = {"float32": ("float", "float"), "float64": ("double", "double"), "float16": ("__half", "float"),
           "bfloat16": ("__nv_bfloat16", "float")}
_EMPTY = ""
_BOUND = re.compile(r"\s*(>=|<=|)\s*(.*)", re.S)


def compared(variant: Variant) -> dict[str, tuple[str, str]]:
    """Derived value -> (how it compares, the C++ expression it is compared with); those of the header alone are left out."""
    plan = dict(variant.plan)
    texts = {name: plan.get(name, f"Plan::{name.upper()}") for name, _ in variant.derived}
    return {name: (found[1] or "==", found[2]) for name, text in texts.items() if text and (found := _BOUND.fullmatch(text))}


def read(variant: Variant) -> set[str]:
    """The names that decide whether a config is legal, or that the workbench reads: tunables and derived values."""
    derived = dict(variant.derived)
    names, waiting = set(), ["smem_bytes", "threads", *(n for text in variant.needs for n in names_in(text))]
    while waiting:
        name = waiting.pop()
        if name not in names:
            names.add(name)
            waiting += names_in(derived[name]) if name in derived else ()
    return names


def chosen(variant: Variant) -> list[Candidate]:
    """In each precision: all of the above for the first layer of each number of dimensions that the variant serves, and
    a few configs of every other layer, always the same ones."""
    found: list[Candidate] = []
    for dtype, precision in ((d, p) for d, all_of in PRECISIONS_OF.items() for p in variant.precision if p in all_of):
        draw, whole = random.Random(f"{variant.key} {precision}"), set()
        for layer in LAYERS:
            def legal(config: dict[str, int], *, layer: ConvTranspose = layer, dtype: str = dtype,
                      precision: str = precision) -> Candidate | None:
                one = Candidate(variant, layer, dtype, config, precision=precision)
                return one if why_not(one, sm=SM) is None else None
            few = [one for config in ({}, *_drawn(variant, draw, SAMPLE)) if (one := legal(config))]
            if few and layer.dims not in whole:
                whole.add(layer.dims)
                few += [one for config in _configs(variant, draw, legal) if (one := legal(config))]
            found += few
    return list({(one.layer, one.precision, tuple(one.config.items())): one for one in found}.values())


def _drawn(variant: Variant, draw: random.Random, count: int) -> list[dict[str, int]]:
    return [{t.name: draw.choice(t.values) for t in variant.tune} for _ in range(count)]


def _configs(variant: Variant, draw: random.Random, legal) -> Iterator[dict[str, int]]:
    tune = [t for t in variant.tune if t.name in read(variant)]
    if prod(len(t.values) for t in tune) <= ALL_CONFIGS:
        for values in product(*(t.values for t in tune)):
            yield {t.name: value for t, value in zip(tune, values, strict=True)}
        return
    met: set[tuple] = set()
    for a, b in combinations(tune, 2):
        for pair in product(((a.name, v) for v in a.values), ((b.name, v) for v in b.values)):
            for _ in range(6):
                if pair in met:
                    break
                config = _drawn(variant, draw, 1)[0] | dict(pair)
                if legal(config):
                    met |= set(combinations(((t.name, config[t.name]) for t in tune), 2))
                    yield config


def computed(candidates: Sequence[Candidate], folder: Path) -> list[dict[str, int]]:
    """What the code makes of each of them: one translation unit for all, whose constants are read without a call."""
    source, library = folder / "plans.cpp", folder / "plans.so"
    source.write_text(emulator.translate(_source(candidates)), encoding="utf-8")
    includes = [f"-I{path}" for path in emulator.INCLUDE_DIRS]
    made = subprocess.run(["g++", *emulator.COMPILE_FLAGS, "-O0", *includes, str(source), *emulator.LINK_FLAGS, "-o", str(library)],
                          capture_output=True, text=True, check=False)
    assert made.returncode == 0, _explained(made.stderr, candidates)
    answers = (ctypes.POINTER(ctypes.c_longlong) * len(candidates)).in_dll(ctypes.CDLL(str(library)), "answers")
    return [dict(zip(compared(one.variant), answer[:len(compared(one.variant))], strict=True))
            for one, answer in zip(candidates, answers, strict=True)]


def _source(candidates: Sequence[Candidate]) -> str:
    headers: dict[str, str] = {}
    parts: dict[str, str] = {}
    answers = []
    for one in candidates:
        variant = one.variant
        space = f"{variant.direction}_{variant.name}"
        if (space, one.dtype) not in parts:
            rendered = render(one)
            headers |= dict(rendered.headers)
            parts[space, one.dtype] = _EMPTY if space in parts else _EMPTY
            if space not in parts:
                aliases = "".join(f"using {name} = {text};\n" for name, text in variant.plan if name[:1].isupper())
                values = ", ".join(f"(long long)({text})" for _, text in compared(variant).values())
                parts[space] = (f"namespace {space} {{\n{rendered.body}\ntemplate <class Layer, class Tune> struct Asked {{\n"
                                f"{aliases}static constexpr long long values[] = {{{values}}};\n}};\n}}")
        layer, tune = _layer(one), _tune(one)
        layer_name = f"Layer{_number(layer)}"
        tune_name = f"Tune{_number(tune)}"
        parts.setdefault(layer_name, f"struct {layer_name} {{ {layer} }};")
        parts.setdefault(tune_name, f"struct {tune_name} {{ {tune} }};")
        answers.append(f"{space}::Asked<{layer_name}, {tune_name}>::values")
    structs = [text for text in parts.values() if text]
    return "\n".join([*headers.values(), *structs, f'extern "C" const long long* const answers[];\n'
                      f'const long long* const answers[] = {{{", ".join(answers)}}};'])


@lru_cache(maxsize=None)
def _number(text: str) -> int:
    return _number.cache_info().currsize


def _layer(one: Candidate) -> str:
    scalar, accumulator = _SCALAR[one.dtype]
    members = "".join(f"static constexpr int {k} = {v};" for k, v in layer_fields(one.layer).items())
    return f"using scalar = {scalar}; using accumulator = {accumulator}; static constexpr bool is_constant = true; {members}"


def _tune(one: Candidate) -> str:
    members = "".join(f"static constexpr int {k} = {v};" for k, v in one.config.items())
    return f"static constexpr Precision precision = Precision::{one.precision}; {members}"


def _explained(errors: str, candidates: Sequence[Candidate]) -> str:
    return errors[:6000]
