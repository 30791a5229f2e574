// The warps of persistent_wgmma's gather kernel that stage: they load a window of the source, round it, and lay 16 bytes
// of K (a unit) of each position side by side. Staging warpgroups take stages in turn, so the loads of several stages
// are under way. One thread of the warpgroup issues the bulk copy of the stage's weights.
#pragma once
#include "families/persistent_wgmma/gather_places.cuh"
#include "families/persistent_wgmma/gather_weights.cuh"
#include "contract/computed_anew.cuh"
#include "hardware/early_launch.cuh"
#include "hardware/mbarrier_await.cuh"
#include "hardware/wgmma.cuh"

// Barriers of the ring: a stage is full or empty.
struct GatherBarriers {
  unsigned full, empty;
};

// A place in the ring and its parity.
template <int STAGES>
struct GatherRing {
  int stage = 0, parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

// Where an element of the window lies in the source, and which of its PACK values exist, a bit each.
struct GatherSlot {
  long long at;  // of the group's first channel
  unsigned exist;
};

template <class P>
__device__ __forceinline__ GatherSlot gather_slot(const GatherArguments<typename P::Scalar>& a, const GatherItem<P>& item,
                                                  int segment_d, int segment_h, int element) {
  const GatherStep step = gather_step(a, item.row0, item.step0, P::LOW + element / P::PLANES);
  int phase = 0;
  const_loop<0, P::PLANES>([&](auto plane) {
    if (element % P::PLANES == decltype(plane)::value) phase = P::phase_of(decltype(plane)::value);
  });
  const int w = P::FORWARD ? step.w : step.w * P::S + phase - P::PW;
  const GatherRow row(a, step.row);
  const int d = row.d * P::SOURCE_D + item.d.at + segment_d * P::D::STEP;
  const int h = row.h * P::SOURCE_H + item.h.at + segment_h * P::H::STEP;
  if (unsigned(step.row) >= unsigned(a.rows) || unsigned(d) >= unsigned(a.source_d) || unsigned(h) >= unsigned(a.source_h))
    return {0, 0};
  unsigned exist = 0;
#pragma unroll
  for (int e = 0; e < P::PACK; ++e) exist |= unsigned(unsigned(w + e) < unsigned(a.source_w)) << e;
  return {((1LL * row.n * P::GROUPS + item.group) * P::K) * a.source_volume + (1LL * d * a.source_h + h) * a.source_w + w, exist};
}

// thread -> data: the same elements of the window in every stage; neighbours in memory are neighbouring lanes. Of the few
// elements that remain, each thread copies one unit.
template <class P>
struct GatherWindow {
  using Scalar = typename P::Scalar;
  struct Unit {
    unsigned word[4];
  };
  static constexpr int REST = P::ELEMENTS % 128;
  static constexpr bool SHARED = REST > 0 && REST * P::UNITS <= 128;
  static constexpr int SLOTS = P::ELEMENTS / 128 + (REST > 0 && !SHARED);
  // Units under way: as many as registers hold beside the places of the slots.
  static constexpr int ROOM = P::FEW && P::PACK > 1 && P::E == 4 && SLOTS <= 2 ? 16
                              : SLOTS > 4 || (P::KD > 1 && !P::FEW && SLOTS * P::PLANES > 4) ? 4
                                                                                                  : 8;
  static constexpr int LOADS = SLOTS * P::UNITS, MOST = P::E == 4 || P::PACK > 1 ? ROOM : ROOM / 2;
  static constexpr int BATCH = LOADS < MOST ? LOADS : MOST;

  const GatherArguments<Scalar>& a;
  static constexpr bool EVEN = 128 % P::PLANES == 0;  // a thread's elements lie in one plane
  GatherSlot slots[SLOTS], left_over;
  int to[EVEN ? 1 : SLOTS], left_over_to, thread, left_over_unit;

  __device__ __forceinline__ GatherWindow(const GatherArguments<Scalar>& arguments, int thread_of_warpgroup)
      : a(arguments), left_over_to(0), thread(thread_of_warpgroup), left_over_unit(0) {
#pragma unroll
    for (int i = 0; i < (EVEN ? 1 : SLOTS); ++i) to[i] = place(thread + i * 128);
    if constexpr (SHARED) left_over_to = place(SLOTS * 128 + thread % REST), left_over_unit = thread / REST;
  }
  static __device__ __forceinline__ int place(int element) {
    return element % P::PLANES * P::PLANE_ROWS + element / P::PLANES;
  }
  __device__ __forceinline__ void begin_segment(const GatherItem<P>& item, int segment) {
    int segment_d = 0, segment_h = segment;
    if constexpr (P::D::MOST > 1) segment_d = segment / item.h.count, segment_h = segment - segment_d * item.h.count;
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) slots[i] = gather_slot<P>(a, item, segment_d, segment_h, thread + i * 128);
    if constexpr (SHARED)
      left_over = gather_slot<P>(a, item, segment_d, segment_h, SLOTS * 128 + thread % REST);
  }

  // `volume` elements lie between two channels. `at` moves on to the next unit.
  __device__ __forceinline__ Unit load(const GatherSlot& slot, const Scalar*& at, int channel, long long volume) const {
    Unit unit = {};
#pragma unroll
    for (int c = 0; c < P::CHANNELS; ++c, at += volume) {
      const bool exists = P::K % (P::UNITS * P::CHANNELS) == 0 || channel + c < P::K;
      constexpr int BYTES = P::PACK * int(sizeof(Scalar));
      unsigned* const to = unit.word + c * BYTES / 4;
      if (P::PACK > 1 && a.wide_loads) {
        if (exists && slot.exist != 0) {
          if constexpr (BYTES == 16) {
            const uint4 v = __ldg(reinterpret_cast<const uint4*>(at));
            to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
          } else if constexpr (BYTES == 8) {
            const uint2 v = __ldg(reinterpret_cast<const uint2*>(at));
            to[0] = v.x, to[1] = v.y;
          } else {
            to[0] = __ldg(reinterpret_cast<const unsigned*>(at));
          }
        }
      } else {
#pragma unroll
        for (int e = 0; e < P::PACK; ++e)
          if (exists && (slot.exist >> e & 1) != 0) {
            if constexpr (sizeof(Scalar) == 4) {
              to[e] = __ldg(reinterpret_cast<const unsigned*>(at) + e);
            } else {
              const int place = c * P::PACK + e;
              unit.word[place / 2] |= unsigned(__ldg(reinterpret_cast<const unsigned short*>(at) + e)) << place % 2 * 16;
            }
          }
      }
    }
    return unit;
  }
  __device__ __forceinline__ void put(char* stage, int unit, int where, Unit value) const {
    if constexpr (sizeof(Scalar) == 4) {
#pragma unroll
      for (unsigned& word : value.word) word = __float_as_uint(round_for_tensor_cores(__uint_as_float(word), a.one));
    }
    *reinterpret_cast<uint4*>(stage + 16 * (unit * P::UNIT_ROWS + where)) =
        make_uint4(value.word[0], value.word[1], value.word[2], value.word[3]);
  }
};

// The first loads of a stage are issued before its place is free.
template <class P>
__device__ __forceinline__ void gather_stage(const GatherArguments<typename P::Scalar>& a, char* ring, GatherBarriers barriers) {
  using Window = GatherWindow<P>;
  constexpr int GROUPS = P::STAGERS / 128;
  const int thread = threadIdx.x % 128;
  Window window(a, thread);
  GatherRing<P::STAGES> place;
  place.parity = 1;
  int turn = int(threadIdx.x) / 128 - 2;  // stages until this warpgroup's next one
#pragma unroll 1
  for (int number = blockIdx.x; number < a.items; number += gridDim.x) {
    int begin, end, staged = -1;  // staged: the segment that `window` is ready for
    const char* weights;
    {
      const GatherItem<P> item(a, number);
      begin = item.first, end = item.end;
      weights = a.weights + 1LL * item.variety * P::SEGMENTS * P::STEPS * P::WEIGHT_BYTES;
    }
#pragma unroll 1
    for (int at = begin; at < end; ++at, place.next()) {
      if (turn-- > 0) continue;
      turn = GROUPS - 1;
      const int segment = at / P::STEPS, channel = (at - segment * P::STEPS) * P::UNITS * P::CHANNELS;
      // The data of an item is computed again, so it takes no registers until then.
      if (segment != staged) window.begin_segment(GatherItem<P>(a, computed_anew(number)), segment);
      staged = segment;
      char* const stage = ring + place.stage * P::STAGE_BYTES;
      const unsigned full = barriers.full + 8 * place.stage;
      const long long volume = a.source_volume + computed_anew(0);  // its multiples are not kept in registers
      typename Window::Unit left_over;
      if constexpr (Window::SHARED)
        if (window.left_over_unit < P::UNITS) {
          const int first = channel + window.left_over_unit * P::CHANNELS;
          const typename P::Scalar* from = a.source + window.left_over.at + first * volume;
          left_over = window.load(window.left_over, from, first, volume);
        }
      const_loop<0, ceil_div(Window::LOADS, Window::BATCH)>([&](auto batch) {
        constexpr int FIRST = decltype(batch)::value * Window::BATCH;
        constexpr int END = FIRST + Window::BATCH < Window::LOADS ? FIRST + Window::BATCH : Window::LOADS;
        typename Window::Unit value[Window::BATCH];
        const typename P::Scalar* from = nullptr;
        const auto each = [&](const auto& f) {
          const_loop<FIRST, END>([&](auto load) {
            constexpr int SLOT = decltype(load)::value / P::UNITS, UNIT = decltype(load)::value % P::UNITS;
            if ((SLOT + 1) * 128 <= P::ELEMENTS || thread + SLOT * 128 < P::ELEMENTS)
              f(Constant<SLOT>{}, value[decltype(load)::value - FIRST], Constant<UNIT>{});
          });
        };
        each([&](auto slot, typename Window::Unit& v, auto unit) {
          constexpr int SLOT = decltype(slot)::value, UNIT = decltype(unit)::value;
          if (UNIT == 0 || SLOT * P::UNITS + UNIT == FIRST)
            from = a.source + window.slots[SLOT].at + (channel + UNIT * P::CHANNELS) * volume;
          v = window.load(window.slots[SLOT], from, channel + UNIT * P::CHANNELS, volume);
        });
        if constexpr (FIRST == 0) {
          mbarrier_await(barriers.empty + 8 * place.stage, place.parity);
          if (thread == 0) {
            wait_for_kernel_ahead();  // it packs the weights
            mbarrier_arrive_expecting(full, P::WEIGHT_BYTES);
            bulk_copy(shared_address(stage + P::WINDOW_BYTES), weights + 1LL * at * P::WEIGHT_BYTES, P::WEIGHT_BYTES, full);
          }
          __syncwarp();
        }
        each([&](auto slot, const typename Window::Unit& v, auto unit) {
          constexpr int SLOT = decltype(slot)::value;
          window.put(stage, decltype(unit)::value,
                     Window::EVEN ? window.to[0] + SLOT * (128 / P::PLANES) : window.to[Window::EVEN ? 0 : SLOT], v);
        });
      });
      if constexpr (Window::SHARED)
        if (window.left_over_unit < P::UNITS) window.put(stage, window.left_over_unit, window.left_over_to, left_over);
      products_see_writes();
      __syncwarp();
      if (thread % 32 == 0) mbarrier_arrive(full);
    }
  }
}
