/* variant
name      = "wrong_in_one_image"
computes  = ["forward"]
idea      = "Gives the output of the first image for the last one."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/tricks.cuh"

template <class Layer, class Tune>
__global__ void wrong_in_one_image(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  Place q = p;
  if (p.n == sizes.batch - 1) q.n = 0;
  output[p.item] = narrow<Scalar>(gather(layer, sizes, q, input, weight, bias));
}

KW_LAUNCH_FORWARD(wrong_in_one_image)
