"""On a GPU: models that nobody here wrote are patched, with random weights and no download. Only layers that are FASTER stay,
no step gets slower, and the drift is at most PyTorch's own drift of TF32 against float32, or the least that is asked for."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.shared import require
from workbench.core.patching import INFERENCE, TRAINING, ModelSource, PatchReport
from workbench.drive.patching.patch import PatchRequest, patch
from workbench.drive.patching.text import report_text
from workbench.drive.running.runner import Runner

HERE = Path(__file__).parent
# Name -> the package it needs.
MODELS = {**dict.fromkeys(("speecht5_hifigan", "dac", "encodec", "sam_mask_decoder", "vits"), "transformers"),
          **dict.fromkeys(("mask_rcnn_head", "fcn_decoder"), "torchvision"), "unet3d": ""}
FORMS = {"float32": "", "autocast": "bfloat16"}
# The least that drift may be where TF32 itself changes little: bfloat16 keeps 8 bits.
LEAST = {"float32": 1e-3, "autocast": 2e-2}


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    require(torch.cuda.is_available(), "no CUDA GPU")
    with Runner() as made:
        yield made


def report_of(runner: Runner, name: str, *, train: bool, form: str) -> PatchReport:
    source = ModelSource(f"patched_models:{name}", f"patched_models:{name}_inputs", HERE, "cuda:0", autocast=FORMS[form],
                         train=train)
    return patch(PatchRequest(source), runner).report


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", MODELS)
def test_no_model_gets_slower_and_none_drifts(runner: Runner, name: str, train: bool, form: str) -> None:
    package = MODELS[name]
    require(not package or importlib.util.find_spec(package), f"{package} is not installed")
    report = report_of(runner, name, train=train, form=form)
    print(report_text(report))
    assert not report.wrong and not report.emulated
    step = TRAINING if train else INFERENCE
    for row in report.kept:      # alone, or if only the host's time is against it, in the whole model
        assert "The whole model with all such layers" in row.reason or (
            row.verdict == "FASTER" and all(pairs.verdict != "SLOWER" for pairs in row.times.values()))
    if report.kept:
        assert all(pairs.verdict != "SLOWER" for pairs in report.times.values())
        drift = report.drift[step]
        for ours, own in ((drift.outputs, drift.own_outputs), (drift.gradients, drift.own_gradients)):
            assert ours is None or ours <= max(LEAST[form], own or 0.0)
        original = sum(row.times[step].original_ms for row in report.kept)
        patched = sum(row.times[step].patched_ms for row in report.kept)
        assert original >= 1.5 * patched, f"the kept layers together: {original:.3f} ms, patched {patched:.3f} ms"
        assert report.peak_bytes["patched"] <= 1.1 * report.peak_bytes["original"] + (64 << 20)
    assert all(row.kept or row.reason for row in report.layers)
