// Sums over the lanes of a warp, always in the same order.
#pragma once
#include <cuda_runtime.h>

// Every lane of a full warp calls it, and every lane gets the sum.
template <class Sum>
__device__ __forceinline__ Sum warp_sum(Sum value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}
