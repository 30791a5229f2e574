// Which taps of the kernel meet a position, in one dimension, and what they meet there.
// The layer's relation: input i and tap k meet at output o = i * stride - padding + k * dilation.
#pragma once
#include "contract/problem.cuh"

// Taps first, first + step, ... (`count` of them). Tap number m meets the other tensor at  at + m * at_step.
struct Taps {
  int first, step, count;
  int at, at_step;
};

constexpr __host__ __device__ int greatest_common_divisor(int a, int b) {
  while (b != 0) {
    const int remainder = a % b;
    a = b;
    b = remainder;
  }
  return a;
}

// The taps that meet output `o`, and the inputs they meet. (o + padding - k * dilation) must be a multiple of the
// stride. That holds for every (stride / gcd)-th tap, so one search for the first tap replaces a test at each. The ends
// of the input are not tested here; `inside` does that.
__host__ __device__ __forceinline__ Taps taps_of_output(int o, int kernel, int stride, int padding, int dilation) {
  const int divisor = greatest_common_divisor(stride, dilation);
  const int step = stride / divisor;
  const int shifted = o + padding;
  int remainder = shifted % stride;
  int first = 0;
  while (remainder != 0 && first < step && first < kernel) {
    remainder = (remainder + stride - dilation % stride) % stride;
    ++first;
  }
  const bool none = remainder != 0 || first >= kernel;
  // A remainder of 0 makes the division exact, also if k * dilation exceeds o + padding.
  return {first, step, none ? 0 : ceil_div(kernel - first, step), (shifted - first * dilation) / stride,
          -(dilation / divisor)};
}

// The taps that meet input `i`, and the outputs they meet: every tap, in order.
__host__ __device__ __forceinline__ Taps taps_of_input(int i, int kernel, int stride, int padding, int dilation) {
  return {0, 1, kernel, i * stride - padding, dilation};
}

// The same taps without those that fall off the other tensor, which has positions 0 .. size - 1.
__host__ __device__ __forceinline__ Taps inside(Taps taps, int size) {
  const int pace = taps.at_step < 0 ? -taps.at_step : taps.at_step;
  const int before = taps.at_step < 0 ? taps.at - (size - 1) : -taps.at;  // > 0: how far outside the first tap is
  const int room = taps.at_step < 0 ? taps.at : size - 1 - taps.at;       // < 0: every tap is beyond the end
  const int skipped = before > 0 ? ceil_div(before, pace) : 0;
  const int end = room < 0 ? 0 : room / pace + 1;
  const int stop = end < taps.count ? end : taps.count;
  return {taps.first + skipped * taps.step, taps.step, stop > skipped ? stop - skipped : 0,
          taps.at + skipped * taps.at_step, taps.at_step};
}

// What the positions of a thread or a warp meet: taps in three dimensions. The taps of d and h are all inside the
// source. `w` is for position 0; position p meets the source p * span further along W, which may be outside.
struct TapGrid {
  Taps d, h, w;
  int span;
  int kernel_h, kernel_w;
  int source_h, source_w;
};

// For the output positions (od, oh, ow + p * apart). `apart` is a multiple of the stride, so all of them have the taps
// of ow.
template <class Layer>
__device__ __forceinline__ TapGrid tap_grid_of_outputs(const Layer& layer, const Sizes& sizes, int od, int oh, int ow,
                                                  int apart) {
  return {inside(taps_of_output(od, layer.kernel_d, layer.stride_d, layer.padding_d, layer.dilation_d), sizes.in_d),
          inside(taps_of_output(oh, layer.kernel_h, layer.stride_h, layer.padding_h, layer.dilation_h), sizes.in_h),
          taps_of_output(ow, layer.kernel_w, layer.stride_w, layer.padding_w, layer.dilation_w),
          apart / layer.stride_w, layer.kernel_h, layer.kernel_w, sizes.in_h, sizes.in_w};
}

// For the input positions (id, ih, iw + p * apart).
template <class Layer>
__device__ __forceinline__ TapGrid tap_grid_of_inputs(const Layer& layer, const Sizes& sizes, int id, int ih, int iw,
                                                 int apart) {
  return {inside(taps_of_input(id, layer.kernel_d, layer.stride_d, layer.padding_d, layer.dilation_d), sizes.out_d),
          inside(taps_of_input(ih, layer.kernel_h, layer.stride_h, layer.padding_h, layer.dilation_h), sizes.out_h),
          taps_of_input(iw, layer.kernel_w, layer.stride_w, layer.padding_w, layer.dilation_w),
          apart * layer.stride_w, layer.kernel_h, layer.kernel_w, sizes.out_h, sizes.out_w};
}
