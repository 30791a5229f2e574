"""Each wrapper of Hopper's instructions (wgmma in every shape, mbarrier, bulk copies): the GPU gives what the emulation
gives."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.emulator.core_matrices import PRECISIONS, operands, pack, seen
from tests.gpu.both import both, build_both
from tests.require import require


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> tuple[ctypes.CDLL, ctypes.CDLL]:
    require(torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9, "a Hopper GPU (sm_90)")
    folder: Path = tmp_path_factory.mktemp("hopper")
    return build_both("hopper", folder, arch="sm_90a")


@pytest.mark.parametrize("stored", [0, 1], ids=["bulk copies", "ordinary stores"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_products_in_every_shape(precision: str, stored: int, libraries: tuple[ctypes.CDLL, ctypes.CDLL]) -> None:
    rng = np.random.default_rng(11)
    for columns in range(8, 257, 120 if stored else 8):
        for whole, steps in ((True, 7), (False, 4)):
            a, b = operands(rng, precision, columns, steps, whole=whole)
            shift = 0 if columns % 16 else 3
            one = pack(a, precision, halves_together=shift == 0, shift=shift)
            other = pack(b, precision, halves_together=columns % 24 == 0)
            gpu, emulated = both(libraries, "run_products", [one.data, other.data],
                                 np.full((64, columns), np.nan, np.float32), PRECISIONS.index(precision), columns, stored,
                                 steps, *one.numbers, *other.numbers)
            truth = seen(a, precision).astype(np.float64) @ seen(b, precision).astype(np.float64).T
            if whole:
                np.testing.assert_array_equal(gpu, truth, err_msg=f"{columns} columns")
                np.testing.assert_array_equal(gpu, emulated)
            else:  # operands are read alike; the order of the sums and their rounding are the hardware's own
                scale = np.abs(a) @ np.abs(b).T
                assert np.max(np.abs(gpu - truth) / scale) < 1e-6, columns
                assert np.max(np.abs(emulated - truth) / scale) < 1e-6, columns


@pytest.mark.parametrize("columns", [64, 128])
def test_products_of_registers(columns: int, libraries: tuple[ctypes.CDLL, ctypes.CDLL]) -> None:
    for whole in (True, False):
        a, b = operands(np.random.default_rng(8), "tf32", columns, 5, whole=whole)
        gpu, emulated = both(libraries, "run_register_products", [a, b], np.full((64, columns), np.nan, np.float32), columns, 5)
        if whole:
            np.testing.assert_array_equal(gpu, a @ b.T)
            np.testing.assert_array_equal(gpu, emulated)
        else:
            scale = np.abs(a) @ np.abs(b).T
            assert np.max(np.abs(gpu - emulated) / scale) < 2e-6


def test_added_in_memory(libraries: tuple[ctypes.CDLL, ctypes.CDLL]) -> None:
    rng = np.random.default_rng(6)
    more, to = (rng.standard_normal(4 * 1000).astype(np.float32) for _ in range(2))
    gpu, emulated = both(libraries, "run_added", [more], to, 1000)
    np.testing.assert_array_equal(gpu, emulated)
    np.testing.assert_array_equal(gpu, more + to)
