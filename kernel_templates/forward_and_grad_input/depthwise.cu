/* variant
name      = "depthwise"
computes  = ["forward", "grad_input"]
after     = "register_blocked"
idea      = "A block reads a tile of one source channel once and uses it for all taps and all results that need it."
precision = ["ieee", "fp16", "bf16", "fp64"]
layer     = ["constant"]
needs     = [
  "layer.in_channels == layer.groups",
  "layer.kernel_w <= 64 and layer.stride_w <= 16 and taps <= 2048",
  "least <= 256 * STAGE_KB - weights",
  "layer.kernel_w * layer.dilation_w + layer.padding_w < 2 ** 28",
  "layer.kernel_h * layer.dilation_h + layer.padding_h < 2 ** 28",
  "layer.kernel_d * layer.dilation_d + layer.padding_d < 2 ** 28",
]

[tune]
THREADS  = {values = [64, 128, 256], default = 128, help = "threads of a block"}
TILE     = {values = [256, 512, 1024], default = 256, help = "runs of 4 steps that a block computes"}
STAGE_KB = {values = [16, 32, 48, 64], default = 32, help = "shared memory for the source in KB; tiles shrink to fit"}

[derived]
taps       = "layer.kernel_d * layer.kernel_h * (layer.kernel_w + 3) * (layer.out_channels // layer.groups)"
weights    = "taps * (2 if element_bytes == 8 else 1) + 4"
forward    = "direction == 'forward'"
rows       = "(layer.kernel_h - 1) * layer.dilation_h // (layer.stride_h if forward else 1) + 1"
width      = "(layer.kernel_w - 1) * layer.dilation_w // (layer.stride_w if forward else 1) + 4 * (1 if forward else layer.stride_w) + 8"
least      = "layer.kernel_d * rows * width * (2 if element_bytes == 8 else 1)"
image      = "4 * TILE * (layer.stride_w if forward else 1)"
threads    = "THREADS"
smem_bytes = "1024 * STAGE_KB + max(4, element_bytes) * 2 * image"

[plan]
Plan       = "DepthwisePlan<true, Layer, Tune>"
taps       = ">= Plan::MULTIPLIER * Plan::TAP_ROWS * Plan::TAPS_PITCH"
weights    = ">= Plan::WEIGHTS * int(sizeof(typename Plan::Sum)) / 4"
rows       = "Plan::source_rows(1)"
width      = ">= Plan::Row::width(1)"
least      = ">= Plan::DEPTHS * Plan::source_rows(1) * Plan::Row::width(1) * int(sizeof(typename Plan::Sum)) / 4"
smem_bytes = ">= (Plan::IMAGES * Plan::IMAGE + Plan::ROOM) * int(sizeof(typename Plan::Sum))"

[grad_input.plan]
Plan       = "DepthwisePlan<false, Layer, Tune>"
*/
#include "families/depthwise/plan.cuh"
#include "contract/flat_grid.cuh"
#include "families/register_blocked/window.cuh"

// families/depthwise/README.md has a picture and the words.

template <class Scalar>
struct DepthwiseArguments {
  const Scalar *in, *weight, *bias;  // bias null: none
  Scalar* out;
  long long planes;  // batch * channels
  int in_d, in_h, in_w, out_d, out_h, out_w;
  DepthwiseTile tile;
  int vector;          // elements that a copy may take together
  unsigned by_pieces;  // of a staged row
};

template <class P>
__device__ __forceinline__ void depthwise_block(const DepthwiseArguments<typename P::Scalar>& a,
                                                typename P::Sum* shared) {
  using Scalar = typename P::Scalar;
  using Sum = typename P::Sum;
  using Row = typename P::Row;
  using D = typename P::D;
  using H = typename P::H;
  using W = typename P::W;
  constexpr int THREADS = P::THREADS, TAPS = W::TAPS, EACH = 4 * W::OUT_STEP;
  const DepthwiseTile& t = a.tile;

  const long long in_a_plane = 1LL * t.strip_tiles * t.row_tiles * a.out_d;
  const long long plane0 = flat_block() / in_a_plane * t.planes;
  if (plane0 >= a.planes) return;  // the whole block
  unsigned rest = unsigned(flat_block() % in_a_plane);
  const int strip0 = int(rest % t.strip_tiles) * t.strips;
  rest /= t.strip_tiles;
  const int qh0 = int(rest % t.row_tiles) * t.rows, od = int(rest / t.row_tiles);
  const int planes = a.planes - plane0 < t.planes ? int(a.planes - plane0) : t.planes;
  const int qd = (od + D::CUT) / D::OUT_STEP, rd = (od + D::CUT) % D::OUT_STEP;
  const int width = Row::width(t.strips), source_rows = P::source_rows(t.rows);
  const long long in_plane = 1LL * a.in_h * a.in_w, out_plane = 1LL * a.out_h * a.out_w;
  const auto source_d = [&](int kd) { return qd * D::IN_STEP + D::BASE + D::offset(kd); };
  const auto meets_d = [&](int kd) { return D::residue(kd) == rd && unsigned(source_d(kd)) < unsigned(a.in_d); };

  Sum* const images = shared;
  Sum* const weights = images + P::IMAGES * P::IMAGE;
  Sum* const sources = weights + t.planes * P::WEIGHTS;
  for (int e = threadIdx.x; e < planes * (P::MULTIPLIER * P::TAP_ROWS * TAPS); e += THREADS) {
    const int row = e / TAPS, plane = row / (P::MULTIPLIER * P::TAP_ROWS);
    const long long channel = (plane0 + plane) % P::CHANNELS;
    weights[plane * P::WEIGHTS + row % (P::MULTIPLIER * P::TAP_ROWS) * P::TAPS_PITCH + e % TAPS] =
        widen(a.weight[channel * (P::MULTIPLIER * P::TAP_ROWS * TAPS) + e % (P::MULTIPLIER * P::TAP_ROWS * TAPS)]);
  }

  // Lanes that store one row of results together: as many as the row needs, or one warp if there are rows for all
  // warps.
  const int image_width = t.strips * EACH, row_count = planes * t.rows;
  int lanes_log = P::THREADS_LOG;
  while (lanes_log > 0 && ((1 << (lanes_log - 1)) >= image_width ||
                           (lanes_log > 5 && row_count >= 2 << (P::THREADS_LOG - lanes_log))))
    --lanes_log;
  const int lanes = 1 << lanes_log, out_w0 = 4 * strip0 * W::OUT_STEP - W::CUT;
  int turn = 0;

  constexpr int OWN = P::TILE / THREADS;  // strips of a thread
  Sum sum[OWN][W::CLASSES][4];
#pragma unroll 1
  for (int from = 0; from < P::SOURCES; ++from) {
    if (from > 0) __syncthreads();  // the channel before has been read
    FmaRows of;
    of.h0 = qh0 * H::IN_STEP + H::BASE, of.rows = source_rows, of.height = a.in_h;
    of.first = 4 * Row::STEP * strip0 + Row::low(0), of.width = width, of.length = a.in_w, of.by = a.by_pieces;
#pragma unroll 1
    for (int plane = 0; plane < planes; ++plane) {
      Sum* to = sources + plane * (P::DEPTHS * source_rows * width);
      const Scalar* source = a.in + ((plane0 + plane) * P::SOURCES + from) * (in_plane * a.in_d);
      for (int kd = 0; kd < D::TAPS; ++kd)
        if (meets_d(kd)) {
          fma_copy<THREADS, 1, 1>(to, source + source_d(kd) * in_plane, of, FmaOneChannel{}, 0, int(threadIdx.x),
                                  a.vector);
          to += source_rows * width;
        }
    }
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();  // sources (and weights) are there

#pragma unroll 1
    for (int result = 0; result < P::RESULTS; ++result)
#pragma unroll 1
      for (int rh = 0; rh < H::OUT_STEP; ++rh) {
        const_loop<0, OWN>([&](auto which) {
          constexpr int I = decltype(which)::value;
          const int j = I * THREADS + threadIdx.x, row = fma_divided(j, t.by_strips), s = j - row * t.strips;
          const int plane = fma_divided(row, t.by_rows), r = row - plane * t.rows;
          if (P::FORWARD || from == 0)
#pragma unroll
            for (int c = 0; c < W::CLASSES; ++c) sum[I][c][0] = sum[I][c][1] = sum[I][c][2] = sum[I][c][3] = 0;
          if (row >= row_count) return;
          const Sum* slice = sources + (plane * P::DEPTHS * source_rows + r * H::IN_STEP) * width + 4 * Row::STEP * s;
          const Sum* w = weights + plane * P::WEIGHTS + (result + from) * (P::TAP_ROWS * P::TAPS_PITCH);
#pragma unroll 1
          for (int kd = 0; kd < D::TAPS; ++kd) {
            if (!meets_d(kd)) continue;
#pragma unroll(H::TAPS * TAPS <= 32 ? H::TAPS : 1)
            for (int kh = 0; kh < H::TAPS; ++kh) {
              if (H::residue(kh) != rh) continue;
              const Sum* source[1] = {slice + H::offset(kh) * width};
              const Sum* row_weights = w + (kd * H::TAPS + kh) * P::TAPS_PITCH;
              Sum weight[P::TAPS_PITCH];
              if constexpr (P::TAPS_PITCH % 4 == 0) {
                fma_load(weight, row_weights);
              } else {
                for (int k = 0; k < TAPS; ++k) weight[k] = row_weights[k];
              }
              fma_taps<Row, 1, Sum, 32>(source, 0, [&](auto tap, auto at, const auto& v) {
                constexpr int TAP = decltype(tap)::value, AT = decltype(at)::value, CLASS = Row::class_of(TAP);
#pragma unroll
                for (int step = 0; step < 4; ++step)
                  sum[I][CLASS][step] += v[0][AT + step * Row::STEP] * weight[TAP];
              });
            }
            slice += source_rows * width;
          }
        });
        if (from + 1 < P::SOURCES) continue;

        // Results go through shared memory, so that rows are stored as whole pieces. If there are several images, two
        // are used in turn; then one barrier for each image is enough.
        Sum* const image = images + turn * P::IMAGE;
        turn = P::IMAGES - 1 - turn;
        const_loop<0, OWN>([&](auto which) {
          constexpr int I = decltype(which)::value;
          const int j = I * THREADS + threadIdx.x;
          if (j >= row_count * t.strips) return;
          strip_unrolled<W::OUT_STEP>([&](auto part) {
            constexpr int FIRST = decltype(part)::value * 4;
            Pack<Sum, 4> four;
            strip_unrolled<4>([&](auto element) {
              constexpr int E = decltype(element)::value, AT = FIRST + E, R = AT % W::OUT_STEP;
              if constexpr (W::met(R)) {
                four.value[E] = sum[I][W::class_of(R)][AT / W::OUT_STEP];
              } else {
                four.value[E] = Sum(0);
              }
            });
            *reinterpret_cast<Pack<Sum, 4>*>(image + j * EACH + FIRST) = four;
          });
        });
        __syncthreads();
        for (int row = threadIdx.x >> lanes_log; row < row_count; row += THREADS >> lanes_log) {
          const int plane = fma_divided(row, t.by_rows);
          const int h = (qh0 + row - plane * t.rows) * H::OUT_STEP + rh - H::CUT;
          if (unsigned(h) >= unsigned(a.out_h)) continue;
          const long long channel = (plane0 + plane) * P::RESULTS + result;
          Sum bias = 0;
          if constexpr (P::HAS_BIAS) bias = widen(a.bias[channel % (P::CHANNELS * P::RESULTS)]);
          Scalar* out = a.out + (channel * a.out_d + od) * out_plane + 1LL * h * a.out_w;
          const Sum* from_row = image + row * image_width;
#pragma unroll 4
          for (int c = threadIdx.x & (lanes - 1); c < image_width; c += lanes)
            if (unsigned(out_w0 + c) < unsigned(a.out_w)) out[out_w0 + c] = narrow<Scalar>(from_row[c] + bias);
        }
      }
  }
}

// Compared with register_blocked: the sum goes over taps alone, so the time goes to memory. A block stages the rows of
// one source plane that a tile of steps meets, for all tap rows at once. It has no pipeline; several blocks share a
// multiprocessor instead. Small planes share a block.
//
// forward: a block computes all residues of H and W of its tile, for each output channel of the group.
// grad_input: a block stages the gradients that a tile of inputs meets as they lie, whatever the stride, one output
// channel of the group after the other.
//
// thread -> data: strips of 4 neighbouring steps, TILE / THREADS of them.
// The barriers: sources have arrived before a thread reads them; an image of the results is complete before its rows
// are stored, with neighbouring lanes side by side.
template <class P>
__global__ void __launch_bounds__(P::THREADS, 512 / P::THREADS) depthwise(
    DepthwiseArguments<typename P::Scalar> arguments) {
  extern __shared__ float4 depthwise_shared[];
  depthwise_block<P>(arguments, reinterpret_cast<typename P::Sum*>(depthwise_shared));
}

// `bias` is not read by grad_input, nor if the layer has none.
template <class P>
cudaError_t launch_depthwise(const Sizes& sizes, const typename P::Scalar* in, const typename P::Scalar* weight,
                             const typename P::Scalar* bias, typename P::Scalar* out, cudaStream_t stream) {
  if (sizes.in_w > 1 << 29 || sizes.out_w > 1 << 29) return cudaErrorInvalidValue;  // columns are counted in int
  DepthwiseArguments<typename P::Scalar> a;
  a.in = in, a.weight = weight, a.bias = bias, a.out = out, a.planes = sizes.batch * P::CHANNELS;
  a.in_d = P::FORWARD ? sizes.in_d : sizes.out_d, a.out_d = P::FORWARD ? sizes.out_d : sizes.in_d;
  a.in_h = P::FORWARD ? sizes.in_h : sizes.out_h, a.out_h = P::FORWARD ? sizes.out_h : sizes.in_h;
  a.in_w = P::FORWARD ? sizes.in_w : sizes.out_w, a.out_w = P::FORWARD ? sizes.out_w : sizes.in_w;
  a.tile = depthwise_tile<P>(P::W::steps(a.out_w), P::H::steps(a.out_h));
  a.vector = fma_copy_width<typename P::Scalar>(in, a.in_w);
  a.by_pieces = fma_divisor(P::Row::width(a.tile.strips) / a.vector);
  const int elements = P::IMAGES * P::IMAGE + a.tile.planes * P::WEIGHTS + a.tile.elements;
  const int bytes = elements * int(sizeof(typename P::Sum));
  const auto kernel = depthwise<P>;
  if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
    return error;
  const long long blocks = 1LL * a.tile.strip_tiles * a.tile.row_tiles * a.out_d * ceil_div(a.planes, a.tile.planes);
  if (blocks == 0) return cudaSuccess;
  kernel<<<flat_grid(blocks), P::THREADS, bytes, stream>>>(a);
  return cudaGetLastError();
}

#ifdef KW_FORWARD
template <class Layer, class Tune>
long long forward_workspace(Layer, Sizes) {
  return 0;
}

template <class Layer, class Tune>
cudaError_t forward(Layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
                    const typename Layer::scalar* bias, typename Layer::scalar* output, void*, cudaStream_t stream) {
  return launch_depthwise<DepthwisePlan<true, Layer, Tune>>(sizes, input, weight, bias, output, stream);
}
#else
template <class Layer, class Tune>
long long grad_input_workspace(Layer, Sizes) {
  return 0;
}

template <class Layer, class Tune>
cudaError_t grad_input(Layer, Sizes sizes, const typename Layer::scalar* grad_output,
                       const typename Layer::scalar* weight, typename Layer::scalar* grad_input_out, void*,
                       cudaStream_t stream) {
  return launch_depthwise<DepthwisePlan<false, Layer, Tune>>(sizes, grad_output, weight, nullptr, grad_input_out,
                                                             stream);
}
#endif
