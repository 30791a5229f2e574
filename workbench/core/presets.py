"""`Preset`: one named layer of a suite, and from it a `Workload` in one of three sizes. The layers of both suites, and how one
is found by its name.

`KERNELBENCH`: the 17 transposed convolutions of KernelBench, level 1. Each parameter has the value that PyTorch receives when
KernelBench runs the problem (KernelBench 423217d).

`MODELS`: 22 transposed convolutions of models that people train and run. Channels, kernels and strides are those of the
source. Batch and length were chosen: sizes of training, or of streaming where the name says stream.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace

from .command import parse_layer
from .errors import BadRequest
from .layer import ConvTranspose, Workload

SIZES = ("full", "medium", "small")
MEDIUM_LIMIT_BYTES = 6_000_000_000


@dataclass(frozen=True)
class Preset:
    """One layer of a suite, with where it comes from.

    `small` is for the emulator. If it would take too long with all channels, the small form has `small_channels`.

    A KernelBench problem also says how its `Model` is built. `constructor`: the parameters of `Model.__init__`, in order. From
    `stride` on they have PyTorch's defaults, except that bias is False. `attribute`: the attribute of `Model` that holds the
    layer, so that the weight is named `<attribute>.weight`. `ignored`: parameters that `Model` takes but does not use; a
    replacement must ignore them too. `order_known` is False if the order was inferred from similar problems. A layer without a
    `constructor` is an nn.ConvTranspose itself.
    """

    name: str                               # as it is typed: kb74, models/sam-1
    suite: str
    label: str                              # as it is shown: KernelBench #74, models/sam-1
    source: str                             # where the layer is from
    layer: ConvTranspose
    batch: int
    input_size: tuple[int, ...]
    small: tuple[int, tuple[int, ...]]      # (batch, input_size) of about 1e7 multiply-adds
    small_channels: tuple[int, int] | None = None
    number: int = 0                         # of the KernelBench problem
    constructor: tuple[str, ...] = ()
    attribute: str = ""
    ignored: tuple[str, ...] = ()
    order_known: bool = True

    @property
    def medium(self) -> tuple[int, tuple[int, ...]]:
        """(batch, input_size): the full size with its batch halved until all tensors of one trial take less than 6 GB."""
        batch = self.batch
        while trial_bytes(Workload(self.layer, batch, self.input_size)) >= MEDIUM_LIMIT_BYTES and batch > 1:
            batch = (batch + 1) // 2
        return batch, self.input_size

    def workload(self, size: str = "full", dtype: str = "float32", *, memory_format: str = "contiguous") -> Workload:
        """The workload of that size. Kernel, stride, padding, dilation and groups are the same in all sizes."""
        if size not in SIZES:
            raise BadRequest(f"size {size!r} is not known; choose {', '.join(SIZES)}.", field="size")
        batch, spatial = {"full": lambda: (self.batch, self.input_size), "medium": lambda: self.medium,
                          "small": lambda: self.small}[size]()
        return Workload(self.layer_of(size), batch, spatial, dtype, memory_format, preset=f"{self.name}/{size}")

    def layer_of(self, size: str) -> ConvTranspose:
        """The layer in that size. Only the small size may have fewer channels."""
        if size != "small" or self.small_channels is None:
            return self.layer
        return replace(self.layer, in_channels=self.small_channels[0], out_channels=self.small_channels[1])

    @property
    def listed(self) -> str:
        """For a narrow list: `KernelBench #75: 2-D k3×5 s2×3`."""
        layer = self.layer
        return f"{self.label}: {layer.dims}-D k{_joined(layer.kernel_size)} s{_joined(layer.stride)}"

    @property
    def title(self) -> str:
        """For a table: `KernelBench #74: 1-D 32→64 k5 s1 d3`."""
        layer = self.layer
        words = [f"{self.label}:", f"{layer.dims}-D", f"{layer.in_channels}→{layer.out_channels}",
                 f"k{_joined(layer.kernel_size)}", f"s{_joined(layer.stride)}"]
        if set(layer.dilation) != {1}:
            words.append(f"d{_joined(layer.dilation)}")
        if layer.groups != 1:
            words.append(f"g{layer.groups}")
        return " ".join(words)


def trial_bytes(workload: Workload) -> int:
    """Bytes of GPU memory that a trial of all directions needs: each tensor and its gradient, and both in float64 as the truth.

    Workspaces and what the allocator keeps are not counted.
    """
    layer = workload.layer
    elements = (workload.result_elements("forward") + workload.result_elements("grad_input") + layer.parameter_count)
    return elements * (2 * workload.element_bytes + 8)


def _joined(values: tuple[int, ...]) -> str:
    return str(values[0]) if len(set(values)) == 1 else "×".join(map(str, values))


# The parameters of the constructors of KernelBench's `Model` after (in_channels, out_channels, kernel_size, stride, padding).
_PLAIN = ("output_padding", "groups", "bias")
_DILATED = ("dilation", "bias")
_WHOLE = ("output_padding", "dilation", "groups", "bias")
_COMMON = ("in_channels", "out_channels", "kernel_size", "stride", "padding")


# more than seven: the columns of the table below
def _entry(number: int, channels: tuple[int, int], kernel: int | tuple[int, ...], full: tuple[int, tuple[int, ...]],
           small: tuple[int, tuple[int, ...]], rest: tuple[str, ...] = _PLAIN, *, order_known: bool = True,
           ignored: tuple[str, ...] = (), **layer: int | tuple[int, ...]) -> Preset:
    dims = len(full[1])
    return Preset(f"kb{number}", "kernelbench", f"KernelBench #{number}", f"ScalingIntelligence/KernelBench level1/{number}",
                  ConvTranspose(dims, *channels, kernel, bias=False, **layer),  # type: ignore
                  *full, small, number=number, constructor=_COMMON + rest,
                  attribute="conv1d_transpose" if dims == 1 else f"conv_transpose{dims}d", ignored=ignored,
                  order_known=order_known)


# number, (in, out) channels, kernel, full (batch, input size), small (batch, input size), rest of the constructor
KERNELBENCH: dict[str, Preset] = {p.name: p for p in (
    _entry(57, (64, 64), 3, (8, (1024, 1024)), (1, (16, 17))),
    _entry(58, (32, 16), (3, 5, 7), (16, (16, 32, 64)), (1, (4, 6, 8))),
    _entry(61, (48, 48), 3, (8, (64, 64, 64)), (1, (5, 5, 6))),
    _entry(64, (128, 128), 3, (64, (65536,)), (2, (100,))),
    _entry(65, (64, 64), (3, 7), (8, (512, 512)), (1, (10, 12)), order_known=False),
    _entry(68, (32, 64), (3, 5, 5), (16, (64, 64, 64)), (1, (4, 4, 4))),
    _entry(69, (64, 128), (3, 5), (64, (128, 256)), (1, (8, 10)), _WHOLE),
    _entry(70, (48, 24), 3, (8, (96, 96, 96)), (1, (6, 7, 8)), _WHOLE),
    _entry(71, (32, 32), 3, (8, (512, 1024)), (2, (16, 34)), order_known=False),
    _entry(72, (32, 32), (3, 5, 7), (8, (12, 24, 48)), (2, (5, 7, 8)), order_known=False, stride=2,
           padding=(1, 2, 3), output_padding=1, groups=4),
    # KernelBench passes groups=4 in the place of output_padding, and this Model ignores that parameter. So the layer runs with
    # the defaults of groups and output_padding.
    _entry(73, (32, 32), 3, (4, (32, 64, 128)), (2, (6, 6, 7)), ignored=("output_padding",), stride=2, padding=1),
    _entry(74, (32, 64), 5, (32, (131072,)), (2, (500,)), _DILATED, dilation=3),
    _entry(75, (32, 64), (3, 5), (16, (128, 256)), (2, (20, 32)), ("dilation", "groups", "bias"),
           stride=(2, 3), padding=(1, 2), dilation=(2, 1), groups=4),
    _entry(77, (32, 64), 3, (16, (16, 32, 32)), (1, (6, 7, 6)), _DILATED, stride=2, padding=1, dilation=2),
    _entry(78, (32, 32), (3, 7), (8, (512, 1024)), (1, (20, 24)), ("bias",), padding=(1, 3)),
    _entry(79, (32, 64), 3, (16, (131072,)), (2, (800,)), _DILATED, order_known=False, stride=2, padding=1, dilation=2),
    _entry(81, (32, 64), 3, (16, (64, 128)), (2, (16, 17)), _DILATED, stride=5, padding=1, dilation=2),
)}


def _model(name: str, source: str, layer: str, full: tuple[int, tuple[int, ...]],
           small: tuple[int, tuple[int, ...]], *, small_channels: tuple[int, int] | None = None) -> Preset:
    return Preset(f"models/{name}", "models", f"models/{name}", source, parse_layer(layer), *full, small, small_channels)


_HIFIGAN = "jik876/hifi-gan config_v1.json"
_DAC = "descriptinc/descript-audio-codec dac/model/dac.py"
_DCGAN = "pytorch/examples dcgan/main.py"
_SAM = "facebookresearch/segment-anything segment_anything/modeling/mask_decoder.py"
_NNUNET = "MIC-DKFZ/nnUNet with the shapes of tracel-ai/burn#5792"

# name, source, layer, full (batch, input size), small (batch, input size)
MODELS: dict[str, Preset] = {p.name: p for p in (
    _model("hifigan-1", _HIFIGAN, "ConvTranspose1d(512, 256, 16, stride=8, padding=4)", (16, (32,)), (2, (32,)),
           small_channels=(128, 64)),
    _model("hifigan-2", _HIFIGAN, "ConvTranspose1d(256, 128, 16, stride=8, padding=4)", (16, (256,)), (1, (16,))),
    _model("hifigan-3", _HIFIGAN, "ConvTranspose1d(128, 64, 4, stride=2, padding=1)", (16, (2048,)), (2, (128,))),
    _model("hifigan-4", _HIFIGAN, "ConvTranspose1d(64, 32, 4, stride=2, padding=1)", (16, (4096,)), (2, (512,))),
    _model("stream-2", f"{_HIFIGAN}, streaming", "ConvTranspose1d(256, 128, 16, stride=8, padding=4)", (1, (64,)),
           (1, (8,))),
    _model("dac-1", _DAC, "ConvTranspose1d(1536, 768, 16, stride=8, padding=4)", (8, (87,)), (1, (29,)),
           small_channels=(192, 96)),
    _model("dac-3", _DAC, "ConvTranspose1d(384, 192, 8, stride=4, padding=2)", (8, (5568,)), (1, (16,))),
    _model("encodec-2", "facebookresearch/encodec encodec/modules/seanet.py",
           "ConvTranspose1d(256, 128, 10, stride=5)", (16, (600,)), (1, (28,))),
    _model("bigvgan-resample", "NVIDIA/BigVGAN alias_free_activation/torch/resample.py, one filter for all channels",
           "ConvTranspose1d(768, 768, 12, stride=2, groups=768, bias=False)", (4, (1024,)), (1, (512,))),
    _model("dcgan-2", _DCGAN, "ConvTranspose2d(512, 256, 4, stride=2, padding=1, bias=False)", (128, (4, 4)), (4, (4, 4)),
           small_channels=(128, 64)),
    _model("dcgan-4", _DCGAN, "ConvTranspose2d(128, 64, 4, stride=2, padding=1, bias=False)", (128, (16, 16)), (1, (8, 8))),
    _model("pix2pix", "junyanz/pytorch-CycleGAN-and-pix2pix models/networks.py",
           "ConvTranspose2d(256, 64, 4, stride=2, padding=1)", (16, (64, 64)), (1, (6, 8))),
    _model("pose", "microsoft/human-pose-estimation.pytorch lib/models/pose_resnet.py",
           "ConvTranspose2d(256, 256, 4, stride=2, padding=1, bias=False)", (64, (32, 24)), (1, (8, 6)),
           small_channels=(128, 128)),
    _model("vae", "ROCm/MIOpen#3952", "ConvTranspose2d(512, 256, 3, stride=2, padding=1, output_padding=1)",
           (1, (128, 128)), (1, (6, 8)), small_channels=(256, 128)),
    _model("unet-2", "milesial/Pytorch-UNet unet/unet_parts.py", "ConvTranspose2d(256, 128, 2, stride=2)",
           (8, (128, 128)), (1, (8, 8))),
    _model("sam-1", _SAM, "ConvTranspose2d(256, 64, 2, stride=2)", (16, (64, 64)), (1, (12, 12))),
    _model("sam-2", _SAM, "ConvTranspose2d(64, 32, 2, stride=2)", (16, (128, 128)), (2, (24, 24))),
    _model("maskrcnn", "pytorch/vision torchvision/models/detection/mask_rcnn.py", "ConvTranspose2d(256, 256, 2, stride=2)",
           (512, (14, 14)), (1, (6, 6))),
    _model("pillars", "open-mmlab/OpenPCDet pcdet/models/backbones_2d/base_bev_backbone.py",
           "ConvTranspose2d(256, 128, 4, stride=4, bias=False)", (4, (62, 54)), (1, (4, 5))),
    _model("nnunet-1", _NNUNET, "ConvTranspose3d(320, 320, 2, stride=2)", (2, (8, 10, 12)), (1, (4, 3, 4)),
           small_channels=(160, 160)),
    _model("nnunet-4", _NNUNET, "ConvTranspose3d(64, 32, 2, stride=2)", (2, (64, 80, 96)), (1, (8, 8, 9))),
    _model("monai", "Project-MONAI/MONAI monai/networks/nets/unet.py",
           "ConvTranspose3d(64, 32, 3, stride=2, padding=1, output_padding=1)", (4, (48, 48, 48)), (1, (6, 6, 6))),
)}

SUITES: dict[str, dict[str, Preset]] = {"kernelbench": KERNELBENCH, "models": MODELS}
PRESETS: dict[str, Preset] = {**KERNELBENCH, **MODELS}


def preset(name: str) -> Preset:
    """The preset of that name: "kb74", "74" or "#74"; "models/sam-1" or "sam-1"; or as it is shown, "KernelBench #74".
    Raises `BadRequest` naming the nearest ones."""
    text = name.strip().lower()
    for known in (text, f"models/{text}"):
        if known in PRESETS:
            return PRESETS[known]
    found = re.fullmatch(r"(?:kb|#|kernelbench[ /]#?(?:kb)?)?0*(\d+)", text)
    if found and f"kb{found[1]}" in PRESETS:
        return PRESETS[f"kb{found[1]}"]
    raise BadRequest(f"There is no preset {name!r}; {_nearest(text, found[1] if found else None)}.", field="preset")


def parse_preset(text: str, *, default_size: str = "full") -> tuple[Preset, str]:
    """From "kb74/small" or "models/sam-1/small" preset and size. Raises `BadRequest` for an unknown name or size."""
    words = [word.strip().lower() for word in text.split("/")]
    named = 2 if words[0] in SUITES and len(words) > 1 else 1
    chosen = preset("/".join(words[:named]))
    size = "/".join(words[named:]) or default_size
    if size not in SIZES:
        raise BadRequest(f"{chosen.name} has no size {size!r}; choose {chosen.name}/full, {chosen.name}/medium or "
                         f"{chosen.name}/small.", field="size")
    return chosen, size


def problem_of(workload: Workload) -> Preset | None:
    """The KernelBench problem for which this is the workload of `Model`, or None."""
    chosen = parse_preset(workload.preset)[0] if workload.preset else None
    return chosen if chosen and chosen.constructor else None


def called(workload: Workload) -> str:
    """The name of a workload in texts: `KernelBench #74 (small)`, or the constructor call of the layer."""
    if not workload.preset:
        return str(workload.layer)
    chosen, size = parse_preset(workload.preset)
    return f"{chosen.label} ({size})"


def default_size(device: str) -> str:
    """The size if a request names only the preset: full on a GPU, small on the emulator, where full would take hours."""
    return "small" if device == "cpu" else "full"


def _nearest(name: str, number: str | None) -> str:
    if number:
        digits = sorted(number)   # first the numbers with the same digits in another order
        near = sorted(KERNELBENCH.values(), key=lambda p: (sorted(str(p.number)) != digits, abs(p.number - int(number))))
        names = [p.name for p in near[:3]]
    else:
        short = {known.removeprefix("models/"): known for known in PRESETS}
        close = difflib.get_close_matches(name.removeprefix("models/"), short, n=3, cutoff=0.3)
        names = [short[known] for known in close] or list(PRESETS)
    return f"the nearest are {', '.join(names)}" if len(names) < len(PRESETS) else f"there are {', '.join(names)}"
