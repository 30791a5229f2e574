// The warps of persistent_wgmma's gather kernel that stage: they load a window of the source, round it, and lay 16 bytes
// of K (a unit) of each position side by side. One of their threads orders the weights of the stage from the copy
// engine.
#pragma once
#include "families/persistent_wgmma/gather_places.cuh"
#include "families/persistent_wgmma/gather_weights.cuh"
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

// Where an element of the window lies in the source.
struct GatherSlot {
  long long at;  // of the group's first channel
  int w;         // far outside if the row does not exist
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
  const int plane = step.row / a.steps_h, h0 = step.row - plane * a.steps_h, n = plane / a.steps_d, d0 = plane - n * a.steps_d;
  const int d = d0 * P::SOURCE_D + item.d.at + segment_d * item.d.at_step;
  const int h = h0 * P::SOURCE_H + item.h.at + segment_h * item.h.at_step;
  if (unsigned(step.row) >= unsigned(a.rows) || unsigned(d) >= unsigned(a.source_d) || unsigned(h) >= unsigned(a.source_h))
    return {0, -(1 << 30)};
  return {((1LL * n * P::GROUPS + item.group) * P::K) * a.source_volume + (1LL * d * a.source_h + h) * a.source_w + w, w};
}

// thread -> data: the same elements of the window in every stage (neighbours in memory are neighbouring lanes), and
// some of the units of K. The few elements that are left over are divided one unit a thread.
template <class P>
struct GatherWindow {
  using Scalar = typename P::Scalar;
  using Unit = Pack<Scalar, P::E>;
  static constexpr int ACROSS = P::ELEMENTS >= P::STAGERS ? P::STAGERS : 128, AT_ONCE = P::STAGERS / ACROSS;
  static constexpr int REST = P::ELEMENTS % ACROSS;
  static constexpr bool SHARED = REST > 0 && REST * P::UNITS <= P::STAGERS;
  static constexpr int SLOTS = P::ELEMENTS / ACROSS + (REST > 0 && !SHARED), TURNS = ceil_div(P::UNITS, AT_ONCE);
  static constexpr int LOADS = SLOTS * TURNS, BATCH = LOADS < 8 ? LOADS : 8;
  static_assert(AT_ONCE * ACROSS == P::STAGERS, "all staging threads have work");

  const GatherArguments<Scalar>& a;
  GatherSlot slots[SLOTS], left_over;
  int to[SLOTS], left_over_to, across, first_unit, left_over_unit;

  __device__ __forceinline__ GatherWindow(const GatherArguments<Scalar>& arguments, int thread)
      : a(arguments), left_over_to(0), across(thread % ACROSS), first_unit(thread / ACROSS), left_over_unit(0) {
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) to[i] = place(across + i * ACROSS);
    if constexpr (SHARED) left_over_to = place(SLOTS * ACROSS + thread % REST), left_over_unit = thread / REST;
  }
  static __device__ __forceinline__ int place(int element) {
    return element % P::PLANES * P::PLANE_ROWS + element / P::PLANES;
  }
  __device__ __forceinline__ void begin_segment(const GatherItem<P>& item, int segment, int thread) {
    const int segment_d = segment / item.h.count, segment_h = segment - segment_d * item.h.count;
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) slots[i] = gather_slot<P>(a, item, segment_d, segment_h, across + i * ACROSS);
    if constexpr (SHARED)
      left_over = gather_slot<P>(a, item, segment_d, segment_h, SLOTS * ACROSS + thread % REST);
  }

  __device__ __forceinline__ Unit load(const GatherSlot& slot, int channel) const {
    Unit unit;
    const Scalar* const from = a.source + slot.at + channel * a.source_volume;
#pragma unroll
    for (int c = 0; c < P::CHANNELS; ++c) {
      const bool exists = P::K % (P::UNITS * P::CHANNELS) == 0 || channel + c < P::K;
      const Scalar* const at = from + c * a.source_volume;
      if constexpr (P::PACK > 1) {
        Pack<Scalar, P::PACK> together;
        if (a.wide_loads) {
          if (exists && unsigned(slot.w) < unsigned(a.source_w)) {
            together = wide(at);
          } else {
#pragma unroll
            for (int e = 0; e < P::PACK; ++e) together.value[e] = narrow<Scalar>(0.0f);
          }
        } else {
#pragma unroll
          for (int e = 0; e < P::PACK; ++e)
            together.value[e] = exists && unsigned(slot.w + e) < unsigned(a.source_w) ? __ldg(at + e) : narrow<Scalar>(0.0f);
        }
#pragma unroll
        for (int e = 0; e < P::PACK; ++e) unit.value[c * P::PACK + e] = together.value[e];
      } else {
        unit.value[c] = exists && unsigned(slot.w) < unsigned(a.source_w) ? __ldg(at) : narrow<Scalar>(0.0f);
      }
    }
    return unit;
  }
  __device__ __forceinline__ void put(char* stage, int unit, int where, Unit value) const {
#pragma unroll
    for (int e = 0; e < P::E; ++e) value.value[e] = gather_rounded(value.value[e], a.one);
    *reinterpret_cast<Unit*>(stage + 16 * (unit * P::UNIT_ROWS + where)) = value;
  }

 private:
  static __device__ __forceinline__ Pack<Scalar, P::PACK> wide(const Scalar* at) {
    Pack<Scalar, P::PACK> together;
    constexpr int BYTES = P::PACK * int(sizeof(Scalar));
    if constexpr (BYTES == 16) {
      *reinterpret_cast<uint4*>(&together) = __ldg(reinterpret_cast<const uint4*>(at));
    } else if constexpr (BYTES == 8) {
      *reinterpret_cast<uint2*>(&together) = __ldg(reinterpret_cast<const uint2*>(at));
    } else if constexpr (BYTES == 4) {
      *reinterpret_cast<unsigned*>(&together) = __ldg(reinterpret_cast<const unsigned*>(at));
    }
    return together;
  }
};

// The first loads of a stage are issued before its place is free.
template <class P>
__device__ __forceinline__ void gather_stage(const GatherArguments<typename P::Scalar>& a, char* ring, GatherBarriers barriers) {
  using Window = GatherWindow<P>;
  const int thread = int(threadIdx.x) - P::CONSUMERS;
  Window window(a, thread);
  GatherRing<P::STAGES> place;
  place.parity = 1;
#pragma unroll 1
  for (int number = blockIdx.x; number < a.items; number += gridDim.x) {
    const GatherItem<P> item(a, number);
    int segment = item.first / P::STEPS, step = item.first - segment * P::STEPS;
    const char* weights =
        a.weights + ((1LL * item.variety * P::SEGMENTS + segment) * P::STEPS + step) * P::WEIGHT_BYTES;
    bool begins = true;
#pragma unroll 1
    for (int at = item.first; at < item.end; ++at) {
      if (begins) window.begin_segment(item, segment, thread);
      begins = false;
      const int channel = step * P::UNITS * P::CHANNELS;
      char* const stage = ring + place.stage * P::STAGE_BYTES;
      const unsigned full = barriers.full + 8 * place.stage;
      typename Window::Unit left_over;
      if constexpr (Window::SHARED)
        if (window.left_over_unit < P::UNITS)
          left_over = window.load(window.left_over, channel + window.left_over_unit * P::CHANNELS);
      const_loop<0, ceil_div(Window::LOADS, Window::BATCH)>([&](auto batch) {
        constexpr int FIRST = decltype(batch)::value * Window::BATCH;
        constexpr int END = FIRST + Window::BATCH < Window::LOADS ? FIRST + Window::BATCH : Window::LOADS;
        typename Window::Unit value[Window::BATCH];
        const auto each = [&](const auto& f) {
          const_loop<FIRST, END>([&](auto load) {
            constexpr int SLOT = decltype(load)::value / Window::TURNS;
            const int unit = window.first_unit + decltype(load)::value % Window::TURNS * Window::AT_ONCE;
            if ((P::UNITS % Window::AT_ONCE == 0 || unit < P::UNITS) &&
                ((SLOT + 1) * Window::ACROSS <= P::ELEMENTS || window.across + SLOT * Window::ACROSS < P::ELEMENTS))
              f(Constant<SLOT>{}, value[decltype(load)::value - FIRST], unit);
          });
        };
        each([&](auto slot, typename Window::Unit& v, int unit) {
          v = window.load(window.slots[decltype(slot)::value], channel + unit * P::CHANNELS);
        });
        if constexpr (FIRST == 0) {
          mbarrier_await(barriers.empty + 8 * place.stage, place.parity);
          if (thread == 0) {
            mbarrier_arrive_expecting(full, P::WEIGHT_BYTES);
            bulk_copy(shared_address(stage + P::WINDOW_BYTES), weights, P::WEIGHT_BYTES, full);
          }
          __syncwarp();
        }
        each([&](auto slot, const typename Window::Unit& v, int unit) {
          window.put(stage, unit, window.to[decltype(slot)::value], v);
        });
      });
      if constexpr (Window::SHARED)
        if (window.left_over_unit < P::UNITS) window.put(stage, window.left_over_unit, window.left_over_to, left_over);
      products_see_writes();
      __syncwarp();
      if (thread % 32 == 0) mbarrier_arrive(full);
      place.next();
      weights += P::WEIGHT_BYTES;
      if (++step == P::STEPS) step = 0, ++segment, begins = true;
    }
  }
}
