// How the warps of fused_mma that sum grad_input multiply a staged row of gy, and how they store their sums.
#pragma once
#include "families/fused_mma/plan.cuh"
#include "families/split_mma/multiply.cuh"

// sums of MX x 16 channels (fragment rows) x 8 runs of RUN neighbouring positions (fragment columns), RUNS times
template <class Plan>
using FusedSums = float[Plan::MX][Plan::RUNS][Plan::RUN][4];

// Calls body with the indices of each float of `sum`.
template <class Plan, class Body>
__device__ __forceinline__ void for_sums(const Body& body) {
#pragma unroll
  for (int i = 0; i < Plan::MX * Plan::RUNS * Plan::RUN * 4; ++i)
    body(i / (4 * Plan::RUN * Plan::RUNS), i / (4 * Plan::RUN) % Plan::RUNS, i / 4 % Plan::RUN, i % 4);
}

// Where run `n` of 8 begins in a block of 8 * RUN positions. Rows are 4 modulo 8 apart. Eight lanes that read 16 bytes
// each at once, from four rows and the runs 2 i and 2 i + 1, meet all 32 banks, because these two runs are 16 positions
// apart.
template <int RUN>
__device__ __forceinline__ int run_start(int n) {
  return RUN == 4 ? n % 2 * 16 + n / 2 * 4 : n % 2 * 16 + n / 2 % 2 * 8 + n / 4 * 32;
}

// Loads the weights of a group as A fragments of 16 ci x 8 co, tap by tap. A lane's four values are one float4.
template <class Plan, int THREADS, class Scalar>
__device__ __forceinline__ void load_weights(float4* to, const Scalar* __restrict__ weight) {
  constexpr int TAPS = Plan::ROWS * Plan::KT;
#pragma unroll 2
  for (int e = threadIdx.x; e < Plan::WEIGHTS / 4; e += THREADS) {
    const int lane = e % 32, m = e / 32 % Plan::M16, n = e / (32 * Plan::M16) % Plan::N8;
    const int tap = e / (32 * Plan::M16 * Plan::N8);
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int ci = m * 16 + lane / 4 + i % 2 * 8, co = n * 8 + lane % 4 + i / 2 * 4;
      v[i] = ci < Plan::CI && co < Plan::CO ? widen(weight[(1LL * ci * Plan::CO + co) * TAPS + tap]) : 0.f;
      if constexpr (!Plan::THREE) v[i] = round_to_tf32(v[i]);
    }
    to[e] = make_float4(v[0], v[1], v[2], v[3]);
  }
}

// sum += weights * gy for one tap row. `weights`: the fragments of the row and of the warp's channels, at the lane's
// own float4. `gy`: the first row of the stage + lane % 4, at the warp's first position + run_start(lane / 4). A tap's
// shift is an index into a window of registers, as in multiply_strips(). There a lane holds neighbours that are added
// up; here its neighbours are separate results.
template <class Plan>
__device__ __forceinline__ void multiply_runs(FusedSums<Plan>& sum, const float4* weights, const float* gy,
                                              unsigned zero) {
  using Group = typename Plan::Group;
  constexpr bool THREE = Plan::THREE;
  constexpr int RUN = Plan::RUN, RUNS = Plan::RUNS;
#pragma unroll Plan::X_UNROLL
  for (int n = 0; n < Plan::N8; ++n) {
    [[maybe_unused]] FusedSums<Plan> few = {};  // tf32x3: the tensor cores sum only a few terms
    auto& into = [&]() -> FusedSums<Plan>& {
      if constexpr (THREE) return few;
      else return sum;
    }();
    const_loop<0, Group::PLANES>([&](auto plane) {
      constexpr int P = decltype(plane)::value, WINDOW = RUN + Group::halo(P);
#pragma unroll
      for (int q = 0; q < RUNS; ++q) {
        float window[2][WINDOW];
        [[maybe_unused]] float rest[2][THREE ? WINDOW : 1];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          load_vectors(window[half], gy + (n * 8 + half * 4) * Plan::GY_PITCH + Plan::plane_at(P, Plan::TILE) +
                                         q * Plan::BLOCK);
          if constexpr (!THREE) {
#pragma unroll
            for (int i = 0; i < WINDOW; ++i) window[half][i] = own_register(window[half][i], zero);
          } else {
#pragma unroll
            for (int i = 0; i < WINDOW; ++i) {
              split_tf32(window[half][i], window[half][i], rest[half][i]);
            }
          }
        }
        const_loop<0, Plan::KT>([&](auto tap) {
          constexpr int K = decltype(tap)::value;
          if constexpr (Group::meets(K, P)) {
            constexpr int STEP = Group::step(K, P);
#pragma unroll
            for (int m = 0; m < Plan::MX; ++m) {
              const float4 w = weights[32 * (Plan::M16 * (K * Plan::N8 + n) + m)];
              float a[4] = {w.x, w.y, w.z, w.w};
              if constexpr (THREE) {
                float a_rest[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) split_tf32(a[i], a[i], a_rest[i]);
#pragma unroll
                for (int j = 0; j < RUN; ++j) {
                  const float b[2] = {window[0][j + STEP], window[1][j + STEP]};
                  const float b_rest[2] = {rest[0][j + STEP], rest[1][j + STEP]};
                  mma_m16n8k8_tf32(into[m][q][j], a_rest, b, into[m][q][j]);  // small terms first, while the sum is small
                  mma_m16n8k8_tf32(into[m][q][j], a, b_rest, into[m][q][j]);
                }
              }
#pragma unroll
              for (int j = 0; j < RUN; ++j) {
                const float b[2] = {window[0][j + STEP], window[1][j + STEP]};
                mma_m16n8k8_tf32(into[m][q][j], a, b, into[m][q][j]);
              }
            }
          }
        });
      }
    });
    if constexpr (THREE)
      for_sums<Plan>([&](int m, int q, int j, int i) { sum[m][q][j][i] += few[m][q][j][i]; });
  }
}

// Stores whole runs of a channel. In runs of 8, neighbouring lanes first exchange halves, so that two lanes together
// write a whole sector of 32 bytes. `to`: the warp's first channel, at its first position. `channels` and `columns`:
// how many of both exist from there on. `width` elements may be stored together.
template <class Plan, class Scalar>
__device__ __forceinline__ void store_runs(Scalar* to, const FusedSums<Plan>& sum, long long plane, int channels,
                                           int columns, int width, int lane) {
  constexpr int RUN = Plan::RUN;
  const bool odd = lane % 2;
#pragma unroll
  for (int eight = 0; eight < 2 * Plan::MX; ++eight)
#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int q = 0; q < Plan::RUNS; ++q) {
        const int m = eight / 2, i0 = eight % 2 * 2 + e, channel = lane / 4 + eight * 8;
        float v[RUN];
        int column[RUN / 4];
        if constexpr (RUN == 4) {
          column[0] = q * Plan::BLOCK + run_start<RUN>(lane % 4 * 2 + e);
#pragma unroll
          for (int j = 0; j < 4; ++j) v[j] = sum[m][q][j][i0];
        } else {
          column[0] = q * Plan::BLOCK + run_start<RUN>(lane % 4 / 2 * 4 + e) + (odd ? 4 : 0);
          column[1] = column[0] + 8;
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float low = sum[m][q][j][i0], high = sum[m][q][j + 4][i0];
            const float other = __shfl_xor_sync(0xffffffffu, odd ? low : high, 1);
            v[j] = odd ? other : low;
            v[j + 4] = odd ? high : other;
          }
        }
        if (channel >= channels) continue;
#pragma unroll
        for (int j = 0; j < RUN; j += 4) {
          Scalar* at = to + channel * plane + column[j / 4];
          const int left = columns - column[j / 4];
          if constexpr (sizeof(Scalar) == 4) {
            if (width == 4) {
              if (left > 0) *reinterpret_cast<float4*>(at) = make_float4(v[j], v[j + 1], v[j + 2], v[j + 3]);
              continue;
            }
          }
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (i < left) at[i] = narrow<Scalar>(v[j + i]);
        }
      }
}
