// A step of a block of rolling_mma: the products of a warp, where the step lies, its copies.
#pragma once
#include "families/split_mma/multiply.cuh"
#include "families/rolling_mma/plan.cuh"
#include "contract/problem.cuh"
#include "contract/scalar.cuh"
#include "hardware/ptx.cuh"

template <class Plan>
using RollingSums = float[Plan::MA][Plan::NB][Plan::KT][4];

// sum += x * gy over every PS-th run of K_STEP positions of a tile, from position `first` to `end`. x[half] points at position
// 0 of the tile, in the row of the input that lane / 4 of that half of a product multiplies; gy[n] at the element of gy
// that tap FIRST meets there. An element is rounded here, in a register: a loop over shared memory would take longer.
// `one`: see round_for_tensor_cores().
template <class Plan>
__device__ __forceinline__ void multiply_rolling(RollingSums<Plan>& sum, const float* const (&x)[2 * Plan::MA],
                                                 const float* const (&gy)[Plan::NB], int first, int end,
                                                 float one) {
  constexpr bool THREE = Plan::THREE;
  const int column = threadIdx.x % 4;
#pragma unroll Plan::UNROLL
  for (int at = first; at < end; at += Plan::PS * Plan::K_STEP) {
    float a[Plan::MA][4];
    [[maybe_unused]] float a_rest[Plan::MA][4];
#pragma unroll
    for (int m = 0; m < Plan::MA; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float value = x[2 * m + i % 2][at + column + i / 2 * 4];
        if constexpr (THREE)
          split_tf32(value, a[m][i], a_rest[m][i]);
        else
          a[m][i] = round_for_tensor_cores(value, one);
      }
#pragma unroll
    for (int n = 0; n < Plan::NB; ++n)
#pragma unroll
      for (int k = 0; k < Plan::KT; ++k) {
        float b[2];
        [[maybe_unused]] float b_rest[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float value = gy[n][(at + column + 4 * i) * Plan::STRIDE + k * Plan::DILATION];
          if constexpr (THREE)
            split_tf32(value, b[i], b_rest[i]);
          else
            b[i] = round_for_tensor_cores(value, one);
        }
#pragma unroll
        for (int m = 0; m < Plan::MA; ++m) {
          float(&d)[4] = sum[m][n][k];
          if constexpr (THREE) {
            mma_m16n8k8_tf32(d, a_rest[m], b, d);  // small terms first, while the sum is small
            mma_m16n8k8_tf32(d, a[m], b_rest, d);
          }
          mma_m16n8k8_tf32(d, a[m], b, d);
        }
      }
  }
}

// The same for 16-bit floats.
template <class Plan, bool is_bfloat, class Scalar>
__device__ __forceinline__ void multiply_rolling_pairs(RollingSums<Plan>& sum, const Scalar* const (&x)[2 * Plan::MA],
                                                       const Scalar* const (&gy)[Plan::NB], int first, int end) {
  const int column = threadIdx.x % 4 * 2;
  const auto pair = [](const Scalar* from, int apart) {
    const unsigned short* const bits = reinterpret_cast<const unsigned short*>(from);
    return unsigned(bits[0]) | unsigned(bits[apart]) << 16;
  };
#pragma unroll Plan::UNROLL
  for (int at = first; at < end; at += Plan::PS * Plan::K_STEP) {
    unsigned a[Plan::MA][4];
#pragma unroll
    for (int m = 0; m < Plan::MA; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) a[m][i] = pair(x[2 * m + i % 2] + at + column + i / 2 * 8, 1);
#pragma unroll
    for (int n = 0; n < Plan::NB; ++n)
#pragma unroll
      for (int k = 0; k < Plan::KT; ++k) {
        unsigned b[2];
#pragma unroll
        for (int i = 0; i < 2; ++i)
          b[i] = pair(gy[n] + (at + column + 8 * i) * Plan::STRIDE + k * Plan::DILATION, Plan::STRIDE);
#pragma unroll
        for (int m = 0; m < Plan::MA; ++m) mma_m16n8k16<is_bfloat>(sum[m][n][k], a[m], b, sum[m][n][k]);
      }
  }
}

// Where a step of a block lies. A column is all steps along h of one tile along w, in one plane: input plane d, and for
// later taps the planes before it. `row` is the row of the input that is new in this step. Steps before `first` only
// fill the ring of rows; they have no products.
template <class Layer, class Plan>
struct RollingPlace {
  const int steps, columns_w, columns_d, chain_d;
  long long tile, n;  // steps with products are counted over all columns
  const long long end;
  int d, w, row, first;

  static __host__ __device__ long long all(const Sizes& sizes) {
    return sizes.batch * (sizes.in_d + Plan::D::BEHIND) * ceil_div(sizes.in_w, Plan::TILE) *
           (sizes.in_h + Plan::H::BEHIND);
  }
  __device__ __forceinline__ RollingPlace(const Sizes& sizes, long long begin, long long end, int chain_d)
      : steps(sizes.in_h + Plan::H::BEHIND), columns_w(ceil_div(sizes.in_w, Plan::TILE)),
        columns_d(sizes.in_d + Plan::D::BEHIND), chain_d(chain_d), tile(begin), end(end) {
    const long long column = begin / steps, plane = column / columns_w;
    w = int(column % columns_w) * Plan::TILE;
    d = int(plane % columns_d);
    n = plane / columns_d;
    first = int(begin % steps);
    row = first > Plan::H::BEHIND ? first - Plan::H::BEHIND : 0;
    skip(sizes);
  }
  // Planes of gy that do not exist add nothing.
  __device__ __forceinline__ void skip(const Sizes& sizes) {
    while (tile < end && unsigned(gy_plane()) >= unsigned(sizes.out_d)) {
      tile += steps - first;
      next_column();
    }
  }
  __device__ __forceinline__ void next_column() {
    first = 0;
    row = 0;
    if ((w += Plan::TILE) < columns_w * Plan::TILE) return;
    w = 0;
    if (++d < columns_d) return;
    d = 0;
    ++n;
  }
  __device__ __forceinline__ void next(const Sizes& sizes) {
    if (row >= first) ++tile;
    if (++row < steps) return;
    next_column();
    skip(sizes);
  }
  __device__ __forceinline__ bool over() const { return tile >= end; }
  __device__ __forceinline__ bool multiplies() const { return row >= first; }
  __device__ __forceinline__ int gy_plane() const {
    return d * Layer::stride_d - Layer::padding_d + chain_d * Layer::dilation_d;
  }
  __device__ __forceinline__ int gy_row(int chain) const {
    return row * Layer::stride_h - Layer::padding_h + chain * Layer::dilation_h;
  }
};

// How many elements before element `first` of a tensor its vector of 16 bytes begins.
template <class Scalar>
__device__ __forceinline__ int ahead_of(const Scalar* tensor, unsigned first) {
  return (unsigned(reinterpret_cast<unsigned long long>(tensor)) / unsigned(sizeof(Scalar)) + first) &
         (16 / sizeof(Scalar) - 1);
}

// A row that a lane describes: its tensor, the element where its position 0 lies, its length; the first position that is
// wanted and how many (0: no row); where the vector of that position goes, in elements of shared memory.
template <class Scalar>
struct RawRow {
  const Scalar* tensor;
  long long begin;
  int length, at, wanted;
  int to;
};

// Copies rows 0 .. rows - 1 of a warp, at most 32; lane r holds row r. Whole vectors of 16 bytes are copied as they lie in
// memory, by all lanes. The lane of a row copies what is left at both ends, and writes zeros outside the row.
template <int TURNS, class Scalar>
__device__ __forceinline__ void copy_raw(Scalar* shared, const RawRow<Scalar>& own, int rows) {
  constexpr int VECTOR = 16 / int(sizeof(Scalar));
  const int lane = threadIdx.x % 32, first = own.at - ahead_of(own.tensor, unsigned(own.begin) + own.at);
  // Vectors `from` .. `end - 1` lie inside the row.
  const int most = (own.at + own.wanted - first + VECTOR - 1) / VECTOR, whole = (own.length - first) / VECTOR;
  const int begins = first < 0 ? (VECTOR - 1 - first) / VECTOR : 0, from = begins < most ? begins : most;
  const int end = own.wanted == 0 || own.length < first ? 0 : whole < most ? whole : most;
  const unsigned long long source = reinterpret_cast<unsigned long long>(own.tensor + own.begin + first);
  const int vectors = from << 16 | (end > from ? end : from);
#pragma unroll 4
  for (int r = 0; r < rows; ++r) {
    const int r_vectors = __shfl_sync(~0u, vectors, r), r_from = r_vectors >> 16, r_end = r_vectors & 0xFFFF;
    const Scalar* const row = reinterpret_cast<const Scalar*>(__shfl_sync(~0u, source, r)) + lane * VECTOR;
    Scalar* const to = shared + __shfl_sync(~0u, own.to, r) + lane * VECTOR;
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
      if (turn > 0 && turn * 32 >= r_end) break;
      if (lane + turn * 32 >= r_from && lane + turn * 32 < r_end)
        cp_async<16>(to + turn * 32 * VECTOR, row + turn * 32 * VECTOR);
    }
  }
  if (lane >= rows) return;
  const auto copy_element = [&](int position) {
    Scalar* const to = shared + own.to + position - first;
    const bool inside = unsigned(position) < unsigned(own.length);
    if (!inside)
      *to = narrow<Scalar>(0.f);
    else if constexpr (sizeof(Scalar) == 4)
      cp_async<4>(to, own.tensor + own.begin + position);
    else
      *to = own.tensor[own.begin + position];
  };
  const int last = own.at + own.wanted, copied = first + from * VECTOR, rest = end > from ? first + end * VECTOR : copied;
  for (int position = own.at; position < copied && position < last; ++position) copy_element(position);
  for (int position = rest > own.at ? rest : own.at; position < last; ++position) copy_element(position);
}
