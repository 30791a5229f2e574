// What the taps of one kernel row (kd, kh) meet in a row of the output, as constants of the layer.
// Tap k meets output i * stride + offset(k), where offset = shift * stride + residue. A plane is every stride-th output
// from `residue` on. Tap k meets element i + shift of its plane, so inside a plane every layer has stride 1.
#pragma once
#include "contract/problem.cuh"

template <class Layer>
struct RowTaps {
  static_assert(Layer::is_constant, "the taps of a row are constants: only the constant form of a layer has them");
  static constexpr int REACH = 16;  // taps this far apart within a plane are still read from one window
  static constexpr int MOST = 8;    // taps in a group

  static constexpr __host__ __device__ long long offset(int k) {
    return 1LL * k * Layer::dilation_w - Layer::padding_w;
  }
  static constexpr __host__ __device__ int residue(int k) {
    const long long r = offset(k) % Layer::stride_w;
    return int(r < 0 ? r + Layer::stride_w : r);
  }
  static constexpr __host__ __device__ int shift(int k) { return int((offset(k) - residue(k)) / Layer::stride_w); }

  // Taps are summed in groups of neighbours, of equal length if REACH allows it. Returns the end of the group that
  // begins at `first`.
  static constexpr __host__ __device__ int group_end(int first) {
    const int length = ceil_div(Layer::kernel_w, ceil_div(Layer::kernel_w, MOST));
    int end = first + 1;
    for (; end < Layer::kernel_w && end - first < length; ++end)
      for (int k = first; k < end; ++k)
        if (residue(k) == residue(end) && shift(end) - shift(k) > REACH) return end;
    return end;
  }
};

// Taps FIRST .. FIRST + COUNT - 1 and the planes they meet. A plane is staged from low(plane) on, VECTOR elements at a
// time.
template <class Layer, int FIRST, int VECTOR = 4>
struct TapGroup {
  using Taps = RowTaps<Layer>;
  static constexpr int END = Taps::group_end(FIRST), COUNT = END - FIRST;

  static constexpr __host__ __device__ bool opens_plane(int k) {
    for (int other = FIRST; other < k; ++other)
      if (Taps::residue(other) == Taps::residue(k)) return false;
    return true;
  }
  static constexpr __host__ __device__ int planes() {
    int count = 0;
    for (int k = FIRST; k < END; ++k) count += opens_plane(k);
    return count;
  }
  static constexpr int PLANES = planes();
  // The first tap of a plane.
  static constexpr __host__ __device__ int opener(int plane) {
    for (int k = FIRST, seen = 0; k < END; ++k)
      if (opens_plane(k) && seen++ == plane) return k;
    return FIRST;
  }
  static constexpr __host__ __device__ int residue(int plane) { return Taps::residue(opener(plane)); }
  static constexpr __host__ __device__ bool meets(int k, int plane) { return Taps::residue(k) == residue(plane); }
  // Where a plane's staged row begins, relative to the input position. With stride 1 rows are copied in vectors, and
  // this is a multiple of VECTOR.
  static constexpr __host__ __device__ int low(int plane) {
    const int shift = Taps::shift(opener(plane));
    return Layer::stride_w > 1 ? shift : shift - (shift % VECTOR + VECTOR) % VECTOR;
  }
  static constexpr __host__ __device__ int step(int k, int plane) { return Taps::shift(k) - low(plane); }
  // How far beyond its tile a staged row is read, in whole vectors.
  static constexpr __host__ __device__ int halo(int plane) {
    int most = 0;
    for (int k = FIRST; k < END; ++k)
      if (meets(k, plane) && step(k, plane) > most) most = step(k, plane);
    return ceil_div(most, VECTOR) * VECTOR;
  }
};
