/* variant
name      = "rolling_mma"
computes  = ["grad_weight"]
after     = "split_mma"
idea      = "Rows of the input stay in shared memory while a block walks down H, so each row of gy is copied once for all its taps."
precision = ["tf32", "tf32x3", "fp16", "bf16"]
layer     = ["constant"]
needs     = [
  "layer.kernel_w * layer.dilation_w + layer.padding_w < 2 ** 28",
  "max(layer.padding_h, layer.padding_d) < 2 ** 28",
  "max(layer.stride_d * layer.kernel_d * layer.dilation_d, layer.stride_h * layer.kernel_h * layer.dilation_h) < 2 ** 12",
  "min(layer.in_channels, layer.out_channels) // layer.groups >= 2",
  "least <= 1024 * SHARED_KB",
]

[tune]
M_TILES    = {values = [0, 1, 2, 3, 4], default = 2, help = "products of 16 rows of a warp, at most (0: as many as registers allow)"}
N_TILES    = {values = [0, 1, 2, 4], default = 0, help = "tiles of 8 output channels of a warp (0: 2 if registers allow)"}
WARPS      = {values = [4, 8, 12], default = 4, help = "warps of a block that multiply, at most; they split products, output channels, then positions"}
COPY_WARPS = {values = [0, 1, 2, 4], default = 0, help = "warps that only copy (0: the others copy as well)"}
TILE       = {values = [32, 64, 128, 256], default = 128, help = "positions of a step, fewer if they do not fit"}
STAGES     = {values = [1, 2, 3], default = 1, help = "steps that are copied ahead"}
UNROLL     = {values = [1, 2], default = 2, help = "turns of the loop over positions that the compiler unrolls"}
SHARED_KB  = {values = [72, 110, 224], default = 72, help = "shared memory of a block in KB, at most"}
BLOCKS     = {values = [132, 264, 396, 528], default = 396, help = "target number of blocks that share the positions"}

[derived]
kt         = "ceil_div(layer.kernel_w, ceil_div(layer.kernel_w, 8))"
ci8        = "ceil_div(layer.in_channels // layer.groups, 8)"
co8        = "ceil_div(layer.out_channels // layer.groups, 8)"
in8        = "ceil_div(ci8, ceil_div(ci8, 4))"
nb         = "min(N_TILES if N_TILES > 0 else 2, co8)"
out8       = "ceil_div(co8, ceil_div(co8, 4))"
step_d     = "layer.stride_d // gcd(layer.stride_d, layer.dilation_d)"
step_h     = "layer.stride_h // gcd(layer.stride_h, layer.dilation_h)"
apart      = "layer.dilation_h // gcd(layer.stride_h, layer.dilation_h)"
slots      = "apart * (ceil_div(layer.kernel_h, step_h) - 1) + 1 + STAGES"
x_rows     = "ceil_div(layer.kernel_d, step_d) * 8 * in8"
gy_rows    = "min(layer.kernel_h, step_h) * 8 * nb * ceil_div(out8, nb)"
vector     = "16 // element_bytes"
span       = "31 * layer.stride_w + (kt - 1) * layer.dilation_w + 1"
x_pitch    = "16 * (ceil_div(31 + vector, vector) + 1)"
gy_pitch   = "16 * (ceil_div(span + vector - 1, vector) + 3)"
zeros      = "max(x_pitch, gy_pitch)"
least      = "zeros + x_rows * slots * x_pitch + gy_rows * (1 + STAGES) * gy_pitch"
smem_bytes = "1024 * SHARED_KB"

[plan]
Plan       = "RollingMmaPlan<Layer, Tune, 0>"
kt         = ">= Plan::KT"
nb         = ">= Plan::NB"
out8       = ""
step_d     = "Plan::D::STEP"
step_h     = "Plan::H::STEP"
apart      = "Plan::H::APART"
gy_rows    = ">= Plan::GY_ROWS"
vector     = "Plan::VECTOR"
slots      = "Plan::SLOTS"
x_rows     = "Plan::X_ROWS"
span       = ">= Plan::span(32)"
x_pitch    = ">= Plan::BYTES * Plan::x_pitch(32)"
gy_pitch   = ">= Plan::BYTES * Plan::gy_pitch(32)"
zeros      = ""
least      = ">= Plan::bytes(32)"
smem_bytes = ">= Plan::SHARED_BYTES"
*/
#include "families/rolling_mma/step.cuh"
#include "contract/slot_sums.cuh"
#include "contract/weight_launch.cuh"

// families/rolling_mma/README.md has a picture and the words.

// Compared with split_mma: a step is one new row of the input, and the rows of gy that it brings. All taps (kd, kh) that
// meet such a row of gy multiply it with rows of the input that are still in shared memory, so each row of gy is copied
// once for all of them, as it lies in memory.
//
// thread -> data: warp (position share, group of rows, n) owns MA x NB fragments of KT taps. The rows of its products
// are input channels of several tap rows (kd, kh) of one chain. A block walks over the steps of its share.
// Bytes: a block copies each row of gy once, and each row of the input once for each tap along D.
// The barrier: all warps have copied a step before one of them multiplies it, and all have multiplied the step whose
// place is filled next.
template <class Layer, class Tune, int FIRST>
__global__ void __launch_bounds__(RollingMmaPlan<Layer, Tune, FIRST>::THREADS) rolling_mma(
    Sizes sizes, int shares, const typename Layer::scalar* __restrict__ input,
    const typename Layer::scalar* __restrict__ grad_output, float4* partials) {
  using Plan = RollingMmaPlan<Layer, Tune, FIRST>;
  using D = typename Plan::D;
  using H = typename Plan::H;
  using Place = RollingPlace<Layer, Plan>;
  using Scalar = typename Layer::scalar;
  extern __shared__ float4 rolling_mma_shared[];
  Scalar* const shared = reinterpret_cast<Scalar*>(rolling_mma_shared);

  int chain_d = 0, block = blockIdx.x;
  while (chain_d + 1 < D::CHAINS && block >= Plan::KINDS * Plan::shares(shares, chain_d))
    block -= Plan::KINDS * Plan::shares(shares, chain_d++);
  const int kind = block % Plan::KINDS, share = block / Plan::KINDS, parts = Plan::shares(shares, chain_d);
  Digits digit{kind};
  const int m_part = digit(Plan::M_PARTS);
  const int ci0 = digit(Plan::IN_TILES) * Plan::IN, co0 = digit(Plan::OUT_TILES) * Plan::OUT, of_group = digit.rest;
  const long long all = Place::all(sizes), begin = all * share / parts, end = all * (share + 1) / parts;

  const long long in_plane = 1LL * sizes.in_d * sizes.in_h * sizes.in_w;
  const long long out_plane = 1LL * sizes.out_d * sizes.out_h * sizes.out_w;
  const auto x_begin = [&](const Place& at, int d, int row, int channel) {
    return (at.n * Layer::in_channels + of_group * Plan::CI + ci0 + channel) * in_plane +
           (1LL * d * sizes.in_h + row) * sizes.in_w;
  };
  const auto gy_begin = [&](const Place& at, int chain, int channel) {
    return (at.n * Layer::out_channels + of_group * Plan::CO + co0 + channel) * out_plane +
           (1LL * at.gy_plane() * sizes.out_h + at.gy_row(chain)) * sizes.out_w;
  };
  const auto positions = [&](const Place& at) {  // of this tile, in whole steps of the product
    constexpr int STEP = Plan::K_STEP;
    const int left = ceil_div(sizes.in_w - at.w, STEP) * STEP;
    return left < Plan::TILE ? left : Plan::TILE;
  };
  // Rows that do not exist are never copied: they are read from a row of zeros.
  const auto x_exists = [&](int d, int row, int channel) {
    return ci0 + channel < Plan::CI && unsigned(d) < unsigned(sizes.in_d) && unsigned(row) < unsigned(sizes.in_h);
  };
  const auto gy_exists = [&](const Place& at, int chain, int channel) {
    return co0 + channel < Plan::CO && unsigned(at.gy_row(chain)) < unsigned(sizes.out_h);
  };
  const auto copy = [&](const Place& at, int slot, int gy_slot, int copier) {
    constexpr int ROWS = Plan::X_ROWS + Plan::GY_ROWS, EACH = ceil_div(ROWS, Plan::COPIERS);
    const int wanted = positions(at);
#pragma unroll 1
    for (int batch = 0; batch < EACH; batch += 32) {
      const int r = (batch + int(threadIdx.x) % 32) * Plan::COPIERS + copier;
      RawRow<Scalar> row;
      bool exists;
      if (r < Plan::X_ROWS) {
        const int d = at.d - r / Plan::IN * D::APART, channel = r % Plan::IN;
        exists = r / Plan::IN < D::length(chain_d) && x_exists(d, at.row, channel);
        row = {input, x_begin(at, d, at.row, channel), sizes.in_w, at.w, wanted,
               Plan::X_AT + slot * Plan::X_SLOT + r * Plan::X_PITCH};
      } else {
        const int chain = (r - Plan::X_ROWS) / Plan::OUT, channel = (r - Plan::X_ROWS) % Plan::OUT;
        exists = r < ROWS && at.multiplies() && gy_exists(at, chain, channel);
        row = {grad_output, gy_begin(at, chain, channel), sizes.out_w, at.w * Layer::stride_w + Plan::LOW,
               Plan::span(wanted), Plan::GY_AT + gy_slot * Plan::GY_SLOT + (r - Plan::X_ROWS) * Plan::GY_PITCH};
      }
      if (!exists) row.wanted = 0;
      copy_raw<ceil_div(Plan::MOST_CHUNKS, 32)>(shared, row, EACH - batch < 32 ? EACH - batch : 32);
    }
  };

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float one = sizes.in_w < 0 ? 2.f : 1.f;  // see round_for_tensor_cores()
  const int wn = warp % Plan::WN, group = m_part * Plan::WM + warp / Plan::WN % Plan::WM;
  const int position_share = warp / Plan::TILE_WARPS;
  int chain = 0, half0 = 2 * Plan::MA * group;  // the chain of the group, and its first half in that chain
  const_loop<1, H::CHAINS>([&](auto next) {
    constexpr int C = decltype(next)::value;
    if (group >= Plan::groups_before(C)) chain = C, half0 = 2 * Plan::MA * (group - Plan::groups_before(C));
  });
  const int h_taps = H::length(chain), halves = h_taps * D::length(chain_d) * Plan::IN8;
  const bool works = warp < Plan::WORKERS && group < Plan::GROUPS && half0 < halves;
  // Of each half: its tap's distance in planes and in rows, and its channel.
  int before[2 * Plan::MA], behind[2 * Plan::MA], ci_own[2 * Plan::MA];
#pragma unroll
  for (int i = 0; i < 2 * Plan::MA; ++i) {
    const int half = half0 + i < halves ? half0 + i : 0;  // sums beyond the last half are never read
    before[i] = half / (Plan::IN8 * h_taps);
    behind[i] = half / Plan::IN8 % h_taps * H::APART;
    ci_own[i] = half % Plan::IN8 * 8 + lane / 4;
  }
  float4* const slot_of_sums = partials + (1LL * share * Plan::PS + position_share) * Plan::SLOT +
                               (1LL * (chain_d * Plan::KINDS + kind) * Plan::TILE_WARPS + warp % Plan::TILE_WARPS) *
                                   (32 * Plan::SUMS) + lane;

  RollingSums<Plan> sum = {};
  bool none = true;
  const auto promote = [&] {  // this thread alone reads and writes these elements
#pragma unroll
    for (int i = 0; i < Plan::SUMS; ++i) {
      float(&s)[4] = sum[i / (Plan::NB * Plan::KT)][i / Plan::KT % Plan::NB][i % Plan::KT];
      float4& to = slot_of_sums[32 * i];
      const float4 old = none ? make_float4(0.f, 0.f, 0.f, 0.f) : to;
      to = make_float4(old.x + s[0], old.y + s[1], old.z + s[2], old.w + s[3]);
      s[0] = s[1] = s[2] = s[3] = 0.f;
    }
    none = false;
  };

  for (int i = threadIdx.x; i < Plan::X_AT; i += Plan::THREADS) shared[i] = narrow<Scalar>(0.f);
  Place here(sizes, begin, end, chain_d), ahead = here;
  const int copier = Tune::COPY_WARPS ? warp - Plan::WORKERS : warp;
  int slot = 0, gy_slot = 0, slot_ahead = 0, gy_slot_ahead = 0, since = 0;
  const auto copy_next = [&] {
    if (copier >= 0 && !ahead.over()) {
      copy(ahead, slot_ahead, gy_slot_ahead, copier);
      ahead.next(sizes);
      if (++slot_ahead == Plan::SLOTS) slot_ahead = 0;
      if (++gy_slot_ahead == Plan::GY_SLOTS) gy_slot_ahead = 0;
    }
    cp_async_commit();
  };
#pragma unroll 1
  for (int stage = 0; stage < Tune::STAGES; ++stage) copy_next();
#pragma unroll 1
  for (; !here.over(); here.next(sizes)) {
    cp_async_wait<Tune::STAGES - 1>();
    __syncthreads();
    copy_next();
    if (works && here.multiplies()) {
      const Scalar *x[2 * Plan::MA], *gy[Plan::NB];
#pragma unroll
      for (int i = 0; i < 2 * Plan::MA; ++i) {
        const int from = slot - behind[i];
        const unsigned first = unsigned(x_begin(here, here.d - before[i] * D::APART, here.row - behind[i], ci_own[i]));
        x[i] = shared;
        if (x_exists(here.d - before[i] * D::APART, here.row - behind[i], ci_own[i]))
          x[i] += Plan::X_AT + (from < 0 ? from + Plan::SLOTS : from) * Plan::X_SLOT +
                  (before[i] * Plan::IN + ci_own[i]) * Plan::X_PITCH + ahead_of(input, first + here.w);
      }
#pragma unroll
      for (int n = 0; n < Plan::NB; ++n) {
        const int channel = (wn * Plan::NB + n) * 8 + lane / 4;
        const unsigned first = unsigned(gy_begin(here, chain, channel)) + here.w * Layer::stride_w + Plan::LOW;
        gy[n] = shared;
        if (gy_exists(here, chain, channel))
          gy[n] += Plan::GY_AT + gy_slot * Plan::GY_SLOT + (chain * Plan::OUT + channel) * Plan::GY_PITCH +
                   ahead_of(grad_output, first);
      }
      const int first = position_share * Plan::K_STEP, end = positions(here);
      if constexpr (Plan::THREE) {  // the tensor cores sum over one tile only
        RollingSums<Plan> few = {};
        multiply_rolling<Plan>(few, x, gy, first, end, one);
#pragma unroll
        for (int i = 0; i < Plan::SUMS * 4; ++i) {
          const int m = i / (4 * Plan::KT * Plan::NB), n = i / (4 * Plan::KT) % Plan::NB, k = i / 4 % Plan::KT;
          sum[m][n][k][i % 4] += few[m][n][k][i % 4];
        }
      } else if constexpr (Plan::NARROW) {
        multiply_rolling_pairs<Plan, Tune::precision == Precision::bf16>(sum, x, gy, first, end);
      } else {
        multiply_rolling<Plan>(sum, x, gy, first, end, one);
      }
      if (++since == Plan::PROMOTE) {
        promote();
        since = 0;
      }
    }
    if (++slot == Plan::SLOTS) slot = 0;
    if (++gy_slot == Plan::GY_SLOTS) gy_slot = 0;
  }
  if (warp < Plan::WORKERS && (since > 0 || none)) promote();
}

// thread -> data: see SlotSums; a float4 is 2 ci x 2 co of one tap.
template <class Layer, class Plan, int FIRST>
__global__ void __launch_bounds__(256) rolling_mma_reduce(const float4* __restrict__ partials, int shares,
                                                          typename Layer::scalar* __restrict__ grad_weight) {
  using D = typename Plan::D;
  using H = typename Plan::H;
  // blockIdx.x counts fragments: (chain of D, kind of block, warp, ma, nb, k), the last running fastest.
  const int chain_d = int(blockIdx.x) / (Plan::KINDS * Plan::TILE_WARPS * Plan::SUMS);
  SlotSums sums;
  sums.add_slots(partials + 32LL * blockIdx.x + sums.lane, 1LL * Plan::shares(shares, chain_d) * Plan::PS, Plan::SLOT);
  if (!sums.add_rows()) return;
  Digits digit{int(blockIdx.x) % (Plan::KINDS * Plan::TILE_WARPS * Plan::SUMS)};
  const int k = FIRST + digit(Plan::KT), nb = digit(Plan::NB), ma = digit(Plan::MA);
  const int wn = digit(Plan::WN), wm = digit(Plan::WM), m_part = digit(Plan::M_PARTS);
  const int ci0 = digit(Plan::IN_TILES) * Plan::IN, co0 = digit(Plan::OUT_TILES) * Plan::OUT;
  int group = m_part * Plan::WM + wm, chain = 0;
  if (group >= Plan::GROUPS) return;
  while (chain + 1 < H::CHAINS && group >= Plan::groups_before(chain + 1)) ++chain;
  group -= Plan::groups_before(chain);
  const int h_taps = H::length(chain);
  const float value[4] = {sums.sum.x, sums.sum.y, sums.sum.z, sums.sum.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int half = (group * Plan::MA + ma) * 2 + i / 2, td = half / (Plan::IN8 * h_taps);
    const int kd = chain_d + td * D::STEP, kh = chain + half / Plan::IN8 % h_taps * H::STEP;
    if (kd >= Layer::kernel_d) continue;
    const int ci = ci0 + half % Plan::IN8 * 8 + sums.lane / 4;
    const int co = co0 + (wn * Plan::NB + nb) * 8 + sums.lane % 4 * 2 + i % 2;
    store_weight<Layer, Plan>(grad_weight, digit.rest, ci, co, kd * Layer::kernel_h + kh, k, value[i]);
  }
}

template <class Layer, class Tune, int FIRST>
struct RollingLaunch {
  using Plan = RollingMmaPlan<Layer, Tune, FIRST>;
  using Scalar = typename Layer::scalar;

  // Shares of the longest chain.
  static int shares(const Sizes& sizes) {
    return share_count(Tune::BLOCKS * Plan::LENGTH / (Plan::KINDS * Plan::LENGTHS), RollingPlace<Layer, Plan>::all(sizes));
  }
  static long long workspace(const Sizes& sizes) { return 16LL * shares(sizes) * Plan::PS * Plan::SLOT; }
  static cudaError_t run(const Sizes& sizes, const Scalar* input, const Scalar* grad_output, Scalar* grad_weight,
                         void* workspace, cudaStream_t stream) {
    const auto kernel = rolling_mma<Layer, Tune, FIRST>;
    if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                       Plan::SHARED_BYTES))
      return error;
    const int parts = shares(sizes);
    float4* partials = static_cast<float4*>(workspace);
    int blocks = 0;
    for (int chain = 0; chain < Plan::D::CHAINS; ++chain) blocks += Plan::KINDS * Plan::shares(parts, chain);
    kernel<<<blocks, Plan::THREADS, Plan::SHARED_BYTES, stream>>>(sizes, parts, input, grad_output, partials);
    if (const cudaError_t error = cudaGetLastError()) return error;
    rolling_mma_reduce<Layer, Plan, FIRST><<<unsigned(Plan::SLOT / 32), 256, 0, stream>>>(partials, parts, grad_weight);
    return cudaGetLastError();
  }
};

template <class Layer, class Tune>
long long grad_weight_workspace(Layer layer, Sizes sizes) {
  return or_grad_bias(TapGroupsInTurn<RollingLaunch, Layer, Tune>::workspace(sizes), layer, sizes);
}

template <class Layer, class Tune>
cudaError_t grad_weight(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                        const typename Layer::scalar* grad_output, typename Layer::scalar* grad_weight_out,
                        typename Layer::scalar* grad_bias, void* workspace, cudaStream_t stream) {
  if (sizes.in_d > 1 << 30 || sizes.in_h > 1 << 30 || sizes.out_d > 1 << 30 || sizes.out_h > 1 << 30)
    return cudaErrorInvalidValue;  // rows and planes are counted in int
  return launch_tap_groups<RollingLaunch, Layer, Tune>(layer, sizes, input, grad_output, grad_weight_out, grad_bias,
                                                       workspace, stream);
}
