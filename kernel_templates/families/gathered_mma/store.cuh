// Stores the result of a block of gathered_mma: from the image in shared memory to its positions.
#pragma once
#include "families/gathered_mma/tile.cuh"

// The results that a thread stores: its positions, and every ROW_STEP-th channel of them.
template <class P>
struct GatheredResults {
  float* of[P::COLUMNS];

  __device__ __forceinline__ void place(const GatheredArguments& a, const GatheredTile<P>& tile) {
#pragma unroll
    for (int c = 0; c < P::COLUMNS; ++c)
      of[c] = gathered_result(a, tile, int(threadIdx.x) % P::TILE_N + c * P::THREADS);
  }

  // `shift` moves all places in the result, to the share's part of the workspace.
  __device__ __forceinline__ void store(const GatheredArguments& a, const float* image, int group, int m_tile,
                                        long long shift = 0) const {
    const int row = P::ROW_STEP > 1 ? threadIdx.x / P::TILE_N : 0, first = m_tile * P::TILE_M;
    const float* const mine = image + int(threadIdx.x) % P::TILE_N;
#pragma unroll
    for (int c = 0; c < P::COLUMNS; ++c) {
      if (of[c] == nullptr) continue;
      float* const to = of[c] + shift;
#pragma unroll 4
      for (int m = row; m < P::TILE_M; m += P::ROW_STEP) {
        if (first + m >= P::M) break;
        const float added = P::BIAS ? __ldg(a.bias + group * P::M + first + m) : 0.0f;
        to[m * a.result_volume] = mine[m * P::PITCH + c * P::THREADS] + added;
      }
    }
  }
};
