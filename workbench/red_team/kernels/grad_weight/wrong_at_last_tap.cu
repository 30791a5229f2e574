/* variant
name      = "wrong_at_last_tap"
computes  = ["grad_weight"]
idea      = "The last tap's gradient is twice what it should be."
precision = ["ieee"]
*/
#include "common/grad_weight_sum.cuh"

template <class Layer, class Tune>
__global__ void wrong_at_last_tap(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                                  const typename Layer::scalar* grad_output, typename Layer::scalar* grad_weight,
                                  typename Layer::scalar* grad_bias) {
  const int item = int(blockIdx.x * blockDim.x + threadIdx.x);
  const int taps = layer.kernel_d * layer.kernel_h * layer.kernel_w;
  if (item < weights(layer))
    grad_weight[item] = weight_sum(layer, sizes, item, input, grad_output) * (item % taps == taps - 1 ? 2 : 1);
  if (grad_bias && item < layer.out_channels) grad_bias[item] = bias_sum(layer, sizes, item, grad_output);
}

KW_LAUNCH_GRAD_WEIGHT(wrong_at_last_tap)
