"""The Inspect page: whose resources it shows, and what it says where there are none."""

from __future__ import annotations

import json
import re
import shutil
import time
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.shared import require
from workbench.core.check_parts import LooksLike
from workbench.core.env import find_toolchain
from workbench.core.presets import preset
from workbench.core.profile import METRICS, KernelCounters, Profile
from workbench.core.trial import DEFAULT_ADVICE, Status
from workbench.core.typed import to_json
from workbench.core.variants import find
from workbench.core.wrong_values import SmallestWrong, Term, WrongValues
from workbench.drive.sessions import profiles
from workbench.drive.sessions.session import Session

from .test_belongs import said, tab, titles
from .test_report import timing, trial

SESSIONS = Path(__file__).resolve().parents[2] / "sessions"


def _app() -> None:
    from workbench.faces.ui import inspect_page
    inspect_page.draw()


def markup(at: AppTest) -> str:
    assert not at.exception
    return said(at)


def shown(session: str, trial_id: str, *, key: str = "inspect_session") -> str:
    at = AppTest.from_function(_app, default_timeout=300)
    at.query_params[key], at.query_params["trial"] = session, trial_id
    return markup(at.run())


@pytest.fixture
def recorded(monkeypatch) -> Path:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(SESSIONS))
    return SESSIONS / "recorded-h200-kernelbench.zip"


def test_a_wrong_result_is_drawn_with_its_smallest_case(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    session = Session.create(tmp_path, "wrong")
    work = preset("kb74").workload("small")
    terms = (Term((0,), (3,), 2.0, ((1.0, 2.0),)), Term((2,), (2,), -6.0, ((2.0, -4.0), (1.0, 2.0))))
    case = SmallestWrong(1, (5,), (0, 2, 6), 2.0, -4.0, terms, None, "the term of tap 2 is missing")
    found = WrongValues("output", "exact integers", work.output_shape, 12, 0, (6,), (27,), (0, 0, 1000, 0, 0, 0),
                        {"channel": (0, 1000), "W mod 4 (TILE)": (40, 40, 40, 40)}, (), ((-3, 500), (4, 12)), case,
                        LooksLike("l", "taps flipped", "Read weight[k].", 3, ()))
    blob = session.put_blob(to_json(found).encode())
    session.append(replace(trial("mine", None), workload=work, status=Status.MISMATCH, blobs={"wrong": blob}))
    one, = session.trials()
    at = tab("inspect", inspect_session="wrong", trial=one.trial_id)
    text = markup(at)
    assert "Looks like: taps flipped. Wrong values are only in channel 1 (100 % of it)." in text and "Read weight[k]." in text
    assert "A cell of the map has 27 positions" in text
    assert "y[0, 2, 6], batch 1, input size 5: the term of tap 2 is missing." in text
    assert "w[2]" in text and "x[2]" in text and "2·(-4) + 1·2" in text and len(at.get("plotly_chart")) == 3
    picture, = (p["svg"] for e in at.get("bidi_component") if "svg" in (p := json.loads(e.proto.json or "{}")))
    assert ">y[0, 2, 6] = 2 − 6 = −4<" in picture and ">the kernel gave 2<" in picture, "the sum with its numbers"
    assert "Share of wrong values by channel and W mod 4 (TILE)" in text and not at.get("expander"), "in sight"
    errors = json.loads(at.get("plotly_chart")[2].proto.spec)
    bars = {step: n for step, n in zip(errors["data"][0]["x"], errors["data"][0]["y"], strict=True) if n}
    assert bars == {-1.25: 500, 2.25: 12} and errors["layout"]["shapes"][0]["x0"] == 0, "right and wrong, and the line at 1"
    assert "error / largest allowed error" in errors["layout"]["xaxis"]["title"]["text"]
    old = replace(found, ratios=(), decades=((0, 12),))
    session.append(replace(one, trial_id="1" * 12, blobs={"wrong": session.put_blob(to_json(old).encode())}))
    assert "Where it is wrong" in shown("wrong", "1" * 12), "of a session of an older release"
    session.append(replace(one, trial_id="0" * 12, blobs={"wrong": session.put_blob(b"{}")}))
    assert "Where it is wrong" not in shown("wrong", "0" * 12), "what cannot be read is left out"


def test_the_main_kernel_has_the_gauges_and_its_helpers_a_line_beneath(recorded) -> None:
    there = next(t for t in Session(recorded).trials() if t.name == "implicit_gemm_mma" and t.resources)
    text = shown(recorded.stem, there.trial_id)
    assert "Resources of implicit_gemm_mma, sm_90" in text and "warps of 64" in text
    assert text.index("Resources of implicit_gemm_mma") < text.index("pack_fragments: ")
    assert "FRAGMENTS_M = 0 (auto 4)" in text and "ROLL = 0<br>" in text, "what 0 stands for, where it stands for something"
    assert "c_" not in text[text.index("Resources of"):text.index("pack_fragments: ")]


def test_the_session_of_a_link_is_shown_whichever_page_it_was_copied_from(recorded) -> None:
    there = next(t for t in Session(recorded).trials() if t.name == "implicit_gemm_mma" and t.resources)
    assert "Resources of implicit_gemm_mma, sm_90" in shown(recorded.stem, there.trial_id, key="session")


def test_dynamic_shared_memory_is_shown(recorded) -> None:
    path, split = next((path, t) for path in sorted(SESSIONS.glob("recorded-*")) for t in Session(path).trials()
                       if t.name == "split_mma" and t.config.get("SHARED_KB") == 110 and t.resources)
    text = shown(path.stem, split.trial_id)
    assert "110 KiB per block" in text and "of 227 KiB: 0 B static, 110 KiB dynamic at most" in text


def test_the_source_is_shown_by_file_and_an_error_with_its_lines(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    own = "// one\n__global__ void f() {}\nint b = smem_w;"
    source = f'#line 1 "contract/a.cuh"\nint a;\n#line 1 "forward/naive_gather.cu"\n{own}\n'
    session = Session.create(tmp_path, "own")
    one = trial("naive_gather", None, status=Status.BUILD_FAILED, blobs={"source": session.put_blob(source.encode())},
                headline='nvcc stopped at forward/naive_gather.cu, line 3: identifier "smem_w" is undefined.')
    session.append(one)
    at = AppTest.from_function(_app, default_timeout=300)
    at.query_params["inspect_session"], at.query_params["trial"], at.query_params["view"] = "own", one.trial_id, "Source"
    at.run()
    box = next(s for s in at.selectbox if s.label == "File")
    assert box.value == "forward/naive_gather.cu" and list(box.options)[0] == "contract/a.cuh"
    shown = reader(at)
    assert shown["text"] == own, "each line at its own number"
    assert shown["read"] and shown["marks"] == [{"line": 3, "text": one.headline}]
    assert shown["line"] == 1, "the comment above a kernel belongs to it"
    box.select("all, as it was compiled").run()
    assert "int a;" in reader(at)["text"] and not reader(at)["marks"]


def test_the_samples_stand_above_the_clocks_at_which_they_were_taken(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    session = Session.create(tmp_path, "own")
    blobs = {name: session.put_blob(json.dumps(values).encode())
             for name, values in (("samples", [1.0, 1.1, 1.2]), ("clocks", [1980, 1755, 1500]))}
    session.append(trial("naive_gather", 1.1, blobs=blobs))
    at = tab("inspect", inspect_session="own", trial=session.trials()[0].trial_id)
    above, below = json.loads(at.get("plotly_chart")[0].proto.spec)["data"]
    assert list(above["y"]) == [1.0, 1.1, 1.2] and list(below["y"]) == [1980, 1755, 1500]
    assert below["yaxis"] == "y2" and above["x"] == below["x"]


def reader(at: AppTest) -> dict:
    """What the source's component was given."""
    found = next(e.proto for e in at.get("bidi_component") if e.proto.component_name == "kernel_workbench_editor")
    return json.loads(found.json)


def test_what_differs_from_another_config_is_shown_and_a_layer_is_chosen_first(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    session = Session.create(tmp_path, "own")
    blobs = {block: session.put_blob(f"int a;\nconstexpr int BLOCK = {block};\n".encode()) for block in (64, 256)}
    trials = [trial("naive_gather", ms, config={"BLOCK": block}, blobs={"source": blobs[block]})
              for ms, block in ((1.5, 64), (2.5, 256))]
    trials.append(replace(trials[0], trial_id="other", workload=preset("kb79").workload("full")))
    for one in trials:
        session.append(one)
    at = tab("inspect", inspect_session="own", trial=trials[1].trial_id, view="Diff")
    assert at.selectbox(key="inspect_layer").value == "KernelBench #74 (full)"
    assert list(at.selectbox(key="inspect_trial").options) == [
        "2.50 ms · naive_gather · forward", "1.50 ms · naive_gather · forward"]
    text = markup(at)
    assert "<td class=gone>constexpr int BLOCK = <em>64</em>;</td><th>2</th>" in text and "<em>256</em>;</td>" in text
    at.segmented_control(key="diff what").set_value("config").run()
    text = markup(at)
    assert "BLOCK = <em>64</em>" in text and "precision = ieee" in text, "with the lines around it"
    at.segmented_control(key="diff shape").set_value("Unified").run()
    text = markup(at)
    assert "<td class=gone><s>−</s>BLOCK = 64</td>" in text and "colspan=4" not in text, "no column that nothing fills"
    at.selectbox(key="inspect_layer").select("KernelBench #79 (full)").run()
    assert at.selectbox(key="inspect_trial").value == "other"
    assert "1.50 ms · naive_gather" in at.selectbox(key="diff other own").options[0], "another layer's come after this one's"


def test_the_machine_code_of_a_trial_is_shown_without_a_gpu(recorded, tmp_path, monkeypatch) -> None:
    require(find_toolchain().nvcc, "nvcc")
    monkeypatch.setenv("KERNEL_WORKBENCH_CACHE", str(tmp_path / "cache"))
    general = SESSIONS / "recorded-h200-general.zip"
    there = next(t for t in Session(general).trials() if t.name == "naive_gather" and t.ok and t.direction == "forward")
    called = titles(monkeypatch)
    at = AppTest.from_function(_app, default_timeout=300)
    at.query_params["inspect_session"], at.query_params["trial"] = general.stem, there.trial_id
    at.query_params["view"] = "Machine code"
    end = time.monotonic() + 200
    text = "RUNNING"
    while "RUNNING" in text and time.monotonic() < end:
        at.run()
        assert not at.exception
        text = markup(at)
        time.sleep(0.3)
    assert "The main loop issues" in text and "Instructions by kind and loop" in text
    assert "● compiling, Inspect" in called and called[-1] == "✓ compiled, Inspect"
    kinds, table = at.dataframe[0].value, at.dataframe[1].value
    assert list(table.columns) == ["address", "control", "live", "instruction", "source"] and len(table) > 5
    assert list(kinds["loop"])[-2:] == ["outside of loops", "all"] and len(kinds.columns) > 6
    each = kinds.drop(columns=["loop", "source"])
    assert (each.iloc[:-1].sum() == each.iloc[-1]).all() and (each.iloc[:, 1:].sum(axis=1) == each["instructions"]).all()
    assert each["STG"].iloc[-2] > 0, "the epilogue's stores"
    parts = next(s for s in at.selectbox if s.label == "Instructions of")
    line = next(o for o in parts.options if "naive_gather.cu:" in o)
    parts.select(line).run()
    number = line.split(":")[1].split(",")[0]
    shown = reader(at)
    assert (shown["key"], shown["chosen"]) == ("forward/naive_gather.cu", int(number)), "the source beside its instructions"
    assert shown["counts"][number] == len(at.dataframe[1].value)
    at.session_state["asm ptx"] = True
    ptx = at.run().dataframe[2].value
    assert len(ptx) and set(ptx["source"]) == {line.split(",")[0]}, "the PTX of the same source line"
    parts.select("all instructions").run()
    assert len(at.dataframe[2].value) > len(ptx) and any(".entry" in text for text in at.dataframe[2].value["PTX"])


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


def test_a_wrong_trial_opens_in_the_editor_and_says_what_it_was_forked_from(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    session = Session.create(tmp_path, "own")
    text = find("naive_gather", "forward").text
    parent = trial("naive_gather", 1.5, candidate_id="a" * 16, blobs={"template": session.put_blob(text.encode())})
    wrong = trial("naive_gather-1a2b", None, status=Status.MISMATCH, headline="wrong", candidate_id="b" * 16,
                  forked_from="a" * 16, blobs={"template": session.put_blob(text.replace("{};", "{Sum(1)};").encode())})
    gone = trial("naive_gather", None, status=Status.MISMATCH, headline="wrong", candidate_id="c" * 16)
    for one in (parent, wrong, gone):
        session.append(one)
    at = tab("inspect", inspect_session="own", trial=wrong.trial_id)
    assert [at.segmented_control(key=f"inspect_{key}").value for key in ("view", "edit")] == ["Edit", "Template"]
    said = markup(at)
    assert "Forked from" in said and "1.50 ms · naive_gather · forward" in said
    assert "The fork is kept in session own" in said and at.button(key="stop edit").disabled
    at.segmented_control(key="inspect_view").set_value("Diff").run()
    at.segmented_control(key="diff what").set_value("template").run()
    said = markup(at)
    assert "{<em>Sum(1)</em>};" in said and "1 changed lines" in said, "at first against what it was forked from"
    called = titles(monkeypatch)
    at.session_state["edit refused"] = {wrong.trial_id: ("text", "The header of naive_gather.cu is not TOML, line 3.")}
    at.segmented_control(key="inspect_view").set_value("Edit").run()
    said = markup(at)
    assert "BAD INPUT" in said and "is not TOML, line 3." in said and "Nothing was run. Your text is kept below." in said
    assert called[-1] == "✕ not run, naive_gather-1a2b forward, Inspect"
    at = tab("inspect", inspect_session="own", trial=gone.trial_id)
    assert "has changed since trial" in markup(at)


def test_the_ladder_is_read_step_by_step_with_what_each_brought(recorded) -> None:
    general = SESSIONS / "recorded-h200-general.zip"
    there = next(t for t in Session(general).trials() if t.name == "warp_per_output" and t.direction == "grad_weight" and t.ok)
    at = tab("inspect", inspect_session=general.stem, trial=there.trial_id, view="Ladder")
    assert at.selectbox(key="ladder step").value == "warp_per_output"
    said = markup(at)
    assert re.search(r"Read after naive_gather\. \d[\d.]*× as fast, \d+ registers (more|fewer)", said), said
    steps = at.dataframe[0].value
    row = next(row for _, row in steps.iterrows() if row[""])
    assert row["step"].endswith(". warp_per_output") and list(steps[""]).count("▸") == 1
    assert row["gain"].endswith("×") and row["registers"] > 0 and "ms" in row["median"] and "B" in row["workspace"]
    assert row["of limit"].endswith(" %") and "DRAM traffic" not in steps.columns
    assert "must move at least" in said and "The bytes that it moved are shown for a trial with a profile." in said
    assert len(steps) == len(at.selectbox(key="ladder step").options), "all steps"
    before = next(n for n, option in enumerate(at.selectbox(key="ladder step").options) if option.endswith(": warp_per_output"))
    for _ in range(before):
        at.button(key="ladder Back").click().run()
    assert before and at.selectbox(key="ladder step").value == "naive_gather" and at.button(key="ladder Back").disabled
    assert "name      = \"naive_gather\"" in at.code[0].value, "the first step has nothing before it"
    at.session_state["ladder list naive_gather"] = {"selection": {"rows": [], "columns": [], "cells": [(before, "median")]}}
    assert at.run().selectbox(key="ladder step").value == "warp_per_output", "a click on a row of the list"


def test_the_ladder_says_how_many_bytes_a_step_saved_by_the_profiles(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    session = Session.create(tmp_path, "own")
    for name, ms, read in (("naive_gather", 3.0, 2e9), ("shared_weight_tiling", 1.5, 1e9)):
        session.append(one := trial(name, ms))
        counted = Profile((KernelCounters(name, "", "", {"dram_read": read, "dram_written": 5e8}),), "2026-01-02", "2025.3")
        session.event(profiles.EVENT, trial=one.trial_id, blob=session.put_blob(to_json(counted).encode()))
    at = tab("inspect", inspect_session="own", trial=one.trial_id, view="Ladder")
    assert "2.00× as fast, 1.00 GB DRAM traffic less." in (text := markup(at)) and "for a trial with a profile" not in text
    assert list(at.dataframe[0].value["DRAM traffic"].dropna()) == ["2.50 GB", "1.50 GB"]


def test_the_ladder_compares_times_of_one_precision_class(recorded) -> None:
    there = next(t for t in Session(recorded).trials() if t.precision == "tf32" and t.direction == "forward" and t.ok
                 and t.name == "implicit_gemm_mma" and t.workload.preset == "kb57/full")
    at = tab("inspect", inspect_session=recorded.stem, trial=there.trial_id, view="Ladder")
    medians = {}
    for name, inside in (("tf32", {"tf32"}), ("float32", {"ieee", "tf32x3"})):
        box = at.segmented_control(key="ladder class")
        assert set(box.options) == {"tf32", "float32"} and (medians or box.value == "tf32"), "at first the trial's own"
        box.set_value(name).run()
        steps = at.dataframe[0].value.dropna(subset=["median"])
        assert len(steps) > 1 and set(steps["precision"]) <= inside
        medians[name] = list(steps["median"])
    assert medians["tf32"] != medians["float32"]


def test_a_profile_is_shown_with_what_each_metric_means_beside_another_trials(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    session = Session.create(tmp_path, "own")
    source = session.put_blob(b"// nothing to compile")
    one, two, bare = (trial("naive_gather", ms, config={"BLOCK": block}, blobs={"source": source})
                      for ms, block in ((1.5, 64), (2.5, 128), (3.5, 256)))
    for made, dram in ((one, 81.0), (two, 20.0)):
        session.append(made)
        main = KernelCounters("naive_gather", "", "", {"dram": dram, "sm": 30.0, "duration": 1.5e6}, {"short_scoreboard": 0.41})
        helper = KernelCounters("pack<4>", "", "", {"duration": 2e3})
        counted = Profile((main, helper), "2026-01-02T00:00:00+00:00", "2025.3.1.0")
        session.event(profiles.EVENT, trial=made.trial_id, blob=session.put_blob(to_json(counted).encode()))
    session.append(bare)
    at = tab("inspect", inspect_session="own", trial=one.trial_id, view="Profile")
    text = markup(at)
    assert "Memory-bound: DRAM reads and writes at 81 % of the peak; warps mostly wait for shared memory" in text
    assert f"Counted on {one.device.name}, 2026-01-02, ncu 2025.3.1.0." in text and "Other kernels of naive_gather" in text
    assert f'title="{METRICS["dram"].help}">DRAM, of peak</span></td><td class=n><span class=nw>81.0 %<' in text
    assert not [b for b in at.button if b.key == f"profile {one.trial_id}"], "its GPU is not here"
    elsewhere = Session.create(tmp_path, "elsewhere")
    far = replace(two, trial_id="f" * 12, direction="grad_input", workload=preset("kb79").workload("full"))
    elsewhere.append(far)
    elsewhere.event(profiles.EVENT, trial=far.trial_id, blob=elsewhere.put_blob(to_json(counted).encode()))
    at.run().selectbox(key="profile session").set_value("elsewhere").run()
    at.selectbox(key=f"profile against {one.trial_id}").set_value(far.trial_id).run()
    assert "<span class=nw>20.0 %<" in markup(at), "of another session"
    at.selectbox(key="profile session").set_value("own").run()
    at.selectbox(key=f"profile against {one.trial_id}").set_value(two.trial_id).run()
    text = markup(at)
    assert "Latency-bound: DRAM is at 20 % of its peak" in text
    assert "DRAM, of peak</span></td><td class=n><span class=nw>81.0 %</span></td><td class=n><span class=nw>20.0 %<" in text
    at = tab("inspect", inspect_session="own", trial=bare.trial_id, view="Profile")
    end = time.monotonic() + 100
    while "RUNNING" in (text := markup(at)) and time.monotonic() < end:
        time.sleep(0.3)
        at.run()
    assert "No counters: The trial ran on" in text and "No static analysis: " in text


def test_a_module_shows_its_file_and_sends_to_its_candidates_for_the_rest(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    session = Session.create(tmp_path, "own")
    source = session.put_blob(b"class ModelNew:\n    pass\n")
    session.append(trial("naive_gather", 1.0))
    session.append(replace(trial("ModelNew", None, kind="module", direction="backward", blobs={"source": source}),
                           module_ms={"forward": timing(2.0), "backward": timing(5.0)}))
    assert "naive_gather" in tab("inspect", inspect_session="own").selectbox(key="inspect_trial").options[0]
    module = session.trials()[1].trial_id
    at = tab("inspect", inspect_session="own", trial=module)
    assert list(at.selectbox(key="inspect_trial").options)[-1].endswith("ModelNew · backward"), "modules come last"
    assert at.code[0].value == "class ModelNew:\n    pass" and at.code[0].language == "python"
    assert re.search(r"forward 2.00 ms, backward 5.00 ms \(<span [^>]*autograd[^>]*>module_ms</span>\)", markup(at))
    for view in ("Edit", "Diff", "Ladder", "Profile"):
        at.segmented_control(key="inspect_view").set_value(view).run()
        assert "Open one of the candidates." in markup(at) or "Open one of its candidates." in markup(at), view
        assert not [c for c in at.code if "class ModelNew" in c.value]


def test_the_build_log_opens_where_the_build_failed(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    session = Session.create(tmp_path, "own")
    log = b'naive_gather.cu(3): error: identifier "smem_w" is undefined\n1 error detected\n'
    failed, silent, bare = (trial(name, None, status=Status.BUILD_FAILED, headline="nvcc <stopped>.", blobs=blobs)
                            for name, blobs in (("naive_gather", {"log": session.put_blob(log)}),
                                                ("silent", {"log": session.put_blob(b"")}), ("bare", {})))
    for one in (failed, silent, bare):
        session.append(one)
    at = tab("inspect", inspect_session="own", trial=failed.trial_id)
    assert at.segmented_control(key="inspect_view").value == "Build log" and at.code[0].value == log.decode().rstrip()
    at.selectbox(key="inspect_trial").set_value(silent.trial_id).run()
    assert at.code[0].value == "The compiler printed nothing."
    at.selectbox(key="inspect_trial").set_value(bare.trial_id).run()
    assert "This trial has no build log: nvcc <stopped>." in markup(at)


KERNEL = """__global__ void naive_gather(const float* x, float* y, int n) {{
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += {block})
    sum += x[i] * {factor};
  y[threadIdx.x] = sum;
}}"""


@pytest.fixture
def two_kernels(tmp_path, monkeypatch) -> list[str]:
    """The ids of two trials, whose loops multiply by a number, and by one that is read."""
    require(find_toolchain().nvcc, "nvcc")
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path / "sessions"))
    monkeypatch.setenv("KERNEL_WORKBENCH_CACHE", str(tmp_path / "cache"))
    session = Session.create(tmp_path / "sessions", "own")
    for ms, block, factor in ((1.0, 64, "2.5f"), (2.0, 128, "y[i]")):
        text = '#line 1 "forward/naive_gather.cu"\n' + KERNEL.format(block=block, factor=factor)
        session.append(trial("naive_gather", ms, config={"BLOCK": block}, blobs={"source": session.put_blob(text.encode())}))
    return [t.trial_id for t in session.trials()]


def compiled(at: AppTest) -> str:
    """Of the page, once nvcc has answered."""
    end = time.monotonic() + 200
    while "nvcc is compiling" in markup(at) and time.monotonic() < end:
        time.sleep(0.2)
        at.run()
    return markup(at)


def test_an_instruction_leads_to_its_line_and_two_kernels_are_compared(two_kernels) -> None:
    one, two = two_kernels
    at = tab("inspect", inspect_session="own", trial=one, view="Machine code")
    compiled(at)
    assert reader(at)["chosen"] is None
    table = at.dataframe[1].value
    row = next(n for n, place in enumerate(table["source"]) if place != table["source"].iloc[0])
    line = int(table["source"].iloc[row].removeprefix("forward/naive_gather.cu:"))
    assert table["instruction"].str.contains("FFMA").any() and line in (3, 4)
    at.session_state[at.dataframe[1].key] = {"selection": {"rows": [row], "columns": [], "cells": []}}
    at.run()
    assert reader(at)["chosen"] == line and reader(at)["text"].splitlines()[3].strip() == "sum += x[i] * 2.5f;"
    at.selectbox(key=f"asm against {one}").set_value(two).run()
    text = compiled(at)
    assert "<td>LDG</td><td class=n>1</td><td class=n>2</td>" in text, "in the loop that takes what is left over"
    assert "FFMA</td>" not in text, "of these both have as many"
    link = {name: values[0] for name, values in at.session_state["address of inspect"].items()}
    assert link["asm_against"] == two


def test_ptx_and_sass_of_two_trials_differ_in_the_lines_that_do(two_kernels) -> None:
    one, two = two_kernels
    at = tab("inspect", inspect_session="own", trial=one, view="Diff", what="ptx", shape="Unified")
    text = compiled(at)
    assert "<s>−</s>" in text and "fma.rn.f32" in text and ".loc" not in text
    at.segmented_control(key="diff what").set_value("sass").run()
    text = compiled(at)
    assert re.search(r"<td class=came><s>\+</s>[^<]*FFMA[^<]*2\.5", text)
    assert re.search(r"<td class=gone><s>−</s>[^<]*LDG", text)


def test_a_link_brings_back_the_kernel_and_the_line_whose_instructions_are_shown(two_kernels, tmp_path) -> None:
    session = Session(tmp_path / "sessions" / "own")
    text = KERNEL.format(block=32, factor="1.5f")
    both = f'#line 1 "forward/naive_gather.cu"\n{text}\n{text.replace("naive_gather", "pack")}\n'
    session.append(trial("naive_gather", 3.0, config={"BLOCK": 32}, blobs={"source": session.put_blob(both.encode())}))
    one = session.trials()[-1].trial_id
    at = tab("inspect", inspect_session="own", trial=one, view="Machine code")
    compiled(at)
    assert list(at.selectbox(key=f"asm kernel {one}").options) == ["naive_gather", "pack"], "the variant's own first"
    at.selectbox(key=f"asm kernel {one}").select("pack").run()
    at.selectbox(key=f"asm part {one} pack").set_value("forward/naive_gather.cu:10").run()
    elsewhere = Session.create(tmp_path / "sessions", "elsewhere")
    other = replace(session.trials()[-1], trial_id="e" * 12, workload=preset("kb79").workload("full"), direction="grad_input",
                    blobs={"source": elsewhere.put_blob(both.replace("1.5f", "y[i]").encode())})
    elsewhere.append(other)
    at.run().selectbox(key="asm session").set_value("elsewhere").run()
    at.selectbox(key=f"asm against {one}").set_value(other.trial_id).run()
    compiled(at)
    theirs = at.selectbox(key=f"asm theirs {other.trial_id}")
    assert theirs.value == "pack" and "there, pack" in markup(at) and "<td>FFMA</td>" not in markup(at)
    assert "<td>LDG</td><td class=n>1</td><td class=n>2</td>" in markup(at), "the chosen kernel, of another session and layer"
    at.session_state["asm ptx"] = True
    at.run()
    link = {name: values[0] for name, values in at.session_state["address of inspect"].items()}
    assert (link["kernel"], link["instructions"], link["asm_session"], link["asm_against"], link["ptx"]) == (
        "pack", "forward/naive_gather.cu:10", "elsewhere", other.trial_id, "open")
    again = tab("inspect", **link)
    compiled(again)
    assert again.selectbox(key=f"asm kernel {one}").value == "pack" and "is not known" not in markup(again)
    assert again.selectbox(key=f"asm part {one} pack").value == "forward/naive_gather.cu:10"
    assert set(again.dataframe[1].value["source"]) == {"forward/naive_gather.cu:10"}
    assert again.selectbox(key=f"asm against {one}").value == other.trial_id
    assert reader(again)["chosen"] == 10 and len(again.dataframe) == len(at.dataframe), "and the PTX"


@pytest.mark.parametrize(("layer", "cells", "step", "titles", "axes"), [
    ("kb81", (3, 4), (2, 5), [], ["H", "W"]), ("kb57", (5, 6), (1, 1), [], ["H", "W"]),
    ("kb61", (6, 2, 3), (2, 4, 4), ["D 0 to 1", "D 2 to 3", "D 4 to 5", "D 6 to 7", "D 8 to 9", "D 10 to 11"], ["H", "W"])])
def test_a_wrong_result_is_an_image_in_2_d_and_slices_in_3_d(tmp_path, monkeypatch, layer, cells, step, titles, axes) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    session = Session.create(tmp_path, "wrong")
    work = preset(layer).workload("small")
    shape = (*work.output_shape[:2], *(c * s for c, s in zip(cells, step, strict=True)))
    shares = tuple(10 * i for i in range(prod(cells)))
    found = WrongValues("output", "exact integers", shape, 12, 0, cells, step, shares)
    blob = session.put_blob(to_json(found).encode())
    session.append(replace(trial("mine", None), workload=work, status=Status.MISMATCH, blobs={"wrong": blob}))
    at = tab("inspect", inspect_session="wrong", trial=session.trials()[0].trial_id)
    drawn = json.loads(at.get("plotly_chart")[0].proto.spec)
    assert "No place is worse than the others." in markup(at)
    maps = [trace for trace in drawn["data"] if trace["type"] == "heatmap"]
    assert len(maps) == max(1, len(titles)) and [a["text"] for a in drawn["layout"].get("annotations", [])] == titles
    values = [share for trace in maps for row in trace["z"] for share in row]
    assert values == pytest.approx(list(range(prod(cells)))), "each share once, the last dimension fastest"
    assert all((len(t["z"]), len(t["z"][0])) == cells[-2:] and (t["dy"], t["dx"]) == step[-2:] for t in maps)
    assert {t["zmax"] for t in maps} == {prod(cells) - 1}, "one scale for all slices"
    layout = drawn["layout"]
    assert [layout["yaxis"]["title"]["text"], layout["xaxis"]["title"]["text"]] == axes
