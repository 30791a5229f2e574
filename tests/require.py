"""What a laptop may lack is a skip with its reason; where everything is required (CI) it is a failure."""

from __future__ import annotations

import os

import pytest

EVERYTHING = os.environ.get("KW_REQUIRE_ALL") == "1"


def require(there: object, reason: str) -> None:
    """Skip the test with `reason` unless `there`; with KW_REQUIRE_ALL=1 fail it."""
    if there:
        return
    if EVERYTHING:
        pytest.fail(f"required here: {reason}")
    pytest.skip(reason)
