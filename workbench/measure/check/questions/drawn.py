"""Inputs from the reference's own get_inputs(), under seeds that the judge chooses, and what may be changed in them.

A file has to be right for such inputs only. They may be symmetric matrices, sorted offsets or rows that sum to 1. Other sizes
are cut out of them if this property stays; else they are not asked.

Also: inputs of a layer, which the judge draws. And how far right gradients may be from float64 because a derivative jumps, as
that of a rectifier or a maximum does. Of many values some are so near a jump that float32 rounds them to its other side. A
right gradient is then not float64's. Only the reference in float64 is asked: for its gradients at inputs and parameters that
differ by a few times the error of the output. If these gradients do not differ, rounding does not explain an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from math import lgamma
from typing import TYPE_CHECKING

import torch

from ....core import numbers
from ....core.answers import Answer, Question
from ....core.errors import BadRequest
from ....core.trial import Status
from ...kernel.validate import distance
from ..foreign import requests
from ..foreign.process import Ended, Raised
from ..foreign.replies import Made, Output
from ..party import by_name

if TYPE_CHECKING:
    from ..party import Construction, Party
    from ..trialrun import Outcome, State, TrialRun
    from .cases import Case

Draw = Callable[[int], list[torch.Tensor]]
_SAME, _ROUGHLY = 1e-9, 0.1   # largest relative L2 distance of two results: both in float64; of two dtypes
_MOST_NAMES = 4   # of a state, each of which is left out once
_NEARLY = 0.02          # relative difference between nearly equal inputs
_NEAR = 1e-5            # of a matrix that is symmetric but for rounding, of sums that are 1
_DRAWS = 24     # a value within rounding of a jump changes its side in nearly half of them
_TIMES = 4.0    # roundings inside are larger than the error of the output, in which many of them cancel
_LEAST = 2.0**-24
_SMALL_SIZE = 8   # of a layer
_WHOLE = 4   # the largest whole number, of few: their sums of products are exact
_BY_CHANCE = 7.0        # natural logarithm of 1000: a property that random numbers would have with a probability below 1/1000
SYMMETRIC, OF_SUM_1, OF_NORM_1, OF_WHOLE, OF_ONE_VALUE = ("symmetric", "of rows that sum to 1", "of rows of norm 1",
                                                          "of whole numbers", "of one value")
THE_SAME = "the same as another one"
# The input cannot change, or its gradient alone does not describe the change.
_RIGID = (OF_NORM_1, OF_WHOLE, OF_ONE_VALUE, THE_SAME)


@dataclass(frozen=True)
class Structure:
    """A property of an input. `word`: its name. `dims`: dimensions that cannot be cut without losing it. `varied`: what may be
    multiplied without losing it: "each" element by its own number; row i and column i of a "matrix" by one; "": nothing."""

    word: str
    dims: tuple[int, ...] = ()
    varied: str = ""


class Drawn:
    """`given`: one draw. `draw`: get_inputs() under a seed, in the process of the reference."""

    def __init__(self, given: list[torch.Tensor], draw: Draw, generator: torch.Generator) -> None:
        self.given, self._draw, self._generator = given, draw, generator
        another = self._fresh()
        same = [_equal(a, b) for a, b in zip(given, another, strict=True)]
        self.structures = [_structure([a, b]) for a, b in zip(given, another, strict=True)]
        for a, b in combinations(range(len(given)), 2):
            if not same[a] and _equal(given[a], given[b]) and _equal(another[a], another[b]):
                self.structures[a] = self.structures[b] = Structure(THE_SAME, tuple(range(given[a].dim())))
        # A file could know inputs that are the same under every seed. If they have no structure, they are shuffled.
        self._shuffled = [s and one is None for s, one in zip(same, self.structures, strict=True)]
        self.fixed = bool(given) and all(s and not shuffled and x.numel() > 1
                                         for s, shuffled, x in zip(same, self._shuffled, given, strict=True))

    def warnings(self) -> list[Question]:
        """Warnings about these inputs for the report."""
        if not self.fixed:
            return []
        return [Question("fresh_inputs", "New inputs each time?", Answer.WARNED, "No. get_inputs() gives the same values "
                         "with every seed. A file that stores the right output would pass.",
                         "Let get_inputs() draw random values.")]

    def inputs(self, shapes: tuple[tuple[int, ...], ...]) -> list[torch.Tensor]:
        """A fresh draw, cut to these shapes."""
        fresh = [x.reshape(-1)[torch.randperm(x.numel(), generator=self._generator)].view(x.shape) if shuffled else x
                 for x, shuffled in zip(self._fresh(), self._shuffled, strict=True)]
        taken: dict[tuple[int, int], torch.Tensor] = {}
        cut = [self._cut(x, shape, taken, rows=structure is None or not structure.dims)
               for x, shape, structure in zip(fresh, shapes, self.structures, strict=True)]
        # Places that are taken twice would give equal values, and the position of the largest value would then be ambiguous.
        # Several inputs are cut at the same places, because one may be a bound of another; but not along dimensions of 1
        # behind the first.
        for place, (x, larger) in enumerate(zip(fresh, cut, strict=True)):
            alone = len(cut) == 1 or any(n == 1 < m for n, m in zip(x.shape[1:], larger.shape[1:], strict=True))
            if alone and self.structures[place] is None and x.is_floating_point() and larger.numel() > x.numel():
                cut[place] = larger * (1 - 0.3 * torch.rand(larger.shape, generator=self._generator)).to(x.dtype)
        return cut

    def why_not(self, shapes: tuple[tuple[int, ...], ...]) -> str:
        """"" where inputs of these shapes can be cut out of those that are drawn."""
        whole = [not x.is_floating_point() for x in self.given]
        for place, (x, shape, structure) in enumerate(zip(self.given, shapes, self.structures, strict=True)):
            name = "x" if len(self.given) == 1 else f"input {place}"
            changed = {d for d, n in enumerate(shape) if x.shape[d] != n}
            if structure and changed & {d % x.dim() for d in structure.dims}:
                return f"get_inputs() makes {name} {structure.word}; a cut to another size would lose this"
            if changed - {0} and len(whole) > 1 and any(whole):
                return "an input of whole numbers may be indices into another input, which a smaller size may not have"
        ordered = any(s and s.word == "sorted" and one for s, one in zip(self.structures, whole, strict=True))
        if ordered and any(tuple(x.shape) != tuple(shape) for x, shape in zip(self.given, shapes, strict=True)):
            return "get_inputs() makes sorted whole numbers, which may be indices into another input"
        return ""

    @property
    def of_values(self) -> bool:
        """Whether some input loses its property if its values are multiplied."""
        return any(s and not s.varied for s in self.structures)

    def tangent(self, place: int, grad: torch.Tensor) -> torch.Tensor:
        """The part of a gradient along changes that keep the input's property: of a symmetric matrix the symmetric part."""
        x, structure = self.given[place], self.structures[place]
        word = structure.word if structure else ""
        if grad.shape != x.shape or not word:
            return grad
        if word == SYMMETRIC:
            return (grad + grad.mT) / 2
        if structure.varied:
            return torch.where(x.to(grad.device) == 0, torch.zeros_like(grad), grad)
        return grad - grad.mean(-1, keepdim=True) if word == OF_SUM_1 else grad

    def differentiable(self, place: int) -> bool:
        """Whether the input can change and keep its property. If not, its gradient is not compared."""
        structure = self.structures[place]
        return self.given[place].is_floating_point() and not (structure and structure.word in _RIGID)

    @property
    def varied(self) -> list[str]:
        """How each may be multiplied; see `Structure`."""
        return [s.varied if s else "each" for s in self.structures]

    @property
    def bound(self) -> list[str]:
        """The properties of the floating-point inputs that not every change keeps."""
        return [s.word for x, s in zip(self.given, self.structures, strict=True) if s and x.is_floating_point()]

    def _fresh(self) -> list[torch.Tensor]:
        found = self._draw(int(torch.randint(2**31, (), generator=self._generator)))
        if [(x.dim(), x.dtype) for x in found] != [(x.dim(), x.dtype) for x in self.given]:
            raise BadRequest("get_inputs() gives different kinds of inputs in each call; let it give the same number, "
                             "dimensions and dtypes.")
        return found

    def _cut(self, x: torch.Tensor, shape: tuple[int, ...], taken: dict[tuple[int, int], torch.Tensor], *, rows: bool
             ) -> torch.Tensor:
        """The same places of all inputs that have a dimension in common. With `rows` what was one row becomes several different
        ones: each has its values at other places, the same ones in all inputs."""
        for d, size in enumerate(shape):
            if rows and x.shape[d] == 1 < size and d < x.dim() - 1 and (last := x.shape[-1]) > 1:
                places = taken.setdefault((-last, size), torch.randint(last, (size,), generator=self._generator))
                x = torch.cat([x.roll(int(place), -1) for place in places], d)
            if x.shape[d] != size:
                key = (x.shape[d], size)
                if key not in taken:
                    taken[key] = torch.randint(x.shape[d], (size,), generator=self._generator) if size > x.shape[d] else \
                        torch.randperm(x.shape[d], generator=self._generator)[:size]
                x = x.index_select(d, taken[key])
        return x


def _structure(draws: list[torch.Tensor]) -> Structure | None:
    """The property that all draws of one input have and random numbers would not have, or None."""
    x = draws[0]
    if x.numel() < 2 or any(d.shape != x.shape for d in draws) or x.is_complex() or x.dtype is torch.bool:
        return None
    whole = not x.is_floating_point()
    draws = [d.long() for d in draws] if whole else draws
    for d in {x.dim() - 1, 0}:
        if _in_order(draws, d):
            return Structure("sorted", (d,))
    if whole:
        return Structure("without repetition", (x.dim() - 1,)) if _without_repetition(draws) else None
    if all(bool((d == d.reshape(-1)[0]).all()) for d in draws):
        return Structure(OF_ONE_VALUE)
    if all(bool((d == d.round()).all()) or _of_two_values(d) for d in draws):  # two: a mask
        return Structure(OF_WHOLE)
    matrix = x.dim() > 1 and x.shape[-1] == x.shape[-2] > 1
    if matrix and all(bool((d - d.mT).abs().max() <= _NEAR * d.abs().max()) for d in draws):
        return Structure(SYMMETRIC, (-2, -1), "matrix")
    zeros = draws[0] == 0
    if bool(zeros.any()) and all(bool(((d == 0) == zeros).all()) for d in draws):
        word = "triangular" if matrix and (bool((x == x.tril()).all()) or bool((x == x.triu()).all())) else \
            "with zeros in fixed places"
        return Structure(word, tuple(range(x.dim())) if x.dim() < 3 else (-2, -1), "each")
    if x.shape[-1] > 1:
        for word, size in ((OF_SUM_1, lambda d: d.sum(-1)), (OF_NORM_1, lambda d: d.norm(dim=-1))):
            if all(bool((size(d.double()) - 1).abs().max() <= _tolerance(d)) for d in draws):
                return Structure(word, (-1,))
    return None


def _in_order(draws: list[torch.Tensor], dim: int) -> bool:
    x = draws[0]
    size = x.shape[dim]
    begins = x.dim() == 1 and not x.is_floating_point() and all(int(d[0]) == 0 for d in draws)  # as places do
    if size < 2 or len(draws) * (x.numel() // size) * lgamma(size + 1) < _BY_CHANCE and not begins:
        return False
    steps = [d.diff(dim=dim) for d in draws]
    return (all(bool((s >= 0).all()) for s in steps) or all(bool((s <= 0).all()) for s in steps)) and any(
        bool((s != 0).any()) for s in steps)


def _of_two_values(x: torch.Tensor) -> bool:
    return x.numel() > 2 and bool(((x == x.min()) | (x == x.max())).all())


def _without_repetition(draws: list[torch.Tensor]) -> bool:
    """Each row a permutation, or drawn without putting back; by chance it would not be."""
    x = draws[0]
    size = x.shape[-1]
    span = max(int(d.max()) for d in draws) - min(int(d.min()) for d in draws) + 1
    expected = len(draws) * (x.numel() // size) * size * (size - 1) / 2 / span  # pairs that are equal by chance
    return size > 1 and expected > _BY_CHANCE and all(bool((d.sort(-1).values.diff(dim=-1) != 0).all()) for d in draws)


def _tolerance(x: torch.Tensor) -> float:
    return max(_NEAR, 8 * torch.finfo(x.dtype).eps)


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


def fill(case: Case, given: list[torch.Tensor], generator: torch.Generator) -> list[torch.Tensor]:
    """Inputs of a case: whole numbers, or floats with the range of the given ones. Those of a layer are normal."""
    found, how = [], {"generator": generator, "device": generator.device}
    for place, (shape, dtype) in enumerate(zip(case.shapes, case.dtypes, strict=True)):
        kind = getattr(torch, dtype)
        example = given[place] if place < len(given) else torch.empty(0)
        if case.integers:
            values = torch.randint(1, 3, shape, **how) * (1 - 2 * torch.randint(0, 2, shape, **how))
        elif not kind.is_floating_point:
            low, high = (int(example.min()), int(example.max()) + 1) if example.numel() else (0, 2)
            values = torch.randint(low, high, shape, **how)
        elif case.setting.layer is None and example.numel() and float(example.min()) >= 0:  # a layer takes both signs
            low, high = float(example.min()), float(example.max())
            low = low if high > low else 0.0
            values = low + (high - low) * torch.rand(shape, **how)
        else:
            values = torch.randn(shape, **how)
        found.append(values.to(kind))
    return found


def of_rectifier(case: Case, grad_output: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """With zeros, as in the gradient of a rectifier. Of whole numbers, half become the negatives of the others: their sum is
    exactly zero, but that of no channel."""
    if case.integers:
        return _balanced(grad_output, generator)
    kept = torch.randint(8, grad_output.shape, generator=generator, device=generator.device) != 0
    if case.silent and kept.dim():
        kept[:1] = False
    return grad_output * kept


def _balanced(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    flat, half = values.flatten(), values.numel() // 2
    order = torch.randperm(values.numel(), generator=generator, device=values.device)
    flat[order[half:2 * half]] = -flat[order[:half]]
    flat[order[2 * half:]] = 0
    return flat.view(values.shape)


def nearly(inputs: list[torch.Tensor], generator: torch.Generator) -> list[torch.Tensor]:
    """Floats that differ by a small part."""
    return [(x * (1 + _NEARLY * (2 * torch.rand(x.shape, generator=generator, device=x.device) - 1))).to(x.dtype)
            if x.is_floating_point() else x for x in inputs]


def unequal(trial: TrialRun, how: Construction) -> str:
    """How the initial parameters of file and reference differ, which have been constructed under one seed. "" if their bits
    are equal. Their order does not count."""
    (theirs, values), (ours, own) = trial.reference.drawn[how], trial.candidate.drawn[how]
    if len(values) != len(own):
        return f"It draws {len(own)} tensors, the reference {len(values)}."
    pairs = zip(theirs.names, values, by_name(theirs.names, ours.names, own), strict=False)
    name = next((n for n, a, b in pairs if not torch.equal(a, b)), "")
    return f"Under the same seed {name} differs." if name else ""


def under_another_seed(trial: TrialRun, how: Construction, seed: int) -> str:
    """What is wrong if file and reference, which have been constructed alike, are constructed once more under a seed that the
    file cannot know: other parameters, or generators that are in the same state after both constructions."""
    try:
        made = [(party.drawn[how][0], *party.make(replace(how, seed=seed))) for party in (trial.reference, trial.candidate)]
    except (Raised, Ended) as error:
        said = f"It raises {error.sentence}." if isinstance(error, Raised) else error.headline
        return f"When it is constructed once more: {said}"
    (their_first, theirs, values), (first, ours, own_values) = made
    own_values = by_name(theirs.names, ours.names, own_values)
    if name := next((n for n, a, b in zip(theirs.names, values, own_values, strict=False) if not torch.equal(a, b)), ""):
        return f"Under another seed {name} differs."
    seeded = sorted(one.split()[0] for one in ({*first.after} & {*ours.after}) - ({*their_first.after} & {*theirs.after}))
    return f"It sets the seed of {' and '.join(seeded)}." if seeded else ""


def drawn_more(trial: TrialRun, how: Construction, asked: str) -> list[Question]:
    """A warning if the constructor draws the same parameters, but more or fewer random numbers than the reference's."""
    states = [next(one for one in party.drawn[how][0].after if one.startswith("torch "))
              for party in (trial.reference, trial.candidate)]
    return [] if states[0] == states[1] else [Question(
        "same_draw", asked, Answer.WARNED, "Yes, but it draws more or fewer random numbers than the "
        "reference: in a seeded model the layers that are constructed after it begin with other parameters.",
        "Draw only what the reference draws.", str(Status.MISMATCH))]


def left_out(trial: TrialRun, given: Case) -> list[Case]:
    """Of a module that is no layer: without all constructor arguments that may be left out, and without the last one alone.
    Named by these arguments. An argument stays that would be far larger without: the module may then not fit into memory."""
    there, may = dict(given.setting.keywords), list[str]()
    for name in reversed([n for n in trial.parameters if n in there]):
        if name not in trial.defaults or _largest(trial.defaults[name]) > 2 * max(_largest(there[name]), _SMALL_SIZE):
            break
        may.insert(0, name)
    if given.setting.layer is not None or given.setting.arguments or not {*there} <= {*trial.parameters}:
        return []
    return [replace(given, name=", ".join(some), setting=replace(given.setting, keywords=tuple(
        (n, v) for n, v in there.items() if n not in some))) for some in dict.fromkeys((tuple(may), tuple(may[-1:]))) if some]


def _largest(value: object) -> int:
    return max((abs(n) for n in (value if isinstance(value, tuple) else (value,)) if isinstance(n, int)), default=0)


def that_may_be_left_out(trial: TrialRun, given: Case) -> Iterator[Case]:
    """The same, if the file takes it: `check_file` warns of a file without default values. Named also by the values."""
    own = trial.candidate.facts.defaults if trial.candidate.facts else {}
    for case in left_out(trial, given):
        with suppress(Raised, Ended):
            trial.candidate.make(trial.how(case))
            both = [(n, trial.defaults[n], own.get(n, trial.defaults[n])) for n in case.name.split(", ")]
            differ = [f"{n} is {a!r:.40} in the reference, {b!r:.40} in the file" for n, a, b in both if a != b]
            yield replace(case, name=f"{case.name} left out{' (' * bool(differ)}{'; '.join(differ)}{')' * bool(differ)}")


def any_state(trial: TrialRun, how: Construction, state: State, asked: str) -> list[Question]:
    """A warning if the file loads a state with a wrong name, a missing one, one more, or with a tensor of another shape and as
    many values, where the reference raises an exception."""
    names, values = state
    odd = [f"{n}_of_another" for n in names[:1]]
    wrong = [([one, *names[1:]], values, f"a state with {one} and without {names[0]}") for one in odd]
    wrong += [([*names, one], [*values, values[0]], f"a state that also has {one}") for one in odd]
    wrong += [([*names[:at], *names[at + 1:]], [*values[:at], *values[at + 1:]], f"a state without {n}")
              for at, n in enumerate(names[:_MOST_NAMES])]
    if (place := next((i for i, v in enumerate(values) if v.dim() and v.numel() > 1), None)) is not None:
        shape = values[place].shape
        other = values[place].reshape(*shape[1::-1], *shape[2:]) if shape[:1] != shape[1:2] and len(shape) > 1 else \
            values[place].reshape(-1, 1)
        wrong.append(([*names], [*values[:place], other, *values[place + 1:]], f"a tensor of {numbers.shape(other.shape)} "
                      f"into {names[place]}, which is {numbers.shape(shape)}"))
    for keys, tensors, words in wrong:
        with suppress(Raised):
            trial.candidate.ready(how, (keys, tensors))
            try:
                trial.reference.ready(how, (keys, tensors))
            except Raised:
                return [Question("state_dict", asked, Answer.WARNED, f"No. It loads {words}. PyTorch raises an exception.",
                                 "Do not override load_state_dict or its parts.", str(Status.MISMATCH))]
    return []


def no_assign(ours: Made, asked: str) -> list[Question]:
    """A warning if load_state_dict does not take assign=True: older PyTorch has no such argument."""
    return [] if ours.assigns else [
        Question("state_dict", asked, Answer.WARNED, "No. load_state_dict does not take assign=True.",
                 "Do not override load_state_dict.", str(Status.MISMATCH))]


def other_order(theirs: Made, ours: Made, asked: str) -> list[Question]:
    """A warning if the parameters have another order. The state of an optimizer has no names: it goes by that order."""
    one, other = ([n for n in made.names if n not in made.buffers] for made in (theirs, ours))
    if one == other:
        return []
    said = f"Yes, but the order of its parameters is {', '.join(other)}; the reference's is {', '.join(one)}. Checkpoints of " \
        "optimizers go by that order."
    return [Question("state_dict", asked, Answer.WARNED, said, "Register the parameters in the reference's order.",
                     str(Status.MISMATCH))]


def in_calls(trial: TrialRun, given: Case) -> list[Question]:
    """Whether the reference draws random numbers in its calls. Then each call of both files begins under one seed. Raises
    `BadRequest` if its values differ nevertheless: nothing can be compared with it."""
    if given.setting.layer is not None or alike(trial, given):
        return []
    trial.draws = 1 + int(torch.randint(2**31 - 1, (), generator=trial.generator, device=trial.generator.device))
    if not alike(trial, given, also_narrow=True):
        raise BadRequest("The reference gives different values for the same inputs, also under one seed of the random numbers. "
                         "Make it deterministic, for example by .eval() in its constructor.")
    return [Question("random", "Draws random numbers?", Answer.NOTE, "The reference draws random numbers in its calls, as "
                     "dropout does in training mode. Each call of both files begins under the same seed. So a file must draw "
                     "the same numbers in the same order.")]


def alike(trial: TrialRun, given: Case, *, also_narrow: bool = False) -> bool:
    """Whether two calls of the reference in float64 give the same values; with `also_narrow` also one in the given dtype, which
    may draw other numbers. True if it cannot be called: the check at the given size reports that."""
    try:
        how, inputs = trial.how(given, dtype="float64"), trial.inputs(given)
        facts, state = trial.reference.make(how)
        once, again = (trial.reference.call(how, inputs, state=(facts.names, state), wide=True)[1] for _ in range(2))
        if not once or not bool(once[0].isfinite().all()):
            return True
        narrow = trial.reference.call(trial.how(given), inputs, state=(facts.names, state))[1] if also_narrow else once
    except (Raised, Ended):
        return True
    return (distance(again[0].double(), once[0].double())[0] <= _SAME
            and distance(narrow[0].double(), once[0].double())[0] <= (_ROUGHLY if also_narrow else _SAME))


def of_ties(trial: TrialRun, given: Case) -> Outcome | None:
    """For whole numbers, and parameters of which many rows are equal: an index of the largest value has a choice there. None if
    the output has no whole numbers, if there is no parameter, or if float32 and float64 give the reference different ones."""
    usual = trial.run(given, gradients=False)
    of_parameters = {*usual.names} & {*usual.state[0]}
    if usual.expected["output"].is_floating_point() or usual.problems or not trial.loads_state or not of_parameters:
        return None
    rows = dict[int, torch.Tensor]()   # of a weight and its bias the same

    def whole(v: torch.Tensor) -> torch.Tensor:
        return (v * _WHOLE / max(float(v.abs().max()), 1e-30)).round() if v.is_floating_point() and v.numel() else v

    def repeated(v: torch.Tensor) -> torch.Tensor:
        some = rows.setdefault(len(v), torch.randint(len(v), (len(v),), generator=trial.generator, device=v.device))
        return whole(v)[some]
    names, values = usual.state
    changed = [repeated(v) if n in of_parameters and v.dim() and v.numel() else v for n, v in zip(names, values, strict=True)]
    found = trial.run(given, gradients=False, values=[whole(x) for x in usual.inputs], state=(names, changed))
    return found if torch.equal(found.own["output"].to(found.expected["output"]), found.expected["output"]) else None


@dataclass(frozen=True)
class Reach:
    """How far float64's gradient moves: each element in any draw, and the L2 norm of a whole draw at most."""

    farthest: torch.Tensor
    norm: torch.Tensor

    def taken_out(self, got: torch.Tensor, expected: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        """`got` moved towards `expected` by what jumps explain: where float64 itself moves by more than `allowed`, by twice as
        much as it moved in any draw (two jumps may meet in one sum), and altogether by twice the norm of a draw. NaN stays."""
        off = got.double() - expected
        explained = off.sign() * torch.minimum(off.abs(), 2 * self.farthest)
        explained = torch.where(self.farthest > allowed, explained, 0.0)
        return got.double() - explained * (2 * self.norm / explained.norm().clamp(min=1e-300)).clamp(max=1.0)


# more than seven: a call of a module (construction, inputs, state, names, grad_output) is in no one object here
def reach(reference: Party, how: Construction, inputs: list[torch.Tensor], state: tuple[Sequence[str], list[torch.Tensor]],
          names: list[str], grad_output: torch.Tensor, off: float, generator: torch.Generator
          ) -> tuple[Output, list[Reach]]:
    """What the reference says of its gradients, and the reach of each one that there is. `inputs`, `state`, `grad_output`: in
    float64. `off`: relative L2 error of the output. Raises `Raised`, `Ended`."""
    request = requests.Reach(reference.ready(how, state), len(inputs), tuple(names), _DRAWS, _TIMES * max(off, _LEAST),
                             int(torch.randint(2**31, (), generator=generator, device=generator.device)))
    facts, results = reference.process.ask(request, [*inputs, grad_output], doing="float64 was asked near a jump",
                                           limit_s=reference.process.limits.build_s)
    count = len(results) // 2
    return facts, [Reach(*pair) for pair in zip(results[:count], results[count:], strict=True)]


def typical(own: float, candidate: float, allowed: float) -> float:
    """The error of an output from which `reach` starts: PyTorch's own, or the file's as far as its precision explains it."""
    return max(own, min(candidate, allowed / 3))


def pooled(inputs: Mapping[str, torch.Tensor], parts: Sequence[Mapping[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    """The parts, in which each gradient of an input is replaced by its mean over all places with the same value, in any input.
    `inputs`: gradient -> its input. Empty if no value repeats."""
    if not inputs:
        return []
    values, group, counts = torch.cat([x.flatten().double() for x in inputs.values()]).unique(
        return_inverse=True, return_counts=True)
    if len(values) == len(group):
        return []
    groups = dict(zip(inputs, group.split([x.numel() for x in inputs.values()]), strict=True))
    found = []
    for part in parts:
        there = {n: part[n].double() for n in inputs if n in part and part[n].shape == inputs[n].shape}
        sums = torch.zeros_like(values)
        for name, grad in there.items():
            sums.index_add_(0, groups[name], grad.flatten().to(sums.device))
        found.append({**part, **{n: (sums / counts)[groups[n]].view(g.shape).to(part[n].dtype).to(g.device)
                                 for n, g in there.items()}})
    return found
