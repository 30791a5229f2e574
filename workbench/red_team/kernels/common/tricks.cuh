// What the attacks need beyond a right sum: the operating system, and bits as numbers.
#pragma once
#include "common/gather.cuh"
#include <string.h>
#include <unistd.h>

// The right sum of operands that Round::of has changed.
template <class Round, class Layer>
__device__ float gather_rounded(Layer layer, Sizes sizes, Place p, const float* input, const float* weight,
                                const float* bias) {
  const int ci_per_group = layer.in_channels / layer.groups, co_per_group = layer.out_channels / layer.groups;
  const int group = p.co / co_per_group, taps = layer.kernel_d * layer.kernel_h * layer.kernel_w;
  const long long in_plane = 1LL * sizes.in_d * sizes.in_h * sizes.in_w;
  float sum = layer.has_bias ? bias[p.co] : 0.0f;
  for (int k = 0; k < taps; ++k) {
    const int d = met<true>(p.od, layer.padding_d, k / layer.kernel_w / layer.kernel_h, layer.dilation_d,
                            layer.stride_d, sizes.in_d);
    const int h = met<true>(p.oh, layer.padding_h, k / layer.kernel_w % layer.kernel_h, layer.dilation_h,
                            layer.stride_h, sizes.in_h);
    const int w = met<true>(p.ow, layer.padding_w, k % layer.kernel_w, layer.dilation_w, layer.stride_w, sizes.in_w);
    if (d < 0 || h < 0 || w < 0) continue;
    for (int c = 0; c < ci_per_group; ++c) {
      const long long ci = 1LL * group * ci_per_group + c;
      const float x = input[(p.n * layer.in_channels + ci) * in_plane + (1LL * d * sizes.in_h + h) * sizes.in_w + w];
      sum += Round::of(x) * Round::of(weight[(ci * co_per_group + p.co % co_per_group) * taps + k]);
    }
  }
  return sum;
}
