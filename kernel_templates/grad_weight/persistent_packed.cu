/* variant
name      = "persistent_packed"
computes  = ["grad_weight"]
after     = "persistent_wgmma"
idea      = "Both tensors are packed once with 8 channels side by side; only copies fill stages; wgmma sums over positions."
precision = ["fp16", "bf16"]
layer     = ["constant"]
needs     = ["layer.groups == 1", "8 * layer.kernel_w <= COLUMNS", "sums <= 160", "far <= 32 * layer.stride_w",
             "stages >= 2", "max(layer.stride_d, layer.stride_h, layer.stride_w) <= 32", "wide_n // parts // 2 + 26 <= entry",
             "sums + 40 <= entry"]  # with fewer registers the sums spill
min_sm    = 90
arch      = "sm_90a"
kernel    = "packed_split"

[tune]
COLUMNS   = {values = [128, 192, 256], default = 256, help = "columns (taps x channels) of a warpgroup, at most"}
CONSUMERS = {values = [2, 3], default = 2, help = "warpgroups that multiply, at most"}
POSITIONS = {values = [32, 64, 128], default = 128, help = "positions of a stage"}
GRID      = {values = [132, 264], default = 132, help = "target number of blocks that share the positions"}
CHANNELS_LAST = {values = [0, 1], default = 0, help = "1: activations are channels_last in memory"}

[derived]
far = "(layer.kernel_w - 1) * layer.dilation_w"
co8 = "ceil_div(layer.out_channels, 8)"
tap_rows = "layer.kernel_d * layer.kernel_h"
wide = "layer.kernel_w // layer.stride_w if layer.dilation_w == 1 else 0"
mb = "min(CONSUMERS, ceil_div(layer.in_channels, 64))"
wn = "CONSUMERS // mb"
consumers = "mb * wn"
fit = "max(1, (COLUMNS if wide > 0 else min(COLUMNS, 192)) // (8 * layer.kernel_w))"
same_row = "ceil_div(co8, ceil_div(co8, fit * wn))"
even = "ceil_div(tap_rows * co8, ceil_div(tap_rows * co8, fit * wn))"
octs_wg = "ceil_div(same_row if co8 % same_row == 0 and same_row % wn == 0 and 4 * same_row >= 3 * even else even, wn)"
octs = "octs_wg * wn"
sums = "4 * octs_wg * layer.kernel_w"
window = "POSITIONS + far // layer.stride_w"
stage = "16 * (8 * mb * POSITIONS + octs * layer.stride_w * window)"
stages = "min(8, (227 * 1024 - 256) // stage)"
smem_bytes = "stages * (stage + 16)"
threads = "128 * consumers + 128"
entry = "min(248, 65536 // threads // 8 * 8)"
wide_n = "octs_wg * 8 * (layer.stride_w if wide > 0 else 1)"
parts = "2 if wide > 0 and wide_n // 2 + 26 > entry and octs_wg * layer.stride_w % 2 == 0 else 1"

[plan]
Plan = "PackedSplitPlan<Layer, Tune>"
far = "Plan::FAR"
smem_bytes = "Plan::SHARED_BYTES"
wide_n = "Plan::WIDE > 0 ? Plan::WIDE_N : Plan::NARROW_N"
*/
#include "families/persistent_packed/last_bias.cuh"
#include "families/persistent_packed/packed_grad_output.cuh"
#include "families/persistent_wgmma/split_products.cuh"
#include "families/persistent_wgmma/split_reduce.cuh"
#include "hardware/wgmma_transposed.cuh"

// families/persistent_packed/README.md has a picture and the words.

// All products of a stage: 16 positions at a time. A tap is a shift of gy's start address.
template <class Plan, Precision precision, class Scalar>
__device__ __forceinline__ void multiply_packed_split(GradSplitSums<Plan>& sums, unsigned x, unsigned gy) {
  constexpr int STRIDE = Plan::STRIDE, ROW = 16 * Plan::WINDOW;
  const unsigned long long x_at = matrix_descriptor(x, 128, 16 * Plan::POSITIONS);
  const unsigned long long wide_at = matrix_descriptor(gy, 128, ROW), narrow_at = matrix_descriptor(gy, 128, STRIDE * ROW);
#pragma unroll
  for (int position = 0; position < Plan::POSITIONS; position += 16) {
    const_loop<0, Plan::WIDE * Plan::PARTS>([&](auto j) {
      constexpr int J = decltype(j)::value / Plan::PARTS, PART = decltype(j)::value % Plan::PARTS;
      wgmma_transposed<precision, Scalar, Plan::PART_N>(sums.wide[decltype(j)::value], x_at + position,
                                                        wide_at + (position + J + PART * (Plan::PART_N / 8) * Plan::WINDOW));
    });
    const_loop<0, Plan::NARROW>([&](auto t) {
      constexpr int T = decltype(t)::value, V = Plan::narrow_at(T);
      wgmma_transposed<precision, Scalar, Plan::NARROW_N>(sums.narrow[T], x_at + position,
                                                          narrow_at + (position + V / STRIDE + V % STRIDE * Plan::WINDOW));
    });
  }
}

template <class Plan>
__device__ __forceinline__ void begin_packed_sums(GradSplitSums<Plan>& sums) {
  const_loop<0, Plan::WIDE * Plan::PARTS>([&](auto j) {
#pragma unroll
    for (float& value : sums.wide[decltype(j)::value]) value = 0.f;
  });
  const_loop<0, Plan::NARROW>([&](auto t) {
#pragma unroll
    for (float& value : sums.narrow[decltype(t)::value]) value = 0.f;
  });
}

// All pairs (share, tile) of the block, for warpgroup `own`.
template <class Layer, class Tune>
__device__ __forceinline__ void multiply_packed_works(const PackedSplitWork<PackedSplitPlan<Layer, Tune>, Tune>& work,
                                                      unsigned shared, unsigned full, unsigned empty, int own,
                                                      float4* partials, typename Layer::scalar* grad_weight) {
  using Plan = PackedSplitPlan<Layer, Tune>;
  using Scalar = typename Layer::scalar;
  constexpr int RUN = Plan::K % 4 == 0 ? 4 : Plan::K % 2 == 0 ? 2 : 1;
  const unsigned x = shared + own % Plan::MB * (8 * 16 * Plan::POSITIONS);
  const unsigned gy = shared + Plan::X_STAGE + own / Plan::MB * (Plan::OCTS_WG * Plan::STRIDE * 16 * Plan::WINDOW);
  const bool leader = threadIdx.x % 32 == 0;
  const bool runs = reinterpret_cast<unsigned long long>(grad_weight) % (RUN * sizeof(Scalar)) == 0;
  int stage = 0, parity = 0, held = -1;
  GradSplitSums<Plan> sums;
#pragma unroll 1
  for (int number = blockIdx.x; number < work.works(); number += gridDim.x) {
    const int tile = number % Plan::TILES;
    long long left = work.stages_of(number / Plan::TILES);
    float4* const slot = partials + (1LL * number * Plan::CONSUMERS + own) * (128 * Plan::GROUPS) + threadIdx.x % 128;
    bool first = true;
#pragma unroll 1
    while (left > 0) {
      const int some = left < Plan::PROMOTE ? int(left) : Plan::PROMOTE;
      left -= some;
      begin_packed_sums(sums);
#pragma unroll 1
      for (int i = 0; i < some; ++i) {
        mbarrier_await(full + 8 * stage, parity);
        wgmma_fence();
        multiply_packed_split<Plan, Tune::precision, Scalar>(sums, x + stage * Plan::STAGE, gy + stage * Plan::STAGE);
        transposed_commit();
        transposed_wait<1>();
        if (leader && held >= 0) mbarrier_arrive(empty + 8 * held);
        held = stage;
        if (++stage == Plan::STAGES) stage = 0, parity ^= 1;
      }
      transposed_wait<0>();
      sums.own();
      if (leader) mbarrier_arrive(empty + 8 * held);
      held = -1;
      if constexpr (Plan::DIRECT) {
        if (work.direct()) {
          const int ci0 = (tile % Plan::M_TILES * Plan::MB + own % Plan::MB) * 64;
          const int oct0 = tile / Plan::M_TILES * Plan::OCTS + own / Plan::MB * Plan::OCTS_WG;
          if (runs) store_grad_split<Layer, Plan, RUN>(sums, grad_weight, ci0, oct0);
          else store_grad_split<Layer, Plan, 1>(sums, grad_weight, ci0, oct0);
          continue;
        }
      }
      promote_grad_split(sums, slot, first);
      first = false;
    }
  }
}

// One warp issues the copies of a stage: each lane rows of both tensors. If a tile has more channels than the layer, the
// last channels are copied again; their products are not stored.
template <class Layer, class Tune>
__device__ __forceinline__ void packed_split_copies(const PackedSplitWork<PackedSplitPlan<Layer, Tune>, Tune>& work,
                                                    const char* x, const char* gy, unsigned shared, unsigned full,
                                                    unsigned empty) {
  using Plan = PackedSplitPlan<Layer, Tune>;
  constexpr int TURNS = ceil_div(Plan::COPIES, 32);
  const PackedGrid& grid = work.grid;
  const int lane = threadIdx.x % 32;
  int stage = 0, parity = 1;
  wait_for_kernel_ahead();
#pragma unroll 1
  for (int number = blockIdx.x; number < work.works(); number += gridDim.x) {
    const int tile = number % Plan::TILES, share = number / Plan::TILES;
    const char* from[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
      const int copy = turn * 32 + lane;
      if (copy < Plan::X_UNITS) {
        const int unit = tile % Plan::M_TILES * Plan::X_UNITS + copy;
        from[turn] = x + 16 * (1LL * (unit < PackedX<Layer, Tune>::UNITS ? unit : PackedX<Layer, Tune>::UNITS - 1) * grid.places);
      } else {
        const int row = copy - Plan::X_UNITS, oct_of_all = tile / Plan::M_TILES * Plan::OCTS + row / Plan::STRIDE;
        const int oct = oct_of_all < Plan::ALL_OCTS ? oct_of_all : Plan::ALL_OCTS - 1, tap_row = oct / Plan::CO8;
        const int d = tap_row / Layer::kernel_h * Layer::dilation_d, h = tap_row % Layer::kernel_h * Layer::dilation_h;
        const long long phase = d % Layer::stride_d * Layer::stride_h + h % Layer::stride_h;
        const long long line = (phase * Plan::CO8 + oct % Plan::CO8) * Plan::STRIDE + row % Plan::STRIDE;
        from[turn] = gy + 16 * (line * grid.places + 1LL * (d / Layer::stride_d) * grid.plane +
                                1LL * (h / Layer::stride_h) * grid.row);
      }
      from[turn] += 16 * (work.first_stage(share) * Plan::POSITIONS + grid.before);
    }
#pragma unroll 1
    for (long long left = work.stages_of(share); left > 0; --left) {
      const unsigned to = shared + stage * Plan::STAGE, there = full + 8 * stage;
      mbarrier_await(empty + 8 * stage, parity);
      if (lane == 0) mbarrier_arrive_expecting(there, Plan::STAGE);
      __syncwarp();
#pragma unroll
      for (int turn = 0; turn < TURNS; ++turn) {
        const int copy = turn * 32 + lane;
        if (copy < Plan::X_UNITS)
          bulk_copy(to + copy * (16 * Plan::POSITIONS), from[turn], 16 * Plan::POSITIONS, there);
        else if (copy < Plan::COPIES)
          bulk_copy(to + Plan::X_STAGE + (copy - Plan::X_UNITS) * (16 * Plan::WINDOW), from[turn], 16 * Plan::WINDOW, there);
        from[turn] += 16 * Plan::POSITIONS;
      }
      if (++stage == Plan::STAGES) stage = 0, parity ^= 1;
    }
  }
}

// Compared with persistent_wgmma: kernels of their own pack both tensors, so no warps stage. 16-bit operands may hold
// channels contiguously; the summed index is the position, so a tap is a shift by whole positions.
template <class Layer, class Tune>
__global__ void __launch_bounds__(PackedSplitPlan<Layer, Tune>::THREADS, 1)
    packed_split(const PackedSplitWork<PackedSplitPlan<Layer, Tune>, Tune> work, const char* __restrict__ x,
                 const char* __restrict__ gy, float4* partials, typename Layer::scalar* grad_weight) {
  using Plan = PackedSplitPlan<Layer, Tune>;
  extern __shared__ __align__(1024) char packed_split_memory[];
  const unsigned base = shared_address(packed_split_memory), full = base + Plan::BARRIERS_AT, empty = full + 8 * Plan::STAGES;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Plan::STAGES; ++i) mbarrier_init(full + 8 * i, 1), mbarrier_init(empty + 8 * i, 4 * Plan::CONSUMERS);
    mbarrier_init_done();
  }
  __syncthreads();
  let_next_kernel_start();  // its blocks start when this block ends
  const int warp = __shfl_sync(~0u, int(threadIdx.x) / 32, 0);
  if (warp < 4 * Plan::CONSUMERS)
    multiply_packed_works<Layer, Tune>(work, base, full, empty, warp / 4, partials, grad_weight);
  else if (warp == 4 * Plan::CONSUMERS)
    packed_split_copies<Layer, Tune>(work, x, gy, base, full, empty);
}

template <class Layer, class Tune>
long long grad_weight_workspace(Layer layer, Sizes sizes) {
  using Plan = PackedSplitPlan<Layer, Tune>;
  const PackedSplitWork<Plan, Tune> work(sizes);
  using Gy = PackedGy<Layer, Tune>;
  const long long own = work.serves ? packed_bytes<PackedX<Layer, Tune>>(work.grid) + packed_bytes<Gy>(work.grid) + work.slots() : 0;
  if constexpr (Tune::CHANNELS_LAST != 0) {
    const long long bias = last_bias_workspace(layer, sizes);
    return own > bias ? own : bias;
  } else {
    return or_grad_bias(work.serves && Layer::has_bias ? own + PackedGradOutput<Gy>::sum_bytes(work.grid) : own, layer, sizes);
  }
}

template <class Layer, class Tune>
cudaError_t grad_weight(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                        const typename Layer::scalar* grad_output, typename Layer::scalar* grad_weight_out,
                        typename Layer::scalar* grad_bias, void* workspace, cudaStream_t stream) {
  using Plan = PackedSplitPlan<Layer, Tune>;
  using X = PackedX<Layer, Tune>;
  using Gy = PackedGy<Layer, Tune>;
  using ReduceTune = PackedSplitTune<Tune>;
  using Reduce = GradSplitReduce<GradSplitPlan<Layer, ReduceTune>, ReduceTune>;
  const PackedSplitWork<Plan, Tune> work(sizes);
  if (!work.serves) return cudaErrorInvalidValue;
  char* const x = static_cast<char*>(workspace);
  char* const gy = x + packed_bytes<X>(work.grid);
  float4* const partials = reinterpret_cast<float4*>(gy + packed_bytes<Gy>(work.grid));
  cudaError_t error = cudaFuncSetAttribute(packed_split<Layer, Tune>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           Plan::SHARED_BYTES);
  if (error == cudaSuccess)
    error = launch_pack_units<X>(true, packed_tensor<X>(input, sizes.in_d, sizes.in_h, sizes.in_w), work.grid, x, stream);
  float* bias_sums = nullptr;
  if (error == cudaSuccess) {
    if constexpr (Tune::CHANNELS_LAST != 0) {
      error = launch_pack_units<Gy>(false, packed_tensor<Gy>(grad_output, sizes.out_d, sizes.out_h, sizes.out_w), work.grid, gy, stream);
    } else {
      if (Layer::has_bias && grad_bias && PackedGradOutput<Gy>::sums_bias(sizes, work.grid))
        bias_sums = reinterpret_cast<float*>(reinterpret_cast<char*>(partials) + work.slots());
      error = PackedGradOutput<Gy>::pack(sizes, grad_output, work.grid, gy, bias_sums, stream);
    }
  }
  if (error != cudaSuccess) return error;
  const int blocks = work.works() < Tune::GRID ? work.works() : Tune::GRID;
  const char *packed_x = x, *packed_gy = gy;
  error = launch_early(packed_split<Layer, Tune>, dim3(unsigned(blocks)), Plan::THREADS, Plan::SHARED_BYTES, stream, work,
                       packed_x, packed_gy, partials, grad_weight_out);
  if (error == cudaSuccess && !work.direct()) {
    const float4* const sums = partials;
    const float* const none = nullptr;
    typename Layer::scalar* const no_bias = nullptr;
    const int weight_blocks = int(Reduce::BLOCKS);
    error = launch_early(grad_split_reduce<Layer, ReduceTune>, dim3(unsigned(weight_blocks)), Reduce::THREADS, 0, stream, sums,
                         work.shares, grad_weight_out, weight_blocks, none, no_bias);
  }
  if (error != cudaSuccess) return error;
  if constexpr (Tune::CHANNELS_LAST != 0) return last_bias_into(layer, sizes, grad_output, grad_bias, workspace, stream);
  else if (bias_sums) return PackedGradOutput<Gy>::add_biases(work.grid, bias_sums, grad_bias, stream);
  else return grad_bias_into(layer, sizes, grad_output, grad_bias, workspace, stream);
}
