/* variant
name      = "wgmma_ping_pong"
computes  = ["forward", "grad_input"]
after     = "wgmma_packed"
idea      = "Two warpgroups round and stage the source, two multiply tiles in turns; stores overlap with products."
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
DEPTH        = {values = [2, 4, 6], default = 4, help = "registers per thread for loads in flight, in groups of 8"}

[derived]
forward      = "direction == 'forward'"
channels     = "(layer.out_channels if forward else layer.in_channels) // layer.groups"
halo         = "(layer.kernel_w - 1) * layer.dilation_w"
slice        = "ceil_div((layer.in_channels if forward else layer.out_channels) // layer.groups, 8) * layer.kernel_w * 32"
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

[grad_input.plan]
Plan         = "PingPongPlan<Layer, Tune, false>"
*/
#include "families/wgmma_ping_pong/stage_and_store.cuh"

// families/wgmma_ping_pong/README.md has a picture and the words.

// Shared memory holds: all weights of the block's channel tile, the rings of both consumers, staging of their warps,
// barriers.
template <class Plan, bool paired>
__device__ __forceinline__ void ping_pong_products(const PingPongGeometry& g, const float* __restrict__ source,
                                                   const char* weights, const float* __restrict__ bias,
                                                   float* __restrict__ result) {
  constexpr int R = Plan::RING;
  extern __shared__ __align__(1024) unsigned char ping_pong_memory[];
  const unsigned base = shared_address(ping_pong_memory), ring = base + Plan::WEIGHT_BYTES;
  const unsigned full = base + Plan::BARRIERS_AT, empty = full + 2 * R * 8, weights_there = empty + 2 * R * 8;
  const int warpgroup = __shfl_sync(~0u, int(threadIdx.x) / 128, 0), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * R; ++i) mbarrier_init(full + i * 8, 4), mbarrier_init(empty + i * 8, 4);
    mbarrier_init(weights_there, 1);
    mbarrier_init_done();
  }
  __syncthreads();
  const int tiles = blockIdx.x < g.tiles ? int((g.tiles - 1 - blockIdx.x) / gridDim.x) + 1 : 0;

  if (warpgroup >= 2) {
    give_registers<Plan::KEPT>();
    ping_pong_stage<Plan, paired>(g, source, tiles, ping_pong_memory + Plan::WEIGHT_BYTES, full, empty, warpgroup - 2);
  } else {
    take_registers<Plan::TAKEN>();
    if (threadIdx.x == 0) {
      const PingPongTile<Plan> t(g);
      mbarrier_arrive_expecting(weights_there, Plan::WEIGHT_BYTES);
      for (int i = 0; i < Plan::CHUNKS; ++i)
        bulk_copy(base + i * Plan::SLICE_BYTES,
                  weights + 1LL * (t.group * Plan::CHANNEL_TILES + t.channel_tile) * Plan::WEIGHT_BYTES +
                      1LL * i * Plan::SLICE_BYTES,
                  Plan::SLICE_BYTES, weights_there);
    }
    __syncwarp();
    mbarrier_wait(weights_there, 0);
    const unsigned long long w0 = matrix_descriptor(base, Plan::CHANNEL_TILE * 16, 128);
    const unsigned long long x0 = matrix_descriptor(ring + warpgroup * R * Plan::STAGE_BYTES, Plan::PLANE * 16, 128);
    const unsigned my_full = full + warpgroup * R * 8, my_empty = empty + warpgroup * R * 8;
    float* staging = reinterpret_cast<float*>(ping_pong_memory + Plan::STAGING_AT + threadIdx.x / 32 * Plan::STAGING);
    PingPongTile<Plan> t(g);
    if (warpgroup == 1) t.advance(g);
    int stage = 0, parity = 0;
    float sum[2][64];  // the first product of a tile does not read it
#pragma unroll 1
    for (int number = warpgroup; number < tiles; number += 2) {
      int before = -1;
#pragma unroll 1
      for (int chunk = 0; chunk < Plan::CHUNKS; ++chunk) {
        mbarrier_wait(my_full + stage * 8, parity);
        // The fence is here and not in the producers, where it would wait for all their loads.
        products_see_writes();
        wgmma_fence();
#pragma unroll
        for (int kw = 0; kw < Plan::KW; ++kw)
#pragma unroll
          for (int tile = 0; tile < 2; ++tile)
            wgmma<Plan::precision, float, 128>(
                sum[tile],
                w0 + (chunk * (Plan::SLICE_BYTES >> 4) + kw * 2 * Plan::CHANNEL_TILE + (Plan::ROW_TILES == 1 ? 0 : tile * 64)),
                x0 + (stage * (Plan::STAGE_BYTES >> 4) + kw * Plan::DW + (Plan::COLUMN_TILES == 1 ? 0 : tile * 128)),
                kw == 0 ? chunk : 1);
        wgmma_commit();
        wgmma_wait<1>();
        if (before >= 0 && lane == 0) mbarrier_arrive(my_empty + before * 8);
        before = stage;
        if (++stage == R) stage = 0, parity ^= 1;
      }
      wgmma_wait<0>();
      if (lane == 0) mbarrier_arrive(my_empty + before * 8);
      wgmma_own(sum[0]), wgmma_own(sum[1]);
      ping_pong_store<Plan>(g, t, sum, staging, bias, result);
      t.advance(g), t.advance(g);
    }
  }
}

// Compared with wgmma_packed:
// - The source goes from global memory through registers of the producers, which round it once, into the layout that
//   tensor cores read. No packed copy is written and read again. That is faster where a load serves few taps: those
//   along W.
// - All weights of a channel tile stay in shared memory.
// - Each consumer has its own ring and takes every second tile: one stores while the other multiplies.
//
// forward stages the input, grad_input stages grad_output.
//
// consumer -> data: 128 channels of 128 positions or 64 of 256, less the halo. A producer waits for an empty stage of
// the ring, a consumer for a full one. `paired`: pairs of source positions are aligned.
// Bytes: the source is read once for each channel tile; the result is written once, in whole rows of sectors.
template <class Plan, bool paired>
__global__ void __launch_bounds__(Plan::THREADS, 1) wgmma_ping_pong(
    PingPongGeometry geometry, const float* __restrict__ source, const char* __restrict__ weights,
    const float* __restrict__ bias, float* __restrict__ result) {
  ping_pong_products<Plan, paired>(geometry, source, weights, bias, result);
}

// Bytes of the packed weights.
template <class Plan>
long long ping_pong_workspace() {
  return 1LL * Plan::GROUPS * Plan::CHANNEL_TILES * Plan::WEIGHT_BYTES;
}

// Packs the weights into the workspace, then computes. `bias` is not read by grad_input, nor if the layer has none.
template <class Plan>
cudaError_t ping_pong_launch(const Sizes& sizes, const float* source, const float* weight, const float* bias,
                             float* result, void* workspace, cudaStream_t stream) {
  if (sizes.batch == 0) return cudaSuccess;
  if (1LL * sizes.out_d * sizes.out_h > 1 << 30) return cudaErrorInvalidValue;  // counted in int, as tiles are
  PingPongGeometry g = ping_pong_geometry<Plan>(sizes);
  constexpr int VARIETIES = Plan::GROUPS * Plan::CHANNEL_TILES, WEIGHTS = VARIETIES * (Plan::WEIGHT_BYTES / 4);
  pack_weights<Plan><<<ceil_div(WEIGHTS, 256), 256, 0, stream>>>(weight, static_cast<float*>(workspace));
  cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  int device = 0, multiprocessors = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  // A multiple of the varieties, so that a block keeps its channel tile and group.
  const long long most = larger(multiprocessors / VARIETIES, 1) * 1LL * VARIETIES, blocks = g.tiles < most ? g.tiles : most;
  if (g.tiles > 1 << 30 || g.tiles / blocks * Plan::CHUNKS > 1 << 30) return cudaErrorInvalidValue;  // counted in int
  const int step = int(blocks) / VARIETIES;
  g.step_tile = step % g.tiles_per_row, g.step_row = step / g.tiles_per_row % g.rows;
  g.step_n = step / g.tiles_per_row / g.rows;
  if (reinterpret_cast<size_t>(result) % 8 != 0) g.paired_results = 0;
  const bool paired = g.source_w % 2 == 0 && reinterpret_cast<size_t>(source) % 8 == 0;
  const auto kernel = paired ? wgmma_ping_pong<Plan, true> : wgmma_ping_pong<Plan, false>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Plan::BYTES);
  if (error != cudaSuccess) return error;
  kernel<<<unsigned(blocks), Plan::THREADS, Plan::BYTES, stream>>>(g, source, static_cast<const char*>(workspace), bias,
                                                                  result);
  return cudaGetLastError();
}

#ifdef KW_FORWARD
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
#else
template <class Layer, class Tune>
long long grad_input_workspace(Layer, Sizes) {
  return ping_pong_workspace<PingPongPlan<Layer, Tune, false>>();
}

template <class Layer, class Tune>
cudaError_t grad_input(Layer, Sizes sizes, const typename Layer::scalar* grad_output,
                       const typename Layer::scalar* weight, typename Layer::scalar* grad_input_out, void* workspace,
                       cudaStream_t stream) {
  return ping_pong_launch<PingPongPlan<Layer, Tune, false>>(sizes, grad_output, weight, nullptr, grad_input_out,
                                                            workspace, stream);
}
#endif
