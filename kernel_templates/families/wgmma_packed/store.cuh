// The sums of a warpgroup of wgmma_packed, and their stores.
#pragma once
#include "families/wgmma_packed/ring.cuh"

template <class Plan>
using PackedSums = float[Plan::RUNS][Plan::PRODUCTS][Plan::COLUMNS / 2];

// Eight channels of 32 neighbouring positions at a time go through the warp's own piece of shared memory, so that a
// warp stores whole rows of sectors. Only lanes of one warp meet.
template <class Plan>
__device__ __forceinline__ void store_sums(const PackedGeometry& g, const PackedTile& t, int first_run,
                                           const PackedSums<Plan>& sum,
                                           float* staging, const typename Plan::Scalar* __restrict__ bias,
                                           typename Plan::Scalar* __restrict__ result) {
  using Scalar = typename Plan::Scalar;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, row = lane / 4, pair = lane % 4 * 2;
  const long long step = 1LL * g.result_d * g.result_h * g.result_w;
  constexpr int PITCH = Plan::CHANNELS_ARE_ROWS ? 40 : 36;  // no two lanes of an access meet in a bank
  const int tile_channel = t.channel_tile * Plan::CHANNEL_TILE;
  Scalar* plane = result + (t.n * Plan::GROUPS + t.group) * Plan::CHANNELS * step + 1LL * t.d * g.result_h * g.result_w;

  const auto store_rows = [&](int channel, int index) {
    __syncwarp();
    Scalar* to = plane + channel * step + index;
#pragma unroll
    for (int i = 0; i < 8; ++i, to += step) {
      float value = staging[i * PITCH + lane];
      if (index < 0 || channel + i >= Plan::CHANNELS) continue;
      if constexpr (Plan::HAS_BIAS) value += widen(bias[t.group * Plan::CHANNELS + channel + i]);
      *to = narrow<Scalar>(value);
    }
    __syncwarp();
  };
#pragma unroll
  for (int run = 0; run < Plan::RUNS; ++run) {
    if constexpr (Plan::CHANNELS_ARE_ROWS) {
#pragma unroll
      for (int part = 0; part < Plan::RUN / 32; ++part) {
        const int index = result_index<Plan>(g, t, first_run + run, part * 32 + lane);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int i = 0; i < 4; ++i)
            *reinterpret_cast<float2*>(staging + row * PITCH + i * 8 + pair) =
                make_float2(sum[run][0][(part * 4 + i) * 4 + half * 2], sum[run][0][(part * 4 + i) * 4 + half * 2 + 1]);
          store_rows(tile_channel + warp * 16 + half * 8, index);
        }
      }
    } else {
      // A warp holds two of the 8-row groups of product i; they are PRODUCTS groups of positions apart.
#pragma unroll
      for (int part = 0; part < Plan::PRODUCTS / 2; ++part) {
        const int index = result_index<Plan>(g, t, first_run + run, warp * 16 * Plan::PRODUCTS + part * 32 + lane);
#pragma unroll
        for (int eight = 0; eight < Plan::COLUMNS / 8; ++eight) {
#pragma unroll
          for (int i = 0; i < Plan::PRODUCTS; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const int position = (half * Plan::PRODUCTS + i) * 8;
              if (position / 32 != part) continue;
              staging[pair * PITCH + position % 32 + row] = sum[run][i][eight * 4 + half * 2];
              staging[(pair + 1) * PITCH + position % 32 + row] = sum[run][i][eight * 4 + half * 2 + 1];
            }
          store_rows(tile_channel + eight * 8, index);
        }
      }
    }
  }
}
