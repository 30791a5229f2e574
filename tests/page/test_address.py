"""The address of a page: it names everything that changes what is seen, and a link brings it back."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
import streamlit as st

from workbench.core.trial import Status
from workbench.drive.sessions.session import Session
from workbench.faces.ui import layer_form, state

from .test_belongs import said, tab
from .test_page import wrong as problems
from .test_report import pytorch, trial

LINK = {"preset": "kb79", "size": "small", "precision": "ieee", "direction": "grad_input", "padding": "0", "effort": "quick",
        "flags": "-O2", "form": "runtime", "modules": "yes", "without": "forward/naive_gather",
        "set": "grad_input/naive_gather.BLOCK=64,256", "several": "yes"}


@pytest.fixture
def sessions(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path / "sessions"))
    monkeypatch.setenv("KERNEL_WORKBENCH_CACHE", str(tmp_path / "cache"))
    for name in ("one", "two"):
        session = Session.create(tmp_path / "sessions", name)
        for found in [*pytorch(), trial("mine", 1.0), trial("other", 2.0)]:
            session.append(found)
    return tmp_path / "sessions"


def written(at, page: str) -> dict[str, str]:
    return {name: ",".join(values) for name, values in at.session_state[f"address of {page}"].items()}


def test_a_link_to_the_workbench_brings_every_choice_back(sessions):
    at = tab(**LINK)
    assert at.selectbox(key="precision").value == "ieee" and at.segmented_control(key="direction").value == "grad_input"
    assert at.session_state["set grad_input naive_gather BLOCK"] == [64, 256] and at.toggle(key="several").value
    assert at.session_state["tick forward naive_gather"] is False and at.checkbox(key="tick grad_input naive_gather").value
    assert (at.text_input(key="flags").value, at.selectbox(key="effort").value) == ("-O2", "quick")
    assert at.selectbox(key="form").value == "runtime" and at.checkbox(key="modules").value
    there = written(at, "workbench")
    assert {k: there[k] for k in LINK if k != "padding"} == {k: v for k, v in LINK.items() if k != "padding"}
    again = tab(**there)
    assert written(again, "workbench") == there and "is not known" not in said(again)
    at.selectbox(key="precision").select("tf32").run()
    assert "precision" not in written(at, "workbench"), "what is usual does not stand there"
    at.button(key="pick None").click().run()
    at.checkbox(key="tick grad_input gathered_mma").check().run()
    assert written(at, "workbench")["only"] == "grad_input/gathered_mma" and "without" not in written(at, "workbench")


@pytest.mark.parametrize("page", ["", "tune"])
@pytest.mark.parametrize("until", ["_preset_values", "_parsed", "_selects", "_precision"])
def test_a_link_holds_when_its_first_drawing_is_cut_short(sessions, monkeypatch, page, until):
    """As by a click, or by Back while it is drawn: Streamlit then begins the drawing anew."""
    real, calls = getattr(layer_form, until), []

    def cut(*given, **more):
        calls.append(given)
        return real(*given, **more) if calls[1:] else st.rerun()
    monkeypatch.setattr(layer_form, until, cut)
    link = {"preset": "kb79", "size": "small", "stride": "3", "bias": "yes", "device": "cuda:7", "precision": "ieee"}
    at = tab(page, **link, **({} if page else {"without": "forward/naive_gather"}))
    there = written(at, page or "workbench")
    assert link.items() <= there.items() and len(calls) > 1 and "cannot be read" not in said(at)
    assert there.get("without", "") == ("" if page else "forward/naive_gather")
    assert f"This machine has no cuda:7; {'Start' if page else 'Run'} uses cpu." in said(at)


def test_a_choice_in_a_link_that_there_is_not_is_named(sessions):
    text = said(tab(precision="fp8", direction="sideways", without="forward/no_such", set="forward/naive_gather.BLOCK=7"))
    for word in ("The precision 'fp8'", "The direction 'sideways'", "The variant 'forward/no_such'",
                 "The value 'forward/naive_gather.BLOCK=7'"):
        assert f"{word} in the link is not known." in text


def test_compare_keeps_its_mode_and_directions_in_the_address(sessions):
    at = tab("compare", compare_a="one", compare_b="two", against="session B", directions="forward")
    assert at.segmented_control(key="compare_against").value == "session B" and at.selectbox(key="compare_b").value == "two"
    assert at.session_state["compare_pills"] == ["forward"]
    assert written(at, "compare") == {"compare_a": "one", "compare_b": "two", "against": "session B", "directions": "forward"}
    assert tab("compare", compare_a="one", compare_b="two").selectbox(key="compare_b").value == "two", "B counts"


def test_compare_keeps_its_filters_and_selected_rows_in_the_address(sessions):
    Session(sessions / "one").append(trial("slow", 9.0, "tf32"))
    Session(sessions / "one").append(trial("bad", None, status=Status.MISMATCH))
    at = tab("compare", compare_a="one", compare_b="two", against="session B", precision="fp64")
    assert "The precision 'fp64' in the link is not known." in said(at)
    at = tab("compare", compare_a="one", compare_b="two", against="session B")
    drawn = [m.label for m in at.multiselect if m.key.startswith("compare_only")]
    assert drawn == ["Variant", "Precision"], "the others have one value"
    at.multiselect(key="compare_only variant").set_value(["other", "mine"]).run()
    assert set(at.dataframe(key="compare_table").value["A"]) == {"mine ieee", "other ieee"}
    at.session_state["compare_table"] = {"selection": {"rows": [1], "columns": [], "cells": []}}
    at.run()
    chosen = at.dataframe(key="compare_table").value["A"].iloc[1].split()[0]
    row = next(t.trial_id for t in Session(sessions / "one").trials() if t.name == chosen)
    link = written(at, "compare")
    assert link["variant"] == "other,mine" and link["rows"] == f"{row}.forward" and f"<b>{chosen}" in said(at)
    again = tab("compare", **{k: v for k, v in link.items() if k != "variant"}, variant=chosen)
    assert again.session_state["compare_table"]["selection"]["rows"] == [0] and f"<b>{chosen}" in said(again)
    for filters, left in (({"precision": "tf32"}, {"slow", "eager, TF32 on"}), ({"status": "MISMATCH"}, {"bad"})):
        pinned = tab("compare", compare_a="one", trials=f"one:{row}", **filters)
        assert set(pinned.dataframe(key="compare_picker").value["variant"]) == left


def test_a_long_table_of_results_has_filters_that_a_link_brings_back(sessions):
    session = Session(sessions / "one")
    asked = {"preset": "kb74", "size": "full", "session": "one", "device": "cuda:7"}

    def drawn(at) -> list[str]:
        return [m.label for m in at.multiselect if m.key.startswith("results only")]

    assert drawn(tab(**asked)) == [], "all rows are in sight"
    for ms in range(3, 30):
        session.append(trial("mine", float(ms), config={"BLOCK": ms}))
    for name in ("mine", "bad"):
        session.append(trial(name, None, status=Status.MISMATCH))
    at = tab(**asked)
    assert drawn(at) == ["Status", "Variant", "Precision"] and len(at.dataframe[0].value) > 30, "all are forward"
    at.multiselect(key="results only status").set_value(["MISMATCH"]).run()
    table = at.dataframe[0].value
    assert set(table["variant"]) == {"mine", "bad"} and len(table) == 2
    link = written(at, "workbench")
    again = tab(**link)
    assert link["only_status"] == "MISMATCH" and list(again.dataframe[0].value["variant"]) == list(table["variant"])
    assert "The variant 'gone' in the link is not known." in said(tab(**asked, only_variant="gone"))
    again.session_state["results {'status': ['MISMATCH']}"] = {"selection": {"rows": [1], "columns": [], "cells": []}}
    again.run()
    next(b for b in again.button if b.label == "Inspect").click().run()
    there = {t.trial_id: t for t in session.trials()}[again.session_state["inspect_trial"]]
    assert (there.name, there.status) == (table["variant"].iloc[1], "MISMATCH"), "the row in sight"


def test_any_output_of_the_layer_is_explained_and_a_link_brings_it_back(sessions):
    at = tab(preset="kb81", size="full", explain="200, 605")

    def pinned() -> list[str]:
        picture, = (p["svg"] for e in at.get("bidi_component") if "svg" in (p := json.loads(e.proto.json or "{}")))
        return re.findall(r'class="out pin".*?class="code big"[^>]*>(y\[[\d,]+\])', picture)

    assert pinned() == ["y[200,605]"] and written(at, "workbench")["explain"] == "200, 605"
    for text, wrong in (("317 637", ""), ("900, 1", "y[900, 1] is no output; there are 318 × 638."),
                        ("3", "Write 2 numbers, such as 0, 0."), ("", "")):
        at.text_input(key="explain").set_value(text).run()
        assert not at.exception and ("no output" in said(at) or "Write 2" in said(at)) == bool(wrong) and wrong in said(at)
        assert pinned() == ["y[317,637]" if text == "317 637" else "y[6,8]"]
    assert "explain" not in written(at, "workbench")
    at.text_input(key="explain").set_value("317 637").run()
    at.selectbox(key="preset").select("kb74").run()
    assert at.text_input(key="explain").value == "" and "Write 1" not in said(at) and pinned() == ["y[12]"]


def test_another_session_on_inspect_is_no_dead_link(sessions):
    first = Session(sessions / "one").trials()[-1].trial_id
    at = tab("inspect", inspect_session="one", trial=first)
    at.selectbox(key="inspect_session").select("two").run()
    assert "was not found" not in said(at) and at.selectbox(key="inspect_trial").value
    assert written(at, "inspect")["inspect_session"] == "two"


def test_another_address_of_the_same_page_counts_over_what_was_chosen(sessions):
    """Back to an earlier visit: the browser comes with the address of then."""
    at = tab(preset="kb79", size="small", precision="ieee")
    at.selectbox(key="preset").select("kb81").run()
    assert written(at, "workbench")["preset"] == "kb81"
    at.query_params.clear()
    at.query_params["preset"], at.query_params["size"] = "kb74", "small"
    at.run()
    assert "ConvTranspose1d(32, 64, 5" in said(at) and at.selectbox(key="precision").value == "tf32"
    at.selectbox(key="preset").select("kb81").run()  # the browser still names the address that was followed
    assert "ConvTranspose2d(32, 64, 3, stride=5" in said(at)


def test_check_and_machine_keep_their_choices_in_the_address(sessions):
    at = tab("check", reference="kb81", size="medium", limit="7", memory="3")
    assert at.selectbox(key="check_reference").value == "kb81" and at.segmented_control(key="check_size").value == "medium"
    assert (at.number_input(key="check_limit").value, at.number_input(key="check_memory").value) == (7, 3)
    assert written(at, "check") == {"reference": "kb81", "size": "medium", "limit": "7", "memory": "3"}
    assert "The device 'cuda:9' in the link is not known." in said(tab("machine", device="cuda:9"))


def test_a_session_that_is_called_by_its_time_is_listed_in_local_time_with_its_layer(sessions, monkeypatch):
    Session.create(sessions, "20261122-231318").append(trial("mine", 1.0))
    for name in ("20261122-231350", "20261122-231359"):
        Session.create(sessions, name)
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        labels = state.session_labels(["20261122-231318", "one", "recorded-x", "20261122-231350", "20261122-231359"])
        assert state.session_label("20269922-231318") == "20269922-231318", "no time"
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    assert list(labels.values()) == [
        "23 Nov 04:43 · KernelBench #74 (full)", "one", "x · recorded", "23 Nov 04:43 · empty · 20261122-231350",
        "23 Nov 04:43 · empty · 20261122-231359"]


def test_a_link_to_inspects_diff_brings_both_sides_and_its_shape_back(sessions):
    mine, other = (Session(sessions / name).trials()[-1 - n].trial_id for name, n in (("one", 1), ("two", 0)))
    at = tab("inspect", inspect_session="one", trial=mine, view="Diff")
    at.selectbox(key="diff session").select("two").run()
    at.selectbox(key=f"diff {mine} two").set_value(other).run()
    at.segmented_control(key="diff what").set_value("config").run()
    at.segmented_control(key="diff shape").set_value("Unified").run()
    at.toggle(key="diff only").set_value(False).run()
    there = written(at, "inspect")
    assert there == {"inspect_session": "one", "trial": mine, "view": "Diff", "diff_session": "two", "diff": other,
                     "what": "config", "shape": "Unified", "whole": "1"}
    assert "−</s>variant = other" in said(at) and "+</s>variant = mine" in said(at) and "precision = ieee" in said(at)
    again = tab("inspect", **there)
    assert written(again, "inspect") == there and not again.exception
    assert said(again) == said(at), "a colleague sees the same"


def test_a_link_to_a_step_of_the_ladder_brings_it_back(sessions):
    session = Session.create(sessions, "real")
    session.append(trial("warp_per_output", 1.0))
    one = session.trials()[0].trial_id
    at = tab("inspect", inspect_session="real", trial=one, view="Ladder")
    assert "step" not in written(at, "inspect"), "at first the trial's own"
    at.button(key="ladder Next").click().run()
    step = at.selectbox(key="ladder step").value
    assert step != "warp_per_output" and written(at, "inspect")["step"] == step
    again = tab("inspect", **written(at, "inspect"))
    assert again.selectbox(key="ladder step").value == step and said(again) == said(at)


def test_the_text_of_a_layer_fills_the_fields_or_says_why_it_cannot_be_read(sessions):
    page = tab(precision="ieee")
    page.text_input(key="layer_text").input("nn.ConvTranspose2d(32, 16, (4, 3), stride=2, padding=1, bias=False)")
    page.run()
    assert "ConvTranspose2d(32, 16, (4, 3), stride=2, padding=1, bias=False)" in said(page) and "own layer" in said(page)
    assert page.text_input(key="input_size").value == "64, 64" and page.text_input(key="layer_text").value == ""
    page.text_input(key="input_size").input("20, 30")
    for text, sentence in (("Conv2d(3, 4, 5)", "&#x27;Conv2d(3, 4, 5)&#x27; is not served; choose ConvTranspose1d"),
                           ("ConvTranspose2d(0, 1, 3)", "in_channels is 0; it must be 1 or more. The fields did not change.")):
        page.text_input(key="layer_text").input(text)
        page.run()
        assert len(problems(page)) == 1 and sentence in problems(page)[0] and page.text_input(key="layer_text").value == text
        assert page.text_input(key="in_channels").value == "32"
    page.text_input(key="layer_text").input("ConvTranspose2d(8, 16, 3)")
    page.run()
    assert not problems(page) and page.text_input(key="input_size").value == "20, 30" and "(8, 16, 3)" in said(page)
