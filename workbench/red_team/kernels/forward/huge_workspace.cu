/* variant
name      = "huge_workspace"
computes  = ["forward"]
idea      = "Asks for 2^50 bytes of workspace."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/gather.cuh"

template <class Layer, class Tune>
__global__ void huge_workspace(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  output[p.item] = narrow<Scalar>(gather(layer, sizes, p, input, weight, bias));
}

template <class Layer, class Tune>
long long forward_workspace(Layer, Sizes) {
  return 1LL << 50;
}

template <class Layer, class Tune>
cudaError_t forward(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                    const typename Layer::scalar* weight, const typename Layer::scalar* bias,
                    typename Layer::scalar* output, void*, cudaStream_t stream) {
  huge_workspace<Layer, Tune><<<blocks_of(layer, sizes, Tune::BLOCK), Tune::BLOCK, 0, stream>>>(
      layer, sizes, input, weight, bias, output);
  return cudaGetLastError();
}
