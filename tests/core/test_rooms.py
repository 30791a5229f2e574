"""Files are small, and a folder of `drive` and `measure` holds few of them."""

from __future__ import annotations

from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "workbench"
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
