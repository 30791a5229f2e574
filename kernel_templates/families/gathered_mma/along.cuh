// The kernel of gathered_mma for grad_input with a long stride along W, and its launch. README.md has the words.
#pragma once
#include "contract/computed_anew.cuh"
#include "families/gathered_mma/along_steps.cuh"
#include "families/gathered_mma/launch.cuh"
#include "families/gathered_mma/multiply.cuh"
#include "families/gathered_mma/shares.cuh"
#include "families/gathered_mma/store.cuh"

// Compared with the kernel in block.cuh: neighbouring lanes copy neighbouring taps of one position, which lie side by
// side in grad_output. There they copy one tap of neighbouring positions, which lie a stride apart, each in a sector of
// its own. A step is CHUNK floats of every position: a run of taps of one channel, or the end of one channel and the
// start of the next.
//
// thread -> data: a block has TILE_M channels x TILE_N positions and one share of the reduction. For the copies a
// thread keeps its place in the step.
// All threads meet once the positions are listed, and once a step: after the barrier the step's copies have arrived,
// and the buffer of the step before is free. At the end they meet around the image of the result.
// Bytes: sectors of grad_output are read whole, 16 bytes at a time where WIDTH is 4.
template <class P, int WIDTH>
__global__ void __launch_bounds__(P::THREADS, P::BLOCKS) gathered_along(GatheredArguments a) {
  extern __shared__ __align__(16) float gathered_shared[];
  const long long block = flat_block();
  if (block >= a.blocks * a.shares) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_m = warp % P::WARPS_M, warp_n = warp / P::WARPS_M;
  const int share = int(block / a.blocks);
  const long long of_share = block - share * a.blocks;
  GatheredColumn* const columns = reinterpret_cast<GatheredColumn*>(gathered_shared + P::STAGES * P::STAGE_FLOATS);
  static_assert(sizeof(GatheredColumn) <= 24, "room for positions");
  const GatheredTile<P> tile(a, of_share);
  for (int n = threadIdx.x; n < P::TILE_N; n += P::THREADS) columns[n].template place<P>(a, tile, n);
  __syncthreads();

  const float* const weights = tile.weights(a);
  AlongSteps<P, WIDTH> ahead(tile, share, a.shares);
  const int count = ahead.count;
#pragma unroll 1
  for (int i = 0; i < P::STAGES - 1; ++i) {
    if (i < count) ahead.copy(a, columns, weights, gathered_shared + i * P::STAGE_FLOATS);
    cp_async_commit();
  }

  GatheredSums<P> sum = {};
  [[maybe_unused]] GatheredSums<P> few = {};  // what the tensor cores hold
  [[maybe_unused]] int since = 0;             // steps in it
  int stage = 0, filled = P::STAGES - 1;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    cp_async_wait<P::STAGES - 2>();
    __syncthreads();
    if (i + P::STAGES - 1 < count) ahead.copy(a, columns, weights, gathered_shared + filled * P::STAGE_FLOATS);
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
  if constexpr (P::LONG) sum.take(few);
  cp_async_wait<0>();
  __syncthreads();

  sum.put(gathered_shared, warp_m, warp_n, lane);
  __syncthreads();
  const GatheredTile<P> again(a, of_share + computed_anew(0));  // registers are short in the loop
  GatheredResults<P> results;
  results.place(a, again);
  results.store(a, gathered_shared, again.group, again.m_tile, share * (a.positions * P::GROUPS * P::M));
}

template <class P>
long long gathered_along_workspace(const Sizes& sizes) {
  const long long results = gathered_results<P>(sizes), shares = gathered_shares<P>(sizes, results);
  return 4 * (P::PACKED_FLOATS + (shares > 1 ? shares * results : 0));
}

template <class P>
cudaError_t launch_gathered_along(const Sizes& sizes, const float* source, const float* weight, float* result,
                                  void* workspace, cudaStream_t stream) {
  if (sizes.batch == 0) return cudaSuccess;
  const long long results = gathered_results<P>(sizes), shares = gathered_shares<P>(sizes, results);
  float* const packed = static_cast<float*>(workspace);
  float* const partials = packed + P::PACKED_FLOATS;
  GatheredArguments a = gathered_arguments<P>(sizes, source, packed, nullptr, shares > 1 ? partials : result);
  a.shares = int(shares);
  if (const cudaError_t error = launch_gathered_pack<P>(weight, packed, stream)) return error;
  auto kernel = gathered_along<P, 1>;
  if constexpr (P::QUADS) {
    const bool aligned = a.source_w % 4 == 0 && reinterpret_cast<size_t>(source) % 16 == 0;
    if (aligned) kernel = gathered_along<P, 4>;
  }
  if (const cudaError_t error = launch_gathered_blocks<P>(kernel, a, a.blocks * shares, stream)) return error;
  return shares > 1 ? add_shares(partials, results, shares, result, stream) : cudaSuccess;
}
