"""Finds the main kernel among the kernels that were compiled for a trial; the others are helpers. The main kernel has the
variant's name, or the name in the key `kernel` of its header. Helpers (which pack, pad, sum or convert) have other names and
may be compiled before it.
"""

from __future__ import annotations

from collections.abc import Callable

from ...core.errors import BadRequest
from ...core.trial import Trial
from ...core.trial_parts import KernelNumbers
from ...core.variants import find

OwnName = Callable[[str, str], str]      # (variant, direction) -> name of the main kernel; a caller with many trials caches it


def own_name(variant: str, direction: str) -> str:
    """The name of the variant's main kernel."""
    try:
        return find(variant, direction).kernel or variant
    except BadRequest:  # the template no longer exists, or is in the user's own folder
        return variant


def arch_of(trial: Trial) -> str:
    """The architecture whose numbers are shown: that of the code that the trial's GPU ran (sm_90a on an sm_90), else the newest
    one; "" if none is recorded."""
    there = sorted(arch for arch, kernels in trial.resources.items() if kernels)
    own = trial.device.arch
    return next((a for a in reversed(there) if own and a.rstrip("af") == own), there[-1] if there else "")


def main_kernel(trial: Trial, arch: str, own_name: OwnName = own_name) -> str:
    """The short name of the main kernel. Of several instances it is the one with the most registers. If no kernel has the
    expected name, it is the one of all with the most registers."""
    kernels = trial.resources[arch]
    wanted = own_name(trial.variant, trial.direction)
    own = [name for name in kernels if name.partition("<")[0] == wanted]
    return max(own or kernels, key=lambda name: kernels[name].registers)


def main_numbers(trial: Trial, own_name: OwnName = own_name) -> KernelNumbers | None:
    """The numbers of the main kernel on the architecture of `arch_of`; None if none are recorded."""
    arch = arch_of(trial)
    return trial.resources[arch][main_kernel(trial, arch, own_name)] if arch else None
