// The sums of a warpgroup of wgmma_packed, and their stores.
#pragma once
#include "families/wgmma_packed/ring.cuh"
#include "hardware/warps_meet.cuh"

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

// FOLD: adds the columns of all taps and stores the results. Row (tap t, channel) of bundle b holds at column c what tap
// b * BUNDLE + t adds to the result at position c - t * dilation. `exchange`: room for 64 rows, of the warpgroup.
// thread -> data: one position of each run, all channels of the tile. The barriers: all warps have written a
// bundle before any reads it, and read it before any writes the next.
template <class Plan>
__device__ __forceinline__ void fold_sums(const PackedGeometry& g, const PackedTile& t, int warpgroup, int first_run,
                                          const PackedSums<Plan>& sum, float* exchange,
                                          const typename Plan::Scalar* __restrict__ bias,
                                          typename Plan::Scalar* __restrict__ result) {
  using Scalar = typename Plan::Scalar;
  constexpr int PITCH = Plan::COLUMNS;
  static_assert(Plan::RUN == 128, "a thread for each position of a run");
  const int position = threadIdx.x % 128, lane = position % 32, row = position / 32 * 16 + lane / 4, pair = lane % 4 * 2;
  const long long step = 1LL * g.result_d * g.result_h * g.result_w;
  const int tile_channel = t.channel_tile * Plan::CHANNEL_TILE;
  Scalar* const plane = result + (t.n * Plan::GROUPS + t.group) * Plan::CHANNELS * step + 1LL * t.d * g.result_h * g.result_w;
#pragma unroll
  for (int run = 0; run < Plan::RUNS; ++run) {
    float total[Plan::CHANNEL_TILE] = {};
#pragma unroll
    for (int bundle = 0; bundle < Plan::BUNDLES; ++bundle) {
      warps_meet<128>(1 + warpgroup);
#pragma unroll
      for (int i = 0; i < Plan::COLUMNS / 8; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *reinterpret_cast<float2*>(exchange + (row + half * 8) * PITCH + i * 8 + pair) =
              make_float2(sum[run][bundle][i * 4 + half * 2], sum[run][bundle][i * 4 + half * 2 + 1]);
      warps_meet<128>(1 + warpgroup);
#pragma unroll
      for (int tap = 0; tap < Plan::BUNDLE; ++tap) {
        if (bundle * Plan::BUNDLE + tap >= Plan::KW) continue;
        const float* const from = exchange + tap * Plan::CHANNEL_TILE * PITCH + position + tap * Plan::DW;
#pragma unroll
        for (int c = 0; c < Plan::CHANNEL_TILE; ++c) total[c] += from[c * PITCH];
      }
    }
    const int index = result_index<Plan>(g, t, first_run + run, position);
    if (index < 0) continue;
#pragma unroll
    for (int c = 0; c < Plan::CHANNEL_TILE; ++c) {
      const int channel = tile_channel + c;
      if (channel >= Plan::CHANNELS) continue;
      if constexpr (Plan::HAS_BIAS) total[c] += widen(bias[t.group * Plan::CHANNELS + channel]);
      plane[channel * step + index] = narrow<Scalar>(total[c]);
    }
  }
}
