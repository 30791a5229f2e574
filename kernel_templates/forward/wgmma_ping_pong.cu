/* variant
name      = "wgmma_ping_pong"
computes  = ["forward"]
after     = "wgmma_packed"
idea      = "Two warpgroups round and stage the input, two multiply tiles in turns; stores hide behind products."
precision = ["tf32"]
layer     = ["constant"]
needs     = ["layer.stride_d == 1 and layer.stride_h == 1 and layer.stride_w == 1",
             "layer.kernel_d == 1 and layer.kernel_h == 1 and layer.padding_d == 0 and layer.padding_h == 0",
             "layer.dilation_d == 1 and layer.dilation_h == 1",
             "halo <= 64", "other_bytes + 4 * stage_bytes <= 227 * 1024",
             "layer.groups * ceil_div(channels, tile) * tile * slice <= 2 ** 30"]
min_sm    = 90
arch      = "sm_90a"

[tune]
CHANNEL_TILE = {values = [0, 64, 128], default = 0, help = "channels of a block (0: automatic)"}
STAGES       = {values = [2, 3, 4, 6], default = 4, help = "stages of each multiplying warpgroup's ring, as many as fit"}
DEPTH        = {values = [2, 4, 6], default = 4, help = "groups of 8 registers of a thread that loads under way may use"}

[derived]
channels     = "layer.out_channels // layer.groups"
halo         = "(layer.kernel_w - 1) * layer.dilation_w"
slice        = "ceil_div(layer.in_channels // layer.groups, 8) * layer.kernel_w * 32"
fixed_bytes  = "halo * 16 + 8 * 1280 + 512"
wide         = "channels > 64 and 128 * slice + fixed_bytes + 4 * 32 * 129 <= 227 * 1024"
tile         = "CHANNEL_TILE if CHANNEL_TILE else 128 if wide else 64"
stage_bytes  = "32 * (16384 // tile + 1)"
other_bytes  = "tile * slice + fixed_bytes"
stages       = "min(STAGES, (227 * 1024 - other_bytes) // (2 * stage_bytes))"
threads      = "512"
smem_bytes   = "other_bytes + 2 * stages * stage_bytes"

[plan]
Plan         = "PingPongPlan<Layer, Tune, true>"
slice        = "Plan::weight_bytes(1)"
fixed_bytes  = "Plan::other_bytes(0)"
wide         = "Plan::CHANNELS > 64 && Plan::two_fit(128)"
tile         = "Plan::CHANNEL_TILE"
other_bytes  = "Plan::other_bytes(Plan::CHANNEL_TILE)"
stages       = "Plan::RING"
smem_bytes   = ">= Plan::BYTES"
*/
#include "families/wgmma_ping_pong/products.cuh"

// The kernel is in families/wgmma_ping_pong/products.cuh. It stages the input.
template <class Layer, class Tune>
long long forward_workspace(Layer, Sizes) {
  return ping_pong_workspace<PingPongPlan<Layer, Tune, true>>();
}

template <class Layer, class Tune>
cudaError_t forward(Layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
                    const typename Layer::scalar* bias, typename Layer::scalar* output, void* workspace,
                    cudaStream_t stream) {
  return ping_pong_launch<PingPongPlan<Layer, Tune, true>>(sizes, input, weight, bias, output, workspace, stream);
}
