"""The emulated instructions of kernel_templates/hardware, those of Hopper too (wgmma, mbarrier, bulk copies), against numpy.
`Packed`: rows of numbers as core matrices (8 rows of 16 bytes), which are the operands of wgmma."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from .conftest import Kernels

MISALIGNED = 716
PRECISIONS = ("tf32", "fp16", "bf16")


@dataclass(frozen=True)
class Packed:
    """One operand as the fixture `hopper.cu` takes it: its bytes, step by step along K, and where matrices lie."""

    data: np.ndarray
    k_step: int
    row_step: int
    step_bytes: int
    start: int

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        return self.k_step, self.row_step, self.step_bytes, self.start


def stored(values: np.ndarray, precision: str) -> np.ndarray:
    """float32 values in the operand's storage type, bytes along the last axis."""
    if precision == "fp16":
        return values.astype(np.float16).view(np.uint8)
    if precision == "bf16":  # to nearest even, as the hardware's conversion
        bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).view(np.uint8)
    return values.astype(np.float32).view(np.uint8)


def seen(values: np.ndarray, precision: str) -> np.ndarray:
    """The values that the tensor cores multiply: of tf32 the lower 13 bits are ignored."""
    if precision == "tf32":
        return (values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    if precision == "fp16":
        return values.astype(np.float16).astype(np.float32)
    return (stored(values, precision).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def pack(values: np.ndarray, precision: str, *, halves_together: bool, shift: int = 0) -> Packed:
    """`values` [rows, K]; K is a multiple of 8 (tf32) or 16. With `halves_together` the two core matrices of a step
    lie side by side; otherwise all rows of the first come first, and `shift` extra rows before the operand are skipped
    by its start address alone."""
    rows = values.shape[0]
    assert not (halves_together and shift)
    held = np.concatenate([np.full((shift, values.shape[1]), 77, np.float32), values]) if shift else values
    chunks = stored(held, precision).reshape(rows + shift, -1, 2, 16)          # row, step, half, byte
    if halves_together:
        data = chunks.reshape(rows // 8, 8, -1, 2, 16).transpose(2, 0, 3, 1, 4)  # step, group, half, row, byte
        return Packed(np.ascontiguousarray(data).reshape(-1), 128, 256, rows * 32, 0)
    data = chunks.transpose(1, 2, 0, 3)
    return Packed(np.ascontiguousarray(data).reshape(-1), (rows + shift) * 16, 128, (rows + shift) * 32, shift * 16)


def swizzled(rng: np.random.Generator, row_bytes: int, shift: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A [64 + shift, K] and B [64, K] in bfloat16 as bytes, K a row of that many bytes; and the product of A's last 64 rows."""
    a, b = (rng.integers(-7, 8, (rows, row_bytes // 2)).astype(np.float32) for rows in (64 + shift, 64))
    return stored(a, "bf16"), stored(b, "bf16"), a[shift:] @ b.T


def rows(rng: np.random.Generator, steps: int, shift: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A [steps, 64] and B [steps + shift, 128] in bfloat16 as bytes; and A^T times the last rows of B."""
    a, b = (rng.integers(-7, 8, shape).astype(np.float32) for shape in ((steps, 64), (steps + shift, 128)))
    return stored(a, "bf16"), stored(b, "bf16"), a.T @ b[shift:]


def operands(rng: np.random.Generator, precision: str, columns: int, steps: int, *, whole: bool
             ) -> tuple[np.ndarray, np.ndarray]:
    """A [64, K] and B [columns, K]: small whole numbers, whose sums are exact, or normal ones."""
    k = steps * (8 if precision == "tf32" else 16)
    if whole:
        return (rng.integers(-7, 8, (64, k)).astype(np.float32), rng.integers(-7, 8, (columns, k)).astype(np.float32))
    return rng.standard_normal((64, k)).astype(np.float32), rng.standard_normal((columns, k)).astype(np.float32)


@pytest.mark.parametrize("order", ["forward", "reverse", "4"])
def test_product_by_mma_and_asynchronous_copies(kernels: Kernels, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    monkeypatch.setenv("CUDACPU_ORDER", order)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-15, 16, shape).astype(np.float32) for shape in ((48, 40), (40, 24)))
    out = np.full((48, 24), np.nan, np.float32)
    assert kernels("wrappers")("run_product", a, b, out, 48, 24, 40, True) == 0
    np.testing.assert_array_equal(out, a @ b)


def test_product_of_floats_has_the_error_of_tf32(kernels: Kernels) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((16, 64), (64, 8)))
    out = np.full((16, 8), np.nan, np.float32)
    assert kernels("wrappers")("run_product", a, b, out, 16, 8, 64, True) == 0
    error = np.abs(out - a.astype(np.float64) @ b) / (np.abs(a) @ np.abs(b))
    assert 1e-6 < error.max() < 2.0**-10


@pytest.mark.parametrize("is_bfloat", [False, True])
def test_product_of_16_bit_floats(kernels: Kernels, monkeypatch: pytest.MonkeyPatch, is_bfloat: bool) -> None:
    monkeypatch.setenv("CUDACPU_ORDER", "5")
    rng = np.random.default_rng(3)
    bits = [rng.integers(0, 2**16, shape, dtype=np.uint16) for shape in ((48, 32), (24, 32))]
    for b in bits:  # moderate exponents; a few denormal numbers
        b[...] = b & 0x8FFF | (0x3000 if is_bfloat else 0)
        b[0, :4] = [1, 0x8003, 0x03FF if not is_bfloat else 0x7F, 0]
    a, b = ((x.astype(np.uint32) << 16).view(np.float32) if is_bfloat else x.view(np.float16).astype(np.float32)
            for x in bits)
    out = np.full((48, 24), np.nan, np.float32)
    assert kernels("wrappers")("run_half_product", *bits, out, 48, 24, 32, is_bfloat) == 0
    scale = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64).T
    assert (np.abs(out - a.astype(np.float64) @ b.astype(np.float64).T) <= 2e-7 * scale).all()


@pytest.mark.parametrize("is_bfloat", [False, True])
def test_infinities_of_16_bit_floats(kernels: Kernels, is_bfloat: bool) -> None:
    one, infinity = (0x3F80, 0x7F80) if is_bfloat else (0x3C00, 0x7C00)
    a, b = np.full((16, 16), one, np.uint16), np.full((8, 16), one, np.uint16)
    a[3, 5], a[4, 6] = infinity, infinity + 1
    out = np.zeros((16, 8), np.float32)
    assert kernels("wrappers")("run_half_product", a, b, out, 16, 8, 16, is_bfloat) == 0
    assert (out[3] == np.inf).all() and np.isnan(out[4]).all() and (np.delete(out, [3, 4], 0) == 16).all()


def test_a_forgotten_wait_shows(kernels: Kernels) -> None:
    a, b = np.ones((16, 16), np.float32), np.ones((16, 8), np.float32)
    out = np.zeros((16, 8), np.float32)
    assert kernels("wrappers")("run_product", a, b, out, 16, 8, 16, False) == 0
    assert np.isnan(out).all()


def test_copies_of_a_part(kernels: Kernels) -> None:
    values, out = np.arange(1, 49, dtype=np.uint8), np.zeros(48, np.uint8)
    assert kernels("wrappers")("run_partial", values, out) == 0
    expected = np.full(48, 0xEE, np.uint8)
    expected[:4] = [1, 2, 3, 0]
    expected[16:24] = 0
    expected[32:] = [*range(33, 42), *[0] * 7]
    np.testing.assert_array_equal(out, expected)


def test_a_misaligned_copy_is_an_error(kernels: Kernels) -> None:
    wrappers = kernels("wrappers")
    room = np.zeros(64, np.float32)
    aligned = room[(-room.ctypes.data // 4) % 4 :]
    assert wrappers("run_misaligned", aligned, np.zeros(1, np.float32)) == MISALIGNED
    assert "not a multiple of 16 bytes" in wrappers.last_error()


def test_round_to_tf32(kernels: Kernels) -> None:
    one = np.float32(1).view(np.uint32)
    bits = np.array([one, one + 0xFFF, one + 0x1000, one + 0x1001, one + 0x2FFF, one + 0x3000, 0x7F7FFFFF, 0x7F800000,
                     0xFF800000, 0x7FFFFFFF, 0x7F800001, 0x00000FFF, 0x80001000], np.uint32)
    out = np.zeros(bits.size, np.uint32)
    assert kernels("wrappers")("run_rounded", bits, out, bits.size) == 0
    nan = 0x7FFFE000
    expected = [one, one, one + 0x2000, one + 0x2000, one + 0x2000, one + 0x4000, 0x7F800000, 0x7F800000,
                0xFF800000, nan, nan, 0, 0x80002000]
    np.testing.assert_array_equal(out, np.array(expected, np.uint32))


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


@pytest.mark.parametrize("shift", [0, 3])
@pytest.mark.parametrize("row_bytes", [32, 64, 128])
def test_products_of_swizzled_rows(kernels: Kernels, row_bytes: int, shift: int) -> None:
    a, b, expected = swizzled(np.random.default_rng(9), row_bytes, shift)
    out, library = np.full((64, 64), np.nan, np.float32), kernels("hopper", FEW_SHAPES)
    assert library("run_swizzled", a, b, out, row_bytes, 64 + shift, shift) == 0, library.last_error()
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("shift", [0, 3])
def test_products_of_rows_of_both(kernels: Kernels, shift: int) -> None:
    a, b, expected = rows(np.random.default_rng(9), 48, shift)
    out, library = np.full((64, 128), np.nan, np.float32), kernels("hopper", FEW_SHAPES)
    assert library("run_rows", a, b, out, 48, shift) == 0, library.last_error()
    np.testing.assert_array_equal(out, expected)


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
