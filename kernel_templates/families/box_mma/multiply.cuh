// The products of box_mma: weights in fragment order times windows of the box.
#pragma once
#include "families/box_mma/tile.cuh"
#include "contract/scalar.cuh"
#include "hardware/const_loop.cuh"
#include "hardware/pack.cuh"
#include "hardware/ptx.cuh"
#include "hardware/tf32_parts.cuh"

template <class Plan>
using BoxSums = float[Plan::CLASSES][Plan::MT][Plan::NT][4];

// weight -> fragments of A, rounded once. thread -> data: four words of one lane: rows lane / 4 and + 8, columns
// lane % 4 and + 4 (16 bits: pairs of columns).
template <class Plan>
__global__ void __launch_bounds__(256) pack_box_weights(const typename Plan::Scalar* __restrict__ weight,
                                                        float* __restrict__ packed) {
  using D = typename Plan::D;
  using H = typename Plan::H;
  using W = typename Plan::W;
  const int index = int(blockIdx.x * 256 + threadIdx.x);
  if (index >= Plan::KINDS * Plan::CHUNKS * Plan::FRAGMENTS * 32) return;
  const int lane = index % 32;
  int rest = index / 32;
  const int fragment = rest;
  const int m = rest % Plan::MT;
  rest /= Plan::MT;
  int shift = 0;
  for (int number = rest % Plan::USED;; ++shift)
    if (Plan::used(shift) && number-- == 0) break;
  rest /= Plan::USED;
  const int kh = rest % H::TAPS;
  rest /= H::TAPS;
  const int kd = D::tap_of_rank(rest % D::TAPS);
  rest /= D::TAPS;
  const int chunk = rest % Plan::CHUNKS, kind = rest / Plan::CHUNKS;
  const int group = kind / Plan::M_PARTS, part = kind % Plan::M_PARTS;
  const auto value = [&](int row, int column) -> typename Plan::Scalar {
    const int half = 2 * m + row / 8, k = chunk * Plan::CHANNELS + column;
    const int channel = (part * Plan::EIGHTS + half / Plan::SLOTS) * 8 + row % 8;
    const int kw = Plan::tap_of(half % Plan::SLOTS, shift);
    if (half >= Plan::EIGHTS * Plan::SLOTS || channel >= Plan::M || k >= Plan::K || kw < 0)
      return narrow<typename Plan::Scalar>(0.0f);
    const long long pair = Plan::FORWARD ? (1LL * group * Plan::K + k) * Plan::M + channel
                                         : (1LL * group * Plan::M + channel) * Plan::K + k;
    return weight[((pair * D::TAPS + kd) * H::TAPS + kh) * W::TAPS + kw];
  };
  float4* const to = reinterpret_cast<float4*>(packed) + 1LL * fragment * Plan::PLANES_OF_A * 32 + lane;
  if constexpr (Plan::NARROW) {
    unsigned word[4];
    for (int e = 0; e < 4; ++e) {
      const int row = lane / 4 + e % 2 * 8, column = lane % 4 * 2 + e / 2 * 8;
      const typename Plan::Scalar low = value(row, column), high = value(row, column + 1);
      word[e] = unsigned(reinterpret_cast<const unsigned short&>(low)) |
                unsigned(reinterpret_cast<const unsigned short&>(high)) << 16;
    }
    *reinterpret_cast<uint4*>(to) = make_uint4(word[0], word[1], word[2], word[3]);
  } else {
    float high[4], low[4];
    for (int e = 0; e < 4; ++e) {
      const float v = value(lane / 4 + e % 2 * 8, lane % 4 + e / 2 * 4);
      high[e] = high_tf32(v);
      low[e] = nearest_tf32(low_tf32(v, high[e]));
    }
    *to = make_float4(high[0], high[1], high[2], high[3]);
    if constexpr (Plan::THREE) to[32] = make_float4(low[0], low[1], low[2], low[3]);
  }
}

// RAW: where the strips of a lane lie in a row of a box whose first grain is any element of its first vector.
template <class Plan>
struct RawPlaces {
  int at[Plan::STRIPS];
  unsigned turns[Plan::STRIPS];        // elements to the strip's own row and the lane's channel
  unsigned of_tile, of_plane, of_row;  // modulo VECTOR: which element of its vector the first one is, in the first channel

  // `place`: where the strips lie in a row that starts with its first grain.
  __device__ __forceinline__ RawPlaces(const int (&place)[Plan::STRIPS]) {
#pragma unroll
    for (int i = 0; i < Plan::STRIPS; ++i) at[i] = place[i];
  }
  __device__ __forceinline__ void turn(const BoxArguments<typename Plan::Scalar>& a, int warp, int lane) {
#pragma unroll
    for (int i = 0; i < Plan::STRIPS; ++i) {
      const BoxStrip own = box_strip(a, (warp * Plan::STRIPS + i) * 8 + Plan::strip_of_column(lane / 4));
      const unsigned plane = own.deep < 0 ? 0 : own.deep * Plan::D::IN_STEP * Plan::D::GRAIN;
      const unsigned row = own.high * Plan::H::IN_STEP * Plan::H::GRAIN;
      turns[i] = (unsigned(lane % 4) * a.in_d * a.in_h + plane * a.in_h + row) * a.in_w;
    }
  }
  __device__ __forceinline__ void to_plane(const BoxArguments<typename Plan::Scalar>& a, int plane) {
    of_plane = of_tile + unsigned(plane * Plan::D::GRAIN) * a.in_h * a.in_w;
  }
  __device__ __forceinline__ void to_row(const BoxArguments<typename Plan::Scalar>& a, int row) {
    of_row = of_plane + unsigned(row * Plan::H::GRAIN) * a.in_w;
  }
  __device__ __forceinline__ int operator[](int i) const { return at[i] + (of_row + turns[i]) % Plan::VECTOR; }
};

// What a lane multiplies: grain i of each strip, of two channels (16 bits: two pairs of channels).
template <class Plan>
struct BoxWindow {
  using Scalar = typename Plan::Scalar;
  using Word = typename Plan::Word;
  static constexpr int WIDTH = Plan::HELD ? Plan::WINDOW : 1;
  Word value[Plan::HELD ? Plan::STRIPS : 1][2][WIDTH];
  Word rest[Plan::HELD && Plan::THREE ? Plan::STRIPS : 1][2][Plan::THREE ? WIDTH : 1];  // tf32x3: what the value lacks

  // `row` + place[i] is the first grain of strip i, in the lane's first channel.
  template <class Places>
  __device__ __forceinline__ void load(const Scalar* row, Places& place, const BoxArguments<Scalar>& a) {
    if constexpr (Plan::HELD) {
#pragma unroll
      for (int strip = 0; strip < Plan::STRIPS; ++strip)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int i = 0; i < Plan::WINDOW; i += Plan::READ) {
            const Scalar* const from = row + place[strip] + half * second_half(a) + i;
            using Read = Pack<Word, Plan::READ_BYTES / 4>;
            if constexpr (Plan::NARROW) {
              const Read low = *reinterpret_cast<const Read*>(from), high = *reinterpret_cast<const Read*>(from + a.pitch);
#pragma unroll
              for (int e = 0; e < Plan::READ / 2; ++e) {
                value[strip][half][i + 2 * e] = __byte_perm(low.value[e], high.value[e], 0x5410);
                value[strip][half][i + 2 * e + 1] = __byte_perm(low.value[e], high.value[e], 0x7632);
              }
            } else {
              const Read v = *reinterpret_cast<const Read*>(from);
#pragma unroll
              for (int e = 0; e < Plan::READ; ++e) {
                value[strip][half][i + e] = rounded(v.value[e]);
                if constexpr (Plan::THREE) rest[strip][half][i + e] = low_tf32(v.value[e], value[strip][half][i + e]);
              }
            }
          }
    }
  }
  // Both operands of a lane. tf32x3: `low` gets what they lack.
  template <int STRIP, int GRAIN, class Places>
  __device__ __forceinline__ void at(Word (&both)[2], [[maybe_unused]] Word (&low)[2], const Scalar* row,
                                     Places& place, const BoxArguments<Scalar>& a) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (Plan::HELD) {
        both[half] = value[STRIP][half][GRAIN];
        if constexpr (Plan::THREE) low[half] = rest[STRIP][half][GRAIN];
      } else {
        const Scalar* const from = row + place[STRIP] + half * second_half(a) + GRAIN;
        if constexpr (Plan::NARROW) {
          const unsigned short* const bits = reinterpret_cast<const unsigned short*>(from);
          both[half] = unsigned(bits[0]) | unsigned(bits[a.pitch]) << 16;
        } else {
          both[half] = rounded(*from);
          if constexpr (Plan::THREE) low[half] = low_tf32(*from, both[half]);
        }
      }
    }
  }

 private:
  static __device__ __forceinline__ float rounded(float v) { return Plan::THREE ? high_tf32(v) : nearest_tf32(v); }
  static __device__ __forceinline__ int second_half(const BoxArguments<Scalar>& a) {
    return Plan::CHANNELS / 2 * a.pitch + Plan::CHANNELS / 4 * a.pair;
  }
};

// The products of one fragment of weights with all cells of a lane.
template <class Plan, int SHIFT, class Places>
__device__ __forceinline__ void multiply_box_strips(float (&sum)[Plan::NT][4], const BoxWindow<Plan>& window,
                                                const typename Plan::Scalar* row, Places& place,
                                                const float4* weights, const BoxArguments<typename Plan::Scalar>& a) {
  const float4 v = *weights, rest = Plan::THREE ? weights[32] : v;
  const_loop<0, Plan::NT>([&](auto cell) {
    constexpr int CELL = decltype(cell)::value, STRIP = CELL / Plan::CELLS;
    constexpr int GRAIN = CELL % Plan::CELLS * Plan::CELL_IN + SHIFT + Plan::LEAD;
    typename Plan::Word b[2], low[2];
    window.template at<STRIP, GRAIN>(b, low, row, place, a);
    float(&d)[4] = sum[CELL];
    if constexpr (Plan::NARROW) {
      const unsigned w[4] = {__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w)};
      mma_m16n8k16<Plan::BFLOAT>(d, w, b, d);
    } else {
      const float w[4] = {v.x, v.y, v.z, v.w};
      if constexpr (Plan::THREE) {  // small terms first, while the sum is small
        const float w_rest[4] = {rest.x, rest.y, rest.z, rest.w};
        mma_m16n8k8_tf32(d, w_rest, b, d);
        mma_m16n8k8_tf32(d, w, low, d);
      }
      mma_m16n8k8_tf32(d, w, b, d);
    }
  });
}

// sum += weights * box, for one chunk of channels and the taps whose offset along D has this number. `box` is the first
// line of the box that they meet; `weights` the lane's words of the first fragment of these taps.
template <class Plan, int NUMBER, class Places>
__device__ __forceinline__ void multiply_box_plane(BoxSums<Plan>& sum, const typename Plan::Scalar* box,
                                               Places& place, const float4* weights,
                                               const BoxArguments<typename Plan::Scalar>& a) {
  using D = typename Plan::D;
  using H = typename Plan::H;
  constexpr int FIRST = D::taps_before(NUMBER), TAPS = D::taps_before(NUMBER + 1) - FIRST;
  const_loop<0, H::TAPS>([&](auto line) {
    constexpr int AT_H = H::offset(decltype(line)::value);
    if constexpr (H::first_at_its_offset(decltype(line)::value)) {
      const typename Plan::Scalar* const row = box + AT_H * a.row;
      if constexpr (Plan::RAW) place.to_row(a, AT_H);
      BoxWindow<Plan> window;
      window.load(row, place, a);
      const_loop<0, TAPS * H::TAPS>([&](auto tap_row) {
        constexpr int TAP = decltype(tap_row)::value / H::TAPS, KD = D::tap_of_rank(FIRST + TAP);
        constexpr int KH = decltype(tap_row)::value % H::TAPS;
        if constexpr (H::offset(KH) == AT_H)
          const_loop<0, Plan::MT>([&](auto tile) {
            constexpr int TILE = decltype(tile)::value;
            float(&all)[Plan::NT][4] = sum[D::class_of_tap(KD) * H::CLASSES + H::class_of_tap(KH)][TILE];
            // tf32x3: tensor cores truncate sums. So they sum only the taps of one row; float32 adds these sums.
            [[maybe_unused]] float few[Plan::THREE ? Plan::NT : 1][4] = {};
            const_loop<0, Plan::SHIFTS>([&](auto number) {
              constexpr int SHIFT = decltype(number)::value;
              if constexpr (Plan::meets(TILE, SHIFT)) {
                constexpr int FRAGMENT = ((TAP * H::TAPS + KH) * Plan::USED + Plan::number_of(SHIFT)) * Plan::MT + TILE;
                const float4* const from = weights + FRAGMENT * Plan::PLANES_OF_A * 32;
                if constexpr (Plan::THREE)
                  multiply_box_strips<Plan, SHIFT>(few, window, row, place, from, a);
                else
                  multiply_box_strips<Plan, SHIFT>(all, window, row, place, from, a);
              }
            });
            if constexpr (Plan::THREE)
#pragma unroll
              for (int i = 0; i < 4 * Plan::NT; ++i) all[i / 4][i % 4] += few[i / 4][i % 4];
          });
      });
    }
  });
}

// sum += weights * box, for one step of a tile.
template <class Plan, class Places>
__device__ __forceinline__ void multiply_box_step(BoxSums<Plan>& sum, const typename Plan::Scalar* box,
                                              Places& place, const float4* weights, int step,
                                              const BoxArguments<typename Plan::Scalar>& a) {
  using D = typename Plan::D;
  const_loop<0, Plan::OFFSETS>([&](auto number) {
    constexpr int NUMBER = decltype(number)::value;
    if (Plan::SPLIT && step % Plan::PLANES != NUMBER) return;
    const bool all = Plan::RESIDENT || !Plan::SPLIT;
    if constexpr (Plan::RAW) place.to_plane(a, D::offset_at(NUMBER));
    multiply_box_plane<Plan, NUMBER>(sum, Plan::SPLIT ? box : box + D::offset_at(NUMBER) * a.rows * a.row, place,
                                 all ? weights + D::taps_before(NUMBER) * (Plan::TAP_WORDS / 4) : weights, a);
  });
}
