/* variant
name      = "gathered_mma"
computes  = ["grad_input"]
after     = "implicit_gemm_mma"
idea      = "Each step gathers what a tile meets at a tap or a run of taps, so no halo is staged and every layer fits."
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
m           = "layer.in_channels // layer.groups"
k           = "layer.out_channels // layer.groups"
three       = "precision == 'tf32x3'"
planes      = "2 if three else 1"
many_terms  = "layer.kernel_d * layer.kernel_h * layer.kernel_w * k > (128 if three else 4096)"
along       = "layer.stride_w >= 4 and layer.dilation_w == 1 and layer.kernel_w >= 8"
sets        = "2 if many_terms else 1"
large       = "64 if many_terms or three or m <= 64 or ceil_div(m, 128) * 2 > ceil_div(m, 64) else 128"
tile_m      = "TILE_M if TILE_M > 0 else 16 if m <= 16 else 32 if m <= 32 else large"
tile_n      = "TILE_N if TILE_N > 0 else 256 if not along and tile_m <= (16 if three and many_terms else 32) else 128"
slim        = "tile_m * planes + tile_n <= 200"
chunk       = "CHUNK if CHUNK > 0 else 32 if slim else 16"
stages      = "STAGES if STAGES > 0 else 3 if slim else 4"
source      = "tile_n * (chunk + 4) if along else chunk * (tile_n + 8)"
table       = "6 * tile_n if along else 16 * chunk if k <= chunk // 2 else 0"
threads     = "32 * WARPS"
smem_bytes  = "4 * max(stages * (chunk * tile_m * planes + source) + table, tile_m * (tile_n + 8))"

[plan]
Plan       = "GatheredPlan<false, Layer, Tune>"
many_terms = "Plan::LONG"
sets       = "1 + Plan::LONG"
chunk      = "Plan::MOST"
source     = ">= Plan::SOURCE_FLOATS"
table      = ">= Plan::TABLE_FLOATS"
smem_bytes = ">= Plan::SHARED_BYTES"
*/
#include "families/gathered_mma/along.cuh"
#include "families/gathered_mma/block.cuh"

// The kernels are in families/gathered_mma/block.cuh and, for long strides along W, in families/gathered_mma/along.cuh.
// All inputs share all taps. Neighbouring inputs meet every stride-th element of grad_output.
template <class Layer, class Tune>
long long grad_input_workspace(Layer, Sizes sizes) {
  using Plan = GatheredPlan<false, Layer, Tune>;
  if constexpr (Plan::ALONG) return gathered_along_workspace<Plan>(sizes);
  return 4 * Plan::PACKED_FLOATS;
}

template <class Layer, class Tune>
cudaError_t grad_input(Layer, Sizes sizes, const typename Layer::scalar* grad_output,
                       const typename Layer::scalar* weight, typename Layer::scalar* grad_input_out, void* workspace,
                       cudaStream_t stream) {
  using Plan = GatheredPlan<false, Layer, Tune>;
  if constexpr (Plan::ALONG)
    return launch_gathered_along<Plan>(sizes, grad_output, weight, grad_input_out, workspace, stream);
  else
    return launch_gathered<Plan>(sizes, grad_output, weight, nullptr, grad_input_out, workspace, stream);
}
