// Copies rows of a tensor into shared memory without registers, and rounds them once where they arrived.
#pragma once
#include "contract/problem.cuh"
#include "hardware/ptx.cuh"
#include "contract/scalar.cuh"
#include "contract/tile_place.cuh"

// The rows of a block: `channels` of them, `plane` elements apart. Column c is element first + c * step of a row of
// `length`, or 0 outside the row. channels = 0: all zeros.
template <class Scalar>
struct RowSource {
  const Scalar* row;
  long long plane;
  int channels, first, length;
};

// Channels from m0 of a group of the input, at a tile. `in_plane` is the number of elements of a channel; `out_plane`
// likewise.
template <class Layer, class Plan, class Scalar>
__device__ __forceinline__ RowSource<Scalar> input_row(const Scalar* input, const TilePlace& at, const Sizes& sizes,
                                                       long long in_plane, int group, int m0) {
  RowSource<Scalar> x;
  x.row = input + (at.n * Layer::in_channels + group * Plan::CI + m0) * in_plane +
          (1LL * at.d * sizes.in_h + at.h) * sizes.in_w;
  x.plane = in_plane, x.channels = Plan::CI - m0, x.first = at.w, x.length = sizes.in_w;
  return x;
}

// Channels from n0 of a group of gy, in the row that a tile's row meets with tap row `tap_row`. None if there is no
// such row or tap row. `first` is not set: it depends on the taps.
template <class Layer, class Plan, class Scalar>
__device__ __forceinline__ RowSource<Scalar> gy_row(const Scalar* grad_output, const TilePlace& at, const Sizes& sizes,
                                                    long long out_plane, int group, int n0, int tap_row) {
  const int kd = tap_row / Layer::kernel_h, kh = tap_row % Layer::kernel_h;
  const long long od = 1LL * at.d * Layer::stride_d + 1LL * kd * Layer::dilation_d - Layer::padding_d;
  const long long oh = 1LL * at.h * Layer::stride_h + 1LL * kh * Layer::dilation_h - Layer::padding_h;
  const bool there = tap_row < Plan::ROWS && od >= 0 && od < sizes.out_d && oh >= 0 && oh < sizes.out_h;
  RowSource<Scalar> gy;
  gy.row = grad_output;
  if (there)
    gy.row += (at.n * Layer::out_channels + group * Plan::CO + n0) * out_plane + (od * sizes.out_h + oh) * sizes.out_w;
  gy.plane = out_plane, gy.channels = there ? Plan::CO - n0 : 0, gy.length = sizes.out_w;
  return gy;
}

// The widest copy of whole vectors of a row, in elements: 16, 8 or 4 bytes, or one element. Values that become float on
// the way are copied one by one.
template <class Staged = float, class Scalar>
inline int copy_width(const Scalar* tensor, int length) {
  const auto address = reinterpret_cast<unsigned long long>(tensor);
  if (sizeof(Scalar) != sizeof(Staged)) return 1;
  for (int width = 16 / int(sizeof(Scalar)); width > 1; width /= 2)
    if (length % width == 0 && address % (width * sizeof(Scalar)) == 0) return width;
  return 1;
}

// Calls body(row, column, turn) for the vectors of ROWS x COLUMNS elements that belong to this thread. If possible a
// thread keeps its column, so from turn to turn only the row grows, by a constant.
template <int THREADS, int ROWS, int VECTORS, class Body>
__device__ __forceinline__ void for_own_vectors(const Body& body) {
  if constexpr (THREADS % VECTORS == 0) {
    constexpr int STRIDE = THREADS / VECTORS, TURNS = ceil_div(ROWS, STRIDE);
    const int row = threadIdx.x / VECTORS, column = threadIdx.x % VECTORS;
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn)
      if (ROWS % STRIDE == 0 || row + turn * STRIDE < ROWS) body(row, turn * STRIDE, column);
  } else {
#pragma unroll 4
    for (int e = threadIdx.x; e < ROWS * VECTORS; e += THREADS) body(e / VECTORS, 0, e % VECTORS);
  }
}

template <int THREADS, int ROWS, int COLUMNS, int PITCH, int STEP, int WIDTH, class Staged, class Scalar>
__device__ __forceinline__ void copy_rows_by(Staged* to, const RowSource<Scalar>& from) {
  for_own_vectors<THREADS, ROWS, COLUMNS / WIDTH>([&](int row, int more, int vector) {
    const int at = from.first + vector * WIDTH * STEP;
    const int rows = unsigned(at) < unsigned(from.length) ? from.channels - row : 0;
    const Scalar* source = from.row + row * from.plane + at;
    Staged* target = to + row * PITCH + vector * WIDTH + more * PITCH;
    constexpr int BYTES = WIDTH * int(sizeof(Scalar));
    if constexpr (sizeof(Staged) != sizeof(Scalar)) {
      *target = more < rows ? widen(source[more * from.plane]) : 0.f;  // exact: TF32 holds either type
    } else if constexpr (BYTES >= 4) {
      cp_async<BYTES>(target, more < rows ? source + more * from.plane : from.row, more < rows ? BYTES : 0);
    } else {
      *target = more < rows ? source[more * from.plane] : narrow<Scalar>(0.f);
    }
  });
}

template <int THREADS, int ROWS, int COLUMNS, int PITCH, int WIDTH>
__device__ __forceinline__ void round_rows_by(float* rows) {
  for_own_vectors<THREADS, ROWS, COLUMNS / WIDTH>([&](int row, int more, int vector) {
    float* at = rows + row * PITCH + vector * WIDTH + more * PITCH;
    if constexpr (WIDTH == 4) {
      float4 v = *reinterpret_cast<float4*>(at);
      v.x = round_to_tf32(v.x), v.y = round_to_tf32(v.y), v.z = round_to_tf32(v.z), v.w = round_to_tf32(v.w);
      *reinterpret_cast<float4*>(at) = v;
    } else if constexpr (WIDTH == 2) {
      float2 v = *reinterpret_cast<float2*>(at);
      v.x = round_to_tf32(v.x), v.y = round_to_tf32(v.y);
      *reinterpret_cast<float2*>(at) = v;
    } else {
      *at = round_to_tf32(*at);
    }
  });
}

// All threads of the block call these with the same `width`. A thread rounds exactly what it copied itself, so between
// the two it needs cp_async_wait() but no barrier.
template <int THREADS, int ROWS, int COLUMNS, int PITCH, int STEP, class Staged, class Scalar>
__device__ __forceinline__ void copy_rows(Staged* to, const RowSource<Scalar>& from, int width) {
  if constexpr (STEP == 1 && sizeof(Staged) == sizeof(Scalar)) {
    if constexpr (sizeof(Scalar) == 2)
      if (width == 8) return copy_rows_by<THREADS, ROWS, COLUMNS, PITCH, 1, 8>(to, from);
    if (width == 4) return copy_rows_by<THREADS, ROWS, COLUMNS, PITCH, 1, 4>(to, from);
    if (width == 2) return copy_rows_by<THREADS, ROWS, COLUMNS, PITCH, 1, 2>(to, from);
  }
  copy_rows_by<THREADS, ROWS, COLUMNS, PITCH, STEP, 1>(to, from);
}

template <int THREADS, int ROWS, int COLUMNS, int PITCH, int STEP>
__device__ __forceinline__ void round_rows(float* rows, int width) {
  if constexpr (STEP == 1) {
    if (width == 4) return round_rows_by<THREADS, ROWS, COLUMNS, PITCH, 4>(rows);
    if (width == 2) return round_rows_by<THREADS, ROWS, COLUMNS, PITCH, 2>(rows);
  }
  round_rows_by<THREADS, ROWS, COLUMNS, PITCH, 1>(rows);
}
