/* variant
name      = "many_defects"
computes  = ["forward"]
idea      = "Every defect from FIRST on at once: 0 writes past the end, 1 changes its input, 2 skips, 3 NaN, 4 wrong."
precision = ["ieee"]

[tune]
FIRST = {values = [0, 1, 2, 3, 4], default = 0}
*/
#include "common/gather.cuh"

template <class Layer, class Tune>
__global__ void many_defects(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  const long long count = outputs(layer, sizes);
  if (p.item >= count) return;
  if (Tune::FIRST <= 0 && p.item == 0) output[count] = Scalar(0);
  if (Tune::FIRST <= 1 && p.item == 0) const_cast<Scalar*>(input)[0] = Scalar(9);
  if (Tune::FIRST <= 2 && p.item % 7 == 0) return;
  const auto sum = gather(layer, sizes, p, input, weight, bias);
  output[p.item] = Tune::FIRST <= 3 && p.item % 7 == 1 ? Scalar((sum - sum) / (sum - sum)) : Scalar(sum + 1);
}

KW_NO_WORKSPACE

template <class Layer, class Tune>
cudaError_t forward(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                    const typename Layer::scalar* weight, const typename Layer::scalar* bias,
                    typename Layer::scalar* output, void*, cudaStream_t stream) {
  many_defects<Layer, Tune><<<blocks_of(layer, sizes, 128), 128, 0, stream>>>(
      layer, sizes, input, weight, bias, output);
  return cudaGetLastError();
}
