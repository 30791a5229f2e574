"""The replies of a worker: events while it works, then one frozen dataclass for its operation, or a `Failure`.

`orders` says which operation answers with which reply. The values in `Detail.shown` are written into a session unchanged; code
reads all other fields by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .answers import Question
from .check_parts import FirstError, KernelBench, LeftOut, LooksLike, Phase, SmallestCase
from .confinement import Confinement
from .layer import Workload
from .profile import KernelCounters
from .trial import Errors, Status, Timing
from .trial_parts import Detail, Kernels, TrialBuild, TrialDevice
from .wrong_values import WrongValues


@dataclass(frozen=True)
class Event:
    """Sent during the work: the current step. `so_far`: the results of a check up to now, if they have changed."""

    phase: str
    text: str
    so_far: Checked | None = None


@dataclass(frozen=True)
class Failure:
    """The operation raised an exception. `machine`: the cause is the disk or another part of the machine."""

    type: str
    message: str
    trace: str
    machine: bool = False


@dataclass(frozen=True)
class Alive:
    pid: int


@dataclass(frozen=True)
class Compiled:
    """How many of PyTorch's compiled ways torch.compile has prepared."""

    count: int


@dataclass(frozen=True)
class Device:
    """The device behind "cpu" or "cuda:N". Bytes are those of the device's memory. `sm` of the emulator is the one that it
    emulates."""

    kind: str        # "cpu" | "cuda"
    index: int
    name: str
    arch: str
    sm: int
    key: str
    total_bytes: int
    free_bytes: int
    torch: str
    cuda: str
    cudnn: int
    driver: str
    l2_bytes: int

    @property
    def recorded(self) -> TrialDevice:
        """The part that a trial keeps."""
        return TrialDevice(self.kind, self.index, self.name, self.arch, self.sm, self.key)


@dataclass(frozen=True)
class Rates:
    """The measured rates of a GPU for reading, writing, copying and multiplying."""

    name: str
    uuid: str
    read_bytes_per_s: float
    write_bytes_per_s: float
    copy_bytes_per_s: float
    flops_per_s: dict[str, float]
    l2_bytes: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a piece of work ended. With an empty `advice`, the advice of the status is shown."""

    status: Status
    headline: str
    advice: str = ""
    detail: Detail = Detail()


@dataclass(frozen=True, kw_only=True)
class Resources(Outcome):
    """What nvcc reports about a source: the resources of its kernels."""

    resources: Kernels = field(default_factory=dict)
    cached: bool = False
    seconds: float = 0.0
    first_error: FirstError | None = None


@dataclass(frozen=True, kw_only=True)
class MachineCode(Outcome):
    """PTX and SASS as text, and SASS with the number of registers in use. Without nvdisasm `sass` is "" and `headline` says so.
    `names`: mangled name of each kernel -> short name."""

    ptx: str = ""
    sass: str = ""
    live: str = ""
    names: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Built(Outcome):
    """A library and its SHA-256, or why there is none. `members`: of a batch, the `Built` of each member, by its symbol."""

    library: str = ""
    digest: str = ""
    key: str = ""
    seconds: float = 0.0
    cached: bool = False
    compiler: str = ""
    first_error: FirstError | None = None
    resources: Kernels = field(default_factory=dict)
    members: dict[str, Built] = field(default_factory=dict)

    @property
    def recorded(self) -> TrialBuild | None:
        """The part that a trial keeps; empty if no compiler was started."""
        return TrialBuild(self.seconds, self.cached, self.compiler) if self.compiler else None


@dataclass(frozen=True, kw_only=True)
class Judged(Outcome):
    """One candidate's trial. `restart`: the CUDA context is lost, and the process ends after this reply."""

    errors: dict[str, Errors] = field(default_factory=dict)   # result -> errors
    where: WrongValues | None = None                          # filled in later, from the reply to an `ExplainOrder`
    kernel_ms: Timing | None = None
    samples: tuple[float, ...] = ()
    clocks: tuple[int, ...] = ()                              # MHz, one for each sample; () where they are not known
    memory: dict[str, int] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    restart: bool = False


@dataclass(frozen=True)
class Explained:
    """Where a result is wrong; None if the second launch was right or failed. `restart`: as in `Judged`."""

    values: WrongValues | None = None
    restart: bool = False


@dataclass(frozen=True)
class Profiled:
    """What Nsight Compute counted, in the order of the launches; or a sentence that says why it counted nothing."""

    kernels: tuple[KernelCounters, ...] = ()
    why_not: str = ""
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class Baseline(Outcome):
    """The measurement of one way of PyTorch, or why it was not measured."""

    name: str
    direction: str
    precision: str = ""
    errors: dict[str, Errors] = field(default_factory=dict)
    kernel_ms: Timing | None = None
    samples: tuple[float, ...] = ()
    clocks: tuple[int, ...] = ()
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Baselines:
    baselines: tuple[Baseline, ...]


@dataclass(frozen=True, kw_only=True)
class Interleaved(Outcome):
    """Samples in ms, pair by pair."""

    ours: tuple[float, ...] = ()
    theirs: tuple[float, ...] = ()
    dropped: int = 0
    stop: str = ""
    flags: tuple[str, ...] = ()
    restart: bool = False


@dataclass(frozen=True)
class ModuleTimes:
    """The times of one contestant, by direction. `name`: "" for the module itself."""

    name: str
    precision: str
    module_ms: dict[str, Timing]
    samples: dict[str, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True)
class ModuleJudged(Outcome):
    """An exported module's trial; `baselines` are nn.ConvTranspose in its modes, from the same measurement."""

    errors: dict[str, Errors] = field(default_factory=dict)
    precision: str = ""
    module_ms: dict[str, Timing] = field(default_factory=dict)
    samples: dict[str, tuple[float, ...]] = field(default_factory=dict)
    baselines: tuple[ModuleTimes, ...] = ()
    flags: tuple[str, ...] = ()
    restart: bool = False


@dataclass(frozen=True)
class WayAlone:
    """One way of PyTorch, timed after the file's process had ended. Samples in ms."""

    key: str
    name: str
    precision: str
    samples: tuple[float, ...]


@dataclass(frozen=True)
class WayTimes(WayAlone):
    """One way of PyTorch, timed alternately with the file: sample i of all contestants was taken in the same turn. `bounds`, on
    the CPU: the least and the greatest time that each sample can have without other processes on the cores. `why_not`: why the
    file is not compared with it, if it is not `drop_in`."""

    timing: Timing
    bounds: tuple[tuple[float, ...], ...]
    process: str
    kernels: tuple[str, ...]
    drop_in: bool
    why_not: str


@dataclass(frozen=True)
class OneByOne:
    """Samples in ms of the file and of the way that it is compared with, in batches of one call."""

    ours: tuple[float, ...]
    theirs: tuple[float, ...]


@dataclass(frozen=True)
class CheckTimes:
    """One direction of a foreign module, timed alternately with PyTorch's ways. `throttled`: turns in which the GPU lowered its
    clocks. `starved`: ways that had not enough memory. `empty_ms`: the time of request, input and copy in a call. `doubted`:
    ways that were timed again, because the file was faster; `alone` and `singly` hold these times."""

    ours: Timing
    samples: tuple[float, ...]
    bounds: tuple[tuple[float, ...], ...]
    calls: int
    checked: int
    throttled: int
    precision: str
    empty_ms: float
    baselines: tuple[WayTimes, ...]
    left_out: tuple[LeftOut, ...] = ()
    starved: tuple[str, ...] = ()
    doubted: tuple[str, ...] = ()
    alone: tuple[WayAlone, ...] = ()
    singly: OneByOne | None = None


@dataclass(frozen=True)
class Checked:
    """What the judge of a foreign module found. `gpu` and `workload` determine the floor of the times. `declared`: the
    precision that the file declares and in which it was judged, if the reference is more exact; else "". `options`: arguments
    of the reference's forward that no call gives. `untimed`: why a direction has no times although the other one has."""

    questions: tuple[Question, ...]
    confined: Confinement
    seed: int = 0
    emulated: bool = False
    seconds: float = 0.0
    smallest: SmallestCase | None = None
    mistake: LooksLike | None = None
    kernelbench: KernelBench | None = None
    times: dict[str, CheckTimes] = field(default_factory=dict)   # by direction
    workload: Workload | None = None
    gpu: Device | None = None
    phases: tuple[Phase, ...] = ()
    declared: str = ""
    options: tuple[str, ...] = ()
    untimed: dict[str, str] = field(default_factory=dict)
