"""No function has more than seven parameters, unless the line above it says why."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "workbench"
MOST = 7
REASON = "# more than seven: "
FILES = sorted(p for p in (*PACKAGE.rglob("*.py"), *(ROOT / "tools").rglob("*.py"), ROOT / "app.py")
               if "red_team" not in p.parts)  # those are as people write them


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
