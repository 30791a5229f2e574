/* variant
name      = "wgmma_packed"
computes  = ["forward"]
after     = "naive_gather"
idea      = "The input is packed once into the layout of Hopper's tensor cores; wgmma and bulk copies do the rest."
precision = ["tf32", "tf32x3", "fp16", "bf16"]
layer     = ["constant"]
needs     = ["layer.stride_d == 1 and layer.stride_h == 1 and layer.stride_w == 1", "stage_bytes <= stage_limit",
             "weight_elements <= 33554432", "runs * run_sums <= 160",
             "packers < 2 or (CONSUMERS == 2 and BLOCKS_PER_SM == 1 and runs * run_sums <= 128)", "CONSUMERS < 3 or packers == 0"]
min_sm    = 90
arch      = "sm_90a"

[tune]
CHANNEL_TILE  = {values = [0, 8, 16, 24, 32, 48, 64, 96, 128], default = 0, help = "channels of a block (0: automatic)"}
RUN           = {values = [128, 256], default = 128, help = "neighbouring positions of a row that are multiplied together"}
RUNS          = {values = [0, 1, 2, 3, 4, 5, 6, 8], default = 0, help = "runs of a warpgroup (0: as many as registers hold)"}
CONSUMERS     = {values = [1, 2, 3], default = 2, help = "warpgroups that multiply"}
BLOCKS_PER_SM = {values = [1, 2], default = 1, help = "blocks that share a multiprocessor"}
STAGES        = {values = [2, 3, 4, 6, 8], default = 6, help = "stages of the ring, at most"}
RESIDENT      = {values = [0, 1, 2], default = 2, help = "weights in shared memory: 0 never, 1 beside 2 stages, 2 beside 3"}
PACKERS       = {values = [0, 1, 2, 3], default = 3, help = "warpgroups that pack the next slice of the batch (3: automatic)"}
SLICE         = {values = [0, 4, 8, 16], default = 8, help = "tiles per block in a slice of the batch, at least (0: any)"}
SHAPE         = {values = [0, 1, 2], default = 0, help = "tile: 1 positions of whole rows, 2 rows by columns, 0 automatic"}

[derived]
channels        = "layer.out_channels // layer.groups"
parts           = "2 if precision == 'tf32x3' else 1"
whole           = "8 if channels <= 8 else 16 if channels <= 16 else 24 if channels <= 24 else 32 if channels <= 32 else 48 if channels <= 48 else 64"
most_tile       = "65536 // (64 * layer.kernel_h * layer.kernel_w) if parts == 2 else 64"
half            = "whole if whole <= max(8, most_tile) else 16 if whole == 24 else whole // 2"
quarter         = "half if half <= max(8, most_tile) else 16 if half == 24 else half // 2"
tile            = "CHANNEL_TILE if CHANNEL_TILE else quarter if quarter <= max(8, most_tile) else 8"
run_sums        = "parts * (RUN // 2 if tile == 64 else RUN // 64 * tile // 2)"
packers         = "PACKERS if PACKERS < 3 else 2 if layer.kernel_d > 1 and CONSUMERS == 2 and BLOCKS_PER_SM == 1 else 0"
most_runs       = "RUNS if RUNS else max(1, min((96 if CONSUMERS * BLOCKS_PER_SM > 2 or packers else 128 if BLOCKS_PER_SM == 2 else 144) // run_sums, (512 if layer.kernel_d > 1 else 1024) // (RUN * CONSUMERS)))"
row_bytes       = "parts * 32 * (RUN + (layer.kernel_w - 1) * layer.dilation_w)"
halo_bytes      = "parts * 32 * layer.kernel_h * layer.kernel_w * tile + (layer.kernel_h - 1) * layer.dilation_h * row_bytes"
stage_limit     = "108000 // BLOCKS_PER_SM"  # about two stages; what fits exactly depends on the sizes, too
half_runs       = "most_runs if RUNS or CONSUMERS * most_runs * row_bytes + halo_bytes <= 72000 // BLOCKS_PER_SM else max(1, most_runs // 2)"
quarter_runs    = "half_runs if RUNS or CONSUMERS * half_runs * row_bytes + halo_bytes <= 72000 // BLOCKS_PER_SM else max(1, half_runs // 2)"
runs            = "quarter_runs if RUNS or CONSUMERS * quarter_runs * row_bytes + halo_bytes <= 72000 // BLOCKS_PER_SM else max(1, quarter_runs // 2)"
stage_bytes     = "CONSUMERS * runs * row_bytes + halo_bytes"
weight_elements = "parts * layer.groups * ceil_div(channels, tile) * tile * layer.kernel_d * layer.kernel_h * layer.kernel_w * (layer.in_channels // layer.groups + 16)"
threads         = "128 * (CONSUMERS + max(1, packers))"

[plan]
Plan            = "PackedPlan<Layer, Tune, true>"
whole           = "channel_tile_for(Plan::CHANNELS)"
most_tile       = ""
half            = ""
quarter         = ""
tile            = "Plan::CHANNEL_TILE"
run_sums        = "Plan::SUMS"
most_runs       = ""
row_bytes       = "Plan::PARTS * 32 * (Plan::RUN + Plan::HALO_W)"
halo_bytes      = "Plan::wide_stage_bytes(0)"
stage_limit     = ""
half_runs       = ""
quarter_runs    = ""
stage_bytes     = "Plan::wide_stage_bytes(Plan::RUNS)"
weight_elements = ">= 1LL * Plan::GROUPS * Plan::CHANNEL_TILES * Plan::WEIGHT_BYTES / int(sizeof(typename Plan::Scalar))"
*/
#include "families/wgmma_packed/products.cuh"

// The kernel is in families/wgmma_packed/products.cuh. It packs the input.
template <class Layer, class Tune>
long long forward_workspace(Layer, Sizes sizes) {
  return packed_workspace<PackedPlan<Layer, Tune, true>>(sizes);
}

template <class Layer, class Tune>
cudaError_t forward(Layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
                    const typename Layer::scalar* bias, typename Layer::scalar* output, void* workspace,
                    cudaStream_t stream) {
  return packed_launch<PackedPlan<Layer, Tune, true>>(sizes, input, weight, bias, output, workspace, stream);
}
