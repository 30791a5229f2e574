"""Other values of parameters, as after training: all differ, two change places, one differs. Also whether a file draws the
same initial ones for other constructor arguments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from ....core.trial import Status
from ..foreign.process import Ended, Raised
from ..trialrun import Problem, State, TrialRun
from .cases import Case
from .drawn import unequal

_MORE, _CHANGED = 4.0, 0.2   # factor for every eighth changed parameter; any other differs by at most this share of its value


def changed_state(case: Case, names: Sequence[str], state: State, generator: torch.Generator) -> State:
    """Change all parameters: each value by at most a fifth, and one in eight also by a factor of 4. Parameters that are all
    zeros get other values. Equal tensors stay equal, because they may be the same tensor."""
    how = {"generator": generator, "device": generator.device}
    made: list[tuple[torch.Tensor, torch.Tensor]] = []
    changed = []
    for name, value in zip(*state, strict=True):
        if name not in names or not value.is_floating_point():
            changed.append(value)
            continue
        new = next((n for old, n in made if old.shape == value.shape and torch.equal(old, value)), None)
        if new is None:
            drawn = 2 * torch.rand(value.shape, **how) - 1
            few = torch.randint(8, value.shape, **how) == 0
            new = (value * (1 + _CHANGED * drawn) * (1 + (_MORE - 1) * few) if bool(value.any()) else _CHANGED * drawn).to(
                value.dtype)
            if case.setting.layer is not None:  # as in a pruned network; one value at least
                kept = torch.randint(8, value.shape, **how) != 0
                kept.view(-1)[:1] = False
                new *= kept
                new = _balanced(new)
            made.append((value, new))
        changed.append(new)
    return state[0], changed


def _balanced(parameter: torch.Tensor) -> torch.Tensor:
    """The last channel gets pairs of a value and its negative, of few bits: their sum is exactly zero, they are not."""
    if parameter.dim() > 1 and (half := parameter[:, -1].numel() // 2):
        channel = parameter[:, -1].reshape(-1)
        step = 2.0 ** (math.frexp(float(channel.abs().max()) or 1.0)[1] - 4)
        few = (channel[:half] / step).round() * step
        parameter[:, -1] = torch.cat([few, -few, torch.zeros_like(channel[2 * half:])]).view_as(parameter[:, -1])
    return parameter


def little_changed(names: Sequence[str], state: State, generator: torch.Generator) -> Iterator[tuple[str, State]]:
    """What was changed, and the state: two values of each parameter change places; then one value of each is another one.
    Equal tensors stay equal."""
    how = {"generator": generator, "device": generator.device}
    for words in ("two values of each parameter changed places", "one value of each parameter changed"):
        made: list[tuple[torch.Tensor, torch.Tensor]] = []
        changed = []
        for name, value in zip(*state, strict=True):
            if name not in names or not value.is_floating_point() or not value.numel():
                changed.append(value)
                continue
            new = next((n for old, n in made if old.shape == value.shape and torch.equal(old, value)), None)
            if new is None:
                new = value.clone(memory_format=torch.contiguous_format)
                flat, place = new.view(-1), int(torch.randint(value.numel(), (), **how))
                others = (flat != flat[place]).nonzero().view(-1)
                if words.startswith("two") and len(others):
                    other = int(others[torch.randint(len(others), (), **how)])
                    flat[[place, other]] = flat[[other, place]]
                else:
                    flat[place] = flat[place] / 2 + (float(flat.abs().max()) or 1.0)
                made.append((value, new))
            changed.append(new)
        yield words, (state[0], changed)


def other_draw(trial: TrialRun, case: Case) -> Problem | None:
    """Compare the initial parameters, if they were equal for the given arguments."""
    how = trial.how(case)
    if how not in trial.reference.drawn:
        return None
    try:
        if how not in trial.candidate.drawn:
            trial.candidate.make(how)
    except (Raised, Ended):
        return None
    differs = unequal(trial, how)
    return Problem("state", Status.MISMATCH, differs, "Draw the parameters as the reference does, whatever the arguments."
                   ) if differs else None
