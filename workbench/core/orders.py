"""The orders to a worker: one frozen dataclass for each operation. `reply` is the type of its answer.

Orders and replies go through the pipe as JSON. `typed` refuses a key that is unknown, missing or of another type.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from .layer import Workload
from .patching import FASTER_ONLY, Inspected, LayerCall, ModelSource, Patched
from .replies import (
    Alive,
    Baselines,
    Built,
    Checked,
    Compared,
    Compiled,
    Device,
    Event,
    Explained,
    Judged,
    MachineCode,
    ModuleJudged,
    Profiled,
    Rates,
    Resources,
)

R_co = TypeVar("R_co", covariant=True)
Emit = Callable[[Event], None]   # an operation calls it to say what it is doing
GUARDS = frozenset({"poison", "guard_zone", "nan", "inputs", "recheck", "watch", "stream"})


class Order(Generic[R_co]):
    """`operation` is its name on the wire. `ends_itself`: on SIGTERM it ends what it has started and removes its files."""

    operation: ClassVar[str]
    reply: ClassVar[type[Any]]
    ends_itself: ClassVar[bool] = False


@dataclass(frozen=True)
class PingOrder(Order[Alive]):
    operation = "ping"
    reply = Alive


@dataclass(frozen=True)
class WarmOrder(Order[Alive]):
    """Import these modules of `measure` before the first order needs them."""

    operation = "warm"
    reply = Alive
    modules: tuple[str, ...]


@dataclass(frozen=True)
class DeviceOrder(Order[Device]):
    operation = "device"
    reply = Device
    device: str


@dataclass(frozen=True)
class CeilingsOrder(Order[Rates]):
    operation = "ceilings"
    reply = Rates
    device: str


@dataclass(frozen=True)
class Member:
    """One candidate of a batch: its source alone, under the symbol that it has in the batch."""

    symbol: str
    source: str


@dataclass(frozen=True)
class BuildOrder(Order[Built]):
    """A source to compile. When a batch fails its `members` are built alone, so that only the culprits fail."""

    operation = "build"
    reply = Built
    source: str
    device: str                        # "cpu" | "cuda"
    cache: Path
    symbols: tuple[str, ...] = ()      # that the library has to export
    arch: str = ""
    flags: tuple[str, ...] = ()
    sanitize: str = ""                 # "" | "address"
    log: Path | None = None            # what the compiler says is added there
    members: tuple[Member, ...] = ()


@dataclass(frozen=True)
class ResourcesOrder(Order[Resources]):
    """Ask nvcc what the kernels of a source take on these architectures."""

    operation = "resources"
    reply = Resources
    source: str
    archs: tuple[str, ...]
    cache: Path
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class MachineCodeOrder(Order[MachineCode]):
    """Ask for PTX and SASS of a source on one architecture."""

    operation = "machine_code"
    reply = MachineCode
    source: str
    arch: str
    cache: Path
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class JudgeOrder(Order[Judged]):
    """Judge one candidate of a built library, whose SHA-256 is `digest` ("": not checked). `guards` (default: all): tests leave
    out one to show what it catches."""

    operation = "judge"
    reply = Judged
    library: Path
    symbol: str
    direction: str
    workload: Workload
    device: str
    precision: str
    digest: str = ""
    effort: str = "normal"
    time: bool = True
    cold_l2: bool = True
    guards: frozenset[str] = GUARDS
    sanitize: bool = False             # no guard zones: a read beyond the end leaves the allocation and is seen
    scratch: Path = Path(tempfile.gettempdir()) / "kernel-workbench-truth"
    floor_ms: float | None = None
    limit_s: float = 60.0
    to_beat_ms: float | None = None    # timing ends early where it is clearly slower than this
    channels_last: bool = False        # the launcher takes activations that are channels_last in memory


@dataclass(frozen=True)
class ExplainOrder(Order[Explained]):
    """Launch a candidate that was found wrong once more, and say where `tensor` is wrong. A kernel may fault on the smaller
    sizes that are tried, so this is asked when the outcome is known."""

    operation = "explain"
    reply = Explained
    of: JudgeOrder
    tensor: str
    inputs: str                        # the kind on which it was wrong
    shrink: bool = True                # look for the smallest case


@dataclass(frozen=True)
class ProfileOrder(Order[Profiled]):
    """Launch a candidate under Nsight Compute. `ncu`: the program; `launches`: how many kernels it counts, at most."""

    operation = "profile"
    reply = Profiled
    of: JudgeOrder
    ncu: Path
    launches: int = 12


@dataclass(frozen=True)
class CompareOrder(Order[Compared]):
    """Time a candidate in turns with a way of PyTorch's (a key of `pytorch_ways.WAYS`) or with another candidate."""

    operation = "compare"
    reply = Compared
    ours: JudgeOrder
    theirs: JudgeOrder | str
    effort: str = ""                   # "": that of `ours`
    limit_s: float = 0.0               # 0: a third of that of `ours`


@dataclass(frozen=True)
class BaselineOrder(Order[Baselines]):
    """Measure PyTorch's own ways of some directions. After `search_s` seconds of a direction no further formulation of its
    layer by other operators is begun; nn.ConvTranspose is measured all the same."""

    operation = "baseline"
    reply = Baselines
    workload: Workload
    device: str
    directions: tuple[str, ...]
    modes: tuple[str, ...]             # keys of `pytorch_ways.WAYS`, in the order in which they are asked
    effort: str = "normal"
    cold_l2: bool = True
    scratch: Path = Path(tempfile.gettempdir()) / "kernel-workbench-truth"
    search_s: float = 6.0


@dataclass(frozen=True)
class CompileOrder(Order[Compiled]):
    """Have torch.compile fill its cache on the disk for these ways of PyTorch's. Nothing is measured."""

    operation = "compile"
    reply = Compiled
    workload: Workload
    device: str
    modes: dict[str, tuple[str, ...]]  # direction -> keys of `pytorch_ways.WAYS`


@dataclass(frozen=True)
class ModuleOrder(Order[ModuleJudged]):
    """Run the text of an exported file and judge its class. `attribute`: where the class holds its layer, "" for itself."""

    operation = "module"
    reply = ModuleJudged
    text: str
    workload: Workload
    constructor_args: tuple[Any, ...]
    device: str
    scratch: Path
    class_name: str = "ModelNew"
    attribute: str = ""
    effort: str = "normal"
    time: bool = False

    @property
    def emulate(self) -> bool:
        """On the CPU its kernels run on the emulator."""
        return self.device == "cpu"


@dataclass(frozen=True)
class CheckOrder(Order[Checked]):
    """Check the text of a foreign file against that of a reference."""

    operation = "check"
    ends_itself = True
    reply = Checked
    text: str
    class_name: str
    reference: str
    device: str
    memory_bytes: int
    call_s: float
    build_s: float
    seed: int | None = None
    time: bool = True
    nvcc: bool = True
    effort: str = "normal"


@dataclass(frozen=True)
class InspectOrder(Order[Inspected]):
    """Run a model once and say which transposed convolutions it has."""

    operation = "inspect"
    reply = Inspected
    source: ModelSource


@dataclass(frozen=True)
class PatchOrder(Order[Patched]):
    """Put kernels that were judged into a model, and compare it with the original. `text`: the file that does it. `calls`: path
    of each layer that is patched -> the call on which it is timed."""

    operation = "patch"
    reply = Patched
    source: ModelSource
    text: str
    calls: dict[str, LayerCall]
    keep: str = FASTER_ONLY
    effort: str = "normal"


ORDERS: dict[str, type[Order[Any]]] = {order.operation: order for order in (
    PingOrder, WarmOrder, DeviceOrder, CeilingsOrder, BuildOrder, ResourcesOrder, MachineCodeOrder, JudgeOrder, ExplainOrder,
    ProfileOrder, CompareOrder, BaselineOrder, CompileOrder, ModuleOrder, CheckOrder, InspectOrder, PatchOrder)}
