/* variant
name      = "packed_wgmma"
computes  = ["grad_weight"]
after     = "split_mma"
idea      = "Both tensors are packed into strips; Hopper's tensor cores then take all taps of a row as one operand."
precision = ["tf32", "tf32x3", "fp16", "bf16"]
layer     = ["constant"]
needs     = [
  "layer.stride_w == grain_w",
  "layer.kernel_w <= eights",
  "layer.kernel_w * layer.dilation_w + layer.padding_w < 2 ** 28",
  "min(layer.in_channels, layer.out_channels) // layer.groups >= 2",
  "stage_bytes <= 112 * 1024",
]
min_sm    = 90
arch      = "sm_90a"

[tune]
STRIP     = {values = [4, 5, 6, 8, 9, 12, 16], default = 8, help = "positions of a strip; 8 strips (16-bit: 16) are a tile"}
CONSUMERS = {values = [1, 2, 3], default = 3, help = "warpgroups that multiply, at most"}
U_TILES   = {values = [1, 2], default = 1, help = "tiles of 64 channels in a block"}
STAGES    = {values = [2, 3, 4], default = 4, help = "tiles in shared memory at once, as many as fit"}
BLOCKS    = {values = [132, 264], default = 132, help = "target number of blocks that share the positions"}

[derived]
grain_d = "layer.stride_d if layer.kernel_d == 1 else gcd(layer.stride_d, layer.dilation_d)"
grain_h = "layer.stride_h if layer.kernel_h == 1 else gcd(layer.stride_h, layer.dilation_h)"
grain_w = "layer.stride_w if layer.kernel_w == 1 else gcd(layer.stride_w, layer.dilation_w)"
ci = "layer.in_channels // layer.groups"
co = "layer.out_channels // layer.groups"
unit = "layer.stride_d == grain_d and layer.stride_h == grain_h"
planes = "2 if precision == 'tf32x3' else 1"
eights = "24 if planes == 2 else 32"
taps = "min(layer.kernel_w, eights)"
ci_parts = "ceil_div(ceil_div(ci, 8), eights // taps)"
co_parts = "ceil_div(ceil_div(co, 8), eights // taps)"
ci_work = "ceil_div(ci, 64) * co_parts * ceil_div(co, 8 * co_parts)"
co_work = "ceil_div(co, 64) * ci_parts * ceil_div(ci, 8 * ci_parts)"
u_is_gy = "unit and co_work < ci_work"
cu = "co if u_is_gy else ci"
cv = "ci if u_is_gy else co"
v_parts = "ci_parts if u_is_gy else co_parts"
v_channels = "8 * ceil_div(cv, 8 * v_parts)"
n = "layer.kernel_w * v_channels"
halo = "(layer.kernel_w - 1) * layer.dilation_w // grain_w"
u_tiles = "min(U_TILES, ceil_div(cu, 64))"
wide = "max(1, (min(CONSUMERS, 2) if planes == 2 else CONSUMERS) // u_tiles)"
all_slabs = "layer.kernel_d * layer.kernel_h * v_parts"
most_slabs = "wide * max(1, (96 if planes == 2 else 112 if u_tiles * wide > 2 else 192) * 2 // n)"
block_slabs = "ceil_div(all_slabs, ceil_div(all_slabs, most_slabs))"
slabs = "ceil_div(block_slabs, wide)"
v_chunks = "slabs * ceil_div(block_slabs, slabs)"
stage_bytes = "32 * planes * (u_tiles * STRIP * min(64, 8 * ceil_div(cu, 8)) + v_chunks * (STRIP + halo) * v_channels)"
threads = "128 * u_tiles * ceil_div(block_slabs, slabs)"
smem_bytes = "232448"

[plan]
Plan = "StripPlan<typename Grains<Layer>::Own, Tune>"
grain_d = "Grains<Layer>::D"
grain_h = "Grains<Layer>::H"
grain_w = "Grains<Layer>::W"
eights = "(Plan::SPLIT ? 192 : 256) / 8"
taps = ""
ci_parts = "Plan::parts_of(Plan::CI)"
co_parts = "Plan::parts_of(Plan::CO)"
ci_work = "Plan::work(Plan::CI, Plan::CO) / 8"
co_work = "Plan::work(Plan::CO, Plan::CI) / 8"
most_slabs = "Plan::WIDE * (Plan::MOST_SUMS / (Plan::N / 2) < 1 ? 1 : Plan::MOST_SUMS / (Plan::N / 2))"
v_chunks = "Plan::WARPGROUPS * Plan::SLABS"
stage_bytes = "Plan::STAGE"
smem_bytes = ">= Plan::SHARED_BYTES"
*/
#include "families/packed_wgmma/pack.cuh"
#include "families/strip_wgmma/products.cuh"
#include "families/packed_wgmma/reduce.cuh"
#include "contract/grains.cuh"
#include "contract/weight_launch.cuh"

// families/packed_wgmma/README.md has a picture and the words.

// Issues the bulk copies of all that a stage holds of a tile; `full` counts the bytes. One thread calls it.
template <class Layer, class Tune>
__device__ __forceinline__ void copy_strips(unsigned to, unsigned full, const TileWalk& at, const Sizes& sizes,
                                            int row_tiles, int group, int u_part0, int slab0, long long v_zeros,
                                            const char* packed_u, const char* packed_v) {
  using Plan = StripPlan<Layer, Tune>;
  mbarrier_arrive_expecting(full, Plan::STAGE);
  const long long u_row = (at.n * at.u_d + at.d) * at.u_h + at.h;
#pragma unroll 1
  for (int i = 0; i < Plan::U_TILES; ++i, to += Plan::PLANES * Plan::U_CHUNK) {
    const int part = u_part0 + i < Plan::U_PARTS ? u_part0 + i : 0;  // its sums are not used
    const long long chunk = ((u_row * row_tiles + at.w) * Layer::groups + group) * Plan::U_PARTS + part;
    bulk_copy(to, packed_u + chunk * (Plan::PLANES * Plan::U_CHUNK), Plan::PLANES * Plan::U_CHUNK, full);
  }
  const int v_h = Plan::U_IS_GY ? sizes.in_h : sizes.out_h, v_d = Plan::U_IS_GY ? sizes.in_d : sizes.out_d;
#pragma unroll 1
  for (int i = 0; i < Plan::WARPGROUPS * Plan::SLABS; ++i, to += Plan::PLANES * Plan::V_CHUNK) {
    const int tap_row = (slab0 + i) / Plan::V_PARTS, part = (slab0 + i) % Plan::V_PARTS;
    const long long kd = 1LL * (tap_row / Layer::kernel_h) * Layer::dilation_d - Layer::padding_d;
    const long long kh = 1LL * (tap_row % Layer::kernel_h) * Layer::dilation_h - Layer::padding_h;
    const long long vd = Plan::U_IS_GY ? at.d - kd : 1LL * at.d * Layer::stride_d + kd;
    const long long vh = Plan::U_IS_GY ? at.h - kh : 1LL * at.h * Layer::stride_h + kh;
    const bool there = tap_row < Plan::ROWS && vd >= 0 && vd < v_d && vh >= 0 && vh < v_h;
    const long long v_row = (at.n * v_d + vd) * v_h + vh;
    const long long chunk = there ? ((v_row * row_tiles + at.w) * Layer::groups + group) * Plan::V_PARTS + part
                                  : v_zeros;
    bulk_copy(to, packed_v + chunk * (Plan::PLANES * Plan::V_CHUNK), Plan::PLANES * Plan::V_CHUNK, full);
  }
}

// The products of one warpgroup over all tiles of its share, stage after stage. At `barriers` lie the `full` barriers
// of the stages, 8 bytes each, then as many `empty` ones. u and v describe block 0 of the operands in stage 0. All
// threads call release(stage, parity) once their warp's products of a stage are done.
template <class Plan, Precision precision, class Scalar, class Release>
__device__ __forceinline__ void multiply_strips_of_share(unsigned long long u, unsigned long long v, unsigned barriers,
                                                         long long tiles, float4* slot, const Release& release) {
  constexpr int N = Plan::N, SLABS = Plan::SLABS;
  float sum[SLABS][N / 2];  // the first product of a series does not read it
  [[maybe_unused]] float total[SLABS][N / 2];  // tf32x3: series are short, so they are added up here first
  if constexpr (Plan::SPLIT) {
#pragma unroll
    for (int s = 0; s < SLABS; ++s)
#pragma unroll
      for (int i = 0; i < N / 2; ++i) total[s][i] = 0.f;
  }
  bool first = true;
  const auto take_out = [&] {
#pragma unroll
    for (int s = 0; s < SLABS; ++s) {
      wgmma_own(sum[s]);
#pragma unroll
      for (int i = 0; i < N / 2; ++i) total[s][i] += sum[s][i];
    }
  };
  const auto promote = [&] {  // this thread alone reads and writes these elements
#pragma unroll
    for (int s = 0; s < SLABS; ++s)
#pragma unroll
      for (int i = 0; i < N / 8; ++i) {
        float4* const to = slot + 128 * (s * (N / 8) + i);
        const float* const from = Plan::SPLIT ? total[s] + 4 * i : sum[s] + 4 * i;
        const float4 own = make_float4(from[0], from[1], from[2], from[3]);
        if (first)
          *to = own;
        else
          add_in_memory(to, own);
      }
    first = false;
  };
  int stage = 0, parity = 0, since = 0, held = -1, held_parity = 0;
#pragma unroll 1
  for (long long tile = 0; tile < tiles; ++tile) {
    mbarrier_wait(barriers + 8 * stage, parity);
    wgmma_fence();
    const unsigned long long u_at = u + stage * (Plan::STAGE >> 4), v_at = v + stage * (Plan::STAGE >> 4);
#pragma unroll
    for (int j = 0; j < Plan::STRIP; ++j)
#pragma unroll
      for (int s = 0; s < SLABS; ++s)
#pragma unroll
        for (int term = 0; term < (Plan::SPLIT ? 3 : 1); ++term)  // rest * high, high * rest, high * high
          wgmma<precision, Scalar, N>(
              sum[s], u_at + ((j * Plan::U_BLOCK + (Plan::SPLIT && term == 0 ? Plan::U_CHUNK : 0)) >> 4),
              v_at + ((s * Plan::PLANES * Plan::V_CHUNK + Plan::place(j) * Plan::V_BLOCK +
                       (Plan::SPLIT && term == 1 ? Plan::V_CHUNK : 0)) >> 4),
              j == 0 && term == 0 ? since : 1);
    wgmma_commit();
    wgmma_wait<1>();
    if (held >= 0) release(held, held_parity);
    held = stage;
    held_parity = parity;
    if (++since == Plan::PROMOTE) {
      wgmma_wait<0>();
      release(held, held_parity);
      held = -1;
      since = 0;
      if constexpr (Plan::SPLIT)
        take_out();
      else
        promote();
    }
    if (++stage == Plan::STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
  wgmma_wait<0>();
  if (Plan::SPLIT && since > 0) take_out();
  if (Plan::SPLIT || since > 0) {
    promote();
  } else if (first) {
#pragma unroll 1
    for (int i = 0; i < SLABS * N / 8; ++i) slot[128 * i] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
}

// Compared with split_mma, whose warps read every operand into registers: tensor cores read operands from shared
// memory. One product takes 64 channels x (all taps of a row x channels) x 8 positions (16-bit: 16). pack_strips brings
// the tensors into the layout that this needs, rounded, once. So this kernel has no index arithmetic: a tile is a few
// bulk copies.
//
// thread -> data: warpgroup (w, u) owns 64 channels of U and SLABS slabs of N columns. The first thread also issues
// copies. A block walks over the tiles of its share, h running fastest: neighbouring rows of U meet the same rows of V,
// which are then still in L2. Every 4096 positions it adds its sums to its own slot in the workspace.
// `full` of a stage means that its copies have arrived, `empty` that every warp has finished its products.
// The loop over tiles: multiply_strips_of_share() above.
template <class Layer, class Tune>
__global__ void __launch_bounds__(StripPlan<Layer, Tune>::THREADS, 1) packed_wgmma(
    Sizes sizes, long long tiles, int shares, int row_tiles, long long v_zeros, const char* __restrict__ packed_u,
    const char* __restrict__ packed_v, float4* partials) {
  using Plan = StripPlan<Layer, Tune>;
  constexpr int STAGES = Plan::STAGES, SLABS = Plan::SLABS;
  static_assert(STAGES >= 2, "two stages of this config do not fit into shared memory");
  extern __shared__ __align__(128) char strip_shared[];
  const unsigned shared = shared_address(strip_shared), barriers = shared + STAGES * Plan::STAGE + 2048;
  const auto full = [&](int stage) { return barriers + 8 * stage; };
  const auto empty = [&](int stage) { return barriers + 8 * (STAGES + stage); };
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      mbarrier_init(full(stage), 1);
      mbarrier_init(empty(stage), 4 * Plan::CONSUMERS);
    }
    mbarrier_init_done();
  }
  __syncthreads();

  const int block_tile = blockIdx.x % Plan::TILES, share = blockIdx.x / Plan::TILES;
  const int slab0 = block_tile % Plan::R_TILES * Plan::WARPGROUPS * SLABS;
  const int u_part0 = block_tile / Plan::R_TILES % Plan::M_TILES * Plan::U_TILES;
  const int group = block_tile / Plan::R_TILES / Plan::M_TILES;
  const long long begin = tiles * share / shares, end = tiles * (share + 1) / shares;
  const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0), lane = threadIdx.x % 32;

  // The block's first thread issues copies. It keeps its loop state in shared memory, because sums take all registers.
  __shared__ TileWalk walk;
  const auto copy_next = [&](int stage) {
    TileWalk at = walk;
    copy_strips<Layer, Tune>(shared + stage * Plan::STAGE, full(stage), at, sizes, row_tiles, group, u_part0, slab0,
                             v_zeros, packed_u, packed_v);
    at.advance(row_tiles);
    walk = at;
  };
  if (threadIdx.x == 0) {
    walk = TileWalk(sizes, Plan::U_IS_GY, begin, end, row_tiles);
#pragma unroll 1
    for (int stage = 0; stage < STAGES && walk.left > 0; ++stage) copy_next(stage);
  }

  const int u_tile = warpgroup % Plan::U_TILES, own = warpgroup / Plan::U_TILES;
  const unsigned long long u_first = matrix_descriptor(shared + u_tile * Plan::PLANES * Plan::U_CHUNK, 128, 256);
  const unsigned long long v_first =
      matrix_descriptor(shared + Plan::PLANES * (Plan::U_TILES * Plan::U_CHUNK + own * SLABS * Plan::V_CHUNK), 128, 256);
  float4* const slot = partials + share * Plan::SLOT +
                       (1LL * block_tile * Plan::CONSUMERS + warpgroup) * (16 * Plan::N * SLABS) + threadIdx.x % 128;
  // When every warp has finished a stage, the first thread fills it again.
  const auto release = [&](int stage, int parity) {
    if (lane == 0) mbarrier_arrive(empty(stage));
    if (threadIdx.x == 0 && walk.left > 0) {
      mbarrier_wait(empty(stage), parity);
      copy_next(stage);
    }
    __syncwarp();
  };
  multiply_strips_of_share<Plan, Tune::precision, typename Layer::scalar>(u_first, v_first, barriers, end - begin, slot,
                                                                          release);
}

template <class Layer, class Tune>
struct PackedWgmma {
  using Plan = StripPlan<Layer, Tune>;
  StripSizes<Layer, Tune> packed;
  long long tiles;
  int shares;
  explicit PackedWgmma(const Sizes& sizes) : packed(sizes), tiles(packed.u_rows * packed.row_tiles) {
    shares = share_count(Tune::BLOCKS / Plan::TILES, tiles);
  }
  long long partial_bytes() const { return 16LL * shares * Plan::SLOT; }
};

template <class Layer, class Tune>
long long grad_weight_workspace(Layer layer, Sizes sizes) {
  using Grain = Grains<Layer>;
  const Sizes& own = gathered_sizes<Layer>(sizes);
  const PackedWgmma<typename Grain::Own, Tune> plan(own);
  const long long grains = Grain::APART ? Grain::bytes(own) : 0;
  return or_grad_bias(grains + plan.packed.u_bytes + plan.packed.v_bytes + plan.partial_bytes(), layer, sizes);
}

// If the layer has grains, they are gathered first; then the layer on grains is computed.
template <class Layer, class Tune>
cudaError_t grad_weight(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                        const typename Layer::scalar* grad_output, typename Layer::scalar* grad_weight_out,
                        typename Layer::scalar* grad_bias, void* workspace, cudaStream_t stream) {
  using Grain = Grains<Layer>;
  using Own = typename Grain::Own;
  using Plan = StripPlan<Own, Tune>;
  const Sizes& own = gathered_sizes<Layer>(sizes);
  const PackedWgmma<Own, Tune> plan(own);
  char* packed_u = static_cast<char*>(workspace);
  const typename Layer::scalar* gy = grad_output;
  if constexpr (Grain::APART) {
    auto* const grains = static_cast<typename Layer::scalar*>(workspace);
    packed_u += Grain::bytes(own);
    if (const cudaError_t error = launch_gather<Layer>(sizes, own, grad_output, grains, stream)) return error;
    gy = grains;
  }
  char* const packed_v = packed_u + plan.packed.u_bytes;
  float4* const partials = reinterpret_cast<float4*>(packed_v + plan.packed.v_bytes);
  if (const cudaError_t error =
          pack_operand<Own, Tune, true>(Plan::U_IS_GY ? gy : input, packed_u, own, stream))
    return error;
  if (const cudaError_t error =
          pack_operand<Own, Tune, false>(Plan::U_IS_GY ? input : gy, packed_v, own, stream))
    return error;
  const auto kernel = packed_wgmma<Own, Tune>;
  if (const cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Plan::SHARED_BYTES))
    return error;
  kernel<<<plan.shares * Plan::TILES, Plan::THREADS, Plan::SHARED_BYTES, stream>>>(
      own, plan.tiles, plan.shares, plan.packed.row_tiles, plan.packed.v_bytes / (Plan::PLANES * Plan::V_CHUNK) - 1, packed_u,
      packed_v, partials);
  if (const cudaError_t error = cudaGetLastError()) return error;
  strip_reduce<Own, Tune><<<unsigned(Plan::SLOT / 32), 256, 0, stream>>>(partials, plan.shares, grad_weight_out);
  if (const cudaError_t error = cudaGetLastError()) return error;
  return grad_bias_into(layer, sizes, grad_output, grad_bias, workspace, stream);
}
