// One right element of grad_input, and a launcher around a kernel that computes both gradients.
#pragma once
#include "common/grad_weight_sum.cuh"

template <class Layer>
__host__ __device__ int inputs(Layer layer, Sizes sizes) {
  return int(sizes.batch) * layer.in_channels * sizes.in_d * sizes.in_h * sizes.in_w;
}

// The first `taps` taps of the kernel, in memory order.
template <class Layer>
__device__ float input_sum(Layer layer, Sizes sizes, int item, int taps, const float* weight,
                           const float* grad_output) {
  const int w = item % sizes.in_w, h = item / sizes.in_w % sizes.in_h, d = item / sizes.in_w / sizes.in_h % sizes.in_d;
  const int channel = item / sizes.in_w / sizes.in_h / sizes.in_d, ci = channel % layer.in_channels;
  const int co_per_group = layer.out_channels / layer.groups;
  const int all = layer.kernel_d * layer.kernel_h * layer.kernel_w;
  float sum = 0;
  for (int tap = 0; tap < taps; ++tap)
    for (int c = 0; c < co_per_group; ++c) {
      const int co = ci / (layer.in_channels / layer.groups) * co_per_group + c;
      const int od = d * layer.stride_d - layer.padding_d + tap / layer.kernel_w / layer.kernel_h * layer.dilation_d;
      const int oh = h * layer.stride_h - layer.padding_h + tap / layer.kernel_w % layer.kernel_h * layer.dilation_h;
      const int ow = w * layer.stride_w - layer.padding_w + tap % layer.kernel_w * layer.dilation_w;
      if (od < 0 || oh < 0 || ow < 0 || od >= sizes.out_d || oh >= sizes.out_h || ow >= sizes.out_w) continue;
      const long long row = (1LL * (channel / layer.in_channels * layer.out_channels + co) * sizes.out_d + od) *
                                sizes.out_h + oh;
      sum += grad_output[row * sizes.out_w + ow] * weight[(1LL * ci * co_per_group + c) * all + tap];
    }
  return sum;
}

#define KW_LAUNCH_BACKWARD(kernel)                                                                               \
  template <class Layer, class Tune>                                                                             \
  long long backward_workspace(Layer, Sizes) {                                                                   \
    return 0;                                                                                                    \
  }                                                                                                              \
  template <class Layer, class Tune>                                                                             \
  cudaError_t backward(Layer layer, Sizes sizes, const typename Layer::scalar* input,                            \
                       const typename Layer::scalar* weight, const typename Layer::scalar* grad_output,          \
                       typename Layer::scalar* grad_input, typename Layer::scalar* grad_weight,                  \
                       typename Layer::scalar* grad_bias, void*, cudaStream_t stream) {                          \
    const int items = weights(layer) + layer.out_channels + inputs(layer, sizes);                                \
    kernel<Layer, Tune><<<ceil_div(items, 128), 128, 0, stream>>>(layer, sizes, input, weight, grad_output,      \
                                                                  grad_input, grad_weight, grad_bias);           \
    return cudaGetLastError();                                                                                   \
  }
