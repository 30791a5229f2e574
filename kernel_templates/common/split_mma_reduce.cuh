// The second stage of split_mma: partial sums, in the order in which warps hold them, become weights.
#pragma once
#include "common/split_mma_plan.cuh"
#include "common/scalar.cuh"

// thread -> data: lane = one float4 (a lane's fragment: 2 ci x 2 co of one tap), the 8 warps of a block share the
// slots; row 0 adds up what the others left, always in the same order.
template <class Layer, class Plan, int FIRST>
__global__ void __launch_bounds__(256) split_mma_reduce(const float4* __restrict__ partials, long long slots,
                                                        typename Layer::scalar* __restrict__ grad_weight) {
  __shared__ float4 left[8][32];
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32;
  const float4* from = partials + 32LL * blockIdx.x + lane;
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 4
  for (long long slot = row; slot < slots; slot += 8) {
    const float4 v = from[slot * Plan::SLOT];
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  }
  left[row][lane] = sum;
  __syncthreads();
  if (row != 0) return;
  for (int other = 1; other < 8; ++other) {
    const float4 v = left[other][lane];
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  }
  // blockIdx.x counts fragments: (tile, warp, ma, nb, k), the last running fastest.
  int rest = blockIdx.x;
  const auto digit = [&rest](int base) {
    const int value = rest % base;
    rest /= base;
    return value;
  };
  const int k = FIRST + digit(Plan::KT), nb = digit(Plan::NB), ma = digit(Plan::MA);
  const int wm = digit(Plan::WM), wn = digit(Plan::WN), tr = digit(Plan::TR);
  const int tap_row = digit(Plan::R_TILES) * Plan::TR + tr;
  const int m0 = digit(Plan::M_TILES) * Plan::M, n0 = digit(Plan::N_TILES) * Plan::N, group = rest;
  if (tap_row >= Plan::ROWS) return;
  const float value[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int ci = m0 + (wm * Plan::MA + ma) * 16 + lane / 4 + i / 2 * 8;
    const int co = n0 + (wn * Plan::NB + nb) * 8 + lane % 4 * 2 + i % 2;
    if (ci < Plan::CI && co < Plan::CO)
      grad_weight[((1LL * group * Plan::CI + ci) * Plan::CO + co) * Plan::ROWS * Layer::kernel_w +
                  1LL * tap_row * Layer::kernel_w + k] = narrow<typename Layer::scalar>(value[i]);
  }
}
