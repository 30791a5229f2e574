// grad_weight of channels_last_wgmma: tiles, the layout of a stage, the warps that copy, and the sum of the shares.
// Positions are the summed index. README.md has the words.
#pragma once
#include "contract/slot_sums.cuh"
#include "families/channels_last_wgmma/row_stage.cuh"
#include "families/persistent_packed/packed_split.cuh"
#include "families/persistent_wgmma/gather_stage.cuh"
#include "contract/partial_sums.cuh"
#include "hardware/const_loop.cuh"
#include "hardware/guarded_load.cuh"
#include "hardware/mbarrier_await.cuh"
#include "hardware/pack.cuh"
#include "hardware/ptx.cuh"
#include "hardware/wgmma_swizzled.cuh"

template <class Layer, class Tune>
struct RowSplitPlan {
  static constexpr int K = Layer::kernel_w, STRIDE = Layer::stride_w, DILATION = Layer::dilation_w;
  static constexpr int FAR = (K - 1) * DILATION, SHIFTS = FAR / STRIDE + 1;
  static constexpr int CI = Layer::in_channels, CO = Layer::out_channels;
  static constexpr int TAP_ROWS = Layer::kernel_d * Layer::kernel_h, TAPS = TAP_ROWS * K;

  // Along W tap k meets gy at element v = stride * q + k * dilation - padding of a row. In channels_last the elements of a
  // step along W are neighbours, so the residues of v count as channels: VALUES of them, in panels of 64. Shift q begins q rows
  // further.
  static constexpr int RESIDUES = FAR + 1 < STRIDE ? FAR + 1 : STRIDE, VALUES = RESIDUES * CO, ROW_PANELS = ceil_div(VALUES, 64);
  static constexpr int ALL_PANELS = TAP_ROWS * ROW_PANELS;

  // Warpgroup w of two owns 64 channels of x (w % MB) and OWN panels of gy, each for all shifts.
  // Each of TEAMS teams of copying warps fills every TEAMS-th stage.
  static constexpr int CONSUMERS = 2, COPY_WARPS = 8, THREADS = 128 * CONSUMERS + 32 * COPY_WARPS;
  static constexpr int TEAMS = Tune::TEAMS, OF_TEAM = COPY_WARPS / TEAMS;
  static constexpr int CI_BLOCKS = ceil_div(CI, 64), MB = CI_BLOCKS < CONSUMERS ? CI_BLOCKS : CONSUMERS, WN = CONSUMERS / MB;
  static constexpr int MOST = Tune::COLUMNS / 64 / SHIFTS;
  static constexpr int OWN = ceil_div(ALL_PANELS, ceil_div(ALL_PANELS, MOST * WN) * WN), PANELS = OWN * WN;
  // A product that needs more registers than a thread has at the launch is split into two.
  static constexpr int PARTS = OWN > 3 ? 2 : 1, N = 64 * OWN / PARTS;
  static constexpr int M_TILES = ceil_div(CI_BLOCKS, MB), N_TILES = ceil_div(ALL_PANELS, PANELS), TILES = M_TILES * N_TILES;

  // A stage: POSITIONS rows of each block of x, then WINDOW rows of each panel of gy.
  static constexpr int POSITIONS = Tune::POSITIONS, WINDOW = (POSITIONS + SHIFTS - 1 + 7) / 8 * 8;
  static constexpr int BLOCK_BYTES = 128 * POSITIONS, PANEL_BYTES = 128 * WINDOW, X_STAGE = MB * BLOCK_BYTES;
  static constexpr int STAGE = X_STAGE + PANELS * PANEL_BYTES, FIT = (227 * 1024 - 256) / STAGE, STAGES = FIT < 8 ? FIT : 8;
  static constexpr int BARRIERS_AT = STAGES * STAGE, SHARED_BYTES = BARRIERS_AT + 16 * STAGES;
  static constexpr int PROMOTE = 4096 / POSITIONS;  // stages that tensor cores add up
  static_assert(STAGES >= 2, "a stage is given back only after the next has begun");
  static_assert(STAGES >= TEAMS, "a barrier tells its last phase from the one before, not from older ones");

  // Sums of a warpgroup in the workspace: [shift][part][row][column].
  static constexpr int OWN_SUMS = SHIFTS * 64 * 64 * OWN;
  static constexpr long long SLOT = CONSUMERS * OWN_SUMS / 4;  // float4 of a tile for one share
  static constexpr bool DIRECT = false;

  // The multiplying warps sum grad_bias if tap rows meet all rows of gy. Each row of gy is counted for one tap row only: one with
  // kd < stride and kh < stride. If the kernel is longer than the stride, positions behind the last ones are needed for that.
  static constexpr __host__ __device__ bool meets_all(int kernel, int stride, int dilation) {
    return kernel >= stride && (kernel == 1 || dilation == 1);
  }
  static constexpr bool BIAS = Layer::has_bias && meets_all(Layer::kernel_d, Layer::stride_d, Layer::dilation_d) &&
                               meets_all(Layer::kernel_h, Layer::stride_h, Layer::dilation_h) && meets_all(K, STRIDE, DILATION);
  static constexpr __host__ __device__ bool counts(int panel) {
    const int tap_row = panel / ROW_PANELS;
    return panel < ALL_PANELS && tap_row / Layer::kernel_h < Layer::stride_d && tap_row % Layer::kernel_h < Layer::stride_h;
  }
  // Lanes of a warp that arrive at a barrier. racecheck follows reads by other threads only if every lane arrives.
  static constexpr int ARRIVING = BIAS ? 32 : 1;
  static constexpr int BIAS_SUMS = CONSUMERS * 4 * OWN * 64;  // of a tile of gy for one share: [warpgroup][warp][panel][value]

  // How PackedSplitWork counts positions. No zeros are needed behind planes and images, because each tap row is tested.
  using AlongD = PackedAxis<false, BIAS ? Layer::kernel_d : 1, BIAS ? Layer::stride_d : 1, 0, 1>;
  using AlongH = PackedAxis<false, BIAS ? Layer::kernel_h : 1, BIAS ? Layer::stride_h : 1, 0, 1>;
  using AlongW = PackedAxis<false, K, STRIDE, Layer::padding_w, DILATION>;

  // The last kernel: a block has one channel of x and FEW channels of gy.
  static constexpr int few() {
    int channels = 64;
    while (channels > 8 && channels * TAPS > (1LL * CI * CO * TAPS < 1 << 18 ? 128 : 512)) channels /= 2;
    return channels;
  }
  static constexpr int FEW = few(), CO_PARTS = ceil_div(CO, FEW);
};

template <class Scalar>
struct RowSplitTensors {
  const Scalar *x, *gy;
  int in_d, in_h, in_w, out_d, out_h, out_w;
  int wide;  // 8 channels can be copied together, and both tensors have fewer than 2^31 such units
};

// Where a thread's 8 values of a panel are, counted from the first tap of a position.
struct RowSplitPanel {
  int positions, value, d, h, w;  // in gy: positions, then values; along each axis; w is 2^30 if the values do not exist
  int asks, units;                // the bits that a position must have; the distance in units of 16 bytes
};

template <class Layer, class Plan>
__device__ __forceinline__ RowSplitPanel row_split_panel(int first, int which, int unit, int out_h, int out_w) {
  const int number = first + which, tap_row = number / Plan::ROW_PANELS, value = number % Plan::ROW_PANELS * 64 + unit * 8;
  const int d = tap_row / Layer::kernel_h * Layer::dilation_d, h = tap_row % Layer::kernel_h * Layer::dilation_h;
  const bool exists = number < Plan::ALL_PANELS && value < Plan::VALUES;
  const int positions = (d * out_h + h) * out_w, w = value / Plan::CO;
  return {positions, value, d, h, exists ? w : 1 << 30, exists ? 1 << (Plan::RESIDUES + which) | 1 << w : -1,
          positions * (Plan::CO / 8) + value / 8};
}

// A position: where it is in x, and where its first tap meets gy.
template <class Layer, class Plan>
struct RowSplitPosition {
  bool on_grid, in_x;
  long long x, line;  // its number in x; the row of gy that it meets
  int d, h, w;
  template <class Scalar>
  __device__ __forceinline__ RowSplitPosition(const RowSplitTensors<Scalar>& tensors, const PackedGrid& grid, long long at)
      : on_grid(at < 1LL * grid.rows * grid.row) {
    const int number = on_grid ? int(at) : 0, row = grid.wide.quotient(number), step = number - row * grid.row;
    const int plane = grid.high.quotient(row), n = grid.deep.quotient(plane);
    const int x_d = plane - n * grid.deep.divisor, x_h = row - plane * grid.high.divisor;
    d = x_d * Layer::stride_d - Layer::padding_d, h = x_h * Layer::stride_h - Layer::padding_h;
    w = step * Plan::STRIDE - Layer::padding_w;
    in_x = on_grid && x_d < tensors.in_d && x_h < tensors.in_h && step < tensors.in_w;
    x = ((1LL * n * tensors.in_d + x_d) * tensors.in_h + x_h) * tensors.in_w + step;
    line = (1LL * n * tensors.out_d + d) * tensors.out_h + h;
  }
};

template <class Scalar>
__device__ __forceinline__ bool meets_row(const RowSplitTensors<Scalar>& tensors, int d, int h, const RowSplitPanel& panel) {
  return unsigned(d + panel.d) < unsigned(tensors.out_d) && unsigned(h + panel.h) < unsigned(tensors.out_h);
}

// thread -> data: 16 bytes of every position whose turn it is in the team. Eight neighbouring lanes have the 64 channels of a row.
// Each lane first computes the place of one position of its warp; the other lanes read it by a shuffle.
template <class Layer, class Plan>
__device__ __forceinline__ void copy_row_stage(const RowSplitTensors<typename Layer::scalar>& tensors, const PackedGrid& grid,
                                               const RowSplitPanel (&panels)[Plan::PANELS], int channel, long long at, char* stage) {
  constexpr int CI = Plan::CI, CO = Plan::CO, APART = 4 * Plan::OF_TEAM, SLOTS = ceil_div(Plan::WINDOW, APART);
  const int thread = threadIdx.x % (32 * Plan::OF_TEAM), first = thread / 8, lane = thread % 32;
#pragma unroll 1
  for (int from = 0; from < SLOTS; from += 8) {
    const int mine = thread / 32 * 4 + lane % 4 + (from + lane / 4) * APART;
    const RowSplitPosition<Layer, Plan> p(tensors, grid, at + mine);
    const int x_unit = int(p.x) * (CI / 8), gy_unit = (int(p.line) * tensors.out_w + p.w) * (CO / 8);
    int has = p.in_x ? 1 << 31 : 0;
    if (p.on_grid) {
#pragma unroll
      for (int which = 0; which < Plan::PANELS; ++which) has |= meets_row(tensors, p.d, p.h, panels[which]) << (Plan::RESIDUES + which);
#pragma unroll
      for (int r = 0; r < Plan::RESIDUES; ++r) has |= (unsigned(p.w + r) < unsigned(tensors.out_w)) << r;
    }
#pragma unroll
    for (int i = 0; i < (SLOTS < 8 ? SLOTS : 8); ++i) {
      const int x_at = __shfl_sync(~0u, x_unit, i * 4 + lane / 8), gy_at = __shfl_sync(~0u, gy_unit, i * 4 + lane / 8);
      const int asked = __shfl_sync(~0u, has, i * 4 + lane / 8), position = first + (from + i) * APART;
      const unsigned row = 128 * position;
      char* const to = stage + swizzled<128>(row + 16 * (lane % 8));
      if (position < Plan::POSITIONS) {
#pragma unroll
        for (int block = 0; block < Plan::MB; ++block)
          cp_async<16>(to + block * Plan::BLOCK_BYTES, tensors.x + 8LL * (x_at + channel / 8 + 8 * block),
                       asked < 0 && channel + 64 * block < CI ? 16 : 0);
      }
      if (position < Plan::WINDOW) {
#pragma unroll
        for (int which = 0; which < Plan::PANELS; ++which)
          cp_async<16>(to + Plan::X_STAGE + which * Plan::PANEL_BYTES, tensors.gy + 8LL * (gy_at + panels[which].units),
                       (asked & panels[which].asks) == panels[which].asks ? 16 : 0);
      }
    }
  }
}

// Stores 8 neighbouring values. Those from `first` to `end` exist, the others are zero.
template <class Scalar>
__device__ __forceinline__ void copy_eight(char* to, const Scalar* from, long long first, long long end) {
  Pack<Scalar, 8> value;
#pragma unroll
  for (int e = 0; e < 8; ++e) value.value[e] = first <= e && e < end ? guarded_load(from + e) : narrow<Scalar>(0.0f);
  *reinterpret_cast<Pack<Scalar, 8>*>(to) = value;
}

// As copy_row_stage, but element by element: for channels that are no multiple of 8, and tensors that are not aligned or too large.
template <class Layer, class Plan>
__device__ __forceinline__ void copy_row_elements(const RowSplitTensors<typename Layer::scalar>& tensors, const PackedGrid& grid,
                                                  int first_panel, int channel, long long at, char* stage) {
  constexpr int CI = Plan::CI, CO = Plan::CO;
  const int thread = threadIdx.x % (32 * Plan::OF_TEAM);
#pragma unroll 1
  for (int position = thread / 8; position < Plan::WINDOW; position += 4 * Plan::OF_TEAM) {
    const RowSplitPosition<Layer, Plan> p(tensors, grid, at + position);
    char* const to = stage + swizzled<128>(128 * position + 16 * (thread % 8));
#pragma unroll 1
    for (int block = 0; block < Plan::MB && position < Plan::POSITIONS; ++block)
      copy_eight(to + block * Plan::BLOCK_BYTES,
                 tensors.x + p.x * CI + channel + 64 * block, 0, p.in_x ? CI - channel - 64 * block : 0);
#pragma unroll 1
    for (int which = 0; which < Plan::PANELS; ++which) {  // several elements of the row may begin among the 8 values
      const RowSplitPanel panel = row_split_panel<Layer, Plan>(first_panel, which, thread % 8, tensors.out_h, tensors.out_w);
      const long long before = -1LL * p.w * CO - panel.value, behind = (1LL * tensors.out_w - p.w) * CO - panel.value;
      const long long end = p.on_grid && meets_row(tensors, p.d, p.h, panel) && panel.w < 1 << 30 ? Plan::VALUES - panel.value : 0;
      copy_eight(to + Plan::X_STAGE + which * Plan::PANEL_BYTES,
                 tensors.gy + ((p.line * tensors.out_w + p.w + panel.positions) * CO + panel.value), before, behind < end ? behind : end);
    }
  }
}

// A warp copies into every free stage of its team. If none is free, it waits for its oldest copies and arrives at their barrier.
template <bool WIDE, class Layer, class Tune>
__device__ __forceinline__ void copy_row_works(const PackedSplitWork<RowSplitPlan<Layer, Tune>, Tune>& work,
                                               const RowSplitTensors<typename Layer::scalar>& tensors, char* ring, unsigned full,
                                               unsigned empty) {
  using Plan = RowSplitPlan<Layer, Tune>;
  const int unit = threadIdx.x % 8, team = int(threadIdx.x / 32 - 4 * Plan::CONSUMERS) / Plan::OF_TEAM;
  GatherRing<Plan::STAGES> place, arrived;
  place.parity = 1;
  for (int i = 0; i < team; ++i) arrived.next();
  int under_way = 0, turn = 0;
  const auto tell = [&] {
    const_loop<0, Plan::STAGES>([&](auto newer) {
      if (under_way == decltype(newer)::value + 1) cp_async_wait<decltype(newer)::value>();
    });
    products_see_writes();
    if constexpr (!Plan::BIAS) __syncwarp();
    if (Plan::BIAS || threadIdx.x % 32 == 0) mbarrier_arrive(full + 8 * arrived.stage);
#pragma unroll
    for (int i = 0; i < Plan::TEAMS; ++i) arrived.next();
    --under_way;
  };
#pragma unroll 1
  for (int number = blockIdx.x; number < work.works(); number += gridDim.x) {
    const int tile = number % Plan::TILES, share = number / Plan::TILES, channel = tile % Plan::M_TILES * Plan::MB * 64 + unit * 8;
    const int first_panel = tile / Plan::M_TILES * Plan::PANELS;
    RowSplitPanel panels[Plan::PANELS];
#pragma unroll
    for (int i = 0; i < Plan::PANELS; ++i)
      panels[i] = row_split_panel<Layer, Plan>(first_panel, i, unit, tensors.out_h, tensors.out_w);
    long long at = work.first_stage(share) * Plan::POSITIONS;
#pragma unroll 1
    for (long long left = work.stages_of(share); left > 0; --left, at += Plan::POSITIONS, place.next()) {
      const bool own = turn == team;
      if (++turn == Plan::TEAMS) turn = 0;
      if (!own) continue;
      while (under_way > 0 && !__all_sync(~0u, mbarrier_ended(empty + 8 * place.stage, place.parity))) tell();
      mbarrier_await(empty + 8 * place.stage, place.parity);
      __syncwarp();
      char* const stage = ring + place.stage * Plan::STAGE;
      if constexpr (WIDE) copy_row_stage<Layer, Plan>(tensors, work.grid, panels, channel, at, stage);
      else copy_row_elements<Layer, Plan>(tensors, work.grid, first_panel, channel, at, stage);
      cp_async_commit();
      ++under_way;
    }
  }
  while (under_way > 0) tell();
}

// base[OFFSET] += more, as one piece of assembly: otherwise the compiler loads many values ahead, and registers spill.
template <int OFFSET>
__device__ __forceinline__ void add_to_memory(float* base, const float2& more) {
#ifdef __CUDACPU__
  float2* const to = reinterpret_cast<float2*>(base + OFFSET);
  *to = make_float2(to->x + more.x, to->y + more.y);
#else
  asm volatile(
      "{\n.reg .f32 x, y;\nld.global.v2.f32 {x, y}, [%0 + %3];\nadd.f32 x, x, %1;\nadd.f32 y, y, %2;\n"
      "st.global.v2.f32 [%0 + %3], {x, y};\n}"
      :
      : "l"(base), "f"(more.x), "f"(more.y), "n"(4 * OFFSET)
      : "memory");
#endif
}

// Stores a warpgroup's sums in the workspace, or adds them to those of earlier stages of the share. A lane has two neighbouring
// columns of two rows: lane / 4, and the one 8 rows further.
template <class Plan>
__device__ __forceinline__ void leave_row_sums(const float (&sum)[Plan::SHIFTS * Plan::PARTS][Plan::N / 2], float* own, bool first) {
  const int thread = threadIdx.x % 128, row = thread / 32 * 16 + thread % 32 / 4;
  float* const to = own + row * Plan::N + thread % 4 * 2;
  const_loop<0, Plan::SHIFTS * Plan::PARTS * Plan::N / 4>([&](auto number) {
    constexpr int PRODUCT = decltype(number)::value / (Plan::N / 4), PAIR = decltype(number)::value % (Plan::N / 4);
    constexpr int OFFSET = (PRODUCT * 64 + PAIR % 2 * 8) * Plan::N + PAIR / 2 * 8;
    const float2 two = make_float2(sum[PRODUCT][2 * PAIR], sum[PRODUCT][2 * PAIR + 1]);
    if (first) *reinterpret_cast<float2*>(to + OFFSET) = two;
    else add_to_memory<OFFSET>(to, two);
  });
}

// grad_bias: a thread's sums of 8 values of each panel, over every sixteenth position. Two warpgroups with the same panels take
// every other of these positions each.
template <class Plan>
struct RowSplitBias {
  float sum[Plan::OWN][8];
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int panel = 0; panel < Plan::OWN; ++panel)
#pragma unroll
      for (float& value : sum[panel]) value = 0.0f;
  }
  template <class Scalar>
  __device__ __forceinline__ void add(const char* panels, int first_panel, int own) {
    const int thread = threadIdx.x % 128;
    const char* const from = panels + swizzled<128>(16 * thread) + own % Plan::MB * 2048;
#pragma unroll
    for (int panel = 0; panel < Plan::OWN; ++panel) {
      if (!Plan::counts(first_panel + panel)) continue;
#pragma unroll
      for (int position = 0; position < Plan::POSITIONS; position += 16 * Plan::MB) {
        const auto values = *reinterpret_cast<const Pack<Scalar, 8>*>(from + panel * Plan::PANEL_BYTES + position * 128);
#pragma unroll
        for (int e = 0; e < 8; ++e) sum[panel][e] += float(widen(values.value[e]));
      }
    }
  }
  // Stores the sums of a warp, in the order of the values.
  __device__ __forceinline__ void leave(float* to) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int panel = 0; panel < Plan::OWN; ++panel) {
#pragma unroll
      for (float& value : sum[panel]) {
        value += __shfl_xor_sync(~0u, value, 8);
        value += __shfl_xor_sync(~0u, value, 16);
      }
      float4* const place = reinterpret_cast<float4*>(to + (threadIdx.x % 128 / 32 * Plan::OWN + panel) * 64 + lane * 8);
      if (lane < 8) {
        place[0] = make_float4(sum[panel][0], sum[panel][1], sum[panel][2], sum[panel][3]);
        place[1] = make_float4(sum[panel][4], sum[panel][5], sum[panel][6], sum[panel][7]);
      }
    }
  }
};

// thread -> data: a block has one channel; its threads share the sums of its values, always in the same order.
template <class Layer, class Tune>
__device__ __forceinline__ void add_row_biases(const float* __restrict__ sums, int shares, unsigned co,
                                               typename Layer::scalar* __restrict__ grad_bias) {
  using Plan = RowSplitPlan<Layer, Tune>;
  constexpr unsigned CO = Plan::CO, OWN = Plan::OWN, PANELS = Plan::PANELS, MB = Plan::MB, S = Plan::STRIDE;
  constexpr unsigned SH = Layer::stride_h, OF_SHARE = Layer::stride_d * SH * S * MB * 4;
  __shared__ float left[8];
  float sum = 0.0f;
#pragma unroll 4
  for (unsigned term = threadIdx.x; term < shares * OF_SHARE; term += 256) {
    const unsigned warp = term % 4, block = term / 4 % MB, r = term / (4 * MB) % S, h = term / (4 * MB * S) % SH;
    const unsigned d = term / (4 * MB * S * SH) % Layer::stride_d, share = term / OF_SHARE, value = r * CO + co;
    const unsigned panel = (d * Layer::kernel_h + h) * Plan::ROW_PANELS + value / 64, in_tile = panel % PANELS;
    const float* const tile = sums + (1LL * share * Plan::N_TILES + panel / PANELS) * Plan::BIAS_SUMS;
    sum += __ldcs(tile + (((in_tile / OWN * MB + block) * 4 + warp) * OWN + in_tile % OWN) * 64 + value % 64);
  }
  sum = sum_of_lanes(sum);
  if (threadIdx.x % 32 == 0) left[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int other = 1; other < 8; ++other) sum += left[other];
  grad_bias[co] = narrow<typename Layer::scalar>(sum);
}

// Adds the shares in their order. thread -> data: a block has one channel of x and FEW of gy, with all taps. `rows` of its 8
// warps share the shares, the others have other weights; lanes have neighbouring channels. Blocks behind these add biases.
// The barrier: the warps' sums lie in shared memory, in the order of the weights, before they are added.
template <class Layer, class Tune>
__global__ void __launch_bounds__(256)
    add_row_shares(const float* __restrict__ sums, int shares, int rows, typename Layer::scalar* __restrict__ grad_weight,
                   const float* __restrict__ bias_sums, typename Layer::scalar* __restrict__ grad_bias) {
  using Plan = RowSplitPlan<Layer, Tune>;
  constexpr unsigned FEW = Plan::FEW, TAPS = Plan::TAPS, ALL = FEW * TAPS, K = Plan::K, S = Plan::STRIDE, CO = Plan::CO;
  constexpr unsigned OWN = Plan::OWN, PANELS = Plan::PANELS, MB = Plan::MB, N = Plan::N;
  __shared__ float left[8][ALL];
  const unsigned ci = blockIdx.x / Plan::CO_PARTS, co0 = blockIdx.x % Plan::CO_PARTS * FEW, warp = threadIdx.x / 32;
  wait_for_kernel_ahead();
  if (ci >= Plan::CI) {
    if constexpr (Plan::BIAS) add_row_biases<Layer, Tune>(bias_sums, shares, blockIdx.x - Plan::CI * Plan::CO_PARTS, grad_bias);
    return;
  }
  const unsigned row = warp % rows;
  constexpr unsigned SIDE = CO % 4 == 0 ? 4 : 1;  // sums of neighbouring channels lie together
  for (unsigned index = (warp / rows * 32 + threadIdx.x % 32) * SIDE; index < ALL; index += 256 / rows * SIDE) {
    const unsigned c = index % FEW, tap = index / FEW, v = tap % K * Plan::DILATION;
    Pack<float, SIDE> sum = {};
    if (co0 + c < CO) {
      const unsigned value = v % S * CO + co0 + c, panel = tap / K * Plan::ROW_PANELS + value / 64, in_tile = panel % PANELS;
      const unsigned tile = panel / PANELS * Plan::M_TILES + ci / 64 / MB, own = in_tile / OWN * MB + ci / 64 % MB;
      const unsigned column = in_tile % OWN * 64 + value % 64, product = v / S * Plan::PARTS + column / N;
      const float* from = sums + (1LL * (tile * Plan::CONSUMERS + own) * Plan::OWN_SUMS + (product * 64 + ci % 64) * N + column % N);
      from += 4 * Plan::SLOT * Plan::TILES * row;
#pragma unroll 8
      for (int share = row; share < shares; share += rows, from += 4 * Plan::SLOT * Plan::TILES * rows) {
        const Pack<float, SIDE> more = *reinterpret_cast<const Pack<float, SIDE>*>(from);
#pragma unroll
        for (unsigned e = 0; e < SIDE; ++e) sum.value[e] += more.value[e];
      }
    }
#pragma unroll
    for (unsigned e = 0; e < SIDE; ++e) left[row][(c + e) * TAPS + tap] = sum.value[e];
  }
  __syncthreads();
  const unsigned exist = (CO - co0 < FEW ? CO - co0 : FEW) * TAPS;
  for (unsigned index = threadIdx.x; index < exist; index += 256) {
    float sum = left[0][index];
    for (int other = 1; other < rows; ++other) sum += left[other][index];
    grad_weight[(1LL * ci * CO + co0) * TAPS + index] = narrow<typename Layer::scalar>(sum);
  }
}
