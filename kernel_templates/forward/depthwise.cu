/* variant
name      = "depthwise"
computes  = ["forward"]
after     = "register_blocked"
idea      = "A block reads a tile of one input channel once and computes all residues of its output channels."
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
rows       = "(layer.kernel_h - 1) * layer.dilation_h // layer.stride_h + 1"
width      = "(layer.kernel_w - 1) * layer.dilation_w // layer.stride_w + 4 + 8"
least      = "layer.kernel_d * rows * width * (2 if element_bytes == 8 else 1)"
image      = "4 * TILE * layer.stride_w"
threads    = "THREADS"
smem_bytes = "1024 * STAGE_KB + max(4, element_bytes) * 2 * image"

[plan]
Plan       = "DepthwisePlan<true, Layer, Tune>"
taps       = ">= Plan::MULTIPLIER * Plan::TAP_ROWS * Plan::TAPS_PITCH"
weights    = ">= Plan::WEIGHTS * int(sizeof(typename Plan::Sum)) / 4"
rows       = "Plan::source_rows(1)"
width      = ">= Plan::Row::width(1)"
least      = ">= Plan::DEPTHS * Plan::source_rows(1) * Plan::Row::width(1) * int(sizeof(typename Plan::Sum)) / 4"
smem_bytes = ">= (Plan::IMAGES * Plan::IMAGE + Plan::ROOM) * int(sizeof(typename Plan::Sum))"
*/
#include "families/depthwise/strip.cuh"

// The kernel is in families/depthwise/strip.cuh. A block computes all residues of H and W of its tile, for each output
// channel of the group.
template <class Layer, class Tune>
long long forward_workspace(Layer, Sizes) {
  return 0;
}

template <class Layer, class Tune>
cudaError_t forward(Layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
                    const typename Layer::scalar* bias, typename Layer::scalar* output, void*, cudaStream_t stream) {
  return launch_depthwise<DepthwisePlan<true, Layer, Tune>>(sizes, input, weight, bias, output, stream);
}
