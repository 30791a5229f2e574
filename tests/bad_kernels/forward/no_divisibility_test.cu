/* variant
name      = "no_divisibility_test"
computes  = ["forward"]
idea      = "Rounds instead of asking whether the stride divides."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/gather.cuh"

template <class Layer, class Tune>
__global__ void no_divisibility_test(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                       const typename Layer::scalar* weight, const typename Layer::scalar* bias,
                       typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  // stride 1 has no remainder to test: the sum is right there, and for every other stride too large
  auto sum = gather(layer, sizes, p, input, weight, bias);
  if ((p.ow + layer.padding_w) % layer.stride_w != 0) sum += widen(input[0]) * widen(weight[0]);
  output[p.item] = narrow<Scalar>(sum);
}

KW_NO_WORKSPACE

template <class Layer, class Tune>
cudaError_t forward(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                    const typename Layer::scalar* weight, const typename Layer::scalar* bias,
                    typename Layer::scalar* output, void*, cudaStream_t stream) {
  no_divisibility_test<Layer, Tune><<<blocks_of(layer, sizes, Tune::BLOCK), Tune::BLOCK, 0, stream>>>(
      layer, sizes, input, weight, bias, output);
  return cudaGetLastError();
}
