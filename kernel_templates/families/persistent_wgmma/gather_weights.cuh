// Packs weights for the gather kernel of persistent_wgmma, rounded once, in the order in which stages use them:
//     [group][row residues][channel tile][(kd, kh) of the residue][step along K][product][unit of K][column]
// in units of 16 bytes.
#pragma once
#include "hardware/const_loop.cuh"
#include "hardware/early_launch.cuh"
#include "hardware/pack.cuh"
#include "hardware/ptx.cuh"
#include "families/persistent_wgmma/gather_plan.cuh"

template <class Scalar>
__device__ __forceinline__ Scalar gather_rounded(Scalar value, float one) {
  if constexpr (sizeof(Scalar) == 4) {
    return round_for_tensor_cores(value, one);
  } else {
    return value;
  }
}

// Division is much shorter in 32 bits.
template <bool is_short>
struct GatherIndex {
  using type = unsigned;
};
template <>
struct GatherIndex<false> {
  using type = long long;
};

// thread -> data: one unit. Neighbouring threads read neighbouring taps. In grad_input these are taps of 8 columns that
// are neighbours in the result, so whole sectors are written.
template <class P>
__global__ void __launch_bounds__(256)
    pack_gather_weights(const typename P::Scalar* __restrict__ weight, char* __restrict__ packed, float one) {
  using Scalar = typename P::Scalar;
  constexpr int UNITS = P::STEPS * P::UNITS, ROWS = P::KD * P::KH;
  constexpr long long OF_GROUP = 1LL * P::TILES * P::CT * UNITS * ROWS * P::TAP_UNITS;
  let_next_kernel_start();
  const long long index = (1LL * blockIdx.y * gridDim.x + blockIdx.x) * 256 + threadIdx.x;
  if (index >= P::GROUPS * OF_GROUP) return;
  using Index = typename GatherIndex<(P::GROUPS * OF_GROUP < 1LL << 31)>::type;
  const int group = int(Index(index) / Index(OF_GROUP));
  Index rest = Index(index) % Index(OF_GROUP);
  constexpr int LOW = P::FORWARD ? 1 : 8;
  const int low = int(rest % LOW);
  rest /= LOW;
  const int tap = int(rest % P::TAP_UNITS), row = int(rest / P::TAP_UNITS % ROWS);
  rest /= P::TAP_UNITS * ROWS;
  // In memory one output channel follows the other: columns of forward, units of grad_input.
  const int m = int(P::FORWARD ? rest % (P::TILES * P::CT) : rest / UNITS * LOW + low);
  const int unit = int(P::FORWARD ? rest / (P::TILES * P::CT) : rest % UNITS);
  Pack<Scalar, P::E> value;
#pragma unroll
  for (int e = 0; e < P::E; ++e) {
    const int k = unit * P::CHANNELS + e / P::PACK;
    const long long channels = P::FORWARD ? (1LL * group * P::K + k) * P::M + m : (1LL * group * P::M + m) * P::K + k;
    value.value[e] = k < P::K && m < P::M
                         ? gather_rounded(weight[(channels * ROWS + row) * P::KW + tap * P::PACK + e % P::PACK], one)
                         : narrow<Scalar>(0.0f);
  }

  const int kd = row / P::KH, kh = row % P::KH;
  int row_group = 0, merged = 0, segment = row;
  if constexpr (P::FORWARD) {
    const int rd = P::D::residue(kd), rh = P::H::residue(kh);
    row_group = (rd * P::SH + rh) / P::MERGED, merged = (rd * P::SH + rh) % P::MERGED;
    const_loop<0, P::SH>([&](auto r) {  // kd / APART: taps of a residue before it
      if (rh == decltype(r)::value) segment = kd / P::D::APART * P::H::taps(decltype(r)::value).count + kh / P::H::APART;
    });
  }
  const int variety = (group * P::ROW_GROUPS + row_group) * P::TILES + m / P::CT;
  int column = m % P::CT, product = 0;
  const_loop<0, P::TAP_UNITS>([&](auto number) {
    constexpr int TAP = decltype(number)::value * P::PACK, SLOT = P::slot_of(P::residue(TAP));
    if (tap != decltype(number)::value) return;
    column += (SLOT * P::MERGED + merged) * P::CT;
    const_loop<0, P::COUNT>([&](auto which) {
      constexpr int PRODUCT = decltype(which)::value;
      constexpr int FIRST = P::PRODUCTS.at[PRODUCT].first, END = FIRST + P::PRODUCTS.at[PRODUCT].columns;
      if constexpr (P::PRODUCTS.at[PRODUCT].plane == P::plane_of(TAP) &&
                    P::PRODUCTS.at[PRODUCT].shift == P::shift(TAP) - P::LOW)
        if (FIRST <= column && column < END) product = PRODUCT;
    });
  });
  long long at = ((1LL * variety * P::SEGMENTS + segment) * P::STEPS + unit / P::UNITS) * P::WEIGHT_COLUMNS * P::UNITS;
  const_loop<0, P::COUNT>([&](auto number) {
    constexpr int PRODUCT = decltype(number)::value, COLUMNS = P::PRODUCTS.at[PRODUCT].columns;
    constexpr int FIRST = P::PRODUCTS.at[PRODUCT].first, BEFORE = P::PRODUCTS.at[PRODUCT].before;
    if (product == PRODUCT) at += BEFORE * P::UNITS + unit % P::UNITS * COLUMNS + (column - FIRST);
  });
  *reinterpret_cast<Pack<Scalar, P::E>*>(packed + 16 * at) = value;
}
