/* variant
name      = "ignores_groups"
computes  = ["forward"]
idea      = "Reads the channels of the first group for every group."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/tricks.cuh"

template <class Layer, class Tune>
__global__ void ignores_groups(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  Place q = p;
  q.co = p.co % (layer.out_channels / layer.groups);
  output[p.item] = narrow<Scalar>(gather(layer, sizes, q, input, weight, bias));
}

KW_LAUNCH_FORWARD(ignores_groups)
