"""The exported file as text: what KernelBench demands of it, and that it carries what was judged."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.bench.made import CPU, H200, pytorch, recorded
from workbench.core.candidate import Candidate, layer_fields
from workbench.core.errors import BadRequest
from workbench.core.identity import candidate_id
from workbench.core.layer import DIRECTIONS
from workbench.core.precision import declared
from workbench.core.presets import KERNELBENCH, preset, problem_of
from workbench.core.template import render, restored
from workbench.core.variants import TEMPLATES, discover, find
from workbench.drive.checking.check import workload_reference
from workbench.drive.exporting.export import Recipe, constructor_arguments, export_text
from workbench.faces import cli

from .recipes import SMALL, THREE_D, TWO_D, candidate, naive
from .test_choice import made

FREE = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "output_padding", "groups", "bias",
        "dilation")


def kernels_of(text: str) -> dict[str, dict]:
    """Direction -> what the file's kernel of that direction says of itself, and the source that it puts together."""
    namespace: dict = {"__name__": "exported"}
    exec(compile(text, "exported", "exec"), namespace)
    return {k.direction: {**vars(k), "source": k.source()} for k in namespace["_KERNELS"]}


@pytest.mark.parametrize("variant", discover(), ids=lambda v: v.key)
def test_every_shipped_variant_can_be_exported(variant):
    work = replace(SMALL, dtype=variant.dtypes[0])
    recipe = Recipe(work, **{variant.direction: Candidate(variant, work.layer, work.dtype, {})})
    text = export_text(recipe)
    assert not re.search(r"\bpass\b|try:|except", text.replace("exception", ""))
    assert "__global__" in text and "load_inline" in text and "threadIdx." in text
    for word in ("import workbench", "from workbench", "__file__", "import threading"):
        assert word not in text
    compile(text, "exported", "exec")


@pytest.mark.parametrize("name", KERNELBENCH)
def test_every_preset_has_its_own_constructor(name):
    preset = KERNELBENCH[name]
    recipe = naive(preset.workload("small"))
    text = export_text(recipe, constructor=preset)
    model = next(n for n in ast.parse(text).body if isinstance(n, ast.ClassDef) and n.name == "ModelNew")
    init = next(n for n in model.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    assert tuple(a.arg for a in init.args.args[1:]) == preset.constructor
    assert f"self.{preset.attribute} = ConvTranspose{preset.layer.dims}d(" in text
    assert len(constructor_arguments(preset.layer, preset)) == len(preset.constructor)


def test_a_layer_of_the_models_is_exported_and_checked_as_the_module_it_is_in_the_model():
    work = preset("models/monai").workload("small")
    assert problem_of(work) is None and problem_of(preset("kb74").workload()) is KERNELBENCH["kb74"]
    assert "class ModelNew(nn.ConvTranspose3d):" in export_text(naive(work), constructor=problem_of(work))
    reference, name = workload_reference(work)
    there: dict = {}
    exec(reference, there)
    model, inputs = there["Model"](*there["get_init_inputs"]()), there["get_inputs"]()
    assert name == "models/monai" and isinstance(model, torch.nn.ConvTranspose3d) and model.bias is not None
    assert tuple(inputs[0].shape) == work.input_shape and tuple(model(*inputs).shape) == work.output_shape


@pytest.mark.parametrize("workload", [SMALL, TWO_D, THREE_D], ids=["1-D", "2-D", "3-D"])
def test_the_cuda_text_is_the_one_that_was_judged(workload):
    recipe = naive(workload)
    found = kernels_of(export_text(recipe))
    for direction in DIRECTIONS:
        judged = render(getattr(recipe, direction))
        chosen = found[direction]
        assert candidate_id(restored(chosen["source"]), compile_flags=chosen.get("flags", ())) == judged.candidate_id
        assert judged.candidate_id in chosen["name"]
        assert chosen["layer"] == tuple(layer_fields(workload.layer).values())


def test_flags_are_part_of_the_candidate_and_of_the_file():
    plain = candidate(SMALL, "forward")
    flagged = Candidate(plain.variant, plain.layer, plain.dtype, plain.config, compile_flags=("-DX=1", "--fmad=false"))
    entry = kernels_of(export_text(Recipe(SMALL, forward=flagged)))["forward"]
    assert entry["flags"] == ("-DX=1", "--fmad=false")
    judged = candidate_id(restored(entry["source"]), compile_flags=entry["flags"])
    assert judged == render(flagged).candidate_id != render(plain).candidate_id


def test_the_kernels_are_those_of_the_recipe_and_no_others(tmp_path: Path):
    """Nobody chose naive_gather, nor the first template in reading order, which does not even compile."""
    root = tmp_path / "t"
    shutil.copytree(TEMPLATES, root)
    naive_gather = (root / "forward/naive_gather.cu").read_text()
    (root / "forward/aaa_broken.cu").write_text(naive_gather.replace('"naive_gather"', '"aaa_broken"').replace(
        "__global__", "__global__ this does not compile"))
    for templates in (TEMPLATES, root):
        text = export_text(Recipe(SMALL, forward=candidate(SMALL, "forward", "implicit_gemm_mma", root=templates)))
        assert list(kernels_of(text)) == ["forward"] and text.count("    _Kernel(") == 1
        assert "aaa_broken" not in text and "naive_gather" not in text


def test_an_entry_says_that_its_launcher_takes_every_layer():
    text = export_text(naive(SMALL, form="runtime"))
    assert [entry["any_layer"] for entry in kernels_of(text).values()] == [True] * 3


def test_an_entry_says_what_shared_memory_its_block_needs():
    layer = KERNELBENCH["kb81"].layer
    fused = Candidate(find("fused_mma", "backward"), layer, "float32", {"SHARED_KB": 160})
    entry = kernels_of(export_text(Recipe(KERNELBENCH["kb81"].workload(), backward=fused)))["backward"]
    assert entry["shared_bytes"] == 160 * 1024 + 16
    assert kernels_of(export_text(naive(SMALL)))["forward"]["shared_bytes"] == 0


def test_the_file_says_its_precision_and_what_is_left_to_pytorch():
    text = export_text(naive(SMALL, "forward"))
    words = ast.get_docstring(ast.parse(text))
    assert "computes in ieee" in words and declared(text) == ("ieee", "")
    layer = KERNELBENCH["kb81"].layer
    both = Recipe(KERNELBENCH["kb81"].workload(), forward=Candidate(find("naive_gather", "forward"), layer, "float32", {}),
                  backward=Candidate(find("fused_mma", "backward"), layer, "float32", {}, "tf32"))
    assert declared(export_text(both)) == ("tf32", "")
    assert "grad_input   by PyTorch: torch.ops.aten.convolution_backward" in words
    assert list(kernels_of(text)) == ["forward"]


def test_the_debug_switch_can_be_exported_on():
    assert '_DEBUG_SYNC = os.environ.get("KW_DEBUG_SYNC", "0")' in export_text(naive(SMALL))
    assert '_DEBUG_SYNC = os.environ.get("KW_DEBUG_SYNC", "1")' in export_text(naive(SMALL), debug_sync=True)


def test_a_recipe_survives_json():
    recipe = Recipe(TWO_D, forward=candidate(TWO_D, "forward", "shared_weight_tiling"),
                    grad_weight=candidate(TWO_D, "grad_weight", form="runtime"))
    again = Recipe.from_json(recipe.to_json())
    assert again == recipe and export_text(again) == export_text(recipe)
    assert recipe.precision == {"forward": "ieee", "grad_weight": "ieee"}


def test_a_word_that_kernelbench_rejects_is_refused_with_its_line(tmp_path: Path):
    shutil.copytree(TEMPLATES, tmp_path / "t")
    template = tmp_path / "t/forward/naive_gather.cu"
    template.write_text(template.read_text().replace("// Read this one first.", "// A second pass reads this."))
    with pytest.raises(BadRequest, match="'pass'.*A second pass reads this"):
        export_text(Recipe(SMALL, forward=Candidate(find("naive_gather", "forward", root=tmp_path / "t"), SMALL.layer,
                                                    "float32", {})))


@pytest.mark.parametrize(("make", "words"), [
    (lambda: Recipe(SMALL), "leaves every direction to PyTorch"),
    (lambda: Recipe(SMALL, forward=candidate(SMALL, "grad_input")), "computes grad_input; choose another"),
    (lambda: Recipe(SMALL, forward=candidate(TWO_D, "forward")), "was made for ConvTranspose2d"),
    (lambda: Recipe(THREE_D, forward=Candidate(find("naive_gather", "forward"), THREE_D.layer, "float32", {})),
     "computes float32; the recipe is for float16"),
    (lambda: export_text(naive(SMALL), constructor=KERNELBENCH["kb74"]), "export it without the preset"),
    (lambda: export_text(naive(SMALL), class_name="2nd"), "'2nd' cannot be a class of the file"),
    (lambda: export_text(naive(SMALL), class_name="class"), "'class' cannot be a class of the file"),
    (lambda: export_text(naive(SMALL), class_name="nn"), "'nn' cannot be a class of the file"),
], ids=["nothing", "direction", "layer", "dtype", "preset", "class_name", "keyword", "name taken"])
def test_bad_requests_are_one_sentence(make, words):
    with pytest.raises(BadRequest, match=words):
        make()


def test_constructor_arguments_are_positional():
    assert constructor_arguments(KERNELBENCH["kb74"].layer, KERNELBENCH["kb74"]) == [32, 64, 5, 1, 0, 3, False]
    assert dict(zip(FREE, constructor_arguments(TWO_D.layer), strict=True)) == {
        "in_channels": 6, "out_channels": 4, "kernel_size": [3, 2], "stride": [2, 3], "padding": [1, 0],
        "output_padding": [1, 2], "groups": 2, "bias": True, "dilation": [1, 2]}


def test_a_file_from_a_session_says_what_was_measured_and_what_was_not(tmp_path, monkeypatch, capsys):
    """Its header has trials, times, errors, the GPU and the command. It knows on which GPU it may run its kernels."""
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    measured = [*pytorch("kb74", "forward", 3.0, 4.0), made("shared_weight_tiling", 2.0, device=H200),
                made("shared_weight_tiling", 5.0, direction="grad_input", device=H200)]
    emulated = replace(made("naive_gather", 0.1), device=replace(CPU, name='a \"\"\" CPU \\N'))
    recorded(tmp_path, measured, name="measured", layers=("kb74",))
    recorded(tmp_path, [emulated], name="emulated", layers=("kb74",))

    def exported(*words: str) -> tuple[str, dict]:
        assert cli.main(["export", *words, "--out", str(tmp_path / "m.py")]) == 0
        text, names = (tmp_path / "m.py").read_text(), {"__name__": "exported"}
        exec(text, names)
        command = " ".join(names["__doc__"].split()).partition("Written by: python -m workbench ")[2].partition(" PyTorch")[0]
        assert cli.main([*shlex.split(command), "--out", str(tmp_path / "again.py")]) == 0
        assert (tmp_path / "again.py").read_text() == text
        return " ".join(names["__doc__"].split()), {k.direction: k.proven for k in names["_KERNELS"]} | {
            "evidence": names.get("_KNOWN_ON")}

    assert exported("--session", "measured", "--one-layer")[1] == {"forward": 90, "grad_input": 0, "evidence": None}
    said, proven = exported("--session", "measured")
    assert proven == {"forward": 90, "grad_input": 0, "evidence": 90}
    assert f"forward: trial {measured[2].trial_id}. forward: 2.00 ms, PyTorch 4.00 ms (eager, TF32 off), relative error" in said
    assert "measured on NVIDIA H200 with batch 32 and input size 131072." in said and "grad_input: 5.00 ms, relative" in said
    said, proven = exported("--session", "emulated")
    assert proven["forward"] == 0
    assert 'Judged on the CPU emulator (a \"\"\" CPU \\N), relative error' in said and "without a time of a GPU" in said
    # A kernel that a person named needs no measurement.
    assert exported("--session", "emulated", "--trial", emulated.trial_id)[1]["forward"] is None
    assert exported("--preset", "kb74", "--forward", "naive_gather", "--class-name", "Mine")[1]["forward"] is None
    assert cli.main(["export", "--session", "measured", "--all-dtypes"]) == 2
    assert "--all-dtypes works only with --best or --suite; add one of them." in capsys.readouterr().err
