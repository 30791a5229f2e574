// Packs weights for grad_input of channels_last_wgmma, in the order of gather_weights.cuh: the phases along W are channels.
#pragma once
#include "families/channels_last_wgmma/row_plan.cuh"
#include "families/persistent_wgmma/gather_weights.cuh"
#include "contract/flat_grid.cuh"

// thread -> data: one unit. Eight neighbouring threads have neighbouring columns of the result; the next eight have another tap.
template <class P>
__global__ void __launch_bounds__(256) pack_row_weights(const typename P::Scalar* __restrict__ weight, char* __restrict__ packed) {
  using Scalar = typename P::Scalar;
  constexpr int UNITS = P::STEPS * P::UNITS, ROWS = P::KD * P::KH, C = P::Row::CHANNELS;
  constexpr long long ALL = 1LL * P::GROUPS * P::TILES * P::CT * UNITS * ROWS * P::TAP_UNITS;
  let_next_kernel_start();
  const long long index = flat_block() * 256 + threadIdx.x;
  if (index >= ALL) return;
  using Index = typename GatherIndex<(ALL < 1LL << 31)>::type;
  Index rest = Index(index);
  const auto next = [&](int count) {
    const int at = int(rest % Index(count));
    rest /= Index(count);
    return at;
  };
  const int low = next(8), tap = next(P::TAP_UNITS), row = next(ROWS), unit = next(UNITS);
  const int m = next(P::TILES * P::CT / 8) * 8 + low, group = int(rest);
  const int phase = unit / P::Row::OF_PHASE, channel = (unit - phase * P::Row::OF_PHASE) * 8, kw = phase + tap * P::Row::APART;
  Pack<Scalar, 8> value;
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const int c = channel + e;
    const bool there = unit < P::ALL_UNITS && kw < P::Row::KERNEL && c < C && m < P::M;
    value.value[e] = there ? weight[(((1LL * group * P::M + m) * C + c) * ROWS + row) * P::Row::KERNEL + kw] : narrow<Scalar>(0.0f);
  }
  const int column = m % P::CT, variety = group * P::TILES + m / P::CT;
  long long at = ((1LL * variety * P::SEGMENTS + row) * P::STEPS + unit / P::UNITS) * P::WEIGHT_COLUMNS * P::UNITS;
  const_loop<0, P::COUNT>([&](auto number) {
    constexpr GatherProduct PRODUCT = P::PRODUCTS.at[decltype(number)::value];
    if (P::shift(tap) == PRODUCT.shift && PRODUCT.first <= column && column < PRODUCT.first + PRODUCT.columns)
      at += PRODUCT.before * P::UNITS + unit % P::UNITS * PRODUCT.columns + (column - PRODUCT.first);
  });
  *reinterpret_cast<Pack<Scalar, 8>*>(packed + 16 * at) = value;
}
