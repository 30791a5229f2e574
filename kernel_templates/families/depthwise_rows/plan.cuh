// Forward and grad_input: what a thread computes (constants), and how threads share a plane (chosen by the host).
#pragma once
#include "families/depthwise_rows/axis.cuh"
#include "families/register_blocked/tile.cuh"

template <bool FORWARD_, class Layer, class Tune>
struct RowsPlan {
  static constexpr bool FORWARD = FORWARD_;
  using Scalar = typename Layer::scalar;
  using Sum = typename Layer::accumulator;
  static_assert(Layer::in_channels == Layer::groups, "a group has one input channel");
  static constexpr int BYTES = int(sizeof(Scalar)), THREADS = Tune::THREADS;
  static constexpr int MULTIPLIER = Layer::out_channels / Layer::groups;
  static constexpr int CHANNELS = FORWARD ? Layer::out_channels : Layer::in_channels;  // of the result
  static constexpr int SOURCES = FORWARD ? 1 : MULTIPLIER;                             // planes that a result sums
  static constexpr bool HAS_BIAS = FORWARD && Layer::has_bias;
  static constexpr int KD = Layer::kernel_d, KH = Layer::kernel_h, KW = Layer::kernel_w, TAPS = KD * KH * KW;
  static constexpr int SH = Layer::stride_h, PH = Layer::padding_h, DH = Layer::dilation_h;
  static constexpr int SD = Layer::stride_d, PD = Layer::padding_d, DD = Layer::dilation_d;

  static constexpr int MOST_PRODUCTS = 1024;  // products in the code of a thread for a slice, at most

  // Steps of a run: RUN_BYTES, fewer with a long stride. Results of a thread: RUNS x rows x run, at most about 32.
  static constexpr __host__ __device__ int largest(int count, int each, int most) {
    while (count > 1 && count * each > most) count /= 2;
    return count;
  }
  static constexpr int OUT_W = FORWARD ? Layer::stride_w : 1, OUT_H = FORWARD ? Layer::stride_h : 1;
  static constexpr int STEPS = largest(Tune::RUN_BYTES > BYTES ? Tune::RUN_BYTES / BYTES : 1, Layer::stride_w,
                                      FORWARD ? 32 : 16);
  using W = RunAxis<FORWARD, KW, Layer::stride_w, Layer::padding_w, Layer::dilation_w, STEPS>;
  // grad_input has long windows where the stride is long; fewer rows avoid spills.
  static constexpr __host__ __device__ int most_rows() {
    if (KH == 1 || (!FORWARD && Layer::stride_w > 3)) return 1;
    return !FORWARD && (KD > 1 || Layer::stride_w * Layer::stride_h > 4) && Tune::ROWS > 2 ? 2 : Tune::ROWS;
  }
  static constexpr int STEPS_H =
      largest(largest(most_rows(), FORWARD ? W::RESULTS * OUT_H : W::SOURCES, 32), KH * KW * STEPS, MOST_PRODUCTS);
  using H = RunAxis<FORWARD, KH, Layer::stride_h, Layer::padding_h, Layer::dilation_h, STEPS_H>;
  // A thread takes a block of rows and reads a source row once for all of them; or one row, where that is too much code.
  static constexpr bool BLOCKED = W::RESULTS * H::RESULTS <= 32 && KH * KW * STEPS * STEPS_H <= MOST_PRODUCTS;
  static constexpr int ROWS = BLOCKED ? H::RESULTS : 1, SOURCE_ROWS = BLOCKED ? H::SOURCES : 1;
  static constexpr int RUNS = largest(Tune::RUNS, ROWS * W::RESULTS, 32);
  static constexpr bool KEEPS_WEIGHTS = KH * KW <= 16;  // in registers, all of a kd

  static constexpr int LOAD = run_vector(W::SOURCES, BYTES), STORE = run_vector(W::RESULTS, BYTES);  // at most
  // Results of a warp in shared memory: a run, then padding against bank conflicts.
  static constexpr int RUN = W::RESULTS;
  static constexpr int PITCH = RUN * BYTES % 32 == 0 ? RUN + 16 / BYTES : RUN;
  static constexpr bool EXCHANGES = Tune::EXCHANGE && RUN > 1 && THREADS * PITCH * BYTES <= 32768;
  static constexpr int IMAGE = EXCHANGES ? THREADS * PITCH : 1;
  // Threads of a multiprocessor. Layers that keep many addresses or long windows get more registers.
  static constexpr int RESIDENT = KD > 1 || (KH > 1 && Layer::stride_w > 2) ? 384 : 512;
};

// Threads of a block share `planes` planes: each plane has `threads` of them.
struct RowsTile {
  int runs, row_blocks;  // of a slice of the result
  int threads, planes;
  int blocks;            // of a slice
  unsigned by_threads;
};

// As many blocks for a slice as leave the fewest lanes idle; more blocks must save an eighth of the lanes.
template <class P>
RowsTile rows_tile(int result_w, int result_h) {
  RowsTile t;
  t.runs = ceil_div(result_w, P::RUN), t.row_blocks = ceil_div(result_h, P::ROWS);
  const long long items = 1LL * t.runs * t.row_blocks, needed = ceil_div(items, 1LL * P::THREADS * P::RUNS);
  double fewest = 0;  // lanes for a slice
  for (long long blocks = needed; blocks < needed + 4; ++blocks) {
    const int threads = int(ceil_div(items, blocks * P::RUNS)), planes = P::THREADS / threads;
    const double lanes = double(blocks) * (ceil_div(threads * planes, 32) * 32) / planes;
    if (blocks > needed && lanes * 8 > fewest * 7) continue;
    fewest = lanes, t.threads = threads, t.planes = planes, t.blocks = int(blocks);
  }
  t.by_threads = fma_divisor(t.threads);
  return t;
}
