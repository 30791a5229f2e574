"""Files are small and few, a folder of `drive` and `measure` holds few of them, and no test is left out quietly."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.require import require
from workbench.core.layer import DIRECTIONS
from workbench.core.variants import TEMPLATES, discover

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, TESTS = ROOT / "workbench", ROOT / "tests"
QUIET = "importor" + "skip"  # pytest's own way: it skips under KW_REQUIRE_ALL too
MOST_LINES, MOST_FILES = 500, 10
ROOMS = sorted({p.parent for layer in ("drive", "measure") for p in (PACKAGE / layer).rglob("*.py")})


@pytest.mark.parametrize("room", ROOMS, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_room_has_ten_files_at_most(room: Path) -> None:
    files = sorted(p.name for p in room.glob("*.py") if p.name != "__init__.py")
    assert len(files) <= MOST_FILES, f"{room.relative_to(PACKAGE)} holds {len(files)} files: {files}"


def test_no_file_is_longer_than_five_hundred_lines() -> None:
    long = {str(p.relative_to(PACKAGE)): count for p in PACKAGE.rglob("*.py")
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
