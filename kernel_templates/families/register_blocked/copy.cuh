// Copies rows of a source into shared memory, in the accumulator's type. It uses cp.async if that is the storage type.
#pragma once
#include "families/register_blocked/tile.cuh"
#include "contract/problem.cuh"
#include "hardware/ptx.cuh"
#include "contract/scalar.cuh"

// The widest copy of whole vectors of a row of `length`: 4, 2 or 1 elements.
template <class Scalar>
inline int fma_copy_width(const void* tensor, int length) {
  const auto address = reinterpret_cast<unsigned long long>(tensor);
  if (sizeof(Scalar) == 2) return 1;
  if (sizeof(Scalar) == 8) return length % 2 == 0 && address % 16 == 0 ? 2 : 1;
  return length % 4 == 0 && address % 16 == 0 ? 4 : length % 2 == 0 && address % 8 == 0 ? 2 : 1;
}

// target[r][c] = row h0 + r * ROW_STEP, element (first + c) * STEP + residue of the plane at `source`; 0 outside it.
// `width` is a multiple of 4. Lanes walk along the vectors of all rows. height 0: all zeros.
struct FmaRows {
  int h0, rows, height;
  int first, width, length;
  unsigned by;  // fma_divisor(width / vector)
};

// `count` channels of such rows, of which the first `there` exist. They lie `pitch` elements apart in the target and
// `volume` apart in the source. A lane computes a place once for all channels.
struct FmaChannels {
  static constexpr int TURNS = 1;
  int count, there, pitch;
  long long volume;
};
struct FmaOneChannel {
  static constexpr int TURNS = 4, count = 1, there = 1, pitch = 0, volume = 0;
};

template <int LANES, int STEP, int ROW_STEP, int VECTOR, class Sum, class Scalar, class Channels>
__device__ __forceinline__ void fma_copy_by(Sum* target, const Scalar* __restrict__ source, const FmaRows& of,
                                            const Channels& channels, int residue, int lane) {
  const int pieces = of.width / VECTOR, all = of.rows * pieces;
#pragma unroll(Channels::TURNS)
  for (int e = lane; e < all; e += LANES) {
    const int r = fma_divided(e, of.by), piece = e - r * pieces;
    const int h = of.h0 + r * ROW_STEP, w = (of.first + piece * VECTOR) * STEP + residue;
    const int there = unsigned(h) < unsigned(of.height) && unsigned(w) < unsigned(of.length) ? channels.there : 0;
    const Scalar* from = there > 0 ? source + 1LL * h * of.length + w : source;
    Sum* to = target + e * VECTOR;
#pragma unroll 4
    for (int c = 0; c < channels.count; ++c, to += channels.pitch) {
      if constexpr (sizeof(Scalar) == sizeof(Sum)) {
        cp_async<VECTOR * int(sizeof(Sum))>(to, from, c < there ? VECTOR * int(sizeof(Sum)) : 0);
      } else {
        *to = c < there ? Sum(widen(*from)) : Sum(0);
      }
      if (c + 1 < there) from += channels.volume;
    }
  }
}

template <int LANES, int STEP, int ROW_STEP, class Sum, class Scalar, class Channels>
__device__ __forceinline__ void fma_copy(Sum* target, const Scalar* __restrict__ source, const FmaRows& of,
                                         const Channels& channels, int residue, int lane, int vector) {
  if constexpr (STEP == 1 && sizeof(Scalar) == 4) {
    if (vector == 4) return fma_copy_by<LANES, 1, ROW_STEP, 4>(target, source, of, channels, residue, lane);
  }
  if constexpr (STEP == 1 && sizeof(Scalar) >= 4) {
    if (vector == 2) return fma_copy_by<LANES, 1, ROW_STEP, 2>(target, source, of, channels, residue, lane);
  }
  fma_copy_by<LANES, STEP, ROW_STEP, 1>(target, source, of, channels, residue, lane);
}
