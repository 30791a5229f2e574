// grad_bias in strip_wgmma: the warps that bring gy into shared memory also add it up, before it is rounded.
#pragma once
#include "contract/partial_sums.cuh"
#include "families/strip_wgmma/stage.cuh"

// Each lane adds what it holds of a unit of gy to a float of its own in shared memory, because these warps have few
// registers.
//
// Every element of gy counts once, whether a tap meets it or not. As U it is staged once, by the blocks of V's first
// columns. As V its rows overlap. A row counts when it is staged for the first tap row that meets it. A halo counts
// only at the end of a row. Rows that are staged again for a share that begins within a column do not count.
template <class Layer, class Tune>
struct StripBias {
  using Units = StripUnits<Layer, Tune>;
  using Plan = RollingPlan<Layer, Tune, Units::BYTES>;
  static constexpr bool OF_U = Plan::U_IS_GY;
  static constexpr int FIRST = OF_U ? 0 : Units::OF_U, UNITS = OF_U ? Units::OF_U : Units::ALL - Units::OF_U;
  static constexpr bool FITS = Plan::SHARED_BYTES + Units::BYTES + 128 * UNITS <= 227 * 1024;
  // Else sum_channel reads gy a second time: a stride leaves gaps in what is staged, or several blocks share the taps
  // along h.
  static constexpr bool HERE = Layer::has_bias && Plan::UNIT && (OF_U || Plan::ROWS_H == Layer::kernel_h) && FITS;
  static constexpr int BYTES = HERE ? 128 * UNITS : 0;
  // Partial sums of a share: [row][channel]. Units with the same channels have a row each.
  static constexpr int COLUMNS = OF_U ? 1 : Plan::GROUPS / Plan::V_PARTS, ROWS = COLUMNS * Plan::PAIR * Units::HALVES;

  static long long partial_bytes(int shares) { return HERE ? 4LL * shares * ROWS * Layer::out_channels : 0; }

  // True if the tiles reach all of gy, output_padding included, and a lane's sums are short enough.
  static bool serves(const Sizes& s, long long tiles, int shares, int row_tiles) {
    constexpr long long REACH_D = 1LL * (Layer::kernel_d - 1) * Layer::dilation_d - Layer::padding_d;
    constexpr long long REACH_H = 1LL * (Layer::kernel_h - 1) * Layer::dilation_h - Layer::padding_h;
    const bool whole = OF_U || (s.out_w <= 1LL * row_tiles * Plan::LENGTH + Plan::LOW + Units::HALO &&
                                s.out_h <= s.in_h + REACH_H && s.out_d <= s.in_d + REACH_D &&
                                (Layer::kernel_d == 1 || s.in_d >= Layer::dilation_d));
    return HERE && whole && tiles / shares < TERMS_PER_SUM;
  }

  float* sums;  // [unit][lane]
  bool asked;

  __device__ __forceinline__ StripBias(float* sums, int warp, const BlockOperands& block, const float* partials)
      : sums(sums),
        asked(HERE && partials && (OF_U ? block.v_group0 + block.shift0 == 0 : block.u_part0 == 0)) {
    for_units(warp, [&](int turn) { of_turn(turn) = 0.f; });
  }

  // What counts of a step: its rows, its halo, and the rows of taps (kd) other than the first.
  struct Step {
    bool rows, halo, last_d;
  };
  __device__ __forceinline__ Step step(const RollingWalk<Plan>& at, const Sizes& sizes, int row_tiles) const {
    return {asked && (!at.warms() || at.h == 0), at.w + 1 == row_tiles, at.d + Layer::dilation_d >= sizes.in_d};
  }

  // `strip`: what store_unit() read; h: which four of the unit's strips.
  template <bool of_u>
  __device__ __forceinline__ void add(int turn, const StripUnit& unit, const Step& step, const BlockOperands& block,
                                      const float4 (&strip)[5], int h) {
    if constexpr (HERE && of_u == OF_U) {
      bool counts = step.rows;
      if constexpr (!OF_U && COLUMNS > 1)
        counts = counts && (step.last_d || block.v_group0 + unit.more / Plan::PAIR < Plan::V_PARTS);
      float sum = of_four(strip[0]) + of_four(strip[1]) + (of_four(strip[2]) + of_four(strip[3]));
      const bool last = Plan::IMAGES > 1 || (unit.half == Units::HALVES - 1 && h == 16 / Plan::STRIP - 1);
      if (!OF_U && Units::HALO > 0 && step.halo && last)
        sum += of_four(strip[4]);
      if (counts) of_turn(turn) += sum;
    }
  }

  // Writes the block's sums as partial sums of its share.
  __device__ __forceinline__ void store(int warp, const BlockOperands& block, int share, float* partials) {
    if (!asked) return;
    for_units(warp, [&](int turn) {
      const StripUnit unit = unit_of<Layer, Tune, OF_U>(turn, warp);
      float sum = of_turn(turn);
      sum += __shfl_xor_sync(0xffffffffu, sum, 8);
      sum += __shfl_xor_sync(0xffffffffu, sum, 16);
      int more = unit.more, channel = unit.eight * 8 + threadIdx.x % 32;  // more: of U's rows or V's
      if constexpr (OF_U) {
        channel += (block.u_part0 + (Plan::PAIR == 2 ? 0 : more)) * 64;
        more = Plan::PAIR == 2 ? more : 0;
      } else {
        const int v_group = block.v_group0 + more / Plan::PAIR;
        if (v_group >= Plan::GROUPS) return;
        channel += v_group % Plan::V_PARTS * Plan::V_CHANNELS;
        more = v_group / Plan::V_PARTS * Plan::PAIR + more % Plan::PAIR;
      }
      if (threadIdx.x % 32 < 8 && channel < Plan::CO)
        partials[(1LL * share * ROWS + more * Units::HALVES + unit.half) * Layer::out_channels +
                 block.group * Plan::CO + channel] = sum;
    });
  }

 private:
  __device__ __forceinline__ float& of_turn(int turn) const {
    return sums[32 * (turn * Units::WARPS - FIRST - 4 * Plan::CONSUMERS) + computed_anew(int(threadIdx.x))];
  }
  __device__ __forceinline__ static float of_four(const float4& v) { return v.x + v.y + (v.z + v.w); }
  template <class Body>
  __device__ __forceinline__ void for_units(int warp, const Body& body) const {
    if constexpr (HERE) {
#pragma unroll 1
      for (int turn = 0; turn < Units::PER_WARP; ++turn) {
        const int unit = turn * Units::WARPS + warp - FIRST;
        if (unit >= 0 && unit < UNITS) body(turn);
      }
    }
  }
};
