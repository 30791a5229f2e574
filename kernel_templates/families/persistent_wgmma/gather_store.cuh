// How the gather kernel of persistent_wgmma stores its sums. A thread holds all residues along W of a position and
// channel, which are neighbours in the result, and lanes hold neighbouring positions.
#pragma once
#include "families/persistent_wgmma/gather_places.cuh"
#include "hardware/const_loop.cuh"
#include "hardware/early_launch.cuh"
#include "hardware/guarded_load.cuh"
#include "hardware/pack.cuh"

// Where the results of a position lie.
struct GatherTarget {
  long long at;  // of the group's first channel
  int d, h, w;   // the first result of the position; d is far outside if there is none
};

template <class P>
__device__ __forceinline__ GatherTarget gather_target(const GatherArguments<typename P::Scalar>& a, const GatherItem<P>& item,
                                                      int offset) {
  const GatherStep step = gather_step(a, item.row0, item.step0, offset);
  if (step.row >= a.rows || step.w >= a.steps_w) return {0, 1 << 30, 0, 0};
  const GatherRow row(a, step.row);
  constexpr int UP_D = P::FORWARD ? P::SD : 1, UP_H = P::FORWARD ? P::SH : 1, UP_W = P::FORWARD ? P::S : 1;
  return {(1LL * row.n * P::GROUPS + item.group) * P::M * a.result_volume, row.d * UP_D, row.h * UP_H, step.w * UP_W};
}

template <class Scalar, int N>
__device__ __forceinline__ void gather_store_run(Scalar* to, const Pack<Scalar, N>& value) {
  constexpr int BYTES = N * int(sizeof(Scalar));
  if constexpr (BYTES == 16) {
    __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&value));
  } else if constexpr (BYTES == 8) {
    __stcs(reinterpret_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&value));
  } else if constexpr (BYTES == 4) {
    __stcs(reinterpret_cast<unsigned*>(to), *reinterpret_cast<const unsigned*>(&value));
  } else {
    __stcs(reinterpret_cast<unsigned short*>(to), *reinterpret_cast<const unsigned short*>(&value));
  }
}

// The stores of an odd stride: a thread's results are too few and not aligned for wide stores. So a warp reorders them
// in shared memory (`room`): its lanes then store neighbouring results of 16 positions, channel by channel.
template <class P, int EIGHTS, class Sum>
__device__ __forceinline__ void gather_store_odd(const GatherArguments<typename P::Scalar>& a, const GatherItem<P>& item,
                                                 const GatherTarget (&targets)[2], int channel, char* room, const Sum& sum) {
  using Scalar = typename P::Scalar;
  constexpr int RUN = 16 * P::S;  // of a channel
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  long long* const places = reinterpret_cast<long long*>(room) + warp * (4 * RUN);
  Scalar* const values = reinterpret_cast<Scalar*>(room + 8 * 8 * 4 * RUN) + warp * (4 * RUN);
  const_loop<0, P::MERGED>([&](auto merged) {
    constexpr int MERGED = decltype(merged)::value;
    const int residue = item.row_group * P::MERGED + MERGED;
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const GatherTarget& t = targets[half];
      const int d = t.d + residue / P::SH, h = t.h + residue % P::SH, here = channel + lane % 4 * 2;
      const int left = d < a.result_d && h < a.result_h ? a.result_w - t.w : 0;
      const long long first = t.at + here * a.result_volume + (1LL * d * a.result_h + h) * a.result_w + t.w;
#pragma unroll
      for (int r = 0; r < P::S; ++r)  // less than 0: nothing is stored
        places[lane % 4 * RUN + (lane / 4 + half * 8) * P::S + r] = r < left ? first + r : -1;
    }
    const_loop<0, 2 * EIGHTS>([&](auto pair) {
      constexpr int EIGHT = decltype(pair)::value / 2, ODD = decltype(pair)::value % 2;
      __syncwarp();
      const_loop<0, 2 * P::S>([&](auto which) {
        constexpr int R = decltype(which)::value / 2, HALF = decltype(which)::value % 2, SLOT = P::slot_of(R);
        float value = 0.0f;
        if constexpr (SLOT >= 0) {
          value = sum(Constant<SLOT * P::MERGED + MERGED>{}, Constant<EIGHT>{}, HALF * 2 + ODD);
        } else if constexpr (P::HAS_BIAS) {
          const int from = channel + EIGHT * 8 + lane % 4 * 2 + ODD;
          if (from < P::M) value = float(widen(guarded_load(a.bias + item.group * P::M + from)));
        }
        values[lane % 4 * RUN + (lane / 4 + HALF * 8) * P::S + R] = narrow<Scalar>(value);
      });
      __syncwarp();
      Scalar* const to = a.result + (EIGHT * 8 + ODD) * a.result_volume;
#pragma unroll
      for (int i = lane; i < 4 * RUN; i += 32) {
        const long long at = places[i];
        if (at >= 0 && (P::M % P::CT == 0 || channel + EIGHT * 8 + i / RUN * 2 + ODD < P::M)) __stcs(to + at, values[i]);
      }
    });
  });
}

// The sums of EIGHTS times 8 channels, from `channel` on, at two positions: sum(class, eight, i) is sum i of 8 columns.
// They contain the bias, but results that no tap meets have none.
template <class P, int EIGHTS, class Sum>
__device__ __forceinline__ void gather_store(const GatherArguments<typename P::Scalar>& a, const GatherItem<P>& item,
                                             const GatherTarget (&targets)[2], int channel, char* room, const Sum& sum) {
  using Scalar = typename P::Scalar;
  if constexpr (P::ODD) return gather_store_odd<P, EIGHTS>(a, item, targets, channel, room, sum);
  constexpr int RUN = P::FORWARD ? P::S : 1;
  constexpr int MOST = 16 / int(sizeof(Scalar)), V = RUN % MOST == 0 ? MOST : RUN % 4 == 0 ? 4 : RUN % 2 == 0 ? 2 : 1;
  const int first = channel + threadIdx.x % 4 * 2;
  // Two row residues may share sectors, so they are stored together, as neighbouring positions are.
  constexpr int PAIR = P::MERGED % 2 == 0 ? 2 : 1, PLACES = 2 * PAIR;
  const_loop<0, P::MERGED / PAIR>([&](auto number) {
    constexpr int BEGIN = decltype(number)::value * PAIR;
    Scalar* to[PLACES];
    bool exists[PLACES];
#pragma unroll
    for (int i = 0; i < PLACES; ++i) {
      const GatherTarget& t = targets[i % 2];
      const int residue = item.row_group * P::MERGED + BEGIN + i / 2;
      const int d = t.d + (P::FORWARD ? residue / P::SH : 0), h = t.h + (P::FORWARD ? residue % P::SH : 0);
      exists[i] = d < a.result_d && h < a.result_h;
      to[i] = a.result + t.at + first * a.result_volume + (1LL * d * a.result_h + h) * a.result_w + t.w;
    }
    const_loop<0, 2 * EIGHTS * PLACES>([&](auto which) {
      constexpr int EIGHT = decltype(which)::value / PLACES / 2, ODD = decltype(which)::value / PLACES % 2;
      constexpr int PLACE = decltype(which)::value % PLACES, HALF = PLACE % 2, MERGED = BEGIN + PLACE / 2;
      if (exists[PLACE] && first + EIGHT * 8 + ODD < P::M)
        const_loop<0, RUN / V>([&](auto run) {
          constexpr int R = decltype(run)::value * V;
          Pack<Scalar, V> values;
          const_loop<0, V>([&](auto i) {
            constexpr int SLOT = P::slot_of(R + decltype(i)::value);
            float value = 0.0f;
            if constexpr (SLOT >= 0) {
              value = sum(Constant<SLOT * P::MERGED + MERGED>{}, Constant<EIGHT>{}, HALF * 2 + ODD);
            } else if constexpr (P::HAS_BIAS) {
              value = float(widen(guarded_load(a.bias + item.group * P::M + first + EIGHT * 8 + ODD)));
            }
            values.value[decltype(i)::value] = narrow<Scalar>(value);
          });
          if (V > 1 && a.wide_stores) {
            if (targets[HALF].w + R < a.result_w) gather_store_run<Scalar, V>(to[PLACE] + R, values);
          } else {
#pragma unroll
            for (int i = 0; i < V; ++i)
              if (targets[HALF].w + R + i < a.result_w) __stcs(to[PLACE] + R + i, values.value[i]);
          }
        });
      to[PLACE] += ODD == 0 ? a.result_volume : 7 * a.result_volume;
    });
  });
}

// Sums of a part of an item wait in the workspace: [item][part][block of 64 positions][8 channels][class][thread].
template <class P>
__device__ __forceinline__ long long gather_partial(int splits, int item, int split, int block, int eight) {
  return ((((1LL * item * splits + split) * P::BLOCKS + block) * (P::CT / 8) + eight) * P::CLASSES) * P::CONSUMERS;
}

template <class P>
__device__ __forceinline__ void gather_targets(const GatherArguments<typename P::Scalar>& a, const GatherItem<P>& item,
                                               int thread, int block, GatherTarget (&targets)[2]) {
  const int offset = thread / 128 * P::ROWS + block * 64 + thread % 128 / 32 * 16 + thread % 32 / 4;
  targets[0] = gather_target<P>(a, item, offset), targets[1] = gather_target<P>(a, item, offset + 8);
}

// Adds the parts of an item in their order. A block has 8 channels of the 64 positions of both warpgroups. The first turn
// stores nothing: it loads the instructions into the cache while the kernel ahead still runs.
template <class P>
__global__ void __launch_bounds__(P::CONSUMERS) add_gather_parts(GatherArguments<typename P::Scalar> a) {
  constexpr int PIECES = P::BLOCKS * (P::CT / 8), C = P::CLASSES;
  __shared__ __align__(16) char room[P::ODD ? P::ODD_BYTES : 1];
  constexpr int TOGETHER = C > 8 ? 1 : C > 2 ? 2 : C > 1 ? 4 : 8;  // parts whose loads are under way
  const long long number = 1LL * blockIdx.y * gridDim.x + blockIdx.x;
  const int whole = int(number / PIECES), piece = int(number % PIECES), block = piece / (P::CT / 8), eight = piece % (P::CT / 8);
  const bool exists = 1LL * whole * a.splits.divisor < a.items - a.unsplit;
  const GatherItem<P> item(a, exists ? a.unsplit + whole * a.splits.divisor : a.unsplit);
#pragma unroll 1
  for (int turn = 0; turn < 2; ++turn) {
    const bool dry = turn == 0;
    if (!dry) wait_for_kernel_ahead();
    if (!exists) continue;
    GatherTarget targets[2];
    gather_targets<P>(a, item, threadIdx.x, block, targets);
    if (dry) targets[0].d = targets[1].d = 1 << 30;
    float total[C][4] = {};
    const float4* from = a.partial + gather_partial<P>(a.splits.divisor, whole, 0, block, eight) + threadIdx.x;
    constexpr long long NEXT = 1LL * PIECES * C * P::CONSUMERS;
    const int parts = dry ? 0 : a.splits.divisor;
#pragma unroll 1
    for (int part = 0; part < parts; part += TOGETHER, from += TOGETHER * NEXT) {
      float4 value[TOGETHER][C];
#pragma unroll
      for (int i = 0; i < TOGETHER * C; ++i)
        if (part + i / C < parts) value[i / C][i % C] = __ldcs(from + i / C * NEXT + i % C * P::CONSUMERS);
#pragma unroll
      for (int i = 0; i < TOGETHER * C; ++i)
        if (part + i / C < parts) {
          const float4 v = value[i / C][i % C];
          total[i % C][0] += v.x, total[i % C][1] += v.y, total[i % C][2] += v.z, total[i % C][3] += v.w;
        }
    }
    gather_store<P, 1>(a, item, targets, item.channel + eight * 8, room,
                       [&](auto which, auto, int i) { return total[decltype(which)::value][i]; });
  }
}
