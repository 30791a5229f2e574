"""docs/cli.md says what --help prints, links in the documents lead to files, and the pages of each kernel family name its
tunables and files. Adding a kernel is adding one file: the guide's example and a copied template, dropped into a folder,
just work."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from workbench.core.answers import Answer, CheckReport, Question
from workbench.core.check_parts import Phase
from workbench.core.pytorch_ways import FORMULATIONS
from workbench.core.variants import TEMPLATES, discover

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *TEMPLATES.rglob("*.md")]
FAMILIES = sorted(path for path in (TEMPLATES / "families").iterdir() if path.is_dir())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


def test_a_name_that_contributing_gives_is_in_its_file() -> None:
    """`damage` in [measure/kernel/stage.py](workbench/measure/kernel/stage.py): somebody will search for that word there."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`([A-Za-z_.]+)`[^`\[|]*? (?:in|of) \[[^\]]*\]\(([^)#]+)\)", text)
    assert len(named) > 8
    lacking = [(name, path) for name, path in named
               if not re.search(rf"(?:def|class) {name.split('.')[-1]}\b|^{name}\b", (ROOT / path).read_text(), re.M)]
    assert not lacking


def test_every_environment_variable_is_listed() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "workbench").rglob("*.py") if "red_team" not in path.parts)
    read = set(re.findall(r"\b(KERNEL_WORKBENCH_[A-Z_]+|KW_LOG)\b", code))
    listed = (ROOT / "docs/getting-started.md").read_text().partition("## Environment variables")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(K\w+)`", listed)) == read


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_familys_readme_has_a_picture_and_names_its_tunables_and_files(family: Path) -> None:
    readme = (family / "README.md").read_text()
    assert re.findall(r"^## (.*)", readme, re.M)[:4] == ["Who does what", "Words", "Reading order", "Tunables"]
    assert "```" in readme.partition("## Who does what")[2].partition("## Words")[0], "who stages, multiplies and stores"
    text = "\n".join(path.read_text() for path in sorted(family.glob("*.md")))
    tunables = text.partition("## Tunables")[2]
    expected = {t.name for variant in discover(TEMPLATES) if variant.name == family.name for t in variant.tune}
    assert set(re.findall(r"`([A-Z][A-Z_]*)`", tunables)) == expected
    assert [path.name for path in family.glob("*.cuh") if f"`{path.name}`" not in text] == []
    folders = "|".join(path.name for path in TEMPLATES.iterdir() if path.is_dir())
    paths = re.findall(rf"`((?:{folders})/[\w/]+\.cuh?)`", text)
    assert [path for path in paths if not (TEMPLATES / path).exists()] == []


def test_every_formulation_of_pytorch_is_described() -> None:
    text = (ROOT / "docs" / "judging.md").read_text()
    rows = [f"| {one.name} | {one.computes} | {one.serves} |" for one in FORMULATIONS.values()]
    assert "\n".join(rows) in text


@pytest.mark.skipif(sys.version_info[:2] > (3, 12), reason="argparse of Python 3.13 writes --help otherwise")
def test_the_page_of_the_command_line_is_what_help_prints() -> None:
    done = subprocess.run([sys.executable, "tools/cli_reference.py", "--check"], cwd=ROOT, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """tools/check_times.py."""
    tool = importlib.util.spec_from_file_location("check_times", ROOT / "tools" / "check_times.py")
    script = importlib.util.module_from_spec(tool)
    tool.loader.exec_module(script)
    return script


def test_the_times_of_a_check_are_a_table_of_their_script(script: ModuleType) -> None:
    phases = (Phase("importing", 2.04, 0.5, 0.5, 0.3, sent_bytes=1 << 20), Phase("short", 0.01),
              Phase("forward", 1.0, received_bytes=3 << 19))
    report = CheckReport("m.py", "r.py", "cpu", (Question("builds", "?", Answer.PASSED, "", seconds=2.1),), phases=phases)
    _, rows = _parsed(script.page([report, report], "What was checked"))
    importing, forward = [2.0, 0.5, 0.3, 0.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0, 1.0, 1.5]
    assert rows == [["importing", *2 * importing], ["forward", *2 * forward], [script.REST, *2 * [0.0] * 6],
                    ["all", *2 * [3.0, 0.5, 0.3, 0.0, 2.0, 2.5]]]
    assert all(len(line) <= 128 for line in script.page([report, report], "What was checked").splitlines() if line[:1] != "|")
    text = (ROOT / "docs" / "judging.md").read_text()
    head, rows = _parsed(text.partition(script.BEGIN)[2].partition(script.END)[0])
    assert head == ["part", *(cell for file in script.FILES for cell in (f"{file}, s", *script.COLUMNS))]
    assert {"starting the judge", "the given size", "forward", script.REST} <= {row[0] for row in rows}
    for column in range(1, len(head)):
        *parts, total = (row[column] for row in rows)
        assert total == pytest.approx(sum(parts), abs=0.05 * len(rows))
        assert total > 0 or head[column] == "float64", "a truth that is computed meanwhile costs less than 0.05 s"


def test_the_script_names_checks_that_take_too_long(script: ModuleType) -> None:
    reports = [CheckReport(name, "b", "cpu", (), seconds=s) for name, s in (("fast", 14.9), ("slow", 15.0))]
    assert script.too_slow(reports, "kb74", 15) == ["kb74, slow: 15.0 s, not under 15 s"]
    stopped = CheckReport("fast", "b", "cpu", (), seconds=1.0, stopped="at the time limit")
    assert script.too_slow([stopped], "kb74", 15) == ["kb74, fast: 1.0 s, not under 15 s (stopped at the time limit)"]
    assert script.too_slow(reports, "kb74", None) == []


def _parsed(text: str) -> tuple[list[str], list[list]]:
    """The head and the rows of the one table."""
    lines = [line.strip("|") for line in text.splitlines() if line.startswith("|")]
    head, _, *rows = ([cell.strip() for cell in line.split("|")] for line in lines)
    return head, [[name, *map(float, cells)] for name, *cells in rows]


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
