"""Numbers of the strip GEMM (kernel_templates/common/strip_walk.cuh, strip_gemm.cuh) against numpy."""

import numpy as np

from .conftest import Kernels


def test_divided(kernels: Kernels) -> None:
    rng = np.random.default_rng(0)
    divisor = np.concatenate([rng.integers(1, 1 << most, 3000) for most in (2, 8, 17, 30)]).astype(np.uint32)
    # Quotients as large as there are, and those about to change.
    wanted = rng.integers(0, 0x7FFFFFFF, divisor.size).astype(np.uint32) // divisor
    n = np.concatenate([wanted * divisor, wanted * divisor + divisor - 1, 0x7FFFFFFF - divisor % 7]).astype(np.uint32)
    n, divisor = np.minimum(n, np.uint32(0x7FFFFFFF)), np.tile(divisor, 3)
    quotient, rest = np.zeros(n.size, np.uint32), np.zeros(n.size, np.int32)
    assert kernels("strips")("run_divided", n, divisor, quotient, rest, n.size) == 0
    np.testing.assert_array_equal(quotient, n // divisor)
    np.testing.assert_array_equal(rest, n % divisor)


def test_rounding_by_maximum(kernels: Kernels) -> None:
    rng = np.random.default_rng(1)
    high = np.arange(1 << 16, dtype=np.uint32) << 16  # every sign, exponent and 7 bits of what follows
    bits = np.concatenate([high, high | 0xFFFF, high | 0xF000, high | 0xEFFF, high | 0x1000, high | 0x0FFF,
                           high | rng.integers(0, 1 << 16, high.size).astype(np.uint32)])
    out, other = np.zeros(bits.size, np.uint32), np.zeros(bits.size, np.uint32)
    assert kernels("strips")("run_rounded", bits, out, other, bits.size) == 0
    nan = np.isnan(bits.view(np.float32))
    assert np.isnan(other.view(np.float32)[nan]).all() and nan.any()
    cut = np.uint32(0xFFFFE000)  # tensor cores drop the rest
    np.testing.assert_array_equal(other[~nan] & cut, out[~nan] & cut)
    # What stays a NaN without its low bits does so either way.
    assert not (np.isnan((out & cut).view(np.float32)) & ~np.isnan((other & cut).view(np.float32))).any()
