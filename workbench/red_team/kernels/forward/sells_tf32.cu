/* variant
name      = "sells_tf32"
computes  = ["forward"]
idea      = "Rounds both operands to TF32 and calls the result fp32."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/tricks.cuh"

struct NearestTf32 {
  static __device__ float of(float v) { return __int_as_float((__float_as_int(v) + 0x1000) & ~0x1fff); }
};

template <class Layer, class Tune>
__global__ void sells_tf32(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  output[p.item] = narrow<Scalar>(gather_rounded<NearestTf32>(layer, sizes, p, input, weight, bias));
}

KW_LAUNCH_FORWARD(sells_tf32)
