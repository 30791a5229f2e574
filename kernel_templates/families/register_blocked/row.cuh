// What the taps of a kernel row mean to a thread that computes 4 neighbouring steps along W (contract/axis.cuh) by fp32
// FMA: which window of the staged source it loads into registers, and where each tap lies in that window.
// SPLIT: a source that is read with a stride is staged as planes, one for each residue that a tap meets, so
// neighbouring steps are neighbours in shared memory. Without it rows are staged as they are, with STEP elements from
// step to step.
#pragma once
#include "contract/problem.cuh"
#include "contract/axis.cuh"

template <bool FORWARD, class Layer, bool SPLIT>
struct FmaRow {
  using W = StripAxis<FORWARD, Layer::kernel_w, Layer::stride_w, Layer::padding_w, Layer::dilation_w>;
  static constexpr int TAPS = Layer::kernel_w, CLASSES = W::CLASSES;
  static constexpr bool PLANAR = SPLIT && W::IN_STEP > 1;
  static constexpr int STEP = SPLIT ? 1 : W::IN_STEP;         // elements from step to step in shared memory
  static constexpr int SOURCE_STEP = PLANAR ? W::IN_STEP : 1;  // source elements from one staged element to the next

  // Tap k meets source element (step * STEP + shift(k)) * SOURCE_STEP + residue(k).
  static constexpr __host__ __device__ int residue(int k) {
    const int r = (W::BASE + W::offset(k)) % SOURCE_STEP;
    return r < 0 ? r + SOURCE_STEP : r;
  }
  static constexpr __host__ __device__ int shift(int k) { return (W::BASE + W::offset(k) - residue(k)) / SOURCE_STEP; }
  static constexpr __host__ __device__ int class_of(int k) { return W::class_of(W::residue(k)); }

  static constexpr __host__ __device__ bool opens_plane(int k) {
    for (int other = 0; other < k; ++other)
      if (residue(other) == residue(k)) return false;
    return true;
  }
  static constexpr __host__ __device__ int planes() {
    int count = 0;
    for (int k = 0; k < TAPS; ++k) count += opens_plane(k);
    return count;
  }
  static constexpr int PLANES = planes();
  static constexpr __host__ __device__ int plane_of(int k) {
    int plane = -1;
    for (int other = 0; other <= k; ++other)
      if (opens_plane(other)) {
        ++plane;
        if (residue(other) == residue(k)) return plane;
      }
    return plane;
  }
  static constexpr __host__ __device__ int residue_of_plane(int plane) {
    for (int k = 0; k < TAPS; ++k)
      if (plane_of(k) == plane) return residue(k);
    return 0;
  }
  // The first staged element of step 0: a multiple of 4 where rows are copied in vectors.
  static constexpr __host__ __device__ int low(int plane) {
    int least = 1 << 30;
    for (int k = 0; k < TAPS; ++k)
      if (plane_of(k) == plane && shift(k) < least) least = shift(k);
    return PLANAR ? least : least - (least % 4 + 4) % 4;
  }
  // Where tap k's element for step 0 lies in the window, and how far windows of 4 steps reach, in whole vectors.
  static constexpr __host__ __device__ int at(int k) { return shift(k) - low(plane_of(k)); }
  static constexpr __host__ __device__ int window(int plane) {
    int most = 0;
    for (int k = 0; k < TAPS; ++k)
      if (plane_of(k) == plane && at(k) > most) most = at(k);
    return ceil_div(most + 3 * STEP + 1, 4) * 4;
  }
  static constexpr __host__ __device__ int widest() {
    int most = 0;
    for (int plane = 0; plane < PLANES; ++plane)
      if (window(plane) > most) most = window(plane);
    return most;
  }
  static constexpr int WINDOW = widest();
  // Elements of a staged row that holds `strips` strips of 4 steps.
  static constexpr __host__ __device__ int width(int strips) { return 4 * STEP * (strips - 1) + WINDOW; }
};
