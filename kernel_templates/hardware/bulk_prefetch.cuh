// Asks the copy engine (sm_90) to bring neighbouring bytes of global memory into L2.
#pragma once
#include <cuda_runtime.h>

// `from` and `bytes` are multiples of 16.
__device__ __forceinline__ void bulk_prefetch(const void* from, int bytes) {
#ifdef __CUDACPU__
  if (reinterpret_cast<size_t>(from) % 16 != 0 || bytes % 16 != 0 || bytes <= 0) {
    cuda_on_cpu::stop(cudaErrorMisalignedAddress, "bulk_prefetch: %d bytes, not all multiples of 16", bytes);
  }
#elif __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}
