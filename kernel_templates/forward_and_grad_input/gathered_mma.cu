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
#include "families/gathered_mma/steps.cuh"
#include "contract/partial_sums.cuh"
#include "hardware/tf32_parts.cuh"

// The sums of gathered_mma: the products of one step, and the way to the result through an image in shared memory. Where
// positions are few and terms many, blocks sum shares of the reduction, which are added up in a fixed order.

template <class P>
struct GatheredSums {
  float of[P::MA][P::NB][4];

  // Adds `few` to these sums and sets it to 0.
  __device__ __forceinline__ void take(GatheredSums& few) {
#pragma unroll
    for (int i = 0; i < P::MA; ++i)
#pragma unroll
      for (int j = 0; j < P::NB; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) of[i][j][e] += few.of[i][j][e], few.of[i][j][e] = 0.0f;
  }

  // [channel][position], for the threads that store them.
  __device__ __forceinline__ void put(float* image, int warp_m, int warp_n, int lane) const {
    float* const mine = image + (warp_m * P::MA * 16 + lane / 4) * P::PITCH + warp_n * P::NB * 8 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < P::MA; ++i)
#pragma unroll
      for (int j = 0; j < P::NB; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *reinterpret_cast<float2*>(mine + (i * 16 + half * 8) * P::PITCH + j * 8) =
              make_float2(of[i][j][half * 2], of[i][j][half * 2 + 1]);
  }
};

// The warp that multiplies a value of the source also rounds it. A position that a tap does not meet has a 0 here, and
// that 0 is multiplied too: an infinite weight makes results NaN that it does not meet.
template <class P>
__device__ __forceinline__ void multiply_gathered(GatheredSums<P>& sum, const float* stage, int warp_m, int warp_n,
                                                  int lane) {
  const float* const source =
      stage + lane % 4 * P::PAIR_PITCH + (warp_n * P::NB * 8 + lane / 4) * P::POSITION_PITCH;
  const float* const weights = stage + P::SOURCE_FLOATS + warp_m * P::MA * P::PLANES * 128 + lane * 4;
#pragma unroll
  for (int slab = 0; slab < P::CHUNK / 8; ++slab) {
    float high[P::NB][2];
    [[maybe_unused]] float low[P::NB][2];
#pragma unroll
    for (int j = 0; j < P::NB; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float v = source[(slab * 8 + half * 4) * P::PAIR_PITCH + j * 8 * P::POSITION_PITCH];
        if constexpr (P::THREE) {
          high[j][half] = high_tf32(v);
          low[j][half] = low_tf32(v, high[j][half]);
        } else {
          high[j][half] = nearest_tf32(v);
        }
      }
#pragma unroll
    for (int i = 0; i < P::MA; ++i) {
      float A[P::PLANES][4];
#pragma unroll
      for (int p = 0; p < P::PLANES; ++p) {
        const float4 v =
            *reinterpret_cast<const float4*>(weights + ((slab * (P::TILE_M / 16) + i) * P::PLANES + p) * 128);
        A[p][0] = v.x, A[p][1] = v.y, A[p][2] = v.z, A[p][3] = v.w;
      }
#pragma unroll
      for (int j = 0; j < P::NB; ++j) {
        if constexpr (P::THREE) {  // low * low is less than one ulp
          mma_m16n8k8_tf32(sum.of[i][j], A[P::PLANES - 1], high[j], sum.of[i][j]);
          mma_m16n8k8_tf32(sum.of[i][j], A[0], low[j], sum.of[i][j]);
        }
        mma_m16n8k8_tf32(sum.of[i][j], A[0], high[j], sum.of[i][j]);
      }
    }
  }
}

// The results that a thread stores: its positions, and every ROW_STEP-th channel of them.
template <class P>
struct GatheredResults {
  float* of[P::COLUMNS];

  __device__ __forceinline__ void place(const GatheredArguments& a, const GatheredTile<P>& tile) {
#pragma unroll
    for (int c = 0; c < P::COLUMNS; ++c)
      of[c] = gathered_result(a, tile, int(threadIdx.x) % P::TILE_N + c * P::THREADS);
  }

  // `shift` moves all places in the result, to the share's part of the workspace.
  __device__ __forceinline__ void store(const GatheredArguments& a, const float* image, int group, int m_tile,
                                        long long shift = 0) const {
    const int row = P::ROW_STEP > 1 ? threadIdx.x / P::TILE_N : 0, first = m_tile * P::TILE_M;
    const float* const mine = image + int(threadIdx.x) % P::TILE_N;
#pragma unroll
    for (int c = 0; c < P::COLUMNS; ++c) {
      if (of[c] == nullptr) continue;
      float* const to = of[c] + shift;
#pragma unroll 4
      for (int m = row; m < P::TILE_M; m += P::ROW_STEP) {
        if (first + m >= P::M) break;
        const float added = P::BIAS ? __ldg(a.bias + group * P::M + first + m) : 0.0f;
        to[m * a.result_volume] = mine[m * P::PITCH + c * P::THREADS] + added;
      }
    }
  }
};

// As many shares as fill a large GPU once; fewer if shares would be too short, or if their sums would exceed 2^24
// (64 MiB). The number depends on the problem alone, so every GPU adds in the same order. `results` counts the whole
// launch.
template <class P>
long long gathered_shares(const Sizes& sizes, long long results) {
  constexpr long long BLOCKS = 264, SHORTEST = 8;
  if (!P::ALONG || results == 0) return 1;
  const long long positions = sizes.batch * sizes.in_d * sizes.in_h * sizes.in_w;
  const long long blocks = ceil_div(positions, P::TILE_N) * P::M_TILES * P::GROUPS;
  long long shares = BLOCKS / blocks;
  if (shares > P::MOST_STEPS / SHORTEST) shares = P::MOST_STEPS / SHORTEST;
  if (shares > (1LL << 24) / results) shares = (1LL << 24) / results;
  return shares > 1 ? shares : 1;
}

template <class P>
long long gathered_results(const Sizes& sizes) {
  return sizes.batch * P::GROUPS * P::M * sizes.in_d * sizes.in_h * sizes.in_w;
}

// thread -> data: one result. No thread synchronises.
template <class Sum>
__global__ void __launch_bounds__(256) add_few_shares(const Sum* __restrict__ partials, long long results, int shares,
                                                      Sum* __restrict__ result) {
  for (long long i = 256LL * blockIdx.x + threadIdx.x; i < results; i += 256LL * gridDim.x) {
    Sum sum = partials[i];
#pragma unroll 8
    for (int share = 1; share < shares; ++share) sum += partials[share * results + i];
    result[i] = sum;
  }
}

// Partial sums lie as [shares][results]. add_partials has eight threads for each result, which is faster with many
// shares.
template <class Sum>
cudaError_t add_shares(const Sum* partials, long long results, long long shares, Sum* result, cudaStream_t stream) {
  if (shares >= 16) return add_partials(partials, results, shares, result, stream);
  const unsigned blocks = grid_blocks(ceil_div(results, 256));
  add_few_shares<Sum><<<blocks, 256, 0, stream>>>(partials, results, int(shares), result);
  return cudaGetLastError();
}

// families/gathered_mma/README.md has a picture and the words.

// The steps of a block. All threads meet once a step: after the barrier its copies have arrived, and the buffer of the step
// before is free. fill(i, buffer) starts the copies of step i, STAGES - 1 steps ahead.
template <class P, class Fill>
__device__ __forceinline__ void gathered_products(GatheredSums<P>& sum, float* stages, int count, int warp_m, int warp_n,
                                                  int lane, const Fill& fill) {
  [[maybe_unused]] GatheredSums<P> few = {};  // summed by the tensor cores
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

// Compared with implicit_gemm_mma: it stages no strip of the source with a halo. Each step of
// the reduction gathers what a tile of positions meets at one tap (or, with few channels, at some taps). So shared
// memory does not depend on the layer, and every layer fits. It costs a copy of 4 bytes for each position, tap and
// channel; most copies hit L1 or L2.
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
    // Computed again: the loop has few registers.
    results.place(a, GatheredTile<P>(a, block + computed_anew(0)));
  }
  cp_async_wait<0>();
  __syncthreads();

  sum.put(gathered_shared, warp_m, warp_n, lane);
  __syncthreads();
  results.store(a, gathered_shared, tile.group, tile.m_tile);
}

// grad_input with a long stride along W. Here neighbouring lanes copy neighbouring taps of one position, which are
// neighbours in grad_output. In gathered_mma they copy one tap of neighbouring positions, which lie a stride apart,
// each in its own sector. A step is CHUNK floats of every position: a run of taps of one channel, or the end of one
// channel and the start of the next.
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
  const GatheredTile<P> again(a, of_share + computed_anew(0));  // the loop has few registers
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

// `aligned`: rows of the source begin at multiples of 16 bytes.
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
