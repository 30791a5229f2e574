// The sums of gathered_mma: the products of one step, and the way to the result through an image in shared memory. Where
// positions are few and terms many, blocks sum shares of the reduction, which are added up in a fixed order.
#pragma once
#include "families/gathered_mma/steps.cuh"
#include "contract/partial_sums.cuh"
#include "hardware/tf32_parts.cuh"

template <class P>
struct GatheredSums {
  float of[P::MA][P::NB][4];

  // Adds `few` to these, and empties it.
  __device__ __forceinline__ void take(GatheredSums& few) {
#pragma unroll
    for (int i = 0; i < P::MA; ++i)
#pragma unroll
      for (int j = 0; j < P::NB; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) of[i][j][e] += few.of[i][j][e], few.of[i][j][e] = 0.0f;
  }

  // [channel][position], for the threads that store them.
  __device__ __forceinline__ void put(float* image, int warp_m, int warp_n, int lane) const {
    float* const mine = image + (warp_m * P::MA * 16 + lane / 4) * P::PITCH + warp_n * P::NB * 8 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < P::MA; ++i)
#pragma unroll
      for (int j = 0; j < P::NB; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *reinterpret_cast<float2*>(mine + (i * 16 + half * 8) * P::PITCH + j * 8) =
              make_float2(of[i][j][half * 2], of[i][j][half * 2 + 1]);
  }
};

// The warp that multiplies a value of the source also rounds it. A position that a tap does not meet has a 0 here, and
// that 0 is multiplied too: an infinite weight makes NaN of positions that it does not meet.
template <class P>
__device__ __forceinline__ void multiply_gathered(GatheredSums<P>& sum, const float* stage, int warp_m, int warp_n,
                                                  int lane) {
  const float* const source =
      stage + lane % 4 * P::PAIR_PITCH + (warp_n * P::NB * 8 + lane / 4) * P::POSITION_PITCH;
  const float* const weights = stage + P::SOURCE_FLOATS + warp_m * P::MA * P::PLANES * 128 + lane * 4;
#pragma unroll
  for (int slab = 0; slab < P::CHUNK / 8; ++slab) {
    float high[P::NB][2];
    [[maybe_unused]] float low[P::NB][2];
#pragma unroll
    for (int j = 0; j < P::NB; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float v = source[(slab * 8 + half * 4) * P::PAIR_PITCH + j * 8 * P::POSITION_PITCH];
        if constexpr (P::THREE) {
          high[j][half] = high_tf32(v);
          low[j][half] = low_tf32(v, high[j][half]);
        } else {
          high[j][half] = nearest_tf32(v);
        }
      }
#pragma unroll
    for (int i = 0; i < P::MA; ++i) {
      float A[P::PLANES][4];
#pragma unroll
      for (int p = 0; p < P::PLANES; ++p) {
        const float4 v =
            *reinterpret_cast<const float4*>(weights + ((slab * (P::TILE_M / 16) + i) * P::PLANES + p) * 128);
        A[p][0] = v.x, A[p][1] = v.y, A[p][2] = v.z, A[p][3] = v.w;
      }
#pragma unroll
      for (int j = 0; j < P::NB; ++j) {
        if constexpr (P::THREE) {  // low * low is below the last place
          mma_m16n8k8_tf32(sum.of[i][j], A[P::PLANES - 1], high[j], sum.of[i][j]);
          mma_m16n8k8_tf32(sum.of[i][j], A[0], low[j], sum.of[i][j]);
        }
        mma_m16n8k8_tf32(sum.of[i][j], A[0], high[j], sum.of[i][j]);
      }
    }
  }
}

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

// As many shares as fill a large GPU once, unless a share would become too short to pay or their sums would exceed 2^24
// (64 MiB). The number depends on the problem alone, so every GPU adds in the same order. `results` counts the whole
// launch.
template <class P>
long long gathered_shares(const Sizes& sizes, long long results) {
  constexpr long long BLOCKS = 264, SHORTEST = 8;
  if (!P::ALONG || results == 0) return 1;
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
