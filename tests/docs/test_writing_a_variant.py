"""Adding a kernel is adding one file: the guide's example and a copied template, dropped into a folder, just work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.core.variants import TEMPLATES, discover

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    """A template root without a kernel."""
    (tmp_path / "forward").mkdir()
    return tmp_path


def headless(templates: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "workbench", "test", "--effort", "quick", "--device", "cpu", "--templates",
                           str(templates)], cwd=ROOT, capture_output=True, text=True, timeout=500, check=False,
                          env=os.environ)


def test_the_guides_example_is_a_right_kernel(templates: Path) -> None:
    guide = (ROOT / "docs" / "writing-a-variant.md").read_text()
    example = re.search(r"```cuda\n(.*?)```", guide, re.S)
    assert example, "the guide shows a whole kernel"
    name = re.search(r'name\s*=\s*"(\w+)"', example[1])[1]
    direction = re.search(r'computes\s*=\s*\["(\w+)"\]', example[1])[1]
    (templates / direction).mkdir(exist_ok=True)
    (templates / direction / f"{name}.cu").write_text(example[1])
    done = headless(templates)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{direction}/{name}" in done.stdout and "cases are right" in done.stdout


def test_a_copied_template_is_a_new_variant(templates: Path) -> None:
    text = (TEMPLATES / "forward" / "naive_gather.cu").read_text()
    (templates / "forward" / "my_own.cu").write_text(text.replace('"naive_gather"', '"my_own"', 1))
    assert [v.key for v in discover(templates)] == ["forward/my_own"]
    done = headless(templates)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_template_holds_a_word_that_exported_files_must_not() -> None:
    for path in TEMPLATES.rglob("*.cu*"):
        found = re.search(r"\bpass\b|\btry\s*:", path.read_text())
        assert not found, f"{path.relative_to(TEMPLATES)} holds {found[0]!r}"
