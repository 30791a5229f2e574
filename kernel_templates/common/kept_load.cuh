// Loads whose lines the L2 cache keeps longest.
#pragma once
#include <cuda_runtime.h>

// A value that no thread writes while the kernel runs, as __ldg().
__device__ __forceinline__ float kept_load(const float* from) {
#if !defined(__CUDACPU__) && __CUDA_ARCH__ >= 800
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  float value;
  asm volatile("ld.global.nc.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(value) : "l"(from), "l"(policy));
  return value;
#else
  return __ldg(from);
#endif
}
