"""KernelBench's own verdict, by its rule: both modules are made once, under one seed, without copying weights. The inputs are
those of get_inputs() under its seeds, all of them cast to the dtype, whole numbers and masks too. Only the forward is compared,
by torch.allclose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ....core import numbers
from ....core.answers import Answer, Question
from ....core.check_parts import KernelBenchValues
from ....core.precision import DECLARED
from ..foreign.process import Ended, Raised
from ..trialrun import TrialRun
from .cases import Case
from .magnitudes import TF32_KEY

_TRIALS, _FEW = 5, 2
_LARGE = 1 << 26
_SEED = 42


def beside(trial: TrialRun, given: Case, questions: Sequence[Question]) -> KernelBenchValues:
    """KernelBench's verdict, and the reason if it differs from ours (which counts all questions)."""
    found = verdict(trial, given)
    failed = [q for q in questions if q.answer is Answer.FAILED]
    reason = ""
    if found.strict and failed:
        reason = (f"KernelBench checks only the forward pass, at one size. Failed here: "
                  f"{' '.join(q.question for q in failed)}")
    elif not found.strict and not failed:
        rounding = "TF32 rounding" if any(q.key == TF32_KEY for q in questions) else \
            f"rounding to {DECLARED[trial.declared]}" if trial.declared else "PyTorch’s own rounding"
        reason = f"{found.why} The output is right against float64."
        reason += f" KernelBench's tolerance of 1e-4 does not allow for {rounding}." if found.apart else ""
    return replace(found, ours=not failed, reason=reason)


def verdict(trial: TrialRun, given: Case) -> KernelBenchValues:
    """KernelBench's verdict by both rules. For float16 and bfloat16 both use 1e-2."""
    dtype = getattr(torch, trial.dtype)
    strict_tolerance = 1e-4 if trial.dtype in ("float32", "float64") else 1e-2
    found = KernelBenchValues(strict=True, loose=True, why="", tolerance=strict_tolerance, trials=0)
    large = sum(torch.Size(s).numel() for s in given.shapes) > _LARGE
    how = trial.how(given, seed=_SEED)
    for seed in _seeds()[:_FEW if large else _TRIALS]:
        first, who = not found.trials, "The reference"
        try:
            inputs = [x.to(dtype) for x in trial.reference.draw(seed)]
            facts, theirs = trial.reference.call(how, inputs, state=None, as_it_is=not first, no_grad=True)
            who = "It"
            own_facts, ours = trial.candidate.call(how, inputs, state=None, as_it_is=not first, no_grad=True)
        except (Raised, Ended) as error:
            why = f"{who} raises {error.sentence}." if isinstance(error, Raised) else error.headline
            return replace(found, strict=False, loose=False, why=why)
        found = replace(found, trials=found.trials + 1)
        if not ours or not theirs:
            return replace(found, strict=False, loose=False, why=f"The output is a {(own_facts if theirs else facts).type}.")
        if ours[0].shape != theirs[0].shape:
            return replace(found, strict=False, loose=False, why="The shapes differ.")
        if ours[0].dtype != theirs[0].dtype:
            return replace(found, strict=False, loose=False, why="The dtypes differ.")
        a, b = theirs[0].to(trial.device), ours[0].to(trial.device)
        strict, loose = (torch.allclose(a, b, atol=t, rtol=t) for t in (strict_tolerance, 1e-2))
        if not (strict and loose):
            apart = float((a.double() - b.double()).abs().max())
            found = replace(found, strict=found.strict and strict, loose=found.loose and loose, apart=True,
                            why=found.why or f"Up to {numbers.error(apart)} from PyTorch's own output.")
        if not (found.strict or found.loose):   # no further input changes that, and on the emulator each one takes seconds
            break
    return found


def _seeds() -> list[int]:
    """The seeds of KernelBench's trials, which it draws with its first seed."""
    generator = torch.Generator().manual_seed(_SEED)
    return [int(torch.randint(0, 2**32 - 1, (1,), generator=generator)) for _ in range(_TRIALS)]
