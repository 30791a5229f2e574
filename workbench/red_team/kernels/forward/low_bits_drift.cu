/* variant
name      = "low_bits_drift"
computes  = ["forward"]
idea      = "Adds a little more at every launch."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/gather.cuh"

template <class Layer, class Tune>
__global__ void low_bits_drift(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output, int launches) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  const auto sum = gather(layer, sizes, p, input, weight, bias);
  output[p.item] = narrow<Scalar>(sum == rintf(sum) ? sum : sum * (1 + launches * 1.2e-7f));
}

KW_NO_WORKSPACE

template <class Layer, class Tune>
cudaError_t forward(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                    const typename Layer::scalar* weight, const typename Layer::scalar* bias,
                    typename Layer::scalar* output, void*, cudaStream_t stream) {
  static int launches = 0;
  low_bits_drift<Layer, Tune><<<blocks_of(layer, sizes, Tune::BLOCK), Tune::BLOCK, 0, stream>>>(
      layer, sizes, input, weight, bias, output, launches++);
  return cudaGetLastError();
}
