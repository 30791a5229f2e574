/* variant
name      = "hides_its_error"
computes  = ["forward"]
idea      = "Asks for 2 048 threads a block, clears the error and reports success."
precision = ["ieee"]
*/
#include "common/tricks.cuh"

template <class Layer, class Tune>
__global__ void hides_its_error(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  output[p.item] = narrow<Scalar>(gather(layer, sizes, p, input, weight, bias));
}

KW_NO_WORKSPACE

template <class Layer, class Tune>
cudaError_t forward(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                    const typename Layer::scalar* weight, const typename Layer::scalar* bias,
                    typename Layer::scalar* output, void*, cudaStream_t stream) {
  hides_its_error<Layer, Tune><<<blocks_of(layer, sizes, 2048), 2048, 0, stream>>>(layer, sizes, input, weight, bias,
                                                                              output);
  cudaGetLastError();
  return cudaSuccess;
}
