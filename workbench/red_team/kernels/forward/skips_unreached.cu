/* variant
name      = "skips_unreached"
computes  = ["forward"]
idea      = "Does not store zero where no tap lands."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/gather.cuh"

template <class Layer, class Tune>
__global__ void skips_unreached(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  bool reached = false;
  const auto sum = gather(layer, sizes, p, input, weight, bias, &reached);
  if (reached) output[p.item] = narrow<Scalar>(sum);
}

KW_LAUNCH_FORWARD(skips_unreached)
