/* variant
name      = "depthwise_rows"
computes  = ["forward", "grad_input"]
after     = "register_blocked"
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
ROWS      = {values = [1, 2, 4], default = 4, help = "steps along H that a thread computes, at most"}
RUNS      = {values = [1, 2, 4], default = 1, help = "groups of ROWS runs that a thread computes at a time, at most"}
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
#include "contract/scalar.cuh"
#include "families/depthwise_rows/axis.cuh"
#include "hardware/pack.cuh"

// A run of results from the registers of each lane to memory. Lanes exchange their runs through shared memory first, so
// that neighbouring lanes store neighbouring pieces and a store fills whole sectors.

// Stores the first `count` elements of `run` at `to`, V at a time. V divides count and the address.
template <int V, int RUN, class Scalar>
__device__ __forceinline__ void store_own_run(const Scalar (&run)[RUN], Scalar* to, int count) {
#pragma unroll
  for (int i = 0; i < RUN; i += V) {
    Pack<Scalar, V> part;
#pragma unroll
    for (int e = 0; e < V; ++e) part.value[e] = run[i + e];
    if (i < count) *reinterpret_cast<Pack<Scalar, V>*>(to + i) = part;
  }
}

// The same for a whole warp; count may be negative. `image` holds a run for each lane, PITCH elements apart. Where all
// runs of the warp lie one behind the other, lanes need no addresses of other lanes.
// The barriers: a run is complete before other lanes read it, and read before the next one overwrites it.
template <int V, int PITCH, int RUN, class Scalar>
__device__ __forceinline__ void store_runs(const Scalar (&run)[RUN], Scalar* image, Scalar* to, int count, int lane) {
  constexpr int OWN = run_vector(RUN, int(sizeof(Scalar))), PIECES = RUN / V;
  static_assert(PITCH % OWN == 0, "runs begin at whole vectors");
  const auto piece_at = [&](int piece) {
    return *reinterpret_cast<const Pack<Scalar, V>*>(image + piece / PIECES * PITCH + piece % PIECES * V);
  };
  store_own_run<OWN>(run, image + lane * PITCH, RUN);
  const auto address = reinterpret_cast<unsigned long long>(to);
  const auto behind = address - lane * (RUN * sizeof(Scalar));
  __syncwarp();
  // One behind the other: in one row, or in several rows whose ends no run crosses.
  const bool full = __all_sync(0xffffffffu, count >= RUN);
  const int in_row = full ? 32 * RUN : __shfl_sync(0xffffffffu, count, 0);
  if (__all_sync(0xffffffffu, behind == __shfl_sync(0xffffffffu, behind, 0) && (full || count + lane * RUN == in_row))) {
    const int left = in_row - lane * V;
    Scalar* const target = to - lane * (RUN - V);
#pragma unroll
    for (int i = 0; i < PIECES; ++i)
      if (i * 32 * V < left) *reinterpret_cast<Pack<Scalar, V>*>(target + i * 32 * V) = piece_at(i * 32 + lane);
  } else {
#pragma unroll 2
    for (int i = 0; i < PIECES; ++i) {
      const int piece = i * 32 + lane, owner = piece / PIECES, first = piece % PIECES * V;
      auto* const target = reinterpret_cast<Scalar*>(__shfl_sync(0xffffffffu, address, owner)) + first;
      const int left = __shfl_sync(0xffffffffu, count, owner);
      if (first < left) *reinterpret_cast<Pack<Scalar, V>*>(target) = piece_at(piece);
    }
  }
  __syncwarp();
}

// V is the widest of MOST, MOST / 2, ... that is at most `together`, which the host has computed.
template <int MOST, bool EXCHANGES, int PITCH, int RUN, class Scalar>
__device__ __forceinline__ void store_runs_by(int together, const Scalar (&run)[RUN], Scalar* image, Scalar* to,
                                              int count, int lane) {
  if constexpr (MOST > 1) {
    if (together < MOST) return store_runs_by<MOST / 2, EXCHANGES, PITCH>(together, run, image, to, count, lane);
  }
  if constexpr (EXCHANGES && RUN > MOST)
    store_runs<MOST, PITCH>(run, image, to, count, lane);
  else
    store_own_run<MOST>(run, to, count);
}

// families/depthwise_rows/README.md has a picture and the words.

struct RowsArguments {
  long long planes, first_plane;  // batch * channels, of the result; where this launch begins
  int first_channel;
  int source_d, source_h, source_w, result_d, result_h, result_w;
  int first_slice;
  RowsTile tile;
  int together;  // results that may be stored together
};

// Which tap rows kh meet a source row for row r of the results. Here: source row ROW of a block of rows.
template <class P, int ROW>
struct BlockRows {
  static constexpr int TAP_ROWS = P::KH;
  static constexpr __host__ __device__ bool meets(int kh, int r) { return P::H::met(r, kh) && P::H::at(r, kh) == ROW; }
  static constexpr __host__ __device__ bool any(int kh) {
    for (int r = 0; r < P::ROWS; ++r)
      if (meets(kh, r)) return true;
    return false;
  }
};

// Here: one tap row, found by the caller, for one row of results.
struct SingleRow {
  static constexpr int TAP_ROWS = 1;
  static constexpr __host__ __device__ bool meets(int, int) { return true; }
  static constexpr __host__ __device__ bool any(int) { return true; }
};

// What a source row adds: sum[r][i] += window * weight(kh, k), wherever tap row kh meets it for row r.
template <class P, int V>
struct RowsSums {
  template <class Rows, class Weight>
  static __device__ __forceinline__ void add(typename P::Sum (&sum)[P::ROWS][P::RUN],
                                             const typename P::Scalar* __restrict__ row, int run, int length, Rows,
                                             const Weight& weight) {
    using Sum = typename P::Sum;
    using W = typename P::W;
    tap_groups<P::KW>([&](auto tap, auto end) {
      constexpr int TAP = decltype(tap)::value, END = decltype(end)::value;
      using Window = RunWindow<W, TAP, END, V>;
      Sum x[Window::LENGTH];
      load_run<Window, V>(x, row, run * W::SOURCES + Window::FIRST, length);
      const_loop<0, Rows::TAP_ROWS>([&](auto which) {
        constexpr int KH = decltype(which)::value;
        if constexpr (Rows::any(KH)) {
          Sum w[END - TAP];
#pragma unroll
          for (int k = TAP; k < END; ++k) w[k - TAP] = weight(KH, k);
#pragma unroll
          for (int r = 0; r < P::ROWS; ++r)
            if (Rows::meets(KH, r)) {
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
};

// Compared with register_blocked: nothing is staged, so no block waits for its slowest copy. A thread loads the windows of its
// own run by wide loads; neighbours that need the same elements find them in L1. Weights are read in the same way.
//
// thread -> data: RUNS blocks of ROWS x RUN results of one slice of a plane. Lanes lie along the runs of a row, then
// along rows, then along planes where they are small.
// The only barriers are those of a warp that exchanges its results before it stores them.
// Bytes are saved in L1: a source row is read once for all rows of the block that meet it.
template <class P, int V>
__global__ void __launch_bounds__(P::THREADS, P::RESIDENT / P::THREADS) depthwise_rows(
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
  int run[P::RUNS], h[P::RUNS];  // and their block of rows
  bool there[P::RUNS];
  const int local = int(blockIdx.z) * t.planes + group;
  const long long plane = a.first_plane + local;
  {
    const bool exists = group < t.planes && plane < a.planes;
    const long long first = 1LL * blockIdx.x * (P::RUNS * t.threads);
    const int row = t.row_blocks == 1 ? 0 : int(first >> 31 ? first / t.runs : unsigned(first) / unsigned(t.runs));
    const int rest = int(first - 1LL * row * t.runs) + first_item;
#pragma unroll
    for (int u = 0; u < P::RUNS; ++u) {
      const int item = rest + u * t.threads, rows = t.row_blocks == 1 ? 0 : int(unsigned(item) / unsigned(t.runs));
      run[u] = item - rows * t.runs, h[u] = row + rows;
      there[u] = exists && h[u] < t.row_blocks && run[u] < t.runs;
    }
  }
  const int channel = int((unsigned(a.first_channel) + local) % P::CHANNELS), slice = a.first_slice + int(blockIdx.y);

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
      // at: the source row; -1 and others outside the source: none.
      const auto add = [&](int u, int at, auto rows, auto weight_of) {
        const bool inside = there[u] && unsigned(at) < unsigned(a.source_h);
        Sums::add(sum[u], from_slice + (inside ? 1LL * at * a.source_w : 0), run[u], inside ? a.source_w : 0, rows,
                  weight_of);
      };

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
            for (int u = 0; u < P::RUNS; ++u)
              add(u, h[u] * P::SOURCE_ROWS + ROW, BlockRows<P, ROW>{}, [&](int kh, int k) {
                if constexpr (P::KEEPS_WEIGHTS)
                  return kept[kh * P::KW + k];
                else
                  return in_memory(kh, k);
              });
          }
        });
      } else {
#pragma unroll 1
        for (int kh = 0; kh < P::KH; ++kh)
#pragma unroll
          for (int u = 0; u < P::RUNS; ++u) {
            int at = P::FORWARD ? h[u] + P::PH - kh * P::DH : h[u] * P::SH - P::PH + kh * P::DH;
            if (P::FORWARD) at = at % P::SH == 0 ? at / P::SH : -1;
            add(u, at, SingleRow{}, [&](int, int k) { return in_memory(kh, k); });
          }
      }
    }

  Sum added = 0;
  if constexpr (P::HAS_BIAS) added = widen(bias[channel]);
#pragma unroll
  for (int u = 0; u < P::RUNS; ++u)
#pragma unroll
    for (int r = 0; r < P::ROWS; ++r) {
      const int row = h[u] * P::ROWS + r;
      const bool inside = there[u] && row < a.result_h;
      Scalar own[P::RUN];
#pragma unroll
      for (int i = 0; i < P::RUN; ++i) own[i] = narrow<Scalar>(sum[u][r][i] + added);
      const long long place = (plane * a.result_d + slice) * result_plane + 1LL * row * a.result_w + run[u] * P::RUN;
      const int left = a.result_w - run[u] * P::RUN;  // results of the row from here on; <= 0: none
      store_runs_by<P::STORE, P::EXCHANGES, P::PITCH>(a.together, own, own_image, result + place,
                                                      inside || left < 0 ? left : 0, int(threadIdx.x) % 32);
    }
}

// One kernel for each width of loads: V is the widest that rows allow. A grid has at most 65535 slices and planes.
template <class P, int V>
cudaError_t launch_rows(RowsArguments a, int vector, const typename P::Scalar* source,
                        const typename P::Scalar* weight, const typename P::Scalar* bias, typename P::Scalar* result,
                        cudaStream_t stream) {
  if constexpr (V > 1) {
    if (vector < V) return launch_rows<P, V / 2>(a, vector, source, weight, bias, result, stream);
  }
  constexpr int MOST = 65535;
  const int threads = ceil_div(a.tile.threads * a.tile.planes, 32) * 32;
  for (a.first_plane = 0; a.first_plane < a.planes; a.first_plane += 1LL * MOST * a.tile.planes)
    for (a.first_slice = 0; a.first_slice < a.result_d; a.first_slice += MOST) {
      a.first_channel = int(a.first_plane % P::CHANNELS);
      const long long planes = ceil_div(a.planes - a.first_plane, a.tile.planes);
      const int slices = a.result_d - a.first_slice;
      const dim3 grid(unsigned(a.tile.blocks), unsigned(slices < MOST ? slices : MOST),
                      unsigned(planes < MOST ? planes : MOST));
      depthwise_rows<P, V><<<grid, threads, 0, stream>>>(a, source, weight, bias, result);
      if (const cudaError_t error = cudaGetLastError()) return error;
    }
  return cudaSuccess;
}

// `bias` is not read by grad_input, nor if the layer has none.
template <class P>
cudaError_t launch_depthwise_rows(const Sizes& sizes, const typename P::Scalar* source,
                                  const typename P::Scalar* weight, const typename P::Scalar* bias,
                                  typename P::Scalar* result, cudaStream_t stream) {
  if (!counts_in_int(sizes)) return cudaErrorInvalidValue;
  RowsArguments a;
  a.planes = sizes.batch * P::CHANNELS;
  a.source_d = P::FORWARD ? sizes.in_d : sizes.out_d, a.result_d = P::FORWARD ? sizes.out_d : sizes.in_d;
  a.source_h = P::FORWARD ? sizes.in_h : sizes.out_h, a.result_h = P::FORWARD ? sizes.out_h : sizes.in_h;
  a.source_w = P::FORWARD ? sizes.in_w : sizes.out_w, a.result_w = P::FORWARD ? sizes.out_w : sizes.in_w;
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
