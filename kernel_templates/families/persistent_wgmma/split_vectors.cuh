// How grad_weight's copying warps copy vectors of four elements to shared memory unchanged, and read them back.
#pragma once
#include "contract/scalar.cuh"
#include "hardware/pack.cuh"
#include "hardware/ptx.cuh"

// Where the vectors of a warp's job lie. A job has 32 items; an item is one vector of each of PER strips, OF_CHANNEL
// items have the same channel, and warps have whole channels or parts of one. Vectors of a channel are counted as they
// lie in memory: vector u belongs to strip u / VECTORS. If the items of a channel are fewer than 128 bytes, neighbouring
// lanes bring neighbouring vectors of all strips instead of their own; the places are permuted so that reading an item
// later uses all banks.
template <class Scalar, int OF_CHANNEL>
struct GradSplitJob {
  static constexpr int BYTES = 4 * int(sizeof(Scalar)), PER = 16 / int(sizeof(Scalar)), MASK = 128 / BYTES - 1;
  static constexpr int ROW = PER * OF_CHANNEL;
  static constexpr bool BY_ROWS = OF_CHANNEL <= MASK && (OF_CHANNEL & (OF_CHANNEL - 1)) == 0;
  struct Vector {
    unsigned channel, u, at;  // `channel` counts from the warp's first item; `at` is its place in the job's memory
  };
  // Vector `lane` of turn l, as they are brought. `first` is the warp's first item.
  static __device__ __forceinline__ Vector brought(unsigned first, int l, unsigned lane) {
    if constexpr (BY_ROWS) {
      const unsigned g = l * 32 + lane, channel = g / ROW;
      return {first / OF_CHANNEL + channel, g % ROW, g ^ (channel * OF_CHANNEL & MASK)};
    } else {
      const unsigned item = first + lane;
      return {item / OF_CHANNEL, l * OF_CHANNEL + item % OF_CHANNEL, l * 32 + lane};
    }
  }
  // The place of strip l's vector of item `lane`.
  static __device__ __forceinline__ unsigned read_at(int l, unsigned lane) {
    if constexpr (!BY_ROWS) return l * 32 + lane;
    const unsigned channel = lane / OF_CHANNEL;
    return (channel * ROW + l * OF_CHANNEL + lane % OF_CHANNEL) ^ (channel * OF_CHANNEL & MASK);
  }
};

// An item in registers: a vector of each of PER strips, as bits.
template <class Scalar>
struct GradSplitItem {
  static constexpr int PER = 16 / int(sizeof(Scalar)), WORDS = int(sizeof(Scalar));
  unsigned word[PER][WORDS];

  __device__ __forceinline__ void read(int l, const char* from) {
    const auto vector = *reinterpret_cast<const Pack<unsigned, WORDS>*>(from);
#pragma unroll
    for (int i = 0; i < WORDS; ++i) word[l][i] = vector.value[i];
  }
  // `one` is 1 (round_for_tensor_cores()).
  __device__ __forceinline__ void round(float one) {
    if constexpr (WORDS == 4) {
#pragma unroll
      for (int l = 0; l < PER; ++l)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          word[l][e] = __float_as_uint(round_for_tensor_cores(__uint_as_float(word[l][e]), one));
    }
  }
  __device__ __forceinline__ float value(int l, int e) const {
    if constexpr (WORDS == 4) return __uint_as_float(word[l][e]);
    else return half_value(word[l][e / 2] >> e % 2 * 16);
  }
  // Element e of every strip: one chunk of 16 bytes.
  __device__ __forceinline__ uint4 chunk(int e) const {
    if constexpr (WORDS == 4) return make_uint4(word[0][e], word[1][e], word[2][e], word[3][e]);
    else return make_uint4(pair(0, e), pair(2, e), pair(4, e), pair(6, e));
  }
  // The same; strip l is zero unless bit APART * l of `there` is set.
  template <int APART>
  __device__ __forceinline__ uint4 chunk(int e, unsigned there) const {
    const uint4 all = chunk(e);
    constexpr int STEP = PER / 4 * APART;
    return make_uint4(all.x & mask<APART>(there), all.y & mask<APART>(there >> STEP),
                      all.z & mask<APART>(there >> 2 * STEP), all.w & mask<APART>(there >> 3 * STEP));
  }

 private:
  template <int APART>
  static __device__ __forceinline__ unsigned mask(unsigned there) {
    if constexpr (WORDS == 4) return there & 1 ? ~0u : 0u;
    else return (there & 1 ? 0xFFFFu : 0u) | (there >> APART & 1 ? 0xFFFF0000u : 0u);
  }
  static __device__ __forceinline__ float half_value(unsigned bits) {
    const unsigned short low = static_cast<unsigned short>(bits);
    return widen(*reinterpret_cast<const Scalar*>(&low));
  }
  __device__ __forceinline__ unsigned pair(int l, int e) const {
    return __byte_perm(word[l][e / 2], word[l + 1][e / 2], e % 2 == 0 ? 0x5410 : 0x7632);
  }
};

// Writes strips 0 .. PER - 2 of a chunk as strips 1 .. PER - 1 of another; strip 0 there stays.
template <class Scalar>
__device__ __forceinline__ void put_later(char* to, const uint4& chunk) {
  if constexpr (sizeof(Scalar) == 4) {
    *reinterpret_cast<unsigned*>(to + 4) = chunk.x;
    *reinterpret_cast<uint2*>(to + 8) = make_uint2(chunk.y, chunk.z);
  } else {
    *reinterpret_cast<unsigned short*>(to + 2) = static_cast<unsigned short>(chunk.x);
    *reinterpret_cast<unsigned*>(to + 4) = __byte_perm(chunk.x, chunk.y, 0x5432);
    *reinterpret_cast<uint2*>(to + 8) =
        make_uint2(__byte_perm(chunk.y, chunk.z, 0x5432), __byte_perm(chunk.z, chunk.w, 0x5432));
  }
}

// Writes strips 1 .. PER - 1 of a chunk as strips 0 .. PER - 2 of another; strip PER - 1 there stays.
template <class Scalar>
__device__ __forceinline__ void put_earlier(char* to, const uint4& chunk) {
  if constexpr (sizeof(Scalar) == 4) {
    *reinterpret_cast<uint2*>(to) = make_uint2(chunk.y, chunk.z);
    *reinterpret_cast<unsigned*>(to + 8) = chunk.w;
  } else {
    *reinterpret_cast<uint2*>(to) =
        make_uint2(__byte_perm(chunk.x, chunk.y, 0x5432), __byte_perm(chunk.y, chunk.z, 0x5432));
    *reinterpret_cast<unsigned*>(to + 8) = __byte_perm(chunk.z, chunk.w, 0x5432);
    *reinterpret_cast<unsigned short*>(to + 12) = static_cast<unsigned short>(chunk.w >> 16);
  }
}
