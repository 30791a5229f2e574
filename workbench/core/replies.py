"""The replies of a worker: events while it works, then one frozen dataclass for its operation, or a `Failure`.

`orders` says which operation answers with which. What `Detail` holds under `shown` is written into a session as it is; all
else is read by name.
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
    """Sent while the work goes on: what is being done. `so_far`: all that a check knows now, where that has changed."""

    phase: str
    text: str
    so_far: Checked | None = None


@dataclass(frozen=True)
class Failure:
    """The operation raised. `machine`: the disk or another part of the machine refused."""

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
    """What "cpu" or "cuda:N" is. Bytes are of the device's own memory; the emulator has the `sm` that it emulates."""

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
        """What a trial keeps of it."""
        return TrialDevice(self.kind, self.index, self.name, self.arch, self.sm, self.key)


@dataclass(frozen=True)
class Rates:
    """What a GPU was measured to read, write, copy and multiply."""

    name: str
    uuid: str
    read_bytes_per_s: float
    write_bytes_per_s: float
    copy_bytes_per_s: float
    flops_per_s: dict[str, float]
    l2_bytes: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a piece of work ended. An empty `advice` leaves it to the status."""

    status: Status
    headline: str
    advice: str = ""
    detail: Detail = Detail()


@dataclass(frozen=True, kw_only=True)
class Resources(Outcome):
    """What nvcc says of a source."""

    resources: Kernels = field(default_factory=dict)
    cached: bool = False
    seconds: float = 0.0
    first_error: FirstError | None = None


@dataclass(frozen=True, kw_only=True)
class MachineCode(Outcome):
    """PTX and SASS as text, and the registers in use beside SASS. Without nvdisasm `sass` is "" and `headline` says so.
    `names`: mangled name of each kernel -> short one."""

    ptx: str = ""
    sass: str = ""
    live: str = ""
    names: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Built(Outcome):
    """A library and its SHA-256, or why there is none. `members`: of a batch, each member's own by its symbol."""

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
        """What a trial keeps of the build; nothing where no compiler was reached."""
        return TrialBuild(self.seconds, self.cached, self.compiler) if self.compiler else None


@dataclass(frozen=True, kw_only=True)
class Judged(Outcome):
    """One candidate's trial. `restart`: the CUDA context is lost, and the process ends after this reply."""

    errors: dict[str, Errors] = field(default_factory=dict)   # result -> errors
    where: WrongValues | None = None                          # asked later, by an order of its own
    kernel_ms: Timing | None = None
    samples: tuple[float, ...] = ()
    memory: dict[str, int] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    restart: bool = False


@dataclass(frozen=True)
class Explained:
    """Where a wrong result is wrong; None where a second launch was right or did not end well. `restart`: as of `Judged`."""

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
    """One way of PyTorch's, measured, or why it was not."""

    name: str
    direction: str
    precision: str = ""
    errors: dict[str, Errors] = field(default_factory=dict)
    kernel_ms: Timing | None = None
    samples: tuple[float, ...] = ()
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Baselines:
    baselines: tuple[Baseline, ...]


@dataclass(frozen=True, kw_only=True)
class Compared(Outcome):
    """Samples in ms, pair by pair."""

    ours: tuple[float, ...] = ()
    theirs: tuple[float, ...] = ()
    dropped: int = 0
    stop: str = ""
    flags: tuple[str, ...] = ()
    restart: bool = False


@dataclass(frozen=True)
class ModuleTimes:
    """Of one contestant: direction -> times. `name`: "" is the module itself."""

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
    """One of PyTorch's ways, timed when nothing of the file was left. Samples in ms."""

    key: str
    name: str
    precision: str
    samples: tuple[float, ...]


@dataclass(frozen=True)
class WayTimes(WayAlone):
    """The same, in turns with the file: sample i of all of them was taken in one turn. `bounds`, on the CPU: of each sample the
    least and the most that it can have been without others on the cores. `why_not`: why it is none to beat, where it is not
    `drop_in`."""

    timing: Timing
    bounds: tuple[tuple[float, ...], ...]
    process: str
    kernels: tuple[str, ...]
    drop_in: bool
    why_not: str


@dataclass(frozen=True)
class OneByOne:
    """Samples in ms of the file and of the way to beat, in batches of one call."""

    ours: tuple[float, ...]
    theirs: tuple[float, ...]


@dataclass(frozen=True)
class CheckTimes:
    """One direction of a foreign module, in turns with PyTorch's ways. `throttled`: turns in which the GPU held its clocks
    down; `starved`: ways that had no memory; `empty_ms`: what request, input and copy take of a call; `doubted`: the ways that
    were asked again, because the file seemed to win; `alone` and `singly` are their answers."""

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
    """What the judge of a foreign module found. `gpu` and `workload` say what the floor of the times is. `declared`: the
    precision in which it was judged because the file declares it, where the reference is more exact."""

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
