/* variant
name      = "depthwise_rows"
computes  = ["grad_weight"]
after     = "register_blocked"
idea      = "A block sums the taps of one channel: each thread multiplies runs of inputs by windows of gy from registers."
precision = ["ieee", "fp16", "bf16", "fp64"]
layer     = ["constant"]
needs     = [
  "layer.in_channels == layer.groups",
  "layer.kernel_w <= 64 and layer.stride_w <= 32",
  "layer.kernel_w * layer.dilation_w + layer.padding_w < 2 ** 28",
  "layer.kernel_h * layer.dilation_h + layer.padding_h < 2 ** 28",
  "layer.kernel_d * layer.dilation_d + layer.padding_d < 2 ** 28",
]

[tune]
THREADS   = {values = [64, 128, 256], default = 128, help = "threads of a block"}
RUN_BYTES = {values = [4, 8, 16, 32], default = 16, help = "bytes of neighbouring inputs that a thread reads; fewer with a long stride"}
ROWS      = {values = [1, 2, 4], default = 4, help = "rows of inputs of a thread, at most"}
RUNS      = {values = [1, 2, 4], default = 1, help = "blocks of inputs that a thread loads at a time, at most"}
SUMS      = {values = [16, 32, 48], default = 32, help = "taps that a block sums; longer kernels are split by tap rows"}
BLOCKS    = {values = [528, 1056, 2112, 4224], default = 1056, help = "target number of blocks that share the positions"}

[derived]
threads    = "THREADS"
smem_bytes = "2048 * max(4, element_bytes) // 4 * (THREADS // 32)"

[plan]
Plan       = "RowsWeightPlan<Layer, Tune>"
smem_bytes = ">= Plan::TILED * int(sizeof(typename Plan::Sum)) * (Plan::THREADS / 32)"
*/
#include "families/depthwise_rows/weight_plan.cuh"
#include "families/depthwise_rows/row.cuh"
#include "contract/reduce.cuh"
#include "contract/weight_launch.cuh"

// families/depthwise_rows/README.md has a picture and the words.

// The inputs of a run: 16 bytes at a time if rows allow it, else one by one.
template <class P>
__device__ __forceinline__ void load_inputs(typename P::Sum (&x)[P::STEPS], const typename P::Scalar* __restrict__ row,
                                            int start, int length, bool wide) {
  if (wide)
    load_run<OwnRun<P::STEPS, P::LOAD_INPUT>, P::LOAD_INPUT>(x, row, start, length);
  else
    load_run<OwnRun<P::STEPS, 1>, 1>(x, row, start, length);
}

// Compared with register_blocked: nothing is staged, so no block waits for its slowest copy. A thread loads its inputs and
// their window of gy by wide loads; neighbours that need the same elements find them in L1. If there are channels
// enough to fill the GPU, a block sums all positions of a channel and there is no second launch.
//
// thread -> data: runs of STEPS_H x STEPS positions, in turns; all taps of the block's group.
// The barrier: the sums of all warps are there before they are added up.
template <class P, int V>
__global__ void __launch_bounds__(P::THREADS, P::RESIDENT / P::THREADS) depthwise_rows(
    Sizes sizes, Sizes runs, long long shares, bool wide, const typename P::Scalar* __restrict__ input,
    const typename P::Scalar* __restrict__ grad_output, typename P::Scalar* __restrict__ grad_weight_out,
    typename P::Sum* __restrict__ partials) {
  using Scalar = typename P::Scalar;
  using Sum = typename P::Sum;
  using L = typename P::OwnLayer;
  using W = typename P::W;
  using H = typename P::H;
  constexpr int WARPS = P::THREADS / 32, GROUPS = P::CHANNELS * P::TAP_GROUPS;
  __shared__ Sum of_warp[WARPS * P::TILED];

  const int group = int(blockIdx.x % GROUPS) % P::TAP_GROUPS, co = int(blockIdx.x % GROUPS) / P::TAP_GROUPS;
  const long long share = blockIdx.x / GROUPS;
  const int kd0 = group / P::PARTS, kh0 = group % P::PARTS * P::TH;
  const long long in_plane = 1LL * sizes.in_h * sizes.in_w, out_plane = 1LL * sizes.out_h * sizes.out_w;
  const long long all = runs.batch * runs.in_d * runs.in_h * runs.in_w, end = all * (share + 1) / shares;
  long long next = all * share / shares + threadIdx.x;
  Position at = position_at(next, runs);
  const Position step = position_at(P::THREADS, runs);

  Sum sum[P::TILED] = {};
#pragma unroll 1
  while (next < end) {
    Sum x[P::RUNS][P::STEPS_H][P::STEPS];
    Position own[P::RUNS];
    bool there[P::RUNS];
#pragma unroll
    for (int u = 0; u < P::RUNS; ++u) {
      own[u] = at, there[u] = next < end;
      const Scalar* const slice =
          input + ((at.n * (P::CHANNELS / P::MULTIPLIER) + co / P::MULTIPLIER) * sizes.in_d + at.d) * in_plane;
#pragma unroll
      for (int r = 0; r < P::STEPS_H; ++r) {
        const int h = at.h * P::STEPS_H + r;
        const bool inside = there[u] && h < sizes.in_h;
        load_inputs<P>(x[u][r], slice + (inside ? 1LL * h * sizes.in_w : 0), at.w * P::STEPS, inside ? sizes.in_w : 0,
                       wide);
      }
      next += P::THREADS;
      advance(at, step, runs);
    }
    const_loop<0, P::TD>([&](auto depth) {
      constexpr int KD = decltype(depth)::value, FIRST = H::first(0, P::TH), LAST = H::last(0, P::TH);
      const_loop<FIRST, LAST + 1>([&](auto which) {
        constexpr int ROW = decltype(which)::value;
        if constexpr (H::meets_between(ROW, ROW + 1, 0, P::TH)) {
#pragma unroll
          for (int u = 0; u < P::RUNS; ++u) {
            const int od = own[u].d * L::stride_d - L::padding_d + (kd0 + KD) * L::dilation_d;
            const int oh = own[u].h * H::SOURCES - L::padding_h + kh0 * L::dilation_h + ROW;
            const bool inside = there[u] && unsigned(od) < unsigned(sizes.out_d) && unsigned(oh) < unsigned(sizes.out_h);
            const Scalar* const row =
                grad_output +
                (inside ? ((own[u].n * P::CHANNELS + co) * sizes.out_d + od) * out_plane + 1LL * oh * sizes.out_w : 0);
            tap_groups<P::KW>([&](auto tap, auto tap_end) {
              constexpr int TAP = decltype(tap)::value, END = decltype(tap_end)::value;
              using Window = RunWindow<W, TAP, END, V>;
              Sum gy[Window::LENGTH];
              load_run<Window, V>(gy, row, own[u].w * W::SOURCES + Window::FIRST, inside ? sizes.out_w : 0);
#pragma unroll
              for (int kh = 0; kh < P::TH; ++kh)
#pragma unroll
                for (int r = 0; r < P::STEPS_H; ++r)
                  if (H::at(r, kh) == ROW) {
#pragma unroll
                    for (int k = TAP; k < END; ++k)
#pragma unroll
                      for (int i = 0; i < P::STEPS; ++i)
                        sum[(KD * P::TH + kh) * P::KW + k] += x[u][r][i] * gy[W::at(i, k) - Window::FIRST];
                  }
            });
          }
        }
      });
    });
  }

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const_loop<0, P::TILED / 16>([&](auto which) {
    constexpr int FIRST = decltype(which)::value * 16;
    Sum value[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) value[i] = sum[FIRST + i];
    const Sum total = warp_sums(value, lane);
    if (lane % 2 == 0) of_warp[warp * P::TILED + FIRST + lane / 2] = total;
  });
  __syncthreads();
  for (int i = threadIdx.x; i < P::SUMS; i += P::THREADS) {
    const int kd = kd0 + i / (P::TH * P::KW), kh = kh0 + i / P::KW % P::TH, k = i % P::KW;
    if (kh >= P::KH) continue;
    Sum total = of_warp[i];
    for (int other = 1; other < WARPS; ++other) total += of_warp[other * P::TILED + i];
    const long long place = ((1LL * co * P::KD + kd) * P::KH + kh) * P::KW + k;
    if (shares == 1)
      grad_weight_out[place] = narrow<Scalar>(total);
    else
      partials[share * (1LL * P::CHANNELS * P::KD * P::KH * P::KW) + place] = total;
  }
}

// One kernel for each width of loads of gy: V is the widest that rows allow.
template <class P, int V>
cudaError_t launch_rows(const Sizes& sizes, long long shares, int vector, bool wide, const typename P::Scalar* input,
                        const typename P::Scalar* grad_output, typename P::Scalar* grad_weight_out,
                        typename P::Sum* partials, cudaStream_t stream) {
  if constexpr (V > 1) {
    if (vector < V)
      return launch_rows<P, V / 2>(sizes, shares, vector, wide, input, grad_output, grad_weight_out, partials, stream);
  }
  depthwise_rows<P, V><<<unsigned(shares * P::CHANNELS * P::TAP_GROUPS), P::THREADS, 0, stream>>>(
      sizes, runs_of<P>(sizes), shares, wide, input, grad_output, grad_weight_out, partials);
  return cudaGetLastError();
}

template <class Layer, class Tune>
long long grad_weight_workspace(Layer layer, Sizes sizes) {
  using P = RowsWeightPlan<Layer, Tune>;
  const long long shares = rows_split<P, Layer, Tune>(layer, sizes).count;
  return or_grad_bias(shares == 1 ? 0 : shares * weight_count(layer) * sizeof(typename P::Sum), layer, sizes);
}

template <class Layer, class Tune>
cudaError_t grad_weight(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                        const typename Layer::scalar* grad_output, typename Layer::scalar* grad_weight_out,
                        typename Layer::scalar* grad_bias, void* workspace, cudaStream_t stream) {
  using P = RowsWeightPlan<Layer, Tune>;
  if (!counts_in_int(sizes)) return cudaErrorInvalidValue;
  const long long shares = rows_split<P, Layer, Tune>(layer, sizes).count;
  const int vector = run_vector_of(grad_output, sizes.out_w, P::LOAD, P::BYTES);
  const bool wide = run_vector_of(input, sizes.in_w, P::LOAD_INPUT, P::BYTES) == P::LOAD_INPUT;
  auto* const partials = static_cast<typename P::Sum*>(workspace);
  if (const cudaError_t error = launch_rows<P, P::LOAD>(sizes, shares, vector, wide, input, grad_output,
                                                        grad_weight_out, partials, stream))
    return error;
  if (shares > 1)
    if (const cudaError_t error = add_partials(partials, weight_count(layer), shares, grad_weight_out, stream))
      return error;
  return grad_bias_into(layer, sizes, grad_output, grad_bias, workspace, stream);
}
