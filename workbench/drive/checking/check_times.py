"""Evaluates the times of a check. For each direction: the file's time, the floor, the times of PyTorch's ways, and the verdict
against the fastest drop-in way of at least the file's precision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from operator import attrgetter
from statistics import median

from ...core import numbers
from ...core.check_parts import DirectionTimes, TimedWay
from ...core.facts import bytes_moved
from ...core.layer import Workload
from ...core.precision import QUALIFIES
from ...core.replies import CheckTimes, Device, WayTimes
from ...core.verdict import FASTER, SAME, UNSURE, from_samples, widened
from ..reporting import report

_TOO_SMALL_MS = 0.01     # ms; below it the clock and the request are a large part of the time
_LAUNCH_BOUND = 0.75     # if its CUDA graph takes less than this share of the call's time, the host limits the call
# Share of a call's time that may be waiting; above it, a note says why a verdict needs a larger difference.
_WAITED_SHARE = 0.05
_A_PASS = 0.25           # share of the time of input and copy; no module that reads and writes all of it takes less
_SLOWED = 0.05           # PyTorch must be faster by this share without the file's process; noise explains less
_TOO_LITTLE = ("The time is too short: it is below a quarter of the time to copy the input and the result. It does not count "
               "as faster.")
_median, _ratio = attrgetter("median_ms"), attrgetter("ratio")
# A time is IMPLAUSIBLE if it is below this share of the floor and the traffic is more than this multiple of L2.
_FLOOR_SHARE, _L2_SHARE = 0.8, 4


def timed(found: CheckTimes, direction: str, workload: Workload | None, gpu: Device | None) -> DirectionTimes:
    """The times of one direction for the report. `against` is the qualifying way with the smallest ratio."""
    ours, precision = found.ours, found.precision
    rows = [_row(found, precision, baseline) for baseline in found.baselines]
    rows.sort(key=_median)
    # The smallest ratio of pairs decides, not the smallest median, which may be low because of noise in a few turns.
    best = min((r for r in rows if r.qualifies), key=_ratio, default=None)
    held_back = [*_without_the_file(found, precision), *_one_by_one(found, best)] if best and best.verdict == FASTER else []
    rows = sorted([*rows, *held_back], key=_median)
    best = min((r for r in [best, *held_back] if r), key=_ratio, default=None)
    default = next((b for b in found.baselines if b.key == "default"), None)
    floor = report.floor_of(workload, direction, precision, gpu.name) if workload and gpu else None
    # The floor of what fits into the caches is no limit: these calls find their inputs there.
    limited = (workload is not None and floor is not None
               and bytes_moved(workload, direction).total_bytes > _L2_SHARE * (gpu.l2_bytes if gpu else 0))
    implausible = limited and floor is not None and ours.median_ms < _FLOOR_SHARE * floor.ms
    # Where the floor is a limit, it decides: the copy moves values that the layer may not need.
    too_little = (best is not None and best.verdict == FASTER and not limited
                  and ours.median_ms < _A_PASS * _share_of_copy(workload, direction) * found.empty_ms)
    return DirectionTimes(
        ours.median_ms, ours.samples, ours.spread, found.calls, found.checked, precision,
        default_precision=default.precision if default else "", default_kernels=default.kernels if default else (),
        floor_ms=floor.ms if floor else None, floor_limit=floor.limit if floor else "",
        why_no_floor="" if floor else _why_no_floor(workload, gpu), implausible=implausible,
        notes=(*_notes(ours.median_ms, rows), *(r.held_back for r in held_back), *([_TOO_LITTLE] if too_little else []),
               *_throttled(found.throttled, ours.dropped), *_waited(found.bounds)),
        baselines=tuple(rows), left_out=found.left_out, ratio=best.ratio if best else None, low=best.low if best else None,
        high=best.high if best else None, against=best.name if best else "",
        verdict=UNSURE if too_little else best.verdict if best else "")


def _share_of_copy(workload: Workload | None, direction: str) -> float:
    """The bytes that a layer must move as a share of the input and the result, at most 1. A layer need not read what no tap
    reaches. 1 where the module is no single layer."""
    if workload is None:
        return 1.0
    copied = workload.element_bytes * (prod(workload.input_shape) + prod(workload.output_shape))
    return min(1.0, bytes_moved(workload, direction).total_bytes / max(1, copied))


def sentence(direction: str, times: DirectionTimes) -> str:
    """"forward is 4.69× as fast as the best PyTorch (eager, TF32 off)", or why there is no such result."""
    if times.implausible:
        return (f"{direction}: {numbers.time(times.median_ms)} is below the floor of "
                f"{numbers.time(times.floor_ms)}, which is not possible; the time does not count")
    if not times.against:
        return f"{direction}: there is no PyTorch mode of the file's precision to compare with"
    best, shown = f"the best PyTorch ({times.against})", numbers.ratio(times.ratio)
    between = numbers.interval(times.low, times.high, times.ratio)
    if times.verdict == SAME:
        return f"{direction} takes the same time as {best}, within 1 %"
    if _TOO_LITTLE in times.notes:
        return (f"{direction}: {numbers.time(times.median_ms)} is too short to count as faster than {best}: it is below a "
                "quarter of the time to copy the input and the result")
    if times.verdict == UNSURE:
        return f"no clear winner in {direction}: {shown} against {best}, interval {between}"
    return f"{direction} is {shown} as fast as {best}"


def without_times(untimed: Mapping[str, str]) -> list[str]:
    """["backward: not timed: cuda:0 does not have enough free memory for the results"]"""
    return [f"{direction}: {why[:1].lower()}{why[1:].rstrip('.')}" for direction, why in untimed.items()]


def floor_text(times: DirectionTimes) -> str:
    """ "0.199 ms by bytes, so it runs at 58 % of the limit", or why there is none."""
    if times.floor_ms is None:
        return f"not known: {times.why_no_floor}"
    limit = "the bytes that must move" if times.floor_limit == "bytes" else "the multiply-adds"
    return (f"{numbers.time(times.floor_ms)}, set by {limit}; it runs at "
            f"{numbers.of_limit(times.floor_ms, times.median_ms)} of the limit")


def _row(ours: CheckTimes, precision: str, baseline: WayTimes) -> TimedWay:
    # Sample i of all ways was taken in the same turn; some ways took part only in the first turns.
    turns = len(baseline.samples)
    ratio = from_samples(ours.samples[:turns], baseline.samples, paired=True)
    ratio = widened(ratio, ours.bounds[:turns], baseline.bounds)
    fits = _qualifies(precision, baseline.precision)
    why_not = "" if fits else f"computes in {baseline.precision}, the file in {precision}"
    return TimedWay(baseline.name, baseline.timing.median_ms, baseline.precision, ratio.value, ratio.low, ratio.high,
                    str(ratio.verdict), baseline.drop_in, qualifies=fits and baseline.drop_in,
                    why_not=why_not if baseline.drop_in else baseline.why_not, kernels=baseline.kernels)


def _qualifies(precision: str, theirs: str) -> bool:
    return theirs in QUALIFIES.get(precision, ())


def _without_the_file(found: CheckTimes, precision: str) -> list[TimedWay]:
    """Rows of qualifying ways that were clearly slower in turns with the file than without its process, or that did not work
    beside it. They were timed later, so their verdict is FASTER or UNSURE, never SLOWER."""
    rows = []
    for alone in found.alone:
        beside = next((b for b in found.baselines if b.key == alone.key), None)
        times = [least for least, _ in beside.bounds] or list(beside.samples) if beside else []
        slowed = not times or (from_samples(alone.samples, times).low or 0.0) > 1 + _SLOWED
        if slowed and _qualifies(precision, alone.precision):
            ratio = from_samples(found.samples, alone.samples)
            rows.append(TimedWay(
                f"{alone.name}, without the file's process", median(alone.samples), alone.precision, ratio.value, ratio.low,
                ratio.high, FASTER if ratio.verdict == FASTER else UNSURE, drop_in=True, qualifies=True, why_not="", kernels=(),
                held_back="PyTorch is slower while the process of the file exists. So the verdict uses the time of "
                          f"{alone.name} without that process, {numbers.time(median(alone.samples))}."))
    return rows


def _one_by_one(found: CheckTimes, best: TimedWay) -> list[TimedWay]:
    """A row with the times of the file and of the best way with one call at a time, if their ratio is surely smaller than
    that of queued calls."""
    if found.singly is None:
        return []
    ours, theirs = found.singly.ours, found.singly.theirs
    ratio = from_samples(ours, theirs, paired=True)
    if ratio.high is None or ratio.high >= (best.ratio if best.low is None else best.low):
        return []
    return [replace(best, name=f"{best.name}, one call at a time", median_ms=median(theirs), ratio=ratio.value, low=ratio.low,
                    high=ratio.high, verdict=FASTER if ratio.verdict == FASTER else UNSURE, kernels=(),
                    held_back="The ratio is smaller if calls are not queued. The verdict uses single calls: the file takes "
                              f"{numbers.time(median(ours))}, PyTorch takes {numbers.time(median(theirs))}.")]


def _why_no_floor(workload: Workload | None, gpu: Device | None) -> str:
    if gpu is None:
        return "the limits of this CPU are not measured"
    return f"the limits of {gpu.name} are not measured" if workload else "the reference is not one transposed convolution"


def _throttled(turns: int, dropped: int) -> list[str]:
    """The note for turns in which the GPU had lowered its clocks."""
    if not turns:
        return []
    counted = (f"{dropped} were left out" if dropped else "all were counted, because too few would be left")
    return [f"The GPU lowered its clocks in {turns} turn{'s' if turns > 1 else ''}; {counted}."]


def _waited(bounds: Iterable[Sequence[float]]) -> list[str]:
    """The note for times that may include other processes. `bounds`: (least, most) of each sample."""
    shares = sorted((most - least) / most for least, most in bounds)
    usual = shares[len(shares) // 2] if shares else 0.0
    return [f"Other processes used the cores: up to {numbers.share(usual)} of a call's time may be waiting for a core."] \
        if usual > _WAITED_SHARE else []


def _notes(median_ms: float, rows: Iterable[TimedWay]) -> list[str]:
    """Notes on the times that a reader needs to interpret a ratio."""
    by_name = {r.name: r.median_ms for r in rows}
    notes = []
    if median_ms < _TOO_SMALL_MS:
        notes.append("Too short for an exact time: below 10 µs the request to the process is a large part of it.")
    # cuDNN may have chosen one algorithm for the graph and another for the call, so both calls are tried.
    for suffix in ("", ", TF32 off"):
        eager = min((by_name[n] for n in (f"eager{suffix}", f"eager{suffix}, cudnn.benchmark") if n in by_name), default=None)
        graph = by_name.get(f"CUDA graph of the eager call{suffix}")
        if eager and graph and graph < _LAUNCH_BOUND * eager:
            notes.append(f"Launch-bound: PyTorch's own call takes {numbers.time(eager)}, its CUDA graph {numbers.time(graph)}.")
            break
    return notes
