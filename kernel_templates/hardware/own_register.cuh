// Gives a value that was loaded as part of a vector a second register, for a tensor-core product to read.
#pragma once
#include <cuda_runtime.h>

// Returns the value in a register of its own. `zero` is 0, but the compiler must not know that.
// mma reads neighbouring registers, and a vector load writes neighbouring registers. If both need one value in different
// registers, ptxas 13 moves it before each mma (4 moves for each product were seen). With two values it does not.
__device__ __forceinline__ unsigned own_register(unsigned value, unsigned zero) { return value | zero; }
__device__ __forceinline__ float own_register(float value, unsigned zero) {
  return __uint_as_float(own_register(__float_as_uint(value), zero));
}
