// How grad_weight of persistent_packed packs grad_output, as pack_units does it, but for two things: the kernel also adds up
// grad_bias, and it loads neighbouring residues along W together.
#pragma once
#include "contract/partial_sums.cuh"
#include "contract/reduce.cuh"
#include "families/persistent_packed/packed_split.cuh"
#include "hardware/pack.cuh"

// A place takes STEP_W neighbours of a row, from place * STEP_W - BEFORE_W on.
template <class Gy>
struct PackedRuns {
  static constexpr int widest() {  // elements of one load that are all inside a row of whole loads, or all outside
    int width = 8;
    while (Gy::STEP_W % width != 0 || Gy::BEFORE_W % width != 0) width /= 2;
    return width;
  }
  // PAIRS: the run begins at an odd element, so a lane loads the pair of which its last element is the first one. Its first
  // element comes from the lane before it.
  static constexpr int WIDTH = widest();
  static constexpr bool PAIRS = Gy::STEP_W == 2 && Gy::BEFORE_W % 2 == 1;
  static constexpr int LOAD = PAIRS ? 2 : WIDTH;

  template <class Scalar>
  static bool serves(const Scalar* values, int row) {
    return row % LOAD == 0 && size_t(values) % (LOAD * sizeof(Scalar)) == 0;
  }
};

// N neighbours of a row in each of 8 channels, `apart` elements apart: run[i][c]. `from` is where the first one is, `w` its column.
// The first `channels` exist. `together`: PackedRuns serves the tensor. All lanes of the warp call it.
// All loads come before the first exchange: it waits for what it exchanges.
template <class Gy, class Scalar, int N>
__device__ __forceinline__ void load_packed_runs(const Scalar* from, long long apart, int w, int row, int channels, bool together,
                                                 Pack<Scalar, 8> (&run)[N]) {
  using Runs = PackedRuns<Gy>;
  const auto is_inside = [&](int c, int i) { return c < channels && unsigned(w + i) < unsigned(row); };
  if (Runs::LOAD == 1 || !together) {
#pragma unroll
    for (int i = 0; i < N; ++i)
#pragma unroll
      for (int c = 0; c < 8; ++c) run[i].value[c] = is_inside(c, i) ? guarded_load(from + c * apart + i) : narrow<Scalar>(0.0f);
  } else if constexpr (Runs::PAIRS) {
    unsigned pair[8], first[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      pair[c] = first[c] = 0;
      if (is_inside(c, 1)) pair[c] = *reinterpret_cast<const unsigned*>(from + c * apart + 1);
    }
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int c = 0; c < 8; ++c)
        if (is_inside(c, 0)) first[c] = *reinterpret_cast<const unsigned short*>(from + c * apart);
    }
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const unsigned before = __shfl_up_sync(~0u, pair[c], 1) >> 16;
      const unsigned two = (threadIdx.x % 32 == 0 ? first[c] : is_inside(c, 0) ? before : 0) | pair[c] << 16;
      const auto& value = reinterpret_cast<const Pack<Scalar, 2>&>(two);
      run[0].value[c] = value.value[0], run[1].value[c] = value.value[1];
    }
  } else {
    using Load = Pack<Scalar, Runs::WIDTH>;
#pragma unroll
    for (int c = 0; c < 8; ++c)
#pragma unroll
      for (int i = 0; i < N; i += Runs::WIDTH) {
        Load some;
#pragma unroll
        for (int e = 0; e < Runs::WIDTH; ++e) some.value[e] = narrow<Scalar>(0.0f);
        if (is_inside(c, i)) some = *reinterpret_cast<const Load*>(from + c * apart + i);
#pragma unroll
        for (int e = 0; e < Runs::WIDTH; ++e) run[i + e].value[c] = some.value[e];
      }
  }
}

// packed: as from pack_units. sums (may be null): [phase][block of a unit][channel], the sums over the places of a block.
// thread -> data: a place of all planes of a unit. Neighbouring lanes have neighbouring places.
// The barrier: the sums of all warps lie in shared memory before they are added, in the order of the warps.
template <class Gy>
__global__ void __launch_bounds__(PACKED_THREADS)
    pack_grad_output(PackedTensor<typename Gy::Scalar> tensor, PackedGrid grid, char* packed, int blocks, bool together,
                     float* __restrict__ sums) {
  using Scalar = typename Gy::Scalar;
  constexpr int WARPS = PACKED_THREADS / 32, S = Gy::STEP_W;
  __shared__ float of_warp[WARPS][8];
  let_next_kernel_start();
  const long long block = flat_block(), unit_of_all = block / blocks;
  const int number = int(block - unit_of_all * blocks), place = number * PACKED_THREADS + int(threadIdx.x);
  if (unit_of_all < Gy::PHASES * Gy::UNITS) {
    const int unit = int(unit_of_all % Gy::UNITS), phase = int(unit_of_all / Gy::UNITS);
    const PackedPlace<Gy> at(tensor, grid, place, phase);
    const int w = at.step * S - Gy::BEFORE_W;
    const Scalar* const first = tensor.values + (1LL * at.n * Gy::K + unit * 8) * tensor.volume +
                                (1LL * at.d * tensor.size[1] + at.h) * tensor.size[2] + w;
    char* const to = packed + 16 * (unit_of_all * S * grid.places + place);
    float sum[8] = {};
    const_loop<0, ceil_div(S, 8)>([&](auto eight) {  // planes, at most 8 at once
      constexpr int BEGIN = decltype(eight)::value * 8, N = S - BEGIN < 8 ? S - BEGIN : 8;
      Pack<Scalar, 8> value[N];
      load_packed_runs<Gy>(first + BEGIN, tensor.volume, w + BEGIN, tensor.size[2], at.inside ? Gy::K - unit * 8 : 0, together, value);
#pragma unroll
      for (int i = 0; i < N; ++i)
#pragma unroll
        for (int c = 0; c < 8; ++c) sum[c] += widen(value[i].value[c]);
      if (place < grid.places) {
#pragma unroll
        for (int i = 0; i < N; ++i) *reinterpret_cast<Pack<Scalar, 8>*>(to + 16 * (BEGIN + i) * grid.places) = value[i];
      }
    });
    if (sums) {
      const int lane = threadIdx.x % 32;
      const float of_lanes = warp_sums(sum, lane);
      if (lane % 4 == 0) of_warp[threadIdx.x / 32][lane / 4] = of_lanes;
      __syncthreads();
      const int channel = unit * 8 + int(threadIdx.x);
      if (threadIdx.x < 8 && channel < Gy::K) {
        float all = of_warp[0][threadIdx.x];
        for (int warp = 1; warp < WARPS; ++warp) all += of_warp[warp][threadIdx.x];
        sums[(1LL * phase * blocks + number) * Gy::K + channel] = all;
      }
    }
  }
  wait_for_kernel_ahead();  // the kernel after this one also reads what the one ahead packs
}

constexpr int PACKED_BIAS_THREADS = 128;

// thread -> data: a block has one channel; its threads share the partial sums. The barrier: warp 0 adds up the sums of all warps.
template <class Gy>
__global__ void __launch_bounds__(PACKED_BIAS_THREADS)
    add_packed_biases(const float* __restrict__ sums, int terms, typename Gy::Scalar* __restrict__ grad_bias) {
  __shared__ float of_warp[PACKED_BIAS_THREADS / 32];
  wait_for_kernel_ahead();
  const int channel = int(blockIdx.x);
  float sum = 0.0f;
#pragma unroll 4
  for (int term = threadIdx.x; term < terms; term += PACKED_BIAS_THREADS) sum += sums[1LL * term * Gy::K + channel];
  sum = sum_of_lanes(sum);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int warp = 1; warp < PACKED_BIAS_THREADS / 32; ++warp) sum += of_warp[warp];
  grad_bias[channel] = narrow<typename Gy::Scalar>(sum);
}

template <class Gy>
struct PackedGradOutput {
  using Scalar = typename Gy::Scalar;
  static int blocks(const PackedGrid& grid) { return int(ceil_div(grid.places, PACKED_THREADS)); }
  static long long terms(const PackedGrid& grid) { return 1LL * Gy::PHASES * blocks(grid); }
  static long long sum_bytes(const PackedGrid& grid) { return 4LL * terms(grid) * Gy::K; }

  // True if each element of gy is packed, and a thread's sums are short enough.
  static bool sums_bias(const Sizes& s, const PackedGrid& grid) {
    const auto reaches = [](int out, int padding, int stride, int steps) { return (out - 1LL + padding) / stride < steps; };
    return reaches(s.out_d, Gy::BEFORE_D, Gy::STEP_D, grid.deep.divisor) &&
           reaches(s.out_h, Gy::BEFORE_H, Gy::STEP_H, grid.high.divisor) &&
           reaches(s.out_w, Gy::BEFORE_W, Gy::STEP_W, grid.wide.divisor) &&
           terms(grid) < 1LL * PACKED_BIAS_THREADS * TERMS_PER_SUM;
  }
  static cudaError_t pack(const Sizes& s, const Scalar* grad_output, const PackedGrid& grid, char* packed, float* sums,
                          cudaStream_t stream) {
    const PackedTensor<Scalar> tensor = packed_tensor<Gy>(grad_output, s.out_d, s.out_h, s.out_w);
    const int of_unit = blocks(grid);
    return launch_early(pack_grad_output<Gy>, flat_grid(1LL * Gy::PHASES * Gy::UNITS * of_unit), PACKED_THREADS, 0, stream, tensor,
                        grid, packed, of_unit, PackedRuns<Gy>::serves(grad_output, s.out_w), sums);
  }
  static cudaError_t add_biases(const PackedGrid& grid, const float* sums, Scalar* grad_bias, cudaStream_t stream) {
    return launch_early(add_packed_biases<Gy>, dim3(unsigned(Gy::K)), PACKED_BIAS_THREADS, 0, stream, sums, int(terms(grid)),
                        grad_bias);
  }
};
