"""Imports point down through the four folders, and torch stays where it is allowed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("core", "measure", "drive", "faces")
# What a layer may import of the others. drive talks to measure through pipes, so it never imports it.
BELOW = {"core": {"core"}, "measure": {"measure", "core"}, "drive": {"drive", "core"},
         "faces": {"faces", "drive", "core"}}
FILES = sorted(p for p in (ROOT / "workbench").rglob("*.py"))


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


@pytest.mark.parametrize("path", [p for p in FILES if layer_of(p) in LAYERS],
                         ids=lambda p: str(p.relative_to(ROOT / "workbench")))
def test_a_file_imports_only_what_lies_below(path: Path) -> None:
    layer = layer_of(path)
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "workbench" and len(parts) > 1 and parts[1] in LAYERS:
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


@pytest.mark.parametrize("folder", sorted({p.parent for p in FILES if layer_of(p) in LAYERS}),
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
