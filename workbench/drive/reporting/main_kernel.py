"""Which of the kernels that were compiled for a trial is the variant's own; the others are its helpers.

A variant's main kernel bears the variant's name, or the one that the key `kernel` of its header gives. Helpers (they pack,
pad, sum or convert) have names of their own, and may be compiled before it.
"""

from __future__ import annotations

from typing import Any

from ...core.errors import BadRequest
from ...core.trial import Trial
from ...core.variants import find

Kernels = dict[str, dict[str, Any]]  # short name -> numbers
# (variant, direction) -> the name of its main kernel, found so far: whoever asks for many trials keeps one, as each look reads
# the times of all templates.
Names = dict[tuple[str, str], str]


def arch_of(trial: Trial) -> str:
    """The target whose numbers are shown: what the trial's GPU ran (sm_90a is compiled for an sm_90), else the newest; ""
    where nothing is recorded."""
    there = sorted(arch for arch, kernels in trial.resources.items() if isinstance(kernels, dict) and kernels)
    own = str(trial.device.get("arch", ""))
    return next((a for a in reversed(there) if own and a.rstrip("af") == own), there[-1] if there else "")


def main_kernel(trial: Trial, arch: str, names: Names | None = None) -> str:
    """The short name of the main kernel: of several instances of it, and where none bears the variant's name, the one with
    the most registers."""
    kernels: Kernels = trial.resources[arch]
    if len(kernels) == 1:
        return next(iter(kernels))
    own_name = _own_name(trial, {} if names is None else names)
    own = [name for name in kernels if name.partition("<")[0] == own_name]
    return max(own or kernels, key=lambda name: kernels[name].get("registers", 0))


def main_numbers(trial: Trial, names: Names | None = None) -> dict[str, Any]:
    """The numbers of the main kernel on the target that is shown; {} where nothing is recorded."""
    arch = arch_of(trial)
    return trial.resources[arch][main_kernel(trial, arch, names)] if arch else {}


def _own_name(trial: Trial, names: Names) -> str:
    key = (trial.name, trial.direction)
    if key not in names:
        try:
            names[key] = find(*key).kernel or trial.name
        except BadRequest:  # the template has gone, or lies in a folder of the user's own
            names[key] = trial.name
    return names[key]
