"""Each wrapper of kernel_templates/hardware/ptx.cuh: the real instruction gives what the emulation gives, bit for bit."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from tests.gpu.both import both, build_both
from tests.require import require


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> tuple[ctypes.CDLL, ctypes.CDLL]:
    require(torch.cuda.is_available(), "an NVIDIA GPU")
    arch = "sm_" + "".join(map(str, torch.cuda.get_device_capability()))
    return build_both("wrappers", tmp_path_factory.mktemp("wrappers"), arch=arch)


def test_mma_and_asynchronous_copies(libraries: tuple[ctypes.CDLL, ctypes.CDLL]) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-15, 16, s).astype(np.float32) for s in ((48, 40), (40, 24)))
    gpu, emulated = both(libraries, "run_product", [a, b], np.full((48, 24), np.nan, np.float32), 48, 24, 40, 1)
    np.testing.assert_array_equal(gpu, a @ b)
    np.testing.assert_array_equal(gpu, emulated)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((16, 64), (64, 8)))
    gpu, emulated = both(libraries, "run_product", [a, b], np.full((16, 8), np.nan, np.float32), 16, 8, 64, 1)
    scale = np.abs(a) @ np.abs(b)
    assert np.max(np.abs(gpu - emulated) / scale) < 1e-6  # operands rounded alike; only the sums' order differs


@pytest.mark.parametrize("is_bfloat", [0, 1])
def test_mma_of_16_bit_floats(libraries: tuple[ctypes.CDLL, ctypes.CDLL], is_bfloat: int) -> None:
    rng = np.random.default_rng(4)
    kind = torch.bfloat16 if is_bfloat else torch.float16
    for exact in (True, False):
        drawn = [rng.integers(-15, 16, s) if exact else rng.standard_normal(s) for s in ((48, 32), (24, 32))]
        a, b = (torch.from_numpy(d).to(kind) for d in drawn)
        bits = [t.view(torch.int16).numpy().view(np.uint16) for t in (a, b)]
        gpu, emulated = both(libraries, "run_half_product", bits, np.full((48, 24), np.nan, np.float32), 48, 24, 32,
                             is_bfloat)
        if exact:
            np.testing.assert_array_equal(gpu, (a.double() @ b.double().T).float().numpy())
            np.testing.assert_array_equal(gpu, emulated)
        scale = (a.double().abs() @ b.double().abs().T).numpy()
        assert np.max(np.abs(gpu - emulated) / scale) < 1e-6


def test_copies_of_a_part(libraries: tuple[ctypes.CDLL, ctypes.CDLL]) -> None:
    gpu, emulated = both(libraries, "run_partial", [np.arange(1, 49, dtype=np.uint8)], np.zeros(48, np.uint8))
    np.testing.assert_array_equal(gpu, emulated)


def test_round_to_tf32(libraries: tuple[ctypes.CDLL, ctypes.CDLL]) -> None:
    rng = np.random.default_rng(2)
    bits = np.concatenate([rng.integers(0, 2**32, 4096, dtype=np.uint64).astype(np.uint32),
                           np.array([0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FFFFFFF, 0x7F800001, 0x00000FFF], np.uint32)])
    gpu, emulated = both(libraries, "run_rounded", [bits], np.zeros(bits.size, np.uint32), bits.size)
    finite = np.isfinite(bits.view(np.float32))
    np.testing.assert_array_equal(gpu[finite], emulated[finite])
    assert np.array_equal(np.isnan(gpu.view(np.float32)), np.isnan(emulated.view(np.float32)))


def test_rounding_for_tensor_cores(libraries: tuple[ctypes.CDLL, ctypes.CDLL]) -> None:
    """Of the bits that tensor cores read: finite ones and infinities as the emulation has them, a NaN stays one."""
    rng = np.random.default_rng(3)
    bits = np.concatenate([rng.integers(0, 2**32, 4096, dtype=np.uint64).astype(np.uint32),
                           np.array([0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x80000000],
                                    np.uint32)])
    gpu, emulated = both(libraries, "run_rounded_for_tensor_cores", [bits], np.zeros(bits.size, np.uint32), bits.size)
    number = ~np.isnan(bits.view(np.float32))
    np.testing.assert_array_equal(gpu[number], emulated[number])
    assert np.isnan(gpu[~number].view(np.float32)).all() and np.isnan(emulated[~number].view(np.float32)).all()
