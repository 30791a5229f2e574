// The kernel of wgmma_packed, forward and grad_input, and its launch. One warp keeps a ring of stages filled by bulk
// copies. The consuming warpgroups multiply from the ring with wgmma and store their sums.
#pragma once
#include "families/wgmma_packed/layer.cuh"
#include "families/wgmma_packed/ring.cuh"
#include "families/wgmma_packed/store.cuh"
#include "families/wgmma_packed/tiles.cuh"
#include "hardware/wgmma.cuh"

// How many runs of a warpgroup hold a part of the result.
template <class Plan>
__device__ __forceinline__ int runs_in_use(const PackedGeometry& g, const PackedTile& t, int first_run) {
  const int left = g.flat ? g.result_h * g.pitch - t.column : g.result_h - t.row;
  const int in_run = g.flat ? Plan::RUN : t.tail ? Plan::RUN / 8 : 1;
  return left / in_run + (left % in_run != 0) - first_run;
}

// Adds what the tensor cores have summed to `total`, which rounds instead of truncating. Their next product starts
// anew.
template <class Plan, int runs>
__device__ __forceinline__ void take_out(PackedSums<Plan>& sum, PackedSums<Plan>& total) {
  wgmma_commit();
  wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < runs; ++i)
#pragma unroll
    for (int j = 0; j < Plan::PRODUCTS; ++j) {
      wgmma_own(sum[i][j]);
#pragma unroll
      for (int k = 0; k < Plan::COLUMNS / 2; ++k) total[i][j][k] += sum[i][j][k];
    }
  wgmma_fence();
}

// All products of one warpgroup in one stage, for its first `runs` runs. Split: `since` rows of taps are in `sum`.
template <class Plan, int runs>
__device__ __forceinline__ void multiply_stage(PackedSums<Plan>& sum, PackedSums<Plan>& total, int& since,
                                               unsigned long long x, unsigned long long w, const PatchLayout& patch,
                                               int part_step) {
#pragma unroll 1
  for (int kh = 0; kh < Plan::KH; ++kh) {
#pragma unroll
    for (int kw = 0; kw < Plan::KW; ++kw) {
      if (Plan::SPLIT && kw > 0 && kw % Plan::TAPS_KEPT == 0) take_out<Plan, runs>(sum, total);
      const int keep = !Plan::SPLIT || kw % Plan::TAPS_KEPT != 0 ? 1 : kw > 0 ? 0 : since;
      const unsigned long long at = w + kw * Plan::PARTS * 2 * Plan::CHANNEL_TILE;
#pragma unroll
      for (int run = 0; run < runs; ++run) {
#pragma unroll
        for (int i = 0; i < Plan::PRODUCTS; ++i) {
          const unsigned long long positions = x + (kw * Plan::DW + run * patch.run_step + i * patch.group_step);
#pragma unroll
          for (int term = 0; term < (Plan::SPLIT ? 3 : 1); ++term) {  // lo * hi, hi * lo, hi * hi; without split the last
            const unsigned long long a = Plan::SPLIT && term == 0 ? positions + part_step : positions;
            const unsigned long long b = Plan::SPLIT && term == 1 ? at + 2 * Plan::CHANNEL_TILE : at;
            if constexpr (Plan::CHANNELS_ARE_ROWS)
              wgmma<Plan::precision, typename Plan::Scalar, Plan::COLUMNS>(sum[run][i], b, a, term == 0 ? keep : 1);
            else
              wgmma<Plan::precision, typename Plan::Scalar, Plan::COLUMNS>(sum[run][i], a, b, term == 0 ? keep : 1);
          }
        }
      }
    }
    if constexpr (Plan::SPLIT) {
      if (++since == Plan::ROWS_KEPT) take_out<Plan, runs>(sum, total), since = 0;
    }
    x += Plan::DH * patch.pitch;
    w += Plan::KW * Plan::PARTS * 2 * Plan::CHANNEL_TILE;
  }
}

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
          matrix_descriptor(g.resident ? base : ring + 2 * Plan::PARTS * g.patch * 16, Plan::CHANNEL_TILE * 16, 128);
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
  const int images = Plan::GROUPS * Plan::UNITS_OF_SOURCE * g.source_d;  // of one n
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
