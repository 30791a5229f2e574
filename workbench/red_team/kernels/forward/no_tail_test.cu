/* variant
name      = "no_tail_test"
computes  = ["forward"]
idea      = "Stores without asking whether the output ends before the block does."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/gather.cuh"

template <class Layer, class Tune>
__global__ void no_tail_test(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  const bool inside = p.item < outputs(layer, sizes);
  output[p.item] = inside ? narrow<Scalar>(gather(layer, sizes, p, input, weight, bias)) : Scalar(0);
}

KW_LAUNCH_FORWARD(no_tail_test)
