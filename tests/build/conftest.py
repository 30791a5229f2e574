"""Fixtures of the build tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shared import require
from workbench.core.env import find_toolchain


@pytest.fixture(autouse=True)
def _compiler() -> None:
    require(find_toolchain().cxx, "a C++ compiler")


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"
