/* variant
name      = "trusts_the_workspace"
computes  = ["forward"]
idea      = "Takes the workspace to be zero before the first launch."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/tricks.cuh"

template <class Layer, class Tune>
__global__ void trusts_the_workspace(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output, const float* zero) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  output[p.item] = narrow<Scalar>(gather(layer, sizes, p, input, weight, bias) + zero[p.item % 16]);
}

template <class Layer, class Tune>
long long forward_workspace(Layer layer, Sizes sizes) {
  return 64;
}

template <class Layer, class Tune>
cudaError_t forward(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                    const typename Layer::scalar* weight, const typename Layer::scalar* bias,
                    typename Layer::scalar* output, void* workspace, cudaStream_t stream) {
  trusts_the_workspace<Layer, Tune><<<blocks_of(layer, sizes, Tune::BLOCK), Tune::BLOCK, 0, stream>>>(
      layer, sizes, input, weight, bias, output, static_cast<const float*>(workspace));
  return cudaGetLastError();
}
