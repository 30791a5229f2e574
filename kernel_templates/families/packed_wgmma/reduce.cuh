// The second stage of packed_wgmma: partial sums become grad_weight. They lie in the order in which warpgroups hold them.
#pragma once
#include "contract/slot_sums.cuh"
#include "families/strip_wgmma/plan.cuh"

// thread -> data: see SlotSums; a float4 is 2 rows of U x 2 columns.
template <class Layer, class Tune>
__global__ void __launch_bounds__(256) strip_reduce(const float4* __restrict__ partials, long long slots,
                                                    typename Layer::scalar* __restrict__ grad_weight) {
  using Plan = StripPlan<Layer, Tune>;
  SlotSums sums;
  sums.add_slots(partials + 32LL * blockIdx.x + sums.lane, slots, Plan::SLOT);
  if (!sums.add_rows()) return;
  // blockIdx.x counts warps' fragments: (tile, warpgroup, slab, eight columns, warp), the last running fastest.
  Digits digit{int(blockIdx.x)};
  const int warp = digit(4), eight = digit(Plan::N / 8), own_slab = digit(Plan::SLABS);
  const int u_tile = digit(Plan::U_TILES), warpgroup = digit(Plan::WARPGROUPS);
  const int slab = (digit(Plan::R_TILES) * Plan::WARPGROUPS + warpgroup) * Plan::SLABS + own_slab;
  const int u_part = digit(Plan::M_TILES) * Plan::U_TILES + u_tile, group = digit.rest;
  if (slab >= Plan::ALL_SLABS) return;
  store_strip_weights<Layer, Plan>(grad_weight, sums, warp, eight, group, u_part, slab % Plan::V_PARTS,
                                   slab / Plan::V_PARTS);
}
