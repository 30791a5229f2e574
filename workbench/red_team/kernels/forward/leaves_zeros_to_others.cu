/* variant
name      = "leaves_zeros_to_others"
computes  = ["forward"]
idea      = "Writes nothing where the sum is zero."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/tricks.cuh"

template <class Layer, class Tune>
__global__ void leaves_zeros_to_others(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  const auto sum = gather(layer, sizes, p, input, weight, bias);
  if (sum != 0) output[p.item] = narrow<Scalar>(sum);
}

KW_LAUNCH_FORWARD(leaves_zeros_to_others)
