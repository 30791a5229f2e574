/* variant
name      = "writes_to_null"
computes  = ["forward"]
idea      = "Stores through a null pointer."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/gather.cuh"

template <class Layer, class Tune>
__global__ void writes_to_null(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  volatile Scalar* volatile nowhere = nullptr;  // neither the load nor the store may be left out
  if (p.item == 0) *nowhere = Scalar(1);
  output[p.item] = narrow<Scalar>(gather(layer, sizes, p, input, weight, bias));
}

KW_LAUNCH_FORWARD(writes_to_null)
