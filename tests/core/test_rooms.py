"""Files are small and few, a folder of `drive` and `measure` holds few of them, no function has more than seven parameters
unless the line above it says why, and no test is left out quietly. Imports point down through the four folders, and torch
stays where it is allowed."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared import require
from workbench.core.layer import DIRECTIONS
from workbench.core.variants import TEMPLATES, discover

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, TESTS = ROOT / "workbench", ROOT / "tests"
QUIET = "importor" + "skip"  # pytest's own way: it skips under KW_REQUIRE_ALL too
MOST_LINES, MOST_FILES = 500, 10
MOST = 7  # parameters
REASON = "# more than seven: "
FILES = sorted(p for p in (*PACKAGE.rglob("*.py"), *(ROOT / "tools").rglob("*.py"), ROOT / "app.py")
               if "red_team" not in p.parts)  # those are as people write them
ROOMS = sorted({p.parent for layer in ("drive", "measure") for p in (PACKAGE / layer).rglob("*.py")})


@pytest.mark.parametrize("room", ROOMS, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_room_has_ten_files_at_most(room: Path) -> None:
    files = sorted(p.name for p in room.glob("*.py") if p.name != "__init__.py")
    assert len(files) <= MOST_FILES, f"{room.relative_to(PACKAGE)} holds {len(files)} files: {files}"


def test_no_file_is_longer_than_five_hundred_lines() -> None:
    long = {str(p.relative_to(ROOT)): count for p in (*FILES, *TESTS.rglob("*.py"))
            if (count := len(p.read_text(encoding="utf-8").splitlines())) > MOST_LINES}
    assert not long, f"split these: {long}"


def test_what_may_be_lacking_goes_through_require() -> None:
    assert [str(p.relative_to(TESTS)) for p in TESTS.rglob("*.py") if QUIET in p.read_text(encoding="utf-8")] == []


def test_the_repository_has_fewer_than_seven_hundred_files() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    require(listed.returncode == 0, "a git checkout")
    assert len(listed.stdout.splitlines()) < 700


def test_a_shipped_variant_names_one_to_read_first_and_the_readme_has_their_order() -> None:
    found = discover()
    for variant in found:
        names = {v.name for v in found if variant.direction in (v.direction, "backward")}
        assert variant.after in names | {""}, f"{variant.key}: after = {variant.after!r} is no variant of that direction"
    rows = re.findall(r"^\| (forward|grad_input|grad_weight) \| (`.*`) \|$", (TEMPLATES / "README.md").read_text(), re.M)
    assert {d: re.findall(r"`(\w+)`", order) for d, order in rows} == {
        d: [v.name for v in found if v.direction == d] for d in DIRECTIONS}


def too_many(text: str) -> list[str]:
    """Functions with more parameters and no reason, and reasons that nothing needs."""
    found, lines = [], text.splitlines()
    needed = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            a = node.args
            names = [x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg) if x is not None]
            count = len([name for name in names if name not in ("self", "cls")])
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            above = lines[first - 2].strip() if first > 1 else ""
            if count > MOST:
                needed.add(first - 1)
                if not above.startswith(REASON) or not above.removeprefix(REASON):
                    found.append(f"{node.name} has {count} parameters; group what belongs together, or write above it why not: "
                                 f"'{REASON}...'.")
    found += [f"line {i}: the function below has no more than seven parameters." for i, line in enumerate(lines, 1)
              if line.strip().startswith(REASON) and i not in needed]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_function_has_more_than_seven_parameters_without_a_reason(path: Path) -> None:
    assert not too_many(path.read_text(encoding="utf-8"))


def test_the_counting_sees_methods_keywords_and_stars() -> None:
    eight = "class A:\n    def f(self, a, b, /, c, *d, e, g, h=1, **k): pass\n"
    assert len(too_many(eight)) == 1
    assert not too_many(eight.replace("    def", f"    {REASON}a table\n    def"))
    assert len(too_many(eight.replace(", **k", "").replace("    def", f"    {REASON}a table\n    def"))) == 1


def test_make_failed_finds_a_test_of_a_group(tmp_path: Path) -> None:
    """Not found, `--last-failed` runs all tests."""
    (tmp_path / "test_it.py").write_text(
        "import pytest\n\n@pytest.mark.xdist_group('together')\n@pytest.mark.parametrize('at', ['a@b', 'c'])\n"
        "def test_it(at):\n    assert at == 'c'\n\ndef test_other():\n    pass\n")
    line = [sys.executable, "-m", "pytest", "--rootdir", str(tmp_path), "-p", "tests.conftest", "test_it.py"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | {"PYTHONPATH": str(ROOT)}
    for more, said in ((["-n", "2", "--dist", "loadgroup"], "1 failed, 2 passed"),
                       (["--last-failed", "--last-failed-no-failures", "none"], "1 failed, 2 deselected")):
        done = subprocess.run([*line, *more], cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
        assert said in done.stdout, done.stdout + done.stderr


ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("core", "measure", "drive", "faces")
# What a layer may import of the others. drive talks to measure through pipes, so it never imports it.
BELOW = {"core": {"core"}, "measure": {"measure", "core"}, "drive": {"drive", "core"},
         "faces": {"faces", "drive", "core"}}
MODULES = sorted(p for p in (ROOT / "workbench").rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Absolute dotted names of everything a file imports, wherever in the file it stands."""
    package = list(path.relative_to(ROOT).with_suffix("").parts)
    if package[-1] == "__init__":
        package.pop()
        package.append("")
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[:-node.level] if node.level else []
            module = [*base, *(node.module.split(".") if node.module else [])]
            found |= {".".join([*module, a.name]) for a in node.names}
    return found


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT / "workbench").parts[0]


@pytest.mark.parametrize("path", [p for p in MODULES if layer_of(p) in FOLDERS],
                         ids=lambda p: str(p.relative_to(ROOT / "workbench")))
def test_a_file_imports_only_what_lies_below(path: Path) -> None:
    layer = layer_of(path)
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "workbench" and len(parts) > 1 and parts[1] in FOLDERS:
            assert parts[1] in BELOW[layer], f"{layer} imports {name}"
        if layer != "measure":
            assert parts[0] != "torch", f"{layer} imports torch"
        if "ui" not in path.relative_to(ROOT).parts:
            assert parts[0] != "streamlit", f"{path.name} imports streamlit"


def test_the_reader_of_imports_sees_relative_and_nested_ones(tmp_path: Path) -> None:
    """The test above can fail: these are the forms it has to see through."""
    path = ROOT / "workbench" / "core" / "imagined.py"
    text = "def f():\n    from ..drive.sessions import session\n    import torch.nn\nfrom . import layer\n"
    tree = tmp_path / "imagined.py"
    tree.write_text(text)
    found = imported_text(path, tree)
    assert {"workbench.drive.sessions.session", "torch.nn", "workbench.core.layer"} <= found


def imported_text(path: Path, stored_at: Path) -> set[str]:
    class Moved(type(path)):  # a path that says where it would stand and reads from where it does
        def read_text(self, *_args: object, **_kw: object) -> str:
            return stored_at.read_text()

    return imported(Moved(path))


@pytest.mark.parametrize("module", ["workbench", "workbench.core.facts", "workbench.core.presets",
                                    "workbench.core.template", "workbench.measure.check.begin"])
def test_import_brings_no_heavy_library(module: str) -> None:
    code = f"import sys, {module}; print(*[m for m in ('torch', 'numpy', 'pandas', 'plotly', 'streamlit') " \
           "if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


@pytest.mark.parametrize("folder", sorted({p.parent for p in MODULES if layer_of(p) in FOLDERS}),
                         ids=lambda p: str(p.relative_to(ROOT / "workbench")))
def test_a_folder_says_what_lies_there(folder: Path) -> None:
    """Each name in backticks is a module or a folder in it, so the sentence cannot outlive a renaming; and all are named.
    (Of the verbs none: each is a module of its name.)"""
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    assert said
    modules = {p.stem for p in folder.glob("*.py")} - {"__init__", "__main__"}
    folders = {f"{p.parent.name}/" for p in folder.glob("*/__init__.py")}
    named = set(re.findall(r"`([^`]+)`", said))
    assert named <= modules | folders | {f"{p.name}/" for p in folder.iterdir()} | {".cu"}
    assert modules | folders <= named or folder.name == "verbs"
