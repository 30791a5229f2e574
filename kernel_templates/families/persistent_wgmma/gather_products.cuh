// What a multiplying warpgroup of a gather kernel does with a stage, and how its sums begin.
#pragma once
#include "families/persistent_wgmma/gather_places.cuh"
#include "hardware/guarded_load.cuh"
#include "hardware/wgmma.cuh"

// All products of a warpgroup in one stage, issued back to back. A shift along W is a shift of the descriptor.
template <class P>
__device__ __forceinline__ void gather_products(float (&sum)[P::BLOCKS][P::N / 2], unsigned stage, int warpgroup) {
  const unsigned window = stage + 16 * warpgroup * P::ROWS, weights = stage + P::WINDOW_BYTES;
  const unsigned long long a0 = matrix_descriptor(window, 16 * P::UNIT_ROWS, 128);
  const unsigned long long b0 = matrix_descriptor(weights, 0, 128);
  const_loop<0, P::COUNT * (P::UNITS / 2)>([&](auto number) {
    constexpr int PRODUCT = decltype(number)::value / (P::UNITS / 2), UNIT = decltype(number)::value % (P::UNITS / 2) * 2;
    constexpr int COLUMNS = P::PRODUCTS.at[PRODUCT].columns, FIRST = P::PRODUCTS.at[PRODUCT].first;
    constexpr int WEIGHTS_AT = P::PRODUCTS.at[PRODUCT].before * P::UNITS + UNIT * COLUMNS;
    constexpr int WINDOW_AT = UNIT * P::UNIT_ROWS + P::PRODUCTS.at[PRODUCT].plane * P::PLANE_ROWS + P::PRODUCTS.at[PRODUCT].shift;
    const_loop<0, P::BLOCKS>([&](auto block) {
      constexpr int BLOCK = decltype(block)::value;
      wgmma<P::precision, typename P::Scalar, COLUMNS>(reinterpret_cast<float(&)[COLUMNS / 2]>(sum[BLOCK][FIRST / 2]),
                                                       a0 + (WINDOW_AT + 64 * BLOCK),
                                                       b0 + (static_cast<unsigned long long>(COLUMNS) << 16) + WEIGHTS_AT, 1);
    });
  });
}

// Sums begin with the bias. If an item is split, this holds for its first part only; the others begin with 0.
template <class P>
__device__ __forceinline__ void gather_begin(const GatherArguments<typename P::Scalar>& a, const GatherItem<P>& item,
                                             bool with_bias, float (&sum)[P::BLOCKS][P::N / 2]) {
#pragma unroll
  for (int eight = 0; eight < P::CT / 8; ++eight)
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const int channel = item.channel + eight * 8 + threadIdx.x % 4 * 2 + odd;
      float bias = 0.0f;
      if constexpr (P::HAS_BIAS)
        if (with_bias && channel < P::M) bias = float(widen(guarded_load(a.bias + item.group * P::M + channel)));
#pragma unroll
      for (int i = 0; i < P::BLOCKS * P::CLASSES * 2; ++i)
        sum[i / 2 / P::CLASSES][(i / 2 % P::CLASSES * (P::CT / 8) + eight) * 4 + i % 2 * 2 + odd] = bias;
    }
}
