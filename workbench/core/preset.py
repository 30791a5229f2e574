"""`Preset`: one named layer of a suite, and from it a `Workload` in one of three sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
