// How register_wgmma stores sums, without a branch for each store, as gather_store() has.
//
// Strides along W that are a power of two (plan.cuh: RUNS, ORDERS) are stored here, all others by gather_store().
// Rows of whole sectors, or 16 bytes and more for each position: each lane stores the results of its positions (store_runs). Rows
// that are aligned to 16, 8 or 4 bytes: a warpgroup puts the results of 64 positions and a few channels into shared memory, in the
// order of the result, and its threads then store neighbours, in long runs (store_ordered). Other rows: gather_store().
#pragma once
#include "families/persistent_wgmma/gather_store.cuh"
#include "families/register_wgmma/plan.cuh"
#include "hardware/warps_meet.cuh"

constexpr int STORE_RUNS = 1;  // else 16, 8 or 4 bytes that store_ordered() stores at once; 0: gather_store()

template <class P>
int how_to_store(int result_w, const typename P::Scalar* result) {
  if (!P::RUNS || result_w % P::RESULTS != 0) return 0;
  const auto aligned = [&](int bytes) { return 1LL * result_w * P::SIZE % bytes == 0 && size_t(result) % bytes == 0; };
  if (aligned(P::RESULTS * P::SIZE < 16 ? 32 : 16)) return STORE_RUNS;
  return !P::ORDERS ? 0 : aligned(16) ? 16 : aligned(8) ? 8 : aligned(4) ? 4 : 0;
}

// A word has two channels of a position. Lanes with an even position get it and the next one of the first eight, the others
// two of the last eight.
template <class Scalar>
__device__ __forceinline__ void exchange_halves(const Pack<Scalar, 2> (&words)[2], bool odd, Pack<Scalar, 2> (&channels)[2]) {
  const unsigned low = *reinterpret_cast<const unsigned*>(&words[0]), high = *reinterpret_cast<const unsigned*>(&words[1]);
  const unsigned other = __shfl_xor_sync(~0u, odd ? low : high, 4), first = odd ? other : low, second = odd ? high : other;
  *reinterpret_cast<unsigned*>(&channels[0]) = __byte_perm(first, second, 0x5410);
  *reinterpret_cast<unsigned*>(&channels[1]) = __byte_perm(first, second, 0x7632);
}

// A run: the neighbouring results along W that a lane stores. They belong to one position or, if that has 2 bytes, to two: then
// a lane exchanges values with a lane of the position beside its own. (With wider runs the exchange costs more than it saves.)
// Sum i of 8 columns is sum(block, class, eight, i).
template <class P, class Block, class Sum>
__device__ __forceinline__ void store_runs(const SourceRowsArguments<typename P::Scalar>& a, const GatherItem<P>& item, Block block,
                                           const GatherTarget& near, const GatherTarget& far, const Sum& sum) {
  using Scalar = typename P::Scalar;
  constexpr int N = P::RESULTS, MOST = 16 / P::SIZE;
  constexpr bool PAIRS = N * P::SIZE == 2;
  constexpr int RUN = PAIRS ? 2 : N, V = RUN < MOST ? RUN : MOST, HALVES = PAIRS ? 1 : 2;
  constexpr int BESIDE = P::MERGED % 2 == 0 ? 2 : 1, PLACES = HALVES * BESIDE;  // two row residues may share sectors
  const int lane = threadIdx.x % 32, first = item.channel + lane % 4 * 2;
  const bool odd = lane / 4 % 2;
  GatherTarget targets[2] = {near, far};
  if (PAIRS && odd) targets[0] = far, targets[0].w -= N;
  const_loop<0, P::MERGED / BESIDE>([&](auto number) {
    constexpr int BEGIN = decltype(number)::value * BESIDE;
    Scalar* to[PLACES];
    bool exists[PLACES];
#pragma unroll
    for (int i = 0; i < PLACES; ++i) {
      const GatherTarget& t = targets[i % HALVES];
      const int residue = item.row_group * P::MERGED + BEGIN + i / HALVES;
      const int d = t.d + (P::FORWARD ? residue / P::SH : 0), h = t.h + (P::FORWARD ? residue % P::SH : 0);
      exists[i] = d < a.result_d && h < a.result_h;
      to[i] = a.result + t.at + first * a.result_volume + (1LL * d * a.result_h + h) * a.result_w + t.w;
    }
    const_loop<0, P::CT / 8 * PLACES>([&](auto which) {
      constexpr int EIGHT = decltype(which)::value / PLACES, PLACE = decltype(which)::value % PLACES;
      constexpr int MERGED = BEGIN + PLACE / HALVES;
      const auto value = [&](auto r, int half, int channel) {
        constexpr int SLOT = P::slot_of(decltype(r)::value);
        return narrow<Scalar>(sum(block, Constant<SLOT * P::MERGED + MERGED>{}, Constant<EIGHT>{}, half * 2 + channel));
      };
      Pack<Scalar, RUN> runs[2];  // of two channels
      if constexpr (PAIRS) {
        Pack<Scalar, 2> words[2];
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i / 2].value[i % 2] = value(Constant<0>{}, i / 2, i % 2);
        exchange_halves(words, odd, runs);
      } else {
        const_loop<0, 2 * N>([&](auto i) {
          constexpr int CHANNEL = decltype(i)::value / N, R = decltype(i)::value % N;
          runs[CHANNEL].value[R] = value(Constant<R>{}, PLACE % 2, CHANNEL);
        });
      }
      const_loop<0, 2 * (RUN / V)>([&](auto part) {
        constexpr int CHANNEL = decltype(part)::value / (RUN / V), R = decltype(part)::value % (RUN / V) * V;
        if (exists[PLACE] && (P::M % P::CT == 0 || first + EIGHT * 8 + CHANNEL < P::M))
          gather_store_run(to[PLACE] + R, *reinterpret_cast<const Pack<Scalar, V>*>(&runs[CHANNEL].value[R]));
        if (R + V == RUN) to[PLACE] += CHANNEL == 0 ? a.result_volume : 7 * a.result_volume;
      });
    });
  });
}

// A vector is N bytes at the same place of some channels: of all row residues and positions of a block. A thread has one vector
// of every AT_ONCE-th channel, or PLACES vectors of every channel.
template <class P, int N>
struct OrderedVectors {
  static constexpr int OF_CHANNEL = P::STORED_ROW / N, OF_RESIDUE = OF_CHANNEL / P::MERGED;
  static constexpr int PLACES = OF_CHANNEL > 128 ? OF_CHANNEL / 128 : 1, AT_ONCE = OF_CHANNEL < 128 ? 128 / OF_CHANNEL : 1;
  typename P::Scalar* to[PLACES];  // in the thread's first channel
  bool exists[PLACES];

  __device__ __forceinline__ OrderedVectors(const SourceRowsArguments<typename P::Scalar>& a, const GatherItem<P>& item, int block,
                                           int warpgroup, int thread) {
#pragma unroll
    for (int i = 0; i < PLACES; ++i) {
      const int place = thread % OF_CHANNEL + i * 128, of_residue = place % OF_RESIDUE * N / P::SIZE;  // counted in results
      const int residue = item.row_group * P::MERGED + place / OF_RESIDUE;
      const GatherTarget t = gather_target<P>(a, item, warpgroup * P::ROWS + block * 64 + of_residue / P::RESULTS);
      const int d = t.d + (P::FORWARD ? residue / P::SH : 0), h = t.h + (P::FORWARD ? residue % P::SH : 0);
      exists[i] = d < a.result_d && h < a.result_h;
      to[i] = a.result + t.at + (item.channel + thread / OF_CHANNEL) * a.result_volume + (1LL * d * a.result_h + h) * a.result_w +
              t.w + of_residue % P::RESULTS;
    }
  }
  // `from`: the channels in shared memory; the first of them is number `channel` of the tile. `channels`: those that exist.
  __device__ __forceinline__ void store(const SourceRowsArguments<typename P::Scalar>& a, const char* from, int channel,
                                        int channels, int thread) const {
    using Part = Pack<typename P::Scalar, N / P::SIZE>;
#pragma unroll
    for (int next = 0; next < P::STORED; next += AT_ONCE)
#pragma unroll
      for (int i = 0; i < PLACES; ++i) {
        const int here = next + thread / OF_CHANNEL;
        if (exists[i] && (P::STORED % AT_ONCE == 0 || here < P::STORED) && channel + here < channels)
          gather_store_run(to[i] + (channel + next) * a.result_volume,
                           *reinterpret_cast<const Part*>(from + here * P::STORED_PITCH + (thread % OF_CHANNEL + i * 128) * N));
      }
  }
};

template <class P, int N, class Sum>
__device__ __forceinline__ void store_ordered(const SourceRowsArguments<typename P::Scalar>& a, const GatherItem<P>& item, char* room,
                                             const Sum& sum) {
  using Scalar = typename P::Scalar;
  const int thread = threadIdx.x % 128, warpgroup = threadIdx.x / 128, channels = P::M - item.channel;
  room += warpgroup * P::STORED * P::STORED_PITCH;
  // The thread's first result: two channels of a position, and of the one 8 further.
  char* const own = room + thread % 4 * 2 * P::STORED_PITCH + (thread / 32 * 16 + thread % 32 / 4) * P::RESULTS * P::SIZE;
  const_loop<0, P::BLOCKS>([&](auto block) {
    const OrderedVectors<P, N> vectors(a, item, decltype(block)::value, warpgroup, thread);
    const_loop<0, P::CT / P::STORED>([&](auto group) {
      constexpr int GROUP = decltype(group)::value;
      warps_meet<128>(1 + warpgroup);  // all have stored the channels before
      const_loop<0, P::STORED / 8 * P::MERGED * 4>([&](auto which) {
        constexpr int I = decltype(which)::value % 4, MERGED = decltype(which)::value / 4 % P::MERGED;
        constexpr int EIGHT = decltype(which)::value / 4 / P::MERGED;
        Pack<Scalar, P::RESULTS> values;
        const_loop<0, P::RESULTS>([&](auto r) {
          constexpr int SLOT = P::slot_of(decltype(r)::value);
          values.value[decltype(r)::value] = narrow<Scalar>(
              sum(block, Constant<SLOT * P::MERGED + MERGED>{}, Constant<GROUP * (P::STORED / 8) + EIGHT>{}, I));
        });
        *reinterpret_cast<Pack<Scalar, P::RESULTS>*>(own + (EIGHT * 8 + I % 2) * P::STORED_PITCH +
                                                     (MERGED * 64 + I / 2 * 8) * P::RESULTS * P::SIZE) = values;
      });
      warps_meet<128>(1 + warpgroup);
      vectors.store(a, room, GROUP * P::STORED, channels, thread);
    });
  });
}
