// The second stage of register_blocked's grad_weight: partial sums of a group of taps become weights.
#pragma once
#include "common/fma_weight_plan.cuh"
#include "common/scalar.cuh"

// thread -> data: a block takes 32 results of a group of taps; its 8 warps share the slots, lane = result. Row 0 adds
// up what the other rows left, always in the same order.
template <class Layer, class Plan, int FIRST>
__global__ void __launch_bounds__(256) fma_add_slots(const float* __restrict__ partials, long long slots,
                                                 typename Layer::scalar* __restrict__ grad_weight) {
  __shared__ float left[8][32];
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32;
  const long long mine = 32LL * blockIdx.x + lane;
  float sum = 0;
  if (mine < Plan::RESULTS) {
#pragma unroll 4
    for (long long slot = row; slot < slots; slot += 8) sum += partials[slot * Plan::RESULTS + mine];
  }
  left[row][lane] = sum;
  __syncthreads();
  if (row != 0 || mine >= Plan::RESULTS) return;
  for (int other = 1; other < 8; ++other) sum += left[other][lane];
  grad_weight[mine / Plan::KT * Layer::kernel_w + FIRST + mine % Plan::KT] = narrow<typename Layer::scalar>(sum);
}
