// grad_weight: the taps that a block sums, the runs of a thread, and how blocks share the positions.
#pragma once
#include "contract/grad_weight.cuh"
#include "families/depthwise_rows/axis.cuh"

template <class Layer, class Tune>
struct RowsWeightPlan {
  using OwnLayer = Layer;
  using Scalar = typename Layer::scalar;
  using Sum = typename Layer::accumulator;
  static_assert(Layer::in_channels == Layer::groups, "a group has one input channel");
  static constexpr int BYTES = int(sizeof(Scalar)), THREADS = Tune::THREADS;
  static constexpr int MULTIPLIER = Layer::out_channels / Layer::groups, CHANNELS = Layer::out_channels;
  static constexpr int KD = Layer::kernel_d, KH = Layer::kernel_h, KW = Layer::kernel_w;

  // A block sums all taps if registers hold their sums; else some tap rows of one kd.
  static constexpr int MOST_ROWS = Tune::SUMS / KW < 1 ? 1 : Tune::SUMS / KW;
  static constexpr bool ALL = KD * KH <= MOST_ROWS;
  static constexpr int TD = ALL ? KD : 1, TH = ALL ? KH : ceil_div(KH, ceil_div(KH, MOST_ROWS));
  static constexpr int PARTS = ceil_div(KH, TH), TAP_GROUPS = KD / TD * PARTS;
  static constexpr int SUMS = TD * TH * KW, TILED = ceil_div(SUMS, 16) * 16;

  // A thread takes RUNS x STEPS_H x STEPS positions at a time: fewer with a long stride, one run where it has many taps.
  static constexpr __host__ __device__ int largest(int count, int each, int most) {
    while (count > 1 && count * each > most) count /= 2;
    return count;
  }
  static constexpr int STEPS = largest(Tune::RUN_BYTES > BYTES ? Tune::RUN_BYTES / BYTES : 1, Layer::stride_w, 16);
  static constexpr bool STRIDED = Layer::stride_w > 1 || Layer::stride_h > 1;  // long windows: at most two rows
  static constexpr int STEPS_H = TH == 1 || TD > 1 ? 1 : largest(Tune::ROWS, STRIDED ? 2 : 1, 4);
  static constexpr int RUNS = TD * TH > 1 ? 1 : largest(Tune::RUNS, STEPS * Layer::stride_w, 32);
  using W = RunAxis<false, KW, Layer::stride_w, Layer::padding_w, Layer::dilation_w, STEPS>;
  using H = RunAxis<false, TH, Layer::stride_h, 0, Layer::dilation_h, STEPS_H>;  // the padding is in the first row
  static constexpr int LOAD = run_vector(W::SOURCES, BYTES), LOAD_INPUT = run_vector(STEPS, BYTES);  // at most
  // Threads of a multiprocessor: fewer where sums and windows take many registers.
  static constexpr int VALUES = SUMS + RUNS * STEPS_H * STEPS + W::SOURCES + KW;
  static constexpr int RESIDENT = SUMS > 24 || VALUES > 72 ? 256 : SUMS > 16 || VALUES > 56 ? 384 : 512;
};

// Positions as runs: a Position's w counts runs, its h blocks of rows.
template <class P>
Sizes runs_of(const Sizes& sizes) {
  Sizes runs = sizes;
  runs.in_h = ceil_div(sizes.in_h, P::STEPS_H), runs.in_w = ceil_div(sizes.in_w, P::STEPS);
  return runs;
}

// Shares of the runs: so many that about BLOCKS blocks run and no sum is too long. One share needs no second launch.
template <class P, class Layer, class Tune>
Split rows_split(const Layer& layer, const Sizes& sizes) {
  const long long runs = position_count(runs_of<P>(sizes));
  const long long wanted = Tune::BLOCKS / (1LL * P::CHANNELS * P::TAP_GROUPS);
  const long long most = ceil_div(runs, 1LL * P::THREADS * P::RUNS);  // every share has work for all threads
  return split_positions(runs, weight_count(layer), wanted < most ? wanted : most, 1,
                         TERMS_PER_SUM / (P::STEPS_H * P::STEPS) * P::THREADS);
}
