// The second stage of split_mma and fused_mma: partial sums become grad_weight. They lie in the order of the
// warps' fragments.
#pragma once
#include "contract/slot_sums.cuh"

// thread -> data: see SlotSums; a float4 is 2 ci x 2 co of one tap.
template <class Layer, class Plan, int FIRST>
__global__ void __launch_bounds__(256) split_mma_reduce(const float4* __restrict__ partials, long long slots,
                                                        typename Layer::scalar* __restrict__ grad_weight) {
  SlotSums sums;
  sums.add_slots(partials + 32LL * blockIdx.x + sums.lane, slots, Plan::SLOT);
  if (!sums.add_rows()) return;
  // blockIdx.x counts fragments: (tile, warp, ma, nb, k), the last running fastest.
  Digits digit{int(blockIdx.x)};
  const int k = FIRST + digit(Plan::KT), nb = digit(Plan::NB), ma = digit(Plan::MA);
  const int wm = digit(Plan::WM), wn = digit(Plan::WN), tr = digit(Plan::TR);
  const int tap_row = digit(Plan::R_TILES) * Plan::TR + tr;
  const int m0 = digit(Plan::M_TILES) * Plan::M, n0 = digit(Plan::N_TILES) * Plan::N, group = digit.rest;
  if (tap_row >= Plan::ROWS) return;
  const float value[4] = {sums.sum.x, sums.sum.y, sums.sum.z, sums.sum.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int ci = m0 + (wm * Plan::MA + ma) * 16 + sums.lane / 4 + i / 2 * 8;
    const int co = n0 + (wn * Plan::NB + nb) * 8 + sums.lane % 4 * 2 + i % 2;
    store_weight<Layer, Plan>(grad_weight, group, ci, co, tap_row, k, value[i]);
  }
}
