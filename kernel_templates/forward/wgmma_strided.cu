/* variant
name      = "wgmma_strided"
computes  = ["forward"]
after     = "wgmma_ping_pong"
idea      = "Both residues along W are rows of one product, so one warp stores whole runs of the result."
precision = ["tf32"]
layer     = ["constant"]
needs     = ["layer.stride_w == 2", "layer.dilation_w % 2 == 1", "layer.stride_d * layer.stride_h <= 16", "ring >= window",
             "ring <= 15", "max(reach_w, reach_h, reach_d) <= 64", "layer.groups * ceil_div(m, 32) * weights <= 2 ** 28",
             "max(layer.padding_w, layer.padding_h, layer.padding_d) < 2 ** 28"]
min_sm    = 90
arch      = "sm_90a"

[tune]
TILE      = {values = [64, 128], default = 128, help = "positions along W of a product; each has two outputs"}
STAGES    = {values = [1, 2, 4], default = 1, help = "input rows staged ahead, as many as fit"}

[derived]
m          = "layer.out_channels // layer.groups"
slabs      = "ceil_div(layer.in_channels // layer.groups, 8)"
reach_w    = "(layer.padding_w + 1) // 2 - (layer.padding_w - (layer.kernel_w - 1) * layer.dilation_w + 1) // 2"
reach_h    = "(layer.kernel_h - 1) * layer.dilation_h // layer.stride_h"
reach_d    = "(layer.kernel_d - 1) * layer.dilation_d // layer.stride_d"
planes     = "layer.kernel_d if layer.dilation_d >= layer.stride_d else reach_d + 1"
weights    = "layer.kernel_d * layer.kernel_h * layer.kernel_w * slabs * 256"
images     = "8 * 512"
unit       = "slabs * 8 * (TILE + reach_w)"
window     = "planes * (reach_h + 1)"
ring       = "min(window + STAGES, (227 * 256 - 192 - weights - images) // unit)"
threads    = "384"
smem_bytes = "4 * (weights + images + ring * unit + 192)"

[plan]
Plan       = "PairedPlan<Layer, Tune>"
reach_w    = "Plan::W::REACH"
reach_h    = "Plan::H::REACH"
reach_d    = "Plan::D::REACH"
images     = "4 * Plan::CONSUMERS * Plan::IMAGE_FLOATS"
smem_bytes = ">= Plan::BYTES"
*/
#include "families/wgmma_strided/products.cuh"
#include "families/wgmma_strided/stage.cuh"

// families/wgmma_strided/README.md has a picture and the words.

// thread -> data: one value of a fragment of weights. Its row of the product is a channel and a residue: rows r and r +
// 8 belong to one channel, so a thread's sums of two positions are four neighbours of the result.
template <class P, class Layer>
__global__ void __launch_bounds__(256) pack_paired_weights(const float* __restrict__ weight, float* __restrict__ packed) {
  const int index = int(blockIdx.x * 256 + threadIdx.x);
  if (index >= P::VARIETIES * P::WEIGHTS) return;
  const int variety = index / P::WEIGHTS, group = variety / P::CHANNEL_TILES, tile = variety % P::CHANNEL_TILES;
  const int row = index % P::WEIGHTS / P::ROW_FLOATS, in_row = index % P::WEIGHTS % P::ROW_FLOATS;
  int slice = 0;
  while (in_row >= P::slice_at(slice + 1)) ++slice;
  const bool both = P::both(slice);
  const int in_slice = in_row - P::slice_at(slice), values = both ? 4 : 2;
  const int value = in_slice % values, thread = in_slice / values % 128, slab = in_slice / values / 128;
  const int residue = both ? value % 2 : P::W::tap_of(slice, 0) < P::KW ? 0 : 1, half = both ? value / 2 : value;
  const int m = tile * P::CHANNELS + thread / 32 * 8 + thread % 32 / 4, k = slab * 8 + half * 4 + thread % 4;
  float v = 0.0f;
  if (m < P::M && k < P::K) {
    const long long of_tap = row * P::KW + P::W::tap_of(slice, residue);
    v = weight[((1LL * group * P::K + k) * P::M + m) * (P::KD * P::KH * P::KW) + of_tap];
  }
  packed[index] = round_to_tf32(v);
}

// Compared with wgmma_ping_pong:
// - Rows r and r + 8 of a product are the two residues along W of one channel, and its columns are positions. So a
//   thread holds four neighbouring results and a quad 16. A warp stores what it has multiplied, through its own memory,
//   in whole sectors. A warp waits for others only when it needs rows of the input.
// - Weights come from registers. If a tap has only one residue, the zeros beside it take no memory. But an input that
//   is not finite makes NaN of the result beside those that it meets.
// - A block walks down H, so staged rows stay while the next results need them. Residues along D and H have different
//   taps. All result rows of one residue along D belong to one warpgroup, one after the other.
//
// warpgroup -> data: two multiply and store, in turns; one stages. They meet at mbarriers: a unit of the ring is full
// or empty. Their loops: paired_multiply() in products.cuh, paired_stage() in stage.cuh.
// Bytes: an input row once for each plane that it is shifted to, mostly from L2; a result once.
template <class Layer, class Tune>
__global__ void __launch_bounds__(PairedPlan<Layer, Tune>::THREADS, 1) wgmma_strided(PairedArguments a) {
  using P = PairedPlan<Layer, Tune>;
  extern __shared__ __align__(1024) float paired_memory[];
  const unsigned base = shared_address(paired_memory);
  const PairedBarriers barriers(base + 4 * P::BARRIERS_AT, P::RING);
  const int warpgroup = __shfl_sync(~0u, int(threadIdx.x) / 128, 0);
  const int variety = blockIdx.x % P::VARIETIES, group = variety / P::CHANNEL_TILES, tile = variety % P::CHANNEL_TILES;
  const int worker = blockIdx.x / P::VARIETIES, workers = gridDim.x / P::VARIETIES;
  const int first = int(1LL * a.cells * worker / workers), end = int(1LL * a.cells * (worker + 1) / workers);
  if (threadIdx.x == 0) {
    for (int i = 0; i < P::RING; ++i)
      mbarrier_init(barriers.full + 8 * i, 4), mbarrier_init(barriers.empty + 8 * i, 4 * P::CONSUMERS);
    mbarrier_init(barriers.weights_there, 1);
    mbarrier_init_done();
  }
  __syncthreads();
  if (warpgroup >= P::CONSUMERS) {
    give_registers<P::KEPT>();
    paired_stage<P, Layer>(a, paired_memory + P::RING_AT, barriers, group, first, end);
  } else {
    take_registers<P::TAKEN>();
    if (threadIdx.x == 0) {
      mbarrier_arrive_expecting(barriers.weights_there, 4 * P::WEIGHTS);
      const float* const from = a.weights + 1LL * variety * P::WEIGHTS;
      for (int i = 0; i < P::WEIGHTS; i += P::ROW_FLOATS)
        bulk_copy(base + 4 * i, from + i, 4 * P::ROW_FLOATS, barriers.weights_there);
    }
    __syncwarp();
    const int image_at = P::IMAGES_AT + int(threadIdx.x) / 32 * P::IMAGE_FLOATS;
    paired_multiply<P, Layer>(a, paired_memory, base + 4 * P::RING_AT, image_at, barriers, group, tile, first, end, warpgroup);
  }
}

template <class Layer, class Tune>
long long forward_workspace(Layer, Sizes) {
  using P = PairedPlan<Layer, Tune>;
  return 4LL * P::VARIETIES * P::WEIGHTS;
}

template <class Layer, class Tune>
cudaError_t forward(Layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
                    const typename Layer::scalar* bias, typename Layer::scalar* output, void* workspace,
                    cudaStream_t stream) {
  using P = PairedPlan<Layer, Tune>;
  if (sizes.batch == 0) return cudaSuccess;
  PairedArguments a = {input, static_cast<const float*>(workspace), bias, output, sizes};
  a.in_volume = 1LL * sizes.in_d * sizes.in_h * sizes.in_w, a.out_volume = 1LL * sizes.out_d * sizes.out_h * sizes.out_w;
  a.planes = P::D::cells(sizes.out_d), a.rows = P::H::cells(sizes.out_h);
  a.chunks = ceil_div(sizes.out_w, 2 * P::TILE), a.one = 1.0f;
  const long long cells = sizes.batch * a.planes * a.rows * a.chunks;
  if (cells * P::WINDOW * P::CLASSES >= 1LL << 30) return cudaErrorInvalidValue;  // counted in int
  a.cells = int(cells);
  constexpr int WEIGHTS = P::VARIETIES * P::WEIGHTS;
  pack_paired_weights<P, Layer><<<ceil_div(WEIGHTS, 256), 256, 0, stream>>>(weight, static_cast<float*>(workspace));
  cudaError_t error = cudaGetLastError();
  int device = 0, processors = 1;
  if (error == cudaSuccess) error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const auto kernel = wgmma_strided<Layer, Tune>;
  if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, P::BYTES);
  if (error != cudaSuccess) return error;
  const long long most = processors < P::VARIETIES ? 1 : processors / P::VARIETIES, workers = most < cells ? most : cells;
  kernel<<<unsigned(workers * P::VARIETIES), P::THREADS, P::BYTES, stream>>>(a);
  return cudaGetLastError();
}
