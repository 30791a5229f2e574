// The second stage of variants of grad_weight: their partial sums are added up. They lie in slots, in the order in which
// warps hold them as fragments of products.
#pragma once
#include "contract/scalar.cuh"

// thread -> data: a lane has one float4, its part of a fragment: 2 rows x 2 columns. The 8 warps of a block share the
// slots. Then the first warp (row 0) adds up their sums, always in the same order.
struct SlotSums {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32;
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);

  __device__ __forceinline__ void add(const float4& v) { sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w; }

  // `from` is this lane's float4 in the first slot; neighbouring slots are `apart` float4 apart.
  __device__ __forceinline__ void add_slots(const float4* from, long long slots, long long apart) {
#pragma unroll 4
    for (long long slot = row; slot < slots; slot += 8) add(from[slot * apart]);
  }
  // All 256 threads of the block call it. It returns false in warps that have left their sums to the first one.
  __device__ __forceinline__ bool add_rows() {
    __shared__ float4 left[8][32];
    left[row][lane] = sum;
    __syncthreads();
    if (row != 0) return false;
    for (int other = 1; other < 8; ++other) add(left[other][lane]);
    return true;
  }
};

// Splits a number that counts several things, the last one fastest. Each call returns the next digit, of base `base`.
struct Digits {
  int rest;
  __device__ __forceinline__ int operator()(int base) {
    const int value = rest % base;
    rest /= base;
    return value;
  }
};

// Channels beyond the group only fill up a fragment; they are not stored.
template <class Layer, class Plan>
__device__ __forceinline__ void store_weight(typename Layer::scalar* __restrict__ grad_weight, int group, int ci,
                                             int co, int tap_row, int k, float value) {
  if (ci < Plan::CI && co < Plan::CO)
    grad_weight[((1LL * group * Plan::CI + ci) * Plan::CO + co) * Plan::ROWS * Layer::kernel_w +
                1LL * tap_row * Layer::kernel_w + k] = narrow<typename Layer::scalar>(value);
}

// For strips (families/strip_wgmma/plan.cuh): a fragment is 16 of 64 channels of U (one for each warp) x 8 columns,
// which are pairs (tap, channel of a part of V).
template <class Layer, class Plan>
__device__ __forceinline__ void store_strip_weights(typename Layer::scalar* __restrict__ grad_weight,
                                                    const SlotSums& sums, int warp, int eight, int group, int u_part,
                                                    int v_part, int tap_row) {
  const float value[4] = {sums.sum.x, sums.sum.y, sums.sum.z, sums.sum.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int in_tile = warp * 16 + sums.lane / 4 + i / 2 * 8, u = u_part * 64 + in_tile;
    const int column = eight * 8 + sums.lane % 4 * 2 + i % 2, k = Plan::tap_of_shift(column / Plan::V_CHANNELS);
    const int v = v_part * Plan::V_CHANNELS + column % Plan::V_CHANNELS;
    const int ci = Plan::U_IS_GY ? v : u, co = Plan::U_IS_GY ? u : v;
    store_weight<Layer, Plan>(grad_weight, group, ci, co, tap_row, k, value[i]);
  }
}
