/* variant
name      = "depthwise"
computes  = ["grad_weight"]
after     = "register_blocked"
idea      = "A block sums one channel pair: each thread sums all taps over its positions, then the block adds them up."
precision = ["ieee", "fp16", "bf16", "fp64"]
layer     = ["constant"]
needs     = [
  "layer.in_channels == layer.groups",
  "layer.kernel_w <= 64 and layer.stride_w <= 16",
  "least <= 128 * STAGE_KB",
  "layer.kernel_w * layer.dilation_w + layer.padding_w < 2 ** 28",
  "layer.kernel_h * layer.dilation_h + layer.padding_h < 2 ** 28",
  "layer.kernel_d * layer.dilation_d + layer.padding_d < 2 ** 28",
]

[tune]
THREADS  = {values = [64, 128, 256], default = 128, help = "threads of a block"}
TILE     = {values = [256, 512, 1024], default = 512, help = "runs of 4 positions staged at a time, at most"}
SUMS     = {values = [16, 32, 48], default = 32, help = "taps that a block sums; longer kernels are split by tap rows"}
STAGE_KB = {values = [32, 48, 64, 96], default = 48, help = "shared memory for two stages in KB; tiles shrink to fit"}
BLOCKS   = {values = [264, 1056, 2112, 4224], default = 2112, help = "target number of blocks; they divide the positions"}

[derived]
rows       = "(layer.kernel_h - 1) * layer.dilation_h + 1"
width      = "(layer.kernel_w - 1) * layer.dilation_w + 4 * layer.stride_w + 8"
least      = "(4 + layer.kernel_d * rows * width) * (2 if element_bytes == 8 else 1)"
threads    = "THREADS"
smem_bytes = "1024 * STAGE_KB + 64 * max(4, element_bytes) * (THREADS // 32)"

[plan]
Plan       = "DepthwiseWeightPlan<Layer, Tune>"
rows       = ">= Plan::gy_rows(1)"
width      = ">= Plan::Row::width(1)"
least      = ">= (4 + Plan::DEPTHS * Plan::gy_rows(1) * Plan::Row::width(1)) * int(sizeof(typename Plan::Sum)) / 4"
smem_bytes = ">= 2 * Plan::ROOM * int(sizeof(typename Plan::Sum))"
*/
#include "families/depthwise/plan.cuh"
#include "families/register_blocked/window.cuh"
#include "contract/grad_weight.cuh"
#include "contract/reduce.cuh"

// families/depthwise/README.md has a picture and the words.

// Compared with register_blocked: a gradient belongs to one input channel and one output channel. So channels share no
// products, and the time goes to memory. A block walks over tiles of positions of its pair of channels. While one tile
// is multiplied, input and gradients of the next are copied. Gradients are copied as they lie, whatever the stride; all
// tap rows use the same copy.
//
// thread -> data: strips of 4 neighbouring positions, all taps of the block's tap rows.
// The barriers: a tile has arrived before a thread reads it, and is read before the next copy overwrites it. At the end
// lanes add up by shuffles and warps through shared memory; blocks leave partial sums.
template <class Layer, class Tune>
__global__ void __launch_bounds__(Tune::THREADS, 512 / Tune::THREADS) depthwise(
    Sizes sizes, DepthwiseWeightTile t, int shares, int x_vector, int gy_vector, unsigned by_x, unsigned by_gy,
    const typename Layer::scalar* __restrict__ input, const typename Layer::scalar* __restrict__ grad_output,
    typename Layer::accumulator* __restrict__ partials) {
  using P = DepthwiseWeightPlan<Layer, Tune>;
  using Sum = typename P::Sum;
  using Row = typename P::Row;
  constexpr int THREADS = P::THREADS, WARPS = THREADS / 32, TILED = ceil_div(P::SUMS, 16) * 16;
  extern __shared__ float4 depthwise_shared[];
  Sum* const stages = reinterpret_cast<Sum*>(depthwise_shared);

  int rest = int(blockIdx.x % (P::CHANNELS * P::MULTIPLIER * P::TAP_GROUPS));
  const int share = int(blockIdx.x / (P::CHANNELS * P::MULTIPLIER * P::TAP_GROUPS));
  const int tap_group = rest % P::TAP_GROUPS, co = rest / P::TAP_GROUPS, ci = co / P::MULTIPLIER;
  const int kd0 = tap_group / P::PARTS, kh0 = tap_group % P::PARTS * P::TR;
  const long long begin = t.tiles * share / shares, end = t.tiles * (share + 1) / shares;
  const long long in_plane = 1LL * sizes.in_h * sizes.in_w, out_plane = 1LL * sizes.out_h * sizes.out_w;
  const int width = Row::width(t.strips), gy_rows = P::gy_rows(t.rows);

  const auto copy = [&](long long number, Sum* to) {
    const auto at = t.place(number, sizes.in_d);
    Sum* gy_to = to + t.x_elements;
#pragma unroll 1
    for (int b = 0; b < t.batches; ++b) {
      const bool there = at.n + b < sizes.batch;
      const long long n = there ? at.n + b : 0;
      FmaRows x;
      x.h0 = at.h, x.rows = t.rows, x.height = there ? sizes.in_h : 0;
      x.first = 4 * at.strip, x.width = 4 * t.strips, x.length = sizes.in_w, x.by = by_x;
      fma_copy<THREADS, 1, 1>(to + b * t.rows * 4 * t.strips,
                              input + ((n * P::CHANNELS + ci) * sizes.in_d + at.d) * in_plane, x, FmaOneChannel{}, 0,
                              int(threadIdx.x), x_vector);
      FmaRows gy;
      gy.h0 = at.h * Layer::stride_h + kh0 * Layer::dilation_h - Layer::padding_h, gy.rows = gy_rows;
      gy.first = 4 * Row::STEP * at.strip + Row::low(0), gy.width = width, gy.length = sizes.out_w, gy.by = by_gy;
#pragma unroll 1
      for (int depth = 0; depth < P::DEPTHS; ++depth, gy_to += gy_rows * width) {
        const int od = at.d * Layer::stride_d + (kd0 + depth) * Layer::dilation_d - Layer::padding_d;
        const bool met = there && unsigned(od) < unsigned(sizes.out_d);
        gy.height = met ? sizes.out_h : 0;
        fma_copy<THREADS, 1, 1>(
            gy_to, grad_output + ((n * P::CHANNELS * P::MULTIPLIER + co) * sizes.out_d + (met ? od : 0)) * out_plane,
            gy, FmaOneChannel{}, 0, int(threadIdx.x), gy_vector);
      }
    }
  };

  if (begin < end) copy(begin, stages);
  cp_async_commit();
  Sum sum[TILED] = {};
  int stage = 0;
#pragma unroll 1
  for (long long now = begin; now < end; ++now) {
    if (now > begin) __syncthreads();  // the stage that is copied to next has been read
    if (now + 1 < end) copy(now + 1, stages + (stage ^ 1) * t.elements);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    const Sum* const x = stages + stage * t.elements;
    const Sum* const gy = x + t.x_elements;
    stage ^= 1;
#pragma unroll 1
    for (int j = threadIdx.x; j < t.batches * t.rows * t.strips; j += THREADS) {
      const int row = fma_divided(j, t.by_strips), s = j - row * t.strips;
      const int b = fma_divided(row, t.by_rows), r = row - b * t.rows;
      Sum own[4];
      fma_load(own, x + row * 4 * t.strips + 4 * s);
      const Sum* const slice = gy + (b * P::DEPTHS * gy_rows + r * Layer::stride_h) * width + 4 * Row::STEP * s;
      const_loop<0, P::TR>([&](auto which) {
        constexpr int R = decltype(which)::value, DEPTH = R / P::HEIGHTS, HEIGHT = R % P::HEIGHTS;
        const Sum* source[1] = {slice + (DEPTH * gy_rows + HEIGHT * Layer::dilation_h) * width};
        fma_taps<Row, 1, Sum, 32>(source, 0, [&](auto tap, auto at, const auto& v) {
          constexpr int K = decltype(tap)::value, AT = decltype(at)::value;
#pragma unroll
          for (int step = 0; step < 4; ++step) sum[R * P::KW + K] += own[step] * v[0][AT + step * Row::STEP];
        });
      });
    }
  }
  __syncthreads();  // no thread reads a stage any more: the warps' sums take its memory

  Sum* const of_warp = stages;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const_loop<0, TILED / 16>([&](auto which) {
    constexpr int FIRST = decltype(which)::value * 16;
    Sum value[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) value[i] = sum[FIRST + i];
    const Sum total = warp_sums(value, lane);
    if (lane % 2 == 0) of_warp[warp * TILED + FIRST + lane / 2] = total;
  });
  __syncthreads();
  for (int i = threadIdx.x; i < P::SUMS; i += THREADS) {
    const int tap_row = kd0 * P::KH + kh0 + i / P::KW;
    if (kh0 + i / P::KW >= P::KH && !P::ALL) continue;
    Sum total = of_warp[i];
    for (int other = 1; other < WARPS; ++other) total += of_warp[other * TILED + i];
    partials[(1LL * share * P::CHANNELS * P::MULTIPLIER + co) * (P::KD * P::KH * P::KW) + tap_row * P::KW + i % P::KW] =
        total;
  }
}

// Shares of the tiles: so many that no sum is too long, and about BLOCKS blocks run. The number depends on the problem
// alone.
template <class Layer, class Tune>
Split shares_of(const Layer& layer, const DepthwiseWeightTile& t) {
  using P = DepthwiseWeightPlan<Layer, Tune>;
  const long long needed = ceil_div(t.tiles * (4LL * P::TILE / P::THREADS), TERMS_PER_SUM);
  long long count = ceil_div(Tune::BLOCKS, P::CHANNELS * P::MULTIPLIER * P::TAP_GROUPS);
  if (count < needed) count = needed;
  if (count > t.tiles) count = t.tiles;
  const long long room = (1LL << 24) / weight_count(layer);
  if (count > room) count = room;
  return {count < 1 ? 1 : count, 1};
}

template <class Layer, class Tune>
long long grad_weight_workspace(Layer layer, Sizes sizes) {
  using P = DepthwiseWeightPlan<Layer, Tune>;
  return partials_workspace(layer, sizes, shares_of<Layer, Tune>(layer, depthwise_weight_tile<P>(sizes)));
}

template <class Layer, class Tune>
cudaError_t grad_weight(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                        const typename Layer::scalar* grad_output, typename Layer::scalar* grad_weight_out,
                        typename Layer::scalar* grad_bias, void* workspace, cudaStream_t stream) {
  using P = DepthwiseWeightPlan<Layer, Tune>;
  using Sum = typename P::Sum;
  if (sizes.in_w > 1 << 29 || sizes.out_w > 1 << 29) return cudaErrorInvalidValue;  // columns are counted in int
  const DepthwiseWeightTile t = depthwise_weight_tile<P>(sizes);
  const Split split = shares_of<Layer, Tune>(layer, t);
  const int x_vector = fma_copy_width<typename P::Scalar>(input, sizes.in_w);
  const int gy_vector = fma_copy_width<typename P::Scalar>(grad_output, sizes.out_w);
  const int reduced = ceil_div(P::SUMS, 16) * 16 * (P::THREADS / 32);
  const int bytes = int(sizeof(Sum)) * (2 * t.elements > reduced ? 2 * t.elements : reduced);
  const auto kernel = depthwise<Layer, Tune>;
  if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
    return error;
  const long long blocks = split.count * P::CHANNELS * P::MULTIPLIER * P::TAP_GROUPS;
  kernel<<<unsigned(blocks), P::THREADS, bytes, stream>>>(
      sizes, t, int(split.count), x_vector, gy_vector, fma_divisor(4 * t.strips / x_vector),
      fma_divisor(P::Row::width(t.strips) / gy_vector), input, grad_output, static_cast<Sum*>(workspace));
  return finish_grad_weight(layer, sizes, split, grad_output, grad_weight_out, grad_bias, workspace, stream);
}
