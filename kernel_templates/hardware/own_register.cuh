// Keeps a value that came with a vector load apart from the copy of it that a tensor-core product reads.
#pragma once
#include <cuda_runtime.h>

// The value in a register of its own. `zero` is 0, which the compiler must not know. mma wants its operands in
// neighbouring registers, and so does the load of a vector; where both wish differently for the same value, ptxas 13
// moves it again before each mma (4 moves a product were seen), unless the two are different values.
__device__ __forceinline__ unsigned own_register(unsigned value, unsigned zero) { return value | zero; }
__device__ __forceinline__ float own_register(float value, unsigned zero) {
  return __uint_as_float(own_register(__float_as_uint(value), zero));
}
