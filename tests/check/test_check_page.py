"""The Check page without a browser: the wrong sample goes in, its mistake comes out."""

from __future__ import annotations

import json
import re
import time
from html import unescape

import pytest
from streamlit.testing.v1 import AppTest

from ..page.test_belongs import titles


def _app() -> None:
    from workbench.faces.ui import check_page, state
    state.guarded(check_page.draw)()


@pytest.fixture
def page() -> AppTest:
    at = AppTest.from_function(_app, default_timeout=300)
    at.run()
    assert not at.exception
    return at


def editor(at: AppTest) -> dict:
    """What the editor was given."""
    return json.loads(at.main.get("bidi_component")[-1].proto.json)


def said(at: AppTest) -> str:
    return "\n".join(element.body for element in at.get("html"))


def test_the_wrong_sample_is_checked_and_its_mistake_named(page: AppTest) -> None:
    assert "Nothing checked yet" in said(page) and "FOREIGN CODE" in said(page)
    page.session_state["clicks"] = {"check_run"}
    page.run()
    assert "There is no candidate yet; paste or upload a file" in said(page), "a click whose drawing another one interrupted"
    page.button(key="check_sample").click().run()
    assert "class ModelNew" in page.session_state["check_text"] and "class ModelNew" in editor(page)["put"]["text"]
    page.selectbox(key="check_device").select("cpu").run()
    page.button(key="check_run").click().run()
    assert not page.exception
    end = time.monotonic() + 400
    while ("RUNNING" in said(page) or "FAILED" not in said(page)) and time.monotonic() < end:
        assert not page.exception
        time.sleep(0.5)
        page.run()
    text = said(page)
    assert "Same output" in text or "same output" in text, text[-2000:]
    assert "taps flipped" in text and "there is no backward to check" in text
    assert "The smallest case that still fails" in text and "KernelBench, 1e-4" in text
    assert "NOT TIMED" in text
    assert "Against KernelBench #74 (small)" in text and "at the small size, which is not KernelBench's own" in unescape(text)
    assert "CHANGED" not in text
    mark, = editor(page)["marks"] or [None]
    assert mark is None and editor(page)["text"] == editor(page)["sent"], "what was checked can be had back"
    page.session_state["check_text"] += "\n# edited"
    page.number_input(key="check_memory").set_value(8).run()
    assert "Changed since: the file, the memory limit. Press Check to do it again." in said(page)


def test_a_failure_that_names_a_line_shows_it(page: AppTest) -> None:
    from workbench.core.answers import Answer, Question
    from workbench.faces.ui.check_page import _row
    file = "\n".join(f"line {n} of it" for n in range(1, 30))
    failed = Question("builds", "Does it build?", Answer.FAILED, "No: expected ';' in line 19.", "Correct line 19.")
    seen = _row(failed, text=file)[2]
    assert "<b class=wrongline>>    19  line 19 of it</b>" in seen and "line 16 of it" in seen
    assert "wrongline" not in _row(Question("builds", "Does it build?", Answer.PASSED, "Yes, see line 19."), text=file)[2]
    assert editor(page)["form"] and not page.sidebar.get("bidi_component"), "it is as wide as the page"


def test_questions_that_were_skipped_for_one_reason_are_one_row() -> None:
    from workbench.core.answers import Answer, CheckReport, Question
    from workbench.drive.checking.check_text import report_text
    from workbench.faces.ui.check_page import _row
    skipped = [Question(k, f"Right for {k}?", Answer.SKIPPED, "Not asked: it is wrong already.") for k in ("a", "b")]
    other = Question("c", "How fast?", Answer.SKIPPED, "A wrong module is not timed.")
    passed = [Question(k, f"Is it {k}?", Answer.PASSED, "Yes.") for k in ("d", "e")]
    report = CheckReport("model_new.py", "problem.py", "cpu", (*passed, *skipped, other))
    assert report.rows == [skipped, [other], [passed[0]], [passed[1]]]
    assert "2 questions" in _row(*skipped)[1] and "Right for a? Right for b?" in _row(*skipped)[2]
    lines = report_text(report).splitlines()
    at = next(n for n, line in enumerate(lines) if "2 questions" in line)
    assert [line.strip() for line in lines[at + 1:at + 3]] == ["Not asked: it is wrong already.", "Right for a? Right for b?"]


def test_answers_are_there_while_the_check_goes_on_and_stay_when_it_is_stopped(page: AppTest, monkeypatch) -> None:
    called = titles(monkeypatch)
    page.button(key="check_sample").click().run()
    hangs = page.session_state["check_text"].replace("        layer = self", (
        "        import time\n        time.sleep(0 if x.shape[0] > 1 else 600)\n        layer = self"))
    page.session_state["check_text"] = hangs
    page.selectbox(key="check_device").select("cpu").run()
    page.number_input(key="check_limit").set_value(3600).run()
    page.button(key="check_run").click().run()
    end = time.monotonic() + 120
    while "Takes the reference" not in said(page) and time.monotonic() < end:
        time.sleep(0.5)
        page.run()
    text = said(page)
    assert "RUNNING" in text and "Takes the reference" in unescape(text) and " s since start" in text
    page.button(key="check_stop").click().run()
    while "was stopped after" not in said(page) and time.monotonic() < end:
        time.sleep(0.5)
        page.run()
    text = said(page)
    assert "was stopped after" in text and "Takes the reference" in text and "RUNNING" not in text
    assert not page.exception
    assert any(title.endswith(" answers, checking model_new.py") for title in called)
    assert re.fullmatch(r"\d+ OF \d+ FAILED, Check", called[-1])


REFERENCE = """
import torch


class Model(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


def get_inputs():
    return [torch.rand(3, 4)]


def get_init_inputs():
    return [2.0]
"""


def ended(page: AppTest) -> str:
    end = time.monotonic() + 300
    while "RUNNING" in said(page.run()) and time.monotonic() < end:
        assert not page.exception
        time.sleep(0.3)
    return unescape(said(page))


def test_a_reference_of_ones_own_is_what_the_file_is_checked_against(page: AppTest) -> None:
    page.selectbox(key="check_reference").select("a file of my own").run()
    page.selectbox(key="check_device").select("cpu")
    right = REFERENCE.split("def get_inputs")[0].replace("class Model(", "class ModelNew(")
    page.session_state["check_text"] = right
    page.button(key="check_run").click().run()
    assert "There is no reference yet; upload a file with Model, get_inputs and get_init_inputs." in said(page)
    assert not [s for s in page.get("button_group") if s.key == "check_size"], "its size is its own"
    _upload(page, REFERENCE.replace("class Model(", "class Other("))
    page.button(key="check_run").click().run()
    text = ended(page)
    assert "✕ FAILED" in text
    assert "The reference does not run: NameError: the file defines no class Model; it has Other." in text
    assert "Correct the input on the left, then check again." in text and not page.get("download_button"), "no report"
    page.button(key="check_run").click().run()
    page.button(key="check_stop").click().run()
    text = ended(page)
    assert "– CANCELLED" in text and "Stopped by you." in text, "before the judge knew anything"
    _upload(page, REFERENCE)
    page.session_state["check_text"] = right.replace("return x *", "return y *")
    page.button(key="check_run").click().run()
    text = ended(page)
    assert "Against mine.py, on " in text and "KernelBench #74" not in text and "name 'y' is not defined" in text
    assert [d.proto.label for d in page.get("download_button")] == ["Download report", "Download as text"]


def _upload(page: AppTest, text: str) -> None:
    page.file_uploader(key="check_reference_file").set_value(("mine.py", text.encode(), "text/x-python")).run()


def test_a_check_of_a_link_that_is_gone_says_so() -> None:
    page = AppTest.from_function(_app, default_timeout=300)
    page.query_params["check"] = "zzzz"
    page.run()
    assert "The report 'zzzz' in the link was not found." in unescape(said(page)) and "Nothing checked yet" in said(page)
