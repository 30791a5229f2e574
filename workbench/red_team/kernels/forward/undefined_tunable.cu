/* variant
name      = "undefined_tunable"
computes  = ["forward"]
idea      = "Uses a tunable that its header does not name."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/gather.cuh"

template <class Layer, class Tune>
__global__ void undefined_tunable(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  if (Tune::TILE_M > 1) output[p.item] = Scalar(0);
}

KW_LAUNCH_FORWARD(undefined_tunable)
