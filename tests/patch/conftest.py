"""One cache of built kernels for all patch tests of a pytest process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("patch")


@pytest.fixture(scope="module", autouse=True)
def cache(folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNEL_WORKBENCH_CACHE", str(folder / "cache"))
        yield
