"""The self-test as a whole: every attack that the CPU can show gets its status."""

from __future__ import annotations

from functools import partial

import pytest

from workbench.drive.checking import selftest
from workbench.drive.checking.attacks import attacks

from .conftest import forking

pytestmark = pytest.mark.long


@pytest.mark.parametrize("kind", ["kernel", "module"])
def test_every_attack_gets_its_status(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    wanted = [a for a in attacks() if a.kind == kind and "cpu" in a.expected]
    found = selftest.selftest("cpu", wanted=wanted, judge=partial(forking, tmp_path_factory))
    missed = [(r.name, r.status, r.happened) for r in found if not r.caught]
    assert len(found) == len(wanted) and not missed, missed
