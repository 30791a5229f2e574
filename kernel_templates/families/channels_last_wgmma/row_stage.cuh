// The warps of channels_last_wgmma that stage: 8 channels of a position are 16 bytes in memory and in a stage, so cp.async
// copies them without registers.
#pragma once
#include "families/channels_last_wgmma/row_plan.cuh"
#include "families/persistent_wgmma/gather_stage.cuh"
#include "hardware/guarded_load.cuh"
#include "hardware/wgmma_swizzled.cuh"

// A position of the window before its taps: element `at` of the source, and the place that it stands for.
struct RowSlot {
  long long at;
  int d, h, w;
};

template <class P>
__device__ __forceinline__ RowSlot row_slot(const GatherArguments<typename P::Scalar>& a, const GatherItem<P>& item, int element) {
  const GatherStep step = gather_step(a, item.row0, item.step0, P::LOW + element);
  const GatherRow row(a, step.row);
  const int d = row.d * P::SOURCE_D + item.d.at, h = row.h * P::SOURCE_H + item.h.at;
  const int w = step.w * P::Row::STEP - P::Row::BEFORE;
  const long long position = ((1LL * row.n * a.source_d + d) * a.source_h + h) * a.source_w + w;
  const long long at = position * (P::GROUPS * P::Row::CHANNELS) + item.group * P::Row::CHANNELS;
  return {at, d, h, unsigned(step.row) < unsigned(a.rows) && element < P::WINDOW ? w : 1 << 30};
}

// Copies a unit of the thread's positions into a stage, with positions of other threads between them.
template <class P, int SLOTS, int APART>
__device__ __forceinline__ void copy_rows(const GatherArguments<typename P::Scalar>& a, const RowSlot (&slots)[SLOTS], char* stage,
                                          int first, int own, int by_d, int by_h, int unit) {
  using Scalar = typename P::Scalar;
  constexpr int CHANNELS = P::Row::CHANNELS;
  const int phase = unit / P::Row::OF_PHASE, channel = (unit - phase * P::Row::OF_PHASE) * 8, by_w = phase * P::Row::PHASE_STEP;
  const long long by = ((1LL * by_d * a.source_h + by_h) * a.source_w + by_w) * (P::GROUPS * CHANNELS) + channel;
#pragma unroll
  for (int i = 0; i < SLOTS; ++i) {
    const RowSlot& slot = slots[i];
    const bool there = unit < P::ALL_UNITS && unsigned(slot.d + by_d) < unsigned(a.source_d) &&
                       unsigned(slot.h + by_h) < unsigned(a.source_h) && unsigned(slot.w + by_w) < unsigned(a.source_w);
    const Scalar* const from = a.source + (slot.at + by);
    char* const here = stage + swizzled<P::ROW_BYTES>((first + i * APART) * P::ROW_BYTES + 16 * own);
    if (P::WINDOW % APART != 0 && i + 1 == SLOTS && first + i * APART >= P::WINDOW) continue;
    if (CHANNELS % 8 == 0 && a.wide_loads) {
      cp_async<16>(here, there ? from : a.source, there ? 16 : 0);
    } else {
      Pack<Scalar, 8> value;
#pragma unroll
      for (int e = 0; e < 8; ++e)
        value.value[e] = there && channel + e < CHANNELS ? guarded_load(from + e) : narrow<Scalar>(0.0f);
      *reinterpret_cast<Pack<Scalar, 8>*>(here) = value;
    }
  }
}

// thread -> data: one unit of every APART-th position. Neighbouring lanes have neighbouring channels.
// Copies of all free stages are under way. If no stage is free, a warp waits for its oldest copies and arrives
// at their barrier.
template <class P>
__device__ __forceinline__ void stage_rows(const GatherArguments<typename P::Scalar>& a, char* ring, GatherBarriers barriers) {
  constexpr int APART = P::STAGERS / P::UNITS, SLOTS = ceil_div(P::WINDOW, APART);
  const int thread = int(threadIdx.x) - P::CONSUMERS, own = thread % P::UNITS, first = thread / P::UNITS;
  GatherRing<P::STAGES> place, arrived;
  place.parity = 1;
  int under_way = 0;
  const auto tell = [&] {
    const_loop<0, P::STAGES>([&](auto newer) {
      if (under_way == decltype(newer)::value + 1) cp_async_wait<decltype(newer)::value>();
    });
    products_see_writes();
    __syncwarp();
    if (thread % 32 == 0) mbarrier_arrive(barriers.full + 8 * arrived.stage);
    arrived.next();
    --under_way;
  };
#pragma unroll 1
  for (int number = blockIdx.x; number < a.items; number += gridDim.x) {
    const GatherItem<P> item(a, number);
    const char* const weights = a.weights + 1LL * item.variety * P::SEGMENTS * P::STEPS * P::WEIGHT_BYTES;
    RowSlot slots[SLOTS];
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) slots[i] = row_slot<P>(a, item, first + i * APART);
#pragma unroll 1
    for (int at = item.first; at < item.end; ++at, place.next()) {
      const int segment = at / P::STEPS, step = at - segment * P::STEPS;
      int segment_d = 0, segment_h = segment;
      if constexpr (P::D::MOST > 1) segment_d = segment / item.h.count, segment_h = segment - segment_d * item.h.count;
      char* const stage = ring + place.stage * P::STAGE_BYTES;
      const unsigned full = barriers.full + 8 * place.stage, empty = barriers.empty + 8 * place.stage;
      while (under_way > 0 && !__all_sync(~0u, mbarrier_ended(empty, place.parity))) tell();
      mbarrier_await(empty, place.parity);
      if (thread == 0) {
        wait_for_kernel_ahead();  // it packs the weights
        mbarrier_arrive_expecting(full, P::WEIGHT_BYTES);
        bulk_copy(shared_address(stage + P::WINDOW_BYTES), weights + 1LL * at * P::WEIGHT_BYTES, P::WEIGHT_BYTES, full);
      }
      __syncwarp();
      copy_rows<P, SLOTS, APART>(a, slots, stage, first, own, segment_d * P::D::STEP, segment_h * P::H::STEP,
                                 step * P::UNITS + own);
      cp_async_commit();
      ++under_way;
    }
  }
  while (under_way > 0) tell();
}
