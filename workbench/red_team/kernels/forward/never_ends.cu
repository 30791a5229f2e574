/* variant
name      = "never_ends"
computes  = ["forward"]
idea      = "Waits for a flag that nobody sets."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/gather.cuh"

template <class Layer, class Tune>
__global__ void never_ends(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  output[p.item] = narrow<Scalar>(gather(layer, sizes, p, input, weight, bias));
  volatile const Scalar* flag = output + p.item;
  while (*flag == *flag) {
  }
}

KW_LAUNCH_FORWARD(never_ends)
