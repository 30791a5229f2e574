// Layers whose stride and dilation share a divisor. Along such an axis taps meet only every STEP-th element of the output: its
// grains. On grains alone the layer is one of a smaller stride: with g = STEP, tap k meets input i at grain
// i * stride / g - ceil(padding / g) + k * dilation / g. (An axis with one tap has grains `stride` apart.)
#pragma once
#include "contract/flat_grid.cuh"
#include "contract/scalar.cuh"
#include "hardware/pack.cuh"

constexpr __host__ __device__ int grain_step(int kernel, int stride, int dilation) {
  if (kernel == 1) return stride;
  for (int a = stride, b = dilation;;) {
    if (b == 0) return a;
    const int rest = a % b;
    a = b, b = rest;
  }
}

template <class Layer>
struct Grains {
  using Scalar = typename Layer::scalar;
  static constexpr int D = grain_step(Layer::kernel_d, Layer::stride_d, Layer::dilation_d);
  static constexpr int H = grain_step(Layer::kernel_h, Layer::stride_h, Layer::dilation_h);
  static constexpr int W = grain_step(Layer::kernel_w, Layer::stride_w, Layer::dilation_w);
  static constexpr bool APART = D * H * W > 1;  // else each element of the output is a grain
  struct Reduced : Layer {
    static constexpr int stride_d = Layer::stride_d / D, stride_h = Layer::stride_h / H, stride_w = Layer::stride_w / W;
    static constexpr int padding_d = ceil_div(Layer::padding_d, D), padding_h = ceil_div(Layer::padding_h, H);
    static constexpr int padding_w = ceil_div(Layer::padding_w, W);
    static constexpr int dilation_d = ceil_div(Layer::dilation_d, D), dilation_h = ceil_div(Layer::dilation_h, H);
    static constexpr int dilation_w = ceil_div(Layer::dilation_w, W);
  };
  using Own = std::conditional_t<APART, Reduced, Layer>;  // the layer on grains
  // Grain 0 is this element of the output.
  static constexpr int FIRST_D = Own::padding_d * D - Layer::padding_d, FIRST_H = Own::padding_h * H - Layer::padding_h;
  static constexpr int FIRST_W = Own::padding_w * W - Layer::padding_w;

  static constexpr __host__ __device__ int count(int size, int first, int step) {
    return step == 1 ? size : size > first ? ceil_div(size - first, step) : 1;
  }
  // The sizes on grains; if each element is one, the same object.
  static decltype(auto) sizes(const Sizes& full) {
    if constexpr (APART) {
      Sizes own = full;
      own.out_d = count(full.out_d, FIRST_D, D), own.out_h = count(full.out_h, FIRST_H, H);
      own.out_w = count(full.out_w, FIRST_W, W);
      return own;
    } else {
      return (full);
    }
  }
  static long long bytes(const Sizes& own) {  // of the grains of the output
    const long long planes = own.batch * Layer::out_channels * own.out_d;
    return ceil_div(planes * own.out_h * own.out_w * int(sizeof(Scalar)), 256LL) * 256;
  }
};

constexpr int GRAIN_THREADS = 256, GRAIN_TURNS = 4;

// The sizes of gathered grains: rows are lengthened by zeros to whole vectors of 16 bytes.
template <class Layer>
decltype(auto) gathered_sizes(const Sizes& full) {
  if constexpr (Grains<Layer>::APART) {
    constexpr int VECTOR = 16 / int(sizeof(typename Layer::scalar));
    Sizes own = Grains<Layer>::sizes(full);
    own.out_w = ceil_div(own.out_w, VECTOR) * VECTOR;
    return own;
  } else {
    return (full);
  }
}

// out -> grains: [n][channel][grain d][grain h][grain w], of the sizes `own` that gathered_sizes() gives.
// thread -> data: GRAIN_TURNS vectors of one plane, GRAIN_THREADS apart.
template <class Layer>
__global__ void __launch_bounds__(GRAIN_THREADS) gather_grains(Sizes full, Sizes own, int blocks_per_plane,
                                                               const typename Layer::scalar* __restrict__ out,
                                                               typename Layer::scalar* __restrict__ grains) {
  using G = Grains<Layer>;
  using Scalar = typename Layer::scalar;
  constexpr int VECTOR = 16 / int(sizeof(Scalar));
  using Vector = Pack<Scalar, VECTOR>;
  const long long plane = flat_block() / blocks_per_plane;
  if (plane >= own.batch * Layer::out_channels * own.out_d) return;
  const int per_row = own.out_w / VECTOR, d = int(plane % own.out_d) * G::D + G::FIRST_D;
  const int first = int(flat_block() % blocks_per_plane) * (GRAIN_THREADS * GRAIN_TURNS) + int(threadIdx.x);
  const Scalar* const from = out + (plane / own.out_d * full.out_d + d) * full.out_h * full.out_w;
  Vector* const to = reinterpret_cast<Vector*>(grains) + plane * own.out_h * per_row;
#pragma unroll
  for (int turn = 0; turn < GRAIN_TURNS; ++turn) {
    const int index = first + turn * GRAIN_THREADS, row = int(unsigned(index) / unsigned(per_row));
    if (row >= own.out_h) return;
    const int h = row * G::H + G::FIRST_H, w = (index - row * per_row) * VECTOR * G::W + G::FIRST_W;
    const bool inside = d < full.out_d && h < full.out_h;
    Vector value;
#pragma unroll
    for (int i = 0; i < VECTOR; ++i)
      value.value[i] = inside && w + i * G::W < full.out_w ? from[1LL * h * full.out_w + w + i * G::W] : narrow<Scalar>(0.0f);
    to[index] = value;
  }
}

template <class Layer>
cudaError_t launch_gather(const Sizes& full, const Sizes& own, const typename Layer::scalar* out,
                          typename Layer::scalar* grains, cudaStream_t stream) {
  const long long vectors = 1LL * own.out_h * own.out_w * int(sizeof(typename Layer::scalar)) / 16;
  const int blocks = int(ceil_div(vectors, 1LL * GRAIN_THREADS * GRAIN_TURNS));
  const long long planes = own.batch * Layer::out_channels * own.out_d;
  if (planes == 0) return cudaSuccess;
  if (1LL * full.out_h * full.out_w >= 1LL << 30) return cudaErrorInvalidValue;  // a plane's elements are counted in int
  gather_grains<Layer><<<flat_grid(planes * blocks), GRAIN_THREADS, 0, stream>>>(full, own, blocks, out, grains);
  return cudaGetLastError();
}

// grains -> out; elements that are no grain get the bias (null: zero). `grains` already include it.
// thread -> data: GRAIN_TURNS vectors of 16 bytes of one plane, GRAIN_THREADS apart. The first and the last vector of a plane
// may reach beyond it, because they begin at multiples of 16 bytes; of these, the elements of the plane are stored one by one.
template <class Layer>
__global__ void __launch_bounds__(GRAIN_THREADS) spread_grains(Sizes full, Sizes own, int blocks_per_plane,
                                                               const typename Layer::scalar* __restrict__ grains,
                                                               const typename Layer::scalar* __restrict__ bias,
                                                               typename Layer::scalar* __restrict__ out) {
  using G = Grains<Layer>;
  using Scalar = typename Layer::scalar;
  constexpr int VECTOR = 16 / int(sizeof(Scalar)), STEP = GRAIN_THREADS * VECTOR;
  const long long plane = flat_block() / blocks_per_plane, slice = plane / full.out_d;
  if (plane >= full.batch * Layer::out_channels * full.out_d) return;
  const int d = int(plane % full.out_d) - G::FIRST_D, size = full.out_h * full.out_w;
  const bool met = d >= 0 && d % G::D == 0;
  const Scalar rest = bias ? bias[slice % Layer::out_channels] : narrow<Scalar>(0.0f);
  const Scalar* const from = grains + (slice * own.out_d + d / G::D) * own.out_h * own.out_w;
  Scalar* const to = out + plane * size;
  const int phase = int(reinterpret_cast<unsigned long long>(to) % 16) / int(sizeof(Scalar));
  const int first = (int(flat_block() % blocks_per_plane) * (GRAIN_THREADS * GRAIN_TURNS) + int(threadIdx.x)) * VECTOR - phase;
  const int step_h = STEP / full.out_w, step_w = STEP - step_h * full.out_w;
  int h = first < 0 ? 0 : first / full.out_w, w = first - h * full.out_w - G::FIRST_W;  // from grain 0
  h -= G::FIRST_H;
#pragma unroll
  for (int turn = 0; turn < GRAIN_TURNS; ++turn) {
    const int index = first + turn * STEP;
    if (index >= size) return;
    Pack<Scalar, VECTOR> value;
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) value.value[i] = rest;
    if (met) {  // the same for all threads of a block
      int own_h = h, own_w = w;
#pragma unroll
      for (int i = 0; i < VECTOR; ++i) {
        if (own_h >= 0 && own_w >= 0 && own_h % G::H == 0 && own_w % G::W == 0 && index + i < size)
          value.value[i] = from[own_h / G::H * own.out_w + own_w / G::W];
        if (++own_w == full.out_w - G::FIRST_W) own_w = -G::FIRST_W, ++own_h;
      }
      h += step_h, w += step_w;
      if (w >= full.out_w - G::FIRST_W) w -= full.out_w, ++h;
    }
    if (index >= 0 && index + VECTOR <= size) {
      *reinterpret_cast<Pack<Scalar, VECTOR>*>(to + index) = value;
    } else {
#pragma unroll
      for (int i = 0; i < VECTOR; ++i)
        if (index + i >= 0 && index + i < size) to[index + i] = value.value[i];
    }
  }
}

template <class Layer>
cudaError_t launch_spread(const Sizes& full, const Sizes& own, const typename Layer::scalar* grains,
                          const typename Layer::scalar* bias, typename Layer::scalar* out, cudaStream_t stream) {
  const long long planes = full.batch * Layer::out_channels * full.out_d;
  constexpr long long PER_BLOCK = 16 / int(sizeof(typename Layer::scalar)) * GRAIN_THREADS * GRAIN_TURNS;
  const int blocks = int(ceil_div(1LL * full.out_h * full.out_w + 7, PER_BLOCK));  // 7: the first vector may begin before
  if (planes == 0) return cudaSuccess;
  if (1LL * full.out_h * full.out_w >= 1LL << 30) return cudaErrorInvalidValue;
  spread_grains<Layer><<<flat_grid(planes * blocks), GRAIN_THREADS, 0, stream>>>(full, own, blocks, grains, bias, out);
  return cudaGetLastError();
}
