// Which input positions a tap meets, and a walk over all positions (n, d, h, w) without divisions.
#pragma once
#include "contract/problem.cuh"

// Along one axis tap k meets output o = i * stride - padding + k * dilation. That output exists for the input positions
// first <= i < first + count and for no others, so a loop over them needs no further test.
struct Reach {
  int first, count;
  __host__ __device__ __forceinline__ bool holds(int i) const { return unsigned(i - first) < unsigned(count); }
};

// One tap of the kernel: its reach, and what it adds to the index of an output element in its plane.
struct Tap {
  Reach d, h, w;
  long long offset;
};

// An input position. Its number is ((n * in_d + d) * in_h + h) * in_w + w.
struct Position {
  long long n;
  int d, h, w;
};

// 64-bit: k * dilation may exceed 2^31 in a layer that crops most of what it computes.
inline __host__ __device__ Reach reach_of(long long shift, long long stride, int in, int out) {
  const long long first = shift < 0 ? ceil_div(-shift, stride) : 0;
  const long long end = shift < out ? (out - 1 - shift) / stride + 1 : 0;
  const long long last = end < in ? end : in;
  if (first >= last) return {0, 0};
  return {int(first), int(last - first)};
}

template <class Layer>
__host__ __device__ Tap tap_at(const Layer& layer, const Sizes& sizes, int tap) {
  const int kw = tap % layer.kernel_w, kh = tap / layer.kernel_w % layer.kernel_h;
  const int kd = tap / layer.kernel_w / layer.kernel_h;
  const long long d = 1LL * kd * layer.dilation_d - layer.padding_d;
  const long long h = 1LL * kh * layer.dilation_h - layer.padding_h;
  const long long w = 1LL * kw * layer.dilation_w - layer.padding_w;
  return {reach_of(d, layer.stride_d, sizes.in_d, sizes.out_d), reach_of(h, layer.stride_h, sizes.in_h, sizes.out_h),
          reach_of(w, layer.stride_w, sizes.in_w, sizes.out_w), (d * sizes.out_h + h) * sizes.out_w + w};
}

// True if the tap meets the output at this position. Along an axis with kernel 1 and no padding it always does. With a
// constant layer the compiler removes that test, so a 1-D layer tests one axis only.
template <class Layer>
__device__ __forceinline__ bool meets(const Layer& layer, const Tap& tap, const Position& at) {
  return ((layer.kernel_d == 1 && layer.padding_d == 0) || tap.d.holds(at.d)) &&
         ((layer.kernel_h == 1 && layer.padding_h == 0) || tap.h.holds(at.h)) &&
         ((layer.kernel_w == 1 && layer.padding_w == 0) || tap.w.holds(at.w));
}

// The index in its plane of the output element that a tap of offset 0 meets. Add tap.offset to it.
template <class Layer>
__device__ __forceinline__ long long output_index(const Layer& layer, const Sizes& sizes, const Position& at) {
  return (1LL * at.d * layer.stride_d * sizes.out_h + 1LL * at.h * layer.stride_h) * sizes.out_w +
         1LL * at.w * layer.stride_w;
}

__device__ __forceinline__ long long input_index(const Sizes& sizes, const Position& at) {
  return (1LL * at.d * sizes.in_h + at.h) * sizes.in_w + at.w;
}

inline __host__ __device__ Position position_at(long long counted, const Sizes& sizes) {
  const long long row = counted / sizes.in_w, slice = row / sizes.in_h;
  return {slice / sizes.in_d, int(slice % sizes.in_d), int(row % sizes.in_h), int(counted % sizes.in_w)};
}

// at += step, digit by digit as in written addition, where step = position_at(distance, sizes).
__device__ __forceinline__ void advance(Position& at, const Position& step, const Sizes& sizes) {
  // Unsigned: two digits below 2^31 add up without overflow.
  const unsigned w = unsigned(at.w) + step.w, carry_w = w >= unsigned(sizes.in_w);
  at.w = int(w - carry_w * sizes.in_w);
  const unsigned h = unsigned(at.h) + step.h + carry_w, carry_h = h >= unsigned(sizes.in_h);
  at.h = int(h - carry_h * sizes.in_h);
  const unsigned d = unsigned(at.d) + step.d + carry_h, carry_d = d >= unsigned(sizes.in_d);
  at.d = int(d - carry_d * sizes.in_d);
  at.n += step.n + carry_d;
}
