/* variant
name      = "depthwise_rows"
computes  = ["forward", "grad_input"]
after     = "depthwise"
idea      = "Each thread computes a run of neighbouring results from a window of the source in registers; no block waits."
precision = ["ieee", "fp16", "bf16", "fp64"]
layer     = ["constant"]
needs     = [
  "layer.in_channels == layer.groups",
  "layer.kernel_w <= 64 and layer.stride_w <= 32",
  "layer.kernel_w * layer.dilation_w + layer.padding_w < 2 ** 28",
  "layer.kernel_h * layer.dilation_h + layer.padding_h < 2 ** 28",
  "layer.kernel_d * layer.dilation_d + layer.padding_d < 2 ** 28",
]

[tune]
THREADS   = {values = [64, 128, 256], default = 128, help = "threads of a block, at most"}
RUN_BYTES = {values = [4, 8, 16, 32], default = 16, help = "bytes of neighbouring steps that a thread computes; fewer with a long stride"}
ROWS      = {values = [1, 2, 4], default = 2, help = "steps along H of a thread, at most"}
RUNS      = {values = [1, 2, 4], default = 1, help = "such blocks of steps of a thread, at most"}
EXCHANGE  = {values = [0, 1], default = 1, help = "1: lanes exchange results before they store them, to fill whole sectors"}

[derived]
threads    = "THREADS"
run        = "max(RUN_BYTES, element_bytes) * (layer.stride_w if direction == 'forward' else 1)"
smem_bytes = "min(THREADS * (run + 16), 32768)"

[plan]
Plan       = "RowsPlan<true, Layer, Tune>"
run        = ">= Plan::RUN * Plan::BYTES"
smem_bytes = ">= Plan::IMAGE * Plan::BYTES"

[grad_input.plan]
Plan       = "RowsPlan<false, Layer, Tune>"
*/
#include "families/depthwise_rows/plan.cuh"
#include "families/depthwise_rows/row.cuh"
#include "families/depthwise_rows/store.cuh"

// families/depthwise_rows/README.md has a picture and the words.

struct RowsArguments {
  long long planes;  // batch * channels, of the result
  int source_d, source_h, source_w, result_d, result_h, result_w;
  RowsTile tile;
  int together;  // results that may be stored together
};

// What a source row adds to the results of a thread.
template <class P, int V>
struct RowsSums {
  using Scalar = typename P::Scalar;
  using Sum = typename P::Sum;
  using W = typename P::W;
  using H = typename P::H;

  // sum[r][i] += window * weight(kh, k), for all tap rows KH_FROM <= kh < KH_END and rows r that meet(kh, r).
  template <int KH_FROM, int KH_END, class Rows, class Weight>
  static __device__ __forceinline__ void add(Sum (&sum)[P::ROWS][P::RUN], const Scalar* __restrict__ row, int run,
                                             int length, const Rows&, const Weight& weight) {
    tap_groups<P::KW>([&](auto tap, auto end) {
      constexpr int TAP = decltype(tap)::value, END = decltype(end)::value;
      using Window = RunWindow<W, TAP, END, V>;
      Sum x[Window::LENGTH];
      load_run<Window, V>(x, row, run * W::SOURCES + Window::FIRST, length);
      const_loop<KH_FROM, KH_END>([&](auto which) {
        constexpr int KH = decltype(which)::value;
        if constexpr (Rows::any(KH)) {
          Sum w[END - TAP];
#pragma unroll
          for (int k = TAP; k < END; ++k) w[k - TAP] = weight(KH, k);
#pragma unroll
          for (int r = 0; r < P::ROWS; ++r) {
            if (!Rows::meets(KH, r)) continue;
#pragma unroll
            for (int k = TAP; k < END; ++k)
#pragma unroll
              for (int i = 0; i < P::RUN; ++i)
                if (W::met(i, k)) sum[r][i] += x[W::at(i, k) - Window::FIRST] * w[k - TAP];
          }
        }
      });
    });
  }

  // Source row ROW of a block of rows.
  template <int ROW>
  struct Blocked {
    static constexpr __host__ __device__ bool meets(int kh, int r) {
      return P::H::met(r, kh) && P::H::at(r, kh) == ROW;
    }
    static constexpr __host__ __device__ bool any(int kh) {
      for (int r = 0; r < P::ROWS; ++r)
        if (meets(kh, r)) return true;
      return false;
    }
  };
  // One row of results: the caller has found the tap row that meets the source row.
  struct Single {
    static constexpr __host__ __device__ bool meets(int, int) { return true; }
    static constexpr __host__ __device__ bool any(int) { return true; }
  };
};

// Compared with depthwise: nothing is staged, so no block waits for its slowest copy. A thread loads the windows of its
// own run by wide loads; neighbours that need the same elements find them in L1. Weights are read in the same way.
//
// thread -> data: RUNS blocks of ROWS x RUN results of one slice of a plane. Lanes lie along the runs of a row, then
// along rows, then along planes where they are small.
// The only barriers are those of a warp that exchanges its results before it stores them.
// Bytes are saved in L1: a source row is read once for all rows of the block that meet it.
template <class P, int V>
__global__ void __launch_bounds__(P::THREADS, 512 / P::THREADS) depthwise_rows(
    RowsArguments a, const typename P::Scalar* __restrict__ source, const typename P::Scalar* __restrict__ weight,
    const typename P::Scalar* __restrict__ bias, typename P::Scalar* __restrict__ result) {
  using Scalar = typename P::Scalar;
  using Sum = typename P::Sum;
  using W = typename P::W;
  using H = typename P::H;
  using Sums = RowsSums<P, V>;
  __shared__ float4 image[ceil_div(P::IMAGE * P::BYTES, 16)];
  Scalar* const own_image =
      reinterpret_cast<Scalar*>(image) + (P::EXCHANGES ? int(threadIdx.x) / 32 * 32 * P::PITCH : 0);
  const RowsTile& t = a.tile;
  const long long source_plane = 1LL * a.source_h * a.source_w, result_plane = 1LL * a.result_h * a.result_w;
  const int group = fma_divided(int(threadIdx.x), t.by_threads);
  const int first_item = int(threadIdx.x) - group * t.threads;

  // The runs of this thread.
  int run[P::RUNS];
  long long h[P::RUNS];  // blocks of rows
  bool there[P::RUNS];
  {
    const long long first = 1LL * blockIdx.x * (P::RUNS * t.threads);
    const long long row = t.row_blocks == 1 ? 0 : first >> 31 ? first / t.runs : unsigned(first) / unsigned(t.runs);
    const int rest = int(first - row * t.runs) + first_item;
#pragma unroll
    for (int u = 0; u < P::RUNS; ++u) {
      const int item = rest + u * t.threads, rows = t.row_blocks == 1 ? 0 : int(unsigned(item) / unsigned(t.runs));
      run[u] = item - rows * t.runs, h[u] = row + rows;
      there[u] = group < t.planes && h[u] < t.row_blocks && run[u] < t.runs;
    }
  }

#pragma unroll 1
  for (long long planes = 1LL * blockIdx.z * t.planes; planes < a.planes; planes += 1LL * gridDim.z * t.planes) {
    const bool exists = planes + group < a.planes;
    const long long plane = exists ? planes + group : 0;
    const int channel = int(plane % P::CHANNELS);
#pragma unroll 1
    for (int slice = blockIdx.y; slice < a.result_d; slice += gridDim.y) {
      Sum sum[P::RUNS][P::ROWS][P::RUN];
#pragma unroll
      for (int u = 0; u < P::RUNS; ++u)
#pragma unroll
        for (int r = 0; r < P::ROWS; ++r)
#pragma unroll
          for (int i = 0; i < P::RUN; ++i) sum[u][r][i] = 0;

#pragma unroll 1
      for (int from = 0; from < P::SOURCES; ++from)
#pragma unroll 1
        for (int kd = 0; kd < P::KD; ++kd) {
          int met = P::FORWARD ? slice + P::PD - kd * P::DD : slice * P::SD - P::PD + kd * P::DD;
          if (P::FORWARD) {
            if (met % P::SD != 0) continue;
            met /= P::SD;
          }
          if (unsigned(met) >= unsigned(a.source_d)) continue;
          const long long source_of = P::FORWARD ? plane / P::MULTIPLIER : plane * P::MULTIPLIER + from;
          const Scalar* const from_slice = source + (source_of * a.source_d + met) * source_plane;
          const Scalar* const weights =
              weight + (1LL * (P::FORWARD ? channel : channel * P::MULTIPLIER + from) * P::KD + kd) * (P::KH * P::KW);
          const auto in_memory = [&](int kh, int k) { return Sum(widen(weights[kh * P::KW + k])); };

          if constexpr (P::BLOCKED) {
            Sum kept[P::KEEPS_WEIGHTS ? P::KH * P::KW : 1];
            if constexpr (P::KEEPS_WEIGHTS)
#pragma unroll
              for (int k = 0; k < P::KH * P::KW; ++k) kept[k] = Sum(widen(weights[k]));
            constexpr int FIRST = H::first(0, P::KH), LAST = H::last(0, P::KH);
            const_loop<0, LAST - FIRST + 1>([&](auto which) {
              constexpr int ROW = FIRST + decltype(which)::value;
              if constexpr (H::meets_between(ROW, ROW + 1, 0, P::KH)) {
#pragma unroll
                for (int u = 0; u < P::RUNS; ++u) {
                  const long long at = h[u] * P::SOURCE_ROWS + ROW;
                  const bool inside = exists && there[u] && at >= 0 && at < a.source_h;
                  const Scalar* const row = from_slice + (inside ? at * a.source_w : 0);
                  const auto of = [&](int kh, int k) {
                    if constexpr (P::KEEPS_WEIGHTS)
                      return kept[kh * P::KW + k];
                    else
                      return in_memory(kh, k);
                  };
                  Sums::template add<0, P::KH>(sum[u], row, run[u], inside ? a.source_w : 0,
                                               typename Sums::template Blocked<ROW>{}, of);
                }
              }
            });
          } else {
#pragma unroll 1
            for (int kh = 0; kh < P::KH; ++kh) {
              const auto of = [&](int, int k) { return in_memory(kh, k); };
#pragma unroll
              for (int u = 0; u < P::RUNS; ++u) {
                long long at = P::FORWARD ? h[u] + P::PH - 1LL * kh * P::DH : h[u] * P::SH - P::PH + 1LL * kh * P::DH;
                bool inside = exists && there[u];
                if (P::FORWARD) inside = inside && at % P::SH == 0, at /= P::SH;
                inside = inside && at >= 0 && at < a.source_h;
                const Scalar* const row = from_slice + (inside ? at * a.source_w : 0);
                Sums::template add<0, 1>(sum[u], row, run[u], inside ? a.source_w : 0, typename Sums::Single{}, of);
              }
            }
          }
        }

      Sum added = 0;
      if constexpr (P::HAS_BIAS) added = widen(bias[channel]);
#pragma unroll
      for (int u = 0; u < P::RUNS; ++u)
#pragma unroll
        for (int r = 0; r < P::ROWS; ++r) {
          const long long row = h[u] * P::ROWS + r;
          const bool inside = exists && there[u] && row < a.result_h;
          Scalar own[P::RUN];
#pragma unroll
          for (int i = 0; i < P::RUN; ++i) own[i] = narrow<Scalar>(sum[u][r][i] + added);
          Scalar* const to = result + (inside ? (plane * a.result_d + slice) * result_plane + row * a.result_w +
                                                    1LL * run[u] * P::RUN
                                              : 0);
          store_runs_by<P::STORE, P::EXCHANGES, P::PITCH>(a.together, own, own_image, to,
                                                          inside ? a.result_w - run[u] * P::RUN : 0,
                                                          int(threadIdx.x) % 32);
        }
    }
  }
}

// One kernel for each width of loads: V is the widest that rows allow.
template <class P, int V>
cudaError_t launch_rows(const RowsArguments& a, int vector, const typename P::Scalar* source,
                        const typename P::Scalar* weight, const typename P::Scalar* bias, typename P::Scalar* result,
                        cudaStream_t stream) {
  if constexpr (V > 1) {
    if (vector < V) return launch_rows<P, V / 2>(a, vector, source, weight, bias, result, stream);
  }
  const long long planes = ceil_div(a.planes, a.tile.planes);
  const dim3 grid(unsigned(a.tile.blocks), unsigned(a.result_d < 65535 ? a.result_d : 65535),
                  unsigned(planes < 65535 ? planes : 65535));
  const int threads = ceil_div(a.tile.threads * a.tile.planes, 32) * 32;
  depthwise_rows<P, V><<<grid, threads, 0, stream>>>(a, source, weight, bias, result);
  return cudaGetLastError();
}

// `bias` is not read by grad_input, nor if the layer has none.
template <class P>
cudaError_t launch_depthwise_rows(const Sizes& sizes, const typename P::Scalar* source,
                                  const typename P::Scalar* weight, const typename P::Scalar* bias,
                                  typename P::Scalar* result, cudaStream_t stream) {
  if (sizes.in_w > 1 << 29 || sizes.out_w > 1 << 29) return cudaErrorInvalidValue;  // columns are counted in int
  RowsArguments a;
  a.planes = sizes.batch * P::CHANNELS;
  a.source_d = P::FORWARD ? sizes.in_d : sizes.out_d, a.result_d = P::FORWARD ? sizes.out_d : sizes.in_d;
  a.source_h = P::FORWARD ? sizes.in_h : sizes.out_h, a.result_h = P::FORWARD ? sizes.out_h : sizes.in_h;
  a.source_w = P::FORWARD ? sizes.in_w : sizes.out_w, a.result_w = P::FORWARD ? sizes.out_w : sizes.in_w;
  if (a.planes == 0) return cudaSuccess;
  a.tile = rows_tile<P>(a.result_w, a.result_h);
  a.together = run_vector_of(result, a.result_w, P::STORE, P::BYTES);
  const int vector = run_vector_of(source, a.source_w, P::LOAD, P::BYTES);
  return launch_rows<P, P::LOAD>(a, vector, source, weight, bias, result, stream);
}

#ifdef KW_FORWARD
template <class Layer, class Tune>
long long forward_workspace(Layer, Sizes) {
  return 0;
}

template <class Layer, class Tune>
cudaError_t forward(Layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
                    const typename Layer::scalar* bias, typename Layer::scalar* output, void*, cudaStream_t stream) {
  return launch_depthwise_rows<RowsPlan<true, Layer, Tune>>(sizes, input, weight, bias, output, stream);
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
  return launch_depthwise_rows<RowsPlan<false, Layer, Tune>>(sizes, grad_output, weight, nullptr, grad_input_out,
                                                             stream);
}
#endif
