// What the bad kernels share: one right sum per output, one thread each, so that each file shows only its defect.
#pragma once
#include "contract/problem.cuh"
#include "contract/scalar.cuh"
#include <stdio.h>
#include <vector>

struct Place {
  long long item;  // flat index of the output
  long long n;
  int co, od, oh, ow;
};

template <class Layer>
__host__ __device__ long long outputs(Layer layer, Sizes sizes) {
  return sizes.batch * layer.out_channels * sizes.out_d * sizes.out_h * sizes.out_w;
}

template <class Layer>
__device__ Place my_place(Layer layer, Sizes sizes) {
  const long long item = 1LL * blockIdx.x * blockDim.x + threadIdx.x;
  const long long row = item / sizes.out_w, plane = row / sizes.out_h, channel = plane / sizes.out_d;
  return {item, channel / layer.out_channels, int(channel % layer.out_channels), int(plane % sizes.out_d),
          int(row % sizes.out_h), int(item % sizes.out_w)};
}

// The input that meets output o at tap k, or -1.
template <bool test_remainder>
__device__ int met(int o, int padding, int k, int dilation, int stride, int inputs) {
  const int t = o + padding - k * dilation;
  if (test_remainder && t % stride != 0) return -1;
  return t < 0 || t / stride >= inputs ? -1 : t / stride;
}

// Adds every product that lands on the place; `reached` says whether there was any.
template <bool test_remainder = true, class Layer>
__device__ typename Layer::accumulator gather(Layer layer, Sizes sizes, Place p, const typename Layer::scalar* input,
                                              const typename Layer::scalar* weight, const typename Layer::scalar* bias,
                                              bool* reached = nullptr) {
  using Sum = typename Layer::accumulator;
  const int ci_per_group = layer.in_channels / layer.groups, co_per_group = layer.out_channels / layer.groups;
  const int group = p.co / co_per_group;
  const int taps = layer.kernel_d * layer.kernel_h * layer.kernel_w;
  const long long in_plane = 1LL * sizes.in_d * sizes.in_h * sizes.in_w;
  Sum sum = layer.has_bias ? Sum(widen(bias[p.co])) : Sum(0);
  for (int k = 0; k < taps; ++k) {
    const int kw = k % layer.kernel_w, kh = k / layer.kernel_w % layer.kernel_h;
    const int kd = k / layer.kernel_w / layer.kernel_h;
    const int d = met<test_remainder>(p.od, layer.padding_d, kd, layer.dilation_d, layer.stride_d, sizes.in_d);
    const int h = met<test_remainder>(p.oh, layer.padding_h, kh, layer.dilation_h, layer.stride_h, sizes.in_h);
    const int w = met<test_remainder>(p.ow, layer.padding_w, kw, layer.dilation_w, layer.stride_w, sizes.in_w);
    if (d < 0 || h < 0 || w < 0) continue;
    if (reached) *reached = true;
    for (int c = 0; c < ci_per_group; ++c) {
      const long long ci = 1LL * group * ci_per_group + c;
      sum += Sum(widen(input[(p.n * layer.in_channels + ci) * in_plane + (1LL * d * sizes.in_h + h) * sizes.in_w + w])) *
             Sum(widen(weight[(ci * co_per_group + p.co % co_per_group) * taps + k]));
    }
  }
  return sum;
}

template <class Layer>
unsigned blocks_of(Layer layer, Sizes sizes, int block) {
  return unsigned(ceil_div(outputs(layer, sizes), block));
}

// No workspace: what all of them but one answer.
#define KW_NO_WORKSPACE                                     \
  template <class Layer, class Tune>                        \
  long long forward_workspace(Layer, Sizes) {               \
    return 0;                                               \
  }

// The launcher of every kernel whose defect is not there. What follows the kernel is done by the host before the launch.
#define KW_LAUNCH_FORWARD(kernel, ...)                                                               \
  KW_NO_WORKSPACE                                                                               \
  template <class Layer, class Tune>                                                            \
  cudaError_t forward(Layer layer, Sizes sizes, const typename Layer::scalar* input,            \
                      const typename Layer::scalar* weight, const typename Layer::scalar* bias, \
                      typename Layer::scalar* output, void*, cudaStream_t stream) {             \
    __VA_ARGS__;                                                                                \
    kernel<Layer, Tune><<<blocks_of(layer, sizes, Tune::BLOCK), Tune::BLOCK, 0, stream>>>(      \
        layer, sizes, input, weight, bias, output);                                             \
    return cudaGetLastError();                                                                  \
  }
