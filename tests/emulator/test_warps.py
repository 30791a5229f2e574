"""Warp operations against their definition in numpy."""

import numpy as np
import pytest

from .conftest import Kernels

LANES = np.arange(32)


@pytest.mark.parametrize(("function", "dtype"), [("run_sum_float", np.float32), ("run_sum_double", np.float64)])
@pytest.mark.parametrize("order", ["forward", "reverse", "5"])
def test_sum_by_shuffles(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, function: str, dtype: type, order: str
) -> None:
    monkeypatch.setenv("CUDACPU_ORDER", order)
    values = np.random.default_rng(1).integers(-1000, 1000, (4, 96)).astype(dtype)
    out = np.zeros(4 * 3, dtype)
    assert kernels("warps")(function, values, out, 4, 96) == 0
    np.testing.assert_array_equal(out, values.reshape(-1, 32).sum(axis=1))


def test_shuffles(kernels: Kernels) -> None:
    out = np.full((10, 32), -1, np.int32)
    assert kernels("warps")("run_shuffles", out) == 0
    expected = [
        np.full(32, 5),
        LANES // 8 * 8 + 1,
        np.where(LANES >= 3, LANES - 3, LANES),
        np.where(LANES % 16 >= 3, LANES - 3, LANES),
        np.where(LANES + 3 < 32, LANES + 3, LANES),
        np.where(LANES % 16 + 3 < 16, LANES + 3, LANES),
        LANES ^ 17,
        # With width 8, lanes of a later group cannot be read, those of an earlier one can.
        np.where((LANES ^ 12) // 8 <= LANES // 8, LANES ^ 12, LANES),
        LANES ^ 1,
        LANES ^ 2,
    ]
    np.testing.assert_array_equal(out, np.array(expected))


def test_votes_reductions_and_matches(kernels: Kernels) -> None:
    out = np.zeros((8, 32), np.uint32)
    assert kernels("warps")("run_votes", out) == 0
    bits = (1 << LANES).astype(np.uint64)
    np.testing.assert_array_equal(out[0], bits[LANES % 3 == 0].sum())
    np.testing.assert_array_equal(out[1], 1)
    np.testing.assert_array_equal(out[2], 0)
    np.testing.assert_array_equal(out[3], LANES.sum())
    np.testing.assert_array_equal(out[4], 31)
    np.testing.assert_array_equal(out[5], 0xF << (LANES // 4 * 4))
    low, high = bits[:16][LANES[:16] & 1 > 0].sum(), bits[16:][LANES[16:] & 2 > 0].sum()
    np.testing.assert_array_equal(out[6], np.where(LANES < 16, low, high))
    np.testing.assert_array_equal(out[7], 0xFFFFFFFF)


def test_lanes_that_have_exited_are_not_waited_for_and_give_nan(kernels: Kernels) -> None:
    out = np.full(20, -1, np.float32)
    assert kernels("warps")("run_exited", out) == 0
    np.testing.assert_array_equal(out[:12], LANES[8:20])
    assert np.isnan(out[12:]).all()
