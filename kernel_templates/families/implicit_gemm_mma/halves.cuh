// The parts of a strip GEMM (gemm.cuh) that differ for 16-bit values. mma.m16n8k16 sums 16 channels at once, and a
// register holds two neighbouring channels of one position. In memory these channels lie in different rows. So a lane
// reads both rows as they are and exchanges the halves of their words.
#pragma once
#include "hardware/pack.cuh"
#include "hardware/ptx.cuh"
#include "families/implicit_gemm_mma/walk.cuh"

template <class C>
using StripSums = float[C::W::CLASSES][C::MA][C::STRIP][4];

// weight[ci][co within its group][tap] -> fragments of A, with a pair of channels in a word. A thread writes four words
// of one lane.
template <class C>
__device__ __forceinline__ void pack_half_weights(const typename C::Scalar* __restrict__ weight,
                                                  float* __restrict__ packed) {
  constexpr long long FRAGMENTS = 1LL * C::CELLS * C::D::TAPS * C::SLABS * C::TAPS * C::MT;
  const unsigned short* const bits = reinterpret_cast<const unsigned short*>(weight);
  const long long stride = 1LL * gridDim.x * blockDim.x;
  for (long long i = 1LL * blockIdx.x * blockDim.x + threadIdx.x; i < FRAGMENTS * 32; i += stride) {
    const int lane = int(i % 32), g = lane / 4, t = lane % 4;
    long long rest = i / 32;
    const int mt = int(rest % C::MT);
    rest /= C::MT;
    const int tap = int(rest % C::TAPS);
    rest /= C::TAPS;
    const int slab = int(rest % C::SLABS);
    rest /= C::SLABS;
    const int depth_tap = int(rest % C::D::TAPS), cell = int(rest / C::D::TAPS);
    const int group = cell / C::M_TILES;
    unsigned word[4] = {};
#pragma unroll
    for (int e = 0; e < C::SLAB / 4; ++e)
#pragma unroll
      for (int high = 0; high < 2; ++high) {
        const int m = (cell % C::M_TILES * C::MT + mt) * 16 + g + e % 2 * 8;
        const int k = slab * C::SLAB + strip_half_channel(C::ORDER, C::SLAB, t, e / 2 * 2 + high);
        const long long row = C::FORWARD ? (1LL * group * C::K + k) * C::M + m : (1LL * group * C::M + m) * C::K + k;
        if (m < C::M && k < C::K)
          word[e] |= unsigned(bits[row * (C::D::TAPS * C::TAPS) + depth_tap * C::TAPS + tap]) << 16 * high;
      }
    reinterpret_cast<uint4*>(packed)[i] = make_uint4(word[0], word[1], word[2], word[3]);
  }
}

// Copies rows of `width` values to rows of round_up(width, 8), with zeros behind them. thread -> data: 8 values of a
// row.
template <class Scalar>
__global__ void __launch_bounds__(256) pad_rows(const Scalar* __restrict__ tensor, Scalar* __restrict__ padded,
                                                long long rows, int width) {
  const unsigned short* const bits = reinterpret_cast<const unsigned short*>(tensor);
  const int pieces = ceil_div(width, 8);
  const long long stride = 1LL * gridDim.x * blockDim.x;
  for (long long i = 1LL * blockIdx.x * blockDim.x + threadIdx.x; i < rows * pieces; i += stride) {
    const long long row = i / pieces;
    const int w = int(i - row * pieces) * 8;
    const unsigned short* from = bits + row * width + w;
    unsigned value[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) value[e] = w + e < width ? __ldg(from + e) : 0;
    reinterpret_cast<uint4*>(padded)[i] = make_uint4(value[0] | value[1] << 16, value[2] | value[3] << 16,
                                                     value[4] | value[5] << 16, value[6] | value[7] << 16);
  }
}

// Copies two neighbouring values of up to EACH channels, where no copy of 4 bytes is aligned. The first value exists in
// `first` channels, the second in `second`; the others are zero. `channels` are written.
template <int EACH, int PITCH, class Scalar>
__device__ __forceinline__ void copy_halves(Scalar* to, const Scalar* from, long long volume, int channels, int first,
                                            int second) {
  constexpr int BATCH = EACH < 4 ? EACH : 4;  // channels whose loads come before their stores
  const unsigned short* bits = reinterpret_cast<const unsigned short*>(from);
#pragma unroll 1
  for (int c0 = 0; c0 < channels; c0 += BATCH) {
    unsigned low[BATCH], high[BATCH];
#pragma unroll
    for (int c = 0; c < BATCH; ++c) {
      low[c] = c0 + c < first ? __ldg(bits) : 0;
      high[c] = c0 + c < second ? __ldg(bits + 1) : 0;
      bits += volume;
    }
#pragma unroll
    for (int c = 0; c < BATCH; ++c)
      if (EACH % BATCH == 0 || c0 + c < channels)
        *reinterpret_cast<unsigned*>(to + (c0 + c) * PITCH) = low[c] | high[c] << 16;
  }
}

// add_row() of gemm.cuh for a slab of 16 channels (or 8: the upper pairs are zero).
template <class C>
__device__ __forceinline__ void add_row_of_halves(StripSums<C>& sum, const typename C::Scalar* x, const float* weights,
                                                  int lane) {
  constexpr bool WHOLE = C::WINDOW <= 48;  // else each tap reads its part of the window anew
  constexpr int HELD = WHOLE ? C::WINDOW : round_up((C::STRIP - 1) * C::W::IN_STEP + C::READ, C::READ);
  constexpr int PAIRS = C::SLAB / 8, WORDS = C::READ / 2;
  using Row = Pack<unsigned, WORDS>;
  unsigned window[2][HELD] = {};
  const auto read = [&](int from) {
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair)
#pragma unroll
      for (int i = 0; i < HELD; i += C::READ) {
        Row row[2];
#pragma unroll
        for (int high = 0; high < 2; ++high) {
          const int channel = strip_half_channel(C::ORDER, C::SLAB, lane % 4, 2 * pair + high);
          row[high] = *reinterpret_cast<const Row*>(x + channel * C::PITCH + from + i);
        }
#pragma unroll
        for (int e = 0; e < WORDS; ++e) {
          const unsigned low = row[0].value[e], high = row[1].value[e];
          window[pair][i + 2 * e] = __byte_perm(low, high, 0x5410);
          window[pair][i + 2 * e + 1] = __byte_perm(low, high, 0x7632);
        }
      }
  };
  if constexpr (WHOLE) read(0);
  strip_unrolled<C::W::TAPS>([&](auto tap) {
    constexpr int TAP = decltype(tap)::value, AT = C::W::offset(TAP) + C::LEAD;
    constexpr int CLASS = C::W::class_of(C::W::residue(TAP)), SHIFT = WHOLE ? AT : AT % C::READ;
    if constexpr (!WHOLE) read(AT - AT % C::READ);
    unsigned A[C::MA][4];
#pragma unroll
    for (int m = 0; m < C::MA; ++m) {
      const uint4* from = reinterpret_cast<const uint4*>(weights + (TAP * C::MT + m) * 128);
      const uint4 v = C::WEIGHTS == StripWeights::direct ? __ldg(from) : *from;
      A[m][0] = v.x, A[m][1] = v.y, A[m][2] = v.z, A[m][3] = v.w;
    }
#pragma unroll
    for (int j = 0; j < C::STRIP; ++j) {
      const unsigned b[2] = {window[0][j * C::W::IN_STEP + SHIFT], window[1][j * C::W::IN_STEP + SHIFT]};
#pragma unroll
      for (int m = 0; m < C::MA; ++m) mma_m16n8k16<C::BFLOAT>(sum[CLASS][m][j], A[m], b, sum[CLASS][m][j]);
    }
  });
}
