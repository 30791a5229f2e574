// Keeps the compiler from carrying what is computed from a value along in registers.
#pragma once
#include <cuda_runtime.h>

// The same number, but not known to be what it was before: what is computed from it is not kept from call to call, or
// from one turn of a loop to the next.
__device__ __forceinline__ int computed_anew(int value) {
#ifndef __CUDACPU__
  asm volatile("" : "+r"(value));
#endif
  return value;
}
