/* variant
name      = "strip_wgmma"
computes  = ["grad_weight"]
after     = "packed_wgmma"
idea      = "Copying warps make the strips in shared memory; rows that the next tile needs stay there."
precision = ["tf32"]
layer     = ["constant"]
needs     = [
  "layer.stride_w == grain_w",
  "layer.kernel_w <= 32",
  "layer.kernel_w * layer.dilation_w + layer.padding_w < 2 ** 28",
  "min(layer.in_channels, layer.out_channels) // layer.groups >= 2",
  "halo <= strip",
  "IMAGES == 1 or strip == 8",
  "U < 2 or unit",
  "4 * consumers + copy_warps <= 16",
  "copy_registers >= 56",
  "n // 2 + 26 <= entry",
  "two_stages + raw_bytes <= 224 * 1024",
  "columns >= 8 * layer.kernel_w",
]
min_sm    = 90
arch      = "sm_90a"

[tune]
STRIP     = {values = [0, 8, 16], default = 0, help = "positions of a strip; 8 strips are a tile (0: automatic)"}
CONSUMERS = {values = [0, 1, 2, 3], default = 0, help = "warpgroups that multiply, at most (0: automatic)"}
U_TILES   = {values = [1, 2], default = 1, help = "tiles of 64 channels in a block"}
COLUMNS   = {values = [0, 96, 128, 160, 256], default = 0, help = "taps x channels of a product, at most (0: automatic)"}
U         = {values = [0, 1, 2], default = 0, help = "tensor that is not shifted: 1 input, 2 grad_output (0: automatic)"}
STAGES    = {values = [2, 3, 4], default = 4, help = "tiles in shared memory at once, as many as fit"}
ROLL      = {values = [0, 1], default = 1, help = "1: rows that the next tile also needs stay in shared memory"}
COPY_WARPS = {values = [0, 4, 8], default = 0, help = "warps that copy tiles into shared memory (0: 8 if they fit, else 4)"}
BLOCKS    = {values = [132, 264], default = 132, help = "target number of blocks that share the positions"}
IMAGES    = {values = [1, 2], default = 1, help = "batch elements of a tile: 2 for rows of 32 positions or less"}

[derived]
grain_d = "layer.stride_d if layer.kernel_d == 1 else gcd(layer.stride_d, layer.dilation_d)"
grain_h = "layer.stride_h if layer.kernel_h == 1 else gcd(layer.stride_h, layer.dilation_h)"
grain_w = "layer.stride_w if layer.kernel_w == 1 else gcd(layer.stride_w, layer.dilation_w)"
dilation_h = "ceil_div(layer.dilation_h, grain_h)"
padding_w = "ceil_div(layer.padding_w, grain_w)"
ci = "layer.in_channels // layer.groups"
co = "layer.out_channels // layer.groups"
unit = "layer.stride_d == grain_d and layer.stride_h == grain_h"
halo = "(layer.kernel_w - 1) * layer.dilation_w // grain_w"
strip = "STRIP if STRIP > 0 else 8 if halo <= 8 else 16"
columns = "COLUMNS if COLUMNS > 0 else 200"
eights = "max(1, columns // 8 // layer.kernel_w)"
ci_fit = "ceil_div(ceil_div(ci, 8), eights)"
co_fit = "ceil_div(ceil_div(co, 8), eights)"
ci_uneven = "COLUMNS == 0 and ceil_div(ci, 8) % ci_fit != 0 and ceil_div(ci, 8) % (ci_fit + 1) == 0"
co_uneven = "COLUMNS == 0 and ceil_div(co, 8) % co_fit != 0 and ceil_div(co, 8) % (co_fit + 1) == 0"
ci_parts = "ci_fit + (1 if ci_uneven else 0)"
co_parts = "co_fit + (1 if co_uneven else 0)"
ci_work = "ceil_div(ci, 64) * co_parts * ceil_div(co, 8 * co_parts)"
co_work = "ceil_div(co, 64) * ci_parts * ceil_div(ci, 8 * ci_parts)"
rolls = "ROLL == 1 and layer.stride_h == grain_h"
pairing = "rolls and dilation_h == 1 and layer.kernel_h > 1"
ci_products = "ci_work * (layer.kernel_h + 1 if pairing and ci <= 32 else 2 * layer.kernel_h)"
co_products = "co_work * (layer.kernel_h + 1 if pairing and co <= 32 else 2 * layer.kernel_h)"
u_is_gy = "unit and (U == 2 if U > 0 else 5 * co_products < 4 * ci_products)"
cu = "co if u_is_gy else ci"
cv = "ci if u_is_gy else co"
v_parts = "ci_parts if u_is_gy else co_parts"
v_channels = "8 * ceil_div(cv, 8 * v_parts)"
n = "layer.kernel_w * v_channels"
low = "padding_w - halo if u_is_gy else 0 - padding_w"
reach = "halo + low % 4 if halo + low % 4 <= strip else halo"
u_tiles = "min(U_TILES, ceil_div(cu, 64))"
taps_h = "layer.kernel_h if rolls else 1"
pairs = "1 if pairing and cu <= 32 else 0"
slabs_of_2 = "max(1, 2 // u_tiles) * max(1, 384 // n)"
slabs_of_3 = "max(1, 3 // u_tiles) * max(1, (224 if u_tiles == 1 else 384) // n)"
two = "ceil_div(taps_h, max(1, slabs_of_2 - pairs)) < ceil_div(taps_h, max(1, slabs_of_3 - pairs))"
wide = "max(1, (CONSUMERS if CONSUMERS > 0 else 2 if two else 3) // u_tiles)"
most_slabs = "wide * max(1, (112 if u_tiles * wide > 2 else 192) * 2 // n)"
pair = "2 if pairs == 1 and most_slabs > 2 else 1"
u_eights = "min(8, ceil_div(cu, 8))"
u_chunk = "32 * strip * (32 + 8 * u_eights if pair == 2 else 8 * u_eights)"
groups = "layer.kernel_d * (layer.kernel_h // taps_h) * v_parts"
rows_h = "ceil_div(taps_h, ceil_div(taps_h, max(1, most_slabs - (pair - 1))))"
ring = "rows_h + pair - 1"
block_groups = "1 if rows_h < taps_h else ceil_div(groups, ceil_div(groups, max(1, most_slabs // ring)))"
slabs = "ceil_div(block_groups * ring, wide)"
behind = "(rows_h - 1) * (dilation_h if rolls else 1)"
v_row = "32 * block_groups * (strip + reach) * v_channels"
two_stages = "2 * u_tiles * u_chunk + ceil_div(2 * pair + behind, pair) * pair * v_row"
units = "(strip // 8) * (u_tiles * pair * u_eights + block_groups * pair * v_channels // 8)"
raw_pitch = "IMAGES * ceil_div(reach, 4) * 4 + (64 if IMAGES == 1 and ceil_div(reach, 4) % 2 == 1 else 68)"
consumers = "u_tiles * ceil_div(block_groups * ring, slabs)"
sums = "min(240, 8 * ceil_div(slabs * n // 2 + 32, 8))"
entry_8 = "65536 // (128 * consumers + 256) // 8 * 8"
left_8 = "(entry_8 * (4 * consumers + 8) - 4 * consumers * max(entry_8, sums)) // 64 * 8"
eight = "consumers <= 2 and left_8 >= 56 and n // 2 + 26 <= entry_8 and two_stages + ceil_div(units, 8) * 256 * raw_pitch <= 224 * 1024"
copy_warps = "COPY_WARPS if COPY_WARPS > 0 else 8 if eight else 4"
raw_bytes = "copy_warps * ceil_div(units, copy_warps) * 32 * raw_pitch"
threads = "128 * consumers + 32 * copy_warps"
entry = "min(248, 65536 // threads // 8 * 8)"
own_registers = "max(entry, sums)"
copy_registers = "(entry * (4 * consumers + copy_warps) - 4 * consumers * own_registers) // copy_warps // 8 * 8"
smem_bytes = "232448"

[plan]
Shape = "StripWgmmaShape<typename Grains<Layer>::Own, Tune>"
grain_d = "Grains<Layer>::D"
grain_h = "Grains<Layer>::H"
grain_w = "Grains<Layer>::W"
dilation_h = "Grains<Layer>::Own::dilation_h"
padding_w = "Grains<Layer>::Own::padding_w"
Plan = "typename Shape::Plan"
Units = "typename Shape::Units"
Registers = "typename Shape::Registers"
columns = "Plan::Choices::MOST_N"
eights = ""
ci_fit = ""
co_fit = ""
ci_uneven = ""
co_uneven = ""
ci_parts = "Plan::parts_of(Plan::CI)"
co_parts = "Plan::parts_of(Plan::CO)"
ci_work = "Plan::work(Plan::CI, Plan::CO) / 8"
co_work = "Plan::work(Plan::CO, Plan::CI) / 8"
pairing = "Plan::Choices::pairs(0)"
ci_products = "Plan::Choices::products(Plan::work(Plan::CI, Plan::CO), Plan::CI) / 8"
co_products = "Plan::Choices::products(Plan::work(Plan::CO, Plan::CI), Plan::CO) / 8"
low = "Plan::EXACT_LOW"
slabs_of_2 = "Plan::most_slabs(2)"
slabs_of_3 = "Plan::most_slabs(3)"
two = "Plan::cuts_of_h(2) < Plan::cuts_of_h(3)"
two_stages = "Plan::bytes(2)"
units = "Units::ALL"
raw_pitch = "Units::PITCH"
sums = ">= Registers::SUMS"
entry_8 = "RollingRegisters<Plan, 8>::ENTRY"
left_8 = "RollingRegisters<Plan, 8>::LEFT"
eight = "Units::EIGHT"
copy_warps = "Units::WARPS"
raw_bytes = "Units::BYTES"
threads = "Registers::THREADS"
entry = "Registers::ENTRY"
own_registers = "Registers::OWN"
copy_registers = "Registers::LEFT"
smem_bytes = ">= Shape::SHARED_BYTES"
*/
#include "hardware/mbarrier.cuh"
#include "families/strip_wgmma/rolling_plan.cuh"
#include "families/strip_wgmma/products.cuh"
#include "families/strip_wgmma/rolling_reduce.cuh"
#include "families/strip_wgmma/bias.cuh"
#include "families/strip_wgmma/stage.cuh"
#include "contract/grains.cuh"
#include "contract/weight_launch.cuh"

// families/strip_wgmma/README.md has a picture and the words.

// The products of one warpgroup over all tiles of its share. At `barriers` lie the `full` barriers of the stages, then
// as many `empty` ones. u and v describe block 0 of U's first stage and of V's first row. first_slab is the first of
// this warpgroup's SLABS slabs in the block.
template <class Plan, Precision precision, int SLABS>
__device__ __forceinline__ void multiply_rolling_share(unsigned long long u, unsigned long long v, unsigned barriers,
                                                       RollingSteps<Plan> steps, int first_slab, float4* slot) {
  constexpr int N = Plan::N, STAGES = Plan::STAGES;
  float sum[SLABS][N / 2];  // the first product of a series does not read it
  bool first = true;
  const auto promote = [&] {  // this thread alone reads and writes these elements
#pragma unroll
    for (int s = 0; s < SLABS; ++s)
#pragma unroll
      for (int i = 0; i < N / 8; ++i) {
        float4* const to = slot + 128 * (s * (N / 8) + i);
        const float4 own = make_float4(sum[s][4 * i], sum[s][4 * i + 1], sum[s][4 * i + 2], sum[s][4 * i + 3]);
        if (first)
          *to = own;
        else
          add_in_memory(to, own);
      }
    first = false;
  };
  const auto release = [&](int stage) {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barriers + 8 * (STAGES + stage));
  };
  int stage = 0, parity = 0, since = 0, held = -1, v_row = 0;
  const auto to_next = [&] {
    steps.advance();
    if ((v_row += Plan::PAIR) == Plan::V_ROWS) v_row = 0;
    if (++stage == STAGES) {
      stage = 0;
      parity ^= 1;
    }
  };
#pragma unroll 1
  while (steps.left > 0) {
    if constexpr (Plan::WARM_UP > 0) {
      if (steps.warm > 0) {  // a column begins: its first rows of V
        wgmma_wait<0>();
        if (held >= 0) release(held);
        held = -1;
#pragma unroll 1
        for (; steps.warm > 0; to_next()) {
          mbarrier_wait(barriers + 8 * stage, parity);
          release(stage);
        }
      }
    }
    mbarrier_wait(barriers + 8 * stage, parity);
    products_see_writes();
    wgmma_fence();
    const unsigned long long u_at = u + stage * (Plan::U_STAGE >> 4);
    unsigned long long v_at[SLABS];
#pragma unroll
    for (int s = 0; s < SLABS; ++s) {
      const int slab = first_slab + s;
      int row = v_row + slab % Plan::RING * Plan::STEP - Plan::BEHIND;
      if (row < 0) row += Plan::V_ROWS;
      v_at[s] = v + row * (Plan::V_ROW >> 4) + slab / Plan::RING * (Plan::V_CHUNK >> 4);
    }
#pragma unroll
    for (int j = 0; j < Plan::STRIP; ++j)
#pragma unroll
      for (int s = 0; s < SLABS; ++s)
        wgmma<precision, float, N>(sum[s], u_at + (j * Plan::U_BLOCK >> 4),
                                   v_at[s] + (Plan::place(j + Plan::EXTRA) * Plan::V_BLOCK >> 4), j == 0 ? since : 1);
    wgmma_commit();
    wgmma_wait<1>();
    if (held >= 0) release(held);
    held = stage;
    if (++since == Plan::PROMOTE) {
      wgmma_wait<0>();
      release(held);
      held = -1;
      since = 0;
      promote();
    }
    to_next();
  }
  wgmma_wait<0>();
  if (since > 0) {
    promote();
  } else if (first) {
#pragma unroll 1
    for (int i = 0; i < SLABS * N / 8; ++i) slot[128 * i] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
}

template <class Layer, class Tune>
struct StripWgmmaShape {
  using Units = StripUnits<Layer, Tune>;
  using Plan = RollingPlan<Layer, Tune, Units::BYTES>;
  using Registers = RollingRegisters<Plan, Units::WARPS>;
  static constexpr int THREADS = Registers::THREADS;
  using Bias = StripBias<Layer, Tune>;
  static constexpr int SHARED_BYTES = Plan::SHARED_BYTES + Units::BYTES + Bias::BYTES;
  static_assert(Registers::SUFFICE, "the warps that copy need 56 registers");
  static_assert(Plan::STAGES >= 2, "two stages of this config do not fit into shared memory");
};

// Compared with packed_wgmma, which reads and writes both tensors once more to bring them into strips: here some warps
// make the strips in shared memory. They copy rows unchanged, one tile ahead, into a ring of their own, and
// write them from there as strips. A block walks along h, and rows of V that the next tile meets again stay in place
// (rolling_plan.cuh). So a row is read, rounded and written once for all taps along h.
//
// thread -> data: warpgroup (w, u) owns 64 channels of U and SLABS slabs of N columns. Each warp behind these
// warpgroups stages eight channels at a time.
// Warps that stage gy also add up grad_bias, if it is wanted (bias.cuh).
// `full` of a stage means that all copying warps have stored their part, `empty` that all products are done.
// The loops: multiply_rolling_share() above, stage_strips_by() in stage.cuh.
template <class Layer, class Tune, int U_WIDTH, int V_WIDTH>
__global__ void __launch_bounds__(StripWgmmaShape<Layer, Tune>::THREADS, 1) strip_wgmma(
    Sizes sizes, long long tiles, int shares, int row_tiles, const float* __restrict__ u, const float* __restrict__ v,
    float one, float4* partials, float* bias_partials) {
  using Shape = StripWgmmaShape<Layer, Tune>;
  using Plan = typename Shape::Plan;
  using Registers = typename Shape::Registers;
  using Units = StripUnits<Layer, Tune>;
  constexpr int STAGES = Plan::STAGES, SLABS = Plan::SLABS;
  extern __shared__ __align__(128) char strip_shared[];
  char* const raw = strip_shared + Plan::bytes(STAGES) + 2048;
  const unsigned shared = shared_address(strip_shared), barriers = shared_address(raw) + Units::BYTES;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      mbarrier_init(barriers + 8 * stage, Units::WARPS);
      mbarrier_init(barriers + 8 * (STAGES + stage), 4 * Plan::CONSUMERS);
    }
    mbarrier_init_done();
  }
  __syncthreads();

  const int block_tile = blockIdx.x % Plan::TILES, share = blockIdx.x / Plan::TILES;
  int rest = block_tile;
  BlockOperands block;
  block.shift0 = rest % Plan::H_TILES * Plan::ROWS_H;
  rest /= Plan::H_TILES;
  block.v_group0 = rest % Plan::G_TILES * Plan::BLOCK_GROUPS;
  rest /= Plan::G_TILES;
  block.u_part0 = rest % Plan::M_TILES * Plan::U_TILES;
  block.group = rest / Plan::M_TILES;
  const long long begin = tiles * share / shares, end = tiles * (share + 1) / shares;
  const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);

  // The order of the branches matters: in the other order ptxas 13.0 spills the sums.
  if (warpgroup < Plan::CONSUMERS) {
    if constexpr (Registers::TRADES) take_registers<Registers::OWN>();
    const int u_tile = warpgroup % Plan::U_TILES, own = warpgroup / Plan::U_TILES;
    const unsigned long long u_at = matrix_descriptor(shared + u_tile * Plan::U_CHUNK, 128, 256);
    const unsigned long long v_at = matrix_descriptor(shared + STAGES * Plan::U_STAGE, 128, 256);
    float4* const slot = partials + share * Plan::SLOT + threadIdx.x % 128 +
                         ((1LL * block_tile * Plan::WARPGROUPS + own) * Plan::U_TILES + u_tile) * (16 * Plan::N * SLABS);
    const RollingSteps<Plan> steps(sizes, begin, end);
    if (Plan::LAST_SLABS == SLABS || own < Plan::WARPGROUPS - 1)
      multiply_rolling_share<Plan, Tune::precision, SLABS>(u_at, v_at, barriers, steps, own * SLABS, slot);
    else
      multiply_rolling_share<Plan, Tune::precision, Plan::LAST_SLABS>(u_at, v_at, barriers, steps, own * SLABS, slot);
  } else {
    if constexpr (Registers::TRADES) give_registers<Registers::LEFT>();
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0) - 4 * Plan::CONSUMERS;
    typename Shape::Bias bias(reinterpret_cast<float*>(raw + Units::BYTES + 16 * STAGES), warp, block, bias_partials);
    stage_strips_by<Layer, Tune, Plan, U_WIDTH, V_WIDTH>(
        strip_shared, barriers, reinterpret_cast<float*>(raw) + warp * Units::PER_WARP * Units::FLOATS, warp,
        RollingWalk<Plan>(sizes, begin, end, row_tiles), row_tiles, sizes, block, u, v, one, bias);
    bias.store(warp, block, share, bias_partials);
  }
}

// The widest copy of whole vectors of a row whose first column is a multiple of `first`, in elements.
inline int strip_copy_width(const float* tensor, int length, long long first) {
  const auto address = reinterpret_cast<unsigned long long>(tensor);
  return length % 4 == 0 && first % 4 == 0 && address % 16 == 0 ? 4
         : length % 2 == 0 && first % 2 == 0 && address % 8 == 0 ? 2 : 1;
}

template <class Layer, class Tune>
struct StripWgmma {
  using Plan = RollingPlan<Layer, Tune>;
  int row_tiles;
  long long tiles;
  int shares;
  explicit StripWgmma(const Sizes& s)
      : row_tiles(ceil_div(Plan::U_IS_GY ? s.out_w : s.in_w, Plan::LENGTH)),
        tiles(ceil_div(s.batch, 1LL * Plan::IMAGES) * (Plan::U_IS_GY ? s.out_d : s.in_d) *
              ceil_div(Plan::U_IS_GY ? s.out_h : s.in_h, Plan::PAIR) * row_tiles) {
    shares = share_count(Tune::BLOCKS / Plan::TILES, tiles);
  }
};

template <class Layer, class Tune>
long long grad_weight_workspace(Layer layer, Sizes sizes) {
  using Own = typename Grains<Layer>::Own;
  const Sizes& own = gathered_sizes<Layer>(sizes);
  const int shares = StripWgmma<Own, Tune>(own).shares;
  const long long slots = 16LL * shares * RollingPlan<Own, Tune>::SLOT;
  const long long grains = Grains<Layer>::APART ? Grains<Layer>::bytes(own) : 0;
  return or_grad_bias(grains + slots + StripBias<Own, Tune>::partial_bytes(shares), layer, sizes);
}

// If the layer has grains, they are gathered first; then the layer on grains is computed.
template <class Layer, class Tune>
cudaError_t grad_weight(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                        const typename Layer::scalar* grad_output, typename Layer::scalar* grad_weight_out,
                        typename Layer::scalar* grad_bias, void* workspace, cudaStream_t stream) {
  using Grain = Grains<Layer>;
  using Own = typename Grain::Own;
  using Shape = StripWgmmaShape<Own, Tune>;
  using Plan = typename Shape::Plan;
  if (sizes.in_w > 1 << 29 || sizes.out_w > 1 << 29) return cudaErrorInvalidValue;  // columns are counted in int
  const Sizes& own = gathered_sizes<Layer>(sizes);
  const StripWgmma<Own, Tune> plan(own);
  using Bias = typename Shape::Bias;
  float4* partials = static_cast<float4*>(workspace);
  const float* gy = grad_output;
  if constexpr (Grain::APART) {
    float* const grains = static_cast<float*>(workspace);
    partials = reinterpret_cast<float4*>(static_cast<char*>(workspace) + Grain::bytes(own));
    if (const cudaError_t error = launch_gather<Layer>(sizes, own, grad_output, grains, stream)) return error;
    gy = grains;
  }
  float* const bias_partials = reinterpret_cast<float*>(partials + plan.shares * Plan::SLOT);
  const bool with_bias = !Grain::APART && grad_bias && Bias::serves(own, plan.tiles, plan.shares, plan.row_tiles);
  const float* const u = Plan::U_IS_GY ? gy : input;
  const float* const v = Plan::U_IS_GY ? input : gy;
  // Elements copied at once. Half the width for V is frequent (a padded row), so that pair has a kernel of its own.
  const int u_width = strip_copy_width(u, Plan::U_IS_GY ? own.out_w : own.in_w, 0);
  const int v_width = strip_copy_width(v, Plan::U_IS_GY ? own.in_w : own.out_w, Plan::LOW);
  const auto kernel = u_width == 4 && v_width == 4   ? strip_wgmma<Own, Tune, 4, 4>
                      : u_width == 4 && v_width == 2 ? strip_wgmma<Own, Tune, 4, 2>
                      : u_width >= 2 && v_width >= 2 ? strip_wgmma<Own, Tune, 2, 2>
                      : u_width == 4                 ? strip_wgmma<Own, Tune, 4, 1>
                                                     : strip_wgmma<Own, Tune, 1, 1>;
  if (const cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::SHARED_BYTES))
    return error;
  kernel<<<plan.shares * Plan::TILES, Shape::THREADS, Shape::SHARED_BYTES, stream>>>(
      own, plan.tiles, plan.shares, plan.row_tiles, u, v, 1.f, partials,
      with_bias ? bias_partials : nullptr);
  if (const cudaError_t error = cudaGetLastError()) return error;
  rolling_reduce<Own, Tune><<<unsigned(Plan::SLOT / 32), 256, 0, stream>>>(partials, plan.shares, grad_weight_out);
  if (const cudaError_t error = cudaGetLastError()) return error;
  if (with_bias)
    return add_partials<float, float>(bias_partials, Layer::out_channels, 1LL * plan.shares * Bias::ROWS, grad_bias,
                                      stream);
  return grad_bias_into(layer, sizes, grad_output, grad_bias, workspace, stream);
}
