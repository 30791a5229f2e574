/* variant
name      = "forgets_bias_where_unreached"
computes  = ["forward"]
idea      = "Adds the bias only where some tap reaches."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/tricks.cuh"

template <class Layer, class Tune>
__global__ void forgets_bias_where_unreached(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  bool reached = false;
  const auto sum = gather(layer, sizes, p, input, weight, bias, &reached);
  output[p.item] = reached ? narrow<Scalar>(sum) : Scalar(0);
}

KW_LAUNCH_FORWARD(forgets_bias_where_unreached)
