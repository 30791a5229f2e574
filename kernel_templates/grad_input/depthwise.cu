/* variant
name      = "depthwise"
computes  = ["grad_input"]
after     = "register_blocked"
idea      = "A block reads a tile of each output channel's gradient once and uses it for all taps."
precision = ["ieee", "fp16", "bf16", "fp64"]
layer     = ["constant"]
needs     = [
  "layer.in_channels == layer.groups",
  "layer.kernel_w <= 64 and layer.stride_w <= 16 and taps <= 2048",
  "least <= 256 * STAGE_KB - weights",
  "layer.kernel_w * layer.dilation_w + layer.padding_w < 2 ** 28",
  "layer.kernel_h * layer.dilation_h + layer.padding_h < 2 ** 28",
  "layer.kernel_d * layer.dilation_d + layer.padding_d < 2 ** 28",
]

[tune]
THREADS  = {values = [64, 128, 256], default = 128, help = "threads of a block"}
TILE     = {values = [256, 512, 1024], default = 256, help = "runs of 4 steps that a block computes"}
STAGE_KB = {values = [16, 32, 48, 64], default = 32, help = "shared memory for the source in KB; tiles shrink to fit"}

[derived]
taps       = "layer.kernel_d * layer.kernel_h * (layer.kernel_w + 3) * (layer.out_channels // layer.groups)"
weights    = "taps * (2 if element_bytes == 8 else 1) + 4"
rows       = "(layer.kernel_h - 1) * layer.dilation_h + 1"
width      = "(layer.kernel_w - 1) * layer.dilation_w + 4 * layer.stride_w + 8"
least      = "layer.kernel_d * rows * width * (2 if element_bytes == 8 else 1)"
image      = "4 * TILE * 1"
threads    = "THREADS"
smem_bytes = "1024 * STAGE_KB + max(4, element_bytes) * 2 * image"

[plan]
Plan       = "DepthwisePlan<false, Layer, Tune>"
taps       = ">= Plan::MULTIPLIER * Plan::TAP_ROWS * Plan::TAPS_PITCH"
weights    = ">= Plan::WEIGHTS * int(sizeof(typename Plan::Sum)) / 4"
rows       = "Plan::source_rows(1)"
width      = ">= Plan::Row::width(1)"
least      = ">= Plan::DEPTHS * Plan::source_rows(1) * Plan::Row::width(1) * int(sizeof(typename Plan::Sum)) / 4"
smem_bytes = ">= (Plan::IMAGES * Plan::IMAGE + Plan::ROOM) * int(sizeof(typename Plan::Sum))"
*/
#include "families/depthwise/strip.cuh"

// The kernel is in families/depthwise/strip.cuh. A block stages the gradients that a tile of inputs meets as they lie,
// whatever the stride, one output channel of the group after the other.
template <class Layer, class Tune>
long long grad_input_workspace(Layer, Sizes) {
  return 0;
}

template <class Layer, class Tune>
cudaError_t grad_input(Layer, Sizes sizes, const typename Layer::scalar* grad_output,
                       const typename Layer::scalar* weight, typename Layer::scalar* grad_input_out, void*,
                       cudaStream_t stream) {
  return launch_depthwise<DepthwisePlan<false, Layer, Tune>>(sizes, grad_output, weight, nullptr, grad_input_out,
                                                             stream);
}
