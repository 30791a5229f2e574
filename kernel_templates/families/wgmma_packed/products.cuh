// The products of one warpgroup of wgmma_packed in one stage.
#pragma once
#include "families/wgmma_packed/layer.cuh"
#include "families/wgmma_packed/ring.cuh"
#include "families/wgmma_packed/store.cuh"
#include "hardware/wgmma_more_shapes.cuh"

// How many runs of a warpgroup hold a part of the result.
template <class Plan>
__device__ __forceinline__ int runs_in_use(const PackedGeometry& g, const PackedTile& t, int first_run) {
  const int left = g.flat ? g.result_h * g.pitch - t.column : g.result_h - t.row;
  const int in_run = g.flat ? Plan::RUN : t.tail ? Plan::RUN / 8 : 1;
  return left / in_run + (left % in_run != 0) - first_run;
}

// Adds the sums of the tensor cores to `total`; this addition rounds instead of truncating. The next product starts a
// new sum.
template <class Plan, int runs>
__device__ __forceinline__ void take_out(PackedSums<Plan>& sum, PackedSums<Plan>& total) {
  wgmma_commit();
  wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < runs; ++i)
#pragma unroll
    for (int j = 0; j < Plan::PRODUCTS; ++j) {
      wgmma_own(sum[i][j]);
#pragma unroll
      for (int k = 0; k < Plan::COLUMNS / 2; ++k) total[i][j][k] += sum[i][j][k];
    }
  wgmma_fence();
}

// All products of one warpgroup in one stage, for its first `runs` runs. Split: `since` rows of taps are in `sum`.
template <class Plan, int runs>
__device__ __forceinline__ void multiply_stage(PackedSums<Plan>& sum, PackedSums<Plan>& total, int& since,
                                               unsigned long long x, unsigned long long w, const PatchLayout& patch,
                                               int part_step) {
#pragma unroll 1
  for (int kh = 0; kh < Plan::KH; ++kh) {
#pragma unroll
    for (int kw = 0; kw < Plan::BUNDLES; ++kw) {  // a tap, or a bundle of taps
      if (Plan::SPLIT && kw > 0 && kw % Plan::TAPS_KEPT == 0) take_out<Plan, runs>(sum, total);
      const int keep = !Plan::SPLIT || kw % Plan::TAPS_KEPT != 0 ? 1 : kw > 0 ? 0 : since;
      const unsigned long long at = w + kw * Plan::PARTS * 2 * Plan::WEIGHT_ROWS;
#pragma unroll
      for (int run = 0; run < runs; ++run) {
#pragma unroll
        for (int i = 0; i < (Plan::FOLD ? 1 : Plan::PRODUCTS); ++i) {
          const unsigned long long positions = x + (kw * Plan::BUNDLE * Plan::DW + run * patch.run_step + i * patch.group_step);
          auto& own = sum[run][Plan::FOLD ? kw : i];
#pragma unroll
          for (int term = 0; term < (Plan::SPLIT ? 3 : 1); ++term) {  // lo * hi, hi * lo, hi * hi; without split the last
            const unsigned long long a = Plan::SPLIT && term == 0 ? positions + part_step : positions;
            const unsigned long long b = Plan::SPLIT && term == 1 ? at + 2 * Plan::CHANNEL_TILE : at;
            if constexpr (Plan::CHANNELS_ARE_ROWS)
              wgmma<Plan::precision, typename Plan::Scalar, Plan::COLUMNS>(own, b, a, term == 0 ? keep : 1);
            else
              wgmma<Plan::precision, typename Plan::Scalar, Plan::COLUMNS>(own, a, b, term == 0 ? keep : 1);
          }
        }
      }
    }
    if constexpr (Plan::SPLIT) {
      if (++since == Plan::ROWS_KEPT) take_out<Plan, runs>(sum, total), since = 0;
    }
    x += Plan::DH * patch.pitch;
    w += Plan::BUNDLES * Plan::PARTS * 2 * Plan::WEIGHT_ROWS;
  }
}
