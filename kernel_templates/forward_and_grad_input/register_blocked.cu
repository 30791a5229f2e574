/* variant
name      = "register_blocked"
computes  = ["forward", "grad_input"]
after     = "shared_weight_tiling"
idea      = "A thread sums 4 neighbouring steps, with all residues, for several channels in registers, in fp32."
precision = ["ieee", "fp16", "bf16"]
layer     = ["constant"]
needs     = [
  "layer.kernel_w <= 64 and layer.stride_w <= 32",
  "reach_w <= 256",
  "layer.kernel_w * layer.dilation_w + layer.padding_w < 2 ** 28",
  "layer.kernel_h * layer.dilation_h + layer.padding_h < 2 ** 28",
  "layer.kernel_d * layer.dilation_d + layer.padding_d < 2 ** 28",
  "sums <= 128",
]

[tune]
CHANNELS = {values = [4, 8, 16, 32], default = 16, help = "channels that a thread sums, at most"}
STRIPS   = {values = [1, 2], default = 1, help = "runs of 4 steps of a thread; they share each loaded weight"}
SUMS     = {values = [32, 64, 96, 128], default = 64, help = "target number of registers per thread for sums"}
WARPS    = {values = [2, 4, 8], default = 4, help = "warps of a block; they split channels first, then positions"}
STAGED   = {values = [1, 4, 8, 16], default = 8, help = "channels that a step stages, at most"}
STAGES   = {values = [2, 3, 4], default = 2, help = "steps whose copies are in flight or in use"}
STAGE_KB = {values = [32, 48, 72, 110, 160], default = 72, help = "shared memory for stages in KB, at most"}

[derived]
forward    = "direction == 'forward'"
classes    = "min(layer.kernel_w, layer.stride_w) if forward else 1"
sums       = "4 * STRIPS * classes"
reach_w    = "(layer.kernel_w - 1) * layer.dilation_w // layer.stride_w + 2"
window     = "reach_w + 15"
tile       = "32 * STRIPS * WARPS"
channel    = "(1 if forward else layer.stride_w) * (4 * tile + min(16, tile // 4) * window)"
least      = "channel + layer.kernel_w * 32 * WARPS + 4"
image      = "WARPS * max(3072, 144 * (layer.stride_w if forward else 1))"
smem_bytes = "max(1024 * STAGE_KB, 4 * STAGES * least, 4 * image) + 8 * tile"

[plan]
Plan       = "FmaPlan<true, Layer, Tune>"
classes    = ">= Plan::W::CLASSES"
sums       = ">= 4 * Plan::STRIPS * Plan::W::CLASSES"
reach_w    = ""
window     = ">= ceil_div(Plan::Row::WINDOW, Plan::Row::STEP)"
tile       = ">= Plan::TILE"
channel    = ">= Plan::CHANNEL"
least      = ">= Plan::stage(1)"
image      = ">= Plan::IMAGE_FLOATS"
smem_bytes = ">= Plan::SHARED_BYTES"

[forward.tune]
UNROLL   = {values = [1, 2, 4], default = 4, help = "channels per iteration of the loop"}
BLOCKS   = {values = [0, 1, 2, 3, 4, 5], default = 0, help = "blocks that a multiprocessor should hold (0: automatic)"}

[grad_input.tune]
UNROLL   = {values = [1, 2, 4], default = 1, help = "channels per iteration of the loop"}
PLANES   = {values = [0, 1, 2], default = 0, help = "order of staged grad_output: 1 by residues, 2 as in memory (0: automatic)"}
BLOCKS   = {values = [0, 1, 2, 3, 4, 5], default = 0, help = "blocks that a multiprocessor should hold (0: automatic)"}

[grad_input.plan]
Plan       = "FmaPlan<false, Layer, Tune, Tune::PLANES>"
*/
#include "contract/flat_grid.cuh"
#include "families/register_blocked/copy.cuh"
#include "families/register_blocked/plan.cuh"
#include "hardware/const_loop.cuh"
#include "families/register_blocked/row.cuh"
#include "hardware/pack.cuh"

// The inner loop of register_blocked: 4 neighbouring steps of a thread x the taps of a kernel row, from
// registers.

// Loads LENGTH (a multiple of 4) elements from shared memory, 16 bytes at a time.
template <int LENGTH, class Sum>
__device__ __forceinline__ void fma_load(Sum (&v)[LENGTH], const Sum* from) {
#pragma unroll
  for (int i = 0; i < LENGTH; i += 4) {
    const Pack<Sum, 4> four = *reinterpret_cast<const Pack<Sum, 4>*>(from + i);
#pragma unroll
    for (int e = 0; e < 4; ++e) v[i + e] = four.value[e];
  }
}

// For each tap k of the row: body(Constant<k>, Constant<at>, window), where window[s][at + j * STEP] is what step j of
// strip s meets. source[s] is strip s in plane 0; planes are `plane` elements apart. A window that would take too many
// registers is loaded tap by tap.
template <class Row, int STRIPS, class Sum, int MOST = 20, class Body>
__device__ __forceinline__ void fma_taps(const Sum* const (&source)[STRIPS], int plane, const Body& body) {
  const_loop<0, Row::PLANES>([&](auto which) {
    constexpr int P = decltype(which)::value, LENGTH = Row::window(P);
    if constexpr (LENGTH <= MOST) {
      Sum v[STRIPS][LENGTH];
#pragma unroll
      for (int s = 0; s < STRIPS; ++s) fma_load(v[s], source[s] + P * plane);
      const_loop<0, Row::TAPS>([&](auto tap) {
        constexpr int K = decltype(tap)::value;
        if constexpr (Row::plane_of(K) == P) body(tap, Constant<Row::at(K)>{}, v);
      });
    } else {
      const_loop<0, Row::TAPS>([&](auto tap) {
        constexpr int K = decltype(tap)::value;
        if constexpr (Row::plane_of(K) == P) {
          constexpr int FROM = Row::at(K) / 4 * 4, OFF = Row::at(K) - FROM;
          constexpr int PART = ceil_div(OFF + 3 * Row::STEP + 1, 4) * 4;
          Sum v[STRIPS][PART];
#pragma unroll
          for (int s = 0; s < STRIPS; ++s) fma_load(v[s], source[s] + P * plane + FROM);
          body(tap, Constant<OFF>{}, v);
        }
      });
    }
  });
}

// families/register_blocked/README.md has a picture and the words.

template <class Scalar, class Sum>
struct FmaArguments {
  const Scalar* in;
  const Sum* packed;
  const Scalar* bias;  // null: none
  Scalar* out;
  long long batch;
  int in_d, in_h, in_w, out_d, out_h, out_w;
  FmaTile tile;
  int vector;          // elements that a copy may take together
  unsigned by_pieces;  // of a staged row
};

// Packs weights as [group][channel tile][tap row][chunk][channel of the chunk][tap][channel of the tile], with 0 for
// what does not exist.
template <class P>
__global__ void __launch_bounds__(256) pack_for_fma(const typename P::Scalar* __restrict__ weight,
                                                    typename P::Sum* __restrict__ packed) {
  for (long long e = 1LL * blockIdx.x * blockDim.x + threadIdx.x; e < P::PACKED; e += 1LL * gridDim.x * blockDim.x) {
    const int inner = int(e % P::WEIGHTS);
    long long rest = e / P::WEIGHTS;
    const int m_of_tile = inner % P::MB, kw = inner / P::MB % P::W::TAPS, of_chunk = inner / P::MB / P::W::TAPS;
    const int c = int(rest % P::CHUNKS) * P::KC + of_chunk;
    rest /= P::CHUNKS;
    const int tap_row = int(rest % P::TAP_ROWS);
    rest /= P::TAP_ROWS;
    const int m = int(rest % P::M_TILES) * P::MB + m_of_tile;
    const long long group = rest / P::M_TILES;
    const bool there = of_chunk < P::KC && c < P::K && m < P::M;
    const long long pair = P::FORWARD ? (group * P::K + c) * P::M + m : (group * P::M + m) * P::K + c;
    packed[e] = there ? typename P::Sum(widen(weight[pair * P::TAPS + tap_row * P::W::TAPS + kw]))
                      : typename P::Sum(0);
  }
}

// The steps of a block: the tap rows (kd, kh) that meet its results, one after the other, and the chunks of channels of
// each.
template <class P>
struct FmaSteps {
  int kd, kh, chunk;

  template <class Place>
  __device__ __forceinline__ void settle(const Place& at) {
    for (; kd < P::D::TAPS; ++kd, kh = 0) {
      if (!at.meets_d(kd)) continue;
      for (; kh < P::H::TAPS; ++kh)
        if (at.meets_h(kh)) return;
    }
  }
  template <class Place>
  __device__ __forceinline__ void next(const Place& at) {
    if (++chunk < P::CHUNKS) return;
    chunk = 0;
    ++kh;
    settle(at);
  }
  __device__ __forceinline__ bool ended() const { return kd >= P::D::TAPS; }
};

// Where a block works: step and residue along D, first step and residue along H, number of rows.
template <class P>
struct FmaBlockPlace {
  int qd, rd, qh, rh, rows, in_d, in_h;
  __device__ __forceinline__ int source_d(int kd) const { return qd * P::D::IN_STEP + P::D::BASE + P::D::offset(kd); }
  __device__ __forceinline__ int source_h(int kh) const { return qh * P::H::IN_STEP + P::H::BASE + P::H::offset(kh); }
  __device__ __forceinline__ bool meets_d(int kd) const {
    return P::D::residue(kd) == rd && unsigned(source_d(kd)) < unsigned(in_d);
  }
  __device__ __forceinline__ bool meets_h(int kh) const {
    const int first = source_h(kh);
    return P::H::residue(kh) == rh && first < in_h && first + (rows - 1) * P::H::IN_STEP >= 0;
  }
};

template <class P>
__device__ __forceinline__ void fma_strip_block(const FmaArguments<typename P::Scalar, typename P::Sum>& a,
                                                typename P::Sum* shared) {
  using Scalar = typename P::Scalar;
  using Sum = typename P::Sum;
  using Row = typename P::Row;
  constexpr int MC = P::MC, STRIPS = P::STRIPS, STAGES = P::STAGES;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp % P::WARPS_M, warp_n = warp / P::WARPS_M;

  long long rest = flat_block();
  const int m_tile = int(rest % P::M_TILES);
  rest /= P::M_TILES;
  FmaBlockPlace<P> at;
  at.rh = int(rest % P::H::OUT_STEP);
  rest /= P::H::OUT_STEP;
  const int strip0 = int(rest % a.tile.strip_tiles) * a.tile.strips;
  rest /= a.tile.strip_tiles;
  at.qh = int(rest % a.tile.row_tiles) * a.tile.rows;
  rest /= a.tile.row_tiles;
  const int od = int(rest % a.out_d);
  rest /= a.out_d;
  const int group = int(rest % P::GROUPS);
  const long long n = rest / P::GROUPS;
  if (n >= a.batch) return;  // the whole block
  at.qd = (od + P::D::CUT) / P::D::OUT_STEP, at.rd = (od + P::D::CUT) % P::D::OUT_STEP;
  at.rows = a.tile.rows, at.in_d = a.in_d, at.in_h = a.in_h;

  // The thread's own strips, and where the results of all the tile's strips go.
  const int width = Row::width(a.tile.strips), strips = a.tile.strips * a.tile.rows;
  FmaPlace* places = reinterpret_cast<FmaPlace*>(shared + P::BODY);
  for (int j = threadIdx.x; j < P::TILE; j += P::THREADS) {
    const int r = fma_divided(j, a.tile.by_strips), s = strip0 + j - r * a.tile.strips;
    const int h = (at.qh + r) * P::H::OUT_STEP + at.rh - P::H::CUT;
    const bool there = j < strips && unsigned(h) < unsigned(a.out_h);
    places[j] = {there ? h : -1, 4 * s * P::W::OUT_STEP - P::W::CUT};
  }
  int own[STRIPS];
#pragma unroll
  for (int s = 0; s < STRIPS; ++s) {
    const int j = warp_n * (32 * STRIPS) + s * 32 + lane, r = fma_divided(j, a.tile.by_strips);
    own[s] = j < strips ? r * width + 4 * Row::STEP * (j - r * a.tile.strips) : 0;
  }

  const long long in_plane = 1LL * a.in_h * a.in_w, in_volume = in_plane * a.in_d;
  const Scalar* in = a.in + (n * P::GROUPS + group) * P::K * in_volume;
  const Sum* packed = a.packed + (1LL * group * P::M_TILES + m_tile) * (1LL * P::TAP_ROWS * P::CHUNKS * P::WEIGHTS);
  const auto copy = [&](const FmaSteps<P>& step, Sum* stage) {
    FmaRows of;
    of.rows = a.tile.rows, of.h0 = 0, of.height = a.in_h, of.width = width, of.length = a.in_w, of.by = a.by_pieces;
    of.h0 = at.source_h(step.kh);
    // A team of warps takes every TEAMS-th channel.
    constexpr int TEAMS = P::THREADS / P::TEAM;
    const int team = threadIdx.x / P::TEAM, first_channel = step.chunk * P::KC + team;
    FmaChannels channels;
    channels.count = ceil_div(P::KC - team, TEAMS), channels.there = ceil_div(P::K - first_channel, TEAMS);
    channels.pitch = TEAMS * P::CHANNEL, channels.volume = TEAMS * in_volume;
    const Scalar* source = in + at.source_d(step.kd) * in_plane;
    if (first_channel < P::K) source += first_channel * in_volume;
    const_loop<0, Row::PLANES>([&](auto which) {
      constexpr int PLANE = decltype(which)::value;
      of.first = 4 * Row::STEP * strip0 + Row::low(PLANE);
      fma_copy<P::TEAM, Row::SOURCE_STEP, P::H::IN_STEP>(stage + team * P::CHANNEL + PLANE * P::PLANE, source, of,
                                                         channels, Row::residue_of_plane(PLANE),
                                                         int(threadIdx.x % P::TEAM), a.vector);
    });
    const Sum* weights = packed + (1LL * (step.kd * P::H::TAPS + step.kh) * P::CHUNKS + step.chunk) * P::WEIGHTS;
    constexpr int EACH = 16 / int(sizeof(Sum));
    for (int e = threadIdx.x * EACH; e < P::WEIGHTS; e += P::THREADS * EACH)
      cp_async<16>(stage + P::KC * P::CHANNEL + e, weights + e);
  };

  FmaSteps<P> ahead = {0, 0, 0};
  ahead.settle(at);
  FmaSteps<P> counted = ahead;
  int steps = 0;
  for (; !counted.ended(); counted.next(at)) ++steps;
#pragma unroll 1
  for (int i = 0; i < STAGES - 1; ++i) {
    if (!ahead.ended()) {
      copy(ahead, shared + i * P::STAGE);
      ahead.next(at);
    }
    cp_async_commit();
  }

  Sum sum[MC][STRIPS][P::W::CLASSES][4] = {};
  int now = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();  // this step's copies have arrived; the previous step's buffer is free
    if (!ahead.ended()) {
      copy(ahead, shared + (now == 0 ? STAGES - 1 : now - 1) * P::STAGE);
      ahead.next(at);
    }
    cp_async_commit();
    const Sum* stage = shared + now * P::STAGE;
    if (++now == STAGES) now = 0;
    const Sum* weights = stage + P::KC * P::CHANNEL + warp_m * MC;
#pragma unroll(P::UNROLL)
    for (int c = 0; c < P::KC; ++c) {
      const Sum* source[STRIPS];
#pragma unroll
      for (int s = 0; s < STRIPS; ++s) source[s] = stage + c * P::CHANNEL + own[s];
      fma_taps<Row, STRIPS, Sum>(source, P::PLANE, [&](auto tap, auto from, const auto& v) {
        constexpr int TAP = decltype(tap)::value, AT = decltype(from)::value, CLASS = Row::class_of(TAP);
        const Pack<Sum, MC> w = *reinterpret_cast<const Pack<Sum, MC>*>(weights + (c * Row::TAPS + TAP) * P::MB);
#pragma unroll
        for (int m = 0; m < MC; ++m)
#pragma unroll
          for (int s = 0; s < STRIPS; ++s)
#pragma unroll
            for (int j = 0; j < 4; ++j) sum[m][s][CLASS][j] += v[s][AT + j * Row::STEP] * w.value[m];
      });
    }
  }
  cp_async_wait<0>();
  __syncthreads();  // places are written and no thread reads a stage any more: images take its memory

  const long long out_plane = 1LL * a.out_h * a.out_w, out_volume = out_plane * a.out_d;
  const int first = group * P::M + m_tile * P::MB + warp_m * MC, left = P::M - m_tile * P::MB - warp_m * MC;
  Scalar* out = a.out + (n * (P::GROUPS * P::M) + first) * out_volume + od * out_plane;
  Sum* image = shared + warp * (P::IMAGES * P::Image::FLOATS);
  const_loop<0, STRIPS>([&](auto which) {
    constexpr int S = decltype(which)::value;
    const_loop<0, MC / P::IMAGES>([&](auto part) {
      constexpr int M0 = decltype(part)::value * P::IMAGES;
      if (M0 >= left) return;
      Sum bias[P::IMAGES];
      __syncwarp();
#pragma unroll
      for (int i = 0; i < P::IMAGES; ++i) {
        bias[i] = 0;
        if constexpr (P::HAS_BIAS)
          if (M0 + i < left) bias[i] = widen(a.bias[first + M0 + i]);
        if (steps > 0) P::Image::fill(image + i * P::Image::FLOATS, sum[M0 + i][S], lane);
      }
      __syncwarp();
      P::Image::template drain<P::IMAGES>(image, places + warp_n * (32 * STRIPS) + S * 32, out + M0 * out_volume,
                                          out_volume, a.out_w, left - M0, bias, lane, steps > 0);
    });
  });
}

// Compared with shared_weight_tiling:
// - The source too is staged in shared memory, by cp.async some steps ahead. A thread loads a window of it into
//   registers, 16 bytes at a time, and all taps of a kernel row are shifts within that window.
// - pack_for_fma reorders the weights once, so that a warp gets those of all its channels with one or two loads.
// - Rows are stored as whole pieces, neighbouring lanes side by side.
//
// forward: output residue r along W is a problem of stride 1 over the taps that meet r. A thread holds the sums of all
// residues of its 4 steps; each tap multiplies only what it meets. Rows are stored with zeros (or the bias) for residues
// without taps. A block has one residue of H.
// grad_input: every tap meets every input position, but with a stride neighbouring steps meet elements of grad_output
// that lie a stride apart. There are two ways to stage them. As planes, one for each residue along W that a tap meets:
// within a plane every layer has stride 1. Or in their order in memory, in wide copies: then a thread's window is longer.
//
// thread -> data: warp (channels, positions); a lane has STRIPS runs of 4 steps and MC channels (plan.cuh). A block has
// a few rows of steps of one plane; it walks over the tap rows (kd, kh) that meet them.
// The barrier of a step: its copies have arrived for all threads, and no thread reads the stage that the next
// copies overwrite.
template <class P>
__global__ void __launch_bounds__(P::THREADS, P::BLOCKS) register_blocked(
    FmaArguments<typename P::Scalar, typename P::Sum> arguments) {
  extern __shared__ float4 register_blocked_shared[];
  fma_strip_block<P>(arguments, reinterpret_cast<typename P::Sum*>(register_blocked_shared));
}

template <class P>
long long fma_strip_workspace() {
  return P::PACKED * (long long)(sizeof(typename P::Sum));
}

// `bias` is not read by grad_input, nor if the layer has none.
template <class P>
cudaError_t launch_fma_strip(const Sizes& sizes, const typename P::Scalar* in, const typename P::Scalar* weight,
                             const typename P::Scalar* bias, typename P::Scalar* out, void* workspace,
                             cudaStream_t stream) {
  if (sizes.in_w > 1 << 29 || sizes.out_w > 1 << 29) return cudaErrorInvalidValue;  // columns are counted in int
  FmaArguments<typename P::Scalar, typename P::Sum> a;
  a.in = in, a.bias = bias, a.out = out, a.batch = sizes.batch;
  a.packed = static_cast<const typename P::Sum*>(workspace);
  a.in_d = P::FORWARD ? sizes.in_d : sizes.out_d, a.out_d = P::FORWARD ? sizes.out_d : sizes.in_d;
  a.in_h = P::FORWARD ? sizes.in_h : sizes.out_h, a.out_h = P::FORWARD ? sizes.out_h : sizes.in_h;
  a.in_w = P::FORWARD ? sizes.in_w : sizes.out_w, a.out_w = P::FORWARD ? sizes.out_w : sizes.in_w;
  a.tile = fma_tile(P::W::steps(a.out_w), P::H::steps(a.out_h), P::TILE, P::MOST_ROWS);
  a.vector = P::Row::PLANAR ? 1 : fma_copy_width<typename P::Scalar>(in, a.in_w);
  a.by_pieces = fma_divisor(P::Row::width(a.tile.strips) / a.vector);

  pack_for_fma<P><<<unsigned(P::PACKED < 256 * 1024 ? ceil_div(P::PACKED, 256) : 1024), 256, 0, stream>>>(
      weight, static_cast<typename P::Sum*>(workspace));
  if (const cudaError_t error = cudaGetLastError()) return error;
  const auto kernel = register_blocked<P>;
  if (const cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, P::SHARED_BYTES))
    return error;
  const long long blocks = sizes.batch * P::GROUPS * a.out_d * a.tile.row_tiles * a.tile.strip_tiles *
                           P::H::OUT_STEP * P::M_TILES;
  if (blocks == 0) return cudaSuccess;
  kernel<<<flat_grid(blocks), P::THREADS, P::SHARED_BYTES, stream>>>(a);
  return cudaGetLastError();
}

#ifdef KW_FORWARD
template <class Layer, class Tune>
long long forward_workspace(Layer, Sizes) {
  return fma_strip_workspace<FmaPlan<true, Layer, Tune>>();
}

template <class Layer, class Tune>
cudaError_t forward(Layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
                    const typename Layer::scalar* bias, typename Layer::scalar* output, void* workspace,
                    cudaStream_t stream) {
  return launch_fma_strip<FmaPlan<true, Layer, Tune>>(sizes, input, weight, bias, output, workspace, stream);
}
#else
template <class Layer, class Tune>
long long grad_input_workspace(Layer, Sizes) {
  return fma_strip_workspace<FmaPlan<false, Layer, Tune, Tune::PLANES>>();
}

template <class Layer, class Tune>
cudaError_t grad_input(Layer, Sizes sizes, const typename Layer::scalar* grad_output,
                       const typename Layer::scalar* weight, typename Layer::scalar* grad_input_out, void* workspace,
                       cudaStream_t stream) {
  return launch_fma_strip<FmaPlan<false, Layer, Tune, Tune::PLANES>>(sizes, grad_output, weight, nullptr,
                                                                     grad_input_out, workspace, stream);
}
#endif
