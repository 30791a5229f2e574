// The second stage of strip_wgmma: partial sums, in the order in which warpgroups hold them, become weights.
#pragma once
#include "common/rolling_plan.cuh"
#include "common/scalar.cuh"

// thread -> data: lane = one float4 (2 rows of U x 2 columns), the 8 warps of a block share the slots; row 0 adds up
// what the others left, always in the same order. With pairs of rows the second row's sums of the same taps lie one row
// of the ring further, 32 rows of U on.
template <class Layer, class Tune>
__global__ void __launch_bounds__(256) rolling_reduce(const float4* __restrict__ partials, long long slots,
                                                      typename Layer::scalar* __restrict__ grad_weight) {
  using Plan = RollingPlan<Layer, Tune>;
  __shared__ float4 left[8][32];
  // blockIdx.x counts warps' fragments: (tile, warpgroup, u tile, slab, eight columns, warp), the last running fastest.
  int rest = blockIdx.x;
  const auto digit = [&rest](int base) {
    const int value = rest % base;
    rest /= base;
    return value;
  };
  const int warp = digit(4), eight = digit(Plan::N / 8), own_slab = digit(Plan::SLABS);
  const int u_tile = digit(Plan::U_TILES), local = digit(Plan::WARPGROUPS) * Plan::SLABS + own_slab;
  const int shift = digit(Plan::H_TILES) * Plan::ROWS_H + local % Plan::RING;
  const int v_group = digit(Plan::G_TILES) * Plan::BLOCK_GROUPS + local / Plan::RING;
  const int u_part = digit(Plan::M_TILES) * Plan::U_TILES + u_tile, group = rest;
  if (local >= Plan::BLOCK_SLABS || local % Plan::RING >= Plan::ROWS_H || shift >= Plan::TAPS_H ||
      v_group >= Plan::GROUPS || (Plan::PAIR == 2 && warp >= 2))
    return;

  const int lane = threadIdx.x % 32, row = threadIdx.x / 32;
  // From a slab to the next: of the same warpgroup, or of the next one.
  constexpr int SLAB = 4 * (Plan::N / 8);
  const int beside = own_slab + 1 < Plan::SLABS ? SLAB : SLAB * ((Plan::U_TILES - 1) * Plan::SLABS + 1);
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
  for (int e = 0; e < Plan::PAIR; ++e) {
    const float4* from = partials + 32LL * (blockIdx.x + e * (beside + 2)) + lane;
#pragma unroll 4
    for (long long slot = row; slot < slots; slot += 8) {
      const float4 v = from[slot * Plan::SLOT];
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
  }
  left[row][lane] = sum;
  __syncthreads();
  if (row != 0) return;
  for (int other = 1; other < 8; ++other) {
    const float4 v = left[other][lane];
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  }
  const int v_part = v_group % Plan::V_PARTS, column_row = v_group / Plan::V_PARTS;  // (kd, kh) without rolling
  const int tap_row = Plan::ROLLS ? column_row * Layer::kernel_h + Plan::tap_of_row(shift) : column_row;
  const float value[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int in_tile = warp * 16 + lane / 4 + i / 2 * 8, u = u_part * 64 + in_tile;
    const int column = eight * 8 + lane % 4 * 2 + i % 2, k = Plan::tap_of_shift(column / Plan::V_CHANNELS);
    const int v = v_part * Plan::V_CHANNELS + column % Plan::V_CHANNELS;
    const int ci = Plan::U_IS_GY ? v : u, co = Plan::U_IS_GY ? u : v;
    if (ci < Plan::CI && co < Plan::CO)
      grad_weight[((1LL * group * Plan::CI + ci) * Plan::CO + co) * Plan::ROWS * Layer::kernel_w +
                  1LL * tap_row * Layer::kernel_w + k] = narrow<typename Layer::scalar>(value[i]);
  }
}
