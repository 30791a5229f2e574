"""The outcome of one evaluation: `Status`, the advice of each status, and `Trial`, one immutable line of a session."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from enum import StrEnum
from math import inf
from typing import Any

from .errors import BadRequest
from .gpu import ARCH
from .layer import LAUNCHES, Workload
from .trial_parts import Detail, Environment, Kernels, TrialBuild, TrialDevice
from .typed import read

SCHEMA = "kernel-workbench/trial/1"
KINDS = ("candidate", "baseline", "module", "module_baseline")
NOT_DROP_IN = "not_drop_in"   # flag of a baseline with another memory format: it is shown, but no candidate is compared with it
FORMULATION = "formulation"   # flag of a baseline by other operators: it counts only for the strongest PyTorch
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


class Status(StrEnum):
    OK = "OK"
    SKIPPED = "SKIPPED"
    CANCELLED = "CANCELLED"
    RENDER_FAILED = "RENDER_FAILED"
    NO_COMPILER = "NO_COMPILER"
    MACHINE_FAILED = "MACHINE_FAILED"
    BUILD_FAILED = "BUILD_FAILED"
    BUILD_TIMEOUT = "BUILD_TIMEOUT"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    KERNEL_FAULT = "KERNEL_FAULT"
    RUN_TIMEOUT = "RUN_TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    WORKER_DIED = "WORKER_DIED"
    WRONG_SHAPE = "WRONG_SHAPE"
    WRONG_DTYPE = "WRONG_DTYPE"
    WRONG_DEVICE = "WRONG_DEVICE"
    UNWRITTEN = "UNWRITTEN"
    OUT_OF_BOUNDS = "OUT_OF_BOUNDS"
    NON_FINITE = "NON_FINITE"
    MISMATCH = "MISMATCH"
    INPUT_MODIFIED = "INPUT_MODIFIED"
    NO_GRADIENT = "NO_GRADIENT"
    NONDETERMINISTIC = "NONDETERMINISTIC"
    IMPLAUSIBLE = "IMPLAUSIBLE"


# No result was judged: the machine is the cause, or the kernel does not support this layer.
NOT_JUDGED = frozenset({Status.SKIPPED, Status.CANCELLED, Status.NO_COMPILER, Status.MACHINE_FAILED, Status.OUT_OF_MEMORY})

# Ended by the machine or by a limit: this does not show that the kernel is wrong.
SHOWS_NOTHING = NOT_JUDGED | {Status.WORKER_DIED, Status.RUN_TIMEOUT}

# The kernel ran to its end, and its results are wrong.
WRONG_VALUES = frozenset({Status.UNWRITTEN, Status.NON_FINITE, Status.MISMATCH})

# The advice that is shown if the trial has none of its own: one step, in the imperative, in one line.
DEFAULT_ADVICE = {
    Status.OK: "Compare it with the best PyTorch, or try other tunables.",
    Status.SKIPPED: "Change the value named above, or choose another variant for this layer.",
    Status.CANCELLED: "Resume runs the missing candidates.",
    Status.RENDER_FAILED: "Correct the template in the line named above.",
    Status.NO_COMPILER: "Install the compiler named above, or choose device cpu.",
    Status.MACHINE_FAILED: "This says nothing about the kernel. Fix the cause named above, then resume the run.",
    Status.BUILD_FAILED: "Correct the line named above.",
    Status.BUILD_TIMEOUT: "Unroll loops less, or raise the time limit of builds.",
    Status.LAUNCH_FAILED: "Lower the block size or the shared memory of the config.",
    Status.KERNEL_FAULT: "Run it on device cpu with --sanitize address; AddressSanitizer names the line.",
    Status.RUN_TIMEOUT: "Look for an endless loop, or for a barrier that only some threads reach. If the layer is large, raise "
                        "the time limit.",
    Status.OUT_OF_MEMORY: "Use the small size, a smaller batch, or float16.",
    Status.WORKER_DIED: "Look for a pointer error in host code. The next trial runs in a new process.",
    Status.WRONG_SHAPE: "Compare the output size with PyTorch's formula, output_padding included.",
    Status.WRONG_DTYPE: "Return the dtype of the input.",
    Status.WRONG_DEVICE: "Allocate the result on the device of the input.",
    Status.UNWRITTEN: "Check the grid size and the index of each store, and store zeros where no tap reaches.",
    Status.OUT_OF_BOUNDS: "Test the index before the store, also in the last block.",
    Status.NON_FINITE: "Look for a read outside of a tensor, and for memory that is read before it is written.",
    Status.MISMATCH: "Check the divisibility test and the border at the worst index.",
    Status.INPUT_MODIFIED: "Declare the inputs const and write only to the result.",
    Status.NO_GRADIENT: "Wrap the call in torch.autograd.Function.",
    Status.NONDETERMINISTIC: "Replace atomicAdd with a two-step sum.",
    Status.IMPLAUSIBLE: "Check that the kernel does all of its work on every run.",
}


def advice_for(status: Status, stride: Sequence[int]) -> str:
    """The advice for a layer with that stride. At stride 1 each index is divisible."""
    if status is Status.MISMATCH and max(stride) == 1:
        return "Check the index of each tap and the border at the worst index."
    return DEFAULT_ADVICE[status]


@dataclass(frozen=True)
class Timing:
    """A summary of the samples of one kind of time. All times are in ms. `stop`: the rule that ended the sampling."""

    median_ms: float
    q25_ms: float
    q75_ms: float
    min_ms: float
    samples: int
    stop: str
    cold_l2: bool
    samples_blob: str = ""
    samples_in: str = field(default="", compare=False)  # the session that holds the blob, while it is open
    dropped: int = 0                     # samples left out because the GPU had lowered its clocks

    @property
    def spread(self) -> float | None:
        """Half the interquartile range divided by the median; None below 5 samples."""
        return None if self.samples < 5 else (self.q75_ms - self.q25_ms) / 2 / self.median_ms


@dataclass(frozen=True)
class Errors:
    """Distance of one result from the float64 truth."""

    max_abs: float
    max_rel: float
    rel_l2: float
    allowed: float                       # the tolerance on rel_l2 that was applied
    worst_index: tuple[int, ...]
    got: float
    expected: float
    wrong: int                           # elements outside the tolerance
    count: int                           # elements compared
    kernelbench_ok: bool = False         # the result of KernelBench's own rule

    @property
    def without_distance(self) -> bool:
        """Whether every wrong element is NaN, infinite or was never written. `worst_index` is then the first of these."""
        return self.wrong > 0 and self.max_abs == 0


@dataclass(frozen=True)
class Trial:
    """One evaluation of a candidate, a baseline or a module. Immutable; under 4 KB as a line of JSON."""

    trial_id: str
    run_id: str
    at: str                              # ISO 8601, UTC
    kind: str                            # one of KINDS
    name: str                            # variant or baseline name
    direction: str                       # "forward" | "grad_input" | "grad_weight" | "backward" (also modules)
    precision: str
    workload: Workload
    device: TrialDevice
    status: Status
    headline: str
    advice: str
    candidate_id: str = ""
    build_key: str = ""
    config: dict[str, int | str] = field(default_factory=dict)
    form: str = ""                       # "constant" | "runtime"
    compile_flags: tuple[str, ...] = ()
    errors: dict[str, Errors] = field(default_factory=dict)      # result name -> errors
    kernel_ms: Timing | None = None
    module_ms: dict[str, Timing] = field(default_factory=dict)   # "forward", "backward"
    memory: dict[str, int] = field(default_factory=dict)         # "peak_bytes", "workspace_bytes"
    resources: Kernels = field(default_factory=dict)
    build: TrialBuild | None = None
    blobs: dict[str, str] = field(default_factory=dict)          # "source", "log", ... -> sha256
    environment: Environment = field(default_factory=dict)
    flags: tuple[str, ...] = ()          # "emulated", "throttled", "launch_bound", "too_small", ...
    detail: Detail = Detail()            # details of the outcome, beyond the headline
    command: str = ""                    # the one command that repeats this trial
    forked_from: str = ""                # for a fork: the id of the candidate whose text was edited
    kept_in: str = field(default="", compare=False)  # the session that holds its blobs, while it is open
    schema: str = SCHEMA

    @property
    def variant(self) -> str:
        """The name of the candidate's template; for a fork, that of the original: `naive_gather` for `naive_gather-3f2a`."""
        return self.name.rpartition("-")[0] if self.forked_from else self.name

    @property
    def ok(self) -> bool:
        return self.status is Status.OK

    @property
    def place(self) -> tuple[str, str]:
        """(device key, workload key): two times may be compared only if these are equal."""
        return self.device.key, self.workload.key

    @property
    def kernel_median_ms(self) -> float:
        """The median of `kernel_ms`. Without one it is infinite, so that it is never the least."""
        return self.kernel_ms.median_ms if self.kernel_ms else inf

    @property
    def tunables(self) -> dict[str, int]:
        """The config of a candidate. That of a module names variants, so it has none."""
        return {k: v for k, v in self.config.items() if isinstance(v, int)}

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        data["status"], data["detail"] = str(self.status), self.detail.to_line()
        del data["kept_in"]
        for timing in (data["kernel_ms"], *data["module_ms"].values()):
            if timing:
                del timing["samples_in"]
        needed = {f.name for f in fields(self) if f.default is MISSING and f.default_factory is MISSING}
        return {k: v for k, v in data.items() if k in needed or v not in (None, "", {}, ())}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Trial:
        """Read a trial from its line. For an invalid line it raises ValueError, which says what is wrong."""
        if isinstance(detail := data.get("detail"), dict):
            data = {**data, "detail": Detail.from_line(detail)}
        try:
            trial = read(cls, data)
        except BadRequest as error:  # the types fit, but no layer has these values
            raise ValueError(f"its workload is not valid: {error}") from error
        if why := _unusable(trial):
            raise ValueError(why)
        return trial


def _unusable(trial: Trial) -> str | None:
    """What is wrong beyond the types, as a clause, or None."""
    for key, word, known in (("kind", trial.kind, KINDS), ("direction", trial.direction, LAUNCHES)):
        if word not in known:
            return f"{key} is {ascii(word)}, which is not known"
    if trial.kind == "candidate" and len(trial.tunables) < len(trial.config):
        name, value = next((k, v) for k, v in trial.config.items() if k not in trial.tunables)
        return f"config.{name} is {ascii(value)[:40]}, not a whole number"
    timings = {name: timing for name, timing in (("kernel_ms", trial.kernel_ms), *trial.module_ms.items()) if timing}
    for place, timing in timings.items():
        for name in ("median_ms", "q25_ms", "q75_ms", "min_ms"):
            if not 0 < getattr(timing, name) < 1e12:
                return f"{place}.{name} is {getattr(timing, name)}, not a time"
    for blob in (*trial.blobs.values(), *(t.samples_blob for t in timings.values() if t.samples_blob)):
        if not _SHA256.match(blob):
            return f"the blob {ascii(blob)[:40]} is not a SHA-256"
    if strange := next((arch for arch in trial.resources if not ARCH.fullmatch(arch)), None):
        return f"resources.{ascii(strange)} is not an architecture"
    return None
