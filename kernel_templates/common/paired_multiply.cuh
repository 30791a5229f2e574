// The warpgroups of wgmma_strided that multiply and store: how they share work and hand staged rows back.
// paired_plan.cuh has the words.
#pragma once
#include "common/paired_products.cuh"
#include "common/paired_store.cuh"

// A warpgroup takes every CONSUMERS-th (cell, residue along D) and all rows of its outputs, and hands units back once
// none of its own products needs them any more, also those it did not read. It waits for each before that: a barrier
// tells only whether an odd or an even number of phases has ended.
template <class P, class Layer>
__device__ __forceinline__ void paired_multiply(const PairedArguments& a, float* memory, unsigned ring, int image_at,
                                                PairedBarriers barriers, int group, int tile, int first, int end,
                                                int consumer) {
  constexpr bool FOLLOWS = Layer::stride_d == P::CONSUMERS;  // its next cell's rows are the next ones of the same plane
  const int lane = threadIdx.x % 32, channel = tile * P::CHANNELS + threadIdx.x % 128 / 32 * 8;
  int waited = 0, waited_slot = 0, waited_parity = 0;  // units that were seen to be full
  int released_slot = 0;                               // the next unit to hand back: the cell's first
  int unit0 = 0, turn = 0;                             // the walk's first unit; whose work comes next
  float bias = 0.0f;
  if constexpr (P::HAS_BIAS)
    if (channel + lane / 4 < P::M) bias = __ldg(a.bias + group * P::M + channel + lane / 4);
  mbarrier_wait(barriers.weights_there, 0);
  const auto release = [&](int units) {
    __syncwarp();  // no lane still waits for these units: it would miss the phase
#pragma unroll 1
    for (; units > 0; --units) {
      if (lane == 0) mbarrier_arrive(barriers.empty + 8 * released_slot);
      if (++released_slot == P::RING) released_slot = 0;
    }
  };
#pragma unroll 1
  for (int cell = first; cell < end;) {
    const PairedWalk<P> walk(a, cell, end);
    cell += walk.length;
    const int origin = 2 * walk.chunk * P::TILE;  // the tile's first output in its row
    float* const column = a.output + (1LL * walk.n * Layer::out_channels + group * P::M + channel) * a.out_volume + origin;
    PairedRun run = {a.sizes.out_w - origin, false, false};
    if (run.end > 2 * P::TILE) run.end = 2 * P::TILE;
#pragma unroll 1
    for (int c = 0; c < walk.length; ++c) {
#pragma unroll 1
      for (const int needed = unit0 + (c + P::H::REACH + 1) * P::PLANES; waited < needed; ++waited) {
        mbarrier_wait(barriers.full + 8 * waited_slot, waited_parity);
        if (++waited_slot == P::RING) waited_slot = 0, waited_parity ^= 1;
      }
      products_see_writes();
      const int slot0 = released_slot;
      bool holds = true;
#pragma unroll 1
      for (int rd = 0; rd < Layer::stride_d; ++rd) {
        const bool mine = turn == consumer;
        if (++turn == P::CONSUMERS) turn = 0;
        const int od = walk.plane * Layer::stride_d - P::D::CUT + rd;
        if (!mine || unsigned(od) >= unsigned(a.sizes.out_d)) continue;
#pragma unroll 1
        for (int rh = 0; rh < Layer::stride_h; ++rh) {
          const int oh = (walk.row + c) * Layer::stride_h - P::H::CUT + rh;
          if (unsigned(oh) >= unsigned(a.sizes.out_h)) continue;
          float sum[P::TILE / 2];
          const_loop<0, P::CLASSES>([&](auto number) {
            constexpr int RD = decltype(number)::value / Layer::stride_h, RH = decltype(number)::value % Layer::stride_h;
            if (rd == RD && rh == RH) PairedProducts<P, RD, RH>::run(sum, memory, ring, slot0);
          });
          const bool last_row = oh + 1 == a.sizes.out_h, last_here = rh + 1 == Layer::stride_h || last_row;
          if (holds && rd + P::CONSUMERS >= Layer::stride_d && (last_here || rh >= P::H::LAST_OF_FIRST))
            release(P::PLANES), holds = false;
          run.goes_on = a.chunks == 1 && run.end >= 16 && !last_row && (!last_here || (FOLLOWS && c + 1 < walk.length));
          float* const row = column + (1LL * od * a.sizes.out_h + oh) * a.sizes.out_w;
          if (run.end >= 2 * P::TILE - 25 && channel + 8 <= P::M) {
            paired_store<P, true>(sum, memory, image_at, row, a.out_volume, 8, run, bias);
          } else {
            paired_store<P, false>(sum, memory, image_at, row, a.out_volume, P::M - channel, run, bias);
          }
          run.continues = run.goes_on;
        }
      }
      if (holds) release(P::PLANES);
    }
    release(P::H::REACH * P::PLANES);
    unit0 += walk.units();
  }
}
