"""module_ms of a candidate that the judge's process never meets: batches of calls, answered into the judge's memory.

For each batch the judge draws, for every call, which input is used and new values for some of its elements, and sends
them with the request: no answer can be ready before. The process copies each result into the next slot of memory that
belongs to the judge (shared memory; on a GPU an allocation opened through CUDA IPC) and says done. The judge stops its
clock and reads slots of calls it chooses only now: a result that is still being computed, left out, or taken from an
earlier call is not what float64 says, and then no time is told. The same batch with a finished result instead of the
call, run by the reference's process, is what request, change and copy cost; it is subtracted from both.
"""

from __future__ import annotations

import mmap
import pickle
import random
import time
from collections.abc import Callable
from math import ceil
from typing import Any

import torch

from .. import timing
from ..validate import allowed_rel_l2
from .cases import Case, fill
from .party import Party
from .process import Ended, Raised
from .trialrun import TrialRun

_TURNS = {"quick": 6, "normal": 12, "full": 30}
_BATCH_S = 0.05
_MOST_CALLS = 200
_SETS = 3
_CHANGED = 8                    # elements of the input that are new in each call
_CHECKED = 3                    # batches of the candidate of which one call is compared
_SLOT_SHARE = 0.2               # of free memory
_MOST_SLOT_BYTES = {"cpu": 1 << 29, "cuda": 24 << 30}


def measure(trial: TrialRun, case: Case, *, backward: bool, effort: str, emit: Callable[[dict[str, Any]], None]
            ) -> dict[str, Any]:
    """{"forward": {...}, "backward": {...}} with "ours" and "baselines" as `timing.summary`, or "problem", "why_not"."""
    found: dict[str, Any] = {}
    for direction in ("forward", "backward") if backward else ("forward",):
        emit({"phase": "time", "text": direction})
        try:
            found[direction] = _Bench(trial, case, direction).measure(_TURNS[effort])
        except _Wrong as error:
            return {"problem": str(error), "advice": "Answer each call with its own result, and return when it is asked for."}
        except (Raised, Ended) as error:
            said = error.sentence if isinstance(error, Raised) else error.headline
            return {"why_not": f"Not timed: {said}"}
        except OSError as error:
            return {"why_not": f"Not timed: memory cannot be shared here ({error})."}
    return found


class _Wrong(Exception):
    """A timed call did not give what it should have given."""


class _Bench:
    """One direction: slots, inputs, and the three or four contestants in turns."""

    def __init__(self, trial: TrialRun, case: Case, direction: str) -> None:
        self.trial, self.case, self.direction = trial, case, direction
        self.device = trial.device
        self.random = random.SystemRandom()
        self.how = trial.how(case)
        facts, drawn = trial.reference.make(self.how)
        self.state = (facts["names"], drawn)
        self.parameters = facts["parameters"]
        first = fill(case, trial.given, trial.generator)
        if direction == "forward":
            self.fixed: list[torch.Tensor] = []
            self.sets = [first, *(fill(case, trial.given, trial.generator) for _ in range(_SETS - 1))]
        else:
            _, results = trial.reference.call(self.how, first, state=self.state)
            self.fixed = first
            self.sets = [[torch.randn(results[0].shape, generator=trial.generator).to(results[0].dtype)]
                         for _ in range(_SETS)]
        self.sets = [[x.clone() for x in xs] for xs in self.sets]
        self.mirror: dict[str, list[list[torch.Tensor]]] = {}

    def measure(self, turns: int) -> dict[str, Any]:
        kinds = self._prepare()
        self.stride = sum(_rounded(getattr(torch, d).itemsize * torch.Size(s).numel()) for d, s in kinds)
        self.kinds = kinds
        room = self._open()
        most = max(1, min(_MOST_CALLS, room // self.stride))
        modes: dict[str, tuple[Party, str, bool | None]] = {"": (self.trial.candidate, "candidate", None)}
        for name, tf32 in self._modes():
            modes[name] = (self.trial.reference, "reference", tf32)
        one_s = min(self._batch(*modes[""], 1) for _ in range(3))
        calls = max(1, min(most, ceil(_BATCH_S / max(one_s, 1e-5))))
        for contestant in modes.values():
            self._batch(*contestant, min(calls, 3))
        samples: dict[str, list[float]] = {name: [] for name in modes}
        checked = set(self.random.sample(range(turns), min(_CHECKED, turns)))
        for turn in range(turns):
            order = list(modes)
            self.random.shuffle(order)
            empty_s = min(self._batch(self.trial.reference, "reference", None, calls, only_copy=True) for _ in range(2))
            for name in order:
                taken_s = self._batch(*modes[name], calls, check=not name and turn in checked)
                samples[name].append(1e3 * max(taken_s - empty_s, 0.02 * taken_s) / calls)
        summaries = {name: timing.summary(taken, stop="samples", cold_l2=False) for name, taken in samples.items()}
        return {"ours": summaries[""], "samples": samples[""], "calls": calls, "checked": len(checked),
                "baselines": [{"name": n, "timing": summaries[n], "samples": samples[n]} for n in modes if n]}

    def _modes(self) -> list[tuple[str, bool | None]]:
        if self.device == "cpu" or self.trial.dtype != "float32" or self.case.setting.layer is None:
            return [("PyTorch", None)]
        return [("PyTorch, TF32 on", True), ("PyTorch, TF32 off", False)]

    def _prepare(self) -> list[tuple[str, list[int]]]:
        kinds = []
        for party, name in ((self.trial.reference, "reference"), (self.trial.candidate, "candidate")):
            state = self.state if self.trial.loads_state or name == "reference" else None
            module = party.ready(self.how, state)
            answer, _ = party.process.ask("prepare", {
                "module": module, "direction": self.direction, "inputs": len(self.fixed or self.sets[0])},
                [*self.fixed, *(x for xs in self.sets for x in xs)], doing="it was prepared for timing")
            self.mirror[name] = [[x.clone() for x in xs] for xs in self.sets]
            kinds.append([(str(d), list(s)) for d, s in answer["kinds"]])
        if kinds[0] != kinds[1]:
            raise _Wrong("When timed it gives results of another kind than when checked.")
        return kinds[0]

    def _open(self) -> int:
        """Slots that both processes can write and the judge reads; how many bytes."""
        if self.device == "cpu":
            return self._open_host()
        free = torch.cuda.mem_get_info(self.device)[0]
        size = int(min(_MOST_SLOT_BYTES["cuda"], max(2 * self.stride, _SLOT_SHARE * free)))
        self.slots = torch.empty(size, dtype=torch.uint8, device=self.device)
        from torch.multiprocessing.reductions import reduce_tensor
        for party in (self.trial.reference, self.trial.candidate):
            handle = torch.frombuffer(bytearray(pickle.dumps(reduce_tensor(self.slots))), dtype=torch.uint8)
            party.process.ask("slots", {}, [handle])
        return size

    def _open_host(self) -> int:
        size = min(_MOST_SLOT_BYTES["cpu"], max(4 * self.stride, _MOST_CALLS * self.stride))
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        for party in (self.trial.reference, self.trial.candidate):
            path = party.process.scratch / f"slots-{self.direction}"
            with path.open("wb") as file:
                file.truncate(size)
            party.process.ask("slots", {"path": str(path), "bytes": size})
        self._views: dict[str, torch.Tensor] = {}
        for party, name in ((self.trial.reference, "reference"), (self.trial.candidate, "candidate")):
            with (party.process.scratch / f"slots-{self.direction}").open("r+b") as file:
                self._views[name] = torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=torch.uint8)
        return size

    def _batch(self, party: Party, name: str, tf32: bool | None, calls: int, *, only_copy: bool = False,
               check: bool = False) -> float:
        """Seconds from the request to the answer. With `check` one result, chosen afterwards, is compared."""
        order = [self.random.randrange(_SETS) for _ in range(calls)]
        flat = self.mirror[name][0][0].numel()
        dtype = self.mirror[name][0][0].dtype
        places = torch.randint(flat, (calls, min(_CHANGED, flat)), generator=self.trial.generator)
        values = torch.randn(places.shape, generator=self.trial.generator).to(dtype) if dtype.is_floating_point else \
            self.mirror[name][0][0].view(-1)[places]
        places = places.sort(dim=1).values
        values = _same_where_equal(places, values)  # of two values for one place any might win
        header = {"sets": order, "stride": self.stride, "only_copy": only_copy, "tf32": tf32}
        begin = time.perf_counter()
        party.process.ask("run", header, [places, values], doing="it was timed")
        taken_s = time.perf_counter() - begin
        chosen = self.random.randrange(calls)
        if check:  # before anything else, so that nothing can be finished behind the answer
            view = self.slots if self.device != "cpu" else self._views[name]
            kept = view[chosen * self.stride:(chosen + 1) * self.stride].clone()
        for number, which in enumerate(order):
            self.mirror[name][which][0].view(-1).index_copy_(0, places[number], values[number])
            if check and number == chosen:
                inputs = [x.clone() for x in self.mirror[name][which]]
        if check:
            self._compare(kept, inputs)
        return taken_s

    def _compare(self, kept: torch.Tensor, inputs: list[torch.Tensor]) -> None:
        how = self.trial.how(self.case, dtype="float64")
        state = (self.state[0], [v.double() if v.is_floating_point() else v for v in self.state[1]])
        if self.direction == "forward":
            _, results = self.trial.reference.call(how, [_wide(x) for x in inputs], state=state)
            expected = results[:1]
        else:
            names = [*(f"input {i}" for i, x in enumerate(self.fixed) if x.is_floating_point()), *self.parameters]
            _, results = self.trial.reference.call(how, [_wide(x) for x in self.fixed], state=state, gradients=names,
                                                   grad_output=inputs[0].double())
            expected = results[1:]
        start = 0
        precision = "ieee" if self.device == "cpu" or self.case.setting.layer is None else "tf32"
        allowed = 10 * allowed_rel_l2({"float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}.get(
            self.trial.dtype, precision), 1 << 20)
        for (dtype, shape), truth in zip(self.kinds, expected, strict=True):
            kind = getattr(torch, dtype)
            size = kind.itemsize * torch.Size(shape).numel()
            got = kept[start:start + size].view(kind).view(shape).cpu().double()
            start += _rounded(size)
            distance = float((got - truth.double()).norm() / max(float(truth.double().norm()), 1e-300))
            worst = float((got - truth.double()).abs().max()) if got.numel() else 0.0
            rms = float(truth.double().square().mean().sqrt())
            if not distance <= allowed or not worst <= 60 * allowed * max(rms, 1e-30) + allowed:
                raise _Wrong("A call that was timed did not give the right result, though the same call does when it is "
                             "not timed.")


def _same_where_equal(places: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """One value per place: the first of a run of equal places."""
    values = values.clone()
    for column in range(1, places.shape[1]):
        same = places[:, column] == places[:, column - 1]
        values[same, column] = values[same, column - 1]
    return values


def _rounded(size: int) -> int:
    return -(-size // 256) * 256


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x
