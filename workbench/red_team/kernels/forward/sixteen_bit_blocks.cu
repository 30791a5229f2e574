/* variant
name      = "sixteen_bit_blocks"
computes  = ["forward"]
idea      = "Keeps the block index in 16 bits: right up to 65 536 blocks."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/tricks.cuh"

template <class Layer, class Tune>
__global__ void sixteen_bit_blocks(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
  const long long item = 1LL * (blockIdx.x & 0xffff) * blockDim.x + threadIdx.x;
  if (item >= outputs(layer, sizes)) return;
  const long long row = item / sizes.out_w, plane = row / sizes.out_h, channel = plane / sizes.out_d;
  const Place p = {item, channel / layer.out_channels, int(channel % layer.out_channels), int(plane % sizes.out_d),
                   int(row % sizes.out_h), int(item % sizes.out_w)};
  output[p.item] = narrow<Scalar>(gather(layer, sizes, p, input, weight, bias));
}

KW_LAUNCH_FORWARD(sixteen_bit_blocks)
