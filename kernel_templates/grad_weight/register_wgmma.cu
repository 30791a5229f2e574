/* variant
name      = "register_wgmma"
computes  = ["grad_weight"]
after     = "channels_last_wgmma"
idea      = "Stride 2: rows of x and gy are copied as they lie in memory; each multiplying warp takes its taps from words of gy."
precision = ["tf32", "fp16", "bf16"]
layer     = ["constant"]
needs     = ["layer.groups == 1 and layer.stride_w == 2 and layer.dilation_w == 1", "low >= -1 and -1 <= last <= 1",
             "stages >= 2", "element_bytes * positions in [128, 256]", "max(layer.padding_h, layer.padding_d) < 2 ** 28", "max(layer.stride_d, layer.stride_h) <= 1024",
             "layer.kernel_d * layer.kernel_h <= 1024",
             "element_bytes == 2 or wn * n == each * together and (each <= 8 or each % 8 == 0)"]  # else registers of the copies spill
min_sm    = 90
arch      = "sm_90a"
kernel    = "split_raw_rows"

[tune]
COLUMNS   = {values = [64, 96, 128, 192], default = 128, help = "channels of x of a warpgroup, at most"}
POSITIONS = {values = [0, 32, 64, 128], default = 0, help = "positions of a stage (0: 256 bytes of x if three stages fit, else 128)"}
GRID      = {values = [132, 264], default = 132, help = "target number of blocks; the positions are split among them"}

[derived]
channels    = "64 if layer.out_channels > 32 else 32 if layer.out_channels > 16 else 16"
subs        = "64 // channels"
r           = "(2 if layer.kernel_w > subs else 1) if subs > 1 else 3 if layer.kernel_w == 3 else 2 if layer.kernel_w > 1 else 1"
chunk       = "subs * r"
chunks      = "ceil_div(layer.kernel_w, chunk)"
wt          = "2 if chunks > 1 else 1"
wc          = "2 if wt == 1 and layer.out_channels > 64 else 1"
wr          = "2 if wt * wc == 1 and layer.kernel_d * layer.kernel_h > 1 else 1"
wn          = "2 // (wt * wc * wr)"
most        = "min(COLUMNS, 256 // r // 8 * 8)"
ci_tiles    = "ceil_div(layer.in_channels, most * wn)"
n           = "ceil_div(ceil_div(layer.in_channels, ci_tiles * wn), 8) * 8"
low         = "-layer.padding_w // 2"
last        = "(layer.kernel_w - 1 - layer.padding_w) // 2"
words       = "2 + (r - 1 - layer.padding_w) // 2 - low if r > 1 else 2"
one_pair    = "chunks == 1 and subs == 1 and low % 2 == 0 and words == 2"
of_copy     = "8 // element_bytes"
before      = "(of_copy - low) // of_copy * of_copy if low < 0 else 0"
beyond      = "ceil_div(layer.kernel_w, r) * r - layer.padding_w - 2"
behind      = "max(0, ceil_div(beyond, 2)) if element_bytes == 4 else 0 if one_pair else last + 2"
most_each   = "256 // element_bytes"
run_most    = "ceil_div(before + most_each + behind, of_copy)"
stage_most  = "ceil_div(256 * wn * n + 16 * (run_most + (10 - run_most % 8) % 8) * wr * wc * channels, 1024) * 1024"
positions   = "POSITIONS if POSITIONS else most_each if 3 * stage_most <= 227 * 1024 - 256 else most_each // 2"
together    = "512 // positions"
each        = "ceil_div(wn * n, together)"
run         = "ceil_div(before + positions + behind, of_copy)"
row         = "run + (10 - run % 8) % 8"
stage       = "ceil_div(element_bytes * positions * wn * n + 16 * row * wr * wc * channels, 1024) * 1024"
stages      = "min(8, (227 * 1024 - 256) // stage)"
threads     = "512"
smem_bytes  = "stages * (stage + 16)"

[plan]
Plan        = "RawSplitPlan<Layer, Tune>"
smem_bytes  = "Plan::SHARED_BYTES"
run_most    = ""
together    = ""
each        = ""
stage_most  = "Plan::stage_of(Plan::MOST_EACH)"
*/
#include "families/register_wgmma/split_copy.cuh"
#include "families/register_wgmma/split_words.cuh"
#include "hardware/early_launch.cuh"
#include "hardware/wgmma_swizzled_fragments.cuh"

// families/register_wgmma/README.md has a picture and the words.

template <int number>
struct RawConstant {
  static constexpr int value = number;
};

// Stores a warpgroup's sums in the workspace, or adds them to those of earlier stages of the share.
template <class Plan>
__device__ __forceinline__ void leave_raw_sums(const float (&sum)[Plan::R][Plan::N / 2], float* own, bool first) {
  const int thread = threadIdx.x % 128;
  float* const to = own + (thread / 32 * 16 + thread % 32 / 4) * Plan::N + thread % 4 * 2;
#pragma unroll
  for (int tap = 0; tap < Plan::R; ++tap)
#pragma unroll
    for (int pair = 0; pair < Plan::N / 4; ++pair) {
      float2* const at = reinterpret_cast<float2*>(to + (tap * 64 + pair % 2 * 8) * Plan::N + pair / 2 * 8);
      float2 two = make_float2(sum[tap][2 * pair], sum[tap][2 * pair + 1]);
      if (!first) {
        const float2 before = *at;
        two.x += before.x, two.y += before.y;
      }
      *at = two;
    }
}

// What a warpgroup has of a pair (share, tile).
template <class Plan>
struct RawSplitPart {
  int own, number, share, channel;  // the warpgroup; the lane's first channel of gy, in the stage
  RawSplitTile<Plan> tile;
  int tap0;    // of the warp; 0 if its taps do not exist
  bool exists;
  int bias;    // the place of its sums of grad_bias, or -1: words are counted once, in the first tile of x and with the first taps
  __device__ __forceinline__ RawSplitPart(int own, int number, bool sums_bias)
      : own(own), number(number), share(number / Plan::TILES), tile(number % Plan::TILES) {
    const int row = int(threadIdx.x) % 128 / 32 * 16, tap_row = tile.tap_row + (Plan::WR > 1 ? own : 0);
    channel = row % Plan::CHANNELS + (Plan::WC > 1 ? own * 64 : Plan::WR > 1 ? own * Plan::GY_ROWS : 0) + threadIdx.x % 32 / 4;
    tap0 = Plan::FIXED ? 0 : (tile.chunk + (Plan::WT > 1 ? own : 0)) * Plan::CHUNK + row / Plan::CHANNELS * Plan::R;
    exists = tap0 < Plan::KW;
    if (!exists) tap0 = 0;
    const int counted = Plan::BIAS && sums_bias ? Plan::counted(tap_row) : -1;
    const bool adds = counted >= 0 && tile.ci == 0 && tile.chunk == 0 && (Plan::WC * Plan::WR > 1 || Plan::BIAS_WT > 1 || own == 0);
    const int slot = Plan::BIAS_SLOTS > 1 ? (Plan::WT > 1 ? own : 0) * Plan::SUBS + row / Plan::CHANNELS : 0;
    bias = adds ? (((share * Plan::CO_TILES + tile.co / Plan::GY_ROWS) * Plan::COUNTED + counted) * Plan::BIAS_SLOTS + slot) *
                      Plan::GY_ROWS
                : -1;
  }
};

// The products of a warpgroup for a part. While the products of a turn (32 bytes of a row of x) run, words of gy are loaded for
// the next one. No product runs from one stage to the next; meanwhile the other warpgroup multiplies.
template <bool COUNTS, class Layer, class Tune, class Taps>
__device__ __forceinline__ void multiply_raw_part(const RawSplitWork<RawSplitPlan<Layer, Tune>, Tune>& work, const char* ring,
                                                  unsigned full, unsigned empty, const RawSplitPart<RawSplitPlan<Layer, Tune>>& part,
                                                  const Taps& taps, GatherRing<RawSplitPlan<Layer, Tune>::STAGES>& place, float* sums,
                                                  float* bias_sums) {
  using Plan = RawSplitPlan<Layer, Tune>;
  using Scalar = typename Layer::scalar;
  const int lane = threadIdx.x % 32;
  const char* const own_words = ring + Plan::X_BYTES + part.channel * Plan::ROW_BYTES + taps.place();
  const unsigned own_x = shared_address(ring) + (Plan::WN > 1 ? part.own * (128 * Plan::N) : 0);
  float* const slot = sums + (1LL * part.number * Plan::CONSUMERS + part.own) * Plan::OWN_SUMS;
  int in_line[2];
  const int position = int(work.first_stage(part.share)) * Plan::POSITIONS;
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const int at = position + (lane % 4 + pair * 4) * (Plan::DEPTH / 8);
    in_line[pair] = at - work.of_line.quotient(at) * work.pitch;
  }
  float bias[2] = {};  // sums of the lane's words, of each of its channels
  long long left = work.stages_of(part.share);
#pragma unroll 1
  for (bool first = true; left > 0; left -= Plan::PROMOTE, first = false) {
    const int some = left < Plan::PROMOTE ? int(left) : Plan::PROMOTE;
    float sum[Plan::R][Plan::N / 2];
#pragma unroll
    for (int tap = 0; tap < Plan::R; ++tap)
#pragma unroll
      for (float& value : sum[tap]) value = 0.0f;
#pragma unroll 1
    for (int i = 0; i < some; ++i, place.next()) {
      const char* const words = own_words + place.stage * Plan::STAGE;
      const unsigned long long x = swizzled_descriptor<128>(own_x + place.stage * Plan::STAGE);
      unsigned fragment[2][Plan::R][4];
      typename Taps::Loaded raw;
      mbarrier_await(full + 8 * place.stage, place.parity);
      taps.load(words, raw);
      const_loop<0, Plan::POSITIONS / Plan::DEPTH>([&](auto number_of_turn) {
        constexpr int TURN = decltype(number_of_turn)::value, X_AT = (TURN / 4 * (128 * Plan::X_ROWS) + TURN % 4 * 32) >> 4;
        taps.take(raw, in_line, work.pitch, work.one, fragment[TURN % 2]);
        if constexpr (COUNTS) taps.add(raw, bias);
        wgmma_fence();
#pragma unroll
        for (int tap = 0; tap < Plan::R; ++tap)
          wgmma_of_fragment_swizzled<Tune::precision, Scalar, Plan::N>(sum[tap], fragment[TURN % 2][tap], x + X_AT);
        swizzled_fragments_commit();
        if constexpr (Plan::CROSSES) {
#pragma unroll
          for (int& at : in_line) {
            at += work.step;
            if (at >= work.pitch) at -= work.pitch;
          }
        }
        if constexpr (TURN + 1 < Plan::POSITIONS / Plan::DEPTH) {
          taps.load(words + (TURN + 1) * 64, raw);
          swizzled_fragments_wait<1>();
        }
      });
      swizzled_fragments_wait<0>();
      mbarrier_arrive(empty + 8 * place.stage);
    }
#pragma unroll
    for (int tap = 0; tap < Plan::R; ++tap) wgmma_own(sum[tap]);
    leave_raw_sums<Plan>(sum, slot, first);
  }
  if constexpr (COUNTS) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      bias[i] += __shfl_xor_sync(~0u, bias[i], 1);
      bias[i] += __shfl_xor_sync(~0u, bias[i], 2);
      if ((Plan::BIAS_SLOTS > 1 || int(threadIdx.x) % 128 / 32 * 16 < Plan::CHANNELS) && lane % 4 == 0)
        bias_sums[part.bias + (Plan::WR > 1 ? part.channel - part.own * Plan::GY_ROWS : part.channel) + 8 * i] = bias[i];
    }
  }
}

// All work of the block for warpgroup `own`: one pair (share, tile) after another.
template <class Layer, class Tune>
__device__ __forceinline__ void multiply_raw_works(const RawSplitWork<RawSplitPlan<Layer, Tune>, Tune>& work, const char* ring,
                                                   unsigned full, unsigned empty, int own, float* sums, float* bias_sums) {
  using Plan = RawSplitPlan<Layer, Tune>;
  GatherRing<Plan::STAGES> place;
#pragma unroll 1
  for (int number = blockIdx.x; number < work.works(); number += gridDim.x) {
    const RawSplitPart<Plan> part(own, number, bias_sums != nullptr);
    const auto multiply_taps = [&](auto counts, const auto& taps) {
      multiply_raw_part<decltype(counts)::value, Layer, Tune>(work, ring, full, empty, part, taps, place, sums, bias_sums);
    };
    const auto multiply = [&](auto counts, auto word0) { multiply_taps(counts, RawTaps<Plan, decltype(word0)::value>(part.tap0)); };
    const bool counts = Plan::BIAS && part.bias >= 0;
    if constexpr (Plan::SIZE == 4) {
      const RawFloatTaps<Plan> taps(part.tap0, part.exists);
      if (counts) multiply_taps(RawConstant<Plan::BIAS>(), taps);
      else multiply_taps(RawConstant<0>(), taps);
    } else if constexpr (Plan::SUBS > 1) {
      if (counts) multiply(RawConstant<Plan::BIAS>(), RawConstant<ANY>());
      else multiply(RawConstant<0>(), RawConstant<ANY>());
    } else {
      const int word0 = (part.tap0 - Plan::PW) >> 1;
      if (counts) multiply(RawConstant<Plan::BIAS>(), RawConstant<Plan::LOW>());
      else if (Plan::LOW == -1 && word0 == -1) multiply(RawConstant<0>(), RawConstant<-1>());
      else if (word0 == 0) multiply(RawConstant<0>(), RawConstant<0>());
      else if constexpr (Plan::LAST > 0) multiply(RawConstant<0>(), RawConstant<1>());
    }
  }
}

// Each block computes one pair (share, tile) after another. Neighbouring blocks have tiles of the same share: the same positions.
// warpgroup -> data: 0 and 1 multiply, 2 and 3 copy; RawSplitPlan says what. They meet at mbarriers.
// Bytes: x once for each tile of gy and each tap row, gy once for each tile of x and each tap row that meets it, mostly from L2.
template <class Layer, class Tune>
__global__ void __launch_bounds__(RawSplitPlan<Layer, Tune>::THREADS, 1)
    split_raw_rows(const RawSplitWork<RawSplitPlan<Layer, Tune>, Tune> work, const RawSplitTensors<typename Layer::scalar> tensors,
                   float* sums, float* bias_sums) {
  using Plan = RawSplitPlan<Layer, Tune>;
  extern __shared__ __align__(1024) char raw_rows_memory[];
  const unsigned full = shared_address(raw_rows_memory) + Plan::BARRIERS_AT, empty = full + 8 * Plan::STAGES;
  const int warpgroup = __shfl_sync(~0u, int(threadIdx.x) / 128, 0);
  let_next_kernel_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < Plan::STAGES; ++i)
      mbarrier_init(full + 8 * i, Plan::STAGERS), mbarrier_init(empty + 8 * i, 128 * Plan::CONSUMERS);
    mbarrier_init_done();
  }
  __syncthreads();
  if (warpgroup < Plan::CONSUMERS) {
    take_registers<192>();
    multiply_raw_works<Layer, Tune>(work, raw_rows_memory, full, empty, warpgroup, sums, bias_sums);
  } else {
    give_registers<64>();
    const auto stage = [&](auto bytes) {
      stage_raw_works<decltype(bytes)::value, Layer, Tune>(warpgroup == Plan::CONSUMERS, work, tensors, raw_rows_memory, full, empty);
    };
    if (tensors.copied == 16) stage(RawConstant<16>());
    else if (tensors.copied == 8) stage(RawConstant<8>());
    else if (Plan::SIZE == 4 || tensors.copied == 4) stage(RawConstant<4>());
    else stage(RawConstant<2>());
  }
}

// The sum of the shares: a block has 32 channels of x and FEW of gy, so few that there are enough blocks, with all taps.
template <class Layer, class Tune>
struct RawSplitLast {
  using Plan = RawSplitPlan<Layer, Tune>;
  static constexpr int CO = Plan::CO, WIDE = ceil_div(Plan::CI, 32);
  static constexpr int few() {
    int some = 1;
    while (2 * some * Plan::TAPS <= 32 && WIDE * ceil_div(CO, 2 * some) >= 132) some *= 2;
    return some;
  }
  static constexpr int FEW = few(), PARTS = ceil_div(CO, FEW), ALL = FEW * Plan::TAPS, PIECE = ALL < 32 ? ALL : 32;
  static constexpr int BLOCKS = WIDE * PARTS;
};

// thread -> data: a block has one channel; its threads share the sums of its words, always in the same order.
template <class Layer, class Tune>
__device__ __forceinline__ void add_raw_biases(const float* __restrict__ sums, int shares, int co,
                                               typename Layer::scalar* __restrict__ grad_bias) {
  using Plan = RawSplitPlan<Layer, Tune>;
  __shared__ float left[8];
  float sum = 0.0f;
  constexpr int PARTS = Plan::COUNTED * Plan::BIAS_SLOTS;
  for (int term = threadIdx.x; term < shares * PARTS; term += 256)
    sum += sums[(1LL * (term / PARTS) * Plan::CO_TILES + co / Plan::GY_ROWS) * Plan::BIAS_SUMS + term % PARTS * Plan::GY_ROWS +
                co % Plan::GY_ROWS];
  sum = sum_of_lanes(sum);
  if (threadIdx.x % 32 == 0) left[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int other = 1; other < 8; ++other) sum += left[other];
  grad_bias[co] = narrow<typename Layer::scalar>(sum);
}

// thread -> data: lanes have neighbouring channels of x. `rows` of the 8 warps share the shares, the others have other taps and
// channels of gy. Blocks behind these add biases. The barriers: the warps' sums lie in shared memory, in the order of the weights,
// before they are added, in the order of the warps.
template <class Layer, class Tune>
__global__ void __launch_bounds__(256) add_raw_shares(const float* __restrict__ sums, int shares, int rows,
                                                      typename Layer::scalar* __restrict__ grad_weight,
                                                      const float* __restrict__ bias_sums,
                                                      typename Layer::scalar* __restrict__ grad_bias) {
  using Plan = RawSplitPlan<Layer, Tune>;
  using Last = RawSplitLast<Layer, Tune>;
  constexpr int CO = Plan::CO, KW = Plan::KW, TAPS = Plan::TAPS, PIECE = Last::PIECE;
  __shared__ float left[8][32][PIECE + 1];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = warp % rows;
  const int ci0 = int(blockIdx.x) / Last::PARTS * 32, co0 = int(blockIdx.x) % Last::PARTS * Last::FEW, ci = ci0 + lane;
  wait_for_kernel_ahead();
  if (int(blockIdx.x) >= Last::BLOCKS) {
    if constexpr (Plan::BIAS) add_raw_biases<Layer, Tune>(bias_sums, shares, int(blockIdx.x) - Last::BLOCKS, grad_bias);
    return;
  }
#pragma unroll 1
  for (int begin = 0; begin < Last::ALL; begin += PIECE) {
#pragma unroll 1
    for (int index = warp / rows; index < PIECE; index += 8 / rows) {
      const int co = co0 + (begin + index) / TAPS, tap = (begin + index) % TAPS, kw = tap % KW, chunk = kw / Plan::CHUNK;
      const int in_chunk = kw % Plan::CHUNK, in_tile = co % Plan::GY_ROWS, of_x = ci % Plan::X_ROWS;
      float sum = 0.0f;
      if (ci < Plan::CI && co < CO && begin + index < Last::ALL) {
        const int own = chunk % Plan::WT + in_tile / Plan::CHANNELS + tap / KW % Plan::WR + of_x / Plan::N;
        const int of_block = in_chunk / Plan::R * Plan::CHANNELS + in_tile % Plan::CHANNELS;
        const int tile = ((tap / KW / Plan::WR * Plan::CO_TILES + co / Plan::GY_ROWS) * Plan::CHUNK_TILES + chunk / Plan::WT) *
                             Plan::CI_TILES + ci / Plan::X_ROWS;
        const float* from = sums + (1LL * tile * Plan::CONSUMERS + own) * Plan::OWN_SUMS +
                            ((in_chunk % Plan::R * 64 + of_block) * Plan::N + of_x % Plan::N);
#pragma unroll 8
        for (int share = row; share < shares; share += rows) sum += from[share * (Plan::SLOT * Plan::TILES)];
      }
      left[row][lane][index] = sum;
    }
    __syncthreads();
    for (int place = threadIdx.x; place < 32 * PIECE; place += 256) {
      const int c = place / PIECE, index = place % PIECE;
      float sum = left[0][c][index];
      for (int other = 1; other < rows; ++other) sum += left[other][c][index];
      if (ci0 + c < Plan::CI && begin + index < Last::ALL && co0 + (begin + index) / TAPS < CO)
        grad_weight[(1LL * (ci0 + c) * CO + co0) * TAPS + begin + index] = narrow<typename Layer::scalar>(sum);
    }
    __syncthreads();
  }
}

template <class Layer, class Tune>
long long grad_weight_workspace(Layer layer, Sizes sizes) {
  return or_grad_bias(RawSplitWork<RawSplitPlan<Layer, Tune>, Tune>(sizes).bytes(), layer, sizes);
}

template <class Layer, class Tune>
cudaError_t grad_weight(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                        const typename Layer::scalar* grad_output, typename Layer::scalar* grad_weight_out,
                        typename Layer::scalar* grad_bias, void* workspace, cudaStream_t stream) {
  using Plan = RawSplitPlan<Layer, Tune>;
  const RawSplitWork<Plan, Tune> work(sizes);
  if (!work.serves) return cudaErrorInvalidValue;
  RawSplitTensors<typename Layer::scalar> tensors = {input, grad_output, sizes.in_h, sizes.in_w, sizes.out_d, sizes.out_h, sizes.out_w,
                                                     1LL * sizes.in_d * sizes.in_h * sizes.in_w,
                                                     1LL * sizes.out_d * sizes.out_h * sizes.out_w, 16};
  const auto is_aligned = [&](const void* tensor, long long width) {
    return Plan::SIZE * width % tensors.copied == 0 && size_t(tensor) % tensors.copied == 0;
  };
  while (tensors.copied > Plan::SIZE && !(is_aligned(input, sizes.in_w) && is_aligned(grad_output, sizes.out_w))) tensors.copied /= 2;
  float* const sums = static_cast<float*>(workspace);
  float* const bias_sums = work.adds_bias && grad_bias ? sums + work.slots() : nullptr;
  if (work.stages > 0) {
    const auto kernel = split_raw_rows<Layer, Tune>;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Plan::SHARED_BYTES);
    if (error != cudaSuccess) return error;
    const int blocks = work.works() < Tune::GRID ? work.works() : Tune::GRID;
    kernel<<<unsigned(blocks), Plan::THREADS, Plan::SHARED_BYTES, stream>>>(work, tensors, sums, bias_sums);
    if (const cudaError_t failed = cudaGetLastError()) return failed;
  }
  using Last = RawSplitLast<Layer, Tune>;
  const float *const all = sums, *const biases = bias_sums;
  const int shares = work.stages > 0 ? work.shares : 0, rows = shares >= 8 ? 8 : shares >= 4 ? 4 : shares >= 2 ? 2 : 1;
  const cudaError_t error = launch_early(add_raw_shares<Layer, Tune>, dim3(unsigned(Last::BLOCKS + (bias_sums ? Plan::CO : 0))), 256, 0,
                                         stream, all, shares, rows, grad_weight_out, biases, grad_bias);
  if (error != cudaSuccess || bias_sums) return error;
  return grad_bias_into(layer, sizes, grad_output, grad_bias, workspace, stream);
}
