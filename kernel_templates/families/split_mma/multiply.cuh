// What a warp of split_mma does with a staged tile. fused_mma uses it too.
#pragma once
#include "hardware/const_loop.cuh"
#include "hardware/own_register.cuh"
#include "hardware/ptx.cuh"
#include "families/split_mma/plan.cuh"

// x = big + rest: the nearest TF32 and its remainder, exact in float. The tensor core drops the part of the remainder
// below 2^-21 of x. An infinity has no remainder; a NaN stays a NaN. This takes five operations; two calls of
// round_to_tf32 take twice as many. In tf32x3 splitting takes longer than the products.
__device__ __forceinline__ void split_tf32(float x, float& big, float& rest) {
  const float infinity = __uint_as_float(0x7F800000u), whole = x;  // big may be the same variable
  big = __uint_as_float((__float_as_uint(whole) + (fabsf(whole) < infinity ? 0x1000u : 0u)) & 0xFFFFE000u);
  big = whole != whole ? __uint_as_float(0x7FFFFFFFu) : big;
  rest = fabsf(big) < infinity ? whole - big : 0.f;  // the largest floats round to infinity
}

template <int COUNT>
__device__ __forceinline__ void load_vectors(float (&to)[COUNT], const float* from) {
  static_assert(COUNT % 4 == 0, "whole vectors of 16 bytes");
#pragma unroll
  for (int i = 0; i < COUNT / 4; ++i) {
    const float4 v = *reinterpret_cast<const float4*>(from + 4 * i);
    to[4 * i] = v.x, to[4 * i + 1] = v.y, to[4 * i + 2] = v.z, to[4 * i + 3] = v.w;
  }
}

template <class Plan>
using SplitMmaSums = float[Plan::MA][Plan::NB][Plan::KT][4];

// Four words, each two 16-bit floats.
template <int COUNT, class Scalar>
__device__ __forceinline__ void load_words(unsigned (&to)[COUNT], const Scalar* from) {
  static_assert(COUNT % 4 == 0 && sizeof(Scalar) == 2, "whole vectors of 16 bytes");
#pragma unroll
  for (int i = 0; i < COUNT / 4; ++i) {
    const uint4 v = *reinterpret_cast<const uint4*>(from + 8 * i);
    to[4 * i] = v.x, to[4 * i + 1] = v.y, to[4 * i + 2] = v.z, to[4 * i + 3] = v.w;
  }
}

// Pairs that begin at an even place are loaded to neighbouring registers. The other pairs are taken from `odd`.
template <int COUNT, class Value>
__device__ __forceinline__ void own_registers(Value (&odd)[COUNT], const Value (&loaded)[COUNT], unsigned zero) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) odd[i] = own_register(loaded[i], zero);
}

// multiply_strips for 16-bit floats. MMA j takes positions 4 j .. 4 j + 3 of every strip. Pairs of positions are words
// as they lie in memory. With an odd shift a pair is made of the halves of two words.
template <class Plan, int X_PITCH, int GY_PITCH, bool is_bfloat, class Scalar>
__device__ __forceinline__ void multiply_halves(SplitMmaSums<Plan>& sum, const Scalar* x, const Scalar* gy,
                                                unsigned zero) {
  using Group = typename Plan::Group;
  unsigned a[Plan::MA][2][4];
#pragma unroll
  for (int m = 0; m < Plan::MA; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unsigned row[4];
      load_words(row, x + (m * 16 + half * 8) * X_PITCH);
#pragma unroll
      for (int i = 0; i < 4; ++i) a[m][i / 2][i % 2 * 2 + half] = own_register(row[i], zero);
    }
#pragma unroll
  for (int n = 0; n < Plan::NB; ++n) {
    const_loop<0, Group::PLANES>([&](auto plane) {
      constexpr int P = decltype(plane)::value, WINDOW = (8 + Group::halo(P)) / 2;
      unsigned window[2][2][WINDOW];  // [shifted by a position][by a register]
      load_words(window[0][0], gy + n * 8 * GY_PITCH + Plan::plane_at(P, Plan::TILE));
#pragma unroll
      for (int i = 0; i < WINDOW; ++i)
        window[1][0][i] = window[0][0][i] >> 16 | (i + 1 < WINDOW ? window[0][0][i + 1] << 16 : 0);
#pragma unroll
      for (int on = 0; on < 2; ++on) own_registers(window[on][1], window[on][0], zero);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const_loop<0, Plan::KT>([&](auto tap) {
          constexpr int K = decltype(tap)::value, TAP = Group::END - Group::COUNT + K;
          if constexpr (Group::meets(TAP, P)) {
            constexpr int STEP = Group::step(TAP, P), WORD = STEP / 2;
            const unsigned(&from)[WINDOW] = window[STEP % 2][WORD % 2];
            const unsigned b[2] = {from[2 * j + WORD], from[2 * j + 1 + WORD]};
#pragma unroll
            for (int m = 0; m < Plan::MA; ++m) mma_m16n8k16<is_bfloat>(sum[m][n][K], a[m][j], b, sum[m][n][K]);
          }
        });
      }
    });
  }
}

// sum += x * gy over 32 positions. The slots of an MMA's sum may be any positions as long as both operands agree. So
// lane column t owns the strip of positions 8 t .. 8 t + 7, and MMA j takes its positions 2 j and 2 j + 1. A tap's
// shift is then an index into a window of registers, and one read of gy serves every tap of the row.
// x and gy point at (first row of the warp's tile + lane / 4, 8 * (lane % 4)). `zero`: see own_register().
template <class Plan, int X_PITCH, int GY_PITCH>
__device__ __forceinline__ void multiply_strips(SplitMmaSums<Plan>& sum, const float* x, const float* gy,
                                                unsigned zero) {
  using Group = typename Plan::Group;
  constexpr int MA = Plan::MA, NB = Plan::NB;
  constexpr bool THREE = Plan::THREE;
  float a[MA][4][4];
  [[maybe_unused]] float a_rest[THREE ? MA : 1][4][4];
#pragma unroll
  for (int m = 0; m < MA; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float row[8];
      load_vectors(row, x + (m * 16 + half * 8) * X_PITCH);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& own = a[m][i / 2][i % 2 * 2 + half];
        if constexpr (THREE) {
          split_tf32(row[i], own, a_rest[m][i / 2][i % 2 * 2 + half]);
        } else {
          own = own_register(row[i], zero);
        }
      }
    }
#pragma unroll
  for (int n = 0; n < NB; ++n) {
    const_loop<0, Group::PLANES>([&](auto plane) {
      constexpr int P = decltype(plane)::value, WINDOW = 8 + Group::halo(P);
      float window[2][WINDOW];  // [shifted by a register]
      [[maybe_unused]] float window_rest[2][THREE ? WINDOW : 1];
      load_vectors(window[0], gy + n * 8 * GY_PITCH + Plan::plane_at(P, Plan::TILE));
      if constexpr (THREE) {
#pragma unroll
        for (int i = 0; i < WINDOW; ++i) {
          const float whole = window[0][i];
          split_tf32(whole, window[0][i], window_rest[0][i]);
        }
        own_registers(window_rest[1], window_rest[0], zero);
      }
      own_registers(window[1], window[0], zero);
      // The loop runs along the strip outside and over taps inside, so neighbouring MMAs add to different sums.
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const_loop<0, Plan::KT>([&](auto tap) {
          constexpr int K = decltype(tap)::value, TAP = Group::END - Group::COUNT + K;
          if constexpr (Group::meets(TAP, P)) {
            constexpr int STEP = Group::step(TAP, P), PARITY = STEP % 2;
            const int at = 2 * j + STEP;
            const float b[2] = {window[PARITY][at], window[PARITY][at + 1]};
#pragma unroll
            for (int m = 0; m < MA; ++m) {
              float(&d)[4] = sum[m][n][K];
              if constexpr (THREE) {
                const float b_rest[2] = {window_rest[PARITY][at], window_rest[PARITY][at + 1]};
                mma_m16n8k8_tf32(d, a_rest[m][j], b, d);  // small terms first, while the sum is small
                mma_m16n8k8_tf32(d, a[m][j], b_rest, d);
              }
              mma_m16n8k8_tf32(d, a[m][j], b, d);
            }
          }
        });
      }
    });
  }
}
