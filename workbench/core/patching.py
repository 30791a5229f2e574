"""The report of a whole model: its layers, the kernels that replaced them, and what that changed. It holds no tensors."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import BadRequest
from .layer import ConvTranspose, Workload
from .typed import read, to_json

FASTER_ONLY, RIGHT = "faster", "right"   # which layers are kept; RIGHT: emulated or not, no times asked
KEEP = (FASTER_ONLY, RIGHT)
LIVE = "this:process"                    # the `model` of a source whose model is an object: no command makes it again
INFERENCE, TRAINING = "inference", "training step"
MODEL_DTYPES = ("float32", "float16", "bfloat16")
AUTOCAST_DTYPES = ("float16", "bfloat16")


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from and how it is run. `model`, `inputs`: `module:callable`; an empty `inputs` looks for the example
    that the module or the model brings. Modules are looked for in `folder` first. Raises `BadRequest`."""

    model: str
    inputs: str = ""
    folder: Path = Path()
    device: str = "cpu"
    dtype: str = ""                      # "": as the model comes
    autocast: str = ""                   # "": none
    train: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, text in (("model", self.model), ("inputs", self.inputs)):
            module, colon, attribute = text.rpartition(":")
            if (text or name == "model") and not (module and colon and attribute.replace(".", "_").isidentifier()):
                raise BadRequest(f"{name} is {text!r}; write MODULE:CALLABLE, for example my_module:build_{name}.", field=name)
        for name, value, known in (("dtype", self.dtype, MODEL_DTYPES), ("autocast", self.autocast, AUTOCAST_DTYPES)):
            if value and value not in known:
                raise BadRequest(f"{name} is {value!r}; choose {' or '.join(known)}, or leave it out.", field=name)


@dataclass(frozen=True)
class LayerCall:
    """Calls of a layer with one kind of input. Under autocast it computes in another `dtype` than that of its input."""

    shape: tuple[int, ...]
    input_dtype: str
    dtype: str
    memory_format: str
    requires_grad: bool
    count: int

    def workload(self, layer: ConvTranspose) -> Workload:
        """The same tensors as a workload. Raises `BadRequest` where there is none: an empty batch, say."""
        batched = len(self.shape) == layer.dims + 2
        return Workload(layer, self.shape[0] if batched else 1, self.shape[-layer.dims:], self.dtype, self.memory_format)


@dataclass(frozen=True)
class FoundLayer:
    """One instance of nn.ConvTranspose. `paths`: each way that leads to it, from the model. `share`: of the step's time.
    `why_not`: the sentence that says why it cannot be replaced; empty when it can."""

    paths: tuple[str, ...]
    layer: ConvTranspose
    calls: tuple[LayerCall, ...] = ()
    share: float | None = None
    why_not: str = ""

    @property
    def name(self) -> str:
        """All its paths, for a reader."""
        return ", ".join(path or "the model itself" for path in self.paths)

    @property
    def largest(self) -> LayerCall | None:
        """The call with the most elements; of equal ones the first."""
        return max(self.calls, key=lambda call: _elements(call.shape), default=None)


@dataclass(frozen=True)
class FunctionalCall:
    """A call of F.conv_transpose outside of an nn.ConvTranspose. It cannot be replaced, because no module stands for it."""

    function: str
    file: str
    line: int
    count: int


@dataclass(frozen=True)
class Inspected:
    """What one step of the model showed. `device`: the name of the GPU or CPU. `step_ms`: the time of the step, with the clocks
    that measure the layers' shares."""

    name: str
    device: str
    layers: tuple[FoundLayer, ...]
    functional: tuple[FunctionalCall, ...] = ()
    step_ms: float = 0.0


@dataclass(frozen=True)
class Pairs:
    """Times in ms of the original and of the patched, sample i of both taken one after the other, with their verdict.
    `ratio`: original / patched; above 1 the patched one is faster."""

    original_ms: float
    patched_ms: float
    ratio: float
    low: float | None
    high: float | None
    verdict: str
    samples: int


@dataclass(frozen=True)
class TimedLayer:
    """One instance, timed in the model's process on inputs of its own shapes. `kept`: its kernels stay in."""

    path: str
    kept: bool
    reason: str
    times: dict[str, Pairs] = field(default_factory=dict)      # INFERENCE, TRAINING


@dataclass(frozen=True)
class Drift:
    """Relative L2 distance, the largest over all outputs and over the gradients of all parameters. `tf32`: the same distance
    between PyTorch's own float32 with TF32 on and off, where it was measured. None: there is nothing to compare."""

    outputs: float | None
    gradients: float | None
    tf32_outputs: float | None = None
    tf32_gradients: float | None = None


@dataclass(frozen=True)
class Patched:
    """The whole model, before and after. `peak_bytes`: what one step takes at its peak on a GPU."""

    layers: tuple[TimedLayer, ...]
    times: dict[str, Pairs] = field(default_factory=dict)
    drift: dict[str, Drift] = field(default_factory=dict)      # INFERENCE, TRAINING
    peak_bytes: dict[str, int] = field(default_factory=dict)   # "original", "patched"
    undone: bool = False                                       # the step got slower: all was taken out again
    flags: tuple[str, ...] = ()
    differs: str = ""                                          # why its results are not the original's: all was taken out, too


@dataclass(frozen=True)
class PatchedLayer:
    """One row of a report. `recipe`: direction -> variant and precision. `status`: what the judge said of the kernels, "" where
    they were not judged. `verdict`: of the step asked for; empty where nothing was timed."""

    found: FoundLayer
    kept: bool
    reason: str
    recipe: dict[str, str] = field(default_factory=dict)
    status: str = ""
    times: dict[str, Pairs] = field(default_factory=dict)
    verdict: str = ""


@dataclass(frozen=True)
class PatchReport:
    """What `patch` tells. `keep`: which layers were kept; `emulated`: no time of a kernel is in it."""

    name: str
    source: ModelSource
    keep: str
    device: str
    emulated: bool
    layers: tuple[PatchedLayer, ...]
    functional: tuple[FunctionalCall, ...] = ()
    times: dict[str, Pairs] = field(default_factory=dict)
    drift: dict[str, Drift] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    undone: bool = False
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    command: str = ""
    differs: str = ""

    @property
    def kept(self) -> tuple[PatchedLayer, ...]:
        return tuple(row for row in self.layers if row.kept)

    @property
    def wrong(self) -> tuple[PatchedLayer, ...]:
        """Layers whose kernels were judged and are not right."""
        return tuple(row for row in self.layers if row.status not in ("", "OK"))

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(to_json(self))
        return found

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> PatchReport:
        """Raises `Misfit` for a key that is unknown, missing or of another type."""
        return read(cls, data)


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
