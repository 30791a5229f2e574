/* variant
name      = "half_the_bits"
computes  = ["forward"]
idea      = "Rounds every sum to 11 bits."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/gather.cuh"

template <class Layer, class Tune>
__global__ void half_the_bits(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  float sum = gather(layer, sizes, p, input, weight, bias);
  sum = __int_as_float((__float_as_int(sum) + 0x1000) & ~0x1fff);
  output[p.item] = narrow<Scalar>(sum);
}

KW_LAUNCH_FORWARD(half_the_bits)
