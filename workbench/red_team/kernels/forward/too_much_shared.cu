/* variant
name      = "too_much_shared"
computes  = ["forward"]
idea      = "Asks for more shared memory than any GPU has, and does not clear the runtime's error."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128], default = 128}
*/
#include "common/gather.cuh"

template <class Layer, class Tune>
__global__ void too_much_shared(
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
  const auto kernel = too_much_shared<Layer, Tune>;
  if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 300 << 10))
    return error;
  kernel<<<blocks_of(layer, sizes, Tune::BLOCK), Tune::BLOCK, 300 << 10, stream>>>(
      layer, sizes, input, weight, bias, output);
  return cudaGetLastError();
}
