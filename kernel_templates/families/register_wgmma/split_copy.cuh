// The warps of register_wgmma's grad_weight that copy: rows of x and of gy, in the order in which they lie in memory.
#pragma once
#include "families/persistent_wgmma/gather_stage.cuh"
#include "families/register_wgmma/split_plan.cuh"
#include "hardware/const_loop.cuh"
#include "hardware/guarded_load.cuh"
#include "hardware/pack.cuh"
#include "hardware/wgmma_fragments.cuh"
#include "hardware/wgmma_swizzled.cuh"

template <class Scalar>
struct RawSplitTensors {
  const Scalar *x, *gy;
  int in_h, in_w, out_d, out_h, out_w;
  long long in_volume, out_volume;
  int copied;  // bytes of one copy: 16, 8, 4 or 2, as rows are aligned (float32: at least 4)
};

// Copies BYTES, or writes zeros.
template <int BYTES, class Scalar>
__device__ __forceinline__ void copy_run(char* to, const Scalar* from, bool exists) {
  if constexpr (BYTES >= 4) cp_async<BYTES>(to, from, exists ? BYTES : 0);
  else *reinterpret_cast<Scalar*>(to) = exists ? guarded_load(from) : narrow<Scalar>(0.0f);
}

// Copies one run of ROWS channels: those from `first` on, every TOGETHER-th. `from` and `place(0)` are those of channel `first`, the next
// ones are `apart` elements apart. `left`: how many channels exist.
template <int BYTES, int ROWS, int TOGETHER, bool ALL_EXIST, class Scalar, class Place>
__device__ __forceinline__ void copy_channels(const Scalar* from, const Scalar* any, long long apart, bool exists, int first, int left,
                                              const Place& place) {
  constexpr int UNROLL = ROWS <= 16 * TOGETHER ? 16 : 4;
#pragma unroll UNROLL
  for (int row = 0; row < ROWS; row += TOGETHER) {
    if (row + TOGETHER <= ROWS || first + row < ROWS) {
      const bool there = exists && (ALL_EXIST || first + row < left);
      copy_run<BYTES>(place(row), there ? from : any, there);
    }
    from += TOGETHER * apart;
  }
}

// thread -> data: one run of BYTES of every TOGETHER-th channel. Neighbouring lanes have neighbours in memory. A run lies in a row
// or behind it.
template <int BYTES, class Layer, class Plan>
__device__ __forceinline__ void copy_raw_x(const RawSplitTensors<typename Layer::scalar>& t, const GatherDivisor& of_line,
                                           const GatherDivisor& of_image, int lines, int channel0, int position0, int thread,
                                           char* stage) {
  constexpr int RUNS = Plan::SIZE * Plan::POSITIONS / BYTES, TOGETHER = Plan::EACH_TENSOR / RUNS;
  static_assert(TOGETHER > 0);
  const int run = thread % RUNS, first = thread / RUNS, position = position0 + run * (BYTES / Plan::SIZE);
  const int line = of_line.quotient(position), w = position - line * of_line.divisor, n = of_image.quotient(line);
  const auto* const from = t.x + (1LL * n * Plan::CI + channel0 + first) * t.in_volume +
                           (1LL * (line - n * of_image.divisor) * t.in_w + w);
  char* const to = stage + run * BYTES / 128 * (128 * Plan::X_ROWS) + run * BYTES % 16;
  const unsigned at = 128 * first + run * BYTES % 128 / 16 * 16, placed = swizzled<128>(at);
  copy_channels<BYTES, Plan::X_ROWS, TOGETHER, Plan::CI % Plan::X_ROWS == 0>(
      from, t.x, t.in_volume, line < lines && w < t.in_w, first, Plan::CI - channel0,
      [&](int row) { return to + (TOGETHER % 8 == 0 ? placed + 128 * row : swizzled<128>(at + 128 * row)); });
}

// The same through registers: float32 is rounded on the way. The first channels are loaded before the stage is free.
template <int BYTES, class Layer, class Plan>
struct RawFloatX {
  static constexpr int RUNS = Plan::SIZE * Plan::POSITIONS / BYTES, TOGETHER = Plan::EACH_TENSOR / RUNS;
  static constexpr int EACH = ceil_div(Plan::X_ROWS, TOGETHER), FIT = 128 / BYTES, HELD = EACH < FIT ? EACH : FIT;
  static constexpr bool IS_WHOLE = Plan::X_ROWS % TOGETHER == 0 && EACH % HELD == 0;
  using Run = Pack<float, BYTES / 4>;
  Run run_of[HELD];
  const float* from;  // the next channel's
  bool exists;

  __device__ __forceinline__ static int first(int thread) { return thread / RUNS; }
  template <int BEGIN>
  __device__ __forceinline__ void load(const RawSplitTensors<float>& t, int channel0, int thread) {
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
      const int row = first(thread) + (BEGIN + i) * TOGETHER;
#pragma unroll
      for (float& value : run_of[i].value) value = 0.0f;
      if (exists && (Plan::CI % Plan::X_ROWS == 0 || channel0 + row < Plan::CI) && (IS_WHOLE || row < Plan::X_ROWS))
        run_of[i] = *reinterpret_cast<const Run*>(from);
      from += TOGETHER * t.in_volume;
    }
  }
  __device__ __forceinline__ void load_first(const RawSplitTensors<float>& t, const GatherDivisor& of_line,
                                             const GatherDivisor& of_image, int lines, int channel0, int position0, int thread) {
    const int position = position0 + thread % RUNS * (BYTES / 4), line = of_line.quotient(position);
    const int w = position - line * of_line.divisor, n = of_image.quotient(line);
    from = t.x + (1LL * n * Plan::CI + channel0 + first(thread)) * t.in_volume + (1LL * (line - n * of_image.divisor) * t.in_w + w);
    exists = line < lines && w < t.in_w;
    load<0>(t, channel0, thread);
  }
  __device__ __forceinline__ void store(const RawSplitTensors<float>& t, int channel0, int thread, float one, char* stage) {
    const int run = thread % RUNS;
    char* const to = stage + run * BYTES / 128 * (128 * Plan::X_ROWS) + run * BYTES % 16;
    constexpr int KINDS = TOGETHER >= 8 ? 1 : 8 / TOGETHER;  // the swizzle repeats every 8 rows
    unsigned placed[KINDS];
#pragma unroll
    for (int kind = 0; kind < KINDS; ++kind)
      placed[kind] = swizzled<128>(run * BYTES % 128 / 16 * 16 + 128 * (first(thread) + kind * TOGETHER));
    const_loop<0, ceil_div(EACH, HELD)>([&](auto part) {
      constexpr int BEGIN = decltype(part)::value * HELD;
      if constexpr (BEGIN > 0) load<BEGIN>(t, channel0, thread);
#pragma unroll
      for (int i = 0; i < HELD; ++i) {
        const int row = first(thread) + (BEGIN + i) * TOGETHER;
        if (!IS_WHOLE && row >= Plan::X_ROWS) continue;
#pragma unroll
        for (float& value : run_of[i].value) value = round_for_tensor_cores(value, one);
        *reinterpret_cast<Run*>(to + placed[(BEGIN + i) % KINDS] + 128 * TOGETHER * ((BEGIN + i) / KINDS * KINDS)) = run_of[i];
      }
    });
  }
};

template <int BYTES, class Layer, class Plan>
__device__ __forceinline__ void copy_raw_gy(const RawSplitTensors<typename Layer::scalar>& t, const GatherDivisor& of_line,
                                            const GatherDivisor& of_image, const GatherDivisor& of_plane, int lines,
                                            const RawSplitTile<Plan>& tile, int position0, int thread, char* rows) {
  constexpr int RUNS = Plan::RUN * 16 / BYTES, AT_ONCE = RUNS < Plan::EACH_TENSOR ? RUNS : Plan::EACH_TENSOR;
  constexpr int TOGETHER = Plan::EACH_TENSOR / AT_ONCE;
  const int first = thread / AT_ONCE;
  if (first >= TOGETHER) return;
#pragma unroll 1
  for (int run = thread % AT_ONCE; run < RUNS; run += AT_ONCE) {
    const int element = 2 * (position0 - Plan::BEFORE) + run * (BYTES / Plan::SIZE), word = element >> 1;
    const int line = word < 0 ? -1 : of_line.quotient(word), v = element - line * of_line.divisor * 2;
    const int inside = line < 0 ? 0 : line, n = of_image.quotient(inside), in_image = inside - n * of_image.divisor;
    const int plane = of_plane.quotient(in_image), h = in_image - plane * of_plane.divisor;
    const auto* const image = t.gy + (1LL * n * Plan::CO + tile.co + first) * t.out_volume + v;
    const bool exists = unsigned(line) < unsigned(lines) && v < t.out_w;
#pragma unroll
    for (int which = 0; which < Plan::WR; ++which) {
      const int tap_row = tile.tap_row + which, kd = tap_row / Layer::kernel_h, kh = tap_row % Layer::kernel_h;
      const int gd = plane * Layer::stride_d + kd * Layer::dilation_d - Layer::padding_d;
      const int gh = h * Layer::stride_h + kh * Layer::dilation_h - Layer::padding_h;
      char* const to = rows + (which * Plan::GY_ROWS + first) * Plan::ROW_BYTES + run * BYTES;
      copy_channels<BYTES, Plan::GY_ROWS, TOGETHER, Plan::CO % Plan::GY_ROWS == 0>(
          image + (1LL * gd * t.out_h + gh) * t.out_w, t.gy, t.out_volume,
          exists && unsigned(gd) < unsigned(t.out_d) && unsigned(gh) < unsigned(t.out_h) && tap_row < Plan::TAP_ROWS, first,
          Plan::CO - tile.co, [&](int row) { return to + row * Plan::ROW_BYTES; });
    }
  }
}

// A thread copies its part into each free stage. If none is free, or copies for all but one are under way, it waits for its oldest
// copies and arrives at their barrier.
template <int BYTES, class Layer, class Tune>
__device__ __forceinline__ void copy_raw_works(const RawSplitWork<RawSplitPlan<Layer, Tune>, Tune>& work,
                                               const RawSplitTensors<typename Layer::scalar>& tensors, char* ring, unsigned full,
                                               unsigned empty) {
  using Plan = RawSplitPlan<Layer, Tune>;
  const int thread = (int(threadIdx.x) - 128 * Plan::CONSUMERS) % Plan::EACH_TENSOR;
  GatherRing<Plan::STAGES> place, arrived;
  place.parity = 1;
  int under_way = 0;
  const auto tell = [&] {
    const_loop<0, Plan::STAGES>([&](auto newer) {
      if (under_way == decltype(newer)::value + 1) cp_async_wait<decltype(newer)::value>();
    });
    products_see_writes();
    mbarrier_arrive(full + 8 * arrived.stage);
    arrived.next();
    --under_way;
  };
#pragma unroll 1
  for (int number = blockIdx.x; number < work.works(); number += gridDim.x) {
    const int share = number / Plan::TILES;
    const RawSplitTile<Plan> tile(number % Plan::TILES);
    int position = int(work.first_stage(share)) * Plan::POSITIONS;
#pragma unroll 1
    for (long long left = work.stages_of(share); left > 0; --left, position += Plan::POSITIONS, place.next()) {
      while (under_way > 0 && !__all_sync(~0u, mbarrier_ended(empty + 8 * place.stage, place.parity))) tell();
      mbarrier_await(empty + 8 * place.stage, place.parity);
      __syncwarp();
      char* const stage = ring + place.stage * Plan::STAGE;
      if constexpr (Plan::SIZE == 2)
        copy_raw_x<BYTES, Layer, Plan>(tensors, work.of_line, work.of_image, work.lines, tile.ci, position, thread, stage);
      copy_raw_gy<BYTES, Layer, Plan>(tensors, work.of_line, work.of_image, work.of_plane, work.lines, tile, position, thread,
                                      stage + Plan::X_BYTES);
      cp_async_commit();
      if (++under_way == Plan::STAGES - 1) tell();
    }
  }
  while (under_way > 0) tell();
}

// x of float32: the loads for a stage begin before the thread waits for it.
template <int BYTES, class Layer, class Tune>
__device__ __forceinline__ void round_raw_works(const RawSplitWork<RawSplitPlan<Layer, Tune>, Tune>& work,
                                                const RawSplitTensors<float>& tensors, char* ring, unsigned full, unsigned empty) {
  using Plan = RawSplitPlan<Layer, Tune>;
  const int thread = (int(threadIdx.x) - 128 * Plan::CONSUMERS) % Plan::EACH_TENSOR;
  GatherRing<Plan::STAGES> place;
  place.parity = 1;
  RawFloatX<BYTES, Layer, Plan> x;
#pragma unroll 1
  for (int number = blockIdx.x; number < work.works(); number += gridDim.x) {
    const int share = number / Plan::TILES, channel0 = RawSplitTile<Plan>(number % Plan::TILES).ci;
    int position = int(work.first_stage(share)) * Plan::POSITIONS;
#pragma unroll 1
    for (long long left = work.stages_of(share); left > 0; --left, position += Plan::POSITIONS, place.next()) {
      x.load_first(tensors, work.of_line, work.of_image, work.lines, channel0, position, thread);
      mbarrier_await(empty + 8 * place.stage, place.parity);
      x.store(tensors, channel0, thread, work.one, ring + place.stage * Plan::STAGE);
      products_see_writes();
      mbarrier_arrive(full + 8 * place.stage);
    }
  }
}

// What a warpgroup that copies does: the first or the second one.
template <int BYTES, class Layer, class Tune>
__device__ __forceinline__ void stage_raw_works(bool first, const RawSplitWork<RawSplitPlan<Layer, Tune>, Tune>& work,
                                                const RawSplitTensors<typename Layer::scalar>& tensors, char* ring, unsigned full,
                                                unsigned empty) {
  if constexpr (sizeof(typename Layer::scalar) == 4) {
    if (first) return round_raw_works<BYTES, Layer, Tune>(work, tensors, ring, full, empty);
  }
  copy_raw_works<BYTES, Layer, Tune>(work, tensors, ring, full, empty);
}
