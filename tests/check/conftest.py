"""One way to check a text, with real processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from workbench.core.answers import Answer, CheckReport
from workbench.core.presets import preset
from workbench.drive.check import CheckRequest, check, workload_reference

from .models import REFERENCE

BAD_MODELS = Path(__file__).resolve().parents[1] / "bad_models"


@pytest.fixture
def checked() -> Callable[..., CheckReport]:
    def run(text: str, *, like: str = "", reference: str = REFERENCE, **options) -> CheckReport:
        name = "problem.py"
        if like:
            reference, name = workload_reference(preset(like).workload("small"))
            options = {"size": "small"} | options
        options = {"device": "cpu", "time": False, "nvcc": False, "memory_gib": 4.0, "call_s": 20.0} | options
        return check(CheckRequest(text, reference, reference_name=name, **options))
    return run


def failed(report: CheckReport) -> dict[str, str]:
    """key -> exact status of what failed."""
    return {q.key: q.status for q in report.questions if q.answer is Answer.FAILED}
