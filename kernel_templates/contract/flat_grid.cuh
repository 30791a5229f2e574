// Numbers any count of blocks in one sequence. A grid holds 2^31 - 1 blocks along x; more blocks continue along y.
#pragma once
#include "contract/problem.cuh"

inline dim3 flat_grid(long long blocks) {
  constexpr long long ROW = 1LL << 30;
  return blocks <= ROW ? dim3(unsigned(blocks)) : dim3(unsigned(ROW), unsigned(ceil_div(blocks, ROW)));
}

// The number of this block. The last row along y may go beyond the requested count; those blocks must return at once.
__device__ __forceinline__ long long flat_block() {
  return 1LL * blockIdx.y * gridDim.x + blockIdx.x;
}
