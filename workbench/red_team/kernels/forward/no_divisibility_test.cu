/* variant
name      = "no_divisibility_test"
computes  = ["forward"]
idea      = "Divides by the stride without asking for the remainder."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/gather.cuh"

template <class Layer, class Tune>
__global__ void no_divisibility_test(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  output[p.item] = narrow<Scalar>(gather<false>(layer, sizes, p, input, weight, bias));
}

KW_LAUNCH_FORWARD(no_divisibility_test)
