// grad_bias in grad_weight of persistent_wgmma: the warps that stage gy also add it up, before it is rounded.
#pragma once
#include "families/persistent_wgmma/split_plan.cuh"

// Every element of gy counts once. Along W the cores of the strips do not overlap. A row of gy that several tap rows
// meet counts for the last position that meets it (GradSplitTables::meets). Each copying thread adds up the items
// that it stages; these sums lie in the workspace as [share][tile of gy][item].
template <class Layer, class Tune>
struct GradSplitBias {
  using Plan = GradSplitPlan<Layer, Tune>;
  static constexpr int OF_CHANNEL = Plan::CHUNKS * Plan::VECTORS, ITEMS = Plan::OCTS * 8 * OF_CHANNEL;
  static constexpr bool HERE = Plan::BIAS;

  static bool reaches(int in, int out, int kernel, int stride, int padding) {
    return in > 0 && out - 1 <= 1LL * (in - 1) * stride - padding + kernel - 1;
  }
  static long long bytes(const GradSplitWork<Plan, Tune>& work) {
    return HERE ? 4LL * work.shares * Plan::N_TILES * ITEMS : 0;
  }
  // True if all of gy is staged and a thread's sums are short enough.
  static bool serves(const Sizes& s, const GradSplitWork<Plan, Tune>& work) {
    return HERE && reaches(s.in_d, s.out_d, Layer::kernel_d, Layer::stride_d, Layer::padding_d) &&
           reaches(s.in_h, s.out_h, Layer::kernel_h, Layer::stride_h, Layer::padding_h) && s.in_w > 0 && s.batch > 0 &&
           s.out_w <= 1LL * work.strips.in_w * Plan::CORE + Plan::HEAD - Plan::PADDING &&
           work.stages / work.shares * 4 * Plan::PER < TERMS_PER_SUM;
  }
};

// A block has one channel; its threads share the partial sums. The barrier: warp 0 adds up the sums of all warps.
template <class Layer, class Tune, int THREADS>
__device__ __forceinline__ void reduce_grad_split_bias(const float* __restrict__ partials, int shares, int co,
                                                       typename Layer::scalar* __restrict__ grad_bias) {
  using Plan = GradSplitPlan<Layer, Tune>;
  using Bias = GradSplitBias<Layer, Tune>;
  __shared__ float of_warp[THREADS / 32];
  const int terms = shares * Plan::TAP_ROWS * Bias::OF_CHANNEL;
  float sum = 0.f;
#pragma unroll 4
  for (int term = threadIdx.x; term < terms; term += THREADS) {
    const int item = term % Bias::OF_CHANNEL, tap_row = term / Bias::OF_CHANNEL % Plan::TAP_ROWS;
    const int share = term / (Bias::OF_CHANNEL * Plan::TAP_ROWS), oct = tap_row * Plan::CO8 + co / 8;
    sum += partials[(1LL * share * Plan::N_TILES + oct / Plan::OCTS) * Bias::ITEMS +
                    (oct % Plan::OCTS * 8 + co % 8) * Bias::OF_CHANNEL + item];
  }
  sum = sum_of_lanes(sum);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  sum = sum_of_lanes(int(threadIdx.x) < THREADS / 32 ? of_warp[threadIdx.x] : 0.f);
  if (threadIdx.x == 0) grad_bias[co] = narrow<typename Layer::scalar>(sum);
}
