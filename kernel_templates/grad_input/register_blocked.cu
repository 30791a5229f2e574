/* variant
name      = "register_blocked"
computes  = ["grad_input"]
after     = "shared_weight_tiling"
idea      = "A thread sums 4 neighbouring input steps for several channels in registers, in fp32."
precision = ["ieee", "fp16", "bf16"]
layer     = ["constant"]
needs     = [
  "layer.kernel_w <= 64 and layer.stride_w <= 32",
  "reach_w <= 256",
  "layer.kernel_w * layer.dilation_w + layer.padding_w < 2 ** 28",
  "layer.kernel_h * layer.dilation_h + layer.padding_h < 2 ** 28",
  "layer.kernel_d * layer.dilation_d + layer.padding_d < 2 ** 28",
  "sums <= 128",
]

[tune]
CHANNELS = {values = [4, 8, 16, 32], default = 16, help = "channels that a thread sums, at most"}
STRIPS   = {values = [1, 2], default = 1, help = "runs of 4 steps of a thread; they share each loaded weight"}
SUMS     = {values = [32, 64, 96, 128], default = 64, help = "about this many registers of a thread hold sums"}
WARPS    = {values = [2, 4, 8], default = 4, help = "warps of a block; they share channels first, then positions"}
STAGED   = {values = [1, 4, 8, 16], default = 8, help = "channels that a step stages, at most"}
STAGES   = {values = [2, 3, 4], default = 2, help = "steps whose copies are under way or in use"}
STAGE_KB = {values = [32, 48, 72, 110, 160], default = 72, help = "shared memory for stages in KB, at most"}
UNROLL   = {values = [1, 2, 4], default = 1, help = "channels in one turn of the loop"}
PLANES   = {values = [0, 1, 2], default = 0, help = "staging of grad_output: 1 by residues, 2 as it lies (0: automatic)"}
BLOCKS   = {values = [0, 1, 2, 3, 4, 5], default = 0, help = "blocks that a multiprocessor should hold (0: automatic)"}

[derived]
classes    = "1"
sums       = "4 * STRIPS * classes"
reach_w    = "(layer.kernel_w - 1) * layer.dilation_w // layer.stride_w + 2"
window     = "reach_w + 15"
tile       = "32 * STRIPS * WARPS"
channel    = "layer.stride_w * (4 * tile + min(16, tile // 4) * window)"
least      = "channel + layer.kernel_w * 32 * WARPS + 4"
image      = "WARPS * max(3072, 144 * 1)"
smem_bytes = "max(1024 * STAGE_KB, 4 * STAGES * least, 4 * image) + 8 * tile"

[plan]
Plan       = "FmaPlan<false, Layer, Tune, Tune::PLANES>"
classes    = ">= Plan::W::CLASSES"
sums       = ">= 4 * Plan::STRIPS * Plan::W::CLASSES"
reach_w    = ""
window     = ">= ceil_div(Plan::Row::WINDOW, Plan::Row::STEP)"
tile       = ">= Plan::TILE"
channel    = ">= Plan::CHANNEL"
least      = ">= Plan::stage(1)"
image      = ">= Plan::IMAGE_FLOATS"
smem_bytes = ">= Plan::SHARED_BYTES"
*/
#include "families/register_blocked/strip.cuh"

// The kernel is in families/register_blocked/strip.cuh.
// Every tap meets every input position, but with a stride neighbouring steps meet elements of grad_output that lie a
// stride apart. There are two ways to stage them. As planes, one for each residue along W that a tap meets: within a
// plane every layer has stride 1. Or as they lie, in wide copies: then a thread's window is longer.
template <class Layer, class Tune>
long long grad_input_workspace(Layer, Sizes) {
  return fma_strip_workspace<FmaPlan<false, Layer, Tune, Tune::PLANES>>();
}

template <class Layer, class Tune>
cudaError_t grad_input(Layer, Sizes sizes, const typename Layer::scalar* grad_output,
                       const typename Layer::scalar* weight, typename Layer::scalar* grad_input_out, void* workspace,
                       cudaStream_t stream) {
  return launch_fma_strip<FmaPlan<false, Layer, Tune, Tune::PLANES>>(sizes, grad_output, weight, nullptr,
                                                                     grad_input_out, workspace, stream);
}
