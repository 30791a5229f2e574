"""Which of the kernels that were compiled for a trial is the variant's own; the others are its helpers.

A variant's main kernel bears the variant's name, or the one that the key `kernel` of its header gives. Helpers (they pack,
pad, sum or convert) have names of their own, and may be compiled before it.
"""

from __future__ import annotations

from collections.abc import Callable

from ...core.errors import BadRequest
from ...core.trial import Trial
from ...core.trial_parts import KernelNumbers
from ...core.variants import find

OwnName = Callable[[str, str], str]      # variant, direction -> its main kernel; a caller with many trials remembers it


def own_name(variant: str, direction: str) -> str:
    """The name that the variant's main kernel bears."""
    try:
        return find(variant, direction).kernel or variant
    except BadRequest:  # the template has gone, or lies in a folder of the user's own
        return variant


def arch_of(trial: Trial) -> str:
    """The target whose numbers are shown: what the trial's GPU ran (sm_90a is compiled for an sm_90), else the newest; ""
    where nothing is recorded."""
    there = sorted(arch for arch, kernels in trial.resources.items() if kernels)
    own = trial.device.arch
    return next((a for a in reversed(there) if own and a.rstrip("af") == own), there[-1] if there else "")


def main_kernel(trial: Trial, arch: str, own_name: OwnName = own_name) -> str:
    """The short name of the main kernel: of several instances of it, and where none bears the variant's name, the one with
    the most registers."""
    kernels = trial.resources[arch]
    wanted = own_name(trial.variant, trial.direction)
    own = [name for name in kernels if name.partition("<")[0] == wanted]
    return max(own or kernels, key=lambda name: kernels[name].registers)


def main_numbers(trial: Trial, own_name: OwnName = own_name) -> KernelNumbers | None:
    """The numbers of the main kernel on the target that is shown; None where nothing is recorded."""
    arch = arch_of(trial)
    return trial.resources[arch][main_kernel(trial, arch, own_name)] if arch else None
