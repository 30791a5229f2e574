"""Judges one candidate: a built library and a workload come in; status, errors, times and memory go out.

The steps: make inputs; compute the float64 truth; poison the results; run; ask for errors; test that guard zones and inputs are
unchanged; compare. These are done with exact integers, then with random floats, there several times for equal bits. Then the
kernel is timed, and compared again on new inputs. A time is given only if every comparison was right.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import torch

from ...core import numbers
from ...core.cache import digest_of
from ...core.errors import BadRequest
from ...core.layer import Workload
from ...core.orders import Emit, JudgeOrder
from ...core.replies import Event, Judged
from ...core.trial import DEFAULT_ADVICE, Errors, Status, advice_for
from ...core.trial_parts import Detail
from ..clock import timing
from ..clock.signs import Signs
from ..device import free_bytes, l2_bytes, out_of_memory
from ..truth import Truth
from . import findings
from .apart import LauncherApart
from .buffers import END, POISON, SHIFTED, START, count_poison, row_of
from .findings import Finding
from .inputs import FAR, FAR_SAMPLES, INTEGERS, NORMAL, RECHECK, beyond_float16
from .launch import ORDER, Launcher, MissingSymbol
from .stage import Stage, device_errors

Bits = dict[str, torch.Tensor | list[int]]
_NOT_ALIGNED = "Where a tensor that it reads does not begin at a multiple of 16 bytes"
_RUNS = {"quick": 2, "normal": 3, "full": 10}  # how often the same inputs must give the same bits
_KEPT_BYTES = 1 << 30                          # results above this are remembered by a fingerprint, not a copy
_SMALL = 1 << 22                               # elements
_REPEATS = 8                                   # launches on the same inputs before others are timed
_FLOOR_SHARE = 0.8                             # below this share of the floor a time is not believed
_LOOKS_AT_LARGE = 0.25                         # share of batches after which a result without a copy is compared
_DRAWN = secrets.token_hex(8)                  # a seed of this process, so that no kernel can know its inputs
NEW_INPUTS, FAR_INPUTS, FAR_SAMPLES_INPUTS = (f"{kind} {_DRAWN}" for kind in (RECHECK, FAR, FAR_SAMPLES))
_TRAFFIC_SHARE = 4                             # ... if the tensors are that many times the L2 cache


def judge(order: JudgeOrder, emit: Emit) -> Judged:
    """Worker operation "judge". A bad kernel is a status in the reply; the parent process detects a crash or a hang."""
    facts = _Facts({}, ["emulated"] if order.device == "cpu" else [])
    try:
        with threads_for(order):
            result = _judge(order, emit, facts)
    except Finding as finding:
        finding.advice = finding.advice or advice_for(finding.status, order.workload.layer.stride)
        result = finding.told(partial(Judged, errors=finding.errors))
        # The frames of the exception hold the tensors. They are released now, not at the next garbage collection.
        finding.__traceback__ = finding.__context__ = finding.__cause__ = None
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        result = Judged(status=Status.OUT_OF_MEMORY, headline=f"The check ran out of memory on {order.device}.",
                        detail=Detail(shown={"free_bytes": free_bytes(order.device)}))
    return replace(result, flags=tuple(dict.fromkeys(facts.flags)), memory=facts.memory)


def implausible(median_ms: float, floor_ms: float | None, *, traffic_bytes: int, l2: int, cold_l2: bool) -> bool:
    """Whether no kernel can be so fast. Only claimed if caches cannot explain the time."""
    return bool(floor_ms) and cold_l2 and traffic_bytes > _TRAFFIC_SHARE * l2 and median_ms < _FLOOR_SHARE * floor_ms


@dataclass
class _Facts:
    """What every trial reports, whatever its status."""

    memory: dict[str, int]
    flags: list[str]


def _judge(order: JudgeOrder, emit: Emit, facts: _Facts) -> Judged:
    result = _at_given_size(order, emit, facts)  # its tensors are gone then
    if order.device == "cpu" and not order.sanitize and "new_process" in order.guards:
        emit(Event("check", "a new process"))
        in_new_process(order)
    return result


def _at_given_size(order: JudgeOrder, emit: Emit, facts: _Facts) -> Judged:
    if order.device != "cpu":
        torch.cuda.set_device(order.device)
    stage = open_stage(order)
    facts.memory = {"peak_bytes": stage.peak_bytes, "workspace_bytes": stage.workspace_bytes}
    emit(Event("check", INTEGERS))
    launch_and_compare(order, stage, INTEGERS)
    emit(Event("check", NORMAL))
    begin = time.perf_counter()
    errors = launch_and_compare(order, stage, NORMAL)
    checked = _same_bits(order, stage, errors, emit, slow=time.perf_counter() - begin > order.limit_s / 20)
    if stray := stage.off_stream():
        raise stray
    facts.flags += stage.notes
    next_step = "Run it on a GPU to see how fast it is." if order.device == "cpu" else DEFAULT_ADVICE[Status.OK]
    right = Judged(status=Status.OK, headline="Right in all checks.", advice=next_step, errors=errors,
                   detail=Detail(shown={"recheck_inputs": FAR_INPUTS}))
    measured = None
    if order.time:
        emit(Event("time", "samples" if order.device != "cpu" else "on the emulator"))
        watch = watched(order, stage, checked)
        with device_errors(order.device):
            measured = timing.measure(stage.launch, device=order.device, effort=order.effort, cold_l2=order.cold_l2,
                                      limit_s=order.limit_s / 3, watch=watch, to_beat_ms=order.to_beat_ms)
        facts.flags += measured.flags
        stage.run()  # an error of the timed launches is sticky, or shows again here
    if "recheck" in order.guards:
        emit(Event("recheck", RECHECK))
        with _emulated_order("2"):
            compare_again(order, stage, timed=measured is not None)
    if measured is None:
        return right
    median_ms = measured.timing.median_ms
    l2 = l2_bytes(torch.device(order.device).index or 0) if order.device != "cpu" else 0
    if order.device != "cpu" and implausible(median_ms, order.floor_ms, cold_l2=order.cold_l2, l2=l2,
                                             traffic_bytes=stage.peak_bytes - stage.workspace_bytes):
        raise findings.implausible(median_ms, order.floor_ms or 0.0)
    return replace(right, kernel_ms=measured.timing, samples=tuple(measured.samples), clocks=tuple(measured.clocks))


@contextmanager
def threads_for(order: JudgeOrder) -> Iterator[None]:
    """One thread for the judge's own work on small tensors: on a busy machine several threads would wait for each other."""
    before = torch.get_num_threads()
    if order.device == "cpu" and max(prod(order.workload.input_shape), prod(order.workload.output_shape)) < _SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def open_stage(order: JudgeOrder) -> Stage:
    try:
        if order.digest and digest_of(order.library) != order.digest:
            raise Finding(Status.MACHINE_FAILED, f"{order.library} was changed after the build.",
                          "Run the candidate again. Its library is then built again.")
        kind = LauncherApart if order.device == "cpu" and not order.sanitize else Launcher
        launcher = kind(order.library, order.symbol, order.direction)
    except OSError as error:
        if not order.library.exists():
            raise Finding(Status.MACHINE_FAILED, f"{order.library} does not exist any more: the cache was emptied after "
                          "the build.") from error
        raise Finding(Status.LAUNCH_FAILED, f"The library cannot be loaded: {error}.",
                      "Build it again for this machine.") from error
    except MissingSymbol as error:
        raise Finding(Status.LAUNCH_FAILED, str(error.args[0]), "Keep the names of the launcher functions.") from error
    return Stage(launcher, order.workload, device=order.device, guards=order.guards, zones=not order.sanitize,
                 last=order.channels_last)


def launch_and_compare(order: JudgeOrder, stage: Stage, kind: str, *, poison: bool = True) -> dict[str, Errors]:
    """One kind of inputs, once. Raises `Finding`; the first of these wins: zones, inputs, values.

    Without poison the results still hold the answers to other inputs, as they would in use.
    """
    stage.fill(kind)
    truth = Truth(order.workload, order.direction, kind, device=order.device, scratch=order.scratch)
    truth.prepare(stage.tensors)
    if poison:
        stage.poison()
    stage.run()
    if damage := stage.damage():
        raise damage
    compared = stage.compare(truth, precision=order.precision, exact=kind == INTEGERS)
    unwritten_first = sorted(compared.items(), key=lambda c: (c[1].unwritten == 0, c[1].not_finite == 0))
    for name, comparison in unwritten_first:
        if comparison.failed:
            raise findings.wrong_result(name, comparison, kind=kind, precision=order.precision)
    return {name: comparison.errors() for name, comparison in compared.items()}


def compare_again(order: JudgeOrder, stage: Stage, *, timed: bool) -> None:
    """Compare once more: on unpredictable inputs, with old answers in the results and numbers in the guard zones; in float32
    with numbers that float16 cannot hold, there also with usual parameters. If it is wrong, numbers near 1 show whether the
    range is the reason. Raises `Finding`."""
    stage.surround()
    float32 = beyond_float16(order.workload, FAR_INPUTS)
    for kind in (FAR_INPUTS, FAR_SAMPLES_INPUTS) if float32 else (FAR_INPUTS,):
        found = _finding(order, stage, kind)
        if found is None:
            continue
        if float32 and not found.restart and not _finding(order, stage, NEW_INPUTS) and _finding(order, stage, kind):
            raise findings.float16_inside(found)
        raise findings.after_timing(found) if timed else found


def _finding(order: JudgeOrder, stage: Stage, kind: str) -> Finding | None:
    try:
        launch_and_compare(order, stage, kind, poison=False)
    except Finding as finding:
        return finding
    return None


def in_new_process(order: JudgeOrder) -> None:
    """On the emulator: in a process of its own the kernel is launched at another size, then at one with as many inputs as
    that, then at the given size. What it keeps of an earlier launch is then wrong. Pages around the tensors are closed, so a
    read outside a tensor is found even if its value is not used. The tensors begin with a page at the other sizes, and end with
    one at the given size. Blocks run one after the other, and no byte may be changed by two of them. In further launches the
    pointer of grad_bias is null, as where it is not wanted. In the last launch the tensors that the kernel reads begin one
    element behind the start of a page. Then the launcher must have freed what it has allocated. Raises `Finding`."""
    try:
        _at_two_sizes(order, END)
    except Finding as finding:
        if "cuda_error" not in finding.detail:
            raise
        _at_two_sizes(order, START)  # the kernel may need the alignment of a whole allocation


def _at_two_sizes(order: JudgeOrder, edge: str) -> None:
    other = _another_size(order.workload)
    launcher = LauncherApart(order.library, order.symbol, order.direction)
    stages = [(work, Stage(launcher, work, device="cpu", guards=order.guards, last=order.channels_last, edge=where))
              for work, where in ((other, START), (_as_many_inputs(other) if other else None, START), (order.workload, edge),
                                  (other or order.workload, SHIFTED))
              if work is not None]  # all memory before a launch
    said = "" if other is None else f"With a batch of {other.batch} and an input of {numbers.shape(other.input_size)}"
    last, allocated = stages[-1][1], 0
    for work, stage in stages:
        words = said if work is other else f"After a launch with another size ({said[5:]})" if said else ""
        if work is not other and work is not order.workload:
            words += f", with a batch of {work.batch} and an input of {numbers.shape(work.input_size)}"
        for unwanted in [(), ("grad_bias",)] if "grad_bias" in stage.results() and stage is not last else [()]:
            stage.unwanted = frozenset(unwanted)
            try:
                launch_and_compare(replace(order, workload=work), stage, INTEGERS)
            except Finding as finding:
                where = "Where grad_bias is not wanted (its pointer is null)" if unwanted else words
                if stage is last:
                    raise findings.elsewhere(finding, _NOT_ALIGNED) from None
                at_any_size = finding.status in (Status.OUT_OF_BOUNDS, Status.NONDETERMINISTIC)
                raise finding if at_any_size or not where else findings.elsewhere(finding, where) from None
            allocated = allocated or launcher.allocated
    if launcher.allocated:
        raise findings.kept_memory(grows=launcher.allocated > allocated)


def _another_size(workload: Workload) -> Workload | None:
    """A smaller batch and a smaller input, or only one of them; None if there is no smaller one."""
    most = {1: 12, 2: 5, 3: 3}[workload.layer.dims]
    size = tuple(max(1, min(n - 1, most + d)) for d, n in enumerate(workload.input_size))
    for batch in dict.fromkeys((min(2, max(1, workload.batch - 1)), workload.batch)):
        for smaller in (size, workload.input_size):
            with suppress(BadRequest):  # no output of that size
                found = replace(workload, batch=batch, input_size=smaller, preset="", seed=workload.seed + 1)
                if (batch, smaller) != (workload.batch, workload.input_size):
                    return found
    return None


def _as_many_inputs(workload: Workload) -> Workload | None:
    """Another size with as many inputs; None if there is none. A launcher may make a new plan only if their number changes."""
    turned = (*workload.input_size[1:], workload.input_size[0])
    halved = (*workload.input_size[:-1], workload.input_size[-1] // 2)
    for batch, size in ((workload.batch, turned), (2 * workload.batch, halved)):
        with suppress(BadRequest):  # no output of that size
            if size != workload.input_size and batch * prod(size) == workload.batch * prod(workload.input_size):
                return replace(workload, batch=batch, input_size=size, preset="", seed=workload.seed + 2)
    return None


def _same_bits(order: JudgeOrder, stage: Stage, errors: dict[str, Errors], emit: Emit, *, slow: bool) -> Bits:
    """Launch again on the same inputs: the bits must be the same. Returns them."""
    runs = 2 if slow else _RUNS[order.effort]
    first = bits_of(stage)
    others, apart, finite = 0, 0.0, True
    for run in range(2, runs + 1):
        emit(Event("check", f"same bits, run {run} of {runs}"))
        stage.poison()
        with _emulated_order("reverse" if run == 2 else str(run)):
            stage.run()
        differs = False
        for name, remembered in first.items():
            now = stage.results()[name]
            if isinstance(remembered, list):
                differs = differs or _fingerprint(now) != remembered
            elif not torch.equal(row_of(now).view(torch.uint8), row_of(remembered).view(torch.uint8)):
                differs = True
                distance = (now.double() - remembered.double()).abs()
                finite = finite and bool(distance.isfinite().all())
                apart = max(apart, float(torch.where(distance.isfinite(), distance, 0.0).max()))
        others += differs
    if others:
        raise findings.nondeterministic(others, runs, apart, finite=finite, errors=errors)
    if damage := stage.damage():
        raise damage
    return first


def watched(order: JudgeOrder, stage: Stage, checked: Bits) -> timing.Watch:
    """The `Watch` around timed launches: before each, channels of the inputs change their sign, and some poison is written and
    looked for after it. After a batch all results must be those of the checked launches, but for the signs. Some launches on
    the same inputs are made now, without a clock."""
    if "watch" not in order.guards:
        return timing.Watch()
    places: list[tuple[str, slice]] = []
    kept = {name: remembered for name, remembered in checked.items() if not isinstance(remembered, list)}
    signs = Signs(order.workload, stage.read(), order.device) if len(kept) == len(checked) else None
    # Counted on the device, so that nothing waits between two samples.
    unwritten, wrong = ({name: torch.zeros((), dtype=torch.int64, device=order.device) for name in checked}
                        for _ in range(2))

    def expected(name: str, place: slice | None = None) -> torch.Tensor:
        if place is None:
            return signs.changed(name, kept[name]) if signs else kept[name]
        return signs.changed_part(name, kept[name], place) if signs else row_of(kept[name])[place]

    def look() -> None:
        for name, place in places:
            unwritten[name] += (stage.bits(name)[place] == POISON[stage.tensors[name].dtype]).sum()
            if name in kept:
                wrong[name] += (row_of(stage.tensors[name])[place] != expected(name, place)).sum()
        places.clear()

    def before(*, same: bool = False) -> None:
        look()
        if signs and not same:
            signs.draw()
        places.extend(stage.poison_some())

    def after() -> None:
        look()
        for name, remembered in checked.items():
            now = stage.results()[name]
            if isinstance(remembered, list):
                same = random.random() > _LOOKS_AT_LARGE or _fingerprint(now) == remembered
            else:
                same = torch.equal(now, expected(name))
            if int(unwritten[name]) or int(wrong[name]) or not same:
                still = sum(int(count_poison(part).sum()) for part in row_of(now).split(1 << 26))
                raise findings.while_timed(name, max(still, int(unwritten[name])))
        if signs:
            signs.end()

    for _ in range(_REPEATS):  # a kernel might do less work for inputs that it has seen
        before(same=True)
        stage.run()
    after()
    return timing.Watch(before=before, after=after)


@contextmanager
def _emulated_order(order: str) -> Iterator[None]:
    """Run the threads and blocks of a launch in another order on the emulator: in reverse, or drawn from a seed. The results of
    a right kernel do not change. If one thread depends on another without a barrier, the usual order or its reverse is
    wrong."""
    before = os.environ.get(ORDER)
    os.environ[ORDER] = order
    try:
        yield
    finally:
        if before is None:
            del os.environ[ORDER]
        else:
            os.environ[ORDER] = before


def bits_of(stage: Stage) -> Bits:
    return {name: t.clone() if t.numel() * t.itemsize <= _KEPT_BYTES else _fingerprint(t)
            for name, t in stage.results().items()}


def _fingerprint(tensor: torch.Tensor) -> list[int]:
    """For each block: the sum of its words as integers, and the sum of their products with the place. Exact in any order."""
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize]
    parts = []
    for block in row_of(tensor).view(whole).split(1 << 24):
        wide = block.to(torch.int64)
        place = torch.arange(1, len(block) + 1, device=block.device)
        parts += [int(wide.sum()), int((wide * place).sum())]  # both wrap around at 2^64
    return parts
