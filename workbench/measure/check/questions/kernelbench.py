"""KernelBench's own verdict, by its rule: both modules are made once, under one seed, without copying weights. The inputs are
those of get_inputs() under its seeds. Only the forward is compared, by torch.allclose."""

from __future__ import annotations

from dataclasses import replace

import torch

from ....core import numbers
from ....core.check_parts import KernelBenchValues
from ..foreign.process import Ended, Raised
from ..trialrun import TrialRun
from .cases import Case

_TRIALS, _FEW = 5, 2
_LARGE = 1 << 26
_SEED = 42


def verdict(trial: TrialRun, given: Case) -> KernelBenchValues:
    """By both rules; half types use 1e-2 in both."""
    strict_tolerance = 1e-4 if trial.dtype in ("float32", "float64") else 1e-2
    found = KernelBenchValues(strict=True, loose=True, why="", tolerance=strict_tolerance, trials=0)
    large = sum(torch.Size(s).numel() for s in given.shapes) > _LARGE
    how = trial.how(given, seed=_SEED)
    for seed in _seeds()[:_FEW if large else _TRIALS]:
        first = not found.trials
        try:
            inputs = trial.reference.draw(seed)
            _, theirs = trial.reference.call(how, inputs, state=None, as_it_is=not first, no_grad=True)
            _, ours = trial.candidate.call(how, inputs, state=None, as_it_is=not first, no_grad=True)
        except (Raised, Ended) as error:
            why = f"It raises {error.sentence}." if isinstance(error, Raised) else error.headline
            return replace(found, strict=False, loose=False, why=why)
        found = replace(found, trials=found.trials + 1)
        if not ours or ours[0].shape != theirs[0].shape:
            return replace(found, strict=False, loose=False, why="The shapes differ.")
        a, b = theirs[0].to(trial.device), ours[0].to(trial.device)
        a = a if a.is_floating_point() else a.double()
        strict, loose = (torch.allclose(a, b.to(a.dtype), atol=t, rtol=t) for t in (strict_tolerance, 1e-2))
        if not (strict and loose):
            apart = float((a.double() - b.double()).abs().max())
            found = replace(found, strict=found.strict and strict, loose=found.loose and loose,
                            why=found.why or f"Up to {numbers.error(apart)} from PyTorch's own output.")
    return found


def _seeds() -> list[int]:
    """Those of its trials, which it draws under its first one."""
    generator = torch.Generator().manual_seed(_SEED)
    return [int(torch.randint(0, 2**32 - 1, (1,), generator=generator)) for _ in range(_TRIALS)]
