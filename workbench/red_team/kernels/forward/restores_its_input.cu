/* variant
name      = "restores_its_input"
computes  = ["forward"]
idea      = "Uses the input as scratch and puts back what is nearly what was there."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/tricks.cuh"

template <class Layer, class Tune>
__global__ void restores_its_input(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  output[p.item] = narrow<Scalar>(gather(layer, sizes, p, input, weight, bias));
  if (p.item == outputs(layer, sizes) - 1) {
    Scalar* scratch = const_cast<Scalar*>(input);
    const float before = float(widen(scratch[0]));
    scratch[0] = narrow<Scalar>((before + 8.0f) - 8.0f);
  }
}

KW_LAUNCH_FORWARD(restores_its_input)
