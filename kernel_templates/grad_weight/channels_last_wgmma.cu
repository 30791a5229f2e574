/* variant
name      = "channels_last_wgmma"
computes  = ["grad_weight"]
after     = "persistent_packed"
idea      = "In channels_last a position is a row of channels. cp.async copies rows without reordering them, and wgmma sums over rows."
precision = ["fp16", "bf16"]
layer     = ["constant"]
needs     = ["layer.groups == 1", "64 * shifts <= COLUMNS", "layer.kernel_d * layer.kernel_h * layer.kernel_w <= 128",
             "min(far + 1, layer.stride_w) <= 16", "stages >= max(2, TEAMS)",
             "own * wn <= 4",  # with more panels the registers of the copying warps spill
             "max(layer.padding_w, layer.padding_h, layer.padding_d) < 2 ** 28"]
min_sm    = 90
arch      = "sm_90a"
kernel    = "split_rows"

[tune]
COLUMNS   = {values = [128, 192, 256], default = 256, help = "columns (values of gy x shifts) of a warpgroup, at most"}
POSITIONS = {values = [32, 64, 128], default = 64, help = "positions of a stage"}
TEAMS     = {values = [1, 2, 4], default = 2, help = "teams of copying warps; each fills a stage of its own"}
GRID      = {values = [132, 264], default = 132, help = "target number of blocks; the positions are split among them"}
CHANNELS_LAST = {values = [1], default = 1, help = "1: activations are channels_last in memory"}

[derived]
far = "(layer.kernel_w - 1) * layer.dilation_w"
shifts = "far // layer.stride_w + 1"
row_panels = "ceil_div(min(far + 1, layer.stride_w) * layer.out_channels, 64)"
all_panels = "layer.kernel_d * layer.kernel_h * row_panels"
mb = "min(2, ceil_div(layer.in_channels, 64))"
wn = "2 // mb"
most = "max(1, COLUMNS // 64 // shifts)"
own = "ceil_div(all_panels, ceil_div(all_panels, most * wn) * wn)"
window = "ceil_div(POSITIONS + shifts - 1, 8) * 8"
stage = "128 * (mb * POSITIONS + own * wn * window)"
stages = "min(8, (227 * 1024 - 256) // stage)"
smem_bytes = "stages * (stage + 16)"
threads = "512"

[plan]
Plan = "RowSplitPlan<Layer, Tune>"
smem_bytes = "Plan::SHARED_BYTES"
most = "Plan::MOST"
*/
#include "families/channels_last_wgmma/row_split.cuh"
#include "families/persistent_packed/last_bias.cuh"
#include "hardware/early_launch.cuh"
#include "hardware/wgmma_rows.cuh"

// families/channels_last_wgmma/README.md has a picture and the words.

// All products of a stage: 16 positions at a time. Shift q begins q rows further in gy.
template <class Plan, Precision precision, class Scalar>
__device__ __forceinline__ void multiply_row_stage(float (&sum)[Plan::SHIFTS * Plan::PARTS][Plan::N / 2], unsigned x, unsigned gy) {
  constexpr int ROW = 128 >> 4, PART = Plan::N / 64 * Plan::PANEL_BYTES >> 4;
  const unsigned long long x_at = rows_descriptor(x, 0), gy_at = rows_descriptor(gy, Plan::PANEL_BYTES);
#pragma unroll
  for (int position = 0; position < Plan::POSITIONS; position += 16)
    const_loop<0, Plan::SHIFTS * Plan::PARTS>([&](auto number) {
      constexpr int NUMBER = decltype(number)::value, SHIFT = NUMBER / Plan::PARTS;
      wgmma_rows<precision, Scalar, Plan::N>(sum[NUMBER], x_at + position * ROW,
                                             gy_at + (position + SHIFT) * ROW + NUMBER % Plan::PARTS * PART);
    });
}

// All work of the block for warpgroup `own`: one pair (share, tile) after another. If `bias_sums` is not null, grad_bias is summed
// during the products. Of the tiles with the same panels the first one does this.
template <class Layer, class Tune>
__device__ __forceinline__ void multiply_row_works(const PackedSplitWork<RowSplitPlan<Layer, Tune>, Tune>& work, char* memory,
                                                   unsigned full, unsigned empty, int own, float* sums, float* bias_sums) {
  using Plan = RowSplitPlan<Layer, Tune>;
  using Scalar = typename Layer::scalar;
  const int gy_at = Plan::X_STAGE + own / Plan::MB * (Plan::OWN * Plan::PANEL_BYTES);
  const unsigned x = shared_address(memory) + own % Plan::MB * Plan::BLOCK_BYTES, gy = shared_address(memory) + gy_at;
  const bool speaks = Plan::BIAS || threadIdx.x % 32 == 0;
  GatherRing<Plan::STAGES> place;
  RowSplitBias<Plan> bias;
#pragma unroll 1
  for (int number = blockIdx.x; number < work.works(); number += gridDim.x) {
    float* const slot = sums + (1LL * number * Plan::CONSUMERS + own) * Plan::OWN_SUMS;
    const int tile = number % Plan::TILES, first_panel = tile / Plan::M_TILES * Plan::PANELS + own / Plan::MB * Plan::OWN;
    const bool adds = Plan::BIAS && bias_sums && tile % Plan::M_TILES == 0;
    long long left = work.stages_of(number / Plan::TILES);
    bool first = true;
    if constexpr (Plan::BIAS) bias.clear();
#pragma unroll 1
    while (left > 0) {
      const int some = left < Plan::PROMOTE ? int(left) : Plan::PROMOTE;
      left -= some;
      float sum[Plan::SHIFTS * Plan::PARTS][Plan::N / 2];
#pragma unroll
      for (int i = 0; i < Plan::SHIFTS * Plan::PARTS; ++i)
#pragma unroll
        for (float& value : sum[i]) value = 0.0f;
      unsigned before = 0;
#pragma unroll 1
      for (int i = 0; i < some; ++i, place.next()) {
        mbarrier_await(full + 8 * place.stage, place.parity);
        wgmma_fence();
        multiply_row_stage<Plan, Tune::precision, Scalar>(sum, x + place.stage * Plan::STAGE, gy + place.stage * Plan::STAGE);
        rows_commit();
        if constexpr (Plan::BIAS)
          if (adds) bias.template add<Scalar>(memory + gy_at + place.stage * Plan::STAGE, first_panel, own);
        rows_wait<1>();
        if (speaks && i > 0) mbarrier_arrive(before);
        before = empty + 8 * place.stage;
      }
      rows_wait<0>();
#pragma unroll
      for (int i = 0; i < Plan::SHIFTS * Plan::PARTS; ++i) wgmma_own(sum[i]);
      if (speaks) mbarrier_arrive(before);
      leave_row_sums<Plan>(sum, slot, first);
      first = false;
    }
    if constexpr (Plan::BIAS)
      if (adds)
        bias.leave(bias_sums + (1LL * (number / Plan::TILES) * Plan::N_TILES + tile / Plan::M_TILES) * Plan::BIAS_SUMS +
                   own * (4 * Plan::OWN * 64));
  }
}

// What the host decides: the shares, and whether this kernel sums grad_bias, too.
template <class Layer, class Tune>
struct RowSplitHost : PackedSplitWork<RowSplitPlan<Layer, Tune>, Tune> {
  using Plan = RowSplitPlan<Layer, Tune>;
  using PackedSplitWork<Plan, Tune>::grid;
  bool adds_bias = false;

  explicit RowSplitHost(const Sizes& s) : PackedSplitWork<Plan, Tune>(s) {
    adds_bias = Plan::BIAS && this->serves && this->stages > 0 && 1LL * s.out_d + Layer::padding_d <= 1LL * grid.deep.divisor * Layer::stride_d &&
                1LL * s.out_h + Layer::padding_h <= 1LL * grid.high.divisor * Layer::stride_h &&
                1LL * s.out_w + Layer::padding_w <= 1LL * grid.row * Layer::stride_w &&
                (this->each + 1) * (Plan::POSITIONS / 16) < TERMS_PER_SUM;
  }
  long long bias_bytes() const { return adds_bias ? 4LL * this->shares * Plan::N_TILES * Plan::BIAS_SUMS : 0; }
};

// Each block computes one pair (share, tile) after another. Neighbouring blocks have tiles of the same share: the same positions.
// warpgroup -> data: 0 and 1 multiply, 64 channels of x or half of the panels each; 2 and 3 copy. They meet at mbarriers.
// Bytes: x once for each tile of gy, gy once for each tile of x and each row of taps that meets it, mostly from L2.
template <class Layer, class Tune>
__global__ void __launch_bounds__(RowSplitPlan<Layer, Tune>::THREADS, 1)
    split_rows(const PackedSplitWork<RowSplitPlan<Layer, Tune>, Tune> work, const RowSplitTensors<typename Layer::scalar> tensors,
               float* sums, float* bias_sums) {
  using Plan = RowSplitPlan<Layer, Tune>;
  extern __shared__ __align__(1024) char split_rows_memory[];
  const unsigned ring = shared_address(split_rows_memory), full = ring + Plan::BARRIERS_AT, empty = full + 8 * Plan::STAGES;
  const int warpgroup = __shfl_sync(~0u, int(threadIdx.x) / 128, 0);
  let_next_kernel_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < Plan::STAGES; ++i)
      mbarrier_init(full + 8 * i, Plan::ARRIVING * Plan::OF_TEAM), mbarrier_init(empty + 8 * i, Plan::ARRIVING * 4 * Plan::CONSUMERS);
    mbarrier_init_done();
  }
  __syncthreads();
  if (warpgroup < Plan::CONSUMERS) {
    take_registers<192>();
    multiply_row_works<Layer, Tune>(work, split_rows_memory, full, empty, warpgroup, sums, bias_sums);
  } else {
    give_registers<64>();
    if (Plan::CI % 8 == 0 && Plan::CO % 8 == 0 && tensors.wide) copy_row_works<true, Layer>(work, tensors, split_rows_memory, full, empty);
    else copy_row_works<false, Layer>(work, tensors, split_rows_memory, full, empty);
  }
}

template <class Layer, class Tune>
long long grad_weight_workspace(Layer layer, Sizes sizes) {
  const RowSplitHost<Layer, Tune> work(sizes);
  const long long own = work.serves ? work.slots() + work.bias_bytes() : 0, bias = last_bias_workspace(layer, sizes);
  return own > bias ? own : bias;
}

template <class Layer, class Tune>
cudaError_t grad_weight(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                        const typename Layer::scalar* grad_output, typename Layer::scalar* grad_weight_out,
                        typename Layer::scalar* grad_bias, void* workspace, cudaStream_t stream) {
  using Plan = RowSplitPlan<Layer, Tune>;
  const RowSplitHost<Layer, Tune> work(sizes);
  if (!work.serves) return cudaErrorInvalidValue;
  const long long x_units = sizes.batch * sizes.in_d * sizes.in_h * sizes.in_w * (Plan::CI / 8);
  const long long gy_units = sizes.batch * sizes.out_d * sizes.out_h * sizes.out_w * (Plan::CO / 8);
  const int wide = size_t(input) % 16 == 0 && size_t(grad_output) % 16 == 0 && x_units < 1LL << 31 && gy_units < 1LL << 31;
  const RowSplitTensors<typename Layer::scalar> tensors = {input, grad_output, sizes.in_d, sizes.in_h, sizes.in_w,
                                                           sizes.out_d, sizes.out_h, sizes.out_w, wide};
  float* const sums = static_cast<float*>(workspace);
  float* const bias_sums = work.adds_bias && grad_bias ? sums + work.slots() / 4 : nullptr;
  const auto kernel = split_rows<Layer, Tune>;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Plan::SHARED_BYTES);
  if (error != cudaSuccess) return error;
  const int blocks = work.works() < Tune::GRID ? work.works() : Tune::GRID;
  kernel<<<unsigned(blocks), Plan::THREADS, Plan::SHARED_BYTES, stream>>>(work, tensors, sums, bias_sums);
  error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  const float *const all = sums, *const biases = bias_sums;
  const int shares = work.stages > 0 ? work.shares : 0, rows = shares >= 8 ? 8 : shares >= 4 ? 4 : shares >= 2 ? 2 : 1;
  const int last_blocks = Plan::CI * Plan::CO_PARTS + (bias_sums ? Plan::CO : 0);
  error = launch_early(add_row_shares<Layer, Tune>, dim3(unsigned(last_blocks)), 256, 0, stream, all, shares, rows, grad_weight_out,
                       biases, grad_bias);
  if (error != cudaSuccess || bias_sums) return error;
  return last_bias_into(layer, sizes, grad_output, grad_bias, workspace, stream);
}
