// One axis of gathered_mma: which taps the positions of one class share, and where in the source they meet them.
//   forward:    outputs o = q * stride + c of the same class c (0 <= c < stride) share their taps, and meet
//               neighbouring inputs;
//   grad_input: all inputs are one class, which has all taps, and meets every stride-th element of grad_output.
// Tap number t of a class meets the source at  at + q * SPAN + t * SHIFT.
#pragma once
#include "common/taps.cuh"

// Taps first, first + TAP_STEP, ... (count of them) of a class.
struct GatheredTaps {
  int first, count, at;
};

struct GatheredRange {
  int begin, end;
};

// The x with  value * x = 1  modulo `modulus`; the two have no common factor.
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
  // Classes with a tap have different first taps, so that these number them.
  static constexpr int FIRSTS = KERNEL < TAP_STEP ? KERNEL : TAP_STEP;
  static constexpr int MOST_TAPS = ceil_div(KERNEL, TAP_STEP);
  // The same as the header of a variant bounds it, which knows no common divisors.
  static constexpr int STEP_AT_LEAST = !FORWARD || DILATION % STRIDE == 0 ? 1
                                       : STRIDE > 2 * DILATION            ? ceil_div(STRIDE, DILATION)
                                                                          : 2;
  static constexpr int TAPS_BOUND = ceil_div(KERNEL, STEP_AT_LEAST);
  static constexpr int SPAN = FORWARD ? 1 : STRIDE, RESULT_STEP = FORWARD ? STRIDE : 1;
  static constexpr int SHIFT = FORWARD ? -(DILATION / DIVISOR) : DILATION;
  // One tap, which meets each position at its own place in the source.
  static constexpr bool PLAIN = KERNEL == 1 && STRIDE == 1 && PADDING == 0 && DILATION == 1;

  // Of a result so long: its classes, and the most positions of one.
  static int classes(int result) { return result < RESULT_STEP ? result : RESULT_STEP; }
  static int positions(int result) { return int(ceil_div(1LL * result, RESULT_STEP)); }

  static constexpr __host__ __device__ int taps_from(int first) { return (KERNEL - first - 1) / TAP_STEP + 1; }

  // (c + padding - tap * dilation) must be a multiple of the stride. That is solved by an inverse instead of a search.
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

  // Those of the class that any of the positions from .. to may meet in a source of `size`.
  static __device__ __forceinline__ GatheredRange range(const GatheredTaps& taps, int from, int to, int size) {
    constexpr int PACE = SHIFT < 0 ? -SHIFT : SHIFT;
    const long long low = taps.at + 1LL * from * SPAN, high = taps.at + 1LL * to * SPAN;
    const long long off = SHIFT < 0 ? low - (size - 1) : -high;   // > 0: by so much the first tap misses
    const long long room = SHIFT < 0 ? high : size - 1 - low;     // < 0: every tap is beyond the end
    const long long begin = off > 0 ? (off + PACE - 1) / PACE : 0, end = room < 0 ? 0 : room / PACE + 1;
    const int stop = end < taps.count ? int(end) : taps.count;
    return begin < stop ? GatheredRange{int(begin), stop} : GatheredRange{0, 0};
  }
};
