"""The orders to a worker: one frozen dataclass for each operation. `reply` is the type of its answer.

Orders and replies go through the pipe as JSON. `typed` refuses a key that is unknown, missing or of another type.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from .layer import Workload
from .patching import FASTER_ONLY, Inspected, LayerCall, ModelSource, Patched
from .replies import (
    Alive,
    Baselines,
    Built,
    Checked,
    Compiled,
    Device,
    Event,
    Explained,
    Interleaved,
    Judged,
    MachineCode,
    ModuleJudged,
    Profiled,
    Rates,
    Resources,
)
from .wrong_values import Tile

R_co = TypeVar("R_co", covariant=True)
Emit = Callable[[Event], None]   # an operation calls it with its current step
_LONGEST_WORD = 40               # shorter than a digest
GUARDS = frozenset({"poison", "guard_zone", "nan", "inputs", "recheck", "watch", "stream", "new_process"})


class Order(Generic[R_co]):
    """`operation` is its name on the wire. `ends_itself`: on SIGTERM the operation ends the processes that it started and
    removes its files."""

    operation: ClassVar[str]
    reply: ClassVar[type[Any]]
    ends_itself: ClassVar[bool] = False

    def __str__(self) -> str:
        """What is asked, for the log: the operation and the order's short words and layer, without sources and folders."""
        return " ".join([self.operation, *_words(self)])


def _words(order: Any) -> Iterator[str]:
    for entry in fields(order):
        value = getattr(order, entry.name)
        if isinstance(value, Order):
            yield from _words(value)
        elif isinstance(value, Workload):
            yield value.preset or str(value.layer)
        elif isinstance(value, str) and value and len(value) <= _LONGEST_WORD and "\n" not in value:
            yield value


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
    """One candidate of a batch: its own source, in which the symbol is the same as in the batch."""

    symbol: str
    source: str


@dataclass(frozen=True)
class BuildOrder(Order[Built]):
    """A source to compile. If a batch fails, its `members` are built one by one, so that only those with an error fail."""

    operation = "build"
    reply = Built
    source: str
    device: str                        # "cpu" | "cuda"
    cache: Path
    symbols: tuple[str, ...] = ()      # the symbols that the library must export
    arch: str = ""
    flags: tuple[str, ...] = ()
    sanitize: str = ""                 # "" | "address"
    log: Path | None = None            # the file to which the compiler's output is appended
    members: tuple[Member, ...] = ()


@dataclass(frozen=True)
class ResourcesOrder(Order[Resources]):
    """Ask nvcc for the resources of the kernels of a source on these architectures."""

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
    """Judge one candidate of a built library, whose SHA-256 is `digest` ("": not checked). `guards`: the tests of the judge
    that are on (default: all). The test suite switches one off to show what it detects."""

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
    sanitize: bool = False             # no guard zones, so that AddressSanitizer detects a read beyond the end
    scratch: Path = Path(tempfile.gettempdir()) / "kernel-workbench-truth"
    floor_ms: float | None = None
    limit_s: float = 60.0
    to_beat_ms: float | None = None    # timing ends early if the candidate is clearly slower than this
    channels_last: bool = False        # the launcher takes activations that are channels_last in memory


@dataclass(frozen=True)
class ExplainOrder(Order[Explained]):
    """Launch a wrong candidate once more, and find where `tensor` is wrong. The order is sent when the outcome is known,
    because the kernel may fault on the smaller sizes that are tried."""

    operation = "explain"
    reply = Explained
    of: JudgeOrder
    tensor: str
    inputs: str                        # the kind of inputs for which the result was wrong
    tiles: tuple[Tile, ...] = ()       # of the config
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
class InterleaveOrder(Order[Interleaved]):
    """Time a candidate alternately with a way of PyTorch (a key of `pytorch_ways.WAYS`) or with another candidate."""

    operation = "interleave"
    reply = Interleaved
    ours: JudgeOrder
    theirs: JudgeOrder | str
    effort: str = ""                   # "": the same as that of `ours`
    limit_s: float = 0.0               # 0: a third of the value of `ours`


@dataclass(frozen=True)
class BaselineOrder(Order[Baselines]):
    """Measure PyTorch's ways of computing some directions. After `search_s` seconds in a direction no further formulation by
    other operators is started. nn.ConvTranspose is always measured."""

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
    """Compile these ways of PyTorch with torch.compile, which stores them in its cache on the disk. Nothing is measured."""

    operation = "compile"
    reply = Compiled
    workload: Workload
    device: str
    modes: dict[str, tuple[str, ...]]  # direction -> keys of `pytorch_ways.WAYS`


@dataclass(frozen=True)
class ModuleOrder(Order[ModuleJudged]):
    """Run the text of an exported file and judge its class. `attribute`: the attribute of the class that holds the layer; "" if
    the class is the layer."""

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
        """Whether the kernels run on the emulator: true on the CPU."""
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
    """Replace layers of a model by judged kernels, and compare the model with the original. `text`: the text of the file that
    replaces them. `calls`: path of each replaced layer -> the call for which it is timed."""

    operation = "patch"
    reply = Patched
    source: ModelSource
    text: str
    calls: dict[str, LayerCall]
    keep: str = FASTER_ONLY
    effort: str = "normal"


ORDERS: dict[str, type[Order[Any]]] = {order.operation: order for order in (
    PingOrder, WarmOrder, DeviceOrder, CeilingsOrder, BuildOrder, ResourcesOrder, MachineCodeOrder, JudgeOrder, ExplainOrder,
    ProfileOrder, InterleaveOrder, BaselineOrder, CompileOrder, ModuleOrder, CheckOrder, InspectOrder, PatchOrder)}
