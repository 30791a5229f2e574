"""One fixture of tests/emulator/fixtures built twice, by nvcc and by the emulator's compiler, and run on both."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import torch

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
