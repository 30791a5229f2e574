/* variant
name      = "works_in_float16"
computes  = ["forward"]
idea      = "Rounds both operands to float16, which has as many digits as TF32, and calls the result TF32."
precision = ["tf32"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/tricks.cuh"
#include <cuda_fp16.h>

struct NearestFloat16 {
  static __device__ float of(float v) { return __half2float(__float2half_rn(v)); }
};

template <class Layer, class Tune>
__global__ void works_in_float16(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  output[p.item] = narrow<Scalar>(gather_rounded<NearestFloat16>(layer, sizes, p, input, weight, bias));
}

KW_LAUNCH_FORWARD(works_in_float16)
