"""Wrong kernels and wrong launches: CUDA's error code, and a sentence that names the line. AddressSanitizer sees overruns in
fibers and in shared memory, too."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from workbench.measure.emulator import ASAN_FLAGS, asan_environment

from .conftest import Kernels, build, line_of, skip_or_fail

INVALID_VALUE, INVALID_CONFIGURATION, ILLEGAL_ADDRESS, ASSERT, MISALIGNED, LAUNCH_FAILURE = 1, 9, 700, 710, 716, 719


@pytest.mark.parametrize(
    ("function", "words", "marks"),
    [
        ("run_divergent", "divergent __syncthreads()", ["divergent_first", "divergent_second"]),
        ("run_deadlock", "deadlock in block (0, 0, 0): 111 threads wait", ["deadlock_barrier", "deadlock_warp"]),
        ("run_not_in_mask", "mask 0x0000ffff, which leaves it out", ["not_in_mask"]),
        ("run_different_operations", "different warp operations", ["different_first", "different_second"]),
    ],
)
@pytest.mark.parametrize("order", ["forward", "reverse", "3"])
def test_kernels_that_cannot_go_on(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, order: str, function: str, words: str, marks: list[str]
) -> None:
    monkeypatch.setenv("CUDACPU_ORDER", order)
    faults = kernels("faults")
    assert faults(function, np.zeros(128, np.int32)) == LAUNCH_FAILURE
    message = faults.last_error()
    assert words in message
    for mark in marks:
        assert line_of("faults", mark) in message
    assert faults.text("error_string", LAUNCH_FAILURE) == message
    # The error has been fetched, and the next launch is a good one.
    assert faults("launch", 1, 1, 1, 32, 1, 1) == 0


def test_deadlock_counts_the_threads(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDACPU_ORDER", "forward")
    faults = kernels("faults")
    assert faults("run_deadlock", np.zeros(128, np.int32)) == LAUNCH_FAILURE
    # 15 lanes below 16 and 96 others at the barrier, 16 lanes at the second warp operation, one gone.
    message = faults.last_error()
    assert "16 wait at a warp operation" in message
    assert "1 have exited" in message


def test_trap(kernels: Kernels) -> None:
    faults = kernels("faults")
    assert faults("run_trap") == LAUNCH_FAILURE
    assert line_of("faults", "trap") in faults.last_error()
    assert "block (1, 0, 0), thread (2, 0, 0)" in faults.last_error()


@pytest.mark.parametrize("function", ["run_fours", "run_fours_in_shared", "run_fours_stored"])
def test_a_misaligned_vector_faults(kernels: Kernels, function: str) -> None:
    faults, memory = kernels("faults"), np.zeros(512, np.float32)
    aligned = memory[-memory.ctypes.data // 4 % 4:]
    given = (aligned[256:],) if function == "run_fours" else ()
    assert faults(function, aligned, *given, 4 if function == "run_fours_stored" else 0) == 0
    assert faults(function, aligned, *given, 2) == MISALIGNED
    message = faults.last_error()
    assert "struct float4' needs a multiple of 16 bytes, this one is 8 beyond one" in message
    assert "[block (0, 0, 0), thread (0, 0, 0)]" in message
    place = "builtins.h:" if function == "run_fours_stored" else line_of("faults", function.removeprefix("run_"))
    assert f"misaligned address at {place}" in message


_HOST = """
import ctypes, mmap, sys
library, memory = ctypes.CDLL(sys.argv[1]), mmap.mmap(-1, 2 * mmap.PAGESIZE)
data = (ctypes.c_float * 8).from_buffer(memory)
data[0] = 7
start = ctypes.addressof(data)
library.cuda_on_cpu_set_device_memory((ctypes.c_size_t * 2)(start, len(memory)), 1, int(sys.argv[2]))
for words in sys.argv[3:]:
    print(words, flush=True)
    if words == "python":
        assert data[0] == 7
    else:
        place = ctypes.c_void_p(start)
        assert getattr(library, words)(*(place,) * (1 + (words == "device_reads"))) == 1
"""


@pytest.mark.parametrize(("beside_torch", "calls", "ended_by"), [
    (False, ["device_reads", "device_reads", "host_reads"], "host_reads"), (False, ["python"], "python"),
    (True, ["host_reads"], "host_reads"), (True, ["host_copies"], "host_copies"),
    (True, ["device_reads", "python", "host_reads", "device_reads", "host_reads"], "host_reads"),
    (False, ["allocates", "host_writes_its_own"], "host_writes_its_own"),
    (True, ["allocates", "python", "host_writes_its_own"], "host_writes_its_own"),
    (True, ["python", "device_reads", "python"], "")])
def test_a_host_cannot_touch_the_memory_of_the_device(kernels: Kernels, beside_torch: bool, calls: list[str], ended_by: str
                                                      ) -> None:
    """Neither that of tensors nor that of cudaMalloc. Beside torch, other code than the library's opens it until the next
    kernel or copy has ended."""
    done = subprocess.run([sys.executable, "-S", "-c", _HOST, str(kernels("faults").path), str(int(beside_torch)), *calls],
                          capture_output=True, text=True, check=False)
    assert done.returncode == (99 if ended_by else 0), done
    assert done.stdout.split() == calls and ("host code read or wrote memory" in done.stderr) is bool(ended_by)


def test_assert(kernels: Kernels) -> None:
    faults = kernels("faults")
    assert faults("run_assert", 64) == 0
    assert faults("run_assert", 63) == ASSERT
    assert f"{line_of('faults', 'assert')}: assertion `" in faults.last_error()
    assert "thread (63, 0, 0)" in faults.last_error()


@pytest.mark.parametrize("function", ["run_much_stack", "run_much_stack_and_wait"])
def test_too_little_stack_is_noticed(kernels: Kernels, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    faults, out = kernels("faults"), np.zeros(64, np.int32)
    monkeypatch.setenv("CUDACPU_STACK", "16384")
    assert faults(function, out) == LAUNCH_FAILURE
    assert "16384 bytes of stack: raise CUDACPU_STACK" in faults.last_error()
    monkeypatch.delenv("CUDACPU_STACK")
    assert faults(function, out) == 0


@pytest.mark.parametrize(
    ("grid", "block", "code"),
    [
        ((1, 1, 1), (1024, 1, 1), 0),
        ((1, 1, 1), (1, 16, 64), 0),
        ((1, 1, 1), (1025, 1, 1), INVALID_CONFIGURATION),
        ((1, 1, 1), (32, 33, 1), INVALID_CONFIGURATION),
        ((1, 1, 1), (1, 1, 65), INVALID_CONFIGURATION),
        ((1, 1, 1), (1 << 16, 1 << 16, 1), INVALID_CONFIGURATION),
        ((1, 1, 1), (0, 1, 1), INVALID_CONFIGURATION),
        ((0, 1, 1), (1, 1, 1), INVALID_CONFIGURATION),
        ((1, 0, 1), (1, 1, 1), INVALID_CONFIGURATION),
        ((70000, 1, 1), (1, 1, 1), 0),
        ((1, 65535, 1), (1, 1, 1), 0),
        ((1, 65536, 1), (1, 1, 1), INVALID_CONFIGURATION),
        ((1, 1, 65536), (1, 1, 1), INVALID_CONFIGURATION),
        ((1 << 31, 1, 1), (1, 1, 1), INVALID_CONFIGURATION),
    ],
)
def test_launch_limits(kernels: Kernels, grid: tuple[int, ...], block: tuple[int, ...], code: int) -> None:
    faults = kernels("faults")
    assert faults("launch", *grid, *block) == code
    if code:
        assert faults.last_error().startswith("invalid configuration argument: ")
        assert faults.text("error_name", code) == "cudaErrorInvalidConfiguration"
    assert faults("peek") == 0


@pytest.mark.parametrize(
    ("bytes_", "allowed", "code"),
    [
        (256, -1, 0),
        (48 * 1024, -1, 0),
        (48 * 1024 + 4, -1, INVALID_VALUE),
        (48 * 1024 + 4, 48 * 1024, INVALID_VALUE),
        (227 * 1024, 227 * 1024, 0),
        (256, 227 * 1024 + 1, INVALID_VALUE),
        (256, -2, 0),
    ],
)
def test_dynamic_shared_memory_limits(kernels: Kernels, bytes_: int, allowed: int, code: int) -> None:
    faults, out = kernels("faults"), np.zeros(32, np.float32)
    assert faults("run_dynamic", out, bytes_, allowed) == code
    if code:
        assert faults.last_error().startswith("invalid argument: ")
    else:
        np.testing.assert_array_equal(out, 3)
    faults("run_dynamic", out, 128, 0)  # what one case has allowed, the next has not
    assert faults("peek") == 0


def test_static_and_dynamic_shared_memory_together(kernels: Kernels) -> None:
    faults, out = kernels("faults"), np.zeros(32, np.float32)
    assert faults("run_large_static", out, 179 * 1024) == 0
    assert faults("run_large_static", out, 181 * 1024) == INVALID_VALUE
    assert "48000 bytes of static and 185344 of dynamic shared memory" in faults.last_error()


@pytest.mark.parametrize(("index", "write", "words"), [
    (29, True, ""), (29, False, ""), (30, True, "wrote 4 bytes behind the end of 120 bytes of shared memory"),
    (31, True, "wrote 8 bytes behind the end of 120 bytes of shared memory"),
    (-1, True, "wrote 4 bytes before the start of 120 bytes of shared memory"),
    (32, False, "an access to byte 9 behind the end of 120 bytes of shared memory [block"),
    (-2000, True, "an access to byte 8000 before the start of 120 bytes of shared memory [block")])
def test_an_access_beside_shared_memory(kernels: Kernels, index: int, write: bool, words: str) -> None:
    """In a build without AddressSanitizer."""
    faults, out = kernels("faults"), np.zeros(4, np.float32)
    assert faults("run_beside_shared", out, index, write) == (ILLEGAL_ADDRESS if words else 0)
    if words:
        assert words in faults.last_error()
    faults("peek")
    assert faults("run_beside_shared", out, 0, True) == 0
    np.testing.assert_array_equal(out, 2)


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


# Only these tests build it, with AddressSanitizer.
PAST = r"""// Reads one element too far: of a caller's buffer, of static and of dynamic shared memory, each in a thread that has
// become a fiber.
#include <cuda_runtime.h>

__global__ void read_past(const float* in, float* out, int n, int which) {
  __shared__ float fixed[64];
  extern __shared__ float dynamic[];
  const int i = threadIdx.x;
  fixed[i] = dynamic[i] = 1.0f;
  __syncthreads();
  float value = 0.0f;
  if (which == 0) {
    value = in[i < n ? i : n - 1];
  } else if (which == 1) {
    value = in[i + n - 63];  // here: global
  } else if (which == 2) {
    value = fixed[i + n - 63];  // here: fixed
  } else {
    value = dynamic[i + n - 63];  // here: dynamic
  }
  __syncthreads();
  out[i] = value + __shfl_xor_sync(0xffffffffu, value, 1);
}

extern "C" int run(const float* in, float* out, int n, int which) {
  read_past<<<2, 64, 64 * sizeof(float)>>>(in, out, n, which);
  return cudaGetLastError();
}
"""


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    found = asan_environment()
    if found is None:
        skip_or_fail("g++ has no libasan.so (Debian: libasan8, part of g++)")
    return {**os.environ, **found}


@pytest.fixture(scope="module")
def library(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("out_of_bounds", tmp_path_factory.mktemp("asan"), flags=tuple(ASAN_FLAGS), source=PAST)


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
    line = 1 + next(i for i, text in enumerate(PAST.splitlines()) if text.endswith(f"// here: {mark}"))
    assert f"out_of_bounds.cu:{line}" in beyond.stderr


def test_a_correct_kernel_is_clean(library: Path, environment: dict[str, str]) -> None:
    clean = call(library, environment, 0, 0)
    assert (clean.returncode, clean.stdout) == (0, "result 0\n"), clean.stderr


def test_a_block_of_more_threads_than_the_launch_bounds_is_refused(kernels: Kernels) -> None:
    faults = kernels("faults")
    assert faults("launch_bounded", 64) == 0
    assert faults("launch_bounded", 65) != 0
    assert faults.last_error() == ("invalid argument: block of 65 x 1 x 1 threads; the kernel's __launch_bounds__ allow 64")
