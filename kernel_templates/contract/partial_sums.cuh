// A long reduction in two stages: many threads each sum a share of the positions into workspace, a second kernel adds
// the partial sums in a fixed order. No atomics, so two runs give the same bits; and shorter sums round less.
#pragma once
#include "contract/problem.cuh"
#include "contract/scalar.cuh"

// `count` shares of `length` positions each; the last may be shorter. Partial sums lie as [count][results].
struct Split {
  long long count, length;
};

// Terms that one accumulator adds up at most: float32 sums of 1e7 terms then stay within about 1e-6 of the truth.
constexpr long long TERMS_PER_SUM = 16384;

// About `wanted` shares, each a multiple of `granule` positions, and more of them where one would exceed `longest`
// positions; fewer when the partial sums would exceed 2^24 (64 MiB in float). It depends on the problem alone, so that
// every GPU adds in the same order.
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

// A grid has at most 2^31 - 1 blocks along x; kernels walk on by gridDim.x where there is more to do.
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

// thread -> data: a block takes 32 results; its 8 warps share their partial sums, lane = result, so a warp reads whole
// sectors. The barriers: row 0 adds up what the other rows left, before they overwrite it for the next 32 results.
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
