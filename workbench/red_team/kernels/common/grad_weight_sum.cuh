// One right element of grad_weight and of grad_bias, and a launcher around a kernel that uses them.
#pragma once
#include "common/gather.cuh"

template <class Layer>
__host__ __device__ int weights(Layer layer) {
  return layer.in_channels * (layer.out_channels / layer.groups) * layer.kernel_d * layer.kernel_h * layer.kernel_w;
}

template <class Layer>
__device__ float weight_sum(Layer layer, Sizes sizes, int item, const float* input, const float* grad_output) {
  const int kw = item % layer.kernel_w, kh = item / layer.kernel_w % layer.kernel_h;
  const int kd = item / layer.kernel_w / layer.kernel_h % layer.kernel_d;
  const int pair = item / (layer.kernel_d * layer.kernel_h * layer.kernel_w);
  const int co_per_group = layer.out_channels / layer.groups, ci = pair / co_per_group;
  const int co = ci / (layer.in_channels / layer.groups) * co_per_group + pair % co_per_group;
  float sum = 0;
  for (long long n = 0; n < sizes.batch; ++n)
    for (int d = 0; d < sizes.in_d; ++d)
      for (int h = 0; h < sizes.in_h; ++h)
        for (int w = 0; w < sizes.in_w; ++w) {
          const int od = d * layer.stride_d - layer.padding_d + kd * layer.dilation_d;
          const int oh = h * layer.stride_h - layer.padding_h + kh * layer.dilation_h;
          const int ow = w * layer.stride_w - layer.padding_w + kw * layer.dilation_w;
          if (od < 0 || oh < 0 || ow < 0 || od >= sizes.out_d || oh >= sizes.out_h || ow >= sizes.out_w) continue;
          sum += input[(((n * layer.in_channels + ci) * sizes.in_d + d) * sizes.in_h + h) * sizes.in_w + w] *
                 grad_output[(((n * layer.out_channels + co) * sizes.out_d + od) * sizes.out_h + oh) * sizes.out_w + ow];
        }
  return sum;
}

template <class Layer>
__device__ float bias_sum(Layer layer, Sizes sizes, int co, const float* grad_output) {
  const long long plane = 1LL * sizes.out_d * sizes.out_h * sizes.out_w;
  float sum = 0;
  for (long long n = 0; n < sizes.batch; ++n)
    for (long long i = 0; i < plane; ++i) sum += grad_output[(n * layer.out_channels + co) * plane + i];
  return sum;
}

#define KW_LAUNCH_GRAD_WEIGHT(kernel)                                                                            \
  template <class Layer, class Tune>                                                                             \
  long long grad_weight_workspace(Layer, Sizes) {                                                                \
    return 0;                                                                                                    \
  }                                                                                                              \
  template <class Layer, class Tune>                                                                             \
  cudaError_t grad_weight(Layer layer, Sizes sizes, const typename Layer::scalar* input,                         \
                          const typename Layer::scalar* grad_output, typename Layer::scalar* gradient,           \
                          typename Layer::scalar* grad_bias, void*, cudaStream_t stream) {                       \
    kernel<Layer, Tune><<<ceil_div(weights(layer) + layer.out_channels, 128), 128, 0, stream>>>(                 \
        layer, sizes, input, grad_output, gradient, grad_bias);                                                  \
    return cudaGetLastError();                                                                                   \
  }
