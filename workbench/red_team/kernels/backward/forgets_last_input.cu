/* variant
name      = "forgets_last_input"
computes  = ["grad_input", "grad_weight"]
idea      = "Both gradients; the last element of grad_input is never written."
precision = ["ieee"]
*/
#include "common/backward_sum.cuh"

template <class Layer, class Tune>
__global__ void forgets_last_input(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                   const typename Layer::scalar* weight, const typename Layer::scalar* grad_output,
                   typename Layer::scalar* grad_input, typename Layer::scalar* grad_weight,
                   typename Layer::scalar* grad_bias) {
  int item = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (item < weights(layer)) grad_weight[item] = weight_sum(layer, sizes, item, input, grad_output);
  item -= weights(layer);
  if (grad_bias && item >= 0 && item < layer.out_channels) grad_bias[item] = bias_sum(layer, sizes, item, grad_output);
  item -= layer.out_channels;
  const int taps = layer.kernel_d * layer.kernel_h * layer.kernel_w;
  if (item >= 0 && item < inputs(layer, sizes) - 1)
    grad_input[item] = input_sum(layer, sizes, item, taps, weight, grad_output);
}

KW_LAUNCH_BACKWARD(forgets_last_input)
