// The multiplying warpgroups of strip_wgmma.
#pragma once
#include "hardware/mbarrier.cuh"
#include "families/strip_wgmma/rolling_plan.cuh"
#include "families/strip_wgmma/products.cuh"

// The products of one warpgroup over all tiles of its share. At `barriers` lie the `full` barriers of the stages, then
// as many `empty` ones. u and v describe block 0 of U's first stage and of V's first row. first_slab is the first of
// this warpgroup's SLABS slabs in the block.
template <class Plan, Precision precision, int SLABS>
__device__ __forceinline__ void multiply_rolling_share(unsigned long long u, unsigned long long v, unsigned barriers,
                                                       RollingSteps<Plan> steps, int first_slab, float4* slot) {
  constexpr int N = Plan::N, STAGES = Plan::STAGES;
  float sum[SLABS][N / 2];  // the first product of a series does not read it
  bool first = true;
  const auto promote = [&] {  // this thread alone reads and writes these elements
#pragma unroll
    for (int s = 0; s < SLABS; ++s)
#pragma unroll
      for (int i = 0; i < N / 8; ++i) {
        float4* const to = slot + 128 * (s * (N / 8) + i);
        const float4 own = make_float4(sum[s][4 * i], sum[s][4 * i + 1], sum[s][4 * i + 2], sum[s][4 * i + 3]);
        if (first)
          *to = own;
        else
          add_in_memory(to, own);
      }
    first = false;
  };
  const auto release = [&](int stage) {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barriers + 8 * (STAGES + stage));
  };
  int stage = 0, parity = 0, since = 0, held = -1, v_row = 0;
  const auto to_next = [&] {
    steps.advance();
    if ((v_row += Plan::PAIR) == Plan::V_ROWS) v_row = 0;
    if (++stage == STAGES) {
      stage = 0;
      parity ^= 1;
    }
  };
#pragma unroll 1
  while (steps.left > 0) {
    if constexpr (Plan::WARM_UP > 0) {
      if (steps.warm > 0) {  // a column begins: its first rows of V
        wgmma_wait<0>();
        if (held >= 0) release(held);
        held = -1;
#pragma unroll 1
        for (; steps.warm > 0; to_next()) {
          mbarrier_wait(barriers + 8 * stage, parity);
          release(stage);
        }
      }
    }
    mbarrier_wait(barriers + 8 * stage, parity);
    products_see_writes();
    wgmma_fence();
    const unsigned long long u_at = u + stage * (Plan::U_STAGE >> 4);
    unsigned long long v_at[SLABS];
#pragma unroll
    for (int s = 0; s < SLABS; ++s) {
      const int slab = first_slab + s;
      int row = v_row + slab % Plan::RING * Plan::STEP - Plan::BEHIND;
      if (row < 0) row += Plan::V_ROWS;
      v_at[s] = v + row * (Plan::V_ROW >> 4) + slab / Plan::RING * (Plan::V_CHUNK >> 4);
    }
#pragma unroll
    for (int j = 0; j < Plan::STRIP; ++j)
#pragma unroll
      for (int s = 0; s < SLABS; ++s)
        wgmma<precision, float, N>(sum[s], u_at + (j * Plan::U_BLOCK >> 4),
                                   v_at[s] + (Plan::place(j + Plan::EXTRA) * Plan::V_BLOCK >> 4), j == 0 ? since : 1);
    wgmma_commit();
    wgmma_wait<1>();
    if (held >= 0) release(held);
    held = stage;
    if (++since == Plan::PROMOTE) {
      wgmma_wait<0>();
      release(held);
      held = -1;
      since = 0;
      promote();
    }
    to_next();
  }
  wgmma_wait<0>();
  if (since > 0) {
    promote();
  } else if (first) {
#pragma unroll 1
    for (int i = 0; i < SLABS * N / 8; ++i) slot[128 * i] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
}
