// The products of one step of gathered_mma, and its sums.
#pragma once
#include "families/gathered_mma/plan.cuh"
#include "hardware/ptx.cuh"
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
