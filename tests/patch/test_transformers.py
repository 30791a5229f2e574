"""Models that nobody here wrote: small configurations of `transformers`, with random weights, patched on the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from workbench.core.patching import INFERENCE, RIGHT, ModelSource
from workbench.drive.patching.patch import PatchRequest, patch
from workbench.drive.running.runner import Runner

HERE = Path(__file__)
LAYERS = {"hifigan": "upsampler.0", "dac": "block.0.conv_t1", "encodec": "layers.3.conv"}


def hifigan() -> nn.Module:
    from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig
    return SpeechT5HifiGan(SpeechT5HifiGanConfig(
        model_in_dim=8, upsample_initial_channel=16, upsample_rates=[4], upsample_kernel_sizes=[8],
        resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3]]))


def hifigan_inputs() -> torch.Tensor:
    return torch.randn(2, 6, 8)


def dac() -> nn.Module:
    from transformers import DacConfig, DacModel
    return DacModel(DacConfig(encoder_hidden_size=4, downsampling_ratios=[4], decoder_hidden_size=16, upsampling_ratios=[4],
                              n_codebooks=2, codebook_size=16, codebook_dim=4)).decoder


def dac_inputs() -> torch.Tensor:
    return torch.randn(2, 8, 6)


def encodec() -> nn.Module:
    from transformers import EncodecConfig, EncodecModel
    return EncodecModel(EncodecConfig(num_filters=8, hidden_size=16, codebook_size=16, codebook_dim=16, num_lstm_layers=1,
                                      upsampling_ratios=[4], num_residual_layers=1)).decoder


def encodec_inputs() -> torch.Tensor:
    return torch.randn(2, 16, 12)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as made:
        yield made


@pytest.mark.parametrize("name", LAYERS)
def test_every_transposed_convolution_is_found_and_patched(runner: Runner, name: str) -> None:
    source = ModelSource(f"{HERE.stem}:{name}", f"{HERE.stem}:{name}_inputs", HERE.parent)
    report = patch(PatchRequest(source, RIGHT), runner).report
    assert [row.found.paths for row in report.kept] == [(LAYERS[name],)] and not report.wrong
    assert 0 < report.drift[INFERENCE].outputs < 1e-5
