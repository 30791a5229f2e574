"""From a template to CUDA source: what is refused and how it is said, where lines point; and what names a candidate: the tokens
that a compiler reads, and nothing about where they stand or how they are laid out. Also what a layer's numbers decide."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.core.candidate import Candidate
from workbench.core.cuda_pieces import with_literals, without_literals
from workbench.core.errors import BadRequest, RenderError
from workbench.core.fork import fork
from workbench.core.identity import candidate_id, canonical
from workbench.core.presets import preset
from workbench.core.reduced_text import reduced, without_shapes, without_statements
from workbench.core.source_parts import error_lines, side_by_side, unified
from workbench.core.template import files_of, render, render_batch, symbol
from workbench.core.template_instances import Constants
from workbench.core.variants import TEMPLATES, Variant, broken, discover, find, parse, refuse_broken

LAYER = preset("kb74").layer
# A template of its own, so that the shipped ones may change. It computes nothing: here it is only rendered.
TEXT = """/* variant
name      = "small"
computes  = ["forward"]
idea      = "One thread per output."
precision = ["ieee", "fp16"]
needs     = []
[tune]
BLOCK          = {values = [32, 64, 128], default = 128}
CO_PER_THREAD  = {values = [1, 2, 4, 8], default = 1}
*/
#include "contract/problem.cuh"
#include "contract/scalar.cuh"

// Read this one first.
template <class Layer, class Tune>
__global__ void __launch_bounds__(Tune::BLOCK) small(Layer layer, Sizes sizes) {
  constexpr int CO = Tune::CO_PER_THREAD;
  const int taps = layer.kernel_d * layer.kernel_h * layer.kernel_w;
  if (CO * taps * layer.stride_d > sizes.batch) return;
}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A templates folder for one template; its headers are the shipped ones."""
    (tmp_path / "forward").mkdir()
    return tmp_path


def variant(root: Path, *changes: tuple[str, str]) -> Variant:
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = root / "forward" / "small.cu"
    path.write_text(text)
    return parse(text, path)


def candidate(of: Variant, **more: object) -> Candidate:
    return Candidate(of, LAYER, "float32", **{"config": {}} | more)


def test_a_tunable_nobody_defines_is_named_with_its_line(root: Path) -> None:
    broken = variant(root, ("constexpr int CO = Tune::CO_PER_THREAD;", "constexpr int CO = Tune::TILE_M;"))
    line = broken.text[:broken.text.index("Tune::TILE_M")].count("\n") + 1
    with pytest.raises(RenderError) as caught:
        render(candidate(broken))
    assert "Tune::TILE_M" in str(caught.value) and f"line {line}," in str(caught.value)
    assert caught.value.advice == f"Add TILE_M to [tune], or correct the name in line {line}."


def test_a_layer_member_nobody_defines_is_named(root: Path) -> None:
    with pytest.raises(RenderError, match="layer.strides") as caught:
        render(candidate(variant(root, ("layer.stride_d", "layer.strides"))))
    assert "stride_w" in caught.value.advice


def test_a_name_in_a_comment_is_no_use(root: Path) -> None:
    render(candidate(variant(root, ("// Read this one first.", "// Tune::NOTHING, layer.nothing."))))


@pytest.mark.parametrize(("old", "new", "words"), [
    ('name      = "small"', 'name      = small', ["not TOML", "small.cu"]),
    ('/* variant', '/* kernel', ["does not begin with a comment"]),
    ('name      = "small"', 'name      = "other"', ["other", "small.cu", "make them equal"]),
    ('computes  = ["forward"]', 'computes  = ["fprop"]', ["fprop", "grad_input"]),
    ('computes  = ["forward"]', 'computes  = ["forward", "grad_weight"]', ["computes one direction"]),
    ('needs     = []', 'wants     = []', ["wants", "needs"]),
    ('"ieee"', '"fp8"', ["fp8", "tf32"]), ('default = 128', 'default = 96', ["BLOCK", "96"]),
    ('needs     = []', 'plan = "Plan<Layer, Tune>"', ["plan", "write it as a table [plan]"]),
    ('[tune]', '[plan]\ntile_m = "Plan::TILE_M"\n[tune]', ["tile_m", "no [derived] value"]),
    ('[tune]', '[derived]\ntile_m = "16"\n[plan]\ntile_m = 16\n[tune]', ["tile_m", "C++ expression"]),
    ('values = [1, 2, 4, 8]', 'values = [1, "two"]', ["CO_PER_THREAD", "whole numbers"]),
])
def test_a_wrong_header_is_one_sentence(root: Path, old: str, new: str, words: list[str]) -> None:
    with pytest.raises(RenderError) as caught:
        variant(root, (old, new))
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_include_that_does_not_exist_is_named(root: Path) -> None:
    broken = variant(root, ('#include "contract/scalar.cuh"', '#include "contract/scaler.cuh"'))
    with pytest.raises(RenderError, match=r'small.cu includes "contract/scaler.cuh", which does not exist') as got:
        render(candidate(broken))
    assert "contract/problem.cuh" in got.value.advice


def test_a_value_that_is_not_offered_is_refused(root: Path) -> None:
    with pytest.raises(ValueError, match="BLOCK=96 is not offered by small; choose 32, 64"):
        candidate(variant(root), config={"BLOCK": 96})


def places(source: str) -> dict[str, dict[int, str]]:
    """What a compiler makes of the #line directives: file -> line -> the text it will complain about."""
    found: dict[str, dict[int, str]] = {}
    name, line = "", 0
    for text in source.split("\n"):
        directive = re.fullmatch(r'#line (\d+) "(.*)"', text)
        if directive:
            line, name = int(directive[1]), directive[2]
        else:
            found.setdefault(name, {})[line] = text
            line += 1
    return found


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_lines_of_the_source_are_lines_of_the_files(batched: bool, dtype: str) -> None:
    for one in discover():
        rendered = render(Candidate(one, LAYER, dtype, {}))
        found = places(render_batch([rendered]) if batched else rendered.source)
        ours = f"{one.path.parent.name}/{one.path.name}"
        assert ours in found
        for name in [ours, *(n for n in found if n.endswith(".cuh"))]:
            original = (TEMPLATES / name).read_text().rstrip().split("\n")
            seen = 0
            for number, text in found[name].items():
                closes = text.startswith("}  // namespace")  # of a batch; stands behind the last line of the direction
                if text and number <= len(original) and not closes:  # includes and the other direction are blanked
                    assert text == original[number - 1], f"{name}:{number}"
                    seen += 1
            assert seen > 5


def test_an_id_depends_on_source_config_layer_form_and_flags_and_on_nothing_else(root: Path) -> None:
    base = candidate(variant(root))
    ids = {"base": render(base).candidate_id}
    for name, other in {
        "flags": replace(base, compile_flags=("-O1",)), "two flags": replace(base, compile_flags=("-O1", "-g")),
        "joined flags": replace(base, compile_flags=("-O1-g",)), "config": replace(base, config={"BLOCK": 64}),
        "layer": replace(base, layer=preset("kb79").layer), "form": replace(base, form="runtime"),
        "dtype": Candidate(base.variant, LAYER, "float16", {}),
    }.items():
        ids[name] = render(other).candidate_id
    assert len(set(ids.values())) == len(ids)
    assert render(replace(base, config=dict(base.variant.default_config))).candidate_id == ids["base"]
    assert ids["base"] == candidate_id(render(base).source, compile_flags=())
    assert not re.search(r"sm_\d\d|compute_\d\d", render(base).source)  # no arch: two GPUs share the id


def test_the_parameters_of_the_layer_are_constants_or_members(root: Path) -> None:
    base = candidate(variant(root))
    assert "static constexpr int dilation_w = 3;" in render(base).instance
    runtime = render(replace(base, form="runtime")).instance
    assert "int dilation_w;" in runtime and "dilation_w = " not in runtime
    # one run-time source serves every layer
    assert render(replace(base, form="runtime")).source == render(
        replace(base, form="runtime", layer=preset("kb79").layer)).source


def test_a_batch_holds_every_shared_text_once(root: Path) -> None:
    only = variant(root)
    members = [render(candidate(only, config={"BLOCK": b})) for b in (32, 64, 128)]
    text = render_batch([*members, members[0]])
    assert text.count("__global__ void __launch_bounds__(Tune::BLOCK) small(") == 1
    assert text.count("struct Problem {") == 1
    for one in members:
        assert text.count(f"({symbol(one)}, Layer, Tune)") == 1
    assert len(text) < 1.3 * len(members[0].source)


def test_a_batch_keeps_two_texts_of_one_name_apart(root: Path) -> None:
    first = render(candidate(variant(root)))
    second = render(candidate(variant(root, ("const int taps =", "const unsigned taps ="))))
    text = render_batch([first, second])
    assert len(set(re.findall(r"^namespace (forward_small_\w+) \{", text, re.M))) == 2
    assert first.candidate_id != second.candidate_id


def test_headers_that_differ_under_one_name_are_not_mixed(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "forward").mkdir(parents=True)
    (other / "contract").mkdir()
    (other / "contract" / "scalar.cuh").write_text((TEMPLATES / "contract" / "scalar.cuh").read_text() + "// changed\n")
    with pytest.raises(RenderError, match="separate batches"):
        render_batch([render(candidate(variant(root))), render(candidate(variant(other)))])


def test_a_ring_of_includes_ends(root: Path) -> None:
    (root / "contract").mkdir()
    for name, other in (("scalar", "problem"), ("problem", "scalar")):
        text = (TEMPLATES / "contract" / f"{name}.cuh").read_text()
        (root / "contract" / f"{name}.cuh").write_text(f'#include "contract/{other}.cuh"\n{text}')
    rendered = render(candidate(variant(root)))
    assert [n for n, _ in rendered.headers].count("contract/scalar.cuh") == 1


def test_a_file_in_the_folder_of_another_direction_is_refused(tmp_path: Path) -> None:
    (tmp_path / "grad_input").mkdir()
    (tmp_path / "grad_input" / "naive_gather.cu").write_text((TEMPLATES / "forward" / "naive_gather.cu").read_text())
    assert discover(tmp_path) == []
    with pytest.raises(RenderError, match="naive_gather.cu lies in grad_input/ but computes forward"):
        find("naive_gather", "grad_input", root=tmp_path)


@pytest.mark.parametrize(("header", "sentence"), [
    ('/* variant\nname = "mine"\nidea = broken"\n*/\n', "The header of mine.cu is not TOML: Invalid value (at line 3"),
    ('\n\n/* variant\nname = mine"\n*/\n', "is not TOML: Invalid value (at line 4, column 8)."),
    ("/* variant\nname = 7\n*/\n", "key name is missing or not a str"),
    ('/* variant\nname = "mine"\ncomputes = [["forward"]]\nidea = ""\nprecision = ["ieee"]\n*/', "give a list of words"),
    ('/* variant\nname = "mine"\ncomputes = ["forward"]\nidea = ""\nprecision = ["ieee"]\ntune = 3\n*/', "[tune]"),
    ('/* variant\nname = "mine"\ncomputes = ["forward"]\nidea = ""\nprecision = ["ieee"]\nmin_sm = "a"\n*/', "min_sm is 'a'"),
    ("int main() {}", "does not begin with a comment"),
    (b"/* variant \xff */", "cannot be read as UTF-8"),
])
def test_a_broken_header_costs_its_own_variant_alone(header: str | bytes, sentence: str, root: Path) -> None:
    before = [v.key for v in discover(root)]
    (root / "forward" / "mine.cu").write_bytes(header if isinstance(header, bytes) else header.encode())
    assert [v.key for v in discover(root)] == before
    assert list(broken(root)) == ["forward/mine"] and sentence in str(broken(root)["forward/mine"])
    with pytest.raises(RenderError, match=re.escape(sentence)):
        find("mine", "forward", root=root)
    refuse_broken(["mine"], ["grad_input"], root)
    with pytest.raises(RenderError, match=re.escape(sentence)):
        refuse_broken(["forward/mine"], ["forward"], root)


def test_a_folder_of_templates_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="The folder of templates .*nowhere does not exist"):
        discover(tmp_path / "nowhere")


@pytest.mark.parametrize("rendering", [False, True])
def test_a_text_that_was_not_edited_is_no_fork(rendering: bool) -> None:
    for of in (v for v in discover() if "ieee" in v.precision):
        parent = Candidate(of, LAYER, "float32", {}, "ieee")
        rendered = render(parent)
        with pytest.raises(BadRequest, match="same program"):
            fork(rendered.source if rendering else of.text, parent, rendered.candidate_id)


def test_a_fork_is_called_by_what_it_was_and_its_own_text(root: Path) -> None:
    parent = candidate(variant(root), config={"BLOCK": 64})
    before = render(parent)
    edits = [text.replace("int taps =", "int taps = 1 +") for text in (parent.variant.text, before.source)]
    ours, theirs = (fork(text, parent, before.candidate_id) for text in edits)
    assert re.fullmatch("small-[0-9a-f]{4}", ours.variant.name) and ours.variant.forked_from == before.candidate_id
    assert render(ours).candidate_id == render(theirs).candidate_id != before.candidate_id
    assert ours.variant.name == theirs.variant.name and ours.config == theirs.config == parent.config
    assert f'"forward/{ours.variant.name}.cu"' in render(ours).source and not ours.headers
    assert theirs.variant.text == ours.variant.text, "a rendering's template has its include lines again"
    again = fork(ours.variant.text.replace("1 +", "2 +"), ours, render(ours).candidate_id)
    assert again.variant.name.startswith("small-") and again.variant.name.count("-") == 1
    assert "small_" in render_batch([render(ours)]), "a namespace has no hyphen"


def test_an_edited_header_is_the_forks_own(root: Path) -> None:
    parent = candidate(variant(root))
    before = render(parent)
    made = fork(before.source.replace("#define KW_", "#define KW_MINE 1\n#define KW_", 1), parent, before.candidate_id)
    assert made.headers and "KW_MINE" in render(made).source
    again = fork(made.variant.text.replace("int taps =", "int taps = 1 +"), made, render(made).candidate_id)
    assert again.headers == made.headers and again.variant.name != made.variant.name, "its template edited after that"
    with pytest.raises(RenderError, match="header that was edited"):
        files_of(made, render(made))


def test_what_an_edited_rendering_may_not_change_is_said(root: Path) -> None:
    parent = candidate(variant(root))
    before = render(parent)
    made = fork(before.source.replace("BLOCK = 128;", "BLOCK = 64;"), parent, before.candidate_id)
    assert made.config["BLOCK"] == 64, "its values are read"
    for old, new, words in (("BLOCK = 128;", "BLOCK = 48;", "not offered"), ("stride_d = 1", "stride_d = 2", "instance of"),
                            ("#line 1 \"instance", "//", "keep the lines")):
        assert old in before.source
        with pytest.raises(BadRequest, match=words):
            fork(before.source.replace(old, new), parent, before.candidate_id)
    with pytest.raises(BadRequest, match="key computes"):
        fork(parent.variant.text.replace('"forward"', '"grad_weight"'), parent, before.candidate_id)


def test_two_texts_side_by_side() -> None:
    """Against difflib's own unified diff, at each context."""
    from difflib import unified_diff
    left = "".join(f"{n}\n" for n in range(40))
    right = left.replace("5\n6\n", "five\n6\nsix\n", 1).replace("30\n", "")
    assert [(r.left, r.right, r.skipped) for r in side_by_side(left, left)] == [(None, None, 40)]
    whole = side_by_side(left, right, context=None)
    assert "".join(f"{r.left_text}\n" for r in whole if r.left) == left
    assert "".join(f"{r.right_text}\n" for r in whole if r.right) == right and not any(r.skipped for r in whole)
    for context in (0, 1, 3):
        rows = unified(side_by_side(left, right, context=context))
        lines = [f" {r.left_text}" if r.same else f"-{r.left_text}" if r.left else f"+{r.right_text}"
                 for r in rows if not r.skipped]
        there = list(unified_diff(left.splitlines(), right.splitlines(), lineterm="", n=context))
        assert lines == [line for line in there[2:] if not line.startswith("@")]
        assert sum(r.skipped for r in rows) + sum(r.left is not None for r in rows) == 40


def test_what_a_compiler_says_has_its_line_in_the_edited_text(root: Path) -> None:
    """Of g++ and of nvcc; in a template and in the rendering; and of the headline where no log was kept."""
    source = render(candidate(variant(root))).source
    own = source.splitlines().index('#line 1 "forward/small.cu"') + 1
    log = ("/tmp/x/small.cu:12:3: error: 'a' was not declared in this scope\nforward/small.cu(16): error: no b\n"
           "small.cu:12:9: error: again\nother.cu:3:1: error: not ours\nsmall.cu:17:1: warning: unused\n")
    assert error_lines(source, log, "") == [(own + 12, "'a' was not declared in this scope"), (own + 16, "no b")]
    there = [(12, "'a' was not declared in this scope"), (16, "no b")]
    assert error_lines(TEXT, log.replace("other.cu", "other.cuh"), "") == there
    assert error_lines(TEXT, "", "nvcc stopped at forward/small.cu, line 7: no c") == [(7, "no c")]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TEMPLATES, tmp_path / "templates"))


def id_in(tree: Path, name: str = "naive_gather") -> str:
    return render(Candidate(find(name, "forward", root=tree), LAYER, "float32", {})).candidate_id


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, f"{path.name} has no {old!r} any more"
    path.write_text(text.replace(old, new))


def test_a_header_in_another_folder_and_another_comment_change_no_id(tree: Path) -> None:
    before = id_in(tree)
    (tree / "contract" / "problem.cuh").rename(tree / "hardware" / "sizes.cuh")
    for path in tree.rglob("*.cu*"):
        path.write_text(path.read_text().replace('"contract/problem.cuh"', '"hardware/sizes.cuh"'))
    assert id_in(tree) == before
    template = find("naive_gather", "forward", root=tree).path
    template.write_text(template.read_text().replace("// ", "// reworded: ").replace("\n\n", "\n") + "\n\n// The end.\n")
    assert id_in(tree) == before


def test_a_token_in_a_template_or_a_header_changes_the_id(tree: Path) -> None:
    before = id_in(tree)
    rewrite(tree / "contract" / "problem.cuh", "struct Sizes {", "struct Sizes { int unused;")
    in_header = id_in(tree)
    rewrite(find("naive_gather", "forward", root=tree).path, "__global__", "__global__ static")
    assert len({before, in_header, id_in(tree)}) == 3


@pytest.mark.parametrize("same", [
    ("int a = 1;", "int  a\n  =\t1;"), ("f(a);", "f( /* of what */ a ); // done"), ("a<b>>c", "a < b>> c"),
    ("int a;\nint b;", '#line 7 "x.cu"\nint a;\n# 8 "y.cu"\nint b;'), ("#pragma once\nint a;", "int a;"),
    ("#define F(x) \\\n  g(x)\nint a;", "#define F(x) g(x)  // twice\nint a;"), ("x = 1'000;", "x=1'000; // it's many"),
    ("int a;\n\n\n\nint b;", "int a; /* two\nlines */ int b;")])
def test_these_are_the_same_program(same: tuple[str, str]) -> None:
    assert canonical(same[0]) == canonical(same[1])


@pytest.mark.parametrize("other", [
    ('s = "a  b";', 's = "a b";'), ("a + +b", "a ++b"), ("a - -b", "a--b"), ("int a", "inta"), ("> >", ">>"),
    ('s = "//x";', 's = "";'), ('R"(a  b)"', 'R"(a b)"'), ("#define F (x)", "#define F(x)"), ("c = ' ';", "c = '';"),
    ("#pragma unroll\nfor(;;);", "for(;;);"), ('f("/*", x, "*/")', 'f("/*"  "*/")'), ("#if A\nx\n#endif", "#if A x\n#endif")])
def test_these_are_two_programs(other: tuple[str, str]) -> None:
    assert canonical(other[0]) != canonical(other[1])


def test_a_source_in_parts_has_the_id_of_the_whole() -> None:
    for variant in discover():
        dtype = "float32" if {"ieee", "tf32", "tf32x3"} & set(variant.precision) else "bfloat16"
        rendered = render(Candidate(variant, LAYER, dtype, {}))
        assert rendered.candidate_id == candidate_id(rendered.source, compile_flags=()), variant.key
        assert canonical(canonical(rendered.source)) == canonical(rendered.source)


INSTANCE = """struct Layer {
  using scalar = float;
  static constexpr bool is_constant = true;
  static constexpr int stride = 2;
  static constexpr int channels = 24;
};
struct Tune {
  static constexpr Precision precision = Precision::tf32;
  static constexpr int TILE = 0;
};"""
PLAN = """enum class Precision { ieee, tf32, tf32x3 };
enum class Where { shared, global };
constexpr int larger(int a, int b) { return a > b ? a : b; }
template <class Tune, int N = 4> struct Fewer : Tune { static constexpr int TILE = Tune::TILE ? Tune::TILE : N; };
template <class Layer, class Tune> struct Plan {
  static constexpr int tiles(int most) {
    int count = 0;
    for (int k = 0; k < Layer::channels; k += 8) count += k < most;
    while (count > 1 && count * 8 > most) --count;
    return count;
  }
  static constexpr int TILE = larger(Fewer<Tune>::TILE, 3), TILES = tiles(20), HALF = TILES / -2;
  static constexpr Where WHERE = TILES > 2 ? Where::shared : Where(1);
};
template <class P, int AT> void step() { if constexpr (AT < P::TILES) { step<P, AT + 1>(); } %s }
template <class T> void deduced(T x) { if constexpr (sizeof(T) == 4) a(); }
template <int columns> struct Shape;
template <class Layer, class Tune> void forward() {
  using P = Plan<Layer, Tune>;
  constexpr bool WIDE = P::TILE == 4 && P::HALF == -1;
  const int K = 3;
  step<P, 0>();
  deduced(1.f);
  %s
}
"""


@pytest.mark.parametrize(("place", "condition", "value"), [
    (1, "WIDE", True), (1, "P::WHERE == Where::global", True), (1, "Layer::stride > 1 && x", None), (1, "K == 3", None),
    (1, "Layer::stride > 2 && x", False), (1, "sizeof(typename Layer::scalar) == 4", True), (1, "Tune::TILE == 0", True),
    (1, "Tune::precision != Precision::tf32", False), (1, "P::tiles(9) == 1", True), (1, "Other::TILE > 0", None),
    (0, "AT == 0", None), (0, "AT < 9 && P::TILES == 2", True), (0, "P::NOT_THERE", None), (1, "larger(1, 2) < 2", False)])
def test_what_a_layer_decides(place: int, condition: str, value: bool | None) -> None:
    """In `step`, which is instantiated with AT = 0, 1 and 2, and in `forward`."""
    asked = f"if constexpr ({condition}) b();"
    text = PLAN % ((asked, "") if not place else ("", asked))
    known = Constants({"a.cu": text}, INSTANCE, ["forward"])
    assert known.answers("a.cu").get(text.index(asked) + 3) == value
    assert text.index("constexpr (sizeof(T)") not in known.answers("a.cu")


def test_a_specialisation_that_no_layer_needs_goes() -> None:
    text = PLAN % ("", "Choice<P, P::TILE>::Type::f(); Choice<P, 3>::Type::g();") + (
        "template <class P, int N, bool WIDE = N == 4> struct Choice { using Type = Narrow; };\n\n// Two.\n"
        "template <class P, int N> struct Choice<P, N, true> { using Type = Wide; };\n"
        "// Three.\ntemplate <class P> struct Choice<P, 5, false> { using Type = Odd; };\n")
    less = without_statements(text, Constants({"a.cu": text}, INSTANCE, ["forward"]).answers("a.cu"))
    assert less == text[:text.index("// Three.")]
    unclear = text.replace("Choice<P, 3>", "Choice<P, sizeof(x)>")
    assert without_statements(unclear, Constants({"a.cu": unclear}, INSTANCE, ["forward"]).answers("a.cu")) == unclear


def test_numbers_that_a_layer_decides_replace_their_formulas() -> None:
    text = PLAN % ("", "use<P::TILE, P::HALF>();")
    literals = Constants({"a.cu": text}, INSTANCE, ["forward"]).literals("a.cu")
    assert literals == {("Fewer", "TILE"): "4", ("Plan", "TILE"): "4", ("Plan", "TILES"): "2", ("Plan", "HALF"): "-1",
                        ("Plan", "WHERE"): "Where::global"}
    place = text.index("use<")
    shorter, moved = with_literals(text, literals, (), {5: True, place: False})
    assert "TILE = 4, TILES = 2, HALF = -1;" in shorter and moved == {5: True, shorter.index("use<"): False}
    assert without_literals(shorter, literals, (), text) == text
    other = shorter.replace("TILES = 2", "TILES = 3")
    assert without_literals(other, literals, (), text) == text.replace("TILES = tiles(20)", "TILES = 3")


def test_comments_of_what_only_formulas_use_stay() -> None:
    text = "// Of the size.\nconstexpr int size() { return 3; }\n// Of nobody.\nint nobody();\n\nstruct A {\n  // In A.\n"
    text += "  static constexpr int LEAST = size();\n  static constexpr int N = LEAST + size();  // why\n};\n"
    less, _ = with_literals(text, {("A", "N"): "6", ("A", "LEAST"): "3"}, (), {})
    assert reduced({"a": less}, ["A", "N"], before={"a": text}) == {
        "a": "// Of the size.\n\nstruct A {\n  // In A.\n  static constexpr int N = 6;  // why\n};\n"}


@pytest.mark.parametrize(("uses", "left"), [
    ("Shape<P::TILES * 8>::f();", {16}), ("", set()), ("Shape<16>::f(); Shape<x>::f();", None)])
def test_shapes_that_no_layer_needs_go(uses: str, left: set[int] | None) -> None:
    known = Constants({"a.cu": PLAN % ("", uses)}, INSTANCE, ["forward"]).shapes()
    assert known.get("Shape") == left
    text = ("#define S(n, m) \\\n  template <> \\\n  struct Shape<n> { \\\n  };\n#define T(n) int f##n();\n\n"
            "// First.\nS(8, 1)\nS(16, 2)\nT(8)\n")
    expected = text if left is None else text.replace("// First.\nS(8, 1)\n", "").replace("S(16, 2)\n" if not left else "?", "")
    assert without_shapes(text, [text], known) == expected
