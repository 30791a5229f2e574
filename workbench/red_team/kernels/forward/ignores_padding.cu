/* variant
name      = "ignores_padding"
computes  = ["forward"]
idea      = "Right only where padding crops nothing: the index is not moved by it."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/tricks.cuh"

template <class Layer, class Tune>
__global__ void ignores_padding(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  Layer other = layer;
  Place q = p;
  q.oh -= layer.padding_h;  // undoes what gather adds
  q.ow -= layer.padding_w;
  output[p.item] = narrow<Scalar>(gather(other, sizes, q, input, weight, bias));
}

KW_LAUNCH_FORWARD(ignores_padding)
