"""Small models as people write them: a HiFi-GAN generator, a mask decoder with a dict as output, a 3-D U-Net.
And models of `transformers`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import weight_norm
from torch.nn.utils.parametrizations import weight_norm as weight_norm_parametrised


class ResBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList([weight_norm(nn.Conv1d(channels, channels, 3, 1, dilation=d, padding=d)) for d in (1, 3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in self.convs:
            x = x + conv(F.leaky_relu(x, 0.1))
        return x


class HifiGan(nn.Module):
    """The generator: upsample by transposed convolutions with weight_norm, then mix."""

    def __init__(self, channels: int = 8, rates: tuple[int, ...] = (4, 2), *, parametrised: bool = False) -> None:
        super().__init__()
        norm = weight_norm_parametrised if parametrised else weight_norm
        self.conv_pre = weight_norm(nn.Conv1d(6, channels, 7, 1, padding=3))
        self.ups = nn.ModuleList([norm(nn.ConvTranspose1d(channels >> i, channels >> (i + 1), 2 * r, r, padding=r // 2))
                                  for i, r in enumerate(rates)])
        self.resblocks = nn.ModuleList([ResBlock(channels >> (i + 1)) for i in range(len(rates))])
        self.conv_post = weight_norm(nn.Conv1d(channels >> len(rates), 1, 7, 1, padding=3))

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        x = self.conv_pre(mel)
        for up, block in zip(self.ups, self.resblocks, strict=True):
            x = block(up(F.leaky_relu(x, 0.1)))
        return torch.tanh(self.conv_post(F.leaky_relu(x)))


class MaskDecoder(nn.Module):
    """Two upscalings of image embeddings, and masks by a product with tokens. Inputs and output are dicts; one branch is called
    only for multimask_output."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.output_upscaling = nn.Sequential(
            nn.ConvTranspose2d(channels, channels // 2, 2, stride=2), nn.GroupNorm(1, channels // 2), nn.GELU(),
            nn.ConvTranspose2d(channels // 2, channels // 4, 2, stride=2), nn.GELU())
        self.multimask = nn.ConvTranspose2d(channels, channels // 4, 4, stride=4)
        self.tokens = nn.Linear(channels, channels // 4)

    def forward(self, *, image_embeddings: torch.Tensor, tokens: torch.Tensor, multimask_output: bool = False
                ) -> dict[str, torch.Tensor]:
        up = self.multimask(image_embeddings) if multimask_output else self.output_upscaling(image_embeddings)
        masks = torch.einsum("bnc,bchw->bnhw", self.tokens(tokens), up)
        return {"pred_masks": masks, "iou_scores": masks.mean((2, 3))}


@dataclass
class Segmentation:
    logits: torch.Tensor
    deep: tuple[torch.Tensor, ...]


class UNet3d(nn.Module):
    """Encoder and decoder with skips. The two heads share one upsampling; the output is a dataclass."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv3d(1, width, 3, padding=1), nn.Conv3d(width, 2 * width, 3, 2, padding=1)
        self.bottom = nn.Conv3d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose3d(2 * width, width, 2, stride=2)
        self.refine = nn.Conv3d(2 * width, 2 * width, 1)
        self.head = nn.Conv3d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> Segmentation:
        skip = F.relu(self.down1(x))
        low = F.relu(self.bottom(F.relu(self.down2(skip))))
        logits = self.head(self.up(low) + skip)
        return Segmentation(logits, (self.head(self.up(self.refine(low))),))


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class Odd(nn.Module):
    """What a patch has to leave alone: a functional call, a class with its own forward, a layer that is never called; and one
    layer that two parents share."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.ConvTranspose1d(3, 3, 3, stride=2)
        self.left, self.right = nn.Sequential(shared), nn.Sequential(shared, nn.ReLU())
        self.own = OwnForward(3, 2, 2)
        self.unused = nn.ConvTranspose1d(3, 3, 3)
        self.weight = nn.Parameter(torch.randn(3, 2, 3))

    def forward(self, x: torch.Tensor) -> Pair:
        return Pair(self.own(self.left(x)), F.conv_transpose1d(self.right(x), self.weight))


class OwnForward(nn.ConvTranspose1d):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 2


class OwnPadding(nn.ConvTranspose1d):
    """Its output is one longer than its numbers say."""

    def _output_padding(self, *args: object, **options: object) -> list[int]:
        return [1]


class Notices(nn.Module):
    """It computes something else when its layer is patched."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(3, 3, 3, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x)[..., ::1 + ("forward" in vars(self.up))]


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(2, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x.reshape(1, 5, -1))


def build_hifigan() -> nn.Module:
    return HifiGan()


def hifigan_inputs() -> torch.Tensor:
    return torch.randn(2, 6, 10)


def build_decoder() -> nn.Module:
    return MaskDecoder()


def decoder_inputs() -> dict[str, torch.Tensor]:
    return {"image_embeddings": torch.randn(1, 8, 4, 5), "tokens": torch.randn(1, 3, 8)}


def build_unet() -> nn.Module:
    return UNet3d()


def unet_inputs() -> tuple[torch.Tensor]:
    return (torch.randn(1, 1, 4, 4, 6),)


def build_odd() -> nn.Module:
    return Odd()


def odd_inputs() -> torch.Tensor:
    return torch.randn(2, 3, 7)


def build_notices() -> nn.Module:
    return Notices()


def build_broken() -> nn.Module:
    return Broken()


def inputs() -> torch.Tensor:
    return torch.randn(1, 2, 9)


# Models that nobody here wrote: small configurations of `transformers`, with random weights.

def speecht5_hifigan() -> nn.Module:
    from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig
    return SpeechT5HifiGan(SpeechT5HifiGanConfig(
        model_in_dim=8, upsample_initial_channel=16, upsample_rates=[4], upsample_kernel_sizes=[8],
        resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3]]))


def speecht5_hifigan_inputs() -> torch.Tensor:
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
