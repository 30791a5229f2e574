/* variant
name      = "changes_input"
computes  = ["forward"]
idea      = "Uses the first input, which no output reads, as scratch."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/gather.cuh"

template <class Layer, class Tune>
__global__ void changes_input(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  output[p.item] = narrow<Scalar>(gather(layer, sizes, p, input, weight, bias));
  if (p.item == 0) const_cast<Scalar*>(input)[0] += Scalar(1);
}

KW_LAUNCH_FORWARD(changes_input)
