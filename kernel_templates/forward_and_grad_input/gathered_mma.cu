/* variant
name      = "gathered_mma"
computes  = ["forward", "grad_input"]
after     = "implicit_gemm_mma"
idea      = "Each step gathers the values of a tile for one tap or a run of taps; it stages no halo, so every layer fits."
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
STAGES = {values = [0, 2, 3, 4, 6], default = 0, help = "steps whose copies are in flight or in use (0: automatic)"}
WARPS  = {values = [4, 8], default = 8, help = "warps of a block"}

[derived]
forward     = "direction == 'forward'"
m           = "(layer.out_channels if forward else layer.in_channels) // layer.groups"
k           = "(layer.in_channels if forward else layer.out_channels) // layer.groups"
three       = "precision == 'tf32x3'"
planes      = "2 if three else 1"
step_d      = "1 if not forward or layer.dilation_d % layer.stride_d == 0 else max(2, ceil_div(layer.stride_d, layer.dilation_d))"
step_h      = "1 if not forward or layer.dilation_h % layer.stride_h == 0 else max(2, ceil_div(layer.stride_h, layer.dilation_h))"
step_w      = "1 if not forward or layer.dilation_w % layer.stride_w == 0 else max(2, ceil_div(layer.stride_w, layer.dilation_w))"
taps        = "ceil_div(layer.kernel_d, step_d) * ceil_div(layer.kernel_h, step_h) * ceil_div(layer.kernel_w, step_w)"
many_terms  = "taps * k > (128 if three else 4096)"
along       = "not forward and layer.stride_w >= 4 and layer.dilation_w == 1 and layer.kernel_w >= 8"
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
Plan       = "GatheredPlan<true, Layer, Tune>"
step_d     = "Plan::D::STEP_AT_LEAST"
step_h     = "Plan::H::STEP_AT_LEAST"
step_w     = "Plan::W::STEP_AT_LEAST"
taps       = "Plan::D::TAPS_BOUND * Plan::H::TAPS_BOUND * Plan::W::TAPS_BOUND"
many_terms = "Plan::LONG"
sets       = "1 + Plan::LONG"
chunk      = "Plan::MOST"
source     = ">= Plan::SOURCE_FLOATS"
table      = ">= Plan::TABLE_FLOATS"
smem_bytes = ">= Plan::SHARED_BYTES"

[grad_input.plan]
Plan       = "GatheredPlan<false, Layer, Tune>"
*/
#include "contract/computed_anew.cuh"
#include "families/gathered_mma/sums.cuh"

// families/gathered_mma/README.md has a picture and the words.

// The steps of a block. All threads meet once a step: after the barrier its copies have arrived, and the buffer of the step
// before is free. fill(i, buffer) starts the copies of step i, STAGES - 1 steps ahead.
template <class P, class Fill>
__device__ __forceinline__ void gathered_products(GatheredSums<P>& sum, float* stages, int count, int warp_m, int warp_n,
                                                  int lane, const Fill& fill) {
  [[maybe_unused]] GatheredSums<P> few = {};  // what the tensor cores hold
  [[maybe_unused]] int since = 0;             // steps in it
  int stage = 0, filled = P::STAGES - 1;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    cp_async_wait<P::STAGES - 2>();
    __syncthreads();
    const int next = i + P::STAGES - 1;
    if (next < count) fill(next, stages + filled * P::STAGE_FLOATS);
    cp_async_commit();
    filled = filled + 1 == P::STAGES ? 0 : filled + 1;
    const float* const from = stages + stage * P::STAGE_FLOATS;
    if constexpr (P::LONG) {
      multiply_gathered<P>(few, from, warp_m, warp_n, lane);
      if (++since == P::STEPS_KEPT) sum.take(few), since = 0;
    } else {
      multiply_gathered<P>(sum, from, warp_m, warp_n, lane);
    }
    stage = stage + 1 == P::STAGES ? 0 : stage + 1;
  }
  if constexpr (P::LONG) sum.take(few);
}

// Compared with implicit_gemm_mma: no strip of the source is staged that must reach as far as the taps do. Each step of
// the reduction gathers what a tile of positions meets at one tap (or, with few channels, at some taps). So shared
// memory does not depend on the layer, and every layer fits. It costs a copy of 4 bytes for each position, tap and
// channel; L1 and L2 answer most of them.
//
// forward: outputs that agree modulo the stride along each axis share their taps; each such class is a problem of stride
// 1. A block has outputs of one class and walks over its taps alone. A class without taps is zero, or the bias.
// grad_input: all inputs share all taps. Neighbouring inputs meet every stride-th element of grad_output.
//
// thread -> data: a block has TILE_M channels x TILE_N positions of one class, numbered over batch, D, H and W. A warp
// has all or half of the channels x a share of the positions. For the copies a thread keeps its positions.
// gathered_products() describes the barrier of a step; the list of rows that is filled next is free then, too. At the end
// all threads meet around the image of the result.
// Bytes: a tap that no position of the tile meets is left out. Weights are read from L2 once for each tile of
// positions. A warp stores 32 neighbouring positions of a channel at a time.
template <class P>
__global__ void __launch_bounds__(P::THREADS, P::BLOCKS) gathered_mma(GatheredArguments a) {
  extern __shared__ __align__(16) float gathered_shared[];
  const long long block = flat_block();
  if (block >= a.blocks) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_m = warp % P::WARPS_M, warp_n = warp / P::WARPS_M;
  const GatheredTile<P> tile(a, block);
  GatheredColumn columns[P::COLUMNS];
  GatheredResults<P> results;
#pragma unroll
  for (int c = 0; c < P::COLUMNS; ++c)
    columns[c].template place<P>(a, tile, int(threadIdx.x) % P::TILE_N + c * P::THREADS);
  if constexpr (!P::LONG) results.place(a, tile);
  const float* const weights = tile.weights(a);
  GatheredRow* const rows = reinterpret_cast<GatheredRow*>(gathered_shared + P::STAGES * P::STAGE_FLOATS);

  GatheredSteps<P> ahead(a, tile);
  const int count = ahead.count;
#pragma unroll 1
  for (int i = 0; i < P::STAGES - 1; ++i) {
    if constexpr (P::MIXED) {
      ahead.list(0, rows + i % 2 * P::CHUNK);
      __syncthreads();
    }
    if (i < count) ahead.copy(columns, weights, gathered_shared + i * P::STAGE_FLOATS, rows + i % 2 * P::CHUNK);
    cp_async_commit();
  }
  if constexpr (P::MIXED) ahead.list(0, rows + (P::STAGES - 1) % 2 * P::CHUNK);

  GatheredSums<P> sum = {};
  gathered_products<P>(sum, gathered_shared, count, warp_m, warp_n, lane, [&](int next, float* stage) {
    ahead.copy(columns, weights, stage, rows + next % 2 * P::CHUNK);
    if constexpr (P::MIXED) ahead.list(0, rows + (next + 1) % 2 * P::CHUNK);
  });
  if constexpr (P::LONG) {
    // Worked out again: registers are short in the loop.
    results.place(a, GatheredTile<P>(a, block + computed_anew(0)));
  }
  cp_async_wait<0>();
  __syncthreads();

  sum.put(gathered_shared, warp_m, warp_n, lane);
  __syncthreads();
  results.store(a, gathered_shared, tile.group, tile.m_tile);
}

// grad_input with a long stride along W. Compared with gathered_mma: neighbouring lanes copy neighbouring taps of one position, which lie side by
// side in grad_output. There they copy one tap of neighbouring positions, which lie a stride apart, each in a sector of
// its own. A step is CHUNK floats of every position: a run of taps of one channel, or the end of one channel and the
// start of the next.
//
// thread -> data: a block has TILE_M channels x TILE_N positions and one share of the reduction. For the copies a
// thread keeps its place in the step.
// All threads meet once the positions are listed, once a step, and at the end around the image of the result.
// Bytes: sectors of grad_output are read whole, 16 bytes at a time where WIDTH is 4.
template <class P, int WIDTH>
__global__ void __launch_bounds__(P::THREADS, P::BLOCKS) gathered_along(GatheredArguments a) {
  extern __shared__ __align__(16) float gathered_shared[];
  const long long block = flat_block();
  if (block >= a.blocks * a.shares) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_m = warp % P::WARPS_M, warp_n = warp / P::WARPS_M;
  const int share = int(block / a.blocks);
  const long long of_share = block - share * a.blocks;
  GatheredColumn* const columns = reinterpret_cast<GatheredColumn*>(gathered_shared + P::STAGES * P::STAGE_FLOATS);
  static_assert(sizeof(GatheredColumn) <= 24, "room for positions");
  const GatheredTile<P> tile(a, of_share);
  for (int n = threadIdx.x; n < P::TILE_N; n += P::THREADS) columns[n].template place<P>(a, tile, n);
  __syncthreads();

  const float* const weights = tile.weights(a);
  AlongSteps<P, WIDTH> ahead(tile, share, a.shares);
  const int count = ahead.count;
#pragma unroll 1
  for (int i = 0; i < P::STAGES - 1; ++i) {
    if (i < count) ahead.copy(a, columns, weights, gathered_shared + i * P::STAGE_FLOATS);
    cp_async_commit();
  }

  GatheredSums<P> sum = {};
  gathered_products<P>(sum, gathered_shared, count, warp_m, warp_n, lane,
                       [&](int, float* stage) { ahead.copy(a, columns, weights, stage); });
  cp_async_wait<0>();
  __syncthreads();

  sum.put(gathered_shared, warp_m, warp_n, lane);
  __syncthreads();
  const GatheredTile<P> again(a, of_share + computed_anew(0));  // registers are short in the loop
  GatheredResults<P> results;
  results.place(a, again);
  results.store(a, gathered_shared, again.group, again.m_tile, share * (a.positions * P::GROUPS * P::M));
}

// Bytes of the packed weights, and behind them the sums of the shares.
template <class P>
long long gathered_workspace(const Sizes& sizes) {
  const long long results = gathered_results<P>(sizes), shares = gathered_shares<P>(sizes, results);
  return 4 * (P::PACKED_FLOATS + (shares > 1 ? shares * results : 0));
}

// `aligned`: rows of the source begin at 16 bytes.
template <class P>
auto gathered_kernel(bool aligned) -> void (*)(GatheredArguments) {
  if constexpr (!P::ALONG) return gathered_mma<P>;
  else if constexpr (!P::QUADS) return gathered_along<P, 1>;
  else return aligned ? gathered_along<P, 4> : gathered_along<P, 1>;
}

template <class P>
cudaError_t launch_gathered_blocks(void (*kernel)(GatheredArguments), const GatheredArguments& a, long long blocks,
                                   cudaStream_t stream) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, P::SHARED_BYTES);
  if (error != cudaSuccess) return error;
  kernel<<<flat_grid(blocks), P::THREADS, P::SHARED_BYTES, stream>>>(a);
  return cudaGetLastError();
}

// `bias` is not read by grad_input, nor if the layer has none.
template <class P>
cudaError_t launch_gathered(const Sizes& sizes, const float* source, const float* weight, const float* bias,
                            float* result, void* workspace, cudaStream_t stream) {
  if (sizes.batch == 0) return cudaSuccess;
  float* const packed = static_cast<float*>(workspace);
  if (const cudaError_t error = launch_gathered_pack<P>(weight, packed, stream)) return error;
  const long long results = gathered_results<P>(sizes), shares = gathered_shares<P>(sizes, results);
  float* const partials = packed + P::PACKED_FLOATS;
  GatheredArguments a = gathered_arguments<P>(sizes, source, packed, bias, shares > 1 ? partials : result);
  a.shares = int(shares);
  const auto kernel = gathered_kernel<P>(a.source_w % 4 == 0 && reinterpret_cast<size_t>(source) % 16 == 0);
  if (const cudaError_t error = launch_gathered_blocks<P>(kernel, a, a.blocks * shares, stream)) return error;
  return shares > 1 ? add_shares(partials, results, shares, result, stream) : cudaSuccess;
}

#ifdef KW_FORWARD
template <class Layer, class Tune>
long long forward_workspace(Layer, Sizes sizes) {
  return gathered_workspace<GatheredPlan<true, Layer, Tune>>(sizes);
}

template <class Layer, class Tune>
cudaError_t forward(Layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
                    const typename Layer::scalar* bias, typename Layer::scalar* output, void* workspace,
                    cudaStream_t stream) {
  return launch_gathered<GatheredPlan<true, Layer, Tune>>(sizes, input, weight, bias, output, workspace, stream);
}
#else
template <class Layer, class Tune>
long long grad_input_workspace(Layer, Sizes sizes) {
  return gathered_workspace<GatheredPlan<false, Layer, Tune>>(sizes);
}

template <class Layer, class Tune>
cudaError_t grad_input(Layer, Sizes sizes, const typename Layer::scalar* grad_output,
                       const typename Layer::scalar* weight, typename Layer::scalar* grad_input_out, void* workspace,
                       cudaStream_t stream) {
  return launch_gathered<GatheredPlan<false, Layer, Tune>>(sizes, grad_output, weight, nullptr, grad_input_out,
                                                           workspace, stream);
}
#endif
