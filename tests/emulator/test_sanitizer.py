"""AddressSanitizer sees a kernel's overruns, in fibers and in shared memory, and names the line of the .cu."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.measure.emulator import ASAN_FLAGS, asan_environment

from .conftest import build, line_of, skip_or_fail

# The buffers are malloc's own, so that their ends are guarded.
CALL = """
import ctypes, sys
libc, library = ctypes.CDLL(None), ctypes.CDLL(sys.argv[1])
libc.malloc.restype = ctypes.c_void_p
n = 64
given, out = (ctypes.c_void_p(libc.malloc(4 * n)) for _ in range(2))
ctypes.memset(given, 0, 4 * n)
print("result", library.run(given, out, n + int(sys.argv[3]), int(sys.argv[2])), flush=True)
"""


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    found = asan_environment()
    if found is None:
        skip_or_fail("g++ has no libasan.so (Debian: libasan8, part of g++)")
    return {**os.environ, **found}


@pytest.fixture(scope="module")
def library(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("out_of_bounds", tmp_path_factory.mktemp("asan"), flags=tuple(ASAN_FLAGS))


def call(library: Path, environment: dict[str, str], which: int, beyond: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CALL, str(library), str(which), str(beyond)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=500)


@pytest.mark.parametrize(("which", "mark"), [(1, "global"), (2, "fixed"), (3, "dynamic")])
def test_an_overrun_is_reported_with_its_line(
    library: Path, environment: dict[str, str], which: int, mark: str
) -> None:
    inside = call(library, environment, which, -1)
    assert (inside.returncode, inside.stdout) == (0, "result 0\n"), inside.stderr
    beyond = call(library, environment, which, 0)
    assert beyond.returncode != 0
    assert "heap-buffer-overflow" in beyond.stderr
    assert line_of("out_of_bounds", mark) in beyond.stderr


def test_a_correct_kernel_is_clean(library: Path, environment: dict[str, str]) -> None:
    clean = call(library, environment, 0, 0)
    assert (clean.returncode, clean.stdout) == (0, "result 0\n"), clean.stderr
