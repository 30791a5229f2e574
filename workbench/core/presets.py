"""The 17 transposed convolutions of KernelBench, level 1: name in, `Preset` out, and from it a `Workload` in one of
three sizes. Numbers are those that reach PyTorch when KernelBench runs the problem (KernelBench 423217d)."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from .errors import BadRequest
from .layer import ConvTranspose, Workload

SIZES = ("full", "medium", "small")
MEDIUM_LIMIT_BYTES = 6_000_000_000
# Constructors of KernelBench's `Model`, every one after (in_channels, out_channels, kernel_size, stride, padding).
_PLAIN = ("output_padding", "groups", "bias")
_DILATED = ("dilation", "bias")
_WHOLE = ("output_padding", "dilation", "groups", "bias")
_COMMON = ("in_channels", "out_channels", "kernel_size", "stride", "padding")


@dataclass(frozen=True)
class Preset:
    """One KernelBench problem.

    `constructor` is the order of `Model.__init__`'s parameters, all from `stride` on with PyTorch's default except
    bias=False; `attribute` holds the layer in it, so the parameter is named `<attribute>.weight`. `ignored` names
    parameters that `Model` takes and does not hand on: a drop-in ignores them too. `order_known` is False where the
    order was inferred from the problems beside it, not read from this one.
    """

    name: str
    number: int
    layer: ConvTranspose
    batch: int
    input_size: tuple[int, ...]
    small: tuple[int, tuple[int, ...]]      # (batch, input_size) of about 1e7 multiply-adds
    constructor: tuple[str, ...]
    attribute: str
    ignored: tuple[str, ...] = ()
    order_known: bool = True

    @property
    def medium(self) -> tuple[int, tuple[int, ...]]:
        """(batch, input_size): full with the batch halved until everything one trial holds stays below 6 GB."""
        batch = self.batch
        while trial_bytes(Workload(self.layer, batch, self.input_size)) >= MEDIUM_LIMIT_BYTES and batch > 1:
            batch = (batch + 1) // 2
        return batch, self.input_size

    def workload(self, size: str = "full", dtype: str = "float32") -> Workload:
        """The workload of that size; kernel, stride, padding, dilation, groups and channels are the same in all."""
        if size not in SIZES:
            raise BadRequest(f"size {size!r} is not known; choose {', '.join(SIZES)}.", field="size")
        batch, spatial = {"full": lambda: (self.batch, self.input_size), "medium": lambda: self.medium,
                          "small": lambda: self.small}[size]()
        return Workload(self.layer, batch, spatial, dtype, preset=f"{self.name}/{size}")

    @property
    def title(self) -> str:
        """For a list: `#74 1-D 32→64 k5 s1 d3`."""
        layer = self.layer
        words = [f"#{self.number}", f"{layer.dims}-D", f"{layer.in_channels}→{layer.out_channels}",
                 f"k{_joined(layer.kernel_size)}", f"s{_joined(layer.stride)}"]
        if set(layer.dilation) != {1}:
            words.append(f"d{_joined(layer.dilation)}")
        if layer.groups != 1:
            words.append(f"g{layer.groups}")
        return " ".join(words)


def preset(name: str) -> Preset:
    """The preset of that name: "kb74", "74" or "#74". Raises `BadRequest` naming the nearest ones."""
    found = re.fullmatch(r"(?:kb|#)?0*(\d+)", name.strip().lower())
    if found and f"kb{found[1]}" in PRESETS:
        return PRESETS[f"kb{found[1]}"]
    raise BadRequest(f"There is no preset {name!r}; {_nearest(name, found[1] if found else None)}.", field="preset")


def parse_preset(text: str, *, default_size: str = "full") -> tuple[Preset, str]:
    """From "kb74/small" (or "74", "#74") preset and size. Raises `BadRequest` for an unknown name or size."""
    name, _, size = text.partition("/")
    chosen = preset(name)
    size = size.strip().lower() or default_size
    if size not in SIZES:
        raise BadRequest(f"{chosen.name} has no size {size!r}; choose {chosen.name}/full, {chosen.name}/medium or "
                         f"{chosen.name}/small.", field="size")
    return chosen, size


def called(workload: Workload) -> str:
    """What a person calls it: `KernelBench #74 (small)`, or the layer as one writes it."""
    if not workload.preset:
        return str(workload.layer)
    chosen, size = parse_preset(workload.preset)
    return f"KernelBench #{chosen.number} ({size})"


def default_size(device: str) -> str:
    """What a preset without a size means there: all of it on a GPU; the emulator would take hours."""
    return "small" if device == "cpu" else "full"


def trial_bytes(workload: Workload) -> int:
    """Bytes of GPU memory one trial of all directions holds: each tensor, its gradient, and both in float64 as truth.

    Workspaces and what the allocator keeps are not counted.
    """
    layer = workload.layer
    elements = (workload.result_elements("forward") + workload.result_elements("grad_input") + layer.parameter_count)
    return elements * (2 * workload.element_bytes + 8)


def _nearest(name: str, number: str | None) -> str:
    if number:
        near = sorted(PRESETS.values(), key=lambda p: abs(p.number - int(number)))[:3]
        names = [p.name for p in sorted(near, key=lambda p: p.number)]
    else:
        names = difflib.get_close_matches(name.strip().lower(), PRESETS, n=3, cutoff=0.3) or list(PRESETS)
    return f"the nearest are {', '.join(names)}" if len(names) < len(PRESETS) else f"there are {', '.join(names)}"


def _joined(values: tuple[int, ...]) -> str:
    return str(values[0]) if len(set(values)) == 1 else "×".join(map(str, values))


# more than seven: the columns of the table below
def _entry(number: int, channels: tuple[int, int], kernel: int | tuple[int, ...], full: tuple[int, tuple[int, ...]],
           small: tuple[int, tuple[int, ...]], rest: tuple[str, ...] = _PLAIN, *, order_known: bool = True,
           ignored: tuple[str, ...] = (), **layer: int | tuple[int, ...]) -> Preset:
    dims = len(full[1])
    return Preset(f"kb{number}", number, ConvTranspose(dims, *channels, kernel, bias=False, **layer),  # type: ignore
                  full[0], full[1], small, _COMMON + rest,
                  "conv1d_transpose" if dims == 1 else f"conv_transpose{dims}d", ignored, order_known)


# number, (in, out) channels, kernel, full (batch, input size), small (batch, input size), rest of the constructor
PRESETS: dict[str, Preset] = {p.name: p for p in (
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
