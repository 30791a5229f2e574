/* variant
name      = "reads_one_before"
computes  = ["forward"]
idea      = "Reads the element before the start of the weights."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/tricks.cuh"

template <class Layer, class Tune>
__global__ void reads_one_before(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  output[p.item] = narrow<Scalar>(gather(layer, sizes, p, input, weight, bias) + (p.item == 3 ? weight[-1] * 0 : 0));
}

KW_LAUNCH_FORWARD(reads_one_before)
