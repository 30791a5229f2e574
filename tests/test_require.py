"""Where everything is required nothing may be left out quietly."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent
QUIET = "importor" + "skip"  # pytest's own way: it skips under KW_REQUIRE_ALL too


def test_what_may_be_lacking_goes_through_require() -> None:
    assert [str(p.relative_to(HERE)) for p in HERE.rglob("*.py") if QUIET in p.read_text(encoding="utf-8")] == []
