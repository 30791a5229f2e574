"""Cold means cold also for loads that ask L2 to keep their lines longest, and for those in the part of L2 that a launcher has
set aside: none of them is there at the next sample."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from tests.shared import require
from workbench.core.env import find_toolchain
from workbench.core.toolchain import nvcc_problem
from workbench.measure.clock import timing
from workbench.measure.device import l2_bytes

SOURCE = r"""
#include <cuda_runtime.h>
template <bool KEEP>
__global__ void read_all(const float4* from, long long count, float* sink) {
  unsigned long long policy = 0;
  if (KEEP) asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  float sum = 0;
  for (long long i = blockIdx.x * 256LL + threadIdx.x; i < count; i += gridDim.x * 256LL) {
    float4 v;
    if (KEEP)
      asm volatile("ld.global.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
                   : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from + i), "l"(policy));
    else
      v = __ldg(from + i);
    sum += v.x + v.y + v.z + v.w;
  }
  if (sum == 1.2345f) *sink = sum;  // never, but the compiler does not know
}
// What a launcher can do before each launch: set aside all of L2 that may be, and have the stream keep the input there.
extern "C" int set_aside(const void* from, size_t bytes, cudaStream_t stream) {
  int device = 0, most = 0, window = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&most, cudaDevAttrMaxPersistingL2CacheSize, device);
  cudaDeviceGetAttribute(&window, cudaDevAttrMaxAccessPolicyWindowSize, device);
  cudaError_t code = cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, most);
  cudaStreamAttrValue value = {};
  value.accessPolicyWindow.base_ptr = const_cast<void*>(from);
  value.accessPolicyWindow.num_bytes = bytes < size_t(window) ? bytes : size_t(window);
  value.accessPolicyWindow.hitRatio = 1.0f;
  value.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
  value.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
  return code ? code : cudaStreamSetAttribute(stream, cudaStreamAttributeAccessPolicyWindow, &value);
}
extern "C" void read_input(const float4* from, long long count, float* sink, int keep, cudaStream_t stream) {
  (keep ? read_all<true> : read_all<false>)<<<1056, 256, 0, stream>>>(from, count, sink);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    require(torch.cuda.is_available(), "an NVIDIA GPU")
    tools = find_toolchain()
    problem = nvcc_problem(tools, None)
    require(problem is None, str(problem))
    folder: Path = tmp_path_factory.mktemp("flush")
    (folder / "reads.cu").write_text(SOURCE)
    arch = "sm_" + "".join(map(str, torch.cuda.get_device_capability()))
    subprocess.run([str(tools.nvcc), "-shared", "-Xcompiler", "-fPIC", "-O3", f"-arch={arch}", str(folder / "reads.cu"), "-o",
                    str(folder / "reads.so")], check=True)
    return ctypes.CDLL(str(folder / "reads.so"))


@pytest.mark.parametrize("share", [2, 1])
def test_lines_that_are_to_stay_do_not_outlive_the_flush(library: ctypes.CDLL, share: int) -> None:
    """Inputs of half the L2 cache and of all of it. From the cache half of it is read in two thirds of the time."""
    x = torch.rand(l2_bytes(0) // share // 4, device="cuda")
    sink = torch.zeros(1, device="cuda")

    def median(keep: bool, cold: bool) -> float:
        def run() -> None:
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            library.read_input(ctypes.c_void_p(x.data_ptr()), ctypes.c_longlong(x.numel() // 4),
                               ctypes.c_void_p(sink.data_ptr()), int(keep), stream)

        return timing.measure(run, device="cuda:0", effort="normal", cold_l2=cold).timing.median_ms

    plain, kept, hot = median(False, True), median(True, True), median(True, False)
    again = median(False, True)  # the GPU's clocks rise meanwhile
    print(f"{x.nbytes / 1e6:.0f} MB: {plain * 1e3:.2f} and {again * 1e3:.2f} us, with evict_last {kept * 1e3:.2f}, "
          f"hot {hot * 1e3:.2f}")
    assert hot < 0.9 * plain or share == 1
    assert kept > 0.97 * min(plain, again)


def test_a_part_of_l2_that_a_launcher_sets_aside_is_emptied(library: ctypes.CDLL) -> None:
    """A quarter of L2, which fits into the part that may be set aside. The launcher asks for it again at every launch."""
    x = torch.rand(l2_bytes(0) // 16, device="cuda")
    sink = torch.zeros(1, device="cuda")
    persisting = timing.Persisting(0)
    asked: list[int] = []

    def median(aside: bool, cold: bool = True) -> float:
        def run() -> None:
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            if aside:
                asked.append(library.set_aside(ctypes.c_void_p(x.data_ptr()), ctypes.c_size_t(x.nbytes), stream))
            library.read_input(ctypes.c_void_p(x.data_ptr()), ctypes.c_longlong(x.numel() // 4),
                               ctypes.c_void_p(sink.data_ptr()), 0, stream)

        return timing.measure(run, device="cuda:0", effort="normal", cold_l2=cold).timing.median_ms

    with torch.cuda.stream(torch.cuda.Stream()):  # the attribute belongs to a stream
        plain, kept, hot = median(False), median(True), median(False, cold=False)
        left = persisting.bytes
        persisting.end()
        again = median(False)
    print(f"{x.nbytes / 1e6:.0f} MB: {plain * 1e3:.2f} and {again * 1e3:.2f} us, set aside {kept * 1e3:.2f}, "
          f"hot {hot * 1e3:.2f}; {left / 1e6:.0f} MB were set aside")
    require(not any(asked) and left, "a GPU that can set aside a part of L2")
    assert persisting.bytes == 0
    assert hot < 0.9 * plain
    assert kept > 0.97 * min(plain, again)
