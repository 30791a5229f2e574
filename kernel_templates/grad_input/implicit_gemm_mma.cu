/* variant
name      = "implicit_gemm_mma"
computes  = ["grad_input"]
after     = "shared_weight_tiling"
idea      = "Tensor cores multiply strips of positions; a tap is a shift into the staged grad_output."
precision = ["tf32", "tf32x3", "fp16", "bf16"]
layer     = ["constant"]
needs     = ["layer.groups == 1 or min(m, k) >= 8", "wide >= piece", "PAD == 1 or element_bytes == 2", "overlap < 8 * strip",
             "reach_w <= 2048", "max(reach_h, reach_d) < 1000000"]

[tune]
FRAGMENTS_M = {values = [0, 1, 2, 3, 4], default = 0, help = "tiles of 16 channels that a warp sums (0: automatic)"}
STRIP       = {values = [0, 4, 8, 16], default = 0, help = "neighbouring positions that a lane sums (0: automatic)"}
WARPS_M     = {values = [0, 1, 2, 4], default = 0, help = "warps along the channels (0: automatic)"}
WARPS_N     = {values = [0, 1, 2, 4, 8], default = 0, help = "warps along the positions (0: automatic)"}
CHANNELS    = {values = [0, 8, 16, 32], default = 0, help = "channels that a step stages, at most (0: automatic)"}
STAGES      = {values = [2, 3, 4], default = 2, help = "steps whose copies are under way or in use"}
WEIGHTS     = {values = [0, 1, 2, 3], default = 0, help = "place of weights: 1 shared memory, 2 staged, 3 L1 (0: automatic)"}
MAX_PITCH   = {values = [72, 136, 264], default = 136, help = "longest row of a tile in 2-D and 3-D, in positions"}
UNROLL      = {values = [0, 1], default = 1, help = "1: unroll a short loop over taps along H"}
PAD         = {values = [0, 1], default = 1, help = "1: copy 16-bit rows of odd length to aligned rows first"}
BLOCKS      = {values = [0, 1, 2, 3, 4], default = 0, help = "blocks that a multiprocessor should hold (0: automatic)"}
OWNED       = {values = [0, 32, 128], default = 0, help = "aligned bytes that one warp writes alone; warps overlap (0: off)"}
ROLL        = {values = [0, 1], default = 0, help = "1: store results in a loop, which takes fewer registers"}

[derived]
m           = "layer.in_channels // layer.groups"
k           = "layer.out_channels // layer.groups"
fragments   = "ceil_div(m, 16)"
sums        = "1"
piece       = "16 // element_bytes"
slab        = "16 if element_bytes == 2 and k > 8 else 8"
planes      = "2 if precision == 'tf32x3' else 1"
strip       = "STRIP if STRIP > 0 else (4 if layer.stride_w > 1 else 8)"
many_taps   = "layer.kernel_h > 1 and layer.kernel_w > 5 or planes == 2 and layer.kernel_h * layer.kernel_w > 9"
room        = "(16 if sums > 2 or many_taps else 32) // planes"
ma          = "FRAGMENTS_M if FRAGMENTS_M > 0 else min(fragments, max(1, min(4, room // (sums * strip))))"
warps_m     = "WARPS_M if WARPS_M > 0 else (2 if fragments > ma else 1)"
warps_n     = "WARPS_N if WARPS_N > 0 else (2 if strip * warps_m > 8 else 4)"
in_step     = "layer.stride_w"
out_step    = "1"
reach_w     = "(layer.kernel_w - 1) * layer.dilation_w // 1"
reach_h     = "(layer.kernel_h - 1) * layer.dilation_h // 1"
reach_d     = "(layer.kernel_d - 1) * layer.dilation_d // 1"
owned       = "min(32, OWNED // element_bytes)"
overlap     = "ceil_div(ceil_div(owned - 1, out_step), piece) * piece if owned > 0 else 0"
lead        = "(0 - layer.padding_w) % piece"
shared_rows = "layer.stride_h == 1 and reach_h <= 6"
few_taps    = "shared_rows and (layer.kernel_h == 1 or 1 > 1)"
wanted      = "slab * (1 if not few_taps else 4 if layer.kernel_h == 1 and warps_m == 2 and element_bytes == 4 else 2)"
channels    = "min(max(slab, CHANNELS) if CHANNELS > 0 else wanted, slab * ceil_div(k, slab))"
wide        = "MAX_PITCH - ceil_div(reach_w + lead, in_step) if shared_rows and reach_h > 0 else piece"
apart       = "reach_h * MAX_PITCH * in_step if shared_rows else 0"
step        = "strip * in_step % (8 * piece)"
vector      = "8 if piece == 8 and step % 8 == 0 else 4"
window      = "ceil_div((strip - 1) * in_step + reach_w + 1 + lead, vector) * vector"
width       = "ceil_div((8 * warps_n - 1) * strip * in_step + window, piece) * piece + apart"
crowded     = "4 if step not in [2 * piece, 4 * piece, 6 * piece] else 2 if piece == 4 or step == 4 * piece else 8"
pitch       = "width + (piece if width % (crowded * piece) == 0 else 0)"
row_planes    = "1 if shared_rows else layer.kernel_h"
input_floats  = "row_planes * channels * pitch // (4 // element_bytes)"
most_width    = "8 * strip * warps_n * in_step + reach_w + lead + 9 * piece - 4 + apart"
most_floats   = "STAGES * row_planes * channels * most_width // (4 // element_bytes)"
slab_floats   = "layer.kernel_h * layer.kernel_w * warps_m * ma * (256 if precision == 'tf32x3' else 128)"
tile_floats   = "layer.kernel_d * ceil_div(k, channels) * (channels // slab) * slab_floats"
stage_floats  = "channels // slab * slab_floats"
most_staged   = "5120 if planes == 1 or sums > 2 else 10240 if STAGES * (input_floats + stage_floats) <= 38912 else 0"
image_floats  = "warps_m * warps_n * 8 * (8 * strip * out_step + 4)"
resident      = "12288 if element_bytes == 4 else min(12288, 41472 - most_floats - image_floats)"
staged        = "2 if stage_floats <= most_staged else 3"
weights       = "WEIGHTS if WEIGHTS > 0 else (1 if tile_floats <= resident else staged)"
weight_floats = "tile_floats if weights == 1 else STAGES * stage_floats if weights == 2 else 0"
threads       = "32 * warps_m * warps_n"
smem_bytes    = "4 * (weight_floats + STAGES * input_floats + image_floats)"

[plan]
Plan          = "StripConfig<false, Layer, Tune>"
planes        = "Plan::PLANES_OF_A"
in_step       = "Plan::W::IN_STEP"
out_step      = "Plan::W::OUT_STEP"
reach_w       = "Plan::W::REACH"
reach_h       = "Plan::H::REACH"
reach_d       = "Plan::D::REACH"
wanted        = "Plan::CHANNELS_AUTO"
wide          = ""
apart         = "Plan::ROWS_APART * Plan::MAX_PITCH * Plan::W::IN_STEP"
step          = "Plan::STRIP * Plan::W::IN_STEP % (8 * Plan::PIECE)"
vector        = "Plan::READ"
crowded       = ""
input_floats  = "Plan::INPUT_STAGE * int(sizeof(typename Plan::Scalar)) / 4"
most_width    = ""
most_floats   = "Plan::INPUT_MOST"
slab_floats   = "Plan::WEIGHT_SLAB"
tile_floats   = "Plan::WEIGHT_TILE"
stage_floats  = "Plan::WEIGHT_STAGE"
image_floats  = "Plan::WARPS * 8 * Plan::IMAGE_PITCH"
resident      = ""
staged        = ""
smem_bytes    = "Plan::SHARED_BYTES"
*/
#include "families/implicit_gemm_mma/block.cuh"

// The kernel is in families/implicit_gemm_mma/block.cuh.
// grad_output is staged in whole rows. With a stride the lanes select their elements in shared memory, which costs
// nothing. With stride 1 along H the taps along H share the rows; else each tap stages the rows that it meets.
// Bytes: grad_output is read once for each channel tile and tap along D (and along H, with a stride there). Weights
// stay in shared memory or L1.
template <class Layer, class Tune>
long long grad_input_workspace(Layer, Sizes sizes) {
  return strip_workspace<StripConfig<false, Layer, Tune>>(sizes);
}

template <class Layer, class Tune>
cudaError_t grad_input(Layer, Sizes sizes, const typename Layer::scalar* grad_output,
                       const typename Layer::scalar* weight, typename Layer::scalar* grad_input_out, void* workspace,
                       cudaStream_t stream) {
  return launch_strips<StripConfig<false, Layer, Tune>>(sizes, grad_output, weight, nullptr, grad_input_out, workspace,
                                                        stream);
}
