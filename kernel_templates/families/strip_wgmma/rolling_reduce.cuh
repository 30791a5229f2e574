// The second stage of strip_wgmma: partial sums become grad_weight. They lie in the order in which warpgroups hold them.
#pragma once
#include "families/strip_wgmma/rolling_plan.cuh"
#include "contract/slot_sums.cuh"

// thread -> data: see SlotSums; a float4 is 2 rows of U x 2 columns. With pairs, the second row's sums of the same taps
// lie one row of the ring further, and 32 rows of U further.
template <class Layer, class Tune>
__global__ void __launch_bounds__(256) rolling_reduce(const float4* __restrict__ partials, long long slots,
                                                      typename Layer::scalar* __restrict__ grad_weight) {
  using Plan = RollingPlan<Layer, Tune>;
  // blockIdx.x counts warps' fragments: (tile, warpgroup, u tile, slab, eight columns, warp), the last running fastest.
  Digits digit{int(blockIdx.x)};
  const int warp = digit(4), eight = digit(Plan::N / 8), own_slab = digit(Plan::SLABS);
  const int u_tile = digit(Plan::U_TILES), local = digit(Plan::WARPGROUPS) * Plan::SLABS + own_slab;
  const int shift = digit(Plan::H_TILES) * Plan::ROWS_H + local % Plan::RING;
  const int v_group = digit(Plan::G_TILES) * Plan::BLOCK_GROUPS + local / Plan::RING;
  const int u_part = digit(Plan::M_TILES) * Plan::U_TILES + u_tile, group = digit.rest;
  if (local >= Plan::BLOCK_SLABS || local % Plan::RING >= Plan::ROWS_H || shift >= Plan::TAPS_H ||
      v_group >= Plan::GROUPS || (Plan::PAIR == 2 && warp >= 2))
    return;

  // From a slab to the next: of the same warpgroup, or of the next one.
  constexpr int SLAB = 4 * (Plan::N / 8);
  const int beside = own_slab + 1 < Plan::SLABS ? SLAB : SLAB * ((Plan::U_TILES - 1) * Plan::SLABS + 1);
  SlotSums sums;
#pragma unroll
  for (int e = 0; e < Plan::PAIR; ++e)
    sums.add_slots(partials + 32LL * (blockIdx.x + e * (beside + 2)) + sums.lane, slots, Plan::SLOT);
  if (!sums.add_rows()) return;
  const int v_part = v_group % Plan::V_PARTS, column_row = v_group / Plan::V_PARTS;  // (kd, kh) without rolling
  const int tap_row = Plan::ROLLS ? column_row * Layer::kernel_h + Plan::tap_of_row(shift) : column_row;
  store_strip_weights<Layer, Plan>(grad_weight, sums, warp, eight, group, u_part, v_part, tap_row);
}
