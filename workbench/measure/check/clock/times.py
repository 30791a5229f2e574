"""Measures module_ms of a candidate in its own process, which writes the results of batches of calls into memory of the judge.
docs/judging.md, "How a foreign module is timed", says how and why."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from math import ceil

import torch

from ....core.check_parts import LeftOut
from ....core.orders import Emit
from ....core.precision import FROM_STRICTEST
from ....core.replies import CheckTimes, Event, OneByOne, WayAlone, WayTimes
from ...clock import timing
from ...kernel.validate import beside_noise, distance
from ..foreign import hold, requests
from ..foreign.hold import Took
from ..foreign.process import Ended, Raised
from ..foreign.replies import NoWay
from ..party import Construction, Party
from ..questions import drawn
from ..trialrun import State, TrialRun, wide
from .contestant import (
    ENDS_TIMING,
    Contestant,
    NotTimed,
    NotVaried,
    Plan,
    Starved,
    Tolerances,
    Turns,
    Wrong,
    library_kernels,
    no_room,
    no_room_for_a_process,
    only,
    starved,
    too_large,
    why_not_timed,
    with_room,
    without_the_candidate,
)
from .ladder import LADDER, doubted_ways, in_the_running, settled, why_left_out
from .slots import Limit, Slots, differs, far_off, kinds_of, results, rounded
from .timed_input import Drawn, Versions, timed_inputs

_TURNS = {"quick": 6, "normal": 12, "full": 30}
_LEAST_TURNS = 5                # fewer turns show no spread; after these, ways that cannot be the fastest are left out
_BATCH_S = 0.03
_MOST_CALLS = 200
_SETS, _FEW_SETS = 3, 2
_LARGE_BYTES = 1 << 30          # of one set: of larger sets there are only two
_CHECKED = 3                    # of the first batches of the candidate in which one call is compared; of the others one
_TIMED_WRONG = "A timed call gave a wrong result. The same call gives the right result when it is not timed."
_NOT_AGAIN = "The call before the timing gave a different result from the same call in the check."
_SEED_OF_TRUTH = 43            # the state replaces what it draws; it must differ from the seed of the timed module
_CANDIDATE, _REFERENCE, _BENCHMARK, _COMPILER, _PLAIN = "candidate", "reference", "benchmark", "compiler", "plain"
_WITH_BENCHMARK = (_BENCHMARK, _COMPILER)
_ALONE_TURNS, _SINGLE_TURNS = 8, 10


def measure(trial: TrialRun, plan: Plan, *, backward: bool, emit: Emit
            ) -> tuple[dict[str, CheckTimes], NotTimed | None]:
    """The times of "forward" and "backward", and why one is missing: if the memory does not suffice for backward, the times of
    forward stay. If the candidate is faster, `singly` has samples of it and of the best way in batches of one call, and `alone`
    has samples of the best ways after the candidate's process has ended."""
    found, benches, missing = dict[str, CheckTimes](), dict[str, _Bench](), None
    if plan.beside and plan.beside.compiler:
        emit(Event("time", "waiting for torch.compile"))
        plan.beside.wait()
    for direction in ("forward", "backward") if backward else ("forward",):
        emit(Event("time", f"{direction}: drawing inputs"))
        try:
            benches[direction] = _Bench(trial, plan, direction, emit,
                                        benches["forward"].shown if direction == "backward" else {})
            try:
                found[direction] = benches[direction].measure(_TURNS[plan.effort])
            finally:
                benches[direction].resume()
        except ENDS_TIMING as error:
            missing = why_not_timed(error, trial.device)
            benches.pop(direction, None)
            if not (missing.starved and found):
                return {}, missing
            break
    without_the_candidate(trial, plan, found, lambda d, key: benches[d].alone(key, found[d].calls), emit)
    emit(Event("time", "naming the library kernels"))
    for direction, bench in benches.items():  # last of all: a profiler may slow down the process for good
        kernels = bench.kernels(found[direction].baselines)
        found[direction] = replace(found[direction], baselines=tuple(
            replace(b, kernels=kernels.get(b.key, ())) for b in found[direction].baselines))
    return found, missing


class _Bench:
    """The timing of one direction: slots, inputs, and all contestants, timed alternately."""

    def __init__(self, trial: TrialRun, plan: Plan, direction: str, emit: Emit, shown_forward: dict[str, str]) -> None:
        case, factor = plan.case, plan.factor
        self.trial, self.case, self.direction, self.effort, self.emit = trial, case, direction, plan.effort, emit
        self.errors, self.shown_forward, self.device = plan.errors, shown_forward, trial.device
        self.shown: dict[str, str] = {}  # way -> the precision of its first answer
        self.parties = {_REFERENCE: trial.reference, _CANDIDATE: trial.candidate}
        if plan.beside:
            self.parties |= {_BENCHMARK: plan.beside.benchmark} if plan.beside.benchmark else {}
            self.parties |= {_COMPILER: plan.beside.compiler.wait()} if plan.beside.compiler else {}
        self.random = random.SystemRandom()
        self.how = trial.how(case)
        facts, drawn = trial.reference.make(self.how)
        self.state, self.parameters = (facts.names, drawn), facts.parameters
        first = trial.inputs(case)
        count = _FEW_SETS if sum(x.numel() * x.itemsize for x in first) > _LARGE_BYTES else _SETS
        if direction == "forward":
            fixed: list[torch.Tensor] = []
            sets = [first, *(trial.inputs(case) for _ in range(count - 1))]
        else:
            _, (output, *_) = trial.reference.call(self.how, first, state=self.state)
            fixed, drawn_on = first, {"generator": trial.generator, "device": trial.generator.device}
            sets = [[torch.randn(output.shape, **drawn_on).to(output.dtype)] for _ in range(count)]
        varied = trial.drawn.varied if trial.drawn and direction == "forward" else ["each"] * len(sets[0])
        self.inputs = timed_inputs(fixed, sets, factor, varied, trial.generator)
        if not any(f.numel() for f in self.inputs.factors):
            raise NotVaried
        self.first_truth: list[torch.Tensor] | None = None
        self.left_out: list[LeftOut] = []
        self.starved: list[str] = []    # ways for which there was not enough memory
        self.seen: list[str] = []   # the precision of each call of the candidate that was timed and looked at
        self.without_benchmark = False   # there was not enough memory for that process
        self.slots: Slots | None = None
        self.order: list[Drawn] = []   # the calls of this turn

    def measure(self, turns: int) -> CheckTimes:
        for party in self.parties.values():   # what the questions, or the other direction, still hold of the GPU's memory
            party.process.ask(requests.DropWays())
        self.emit(Event("time", f"{self.direction}: an untimed call"))
        plain = self._called_plainly()
        self.emit(Event("time", f"{self.direction}: sending the inputs"))
        self.kinds = kinds = self._prepare(self.parties)
        self.tolerances = Tolerances(self.trial, self.case, self.direction, len(kinds))
        self.stride = sum(rounded(getattr(torch, d).itemsize * torch.Size(s).numel()) for d, s in kinds)
        self.emit(Event("time", f"{self.direction}: float64 of the first inputs"))
        self._demand(plain)
        self.slots = Slots(self.parties, device=self.device, stride=self.stride, most_calls=_MOST_CALLS)
        most = max(1, min(_MOST_CALLS, self.slots.calls))
        ours = Contestant(_CANDIDATE)
        modes = {"": ours, **self._ways()}
        taken = Turns(modes)
        room = partial(with_room, taken, self.parties, self.starved)
        one_s = room(lambda: min(self._batch(ours, 1).clock_s for _ in range(3)))
        calls = max(1, min(most, ceil(_BATCH_S / max(one_s, 1e-5))))
        for name in list(modes):
            room(lambda name=name: name in modes and self._called(modes[name], min(calls, 3), timed=False))
        checked = {*self.random.sample(range(_LEAST_TURNS), _CHECKED), self.random.randrange(_LEAST_TURNS, turns)}
        for turn in range(turns):
            if turn >= _LEAST_TURNS:
                shown = max([self.shown[""] or FROM_STRICTEST[-1], *self.seen], key=FROM_STRICTEST.index)
                precisions = {name: modes[name].precision for name in taken.running}
                if turn == _LEAST_TURNS:
                    taken.running = in_the_running(taken.samples, precisions, shown)
                elif self.effort != "full" and settled(taken.samples, taken.bounds, precisions, shown):
                    break
            self.emit(Event("time", f"{self.direction}, turn {turn + 1} of {turns}, PyTorch in {len(taken.running)} ways"))
            took, empty = room(lambda check=turn in checked: self._one_turn(taken, calls, check=check))
            taken.add(took, empty, calls, slowed=timing.slowed_down(self.device))
        only(self.parties, _CANDIDATE, _CANDIDATE)  # the last look at whether it had stayed stopped
        count, throttled, empties = len(taken.slowed), sum(taken.slowed), sorted(taken.empties)
        summaries, baselines = taken.of_ways(self.device, taken.drop_slow(_LEAST_TURNS))
        found = CheckTimes(
            summaries[""], tuple(taken.samples[""]), tuple(taken.bounds[""]), calls, sum(t < count for t in checked), throttled,
            precision=self._own_precision(), empty_ms=empties[count // 2], baselines=baselines,
            left_out=(*self.left_out, *(
                LeftOut(LADDER[key].name, too_large(self.device)) for key in self.starved)), starved=tuple(self.starved))
        if doubted := doubted_ways(found):
            found = replace(found, doubted=doubted, singly=self._singly(ours, modes[doubted[0]], calls))
        for party in (p for name, p in self.parties.items() if name != _CANDIDATE):
            party.process.ask(requests.DropWays())
        self.slots = self.first_truth = None  # the inputs may be new ones now
        return found

    def _one_turn(self, taken: Turns, calls: int, *, check: bool) -> tuple[dict[str, Took], Took]:
        """A batch of each in random order, and the time without calls. All results of the candidate are compared with those of
        PyTorch, which gets the same inputs in the same order. With `check` one is compared with float64, too."""
        modes = taken.modes
        beside = next((key for key, way in modes.items() if key and way.strides is None and way.process == _REFERENCE), _PLAIN)
        same = modes.get(beside) or self.plain_reference
        order = list(dict.fromkeys(["", *taken.running, beside]))
        self.random.shuffle(order)
        empty, took, kept = self._empty(calls), {}, {}
        self.order = self.inputs.draw(self.random, calls)
        for name in order:
            who = same if name == beside else modes[name]
            self._warm(who, calls)
            took[name] = self._batch(who, calls, check=check and not name, again=True)
            if name in ("", beside):
                kept[name] = self.slots.all(who.process, calls)
        self._compare(kept[""], kept[beside], same)
        return took, empty

    def _singly(self, ours: Contestant, way: Contestant, calls: int) -> OneByOne:
        """Samples of both, one call in each batch (a file could combine calls), all compared. Before it, inputs without factors
        and those of a backward are drawn anew, and each parameter becomes a new version. As before a turn, other calls come
        first: the clock of an idle GPU is low."""
        samples: dict[str, list[float]] = {_CANDIDATE: [], "theirs": []}
        checked = self.random.sample(range(_SINGLE_TURNS), _CHECKED)
        signs = self.case.setting.layer is not None and self.trial.loads_state
        backward, plain = self.direction == "backward", self.state
        versions = Versions(plain, self.random, self.parameters if signs else [])
        renewed = backward or not all(f.numel() for f in self.inputs.factors)
        for turn in range(_SINGLE_TURNS):
            # The middle of three: a usual request, because each sample is one request.
            empty = sorted(self._batch(Contestant(_REFERENCE), 1, only_copy=True) for _ in range(3))[1]
            negated, kept = versions.draw(), {}
            self.state = versions.state
            self.order = self.inputs.renew(fresh := self.trial.inputs(self.case) if renewed else [], self.random)
            for name, who in self.random.sample([(_CANDIDATE, ours), ("theirs", way)], 2):
                self._warm(who, calls)
                self.parties[who.process].process.ask(requests.Renew(who.way, backward, negated), fresh)
                took = self._batch(who, 1, check=name == _CANDIDATE and turn in checked, again=True)
                kept[name] = self.slots.all(who.process, 1)
                samples[name].append(1e3 * hold.middle(took, empty))
            self._compare(kept[_CANDIDATE], kept["theirs"], way)
        self.state = plain  # whoever calls these modules again loads it first
        only(self.parties, _CANDIDATE, _CANDIDATE)
        return OneByOne(tuple(samples[_CANDIDATE]), tuple(samples["theirs"]))

    def _compare(self, ours: torch.Tensor, theirs: torch.Tensor, way: Contestant) -> None:
        """Raises `Wrong` if the results of the same calls differ, in one of the slots."""
        def far() -> bool:
            return differs(ours, theirs, [
                Limit(dtype, shape, allowed + other + jump, rms) for (dtype, shape), (allowed, rms), jump, other in
                zip(self.kinds, self.demanded, self.jumps, way.off or self.tolerances.of(way.precision), strict=True)])

        if far() and (not self._jumps_now() or far()):
            raise Wrong(_TIMED_WRONG)

    def _jumps_now(self) -> bool:
        """Whether results jump. How far is computed anew, because the inputs of a backward may have changed."""
        self.__dict__.pop("jumps", None)
        return any(self.jumps)

    @cached_property
    def plain_reference(self) -> Contestant:
        """The reference as it was prepared: the file's results are compared with it if no way of PyTorch works."""
        one = Contestant(_REFERENCE)
        kept = self._called(one, 1, look=True, change=False, timed=False)[1][0]
        return replace(one, off=[2 * off for off, _, _ in self._distances(kept, self.first_truth, None)])

    def alone(self, key: str, calls: int) -> WayAlone | None:
        """One of PyTorch's ways, timed after all processes of the candidate have ended; None if it does not work."""
        reference = {_REFERENCE: self.parties[_REFERENCE]}
        try:
            self._prepare(reference, benchmark=LADDER[key].benchmark)
            self.slots = Slots(reference, device=self.device, stride=self.stride, most_calls=_MOST_CALLS)
            way, _ = self._way(key, _REFERENCE)
            if way is None:
                return None
            calls = max(1, min(calls, self.slots.calls))
            samples = []
            for _ in range(_ALONE_TURNS):
                empty = self._empty(calls)
                self._warm(way, calls)
                samples.append(1e3 * hold.middle(self._batch(way, calls), empty) / calls)
            reference[_REFERENCE].process.ask(requests.DropWays())
            return WayAlone(key, LADDER[key].name, way.precision, tuple(samples))
        except (Raised, Ended, Starved, OSError, torch.cuda.OutOfMemoryError):  # the other times are still valid
            return None
        finally:
            self.slots = None
            self.resume()

    def resume(self) -> None:
        """Let all processes go on."""
        for party in self.parties.values():
            party.process.resume()

    def _warm(self, who: Contestant, calls: int) -> None:
        """Prepares a timed batch, so that both processes begin alike although one was idle: the pages of the slots are touched,
        because the system may have swapped them out; then some calls are made."""
        if self.device == "cpu":
            self._called(who, calls, only_copy=True, timed=False)
        self._called(who, max(1, calls // 2), timed=False)

    def _ways(self) -> dict[str, Contestant]:
        """Each way of the ladder that works here."""
        there = dict[str, Contestant]()
        for key, way in LADDER.items():
            why = why_left_out(key, self.case, device=self.device, dtype=self.trial.dtype, effort=self.effort) or no_room(
                key, self.device, self.stride + sum(x.nbytes for x in self.inputs.sets[0]))
            if not why:
                self.emit(Event("time", f"{self.direction}: preparing {way.name}"))
                own = next((name for name, fits in ((_COMPILER, way.kind == "compiled"), (_BENCHMARK, way.benchmark))
                            if fits and name in self.parties), _REFERENCE)
                try:
                    if self.without_benchmark and way.benchmark and own == _REFERENCE:
                        raise Starved(key, too_large(self.device))
                    found, why = self._way(key, own)
                    there |= {key: found} if found else {}
                except Starved:
                    self.starved.append(key)
            if why:
                self.left_out.append(LeftOut(way.name, why))
        return there

    def _way(self, key: str, process: str) -> tuple[Contestant | None, str]:
        """A way bound in that process, with the precision that its first answer shows; or None, and why. Raises `Starved`."""
        party = self.parties[process].process
        answer, _ = party.ask(requests.PrepareWay(key), doing=f"{LADDER[key].name} was prepared", limit_s=party.limits.build_s)
        if isinstance(answer, NoWay):
            if answer.starved:
                raise Starved(key, answer.left_out)
            return None, answer.left_out
        if kinds_of(answer) != self.kinds:
            return None, "its results have another dtype or shape"
        one = Contestant(process, key, answer.strides)
        one.precision = self._precision(one)
        return (one, "") if one.precision else (None, "its values differ from the reference")

    def kernels(self, baselines: Iterable[WayTimes]) -> dict[str, tuple[str, ...]]:
        """By key: the library kernels of PyTorch's plain call, and of each way that was timed to the end."""
        return library_kernels(self.parties, list(baselines), self.direction, self.inputs,
                               lambda party: party.ready(self.how, self.state))

    def _empty(self, calls: int) -> Took:
        """The time of request, change of the input, and copy."""
        return min(self._batch(Contestant(_REFERENCE), calls, only_copy=True) for _ in range(2))

    def _prepare(self, parties: dict[str, Party], *, benchmark: bool = False) -> list[tuple[str, list[int]]]:
        """Prepare the module for timed calls. `benchmark`: set before the first call, because cuDNN keeps its first choice."""
        kinds, tensors = {}, self.inputs.tensors()
        held = sum(t.nbytes for t in tensors)
        for name, party in list(parties.items()):
            if name == _COMPILER and no_room_for_a_process(self.device, held):
                del parties[name]   # the reference's process compiles instead, if there is room for that
                continue
            state = self.state if self.trial.loads_state or name != _CANDIDATE else None
            try:
                module = party.ready(self.how, state)
                answer, _ = party.process.ask(requests.Prepare(
                    module, self.direction, len(self.inputs.fixed), self.inputs.size, benchmark or name in _WITH_BENCHMARK),
                    tensors, doing="it was prepared for timing")
            except (Raised, Ended) as error:
                if name != _COMPILER and not (name == _BENCHMARK and starved(error)):
                    raise
                # Another process compiles, or the ways with cudnn.benchmark are left out: cuDNN keeps its first choice.
                self.without_benchmark |= name == _BENCHMARK
                del parties[name]
                with suppress(Raised, Ended):
                    party.process.ask(requests.DropWays())
                continue
            kinds[name] = kinds_of(answer)
            held += answer.bytes if name == _REFERENCE else 0
        if any(one != kinds[_REFERENCE] for one in kinds.values()):
            raise Wrong("In timed calls its results have another dtype or shape than in the check.")
        return kinds[_REFERENCE]

    def _batch(self, who: Contestant, calls: int, *, only_copy: bool = False, check: bool = False, again: bool = False) -> Took:
        """The time from the request to the answer. With `check` one result, chosen afterwards, is compared. `again`: repeat the
        calls of `order`."""
        took, looked = self._called(who, calls, only_copy=only_copy, look=check, order=self.order if again else None)
        if check:
            kept, inputs = looked
            found = self._distances(kept, self._truth(inputs), None)
            self.seen.append(self._class([d for d, _, _ in found], who.way) or FROM_STRICTEST[-1])
            if far_off(found, self.demanded, self.jumps) and (
                    not self._jumps_now() or far_off(found, self.demanded, self.jumps)):
                raise Wrong(_TIMED_WRONG)
        return took

    def _called_plainly(self) -> list[torch.Tensor]:
        """The candidate's results for the first inputs, in an untimed call with the settings of timed calls: libraries may use
        other algorithms there. To be called first, because it loads the state."""
        state = self.state if self.trial.loads_state else None
        first = self.inputs.of(0, (0, 0))
        if self.direction == "forward":
            return self.trial.candidate.call(self.how, first, state=state)[1][:1]
        return self.trial.candidate.call(self.how, self.inputs.fixed, state=state, gradients=self._differentiated(),
                                         grad_output=first[0])[1][1:]

    def _demand(self, plain: list[torch.Tensor]) -> None:
        """`demanded`: for each result (relative L2 allowed when timed, usual rms). A timed result must have the precision that
        the file shows in an untimed call, and the check must allow that precision."""
        self._keep_first_truth(self.inputs.of(0, (0, 0)))
        if [list(r.shape) for r in plain] != [shape for _, shape in self.kinds]:
            raise Wrong(_NOT_AGAIN)
        found = beside_noise([distance(got, truth) for got, truth in zip(plain, self.first_truth, strict=True)],
                             self.first_truth, self._least_norms())
        least, names = self.tolerances.allowed(self.trial.of_float32), self._names()
        for name, (off, _, _) in zip(names, found, strict=True):
            limit = max(least, 2 * self.errors[name].allowed if name in self.errors else least)
            if not off <= limit and not off <= limit + self.jumps[names.index(name)]:
                raise Wrong(_NOT_AGAIN)
        shown = self.shown[""] = self._class([d for d, _, _ in found], "")
        limits = self.tolerances.of(shown) if shown else [least] * len(found)
        self.demanded = [(max(limit, 2 * d), rms) for limit, (d, _, rms) in zip(limits, found, strict=True)]

    def _differentiated(self) -> list[str]:
        return [*(f"input {i}" for i, x in enumerate(self.inputs.fixed) if x.is_floating_point()), *self.parameters]

    def _names(self) -> list[str]:
        return ["output"] if self.direction == "forward" else [self.trial.plain(n) for n in self._differentiated()]

    def _keep_first_truth(self, inputs: list[torch.Tensor]) -> None:
        if self.first_truth is None:
            self.first_truth = self._truth(inputs)
            if self.device != "cpu" and 4 * sum(t.nbytes for t in self.first_truth) < torch.cuda.mem_get_info(self.device)[0]:
                self.first_truth = [t.to(self.device) for t in self.first_truth]

    def _own_precision(self) -> str:
        """The least exact precision that a timed call showed or the file declares: PyTorch's must be at least this."""
        declared = {self.trial.declared} & set(FROM_STRICTEST)
        return max([*self.seen, *declared], key=FROM_STRICTEST.index)

    def _precision(self, who: Contestant) -> str:
        """The precision that the answer to the first inputs shows; "" if it is wrong. All ways have the same truth."""
        _, (kept, inputs) = self._called(who, 1, look=True, change=False, timed=False)
        self._keep_first_truth(inputs)
        found = self.shown[who.way] = self._class([d for d, _, _ in self._distances(kept, self.first_truth, who.strides)],
                                                  who.way)
        return found

    @cached_property
    def jumps(self) -> list[float]:
        """How far float64's gradients move (relative L2) when all values move by the error of the outputs; 0 if nothing jumps.
        Only the inputs decide on which side of a jump a value is, not grad_output."""
        if self.direction == "forward" or self.case.setting.layer is not None:
            return [0.0] * len(self.kinds)
        output = self.errors.get("output")
        own, off = (output.own, output.rel_l2) if output else (0.0, 0.0)
        how, state = self._of_float64()
        _, reached = drawn.reach(self.trial.reference, how, [wide(x) for x in self.inputs.fixed], state, self._differentiated(),
                                 self.inputs.of(0, (0, 0))[0].double(), drawn.typical(
                                     own, off, self.tolerances.allowed(self.trial.of_float32)),
                                 self.trial.generator)
        return [2 * float(r.norm) / max(float(t.norm()), least, 1e-300)
                for r, t, least in zip(reached, self.first_truth, self._least_norms(), strict=True)]

    def _least_norms(self) -> list[float]:
        """The scale of errors of results that are zero except for rounding, as found by the check; otherwise 0."""
        return [self.errors[n].least_norm if n in self.errors else 0.0 for n in self._names()]

    def _class(self, distances: list[float], way: str) -> str:
        """The strictest precision that allows these distances; "" if none does. If only jumps explain the distances, they say
        nothing about the precision; then it is the class that forward showed."""
        return self.tolerances.strictest(distances) or (self.shown_forward.get(way) or self.tolerances.offered[-1]
                                                        if self.tolerances.near(distances, self.jumps) else "")

    def _called(self, who: Contestant, calls: int, *, only_copy: bool = False, look: bool = False,
                change: bool = True, order: list[Drawn] | None = None, timed: bool = True
                ) -> tuple[Took, tuple[torch.Tensor, list[torch.Tensor]] | None]:
        """How long it took, and with `look` what one slot held at the answer with the inputs it had to be computed from."""
        order = order or (self.inputs.draw(self.random, calls) if change else [(0, (0, 0))] * calls)
        asked = requests.Run(tuple(n for which, begins in order for n in (which, *begins)), self.stride, who.way,
                             only_copy)
        process = self.parties[who.process].process
        only(self.parties, who.process, _CANDIDATE)
        # On a GPU waiting for cores does not count.
        pids = [os.getpid(), *process.family()] if timed and self.device == "cpu" else []
        before_s = hold.waited_s(pids) if pids else 0.0
        begin = time.perf_counter()
        answer, _ = process.ask(asked, doing="it was timed")
        clock_s = time.perf_counter() - begin
        if isinstance(answer, NoWay):
            raise Starved(who.way, too_large(self.device))
        chosen = self.random.randrange(calls)
        if look:  # before anything else, so that nothing can be finished behind the answer
            kept = self.slots.kept(who.process, chosen)
        took = Took(clock_s, max(0.0, hold.waited_s(pids) - before_s) if pids else 0.0)
        return took, (kept, self.inputs.of(*order[chosen])) if look else None

    def _truth(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """The float64 results for these inputs."""
        how, state = self._of_float64()
        if self.direction == "forward":
            return self.trial.reference.call(how, inputs, state=state, wide=True)[1][:1]
        return self.trial.reference.call(how, self.inputs.fixed, state=state, gradients=self._differentiated(), wide=True,
                                         grad_output=inputs[0])[1][1:]

    def _of_float64(self) -> tuple[Construction, State]:
        """The construction of a separate module for the truth. A float64 reference would otherwise be the timed module itself,
        and loading its state again would break the graph of its timed backward."""
        return (self.trial.how(self.case, dtype="float64", seed=_SEED_OF_TRUTH),
                (self.state[0], [wide(v) for v in self.state[1]]))

    def _distances(self, kept: torch.Tensor, expected: list[torch.Tensor], strides: list[list[int]] | None
                   ) -> list[tuple[float, float, float]]:
        """(relative L2, largest, rms of the truth) of each result in a slot."""
        found = [distance(got, truth) for got, truth in zip(results(kept, self.kinds, strides), expected, strict=True)]
        return beside_noise(found, expected, self._least_norms())
