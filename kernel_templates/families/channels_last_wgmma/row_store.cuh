// How forward and grad_input of channels_last_wgmma store results. Four lanes hold two of each 8 channels of a
// position; they exchange 16-bit values, so that each lane stores 8 neighbouring channels.
#pragma once
#include "families/persistent_wgmma/gather_store.cuh"
#include "contract/flat_grid.cuh"
#include "hardware/early_launch.cuh"

// As gather_target, but `at` is the first position of the image: a position has all channels.
template <class P>
__device__ __forceinline__ GatherTarget row_target(const GatherArguments<typename P::Scalar>& a, const GatherItem<P>& item,
                                                    int offset) {
  const GatherStep step = gather_step(a, item.row0, item.step0, offset);
  if (step.row >= a.rows || step.w >= a.steps_w) return {0, 1 << 30, 0, 0};
  const GatherRow row(a, step.row);
  constexpr int UP_D = P::FORWARD ? P::SD : 1, UP_H = P::FORWARD ? P::SH : 1, UP_W = P::FORWARD ? P::S : 1;
  return {1LL * row.n * a.result_volume, row.d * UP_D, row.h * UP_H, step.w * UP_W};
}

// Transposes the words of four neighbouring lanes: in lane j, word[i] becomes word j of lane i.
__device__ __forceinline__ void exchange_in_four(unsigned (&word)[4]) {
#pragma unroll
  for (int apart = 1; apart < 4; apart *= 2) {
    const bool upper = threadIdx.x & apart;
#pragma unroll
    for (int low = 0; low < 4; ++low) {
      if (low & apart) continue;
      unsigned& here = word[low];
      unsigned& there = word[low + apart];
      const unsigned got = __shfl_xor_sync(~0u, upper ? here : there, apart);
      (upper ? here : there) = got;
    }
  }
}

// Stores N neighbouring channels from `channel` on. The group has M channels.
template <class P, int N>
__device__ __forceinline__ void row_store_run(typename P::Scalar* to, const Pack<typename P::Scalar, N>& value, int channel, bool wide) {
  if (wide) {
    if (channel < P::M) gather_store_run<typename P::Scalar, N>(to, value);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (channel + i < P::M) __stcs(to + i, value.value[i]);
  }
}

// As gather_store: the sums of EIGHTS times 8 channels, from `channel` on, at two positions.
template <class P, int EIGHTS, class Sum>
__device__ __forceinline__ void row_store(const GatherArguments<typename P::Scalar>& a, const GatherItem<P>& item,
                                           const GatherTarget (&targets)[2], int channel, const Sum& sum) {
  using Scalar = typename P::Scalar;
  constexpr int RUN = P::FORWARD ? P::S : 1;
  const int four = threadIdx.x % 4;
  const_loop<0, 2 * P::MERGED * RUN>([&](auto number) {
    constexpr int HALF = decltype(number)::value % 2, R = decltype(number)::value / 2 % RUN;
    constexpr int MERGED = decltype(number)::value / 2 / RUN, SLOT = P::slot_of(R);
    const GatherTarget& t = targets[HALF];
    const int residue = item.row_group * P::MERGED + MERGED;
    const int d = t.d + (P::FORWARD ? residue / P::SH : 0), h = t.h + (P::FORWARD ? residue % P::SH : 0), w = t.w + R;
    const bool exists = d < a.result_d && h < a.result_h && w < a.result_w;
    const long long position = t.at + (1LL * d * a.result_h + h) * a.result_w + w;
    Scalar* const to = a.result + position * (P::GROUPS * P::M) + item.group * P::M;
    const auto pair = [&](auto eight) {  // of this lane
      constexpr int EIGHT = decltype(eight)::value;
      Pack<Scalar, 2> two;
      const_loop<0, 2>([&](auto odd) {
        float value = 0.0f;
        if constexpr (SLOT >= 0) {
          value = sum(Constant<SLOT * P::MERGED + MERGED>{}, Constant<EIGHT>{}, HALF * 2 + decltype(odd)::value);
        } else if constexpr (P::HAS_BIAS) {
          const int from = channel + EIGHT * 8 + four * 2 + decltype(odd)::value;
          if (from < P::M) value = float(widen(guarded_load(a.bias + item.group * P::M + from)));
        }
        two.value[decltype(odd)::value] = narrow<Scalar>(value);
      });
      return two;
    };
    const_loop<0, ceil_div(EIGHTS, 4)>([&](auto which) {
      constexpr int FIRST = decltype(which)::value * 4;
      unsigned word[4] = {};
      const_loop<0, (EIGHTS - FIRST < 4 ? EIGHTS - FIRST : 4)>([&](auto i) {
        const Pack<Scalar, 2> two = pair(Constant<FIRST + decltype(i)::value>{});
        word[decltype(i)::value] = *reinterpret_cast<const unsigned*>(&two);
      });
      exchange_in_four(word);
      Pack<Scalar, 8> values;
      *reinterpret_cast<uint4*>(&values) = make_uint4(word[0], word[1], word[2], word[3]);
      const int from = channel + (FIRST + four) * 8;
      if (exists && FIRST + four < EIGHTS) row_store_run<P, 8>(to + from, values, from, a.wide_stores);
    });
  });
}

template <class P>
__device__ __forceinline__ void row_targets(const GatherArguments<typename P::Scalar>& a, const GatherItem<P>& item, int thread,
                                             int block, GatherTarget (&targets)[2]) {
  const int offset = thread / 128 * P::ROWS + block * 64 + thread % 128 / 32 * 16 + thread % 32 / 4;
  targets[0] = row_target<P>(a, item, offset), targets[1] = row_target<P>(a, item, offset + 8);
}

// Adds the parts of an item in their order. A block has 8 channels of the 64 positions of both warpgroups.
template <class P>
__global__ void __launch_bounds__(P::CONSUMERS) add_row_parts(GatherArguments<typename P::Scalar> a) {
  constexpr int PIECES = P::BLOCKS * (P::CT / 8), C = P::CLASSES;
  const long long number = flat_block();
  const int which = int(number / PIECES), piece = int(number % PIECES), block = piece / (P::CT / 8), eight = piece % (P::CT / 8);
  wait_for_kernel_ahead();
  if (1LL * which * a.splits.divisor >= a.items - a.unsplit) return;
  const GatherItem<P> item(a, a.unsplit + which * a.splits.divisor);
  GatherTarget targets[2];
  row_targets<P>(a, item, threadIdx.x, block, targets);
  float total[C][4] = {};
  const float4* from = a.partial + gather_partial<P>(a.splits.divisor, which, 0, block, eight) + threadIdx.x;
#pragma unroll 4
  for (int part = 0; part < a.splits.divisor; ++part, from += 1LL * PIECES * C * P::CONSUMERS) {
#pragma unroll
    for (int i = 0; i < C; ++i) {
      const float4 v = __ldcs(from + i * P::CONSUMERS);
      total[i][0] += v.x, total[i][1] += v.y, total[i][2] += v.z, total[i][3] += v.w;
    }
  }
  row_store<P, 1>(a, item, targets, item.channel + eight * 8,
                  [&](auto slot, auto, int i) { return total[decltype(slot)::value][i]; });
}
