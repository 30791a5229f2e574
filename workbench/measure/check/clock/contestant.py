"""`Plan`: what is timed. `Contestant`: one of the modules that are timed alternately. Also the errors that end the timing, and
`NotTimed`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from ....core.orders import Emit
from ....core.precision import precision_of
from ....core.replies import CheckTimes, Event, WayAlone, WayTimes
from ....core.trial import Timing
from ...clock import timing
from ...device import free_bytes
from ...kernel.inputs import reduction_length
from ...kernel.validate import HALF
from ..foreign import requests
from ..foreign.hold import StillRunning, Took, alone, middle
from ..foreign.process import Ended, ForeignProcess, Raised, kill_strays
from ..foreign.replies import NoWay
from ..party import Construction, Party
from ..questions.cases import Case
from ..trialrun import ResultErrors, TrialRun
from .ladder import LADDER, WHY_NOT_DROP_IN
from .timed_input import TimedInputs

R = TypeVar("R")
_LOOSE = 10   # beyond so many tolerances of tf32 a way of PyTorch computes something else
_ROOM_OF_A_PROCESS = 3   # so many times the bytes of inputs and results must be free for a further process of PyTorch
_ROOM = 20   # for a CUDA graph so many times the bytes of a call must be free, because the turns need memory, too


class NotVaried(Exception):
    """No input can be changed between calls, so all calls would get the same inputs."""


class Wrong(Exception):
    """A timed call gave a wrong result, or processes of the file ran while PyTorch was timed."""

    def __init__(self, sentence: str, advice: str = "Compute the result of each call within that call."
                 ) -> None:
        super().__init__(sentence)
        self.advice = advice


class Starved(Exception):
    """One of PyTorch's ways has too little memory. `key`: which; "" if it is the module as it is called."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(why)
        self.key = key


@dataclass
class Contestant:
    """The candidate, or one of PyTorch's ways in its process with the reference."""

    process: str                # a key of _Bench.parties
    way: str = ""               # a key of LADDER; "" is the module as it is called
    strides: tuple[tuple[int, ...], ...] | None = None
    precision: str = ""
    off: list[float] = field(default_factory=list)   # of a contestant without a precision: how far its results may be off


@dataclass
class Turns:
    """The samples of all turns. `modes`: the candidate, whose key is "", and PyTorch's ways. `running`: those of PyTorch's ways
    that take part in the next turn."""

    modes: dict[str, Contestant]
    running: list[str] = field(init=False)
    samples: dict[str, list[float]] = field(init=False)
    bounds: dict[str, list[tuple[float, ...]]] = field(init=False)
    empties: list[float] = field(default_factory=list)
    slowed: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.running = [name for name in self.modes if name]
        self.samples = {name: [] for name in self.modes}
        self.bounds = {name: [] for name in self.modes}

    def add(self, took: Mapping[str, Took], empty: Took, calls: int, *, slowed: bool) -> None:
        """Those of one turn."""
        for name in took.keys() & self.modes.keys():
            self.samples[name].append(1e3 * middle(took[name], empty) / calls)
            self.bounds[name].append(tuple(1e3 * s / calls for s in alone(took[name], empty)))
        self.empties.append(1e3 * empty.clock_s / calls)
        self.slowed.append(slowed)

    def drop(self, way: str) -> None:
        self.running = [name for name in self.running if name != way]
        for kept in (self.modes, self.samples, self.bounds):
            kept.pop(way, None)

    def drop_slow(self, least: int) -> int:
        """Leave out the turns in which the GPU had lowered its clocks, if enough others remain. Returns how many."""
        kept, dropped = timing.without_slow(list(self.samples.values()), self.slowed, least)
        self.samples = dict(zip(self.samples, kept, strict=True))
        return dropped

    def of_ways(self, device: str, dropped: int) -> tuple[dict[str, Timing], tuple[WayTimes, ...]]:
        """The summary of each contestant, and all about PyTorch's ways."""
        found = {name: timing.summary(taken, stop="samples", cold_l2=False, dropped=dropped)
                 for name, taken in self.samples.items()}
        self.bounds = self.bounds if device == "cpu" else {name: [] for name in self.modes}
        return found, tuple(WayTimes(
            key, LADDER[key].name, way.precision, tuple(self.samples[key]), found[key], tuple(self.bounds[key]), way.process,
            (), LADDER[key].drop_in, WHY_NOT_DROP_IN.get(LADDER[key].kind, "")) for key, way in self.modes.items() if key)


@dataclass(frozen=True)
class Tolerances:
    """How far the results of a direction may be from float64 in a precision. `count`: of the results."""

    trial: TrialRun
    case: Case
    direction: str
    count: int

    @property
    def offered(self) -> list[str]:
        """The precisions in which the file may compute, the strictest first."""
        return list(dict.fromkeys(precision_of(self.trial.dtype, of_float32=p) for p in (
            "ieee", "tf32", *({self.trial.declared} & set(HALF)))))

    def of(self, precision: str) -> list[float]:
        """The allowed distance of each result, computed from its reduction length if that is known."""
        workload = self.case.workload
        names = ["output"] if self.direction == "forward" else ["grad_input", "grad_weight", "grad_bias"][:self.count]
        if workload is None or len(names) != self.count:
            return [self.trial.limit(precision, 1 << 20)] * self.count
        return [self.trial.limit(precision, reduction_length(workload, name)) for name in names]

    def allowed(self, precision: str) -> float:
        """The same without a reduction length. `precision`: that of float32."""
        return self.trial.limit(precision_of(self.trial.dtype, of_float32=precision), 1 << 20)

    def strictest(self, distances: Sequence[float]) -> str:
        """The strictest precision that allows these distances; "" if none does."""
        for precision, slack in (*((p, 1) for p in self.offered), (self.offered[-1], _LOOSE)):
            if all(d <= slack * limit for d, limit in zip(distances, self.of(precision), strict=True)):
                return precision
        return ""

    def near(self, distances: Sequence[float], jumps: Sequence[float]) -> bool:
        """Whether jumps explain the distances."""
        return all(d <= _LOOSE * limit + jump for d, limit, jump in
                   zip(distances, self.of(self.offered[-1]), jumps, strict=True))


def only(parties: Mapping[str, Party], name: str, candidate: str) -> None:
    """Let only that process run. Processes without a parent are the candidate's: the others run no foreign code."""
    for other, party in parties.items():
        if other != name:
            party.process.hold(strays=other == candidate)
    parties[name].process.resume()
    if parties[candidate].process.ran_while_held:
        raise Wrong("Processes of the file ran on while PyTorch was timed, though they had been stopped.",
                    "Start no processes and no timers.")


def starved(error: Exception) -> bool:
    """Whether memory was missing, in this process or in another one."""
    return isinstance(error, torch.cuda.OutOfMemoryError | Starved) or isinstance(error, Raised) and (
        error.type == "OutOfMemoryError" or "CUDA error: out of memory" in error.message)


def with_room(taken: Turns, parties: Mapping[str, Party], left_out: list[str], work: Callable[[], R]) -> R:
    """What the work gives. If memory is missing, it is done again: without the way that lacks memory, or without the way that
    was prepared last if the file or the judge lacks it. `left_out` gets the keys of these ways."""
    while True:
        try:
            return work()
        except (Starved, Raised, torch.cuda.OutOfMemoryError) as error:
            last = next((key for key in reversed(taken.modes) if key), "")
            key = error.key if isinstance(error, Starved) else last if starved(error) else ""
            if not key:
                raise
            process = parties[taken.modes[key].process].process
        process.ask(requests.DropWays(key))
        taken.drop(key)
        left_out.append(key)


def too_large(device: str) -> str:
    """Why a way is left out for which the memory does not suffice."""
    return f"it needs more memory than {device} has left"


def no_room_for_a_process(device: str, bytes_of_tensors: int) -> bool:
    """Whether a further process with ways of PyTorch would leave too little memory for the calls of the others. It holds the
    inputs and the results."""
    return device != "cpu" and _ROOM_OF_A_PROCESS * bytes_of_tensors > free_bytes(device)


def no_room(way: str, device: str, bytes_of_call: int) -> str:
    """Why there is not enough memory for a way that keeps all its tensors twice; "" if there is."""
    return too_large(device) if LADDER[way].kind == "graphed" and _ROOM * bytes_of_call > free_bytes(device) else ""


def library_kernels(parties: Mapping[str, Party], baselines: Sequence[WayTimes], direction: str, inputs: TimedInputs,
                    ready: Callable[[Party], str]) -> dict[str, tuple[str, ...]]:
    """By key: PyTorch's plain call, and each way that was timed to the end, is bound once more, to one set, and profiled. What
    was compiled is left out. `ready` gives the name of a party's module."""
    found: dict[str, tuple[str, ...]] = {}
    most = max((len(b.samples) for b in baselines), default=0)
    asked = [b for b in baselines if (len(b.samples) == most or b.key == "default") and LADDER[b.key].kind != "compiled"]
    for name, party in parties.items():
        here = [b for b in asked if b.process == name]
        if not here:
            continue
        try:
            party.process.ask(requests.Prepare(ready(party), direction, len(inputs.fixed), inputs.size),
                              inputs.tensors(most_sets=1))
            for baseline in here:
                answer, _ = party.process.ask(requests.PrepareWay(baseline.key, profile=True))
                found[baseline.key] = () if isinstance(answer, NoWay) else answer.kernels
            party.process.ask(requests.DropWays())
        except (Raised, Ended):  # the times stand without the names
            break
    return found


class Ahead:
    """torch.compile in its own process, while questions are asked. A failure is ignored here; it occurs again when the way is
    prepared, and is then reported."""

    def __init__(self, party: Party, how: Construction, ways: Sequence[str], inputs: Sequence[torch.Tensor]) -> None:
        self.party = party
        self._work = threading.Thread(target=self._compile, args=(how, tuple(ways), list(inputs)), daemon=True)
        self._work.start()

    def wait(self) -> Party:
        """Wait until it has ended. Before that, nothing else may use the process."""
        self._work.join()
        return self.party

    def stop(self) -> None:
        """End it at any point; it may also be restarting just now."""
        while self._work.is_alive():
            self.party.process.kill()
            self._work.join(0.05)

    def _compile(self, how: Construction, ways: tuple[str, ...], inputs: list[torch.Tensor]) -> None:
        process = self.party.process
        process.waited_for = False
        with suppress(Raised, Ended, OSError):
            process.ask(requests.WarmUp(self.party.ready(how, None), ways), inputs, limit_s=process.limits.build_s)
        process.waited_for = True


@dataclass(frozen=True)
class Beside:
    """More processes with the reference. `benchmark`: for the ways with cudnn.benchmark, on a GPU. `compiler`: for
    torch.compile. `spare`: has run nothing."""

    benchmark: Party | None
    compiler: Ahead | None
    spare: ForeignProcess

    def wait(self) -> None:
        """Until torch.compile has ended. On the CPU the spare process imports torch during that time, because later it would
        use cores that the timing needs."""
        begin = time.monotonic()
        if self.benchmark is None:
            with suppress(Ended):  # it is started again when it is needed
                self.spare.get_ready()
        if self.compiler:
            process = self.compiler.wait().process
            process.spent.seconds += time.monotonic() - begin
            if self.benchmark is not None:
                process.share_with(self.benchmark.process)


@dataclass(frozen=True)
class Plan:
    """What is timed. `beside`: other processes. `errors`: the error and the tolerance of each result in the check of this case.
    `factor`: all values for the timed calls are multiplied by it."""

    case: Case
    effort: str
    beside: Beside | None = None
    errors: dict[str, ResultErrors] = field(default_factory=dict)
    factor: float = 1.0


@dataclass(frozen=True)
class NotTimed:
    """Why there are no times. `wrong`: a result of a timed call was wrong. `starved`: the memory did not suffice."""

    why: str
    wrong: bool = False
    advice: str = ""
    starved: bool = False


ENDS_TIMING = (Wrong, Raised, Ended, NotVaried, Starved, OSError, torch.cuda.OutOfMemoryError)


def why_not_timed(error: Exception, device: str) -> NotTimed:
    """The `NotTimed` for an exception of `ENDS_TIMING`."""
    if isinstance(error, Wrong):
        return NotTimed(str(error), wrong=True, advice=error.advice)
    if isinstance(error, NotVaried):
        return NotTimed("Not timed: each timed call needs its own inputs. Changed inputs would no longer have the structure "
                        "that get_inputs() gives them.")
    if starved(error):
        return NotTimed(f"Not timed: {device} does not have enough free memory for the results.", starved=True)
    if isinstance(error, OSError):
        why = str(error) if isinstance(error, StillRunning) else f"memory cannot be shared here ({error})"
        return NotTimed(f"Not timed: {why}.")
    said = error.sentence if isinstance(error, Raised) else error.headline if isinstance(error, Ended) else str(error)
    return NotTimed(f"Not timed: {said}")


def without_the_candidate(trial: TrialRun, plan: Plan, found: dict[str, CheckTimes],
                          alone: Callable[[str, str], WayAlone | None], emit: Emit) -> None:
    """Fill in `alone` of the directions that are doubted. `alone`: times one of PyTorch's ways in a direction."""
    doubted = {direction: keys for direction, one in found.items() if (keys := one.doubted)}
    if not doubted:
        return
    trial.candidate.process.close()
    kill_strays()
    if plan.beside:  # all its choices are made anew
        trial.reference.move_to(plan.beside.spare)
    else:
        trial.reference.process.close()
    for direction, keys in doubted.items():
        emit(Event("time", f"{direction}: PyTorch once more, without the file's process"))
        times = (alone(direction, key) for key in keys)
        found[direction] = replace(found[direction], alone=tuple(one for one in times if one))
