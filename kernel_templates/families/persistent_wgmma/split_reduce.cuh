// The second stage of grad_weight: partial sums, in the order in which warpgroups hold them, become grad_weight. Those of
// grad_bias are added in the same launch, by blocks after the first `weight_blocks`.
#pragma once
#include "contract/slot_sums.cuh"
#include "families/persistent_wgmma/split_bias.cuh"
#include "hardware/early_launch.cuh"

template <class Plan, class Tune>
struct GradSplitReduce {
  static constexpr int SHARES = Tune::GRID / Plan::TILES;
  static constexpr int WANTED = SHARES >= 24 ? 8 : SHARES >= 8 ? 4 : SHARES >= 4 ? 2 : 1;
  static constexpr int FIT = 48 * 1024 / (528 * Plan::K);
  static constexpr int ROWS = WANTED <= FIT ? WANTED : FIT >= 4 ? 4 : FIT >= 2 ? 2 : 1;
  static constexpr int BESIDE = Plan::K * ROWS <= 32 ? Plan::K : 32 / ROWS, THREADS = 32 * ROWS * BESIDE;
  static constexpr long long BLOCKS = 4LL * Plan::TILES * Plan::CONSUMERS * Plan::OCTS_WG;
};

// thread -> data: a block has one oct of a warp, which is 16 channels of x, 8 of gy and all taps of a row. BESIDE warps
// have taps of their own; ROWS share the partial sums of a tap.
// The barrier: the rows' sums lie in shared memory before they are added and stored as runs of neighbours.
template <class Layer, class Tune>
__global__ void __launch_bounds__(GradSplitReduce<GradSplitPlan<Layer, Tune>, Tune>::THREADS)
    grad_split_reduce(const float4* __restrict__ partials, int shares,
                      typename Layer::scalar* __restrict__ grad_weight, int weight_blocks,
                      const float* __restrict__ bias_partials, typename Layer::scalar* __restrict__ grad_bias) {
  using Plan = GradSplitPlan<Layer, Tune>;
  using Reduce = GradSplitReduce<Plan, Tune>;
  constexpr int ROWS = Reduce::ROWS;
  wait_for_kernel_ahead();
  if (int(blockIdx.x) >= weight_blocks) {
    if constexpr (Plan::BIAS)
      reduce_grad_split_bias<Layer, Tune, Reduce::THREADS>(bias_partials, shares, int(blockIdx.x) - weight_blocks,
                                                           grad_bias);
    return;
  }
  __shared__ __align__(16) float left[ROWS][Plan::K][128 + 4];
  // blockIdx.x counts (tile, warpgroup, oct, warp), the last running fastest.
  Digits digit{int(blockIdx.x)};
  const int warp = digit(4), own_oct = digit(Plan::OCTS_WG), own = digit(Plan::CONSUMERS), tile = digit.rest;
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % ROWS;
  const int oct = tile / Plan::M_TILES * Plan::OCTS + own / Plan::MB * Plan::OCTS_WG + own_oct;
  const int ci0 = (tile % Plan::M_TILES * Plan::MB + own % Plan::MB) * 64 + warp * 16;
  if (oct >= Plan::ALL_OCTS || ci0 >= Plan::CI) return;
  const float4* const from = partials + (1LL * tile * Plan::CONSUMERS + own) * (128 * Plan::GROUPS) + warp * 32 + lane;
  for (int k = threadIdx.x / 32 / ROWS; k < Plan::K; k += Reduce::BESIDE) {
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
    const float4* at = from + 128 * Plan::group_of(own_oct, k);
#pragma unroll 8
    for (int share = row; share < shares; share += ROWS) {
      const float4 more = at[share * (Plan::SLOT * Plan::TILES)];
      sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
    }
    *reinterpret_cast<float4*>(&left[row][k][4 * lane]) = sum;
  }
  __syncthreads();
  const int tap_row = oct / Plan::CO8, co0 = oct % Plan::CO8 * 8;
  for (int e = threadIdx.x; e < 128 * Plan::K; e += Reduce::THREADS) {
    const int k = e % Plan::K, co = e / Plan::K % 8, ci = e / Plan::K / 8;
    const int place = (ci % 8 * 4 + co / 2) * 4 + ci / 8 * 2 + co % 2;
    float sum = left[0][k][place];
#pragma unroll
    for (int other = 1; other < ROWS; ++other) sum += left[other][k][place];
    if (ci0 + ci < Plan::CI && co0 + co < Plan::CO)
      grad_weight[((1LL * (ci0 + ci) * Plan::CO + co0 + co) * Plan::TAP_ROWS + tap_row) * Plan::K + k] =
          narrow<typename Layer::scalar>(sum);
  }
}
