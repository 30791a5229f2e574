"""Barriers, shared memory, atomics, the order of threads and blocks, and libraries that do not disturb each other. Warp
operations against their definition in numpy."""

import ctypes
import shutil
from pathlib import Path

import numpy as np
import pytest

from .conftest import Kernels, Library, build

ORDERS = ["forward", "reverse", "1", "2"]


@pytest.mark.parametrize("flags", [(), ("-DCUDACPU_UCONTEXT",)], ids=["assembly", "ucontext"])
@pytest.mark.parametrize("order", ORDERS)
def test_barrier(kernels: Kernels, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], order: str) -> None:
    monkeypatch.setenv("CUDACPU_ORDER", order)
    values = np.arange(8 * 256, dtype=np.float32)
    out = np.full_like(values, -1)
    assert kernels("blocks", *flags)("run_rotate", values, out, 8, True) == 0
    np.testing.assert_array_equal(out.reshape(8, 256), np.roll(values.reshape(8, 256), -1, axis=1))


@pytest.mark.parametrize("order", ORDERS)
def test_a_removed_barrier_shows_as_nan(kernels: Kernels, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    monkeypatch.setenv("CUDACPU_ORDER", order)
    values = np.arange(2 * 256, dtype=np.float32)
    out = np.empty_like(values)
    assert kernels("blocks")("run_rotate", values, out, 2, False) == 0
    assert np.isnan(out).any()


@pytest.mark.parametrize("with_barrier", [True, False])
def test_a_barrier_between_rounds(kernels: Kernels, monkeypatch: pytest.MonkeyPatch, with_barrier: bool) -> None:
    values = np.random.default_rng(0).integers(-9, 9, (2, 64)).astype(np.float32)
    expected = sum(np.roll(row, 1) + np.roll(row, -1) for row in values)
    for order in ORDERS:
        monkeypatch.setenv("CUDACPU_ORDER", order)
        out = np.empty(64, np.float32)
        assert kernels("blocks")("run_two_rounds", values, out, with_barrier) == 0
        assert np.array_equal(out, expected) is with_barrier, order


def test_unwritten_shared_memory_is_nan_in_every_block(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDACPU_THREADS", "1")
    out = np.zeros((3, 5), np.float32)
    assert kernels("blocks")("run_unwritten", out) == 0
    assert np.isnan(out[:, :4]).all()
    np.testing.assert_array_equal(out[:, 4], 24 + 4 + 8)


def test_a_lambda_shares_static_shared_memory(kernels: Kernels) -> None:
    out = np.zeros(32, np.int32)
    assert kernels("blocks")("run_lambda", out) == 0
    np.testing.assert_array_equal(out, 32)


def test_votes_of_a_block(kernels: Kernels) -> None:
    out = np.full(3, -1, np.int32)
    assert kernels("blocks")("run_votes", out) == 0
    # threadIdx.x counts to 10, in 8 rows: 0, 3, 6, 9 are divisible by 3.
    np.testing.assert_array_equal(out, [4 * 8, 1, 0])


def test_atomics(kernels: Kernels) -> None:
    sums, total = np.zeros(4, np.int32), np.zeros(1, np.float32)
    maximum, swapped = np.zeros(1, np.uint32), np.zeros(1, np.uint64)
    assert kernels("blocks")("run_atomics", sums, total, maximum, swapped) == 0
    threads = 64 * 128
    np.testing.assert_array_equal(sums, threads // 4)
    assert (total[0], maximum[0], swapped[0]) == (threads / 2, threads - 1, threads * 2)


def test_a_thread_may_wait_for_another_with_nanosleep(kernels: Kernels) -> None:
    flag, out = np.zeros(1, np.int32), np.zeros(1, np.int32)
    assert kernels("blocks")("run_spin", flag, out) == 0
    assert out[0] == 7


def test_orders_permute_threads_and_blocks(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDACPU_THREADS", "1")
    seen = {}
    for order in ORDERS:
        monkeypatch.setenv("CUDACPU_ORDER", order)
        out = np.full((7, 50), -1, np.int32)
        assert kernels("blocks")("run_order", np.zeros(1, np.int32), out, 7, 50) == 0
        np.testing.assert_array_equal(np.sort(out, axis=None), np.arange(350))
        seen[order] = out
    np.testing.assert_array_equal(seen["forward"].ravel(), np.arange(350))
    np.testing.assert_array_equal(seen["reverse"].ravel(), np.arange(350)[::-1])
    for order in ("1", "2"):
        assert (seen[order][0, 1:] != seen[order][0, :-1] + 1).any(), "threads in order"
        assert (np.diff(seen[order].min(axis=1)) < 0).any(), "blocks in order"
    assert (seen["1"] != seen["2"]).any()


def test_each_library_has_its_own_state(tmp_path: Path, kernels: Kernels) -> None:
    faults = kernels("faults")
    copy = Library(Path(shutil.copy(faults.path, tmp_path / "copy.so")))
    assert faults("run_trap") == 719
    assert "__trap()" in faults.last_error()
    assert copy.last_error() == ""
    # Loaded for all to see, it still does not take over another library's functions.
    source = 'int which() { return %d; }\n__global__ void k(int* out) { *out = which(); }\n' \
             'extern "C" int run(int* out) { k<<<1, 1>>>(out); return cudaGetLastError(); }\n'
    for number in (1, 2):
        path = build(f"library{number}", tmp_path, source=source % number)
        out = np.zeros(1, np.int32)
        handle = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        assert handle.run(ctypes.c_void_p(out.ctypes.data)) == 0
        assert out[0] == number


LANES = np.arange(32)


@pytest.mark.parametrize(("function", "dtype"), [("run_sum_float", np.float32), ("run_sum_double", np.float64)])
@pytest.mark.parametrize("order", ["forward", "reverse", "5"])
def test_sum_by_shuffles(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, function: str, dtype: type, order: str
) -> None:
    monkeypatch.setenv("CUDACPU_ORDER", order)
    values = np.random.default_rng(1).integers(-1000, 1000, (4, 96)).astype(dtype)
    out = np.zeros(4 * 3, dtype)
    assert kernels("blocks")(function, values, out, 4, 96) == 0
    np.testing.assert_array_equal(out, values.reshape(-1, 32).sum(axis=1))


def test_shuffles(kernels: Kernels) -> None:
    out = np.full((10, 32), -1, np.int32)
    assert kernels("blocks")("run_shuffles", out) == 0
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
    assert kernels("blocks")("run_warp_votes", out) == 0
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
    assert kernels("blocks")("run_exited", out) == 0
    np.testing.assert_array_equal(out[:12], LANES[8:20])
    assert np.isnan(out[12:]).all()


def test_asynchronous_copies_arrive_at_the_wait(kernels: Kernels) -> None:
    given, out = np.arange(1, 65, dtype=np.float32), np.zeros(128, np.float32)
    assert kernels("blocks")("run_pipelined", given, out, 1) == 0
    np.testing.assert_array_equal(out, np.concatenate([given[::-1], np.zeros(64, np.float32)]))
    assert kernels("blocks")("run_pipelined", given, out, 0) == 0
    assert np.isnan(out).all()
