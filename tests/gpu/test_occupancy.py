"""Theoretical occupancy and the compiler's numbers against what CUDA itself says of the same kernels."""

from __future__ import annotations

import ctypes
from itertools import product
from pathlib import Path

import torch

from tests.require import require
from workbench.core.occupancy import occupancy
from workbench.core.orders import BuildOrder
from workbench.measure.build.build import build

# One kernel per register count; `about` and `blocks` ask the runtime about the kernel of that number.
SOURCE = """#line 1 "forward/occupied.cu"
#include <cuda_runtime.h>
template <int N> __global__ void __launch_bounds__(1024) occupied(float* a, int stride) {
  __shared__ float fixed[N];
  extern __shared__ float more[];
  float v[N];
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = a[i * stride + threadIdx.x];
  fixed[threadIdx.x % N] = v[0];
  more[threadIdx.x] = v[N - 1];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < N; ++i) a[i * stride + threadIdx.x] = v[i] * v[N - 1 - i] + fixed[i] + more[0];
}
static const void* kernels[] = {(void*)occupied<1>, (void*)occupied<8>, (void*)occupied<20>, (void*)occupied<28>};
extern "C" int about(int which, int* registers, int* shared) {
  cudaFuncAttributes found;
  cudaError_t error = cudaFuncGetAttributes(&found, kernels[which]);
  *registers = found.numRegs;
  *shared = int(found.sharedSizeBytes);
  return error;
}
extern "C" int blocks(int which, int threads, int dynamic, int* count) {
  cudaError_t error = cudaFuncSetAttribute(kernels[which], cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic);
  return error ? error : cudaOccupancyMaxActiveBlocksPerMultiprocessor(count, kernels[which], threads, dynamic);
}
"""


def test_occupancy_is_that_of_cudas_own_api(tmp_path: Path) -> None:
    require(torch.cuda.is_available(), "an NVIDIA GPU")
    torch.cuda.init()
    sm = int("".join(map(str, torch.cuda.get_device_capability())))
    arch = f"sm_{sm}"
    built = build(BuildOrder(SOURCE, "cuda", tmp_path, ("about", "blocks"), arch), lambda event: None)
    assert built.status == "OK", built
    library = ctypes.CDLL(built.library)
    compared = 0
    for which, size in enumerate((1, 8, 20, 28)):
        registers, shared, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        assert library.about(which, ctypes.byref(registers), ctypes.byref(shared)) == 0
        told = built.resources[arch][f"occupied<{size}>"]
        assert (told.registers, told.shared_bytes) == (registers.value, shared.value)
        for threads, dynamic in product((32, 64, 96, 128, 192, 256, 512, 1024), (0, 5000, 20_000, 49_000, 90_000)):
            assert library.blocks(which, threads, dynamic, ctypes.byref(count)) == 0
            ours = occupancy(registers=told.registers, shared_bytes=told.shared_bytes + dynamic,
                             threads=threads, sm=sm)
            assert ours.blocks_per_sm == count.value, (which, threads, dynamic, ours)
            compared += 1
    assert compared == 160
