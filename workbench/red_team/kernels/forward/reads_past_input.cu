/* variant
name      = "reads_past_input"
computes  = ["forward"]
idea      = "Reads one row beyond the end of the input."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/gather.cuh"

template <class Layer, class Tune>
__global__ void reads_past_input(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  const long long inputs = sizes.batch * layer.in_channels * sizes.in_d * sizes.in_h * sizes.in_w;
  const auto sum = gather(layer, sizes, p, input, weight, bias);
  output[p.item] = narrow<Scalar>(p.item == 7 ? sum + input[inputs] * 0 : sum);
}

KW_LAUNCH_FORWARD(reads_past_input)
