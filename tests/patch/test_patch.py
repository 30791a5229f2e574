"""A model goes in, a report and a file come out: by function, command line, notebook and page. On the emulator."""

from __future__ import annotations

import _thread
import json
import re
import shutil
import threading
import time
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
import torch
from streamlit.testing.v1 import AppTest
from torch import nn

import workbench as wb
from workbench.core.best_known import best_config
from workbench.core.errors import BadRequest
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.patching import FASTER_ONLY, INFERENCE, RIGHT, TRAINING, ModelSource, PatchReport
from workbench.core.typed import Misfit
from workbench.core.variants import TEMPLATES
from workbench.drive.patching import plots, text
from workbench.drive.patching.choose import choose
from workbench.drive.patching.patch import Patch, PatchRequest, PatchResult, _tune, patch, search
from workbench.drive.running.runner import Runner
from workbench.drive.sessions.session import Session
from workbench.drive.tuning.feed import EFFORTS, TuneRequest
from workbench.drive.tuning.finals import Final
from workbench.faces.cli import main
from workbench.measure.patching.replace import PatchFile

from ..drive.conftest import until
from ..page.test_belongs import titles
from ..tuning.test_tune import KB74, RECORDED, Canned, gpu_of
from . import models

HERE = Path(__file__).parent


def request(name: str, *, keep: str = RIGHT, **options) -> PatchRequest:
    return PatchRequest(ModelSource(f"models:build_{name}", f"models:{name}_inputs", HERE, **options), keep)


@pytest.fixture(scope="module")
def hifigan(runner: Runner) -> PatchResult:
    """A vocoder with a training step, patched."""
    return patch(request("hifigan", train=True), runner)


OF_TRANSFORMERS = {"speecht5_hifigan": "upsampler.0", "dac": "block.0.conv_t1", "encodec": "layers.3.conv"}


@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_every_transposed_convolution_of_a_foreign_model_is_found_and_patched(runner: Runner, name: str) -> None:
    source = ModelSource(f"models:{name}", f"models:{name}_inputs", HERE)
    report = patch(PatchRequest(source, RIGHT), runner).report
    assert [row.found.paths for row in report.kept] == [(OF_TRANSFORMERS[name],)] and not report.wrong
    assert 0 < report.drift[INFERENCE].outputs < 1e-5


def test_a_vocoder_keeps_every_layer_whose_kernels_are_right(hifigan: PatchResult) -> None:
    report = hifigan.report
    assert [row.found.paths for row in report.kept] == [("ups.0",), ("ups.1",)] and report.emulated
    assert all(row.status == "OK" and not row.times and not row.verdict for row in report.layers)
    assert set(report.layers[0].recipe) == {"forward", "grad_input", "grad_weight"}
    drift = report.drift[TRAINING]
    assert 0 < drift.outputs < 1e-6 and 0 < drift.gradients < 1e-5 and not report.times and not report.peak_bytes
    words = text.report_text(report)
    assert words.startswith("EMULATED  HifiGan: 2 of 2 layers are patched; emulated: not timed.")
    assert "The whole model: emulated, not timed." in words
    assert "--inputs models:hifigan_inputs --device cpu --keep right --train" in words


def test_the_report_is_json_both_ways(hifigan: PatchResult) -> None:
    data = json.loads(json.dumps(hifigan.report.to_json()))
    assert PatchReport.from_json(data) == hifigan.report
    with pytest.raises(Misfit, match="colour is not known"):
        PatchReport.from_json({**data, "colour": 1})
    with pytest.raises(Misfit, match=r"layers\[1\].found.layer.stride"):
        data["layers"][1]["found"]["layer"]["stride"] = "two"
        PatchReport.from_json(data)


def test_the_figure_shows_each_layer_and_its_share(hifigan: PatchResult) -> None:
    made = plots.figure(hifigan.report)
    assert [trace.customdata[0][0] for trace in made.data] == ["ups.0", "ups.1"]
    assert [trace.x[0] for trace in made.data] == [100 * row.found.share for row in hifigan.report.layers]
    assert "ups.1" in plots.described(hifigan.report)


def test_the_command_line_writes_the_file_the_figure_and_json(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(HERE)
    out, figure = tmp_path / "kernels.py", tmp_path / "figure.html"
    code = main(["patch", "models:build_decoder", "--inputs", "models:decoder_inputs", "--autocast", "bfloat16", "--device",
                 "cpu", "--keep", "right", "--out", str(out), "--figure", str(figure), "--json"])
    report = PatchReport.from_json(json.loads(capsys.readouterr().out))
    assert code == 0 and "plotly" in figure.read_text()[:20_000]
    rows = {row.found.paths[0]: row for row in report.layers}
    assert rows["output_upscaling.0"].kept and rows["output_upscaling.0"].recipe == {"forward": "naive_gather in bf16"}
    assert not rows["multimask"].kept and rows["multimask"].reason == "The model never called it in this step."
    drift = report.drift[INFERENCE]
    assert drift.outputs < 1e-2 and drift.gradients is None and 1e-4 < drift.own_outputs < 1e-1
    assert "(PyTorch's own autocast bfloat16 against no autocast: " in text.report_text(report)
    written = out.read_text()
    assert "output_upscaling.0" in written and "multimask" not in written and "Judged on the CPU emulator." in written
    model = models.MaskDecoder()
    told = PatchFile(written, "cpu").patch(model, ["output_upscaling.0", "output_upscaling.3", "multimask"])
    assert list(told.values()) == ["patched for bfloat16"] * 2 + ["left: this file has no kernels for this layer"]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert model(**models.decoder_inputs())["pred_masks"].dtype == torch.bfloat16
    namespace: dict = {"__name__": "kernels"}
    exec(written, namespace)
    builds: list[object] = []
    # On a GPU, where nobody measured the general kernels, PyTorch computes the layers, and one warning says so.
    namespace.update(_DEVICE_TYPE="cpu", _gpu=lambda device: (90, 227 * 1024), _build=lambda *order: builds.append(order))
    plain, model = models.MaskDecoder(), models.MaskDecoder()
    model.load_state_dict(plain.state_dict())
    namespace["patch"](model)
    given = models.decoder_inputs()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), pytest.warns(RuntimeWarning, match="nobody measured") as told:
        ours, theirs = (m(**given)["pred_masks"] for m in (model, plain))
        why = model.output_upscaling[0].forward.kernels(given["image_embeddings"])["forward"]
    assert torch.equal(ours, theirs) and not builds and len(told) == 1 and why.startswith("PyTorch: forward/naive_gather")
    assert re.search(r"forward +naive_gather.* in bf16 \(candidate \w{16}\)", written) and "Written by: python -m" in written
    assert written.count("def conv_transpose(") == 1 and written.count('"forward/naive_gather.cu":') == 1


def test_a_model_that_fails_alone_is_a_bad_request(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.chdir(HERE)
    assert main(["patch", "models:build_broken", "--device", "cpu", "--out", str(tmp_path / "no.py")]) == 2
    assert "The unchanged model fails: RuntimeError" in capsys.readouterr().err
    assert not (tmp_path / "no.py").exists()
    assert main(["patch", "models", "--device", "cpu"]) == 2
    assert "model is 'models'; write MODULE:CALLABLE" in capsys.readouterr().err
    assert main(["patch", "models:build_odd", "--figure", "a.png"]) == 2
    assert "a.png has no ending that can be written; end it with .html or .json." in capsys.readouterr().err


def test_a_model_with_other_results_is_not_patched_and_the_exit_code_says_so(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.chdir(HERE)
    out = tmp_path / "no.py"
    assert main(["patch", "models:build_notices", "--inputs", "models:odd_inputs", "--device", "cpu", "--keep", "right",
                 "--out", str(out)]) == 1
    words = capsys.readouterr().out
    assert words.startswith("MISMATCH  Notices: Nothing is patched: with the kernels output 1 has the shape (2, 3, 8), without "
                            "them (2, 3, 15).") and not out.exists()


def test_on_the_cpu_no_layer_is_faster(runner: Runner) -> None:
    result = patch(request("odd", keep=FASTER_ONLY), runner)
    report = result.report
    assert not report.kept and not result.text and not report.drift
    row = report.layers[0]
    assert row.status == "OK" and row.reason == "Right on the emulator; not timed there."
    words = text.report_text(report)
    assert words.startswith("SKIPPED  Odd: Nothing is patched: 0 of 3 layers.") and "give --keep right" in words
    assert text.evidence(report, "choose “right”").endswith("whose kernels are right, choose “right”.")
    assert "F.conv_transpose1d  models.py, line" in words and "(1 call a step)" in words


def test_a_layer_whose_kernel_is_wrong_is_left_with_its_reason(runner: Runner, tmp_path, monkeypatch) -> None:
    templates = tmp_path / "templates"
    shutil.copytree(TEMPLATES, templates)
    kernel = templates / "forward" / "naive_gather.cu"
    source = kernel.read_text()
    assert "sum[c] +=" in source
    kernel.write_text(source.replace("sum[c] +=", "sum[c] -="))
    monkeypatch.setenv("KERNEL_WORKBENCH_TEMPLATES", str(templates))
    result = patch(request("odd"), runner)
    row = result.report.layers[0]
    assert not row.kept and row.status == "MISMATCH" and row.reason.startswith("MISMATCH: ") and not result.text
    assert text.verdict(result.report) == "WARN" and "are not right; these layers are left to PyTorch" in text.evidence(
        result.report)


def test_a_model_that_ends_its_process_or_is_stopped_is_told(tmp_path) -> None:
    (tmp_path / "ends.py").write_text("import os, time\ndef build():\n    os._exit(7)\ndef sleeps():\n    time.sleep(600)\n")
    ended = Patch(PatchRequest(ModelSource("ends:build", "", tmp_path))).start()
    stopped = Patch(PatchRequest(ModelSource("ends:sleeps", "", tmp_path))).start()
    until(lambda: bool(stopped.said))
    stopped.stop()
    assert ended.wait(300) and stopped.wait(300)
    assert ended.problem == "The process of the model ended by exit code 7." and ended.result is None
    assert stopped.problem == "Stopped by you."


def test_a_model_of_the_notebook_is_patched_where_it_is(capsys) -> None:
    class Local(nn.Module):  # no other process can make it
        def __init__(self) -> None:
            super().__init__()
            self.up, self.drop = nn.ConvTranspose1d(3, 3, 3, 2), nn.Dropout()

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"y": self.drop(self.up(x))}

    model, x = Local().eval(), torch.randn(2, 3, 7)
    model.drop.train()
    weight, before = model.up.weight.detach().clone(), model.up(x).detach()
    patched = wb.patch(model, {"x": x}, keep="right", train=True)
    assert "forward" in vars(model.up) and torch.equal(model.up.weight, weight) and model.up.weight.grad is None
    assert not model.training and model.drop.training
    torch.testing.assert_close(model.up(x), before)
    assert repr(patched).startswith("EMULATED  Local: 1 of 1 layer is patched") and "Repeat it" not in repr(patched)
    shown = patched._repr_html_()
    assert "<td style=text-align:left>up</td>" in shown and "1 of 1 layer is patched" in shown and "<pre>" not in shown
    assert "layer 1 of 1: " in capsys.readouterr().err, "its progress"
    assert patched.unpatch() == ["up"] and "forward" not in vars(model.up) and torch.equal(model.up(x), before)
    with pytest.raises(BadRequest, match="The model is on cpu already"):
        wb.patch(model, x, dtype="bfloat16")
    with pytest.raises(BadRequest, match="inputs is not given; give a tensor"):
        wb.patch(model)
    with pytest.raises(BadRequest, match="model is the class Local; give an instance of it"):
        wb.patch(Local, x)
    with pytest.raises(BadRequest, match="model is dict; give a torch.nn.Module"):
        wb.patch({}, x)


def _app() -> None:
    from workbench.faces.ui import model_page, state
    state.guarded(model_page.draw)()


def test_the_page_patches_a_model(monkeypatch) -> None:
    called = titles(monkeypatch)
    page = AppTest.from_function(_app, default_timeout=300)
    page.run()

    def said() -> str:
        assert not page.exception
        return unescape("\n".join(element.body for element in page.get("html")))

    assert "No model yet" in said() and "without a sandbox" in said()
    page.button(key="model_run").click().run()
    assert "model is ''; write MODULE:CALLABLE" in said()
    page.text_input(key="model_reference").set_value("models:build_unet")
    page.text_input(key="model_inputs").set_value("models:unet_inputs")
    page.text_input(key="model_folder").set_value(str(HERE))
    page.selectbox(key="model_device").select("cpu")
    page.run()
    assert "On the CPU nothing is timed, so “faster here” replaces no layer." in said()
    page.session_state["model_keep"] = RIGHT
    page.run()
    assert "replaces no layer" not in said()
    page.button(key="model_run").click().run()
    end = time.monotonic() + 400
    while "UNet3d:" not in said() and time.monotonic() < end:
        time.sleep(0.3)
        page.run()
    assert "UNet3d: 1 of 1 layer is patched; emulated: not timed." in said()
    assert "ConvTranspose3d(8, 4, 2, stride=2), 1 × 8 × 2 × 2 × 3 float32" in said()
    assert "CHANGED" not in said()
    assert "● patching models:build_unet" in called and called[-1] == "✓ done, Model"
    page.checkbox(key="model_tune").check().run()
    assert "Changed since: whether layers are tuned first." in said() and page.session_state["model_tune_effort"] == "quick"
    page.checkbox(key="model_tune").uncheck().run()
    page.selectbox(key="model_autocast").select("bfloat16").run()
    assert "Changed since: autocast. Press Patch to do it again." in said()


def test_the_page_says_why_there_is_no_report_and_that_one_of_a_link_is_gone(tmp_path, monkeypatch) -> None:
    called = titles(monkeypatch)
    (tmp_path / "ended.py").write_text("import os\ndef build():\n    os._exit(7)\ndef inputs():\n    return None\n")
    page = AppTest.from_function(_app, default_timeout=300)
    page.query_params["patch"] = "zzzz"

    def said() -> str:
        assert not page.exception
        return unescape("\n".join(element.body for element in page.get("html")))

    page.run()
    assert "The report 'zzzz' in the link was not found." in said() and "Patch the model again." in said()
    for key, value in (("reference", "ended:build"), ("inputs", "ended:inputs"), ("folder", str(tmp_path))):
        page.text_input(key=f"model_{key}").set_value(value)
    page.selectbox(key="model_device").select("cpu").run()
    page.button(key="model_run").click().run()
    assert "was not found" not in said()
    end = time.monotonic() + 300
    while "RUNNING" in said() and time.monotonic() < end:
        assert "s since start" in said() and page.button(key="model_stop")
        time.sleep(0.3)
        page.run()
    assert "✕ FAILED" in said() and "The process of the model ended by exit code 7." in said()
    assert "Correct the input on the left, then patch again." in said() and not page.get("download_button")
    assert called[-1] == "✕ failed, Model"
    assert not page.button(key="model_run").disabled
    page.text_input(key="model_folder").set_value("~nobody-here/x").run()
    assert "could not be drawn" not in said()
    page.text_input(key="model_folder").set_value(str(tmp_path / "gone")).run()
    page.button(key="model_run").click().run()
    assert f"There is no folder {tmp_path / 'gone'}; name the folder of your module." in said() and "exit code 7" in said()


def test_a_request_with_an_unknown_word_is_refused() -> None:
    with pytest.raises(BadRequest, match="keep 'all' is not known; choose faster, right"):
        request("odd", keep="all")
    with pytest.raises(BadRequest, match="tune_effort 'all' is not known; choose quick, normal, full"):
        replace(request("odd"), tune_effort="all")
    with pytest.raises(BadRequest, match="effort 'long' is not known"):
        replace(request("odd"), effort="long")


@pytest.mark.parametrize("by", ["stop", "interrupt"])
def test_a_stop_while_a_layer_is_tuned_ends_the_patch_and_says_how_to_go_on(by: str, runner: Runner, tmp_path: Path
                                                                           ) -> None:
    """A tune ends orderly by an interrupt. A patch that went on with the next layer would have to be interrupted again."""
    asked = TuneRequest(Workload(ConvTranspose(1, 3, 5, (3,), stride=(2,)), 2, (17,)), ("forward",), device="cpu",
                        variants=("naive_gather",), baselines=False, effort="full")
    session, stopped, said = Session.create(tmp_path, "cut"), threading.Event(), list[str]()

    def on_text(line: str) -> None:
        said.append(line)
        if line.startswith("[1,") and by == "stop":
            stopped.set()
            runner.runs[-1].stop()
        elif line.startswith("[1,"):
            _thread.interrupt_main()

    with pytest.raises(RuntimeError if by == "stop" else KeyboardInterrupt):
        search(asked, session, runner, on_text, stopped)
    assert said[-1].endswith("To go on with this one, run: python -m workbench tune --resume cut")
    assert session.trials() and [e["event"] for e in session.events()][-1] == "run_stopped"


@pytest.mark.parametrize("every_gpu", [True, False])
def test_a_layer_is_tuned_on_every_gpu_and_its_winner_is_the_one_that_is_chosen(every_gpu: bool, gpu: None, tmp_path: Path,
                                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """The winner is a recorded trial that is not the best known one. A layer that was tuned here is not tuned again."""
    monkeypatch.setenv("KERNEL_WORKBENCH_STORE", str(tmp_path / "tuned.json"))
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path / "sessions"))
    line = "NVIDIA H200, GPU-aaaa111{}, 9.0, 143771, 580.159.03"
    (tmp_path / "bin" / "nvidia-smi").write_text("#!/bin/sh\n" + "".join(f"echo '{i}, {line.format(i)}'\n" for i in range(2)))
    best = best_config("forward", KB74, "tf32", "sm_90")
    won = next(t for t in RECORDED.trials() if (t.workload, t.direction, t.kind, t.precision) == (
        KB74, "forward", "candidate", "tf32") and t.ok and t.kernel_ms and t.name != best.variant)
    monkeypatch.setattr("workbench.drive.tuning.tune.finals", lambda *given, **more: (Final(won, "", (), ()), []))
    canned, said = Canned(gpu_of(won)), list[str]()
    asked = replace(request("odd", device="cuda:0"), tune=True, tune_effort="normal", every_gpu=every_gpu)
    for _ in range(2):
        _tune(KB74, asked, canned, said.append, None)
    assert canned.places == [("cuda:0", "cuda:1") if every_gpu else ("cuda:0",)], said
    assert canned.requests[0].build_timeout_s == EFFORTS["normal"].build_timeout_s
    chosen = choose(KB74, arch="sm_90", emulated=False, train=False, measured=lambda *given: pytest.fail("it is known"))
    assert (chosen.recipe.forward.variant.name, chosen.recipe.forward.config) == (won.name, won.tunables)
    assert chosen.origin.startswith("tuned here, session ")
