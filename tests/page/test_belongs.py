"""What is drawn belongs to the layer, session, device and tab it is drawn under; a link to what is not here says so."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from workbench.core.candidate import Candidate
from workbench.core.presets import preset
from workbench.core.trial import Errors, Status
from workbench.core.variants import TEMPLATES, find
from workbench.drive.reporting import tables
from workbench.drive.running.request import Run, RunRequest
from workbench.drive.sessions.files import TRIALS
from workbench.drive.sessions.session import Session
from workbench.faces.ui import state
from workbench.faces.ui.running import rows_table
from workbench.faces.ui.workbench_page import verdict_trials

from .test_report import CPU, pytorch, trial

APP = Path(__file__).resolve().parents[2] / "app.py"


@pytest.fixture
def sessions(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path / "sessions"))
    monkeypatch.setenv("KERNEL_WORKBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "sessions"


def tab(page: str = "", **asked: str) -> AppTest:
    """A fresh tab: the app, or one page of it, opened by a link."""
    at = AppTest.from_function(_one_page, default_timeout=300, kwargs={"name": page}) if page else \
        AppTest.from_file(str(APP), default_timeout=300)
    for name, value in asked.items():
        at.query_params[name] = value
    at.run()
    assert not at.exception
    return at


def _one_page(name: str) -> None:
    from workbench.faces.ui import check_page, compare_page, inspect_page, machine_page, state, tune_page
    module = {"check": check_page, "inspect": inspect_page, "compare": compare_page, "machine": machine_page,
              "tune": tune_page}[name]
    state.guarded(module.draw, name, module.KEYS)()


def titles(monkeypatch) -> list[str]:
    """What the browser's tab is called, one after the other, from now on."""
    found: list[str] = []
    monkeypatch.setattr(st, "set_page_config", lambda page_title, **_: found.append(
        page_title.removesuffix(" · Kernel Workbench")))
    return found


def said(at: AppTest) -> str:
    return unescape("\n".join(element.body for element in at.get("html")))


@pytest.fixture
def running(sessions):
    """A run of KernelBench #81 (small) on the emulator, under way in a session called `other`."""
    work = preset("kb81").workload("small")
    candidates = tuple(Candidate(find("naive_gather", "forward"), work.layer, "float32", {"BLOCK": b}) for b in (64, 128, 256))
    run = state.runner().start(RunRequest(work, candidates, device="cpu", baselines=False), Session.create(sessions, "other"))
    state.runs().append(run)
    yield run
    state.runner().stop(run)
    state.runs().remove(run)


def test_another_layers_run_is_one_line_that_names_it(running):
    here = tab(preset="kb79")
    text = said(here)
    assert "ConvTranspose1d(32, 64, 3, stride=2" in text and "Nothing measured yet for this layer" in text
    assert "KernelBench #81 (small) runs on cpu in session other" in text or "KernelBench #81 (small) waits for cpu" in text
    assert "BLOCK=" not in text, "its rows are not this layer's"
    assert [b.label for b in here.button if b.label.startswith("Run")] and "build · check · time" not in text
    here.button(key=f"go {running.run_id}").click().run()
    assert "ConvTranspose2d(32, 64, 3, stride=5" in said(here) and here.selectbox(key="session").value == "other"
    assert "build · check · time" in said(here) and "runs on cpu in session other" not in said(here)
    assert re.search(r"(RUNNING|WAITING) \d of 3.*\d+ s since start", strip(here), re.DOTALL), "how far, and since when"
    told = [toast.value for toast in here.button(key="stop").click().run().toast]
    assert running.wait(30) and running.state == "stopped"
    told += [toast.value for _ in range(2) for toast in here.run().toast]
    assert [words.startswith("The run has ended") for words in told] == [True], "once"


def test_a_run_of_the_same_layer_in_another_session_is_not_this_ones(running):
    Session.create(running.session.parent, "mine")
    here = tab(preset="kb81", size="small", session="mine")
    assert "KernelBench #81 (small) runs on cpu in session other" in said(here) or "waits for cpu" in said(here)
    assert "build · check · time" not in said(here)
    here.button(key=f"stop {running.run_id}").click().run()
    assert running.wait(30) and running.state == "stopped"


def test_the_kernels_of_a_self_test_are_nobodys_candidates(sessions):
    """Its runs go through the same runner; the Workbench shows its own alone."""
    work = preset("kb74").workload("small")
    attack = Candidate(find("naive_gather", "forward"), work.layer, "float32", {})
    before = tab()
    assert "Nothing measured yet" in said(before)
    run = state.runner().start(RunRequest(work, (attack,), device="cpu", baselines=False), Session.create(sessions, "attacks"))
    try:
        after = tab()
        assert "build · check · time" not in said(after) and "RUNNING" not in said(after)
    finally:
        state.runner().stop(run)


def test_the_self_test_shows_its_progress_and_is_cancelled_where_it_was_started(sessions, monkeypatch):
    called = titles(monkeypatch)
    machine = tab("machine")
    machine.button(key="selftest_run").click().run()
    try:
        assert "RUNNING 0 of" in said(machine) and not [b for b in machine.button if b.key == "selftest_run"]
        assert "The self-test runs on cpu: 0 of" in said(tab()), "the Workbench names it in one line"
    finally:
        machine.button(key="selftest_stop").click().run()
    end = time.monotonic() + 300
    while "Stopped by you" not in said(machine) and time.monotonic() < end:
        time.sleep(0.5)
        machine.run()
    assert "Stopped by you" in said(machine) and "attacks had been run" in said(machine)
    assert called[-1] == "– stopped, self-test, Machine" and any(one.startswith("● self-test 0/") for one in called)
    assert machine.button(key="selftest_run") and "self-test runs" not in said(tab())


@pytest.mark.parametrize(("page", "asked", "sentence", "box"), [
    ("", {"session": "gone"}, "The session 'gone' in the link was not found.", "session"),
    ("inspect", {"inspect_session": "gone"}, "The session 'gone' in the link was not found.", "inspect_session"),
    ("inspect", {"inspect_session": "here", "trial": "zzzz"}, "The trial 'zzzz' in the link was not found.",
     "inspect_trial"),
    ("compare", {"compare_a": "gone"}, "The session 'gone' in the link was not found.", "compare_a"),
    ("compare", {"compare_a": "here", "compare_b": "gone"}, "The session 'gone' in the link was not found.",
     "compare_b"),
])
def test_a_link_to_what_is_not_here_says_so_and_offers_what_there_is(sessions, page, asked, sentence, box):
    for name in ("here", "there"):
        session = Session.create(sessions, name)
        for one in [*pytorch(), trial("mine", 1.0)]:
            session.append(one)
    at = tab(page, **asked)
    if "compare_b" in asked:
        at.segmented_control(key="compare_against").select("session B").run()
    for _ in range(2):  # it stands there until something else is chosen
        assert not at.exception
        assert sentence in said(at) and "Choose one on the left: " in said(at)
        if page:
            assert "4.29" not in said(at) and "Resources" not in said(at), "nothing else is drawn in its place"
        at.run()
    chosen = Session(sessions / "here").trials()[-1].trial_id if box == "inspect_trial" else "there"
    at.selectbox(key=box).set_value(chosen).run()
    assert not at.exception and "in the link was not found" not in said(at)


def _defective() -> None:
    from workbench.faces.ui import state
    state.guarded(lambda: {}["<b>gone</b>"])()


def test_a_defect_of_a_page_is_a_status_line_with_its_details():
    at = AppTest.from_function(_defective, default_timeout=300).run()
    assert not at.exception
    assert "✕ FAILED" in said(at) and "This page could not be drawn: KeyError." in said(at)
    assert "the other pages still work" in said(at) and "KeyError: '<b>gone</b>'" in at.code[0].value


def test_a_line_that_was_torn_is_told_on_the_workbench(sessions):
    session = Session.create(sessions, "torn")
    session.append(trial("mine", 1.0, device=CPU))
    with (session.path / TRIALS).open("a") as file:
        file.write('{"torn\n')
    session.append(trial("other", 2.0, device=CPU))
    text = said(tab(preset="kb74", size="full", session="torn", device="cpu"))
    assert "1 of 3 lines could not be read and was left out: " in text and "line 2" in text


def test_a_link_from_a_machine_with_a_gpu_shows_the_same_on_one_without(sessions):
    session = Session.create(sessions, "here")
    for one in (trial("mine", 1.0), trial("mine", 7.5, device=CPU)):
        session.append(one)
    at = tab(preset="kb74", size="full", session="here", device="cuda:7")
    for _ in range(2):
        assert not at.exception and "RECORDED on NVIDIA H200" in said(at) and "EMULATED" not in said(at)
        assert "in the link" not in said(at)
        at.selectbox(key="precision").set_value("tf32x3").run()  # another choice says nothing of the device
    at.selectbox(key="device").set_value("cpu")
    at.session_state["missing device"] = ""
    assert "EMULATED" in said(at.run()), "the emulator's own, once it was chosen"
    empty = tab(preset="kb79", device="cuda:7")
    assert "This machine has no cuda:7; Run uses cpu." in said(empty)
    assert "The device 'tpu' in the link is not known." in said(tab(preset="kb79", device="tpu"))


def test_a_template_that_was_edited_after_its_trial_is_told(sessions, tmp_path, monkeypatch):
    root = tmp_path / "templates"
    shutil.copytree(TEMPLATES, root)
    monkeypatch.setenv("KERNEL_WORKBENCH_TEMPLATES", str(root))
    work = preset("kb74").workload("small")
    candidate = Candidate(find("naive_gather", "forward"), work.layer, work.dtype, {})
    session = Session.create(sessions, "here")
    run = state.runner().start(RunRequest(work, (candidate,), device="cpu", baselines=False, effort="quick"), session)
    assert run.wait(200) and run.trials[0].ok
    link = {"preset": "kb74", "size": "small", "session": "here", "device": "cpu"}
    assert "CHANGED" not in said(tab(**link))
    header = root / "contract" / "flat_grid.cuh"
    header.write_text(f"// a comment\n{header.read_text()}")
    assert "CHANGED" not in said(tab(**link)), "a comment changes nothing"
    header.write_text(f"#define ANOTHER_TOKEN 1\n{header.read_text()}")
    here = tab(**link)
    text = said(here)
    assert "naive_gather forward: the template has changed since its trial" in text and "of the earlier text" in text
    assert {"faded results", "faded table"} <= set(keys_of(here))
    text = said(tab("inspect", inspect_session="here"))
    assert "! CHANGED" in text and "The template has changed since this trial." in text
    session.append(replace(run.trials[0], trial_id="f" * 12))
    compared = tab("compare", compare_a="here", trials=f"{run.trials[0].trial_id},{'f' * 12}")
    assert "The templates of 2 trials have changed since; see the column note." in said(compared)
    assert "the template of A has changed since" in compared.dataframe(key="compare_table").value["note"][0]


def test_results_fade_where_a_field_is_wrong(sessions):
    session = Session.create(sessions, "here")
    session.append(trial("mine", 1.0, device=CPU))
    at = tab(preset="kb74", size="full", session="here", device="cpu")
    assert not [k for k in keys_of(at) if k.startswith("faded")]
    at.text_input(key="stride").set_value("0").run()
    assert {"faded", "faded results", "faded table"} <= set(keys_of(at))


def keys_of(at: AppTest) -> list[str]:
    """The keys of the containers."""
    return [block.proto.id.rpartition("-")[2] for block in _blocks(at.main) if getattr(block.proto, "id", "")]


def _blocks(node: object) -> Iterator[Any]:
    for child in getattr(node, "children", {}).values():
        if hasattr(child, "children"):
            yield child
            yield from _blocks(child)


def test_a_reload_with_a_wrong_value_draws_no_other_layer(sessions):
    session = Session.create(sessions, "here")
    session.append(trial("mine", 1.0, device=CPU))
    fresh = tab(preset="kb79", padding="-1", session="here")
    text = said(fresh)
    assert "padding is -1; it must be 0 or more." in text and "Correct the value on the left" in text
    assert "ConvTranspose" not in text and not fresh.get("plotly_chart") and not fresh.dataframe


def test_an_earlier_run_does_not_speak_for_a_new_one():
    old = [trial("a", None, status=Status.MISMATCH), trial("b", 1.0)]
    new = [trial("a", 2.0, compile_flags=("-O2",))]
    old = [_of_run(t, "old", "2026-01-01") for t in old]
    new = [_of_run(t, "new", "2026-01-02") for t in new]
    assert verdict_trials([*pytorch(), *old, *new], None)[2:] == new
    resumed = Run("new", RunRequest(preset("kb74").workload("full"), ()), Path("here"), [], kept=old[1:])
    assert verdict_trials([*pytorch(), *old, *new], resumed)[2:] == [old[1], *new]
    assert len(verdict_trials(pytorch(), None)) == 2


def _of_run(one, run_id, at):
    return replace(one, run_id=run_id, at=at)


def test_what_is_kept_counts_the_whole_session(sessions):
    session = Session.create(sessions, "long")
    for _ in range(8):
        session.append(trial("mine", 1.0, device=CPU))
    work = preset("kb74").workload("small")
    run = state.runner().start(RunRequest(work, (Candidate(find("naive_gather", "forward"), work.layer, "float32", {}),),
                                          device="cpu", baselines=False), session)
    state.runs().append(run)
    try:
        state.runner().stop(run)
        assert "8 finished trials are kept in the session" in said(tab(session="long"))
    finally:
        state.runs().remove(run)


def test_does_not_apply_is_said_only_of_what_does_not_serve(sessions):
    page = tab(precision="ieee")  # of #74
    page.segmented_control(key="direction").select("grad_input").run()
    page.checkbox(key="tick grad_input naive_gather").uncheck().run()
    row = next(r for r in said(page).split("<tr>") if ">naive_gather<" in r)
    assert "not ticked" in row and "does not apply" not in row
    page.selectbox(key="precision").select("tf32").run()
    above, *rows = said(page).split("<tr>")
    assert ">naive_gather<" in above.partition("only in ieee: ")[2].partition("</div>")[0], "the list of the others says why"
    row = next((r for r in rows if ">naive_gather<" in r), "")
    assert not row, "it serves no direction in tf32"
    row = next(r for r in said(page).split("<tr>") if ">implicit_gemm_mma<" in r)
    assert row.count("not run yet") == 2


def test_a_run_that_waits_says_for_which_and_a_built_row_says_what_it_waits_for(running):
    second = state.runner().start(running.request, Session.create(running.session.parent, "second"))
    try:
        assert second.message == "waits for the run in session other"
        second.rows[0].phase, second.rows[0].text = "building", "built in 1.8 s"
        assert "built in 1.8 s, waiting for check" in rows_table(second)
        assert "building: built" not in rows_table(second)
    finally:
        state.runner().stop(second)


def test_on_the_page_an_earlier_runs_failure_is_in_the_table_and_not_in_the_strip(sessions):
    session = Session.create(sessions, "here")
    old = [trial("a", None, status=Status.MISMATCH, device=CPU), trial("b", 1.0, device=CPU), trial("c", 1.0, device=CPU)]
    for one in old:
        session.append(_of_run(one, "old", "2026-01-01"))
    asked = {"preset": "kb74", "size": "full", "session": "here", "device": "cpu"}
    before = tab(**asked)
    assert "1 of 3 candidates is wrong: a, forward" in strip(before) and "earlier runs" not in strip(before)
    session.append(_of_run(trial("a", 2.0, device=CPU, compile_flags=("-O2",)), "new", "2026-01-02"))
    at = tab(**asked)
    assert "1 of 1 candidates is right in all checks" in strip(at)
    assert "wrong" not in strip(at) and "MISMATCH" not in strip(at)
    assert "The table also shows 3 trials of earlier runs." in strip(at)
    assert ["✕ MISMATCH"] in list(at.dataframe(key="results").value["status"])


def strip(at: AppTest) -> str:
    return unescape(next(e.body for e in at.get("html") if 'class="strip' in e.body))


def test_one_row_is_inspected_and_two_are_compared(sessions):
    session = Session.create(sessions, "here")
    for one in [*pytorch(), trial("mine", 1.0), trial("other", 2.0)]:
        session.append(one)
    ids = {t.name: t.trial_id for t in session.trials()}

    def chosen(*rows: int) -> AppTest:
        at = tab(preset="kb74", size="full", session="here", device="cuda:7")
        at.session_state["results"] = {"selection": {"rows": list(rows), "columns": [], "cells": []}}
        at.run()
        assert not at.exception and list(at.dataframe(key="results").value["variant"])[:2] == ["mine", "other"]
        return at

    def button(at: AppTest, label: str) -> Any:
        return next(b for b in at.button if b.label == label)

    none = chosen()
    assert button(none, "Inspect").disabled and not button(none, "Compare").disabled
    one = chosen(1)
    assert not button(one, "Inspect").disabled and button(one, "Compare"), "one row is compared with PyTorch"
    button(one, "Inspect").click().run()
    assert (one.session_state["inspect_session"], one.session_state["inspect_trial"]) == ("here", ids["other"])
    assert not one.exception and "other forward (ieee)" in strip(one)
    two = chosen(1, 0)
    assert not button(two, "Inspect").disabled
    button(two, "Compare 2").click().run()
    assert not two.exception and two.session_state["compare_against"] == "pinned trials"
    assert two.session_state["compare_trials"] == [f"here:{ids['other']}", f"here:{ids['mine']}"]
    assert list(two.dataframe(key="compare_table").value["B / A"]) == [pytest.approx(2.0)], "with the first of them"


def test_the_strip_counts_what_is_selected_and_says_that_run_is_disabled(sessions):
    at = tab(preset="kb74", precision="ieee", only="forward/naive_gather,forward/shared_weight_tiling")
    assert "2 candidates selected. Every kernel runs on this machine's CPU through the emulator. The checks are real; " \
           "times here do not predict a GPU." in strip(at)
    at.checkbox(key="tick forward naive_gather").uncheck().run()
    assert "1 candidate selected." in strip(at)
    at.text_input(key="stride").set_value("0").run()
    assert "stride is 0" in strip(at)
    assert "Run is disabled until this is fixed. The picture shows the last valid layer." in strip(at)
    assert at.button(key="run").disabled
    assert "each variant's default" in at.selectbox(key="precision").options


def test_trials_of_one_name_and_status_are_told_apart(sessions):
    session = Session.create(sessions, "own")
    for n in range(3):
        session.append(replace(trial("naive_gather", None, status=Status.BUILD_FAILED), trial_id=f"t{n}"))
    at = tab("inspect", inspect_session="own", trial="t1")
    box = at.selectbox(key="inspect_trial")
    assert box.value == "t1" and len(set(box.options)) == 3 and box.options[0].endswith(" · t2"), box.options


def test_a_session_without_candidates_has_no_trial_yet(sessions):
    assert "No trial yet" in said(tab("inspect"))
    session = Session.create(sessions, "own")
    for one in pytorch():
        session.append(one)
    at = tab("inspect", inspect_session="own")
    assert "No trial yet" in said(at) and at.selectbox(key="inspect_trial-none").disabled
    assert "eager" not in said(at), "PyTorch has nothing to be inspected"


def test_values_that_are_not_finite_have_no_error(sessions):
    lost = trial("reads_outside", None, status=Status.NON_FINITE, device=CPU)
    lost = replace(lost, errors={"output": Errors(0.0, 0.0, 0.0, 1.6e-6, (0, 0, 0), 0.0, 5.0, 9, 10)})
    Session.create(sessions, "nan").append(lost)
    told = said(tab("inspect", inspect_session="nan", trial=lost.trial_id))
    row = re.sub("<[^>]+>", " ", told[told.index("Errors against float64"):])
    assert re.search(r"output +– +– +1.6e-6 +9 of 10 +y\[0, 0, 0\] *: NaN or infinite, expected 5", row), row[:400]
    assert "ConvTranspose1d(32, 64, 5, bias=False, dilation=3)" in told and "KernelBench #74 (full), batch 32" in told
    assert "9 of 10 are NaN, infinite or not written" in tables.trial_text(lost)
