"""Each wrapper of kernel_templates/hardware: the real instruction gives what the emulation gives. The library `hopper` has
those of sm_90a: wgmma in every shape, mbarrier, bulk copies."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.emulator.test_wrappers import PRECISIONS, operands, pack, rows, seen, swizzled
from tests.shared import require
from workbench.core.env import find_toolchain
from workbench.measure.emulator import COMPILE_FLAGS, INCLUDE_DIRS, LINK_FLAGS, translate

FIXTURES = Path(__file__).resolve().parents[1] / "emulator" / "fixtures"
TEMPLATES = Path(__file__).resolve().parents[2] / "kernel_templates"
_INCLUDES = [f"-I{TEMPLATES}"]


def build_both(name: str, folder: Path, *, arch: str) -> tuple[ctypes.CDLL, ctypes.CDLL]:
    """(real, emulated) libraries of fixtures/<name>.cu."""
    tools, fixture = find_toolchain(), FIXTURES / f"{name}.cu"
    subprocess.run([str(tools.nvcc), "-std=c++17", f"-arch={arch}", "-shared", "-Xcompiler", "-fPIC", *_INCLUDES,
                    str(fixture), "-o", str(folder / "real.so")], check=True)
    (folder / "emulated.cpp").write_text(translate(fixture.read_text()))
    subprocess.run([str(tools.cxx), *COMPILE_FLAGS, "-fPIC", "-shared", *(f"-I{d}" for d in INCLUDE_DIRS), *_INCLUDES,
                    "-x", "c++", str(folder / "emulated.cpp"), "-o", str(folder / "emulated.so"), *LINK_FLAGS], check=True)
    return ctypes.CDLL(str(folder / "real.so")), ctypes.CDLL(str(folder / "emulated.so"))


def both(libraries: tuple[ctypes.CDLL, ctypes.CDLL], function: str, arrays: list[np.ndarray], out: np.ndarray,
         *numbers: int) -> tuple[np.ndarray, np.ndarray]:
    """What a launcher writes to `out` on the GPU and on the emulator."""
    real, emulated = libraries
    on_gpu = [torch.from_numpy(a.copy().view(np.uint8).reshape(-1)).cuda() for a in (*arrays, out)]
    code = getattr(real, function)(*(ctypes.c_void_p(t.data_ptr()) for t in on_gpu), *map(ctypes.c_int, numbers))
    torch.cuda.synchronize()
    assert code == 0
    here = [a.copy() for a in (*arrays, out)]
    assert getattr(emulated, function)(*(ctypes.c_void_p(a.ctypes.data) for a in here), *map(ctypes.c_int, numbers)) == 0
    return on_gpu[-1].cpu().numpy().view(out.dtype).reshape(out.shape), here[-1]


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


@pytest.fixture(scope="module")
def hopper(tmp_path_factory: pytest.TempPathFactory) -> tuple[ctypes.CDLL, ctypes.CDLL]:
    require(torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9, "a Hopper GPU (sm_90)")
    folder: Path = tmp_path_factory.mktemp("hopper")
    return build_both("hopper", folder, arch="sm_90a")


@pytest.mark.parametrize("stored", [0, 1], ids=["bulk copies", "ordinary stores"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_products_in_every_shape(precision: str, stored: int, hopper: tuple[ctypes.CDLL, ctypes.CDLL]) -> None:
    rng = np.random.default_rng(11)
    for columns in range(8, 257, 120 if stored else 8):
        for whole, steps in ((True, 7), (False, 4)):
            a, b = operands(rng, precision, columns, steps, whole=whole)
            shift = 0 if columns % 16 else 3
            one = pack(a, precision, halves_together=shift == 0, shift=shift)
            other = pack(b, precision, halves_together=columns % 24 == 0)
            gpu, emulated = both(hopper, "run_products", [one.data, other.data],
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
def test_products_of_registers(columns: int, hopper: tuple[ctypes.CDLL, ctypes.CDLL]) -> None:
    for whole in (True, False):
        a, b = operands(np.random.default_rng(8), "tf32", columns, 5, whole=whole)
        gpu, emulated = both(hopper, "run_register_products", [a, b], np.full((64, columns), np.nan, np.float32), columns, 5)
        if whole:
            np.testing.assert_array_equal(gpu, a @ b.T)
            np.testing.assert_array_equal(gpu, emulated)
        else:
            scale = np.abs(a) @ np.abs(b).T
            assert np.max(np.abs(gpu - emulated) / scale) < 2e-6


@pytest.mark.parametrize("shift", [0, 3])
@pytest.mark.parametrize("row_bytes", [32, 64, 128])
def test_products_of_swizzled_rows(row_bytes: int, shift: int, hopper: tuple[ctypes.CDLL, ctypes.CDLL]) -> None:
    a, b, expected = swizzled(np.random.default_rng(9), row_bytes, shift)
    gpu, emulated = both(hopper, "run_swizzled", [a, b], np.full((64, 64), np.nan, np.float32), row_bytes, 64 + shift, shift)
    np.testing.assert_array_equal(gpu, expected)
    np.testing.assert_array_equal(gpu, emulated)


@pytest.mark.parametrize("shift", [0, 1, 3, 8])
def test_products_of_rows_of_both(shift: int, hopper: tuple[ctypes.CDLL, ctypes.CDLL]) -> None:
    a, b, expected = rows(np.random.default_rng(9), 48, shift)
    gpu, emulated = both(hopper, "run_rows", [a, b], np.full((64, 128), np.nan, np.float32), 48, shift)
    np.testing.assert_array_equal(gpu, expected)
    np.testing.assert_array_equal(gpu, emulated)


def test_added_in_memory(hopper: tuple[ctypes.CDLL, ctypes.CDLL]) -> None:
    rng = np.random.default_rng(6)
    more, to = (rng.standard_normal(4 * 1000).astype(np.float32) for _ in range(2))
    gpu, emulated = both(hopper, "run_added", [more], to, 1000)
    np.testing.assert_array_equal(gpu, emulated)
    np.testing.assert_array_equal(gpu, more + to)
