// Prevents the compiler from keeping derived values in registers.
#pragma once
#include <cuda_runtime.h>

// Returns the same number, but the compiler does not know that. So it recomputes what depends on the number at each
// call or turn of a loop, instead of keeping it in registers.
__device__ __forceinline__ int computed_anew(int value) {
#ifndef __CUDACPU__
  asm volatile("" : "+r"(value));
#endif
  return value;
}
