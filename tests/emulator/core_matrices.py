"""Operands of wgmma: rows of numbers packed as core matrices (8 rows of 16 bytes), and what their product must be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
