// One axis of a transposed convolution, for forward or grad_input, as a sum of shifted strips.
// A kernel counts "steps" q = 0, 1, ... along the axis. A step meets IN_STEP elements of the source and OUT_STEP
// elements of the result:
//     forward:    output q * stride + r - CUT gets tap k from input q + BASE + offset(k), for the taps of residue r
//     grad_input: input  q gets tap k from grad_output q * stride + BASE + offset(k), for all taps
// So each tap is a shift that is known at compile time. An output residue without taps is zero.
#pragma once
#include <cuda_runtime.h>

template <bool FORWARD, int KERNEL, int STRIDE, int PADDING, int DILATION>
struct StripAxis {
  static constexpr int TAPS = KERNEL;
  static constexpr int IN_STEP = FORWARD ? 1 : STRIDE;
  static constexpr int OUT_STEP = FORWARD ? STRIDE : 1;
  static constexpr int REACH = (KERNEL - 1) * DILATION / (FORWARD ? STRIDE : 1);  // the farthest offset
  static constexpr int FIRST = FORWARD ? PADDING / STRIDE : 0;                    // steps that padding removes
  static constexpr int CUT = FORWARD ? PADDING % STRIDE : 0;                      // outputs of the next step that it removes
  static constexpr int BASE = FORWARD ? FIRST - REACH : -PADDING;

  static constexpr __host__ __device__ int residue(int tap) { return FORWARD ? tap * DILATION % STRIDE : 0; }
  static constexpr __host__ __device__ int offset(int tap) {
    return FORWARD ? REACH - tap * DILATION / STRIDE : tap * DILATION;
  }
  static constexpr __host__ __device__ bool met(int r) {
    for (int tap = 0; tap < KERNEL; ++tap)
      if (residue(tap) == r) return true;
    return false;
  }
  // Residues that a tap meets are counted 0, 1, ...: each has accumulators of its own.
  static constexpr __host__ __device__ int class_of(int r) {
    int found = 0;
    for (int other = 0; other < r; ++other) found += met(other);
    return found;
  }
  static constexpr int CLASSES = class_of(OUT_STEP);

  static constexpr __host__ __device__ int steps(int out) { return (CUT + out - 1) / OUT_STEP + 1; }
};

template <int VALUE>
struct StripIndex {
  static constexpr int value = VALUE;
};

// Calls f(StripIndex<0>), f(StripIndex<1>), ...: a loop whose index is a constant in each turn.
template <int COUNT, class F, int AT = 0>
__device__ __forceinline__ void strip_unrolled(F&& f) {
  if constexpr (AT < COUNT) {
    f(StripIndex<AT>{});
    strip_unrolled<COUNT, F, AT + 1>(static_cast<F&&>(f));
  }
}
