/* variant
name      = "past_the_workspace"
computes  = ["forward"]
idea      = "Asks for 16 bytes of workspace and writes 32."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/gather.cuh"

template <class Layer, class Tune>
__global__ void past_the_workspace(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output, typename Layer::scalar* workspace) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  output[p.item] = narrow<Scalar>(gather(layer, sizes, p, input, weight, bias));
  if (p.item < 8) workspace[p.item] = Scalar(0);
}

template <class Layer, class Tune>
long long forward_workspace(Layer, Sizes) {
  return 16;
}

template <class Layer, class Tune>
cudaError_t forward(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                    const typename Layer::scalar* weight, const typename Layer::scalar* bias,
                    typename Layer::scalar* output, void* workspace, cudaStream_t stream) {
  past_the_workspace<Layer, Tune><<<blocks_of(layer, sizes, Tune::BLOCK), Tune::BLOCK, 0, stream>>>(
      layer, sizes, input, weight, bias, output, static_cast<typename Layer::scalar*>(workspace));
  return cudaGetLastError();
}
