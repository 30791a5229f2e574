"""The awkward layers of the product, as the kernel tests use them."""

from __future__ import annotations

from math import prod

from workbench.core.awkward import CASES, FEW
from workbench.core.layer import Workload

__all__ = ["CASES", "FEW", "label", "macs"]


def macs(workload: Workload) -> int:
    """Upper bound of the multiply-adds: each input element meets each tap of its group's output channels."""
    one = workload.layer
    return prod(workload.input_shape) * prod(one.kernel_size) * (one.out_channels // one.groups)


def label(workload: Workload) -> str:
    return f"{workload.layer} {workload.batch}x{'x'.join(map(str, workload.input_size))}"
