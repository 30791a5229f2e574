"""What an export takes from recorded trials: the fastest on a GPU; emulated times choose nothing. What it says of GPUs that
nobody measured, and what it refuses. Then what the file itself chooses for a call: `choose`, `kernels`, `prepare`, --check."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from streamlit.testing.v1 import AppTest
from torch import nn

from tests.bench.made import H200, pytorch, recorded, trial
from workbench.core.best_known import best_config
from workbench.core.candidate import Candidate, layer_fields
from workbench.core.errors import BadRequest
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.presets import preset
from workbench.core.template import render
from workbench.core.trial import Status, Trial
from workbench.core.trial_parts import TrialDevice
from workbench.core.variants import find
from workbench.drive.exporting.best_recipe import best_recipe, other_dtypes
from workbench.drive.exporting.export import export_text, module_order
from workbench.drive.exporting.recipe import Recipe
from workbench.drive.reporting import plots
from workbench.drive.sessions.recorded import recipe_from_trials
from workbench.drive.sessions.session import Session
from workbench.faces import cli
from workbench.faces import notebook as wb
from workbench.faces.cli import main
from workbench.measure.module.subject import Subject

from .recipes import SMALL, candidate, naive
from .test_calls import CPU as DEVICE
from .test_calls import counted

ROOT = Path(__file__).resolve().parents[2]
CPU = TrialDevice("cpu", 0, "some CPU", "x86_64", 90, "cpu")
WORK = preset("kb74").workload()


def made(variant: str, ms: float | None, *, direction: str = "forward", device: TrialDevice = CPU, precision: str = "ieee",
         config: dict | None = None) -> Trial:
    one = Candidate(find(variant, direction), WORK.layer, WORK.dtype, config or {}, precision)
    return trial("kb74", direction, variant, ms, precision, config=dict(one.config), device=device,
                 candidate_id=render(one).candidate_id)


def test_the_fastest_on_a_gpu_whatever_the_emulator_says():
    trials = [made("naive_gather", 0.1), made("shared_weight_tiling", 2.0, device=H200),
              made("warp_per_output", 3.0, device=H200)]
    recipe, notes = recipe_from_trials(trials)
    assert recipe.forward.variant.name == "shared_weight_tiling" and notes == []
    # It is proven only on a GPU on which PyTorch was measured, too, and was not faster.
    assert recipe.proven == {"forward": 0}
    assert recipe_from_trials([*trials, *pytorch("kb74", "forward", 9.0, 9.0)])[0].proven == {"forward": 90}


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
    recipe, notes = recipe_from_trials([made("naive_gather", 0.1)])
    assert notes == ["forward: naive_gather is taken because no other candidate was right. It has no GPU time."]
    assert recipe.proven == {"forward": 0}


def test_the_best_known_one_is_taken_and_said():
    entry = best_config("forward", WORK, "ieee", "sm_90")
    best = made(entry.variant, 99.0, precision=entry.precision, config=entry.config)
    recipe, notes = recipe_from_trials([made("naive_gather", 0.1), best])
    assert recipe.forward.variant.name == entry.variant and recipe.forward.config == best.config
    assert recipe.proven == {"forward": entry.proven} == {"forward": 90}
    assert notes == [f"forward: {entry.variant} is taken because it is the best known for sm_90. The session has no GPU times."]


def test_the_winner_of_a_tune_is_taken_and_what_fell_in_the_finals_is_not(tmp_path, monkeypatch, capsys):
    """By the verb, the notebook and the page, from a session whose fastest candidate was wrong on an odd size."""
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    fast, second, third = (made(name, ms, device=H200) for name, ms in (
        ("naive_gather", 1.0), ("shared_weight_tiling", 2.0), ("warp_per_output", 2.01)))
    odd = replace(WORK, batch=1, input_size=(7,), preset="")
    fell = replace(fast, trial_id="f" * 12, workload=odd, status=Status.MISMATCH, kernel_ms=None)
    again = replace(third, trial_id="a" * 12)
    session = Session.create(tmp_path, "tuned")
    for one in (fast, second, third):
        session.append(one)

    def chosen() -> str:
        """The same by all three."""
        assert cli.main(["export", "--session", "tuned"]) == 0
        text = capsys.readouterr().out
        at = AppTest.from_function(_page, default_timeout=300).run()
        assert not at.exception
        assert wb.open_session("tuned").export(tmp_path / "file.py").read_text() == text[:-1]
        name, = re.findall(r'"forward/(\w+)", "candidate ', text)
        assert f'"forward/{name}", "candidate ' in at.code[0].value
        offered.append([s.options for s in at.selectbox if s.label == "forward"][0])
        return name

    offered = []
    assert chosen() == "naive_gather"
    session.append(fell)
    assert chosen() == "shared_weight_tiling"
    assert len(offered[0]) == 4 and offered[1] == ["shared_weight_tiling", "warp_per_output", "PyTorch"]
    session.append(again)
    session.event("tune_won", direction="forward", precision_class="ieee", trial_id=again.trial_id, searched=third.trial_id)
    assert chosen() == "warp_per_output", "its median is not the least, but the finals found it"
    assert cli.main(["export", "--session", "tuned", "--trial", fast.trial_id]) == 2
    assert capsys.readouterr().err.endswith("naive_gather was wrong (MISMATCH) with batch 1, input size 7, seed 0, so it is "
                                            "not exported. Choose another trial.\n")
    later = replace(second, trial_id="b" * 12, at="2999-01-01T00:00:00Z", kernel_ms=replace(second.kernel_ms, median_ms=1.5))
    assert recipe_from_trials([*session.trials(), later], events=session.events())[0].forward.variant.name == later.name
    with pytest.raises(BadRequest, match="^Nothing to export: naive_gather was wrong .MISMATCH. with batch 1, input size 7, "):
        recipe_from_trials([fast, fell])


def _page() -> None:
    from workbench.faces.ui import export_page
    export_page.draw()


def test_the_verb_asks_for_names(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    recorded(tmp_path, [made("naive_gather", 0.1), made("shared_weight_tiling", 2.0)], name="emulated", layers=("kb74",))
    out = tmp_path / "m.py"
    assert cli.main(["export", "--session", "emulated", "--out", str(out)]) == 2 and not out.exists()
    said = capsys.readouterr().err
    assert "the fastest of naive_gather, shared_weight_tiling is not known; choose one with --trial ID" in said
    assert said.count("\n") == 1
    assert cli.main(["export", "--session", "emulated", "--forward", "naive_gather", "--out", str(out)]) == 2
    assert "choose a trial with --trial ID" in capsys.readouterr().err


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
    page = AppTest.from_function(_page, default_timeout=300)
    page.run()
    assert not page.exception
    said = "".join(e.body for e in page.get("html"))
    assert "forward: no candidate has a GPU time. Choose one." in said
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
    for said in (*exported("sm_90"), *exported("sm_90a")):
        assert "not measured on" not in said and "derived" not in said
    for arch, words in (("sm_99", "GPU architecture 'sm_99' is not known here; choose sm_80,"), ("sm_75", "older than sm_80")):
        assert cli.main(["export", "--preset", "kb74", "--best", "--arch", arch]) == 2 and words in capsys.readouterr().err


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


PLAIN = Workload(ConvTranspose(1, 8, 8, 3, stride=2), 2, 20)
FAR = replace(PLAIN, layer=ConvTranspose(1, 512, 512, 16, stride=8))
NEAR = replace(PLAIN, layer=ConvTranspose(1, 8, 12, 3, stride=2))


@pytest.fixture
def folder_of_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    return tmp_path / "extensions"


def loaded(folder: Path, *recipes: Recipe, class_name: str = "ModelNew", **other) -> Subject:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNEL_WORKBENCH_CACHE", str(folder / "cache"))
        subject = Subject(module_order(export_text(recipes, **other), recipes[0].workload, device="cpu", scratch=folder))
        subject.build_all(lambda event: None)
    subject.namespace["_ANY_LAYER"] = False
    return subject


def gemm(workload: Workload = PLAIN) -> Recipe:
    return Recipe(workload, forward=candidate(workload, "forward", "implicit_gemm_mma"))


def row(workload: Workload, times: float, **tune: int) -> tuple:
    return tuple(layer_fields(workload.layer).values()), workload.batch * workload.input_size[0], times, tune


def key(subject: Subject) -> tuple:
    kernel = subject.namespace["_KERNELS"][0]
    return kernel.variant, kernel.dtype, kernel.precision


def call(subject: Subject, workload: Workload) -> tuple[torch.Tensor, torch.Tensor, dict[str, str]]:
    """Ours, PyTorch's, and what `kernels` says."""
    torch.manual_seed(2)
    layer = workload.layer
    theirs = nn.ConvTranspose1d(layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding)
    x = torch.randn(workload.input_shape)
    subject.namespace["_plans"].clear()
    given = subject.namespace["_arguments"](theirs)
    return subject.namespace["conv_transpose"](x, *given), theirs(x), subject.namespace["kernels"](x, *given)


def test_another_layer_is_computed_where_it_was_measured_to_be_faster_near_it(folder: Path) -> None:
    subject = loaded(folder, gemm())
    names, launched = subject.namespace, counted(subject)
    rows = names["_KNOWN"][key(subject)] = []
    names["_KNOWN_ON"] = 90
    cases = [([], 0, "nobody measured it near this layer"),
             ([row(NEAR, 1.1)], 0, "not measured to be 1.2 times as fast"),
             ([row(NEAR, 3.0), row(PLAIN, 0.0)], 0, "not measured to be 1.2 times as fast"),
             ([row(NEAR, 3.0, STAGES=3)], 1, "at least 3.0 times as fast"),
             ([row(NEAR, 3.0), row(FAR, 0.0)], 1, "at least 3.0 times")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNEL_WORKBENCH_CACHE", str(folder / "cache"))
        for found, chosen, why in cases:
            rows[:] = found
            ours, theirs, said = call(subject, NEAR)
            assert why in said["forward"] and said["forward"].startswith(
                "forward/implicit_gemm_mma" if chosen else "PyTorch"), said
            torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)
            assert torch.equal(ours, theirs) != bool(chosen)
    others = names["_KERNELS"][0].others
    assert "STAGES=3" in " ".join(kernel.name for kernel in others.values()) and launched == []
    names["_KNOWN_ON"] = 80                                  # measured on another GPU
    ours, theirs, said = call(subject, NEAR)
    assert torch.equal(ours, theirs) and "on such a GPU" in said["forward"]


def test_evidence_that_is_left_out_changes_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    files: list[dict] = []
    for _ in range(2):
        recipe, _ = best_recipe(WORK, "sm_90")
        files.append({"__name__": "exported"})
        exec(export_text(recipe, arch="sm_90"), files[-1])
        monkeypatch.setattr("workbench.drive.exporting.best_recipe._may_both_be_near", lambda one, other: True)
    some, every = files
    counts = [sum(len(rows) for rows in names["_KNOWN"].values()) for names in files]
    draw, likely = Random(0), 0
    for layer, positions, *_ in (r for rows in every["_KNOWN"].values() for r in rows for _ in range(8)):
        other = tuple(max(int(at < 9 or 11 < at < 15), draw.choice((*[n] * 9, 2 * n, n + 1, n - 1))) if at not in (0, 2) else n
                      for at, n in enumerate(layer))
        found = [[kernel.for_layer(other, (1, positions), torch.device("cpu"))[1] for kernel in names["_KERNELS"]]
                 for names in files]
        assert found[0] == found[1]
        likely += sum(found[0])
    assert counts[0] < counts[1] and likely > 50, (counts, likely)


def test_its_own_layer_is_computed_and_what_its_template_does_not_serve_is_pytorchs(folder: Path) -> None:
    subject = loaded(folder, Recipe(PLAIN, forward=candidate(PLAIN, "forward", "implicit_gemm_mma")))
    ours, theirs, said = call(subject, PLAIN)
    assert not torch.equal(ours, theirs) and said["forward"].endswith("in tf32: made for this layer.")
    assert said["grad_input"] == "PyTorch: this file has no kernel for grad_input in float32."
    needs, derived = subject.namespace["_RULES"]["forward/implicit_gemm_mma"]
    subject.namespace["_RULES"]["forward/implicit_gemm_mma"] = ((*needs, "layer.out_channels == 8"), derived)
    subject.namespace["_KNOWN"][key(subject)] = [row(NEAR, 9.0)]
    assert "does not serve this layer" in call(subject, NEAR)[2]["forward"]


@pytest.mark.parametrize(("proven", "capability", "taken"), [
    ({"forward": 90}, 90, True), ({"forward": 90}, 80, False), ({"forward": 0}, 90, False), ({}, 80, True)])
def test_its_own_layer_is_pytorchs_where_nobody_measured_the_kernel(folder: Path, proven: dict[str, int], capability: int,
                                                                    taken: bool) -> None:
    """`proven` is empty where somebody chose the kernel."""
    subject = loaded(folder, replace(gemm(), proven=proven))
    subject.namespace["_gpu"] = lambda device: (capability, 227 * 1024)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        ours, theirs, said = call(subject, PLAIN)
        call(subject, NEAR)                                  # another layer: nobody expects its kernel
    assert torch.equal(ours, theirs) != taken
    assert ("made for this layer" if taken else "prepare(x, measure=True) measures it here") in said["forward"]
    name = subject.namespace["_KERNELS"][0].name
    assert [str(w.message) for w in warned] == ([] if taken else [
        f"PyTorch computes forward on cpu. {name} was made for this layer, but nobody measured it on such a GPU; "
        "prepare(x, measure=True) measures it here."])
    if not taken:
        subject.namespace["_ANY_LAYER"] = True
        assert not torch.equal(call(subject, PLAIN)[0], theirs)


def test_a_best_recipe_says_where_its_kernels_were_measured() -> None:
    workload = preset("kb74").workload()
    recipe, used = best_recipe(workload, "sm_90")
    assert recipe.proven == {"forward": 90, "grad_input": 90, "grad_weight": 90} == {e.direction: 90 for e in used}
    assert set(best_recipe(workload, "sm_86")[0].proven.values()) == {0}
    half, = other_dtypes(workload, "sm_90")
    assert (half.workload.dtype, set(half.proven.values())) == ("bfloat16", {90})
    assert Recipe.from_json(recipe.to_json()) == recipe


def test_the_naive_kernel_is_never_taken_for_another_layer(folder: Path) -> None:
    subject = loaded(folder, naive(SMALL), arch="sm_90")
    assert subject.namespace["_RULES"] == {}
    other = replace(SMALL, layer=ConvTranspose(1, 3, 8, 3, stride=2))
    ours, theirs, said = call(subject, other)
    assert torch.equal(ours, theirs) and "it is made for another layer" in said["forward"]


def test_the_evidence_of_a_file_is_that_of_the_recorded_benches(tmp_path: Path) -> None:
    """It names what speaks against the kernel too: cells in which another variant was faster."""
    out = tmp_path / "m.py"
    for words, dtypes in ((("--all-dtypes",), {torch.float32, torch.bfloat16}), (("--dtype", "bfloat16"), {torch.bfloat16}),
                          (("--one-layer",), {torch.float32}), ((), {torch.float32})):
        assert main(["export", "--preset", "kb74", "--best", *words, "--arch", "sm_90", "--out", str(out)]) == 0
        names: dict = {"__name__": "exported"}
        exec(out.read_text(), names)
        assert {k.dtype for k in names["_KERNELS"]} == dtypes and {k.proven for k in names["_KERNELS"]} == {90}
        assert ("--all-dtypes" in names["__doc__"]) == ("--all-dtypes" in words)
        assert ("_KNOWN" not in names) == ("--one-layer" in names["__doc__"]) == ("--one-layer" in words)
    assert names["_KNOWN_ON"] == 90 and names["_KNOWN"]
    command = names["__doc__"].partition("Written by: python -m workbench ")[2].partition("\n\n")[0]
    again = tmp_path / "again.py"
    assert main([*shlex.split(command), "--out", str(again)]) == 0 and again.read_text() == out.read_text()
    assert any(r[2] > 1.2 for rows in names["_KNOWN"].values() for r in rows)
    assert any(r[2] == 0 for rows in names["_KNOWN"].values() for r in rows)
    assert "relative error" in names["__doc__"] and "NVIDIA H200" in names["__doc__"]


def test_several_layers_and_dtypes_in_one_file(folder: Path) -> None:
    half = replace(PLAIN, dtype="bfloat16")
    subject = loaded(folder, naive(PLAIN, "forward"), naive(half, "forward"), naive(NEAR, "forward"))
    launched = counted(subject)
    for workload in (PLAIN, NEAR):
        ours, theirs, _ = call(subject, workload)
        torch.testing.assert_close(ours, theirs)
    assert launched == ["forward"] * 2 and len(subject.namespace["_KERNELS"]) == 3
    theirs = nn.ConvTranspose1d(8, 8, 3, 2).bfloat16()
    given, x = subject.namespace["_arguments"](theirs), torch.randn(2, 8, 20).bfloat16()
    ours = subject.namespace["conv_transpose"](x, *given)
    exact = theirs.double()(x.double())  # PyTorch's own bfloat16 is less exact on some CPUs
    torch.testing.assert_close(ours, exact.bfloat16())
    assert launched == ["forward"] * 3
    text = export_text([naive(PLAIN), naive(NEAR)], class_name="")
    assert "class ModelNew" not in text and text.count("struct Problem") == 1 and "2 layers in float32" in text


def test_prepare_builds_all_and_keeps_what_it_measured(folder: Path, folder_of_builds: Path) -> None:
    subject = loaded(folder, naive(PLAIN))
    names = subject.namespace
    theirs = nn.ConvTranspose1d(8, 8, 3, 2)
    given, x = names["_arguments"](theirs), torch.randn(PLAIN.input_shape)
    for kernel in names["_KERNELS"]:
        kernel.launchers.clear()
    module = subject.cls(8, 8, 3, 2)
    assert all("made for this layer" in said for d, said in module.prepare(x).items() if d != "backward")
    assert all(kernel.launchers for kernel in names["_KERNELS"])
    for ours_ms, expected in ((1.0, "naive_gather"), (3.0, "PyTorch")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(names, "_times", lambda runs, device, ms=ours_ms: {
                name: 2.0 if name == "PyTorch" else ms for name, run in runs.items() if [run()]})
            said = names["prepare"](x, *given, measure=True)
        assert expected in said["forward"] and "measured here" in said["forward"]
        assert names["kernels"](x, *given) == said
    file = next(folder_of_builds.glob("*_choices.json"))
    assert set(json.loads(file.read_text()).values()) == {"PyTorch"} and not list(folder_of_builds.glob("*.part"))
    again = loaded(folder, naive(PLAIN))                      # another process finds the choice
    assert again.namespace["kernels"](x, *given)["forward"].startswith("PyTorch: measured here")
    assert "made for this layer" in again.namespace["kernels"](x[..., :9], *given)["forward"]
    for damaged in ("{", "[1]", '{"a": 1}'):
        file.write_text(damaged)
        assert "made for this layer" in loaded(folder, naive(PLAIN)).namespace["kernels"](x, *given)["forward"]


def measured(names: dict, patch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """What the file's own clock says from now on: name -> milliseconds."""
    taken: list[dict[str, float]] = []
    clock = names["_times"]
    patch.setitem(names, "_times", lambda runs, device: taken.append(clock(runs, device)) or taken[-1])
    return taken


def test_prepare_really_measures(folder: Path, folder_of_builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = loaded(folder, replace(gemm(), proven={"forward": 0}))
    taken, launched = measured(subject.namespace, monkeypatch), counted(subject)
    warnings.simplefilter("error")                           # who measures needs no warning that nobody has
    theirs = nn.ConvTranspose1d(8, 8, 3, 2)
    said = subject.namespace["prepare"](torch.randn(PLAIN.input_shape), *subject.namespace["_arguments"](theirs), measure=True)
    times = taken[0]                                         # of the forward pass; the others have no kernel
    assert set(times) == {"PyTorch", subject.namespace["_KERNELS"][0].name} and min(times.values()) > 0
    assert said["forward"].startswith(min(times, key=times.get)) and ": measured here" in said["forward"]
    assert launched.count("forward") > 15                    # every round launched the kernel


def test_check_says_what_is_right_here(folder: Path, capsys: pytest.CaptureFixture[str],
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    subject = loaded(folder, naive(PLAIN), naive(replace(PLAIN, dtype="bfloat16"), "forward"))
    check, taken = subject.namespace["_check"], measured(subject.namespace, monkeypatch)
    assert check(["--check", "--small"]) == 0 and taken == []
    said = capsys.readouterr().out
    assert "ConvTranspose1d(8, 8" in said and "in bfloat16" in said and "relative error: output" in said
    slower = check(["--check"])
    assert len(taken) == 4 and slower == any(times["ours"] > 1.05 * times["PyTorch"] for times in taken)
    assert capsys.readouterr().out.count("times as fast") == 4
    for ours_ms, answer in ((1.04, 0), (1.06, 1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(subject.namespace, "_times", lambda runs, device, ms=ours_ms: {"ours": ms, "PyTorch": 1.0})
            assert check(["--check"]) == answer
    assert check(["--other"]) == 2 and capsys.readouterr().out.endswith(" --check [--small]\n")
    counted(subject)
    kernel = subject.namespace["_KERNELS"][0]
    launch, query = kernel.launchers[DEVICE, kernel.layer]
    kernel.launchers[DEVICE, kernel.layer] = (lambda *a: 0, query)       # writes nothing
    assert check(["--check", "--small"]) == 1
    kernel.launchers[DEVICE, kernel.layer] = (lambda *a: 9, query)
    subject.namespace["_plans"].clear()
    with pytest.warns(RuntimeWarning, match="CUDA error 9"):
        assert check(["--check", "--small"]) == 2


def test_check_without_a_gpu_says_so(tmp_path: Path) -> None:
    file = tmp_path / "model_new.py"
    file.write_text(export_text(naive(PLAIN, "forward")))
    done = subprocess.run([sys.executable, str(file), "--check"], capture_output=True, text=True,
                          env={"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""})
    assert (done.returncode, done.stdout) == (2, "Nothing was checked: there is no CUDA GPU.\n"), done.stderr


@pytest.mark.long  # writes the files of 22 layers
def test_a_suite_is_a_folder_of_files_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "files"
    assert main(["export", "--suite", "models", "--arch", "sm_90", "--out", str(out)]) == 0
    table = (out / "README.md").read_text()
    assert "| sam_1.py | models/sam-1 | forward |" in table and "--suite models --arch sm_90" in table
    files = sorted(p.name for p in out.glob("*.py"))
    assert len(files) >= 10 and all(name in table for name in files)
    compile((out / "sam_1.py").read_text(), "sam_1.py", "exec")
    capsys.readouterr()
    assert main(["export", "--suite", "models", "--preset", "kb74", "--out", str(out)]) == 2
    assert main(["export", "--suite", "models"]) == 2
    assert main(["export", "--suite", "models", "--out", str(out / "sam_1.py")]) == 2
    assert capsys.readouterr().err.count("\n") == 3
