// One axis of a transposed convolution for a thread that computes a run of neighbouring steps: which source
// element each result of the run meets by each tap. All of it is known at compile time, also padding and residues.
//     forward:    a step is one input, STRIDE outputs; result i of a run is output `run * RESULTS + i`
//     grad_input: a step is one input, STRIDE elements of grad_output; result i is input `run * RESULTS + i`
// Source elements are counted from `run * SOURCES`.
#pragma once
#include "contract/problem.cuh"

template <bool FORWARD, int KERNEL, int STRIDE, int PADDING, int DILATION, int STEPS_>
struct RunAxis {
  static constexpr int TAPS = KERNEL, STEPS = STEPS_;
  static constexpr int RESULTS = FORWARD ? STEPS * STRIDE : STEPS, SOURCES = FORWARD ? STEPS : STEPS * STRIDE;

  static constexpr __host__ __device__ bool met(int i, int tap) {
    return !FORWARD || (i + PADDING - tap * DILATION) % STRIDE == 0;
  }
  static constexpr __host__ __device__ int at(int i, int tap) {
    return FORWARD ? (i + PADDING - tap * DILATION) / STRIDE : i * STRIDE - PADDING + tap * DILATION;
  }
  // The first and the last source element that the taps [tap, end) meet. If they meet none, LAST is below FIRST.
  static constexpr __host__ __device__ int first(int tap, int end) {
    int least = 1 << 30;
    for (int k = tap; k < end; ++k)
      for (int i = 0; i < RESULTS; ++i)
        if (met(i, k) && at(i, k) < least) least = at(i, k);
    return least;
  }
  static constexpr __host__ __device__ int last(int tap, int end) {
    int most = -(1 << 30);
    for (int k = tap; k < end; ++k)
      for (int i = 0; i < RESULTS; ++i)
        if (met(i, k) && at(i, k) > most) most = at(i, k);
    return most;
  }
  static constexpr __host__ __device__ bool meets_between(int from, int to, int tap, int end) {
    for (int k = tap; k < end; ++k)
      for (int i = 0; i < RESULTS; ++i)
        if (met(i, k) && at(i, k) >= from && at(i, k) < to) return true;
    return false;
  }
};

// The window of a run's source that the taps [TAP, END) meet, as vectors of V elements that begin at multiples of V.
template <class Axis, int TAP, int END, int V>
struct RunWindow {
  static constexpr int LOW = Axis::first(TAP, END), HIGH = Axis::last(TAP, END);
  static constexpr int FIRST = LOW - (LOW % V + V) % V, VECTORS = (HIGH - FIRST) / V + 1, LENGTH = VECTORS * V;
  static constexpr __host__ __device__ bool read(int vector) {
    return Axis::meets_between(FIRST + vector * V, FIRST + (vector + 1) * V, TAP, END);
  }
};

// The run itself as a window.
template <int STEPS, int V>
struct OwnRun {
  static constexpr int VECTORS = STEPS / V, LENGTH = STEPS;
  static constexpr __host__ __device__ bool read(int) { return true; }
};

// A row is computed in groups of at most so many taps: their windows and weights stay in registers.
constexpr int RUN_TAPS = 16;

// How many elements may be loaded or stored together: a power of two that divides `count`, at most 16 bytes.
constexpr __host__ __device__ int run_vector(int count, int bytes) {
  int v = 1;
  while (2 * v * bytes <= 16 && count % (2 * v) == 0) v *= 2;
  return v;
}

// The same for rows of `length` elements that lie at `tensor`, and at most `most`.
inline int run_vector_of(const void* tensor, long long length, int most, int bytes) {
  const auto address = reinterpret_cast<unsigned long long>(tensor);
  while (most > 1 && (length % most != 0 || address % (most * bytes) != 0)) most /= 2;
  return most;
}

// Slices, rows and columns are counted in int, also those that padding crops.
inline bool counts_in_int(const Sizes& sizes) {
  constexpr int MOST = 1 << 29;
  return sizes.in_d <= MOST && sizes.in_h <= MOST && sizes.in_w <= MOST && sizes.out_d <= MOST && sizes.out_h <= MOST &&
         sizes.out_w <= MOST;
}
