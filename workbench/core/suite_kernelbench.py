"""The suite `kernelbench`: the 17 transposed convolutions of KernelBench, level 1. Each parameter
has the value that PyTorch receives when KernelBench runs the problem (KernelBench 423217d)."""

from __future__ import annotations

from .layer import ConvTranspose
from .preset import Preset

# Constructors of KernelBench's `Model`, every one after (in_channels, out_channels, kernel_size, stride, padding).
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
    # KernelBench hands groups=4 to output_padding, which this Model drops: as run, groups and output_padding are unset.
    _entry(73, (32, 32), 3, (4, (32, 64, 128)), (2, (6, 6, 7)), ignored=("output_padding",), stride=2, padding=1),
    _entry(74, (32, 64), 5, (32, (131072,)), (2, (500,)), _DILATED, dilation=3),
    _entry(75, (32, 64), (3, 5), (16, (128, 256)), (2, (20, 32)), ("dilation", "groups", "bias"),
           stride=(2, 3), padding=(1, 2), dilation=(2, 1), groups=4),
    _entry(77, (32, 64), 3, (16, (16, 32, 32)), (1, (6, 7, 6)), _DILATED, stride=2, padding=1, dilation=2),
    _entry(78, (32, 32), (3, 7), (8, (512, 1024)), (1, (20, 24)), ("bias",), padding=(1, 3)),
    _entry(79, (32, 64), 3, (16, (131072,)), (2, (800,)), _DILATED, order_known=False, stride=2, padding=1, dilation=2),
    _entry(81, (32, 64), 3, (16, (64, 128)), (2, (16, 17)), _DILATED, stride=5, padding=1, dilation=2),
)}
