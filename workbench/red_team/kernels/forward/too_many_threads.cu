/* variant
name      = "too_many_threads"
computes  = ["forward"]
idea      = "Asks for more threads a block than any GPU runs."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 2048}
*/
#include "common/gather.cuh"

template <class Layer, class Tune>
__global__ void too_many_threads(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  output[p.item] = narrow<Scalar>(gather(layer, sizes, p, input, weight, bias));
}

KW_LAUNCH_FORWARD(too_many_threads)
