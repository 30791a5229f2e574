"""What an export takes from recorded trials: the fastest on a GPU; emulated times choose nothing. What it says of GPUs that
nobody measured, and what it refuses."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.bench.made import H200, pytorch, recorded, trial
from workbench.core.best_known import best_config
from workbench.core.candidate import Candidate
from workbench.core.errors import BadRequest
from workbench.core.presets import preset
from workbench.core.template import render
from workbench.core.trial import Trial
from workbench.core.trial_parts import TrialDevice
from workbench.core.variants import find
from workbench.drive.reporting import plots
from workbench.drive.sessions.recorded import recipe_from_trials
from workbench.faces import cli

ROOT = Path(__file__).resolve().parents[2]
CPU = TrialDevice("cpu", 0, "some CPU", "x86_64", 90, "cpu")
WORK = preset("kb74").workload()


def made(variant: str, ms: float | None, *, direction: str = "forward", device: TrialDevice = CPU, precision: str = "ieee",
         config: dict | None = None) -> Trial:
    one = Candidate(find(variant, direction), WORK.layer, WORK.dtype, config or {}, precision)
    return trial("kb74", direction, variant, ms, precision, config=dict(one.config), device=device,
                 candidate_id=render(one).candidate_id)


def test_the_fastest_on_a_gpu_whatever_the_emulator_says():
    recipe, notes = recipe_from_trials([made("naive_gather", 0.1), made("shared_weight_tiling", 2.0, device=H200),
                                        made("warp_per_output", 3.0, device=H200)])
    assert recipe.forward.variant.name == "shared_weight_tiling" and notes == []


def test_what_is_slower_than_pytorch_is_left_to_pytorch():
    theirs = [*pytorch("kb74", "forward", 1.0, 1.5), *pytorch("kb74", "grad_input", 1.0, 9.0)]
    ours = [made("shared_weight_tiling", 2.0, device=H200), made("naive_gather", 3.0, direction="grad_input", device=H200)]
    recipe, notes = recipe_from_trials([*theirs, *ours])
    assert recipe.forward is None and recipe.grad_input.variant.name == "naive_gather"
    assert notes == ["forward: left to PyTorch, which takes 1.50 ms against 2.00 ms of shared_weight_tiling, the fastest "
                     "candidate."]
    with pytest.raises(BadRequest, match="Nothing to export. forward: left to PyTorch"):
        recipe_from_trials([*theirs, ours[0]])


@pytest.mark.parametrize("ms", [0.1, None])
def test_without_a_time_of_a_gpu_nothing_is_the_fastest(ms: float | None):
    naive, tiled = made("naive_gather", ms), made("shared_weight_tiling", 2.0)
    with pytest.raises(BadRequest, match="No forward candidate of the session has a GPU time, so the fastest of "
                                         "naive_gather, shared_weight_tiling is not known"):
        recipe_from_trials([naive, tiled])
    assert recipe_from_trials([tiled, tiled])[0].forward.variant.name == "shared_weight_tiling"  # the only one there is


def test_the_only_right_one_is_taken_and_said():
    notes = recipe_from_trials([made("naive_gather", 0.1)])[1]
    assert notes == ["forward: naive_gather is taken because no other candidate was right. It has no GPU time."]


def test_the_best_known_one_is_taken_and_said():
    entry = best_config("forward", WORK, "ieee", "sm_90")
    best = made(entry.variant, 99.0, precision=entry.precision, config=entry.config)
    recipe, notes = recipe_from_trials([made("naive_gather", 0.1), best])
    assert recipe.forward.variant.name == entry.variant and recipe.forward.config == best.config
    assert notes == [f"forward: {entry.variant} is taken because it is the best known for sm_90. The session has no GPU times."]


def test_the_verb_asks_for_names(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    recorded(tmp_path, [made("naive_gather", 0.1), made("shared_weight_tiling", 2.0)], name="emulated", layers=("kb74",))
    out = tmp_path / "m.py"
    assert cli.main(["export", "--session", "emulated", "--out", str(out)]) == 2 and not out.exists()
    said = capsys.readouterr().err
    assert "the fastest of naive_gather, shared_weight_tiling is not known; name the variants" in said and said.count("\n") == 1


def test_no_bar_is_the_best_and_no_row_is_first_by_emulated_times():
    trials = [made("shared_weight_tiling", 20.0), made("naive_gather", 0.1)]
    figure = plots.bars(trials)
    assert plots.LIGHT["best"] not in {bar.marker.color for bar in figure.data}
    assert list(figure.layout.yaxis.ticktext) == ["shared_weight_tiling", "naive_gather"]
    assert "forward 2 on the CPU emulator" in plots.describe(trials)
    trials = [made("shared_weight_tiling", 20.0, device=H200), made("naive_gather", 0.1, device=H200)]
    figure = plots.bars(trials)
    assert plots.LIGHT["best"] in {bar.marker.color for bar in figure.data}
    assert list(figure.layout.yaxis.ticktext) == ["naive_gather", "shared_weight_tiling"]


def _page() -> None:
    from workbench.faces.ui import export_page
    export_page.draw()


def test_the_page_chooses_nothing_by_emulated_times(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    recorded(tmp_path, [made("naive_gather", 0.1), made("shared_weight_tiling", 2.0)], name="emulated", layers=("kb74",))
    page = AppTest.from_function(_page, default_timeout=60)
    page.run()
    assert not page.exception
    said = "".join(e.body for e in page.get("html"))
    assert "forward: the candidates have no GPU time; choose one." in said
    assert "No candidate is chosen yet" in said and "BAD INPUT" not in said
    forward = next(box for box in page.selectbox if box.label == "forward")
    assert forward.value == "PyTorch" and len(forward.options) == 3


def test_what_nobody_measured_is_said(tmp_path, capsys):
    def exported(arch: str) -> tuple[str, str]:
        out = tmp_path / f"{arch}.py"
        assert cli.main(["export", "--preset", "kb74", "--best", "--arch", arch, "--out", str(out)]) == 0
        return capsys.readouterr().err, " ".join(ast.get_docstring(ast.parse(out.read_text())).split())

    for arch in ("sm_80", "sm_86", "sm_100"):
        for said in exported(arch):
            assert said.count("forward, grad_input, grad_weight") == 1 and f": derived, not measured on {arch}." in said
    for said in exported("sm_90"):
        assert "not measured on" not in said and "derived" not in said


def test_a_variant_that_does_not_serve_the_layer_is_refused(tmp_path, capsys):
    out = tmp_path / "m.py"
    assert cli.main(["export", "--preset", "kb74", "--forward", "depthwise_rows", "--out", str(out)]) == 2 and not out.exists()
    said = capsys.readouterr().err
    assert said.startswith("Not exported: depthwise_rows needs ") and said.count("\n") == 1


def test_a_full_disk_leaves_the_file_that_was_there(tmp_path):
    out = tmp_path / "m.py"
    out.write_text("what was there\n")
    script = ("import resource, sys; from workbench.faces.cli import main; "
              "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); "
              f"sys.exit(main(['export', '--preset', 'kb74', '--forward', 'naive_gather', '--out', {str(out)!r}]))")
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True,
                          env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert (done.returncode, out.read_text(), len(list(tmp_path.iterdir()))) == (2, "what was there\n", 1), done.stderr
    assert f"{out} cannot be written: File too large." in done.stderr
