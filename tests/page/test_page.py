"""The page without a browser: what the sidebar says, what blocks Run, what the empty page shows. The Export page: layers by
their names, and the file after the one that is chosen."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.bench.made import recorded, trial
from tests.shared import require, ticked
from workbench.core import facts, numbers, roofline
from workbench.core.cache import Cache
from workbench.core.layer import Workload
from workbench.core.presets import preset
from workbench.core.replies import Rates
from workbench.core.template import render
from workbench.core.toolchain import CXX_VARIABLES
from workbench.core.trial import Status, Trial
from workbench.core.variants import TEMPLATES
from workbench.drive.checking import selftest
from workbench.drive.sessions.recorded import candidate_of
from workbench.drive.sessions.session import Session
from workbench.faces.ui import machine_page, state

from ..build.test_cache import put
from .test_belongs import titles

APP = Path(__file__).resolve().parents[2] / "app.py"


@pytest.fixture
def page(tmp_path, monkeypatch) -> AppTest:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path / "sessions"))
    monkeypatch.setenv("KERNEL_WORKBENCH_CACHE", str(tmp_path / "cache"))
    return opened(AppTest.from_file(str(APP), default_timeout=300))


def opened(at: AppTest) -> AppTest:
    at.run()
    assert not at.exception
    return at


def said(at: AppTest) -> str:
    """All of our own markup on the page, as text."""
    return "\n".join(element.body for element in at.get("html"))


def run_button(at: AppTest):
    return next(b for b in at.button if b.label.startswith("Run"))


def wrong(at: AppTest) -> list[str]:
    return [e.body for e in at.get("html") if 'role="alert"' in e.body]


def test_first_page_shows_preset_74_small_and_the_doctor(page):
    text = said(page)
    assert "ConvTranspose1d(32, 64, 5, bias=False, dilation=3)" in text
    assert "Nothing measured yet for this layer" in text
    for found in ("platform", "torch", "C++ compiler", "nvcc"):
        assert found in text
    assert not run_button(page).disabled


def test_before_a_run_a_table_stands_where_the_bars_will_be(page):
    """Of what serves the layer only; the chart's library is not loaded for it, unless recorded times can be drawn."""
    table = said(page).split("Results appear here")[1]
    assert table.count("not run yet") == len(ticked())
    assert "disjoint_mma" not in table and not page.get("plotly_chart")


def test_recorded_times_of_pytorch_are_drawn_and_a_large_layer_is_warned_of(page, monkeypatch):
    page.segmented_control(key="size").select("full")
    page.run()
    assert not page.get("plotly_chart"), "this folder has no recorded session"
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(APP.parent / "sessions"))
    page.run()
    assert len(page.get("plotly_chart")) == 1 and "PyTorch was recorded on NVIDIA H200" in said(page)
    assert "85.9 GFLOP per launch is too much for the emulator" in said(page)


def test_every_variant_that_serves_the_layer_is_ticked(page):
    assert len(ticked()) >= 9
    assert run_button(page).label == f"Run {len(ticked())} in 4 directions"
    page.checkbox(key="tick forward gathered_mma").uncheck()
    page.run()
    assert run_button(page).label == f"Run {len(ticked()) - 1} in 4 directions"


def test_one_click_selects_all_none_one_direction_or_the_best_known(page):
    forward = [name for direction, name in ticked() if direction == "forward"]
    for key, count in (("pick None", 0), ("pick Only", len(forward)), ("pick All", len(ticked())), ("best known", 4)):
        page.button(key=key).click()
        opened(page)
        label = f"Run {count} " + ("forward" if key == "pick Only" else "in 4 directions") if count else "Run"
        assert run_button(page).label == label and (count or run_button(page).disabled), key


def test_at_first_kernels_compute_as_pytorch_does_on_this_gpu(page):
    """The emulated GPU has TF32, which PyTorch uses for convolutions: the fast kernels are seen first."""
    assert page.selectbox(key="precision").value == "tf32" and page.checkbox(key="tick forward wgmma_residues").value
    page.selectbox(key="dtype").select("float64")
    opened(page)
    assert page.selectbox(key="precision").value == "fp64"


def test_a_row_is_plain_words_and_its_chip_says_what_zero_stands_for(page):
    box = page.checkbox(key="tick forward gathered_mma")
    assert box.label == "gathered_mma" and "gathers the values" in box.help
    assert not [s for s in page.selectbox if s.key.startswith("value ")], "its tunables are drawn when the chip is opened"
    page.session_state["chip forward gathered_mma"] = True
    opened(page)
    tile = page.selectbox(key="value forward gathered_mma TILE_M")
    assert tile.value == 0 and tile.options[tile.index] == "auto 64"
    tile.select_index(list(tile.options).index("32"))
    opened(page)
    assert page.session_state["address of workbench"]["set"] == ["forward/gathered_mma.TILE_M=32"]


def test_one_wrong_value_does_not_hide_another(page):
    page.text_input(key="padding").input("-1")
    page.text_input(key="stride").input("0")
    page.text_input(key="batch").input("x")
    opened(page)
    text = "".join(wrong(page))
    assert "padding is -1" in text and "stride is 0" in text and "batch &#x27;x&#x27; cannot be read" in text


def test_a_compile_flag_that_nvcc_does_not_know_is_refused_at_once(page):
    require(shutil.which("nvcc") or Path("/usr/local/cuda/bin/nvcc").exists(), "needs nvcc")
    for flags, sentence in (("O3", "is not a compile flag; a flag begins with -."), ("--no-such-flag", "no-such-flag")):
        page.text_input(key="flags").input(flags)
        opened(page)
        assert len(wrong(page)) == 1 and sentence in wrong(page)[0] and run_button(page).disabled
    page.text_input(key="flags").input("--use_fast_math -Xptxas -O2")
    opened(page)
    assert not wrong(page) and not run_button(page).disabled


def test_each_its_own_precision_runs_all_that_serve_the_layer(page):
    page.selectbox(key="precision").select("")
    opened(page)
    assert run_button(page).label.startswith(f"Run {len(ticked(''))} in") and len(ticked("")) > len(ticked())
    assert page.checkbox(key="tick forward implicit_gemm_mma").value


@pytest.mark.parametrize(("field", "value", "sentence"), [
    ("padding", "-1", "padding is -1; it must be 0 or more."),
    ("groups", "7", "in_channels 32 is not divisible by groups 7"),
    ("output_padding", "3", "output_padding 3 must be smaller than stride 1 or dilation 3."),
    ("kernel_size", "3, 5", "kernel_size (3, 5) has 2 numbers; a ConvTranspose1d takes one."),
    ("stride", "two", "stride &#x27;two&#x27; cannot be read; give a whole number"),
    ("batch", "", "batch &#x27;&#x27; cannot be read; give a whole number."),
    ("input_size", "0", "input size is 0; it must be 1 or more."),
])
def test_a_wrong_value_has_one_sentence_and_blocks_only_run(page, field, value, sentence):
    page.text_input(key=field).input(value)
    opened(page)
    assert len(wrong(page)) == 1 and sentence in wrong(page)[0]
    assert run_button(page).disabled
    assert "ConvTranspose1d(32, 64, 5, bias=False, dilation=3)" in said(page)  # the last valid layer stays, faded
    assert "the last valid layer" in said(page)


def test_a_corrected_value_frees_run(page):
    page.text_input(key="padding").input("-1")
    opened(page)
    page.text_input(key="padding").input("1")
    opened(page)
    assert not wrong(page) and not run_button(page).disabled
    assert "padding=1" in said(page)


def test_another_preset_updates_fields_and_facts(page):
    page.selectbox(key="preset").select("kb81")
    opened(page)
    assert page.text_input(key="stride").value == "5"
    assert "ConvTranspose2d(32, 64, 3, stride=5, padding=1, bias=False, dilation=2)" in said(page)
    page.segmented_control(key="size").select("full")
    opened(page)
    assert "16 × 64 × 318 × 638" in said(page)
    assert numbers.work(facts.flops(preset("kb81").workload("full"))) in said(page)


def test_a_free_layer_of_three_dimensions(page):
    page.selectbox(key="preset").select("free3")
    opened(page)
    page.text_input(key="kernel_size").input("3, 4, 5")
    opened(page)
    assert "ConvTranspose3d(16, 16, (3, 4, 5), stride=2, padding=1)" in said(page)


def test_the_address_brings_the_layer_back(page):
    fresh = AppTest.from_file(str(APP), default_timeout=300)
    fresh.query_params["preset"] = "kb79"
    fresh.query_params["padding"] = "0"
    opened(fresh)
    assert "ConvTranspose1d(32, 64, 3, stride=2, bias=False, dilation=2)" in said(fresh)
    assert "Edited: no longer KernelBench #79." in said(fresh) and "Edited" not in said(page)


def test_the_layer_list_shows_one_suite_after_the_other_each_layer_by_its_name(page):
    options = page.selectbox(key="preset").options
    assert options[0] == "own layer: ConvTranspose1d" and options[3] == "KernelBench #57: 2-D k3 s1"
    firsts = [o.split()[0].partition("/")[0] for o in options]
    assert [(word, firsts.count(word)) for word in dict.fromkeys(firsts)] == [("own", 3), ("KernelBench", 17), ("models", 22)]
    assert firsts == sorted(firsts, key=["own", "KernelBench", "models"].index)


def test_a_link_to_a_layer_of_the_models_brings_it_in_the_size_it_names(page):
    fresh = AppTest.from_file(str(APP), default_timeout=300)
    fresh.query_params["preset"], fresh.query_params["size"] = "models/dcgan-2", "small"
    opened(fresh)
    assert "ConvTranspose2d(128, 64, 4, stride=2, padding=1, bias=False)" in said(fresh) and not wrong(fresh)
    assert "models/dcgan-2 (small)" in said(fresh)  # the small form of this one has fewer channels
    fresh.segmented_control(key="size").select("full")
    opened(fresh)
    assert "ConvTranspose2d(512, 256, 4, stride=2, padding=1, bias=False)" in said(fresh)
    assert "models/dcgan-2 (full)" in said(fresh) and "models/dcgan-2" in fresh.query_params["preset"]


def test_a_layer_of_the_models_fills_the_form_from_its_trial():
    def shown() -> None:
        import streamlit as st

        from workbench.core.presets import preset
        from workbench.faces.ui.layer_form import show
        show(preset("models/dcgan-2").workload("small"), "cpu", "new session")
        st.text(" ".join(st.session_state[name] for name in ("preset", "size", "in_channels", "bias")))

    at = AppTest.from_function(shown, default_timeout=300).run()
    assert not at.exception and at.text[0].value == "models/dcgan-2 small 128 no"


def test_several_values_of_a_tunable_make_several_candidates(page):
    page.toggle(key="several").set_value(True)
    page.session_state["chip forward gathered_mma"] = True
    opened(page)
    page.multiselect(key="values forward gathered_mma TILE_M").set_value([32, 64, 128])
    opened(page)
    assert run_button(page).label == f"Run {len(ticked()) + 2} in 4 directions"


def test_both_gradients_from_one_launch_are_a_direction(page):
    page.selectbox(key="precision").select("tf32")
    opened(page)
    before = int(run_button(page).label.split()[1])
    page.segmented_control(key="direction").select("backward")
    opened(page)
    assert [c.key for c in page.checkbox if c.key.startswith("tick ")] == ["tick backward fused_mma"]
    page.checkbox(key="tick backward fused_mma").uncheck()
    opened(page)
    assert int(run_button(page).label.split()[1]) == before - 1


def test_the_page_process_has_no_torch():
    code = ("from streamlit.testing.v1 import AppTest; import sys; "
            f"at = AppTest.from_file({str(APP)!r}, default_timeout=300); at.run(); "
            "assert not at.exception; assert 'torch' not in sys.modules, 'torch was imported'")
    done = subprocess.run([sys.executable, "-c", code], cwd=APP.parent, capture_output=True, text=True, timeout=500,
                          check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(("words", "code", "said"), [([], 0, ""), (["--foo"], 2, "'--foo' is not known here.\n")])
def test_plain_python_says_how_to_start(words, code, said):
    done = subprocess.run([sys.executable, str(APP), *words], cwd=APP.parent, capture_output=True, text=True, timeout=500,
                          check=False)
    assert done.returncode == code and done.stderr.endswith(said)
    assert "streamlit run app.py" in done.stdout


def test_a_broken_template_is_a_line_above_the_others(page, tmp_path, monkeypatch):
    root = shutil.copytree(TEMPLATES, tmp_path / "templates")
    (root / "forward" / "broken.cu").write_text('/* variant\nname = broken"\n*/\n')
    monkeypatch.setenv("KERNEL_WORKBENCH_TEMPLATES", str(root))
    opened(page)
    assert "The header of broken.cu is not TOML: Invalid value (at line 2, column 8). This template was skipped." in said(page)
    assert run_button(page).label == f"Run {len(ticked())} in 4 directions"


def test_a_link_to_a_preset_that_is_not_known_says_so_until_another_is_chosen(page):
    fresh = AppTest.from_file(str(APP), default_timeout=300)
    fresh.query_params["preset"], fresh.query_params["size"] = "kb999", "huge"
    opened(fresh)
    for _ in range(2):
        preset, size = wrong(fresh)
        assert "The preset &#x27;kb999&#x27; in the link is not known. The page shows kb74." in preset
        assert "The size &#x27;huge&#x27; in the link is not known. The page shows small." in size
        opened(fresh)
    fresh.selectbox(key="preset").select("kb79").run()
    assert not fresh.exception and wrong(fresh) == [] and "ConvTranspose1d(32, 64, 3, stride=2" in said(fresh)


def _machine() -> None:
    from workbench.faces.ui import machine_page
    machine_page.draw()


def test_the_cache_is_emptied_and_the_ceilings_of_known_gpus_are_shown_without_one(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    monkeypatch.setenv("KERNEL_WORKBENCH_CACHE", str(tmp_path))
    put(Cache(tmp_path), "a", 10)
    at = AppTest.from_function(_machine, default_timeout=300).run()
    assert not at.exception and "1 library, " in said(at)
    at.button(key="machine_empty").click().run()
    assert "0 libraries" in said(at) and at.button(key="machine_empty").disabled
    assert "H200" in said(at) and "<span class='nw'>4.65</span>" in said(at) and "<span class='nw'>405</span>" in said(at)
    assert "<span class='nw mute'>3.35</span>" in said(at), "of a data sheet"


def _export() -> None:
    from workbench.faces.ui import export_page
    export_page.draw()


def judged(name: str, **more) -> Trial:
    """A trial of the very source that today's template makes."""
    made = trial(name, "forward", "naive_gather", 1.0, "ieee", **more)
    found = render(candidate_of(made))
    return replace(made, candidate_id=found.candidate_id, config=found.candidate.config)


def test_a_layer_is_shown_by_the_name_it_has_everywhere(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    trials = [judged(name, size=size, **more) for name, size, more in (
        ("kb75", "full", {}), ("models/sam-1", "full", {}), ("models/sam-1", "full", {"memory_format": "channels_last"}),
        ("models/dcgan-2", "small", {}))]
    recorded(tmp_path, trials, layers=("kb75", "models/sam-1"))
    at = AppTest.from_function(_export, default_timeout=300).run()
    assert not at.exception
    layer = at.selectbox(key="export_workload")
    assert layer.options == ["models/dcgan-2 (small) float32", "models/sam-1 (full) float32 channels_last",
                             "models/sam-1 (full) float32", "KernelBench #75 (full) float32"]

    def chosen(workload: Workload) -> tuple[str, list[str]]:
        at.selectbox(key="export_workload").set_value(str(workload)).run()
        assert not at.exception
        forms = next(s for s in at.selectbox if s.label == "Constructor as in").options
        return "".join(e.body for e in at.get("html")), forms

    strip, forms = chosen(trials[2].workload)
    assert "model_new_sam_1.py is not verified yet" in strip and forms == ["nn.ConvTranspose2d"]
    strip, forms = chosen(trials[0].workload)
    assert "model_new_kb75.py is not verified yet" in strip and forms == ["KernelBench #75", "nn.ConvTranspose2d"]


def exported(**asked: str) -> AppTest:
    at = AppTest.from_function(_export, default_timeout=300)
    for name, value in asked.items():
        at.query_params[name] = value
    return opened(at)


def test_without_a_right_candidate_there_is_nothing_to_export(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    Session.create(tmp_path, "own").append(replace(judged("kb74"), status=Status.MISMATCH, kernel_ms=None))
    at = exported()
    assert "Nothing to export yet" in said(at) and "This session has no right candidate" in said(at)
    assert not at.code and not at.button and not at.get("download_button")


@pytest.fixture
def one_that_does_not_compile(tmp_path, monkeypatch) -> Path:
    return with_a_template_that_does_not_compile(tmp_path, monkeypatch)


def with_a_template_that_does_not_compile(tmp_path: Path, monkeypatch) -> Path:
    """A session with a right naive_gather, and the first template in reading order, which nobody chose, does not compile."""
    root = shutil.copytree(TEMPLATES, tmp_path / "templates")
    text = (root / "forward" / "naive_gather.cu").read_text()
    (root / "forward" / "aaa_broken.cu").write_text(text.replace('"naive_gather"', '"aaa_broken"').replace(
        "__global__", "__global__ this does not compile"))
    monkeypatch.setenv("KERNEL_WORKBENCH_TEMPLATES", str(root))
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path / "sessions"))
    monkeypatch.setenv("KERNEL_WORKBENCH_CACHE", str(tmp_path / "cache"))
    Session.create(tmp_path / "sessions", "own").append(judged("kb74", size="small"))
    return tmp_path / "sessions"


def test_a_template_that_does_not_compile_is_in_no_file_for_which_it_was_not_chosen(one_that_does_not_compile) -> None:
    at = exported()
    boxes = {s.label: list(s.options) for s in at.selectbox if s.label in ("forward", "grad_input", "grad_weight")}
    assert boxes == {"forward": ["naive_gather", "PyTorch"], "grad_input": ["PyTorch"], "grad_weight": ["PyTorch"]}
    text = at.code[0].value
    assert '"forward/naive_gather", "candidate ' in text and text.count("    _Kernel(") == 1
    # It was timed on a GPU, but PyTorch was not: the header has the time and the command, and no GPU may run it unmeasured.
    assert "measured on NVIDIA H200" in text and "--session own --preset kb74" in text and "proven=0" in text
    assert "aaa_broken" not in text and "this does not compile" not in text
    assert "model_new_kb74.py is not verified yet" in said(at) and at.get("download_button")[0].proto.disabled
    at.text_input(key="export_class").set_value("2nd")
    assert "&#x27;2nd&#x27; cannot be a class of the file" in said(opened(at))
    assert not at.code and not at.get("download_button"), "there is no file to take"
    at.text_input(key="export_class").set_value("Mine")
    assert "class Mine(" in opened(at).code[0].value
    next(s for s in at.selectbox if s.label == "forward").select("PyTorch")
    assert "No candidate is chosen yet" in said(opened(at)) and not at.code


def test_the_configs_of_a_variant_are_listed_by_what_differs(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    session = Session.create(tmp_path, "own")
    for block in (64, 128):
        made = trial("kb74", "forward", "shared_weight_tiling", 1.0, "ieee", size="small", config={"BLOCK": block})
        found = render(candidate_of(made))
        session.append(replace(made, candidate_id=found.candidate_id, config=found.candidate.config))
    box = next(s for s in exported().selectbox if s.label == "forward")
    assert sorted(box.options) == ["PyTorch", "shared_weight_tiling BLOCK=128", "shared_weight_tiling BLOCK=64"]


def test_a_file_that_is_refused_says_why_and_cannot_be_downloaded(one_that_does_not_compile, monkeypatch) -> None:
    called = titles(monkeypatch)
    Session.create(one_that_does_not_compile, "refused").append(replace(judged("kb74", size="small"), **_as("aaa_broken")))
    at = exported(session="refused")
    at.button(key="prove").click()
    end = time.monotonic() + 200
    while "RUNNING" in said(opened(at)) and time.monotonic() < end:
        assert "A fresh process builds and checks" in said(at) and " s since start" in said(at)
        assert at.button(key="prove").disabled and at.get("download_button")[0].proto.disabled
        time.sleep(0.3)
    assert "! BUILD_FAILED" in said(at) and "aaa_broken.cu" in said(at) and "VERIFIED" not in said(at)
    assert at.get("download_button")[0].proto.disabled and at.button(key="prove").label == "Verify again"
    assert "● verifying model_new_kb74.py" in called and called[-1] == "✕ failed, Export"


def _as(name: str) -> dict:
    """What a trial of another variant of that name would say of itself."""
    found = render(candidate_of(replace(judged("kb74", size="small"), name=name)))
    return {"name": name, "candidate_id": found.candidate_id}


def test_a_self_test_that_was_kept_is_shown_the_missed_attack_first(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_CACHE", str(tmp_path))
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    at = opened(AppTest.from_function(_machine, default_timeout=300))
    assert "The self-test has not run on this machine yet." in said(at)
    made = [selftest.Result(name, kind, f"it {name}", "MISMATCH", status, "It was <seen>.", caught, "held by bwrap")
            for name, kind, status, caught in (("returns_zeros", "kernel", "MISMATCH", True), ("honest", "control", "OK", True),
                                               ("reads_the_answer", "module", "OK", False))]
    selftest.keep(made, "cpu")
    text = said(opened(at))
    assert "1 of 2 attacks caught; not as expected: reads_the_answer" in text and "✕ FAILED" in text
    assert text.index("it reads_the_answer") < text.index("it returns_zeros") and "Held by bwrap." in text
    assert "It was &lt;seen&gt;." in text and text.count("CAUGHT") == 1
    selftest.keep(made[:2], "cpu")
    text = said(opened(at))
    assert "1 of 1 attacks caught" in text and "✓ PASSED" in text and "reads_the_answer" not in text


def test_a_machine_that_can_build_nothing_is_not_ready_and_names_the_command(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in CXX_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for known in (state.findings, state.device_names):
        known.clear()
    try:
        at = AppTest.from_function(_machine, default_timeout=300).run()
        assert not at.exception
        text = said(at)
        assert "NOT READY" in text and "Nothing can be built yet: C++ compiler is missing." in text
    finally:
        for known in (state.findings, state.device_names):
            known.clear()


def test_a_gpus_ceilings_say_whether_this_machine_measured_them(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_CACHE", str(tmp_path))
    assert "This GPU has not been measured, so no floor is shown." in machine_page._ceilings("NVIDIA <New>")
    text = machine_page._ceilings("NVIDIA H200")
    assert "as recorded by the project, not measured on this machine" in text and "4.65 TB/s" in text
    roofline.keep(Rates(name="NVIDIA H200", uuid="GPU-1", read_bytes_per_s=4.0e12, write_bytes_per_s=3e12,
                        copy_bytes_per_s=3.5e12, flops_per_s={"fp32": 5e13}, l2_bytes=1))
    text = machine_page._ceilings("NVIDIA H200")
    assert "measured on this machine" in text and "not measured" not in text and "4.00 TB/s" in text


def test_a_run_that_failed_says_why_and_can_be_resumed(page, monkeypatch) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_LOCKS", "/proc/nope")
    at = AppTest.from_file(str(APP), default_timeout=300)
    at.query_params["only"], at.query_params["precision"] = "forward/naive_gather", "ieee"
    opened(at)
    run_button(at).click()
    opened(at)
    end = time.monotonic() + 200
    while state.active_runs() and time.monotonic() < end:
        time.sleep(0.2)
    text = said(opened(at))
    assert "✕ FAILED" in text and "/proc/nope cannot be used: No such file or directory." in text
    assert "0 finished trials are kept in the session." in text and "Nothing measured yet" not in text
    assert not run_button(at).disabled and "Resume" in [b.label for b in at.button]
