"""docs/cli.md says what --help prints, links in the documents lead to files, and the pages of each kernel family name its
tunables and files. Adding a kernel is adding one file: the guide's example and a copied template, dropped into a folder,
just work."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from workbench.core.answers import NOT_ASKED, Answer, CheckReport, Question
from workbench.core.check_parts import Phase
from workbench.core.patching import PatchReport
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


def test_the_list_of_what_is_not_asked_is_that_of_the_reports() -> None:
    section = (ROOT / "docs" / "judging.md").read_text().split("### What is not asked")[1].split("###")[0]
    assert tuple(re.findall(r"^- (.*)$", section, re.M)) == NOT_ASKED


def test_no_template_holds_a_word_that_exported_files_must_not() -> None:
    for path in TEMPLATES.rglob("*.cu*"):
        found = re.search(r"\bpass\b|\btry\s*:", path.read_text())
        assert not found, f"{path.relative_to(TEMPLATES)} holds {found[0]!r}"


def test_the_tables_of_patched_models_and_of_profiles_are_those_of_the_recorded_reports() -> None:
    lines = [json.loads(line) for line in (ROOT / "sessions/recorded-h200-patch-and-profile.jsonl").read_text().splitlines()]
    pages = {name: (ROOT / name).read_text() for name in ("README.md", "docs/patching.md", "docs/kernels.md")}
    for report in (PatchReport.from_json(line["patch"]) for line in lines if "patch" in line):
        assert not Path(report.source.folder).is_absolute(), report.source     # of the machine that recorded it
        for step, pairs in report.times.items():
            layers = [row.times[step] for row in report.kept]
            before, after = (sum(getattr(one, name) for one in layers) for name in ("original_ms", "patched_ms"))
            whole = f"{pairs.ratio:.3f}× ({pairs.low:.3f} – {pairs.high:.3f})"
            if report.undone:      # no layer stays patched
                assert whole in pages["docs/patching.md"], whole
                continue
            assert whole in pages["docs/patching.md"] and f"| {before:.3f} → {after:.3f} |" in pages["docs/patching.md"], whole
            if report.source.train:
                assert f"| {pairs.ratio:.3f}× |" in pages["README.md"] and f"| {before / after:.2f}× |" in pages["README.md"]
    found = 0
    for profile in (line["profile"] for line in lines if "profile" in line):
        name, direction, precision = profile["cell"].split(":")
        row = re.search(rf"^\| {name.removeprefix('models/')} {direction}, {dict(tf32='TF32', bf16='bfloat16').get(precision)} "
                        r"\| [\d.]+× \| [\d.]+ / [\d.]+ \| (\d+) \|", pages["docs/kernels.md"], re.M)
        busy = re.search(r"^tensor cores busy +([\d.]+) %", profile["text"], re.M)
        found += row is not None
        assert row is None or row[1] == f"{float(busy[1]):.0f}", profile["cell"]
    table = pages["docs/kernels.md"].partition("| cell | ratio | main kernel / all, ms |")[2].partition("\n\n")[0]
    assert found == table.count("×")
