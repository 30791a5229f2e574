"""What tests of several folders share: what a laptop may lack, what a fresh page ticks, and Hypothesis strategies for layers
and workloads that PyTorch accepts, small enough to walk over."""

from __future__ import annotations

import os

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from workbench.core.candidate import EMULATED_SM, Candidate, why_not
from workbench.core.errors import BadRequest
from workbench.core.layer import LAUNCHES, ConvTranspose, Workload
from workbench.core.presets import preset
from workbench.core.variants import discover

EVERYTHING = os.environ.get("KW_REQUIRE_ALL") == "1"


def require(there: object, reason: str) -> None:
    """What a laptop may lack is a skip with its reason; where everything is required (CI), it is a failure."""
    if there:
        return
    if EVERYTHING:
        pytest.fail(f"required here: {reason}")
    pytest.skip(reason)


def ticked(precision: str = "tf32") -> list[tuple[str, str]]:
    """What a fresh page ticks: every variant that serves preset #74, small, in that precision ("": each variant's own), as
    (direction, name) in the page's order."""
    layer = preset("kb74").workload("small").layer
    offers = [v for v in discover() if not precision or precision in v.precision]
    there = [v for v in offers if why_not(Candidate(v, layer, "float32", {}, precision, v.forms[0]), sm=EMULATED_SM) is None]
    return [(v.direction, v.name) for d in LAUNCHES for v in there if v.direction == d]


@st.composite
def parameters(draw: st.DrawFn, *, dims: int | None = None, kernel: int = 5, stride: int = 5) -> dict:
    """Constructor arguments that obey all rules but perhaps not the one on the output's size."""
    dims = dims or draw(st.integers(1, 3))

    def per_dimension(lo: int, hi: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(lo, hi)) for _ in range(dims))

    strides, dilation = per_dimension(1, stride), per_dimension(1, 4)
    groups = draw(st.integers(1, 3))
    return {"in_channels": groups * draw(st.integers(1, 3)), "out_channels": groups * draw(st.integers(1, 3)),
            "kernel_size": per_dimension(1, kernel), "stride": strides, "padding": per_dimension(0, 4),
            "output_padding": tuple(draw(st.integers(0, max(s, d) - 1))
                                    for s, d in zip(strides, dilation, strict=True)), "groups": groups,
            "bias": draw(st.booleans()), "dilation": dilation}


@st.composite
def workloads(draw: st.DrawFn, *, longest: int = 6) -> Workload:
    chosen = draw(parameters())
    dims = len(chosen["kernel_size"])
    size = tuple(draw(st.integers(1, longest)) for _ in range(dims))
    formats = ["contiguous"] if dims == 1 else ["contiguous", "channels_last"]
    try:
        return Workload(ConvTranspose(dims, **chosen), draw(st.integers(1, 2)), size,
                        draw(st.sampled_from(["float32", "float16", "float64"])), draw(st.sampled_from(formats)))
    except BadRequest:
        assume(False)
        raise
