"""What names a candidate: the tokens a compiler reads, and nothing about where they stand or how they are laid out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from workbench.core.candidate import Candidate
from workbench.core.identity import candidate_id, canonical
from workbench.core.presets import preset
from workbench.core.template import render
from workbench.core.variants import TEMPLATES, discover, find

LAYER = preset("kb74").layer


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
