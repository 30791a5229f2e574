"""The report of a whole model: its layers, the kernels that replaced them, and what that changed. It holds no tensors."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import BadRequest
from .layer import ConvTranspose, Workload
from .typed import read, to_json

FASTER_ONLY, RIGHT = "faster", "right"   # which layers stay replaced; RIGHT: all that have right kernels
KEEP = (FASTER_ONLY, RIGHT)
LIVE = "this:process"                    # the `model` of a source that is a Python object, which no command can construct
INFERENCE, TRAINING = "inference", "training step"
MODEL_DTYPES = ("float32", "float16", "bfloat16")
AUTOCAST_DTYPES = ("float16", "bfloat16")


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from and how it is run. `model`, `inputs`: `module:callable`; with an empty `inputs` the example
    inputs of the module or of the model are used. Modules are searched in `folder` first. Raises `BadRequest`."""

    model: str
    inputs: str = ""
    folder: Path = Path()
    device: str = "cpu"
    dtype: str = ""                      # "": the dtype that the model has
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
    """The calls of a layer with inputs of one shape and dtype. Under autocast `dtype` is the one in which the layer computes,
    not that of its input."""

    shape: tuple[int, ...]
    input_dtype: str
    dtype: str
    memory_format: str
    requires_grad: bool
    count: int

    def workload(self, layer: ConvTranspose) -> Workload:
        """The workload with these tensors. Raises `BadRequest` if there is none, for example for an empty batch."""
        batched = len(self.shape) == layer.dims + 2
        return Workload(layer, self.shape[0] if batched else 1, self.shape[-layer.dims:], self.dtype, self.memory_format)


@dataclass(frozen=True)
class FoundLayer:
    """One instance of nn.ConvTranspose. `paths`: each attribute path to it in the model. `share`: its share of the step's time.
    `why_not`: the sentence that says why it cannot be replaced; empty if it can be."""

    paths: tuple[str, ...]
    layer: ConvTranspose
    calls: tuple[LayerCall, ...] = ()
    share: float | None = None
    why_not: str = ""

    @property
    def name(self) -> str:
        """Its paths as one text."""
        return ", ".join(path or "the model itself" for path in self.paths)

    @property
    def largest(self) -> LayerCall | None:
        """The call with the most elements; of equal ones the first."""
        return max(self.calls, key=lambda call: _elements(call.shape), default=None)


@dataclass(frozen=True)
class FunctionalCall:
    """A call of F.conv_transpose outside of an nn.ConvTranspose. It cannot be replaced, because it is not a module."""

    function: str
    file: str
    line: int
    count: int


@dataclass(frozen=True)
class Inspected:
    """What was found in one step of the model. `device`: the name of the GPU or CPU. `step_ms`: the time of the step, including
    the timers that measure the layers' shares."""

    name: str
    device: str
    layers: tuple[FoundLayer, ...]
    functional: tuple[FunctionalCall, ...] = ()
    step_ms: float = 0.0


@dataclass(frozen=True)
class Pairs:
    """Times in ms of the original and of the patched model or layer, with their verdict. Sample i of one was taken directly
    after sample i of the other. `ratio`: original / patched; above 1 the patched one is faster."""

    original_ms: float
    patched_ms: float
    ratio: float
    low: float | None
    high: float | None
    verdict: str
    samples: int


@dataclass(frozen=True)
class TimedLayer:
    """One instance, timed in the model's process on inputs of its own shapes. `kept`: whether the layer stays replaced.
    `behind_host`: it is not faster alone, but the GPU alone is: the whole model decides."""

    path: str
    kept: bool
    reason: str
    times: dict[str, Pairs] = field(default_factory=dict)      # INFERENCE, TRAINING
    behind_host: bool = False


@dataclass(frozen=True)
class Drift:
    """How much the results of the patched model differ: the relative L2 distance, the largest of all outputs, and the largest
    of the gradients of all parameters. `own`: the same distance between two precisions of PyTorch, if it was measured: float32
    with TF32 on and off, or autocast on and off. None: there is nothing to compare."""

    outputs: float | None
    gradients: float | None
    own_outputs: float | None = None
    own_gradients: float | None = None


@dataclass(frozen=True)
class Patched:
    """The whole model, before and after. `peak_bytes`: the largest GPU memory in use during one step."""

    layers: tuple[TimedLayer, ...]
    times: dict[str, Pairs] = field(default_factory=dict)
    drift: dict[str, Drift] = field(default_factory=dict)      # INFERENCE, TRAINING
    peak_bytes: dict[str, int] = field(default_factory=dict)   # "original", "patched"
    undone: bool = False                                       # the step got slower, so no layer stays replaced
    flags: tuple[str, ...] = ()
    differs: str = ""                                          # why its results differ too much; no layer stays replaced


@dataclass(frozen=True)
class PatchedLayer:
    """One row of a report. `recipe`: direction -> variant and precision. `status`: the judge's status of the kernels; "" if
    they were not judged. `verdict`: that of the requested step; empty if nothing was timed."""

    found: FoundLayer
    kept: bool
    reason: str
    recipe: dict[str, str] = field(default_factory=dict)
    status: str = ""
    times: dict[str, Pairs] = field(default_factory=dict)
    verdict: str = ""


@dataclass(frozen=True)
class PatchReport:
    """The report of `patch`. `keep`: the rule by which layers stay replaced. `emulated`: the kernels ran on the emulator, so
    the report has no times of them."""

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
