/* variant
name      = "persistent_wgmma"
computes  = ["grad_weight"]
after     = "strip_wgmma"
idea      = "Any stride: copying warps sort gy by residue, so that all taps of a row are shifts of one stage."
precision = ["tf32", "fp16", "bf16"]
layer     = ["constant"]
needs     = [
  "layer.groups == 1",
  "8 * layer.kernel_w <= COLUMNS",
  "far <= 512",
  "max(layer.stride_d, layer.stride_h) <= 1024",
  "sums <= 160",
  "copy_registers >= 56",
  "2 * stage + (2 * COPY_WARPS * job_bytes if copies else 0) <= room",
  "beyond <= strip * layer.stride_w",
  "rows <= 15",
  "wide_n // parts // 2 + 26 <= entry",
]
min_sm    = 90
arch      = "sm_90a"
kernel    = "grad_split"

[tune]
COLUMNS    = {values = [128, 192, 256], default = 256, help = "columns (taps x channels) of a warpgroup, at most"}
CONSUMERS  = {values = [2, 3], default = 2, help = "warpgroups that multiply, at most"}
COPY_WARPS = {values = [4, 8], default = 8, help = "warps that copy"}
STRIP      = {values = [0, 4, 8], default = 0, help = "positions of a strip (0: 8 or 4, depending on the layer)"}
CHUNKS     = {values = [0, 2, 4], default = 0, help = "16-byte chunks along the sum in a stage (0: 4 if enough stages fit, else 2)"}
STAGES     = {values = [2, 3, 4], default = 4, help = "stages in shared memory, as many as fit"}
AHEAD      = {values = [0, 1, 2, 3], default = 0, help = "jobs of a warp in flight (0: as many as fit; through registers 1 to 3)"}
GRID       = {values = [132, 264], default = 132, help = "target number of blocks that share the positions"}

[derived]
far = "(layer.kernel_w - 1) * layer.dilation_w"
co8 = "ceil_div(layer.out_channels, 8)"
tap_rows = "layer.kernel_d * layer.kernel_h"
short = "layer.in_channels >= 512 and tap_rows > 1 and layer.kernel_w == 2 * layer.stride_w"
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
rows = "1 if co8 % octs == 0 else octs // co8 if octs % co8 == 0 else min(tap_rows, (octs + co8 - 2) // co8 + 1)"
table = "32 + 8 * (1 + rows) * (64 // element_bytes) + 16 * ((rows + 3) // 4)"
of_warp = "2 * table + 24 * (64 // element_bytes)"
room = "227 * 1024 - 256 - COPY_WARPS * of_warp"
beyond = "max(0, far + 1 - layer.stride_w)"
copies = "beyond <= 4 and rows <= 4 and not short if element_bytes == 4 else beyond == 0 and layer.padding_w == 0 and sums > 64"
fits_8 = "4 * (8192 * mb + (8 + far // layer.stride_w) * 128 * layer.stride_w * octs) <= 200 * 1024"
long = "far >= layer.stride_w and not short and (tap_rows * layer.kernel_w <= 16 or not copies and fits_8)"
strip = "STRIP if STRIP > 0 else 8 if long else 4"
blocks = "strip + far // layer.stride_w"
raw = "strip * 1024 * mb + blocks * 128 * layer.stride_w * octs"
overlaps = "layer.kernel_d > layer.stride_d or layer.kernel_h > layer.stride_h"
sums_rows = "layer.has_bias == 1 and layer.dilation_d == 1 and layer.dilation_h == 1 and layer.kernel_d >= layer.stride_d and layer.kernel_h >= layer.stride_h"
head = "layer.padding_w if layer.padding_w <= beyond else layer.padding_w % 4"
extra = "head + max(0, (strip - 1) * layer.stride_w + far + 1 - head - strip * layer.stride_w)"
edge_turns = "ceil_div(octs * 8 * extra, 32 * COPY_WARPS)"
job_bytes = "2048 + (128 if sums_rows and overlaps else 0) + edge_turns * (128 if element_bytes == 4 else 256)"
brought = "5 * COPY_WARPS * job_bytes if copies else 0"
chunks = "CHUNKS if CHUNKS > 0 else 4 if (8 if copies else 12) * raw + 3200 + brought <= room else 2"
x_chunk = "1024 * mb + 16 * max(1, 8 // (strip // 4 * chunks))"
x_block = "chunks * x_chunk + (16 if strip == 8 else 0)"
vectors = "layer.stride_w * strip // 4"
power = "vectors in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]"
lanes = "min(8, vectors) if power else 2"
apart = "16 * max(1, 8 // (lanes * chunks)) if power else 64"
unit = "max(16, apart * min(chunks, 8 // lanes) // max(1, 4 // layer.stride_w)) if power and layer.stride_w <= 4 else 16"
gy_chunk = "128 * layer.stride_w * octs + apart"
gy_block = "chunks * gy_chunk + (0 if chunks * apart // unit % 2 == 1 else unit)"
stage = "strip * x_block + blocks * gy_block"
stages = "min(STAGES, max(2, (room - brought) // stage))"
most_jobs = "(room - stages * stage) // (COPY_WARPS * job_bytes) if copies else 0"
buffers = "min(9, most_jobs)"
smem_bytes = "buffers * COPY_WARPS * job_bytes + stages * stage + COPY_WARPS * of_warp + 16 * stages"
threads = "128 * consumers + 32 * COPY_WARPS"
entry = "min(248, 65536 // threads // 8 * 8)"
own = "max(entry, min(240, (sums + 39) // 8 * 8))"
copy_registers = "(entry * (threads // 32) - own * 4 * consumers) // COPY_WARPS // 8 * 8"
wide_n = "octs_wg * 8 * (layer.stride_w if wide > 0 else 1)"
parts = "2 if wide > 0 and wide_n // 2 + 26 > entry and octs_wg * layer.stride_w % 2 == 0 else 1"

[plan]
Plan = "GradSplitPlan<Layer, GradSplitMain<Layer, Tune>>"
far = "Plan::FAR"
smem_bytes = "Plan::SHARED_BYTES"
overlaps = ""
sums_rows = ""
copy_registers = "Plan::LEFT"
wide_n = "Plan::WIDE > 0 ? Plan::WIDE_N : Plan::NARROW_N"
*/
#include "families/persistent_wgmma/split_products.cuh"
#include "families/persistent_wgmma/split_reduce.cuh"
#include "families/persistent_wgmma/split_stage.cuh"

// All pairs (share, tile) of the block, for warpgroup `own`. At `barriers` lie the `full` barriers of the stages, then
// the `empty` ones.
template <class Layer, class Tune>
__device__ __forceinline__ void multiply_grad_split_works(const GradSplitWork<GradSplitPlan<Layer, Tune>, Tune>& work,
                                                          unsigned shared, unsigned barriers, int own, float4* partials,
                                                          typename Layer::scalar* grad_weight) {
  using Plan = GradSplitPlan<Layer, Tune>;
  using Scalar = typename Layer::scalar;
  constexpr int STAGES = Plan::STAGES, RUN = Plan::K % 4 == 0 ? 4 : Plan::K % 2 == 0 ? 2 : 1;
  const unsigned x = shared + own % Plan::MB * 1024;
  const unsigned gy = shared + Plan::X_STAGE + own / Plan::MB * (Plan::OCTS_WG * 128 * Plan::STRIDE);
  const bool leader = threadIdx.x % 32 == 0;
  const bool runs = reinterpret_cast<unsigned long long>(grad_weight) % (RUN * sizeof(Scalar)) == 0;
  int stage = 0, parity = 0, held = -1;
  GradSplitSums<Plan> sums;
  const auto store = [&](int tile) {
    const int ci0 = (tile % Plan::M_TILES * Plan::MB + own % Plan::MB) * 64;
    const int oct0 = tile / Plan::M_TILES * Plan::OCTS + own / Plan::MB * Plan::OCTS_WG;
    if (runs)
      store_grad_split<Layer, Plan, RUN>(sums, grad_weight, ci0, oct0);
    else
      store_grad_split<Layer, Plan, 1>(sums, grad_weight, ci0, oct0);
  };
#pragma unroll 1
  for (int number = blockIdx.x; number < work.works(); number += gridDim.x) {
    const int tile = number % Plan::TILES, share = number / Plan::TILES;
    long long left = work.stages_of(share);
    float4* const slot = partials + (1LL * number * Plan::CONSUMERS + own) * (128 * Plan::GROUPS) + threadIdx.x % 128;
    bool first = true;
    if (left == 0) {
#pragma unroll 1
      for (int i = 0; i < Plan::GROUPS; ++i) slot[128 * i] = make_float4(0.f, 0.f, 0.f, 0.f);
    }
#pragma unroll 1
    while (left > 0) {
      const int some = left < Plan::PROMOTE ? int(left) : Plan::PROMOTE;
      left -= some;
#pragma unroll 1
      for (int i = 0; i < some; ++i) {
        if (held >= 0 && !mbarrier_ended(barriers + 8 * stage, parity)) {  // copying warps may need the stage before
          wgmma_wait<0>();
          if (leader) mbarrier_arrive(barriers + 8 * (STAGES + held));
          held = -1;
        }
        mbarrier_await(barriers + 8 * stage, parity);
        wgmma_fence();
        multiply_grad_split<Plan, Tune::precision, Scalar>(sums, x + stage * Plan::STAGE, gy + stage * Plan::STAGE, i);
        wgmma_commit();
        wgmma_wait<1>();
        if (leader && held >= 0) mbarrier_arrive(barriers + 8 * (STAGES + held));
        held = stage;
        if (++stage == STAGES) {
          stage = 0;
          parity ^= 1;
        }
      }
      wgmma_wait<0>();
      sums.own();
      if (leader && held >= 0) mbarrier_arrive(barriers + 8 * (STAGES + held));
      held = -1;
      if constexpr (Plan::DIRECT) {
        if (work.direct()) {
          store(tile);
          continue;
        }
      }
      promote_grad_split(sums, slot, first);
      first = false;
    }
  }
}

// Compared with strip_wgmma: any stride, and the sum runs over all positions, so rows of any length fill the stages.
// K, the summed index of a product, counts strips: one position of each. So a tap is a shift by whole chunks, and a
// chunk is made in registers without exchanges between lanes.
//
// thread -> data: warpgroup w has 64 channels of x and OCTS_WG octs of gy, for all taps of a row (split_plan.cuh). The
// warps behind the multiplying warpgroups copy (split_stage.cuh). A block works through (share, tile) after (share,
// tile); blocks side by side have the same positions.
// `full` of a stage means that all copying warps have written their part, `empty` that all products are done.
template <class Layer, class Tune>
__global__ void __launch_bounds__(GradSplitPlan<Layer, Tune>::THREADS, 1) grad_split(
    Sizes sizes, GradSplitWork<GradSplitPlan<Layer, Tune>, Tune> work, GradSplitTensors<Layer, Tune> tensors,
    float4* partials, typename Layer::scalar* grad_weight) {
  using Plan = GradSplitPlan<Layer, Tune>;
  extern __shared__ __align__(128) char grad_split_shared[];
  char* const stages = grad_split_shared + Plan::STAGES_AT;
  const unsigned barriers = shared_address(grad_split_shared) + Plan::BARRIERS_AT;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Plan::STAGES; ++stage) {
      mbarrier_init(barriers + 8 * stage, Plan::COPY_WARPS);
      mbarrier_init(barriers + 8 * (Plan::STAGES + stage), 4 * Plan::CONSUMERS);
    }
    mbarrier_init_done();
  }
  __syncthreads();
  let_next_kernel_start();  // its blocks start when this block ends
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  if (warp < 4 * Plan::CONSUMERS) {
    if constexpr (Plan::TRADES) take_registers<Plan::OWN>();
    multiply_grad_split_works<Layer, Tune>(work, shared_address(stages), barriers, warp / 4, partials, grad_weight);
  } else {
    if constexpr (Plan::TRADES) give_registers<Plan::LEFT>();
    typename GradSplitLoader<Layer, Tune>::Type loader(sizes, tensors, work, grad_split_shared + Plan::TABLES_AT,
                                                       grad_split_shared);
    copy_grad_split(loader, stages, barriers);
  }
}

// Elements of a row that can be loaded together: 4, 2 or 1.
template <class Scalar>
int grad_split_width(const Scalar* tensor, int length) {
  const auto address = reinterpret_cast<unsigned long long>(tensor);
  return length % 4 == 0 && address % (4 * sizeof(Scalar)) == 0   ? 4
         : length % 2 == 0 && address % (2 * sizeof(Scalar)) == 0 ? 2
                                                                  : 1;
}

// Bytes of the partial sums of weights.
template <class Plan, class Tune>
long long grad_split_slots(const GradSplitWork<Plan, Tune>& work) {
  return work.direct() ? 0 : 16 * Plan::SLOT * work.works();
}

// One loader and tile: Tune::ASYNC selects cp.async or registers.
template <class Layer, class Tune>
struct GradSplitLaunch {
  using Plan = GradSplitPlan<Layer, Tune>;
  using Scalar = typename Layer::scalar;

  static double nanoseconds(const Sizes& sizes) {
    const GradSplitWork<Plan, Tune> work(sizes);
    return work.nanoseconds(work.shares);
  }
  static long long workspace(const Sizes& sizes) {
    const GradSplitWork<Plan, Tune> work(sizes);
    return grad_split_slots<Plan>(work) + GradSplitBias<Layer, Tune>::bytes(work);
  }
  static cudaError_t run(const Layer& layer, const Sizes& sizes, const Scalar* input, const Scalar* grad_output,
                         Scalar* grad_weight_out, Scalar* grad_bias, void* workspace, cudaStream_t stream) {
    const GradSplitWork<Plan, Tune> work(sizes);
    float4* const partials = static_cast<float4*>(workspace);
    float* const bias_partials = reinterpret_cast<float*>(static_cast<char*>(workspace) + grad_split_slots<Plan>(work));
    const bool with_bias = grad_bias && GradSplitBias<Layer, Tune>::serves(sizes, work);
    const GradSplitTensors<Layer, Tune> tensors{input, grad_output, grad_split_width(input, sizes.in_w),
                                                grad_split_width(grad_output, sizes.out_w),
                                                with_bias ? bias_partials : nullptr, 1.f};
    const auto kernel = grad_split<Layer, Tune>;
    if (const cudaError_t error =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Plan::SHARED_BYTES))
      return error;
    const int blocks = work.works() < Tune::GRID ? work.works() : Tune::GRID;
    kernel<<<blocks, Plan::THREADS, Plan::SHARED_BYTES, stream>>>(sizes, work, tensors, partials, grad_weight_out);
    if (const cudaError_t error = cudaGetLastError()) return error;
    using Reduce = GradSplitReduce<Plan, Tune>;
    const int weight_blocks = work.direct() ? 0 : int(Reduce::BLOCKS), bias_blocks = with_bias ? Plan::CO : 0;
    if (weight_blocks + bias_blocks > 0) {
      const float4* const sums = partials;
      const float* const bias_sums = bias_partials;
      if (const cudaError_t error = launch_early(grad_split_reduce<Layer, Tune>,
                                                 dim3(unsigned(weight_blocks + bias_blocks)), Reduce::THREADS, 0, stream,
                                                 sums, work.shares, grad_weight_out, weight_blocks, bias_sums, grad_bias))
        return error;
    }
    if (with_bias) return cudaSuccess;
    return grad_bias_into(layer, sizes, grad_output, grad_bias, workspace, stream);
  }
};

// Calls `use` with the launch for these sizes: cp.async if it serves the layer and rows are whole vectors (`whole`); else
// registers, with half of the columns if that is faster because positions are few.
template <class Layer, class Tune, class Use>
auto with_grad_split(const Sizes& sizes, bool whole, const Use& use) {
  using ByRegisters = GradSplitBy<Tune, false>;
  using Plan = GradSplitPlan<Layer, ByRegisters>;
  if constexpr (Plan::COPIES) {
    if (whole) return use(GradSplitLaunch<Layer, GradSplitBy<Tune, true>>());
  } else if constexpr (Tune::COLUMNS > 128 && Plan::K <= 16 && Plan::WIDE > 0 && Plan::TILES > 1 &&
                       2 * Plan::TILES <= Tune::GRID) {
    using Halved = GradSplitLaunch<Layer, GradSplitHalved<ByRegisters>>;
    if (Halved::nanoseconds(sizes) < GradSplitLaunch<Layer, ByRegisters>::nanoseconds(sizes)) return use(Halved());
  }
  return use(GradSplitLaunch<Layer, ByRegisters>());
}

template <class Layer, class Tune>
long long grad_weight_workspace(Layer layer, Sizes sizes) {
  const auto bytes = [&](auto launch) { return launch.workspace(sizes); };
  const long long whole = with_grad_split<Layer, Tune>(sizes, true, bytes);
  const long long other = with_grad_split<Layer, Tune>(sizes, false, bytes);
  return or_grad_bias(whole > other ? whole : other, layer, sizes);
}

template <class Layer, class Tune>
cudaError_t grad_weight(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                        const typename Layer::scalar* grad_output, typename Layer::scalar* grad_weight_out,
                        typename Layer::scalar* grad_bias, void* workspace, cudaStream_t stream) {
  constexpr long long MOST = 1LL << 31;
  // Columns and the places of a channel are counted in int.
  if (sizes.in_w > 1 << 28 || sizes.out_w > 1 << 28 || 1LL * sizes.in_d * sizes.in_h * sizes.in_w >= MOST ||
      1LL * sizes.out_d * sizes.out_h * sizes.out_w >= MOST)
    return cudaErrorInvalidValue;
  constexpr int LEAST = 8 / int(sizeof(typename Layer::scalar));  // pieces of less than 8 bytes are slower
  const bool whole =
      grad_split_width(input, sizes.in_w) >= LEAST && grad_split_width(grad_output, sizes.out_w) >= LEAST;
  return with_grad_split<Layer, Tune>(sizes, whole, [&](auto launch) {
    return launch.run(layer, sizes, input, grad_output, grad_weight_out, grad_bias, workspace, stream);
  });
}
