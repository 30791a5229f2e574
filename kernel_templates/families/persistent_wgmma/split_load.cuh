// What a lane of grad_weight's copying warps has on the way, and what it must know of a stage's place.
#pragma once
#include "contract/scalar.cuh"
#include "hardware/pack.cuh"
#include "hardware/ptx.cuh"

// Where a stage begins: the offset of its first strip in channel 0 of both tensors, and that strip's first column in
// gy. In `flags`, bit 0 says of x, bit 1 of gy that the strips lie side by side, wholly inside: then no table is needed.
// Behind them lie 15 bits for the tile's tap rows that meet gy there, and 15 bits for those whose row of gy counts for
// grad_bias.
struct alignas(16) GradSplitStart {
  long long x, gy;
  int first;
  unsigned flags;
};

// Where a strip lies: its offset from the image of the stage's first strip, and its first column in the row. Of a row
// that does not exist the first column is far outside.
struct GradSplitStrip {
  int offset, first;
};

// What a lane has on the way: four neighbouring elements of each of PER strips, as bits. `counts`: bit l, if strip l
// counts for grad_bias.
template <class Scalar>
struct GradSplitLoad {
  static constexpr int PER = 16 / int(sizeof(Scalar)), WORDS = int(sizeof(Scalar));
  unsigned word[PER][WORDS];
  unsigned counts;

  // Element e of every strip: one chunk of 16 bytes. `one` is 1 (round_for_tensor_cores()).
  __device__ __forceinline__ uint4 chunk(int e, float one) const {
    if constexpr (WORDS == 4)
      return make_uint4(rounded(0, e, one), rounded(1, e, one), rounded(2, e, one), rounded(3, e, one));
    else return make_uint4(pair(0, e), pair(2, e), pair(4, e), pair(6, e));
  }
  __device__ __forceinline__ float value(int l, int e) const {
    if constexpr (WORDS == 4) return __uint_as_float(word[l][e]);
    else return half_value(word[l][e / 2] >> e % 2 * 16);
  }
  __device__ __forceinline__ void set(int l, int e, const Scalar* from, bool there) {
    if constexpr (WORDS == 4) {
      word[l][e] = there ? *reinterpret_cast<const unsigned*>(from) : 0u;
    } else {
      const unsigned bits = there ? *reinterpret_cast<const unsigned short*>(from) : 0u;
      word[l][e / 2] = e % 2 == 0 ? bits : word[l][e / 2] | bits << 16;
    }
  }
  // Elements at .. at + 3 of a row of `length` elements; `row` points at element `at`. Outside the row they are zero.
  // WIDTH neighbours are loaded together, and lie inside together.
  template <int WIDTH>
  __device__ __forceinline__ void set_four(int l, const Scalar* row, int at, int length) {
    if constexpr (WIDTH * WORDS < 4) {
#pragma unroll
      for (int e = 0; e < 4; ++e) set(l, e, row + e, unsigned(at + e) < unsigned(length));
    } else {
      constexpr int TOGETHER = WIDTH * WORDS / 4;
#pragma unroll
      for (int e = 0; e < 4; e += WIDTH) {
        Pack<unsigned, TOGETHER> part = {};
        if (unsigned(at + e) < unsigned(length)) part = *reinterpret_cast<const Pack<unsigned, TOGETHER>*>(row + e);
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i) word[l][e * WORDS / 4 + i] = part.value[i];
      }
    }
  }
  // Four elements of each strip; strips are APART elements apart.
  template <int APART>
  __device__ __forceinline__ void set_strips(const Scalar* from, bool there) {
    if (there) {
#pragma unroll
      for (int l = 0; l < PER; ++l) {
        const auto part = *reinterpret_cast<const Pack<unsigned, WORDS>*>(from + l * APART);
#pragma unroll
        for (int i = 0; i < WORDS; ++i) word[l][i] = part.value[i];
      }
    } else {
#pragma unroll
      for (int l = 0; l < PER; ++l)
#pragma unroll
        for (int i = 0; i < WORDS; ++i) word[l][i] = 0u;
    }
  }

 private:
  __device__ __forceinline__ unsigned rounded(int l, int e, float one) const {
    return __float_as_uint(round_for_tensor_cores(__uint_as_float(word[l][e]), one));
  }
  static __device__ __forceinline__ float half_value(unsigned bits) {
    const unsigned short low = static_cast<unsigned short>(bits);
    return widen(*reinterpret_cast<const Scalar*>(&low));
  }
  __device__ __forceinline__ unsigned pair(int l, int e) const {
    return __byte_perm(word[l][e / 2], word[l + 1][e / 2], e % 2 == 0 ? 0x5410 : 0x7632);
  }
};
