"""A subset of the matrix under AddressSanitizer, which sees what guard zones cannot: reads beside a tensor."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.shared import require
from workbench.core.variants import TEMPLATES
from workbench.measure.emulator import asan_environment, translate

from .harness import compile_quickly

_ROOT = Path(__file__).resolve().parents[2]


def _run(templates: Path, folder: Path, *only: str) -> subprocess.CompletedProcess[str]:
    preload = asan_environment()
    require(preload, "g++ with AddressSanitizer (libasan) was not found")
    return subprocess.run([sys.executable, "-m", "tests.kernels.asan_run", str(templates), str(folder), *only],
                          cwd=_ROOT, env={**os.environ, **(preload or {})}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("which", ["some", pytest.param("every", marks=pytest.mark.long)])
def test_variants_are_clean(which: str, tmp_path: Path) -> None:
    started = time.monotonic()
    done = _run(TEMPLATES, tmp_path, which)
    print(f"\n{done.stdout.strip()} under AddressSanitizer: {time.monotonic() - started:.1f} s")
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]


def test_a_read_beside_the_input_is_reported(tmp_path: Path) -> None:
    root = tmp_path / "templates"
    shutil.copytree(TEMPLATES, root)
    broken = root / "forward/naive_gather.cu"
    text = broken.read_text(encoding="utf-8")
    ends = "tw / layer.stride_w >= sizes.in_w"
    assert ends in text, f"naive_gather.cu no longer contains {ends!r}: name another test to take out"
    broken.write_text(text.replace(ends, "false"), encoding="utf-8")
    done = _run(root, tmp_path / "build", "forward/naive_gather")
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr


def test_a_misaligned_access_ends_the_process(tmp_path: Path) -> None:
    """In all kernel tests, also without AddressSanitizer; the product names the place (tests/emulator/test_faults.py)."""
    source, library = tmp_path / "wide.cpp", tmp_path / "wide.so"
    source.write_text(translate('extern "C" int wide(const char* at) { return reinterpret_cast<const int4*>(at)->x; }'))
    made = compile_quickly(source, library)
    assert made.returncode == 0, made.stderr
    read = ("import ctypes, sys; buffer = ctypes.create_string_buffer(64); start = -(-ctypes.addressof(buffer) // 16) * 16; "
            f"ctypes.CDLL({str(library)!r}).wide(ctypes.c_void_p(start + int(sys.argv[1])))")
    codes = [subprocess.run([sys.executable, "-c", read, str(beyond)], check=False).returncode for beyond in (0, 4)]
    assert codes == [0, -signal.SIGILL]
