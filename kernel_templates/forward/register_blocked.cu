/* variant
name      = "register_blocked"
computes  = ["forward"]
after     = "shared_weight_tiling"
idea      = "A thread sums 4 neighbouring output steps, with all residues, for several channels in registers, in fp32."
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
UNROLL   = {values = [1, 2, 4], default = 4, help = "channels in one turn of the loop"}
BLOCKS   = {values = [0, 1, 2, 3, 4, 5], default = 0, help = "blocks that a multiprocessor should hold (0: automatic)"}

[derived]
classes    = "min(layer.kernel_w, layer.stride_w)"
sums       = "4 * STRIPS * classes"
reach_w    = "(layer.kernel_w - 1) * layer.dilation_w // layer.stride_w + 2"
window     = "reach_w + 15"
tile       = "32 * STRIPS * WARPS"
channel    = "1 * (4 * tile + min(16, tile // 4) * window)"
least      = "channel + layer.kernel_w * 32 * WARPS + 4"
image      = "WARPS * max(3072, 144 * layer.stride_w)"
smem_bytes = "max(1024 * STAGE_KB, 4 * STAGES * least, 4 * image) + 8 * tile"

[plan]
Plan       = "FmaPlan<true, Layer, Tune>"
classes    = ">= Plan::W::CLASSES"
sums       = ">= 4 * Plan::STRIPS * Plan::W::CLASSES"
reach_w    = ""
window     = ">= Plan::Row::WINDOW"
tile       = ">= Plan::TILE"
channel    = ">= Plan::CHANNEL"
least      = ">= Plan::stage(1)"
image      = ">= Plan::IMAGE_FLOATS"
smem_bytes = ">= Plan::SHARED_BYTES"
*/
#include "families/register_blocked/strip.cuh"

// The kernel is in families/register_blocked/strip.cuh.
// Output residue r along W is a problem of stride 1 over the taps that meet r. A thread holds the sums of all residues
// of its 4 steps, for several channels; each tap multiplies only what it meets. Rows are stored as whole pieces, with
// zeros (or the bias) for residues without taps. A block has one residue of H.
template <class Layer, class Tune>
long long forward_workspace(Layer, Sizes) {
  return fma_strip_workspace<FmaPlan<true, Layer, Tune>>();
}

template <class Layer, class Tune>
cudaError_t forward(Layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
                    const typename Layer::scalar* bias, typename Layer::scalar* output, void* workspace,
                    cudaStream_t stream) {
  return launch_fma_strip<FmaPlan<true, Layer, Tune>>(sizes, input, weight, bias, output, workspace, stream);
}
