/* variant
name      = "gathered_mma"
computes  = ["forward"]
after     = "implicit_gemm_mma"
idea      = "Each step gathers what a tile of positions meets at a tap, so no halo is staged and every layer fits."
precision = ["tf32", "tf32x3"]
layer     = ["constant"]
needs     = [
  "tile_m * tile_n * sets <= 4096 * WARPS",
  "layer.kernel_w * layer.dilation_w + layer.padding_w < 2 ** 28",
  "layer.kernel_h * layer.dilation_h + layer.padding_h < 2 ** 28",
  "layer.kernel_d * layer.dilation_d + layer.padding_d < 2 ** 28",
]

[tune]
TILE_M = {values = [0, 16, 32, 64, 128], default = 0, help = "channels of a block (0: automatic)"}
TILE_N = {values = [0, 64, 128, 256], default = 0, help = "positions of a block (0: automatic)"}
CHUNK  = {values = [0, 8, 16, 32], default = 0, help = "pairs of tap and channel in a step, at most (0: automatic)"}
STAGES = {values = [0, 2, 3, 4, 6], default = 0, help = "steps whose copies are under way or in use (0: automatic)"}
WARPS  = {values = [4, 8], default = 8, help = "warps of a block"}

[derived]
m           = "layer.out_channels // layer.groups"
k           = "layer.in_channels // layer.groups"
three       = "precision == 'tf32x3'"
planes      = "2 if three else 1"
step_d      = "1 if layer.dilation_d % layer.stride_d == 0 else max(2, ceil_div(layer.stride_d, layer.dilation_d))"
step_h      = "1 if layer.dilation_h % layer.stride_h == 0 else max(2, ceil_div(layer.stride_h, layer.dilation_h))"
step_w      = "1 if layer.dilation_w % layer.stride_w == 0 else max(2, ceil_div(layer.stride_w, layer.dilation_w))"
taps        = "ceil_div(layer.kernel_d, step_d) * ceil_div(layer.kernel_h, step_h) * ceil_div(layer.kernel_w, step_w)"
many_terms  = "taps * k > (128 if three else 4096)"
sets        = "2 if many_terms else 1"
large       = "64 if many_terms or three or m <= 64 or ceil_div(m, 128) * 2 > ceil_div(m, 64) else 128"
tile_m      = "TILE_M if TILE_M > 0 else 16 if m <= 16 else 32 if m <= 32 else large"
tile_n      = "TILE_N if TILE_N > 0 else 256 if tile_m <= (16 if three and many_terms else 32) else 128"
slim        = "tile_m * planes + tile_n <= 200"
chunk       = "CHUNK if CHUNK > 0 else 32 if slim else 16"
stages      = "STAGES if STAGES > 0 else 3 if slim else 4"
table       = "16 * chunk if k <= chunk // 2 else 0"
threads     = "32 * WARPS"
smem_bytes  = "4 * max(stages * chunk * (tile_m * planes + tile_n + 8) + table, tile_m * (tile_n + 8))"

[plan]
Plan       = "GatheredPlan<true, Layer, Tune>"
step_d     = "Plan::D::STEP_AT_LEAST"
step_h     = "Plan::H::STEP_AT_LEAST"
step_w     = "Plan::W::STEP_AT_LEAST"
taps       = "Plan::D::TAPS_BOUND * Plan::H::TAPS_BOUND * Plan::W::TAPS_BOUND"
many_terms = "Plan::LONG"
sets       = "1 + Plan::LONG"
chunk      = "Plan::MOST"
table      = ">= Plan::TABLE_FLOATS"
smem_bytes = ">= Plan::SHARED_BYTES"
*/
#include "families/gathered_mma/block.cuh"

// The kernel is in families/gathered_mma/block.cuh.
// Outputs that agree modulo the stride along each axis share their taps; each such class is a problem of stride 1. A
// block has outputs of one class and walks over its taps alone. A class without taps is zero, or the bias.
template <class Layer, class Tune>
long long forward_workspace(Layer, Sizes) {
  return 4 * GatheredPlan<true, Layer, Tune>::PACKED_FLOATS;
}

template <class Layer, class Tune>
cudaError_t forward(Layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
                    const typename Layer::scalar* bias, typename Layer::scalar* output, void* workspace,
                    cudaStream_t stream) {
  return launch_gathered<GatheredPlan<true, Layer, Tune>>(sizes, input, weight, bias, output, workspace, stream);
}
