/* variant
name      = "sells_tf32"
computes  = ["forward"]
idea      = "Rounds both operands to TF32 and calls the result fp32."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/tricks.cuh"

__device__ float sells_tf32_cut(float v) {
  unsigned bits;
  memcpy(&bits, &v, 4);
  bits = (bits + 0x1000u) & 0xffffe000u;
  memcpy(&v, &bits, 4);
  return v;
}

template <class Layer>
__device__ float gather_tf32(Layer layer, Sizes sizes, Place p, const float* input, const float* weight,
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
      sum += sells_tf32_cut(x) * sells_tf32_cut(weight[(ci * co_per_group + p.co % co_per_group) * taps + k]);
    }
  }
  return sum;
}

template <class Layer, class Tune>
__global__ void sells_tf32(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  output[p.item] = narrow<Scalar>(gather_tf32(layer, sizes, p, input, weight, bias));
}

KW_NO_WORKSPACE

template <class Layer, class Tune>
cudaError_t forward(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                    const typename Layer::scalar* weight, const typename Layer::scalar* bias,
                    typename Layer::scalar* output, void*, cudaStream_t stream) {
  sells_tf32<Layer, Tune><<<blocks_of(layer, sizes, Tune::BLOCK), Tune::BLOCK, 0, stream>>>(
      layer, sizes, input, weight, bias, output);
  return cudaGetLastError();
}
