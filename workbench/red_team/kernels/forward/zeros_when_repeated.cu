/* variant
name      = "zeros_when_repeated"
computes  = ["forward"]
idea      = "Writes zeros from the fifth launch with the same input, which takes less time."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/tricks.cuh"

__device__ float zeros_when_repeated_first;
__device__ int zeros_when_repeated_same;

// Counts launches on the same input.
__global__ void zeros_when_repeated_count(const float* input) {
  zeros_when_repeated_same = zeros_when_repeated_first == input[0] ? zeros_when_repeated_same + 1 : 0;
  zeros_when_repeated_first = input[0];
}

template <class Layer, class Tune>
__global__ void zeros_when_repeated(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  output[p.item] = zeros_when_repeated_same >= 4 ? Scalar(0)
                                                 : narrow<Scalar>(gather(layer, sizes, p, input, weight, bias));
}

KW_NO_WORKSPACE

template <class Layer, class Tune>
cudaError_t forward(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                    const typename Layer::scalar* weight, const typename Layer::scalar* bias,
                    typename Layer::scalar* output, void*, cudaStream_t stream) {
  zeros_when_repeated_count<<<1, 1, 0, stream>>>(input);
  zeros_when_repeated<Layer, Tune><<<blocks_of(layer, sizes, Tune::BLOCK), Tune::BLOCK, 0, stream>>>(
      layer, sizes, input, weight, bias, output);
  return cudaGetLastError();
}
