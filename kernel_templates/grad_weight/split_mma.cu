/* variant
name      = "split_mma"
computes  = ["grad_weight"]
after     = "shared_weight_tiling"
idea      = "Tensor cores multiply strips of positions; a window in registers serves all taps of a row."
precision = ["tf32", "tf32x3", "fp16", "bf16"]
layer     = ["constant"]
needs     = [
  "layer.kernel_w * layer.dilation_w + layer.padding_w < 2 ** 28",
  "min(layer.in_channels, layer.out_channels) // layer.groups >= 2 or layer.kernel_w > 256",
  "2 * element_bytes * least <= 1024 * SHARED_KB",
]

[tune]
M_TILES   = {values = [0, 1, 2, 3, 4], default = 0, help = "tiles of 16 input channels per warp (0: automatic)"}
N_TILES   = {values = [0, 1, 2, 3, 4], default = 2, help = "tiles of 8 output channels per warp (0: as many as registers allow)"}
WARPS     = {values = [4, 8, 12], default = 8, help = "warps of a block, at most; they split channels, then tap rows, then positions"}
TILE      = {values = [32, 64, 128, 256], default = 128, help = "positions staged at a time, fewer if they do not fit"}
STAGES    = {values = [2, 3, 4], default = 2, help = "tiles in shared memory at once"}
SHARED_KB = {values = [72, 110, 160, 224], default = 110, help = "shared memory of a block in KB, at most"}
BLOCKS    = {values = [132, 264, 396, 528], default = 264, help = "target number of blocks that share the positions"}

[derived]
ci        = "layer.in_channels // layer.groups"
co        = "layer.out_channels // layer.groups"
m16       = "ceil_div(ci, 16)"
n8        = "ceil_div(co, 8)"
three     = "precision == 'tf32x3'"
fragments = "12 if three else 28"
kt        = "ceil_div(layer.kernel_w, ceil_div(layer.kernel_w, 8))"
ma        = "min(M_TILES if M_TILES > 0 else 3 if m16 == 3 and not three and 3 * kt <= fragments else 2, m16)"
by_2      = "2 if n8 % 2 == 0 and 2 * ma * kt <= fragments else 1"
by_3      = "3 if n8 > 2 and 3 * ma * kt <= fragments and ceil_div(n8, 3) * 3 <= ceil_div(n8, by_2) * by_2 else by_2"
by_4      = "4 if n8 > 3 and 4 * ma * kt <= fragments and ceil_div(n8, 4) * 4 <= ceil_div(n8, by_3) * by_3 else by_3"
nb_asked  = "min(N_TILES, n8) if N_TILES > 0 else by_4"
nb        = "min(nb_asked, max(1, fragments // (ma * kt))) if three else nb_asked"
n_warps   = "ceil_div(n8, nb)"
wn        = "ceil_div(n_warps, ceil_div(n_warps, WARPS))"
m_warps   = "ceil_div(m16, ma)"
wm        = "ceil_div(m_warps, ceil_div(m_warps, WARPS // wn))"
vector    = "16 // element_bytes"
beyond    = "min(16, (kt - 1) * layer.dilation_w // layer.stride_w) + (vector - 1 if layer.stride_w == 1 else 0)"
planes    = "1 if layer.dilation_w % layer.stride_w == 0 else min(kt, layer.stride_w)"
length    = "planes * (32 + ceil_div(beyond, vector) * vector)"
gy_pitch  = "length + ((96 - length % 64) % 64 if element_bytes == 2 else 0 if length % 8 == 4 else 4)"
least     = "16 * wm * ma * (32 if element_bytes == 2 else 36) + 8 * wn * nb * gy_pitch"
smem_bytes = "1024 * SHARED_KB"

[plan]
Plan       = "SplitMmaPlan<Layer, Tune, 0>"
kt         = ">= Plan::KT"
by_2       = ""
by_3       = ""
by_4       = ""
n_warps    = "Plan::N_WARPS_ALL"
m_warps    = "Plan::M_WARPS_ALL"
vector     = ""
beyond     = ""
planes     = ">= Plan::Group::PLANES"
length     = ">= Plan::plane_at(Plan::Group::PLANES, 32)"
gy_pitch   = ">= Plan::gy_pitch(32)"
least      = ">= Plan::stage_elements(32, 1)"
smem_bytes = ">= Plan::SHARED_BYTES"
*/
#include "families/split_mma/multiply.cuh"
#include "families/split_mma/reduce.cuh"
#include "families/split_mma/stage.cuh"
#include "contract/tile_place.cuh"
#include "contract/weight_launch.cuh"

// families/split_mma/README.md has a picture and the words.

// Compared with shared_weight_tiling: tensor cores multiply, and nothing is staged once for each tap. A tile is TILE
// neighbouring positions of one input row. For each of its tap rows (kd, kh) the block stages the row of gy that it
// meets, split into planes by the stride (contract/row_taps.cuh); all taps of the row are shifts within them. Copies
// run STAGES - 1 tiles ahead without registers. Each element is rounded to TF32 once, in place, by the thread that
// copied it.
//
// thread -> data: warp (position share, tap row, n, m) owns MA x NB fragments of KT taps. A block walks over the tiles
// of its share. Every 4096 positions and at the end it adds its sums to its own slot in the workspace.
// The barrier: a tile has been rounded before a warp multiplies it, and multiplied before the next copy overwrites it.
template <class Layer, class Tune, int FIRST>
__global__ void __launch_bounds__(SplitMmaPlan<Layer, Tune, FIRST>::THREADS) split_mma(
    Sizes sizes, long long tiles, int shares, int x_width, int gy_width,
    const typename Layer::scalar* __restrict__ input, const typename Layer::scalar* __restrict__ grad_output,
    float4* partials) {
  using Plan = SplitMmaPlan<Layer, Tune, FIRST>;
  using Group = typename Plan::Group;
  using Scalar = typename Layer::scalar;
  constexpr int TILE = Plan::TILE, STAGES = Plan::STAGES, TR = Plan::TR, THREADS = Plan::THREADS;
  constexpr int X_PITCH = Plan::pitch(TILE), GY_PITCH = Plan::gy_pitch(TILE), STAGE = Plan::stage_elements(TILE, TR);
  constexpr bool ROUNDS = Tune::precision == Precision::tf32;
  extern __shared__ float4 split_mma_shared[];
  Scalar* const shared = reinterpret_cast<Scalar*>(split_mma_shared);

  int rest = blockIdx.x % Plan::TILES;
  const int share = blockIdx.x / Plan::TILES;
  const int tap_row0 = rest % Plan::R_TILES * TR;
  rest /= Plan::R_TILES;
  const int m0 = rest % Plan::M_TILES * Plan::M;
  rest /= Plan::M_TILES;
  const int n0 = rest % Plan::N_TILES * Plan::N, group = rest / Plan::N_TILES;
  const long long begin = tiles * share / shares, end = tiles * (share + 1) / shares;

  const long long in_plane = 1LL * sizes.in_d * sizes.in_h * sizes.in_w;
  const long long out_plane = 1LL * sizes.out_d * sizes.out_h * sizes.out_w;
  TilePlace next(begin, sizes, TILE);  // the next tile to be copied
  const auto copy_next = [&](int stage) {
    Scalar* to = shared + stage * STAGE;
    const auto x = input_row<Layer, Plan>(input, next, sizes, in_plane, group, m0);
    copy_rows<THREADS, Plan::M, TILE, X_PITCH, 1>(to, x, x_width);
    to += Plan::M * X_PITCH;
#pragma unroll 1
    for (int r = 0; r < TR; ++r, to += Plan::N * GY_PITCH) {
      auto gy = gy_row<Layer, Plan>(grad_output, next, sizes, out_plane, group, n0, tap_row0 + r);
      const_loop<0, Group::PLANES>([&](auto plane) {
        constexpr int P = decltype(plane)::value;
        gy.first = (next.w + Group::low(P)) * Layer::stride_w + Group::residue(P);
        Scalar* const at = to + Plan::plane_at(P, TILE);
        copy_rows<THREADS, Plan::N, TILE, GY_PITCH, Layer::stride_w>(at, gy, gy_width);
        gy.first += TILE * Layer::stride_w;
        if constexpr (Group::halo(P) > 0)
          copy_rows<THREADS, Plan::N, Group::halo(P), GY_PITCH, Layer::stride_w>(at + TILE, gy, gy_width);
      });
    }
    next.next(sizes, TILE);
  };
  const auto round_stage = [&](int stage) {
    if constexpr (ROUNDS) {
      Scalar* at = shared + stage * STAGE;
      round_rows<THREADS, Plan::M, TILE, X_PITCH, 1>(at, x_width);
      at += Plan::M * X_PITCH;
#pragma unroll 1
      for (int r = 0; r < TR; ++r, at += Plan::N * GY_PITCH)
        const_loop<0, Group::PLANES>([&](auto plane) {
          constexpr int P = decltype(plane)::value;
          Scalar* const own = at + Plan::plane_at(P, TILE);
          round_rows<THREADS, Plan::N, TILE, GY_PITCH, Layer::stride_w>(own, gy_width);
          if constexpr (Group::halo(P) > 0)
            round_rows<THREADS, Plan::N, Group::halo(P), GY_PITCH, Layer::stride_w>(own + TILE, gy_width);
        });
    }
  };

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned zero = sizes.in_w < 0;  // see own_register()
  const int wm = warp % Plan::WM, wn = warp / Plan::WM % Plan::WN, tr = warp / (Plan::WM * Plan::WN) % TR;
  const int position_share = warp / Plan::TILE_WARPS;
  const Scalar* const x_own = shared + (wm * Plan::MA * 16 + lane / 4) * X_PITCH + lane % 4 * 8;
  const Scalar* const gy_own = shared + Plan::M * X_PITCH +
                              ((tr * Plan::WN + wn) * Plan::NB * 8 + lane / 4) * GY_PITCH + lane % 4 * 8;
  float4* const slot = partials + (1LL * share * Plan::PS + position_share) * Plan::SLOT +
                       (1LL * (blockIdx.x % Plan::TILES) * Plan::TILE_WARPS + warp % Plan::TILE_WARPS) *
                           (32 * Plan::SUMS) + lane;

  SplitMmaSums<Plan> sum = {};
  bool first = true;
  const auto promote = [&] {  // this thread alone reads and writes these elements
#pragma unroll
    for (int m = 0; m < Plan::MA; ++m)
#pragma unroll
      for (int n = 0; n < Plan::NB; ++n)
#pragma unroll
        for (int k = 0; k < Plan::KT; ++k) {
          float(&s)[4] = sum[m][n][k];
          float4& to = slot[32 * ((m * Plan::NB + n) * Plan::KT + k)];
          const float4 old = first ? make_float4(0.f, 0.f, 0.f, 0.f) : to;
          to = make_float4(old.x + s[0], old.y + s[1], old.z + s[2], old.w + s[3]);
          s[0] = s[1] = s[2] = s[3] = 0.f;
        }
    first = false;
  };

#pragma unroll 1
  for (int i = 0; i < STAGES - 1; ++i) {
    if (begin + i < end) copy_next(i);
    cp_async_commit();
  }
  cp_async_wait<STAGES - 2>();
  if (begin < end) round_stage(0);
  int stage = 0, since = 0;
#pragma unroll 1
  for (long long tile = begin; tile < end; ++tile) {
    __syncthreads();
    if (tile + STAGES - 1 < end) copy_next(stage == 0 ? STAGES - 1 : stage - 1);
    cp_async_commit();
    if (tap_row0 + tr < Plan::ROWS) {
      const auto multiply = [&](SplitMmaSums<Plan>& into) {
#pragma unroll 1
        for (int block = position_share; block < TILE / 32; block += Plan::PS)
          if constexpr (Plan::NARROW)
            multiply_halves<Plan, X_PITCH, GY_PITCH, Tune::precision == Precision::bf16>(
                into, x_own + stage * STAGE + block * 32, gy_own + stage * STAGE + block * 32, zero);
          else
            multiply_strips<Plan, X_PITCH, GY_PITCH>(into, x_own + stage * STAGE + block * 32,
                                                     gy_own + stage * STAGE + block * 32, zero);
      };
      if constexpr (Plan::THREE) {  // the tensor cores sum over one tile only
        SplitMmaSums<Plan> few = {};
        multiply(few);
#pragma unroll
        for (int i = 0; i < Plan::SUMS * 4; ++i) {
          const int m = i / (4 * Plan::KT * Plan::NB), n = i / (4 * Plan::KT) % Plan::NB, k = i / 4 % Plan::KT;
          sum[m][n][k][i % 4] += few[m][n][k][i % 4];
        }
      } else {
        multiply(sum);
      }
    }
    if (++stage == STAGES) stage = 0;
    cp_async_wait<STAGES - 2>();
    if (tile + 1 < end) round_stage(stage);
    if (++since == Plan::PROMOTE) {
      promote();
      since = 0;
    }
  }
  if (since > 0 || first) promote();
}

template <class Layer, class Tune, int FIRST>
struct SplitMmaLaunch {
  using Plan = SplitMmaPlan<Layer, Tune, FIRST>;
  using Scalar = typename Layer::scalar;

  static long long tiles(const Sizes& sizes) { return input_tiles(sizes, Plan::TILE); }
  static int shares(const Sizes& sizes) { return share_count(Tune::BLOCKS / Plan::TILES, tiles(sizes)); }
  static long long workspace(const Sizes& sizes) { return 16LL * shares(sizes) * Plan::PS * Plan::SLOT; }
  static cudaError_t run(const Sizes& sizes, const Scalar* input, const Scalar* grad_output, Scalar* grad_weight,
                         void* workspace, cudaStream_t stream) {
    const auto kernel = split_mma<Layer, Tune, FIRST>;
    if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                       Plan::SHARED_BYTES))
      return error;
    const int parts = shares(sizes);
    float4* partials = static_cast<float4*>(workspace);
    kernel<<<parts * Plan::TILES, Plan::THREADS, Plan::SHARED_BYTES, stream>>>(
        sizes, tiles(sizes), parts, copy_width<Scalar>(input, sizes.in_w),
        copy_width<Scalar>(grad_output, sizes.out_w), input, grad_output, partials);
    if (const cudaError_t error = cudaGetLastError()) return error;
    split_mma_reduce<Layer, Plan, FIRST><<<unsigned(Plan::SLOT / 32), 256, 0, stream>>>(
        partials, 1LL * parts * Plan::PS, grad_weight);
    return cudaGetLastError();
  }
};

template <class Layer, class Tune>
long long grad_weight_workspace(Layer layer, Sizes sizes) {
  return or_grad_bias(TapGroupsInTurn<SplitMmaLaunch, Layer, Tune>::workspace(sizes), layer, sizes);
}

template <class Layer, class Tune>
cudaError_t grad_weight(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                        const typename Layer::scalar* grad_output, typename Layer::scalar* grad_weight_out,
                        typename Layer::scalar* grad_bias, void* workspace, cudaStream_t stream) {
  return launch_tap_groups<SplitMmaLaunch, Layer, Tune>(layer, sizes, input, grad_output, grad_weight_out, grad_bias,
                                                        workspace, stream);
}
