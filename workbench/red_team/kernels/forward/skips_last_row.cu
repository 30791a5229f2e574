/* variant
name      = "skips_last_row"
computes  = ["forward"]
idea      = "Rounds the grid down by one row."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/gather.cuh"

template <class Layer, class Tune>
__global__ void skips_last_row(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes) - sizes.out_w) return;
  output[p.item] = narrow<Scalar>(gather(layer, sizes, p, input, weight, bias));
}

KW_LAUNCH_FORWARD(skips_last_row)
