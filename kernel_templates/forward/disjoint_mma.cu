/* variant
name      = "disjoint_mma"
computes  = ["forward"]
after     = "implicit_gemm_mma"
idea      = "Each output gets at most one tap, so one row of inputs gives whole rows of the result."
precision = ["tf32", "tf32x3"]
layer     = ["constant"]
needs     = [
  "(layer.kernel_w - 1) * layer.dilation_w < layer.stride_w",
  "(layer.kernel_h - 1) * layer.dilation_h < layer.stride_h",
  "(layer.kernel_d - 1) * layer.dilation_d < layer.stride_d",
  "max(layer.stride_w, layer.stride_h, layer.stride_d) <= 1024",
  "max(layer.padding_w, layer.padding_h, layer.padding_d) < 2 ** 28",
]

[tune]
WARPS  = {values = [0, 1, 2, 4, 8], default = 0, help = "warps of a block, 16 input positions each (0: automatic)"}
BLOCKS = {values = [1, 2, 3, 4], default = 2, help = "blocks that a multiprocessor should hold"}
IMAGES = {values = [1, 2], default = 1, help = "buffers for result rows; with 2, one is filled while the other is stored"}

[derived]
image      = "256 * layer.stride_w"
warps      = "WARPS if WARPS > 0 else 8 if image <= 1280 else 4 if image <= 2560 else 2 if image <= 5120 else 1"
taps       = "layer.kernel_d * layer.kernel_h * layer.kernel_w"
slabs      = "ceil_div(layer.in_channels // layer.groups, 8)"
held       = "min(slabs, 4 if precision == 'tf32x3' else 8)"
weights    = "taps * ceil_div(slabs, held) * held * (256 if precision == 'tf32x3' else 128)"
threads    = "32 * warps"
smem_bytes = "4 * ((weights if weights <= 12288 else 0) + IMAGES * 16 * (warps * 16 * layer.stride_w + 36))"

[plan]
Plan       = "DisjointPlan<Layer, Tune>"
image      = "Plan::IMAGE_FLOATS"
slabs      = "ceil_div(Plan::K, 8)"
smem_bytes = ">= Plan::SHARED_BYTES"
*/
#include "hardware/const_loop.cuh"
#include "families/disjoint_mma/plan.cuh"
#include "hardware/pack.cuh"
#include "hardware/ptx.cuh"

// families/disjoint_mma/README.md has a picture and the words.

// The run-time arguments of a launch. An item is one batch element, one input plane and row, one chunk of the row.
struct DisjointArguments {
  const float* input;
  const float* weight;
  const float* packed;  // weights, unless blocks pack them
  const float* bias;
  float* output;
  Sizes sizes;
  int planes, rows, chunks, step;  // blocks of outputs along D and H; chunks of a row, and positions from one to the next
  long long items;
};

// Stores values[from..end) of a row whose place in memory is `out`, VECTOR at a time where all of them fit.
template <int VECTOR, class Value>
__device__ __forceinline__ void store_run(float* out, int from, int end, int lane, const Value& value) {
  const int behind = int(reinterpret_cast<size_t>(out + from) / 4 % (32 * VECTOR));  // a line (or more) of 128 bytes
#pragma unroll 4
  for (int i = from - behind + lane * VECTOR; i < end; i += 32 * VECTOR) {
    if (i < from) continue;
    const Pack<float, VECTOR> v = value(i);
    if constexpr (VECTOR == 4) {
      __stcs(reinterpret_cast<float4*>(out + i), make_float4(v.value[0], v.value[1], v.value[2], v.value[3]));
    } else if constexpr (VECTOR == 2) {
      __stcs(reinterpret_cast<float2*>(out + i), make_float2(v.value[0], v.value[1]));
    } else {
      __stcs(out + i, v.value[0]);
    }
  }
}

// Compared with implicit_gemm_mma: only weights are staged. A lane loads the inputs of its fragments itself, once for
// all taps. A row of the result is one image in shared memory: 16 channels x all outputs of the block's positions, so
// long runs are stored at a time. Its zeros between the taps are written once and never touched again. Rows that no tap
// meets are stored straight from registers.
//
// thread -> data: a warp has 16 input positions and 16 channels; then each warp stores some channels' rows.
// The barrier: an image is complete before it is stored. With two images, the next one is filled while this one is
// stored.
template <class Layer, class Tune, int VECTOR>
__global__ void __launch_bounds__(DisjointPlan<Layer, Tune>::THREADS, Tune::BLOCKS)
    disjoint_mma(DisjointArguments a) {
  using P = DisjointPlan<Layer, Tune>;
  constexpr int KW = Layer::kernel_w;
  extern __shared__ __align__(16) float disjoint_shared[];
  float* const images = disjoint_shared + (P::RESIDENT ? P::WEIGHTS : 0);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int cell = blockIdx.x % P::CELLS, group = cell / P::M_TILES, m0 = cell % P::M_TILES * 16;
  const float* const packed = a.packed + cell * P::WEIGHTS;
  const Sizes& sizes = a.sizes;
  const long long in_plane = 1LL * sizes.in_h * sizes.in_w, in_volume = in_plane * sizes.in_d;
  const long long out_plane = 1LL * sizes.out_h * sizes.out_w, out_volume = out_plane * sizes.out_d;
  const auto bias_of = [&](int m) {
    return Layer::has_bias && m0 + m < P::M ? __ldg(a.bias + group * P::M + m0 + m) : 0.0f;
  };

  if constexpr (P::RESIDENT) pack_cell<P, Layer>(a.weight, disjoint_shared, cell, threadIdx.x, P::THREADS);
  for (int i = threadIdx.x; i < Tune::IMAGES * P::IMAGE; i += P::THREADS) images[i] = bias_of(i / P::PITCH % 16);
  const float bias[2] = {bias_of(g), bias_of(g + 8)};
  __syncthreads();

  float raw[P::HELD][P::PIECES][2], high[P::HELD][P::PIECES][2];
  [[maybe_unused]] float low[P::HELD][P::PIECES][2];
  const auto load = [&](long long item, int chunk_of_k) {
    const int chunk = int(item % a.chunks), h = int(item / a.chunks % a.rows) + Layer::padding_h / Layer::stride_h;
    const int d = int(item / a.chunks / a.rows % a.planes) + Layer::padding_d / Layer::stride_d;
    const long long n = item / a.chunks / a.rows / a.planes;
    const int w = P::FIRST_W + chunk * a.step + warp * (8 * P::PIECES) + g;
    const bool row_exists = d < sizes.in_d && h < sizes.in_h;
    const int k0 = chunk_of_k * P::HELD * 8 + t;
    const float* from = a.input + ((n * Layer::groups + group) * P::K + k0) * in_volume + d * in_plane +
                        1LL * h * sizes.in_w + w;
#pragma unroll
    for (int slab = 0; slab < P::HELD; ++slab)
#pragma unroll
      for (int piece = 0; piece < P::PIECES; ++piece)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int k = slab * 8 + half * 4;
          const bool exists = row_exists && k0 + k < P::K && w + piece * 8 < sizes.in_w;
          raw[slab][piece][half] = exists ? __ldg(from + k * in_volume + piece * 8) : 0.0f;
        }
  };
  const auto split = [&] {
#pragma unroll
    for (int slab = 0; slab < P::HELD; ++slab)
#pragma unroll
      for (int piece = 0; piece < P::PIECES; ++piece)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float v = raw[slab][piece][half];
          if constexpr (P::THREE) {
            high[slab][piece][half] = high_tf32(v);
            low[slab][piece][half] = low_tf32(v, high[slab][piece][half]);
          } else {
            high[slab][piece][half] = nearest_tf32(v);
          }
        }
  };
  // sum[tap along W][piece] of one row of taps, over the channels that are held. `weights`: the first slab's.
  const auto multiply = [&](auto& sum, const float* weights, auto first_tap, auto taps) {
#pragma unroll
    for (int slab = 0; slab < P::HELD; ++slab)
#pragma unroll
      for (int i = 0; i < decltype(taps)::value; ++i) {
        const float* from = weights + (slab * KW + decltype(first_tap)::value + i) * (P::PARTS * 128) + lane * 4;
        float A[P::PARTS][4];
#pragma unroll
        for (int p = 0; p < P::PARTS; ++p) {
          const float4* four = reinterpret_cast<const float4*>(from + p * 128);
          const float4 v = P::RESIDENT ? *four : __ldg(four);
          A[p][0] = v.x, A[p][1] = v.y, A[p][2] = v.z, A[p][3] = v.w;
        }
#pragma unroll
        for (int piece = 0; piece < P::PIECES; ++piece) {
          if constexpr (P::THREE) {  // low * low is less than one ulp
            mma_m16n8k8_tf32(sum[i][piece], A[1], high[slab][piece], sum[i][piece]);
            mma_m16n8k8_tf32(sum[i][piece], A[0], low[slab][piece], sum[i][piece]);
          }
          mma_m16n8k8_tf32(sum[i][piece], A[0], high[slab][piece], sum[i][piece]);
        }
      }
  };

  const long long stride = gridDim.x / P::CELLS;
  long long item = blockIdx.x / P::CELLS;
  if (P::CHUNKS == 1 && item < a.items) load(item, 0);
  int turn = 0;
#pragma unroll 1
  for (; item < a.items; item += stride) {
    if constexpr (P::CHUNKS == 1) {  // the next item's inputs are loaded while this one is stored
      split();
      if (item + stride < a.items) load(item + stride, 0);
    }
    const int chunk = int(item % a.chunks), h = int(item / a.chunks % a.rows) + Layer::padding_h / Layer::stride_h;
    const int d = int(item / a.chunks / a.rows % a.planes) + Layer::padding_d / Layer::stride_d;
    const long long n = item / a.chunks / a.rows / a.planes;
    const int origin = (P::FIRST_W + chunk * a.step) * Layer::stride_w - Layer::padding_w;  // w of an image's first value
    const int end_w = chunk + 1 == a.chunks ? sizes.out_w : origin + a.step * Layer::stride_w;
#pragma unroll 1
    for (int r = 0; r < Layer::stride_d * Layer::stride_h; ++r) {
      const int rd = r / Layer::stride_h, rh = r % Layer::stride_h;
      const int od = d * Layer::stride_d - Layer::padding_d + rd, oh = h * Layer::stride_h - Layer::padding_h + rh;
      if (od < 0 || od >= sizes.out_d || oh < 0 || oh >= sizes.out_h) continue;
      const int kd = rd / Layer::dilation_d, kh = rh / Layer::dilation_h;
      const bool met = rd % Layer::dilation_d == 0 && kd < Layer::kernel_d && rh % Layer::dilation_h == 0 &&
                       kh < Layer::kernel_h && d < sizes.in_d && h < sizes.in_h;
      float* const image = images + turn * P::IMAGE;
      if (met) {
        if (Tune::IMAGES == 2) turn ^= 1;
        const float* const weights = (P::RESIDENT ? disjoint_shared : packed) +
                                     (kd * Layer::kernel_h + kh) * (P::SLABS * KW * P::PARTS * 128);
        const_loop<0, ceil_div(KW, P::TAPS_AT_ONCE)>([&](auto part) {
          constexpr int FIRST = decltype(part)::value * P::TAPS_AT_ONCE;
          constexpr int TAPS = KW - FIRST < P::TAPS_AT_ONCE ? KW - FIRST : P::TAPS_AT_ONCE;
          float sum[TAPS][P::PIECES][4] = {};
          if constexpr (P::CHUNKS == 1) {
            multiply(sum, weights, Constant<FIRST>{}, Constant<TAPS>{});
          } else {
#pragma unroll 1
            for (int k = 0; k < P::CHUNKS; ++k) {
              load(item, k);
              split();
              // tf32x3: tensor cores truncate sums, so they sum one chunk only; chunks are added in fp32.
              float few[TAPS][P::PIECES][4] = {};
              multiply(few, weights + k * (P::HELD * KW * P::PARTS * 128), Constant<FIRST>{}, Constant<TAPS>{});
#pragma unroll
              for (int i = 0; i < TAPS; ++i)
#pragma unroll
                for (int piece = 0; piece < P::PIECES; ++piece)
#pragma unroll
                  for (int e = 0; e < 4; ++e) sum[i][piece][e] += few[i][piece][e];
            }
          }
          if (Tune::IMAGES == 1 && FIRST == 0) __syncthreads();  // the previous row is stored
#pragma unroll
          for (int i = 0; i < TAPS; ++i)
#pragma unroll
            for (int piece = 0; piece < P::PIECES; ++piece)
#pragma unroll
              for (int e = 0; e < 4; ++e) {
                const int at = (warp * (8 * P::PIECES) + piece * 8 + 2 * t + e % 2) * Layer::stride_w +
                               (FIRST + i) * Layer::dilation_w;
                image[(g + e / 2 * 8) * P::PITCH + P::LEAD + at] = sum[i][piece][e] + bias[e / 2];
              }
        });
        __syncthreads();
      }
#pragma unroll 1
      for (int m = warp; m < 16 && m0 + m < P::M; m += P::WARPS) {
        float* const out = a.output + ((n * Layer::groups + group) * P::M + m0 + m) * out_volume + od * out_plane +
                           1LL * oh * sizes.out_w;
        // A chunk stores the sectors that begin in its own positions.
        const auto sector = [&](int w) { return w + int(-(reinterpret_cast<size_t>(out) / 4 + w) & 7); };
        const int from = chunk == 0 ? 0 : sector(origin);
        const int end = min(chunk + 1 == a.chunks ? end_w : sector(end_w), sizes.out_w);
        if (met) {
          const float* const row = image + m * P::PITCH + P::LEAD - origin;
          store_run<VECTOR>(out, from, end, lane, [&](int w) {
            return *reinterpret_cast<const Pack<float, VECTOR>*>(row + w);
          });
        } else {
          Pack<float, VECTOR> same;
#pragma unroll
          for (int e = 0; e < VECTOR; ++e) same.value[e] = bias_of(m);
          store_run<VECTOR>(out, from, end, lane, [&](int) { return same; });
        }
      }
    }
  }
}

template <class Layer, class Tune>
long long forward_workspace(Layer, Sizes) {
  using P = DisjointPlan<Layer, Tune>;
  return P::RESIDENT ? 0 : 4 * P::CELLS * P::WEIGHTS;
}

template <class Layer, class Tune, int VECTOR>
cudaError_t launch_disjoint(const DisjointArguments& a, cudaStream_t stream) {
  using P = DisjointPlan<Layer, Tune>;
  const auto kernel = disjoint_mma<Layer, Tune, VECTOR>;
  int device = 0, processors = 0, blocks = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(P::SHARED_BYTES));
  if (error == cudaSuccess)
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, P::THREADS, size_t(P::SHARED_BYTES));
  if (error != cudaSuccess) return error;
  // One wave, in which the blocks have almost the same number of items.
  long long each = 1LL * processors * (blocks > 0 ? blocks : 1) / P::CELLS;
  each = each < 1 ? 1 : each < a.items ? each : a.items;
  each = ceil_div(a.items, ceil_div(a.items, each));
  kernel<<<unsigned(each * P::CELLS), P::THREADS, size_t(P::SHARED_BYTES), stream>>>(a);
  return cudaGetLastError();
}

template <class Layer, class Tune>
cudaError_t forward(Layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
                    const typename Layer::scalar* bias, typename Layer::scalar* output, void* workspace,
                    cudaStream_t stream) {
  using P = DisjointPlan<Layer, Tune>;
  if (sizes.batch == 0) return cudaSuccess;
  DisjointArguments a = {input, weight, static_cast<float*>(workspace), bias, output, sizes, 0, 0, 0, 0, 0};
  const auto owners = [](int out, int padding, int stride) { return (out + padding % stride - 1) / stride + 1; };
  a.planes = owners(sizes.out_d, Layer::padding_d, Layer::stride_d);
  a.rows = owners(sizes.out_h, Layer::padding_h, Layer::stride_h);
  const int positions = owners(sizes.out_w, Layer::padding_w, Layer::stride_w);
  a.step = positions <= P::POSITIONS ? P::POSITIONS : P::POSITIONS - P::OVERLAP;
  a.chunks = ceil_div(positions, a.step);
  a.items = sizes.batch * a.planes * a.rows * a.chunks;
  if constexpr (!P::RESIDENT) {
    constexpr unsigned BLOCKS = unsigned(ceil_div(P::WEIGHTS / (4 * P::PARTS), 64LL));
    const dim3 grid(BLOCKS < 1024 ? BLOCKS : 1024, P::CELLS < 1024 ? P::CELLS : 1024);
    pack_disjoint<P, Layer><<<grid, 64, 0, stream>>>(weight, static_cast<float*>(workspace));
    if (const cudaError_t error = cudaGetLastError()) return error;
  }
  const size_t alike = reinterpret_cast<size_t>(output) / 4 | size_t(sizes.out_w);
  return alike % 4 == 0   ? launch_disjoint<Layer, Tune, 4>(a, stream)
         : alike % 2 == 0 ? launch_disjoint<Layer, Tune, 2>(a, stream)
                          : launch_disjoint<Layer, Tune, 1>(a, stream);
}
