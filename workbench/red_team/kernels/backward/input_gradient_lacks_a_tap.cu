/* variant
name      = "input_gradient_lacks_a_tap"
computes  = ["grad_input", "grad_weight"]
idea      = "Both gradients; grad_input leaves out the last tap."
precision = ["ieee"]
*/
#include "common/backward_sum.cuh"

template <class Layer, class Tune>
__global__ void input_gradient_lacks_a_tap(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                   const typename Layer::scalar* weight, const typename Layer::scalar* grad_output,
                   typename Layer::scalar* grad_input, typename Layer::scalar* grad_weight,
                   typename Layer::scalar* grad_bias) {
  int item = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (item < weights(layer)) grad_weight[item] = weight_sum(layer, sizes, item, input, grad_output);
  item -= weights(layer);
  if (grad_bias && item >= 0 && item < layer.out_channels) grad_bias[item] = bias_sum(layer, sizes, item, grad_output);
  item -= layer.out_channels;
  const int taps = layer.kernel_d * layer.kernel_h * layer.kernel_w - 1;
  if (item >= 0 && item < inputs(layer, sizes))
    grad_input[item] = input_sum(layer, sizes, item, taps, weight, grad_output);
}

KW_LAUNCH_BACKWARD(input_gradient_lacks_a_tap)
