"""Models of transformers and torchvision with random weights, in the sizes that people run; nothing is downloaded."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

Tensors = dict[str, torch.Tensor]


def speecht5_hifigan() -> nn.Module:
    from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig
    model: nn.Module = SpeechT5HifiGan(SpeechT5HifiGanConfig())
    return model


def speecht5_hifigan_inputs() -> torch.Tensor:
    return torch.randn(4, 400, 80)


def dac() -> nn.Module:
    from transformers import DacConfig, DacModel
    model: nn.Module = DacModel(DacConfig()).decoder
    return model


def dac_inputs() -> torch.Tensor:
    return torch.randn(4, 1024, 86)


def encodec() -> nn.Module:
    from transformers import EncodecConfig, EncodecModel
    model: nn.Module = EncodecModel(EncodecConfig()).decoder
    return model


def encodec_inputs() -> torch.Tensor:
    return torch.randn(4, 128, 150)


def sam_mask_decoder() -> nn.Module:
    from transformers import SamConfig, SamModel
    model: nn.Module = SamModel(SamConfig()).mask_decoder
    return model


def sam_mask_decoder_inputs() -> dict[str, torch.Tensor | bool]:
    return {"image_embeddings": torch.randn(4, 256, 64, 64), "image_positional_embeddings": torch.randn(4, 256, 64, 64),
            "sparse_prompt_embeddings": torch.randn(4, 1, 2, 256), "dense_prompt_embeddings": torch.randn(4, 256, 64, 64),
            "multimask_output": True}


def vits() -> nn.Module:
    from transformers import VitsConfig, VitsModel
    model: nn.Module = VitsModel(VitsConfig()).decoder
    return model


def vits_inputs() -> torch.Tensor:
    return torch.randn(4, 192, 200)


class MaskHead(nn.Module):
    """The mask branch of Mask R-CNN: what it does with the features of its boxes."""

    def __init__(self) -> None:
        super().__init__()
        from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
        self.mask_head = MaskRCNNHeads(256, (256, 256, 256, 256), 1)
        self.mask_predictor = MaskRCNNPredictor(256, 256, 91)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        masks: torch.Tensor = self.mask_predictor(self.mask_head(x))
        return masks


def mask_rcnn_head() -> nn.Module:
    return MaskHead()


def mask_rcnn_head_inputs() -> torch.Tensor:
    return torch.randn(200, 256, 14, 14)


class FcnDecoder(nn.Module):
    """A ResNet-50 of torchvision, and upsampling by transposed convolutions as in FCN and in pose estimation."""

    def __init__(self) -> None:
        super().__init__()
        from torchvision.models import resnet50
        backbone = resnet50(weights=None)
        self.features = nn.Sequential(*list(backbone.children())[:-2])
        widths = (2048, 256, 256, 256)
        self.up = nn.Sequential(*(nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
                                  for a, b in zip(widths, widths[1:], strict=False)))
        self.head = nn.Conv2d(256, 21, 1)

    def forward(self, x: torch.Tensor) -> Tensors:
        return {"out": self.head(self.up(self.features(x)))}


def fcn_decoder() -> nn.Module:
    return FcnDecoder()


def fcn_decoder_inputs() -> torch.Tensor:
    return torch.randn(8, 3, 256, 256)


class UNet3d(nn.Module):
    """As nnU-Net builds it: two convolutions a level, transposed convolutions of kernel 2 and stride 2 on the way up."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256)) -> None:
        super().__init__()
        pairs = list(zip(widths, widths[1:], strict=False))
        self.first = self._block(1, widths[0])
        self.down = nn.ModuleList([self._block(a, b, 2) for a, b in pairs])
        self.ups = nn.ModuleList([nn.ConvTranspose3d(b, a, 2, 2) for a, b in reversed(pairs)])
        self.merge = nn.ModuleList([self._block(2 * a, a) for a, _ in reversed(pairs)])
        self.head = nn.Conv3d(widths[0], 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = [self.first(x)]
        for down in self.down:
            skips.append(down(skips[-1]))
        x = skips.pop()
        for up, merge in zip(self.ups, self.merge, strict=True):
            x = merge(torch.cat([up(x), skips.pop()], 1))
        logits: torch.Tensor = self.head(F.leaky_relu(x))
        return logits

    def _block(self, a: int, b: int, stride: int = 1) -> nn.Sequential:
        return nn.Sequential(nn.Conv3d(a, b, 3, stride, 1), nn.InstanceNorm3d(b), nn.LeakyReLU(), nn.Conv3d(b, b, 3, 1, 1),
                             nn.InstanceNorm3d(b), nn.LeakyReLU())


def unet3d() -> nn.Module:
    return UNet3d()


def unet3d_inputs() -> torch.Tensor:
    return torch.randn(2, 1, 96, 96, 96)
