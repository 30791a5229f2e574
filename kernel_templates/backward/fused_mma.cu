/* variant
name      = "fused_mma"
computes  = ["grad_input", "grad_weight"]
idea      = "A staged tile of grad_output serves both gradients: some warps sum grad_weight, others grad_input."
precision = ["tf32", "tf32x3", "fp16", "bf16"]
layer     = ["constant"]
needs     = [
  "layer.kernel_w <= 8",
  "(layer.kernel_w - 1) * layer.dilation_w <= 16 * layer.stride_w",
  "layer.kernel_w * layer.dilation_w + layer.padding_w < 2 ** 28",
  "min(ci, co) >= 2",
  "fewest <= most",
  "4 * least_floats <= 1024 * SHARED_KB",
]

[tune]
TILE      = {values = [32, 64, 128, 256], default = 128, help = "positions staged at a time, fewer if they do not fit"}
STAGES    = {values = [2, 3, 4], default = 2, help = "rows of grad_output in shared memory at once, as many as fit"}
SHARED_KB = {values = [110, 160, 224], default = 224, help = "shared memory of a block in KB, at most"}
W_WARPS   = {values = [4, 8, 16], default = 4, help = "warps that sum grad_weight; they split channels first, then positions"}
X_WARPS   = {values = [2, 4, 8], default = 4, help = "target number of warps that sum grad_input"}
X_M_TILES = {values = [1, 2], default = 1, help = "tiles of 16 input channels per warp that sums grad_input"}
X_UNROLL  = {values = [1, 2, 4], default = 1, help = "chunks of 8 output channels per iteration of the loop"}
STAGGER   = {values = [0, 1], default = 0, help = "1: the two groups of warps copy at different times (needs 3 stages)"}
BLOCKS    = {values = [0, 132, 264, 528], default = 0, help = "target number of blocks that share the tiles (0: 132 or 264)"}

[derived]
ci      = "layer.in_channels // layer.groups"
co      = "layer.out_channels // layer.groups"
m       = "ceil_div(ci, 16)"
n       = "ceil_div(co, 8)"
taps    = "layer.kernel_d * layer.kernel_h * layer.kernel_w"
most    = "(18 if precision == 'tf32x3' else 27) // taps"
four    = "4 if n <= 8 // m * 4 and n % 4 == 0 else 99"
three   = "3 if n <= 8 // m * 3 and n % 3 == 0 else four"
fewest  = "1 if n <= 8 // m else 2 if n <= 8 // m * 2 and n % 2 == 0 else three"
halo    = "4 * ceil_div((layer.kernel_w - 1) * layer.dilation_w // layer.stride_w + 4, 4)"
pitch   = "min(layer.kernel_w, layer.stride_w) * (32 + halo) + 4"
least_floats = "128 * taps * n * m + 36 * 64 * ceil_div(m, 2) + 16 * n * pitch"
smem_bytes   = "1024 * SHARED_KB + 16"

[plan]
Plan = "FusedPlan<Layer, Tune>"
m = "Plan::M16"
n = "Plan::N8"
taps = "Plan::ROWS * Plan::KT"
most = "Plan::MOST_FRAGMENTS / (Plan::ROWS * Plan::KT)"
four = ""
three = ""
fewest = ""
halo = ""
pitch = ">= Plan::gy_pitch(32)"
least_floats = ">= Plan::floats(32, 2)"
smem_bytes = ">= Plan::SHARED_BYTES"
*/
#include "families/fused_mma/multiply.cuh"
#include "families/fused_mma/stage.cuh"
#include "families/split_mma/reduce.cuh"
#include "contract/tile_place.cuh"
#include "contract/weight_launch.cuh"

// families/fused_mma/README.md has a picture and the words.

// A step: tap row `row` of a tile of the input.
struct FusedPlace : TilePlace {
  using TilePlace::TilePlace;
  int row = 0;
};

// Compared with split_mma (grad_weight): all tap rows and channels of a group belong to one block. So each element of
// gy that a tile meets is staged once for both gradients, and the input is read once, too. A step is one tap row of a
// tile. The row of gy that it meets lies in shared memory, split into planes by the stride (contract/row_taps.cuh),
// beside the weights, which stay there. Copies run STAGES - 1 steps ahead without registers. Each element is rounded to
// TF32 once, in place, by the thread that copied it.
//
// thread -> data: the first W_WARPS warps hold fragments of grad_weight, (position share, n, m), of all tap rows; they
// sum over positions. The others hold grad_input, MX x 16 channels x XP positions of the tile; they sum over channels
// and taps. A block walks over the tiles of its share. Its partial sums of grad_weight go to its own slot in the
// workspace.
// The barrier: a step has been rounded before a warp multiplies it, and multiplied before the next copy overwrites it.
template <class Layer, class Tune>
__global__ void __launch_bounds__(FusedPlan<Layer, Tune>::THREADS, FusedPlan<Layer, Tune>::RESIDENT) fused_mma(
    Sizes sizes, long long tiles, int shares, int x_width, int gy_width, int store_width,
    const typename Layer::scalar* __restrict__ input, const typename Layer::scalar* __restrict__ weight,
    const typename Layer::scalar* __restrict__ grad_output, typename Layer::scalar* __restrict__ grad_input_out,
    float4* partials) {
  using Plan = FusedPlan<Layer, Tune>;
  using Group = typename Plan::Group;
  using Scalar = typename Layer::scalar;
  constexpr int TILE = Plan::TILE, STAGES = Plan::STAGES, ROWS = Plan::ROWS, THREADS = Plan::THREADS;
  constexpr int X_PITCH = Plan::X_PITCH, GY_PITCH = Plan::GY_PITCH;
  constexpr bool ROUNDS = Tune::precision == Precision::tf32;
  extern __shared__ float4 fused_mma_shared[];
  float* const x_ring = reinterpret_cast<float*>(fused_mma_shared) + Plan::WEIGHTS;
  float* const gy_ring = x_ring + Plan::X_SLOTS * Plan::X_SLOT;
  const unsigned barrier = shared_address(fused_mma_shared) + Plan::BARRIER;
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, THREADS);
    mbarrier_init_done();
  }
  __syncthreads();

  const int group = blockIdx.x % Layer::groups, share = blockIdx.x / Layer::groups;
  const long long begin = tiles * share / shares, end = tiles * (share + 1) / shares;
  const long long in_plane = 1LL * sizes.in_d * sizes.in_h * sizes.in_w;
  const long long out_plane = 1LL * sizes.out_d * sizes.out_h * sizes.out_w;
  const auto advance = [&](FusedPlace& at) {
    if (++at.row < ROWS) return;
    at.row = 0;
    at.next(sizes, TILE);
  };
  FusedPlace here(begin, sizes, TILE);  // the step being multiplied

  const auto copy_step = [&](const FusedPlace& at, int stage, int x_slot) {
    if (at.row == 0) {
      RowSource<Scalar> x;
      x.row = input + (at.n * Layer::in_channels + group * Plan::CI) * in_plane +
              (1LL * at.d * sizes.in_h + at.h) * sizes.in_w;
      x.plane = in_plane, x.channels = Plan::CI, x.first = at.w, x.length = sizes.in_w;
      stage_rows<THREADS, Plan::M, Plan::CI, TILE, X_PITCH, 1>(x_ring + x_slot * Plan::X_SLOT, x, x_width);
    }
    const int kd = at.row / Layer::kernel_h, kh = at.row % Layer::kernel_h;
    const long long od = 1LL * at.d * Layer::stride_d + 1LL * kd * Layer::dilation_d - Layer::padding_d;
    const long long oh = 1LL * at.h * Layer::stride_h + 1LL * kh * Layer::dilation_h - Layer::padding_h;
    const bool there = od >= 0 && od < sizes.out_d && oh >= 0 && oh < sizes.out_h;
    RowSource<Scalar> gy;
    gy.row = grad_output;
    if (there)
      gy.row += (at.n * Layer::out_channels + group * Plan::CO) * out_plane + (od * sizes.out_h + oh) * sizes.out_w;
    gy.plane = out_plane, gy.channels = there ? Plan::CO : 0, gy.length = sizes.out_w;
    float* const to = gy_ring + stage * Plan::STAGE;
    const_loop<0, Group::PLANES>([&](auto plane) {
      constexpr int P = decltype(plane)::value;
      gy.first = (at.w + Group::low(P)) * Layer::stride_w + Group::residue(P);
      float* const own = to + Plan::plane_at(P, TILE);
      stage_rows<THREADS, Plan::N, Plan::CO, TILE, GY_PITCH, Layer::stride_w>(own, gy, gy_width);
      gy.first += TILE * Layer::stride_w;
      if constexpr (Group::halo(P) > 0)
        stage_rows<THREADS, Plan::N, Plan::CO, Group::halo(P), GY_PITCH, Layer::stride_w>(own + TILE, gy, gy_width);
    });
  };
  const auto round_step = [&](int row, int stage, int x_slot) {
    if constexpr (ROUNDS) {
      if (row == 0) round_staged<THREADS, Plan::M, TILE, X_PITCH, 1>(x_ring + x_slot * Plan::X_SLOT, x_width);
      const_loop<0, Group::PLANES>([&](auto plane) {
        constexpr int P = decltype(plane)::value;
        float* const own = gy_ring + stage * Plan::STAGE + Plan::plane_at(P, TILE);
        round_staged<THREADS, Plan::N, TILE, GY_PITCH, Layer::stride_w>(own, gy_width);
        if constexpr (Group::halo(P) > 0)
          round_staged<THREADS, Plan::N, Group::halo(P), GY_PITCH, Layer::stride_w>(own + TILE, gy_width);
      });
    }
  };
  // Both kinds of warps run this walk, each with its own multiply(place, stage, slot of the input). The time at which a
  // warp multiplies does not matter to the others, as long as it lies between two barriers.
  const auto walk = [&](auto copies_first, const auto& multiply) {
    constexpr bool EARLY = Plan::STAGGERED && decltype(copies_first)::value;
    FusedPlace next = here;  // the step to be copied
    int next_slot = 0, slot = 0, stage = 0;
    const long long steps = (end - begin) * ROWS;
    const auto copy_next = [&](int to) {
      copy_step(next, to, next_slot);
      advance(next);
      if (next.row == 0 && ++next_slot == Plan::X_SLOTS) next_slot = 0;
    };
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; ++i) {
      if (i < steps) copy_next(i);
      cp_async_commit();
    }
    load_weights<Plan, THREADS>(fused_mma_shared, weight + 1LL * group * Plan::CI * Plan::CO * ROWS * Plan::KT);
    cp_async_wait<STAGES - 2>();
    if (steps > 0) round_step(0, 0, 0);
#pragma unroll 1
    for (long long step = 0; step < steps; ++step) {
      meet_from_anywhere(barrier, int(step % 2));
      const auto copy_ahead = [&] {
        if (step + STAGES - 1 < steps) copy_next(stage == 0 ? STAGES - 1 : stage - 1);
        cp_async_commit();
      };
      const auto round_next = [&] {
        const int row = here.row + 1 < ROWS ? here.row + 1 : 0;
        const int next_stage = stage + 1 < STAGES ? stage + 1 : 0;
        const int next_x = row > 0 ? slot : slot + 1 < Plan::X_SLOTS ? slot + 1 : 0;
        if (step + 1 < steps) round_step(row, next_stage, next_x);
      };
      if constexpr (EARLY) {
        cp_async_wait<STAGES - 3>();
        round_next();
      }
      if constexpr (EARLY || !Plan::STAGGERED) copy_ahead();
      multiply(here, stage, slot);
      if constexpr (!EARLY) {
        if constexpr (Plan::STAGGERED) copy_ahead();
        cp_async_wait<STAGES - 2>();
        round_next();
      }
      advance(here);
      if (++stage == STAGES) stage = 0;
      if (here.row == 0 && ++slot == Plan::X_SLOTS) slot = 0;
    }
  };

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned zero = sizes.in_w < 0;  // see own_register()
  if (warp >= Plan::W_WARPS) {  // grad_input
    const int m = (warp - Plan::W_WARPS) % Plan::X_COLUMNS * Plan::MX;
    const int first = (warp - Plan::W_WARPS) / Plan::X_COLUMNS * Plan::XP;
    const float4* const weights = fused_mma_shared + 32 * m + lane;
    const float* const gy = gy_ring + lane % 4 * GY_PITCH + first + run_start<Plan::RUN>(lane / 4);
    FusedSums<Plan> sum = {};
    walk(Constant<0>{}, [&](const FusedPlace& at, int stage, int) {
      multiply_runs<Plan>(sum, weights + at.row * (32 * Plan::M16 * Plan::N8 * Plan::KT), gy + stage * Plan::STAGE,
                          zero);
      if (at.row + 1 < ROWS) return;
      Scalar* to = grad_input_out + (at.n * Layer::in_channels + group * Plan::CI + m * 16) * in_plane +
                   (1LL * at.d * sizes.in_h + at.h) * sizes.in_w + at.w + first;
      store_runs<Plan>(to, sum, in_plane, Plan::CI - m * 16, sizes.in_w - at.w - first, store_width, lane);
      for_sums<Plan>([&](int mx, int q, int j, int i) { sum[mx][q][j][i] = 0.f; });
    });
    return;
  }

  const int wm = warp % Plan::WM, wn = warp / Plan::WM % Plan::WN, position_share = warp / Plan::TILE_WARPS;
  const float* const x_own = x_ring + (wm * Plan::MA * 16 + lane / 4) * X_PITCH + lane % 4 * 8;
  const float* const gy_own = gy_ring + (wn * Plan::NB * 8 + lane / 4) * GY_PITCH + lane % 4 * 8;
  float4* const slot_own = partials + (1LL * share * Plan::PS + position_share) * Plan::SLOT +
                           (1LL * group * ROWS * Plan::TILE_WARPS + warp % Plan::TILE_WARPS) * (32 * Plan::SUMS) + lane;
  SplitMmaSums<Plan> sum[ROWS] = {};
  bool first = true;
  const auto promote = [&] {  // this thread alone reads and writes these elements
#pragma unroll
    for (int i = 0; i < ROWS * Plan::SUMS; ++i) {
      const int row = i / Plan::SUMS, m = i / (Plan::KT * Plan::NB) % Plan::MA;
      float(&s)[4] = sum[row][m][i / Plan::KT % Plan::NB][i % Plan::KT];
      float4& to = slot_own[32 * (row * Plan::TILE_WARPS * Plan::SUMS + i % Plan::SUMS)];
      const float4 old = first ? make_float4(0.f, 0.f, 0.f, 0.f) : to;
      to = make_float4(old.x + s[0], old.y + s[1], old.z + s[2], old.w + s[3]);
      s[0] = s[1] = s[2] = s[3] = 0.f;
    }
    first = false;
  };
  int since = 0;
  walk(Constant<1>{}, [&](const FusedPlace& at, int stage, int slot) {
    const float* const x = x_own + slot * Plan::X_SLOT;
    const float* const gy = gy_own + stage * Plan::STAGE;
    const_loop<0, ROWS>([&](auto constant_row) {
      constexpr int ROW = decltype(constant_row)::value;
      if (at.row != ROW) return;  // a constant, so that sums stay registers
      if constexpr (Plan::THREE) {  // the tensor cores sum over one step and 8 output channels only
        const_loop<0, Plan::NB>([&](auto column) {
          constexpr int N = decltype(column)::value;
          SplitMmaSums<OneColumn<Plan>> few = {};
#pragma unroll 1
          for (int block = position_share; block < TILE / 32; block += Plan::PS)
            multiply_strips<OneColumn<Plan>, X_PITCH, GY_PITCH>(few, x + block * 32,
                                                                gy + N * 8 * GY_PITCH + block * 32, zero);
#pragma unroll
          for (int i = 0; i < Plan::MA * Plan::KT * 4; ++i) {
            const int m = i / (4 * Plan::KT), k = i / 4 % Plan::KT;
            sum[ROW][m][N][k][i % 4] += few[m][0][k][i % 4];
          }
        });
      } else {
#pragma unroll 1
        for (int block = position_share; block < TILE / 32; block += Plan::PS)
          multiply_strips<Plan, X_PITCH, GY_PITCH>(sum[ROW], x + block * 32, gy + block * 32, zero);
      }
    });
    if (at.row + 1 == ROWS && ++since == Plan::PROMOTE) {
      promote();
      since = 0;
    }
  });
  if (since > 0 || first) promote();
}

template <class Layer, class Tune>
int fused_shares(const Sizes& sizes) {
  const long long blocks = Tune::BLOCKS ? Tune::BLOCKS : 132 * FusedPlan<Layer, Tune>::RESIDENT;
  return share_count(blocks / Layer::groups, input_tiles(sizes, FusedPlan<Layer, Tune>::TILE));
}

template <class Layer, class Tune>
long long backward_workspace(Layer layer, Sizes sizes) {
  using Plan = FusedPlan<Layer, Tune>;
  return or_grad_bias(16LL * fused_shares<Layer, Tune>(sizes) * Plan::PS * Plan::SLOT, layer, sizes);
}

template <class Layer, class Tune>
cudaError_t backward(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                     const typename Layer::scalar* weight, const typename Layer::scalar* grad_output,
                     typename Layer::scalar* grad_input_out, typename Layer::scalar* grad_weight_out,
                     typename Layer::scalar* grad_bias, void* workspace, cudaStream_t stream) {
  using Plan = FusedPlan<Layer, Tune>;
  if (sizes.in_w > 1 << 29 || sizes.out_w > 1 << 29) return cudaErrorInvalidValue;  // columns are counted in int
  const auto kernel = fused_mma<Layer, Tune>;
  if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                     Plan::SHARED_BYTES))
    return error;
  const int shares = fused_shares<Layer, Tune>(sizes);
  float4* const partials = static_cast<float4*>(workspace);
  kernel<<<unsigned(shares) * Layer::groups, Plan::THREADS, Plan::SHARED_BYTES, stream>>>(
      sizes, input_tiles(sizes, Plan::TILE), shares, copy_width(input, sizes.in_w),
      copy_width(grad_output, sizes.out_w), copy_width(grad_input_out, sizes.in_w), input, weight, grad_output,
      grad_input_out, partials);
  if (const cudaError_t error = cudaGetLastError()) return error;
  split_mma_reduce<Layer, Plan, 0><<<unsigned(Plan::SLOT / 32), 256, 0, stream>>>(partials, 1LL * shares * Plan::PS,
                                                                                grad_weight_out);
  if (const cudaError_t error = cudaGetLastError()) return error;
  return grad_bias_into(layer, sizes, grad_output, grad_bias, workspace, stream);
}
