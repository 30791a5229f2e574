/* variant
name      = "strided_streams"
computes  = ["forward"]
after     = "wgmma_ping_pong"
idea      = "Warps that only stage, multiply or store; a block walks down the result and stores each sector once, whole."
precision = ["tf32"]
layer     = ["constant"]
needs     = ["TILE % IMAGE == 0", "layer.stride_w <= 32", "images * 4 * sums <= 64",
             "tile * images * sums <= 128", "ring >= max(window, PRODUCERS // 4)", "IMAGES >= TEAMS", "ring + IMAGES <= 31",
             "layer.groups * ceil_div(m, tile) * layer.stride_d <= 65536",
             "max(reach_w, reach_h, reach_d) <= 1024"]
min_sm    = 90
arch      = "sm_90a"

[tune]
TILE         = {values = [64, 128, 256], default = 128, help = "cells of a row that a walk has; a cell is `stride` outputs"}
IMAGE        = {values = [64, 128], default = 128, help = "cells that a team multiplies and that leave together"}
IMAGES       = {values = [1, 2, 3, 4], default = 2, help = "images of result rows in shared memory"}
STAGES       = {values = [1, 2, 3, 4], default = 2, help = "input rows staged beyond those in use, as far as they fit"}
TEAMS        = {values = [1, 2, 3], default = 2, help = "warpgroups that multiply, in turns"}
PRODUCERS    = {values = [4, 8], default = 8, help = "warps that stage"}
STORERS      = {values = [4, 8], default = 8, help = "warps that store"}
CHANNEL_TILE = {values = [0, 8, 16, 32, 64], default = 0, help = "output channels of a block (0: chosen)"}
ROWS         = {values = [8, 16, 32, 128], default = 16, help = "result rows of a walk, at most"}
BLOCKS       = {values = [1, 2], default = 1, help = "blocks of a multiprocessor"}

[derived]
m            = "layer.out_channels // layer.groups"
slabs        = "ceil_div(layer.in_channels // layer.groups, 8)"
sums         = "min(layer.kernel_w, layer.stride_w)"
images       = "IMAGE // 64"
depths       = "ceil_div(layer.kernel_d, layer.stride_d) if layer.dilation_d == 1 else layer.kernel_d"
taps         = "depths * layer.kernel_h * layer.kernel_w"
most         = "min(8192 // (IMAGE * sums), 3584 // (taps * slabs))"
needed       = "8 if m <= 8 else 16 if m <= 16 else 32 if m <= 32 else 64"
fits         = "8 if most < 16 else 16 if most < 32 else 32 if most < 64 else 64"
tile         = "CHANNEL_TILE if CHANNEL_TILE > 0 else min(needed, fits)"
reach_w      = "(layer.kernel_w - 1) * layer.dilation_w // layer.stride_w"
reach_h      = "(layer.kernel_h - 1) * layer.dilation_h // layer.stride_h"
reach_d      = "(layer.kernel_d - 1) * layer.dilation_d // layer.stride_d"
unit         = "slabs * 8 * (TILE + reach_w)"
fixed        = "taps * slabs * 8 * tile + 8 * tile + IMAGES * tile * (layer.stride_w * IMAGE + 4)"
room         = "(227 * 1024 if BLOCKS == 1 else 228 * 1024 // BLOCKS - 1024) // 4 - 128"
window       = "depths * (reach_h + 1)"
ring         = "min(window + STAGES, (room - fixed) // unit)"
smem_bytes   = "4 * (fixed + ring * unit) + 16 * (ring + IMAGES + 1)"
*/
#include "common/stream_roles.cuh"

// Against wgmma_ping_pong:
// - An output residue along W is a product of its own over the same staged inputs; all residues of a cell (as many
//   outputs as the stride) lie side by side in an image of result rows in shared memory. Residues along H alternate from
//   row to row; a block keeps one residue along D and the weights of its taps.
// - A block walks down rows of the result, so that input rows stay while the next results need them, and rows that are
//   contiguous leave as one stream of whole sectors: a sector with two writers costs what several do.
// - Stores have warps of their own, so that neither copies nor products wait for them.
//
// warp -> data: TEAMS warpgroups multiply a step each in turns, PRODUCERS warps stage input rows, STORERS warps store
// images. They meet at mbarriers: a unit of the ring is full or empty, an image is full or empty.
// Bytes: an input row once for each residue along D and its taps there, mostly from L2; a result once.
template <class Layer, class Tune>
__global__ void __launch_bounds__(StreamPlan<Layer, Tune>::THREADS, Tune::BLOCKS) strided_streams(StreamArguments a) {
  using P = StreamPlan<Layer, Tune>;
  extern __shared__ __align__(1024) float stream_memory[];
  const unsigned base = shared_address(stream_memory);
  const StreamBarriers<P> barriers(base + 4 * P::BARRIERS_AT);
  const int warp = __shfl_sync(~0u, int(threadIdx.x) / 32, 0), lane = threadIdx.x % 32;
  const int variety = blockIdx.x % P::VARIETIES, worker = blockIdx.x / P::VARIETIES, workers = gridDim.x / P::VARIETIES;
  const int residue_d = variety % Layer::stride_d, tile = variety / Layer::stride_d % P::CHANNEL_TILES;
  const int group = variety / Layer::stride_d / P::CHANNEL_TILES;
  if (threadIdx.x == 0) {
    for (int i = 0; i < P::RING; ++i)
      mbarrier_init(barriers.unit_full + 8 * i, 4), mbarrier_init(barriers.unit_empty + 8 * i, 4 * P::TEAMS);
    for (int i = 0; i < P::IMAGES; ++i)
      mbarrier_init(barriers.image_full + 8 * i, 4), mbarrier_init(barriers.image_empty + 8 * i, P::STORERS);
    mbarrier_init(barriers.weights_there, 4 * P::TEAMS + P::STORERS);
    mbarrier_init_done();
  }
  __syncthreads();
  const bool stages = warp >= 4 * P::TEAMS && warp < 4 * P::TEAMS + P::PRODUCERS;
  if (!stages) {  // the others pack the weights meanwhile
    stream_weights<P, Layer>(a, stream_memory, group, tile, residue_d,
                             threadIdx.x - (warp < 4 * P::TEAMS ? 0 : 32 * P::PRODUCERS), P::THREADS - 32 * P::PRODUCERS);
    __syncwarp();
    if (lane == 0) mbarrier_arrive(barriers.weights_there);
  }

  float* const images = stream_memory + P::IMAGES_AT;
  if (warp < 4 * P::TEAMS) {
    if constexpr (P::SHARED_OUT && P::MULTIPLYING > P::LAUNCHED) take_registers<P::MULTIPLYING>();
    stream_multiply<P, Layer>(a, base, images, barriers, group, tile, residue_d, worker, workers, warp / 4, threadIdx.x % 128);
  } else if (stages) {
    if constexpr (P::SHARED_OUT && P::STAGING < P::LAUNCHED) give_registers<P::STAGING>();
    if constexpr (P::SHARED_OUT && P::STAGING > P::LAUNCHED) take_registers<P::STAGING>();
    stream_stage<P, Layer>(a, stream_memory + P::RING_AT, barriers, group, residue_d, worker, workers,
                           threadIdx.x - 128 * P::TEAMS);
  } else {
    if constexpr (P::SHARED_OUT) give_registers<P::STORING>();
    stream_store<P, Layer>(a, images, stream_memory + P::CARRY_AT, barriers, group, tile, residue_d, worker, workers,
                           warp - 4 * P::TEAMS - P::PRODUCERS, lane);
  }
}

template <class Layer, class Tune>
long long forward_workspace(Layer, Sizes) {
  return 0;
}

template <class Layer, class Tune>
cudaError_t forward(Layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
                    const typename Layer::scalar* bias, typename Layer::scalar* output, void*, cudaStream_t stream) {
  using P = StreamPlan<Layer, Tune>;
  if (sizes.batch == 0) return cudaSuccess;
  StreamArguments a = {input, weight, bias, output, sizes};
  a.in_volume = 1LL * sizes.in_d * sizes.in_h * sizes.in_w, a.out_volume = 1LL * sizes.out_d * sizes.out_h * sizes.out_w;
  a.cells = P::W::steps(sizes.out_w);
  a.chunks = a.cells <= P::TILE ? 1 : ceil_div(a.cells - P::OVERLAP, P::TILE - P::OVERLAP);
  a.chunk_step = a.chunks == 1 ? P::TILE : P::TILE - P::OVERLAP;
  a.planes = (P::D::CUT + sizes.out_d - 1) / Layer::stride_d + 1;
  int device = 0, processors = 1;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  // One wave of blocks; walks are shorter where each block would not get one otherwise.
  const long long most = processors * Tune::BLOCKS / P::VARIETIES < 1 ? 1 : processors * Tune::BLOCKS / P::VARIETIES;
  const long long beside = sizes.batch * a.planes * a.chunks, each = ceil_div(beside * sizes.out_h, most);
  a.segment_rows = int(each < Tune::ROWS ? each : Tune::ROWS);
  if (a.segment_rows > sizes.out_h) a.segment_rows = sizes.out_h;
  a.segments = ceil_div(sizes.out_h, a.segment_rows);
  const long long walks = beside * a.segments;
  if (walks * a.segment_rows * (P::TILE / P::IMAGE) >= 1LL << 30 || walks * (a.segment_rows + P::H::REACH + 1) * P::KD >= 1LL << 30)
    return cudaErrorInvalidValue;  // counted in int
  a.walks = int(walks), a.one = 1.0f;
  const auto kernel = strided_streams<Layer, Tune>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, P::BYTES);
  if (error != cudaSuccess) return error;
  long long workers = most < walks ? most : walks;
  workers = ceil_div(walks, ceil_div(walks, workers));
  kernel<<<unsigned(workers * P::VARIETIES), P::THREADS, P::BYTES, stream>>>(a);
  return cudaGetLastError();
}
