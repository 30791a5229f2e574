/* variant
name      = "right_at_first"
computes  = ["forward"]
idea      = "Returns half of the sum after it has been launched eight times."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/gather.cuh"

template <class Layer, class Tune>
__global__ void right_at_first(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output, float share) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  output[p.item] = narrow<Scalar>(gather(layer, sizes, p, input, weight, bias) * share);
}

KW_NO_WORKSPACE

template <class Layer, class Tune>
cudaError_t forward(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                    const typename Layer::scalar* weight, const typename Layer::scalar* bias,
                    typename Layer::scalar* output, void*, cudaStream_t stream) {
  static int launches = 0;
  right_at_first<Layer, Tune><<<blocks_of(layer, sizes, Tune::BLOCK), Tune::BLOCK, 0, stream>>>(
      layer, sizes, input, weight, bias, output, launches++ < 8 ? 1.0f : 0.5f);
  return cudaGetLastError();
}
