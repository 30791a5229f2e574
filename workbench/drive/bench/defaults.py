"""The precision in which PyTorch computes a direction by default, with no switch changed, as sessions recorded it.

cuDNN keeps the algorithm that it chose first for a problem, whatever `cudnn.benchmark` says later, and algorithms differ in
precision. So only baselines that had a process of their own show the default.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...core import numbers
from ...core.layer import BACKWARD, GRAD_INPUT, GRAD_WEIGHT
from ...core.trial import Trial
from ..reporting import report
from ..reporting.tables import aligned
from ..sessions.session import Session


def defaults_of(sessions: Iterable[Session]) -> list[Trial]:
    """The newest such baseline of each workload, direction and device."""
    found: dict[tuple[str, str, str], Trial] = {}
    for session in sessions:
        for trial in session.trials():
            if trial.kind == "baseline" and trial.detail.fresh_process:
                key = *trial.place, trial.direction
                if key not in found or found[key].at <= trial.at:
                    found[key] = trial
    return list(found.values())


def default_precision(defaults: Iterable[Trial], trial: Trial) -> str:
    """The precision of PyTorch's default in the trial's cell; "" if it was not measured. For `backward` it is the higher of the
    precisions of the two gradients."""
    here = {b.direction: b.precision for b in defaults if b.ok and report.same_place(b, trial)}
    if trial.direction != BACKWARD or BACKWARD in here:
        return here.get(trial.direction, "")
    alone = [here.get(GRAD_INPUT, ""), here.get(GRAD_WEIGHT, "")]
    return "ieee" if "ieee" in alone else "" if "" in alone else alone[0]


def defaults_table(defaults: Iterable[Trial]) -> str:
    """One line for each: the layer, the direction, what it was computed in, by which kernel, in which time."""
    rows = [("layer", "direction", "computed in", "median, ms", "longest kernel")]
    for trial in defaults:
        kernels = trial.detail.kernels or (trial.headline,)
        rows.append((trial.workload.preset, trial.direction, trial.precision or numbers.MISSING,
                     numbers.milliseconds(trial.kernel_ms.median_ms if trial.kernel_ms else None), kernels[0]))
    return "\n".join(aligned(rows))
