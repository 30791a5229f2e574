// Sums over the lanes of a warp, always in the same order.
#pragma once
#include <cuda_runtime.h>

// Computes N sums at once, N a power of two up to 32. Afterwards lane l holds the sum of value[l / (32 / N)] over the
// warp.
// At each of the first log2(N) steps a lane keeps half of its values and sends the other half, so all sums
// together take N - 1 shuffles plus log2(32 / N), not 5 * N. Every lane of a full warp calls it. It overwrites `value`.
template <int KEPT, int DISTANCE, int N, class Sum>
__device__ __forceinline__ void exchange_halves(Sum (&value)[N], int lane) {
  if constexpr (KEPT > 0) {
    const bool upper = lane & DISTANCE;
#pragma unroll
    for (int i = 0; i < KEPT; ++i) {
      const Sum give = upper ? value[i] : value[i + KEPT];
      const Sum keep = upper ? value[i + KEPT] : value[i];
      value[i] = keep + __shfl_xor_sync(0xffffffffu, give, DISTANCE);
    }
    exchange_halves<KEPT / 2, DISTANCE / 2>(value, lane);
  } else if constexpr (DISTANCE > 0) {
    value[0] += __shfl_xor_sync(0xffffffffu, value[0], DISTANCE);
    exchange_halves<0, DISTANCE / 2>(value, lane);
  }
}

template <int N, class Sum>
__device__ __forceinline__ Sum warp_sums(Sum (&value)[N], int lane) {
  static_assert(N >= 1 && N <= 32 && (N & (N - 1)) == 0, "a warp sums 1, 2, 4, 8, 16 or 32 values at once");
  exchange_halves<N / 2, 16>(value, lane);
  return value[0];
}
