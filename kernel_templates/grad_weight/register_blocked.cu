/* variant
name      = "register_blocked"
computes  = ["grad_weight"]
after     = "shared_weight_tiling"
idea      = "A thread sums a few channel pairs for all taps of a kernel row in registers, 4 positions at a time."
precision = ["ieee", "fp16", "bf16"]
layer     = ["constant"]
needs     = [
  "layer.kernel_w * layer.dilation_w + layer.padding_w < 2 ** 28",
  "layer.kernel_w <= 256",
  "8 * stage <= 1024 * SHARED_KB",
]

[tune]
SUMS      = {values = [16, 32, 48, 64, 96], default = 64, help = "registers of a thread that hold sums, at most"}
WARPS     = {values = [4, 8], default = 4, help = "warps of a block, at most; they split channels, then tap rows, then positions"}
TILE      = {values = [32, 64, 128, 256], default = 64, help = "positions staged at a time, fewer if they do not fit"}
STAGES    = {values = [2, 3, 4], default = 2, help = "tiles in shared memory at once"}
SHARED_KB = {values = [72, 110, 160], default = 72, help = "shared memory of a block in KB, at most"}
SHARES    = {values = [132, 264, 396, 528, 792, 1056, 1584], default = 792, help = "target number of blocks that share the positions"}

[derived]
# Two stages of 16 positions of one tap row must fit into SHARED_KB; a warp's tile of channels decides how long they are. So
# this computes the tile as FmaWeightPlan does. Of several groups of taps it takes the planes of the first and the taps of the
# shortest, whose tile is the largest.
ci      = "layer.in_channels // layer.groups"
co      = "layer.out_channels // layer.groups"
strides = "layer.stride_w // gcd(layer.stride_w, layer.dilation_w)"
apart   = "layer.dilation_w // gcd(layer.stride_w, layer.dilation_w)"
kt      = "min(ceil_div(layer.kernel_w, ceil_div(layer.kernel_w, 8)), strides * (16 // apart + 1))"
taps    = "(layer.kernel_w - 1) % kt + 1"
runs    = "ceil_div(kt, strides)"
longest = "kt - (runs - 1) * strides"
planes  = "min(kt, strides)"
before  = "-layer.padding_w % 4 if layer.stride_w == 1 else 0"
halos   = "longest * ceil_div((runs - 1) * apart + before, 4) + (planes - longest) * ceil_div((runs - 2) * apart, 4)"
loads   = "planes + halos"
ci2     = "ceil_div(ci, 2)"
ci4     = "ceil_div(ci, 4)"
ci8     = "ceil_div(ci, 8)"
co2     = "ceil_div(co, 2)"
co4     = "ceil_div(co, 4)"
co8     = "ceil_div(co, 8)"
best    = """min(ci * co * (4 * taps + 3 * loads + 3) * 256 + 17,
  min(ci * co2 * (8 * taps + 6 * loads + 3) * 256 + 18, ci2 * co * (8 * taps + 3 * loads + 6) * 256 + 33)
    + (2 * taps > SUMS) * 2 ** 60,
  min(ci * co4 * (16 * taps + 12 * loads + 3) * 256 + 20, ci2 * co2 * (16 * taps + 6 * loads + 6) * 256 + 34,
      ci4 * co * (16 * taps + 3 * loads + 12) * 256 + 65) + (4 * taps > SUMS) * 2 ** 60,
  min(ci * co8 * (32 * taps + 24 * loads + 3) * 256 + 24, ci2 * co4 * (32 * taps + 12 * loads + 6) * 256 + 36,
      ci4 * co2 * (32 * taps + 6 * loads + 12) * 256 + 66, ci8 * co * (32 * taps + 3 * loads + 24) * 256 + 129)
    + (8 * taps > SUMS) * 2 ** 60,
  min(ci2 * co8 * (64 * taps + 24 * loads + 6) * 256 + 40, ci4 * co4 * (64 * taps + 12 * loads + 12) * 256 + 68,
      ci8 * co2 * (64 * taps + 6 * loads + 24) * 256 + 130) + (16 * taps > SUMS) * 2 ** 60,
  min(ci4 * co8 * (128 * taps + 24 * loads + 12) * 256 + 72, ci8 * co4 * (128 * taps + 12 * loads + 24) * 256 + 132)
    + (32 * taps > SUMS) * 2 ** 60,
  ci8 * co8 * (256 * taps + 24 * loads + 24) * 256 + 136 + (64 * taps > SUMS) * 2 ** 60) % 256"""
m_parts = "ceil_div(ci, best // 16)"
n_parts = "ceil_div(co, best % 16)"
lx      = "8 if m_parts > 4 else 4 if m_parts > 2 else m_parts"
ly      = "min(32 // lx, 32 if n_parts > 16 else 16 if n_parts > 8 else 8 if n_parts > 4 else 4 if n_parts > 2 else n_parts)"
n_warps = "ceil_div(n_parts, ly)"
wn      = "ceil_div(n_warps, ceil_div(n_warps, WARPS))"
m_warps = "ceil_div(m_parts, lx)"
wm      = "ceil_div(m_warps, ceil_div(m_warps, WARPS // wn))"
gy_row  = "12 * planes + 4 * loads"
x_pitch = "16 + (128 // (lx * ly) - 16) % 32"
pitch   = "gy_row + (128 // (lx * ly) - gy_row) % 32"
stage   = "wm * lx * (best // 16) * x_pitch + wn * ly * (best % 16) * pitch"
smem_bytes = "1024 * SHARED_KB + 16"

[plan]
Plan       = "FmaWeightPlan<Layer, Tune, 0>"
planes     = "Plan::Group::PLANES"
loads      = "Plan::vectors()"
gy_row     = "Plan::plane_at(Plan::Group::PLANES, 16)"
"strides apart taps runs longest before halos" = ""
"ci2 ci4 ci8 co2 co4 co8 best m_parts n_parts lx ly n_warps wn m_warps wm x_pitch pitch stage" = ""
smem_bytes = ">= Plan::SHARED_BYTES + 16"
*/
#include "families/register_blocked/weight_plan.cuh"
#include "families/register_blocked/weight_stage.cuh"
#include "hardware/pack.cuh"
#include "contract/weight_launch.cuh"

// families/register_blocked/README.md has a picture and the words.

// Compared with shared_weight_tiling: gy is not staged once for each tap. A tile is TILE neighbouring positions of one
// input row. For each of its tap rows (kd, kh) the block stages the row of gy that it meets, split into planes by the
// stride (contract/row_taps.cuh). All taps of the row are shifts within a window of registers. A thread has A x B
// channel pairs: an input in a register serves B * KT products, a gradient A * KT of them. Copies run STAGES - 1 tiles
// ahead without registers.
//
// thread -> data: lane (strip, co, ci), strips of 4 positions side by side; warp (positions, tap row, co, ci). A block
// walks over the tiles of its share. At the end lanes that share sums add them up by shuffles, and warps write partial
// sums.
// The barrier: a tile (and its length) has arrived before a warp multiplies it, and is multiplied before the next copy
// overwrites it.
template <class Layer, class Tune, int FIRST>
__global__ void __launch_bounds__(FmaWeightPlan<Layer, Tune, FIRST>::THREADS,
                                  FmaWeightPlan<Layer, Tune, FIRST>::BLOCKS) register_blocked(
    Sizes sizes, long long tiles, int shares, int x_width, int gy_width,
    const typename Layer::scalar* __restrict__ input, const typename Layer::scalar* __restrict__ grad_output,
    float* __restrict__ partials) {
  using Plan = FmaWeightPlan<Layer, Tune, FIRST>;
  using Group = typename Plan::Group;
  constexpr int A = Plan::A, B = Plan::B, LX = Plan::LX, LY = Plan::LY, LP = Plan::LP, STAGES = Plan::STAGES;
  extern __shared__ float4 register_blocked_shared[];
  float* const shared = reinterpret_cast<float*>(register_blocked_shared);

  int rest = blockIdx.x % Plan::TILES;
  const int share = blockIdx.x / Plan::TILES;
  FmaWeightTile tile;
  tile.tap_row0 = rest % Plan::R_TILES * Plan::TR;
  rest /= Plan::R_TILES;
  tile.m0 = rest % Plan::M_TILES * Plan::M;
  rest /= Plan::M_TILES;
  tile.n0 = rest % Plan::N_TILES * Plan::N, tile.group = rest / Plan::N_TILES;
  const long long begin = tiles * share / shares;
  int uncopied = int(tiles * (share + 1) / shares - begin), left = uncopied;  // fits in an int: sums are short

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int lx = lane % LX, ly = lane / LX % LY, lp = lane / (LX * LY);
  const int wm = warp % Plan::WM, wn = warp / Plan::WM % Plan::WN, tr = warp / (Plan::WM * Plan::WN) % Plan::TR;
  const int wp = warp / Plan::TILE_WARPS;
  const int x_own = (wm * LX * A + lx) * Plan::X_PITCH;
  const int gy_own = Plan::M * Plan::X_PITCH + ((tr * Plan::WN + wn) * LY * B + ly) * Plan::GY_PITCH;

  TilePlace next(begin, sizes, Plan::TILE);
  int* const strips_of = reinterpret_cast<int*>(shared + STAGES * Plan::STAGE);  // strips that exist in each stage
  const auto copy_next = [&](int stage) {
    if (threadIdx.x == 0) strips_of[stage] = ceil_div(min(Plan::TILE, sizes.in_w - next.w), 4);
    fma_weight_copy<Layer, Plan>(shared + stage * Plan::STAGE, next, tile, sizes, input, grad_output, x_width,
                                 gy_width);
    next.next(sizes, Plan::TILE);
    --uncopied;
  };
#pragma unroll 1
  for (int i = 0; i < STAGES - 1; ++i) {
    if (uncopied > 0) copy_next(i);
    cp_async_commit();
  }

  float sum[A][B][Plan::KT] = {};
  int stage = 0;
#pragma unroll 1
  for (; left > 0; --left) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    if (uncopied > 0) copy_next(stage == 0 ? STAGES - 1 : stage - 1);
    cp_async_commit();
    const float* at = shared + stage * Plan::STAGE;
    const int strips = strips_of[stage];
    if (++stage == STAGES) stage = 0;
    if (tile.tap_row0 + tr >= Plan::ROWS) continue;
#pragma unroll 1
    for (int strip = wp * LP + lp; strip < strips; strip += LP * Plan::WP) {
      Pack<float, 4> x[A];
#pragma unroll
      for (int a = 0; a < A; ++a)
        x[a] = *reinterpret_cast<const Pack<float, 4>*>(at + x_own + a * LX * Plan::X_PITCH + 4 * strip);
#pragma unroll
      for (int b = 0; b < B; ++b)
        const_loop<0, Group::PLANES>([&](auto which) {
          constexpr int P = decltype(which)::value, VECTORS = 1 + Group::halo(P) / 4;
          const float* from = at + gy_own + b * LY * Plan::GY_PITCH + Plan::plane_at(P, Plan::TILE) + 4 * strip;
          float v[4 * VECTORS];
#pragma unroll
          for (int i = 0; i < VECTORS; ++i) {
            const Pack<float, 4> four = *reinterpret_cast<const Pack<float, 4>*>(from + 4 * i);
#pragma unroll
            for (int e = 0; e < 4; ++e) v[4 * i + e] = four.value[e];
          }
          const_loop<FIRST, Group::END>([&](auto tap) {
            constexpr int K = decltype(tap)::value;
            if constexpr (Group::meets(K, P)) {
#pragma unroll
              for (int j = 0; j < 4; ++j)
#pragma unroll
                for (int a = 0; a < A; ++a) sum[a][b][K - FIRST] += x[a].value[j] * v[Group::step(K, P) + j];
            }
          });
        });
    }
  }

  // Partial sums: [share, positions' warp][weights of this group of taps, in their order].
  float* const slot = partials + (1LL * share * Plan::WP + wp) * Plan::RESULTS;
  const int tap_row = tile.tap_row0 + tr;
#pragma unroll
  for (int a = 0; a < A; ++a)
#pragma unroll
    for (int b = 0; b < B; ++b) {
      const int ci = tile.m0 + (wm * A + a) * LX + lx, co = tile.n0 + (wn * B + b) * LY + ly;
#pragma unroll
      for (int k = 0; k < Plan::KT; ++k) {
        float total = sum[a][b][k];
#pragma unroll
        for (int distance = LX * LY; distance < 32; distance *= 2)
          total += __shfl_xor_sync(0xffffffffu, total, distance);
        if (lp == 0 && ci < Plan::CI && co < Plan::CO && tap_row < Plan::ROWS)
          slot[((1LL * (tile.group * Plan::CI + ci) * Plan::CO + co) * Plan::ROWS + tap_row) * Plan::KT + k] = total;
      }
    }
}

template <class Layer, class Tune, int FIRST>
struct RegisterBlockedLaunch {
  using Plan = FmaWeightPlan<Layer, Tune, FIRST>;
  using Scalar = typename Layer::scalar;

  static long long tiles(const Sizes& sizes) { return input_tiles(sizes, Plan::TILE); }
  // At least as many shares as keep each sum at TERMS_PER_SUM terms or fewer.
  static int shares(const Sizes& sizes) {
    const long long most = tiles(sizes), needed = ceil_div(most * Plan::TILE / (Plan::LP * Plan::WP), TERMS_PER_SUM);
    long long wanted = Tune::SHARES / Plan::TILES;
    if (wanted < needed) wanted = needed;
    return share_count(wanted, most);
  }
  static long long workspace(const Sizes& sizes) { return 4LL * shares(sizes) * Plan::WP * Plan::RESULTS; }
  static cudaError_t run(const Sizes& sizes, const Scalar* input, const Scalar* grad_output, Scalar* grad_weight,
                         void* workspace, cudaStream_t stream) {
    const auto kernel = register_blocked<Layer, Tune, FIRST>;
    if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                       Plan::SHARED_BYTES + 16))
      return error;
    const int parts = shares(sizes);
    float* partials = static_cast<float*>(workspace);
    kernel<<<unsigned(parts) * Plan::TILES, Plan::THREADS, Plan::SHARED_BYTES + 16, stream>>>(
        sizes, tiles(sizes), parts, copy_width(input, sizes.in_w), copy_width(grad_output, sizes.out_w), input,
        grad_output, partials);
    if (const cudaError_t error = cudaGetLastError()) return error;
    fma_add_slots<Layer, Plan, FIRST><<<unsigned(ceil_div(Plan::RESULTS, 32)), 256, 0, stream>>>(
        partials, 1LL * parts * Plan::WP, grad_weight);
    return cudaGetLastError();
  }
};

template <class Layer, class Tune>
long long grad_weight_workspace(Layer layer, Sizes sizes) {
  return or_grad_bias(TapGroupsInTurn<RegisterBlockedLaunch, Layer, Tune>::workspace(sizes), layer, sizes);
}

template <class Layer, class Tune>
cudaError_t grad_weight(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                        const typename Layer::scalar* grad_output, typename Layer::scalar* grad_weight_out,
                        typename Layer::scalar* grad_bias, void* workspace, cudaStream_t stream) {
  return launch_tap_groups<RegisterBlockedLaunch, Layer, Tune>(layer, sizes, input, grad_output, grad_weight_out,
                                                               grad_bias, workspace, stream);
}
