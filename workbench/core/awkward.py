"""Awkward layers: small layers with parameters for which index arithmetic is often wrong. Tests run kernels on them."""

from __future__ import annotations

from dataclasses import replace

from .layer import ConvTranspose, Workload

_Sizes = int | tuple[int, ...]


def awkward_workloads(effort: str = "normal", dtype: str = "float32") -> list[Workload]:
    """In float32 all layers, or a few with effort `quick`. In any other dtype a few, because the indexing is the same."""
    chosen = CASES if dtype == "float32" and effort != "quick" else FEW
    return [replace(work, dtype=dtype) for work in chosen]


# more than seven: the arguments of a layer, as PyTorch names them
def _work(size: _Sizes, batch: int, dims: int, cin: int, cout: int, kernel: _Sizes, *, stride: _Sizes = 1,
          padding: _Sizes = 0, output_padding: _Sizes = 0, groups: int = 1, bias: bool = False,
          dilation: _Sizes = 1) -> Workload:
    layer = ConvTranspose(dims, cin, cout, _sizes(kernel), _sizes(stride), _sizes(padding), _sizes(output_padding), groups,
                          bias, _sizes(dilation))
    return Workload(layer, batch, _sizes(size))


def _sizes(value: _Sizes) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else value


ONE_D = [
    _work(1, 1, 1, 1, 1, 1),
    _work(1, 1, 1, 1, 1, 1, stride=5, bias=True),
    _work(1, 2, 1, 3, 17, 7, stride=3, padding=1, dilation=2, bias=True),
    _work(7, 9, 1, 3, 136, 3),                                       # channels beyond 7 bits, a batch beyond 3
    _work(33, 2, 1, 17, 33, 5, dilation=3, bias=True),
    _work(40, 1, 1, 33, 17, 3, stride=2, padding=1, output_padding=1),
    _work(19, 3, 1, 3, 17, 4, stride=3, padding=2, output_padding=2, bias=True),
    _work(21, 1, 1, 17, 3, 5, stride=4, padding=3, dilation=2),
    _work(11, 17, 1, 3, 3, 3, stride=5, padding=1, dilation=3, output_padding=4, bias=True),   # a batch beyond 4 bits
    _work(9, 1, 1, 3, 5, 2, stride=5),                               # outputs that no tap reaches
    _work(9, 1, 1, 3, 5, 2, stride=5, padding=1, output_padding=3, bias=True),
    _work(14, 2, 1, 4, 6, 3, stride=2, dilation=2),                  # stride and dilation share a factor
    _work(14, 1, 1, 4, 6, 5, stride=4, dilation=2, padding=3, output_padding=1, bias=True),
    _work(12, 1, 1, 6, 9, 4, stride=3, dilation=3, groups=3),
    _work(23, 2, 1, 17, 17, 3, groups=17, stride=2, padding=1, bias=True),   # depthwise
    _work(23, 1, 1, 3, 33, 5, groups=3, dilation=2, bias=True),              # depthwise with a multiplier
    _work(31, 2, 1, 5, 10, 9, groups=5, stride=4, padding=2, output_padding=1, bias=True),
    _work(150, 1, 1, 2, 6, 3, groups=2, stride=3, dilation=2, padding=7),    # depthwise, cropped
    _work(20, 2, 1, 33, 3, 3, groups=3, stride=3, padding=1),
    _work(5, 1, 1, 3, 2, 13),                                        # kernel longer than the input
    _work(4, 2, 1, 2, 3, 17, stride=2, padding=8, dilation=2, bias=True),
    _work(12, 1, 1, 3, 4, 3, padding=5),                             # padding that crops the input itself
    _work(16, 2, 1, 3, 4, 5, stride=2, padding=9, output_padding=1, bias=True),
    _work(13, 1, 1, 2, 2, 1, stride=2, padding=3),                   # kernel 1, cropped
    _work(6, 1, 1, 520, 33, 1, bias=True),                           # several chunks of 128 or 256 channels
    _work(6, 3, 1, 1, 3, 5, padding=4),
    _work(6, 1, 1, 2, 3, 3, output_padding=2, dilation=3),           # output_padding allowed by dilation
    _work(3000, 1, 1, 1, 3, 3, padding=1, bias=True),                # many tiles of positions
    _work(1400, 2, 1, 2, 2, 4, stride=3, dilation=2, padding=2),
    _work(75, 3, 1, 40, 70, 3, stride=2, padding=1),                # many tiles of channels
    _work(9, 2, 1, 2, 3, 5, padding=61, dilation=33, bias=True),     # padding and dilation beyond 5 bits
]
TWO_D = [
    _work((1, 1), 1, 2, 1, 1, 1),
    _work((1, 1), 2, 2, 3, 3, (3, 5), bias=True),
    _work((1, 9), 1, 2, 3, 2, (1, 4), stride=(1, 3)),
    _work((9, 1), 1, 2, 3, 2, (4, 1), stride=(3, 1), padding=(1, 0), bias=True),
    _work((6, 7), 2, 2, 3, 17, 3),
    _work((6, 5), 1, 2, 17, 33, 3, stride=2, padding=1, output_padding=1, bias=True),
    _work((5, 7), 1, 2, 33, 3, (3, 2), stride=(3, 5), padding=(2, 1), output_padding=(2, 4)),
    _work((5, 6), 2, 2, 3, 5, (5, 3), stride=(2, 4), dilation=(1, 3), padding=(3, 2), bias=True),
    _work((4, 5), 1, 2, 4, 6, 3, stride=4, dilation=2, padding=2, output_padding=3),
    _work((7, 6), 1, 2, 9, 6, 3, groups=3, stride=(1, 2), padding=1, bias=True),
    _work((6, 6), 2, 2, 17, 17, 3, groups=17, dilation=(2, 1)),
    _work((5, 5), 1, 2, 6, 18, (2, 3), groups=6, stride=3, bias=True),
    _work((9, 13), 2, 2, 5, 15, 4, groups=5, stride=2, padding=1, bias=True),     # depthwise, multiplier 3
    _work((37, 5), 1, 2, 3, 6, (2, 5), groups=3, stride=(3, 1), dilation=(2, 3), padding=(1, 4)),
    _work((2, 3), 1, 2, 3, 4, (5, 7), padding=(2, 3), bias=True),
    _work((3, 2), 2, 2, 2, 3, (7, 4), stride=(2, 3), padding=(5, 2), dilation=(1, 2), output_padding=(1, 2)),
    _work((9, 8), 1, 2, 3, 3, 3, padding=(4, 3)),
    _work((9, 8), 1, 2, 3, 3, 1, stride=(2, 3), padding=(2, 4), output_padding=1, bias=True),
    _work((48, 50), 1, 2, 2, 3, 3, padding=1, bias=True),
    _work((22, 31), 3, 2, 3, 2, (2, 3), stride=2, output_padding=1),
    _work((5, 6), 2, 2, 33, 66, (1, 3), dilation=(1, 2), padding=(0, 2)),
    _work((7, 9), 1, 2, 32, 64, 3, stride=5, padding=1, dilation=2),                              # as #81
    _work((6, 8), 2, 2, 32, 64, (3, 5), stride=(2, 3), padding=(1, 2), dilation=(2, 1), groups=4),  # as #75
    _work((7, 6), 1, 2, 16, 16, (3, 7), padding=(1, 3)),                                          # as #78
    _work((3, 4), 1, 2, 4, 6, (3, 2), stride=(1, 18), dilation=(19, 1), padding=(17, 0), groups=2),  # all beyond 4 bits
]
THREE_D = [
    _work((1, 1, 1), 1, 3, 1, 1, 1, bias=True),
    _work((1, 1, 1), 2, 3, 3, 2, (2, 3, 4), stride=2),
    _work((3, 4, 5), 2, 3, 3, 17, 3, bias=True),
    _work((3, 4, 5), 1, 3, 17, 3, (3, 2, 1), stride=(2, 1, 3), padding=(1, 0, 0), output_padding=(1, 0, 2)),
    _work((2, 3, 4), 1, 3, 3, 33, (1, 3, 3), stride=(5, 2, 2), padding=(0, 1, 1), output_padding=(4, 1, 1), bias=True),
    _work((3, 3, 4), 1, 3, 4, 6, (3, 3, 2), stride=(2, 4, 3), dilation=(2, 2, 3), padding=(1, 2, 3)),
    _work((2, 2, 3), 2, 3, 9, 6, (3, 4, 5), groups=3, padding=(1, 2, 3), bias=True),
    _work((3, 4, 3), 1, 3, 17, 17, (2, 2, 3), groups=17, stride=(1, 2, 2), dilation=(3, 1, 2),
          output_padding=(2, 1, 1)),
    _work((3, 5, 7), 2, 3, 3, 6, 3, groups=3, stride=2, output_padding=1, bias=True),  # depthwise, multiplier 2
    _work((2, 1, 2), 1, 3, 3, 2, (5, 3, 4), stride=(1, 2, 1), padding=(2, 1, 0), bias=True),
    _work((5, 4, 6), 3, 3, 2, 3, 3, stride=(2, 1, 2), padding=(4, 1, 5)),
    _work((12, 13, 14), 1, 3, 1, 2, (1, 2, 2), bias=True),
    _work((4, 5, 6), 1, 3, 33, 12, 1, stride=(1, 2, 3), padding=(0, 1, 0)),
    _work((2, 3, 4), 1, 3, 32, 32, (3, 5, 7), stride=2, padding=(1, 2, 3), output_padding=1, groups=4),  # as #72
    _work((3, 4, 4), 1, 3, 16, 24, 3, stride=2, padding=1, dilation=2),                                  # as #77
]
PRESET_LIKE = [
    _work(170, 1, 1, 32, 64, 5, dilation=3),                          # as #74
    _work(40, 1, 1, 128, 128, 3),                                     # as #64
    _work(90, 1, 1, 32, 64, 3, stride=2, padding=1, dilation=2),      # as #79
]
CASES: list[Workload] = [*ONE_D, *TWO_D, *THREE_D, *PRESET_LIKE]

# A few layers for tests that do not need every layer (other dtypes, other configs). Together they have stride, dilation,
# padding, groups of one and of several channels, bias, an odd channel count, several tiles, and outputs that one tap each
# reaches.
FEW = [ONE_D[4], ONE_D[8], ONE_D[12], TWO_D[9], ONE_D[26], TWO_D[5], TWO_D[7], TWO_D[16], THREE_D[2], THREE_D[5],
       THREE_D[7], ONE_D[10], ONE_D[-1]]
