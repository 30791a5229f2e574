"""The suite `models`: 22 transposed convolutions of models that people train and run. Channels, kernels and strides are
those of the source. Batch and length were chosen: sizes of training, or of streaming where the name says stream."""

from __future__ import annotations

from .command import parse_layer
from .preset import Preset


def _entry(name: str, source: str, layer: str, full: tuple[int, tuple[int, ...]],
           small: tuple[int, tuple[int, ...]], *, small_channels: tuple[int, int] | None = None) -> Preset:
    return Preset(f"models/{name}", "models", f"models/{name}", source, parse_layer(layer), *full, small, small_channels)


_HIFIGAN = "jik876/hifi-gan config_v1.json"
_DAC = "descriptinc/descript-audio-codec dac/model/dac.py"
_DCGAN = "pytorch/examples dcgan/main.py"
_SAM = "facebookresearch/segment-anything segment_anything/modeling/mask_decoder.py"
_NNUNET = "MIC-DKFZ/nnUNet with the shapes of tracel-ai/burn#5792"

# name, source, layer, full (batch, input size), small (batch, input size)
MODELS: dict[str, Preset] = {p.name: p for p in (
    _entry("hifigan-1", _HIFIGAN, "ConvTranspose1d(512, 256, 16, stride=8, padding=4)", (16, (32,)), (2, (32,)),
           small_channels=(128, 64)),
    _entry("hifigan-2", _HIFIGAN, "ConvTranspose1d(256, 128, 16, stride=8, padding=4)", (16, (256,)), (1, (16,))),
    _entry("hifigan-3", _HIFIGAN, "ConvTranspose1d(128, 64, 4, stride=2, padding=1)", (16, (2048,)), (2, (128,))),
    _entry("hifigan-4", _HIFIGAN, "ConvTranspose1d(64, 32, 4, stride=2, padding=1)", (16, (4096,)), (2, (512,))),
    _entry("stream-2", f"{_HIFIGAN}, streaming", "ConvTranspose1d(256, 128, 16, stride=8, padding=4)", (1, (64,)),
           (1, (8,))),
    _entry("dac-1", _DAC, "ConvTranspose1d(1536, 768, 16, stride=8, padding=4)", (8, (87,)), (1, (29,)),
           small_channels=(192, 96)),
    _entry("dac-3", _DAC, "ConvTranspose1d(384, 192, 8, stride=4, padding=2)", (8, (5568,)), (1, (16,))),
    _entry("encodec-2", "facebookresearch/encodec encodec/modules/seanet.py",
           "ConvTranspose1d(256, 128, 10, stride=5)", (16, (600,)), (1, (28,))),
    _entry("bigvgan-resample", "NVIDIA/BigVGAN alias_free_activation/torch/resample.py, one filter for all channels",
           "ConvTranspose1d(768, 768, 12, stride=2, groups=768, bias=False)", (4, (1024,)), (1, (512,))),
    _entry("dcgan-2", _DCGAN, "ConvTranspose2d(512, 256, 4, stride=2, padding=1, bias=False)", (128, (4, 4)), (4, (4, 4)),
           small_channels=(128, 64)),
    _entry("dcgan-4", _DCGAN, "ConvTranspose2d(128, 64, 4, stride=2, padding=1, bias=False)", (128, (16, 16)), (1, (8, 8))),
    _entry("pix2pix", "junyanz/pytorch-CycleGAN-and-pix2pix models/networks.py",
           "ConvTranspose2d(256, 64, 4, stride=2, padding=1)", (16, (64, 64)), (1, (6, 8))),
    _entry("pose", "microsoft/human-pose-estimation.pytorch lib/models/pose_resnet.py",
           "ConvTranspose2d(256, 256, 4, stride=2, padding=1, bias=False)", (64, (32, 24)), (1, (8, 6)),
           small_channels=(128, 128)),
    _entry("vae", "ROCm/MIOpen#3952", "ConvTranspose2d(512, 256, 3, stride=2, padding=1, output_padding=1)",
           (1, (128, 128)), (1, (6, 8)), small_channels=(256, 128)),
    _entry("unet-2", "milesial/Pytorch-UNet unet/unet_parts.py", "ConvTranspose2d(256, 128, 2, stride=2)",
           (8, (128, 128)), (1, (8, 8))),
    _entry("sam-1", _SAM, "ConvTranspose2d(256, 64, 2, stride=2)", (16, (64, 64)), (1, (12, 12))),
    _entry("sam-2", _SAM, "ConvTranspose2d(64, 32, 2, stride=2)", (16, (128, 128)), (2, (24, 24))),
    _entry("maskrcnn", "pytorch/vision torchvision/models/detection/mask_rcnn.py", "ConvTranspose2d(256, 256, 2, stride=2)",
           (512, (14, 14)), (1, (6, 6))),
    _entry("pillars", "open-mmlab/OpenPCDet pcdet/models/backbones_2d/base_bev_backbone.py",
           "ConvTranspose2d(256, 128, 4, stride=4, bias=False)", (4, (62, 54)), (1, (4, 5))),
    _entry("nnunet-1", _NNUNET, "ConvTranspose3d(320, 320, 2, stride=2)", (2, (8, 10, 12)), (1, (4, 3, 4)),
           small_channels=(160, 160)),
    _entry("nnunet-4", _NNUNET, "ConvTranspose3d(64, 32, 2, stride=2)", (2, (64, 80, 96)), (1, (8, 8, 9))),
    _entry("monai", "Project-MONAI/MONAI monai/networks/nets/unet.py",
           "ConvTranspose3d(64, 32, 3, stride=2, padding=1, output_padding=1)", (4, (48, 48, 48)), (1, (6, 6, 6))),
)}
