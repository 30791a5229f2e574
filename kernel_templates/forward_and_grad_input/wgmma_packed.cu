/* variant
name      = "wgmma_packed"
computes  = ["forward", "grad_input"]
after     = "naive_gather"
idea      = "The source is packed once into the layout of Hopper's tensor cores; bulk copies stage it for wgmma."
precision = ["tf32", "tf32x3", "fp16", "bf16"]
layer     = ["constant"]
needs     = ["layer.stride_d == grain_d and layer.stride_h == grain_h and layer.stride_w == grain_w", "stage_bytes <= stage_limit",
             "weight_elements <= 33554432", "runs * run_sums <= 160",
             "FOLD == 0 or RUN == 128 and tile <= 32 and tile != 24 and parts == 1 and (bundle - 1) * dilation_w <= 8",
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
RESIDENT      = {values = [0, 1, 2], default = 2, help = "weights stay in shared memory: 0 never, 1 if 2 stages fit beside them, 2 if 3 fit"}
PACKERS       = {values = [0, 1, 2, 3], default = 3, help = "warpgroups that pack the next slice of the batch (3: automatic)"}
SLICE         = {values = [0, 4, 8, 16], default = 8, help = "smallest number of tiles per block in a slice of the batch (0: any)"}
SHAPE         = {values = [0, 1, 2], default = 0, help = "tile: 1 positions of whole rows, 2 rows by columns, 0 automatic"}
FOLD          = {values = [0, 1], default = 0, help = "1: the rows of a product are 8, 16 or 32 channels of several taps along W"}

[derived]
forward         = "direction == 'forward'"
grain_d         = "layer.stride_d if layer.kernel_d == 1 else gcd(layer.stride_d, layer.dilation_d)"
grain_h         = "layer.stride_h if layer.kernel_h == 1 else gcd(layer.stride_h, layer.dilation_h)"
grain_w         = "layer.stride_w if layer.kernel_w == 1 else gcd(layer.stride_w, layer.dilation_w)"
channels        = "(layer.out_channels if forward else layer.in_channels) // layer.groups"
parts           = "2 if precision == 'tf32x3' else 1"
whole           = "8 if channels <= 8 else 16 if channels <= 16 else 24 if channels <= 24 else 32 if channels <= 32 else 48 if channels <= 48 else 64"
most_tile       = "65536 // (64 * layer.kernel_h * layer.kernel_w) if parts == 2 else 64"
half            = "whole if whole <= max(8, most_tile) else 16 if whole == 24 else whole // 2"
quarter         = "half if half <= max(8, most_tile) else 16 if half == 24 else half // 2"
fold_tile       = "8 if channels <= 8 else 16 if channels <= 16 else 32"
tile            = "CHANNEL_TILE if CHANNEL_TILE else fold_tile if FOLD else quarter if quarter <= max(8, most_tile) else 8"
dilation_w      = "ceil_div(layer.dilation_w, grain_w)"
bundle          = "max(1, 64 // tile) if FOLD else 1"
bundles         = "ceil_div(layer.kernel_w, bundle)"
weight_rows     = "bundle * tile"
run_sums        = "bundles * (RUN + 8) // 2 if FOLD else parts * (RUN // 2 if tile == 64 else RUN // 64 * tile // 2)"
packers         = "PACKERS if PACKERS < 3 else 2 if layer.kernel_d > 1 and CONSUMERS == 2 and BLOCKS_PER_SM == 1 and FOLD == 0 else 0"
most_runs       = "RUNS if RUNS else max(1, min((96 if CONSUMERS * BLOCKS_PER_SM > 2 or packers else 128 if BLOCKS_PER_SM == 2 else 144) // run_sums, (512 if layer.kernel_d > 1 else 1024) // (RUN * CONSUMERS)))"
row_bytes       = "parts * 32 * (RUN + (layer.kernel_w - 1) * layer.dilation_w // grain_w)"
halo_bytes      = "parts * 32 * layer.kernel_h * bundles * weight_rows + (layer.kernel_h - 1) * layer.dilation_h // grain_h * row_bytes"
stage_limit     = "108000 // BLOCKS_PER_SM"  # about two stages; what fits exactly depends on the sizes, too
half_runs       = "most_runs if RUNS or CONSUMERS * most_runs * row_bytes + halo_bytes <= 72000 // BLOCKS_PER_SM else max(1, most_runs // 2)"
quarter_runs    = "half_runs if RUNS or CONSUMERS * half_runs * row_bytes + halo_bytes <= 72000 // BLOCKS_PER_SM else max(1, half_runs // 2)"
runs            = "quarter_runs if RUNS or CONSUMERS * quarter_runs * row_bytes + halo_bytes <= 72000 // BLOCKS_PER_SM else max(1, quarter_runs // 2)"
stage_bytes     = "CONSUMERS * runs * row_bytes + halo_bytes"
weight_elements = "parts * layer.groups * ceil_div(channels, tile) * weight_rows * layer.kernel_d * layer.kernel_h * bundles * ((layer.in_channels if forward else layer.out_channels) // layer.groups + 16)"
threads         = "128 * (CONSUMERS + max(1, packers))"

[plan]
Plan            = "PackedPlan<Layer, Tune, true>"
grain_d         = "Plan::Grain::D"
grain_h         = "Plan::Grain::H"
grain_w         = "Plan::Grain::W"
whole           = "channel_tile_for(Plan::CHANNELS)"
most_tile       = ""
half            = ""
quarter         = ""
fold_tile       = "Plan::fold_tile()"
tile            = "Plan::CHANNEL_TILE"
dilation_w      = "Plan::DW"
bundle          = "Plan::BUNDLE"
bundles         = "Plan::BUNDLES"
weight_rows     = "Plan::WEIGHT_ROWS"
run_sums        = "Plan::SUMS"
most_runs       = ""
row_bytes       = "Plan::PARTS * 32 * (Plan::RUN + Plan::HALO_W)"
halo_bytes      = "Plan::wide_stage_bytes(0)"
stage_limit     = ""
half_runs       = ""
quarter_runs    = ""
stage_bytes     = "Plan::wide_stage_bytes(Plan::RUNS)"
weight_elements = ">= 1LL * Plan::GROUPS * Plan::CHANNEL_TILES * Plan::WEIGHT_BYTES / int(sizeof(typename Plan::Scalar))"

[grad_input.plan]
Plan            = "PackedPlan<Layer, Tune, false>"
*/
#include "families/wgmma_packed/products.cuh"

// families/wgmma_packed/README.md has a picture and the words.

// Shared memory holds: resident weights, the ring, staging of the warps, barriers.
// A consumer waits for a full stage, multiplies, and gives back the stage before as soon as its products are done. The
// producing warp waits for empty stages. Blocks take tiles in turn; a block keeps its channel tile and group.
template <class Plan>
__device__ __forceinline__ void packed_products(const PackedGeometry& g, const PackAhead<Plan>& ahead, const char* source,
                                                const char* weights,
                                                const typename Plan::Scalar* __restrict__ bias,
                                                typename Plan::Scalar* __restrict__ result) {
  extern __shared__ __align__(1024) unsigned char packed_memory[];
  const unsigned base = shared_address(packed_memory);
  const unsigned ring = base + (g.resident ? Plan::WEIGHT_BYTES : 0);
  const int staging = (g.resident ? Plan::WEIGHT_BYTES : 0) + g.stages * g.stage_bytes;
  const unsigned full = base + staging + 4 * Plan::CONSUMERS * Plan::STAGING, empty = full + Plan::MOST_STAGES * 8;
  const unsigned weights_there = empty + Plan::MOST_STAGES * 8;
  const int warpgroup = __shfl_sync(~0u, int(threadIdx.x) / 128, 0);
  if (threadIdx.x == 0) {
    for (int i = 0; i < g.stages; ++i) {
      mbarrier_init(full + i * 8, 1);
      mbarrier_init(empty + i * 8, 4 * Plan::CONSUMERS);
    }
    mbarrier_init(weights_there, 1);
    mbarrier_init_done();
  }
  __syncthreads();

  if (warpgroup >= Plan::CONSUMERS) {
    if constexpr (Plan::LAUNCHED > Plan::KEPT) give_registers<Plan::KEPT>();
    const int helper = __shfl_sync(~0u, int(threadIdx.x) / 32, 0) - 4 * Plan::CONSUMERS;
    if (helper > 0) {
      if constexpr (Plan::PACKING_WARPS != 0) pack_ahead<Plan>(g, ahead, helper - 1);
    } else {
      if (g.resident && threadIdx.x == 128 * Plan::CONSUMERS) {
        const PackedTile t = packed_tile<Plan>(g, blockIdx.x);
        mbarrier_arrive_expecting(weights_there, Plan::WEIGHT_BYTES);
        for (int i = 0; i < Plan::KD * Plan::CHUNKS; ++i)
          bulk_copy(base + i * Plan::SLICE_BYTES,
                    weights + 1LL * (t.group * Plan::CHANNEL_TILES + t.channel_tile) * Plan::WEIGHT_BYTES +
                        1LL * i * Plan::SLICE_BYTES,
                    Plan::SLICE_BYTES, weights_there);
      }
      __syncwarp();
      fill_ring<Plan>(g, source, weights, ring, full, empty);
    }
  } else {
    if constexpr (Plan::TAKEN > Plan::LAUNCHED) take_registers<Plan::TAKEN>();
    const int lane = threadIdx.x % 32, first_run = warpgroup * Plan::RUNS;
    float* mine = reinterpret_cast<float*>(packed_memory + staging + threadIdx.x / 32 * Plan::STAGING);
    if (g.resident) mbarrier_wait(weights_there, 0);
    RingPlace at;
    for (long long tile = blockIdx.x; tile < g.tiles; tile += gridDim.x) {
      const PackedTile t = packed_tile<Plan>(g, tile);
      const PatchLayout patch = patch_layout<Plan>(g, t);
      PackedSums<Plan> sum, total;  // total: split only
      int since = 0;
#pragma unroll
      for (int i = 0; i < Plan::RUNS; ++i)
#pragma unroll
        for (int j = 0; j < Plan::PRODUCTS; ++j)
#pragma unroll
          for (int k = 0; k < Plan::COLUMNS / 2; ++k) sum[i][j][k] = total[i][j][k] = 0.f;
      const unsigned long long x0 =
          matrix_descriptor(ring, g.patch * 16, patch.group_step * 16 * (Plan::CHANNELS_ARE_ROWS ? 1 : Plan::PRODUCTS)) +
          first_run * patch.run_step;
      const unsigned long long w0 =
          matrix_descriptor(g.resident ? base : ring + 2 * Plan::PARTS * g.patch * 16, Plan::WEIGHT_ROWS * 16, 128);
      const int runs = __shfl_sync(~0u, runs_in_use<Plan>(g, t, first_run), 0);
      int before = -1;
#pragma unroll 1
      for (int kd = 0; kd < Plan::KD; ++kd) {
        if (!reaches<Plan>(g, t, kd)) continue;
#pragma unroll 1
        for (int chunk = 0; chunk < Plan::CHUNKS; ++chunk) {
          mbarrier_wait(full + at.stage * 8, at.parity);
          wgmma_fence();
          const unsigned stage = at.stage * (g.stage_bytes >> 4);
          const unsigned slice = g.resident ? (kd * Plan::CHUNKS + chunk) * (Plan::SLICE_BYTES >> 4) : stage;
          if (runs > 1 || (runs == 1 && Plan::RUNS == 1))
            multiply_stage<Plan, Plan::RUNS>(sum, total, since, x0 + stage, w0 + slice, patch, 2 * g.patch);
          else if (runs == 1 && Plan::RUNS > 1)
            multiply_stage<Plan, 1>(sum, total, since, x0 + stage, w0 + slice, patch, 2 * g.patch);
          wgmma_commit();
          wgmma_wait<1>();
          if (before >= 0 && lane == 0) mbarrier_arrive(empty + before * 8);
          before = at.stage;
          at.next(g.stages);
        }
      }
      wgmma_wait<0>();
      if (before >= 0 && lane == 0) mbarrier_arrive(empty + before * 8);
      if constexpr (Plan::SPLIT) {
        if (since > 0) take_out<Plan, Plan::RUNS>(sum, total);
        store_sums<Plan>(g, t, first_run, total, mine, bias, result);
      } else if constexpr (Plan::FOLD) {
        float* const exchange = reinterpret_cast<float*>(packed_memory + staging + warpgroup * 4 * Plan::STAGING);
        fold_sums<Plan>(g, t, warpgroup, first_run, sum, exchange, bias, result);
      } else {
        store_sums<Plan>(g, t, first_run, sum, mine, bias, result);
      }
    }
  }
}

// Compared with naive_gather:
// - Tensor cores multiply 64 x N tiles of channels and positions straight from shared memory. They need the summed
//   index contiguous: 16 bytes of channels for each position. pack_source brings the source into that order once,
//   rounds it to TF32 and writes the zeros around it. A tap is then a shift of a descriptor's start address by whole
//   positions.
// - One warp fills a ring of patches with bulk copies. The consuming warps issue nothing but wgmma until their sums are
//   complete.
// - A patch with its halo is staged once for a chunk of channels and serves all taps of H and W. Taps of D stage it
//   again.
//
// warpgroup -> data: RUNS runs of RUN positions, for one tile of channels. A block has CONSUMERS such warpgroups with
// neighbouring runs. packed_products() describes who waits for whom.
// forward packs the input, grad_input packs grad_output.
// Bytes: the source is read once, written once packed and read about once more; the result is written once.
template <class Plan>
__global__ void __launch_bounds__(Plan::THREADS, Plan::BLOCKS) wgmma_packed(
    PackedGeometry geometry, PackAhead<Plan> ahead, const char* __restrict__ source, const char* __restrict__ weights,
    const typename Plan::Scalar* __restrict__ bias, typename Plan::Scalar* __restrict__ result) {
  packed_products<Plan>(geometry, ahead, source, weights, bias, result);
}

// Packs both operands into the workspace and multiplies, slice by slice. `bias` is not read by grad_input, nor if the
// layer has none.
template <class Plan>
cudaError_t packed_launch(const Sizes& sizes, const typename Plan::Scalar* source, const typename Plan::Scalar* weight,
                          const typename Plan::Scalar* bias, typename Plan::Scalar* result, void* workspace,
                          cudaStream_t stream) {
  using Scalar = typename Plan::Scalar;
  using Unit = Pack<Scalar, Plan::PER_UNIT>;
  const long long slice = packed_slice<Plan>(sizes);
  PackedGeometry g = packed_geometry_of<Plan>(sizes, slice);
  if (g.stages < 2) return cudaErrorInvalidConfiguration;
  const long long source_step = 1LL * Plan::GROUPS * Plan::SUMMED * g.source_d * g.source_h * g.source_w;
  const long long result_step = 1LL * Plan::GROUPS * Plan::CHANNELS * g.result_d * g.result_h * g.result_w;
  char* packed[2] = {static_cast<char*>(workspace), static_cast<char*>(workspace) + (slice < sizes.batch ? g.source_bytes : 0)};
  char* packed_weights = packed[1] + g.source_bytes;

  const int per_image = ceil_div(g.plane, PACK_THREADS * PACK_POSITIONS);
  const int images = Plan::GROUPS * Plan::UNITS_OF_SOURCE * source_planes<Plan>(g);  // of one n
  pack_source<Plan><<<flat_grid(slice * images * per_image), PACK_THREADS, 0, stream>>>(
      g, source, reinterpret_cast<Unit*>(packed[0]), per_image);
  cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  constexpr int WEIGHTS = Plan::GROUPS * Plan::CHANNEL_TILES * (Plan::WEIGHT_BYTES / int(sizeof(Scalar)));
  pack_weights<Plan><<<ceil_div(WEIGHTS, 256), 256, 0, stream>>>(weight, reinterpret_cast<Scalar*>(packed_weights));
  error = cudaGetLastError();
  if (error != cudaSuccess) return error;

  int device = 0, multiprocessors = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  constexpr int VARIETIES = Plan::GROUPS * Plan::CHANNEL_TILES;
  const long long most = larger(multiprocessors * Plan::BLOCKS / VARIETIES, 1) * 1LL * VARIETIES;
  const int bytes = (g.resident ? Plan::WEIGHT_BYTES : 0) + g.stages * g.stage_bytes + Plan::FIXED_BYTES;
  const auto kernel = wgmma_packed<Plan>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  int buffer = 0;
  for (long long n = 0; n < sizes.batch && error == cudaSuccess; n += slice, buffer ^= 1) {
    const long long after = n + slice, coming = sizes.batch - after < slice ? sizes.batch - after : slice;
    g.tiles = g.tiles / g.batch * (sizes.batch - n < slice ? sizes.batch - n : slice);
    g.batch = sizes.batch - n < slice ? sizes.batch - n : slice;
    const PackAhead<Plan> ahead = {source + after * source_step, reinterpret_cast<Unit*>(packed[buffer ^ 1]),
                                   coming > 0 ? unsigned(coming * images) : 0u};
    kernel<<<unsigned(g.tiles < most ? g.tiles : most), Plan::THREADS, bytes, stream>>>(
        g, ahead, packed[buffer], packed_weights, bias, result + n * result_step);
    error = cudaGetLastError();
  }
  return error;
}

#ifdef KW_FORWARD
template <class Layer, class Tune>
long long forward_workspace(Layer, Sizes sizes) {
  using Grain = Grains<Layer>;
  return packed_workspace<PackedPlan<Layer, Tune, true>>(sizes) + (Grain::APART ? Grain::bytes(Grain::sizes(sizes)) : 0);
}

template <class Layer, class Tune>
cudaError_t forward(Layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
                    const typename Layer::scalar* bias, typename Layer::scalar* output, void* workspace,
                    cudaStream_t stream) {
  using Grain = Grains<Layer>;
  using Plan = PackedPlan<Layer, Tune, true>;
  if constexpr (Grain::APART) {
    auto* const grains = static_cast<typename Layer::scalar*>(workspace);
    const Sizes& own = Grain::sizes(sizes);
    const cudaError_t error =
        packed_launch<Plan>(sizes, input, weight, bias, grains, static_cast<char*>(workspace) + Grain::bytes(own), stream);
    return error != cudaSuccess ? error : launch_spread<Layer>(sizes, own, grains, bias, output, stream);
  } else {
    return packed_launch<Plan>(sizes, input, weight, bias, output, workspace, stream);
  }
}
#else
template <class Layer, class Tune>
long long grad_input_workspace(Layer, Sizes sizes) {
  return packed_workspace<PackedPlan<Layer, Tune, false>>(sizes);
}

template <class Layer, class Tune>
cudaError_t grad_input(Layer, Sizes sizes, const typename Layer::scalar* grad_output,
                       const typename Layer::scalar* weight, typename Layer::scalar* grad_input_out, void* workspace,
                       cudaStream_t stream) {
  return packed_launch<PackedPlan<Layer, Tune, false>>(sizes, grad_output, weight, nullptr, grad_input_out, workspace,
                                                       stream);
}
#endif
