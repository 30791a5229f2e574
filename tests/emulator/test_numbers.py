"""Number formats against numpy and torch, bit for bit; bit operations; the small runtime API."""

import numpy as np
import torch

from .conftest import Kernels

ALL = np.arange(65536, dtype=np.uint16)


def same(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal bits, but any NaN for a NaN."""
    both_nan = np.isnan(actual) & np.isnan(expected)
    unsigned = np.dtype(f"u{actual.itemsize}")
    actual_bits, expected_bits = actual.view(unsigned), expected.view(unsigned)
    np.testing.assert_array_equal(np.where(both_nan, 0, actual_bits), np.where(both_nan, 0, expected_bits))


def bfloat16(values: torch.Tensor) -> np.ndarray:
    """Rounded by torch, and back as float."""
    return values.bfloat16().float().numpy()


def widened(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def test_every_half_and_bfloat16_as_float(kernels: Kernels) -> None:
    out = np.empty(65536, np.float32)
    assert kernels("numbers")("run_from_half", ALL, out, 65536) == 0
    same(out, ALL.view(np.float16).astype(np.float32))
    assert kernels("numbers")("run_from_bfloat16", ALL, out, 65536) == 0
    same(out, torch.from_numpy(ALL.view(np.int16)).view(torch.bfloat16).float().numpy())


def interesting_floats() -> np.ndarray:
    """Every half and bfloat16, the ties between neighbours, the floats beside each, and random bits."""
    exact = [ALL.view(np.float16).astype(np.float32), widened(ALL)]
    bits = np.concatenate([v.view(np.uint32) for v in exact])
    # 0x1000 is half a unit of a normal half; 0x8000 of a bfloat16.
    steps = [(half + near) % 2**32 for half in (0, 0x1000, 0x8000) for near in (-1, 0, 1)]
    around = [bits + np.uint32(step) for step in steps]
    subnormal_ties = (np.arange(4096, dtype=np.float64) / 2 * 2.0**-24).astype(np.float32).view(np.uint32)
    random = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint32)
    return np.concatenate([*around, subnormal_ties, subnormal_ties + np.uint32(1), random]).view(np.float32)


def test_float_to_half_and_bfloat16(kernels: Kernels) -> None:
    values = interesting_floats()
    half, brain = np.empty(values.size, np.uint16), np.empty(values.size, np.uint16)
    assert kernels("numbers")("run_to_short", values, half, brain, values.size) == 0
    with np.errstate(over="ignore"):
        same(half.view(np.float16), values.astype(np.float16))
    same(widened(brain), bfloat16(torch.from_numpy(values)))


def test_double_is_rounded_once(kernels: Kernels) -> None:
    ties = np.concatenate([(1 + (np.arange(64) + 0.5) / 1024), (1 + (np.arange(64) + 0.5) / 128)])
    beside = [ties * (1 + 2.0**-40), ties * (1 - 2.0**-40)]
    values = np.concatenate([ties, *beside, -ties * 2.0**-20, [1e300, -1e-300, 0.0]])
    half, brain = np.empty(values.size, np.uint16), np.empty(values.size, np.uint16)
    assert kernels("numbers")("run_double_to_short", values, half, brain, values.size) == 0
    with np.errstate(over="ignore"):
        same(half.view(np.float16), values.astype(np.float16))
    # bfloat16 keeps 8 bits of mantissa: rounded to nearest even by hand, for the values of normal size.
    normal = (np.abs(values) > 1e-30) & (np.abs(values) < 1e30)
    mantissa, exponent = np.frexp(values[normal])
    expected = np.ldexp(np.rint(np.ldexp(mantissa, 8)), exponent - 8)
    np.testing.assert_array_equal(widened(brain)[normal], expected)


def test_pairs_of_halves(kernels: Kernels) -> None:
    pairs = np.random.default_rng(2).standard_normal((100, 2)).astype(np.float16)
    out = np.zeros_like(pairs)
    assert kernels("numbers")("run_half_sums", pairs, out, 100) == 0
    low, high = pairs[:, 0].astype(np.float32), pairs[:, 1].astype(np.float32)
    np.testing.assert_array_equal(out, np.stack([low + high, low * high], axis=1).astype(np.float16))


def test_bit_operations(kernels: Kernels) -> None:
    values = np.array([0, 1, 2, 0x80000000, 0xFFFFFFFF, 0x00F0F00F, 12345, 0x7F800001], np.uint32)
    out = np.zeros((8, values.size), np.uint32)
    assert kernels("numbers")("run_bits", values, out, values.size) == 0
    texts = [f"{v:032b}" for v in values.tolist()]
    expected = [
        [t.count("1") for t in texts],
        [len(t) - len(t.lstrip("0")) for t in texts],
        [32 - t.rfind("1") if "1" in t else 0 for t in texts],
        [int(t[::-1], 2) for t in texts],
        [v * 0x9E3779B9 >> 32 for v in values.tolist()],
        [v & 0x7F7FFFFF for v in values.tolist()],
        [min(v, 1000) + max(v, 7) & 0xFFFFFFFF for v in values.tolist()],
        [0x8900CD00 | v & 0x00FF00FF for v in values.tolist()],
    ]
    np.testing.assert_array_equal(out, np.array(expected, np.uint32))


def test_vector_types(kernels: Kernels) -> None:
    rng = np.random.default_rng(3)
    v, d = rng.integers(-9, 9, (8, 4)).astype(np.float32), rng.integers(1, 9, (8, 2)).astype(np.float64)
    out, wide = np.zeros_like(v), np.zeros_like(d)
    assert kernels("numbers")("run_vectors", v, out, d, wide, 8) == 0
    x, y, z, w = v.T
    np.testing.assert_array_equal(out, np.stack([w, x * y + z, x * y - z, np.minimum(x, y)], axis=1))
    np.testing.assert_array_equal(wide, np.stack([d[:, 0] * d[:, 1] + 1, 1 / d[:, 0]], axis=1))


def test_constant_memory_copies_and_device_facts(kernels: Kernels) -> None:
    numbers = kernels("numbers")
    values, out = np.array([1, 2, 3, 4], np.float32), np.zeros(4, np.float32)
    assert numbers("run_constants", values, out) == 0
    np.testing.assert_array_equal(out, values)
    assert numbers("copy_and_clear", out, values[::-1].copy(), 4, 2, None) == 0
    np.testing.assert_array_equal(out, [0, 0, 2, 1])
    facts = np.full(4, -1, np.int32)
    assert numbers("device_facts", facts) == 0
    np.testing.assert_array_equal(facts, [0, 4, 227 * 1024, 1])


def test_approximate_functions_round_their_argument(kernels: Kernels) -> None:
    """As on a GPU: right for small arguments, wrong in the fifth digit for large ones."""
    values = np.concatenate([np.linspace(-3, 3, 601), np.linspace(900, 1000, 601)]).astype(np.float32)
    sine, exponential, quotient = (np.empty(values.size, np.float32) for _ in range(3))
    assert kernels("numbers")("run_approximate", values, sine, exponential, quotient, values.size) == 0
    error = np.abs(sine - np.sin(values.astype(np.float64)))
    assert error[:601].max() < 1e-6 and 1e-5 < error[601:].max() < 1e-3
    exact = np.exp(values.astype(np.float64) / 16)
    assert 1e-7 < (np.abs(exponential - exact) / exact).max() < 3e-5
    assert (quotient == 0).all()
