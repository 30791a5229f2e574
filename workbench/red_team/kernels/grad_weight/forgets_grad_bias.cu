/* variant
name      = "forgets_grad_bias"
computes  = ["grad_weight"]
idea      = "Never writes grad_bias."
precision = ["ieee"]
*/
#include "common/grad_weight_sum.cuh"

template <class Layer, class Tune>
__global__ void forgets_grad_bias(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                                  const typename Layer::scalar* grad_output, typename Layer::scalar* grad_weight,
                                  typename Layer::scalar*) {
  const int item = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (item < weights(layer)) grad_weight[item] = weight_sum(layer, sizes, item, input, grad_output);
}

KW_LAUNCH_GRAD_WEIGHT(forgets_grad_bias)
