"""`Party`: the candidate or the reference, with its process. It makes modules when they are needed, and again after a death."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from typing import Any, TypeVar

import torch

from ...core import numbers
from ...core.trial import Status
from .foreign import requests
from .foreign.process import Ended, ForeignProcess, Raised
from .foreign.replies import Left, Loaded, Made, NoTensor, Output, Ran, StateLoaded
from .foreign.requests import OfModule, OnGpu

R = TypeVar("R")
_MOST_DEATHS = 1
_SAME_NORM = 1e-2
_APART, _OF_FEW = 0.1, 5.0        # how far root mean squares may be apart: logarithm of a ratio; times the root of the count
_FAR, _FEWEST, _MANY = 0.5, 3, 4096   # the same for largest values; values from which either is compared
_KEPT = 4   # draws: a case makes two or three


@dataclass(frozen=True)
class Construction:
    """Constructor arguments as Python literals, and what has to be known to make the same module again. `numbers`, `options`
    and `draws`: of each call, see `requests.Make`. `form`: of the construction."""

    arguments: str = "[]"
    keywords: str = "{}"
    seed: int = 0
    dtype: str = ""
    numbers: str = "{}"
    options: str = "{}"
    draws: int = 0
    form: str = ""


class Party:
    """The candidate or the reference."""

    def __init__(self, process: ForeignProcess, text: str, *, class_name: str, emulate: bool, cache: str = "",
                 record: bool = False) -> None:
        self.process = process
        self._load = requests.Load(text, class_name, process.device, emulate, cache, record)
        self._made: dict[Construction, str] = {}
        self._loaded_in = -1
        self._noted = True   # whether it is known what ran in the process
        self._count = 0
        self.facts: Loaded | None = None
        self.ran: list[Ran] = []   # what `note_what_ran` found, as `reached.ask` takes it
        self.drawn: dict[Construction, tuple[Made, list[torch.Tensor]]] = {}   # the last result of `make`

    @property
    def given_up(self) -> bool:
        """Whether its process has ended too often to be asked again."""
        return self.process.deaths > _MOST_DEATHS

    def move_to(self, process: ForeignProcess) -> None:
        """Use another process from now on, which has not loaded the file. The old one ends."""
        self.process.close()
        self.process, self._loaded_in = process, -1

    def load(self) -> Loaded:
        """Run the file, once per life of the process. Raises `Raised`, `Ended`."""
        if self.process.alive and self._loaded_in == self.process.deaths:
            return self.facts
        if self.given_up:
            raise Ended(Status.WORKER_DIED, f"Not asked: the process has already ended {self.process.deaths} times.")
        if not self._noted:
            self.ran.append(Ran(()))   # what ran in the earlier process is not known
        self._noted = False
        self._made.clear()
        self.facts = self.process.ask(self._load, limit_s=self.process.limits.build_s,
                                      doing="the file was imported")[0]
        self._loaded_in = self.process.deaths
        return self.facts

    def note_what_ran(self) -> None:
        """Ask which parts of the file have run since it was loaded. To be called before its process ends."""
        if self.process.alive and self._loaded_in == self.process.deaths:
            self._noted = True
            try:
                self.ran.append(self.process.ask(requests.AskRan(), doing="it was asked what had run")[0])
            except (Raised, Ended):
                self.ran.append(Ran(()))

    def make(self, how: Construction) -> tuple[Made, list[torch.Tensor]]:
        """A fresh module and its state."""
        self.load()
        self._count += 1
        name = f"m{self._count}"
        asked = requests.Make(name, how.arguments, how.keywords, how.seed, how.dtype, how.numbers, how.options,
                              how.draws, how.form)
        answer = self.process.ask(asked, limit_s=max(60.0, self.process.limits.call_s), doing="the module was constructed")
        self._made[how] = name
        self.drawn = {**dict(list(self.drawn.items())[1 - _KEPT:]), how: answer}
        return answer

    def draw(self, seed: int) -> list[torch.Tensor]:
        """What get_inputs() of a reference gives under that seed."""
        self.load()
        return self.process.ask(requests.Give(seed), doing="get_inputs() was called")[1]

    def call(self, how: Construction, inputs: list[torch.Tensor], *, state: tuple[Sequence[str], list[torch.Tensor]] | None,
             grad_output: torch.Tensor | None = None, gradients: list[str] | None = None, as_it_is: bool = False,
             **options: Any) -> tuple[Output | NoTensor, list[torch.Tensor]]:
        """One call with this state; see `host.calls.call` for what comes back. `as_it_is`: of the module that was called last,
        without a state. `options`: other fields of `requests.Call`."""
        there = self.process.alive and self._loaded_in == self.process.deaths and how in self._made
        if not (as_it_is and there):
            self.ready(how, state)
        tensors = [*inputs, *([grad_output] if grad_output is not None else [])]
        names = tuple(gradients or ()) if grad_output is not None else ()
        return self.process.ask(requests.Call(self._made[how], len(inputs), names, **options), tensors,
                                doing="the module was called")

    def ask(self, request: Callable[[str], OfModule[R]], how: Construction, tensors: list[torch.Tensor],
            state: tuple[Sequence[str], list[torch.Tensor]] | None) -> tuple[R, list[torch.Tensor]]:
        """Send a request about the module with this construction and this state."""
        asked = request(self.ready(how, state))
        doing = f"it was asked for {asked.op.replace('_', ' ')}" if isinstance(asked, OnGpu) else "the module was called"
        return self.process.ask(asked, tensors, doing=doing)

    def inside(self, how: Construction, state: tuple[Sequence[str], list[torch.Tensor]]
               ) -> tuple[StateLoaded, list[torch.Tensor]]:
        """Load a state as that of a part of a network. Returns the part's state as that of the network has it."""
        asked = requests.LoadState(self.ready(how, state), tuple(state[0]), inside=True)
        return self.process.ask(asked, state[1], doing="the state_dict was loaded")

    def ready(self, how: Construction, state: tuple[Sequence[str], list[torch.Tensor]] | None) -> str:
        """The module of that construction with that state; its name in the process."""
        self.load()
        if how not in self._made or state is None:  # without a state to load, the draw itself is the state
            self.make(how)
        if state is not None:
            self.process.ask(requests.LoadState(self._made[how], tuple(state[0])), state[1],
                             doing="the state_dict was loaded")
        return self._made[how]


def by_name(names: Sequence[str], own_names: Sequence[str], own: list[torch.Tensor]) -> list[torch.Tensor]:
    """A candidate's tensors in the reference's order. Other names: as they are."""
    there = dict(zip(own_names, own, strict=False))
    return [there[n] for n in names] if set(there) == set(names) else own


def unlike(names: Sequence[str], values: list[torch.Tensor], own_names: Sequence[str], own: list[torch.Tensor]) -> str:
    """How a candidate's state differs from the reference's in names or shapes; "" where it can be loaded."""
    if set(names) != set(own_names):
        return f"Its state_dict has {', '.join(own_names) or 'nothing'}; the reference's has {', '.join(names) or 'nothing'}."
    return next((f"Its {n} is {numbers.shape(b.shape)}, the reference's is {numbers.shape(a.shape)}."
                 for n, a, b in zip(names, values, by_name(names, own_names, own), strict=False) if a.shape != b.shape), "")


def other_attributes(ours: Left, theirs: Left) -> str:
    """What is wrong with the tensors that a call sets as attributes."""
    there = dict(zip(ours.attributes, ours.norms, strict=False))
    for name, norm in zip(theirs.attributes, theirs.norms, strict=False):
        if name not in there:
            return f"A call of the reference sets the attribute {name}, a call of the file does not."
        if name in theirs.trained and name not in ours.trained:
            return f"Its attribute {name}, which a call sets, has no gradient. That of the reference has one."
        if not abs(there[name] - norm) <= _SAME_NORM * norm:
            return f"Its attribute {name}, which a call sets, has other values than that of the reference."
    return ""


def other_resets(ours: Left, theirs: Left, state: dict[str, torch.Tensor]) -> str:
    """What is wrong with what reset_parameters() draws. Other numbers of the same size are right. Of many values the largest
    shows another distribution."""
    if again := set(ours.resets) - set(theirs.resets):
        return f"Called again under one seed, reset_parameters() gives other values of {', '.join(sorted(again))}."
    own = dict(zip(ours.redrawn, zip(ours.sizes[::2], ours.sizes[1::2], strict=False), strict=False))
    for name, *both in zip(theirs.redrawn, theirs.sizes[::2], theirs.sizes[1::2], strict=True):
        count = state[name].numel() if name in state else 0
        pairs = list(zip(both, own.get(name, ()), strict=False))[:(count >= _FEWEST) + (count >= _MANY)]
        for word, far, (usual, there) in zip(("root mean square", "largest value"),
                                             (_APART + _OF_FEW / max(count, 1)**0.5, _FAR), pairs, strict=False):
            if usual != there and (not usual or not there or abs(log(there / usual)) > far):
                return f"After reset_parameters() the {word} of {name} is {there:.2g}, in the reference {usual:.2g}."
    return ""
