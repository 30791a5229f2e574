"""The awkward layers of the product, as the kernel tests use them."""

from __future__ import annotations

from math import prod

from workbench.core.awkward import CASES, FEW
from workbench.core.layer import ConvTranspose, Workload

__all__ = ["ALONG", "CASES", "EXTREME", "FEW", "label", "macs", "work"]


def macs(workload: Workload) -> int:
    """Upper bound of the multiply-adds: each input element meets each tap of its group's output channels."""
    one = workload.layer
    return prod(workload.input_shape) * prod(one.kernel_size) * (one.out_channels // one.groups)


def label(workload: Workload) -> str:
    return f"{workload.layer} {workload.batch}x{'x'.join(map(str, workload.input_size))}"


def work(size: tuple[int, ...], batch: int, cin: int, cout: int, kernel: int | tuple[int, ...], **given: object) -> Workload:
    return Workload(ConvTranspose(len(size), cin, cout, kernel, **given), batch, size)


EXTREME = [
    work((3,), 3, 3, 5, 100, stride=100),
    work((40,), 3, 2, 2, 64, dilation=200, bias=False),                      # most taps fall off
    work((300,), 2, 2, 2, 64, dilation=20, padding=3),                       # several tiles, each with taps of its own
    work((5,), 3, 4, 4, 3, stride=64, groups=4),                             # residues without taps
    work((130,), 2, 3, 3, 255, padding=127, groups=3),
    work((2, 2), 2, 5, 7, 32, stride=32),
    work((2, 3, 3), 1, 4, 8, 3, dilation=200, padding=197, groups=2),
    work((2, 5), 3, 17, 9, (7, 3), stride=(32, 50), padding=(5, 40), output_padding=(3, 1), dilation=(1, 7)),
    work((150,), 2, 70, 35, 3, padding=1),                                   # parts of a tap; rows that go on in the next image
    work((2, 3, 10), 1, 33, 130, 2, stride=2, bias=False),                   # two channel tiles, or sums in series
    work((2,), 1, 1, 1, 1, stride=1000, output_padding=999),
    work((3, 5), 2, 3, 4, 2, stride=(6, 4), padding=(5, 11), output_padding=(0, 1), dilation=(4, 12)),
]

# Long strides along W, where grad_input's steps run along it.
ALONG = [
    work((7,), 3, 5, 3, 100, stride=100),
    work((3, 4), 2, 5, 7, 8, stride=8),
    work((2, 3), 2, 4, 4, 16, stride=16),
    work((2, 3), 2, 9, 5, (16, 20), stride=(16, 20)),                        # few positions: shares of the reduction
    work((2, 2), 1, 3, 33, 32, stride=32),                                   # many shares
    work((150,), 2, 4, 6, 9, stride=4, padding=2),                           # several tiles, runs of odd length
    work((40,), 2, 6, 10, 12, stride=5, padding=3, output_padding=2, groups=2),
    work((30,), 3, 33, 17, 12, stride=8, padding=4, groups=1),               # 16 bytes at a time, cropped
    work((30,), 3, 3, 5, 12, stride=8, padding=4, output_padding=3),         # rows that are no multiple of 16 bytes
    work((6,), 2, 12, 20, 40, stride=36, groups=4, bias=False),
    work((2, 3, 9), 2, 3, 5, (2, 3, 11), stride=(1, 1, 7), padding=(0, 1, 2), dilation=(1, 2, 1)),
    work((5, 6), 1, 70, 3, (3, 8), stride=(2, 4), padding=(2, 5), dilation=(3, 1)),
    work((6, 3), 2, 2, 3, (5, 8), stride=(1, 8), padding=(2, 0), dilation=(40, 1)),  # rows of taps that a tile leaves out
    work((3,), 1, 1, 1, 9, stride=4, padding=4),                             # one step, partly zeros
    work((9,), 1, 130, 2, 8, stride=6, bias=False),
]
