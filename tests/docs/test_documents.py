"""docs/cli.md says what --help prints, links in the documents lead to files, and the pages of each kernel family name its
tunables and files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_familys_readme_names_its_tunables_and_files(family: Path) -> None:
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
