"""Does a file compute in TF32 on the CPU? On a GPU TF32 is allowed, because PyTorch's default computes float32 convolutions so.
The size of the error does not prove TF32. So float64 computes the same convolution with operands rounded to TF32. Each result
must be as near to that as a float32 result is to the truth. Sums in float16, or a few wrong terms, are near to neither.

An operand that was computed inside, as in a backward, is off by a rounding of float32. So it may be kept as the next number of
TF32. An element may be off by twice what such operands explain."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ....core import numbers
from ....core.answers import Answer, Question
from ....core.trial import Status
from ...kernel.validate import distance
from ..foreign.process import Ended, Raised
from ..host.tf32 import DOWN, ROUNDINGS, UP
from ..trialrun import Outcome, TrialRun, wide

KEY, ASKED = "tf32", "Computes in float32?"


def explained(trial: TrialRun, outcome: Outcome) -> bool:
    """Whether only values are wrong, and all of them are right in TF32."""
    wrong = {(p.about, p.status) for p in outcome.problems}
    if not (trial.convolves and trial.device == "cpu" and trial.dtype == "float32") or not wrong or wrong - {
            ("values", Status.MISMATCH), ("gradient_values", Status.MISMATCH)} or outcome.case.integers:
        return False
    left = {n for n in outcome.expected if n in outcome.got and not _near(trial, outcome, n, outcome.expected)}
    for rounding in ROUNDINGS:
        try:
            in_tf32 = _truth(trial, outcome, rounding)
            left = {n for n in left if not _near(trial, outcome, n, in_tf32)}
            if left:
                moved = [_truth(trial, outcome, rounding + way) for way in (UP, DOWN)]
                left = {n for n in left if not _near(trial, outcome, n, in_tf32, moved)}
        except (Raised, Ended):
            return False
        if not left:
            return True
    return False


def warning(outcome: Outcome) -> Question:
    """Of an outcome that was explained."""
    off = max(e.rel_l2 for e in outcome.errors.values())
    return Question(KEY, ASKED, Answer.WARNED, f"No. It computes in TF32: its error of up to {numbers.error(off)} is that "
                    "of operands rounded to TF32. PyTorch computes in float32 on this CPU. On a GPU its convolutions use TF32 "
                    "by default, so this check uses the tolerance of TF32.",
                    "Export with precision ieee or tf32x3 if you need float32.")


def _truth(trial: TrialRun, outcome: Outcome, rounding: str) -> dict[str, torch.Tensor]:
    """What float64 gives if the operands of convolutions are rounded so."""
    names, values = outcome.state
    facts, truth = trial.reference.call(
        trial.how(outcome.case, dtype="float64"), [wide(x) for x in outcome.inputs],
        state=(names, [wide(v) for v in values]), gradients=outcome.names, tf32=rounding,
        grad_output=None if outcome.grad_output is None else outcome.grad_output.double())
    return trial.named(facts, truth)


def _near(trial: TrialRun, outcome: Outcome, name: str, truth: dict[str, torch.Tensor],
          moved: Sequence[dict[str, torch.Tensor]] = ()) -> bool:
    """By the tolerance of float32, and no element far off. `moved`: the truth for operands that are a little different."""
    got, expected = outcome.got[name], truth.get(name)
    if expected is None or got.shape != expected.shape:
        return False
    if moved:
        off = got.double() - expected
        reach = torch.stack([(other[name] - expected).abs() for other in moved]).amax(0)
        got = got.double() - off.sign() * torch.minimum(off.abs(), 2 * reach)
    allowed = trial.allowed(outcome.case, name, "ieee")
    off, worst, rms = distance(got, expected)
    least = outcome.least_rms.get(name, 0.0)
    return off * rms <= allowed * max(rms, least) and worst <= 60 * allowed * (rms + float(expected.abs().max()))
