// A long sum in two stages. Many threads each sum a share of the positions into the workspace; a second kernel adds
// these partial sums in a fixed order.
// No atomics are used, so two runs give the same bits. Shorter sums also round less.
#pragma once
#include "contract/problem.cuh"
#include "contract/scalar.cuh"

// `count` shares of `length` positions each; the last may be shorter. Partial sums lie as [count][results].
struct Split {
  long long count, length;
};

// One accumulator adds up at most this many terms: float32 sums of 1e7 terms then stay within about 1e-6 of the truth.
constexpr long long TERMS_PER_SUM = 16384;

// Returns about `wanted` shares, each a multiple of `granule` positions. It returns more shares if one would exceed
// `longest` positions, and fewer if the partial sums would exceed 2^24 (64 MiB in float). The result depends on the
// problem alone, so every GPU adds in the same order.
inline Split split_positions(long long positions, long long results, long long wanted, int granule,
                             long long longest) {
  const long long room = (1LL << 24) / results;
  const long long needed = ceil_div(positions, longest);
  long long count = wanted > needed ? wanted : needed;
  if (count > room) count = room;
  if (count < 1) count = 1;
  const long long length = ceil_div(ceil_div(positions > 0 ? positions : 1, count), granule) * granule;
  count = ceil_div(positions, length);
  return {count < 1 ? 1 : count, length};
}

// A grid has at most 2^31 - 1 blocks along x. If there is more to do, a kernel continues in steps of gridDim.x.
inline unsigned grid_blocks(long long blocks) {
  return unsigned(blocks < 2147483647LL ? blocks : 2147483647LL);
}

// The warp's sum, in lane 0: a tree, so the order is fixed. Every lane of the warp calls it.
template <class Sum>
__device__ __forceinline__ Sum sum_of_lanes(Sum value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_down_sync(0xffffffffu, value, distance);
  return value;
}

// thread -> data: a block takes 32 results, one for each lane, so a warp reads whole sectors. Its 8 warps share the
// partial sums of these results.
// The barriers: row 0 adds up what the other rows left, before they overwrite it for the next 32 results.
template <class Scalar, class Sum>
__global__ void __launch_bounds__(256) sum_partials(const Sum* __restrict__ partials, long long results,
                                                    long long count, Scalar* __restrict__ result) {
  constexpr int ROWS = 8;
  __shared__ Sum left[ROWS][32];
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32;
  for (long long first = 32LL * blockIdx.x; first < results; first += 32LL * gridDim.x) {
    const long long mine = first + lane;
    Sum sum = 0;
    if (mine < results)
      for (long long share = row; share < count; share += ROWS) sum += partials[share * results + mine];
    left[row][lane] = sum;
    __syncthreads();
    if (row == 0 && mine < results) {
      for (int other = 1; other < ROWS; ++other) sum += left[other][lane];
      result[mine] = narrow<Scalar>(sum);
    }
    __syncthreads();
  }
}

template <class Scalar, class Sum>
cudaError_t add_partials(const Sum* partials, long long results, long long count, Scalar* result,
                         cudaStream_t stream) {
  sum_partials<Scalar, Sum><<<grid_blocks(ceil_div(results, 32)), 256, 0, stream>>>(partials, results, count, result);
  return cudaGetLastError();
}
