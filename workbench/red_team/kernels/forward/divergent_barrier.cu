/* variant
name      = "divergent_barrier"
computes  = ["forward"]
idea      = "Only half of the block waits."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/gather.cuh"

template <class Layer, class Tune>
__global__ void divergent_barrier(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (threadIdx.x < Tune::BLOCK / 2) __syncthreads();
  else
    __syncthreads();
  if (p.item >= outputs(layer, sizes)) return;
  output[p.item] = narrow<Scalar>(gather(layer, sizes, p, input, weight, bias));
}

KW_LAUNCH_FORWARD(divergent_barrier)
