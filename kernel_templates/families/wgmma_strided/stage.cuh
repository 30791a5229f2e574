// The warps of wgmma_strided that stage rows of the input: rounded once, four channels of a position side by side.
// plan.cuh has the words.
#pragma once
#include "hardware/const_loop.cuh"
#include "hardware/mbarrier.cuh"
#include "families/wgmma_strided/plan.cuh"
#include "hardware/ptx.cuh"

// thread -> data: positions of four channels, 32 neighbours a warp. The positions beyond the tile, which taps of its
// last cells meet, are divided one by one. A unit's first loads are issued before its place is free. Rows outside the
// input are zeros.
template <class P, class Layer>
__device__ __forceinline__ void paired_stage(const PairedArguments& a, float* ring, PairedBarriers barriers, int group,
                                             int first, int end) {
  constexpr int EXTRA = P::W::REACH * P::QUADS;
  constexpr int AT_ONCE = 128 / P::TILE, TURNS = P::QUADS / AT_ONCE, BATCH = TURNS < 8 ? TURNS : 8;
  static_assert(P::TILE <= 128 && P::QUADS % AT_ONCE == 0, "a warpgroup stages whole quads");
  const int thread = threadIdx.x % 128, quad0 = thread / P::TILE, position0 = thread % P::TILE;
  const long long volume = a.in_volume;
  int slot = 0, parity = 1;
#pragma unroll 1
  for (int cell = first; cell < end;) {
    const PairedWalk<P> walk(a, cell, end);
    cell += walk.length;
    const int left = walk.chunk * P::TILE + P::W::LEAST;
    const float* const image = a.input + (1LL * walk.n * Layer::in_channels + group * P::K) * volume;
    int h = walk.row + P::H::FIRST - P::H::REACH;
#pragma unroll 1
    for (int height = 0; height < walk.length + P::H::REACH; ++height, ++h)
#pragma unroll 1
      for (int plane = 0; plane < P::PLANES; ++plane) {
        int d = walk.plane + P::D::FIRST;
        const_loop<0, P::PLANES>([&](auto i) {
          if (plane == decltype(i)::value) d -= P::D::shift_at(decltype(i)::value);
        });
        const bool row_exists = unsigned(h) < unsigned(a.sizes.in_h) && unsigned(d) < unsigned(a.sizes.in_d);
        const float* const row = image + (1LL * d * a.sizes.in_h + h) * a.sizes.in_w + left;
        float4* const to = reinterpret_cast<float4*>(ring + slot * P::UNIT);
        const auto load = [&](float (&value)[4], int quad, int position) {
          const bool inside = row_exists && unsigned(left + position) < unsigned(a.sizes.in_w);
          const float* from = row + 4 * quad * volume + position;
#pragma unroll
          for (int c = 0; c < 4; ++c, from += volume)
            value[c] = inside && (P::K % 8 == 0 || 4 * quad + c < P::K) ? __ldg(from) : 0.0f;
        };
        const auto put = [&](const float (&value)[4], int quad, int position) {
          to[quad * P::PLANE + position] =
              make_float4(round_for_tensor_cores(value[0], a.one), round_for_tensor_cores(value[1], a.one),
                          round_for_tensor_cores(value[2], a.one), round_for_tensor_cores(value[3], a.one));
        };
        [[maybe_unused]] float beyond[4];
        if constexpr (EXTRA > 0)
          if (thread < EXTRA) load(beyond, thread / P::W::REACH, P::TILE + thread % P::W::REACH);
#pragma unroll 1
        for (int turn0 = 0; turn0 < TURNS; turn0 += BATCH) {
          float value[BATCH][4];
#pragma unroll
          for (int i = 0; i < BATCH; ++i)
            if (TURNS % BATCH == 0 || turn0 + i < TURNS) load(value[i], quad0 + (turn0 + i) * AT_ONCE, position0);
          if (turn0 == 0) mbarrier_wait(barriers.empty + 8 * slot, parity);
#pragma unroll
          for (int i = 0; i < BATCH; ++i)
            if (TURNS % BATCH == 0 || turn0 + i < TURNS) put(value[i], quad0 + (turn0 + i) * AT_ONCE, position0);
        }
        if constexpr (EXTRA > 0) {
          if (thread < EXTRA) put(beyond, thread / P::W::REACH, P::TILE + thread % P::W::REACH);
#pragma unroll 1
          for (int item = thread + 128; item < EXTRA; item += 128) {
            load(beyond, item / P::W::REACH, P::TILE + item % P::W::REACH);
            put(beyond, item / P::W::REACH, P::TILE + item % P::W::REACH);
          }
        }
        __syncwarp();
        if (thread % 32 == 0) mbarrier_arrive(barriers.full + 8 * slot);
        if (++slot == P::RING) slot = 0, parity ^= 1;
      }
  }
}
