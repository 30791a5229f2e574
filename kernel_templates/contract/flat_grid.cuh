// Any number of blocks, counted in one line: a grid holds 2^31 - 1 along x, so more of them go on along y.
#pragma once
#include "contract/problem.cuh"

inline dim3 flat_grid(long long blocks) {
  constexpr long long ROW = 1LL << 30;
  return blocks <= ROW ? dim3(unsigned(blocks)) : dim3(unsigned(ROW), unsigned(ceil_div(blocks, ROW)));
}

// Which block this is; the last row along y may go on beyond the number asked for, and those blocks have to leave.
__device__ __forceinline__ long long flat_block() {
  return 1LL * blockIdx.y * gridDim.x + blockIdx.x;
}
