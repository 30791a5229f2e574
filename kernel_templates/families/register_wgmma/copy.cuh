// The warps of register_wgmma that copy: rows of the source, in the order in which they lie in memory.
#pragma once
#include "families/persistent_wgmma/gather_stage.cuh"
#include "families/register_wgmma/plan.cuh"
#include "hardware/guarded_load.cuh"
#include "hardware/wgmma_fragments.cuh"

// Where a run of BYTES of the window lies in the source, in the group's first channel.
struct SourceRun {
  long long at;
  bool there;  // otherwise zeros take its place
};

// `row0`, `step0`: the row of the window in which the tile begins, and the place there.
template <class P, int BYTES>
__device__ __forceinline__ SourceRun source_run(const SourceRowsArguments<typename P::Scalar>& a, const GatherItem<P>& item,
                                                int segment, int row0, int step0, int run) {
  int segment_d = 0, segment_h = segment;
  if constexpr (P::D::MOST > 1) segment_d = segment / item.h.count, segment_h = segment - segment_d * item.h.count;
  const int offset = step0 + run * (BYTES / P::SIZE), further = a.line.quotient(offset), row = row0 + further;
  const int w = offset - further * a.line.divisor;
  const int plane = a.lines_h.quotient(row), n = a.lines_d.quotient(plane);
  const int d = (plane - n * a.lines_d.divisor) * P::SOURCE_D + item.d.at + segment_d * P::D::STEP;
  const int h = (row - plane * a.lines_h.divisor) * P::SOURCE_H + item.h.at + segment_h * P::H::STEP;
  const bool there = unsigned(row) < unsigned(a.lines) && unsigned(d) < unsigned(a.line_d) &&
                     unsigned(h) < unsigned(a.line_h) && w < a.line_w;
  return {((1LL * n * P::GROUPS + item.group) * P::K) * a.source_volume + (1LL * d * a.line_h + h) * a.line_w + w, there};
}

// thread -> data: one run of BYTES of every TOGETHER-th channel, or every 128th run of each channel. Neighbouring lanes have
// neighbours in memory. The barrier of a stage counts its copies when they have arrived.
template <class P, int BYTES>
__device__ __forceinline__ void copy_source_rows(const SourceRowsArguments<typename P::Scalar>& a, char* ring,
                                                 GatherBarriers barriers) {
  using Scalar = typename P::Scalar;
  constexpr int RUNS = P::RUN * 16 / BYTES;
  constexpr int TOGETHER = RUNS < P::STAGERS ? P::STAGERS / RUNS : 1, AT_ONCE = RUNS < P::STAGERS ? RUNS : P::STAGERS;
  constexpr bool ONE = RUNS <= P::STAGERS;
  const int thread = int(threadIdx.x) - P::CONSUMERS, first_run = thread % AT_ONCE, first_row = thread / AT_ONCE;
  GatherRing<P::STAGES> place;
  place.parity = 1;
#pragma unroll 1
  for (int number = blockIdx.x; number < a.items; number += gridDim.x) {
    const GatherItem<P> item(a, number);
    const char* const weights = a.weights + 1LL * item.variety * P::SEGMENTS * P::STEPS * P::WEIGHT_BYTES;
    // The tile's first element: its row of the window, counted over all images, and its place there.
    const long long element = (1LL * item.row0 * a.pitch.divisor + item.step0) * P::STEP - P::BEFORE;
    const int row0 = element < 0 ? -1 : int(element / a.line.divisor);
    const int step0 = int(element - 1LL * row0 * a.line.divisor);
    SourceRun here = {};
    int placed = -1;  // the segment that `here` belongs to
#pragma unroll 1
    for (int at = item.first; at < item.end; ++at, place.next()) {
      const int segment = at / P::STEPS, channel = (at - segment * P::STEPS) * P::ROWS_OF_STAGE + first_row;
      char* const stage = ring + place.stage * P::STAGE_BYTES;
      const unsigned full = barriers.full + 8 * place.stage;
      if (ONE && segment != placed) here = source_run<P, BYTES>(a, item, segment, row0, step0, first_run);
      placed = segment;
      mbarrier_await(barriers.empty + 8 * place.stage, place.parity);
      if (thread == 0) {
        wait_for_kernel_ahead();  // it packs the weights
        mbarrier_arrive_expecting(full, P::WEIGHT_BYTES);
        bulk_copy(shared_address(stage + P::WINDOW_BYTES), weights + 1LL * at * P::WEIGHT_BYTES, P::WEIGHT_BYTES, full);
      }
      __syncwarp();
#pragma unroll 1
      for (int run = first_run; run < RUNS && first_row < TOGETHER; run += AT_ONCE) {
        if (!ONE) here = source_run<P, BYTES>(a, item, segment, row0, step0, run);
        const Scalar* from = a.source + here.at + channel * a.source_volume;
        char* to = stage + first_row * P::ROW_BYTES + run * BYTES;
#pragma unroll 4
        for (int r = 0; r < P::ROWS_OF_STAGE - first_row; r += TOGETHER) {
          const bool exists = here.there && (P::K % P::ROWS_OF_STAGE == 0 || channel + r < P::K);
          if constexpr (BYTES >= 4) {
            cp_async<BYTES>(to, exists ? from : a.source, exists ? BYTES : 0);
          } else {
            *reinterpret_cast<Scalar*>(to) = exists ? guarded_load(from) : narrow<Scalar>(0.0f);
          }
          from += TOGETHER * a.source_volume, to += TOGETHER * P::ROW_BYTES;
        }
      }
      if constexpr (BYTES >= 4) cp_async_arrive(full);
      else mbarrier_arrive(full);
    }
  }
}

template <class P>
__device__ __forceinline__ void copy_by_alignment(const SourceRowsArguments<typename P::Scalar>& a, char* ring,
                                                  GatherBarriers barriers) {
  if (a.copied == 16) copy_source_rows<P, 16>(a, ring, barriers);
  else if (a.copied == 8) copy_source_rows<P, 8>(a, ring, barriers);
  else if (P::SIZE == 4 || a.copied == 4) copy_source_rows<P, 4>(a, ring, barriers);
  else copy_source_rows<P, P::SIZE == 2 ? 2 : 4>(a, ring, barriers);
}
