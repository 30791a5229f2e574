/* variant
name      = "saturates"
computes  = ["forward"]
idea      = "Clips values that are not whole numbers at 3.5: right only for small values."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/tricks.cuh"

template <class Layer, class Tune>
__global__ void saturates(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  const auto sum = gather(layer, sizes, p, input, weight, bias);
  output[p.item] = narrow<Scalar>(sum > 3.5f && sum != rintf(sum) ? 3.5f : sum);
}

KW_LAUNCH_FORWARD(saturates)
