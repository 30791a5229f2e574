// The kernel of gathered_mma, forward and grad_input, and its launch. README.md has the words.
#pragma once
#include "contract/computed_anew.cuh"
#include "families/gathered_mma/launch.cuh"
#include "families/gathered_mma/multiply.cuh"
#include "families/gathered_mma/steps.cuh"
#include "families/gathered_mma/store.cuh"

// Compared with implicit_gemm_mma: no strip of the source is staged that must reach as far as the taps do. Each step of
// the reduction gathers what a tile of positions meets at one tap (or, with few channels, at some taps). So shared
// memory does not depend on the layer, and every layer fits. It costs a copy of 4 bytes for each position, tap and
// channel; L1 and L2 answer most of them.
//
// thread -> data: a block has TILE_M channels x TILE_N positions of one class, numbered over batch, D, H and W. A warp
// has all or half of the channels x a share of the positions. For the copies a thread keeps its positions.
// All threads meet once a step. After the barrier the step's copies have arrived, and the buffer of the step before is
// free (so is the list of rows that is filled next). At the end they meet around the image of the result.
// Bytes: a tap that no position of the tile meets is left out. Weights are read from L2 once for each tile of
// positions. A warp stores 32 neighbouring positions of a channel at a time.
template <class P>
__global__ void __launch_bounds__(P::THREADS, P::BLOCKS) gathered_mma(GatheredArguments a) {
  extern __shared__ __align__(16) float gathered_shared[];
  const long long block = flat_block();
  if (block >= a.blocks) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_m = warp % P::WARPS_M, warp_n = warp / P::WARPS_M;
  const GatheredTile<P> tile(a, block);
  GatheredColumn columns[P::COLUMNS];
  GatheredResults<P> results;
#pragma unroll
  for (int c = 0; c < P::COLUMNS; ++c)
    columns[c].template place<P>(a, tile, int(threadIdx.x) % P::TILE_N + c * P::THREADS);
  if constexpr (!P::LONG) results.place(a, tile);
  const float* const weights = tile.weights(a);
  GatheredRow* const rows = reinterpret_cast<GatheredRow*>(gathered_shared + P::STAGES * P::STAGE_FLOATS);

  GatheredSteps<P> ahead(a, tile);
  const int count = ahead.count;
#pragma unroll 1
  for (int i = 0; i < P::STAGES - 1; ++i) {
    if constexpr (P::MIXED) {
      ahead.list(0, rows + i % 2 * P::CHUNK);
      __syncthreads();
    }
    if (i < count) ahead.copy(columns, weights, gathered_shared + i * P::STAGE_FLOATS, rows + i % 2 * P::CHUNK);
    cp_async_commit();
  }
  if constexpr (P::MIXED) ahead.list(0, rows + (P::STAGES - 1) % 2 * P::CHUNK);

  GatheredSums<P> sum = {};
  [[maybe_unused]] GatheredSums<P> few = {};  // what the tensor cores hold
  [[maybe_unused]] int since = 0;             // steps in it
  int stage = 0, filled = P::STAGES - 1;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    cp_async_wait<P::STAGES - 2>();
    __syncthreads();
    const int next = i + P::STAGES - 1;
    if (next < count) {
      ahead.copy(columns, weights, gathered_shared + filled * P::STAGE_FLOATS, rows + next % 2 * P::CHUNK);
      if constexpr (P::MIXED) ahead.list(0, rows + (next + 1) % 2 * P::CHUNK);
    }
    cp_async_commit();
    filled = filled + 1 == P::STAGES ? 0 : filled + 1;
    const float* const from = gathered_shared + stage * P::STAGE_FLOATS;
    if constexpr (P::LONG) {
      multiply_gathered<P>(few, from, warp_m, warp_n, lane);
      if (++since == P::STEPS_KEPT) sum.take(few), since = 0;
    } else {
      multiply_gathered<P>(sum, from, warp_m, warp_n, lane);
    }
    stage = stage + 1 == P::STAGES ? 0 : stage + 1;
  }
  if constexpr (P::LONG) {
    sum.take(few);
    // Worked out again: registers are short in the loop.
    results.place(a, GatheredTile<P>(a, block + computed_anew(0)));
  }
  cp_async_wait<0>();
  __syncthreads();

  sum.put(gathered_shared, warp_m, warp_n, lane);
  __syncthreads();
  results.store(a, gathered_shared, tile.group, tile.m_tile);
}

template <class P>
cudaError_t launch_gathered(const Sizes& sizes, const float* source, const float* weight, const float* bias,
                            float* result, void* workspace, cudaStream_t stream) {
  if (sizes.batch == 0) return cudaSuccess;
  float* const packed = static_cast<float*>(workspace);
  const GatheredArguments a = gathered_arguments<P>(sizes, source, packed, bias, result);
  if (const cudaError_t error = launch_gathered_pack<P>(weight, packed, stream)) return error;
  return launch_gathered_blocks<P>(gathered_mma<P>, a, a.blocks, stream);
}
