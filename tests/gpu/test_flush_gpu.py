"""Cold means cold also for loads that ask L2 to keep their lines longest: none of them is there at the next sample."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from tests.require import require
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
