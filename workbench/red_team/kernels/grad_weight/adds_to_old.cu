/* variant
name      = "adds_to_old"
computes  = ["grad_weight"]
idea      = "Adds to the gradient that was there before, as PyTorch's .grad would."
precision = ["ieee"]
*/
#include "common/grad_weight_sum.cuh"

template <class Layer, class Tune>
__global__ void adds_to_old(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                            const typename Layer::scalar* grad_output, typename Layer::scalar* grad_weight,
                            typename Layer::scalar* grad_bias) {
  const int item = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (item < weights(layer)) grad_weight[item] += weight_sum(layer, sizes, item, input, grad_output);
  if (grad_bias && item < layer.out_channels) grad_bias[item] = bias_sum(layer, sizes, item, grad_output);
}

KW_LAUNCH_GRAD_WEIGHT(adds_to_old)
