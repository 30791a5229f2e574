// One axis of gathered_mma: which taps the positions of one class share, and where in the source they meet them.
//     forward:    outputs o = q * stride + c of the same class c (0 <= c < stride) share their taps and meet
//                 neighbouring inputs
//     grad_input: all inputs are one class with all taps, and meet every stride-th element of grad_output
// Tap number t of a class meets the source at  at + q * SPAN + t * SHIFT.
#pragma once
#include "contract/taps.cuh"

// Taps first, first + TAP_STEP, ... (count of them) of a class.
struct GatheredTaps {
  int first, count, at;
};

struct GatheredRange {
  int begin, end;
};

// Returns the x with  value * x = 1  modulo `modulus`. The two must have no common factor.
constexpr int inverse_modulo(long long value, long long modulus) {
  long long a = value % modulus, b = modulus, of_a = 1, of_b = 0;
  while (a != 0) {
    const long long quotient = b / a, rest = b % a, of_rest = of_b - quotient * of_a;
    b = a, a = rest, of_b = of_a, of_a = of_rest;
  }
  return int((of_b % modulus + modulus) % modulus);
}

template <bool FORWARD, int KERNEL, int STRIDE, int PADDING, int DILATION>
struct GatheredAxis {
  static constexpr int DIVISOR = greatest_common_divisor(STRIDE, DILATION);
  static constexpr int TAP_STEP = FORWARD ? STRIDE / DIVISOR : 1;
  // Classes with a tap have different first taps, so the first tap numbers them.
  static constexpr int FIRSTS = KERNEL < TAP_STEP ? KERNEL : TAP_STEP;
  static constexpr int MOST_TAPS = ceil_div(KERNEL, TAP_STEP);
  // The same bound as in the header of the .cu, where common divisors cannot be computed.
  static constexpr int STEP_AT_LEAST = !FORWARD || DILATION % STRIDE == 0 ? 1
                                       : STRIDE > 2 * DILATION            ? ceil_div(STRIDE, DILATION)
                                                                          : 2;
  static constexpr int TAPS_BOUND = ceil_div(KERNEL, STEP_AT_LEAST);
  static constexpr int SPAN = FORWARD ? 1 : STRIDE, RESULT_STEP = FORWARD ? STRIDE : 1;
  static constexpr int SHIFT = FORWARD ? -(DILATION / DIVISOR) : DILATION;
  // One tap, which meets each position at its own place in the source.
  static constexpr bool PLAIN = KERNEL == 1 && STRIDE == 1 && PADDING == 0 && DILATION == 1;

  // The classes of a result of this length, and the most positions of one class.
  static int classes(int result) { return result < RESULT_STEP ? result : RESULT_STEP; }
  static int positions(int result) { return int(ceil_div(1LL * result, RESULT_STEP)); }

  static constexpr __host__ __device__ int taps_from(int first) { return (KERNEL - first - 1) / TAP_STEP + 1; }

  // (c + padding - tap * dilation) must be a multiple of the stride. A modular inverse solves that without a search.
  static __device__ __forceinline__ GatheredTaps taps_of_class(int c) {
    if constexpr (!FORWARD) {
      return {0, KERNEL, -PADDING};
    } else {
      constexpr long long INVERSE = inverse_modulo(DILATION / DIVISOR, TAP_STEP);
      const long long shifted = 1LL * c + PADDING;
      const int first = int(shifted / DIVISOR % TAP_STEP * INVERSE % TAP_STEP);
      if (shifted % DIVISOR != 0 || first >= KERNEL) return {0, 0, 0};
      return {first, taps_from(first), int((shifted - 1LL * first * DILATION) / STRIDE)};
    }
  }

  // The taps of the class that any of the positions from .. to may meet in a source of `size`.
  static __device__ __forceinline__ GatheredRange range(const GatheredTaps& taps, int from, int to, int size) {
    constexpr int PACE = SHIFT < 0 ? -SHIFT : SHIFT;
    const long long low = taps.at + 1LL * from * SPAN, high = taps.at + 1LL * to * SPAN;
    const long long off = SHIFT < 0 ? low - (size - 1) : -high;   // > 0: how far outside the first tap is
    const long long room = SHIFT < 0 ? high : size - 1 - low;     // < 0: every tap is beyond the end
    const long long begin = off > 0 ? (off + PACE - 1) / PACE : 0, end = room < 0 ? 0 : room / PACE + 1;
    const int stop = end < taps.count ? int(end) : taps.count;
    return begin < stop ? GatheredRange{int(begin), stop} : GatheredRange{0, 0};
  }
};

// Compile-time constants of gathered_mma: tiles, steps of the reduction, shared memory. "Result" and "source" are
// output and input in forward, grad_input and grad_output in grad_input. M and K are their channels in a group.

template <bool IS_FORWARD, class Layer, class Tune>
struct GatheredPlan {
  static constexpr bool FORWARD = IS_FORWARD, BIAS = FORWARD && Layer::has_bias;
  static constexpr bool THREE = Tune::precision == Precision::tf32x3;
  static constexpr int PLANES = THREE ? 2 : 1;  // of weights: high and low parts
  static constexpr int GROUPS = Layer::groups;
  static constexpr int M = (FORWARD ? Layer::out_channels : Layer::in_channels) / GROUPS;
  static constexpr int K = (FORWARD ? Layer::in_channels : Layer::out_channels) / GROUPS;
  using D = GatheredAxis<FORWARD, Layer::kernel_d, Layer::stride_d, Layer::padding_d, Layer::dilation_d>;
  using H = GatheredAxis<FORWARD, Layer::kernel_h, Layer::stride_h, Layer::padding_h, Layer::dilation_h>;
  using W = GatheredAxis<FORWARD, Layer::kernel_w, Layer::stride_w, Layer::padding_w, Layer::dilation_w>;
  static constexpr int KERNEL_D = Layer::kernel_d, KERNEL_H = Layer::kernel_h, KERNEL_W = Layer::kernel_w;
  static constexpr long long KERNEL = 1LL * KERNEL_D * KERNEL_H * KERNEL_W;

  // Tensor cores truncate sums. So a sum of more terms than SERIES is cut into series, which are added in fp32.
  static constexpr int SERIES = THREE ? 128 : 4096;
  static constexpr bool LONG = 1LL * D::TAPS_BOUND * H::TAPS_BOUND * W::TAPS_BOUND * K > SERIES;

  // Neighbouring inputs meet every stride_w-th element of grad_output. With a long stride and neighbouring taps along W
  // a step is a run of taps (AlongSteps in steps.cuh), not of channels.
  static constexpr bool ALONG = !FORWARD && Layer::stride_w >= 4 && Layer::dilation_w == 1 && KERNEL_W >= 8;
  // Four taps of a run begin at a multiple of four, if the rows of grad_output do.
  static constexpr bool QUADS =
      ALONG && KERNEL_W % 4 == 0 && Layer::stride_w % 4 == 0 && Layer::padding_w % 4 == 0;

  static constexpr int LARGE = LONG || THREE || M <= 64 || ceil_div(M, 128) * 2 > ceil_div(M, 64) ? 64 : 128;
  static constexpr int TILE_M = Tune::TILE_M > 0 ? Tune::TILE_M : M <= 16 ? 16 : M <= 32 ? 32 : LARGE;
  static constexpr int TILE_N = Tune::TILE_N > 0                                  ? Tune::TILE_N
                                : !ALONG && TILE_M <= (LONG && THREE ? 16 : 32) ? 256
                                                                                : 128;
  static constexpr int M_TILES = ceil_div(M, TILE_M);
  static constexpr int WARPS = Tune::WARPS, THREADS = 32 * WARPS;
  static constexpr int WARPS_M = TILE_M > 64 ? 2 : 1, WARPS_N = WARPS / WARPS_M;
  static constexpr int MA = TILE_M / 16 / WARPS_M, NB = TILE_N / 8 / WARPS_N;  // fragments of a warp
  static_assert(MA * NB * 4 * (LONG ? 2 : 1) <= 128, "a thread's sums must fit in registers");

  // A step of the reduction is CHUNK pairs of tap and channel. With few channels it continues into the next tap. With
  // many it is part of one tap, whose last part is filled up with zeros. Along W, runs follow each other without a gap.
  static constexpr bool SLIM = TILE_M * PLANES + TILE_N <= 200;
  static constexpr int MOST = Tune::CHUNK > 0 ? Tune::CHUNK : SLIM ? 32 : 16;
  static constexpr bool MIXED = K <= MOST / 2;
  static constexpr long long MOST_TAPS = 1LL * D::MOST_TAPS * H::MOST_TAPS * W::MOST_TAPS;  // of a class
  static constexpr int PARTS = MIXED ? 1 : ceil_div(K, MOST);
  static constexpr int RUN = KERNEL * K > 16 ? 32 : KERNEL * K > 8 ? 16 : 8;  // if ALONG
  static constexpr int CHUNK = ALONG    ? (RUN < MOST ? RUN : MOST)
                               : !MIXED ? ceil_div(ceil_div(K, PARTS), 8) * 8
                               : MOST_TAPS * K < MOST ? int(ceil_div(MOST_TAPS * K, 8LL)) * 8 : MOST;
  static constexpr int CHANNELS = MIXED ? K : PARTS * CHUNK;  // of a tap, with those that fill it up
  static constexpr long long MOST_STEPS = ceil_div(MOST_TAPS * (ALONG ? K : CHANNELS), CHUNK);
  static_assert(MOST_STEPS < 1LL << 31, "steps are counted in 32 bits");
  static constexpr int STEPS_KEPT = SERIES / CHUNK;

  // A thread gathers the same COLUMNS positions throughout, of every ROW_STEP-th row of a step.
  static constexpr int COLUMNS = TILE_N > THREADS ? TILE_N / THREADS : 1;
  static constexpr int ROW_STEP = TILE_N < THREADS ? THREADS / TILE_N : 1, ROWS = CHUNK / ROW_STEP;
  static_assert(TILE_N * ROW_STEP == THREADS * COLUMNS && CHUNK % ROW_STEP == 0, "threads must share a step evenly");

  // Shared memory, in floats. 8 more than a multiple of 32: the rows that a fragment takes lie in different banks. A
  // step along W lies there as it was copied, position after position; odd multiples of 4 keep their banks apart.
  static constexpr int PITCH = TILE_N + 8;
  static constexpr int PAIR_PITCH = ALONG ? 1 : PITCH, POSITION_PITCH = ALONG ? CHUNK + 4 : 1;
  static constexpr int SOURCE_FLOATS = ALONG ? TILE_N * POSITION_PITCH : CHUNK * PITCH;
  static constexpr int WEIGHT_FLOATS = CHUNK * TILE_M * PLANES, STAGE_FLOATS = SOURCE_FLOATS + WEIGHT_FLOATS;
  static constexpr int STAGES = Tune::STAGES > 0 ? Tune::STAGES : SLIM ? 3 : 4;
  // Along W: positions, 24 bytes each. Else rows of two steps, 32 bytes each.
  static constexpr int TABLE_FLOATS = ALONG ? TILE_N * 6 : MIXED ? 2 * CHUNK * 8 : 0;
  static constexpr int LOOP_FLOATS = STAGES * STAGE_FLOATS + TABLE_FLOATS, IMAGE_FLOATS = TILE_M * PITCH;
  static constexpr int SHARED_BYTES = 4 * (LOOP_FLOATS > IMAGE_FLOATS ? LOOP_FLOATS : IMAGE_FLOATS);

  // Packed weights: [group][channel tile][class, by its first taps][step][8 pairs][16 channels][plane][lane][4].
  static constexpr int FIRSTS = D::FIRSTS * H::FIRSTS * W::FIRSTS;
  static constexpr long long CLASS_FLOATS = MOST_STEPS * WEIGHT_FLOATS;
  static constexpr long long PACKED_FLOATS = CLASS_FLOATS * FIRSTS * M_TILES * GROUPS;

  static constexpr int HELD = MA * NB * 4 * (LONG ? 2 : 1) + 64;  // estimated registers
  static constexpr int BLOCKS = 65536 / THREADS >= 2 * HELD ? 2 : 1;
};

// The run-time arguments of a launch. Classes and positions are counted along each axis as in GatheredAxis.
struct GatheredArguments {
  const float* source;
  const float* packed;
  const float* bias;
  float* result;
  int source_d, source_h, source_w, result_d, result_h, result_w;
  int classes_d, classes_h, classes_w, positions_d, positions_h, positions_w;
  long long positions, tiles, blocks;  // positions of a class, all batch elements counted; tiles of them
  long long source_volume, result_volume;
  int shares;  // of the reduction, where it is split
};

template <class P>
GatheredArguments gathered_arguments(const Sizes& sizes, const float* source, const float* packed, const float* bias,
                                     float* result) {
  GatheredArguments a = {source, packed, bias, result};
  a.source_d = P::FORWARD ? sizes.in_d : sizes.out_d, a.result_d = P::FORWARD ? sizes.out_d : sizes.in_d;
  a.source_h = P::FORWARD ? sizes.in_h : sizes.out_h, a.result_h = P::FORWARD ? sizes.out_h : sizes.in_h;
  a.source_w = P::FORWARD ? sizes.in_w : sizes.out_w, a.result_w = P::FORWARD ? sizes.out_w : sizes.in_w;
  a.classes_d = P::D::classes(a.result_d), a.positions_d = P::D::positions(a.result_d);
  a.classes_h = P::H::classes(a.result_h), a.positions_h = P::H::positions(a.result_h);
  a.classes_w = P::W::classes(a.result_w), a.positions_w = P::W::positions(a.result_w);
  a.positions = sizes.batch * a.positions_d * a.positions_h * a.positions_w;
  a.tiles = ceil_div(a.positions, P::TILE_N);
  a.blocks = 1LL * a.classes_d * a.classes_h * a.classes_w * P::M_TILES * P::GROUPS * a.tiles;
  a.source_volume = 1LL * a.source_d * a.source_h * a.source_w;
  a.result_volume = 1LL * a.result_d * a.result_h * a.result_w;
  return a;
}
