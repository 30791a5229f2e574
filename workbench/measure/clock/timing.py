"""Samples of how long a launch takes on the device, and the rule that ends the sampling.

On a GPU every sample begins with a cold L2: the part set aside for persisting lines is emptied; one buffer of twice the cache's
size is written, then another is read, so that no dirty line is left for the kernel to write back. Then the device waits until
the host has enqueued the launch and both events. If the host is late, the time between the events includes the host. The sample
is then taken again after a longer wait. On the CPU the emulator is timed by the clock; such times do not predict a GPU. Samples
during which NVML reports reduced clocks are dropped and counted, if enough others are left.
"""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, floor, sqrt
from typing import Any

import torch

from ...core.trial import Timing
from ...core.verdict import FEWEST
from ..device import l2_bytes

CLEARLY_SLOWER = 1.5        # a candidate slower than this multiple of the time to beat is timed only briefly
ENOUGH_NOISE = 0.005        # half width of the median's 95 % interval, relative to the median
TOO_SMALL_MS = 0.01         # an event pair costs about 2 us: below this it is a large part of the time
_BATCH_MS = 50.0            # samples taken between two looks at the rule
_HEAD_START = 200_000       # GPU cycles of waiting that let the host enqueue a launch ahead: 0.1 ms
_MOST_HEAD_START = 32 * _HEAD_START  # a launcher that is late even then waits for the device itself
_HOST_SHARE = 0.9           # launch-bound: the host takes at least this part of the time
_PERSISTING_L2, _ACCESS_POLICY_WINDOW = 6, 1  # the driver's numbers of that limit, and of that attribute of a stream
_SLOWED_DOWN = 0x4 | 0x8 | 0x20 | 0x40 | 0x80  # NVML clocks event reasons: power cap, slowdowns, thermal, power brake


@dataclass(frozen=True)
class Effort:
    """When to stop: never before `least` samples, never after `most` samples or `wall_s` seconds. Low noise ends it only
    after `least_s` seconds, because thirty samples of a short kernel take only a moment, and the next moment may differ."""

    least: int
    most: int
    wall_s: float
    least_s: float = 0.0


EFFORTS = {
    "cuda": {"quick": Effort(10, 60, 1.0), "normal": Effort(30, 600, 3.0, 0.3), "full": Effort(100, 3000, 12.0, 1.0)},
    "cpu": {"quick": Effort(5, 10, 0.2), "normal": Effort(5, 20, 0.5), "full": Effort(10, 200, 2.0)},
}


@dataclass(frozen=True)
class Watch:
    """The judge's work around timed launches, which checks them: `before` each sample (untimed; the L2 flush follows), and
    `after` each batch of samples."""

    before: Callable[[], object] = lambda: None
    after: Callable[[], None] = lambda: None


@dataclass
class Measurement:
    """Samples are in ms, in the order they were taken. `clocks`: for each sample the GPU's SM clock in MHz at the end of its
    batch; empty where NVML does not say it."""

    timing: Timing
    samples: list[float]
    flags: list[str] = field(default_factory=list)
    clocks: list[int] = field(default_factory=list)


# more than seven: the ways in which one launch may be timed
def measure(run: Callable[[], None], *, device: str, effort: str, cold_l2: bool = True, limit_s: float | None = None,
            host_pays: bool = True, watch: Watch = Watch(), to_beat_ms: float | None = None  # noqa: B008 (it is frozen)
            ) -> Measurement:
    """Time `run`, which enqueues one launch on the current stream. It has been run and checked before.

    `host_pays=False`: what runs is a replayed graph, whose host time says nothing about the call. `to_beat_ms`: the sampling
    ends ("slower") as soon as the samples are clearly above it.
    """
    if device == "cpu":
        return _measure_cpu([run], EFFORTS["cpu"][effort], limit_s, [watch], to_beat_ms)[0]
    return _measure_cuda([run], EFFORTS["cuda"][effort], limit_s, device=device, cold_l2=cold_l2,
                         host_pays=host_pays, watches=[watch], to_beat_ms=to_beat_ms)[0]


def measure_in_turns(runs: Sequence[Callable[[], None]], *, device: str, effort: str, cold_l2: bool = True,
                     limit_s: float | None = None, watches: Sequence[Watch] = ()) -> list[Measurement]:
    """One sample of each contestant in every turn, in random order: samples i of all of them were taken together.

    `watches`: one for each, or none. The rule ends it when the noisiest of them satisfies it.
    """
    watches = watches or [Watch()] * len(runs)
    if device == "cpu":
        return _measure_cpu(runs, EFFORTS["cpu"][effort], limit_s, watches)
    return _measure_cuda(runs, EFFORTS["cuda"][effort], limit_s, device=device, cold_l2=cold_l2, host_pays=False,
                         watches=watches)


def summary(samples: list[float], *, stop: str, cold_l2: bool, dropped: int = 0) -> Timing:
    """Samples in ms, summed up."""
    ordered = sorted(samples)
    return Timing(median_ms=quantile(ordered, 0.5), q25_ms=quantile(ordered, 0.25), q75_ms=quantile(ordered, 0.75),
                  min_ms=ordered[0], samples=len(ordered), stop=stop, cold_l2=cold_l2, dropped=dropped)


def quantile(ordered: list[float], share: float) -> float:
    """Linear interpolation between the two nearest samples, as numpy's default."""
    place = share * (len(ordered) - 1)
    low = floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def noise(samples: list[float]) -> float:
    """Half width of the 95 % interval of the median, relative to it.

    By order statistics, ranks n/2 -+ 0.98 sqrt(n) (Conover, Practical Nonparametric Statistics, section 3.2): no
    assumption about how the samples are distributed.
    """
    ordered, n = sorted(samples), len(samples)
    low = max(0, floor(n / 2 - 0.98 * sqrt(n)) - 1)
    high = min(n - 1, ceil(n / 2 + 0.98 * sqrt(n)))
    return (ordered[high] - ordered[low]) / 2 / quantile(ordered, 0.5)


def why_stop(samples: list[float], *, effort: Effort, elapsed_s: float, wall_s: float, to_beat_ms: float | None = None) -> str:
    """"noise", "samples", "limit" or "slower" when the sampling is to end, else ""."""
    if samples and elapsed_s >= wall_s:
        return "limit"
    if to_beat_ms and len(samples) >= min(FEWEST, effort.least) and min(samples) > CLEARLY_SLOWER * to_beat_ms:
        return "slower"
    if len(samples) >= effort.most:
        return "samples"
    enough = len(samples) >= effort.least and elapsed_s >= effort.least_s
    return "noise" if enough and noise(samples) < ENOUGH_NOISE else ""


def without_slow(samples: Sequence[Sequence[float]], slowed: Sequence[bool],
                 least: int) -> tuple[list[list[float]], int]:
    """The samples of the turns in which the clocks were not lowered, and how many turns were left out. A contestant may have
    taken part in the first turns only.

    If fewer than `least` would remain, all samples are kept and a flag says so.
    """
    kept = [i for i, slow in enumerate(slowed) if not slow]
    if len(kept) < least:
        return [list(taken) for taken in samples], 0
    return [[taken[i] for i in kept if i < len(taken)] for taken in samples], len(slowed) - len(kept)


def _measure_cpu(runs: Sequence[Callable[[], None]], effort: Effort, limit_s: float | None,
                 watches: Sequence[Watch], to_beat_ms: float | None = None) -> list[Measurement]:
    samples: list[list[float]] = [[] for _ in runs]
    wall_s = min(effort.wall_s, limit_s or effort.wall_s)
    begin = time.perf_counter()
    stop = ""
    while not stop:
        for i in _order(len(runs)):
            watches[i].before()
            start = time.perf_counter_ns()
            runs[i]()
            samples[i].append((time.perf_counter_ns() - start) / 1e6)
        for watch in watches:
            watch.after()
        stop = _why_stop(samples, effort, begin, wall_s, to_beat_ms)
    return [Measurement(summary(taken, stop=stop, cold_l2=False), taken, ["emulated"]) for taken in samples]


# more than seven: those of `measure`, for one launch or several
def _measure_cuda(runs: Sequence[Callable[[], None]], effort: Effort, limit_s: float | None, *, device: str,
                  cold_l2: bool, host_pays: bool, watches: Sequence[Watch], to_beat_ms: float | None = None
                  ) -> list[Measurement]:
    index = torch.device(device).index or 0
    wall_s = min(effort.wall_s, limit_s or effort.wall_s)
    flush = Flush(index) if cold_l2 else _nothing
    samples: list[list[float]] = [[] for _ in runs]
    host_ms: list[float] = []
    slowed: list[bool] = []
    clocks: list[float] = []
    head_start = _HEAD_START
    begin = time.perf_counter()
    for run in (*runs, *runs, *runs):  # clocks rise, instruction cache and TLB fill
        flush()
        run()
    torch.cuda.synchronize(index)
    batch, stop = 3, ""
    while not stop:
        start_s = time.perf_counter()
        taken = [[_sample(runs[i], watches[i].before, flush, head_start, i) for i in _order(len(runs))]
                 for _ in range(min(batch, effort.most - len(samples[0])))]
        torch.cuda.synchronize(index)
        one_ms = 1e3 * (time.perf_counter() - start_s) / len(taken)
        in_time = [turn for turn in taken if not any(s.late for s in turn)] if head_start < _MOST_HEAD_START else taken
        if len(in_time) < len(taken):
            head_start *= 2
        for turn in in_time:
            for sample in turn:
                samples[sample.which].append(sample.first.elapsed_time(sample.last))
                host_ms += [sample.host_ms] if sample.which == 0 else []
        slowed += [slowed_down(device)] * len(in_time)
        clocks += [sm_clock(device)] * len(in_time)
        for watch in watches:
            watch.after()
        stop = _why_stop(samples, effort, begin, wall_s, to_beat_ms) if samples[0] else ""
        # Of random length, because the last launch of a batch is compared, and a kernel must not know it.
        batch = max(1, min(100, round(_BATCH_MS / max(one_ms, 1e-3) * random.uniform(0.7, 1.3))))
    (*kept, clocks), dropped = without_slow([*samples, clocks], slowed, effort.least)
    flags = ["throttled"] if any(slowed) else []
    if host_pays and quantile(sorted(host / device for host, device in zip(host_ms, samples[0], strict=True)),
                              0.5) > _HOST_SHARE:
        flags.append("launch_bound")
    return [Measurement(summary(one, stop=stop, cold_l2=cold_l2, dropped=dropped), one,
                        [*flags, *(["too_small"] if quantile(sorted(one), 0.5) < TOO_SMALL_MS else [])],
                        [round(mhz) for mhz in clocks] if all(clocks) else []) for one in kept]


@dataclass(frozen=True)
class _Sample:
    """One sample of run `which`. `late`: the device was ready before the host had enqueued everything."""

    which: int
    first: torch.cuda.Event
    last: torch.cuda.Event
    host_ms: float
    late: bool


def _sample(run: Callable[[], None], prepare: Callable[[], object], flush: Callable[[], None], head_start: int,
            which: int) -> _Sample:
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    prepare()
    flush()
    torch.cuda._sleep(head_start)
    first.record()
    enqueue = time.perf_counter_ns()
    run()
    host_ms = (time.perf_counter_ns() - enqueue) / 1e6
    last.record()
    return _Sample(which, first, last, host_ms, late=first.query())


def _why_stop(samples: Sequence[list[float]], effort: Effort, begin: float, wall_s: float, to_beat_ms: float | None = None
              ) -> str:
    """The rule for several contestants at once: the noise is that of the noisiest."""
    reasons = [why_stop(taken, effort=effort, elapsed_s=time.perf_counter() - begin, wall_s=wall_s, to_beat_ms=to_beat_ms)
               for taken in samples]
    return next((r for r in reasons if r in ("limit", "samples")), reasons[0] if all(reasons) else "")


def _order(count: int) -> list[int]:
    return random.sample(range(count), count) if count > 1 else [0]


class Flush:
    """Empty the L2 cache: let go of what is to persist, write one buffer of twice its size, then read another."""

    def __init__(self, index: int) -> None:
        self._persisting = Persisting(index)
        size = 2 * l2_bytes(index) // 4
        self._written = torch.empty(size, dtype=torch.int32, device=f"cuda:{index}")
        self._read = torch.zeros(size, dtype=torch.float32, device=f"cuda:{index}")

    def __call__(self) -> None:
        self._persisting.end()
        self._written.zero_()
        self._read.sum()


class Persisting:
    """A launcher may set aside a part of L2 whose lines outlive a flush, and have a stream fill it (an access-policy window).
    Nothing persists while the part is empty, which is the default. So the device is waited for only after a launcher has
    changed that."""

    def __init__(self, index: int, driver: Any = None) -> None:
        self._index = index
        self._driver = driver or ctypes.CDLL("libcuda.so.1")

    @property
    def bytes(self) -> int:
        """What is set aside; 0 also where the device knows no such part."""
        size = ctypes.c_size_t()
        failed = self._driver.cuCtxGetLimit(ctypes.byref(size), _PERSISTING_L2)
        return 0 if failed else size.value

    def end(self) -> None:
        """For launches that follow on the current stream."""
        stream = ctypes.c_void_p(torch.cuda.current_stream(self._index).cuda_stream)
        self._driver.cuStreamSetAttribute(stream, _ACCESS_POLICY_WINDOW, ctypes.byref((ctypes.c_byte * 64)()))  # none
        if self.bytes:
            torch.cuda.synchronize(self._index)
            self._driver.cuCtxResetPersistingL2Cache()
            self._driver.cuCtxSetLimit(_PERSISTING_L2, ctypes.c_size_t(0))


def _nothing() -> None:
    pass


def slowed_down(device: str) -> bool:
    """Whether NVML reports that the GPU's clocks are lowered at the moment. False if NVML does not answer."""
    nvml = _nvml(torch.device(device).index or 0) if device != "cpu" else None
    if nvml is None:
        return False
    library, handle = nvml
    try:
        return bool(library.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & _SLOWED_DOWN)
    except library.NVMLError:
        return False


def sm_clock(device: str) -> int:
    """The clock of the GPU's multiprocessors just now, in MHz; 0 where NVML does not say it."""
    nvml = _nvml(torch.device(device).index or 0) if device != "cpu" else None
    if nvml is None:
        return 0
    library, handle = nvml
    try:
        return int(library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_SM))
    except library.NVMLError:
        return 0


@lru_cache(maxsize=16)
def _nvml(index: int) -> tuple[Any, Any] | None:
    try:
        import pynvml
    except ImportError:
        return None
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    try:
        pynvml.nvmlInit()
        return pynvml, (pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode()) if uuid
                        else pynvml.nvmlDeviceGetHandleByIndex(index))
    except pynvml.NVMLError:
        return None
