"""The Inspect page: whose resources it shows, and what it says where there are none."""

from __future__ import annotations

import shutil
from html import unescape
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from workbench.core.trial import DEFAULT_ADVICE, Status
from workbench.drive.sessions.session import Session

from .test_report import trial

SESSIONS = Path(__file__).resolve().parents[2] / "sessions"


def _app() -> None:
    from workbench.faces.ui import inspect_page
    inspect_page.draw()


def shown(session: str, trial_id: str, *, key: str = "inspect_session") -> str:
    at = AppTest.from_function(_app, default_timeout=300)
    at.query_params[key], at.query_params["trial"] = session, trial_id
    at.run()
    assert not at.exception
    return unescape("\n".join(element.body for element in at.get("html")))


@pytest.fixture
def recorded(monkeypatch) -> Path:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(SESSIONS))
    return SESSIONS / "recorded-h200-kernelbench.zip"


def test_the_main_kernel_has_the_gauges_and_its_helpers_a_line_beneath(recorded) -> None:
    there = next(t for t in Session(recorded).trials() if t.name == "implicit_gemm_mma" and t.resources)
    text = shown(recorded.stem, there.trial_id)
    assert "Resources of implicit_gemm_mma, sm_90" in text and "warps of 64" in text
    assert text.index("Resources of implicit_gemm_mma") < text.index("pack_fragments: ")
    assert "c_" not in text[text.index("Resources of"):text.index("pack_fragments: ")]


def test_the_session_of_a_link_is_shown_whichever_page_it_was_copied_from(recorded) -> None:
    there = next(t for t in Session(recorded).trials() if t.name == "implicit_gemm_mma" and t.resources)
    assert "Resources of implicit_gemm_mma, sm_90" in shown(recorded.stem, there.trial_id, key="session")


def test_dynamic_shared_memory_is_shown(recorded) -> None:
    path, split = next((path, t) for path in sorted(SESSIONS.glob("recorded-*")) for t in Session(path).trials()
                       if t.name == "split_mma" and t.config.get("SHARED_KB") == 110 and t.resources)
    text = shown(path.stem, split.trial_id)
    assert "110 KiB per block" in text and "of 227 KiB: 0 B static, 110 KiB dynamic at most" in text


@pytest.mark.parametrize(("status", "nvcc", "said"), [
    (Status.BUILD_FAILED, "nvcc 13.0", "the trial ended with BUILD_FAILED before a kernel was built"),
    (Status.BUILD_FAILED, "", "the trial ended with BUILD_FAILED before a kernel was built"),
    (Status.MISMATCH, "nvcc 13.0", "nvcc gave no numbers for this trial"),
    (Status.MISMATCH, "", "they need nvcc, which was not installed when the trial ran"),
])
def test_where_there_are_no_resources_the_reason_is_the_trials_own(tmp_path, monkeypatch, status, nvcc, said) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    session = Session.create(tmp_path, "own")
    one = trial("naive_gather", None, status=status, environment={"nvcc": nvcc}, headline=DEFAULT_ADVICE[status])
    session.append(one)
    text = shown("own", one.trial_id)
    assert said in text and ("need nvcc" in text) == ("need nvcc" in said)
    shutil.rmtree(tmp_path / "own")
