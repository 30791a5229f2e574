// What a lane of the multiplying warps of register_wgmma's grad_weight loads of gy, and how that becomes operands of wgmma. Both
// structs of taps have the same functions: RawTaps for 16-bit values, RawFloatTaps for float32.
#pragma once
#include "families/persistent_wgmma/gather_weights.cuh"
#include "families/register_wgmma/split_plan.cuh"
#include "hardware/const_loop.cuh"
#include "hardware/pack.cuh"

// What a lane loads for 16 positions: words of gy for its two channels (8 apart) and its two pairs of positions (8 apart).
template <class Plan>
struct RawWords {
  unsigned word[2][2][Plan::LOADED];
};

// The taps of a warp. WORD0: the word that its first tap meets, from the position on; ANY if lanes of the warpgroup have different
// ones.
constexpr int ANY = 1 << 20;
template <class Plan, int WORD0>
struct RawTaps {
  using Loaded = RawWords<Plan>;
  int word0;
  unsigned selector[Plan::R];  // of __byte_perm: the lower or the upper halves of two words
  __device__ __forceinline__ explicit RawTaps(int tap0) : word0((tap0 - Plan::PW) >> 1) {
#pragma unroll
    for (int tap = 0; tap < Plan::R; ++tap)
      selector[tap] = (WORD0 == ANY || Plan::R == 1 ? tap0 + tap - Plan::PW : tap - Plan::PW) & 1 ? 0x7632 : 0x5410;
  }
  __device__ __forceinline__ int first() const { return WORD0 == ANY ? word0 : WORD0; }
  __device__ __forceinline__ int odd() const { return first() & 1; }

  // Where the lane's first word lies in a row of the stage, in bytes.
  __device__ __forceinline__ int place() const { return (Plan::BEFORE + int(threadIdx.x) % 4 * 2 + first() - odd()) * 4; }

  // `from`: the lane's first word of these 16 positions.
  static __device__ __forceinline__ void load(const char* from, Loaded& raw) {
#pragma unroll
    for (int channel = 0; channel < 2; ++channel)
#pragma unroll
      for (int pair = 0; pair < 2; ++pair)
#pragma unroll
        for (int i = 0; i < Plan::LOADED; i += 2) {
          const uint2 two = *reinterpret_cast<const uint2*>(from + channel * 8 * Plan::ROW_BYTES + pair * 32 + i * 4);
          raw.word[channel][pair][i] = two.x, raw.word[channel][pair][i + 1] = two.y;
        }
  }

  // Operands of wgmma, one for each tap. `in_line`: the place in its line of the first position of each pair.
  __device__ __forceinline__ void take(const Loaded& raw, const int (&in_line)[2], int pitch, float,
                                       unsigned (&fragment)[Plan::R][4]) const {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const bool before = Plan::CROSSES && in_line[pair] + first() < 0;
      const bool behind = Plan::CROSSES && in_line[pair] + first() + Plan::WORDS > pitch;
#pragma unroll
      for (int channel = 0; channel < 2; ++channel) {
        const auto& loaded = raw.word[channel][pair];
        unsigned word[Plan::WORDS];
#pragma unroll
        for (int i = 0; i < Plan::WORDS; ++i) {
          if constexpr (Plan::ONE_PAIR) word[i] = loaded[i];
          else if constexpr (WORD0 != ANY) word[i] = loaded[i + (WORD0 & 1)];
          else word[i] = odd() ? loaded[i + 1] : loaded[i];
        }
        if (before) word[0] = 0;
        if (behind) word[Plan::WORDS - 1] = 0;
#pragma unroll
        for (int tap = 0; tap < Plan::R; ++tap) {
          const int at = Plan::R > 1 ? Plan::word_of(tap) : 0;
          fragment[tap][channel + pair * 2] = __byte_perm(word[at], word[at + 1], selector[tap]);
        }
      }
    }
  }

  // grad_bias: the elements of gy that belong to the lane's positions.
  __device__ __forceinline__ void add(const Loaded& raw, float (&bias)[2]) const {
    using Scalar = typename Plan::Scalar;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const unsigned word = raw.word[i / 4][i / 2 % 2][Plan::OWN_WORD + i % 2];
      const auto two = reinterpret_cast<const Pack<Scalar, 2>&>(word);
      bias[i / 4] += float(widen(two.value[0])) + float(widen(two.value[1]));
    }
  }
};

// What a lane loads for 8 positions: an element of gy for each tap, for its two channels (8 apart) and two positions (4 apart).
template <class Plan>
struct RawFloats {
  float value[2][2][Plan::R];
};

// The taps of a warp. `tap0 - PW` is the distance of the first tap's element from the first element of its position.
template <class Plan>
struct RawFloatTaps {
  using Loaded = RawFloats<Plan>;
  static constexpr int ODD = Plan::PW % 2;  // of a group: whether its first element is the second of a word
  int offset;   // of the first tap's element
  int counted;  // the same, or 2 where its elements are not part of grad_bias
  __device__ __forceinline__ explicit RawFloatTaps(int tap0, bool exists)
      : offset(tap0 - Plan::PW), counted(exists ? offset : 2) {}

  __device__ __forceinline__ int place() const {
    return (2 * (Plan::BEFORE + int(threadIdx.x) % 4) + offset) * 4;
  }

  // `from`: the lane's first element of these 8 positions. Neighbours in a word are loaded together.
  static __device__ __forceinline__ void load(const char* from, Loaded& raw) {
#pragma unroll
    for (int channel = 0; channel < 2; ++channel)
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const char* const at = from + channel * 8 * Plan::ROW_BYTES + pair * 32;
        auto& value = raw.value[channel][pair];
        const_loop<0, Plan::R>([&](auto number) {
          constexpr int TAP = decltype(number)::value;
          constexpr bool FIRST = (TAP + ODD) % 2 == 0;  // of a word
          if constexpr (Plan::R > 1 && FIRST && TAP + 1 < Plan::R) {
            const float2 two = *reinterpret_cast<const float2*>(at + 4 * TAP);
            value[TAP] = two.x, value[TAP + 1] = two.y;
          } else if constexpr (Plan::R == 1 || FIRST || TAP == 0) {
            value[TAP] = *reinterpret_cast<const float*>(at + 4 * TAP);
          }
        });
      }
  }

  __device__ __forceinline__ void take(const Loaded& raw, const int (&in_line)[2], int pitch, float one,
                                       unsigned (&fragment)[Plan::R][4]) const {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair)
#pragma unroll
      for (int tap = 0; tap < Plan::R; ++tap) {
        const bool beyond = Plan::CROSSES && unsigned(2 * in_line[pair] + offset + tap) >= unsigned(2 * pitch);
#pragma unroll
        for (int channel = 0; channel < 2; ++channel)
          fragment[tap][channel + pair * 2] =
              beyond ? 0u : __float_as_uint(round_for_tensor_cores(raw.value[channel][pair][tap], one));
      }
  }

  // grad_bias: the two elements of gy that belong to the lane's positions. Warps with other taps may have one of them.
  __device__ __forceinline__ void add(const Loaded& raw, float (&bias)[2]) const {
#pragma unroll
    for (int tap = 0; tap < Plan::R; ++tap)
      if (unsigned(counted + tap) < 2u)
#pragma unroll
        for (int channel = 0; channel < 2; ++channel) bias[channel] += raw.value[channel][0][tap] + raw.value[channel][1][tap];
  }
};
