/* variant
name      = "persistent_wgmma"
computes  = ["grad_input"]
after     = "wgmma_packed"
idea      = "Staging warps transpose phases of grad_output, copies bring packed weights, and wgmma sums all taps of a tile of positions."
precision = ["tf32", "fp16", "bf16"]
layer     = ["constant"]
# kernel < stride with a dilation spills registers
needs     = ["layer.kernel_w >= layer.stride_w or layer.dilation_w == 1", "layer.kernel_w <= 32 and layer.stride_w <= 32", "reach <= 128", "blocks * n <= 256", "stages >= 2",
             "planes * (tile + reach) <= 1536",
             "max(layer.padding_w, layer.padding_h, layer.padding_d) < 2 ** 28", "packed <= 2 ** 26"]
min_sm    = 90
arch      = "sm_90a"
kernel    = "persistent_gather"

[tune]
ROWS      = {values = [0, 64, 128], default = 0, help = "positions of a warpgroup (0: automatic)"}
COLUMNS   = {values = [0, 32, 64, 96, 128, 192, 256], default = 0, help = "channels times residues of a tile, at most (0: automatic)"}
UNITS     = {values = [0, 2, 4, 8, 16], default = 0, help = "units of 16 bytes of K in a stage (0: automatic)"}

[derived]
m           = "(layer.in_channels) // layer.groups"
k           = "(layer.out_channels) // layer.groups"
e           = "16 // element_bytes"
packs       = "layer.kernel_w % layer.stride_w == 0 and layer.dilation_w == 1"
pack        = "1 if not packs else 8 if e == 8 and layer.stride_w % 8 == 0 and layer.padding_w % 8 == 0 else 4 if layer.stride_w % 4 == 0 and layer.padding_w % 4 == 0 else 2 if layer.stride_w % 2 == 0 and layer.padding_w % 2 == 0 else 1"
slots       = "1"
planes      = "layer.stride_w // pack if pack > 1 else min(layer.kernel_w, layer.stride_w)"
reach       = "(layer.kernel_w - 1) * layer.dilation_w // layer.stride_w"
wide        = "COLUMNS if COLUMNS else 128 if ceil_div(layer.kernel_w // pack, slots) > 8 else 256"
merged      = "1"
most        = "max(8, wide // 8 * 8)"
ct          = "ceil_div(ceil_div(m, ceil_div(m, most)), 8) * 8"
n           = "slots * merged * ct"
blocks      = "(ROWS if ROWS else 64 if n > 128 or planes > 2 or (reach == 0 and e == 4) else 128) // 64"
tile        = "128 * blocks"
unit_bytes  = "16 * (planes * (tile + reach + (7 if planes > 1 else 0)) + layer.kernel_w // pack * merged * ct)"
all_units   = "ceil_div(k * pack, e)"
shared      = "227 * 1024 - 256"
large       = "shared // 3 if blocks == 1 and reach > 0 else 49152"
units       = "UNITS if UNITS else 16 if 16 * unit_bytes <= large and all_units > 8 else 8 if 8 * unit_bytes <= large and all_units > 4 else 4 if 4 * unit_bytes <= large and all_units > 2 else 2"
fit         = "shared // (units * unit_bytes)"
stages      = "8 if fit >= 8 else fit // 2 * 2 if fit > 3 else fit"
packed      = "ceil_div(m, ct) * ct * layer.groups * (all_units + units) * layer.kernel_d * layer.kernel_h * (layer.kernel_w // pack)"
threads     = "512"
smem_bytes  = "stages * units * unit_bytes + 256"

[plan]
Plan        = "GatherPlan<Layer, Tune, false>"
slots       = "Plan::SLOTS_AT_MOST"
planes      = "Plan::PLANES_AT_MOST"
packs       = ""
n           = "Plan::N_AT_MOST"
packed      = ">= Plan::PACKED_BYTES / 16"
*/
#include "families/persistent_wgmma/gather_kernel.cuh"

// The kernel is in families/persistent_wgmma/gather_kernel.cuh. Its columns are channels, and phases along W are planes of the staged window.
template <class Layer, class Tune>
long long grad_input_workspace(Layer, Sizes sizes) {
  return gather_workspace<GatherPlan<Layer, Tune, false>>(sizes);
}

template <class Layer, class Tune>
cudaError_t grad_input(Layer, Sizes sizes, const typename Layer::scalar* grad_output,
                       const typename Layer::scalar* weight, typename Layer::scalar* grad_input_out, void* workspace,
                    cudaStream_t stream) {
  return gather_launch<GatherPlan<Layer, Tune, false>>(sizes, grad_output, weight, nullptr, grad_input_out, workspace, stream);
}
