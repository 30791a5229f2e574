"""Building for a GPU with load_inline: the library runs, the log is live, and errors name the template's line. Theoretical
occupancy and the compiler's numbers are what CUDA itself says of the same kernels."""

from __future__ import annotations

import ctypes
from itertools import product
from pathlib import Path

import pytest
import torch

from tests.build.sources import TWICE, request
from tests.shared import require
from workbench.core.candidate import Candidate
from workbench.core.layer import ConvTranspose
from workbench.core.occupancy import occupancy
from workbench.core.orders import BuildOrder
from workbench.core.template import render, render_batch, symbol
from workbench.core.variants import find
from workbench.measure.build.build import build


@pytest.fixture
def arch() -> str:
    require(torch.cuda.is_available(), "an NVIDIA GPU")
    return "sm_" + "".join(map(str, torch.cuda.get_device_capability()))


def test_a_kernel_runs_and_the_second_build_comes_from_the_cache(arch: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    asked = request(TWICE, tmp_path / "cache", symbols=["kw_twice"], device="cuda", arch=arch, log=str(log))
    first = build(asked, lambda event: None)
    assert (first.status, first.cached) == ("OK", False), first
    assert "$ nvcc " in log.read_text() and "ptxas info" in log.read_text()
    numbers = first.resources[arch]["twice"]
    assert numbers.registers >= 8 and numbers.constant_bytes >= 20
    values = torch.arange(100, dtype=torch.float32, device="cuda")
    out = torch.zeros_like(values)
    library = ctypes.CDLL(first.library)
    assert library.kw_twice(ctypes.c_void_p(values.data_ptr()), ctypes.c_void_p(out.data_ptr()), 100) == 0
    assert torch.equal(out, 2 * values)
    again = build(asked, lambda event: None)
    assert (again.cached, again.resources) == (True, first.resources)


def test_the_first_error_is_nvccs_own(arch: str, tmp_path: Path) -> None:
    result = build(request(TWICE.replace("2 * in[i]", "2 * in[j]"), tmp_path, device="cuda", arch=arch),
                   lambda event: None)
    assert result.headline == 'nvcc stopped at twice.cu, line 4: identifier "j" is undefined.'
    flag = build(request(TWICE, tmp_path, device="cuda", arch=arch, flags=["--no-such"]), lambda event: None)
    assert flag.headline == "nvcc stopped: Unknown option '--no-such'."


def test_a_batch_of_the_shipped_template(arch: str, tmp_path: Path) -> None:
    layer = ConvTranspose(1, 32, 64, (5,), dilation=(3,))
    variant = find("naive_gather", "forward")
    members = [render(Candidate(variant, layer, "float32", {"CO_PER_THREAD": n})) for n in (1, 8)]
    result = build(request(render_batch(members), tmp_path, device="cuda", arch=arch,
                           symbols=[symbol(m) for m in members], flags=["--use_fast_math"],
                           members=[{"symbol": symbol(m), "source": render_batch([m])} for m in members]),
                   lambda event: None)
    assert result.status == "OK", result
    found = [result.members[symbol(m)].resources[arch]["naive_gather"].registers for m in members]
    assert len(set(found)) == 2, "each member has the numbers of its own kernel"


def test_sm_90a_is_built_where_the_gpu_has_it(arch: str, tmp_path: Path) -> None:
    if arch != "sm_90":
        pytest.skip(f"sm_90a is for sm_90, this GPU is {arch}")
    result = build(request(TWICE, tmp_path, device="cuda", arch="sm_90a"), lambda event: None)
    assert result.status == "OK" and set(result.resources) == {"sm_90a"}, result


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
