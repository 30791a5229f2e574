// For few positions with many terms each: the steps of the reduction are split into shares. Each block sums one share
// into the workspace, and a second kernel adds the shares up in a fixed order.
#pragma once
#include "families/gathered_mma/plan.cuh"
#include "contract/partial_sums.cuh"

// As many shares as fill a large GPU once, unless a share would become too short to pay or their sums would exceed 2^24
// (64 MiB). The number depends on the problem alone, so every GPU adds in the same order. `results` counts the whole
// launch.
template <class P>
long long gathered_shares(const Sizes& sizes, long long results) {
  constexpr long long BLOCKS = 264, SHORTEST = 8;
  if (results == 0) return 1;
  const long long positions = sizes.batch * sizes.in_d * sizes.in_h * sizes.in_w;
  const long long blocks = ceil_div(positions, P::TILE_N) * P::M_TILES * P::GROUPS;
  long long shares = BLOCKS / blocks;
  if (shares > P::MOST_STEPS / SHORTEST) shares = P::MOST_STEPS / SHORTEST;
  if (shares > (1LL << 24) / results) shares = (1LL << 24) / results;
  return shares > 1 ? shares : 1;
}

template <class P>
long long gathered_results(const Sizes& sizes) {
  return sizes.batch * P::GROUPS * P::M * sizes.in_d * sizes.in_h * sizes.in_w;
}

// thread -> data: one result. No thread synchronises.
template <class Sum>
__global__ void __launch_bounds__(256) add_few_shares(const Sum* __restrict__ partials, long long results, int shares,
                                                      Sum* __restrict__ result) {
  for (long long i = 256LL * blockIdx.x + threadIdx.x; i < results; i += 256LL * gridDim.x) {
    Sum sum = partials[i];
#pragma unroll 8
    for (int share = 1; share < shares; ++share) sum += partials[share * results + i];
    result[i] = sum;
  }
}

// Partial sums lie as [shares][results]. add_partials has eight threads for each result, which pays if there are many
// shares.
template <class Sum>
cudaError_t add_shares(const Sum* partials, long long results, long long shares, Sum* result, cudaStream_t stream) {
  if (shares >= 16) return add_partials(partials, results, shares, result, stream);
  const unsigned blocks = grid_blocks(ceil_div(results, 256));
  add_few_shares<Sum><<<blocks, 256, 0, stream>>>(partials, results, int(shares), result);
  return cudaGetLastError();
}
