/* variant
name      = "makes_nan"
computes  = ["forward"]
idea      = "Divides zero by zero in a few places."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/gather.cuh"

template <class Layer, class Tune>
__global__ void makes_nan(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  const auto sum = gather(layer, sizes, p, input, weight, bias);
  output[p.item] = p.item % 101 == 5 ? Scalar((sum - sum) / (sum - sum)) : narrow<Scalar>(sum);
}

KW_LAUNCH_FORWARD(makes_nan)
