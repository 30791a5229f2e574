"""The CUDA text of an exported file is that of the templates without what never runs: it is the same program, and an edit of it
is seen."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from itertools import count
from pathlib import Path
from random import Random

import pytest
import torch

from tests.shared import require
from workbench.core.candidate import Candidate, derived_values, layer_fields, why_not
from workbench.core.cuda_pieces import matching, tokens_of
from workbench.core.env import find_toolchain
from workbench.core.identity import candidate_id, canonical
from workbench.core.layer import ConvTranspose
from workbench.core.presets import KERNELBENCH, preset
from workbench.core.reduced_text import keeps, reduced, settled, without_branches, without_statements
from workbench.core.template import reduced_files, render, restored, sections
from workbench.core.template_instances import Constants
from workbench.core.toolchain import nvcc_problem
from workbench.core.variants import TEMPLATES, find, lines_of
from workbench.drive.exporting.best_recipe import best_recipe, header_notes
from workbench.drive.exporting.export import export_text, literal
from workbench.drive.exporting.recipe import Recipe
from workbench.faces.cli import main
from workbench.measure import emulator
from workbench.measure.build.resources import TORCH_NVCC_FLAGS

from .recipes import SMALL, candidate

ARCH = "sm_90"
ONE_WORKER = pytest.mark.xdist_group("best_files")  # it writes each best file, once


@lru_cache(maxsize=32)
def file_of(name: str, other_layers: bool = False) -> tuple[str, dict[str, Candidate], dict[str, object]]:
    """The best file of a layer of KernelBench, as `export --suite --one-layer` writes it (or without that option); what was
    chosen; and its kernels."""
    workload = preset(name).workload()
    recipe, used = best_recipe(workload, ARCH)
    text = export_text(recipe, constructor=KERNELBENCH[name], arch=ARCH, notes=header_notes(used, workload, ARCH, ""),
                       other_layers=other_layers)
    return text, recipe.chosen, kernels_of(text)


def kernels_of(text: str) -> dict[str, object]:
    namespace: dict = {"__name__": "exported"}
    exec(compile(text, "exported", "exec"), namespace)
    return {kernel.direction: kernel for kernel in namespace["_KERNELS"]}


# The aim is 2 500 lines and 120 000 bytes, and 40 000 of CUDA in a direction. The code alone of these files, without comments,
# blank lines and indentation, has 101 000 bytes or more: they serve every size of a layer. So these are the lengths of today,
# in thousands: lines, bytes, the longest direction. Lower them when a file gets shorter.
MOST = {"kb57": (3.32, 176, 83), "kb58": (3.37, 178.7, 82.5), "kb64": (2.94, 153.8, 80.4), "kb71": (4.25, 218, 80.6),
        "kb72": (2.84, 148.9, 57), "kb73": (4.41, 229.6, 101.7), "kb74": (3.33, 173.2, 78.4), "kb75": (3.72, 192.7, 56.4),
        "kb77": (4.4, 235.4, 100.2), "kb78": (3.57, 183.5, 84), "kb79": (4.28, 220.7, 78.6), "kb81": (4.6, 238.1, 99.9)}
MOST |= dict.fromkeys(("kb61", "kb65", "kb68", "kb70"), MOST["kb57"]) | {"kb69": (4.76, 249.8, 102.7)}


@ONE_WORKER
def test_the_best_files_of_kernelbench_do_not_grow() -> None:
    found = {}
    for name in KERNELBENCH:
        text, _, kernels = file_of(name)
        found[name] = text.count("\n"), len(text.encode()), max(
            len(lines_of(kernel.source(), direction, name)) for direction, kernel in kernels.items())
    print(found)
    assert list(found) == list(KERNELBENCH) and len(found) == 17
    assert {n: f for n, f in found.items() if any(one > 1000 * most for one, most in zip(f, MOST[n], strict=True))} == {}
    assert max(len(line) for line in file_of("kb74")[0].splitlines()) < 600
    for name, lines, size in (("kb64", 3.31, 181), ("kb73", 5.09, 272.6)):   # those that serve other layers
        text = file_of(name, other_layers=True)[0]
        assert text.count("\n") <= 1000 * lines and len(text.encode()) <= 1000 * size


@ONE_WORKER
def test_the_lengths_in_the_docs_are_those_of_the_files(tmp_path: Path) -> None:
    """Lines and KB of the table in docs/exported-files.md, within 1 %."""
    page = (TEMPLATES.parent / "docs" / "exported-files.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (kb\d+|models/[a-z0-9-]+)[^|]*\| ([\d ]+) \| (\d+) \|", page, re.M)
    assert len(rows) == 16
    for name, lines, size in rows:
        if name in KERNELBENCH:
            text = file_of(name)[0]
        else:
            assert main(["export", "--preset", name, "--best", "--out", str(tmp_path / "file.py")]) == 0
            text = (tmp_path / "file.py").read_text()
        found = text.count("\n"), len(text.encode()) / 1000
        assert found == pytest.approx((int(lines.replace(" ", "")), int(size)), rel=0.01), (name, found)


@pytest.mark.parametrize(("text", "known", "left"), [
    ("#ifdef E\na\n#else\nb\n#endif\nc\n", {"E": False}, "b\nc\n"),
    ("#ifdef E\na\n#else\nb\n#endif\nc\n", {"E": True}, "a\nc\n"),
    ("#ifndef E  // why\na\n#endif  // E\nc\n", {"E": True}, "c\n"),
    ("#ifdef E\na\n#elif F >= 9\nb\n#else\nd\n#endif\n", {"E": False}, "#if F >= 9\nb\n#else\nd\n#endif\n"),
    ("#if F\na\n#elif defined(E)\nb\n#else\nd\n#endif\n", {"E": False}, "#if F\na\n#else\nd\n#endif\n"),
    ("#if F\na\n#elif defined(E)\nb\n#else\nd\n#endif\n", {"E": True}, "#if F\na\n#else\nb\n#endif\n"),
    ("#if !defined(E) && F >= 9\na\n#endif\n", {"E": False}, "#if F >= 9\na\n#endif\n"),
    ("#if !defined(E) && (F || defined(G))\na\n#endif\n", {"E": False}, "#if F || defined(G)\na\n#endif\n"),
    ("#if defined(E) || F\na\n#else\nb\n#endif\n", {"E": True}, "a\n"),
    ("#ifdef G\n#ifdef E\na\n#endif\nb\n#else\n#ifndef E\nc\n#endif\n#endif\n", {"E": False},
     "#ifdef G\nb\n#else\nc\n#endif\n"),
    ("#ifdef E\n#ifdef G\na\n#else\nb\n#endif\n#endif\nc\n", {"E": False}, "c\n"),
    ("// #ifdef E\n  # ifdef E\nx\n  # endif\n/*\n#ifdef E\n*/\n", {"E": False}, "// #ifdef E\n/*\n#ifdef E\n*/\n"),
])
def test_branches_that_are_decided_go(text: str, known: dict[str, bool], left: str) -> None:
    assert without_branches(text, known) == left


HEADER = """// What the file is about.
#pragma once

#define USED(x) helper(x)
#define UNUSED 1

// helper's own words.
__device__ int helper(int x) { return Plan<int>::A + x; }  // beside it
__device__ int nobody(int x) { return UNUSED; }  // beside it too

// About nobody's friends.

// A friend.
template <class T, int N = (3 > 2)>
struct Friend {
  int nobody;
};

// About plans.

template <class Layer>
struct Plan {
  using Alias = int;
  static constexpr int A = 1, OTHER = 2;
  // of nobody
  static constexpr int LONELY = 3;
  int data, more = 4;
  static_assert(CHECKED > 0, "kept");
  static __device__ int method(int x) { return Plan{x}.data; }
  __device__ Plan(int x) : data(x) {}
};
constexpr int CHECKED = 1;
"""


def test_declarations_that_nothing_uses_go_with_their_comments_and_all_else_stays() -> None:
    found = reduced({"a.cuh": HEADER, "b.cuh": "// Alone.\nstruct Lost {};\n",
                     "c.cu": '#include "a.cuh"\n#include "b.cuh"\nint first() { return USED(1); }\n'}, ["first"])
    assert found == {"c.cu": '#include "a.cuh"\nint first() { return USED(1); }\n', "a.cuh": """// What the file is about.
#pragma once

#define USED(x) helper(x)

// helper's own words.
__device__ int helper(int x) { return Plan<int>::A + x; }  // beside it

// About plans.

template <class Layer>
struct Plan {
  static constexpr int A = 1, OTHER = 2;
  int data, more = 4;
  static_assert(CHECKED > 0, "kept");
  __device__ Plan(int x) : data(x) {}
};
constexpr int CHECKED = 1;
"""}
    assert reduced({"a.cuh": HEADER}, [], whole=["a.cuh"]) == {"a.cuh": HEADER}


def test_what_a_removed_text_includes_stays_included() -> None:
    texts = {"a.cuh": "int used();\n", "b.cuh": '#include "a.cuh"\n#include "c.cuh"\nint lost();\n',
             "c.cuh": '#include "b.cuh"\n#include "d.cuh"\nint lost_too();\n', "d.cuh": "int d();\n"}
    both = '#include "a.cuh"\n#include "d.cuh"\n'
    for own in ('#include "b.cuh"\n', '#include "b.cuh"\n#include "d.cuh"\n'):
        last = "int first() { return used() + d(); }\n"
        assert reduced({**texts, "e.cu": own + last}, ["first"]) == {
            "a.cuh": texts["a.cuh"], "d.cuh": texts["d.cuh"], "e.cu": both + last}


@pytest.mark.parametrize("odd", ["#ifdef G\nint f() {\n#else\nint g() {\n#endif\n  nobody(); }\n", "int f( {\n",
                                 "template <int N\nint f();\n"])
def test_a_text_that_is_not_understood_stays_whole(odd: str) -> None:
    found = reduced({"a.cuh": "int nobody();\nint helper();\n", "b.cu": odd}, [])
    assert found == {"b.cu": odd} | ({"a.cuh": "int nobody();\n"} if "nobody" in odd else {})
    text = KERNEL % "  if constexpr (THREE) a();\n  {"
    assert without_statements(text, settled({"a": text}, "Precision::tf32")["a"]) == text


KERNEL = """using Scalar = typename Layer::scalar;
static constexpr bool THREE = Tune::precision == Precision::tf32x3, HALVES = sizeof(Scalar) == 2;
static constexpr int PLANES = THREE ? 2 : 1, ROOM = HALVES || PLANES > 4 ? 7 : 9, GUESS = N > 2 ? 1 : 2;
template <bool GIVEN> void f() {
  constexpr bool THREE = Plan::THREE;
%s
}
"""


@pytest.mark.parametrize(("precision", "body", "left"), [
    ("tf32", "  if constexpr (THREE) a();\n  b();", "  b();"),
    ("tf32", "  // Of a.\n  if constexpr (P::THREE) {  // why\n    a();\n  }\n  b();", "  b();"),
    ("tf32x3", "  if constexpr (C::PLANES == 2) {\n    a();\n  } else {\n    b();\n  }",
     "  if constexpr (C::PLANES == 2) {\n    a();\n  }"),
    ("tf32", "  if constexpr (THREE) {\n    a();\n  } else if constexpr (HALVES) {\n    b();\n  } else {\n    c();\n  }",
     "  {\n    c();\n  }"),
    ("tf32", "  for (;;)\n    if constexpr (THREE) a();\n  b();", "  for (;;)\n    ;\n  b();"),
    ("tf32", "  if (x) if constexpr (THREE) { a(); }\n  b();", "  if (x) {}\n  b();"),
    ("tf32x3", "  if (x) if constexpr (THREE) a(); else b(); else c();", None),
    ("tf32", "  if constexpr (ROOM == 9 && !THREE) a(); else b();", "  if constexpr (ROOM == 9 && !THREE) a();"),
    ("tf32", "  if constexpr (precision == Precision::bf16) { if constexpr (THREE) a(); } b();", "   b();"),
    ("tf32", "#define M(x) \\\n  if constexpr (THREE) { \\\n    a(x); \\\n  } else { \\\n    b(x); \\\n  }",
     "#define M(x) \\\n  { \\\n    b(x); \\\n  }"),
    ("tf32", "#define M(x) if constexpr (THREE) { a(x);\n  }}", None),    # its brackets do not match
    ("tf32", "  if constexpr (GIVEN) a();", None),                  # a template's parameter
    ("tf32", "  if constexpr (GUESS == 1) a();", None),             # of the layer
    ("tf32", "  if constexpr (THREE(1)) a();", None),
    ("tf32", "  mma<Precision::tf32x3>();\n  if constexpr (THREE) a();", None),      # another precision is in use
    ("tf32", "  int THREE = 1;\n  if constexpr (THREE) a();", None),
    ("tf32", "  struct Halved : Tune { static constexpr int COLUMNS = 128; };\n"    # a tunable: 256 in Tune
             "  if constexpr (Tune::COLUMNS > 128) a();", None),
])
def test_branches_of_another_precision_or_type_go(precision: str, body: str, left: str | None) -> None:
    instance = f"struct Layer {{\n  using scalar = float;\n}};\nstruct Tune {{ precision = Precision::{precision};\n"
    instance += "  static constexpr int COLUMNS = 256;\n};"
    found = settled({"a": KERNEL % body}, instance)["a"]
    assert without_statements(KERNEL % body, found) == KERNEL % (body if left is None else left)


@pytest.mark.parametrize(("body", "left"), [
    ("  if constexpr (Tune::ROLL) a();\n  b();", "  b();"), ("  if constexpr (P::ROLLS && GUESS) a();\n  b();", "  b();"),
    ("  if constexpr (Tune::DEPTH > 2) a();", None),                   # another config of the file has another value
    ("  struct Deep : Tune { static constexpr int ROLL = 1; };\n  if constexpr (Tune::ROLL) a();", None),
    ("  static constexpr int ROLL = 1;\n  if constexpr (Tune::ROLL) a(); else b();", None),
    ("  struct Deep : Tune {};\n  static constexpr int ROLL = 1;\n  if constexpr (Deep::ROLL) a(); else b();", None),
    ("  static constexpr int ROLL = 1;\n  if constexpr (P::ROLL) a(); else b();",
     "  static constexpr int ROLL = 1;\n  if constexpr (P::ROLL) a();"),
])
def test_branches_of_other_tunables_go(body: str, left: str | None) -> None:
    text = f"static constexpr bool ROLLS = Tune::ROLL;\ntemplate <class Tune> void f() {{\n{body}\n}}\n"
    instance = "struct Tune {\n  static constexpr int ROLL = 0;\n  static constexpr int DEPTH = 2;\n};"
    expected = text if left is None else text.replace(body, left)
    assert without_statements(text, settled({"a": text}, instance, {"ROLL": 0})["a"]) == expected


def test_a_branch_goes_only_if_a_compiler_never_takes_it(tmp_path: Path) -> None:
    _compare_with_compiler([("kb57", "grad_weight"), ("kb73", "forward"), ("kb81", "backward")], tmp_path)


@pytest.mark.long
def test_no_branch_of_the_best_files_goes_that_a_compiler_takes(tmp_path: Path) -> None:
    _compare_with_compiler([(name, direction) for name in KERNELBENCH for direction in file_of(name)[1]], tmp_path)


ASKED = """template <int, bool V> struct Asked;
template <int N> struct Asked<N, true> { [[deprecated]] static constexpr bool value = true; };
template <int N> struct Asked<N, false> { [[deprecated]] static constexpr bool value = false; };
"""


def _compare_with_compiler(asked: list[tuple[str, str]], folder: Path) -> None:
    """A C++ compiler warns of each value of a condition, because `Asked` is deprecated."""
    compiler, decided = find_toolchain().cxx, 0
    require(compiler is not None, "no C++ compiler")
    for name, direction in asked:
        number, one = count(), render(file_of(name)[1][direction])
        texts = {part: _marked(text, number) for part, text in sections(one.source)[:-1]}
        for_gpu = {part: without_branches(text, {"__CUDACPU__": False}) for part, text in texts.items()}
        known, found = Constants(for_gpu, one.instance, (direction, f"{direction}_workspace")), {}
        for part, text in for_gpu.items():
            found |= {int(text[at:].partition("/*")[2].partition(":")[0]): value for at, value in known.answers(part).items()
                      if text.startswith("constexpr", at)}
        (folder / "asked.cc").write_text(ASKED + emulator.translate(re.sub(r"/\*(\d+):\*/", r"Asked<\1, bool(", "\n".join(
            texts.values())).replace("/*:*/", ")>::value") + one.tail))
        done = subprocess.run([compiler, "-fsyntax-only", *(f for f in emulator.COMPILE_FLAGS if f != "-w"), *(
            f"-I{path}" for path in emulator.INCLUDE_DIRS), "asked.cc"], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        said = re.findall(r"Asked<(\d+), (\w+)>::value. is deprecated", done.stderr)
        answers = {(int(at), value == "true") for at, value in said}
        assert answers and [at for at, value in answers if found.get(at, value) != value] == [], (name, direction)
        decided += sum(one in answers for one in found.items())
    assert decided > 4 * len(asked)


def _marked(text: str, number: Iterator[int]) -> str:
    """The text with a comment before and behind each condition of `if constexpr`."""
    code = [t for t in tokens_of(text) if t.kind != "comment"]
    for at in reversed([i for i, t in enumerate(code) if t.text == "constexpr" and code[i - 1].text == "if"]):
        begin, end = code[at + 1].end, code[matching(code, at + 1) - 1].start
        text = f"{text[:begin]}/*{next(number)}:*/{text[begin:end]}/*:*/{text[end:]}"
    return text


@pytest.mark.parametrize(("lines", "written"), [
    ([f"#define A_{n} A_{n - 1} {4 * n + 1} 7" for n in range(2, 9)], ("range(2, 9)", "#define A_<n> A_<n-1> <4n+1> 7")),
    ([f"f({8 * n}, {n})" for n in (5, 7, 9, 10, 13)], ("(5, 7, 9, 10, 13)", "f(<8n>, <n>)")),
    ([line for n in range(6) for line in (f"a {n}", f"b {n}")], ("range(0, 6)", "a <n>\nb <n>")),
    ([f"a {n}" for n in range(4)], None), ([f"a {n} {n * n}" for n in range(9)], None), (["a 1"] * 9, None),
    ([f"a<nothing> {n}" for n in range(9)], None)])
def test_lines_that_count_on_are_written_once(lines: list[str], written: tuple[str, str] | None) -> None:
    text = "\n".join(["// First.", *lines, "last;\n"])
    told, names = literal(text), {}
    exec(re.search(r"^def _each.*?\n\n", file_of("kb74")[0], re.M | re.S)[0], {"re": re}, names)
    assert eval(told, names) == text
    assert ("_each(" in told) == bool(written)
    if written:
        assert told.startswith(f'r"""// First.\n""" + _each({written[0]}, r"""{written[1]}\n""")')


@pytest.mark.parametrize(("part", "kept"), [("a(b);", True), ("a(b); c;", True), ("a(b); // d", True), ("a();", False),
                                            ("a(b); e;", False), ("b(a);", False), ("#define D\na(b);", False)])
def test_a_part_keeps_what_is_used_and_has_nothing_of_its_own(part: str, kept: bool) -> None:
    assert keeps(part, "a(b);", "a(b); c; d;") == kept


@ONE_WORKER
def test_each_kernel_of_the_best_files_is_the_one_that_was_judged() -> None:
    """From the file's own text its template comes back, with the id that the file names; and the text is derived again."""
    seen = set()
    for name, other_layers in [*((name, False) for name in KERNELBENCH), ("kb57", True), ("kb74", True)]:
        text, chosen, kernels = file_of(name, other_layers)
        assert set(kernels) == set(chosen) and text.count("enum class Precision") == 1
        assert "__CUDACPU__" not in text and "ptx_emulation" not in text and " emulator" not in text.lower()
        names = next(iter(kernels.values())).source.__globals__
        known = names["_KNOWN"] if other_layers else {}
        assert ("_KNOWN" in names) == ("_RULES" in names) == ("gcd" in names) == ("_distance" in names) == other_layers
        configs = {c: [{**c.config, **tune} for *_, ratio, tune in
                       known.get((c.variant.key, torch.float32, c.precision), ()) if ratio] for c in chosen.values()}
        texts = "".join(names["_TEXTS"].values())
        shared = "KW_FORWARD" in texts                                      # a template for two directions
        assert ("#define KW_FORWARD" in text) == shared and ("_each" in names) == ("_each(range(" in text)
        assert hasattr(names["_Plan"], "takes_both") == ("backward" in chosen) and not re.search(r"@[A-Z]", text)
        again = reduced_files([(c, render(c)) for c in chosen.values()], configs, other_layers=other_layers)
        assert names["_TEXTS"] == again
        assert not re.search(r"README\.md|#pragma once|  \\$", "\n".join(again.values()), re.M)
        for direction, kernel in kernels.items():
            assert kernel.source().startswith("#define KW_FORWARD") == (shared and direction == "forward")
            judged = render(chosen[direction])
            assert f"candidate {judged.candidate_id}" in kernel.name
            if (kernel.variant, kernel.precision) not in seen:
                seen.add((kernel.variant, kernel.precision))
                assert candidate_id(restored(kernel.source()), compile_flags=kernel.flags) == judged.candidate_id


@ONE_WORKER
def test_a_file_and_its_templates_serve_the_same_layers() -> None:
    """The conditions in a file lack what is the same wherever the file uses the template."""
    draw, answers, gpu = Random(0), [], torch.device("cpu")
    for name in ("kb57", "kb74", "kb79", "kb81"):
        _, _, kernels = file_of(name, other_layers=True)
        names = next(iter(kernels.values())).source.__globals__
        for kernel in (k for k in kernels.values() for _ in range(40)):
            inputs, outputs, _, *near = draw.choice(names["_MEASURED"])[0]
            near = [max(int(at < 6 or at > 8), draw.choice((*[n] * 9, 2 * n, n + 1, n - 1))) for at, n in enumerate(near[:12])]
            sizes, stride, padding, dilation = (tuple(near[at:at + 3]) for at in (0, 3, 6, 9))
            layer = ConvTranspose(3, inputs, draw.choice((outputs, 2 * outputs, 24)), sizes, stride=stride, padding=padding,
                                  dilation=dilation, bias=draw.random() < 0.5)
            rows = names["_KNOWN"].get((kernel.variant, kernel.dtype, kernel.precision), [])
            tune = {**kernel.tune, **draw.choice([{}, *(differs for *_, differs in rows)])}
            one = Candidate(find(kernel.variant.partition("/")[2], kernel.direction), layer, "float32", tune, kernel.precision)
            served, reason = kernel._made_for(tuple(layer_fields(layer).values()), tune), why_not(one, sm=90)
            answers.append(served is not None and not served.misfit(gpu))
            assert answers[-1] == (reason is None), (kernel.name, layer, tune, reason)
            assert reason or served.shared_bytes == derived_values(one, sm=90).get("smem_bytes", 0)
    assert 0.2 * len(answers) < sum(answers) < 0.95 * len(answers), sum(answers) / len(answers)


def test_comments_stay() -> None:
    text = file_of("kb58")[0]
    files = re.findall(r'^"((?!hardware|contract)[a-z_/]+\.cuh?)": r"""', text, re.M)
    comments = [line.strip() for path in files for line in (TEMPLATES / path).read_text().split("*/")[-1].splitlines()
                if line.strip().startswith("// ")]
    assert len(comments) > 150 and sum(line in text for line in comments) > 0.95 * len(comments)


def test_a_change_of_the_text_is_what_the_emulator_runs() -> None:
    one = candidate(SMALL, "forward", "implicit_gemm_mma")
    source = kernels_of(export_text(Recipe(SMALL, forward=one)))["forward"].source()
    whole = restored(source)
    assert canonical(whole) == canonical(render(one).source) != canonical(source)
    for before, after in (("a.columns * C::W::IN_STEP", "a.columns + C::W::IN_STEP"), ("nearest_tf32(", "("),
                          ("__syncthreads();", ""), ("enum class Precision {", "enum class Precision : char {")):
        assert before in source
        changed = restored(source.replace(before, after, 1))
        assert canonical(changed) != canonical(whole) and changed.count(before) == whole.count(before) - 1


def test_a_number_that_the_layer_decides_is_checked_too() -> None:
    """It stands in the file instead of its formula. Another number there is an edit, which the emulator runs."""
    source = file_of("kb57")[2]["forward"].source()
    whole, number = restored(source), "static constexpr int SLICE_BYTES = 18432;"
    assert number in source and number not in whole and "SLICE_BYTES = KH * BUNDLES * PARTS * WEIGHT_ROWS * 32;" in whole
    changed = restored(source.replace(number, number.replace("18432", "18433")))
    assert "SLICE_BYTES = 18433;" in changed and "SLICE_BYTES = KH" not in changed and "CHANNEL_TILE = 64;" in changed


def test_what_one_kernel_of_a_file_needs_stays_for_it() -> None:
    """Two types, two precisions and two directions share a text."""
    recipes = []
    for dtype, precision in (("float32", "tf32"), ("float32", "tf32x3"), ("bfloat16", "bf16")):
        workload = replace(SMALL, dtype=dtype)
        variant = candidate(workload, "forward", "implicit_gemm_mma").variant
        recipes.append(Recipe(workload, forward=Candidate(variant, SMALL.layer, dtype, {}, precision)))
    variant = candidate(SMALL, "grad_input", "implicit_gemm_mma").variant
    recipes.append(Recipe(SMALL, grad_input=Candidate(variant, SMALL.layer, "float32", {}, "tf32")))
    for some in (recipes[:1], recipes[1:3], [recipes[0], recipes[3]]):
        text = export_text(some)
        namespace: dict = {"__name__": "exported"}
        exec(compile(text, "exported", "exec"), namespace)
        for kernel, one in zip(namespace["_KERNELS"], [c for r in some for c in r.chosen.values()], strict=True):
            assert candidate_id(restored(kernel.source()), compile_flags=()) == render(one).candidate_id
        types, precisions = {r.workload.dtype for r in some}, {p for r in some for p in r.precision.values()}
        assert ("pack_half_weights(" in text) == ("bfloat16" in types)
        assert ("take_out(" in text) == ("tf32x3" in precisions)
        assert ("\n#ifdef KW_FORWARD\n" in text) == (len({d for r in some for d in r.chosen}) == 2)


def test_a_template_of_ones_own_stands_whole_in_the_file(tmp_path: Path) -> None:
    shutil.copytree(TEMPLATES, tmp_path / "t")
    own = tmp_path / "t/hardware/ptx.cuh"
    own.write_text(own.read_text() + "\n__device__ int of_ones_own() { return 1; }\n")
    one = candidate(SMALL, "forward", "implicit_gemm_mma", root=tmp_path / "t")
    source = kernels_of(export_text(Recipe(SMALL, forward=one)))["forward"].source()
    assert "of_ones_own" in source and candidate_id(restored(source), compile_flags=()) == render(one).candidate_id


def test_a_sample_is_the_same_program(tmp_path: Path) -> None:
    _same_program([("kb74", "forward", "90a")], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("other_layers", [False, True])
def test_each_kernel_of_the_best_files_is_the_same_program(other_layers: bool, tmp_path: Path) -> None:
    """Once for each variant, direction and precision, for the oldest GPU and for the one that was measured."""
    seen: dict[tuple[str, str], tuple[str, str, int]] = {}
    for name in KERNELBENCH:
        for direction, kernel in file_of(name)[2].items():
            seen.setdefault((kernel.variant, kernel.precision), (name, direction, kernel.min_sm))
    _same_program([(name, direction, arch) for name, direction, min_sm in seen.values()
                   for arch in (("90a",) if min_sm >= 90 else ("80", "90a"))], tmp_path, other_layers=other_layers)


def _same_program(asked: list[tuple[str, str, str]], folder: Path, *, other_layers: bool = False) -> None:
    """The compiler makes the same PTX, letter for letter, of the file's text and of what was judged; or the same machine code:
    PTX may have a load more that nothing reads, of a variable that a branch which is not there would have used. nvcc 13.0 does
    not always make the same of one text, so the two may try again."""
    tools = find_toolchain()
    problem = nvcc_problem(tools, None)
    require(problem is None, str(problem))

    def built(source: str, kind: str, arch: str, place: Path) -> bytes:
        place.mkdir()
        (place / "kernel.cu").write_text(source)
        words = [str(tools.nvcc), f"-{kind}", "-w", "-O3", "-std=c++20", *TORCH_NVCC_FLAGS,
                 f"-arch={'compute' if kind == 'ptx' else 'sm'}_{arch}", "kernel.cu"]
        done = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        return (place / f"kernel.{kind}").read_bytes()

    def compare(number: int) -> tuple[str, str, str] | None:
        name, direction, arch = asked[number]
        _, chosen, kernels = file_of(name, other_layers)
        sources = kernels[direction].source(), render(chosen[direction]).source
        assert sources[0] != sources[1]
        made: dict[str, tuple[set[bytes], set[bytes]]] = {"ptx": (set(), set()), "cubin": (set(), set())}
        for turn, kind in enumerate(("ptx", "cubin", "ptx", "cubin", "ptx")):
            for which, source in enumerate(sources):
                made[kind][which].add(built(source, kind, arch, folder / f"{number}-{turn}-{which}"))
            if made[kind][0] & made[kind][1]:
                return None
        return asked[number]

    with ThreadPoolExecutor(2) as pool:
        assert [found for found in pool.map(compare, range(len(asked))) if found] == []
