"""What Nsight Compute counts of a candidate's kernels: the metrics, the text in which `ncu` prints them, and the sentence."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from . import numbers

BUSY = 60.0     # %: NVIDIA's threshold. A unit above it limits the kernel; if no unit is above it, latency does
_STALL = re.compile(r"smsp__average_warps_issue_stalled_(?P<reason>\w+?)_per_issue_active\.ratio\Z")
_STALL_METRICS = r"regex:smsp__average_warps_issue_stalled_.*_per_issue_active\.ratio"
_NO_STALL = ("selected",)               # the warp issues an instruction, so it is not a wait
_LEAST_STALL = 0.1                      # share of all waiting; a smaller share is not mentioned
_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_TIMES = {"ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9}


@dataclass(frozen=True)
class Metric:
    """One row of the table. `unit`: "ns", "byte", "%" or a word; `ncu`: the name in ncu; `help`: the meaning."""

    label: str
    unit: str
    ncu: str
    help: str


METRICS: dict[str, Metric] = {
    "duration": Metric("duration", "ns", "gpu__time_duration.sum", "Time of this kernel under ncu, with a cold L2 and without "
                                                                   "locked clocks. Compare the times of trials, not this one"),
    "dram_read": Metric("DRAM read", "byte", "dram__bytes_read.sum", "Bytes that the kernel read from the GPU's memory"),
    "dram_written": Metric("DRAM written", "byte", "dram__bytes_write.sum", "Bytes that the kernel wrote to the GPU's memory. "
                           "Bytes that are still in L2 when the kernel ends are not counted"),
    "dram": Metric("DRAM, of peak", "%", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
                   "Share of the memory's peak rate. Above 60 % memory limits the kernel"),
    "l2": Metric("L2, of peak", "%", "lts__throughput.avg.pct_of_peak_sustained_elapsed", "Share of the L2 cache's peak rate"),
    "l2_hits": Metric("L2 hits", "%", "lts__t_sector_hit_rate.pct", "Share of the requested sectors that L2 already held"),
    "l1": Metric("L1 and shared memory, of peak", "%", "l1tex__throughput.avg.pct_of_peak_sustained_active",
                 "Share of the peak rate of the unit of L1 and shared memory, in the cycles in which it has work"),
    "sm": Metric("SM, of peak", "%", "sm__throughput.avg.pct_of_peak_sustained_elapsed",
                 "Utilization of the most used part of the multiprocessors. Above 60 %, arithmetic or instruction issue limits "
                 "the kernel"),
    "tensor": Metric("tensor cores busy", "%", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
                     "Share of the cycles with work on a multiprocessor in which its tensor cores are busy"),
    "occupancy": Metric("achieved occupancy", "%", "sm__warps_active.avg.pct_of_peak_sustained_active",
                        "Resident warps on average, as a share of the most that a multiprocessor can hold"),
    "eligible": Metric("eligible warps", "warps", "smsp__warps_eligible.avg.per_cycle_active",
                       "Average number of warps per scheduler that are ready to issue. Below 1, the scheduler often has no "
                       "warp that can issue"),
    "registers": Metric("registers", "per thread", "launch__registers_per_thread", "General registers of a thread"),
    "shared_static": Metric("static shared memory", "byte", "launch__shared_mem_per_block_static",
                            "Shared memory per block that the source declares with a fixed size"),
    "shared_dynamic": Metric("dynamic shared memory", "byte", "launch__shared_mem_per_block_dynamic",
                             "Shared memory per block that the launch requests"),
    "conflicts": Metric("bank conflicts", "", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
                        "Extra cycles of accesses to shared memory because lanes of a warp use the same bank"),
    "waves": Metric("waves", "per SM", "launch__waves_per_multiprocessor",
                    "The number of blocks divided by the number that run at the same time. Slightly above a whole number, the "
                    "last wave leaves most of the GPU idle"),
}
ASKED = ",".join([*(metric.ncu for metric in METRICS.values()), _STALL_METRICS])   # for ncu's option --metrics
_KEYS = {metric.ncu: key for key, metric in METRICS.items()} | {
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram"}
STALLS = {   # what a warp waits for, after "mostly wait for"
    "barrier": "other warps at a barrier", "branch_resolving": "a branch", "dispatch_stall": "the dispatcher",
    "drain": "the completion of the warp's last stores", "gmma": "tensor products "
                                                                 "(wgmma)", "imc_miss": "constants", "lg_throttle":
    "the queue of global and local memory", "long_scoreboard": "global or local memory", "math_pipe_throttle":
    "an arithmetic unit", "membar": "a memory fence", "mio_throttle": "the queue of shared memory", "misc": "other things",
    "no_instruction": "instructions to be fetched", "no_instructions": "instructions to be fetched",
    "not_selected": "their turn", "short_scoreboard": "shared memory", "sleeping": "the end of a sleep",
    "tex_throttle": "the texture queue", "wait": "an instruction of fixed latency"}
STALL_HELP = "Share of all waiting cycles of warps that have this cause"


@dataclass(frozen=True)
class KernelCounters:
    """One launch of a kernel. `values`: key of METRICS -> value in its unit; what ncu did not count is missing. `stalls`: key
    of STALLS -> share of all waiting, the largest first."""

    name: str
    grid: str
    block: str
    values: dict[str, float] = field(default_factory=dict)
    stalls: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Profile:
    """The counters of the kernels of one launch, the main kernel first. They are kept with a trial."""

    kernels: tuple[KernelCounters, ...]
    at: str                              # ISO 8601, UTC
    ncu: str = ""                        # its version


def sentence(kernels: Sequence[KernelCounters]) -> str:
    """What limits the main kernel, what its warps wait for, and its share of the launch."""
    main = kernels[0]
    said = f"{_limit(main.values)}{_waits(main.stalls)}."
    times = [k.values.get("duration", 0.0) for k in kernels]
    if kernels[1:] and sum(times):
        said += f" {main.name} takes {numbers.share(times[0] / sum(times))} of the time of {len(kernels)} kernels."
    return said


def shown(key: str, value: float | None) -> str:
    """A value with its unit."""
    if value is None:
        return "–"
    unit = METRICS[key].unit
    if unit == "ns":
        return numbers.time(value / 1e6)
    if unit == "byte":
        return numbers.memory(round(value)) if key.startswith("shared") else numbers.bytes_decimal(value)
    if unit == "%":
        return f"{value:.1f} %"
    whole = numbers.count(round(value)) if value == round(value) else f"{value:.2f}"
    return f"{whole} {unit}".strip()


def rows(kernels: Sequence[KernelCounters | None]) -> list[tuple[str, str, list[str]]]:
    """Rows (label, help, a value for each kernel): first the metrics counted for at least one kernel, then the three largest
    stalls of each. `kernels` has None for a kernel that was not counted."""
    found = [(metric.label, metric.help, [shown(key, k.values.get(key) if k else None) for k in kernels])
             for key, metric in METRICS.items() if any(k and key in k.values for k in kernels)]
    most = dict.fromkeys(reason for k in kernels if k for reason in list(k.stalls)[:3])
    return found + [(f"waiting for {STALLS.get(reason, reason)}", STALL_HELP, [
        numbers.share(k.stalls[reason]) if k and reason in k.stalls else "–" for k in kernels]) for reason in most]


def read_csv(text: str) -> list[KernelCounters]:
    """Read the output of `ncu --csv`, with a column (--page raw) or a row for each metric. Returns the kernels in the order of
    their launches. Other lines are ignored, and values "n/a" are left out."""
    lines = text.splitlines()
    first = next((n for n, line in enumerate(lines) if line.startswith('"ID",')), None)
    if first is None:
        return []
    there = [row for row in csv.reader(line for line in lines[first:] if line.startswith('"')) if row]
    head = there[0]
    launches: dict[str, dict[str, str]] = {}
    counted: dict[str, dict[str, float]] = {}
    for launch, row, cells in _cells(head, there[1:]):
        launches.setdefault(launch, row)
        for name, unit, value in cells:
            if (number := _number(value, unit)) is not None:
                counted.setdefault(launch, {})[name] = number
    return [_kernel(launches[launch], counted.get(launch, {})) for launch in launches]


def _cells(head: list[str], there: list[list[str]]) -> Iterator[tuple[str, dict[str, str], list[tuple[str, str, str]]]]:
    """(id of the launch, its named cells, [(metric, unit, value)]) of each row."""
    if "Metric Name" in head:
        for cells in there:
            row = dict(zip(head, cells, strict=False))
            yield row["ID"], row, [(row.get("Metric Name", ""), row.get("Metric Unit", ""), row.get("Metric Value", ""))]
        return
    units: dict[str, str] = {}
    for cells in there:
        row = dict(zip(head, cells, strict=False))
        if not row["ID"]:   # the line below the head: the units
            units = row
            continue
        yield row["ID"], row, [(name, units.get(name, ""), value) for name, value in row.items() if "__" in name]


def _kernel(row: dict[str, str], counted: dict[str, float]) -> KernelCounters:
    values = {_KEYS[name]: value for name, value in counted.items() if name in _KEYS}
    waits = {found["reason"]: value for name, value in counted.items() if (found := _STALL.match(name))}
    waits = {reason: value for reason, value in waits.items()
             if value > 0 and reason not in _NO_STALL and not reason.endswith("_not_issued")}
    whole = sum(waits.values())
    stalls = {reason: value / whole for reason, value in sorted(waits.items(), key=lambda pair: -pair[1])}
    return KernelCounters(row.get("Kernel Name", ""), row.get("Grid Size", ""), row.get("Block Size", ""), values, stalls)


def _number(text: str, unit: str) -> float | None:
    """The value in ns, bytes or its own unit; None if it is not a number, such as "n/a"."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    unit = unit.partition("/")[0]
    if unit.endswith("byte"):
        return value * _PREFIXES.get(unit.removesuffix("byte"), 1.0) if value >= 0 else None
    return value * _TIMES.get(unit, 1.0) if abs(value) < 1e30 else None


def _limit(values: dict[str, float]) -> str:
    dram, tensor, sm = (values.get(key, 0.0) for key in ("dram", "tensor", "sm"))
    caches = {name: values.get(key, 0.0) for key, name in (("l2", "the L2 cache"), ("l1", "L1 and shared memory"))}
    cache = max(caches, key=lambda name: caches[name])
    if not {"dram", "sm"} & set(values):
        return "ncu counted neither memory nor arithmetic"
    most = max(dram, tensor, sm, caches[cache])
    if most < BUSY:
        return f"Latency-bound: DRAM is at {dram:.0f} % of its peak and the multiprocessors are at {sm:.0f} %"
    if dram == most:
        return f"Memory-bound: DRAM reads and writes at {dram:.0f} % of the peak"
    if tensor >= BUSY and tensor >= caches[cache]:
        return f"Compute-bound: the tensor cores are busy in {tensor:.0f} % of the cycles"
    if caches[cache] > sm or caches[cache] == most:
        return f"Cache-bound: {cache} at {caches[cache]:.0f} % of the peak, DRAM at {dram:.0f} %"
    return f"Compute-bound: the multiprocessors are at {sm:.0f} % of their peak, DRAM at {dram:.0f} %"


def _waits(stalls: dict[str, float]) -> str:
    reason = next(iter(stalls), "")
    if not reason or stalls[reason] < _LEAST_STALL:
        return ""
    return f"; warps mostly wait for {STALLS.get(reason, reason)} ({numbers.share(stalls[reason])} of stalls)"
