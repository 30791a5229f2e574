"""The emulated instructions of Hopper (wgmma, mbarrier, bulk copies) against numpy."""

import numpy as np
import pytest

from .conftest import Kernels
from .core_matrices import PRECISIONS, Packed, operands, pack, seen

FEW_SHAPES = "-DSHAPE_STEP=120"  # 8, 128 and 248 columns


def run(kernels: Kernels, a: Packed, b: Packed, precision: str, columns: int, stored: int, steps: int) -> np.ndarray:
    out = np.full((64, columns), np.nan, np.float32)
    library = kernels("hopper", FEW_SHAPES)
    code = library("run_products", a.data, b.data, out, PRECISIONS.index(precision), columns, stored, steps,
                   *a.numbers, *b.numbers)
    assert code == 0, library.last_error()
    return out


@pytest.mark.parametrize("order", ["forward", "reverse", "4"])
@pytest.mark.parametrize("stored", [0, 1])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_products(kernels: Kernels, monkeypatch: pytest.MonkeyPatch, precision: str, stored: int, order: str) -> None:
    monkeypatch.setenv("CUDACPU_ORDER", order)
    a, b = operands(np.random.default_rng(3), precision, 128, 5, whole=True)
    out = run(kernels, pack(a, precision, halves_together=False, shift=5), pack(b, precision, halves_together=True),
              precision, 128, stored, 5)
    np.testing.assert_array_equal(out, a @ b.T)


@pytest.mark.parametrize("order", ["forward", "reverse", "4"])
@pytest.mark.parametrize("columns", [64, 128])
def test_products_of_registers(kernels: Kernels, monkeypatch: pytest.MonkeyPatch, columns: int, order: str) -> None:
    monkeypatch.setenv("CUDACPU_ORDER", order)
    a, b = operands(np.random.default_rng(7), "tf32", columns, 3, whole=True)
    out = np.full((64, columns), np.nan, np.float32)
    library = kernels("hopper", FEW_SHAPES)
    assert library("run_register_products", a, b, out, columns, 3) == 0, library.last_error()
    np.testing.assert_array_equal(out, a @ b.T)


def test_tf32_ignores_the_lower_bits(kernels: Kernels) -> None:
    a, b = operands(np.random.default_rng(4), "tf32", 8, 4, whole=False)
    out = run(kernels, pack(a, "tf32", halves_together=True), pack(b, "tf32", halves_together=False, shift=3), "tf32", 8, 0, 4)
    scale = np.abs(a) @ np.abs(b.T)
    truth = seen(a, "tf32").astype(np.float64) @ seen(b, "tf32").astype(np.float64).T
    assert (np.abs(out - truth) / scale).max() < 1e-6 < (np.abs(out - a.astype(np.float64) @ b.T) / scale).max()


def test_a_copy_that_is_no_multiple_of_16_bytes_is_an_error(kernels: Kernels) -> None:
    a, b = operands(np.random.default_rng(5), "tf32", 8, 1, whole=True)
    one, other = pack(a, "tf32", halves_together=True), pack(b, "tf32", halves_together=True)
    library = kernels("hopper", FEW_SHAPES)
    odd = np.zeros(one.data.size + 16, np.uint8)
    odd = odd[(4 - odd.ctypes.data) % 16:][:one.data.size]
    assert library("run_products", odd, other.data, np.zeros((64, 8), np.float32), 0, 8, 0, 1, *one.numbers,
                   *other.numbers) == 716
    assert "not all multiples of 16" in library.last_error()


def test_added_in_memory(kernels: Kernels) -> None:
    rng = np.random.default_rng(6)
    more, to = (rng.standard_normal(4 * 130).astype(np.float32) for _ in range(2))
    expected = more + to
    assert kernels("hopper", FEW_SHAPES)("run_added", more, to, 130) == 0
    np.testing.assert_array_equal(to, expected)
