"""Hypothesis strategies: layers and workloads that PyTorch accepts, small enough to walk over."""

from __future__ import annotations

from hypothesis import assume
from hypothesis import strategies as st

from workbench.core.errors import BadRequest
from workbench.core.layer import ConvTranspose, Workload


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
