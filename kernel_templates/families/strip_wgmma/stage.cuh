// The copying warps of strip_wgmma. They copy rows of a tensor into shared memory unchanged, and write them from
// there as strips (families/strip_wgmma/plan.cuh), rounded to TF32.
#pragma once
#include "contract/computed_anew.cuh"
#include "hardware/ptx.cuh"
#include "hardware/mbarrier.cuh"
#include "families/strip_wgmma/rolling_plan.cuh"

// A unit is what a warp stages at a time: eight channels of 64 positions and their halo. That is a tile of 8 strips of
// 8 (of two batch elements: 4 strips of each, and their halo), or 4 of the 8 strips of 16.
template <class Layer, class Tune>
struct StripUnits {
  using Plan = RollingPlan<Layer, Tune>;
  static_assert((Plan::STRIP == 8 || Plan::STRIP == 16) && Plan::REACH <= 16, "a lane's four positions of four strips");
  static constexpr int HALVES = Plan::STRIP / 8, V_EIGHTS = Plan::V_CHANNELS / 8;
  static constexpr int OF_U = HALVES * Plan::U_TILES * Plan::PAIR * Plan::U_EIGHTS;
  static constexpr int ALL = OF_U + HALVES * Plan::BLOCK_GROUPS * Plan::PAIR * V_EIGHTS;
  static constexpr int HALO = ceil_div(Plan::REACH, 4) * 4;
  // Eight lanes that read 16 bytes of eight rows meet all banks: the pitch is 4 modulo 8.
  static constexpr int PITCH = Plan::IMAGES * HALO % 8 == 4 ? 64 + HALO : 68 + Plan::IMAGES * HALO;
  // Every unit has eight channels; a tile of V lies in the row of the same number.
  static constexpr bool U_WHOLE = Plan::CU % (Plan::CU > 64 ? 64 : 8) == 0 && Plan::U_PARTS % Plan::U_TILES == 0;
  static constexpr bool V_WHOLE = Plan::V_PARTS * Plan::V_CHANNELS == Plan::CV;
  static constexpr bool SAME_ROW = Plan::ROWS == 1 && Layer::padding_d == 0 && Layer::padding_h == 0 &&
                                   Layer::stride_d == 1 && Layer::stride_h == 1;
  static constexpr int FLOATS = 8 * PITCH;
  // The number of copying warps. If the config leaves it open: eight if registers and shared memory suffice, else four.
  static constexpr __host__ __device__ int bytes(int warps) { return 4 * warps * ceil_div(ALL, warps) * FLOATS; }
  static constexpr bool EIGHT = Plan::CONSUMERS <= 2 && RollingRegisters<Plan, 8>::SUFFICE &&
                                Plan::bytes(2) + bytes(8) <= Plan::ROOM;
  static constexpr int WARPS = Tune::COPY_WARPS ? Tune::COPY_WARPS : EIGHT ? 8 : 4;
  static constexpr int PER_WARP = ceil_div(ALL, WARPS), BYTES = bytes(WARPS);
};

// Eight rows (channels), `plane` elements apart; `first` is the position of column 0 in a row of `length`.
struct StripRows {
  const float* row;
  long long plane;
  int channels, first, length;
  int all;      // channels of the tensor
  bool second;  // there is a second batch element
};

// Where a lane's copies of a unit begin: row r of the eight, column `column`; and its part of the halo.
template <int WIDTH, int HALO>
struct StripLane {
  static constexpr int LANES = 64 / WIDTH < 32 ? 64 / WIDTH : 32, STEP = 32 / LANES, IN_HALO = HALO > 0 ? HALO / WIDTH : 1;
  static __device__ __forceinline__ int r(int lane) { return unsigned(lane) / LANES; }
  static __device__ __forceinline__ int column(int lane) { return unsigned(lane) % LANES * WIDTH; }
  static __device__ __forceinline__ int halo_r(int e) { return unsigned(e) / IN_HALO; }
  static __device__ __forceinline__ int halo_column(int e) { return unsigned(e) % IN_HALO * WIDTH; }
};

// Copies a unit. WHOLE: all eight channels exist. The rows of a lane are STEP apart; one pointer runs over them.
template <int WIDTH, int HALO, int PITCH, bool WHOLE, int IMAGES>
__device__ __forceinline__ void copy_unit(float* to, const StripRows& from, int lane) {
  using Lane = StripLane<WIDTH, HALO>;
  const int r = Lane::r(lane), column = Lane::column(lane);
#pragma unroll
  for (int part = 0; part < 64; part += Lane::LANES * WIDTH) {
    const bool second = IMAGES > 1 && column + part >= 32;
    const bool inside = unsigned(from.first + column + part - (second ? 32 : 0)) < unsigned(from.length) &&
                        (!second || from.second);
    const float* source = from.row + r * from.plane + (from.first + column) + part;
    if (second) source += from.all * from.plane - 32;
#pragma unroll
    for (int k = 0; k < 8; k += Lane::STEP, source += Lane::STEP * from.plane)
      cp_async<4 * WIDTH>(to + (r + k) * PITCH + column + part + (second ? HALO : 0), source,
                          inside && (WHOLE ? from.channels > 0 : r + k < from.channels) ? 4 * WIDTH : 0);  // 0: not read
  }
  if constexpr (HALO > 0) {
    constexpr int ALL = 8 * HALO / WIDTH, LENGTH = 64 / IMAGES;
#pragma unroll
    for (int turn = 0; turn < ceil_div(IMAGES * ALL, 32); ++turn) {
      const int e = turn * 32 + lane, image = IMAGES > 1 && e >= ALL ? 1 : 0;
      if (e >= IMAGES * ALL) continue;
      const int halo_r = Lane::halo_r(e - image * ALL), column = LENGTH + Lane::halo_column(e - image * ALL);
      const bool there = (WHOLE ? from.channels > 0 : halo_r < from.channels) && (image == 0 || from.second) &&
                         unsigned(from.first + column) < unsigned(from.length);
      cp_async<4 * WIDTH>(to + halo_r * PITCH + image * (LENGTH + HALO) + column,
                          from.row + halo_r * from.plane + (from.first + column) + image * from.all * from.plane,
                          there ? 4 * WIDTH : 0);
    }
  }
}

__device__ __forceinline__ float element(const float4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Where a lane's four positions go, in blocks. As far as the halo reaches they go to a second place too.
template <class Plan>
struct StripPlaces {
  int own[4], again[4];
  __device__ __forceinline__ explicit StripPlaces(int lane) {
    const int first = lane / 8 % (Plan::STRIP / 4) * 4;
#pragma unroll
    for (int e = 0; e < 4; ++e) own[e] = Plan::place(first + e), again[e] = Plan::place(Plan::STRIP + first + e);
  }
};

// Writes a unit as strips. A lane has row lane % 8, positions 4 q .. 4 q + 3 of the strips 4 h .. 4 h + 3. With strips
// of 16 a unit has one h, and `to` belongs to it. `to` is block 0 of the eight rows. unrounded(strip, h) receives what
// the lane has read.
template <class Plan, int HALO, int PITCH, int BLOCK, class Unrounded>
__device__ __forceinline__ void store_unit(char* to, const float* rows, int lane, const StripPlaces<Plan>& places,
                                           float one, const Unrounded& unrounded) {
  constexpr int S = Plan::STRIP;
  const int r = lane % 8, q = lane / 8 % (S / 4), h = lane / (2 * S);
  const float* from = rows + r * PITCH + (4 * S + (Plan::IMAGES - 1) * HALO) * h + 4 * q;
  to += h * 128 + r * 16;
  float4 strip[5];
#pragma unroll
  for (int s = 0; s < 4; ++s) strip[s] = *reinterpret_cast<const float4*>(from + S * s);
  strip[4] = make_float4(0.f, 0.f, 0.f, 0.f);
  if (4 * q < HALO) strip[4] = *reinterpret_cast<const float4*>(from + 4 * S);
  unrounded(strip, h);
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    float value[5];
#pragma unroll
    for (int s = 0; s < 5; ++s) value[s] = HALO > 0 || s < 4 ? round_for_tensor_cores(element(strip[s], e), one) : 0.f;
    // Without dilation a block further on is a constant.
    const int place = Plan::DILATION == 1 || HALO == 0 ? 4 * q + e : places.own[e];
    *reinterpret_cast<float4*>(to + place * BLOCK) = make_float4(value[0], value[1], value[2], value[3]);
    if (HALO > 0 && 4 * q + e < Plan::REACH) {
      const int again = Plan::DILATION == 1 ? S + 4 * q + e : places.again[e];
      *reinterpret_cast<float4*>(to + again * BLOCK) = make_float4(value[1], value[2], value[3], value[4]);
    }
  }
}

// What a block stages: the first of its 64-channel parts of U, of V's groups and of the shifts along h.
struct BlockOperands {
  int group, u_part0, v_group0, shift0;
};

// A unit: which eight channels of an operand, which half of their tile, and `more`: U's part or row, or V's group and
// row.
struct StripUnit {
  int half, eight, more;
};

// Unit `turn` * WARPS + warp, counted from the first unit of its operand. Constants decide as much as possible.
template <class Layer, class Tune, bool of_u>
__device__ __forceinline__ StripUnit unit_of(int turn, int warp) {
  using Units = StripUnits<Layer, Tune>;
  constexpr int EIGHTS = of_u ? Units::Plan::U_EIGHTS : Units::V_EIGHTS, PER = Units::HALVES * EIGHTS;
  constexpr int WARPS = Units::WARPS, FIRST = of_u ? 0 : Units::OF_U;
  unsigned within, more;
  if constexpr (PER % WARPS == 0 && FIRST % WARPS == 0) {
    const unsigned base = turn * WARPS - FIRST;
    within = base % PER + warp, more = base / PER;
  } else {
    const unsigned unit = turn * WARPS + warp - FIRST;
    within = unit % PER, more = unit / PER;
  }
  return {int(within % Units::HALVES), int(within / Units::HALVES), int(more)};
}

// The rows of a unit in the tensor.
template <class Layer, class Tune, bool of_u, class Walk>
__device__ __forceinline__ StripRows rows_of_unit(const StripUnit& unit, const Walk& at, const Sizes& sizes,
                                                  const BlockOperands& block, const float* tensor) {
  using Plan = RollingPlan<Layer, Tune>;
  using Units = StripUnits<Layer, Tune>;
  constexpr bool of_input = of_u != Plan::U_IS_GY;
  const int depth = of_input ? sizes.in_d : sizes.out_d, height = of_input ? sizes.in_h : sizes.out_h;
  StripRows rows;
  rows.length = of_input ? sizes.in_w : sizes.out_w;
  rows.plane = 1LL * depth * height * rows.length;
  constexpr int ALL = of_input ? Layer::in_channels : Layer::out_channels, OF_GROUP = of_input ? Plan::CI : Plan::CO;
  int channel, d = at.d, h = at.row();
  bool there = true;
  rows.first = at.w * Plan::LENGTH + unit.half * 64;
  if constexpr (of_u) {
    if constexpr (Plan::PAIR == 2) {
      h += unit.more;
      there = h < height;
    }
    channel = (block.u_part0 + (Plan::PAIR == 2 ? 0 : unit.more)) * 64 + unit.eight * 8;
    rows.channels = Units::U_WHOLE ? 8 : Plan::CU - channel;
  } else {
    const int e = unit.more % Plan::PAIR, v_group = block.v_group0 + unit.more / Plan::PAIR;
    const int part = Plan::GROUPS == Plan::V_PARTS ? v_group : v_group % Plan::V_PARTS;
    channel = part * Plan::V_CHANNELS + unit.eight * 8;
    if constexpr (!Units::SAME_ROW) {
      const int column = v_group / Plan::V_PARTS;  // kd, and kh where rows do not roll
      const int kd = column / (Layer::kernel_h / Plan::TAPS_H);
      const int shift_d = kd * Layer::dilation_d - Layer::padding_d;
      d = Plan::U_IS_GY ? d - shift_d : d * Layer::stride_d + shift_d;
      if constexpr (Plan::ROLLS) {
        h += e + Plan::LOW_H + block.shift0 * Plan::STEP + Plan::BEHIND;
      } else {
        const int shift_h = column % Layer::kernel_h * Layer::dilation_h - Layer::padding_h;
        h = Plan::U_IS_GY ? h - shift_h : h * Layer::stride_h + shift_h;
      }
      there = v_group < Plan::GROUPS && unsigned(d) < unsigned(depth) && unsigned(h) < unsigned(height);
    } else if constexpr (Plan::GROUPS % Plan::BLOCK_GROUPS != 0) {
      there = v_group < Plan::GROUPS;
    }
    rows.channels = Units::V_WHOLE ? 8 : Plan::CV - channel;
    rows.first += int(Plan::LOW);
  }
  if (!there || rows.channels <= 0) rows.channels = 0, channel = d = h = 0;
  // First the part that depends on the tile, then the part that depends on the unit.
  rows.all = ALL;
  rows.second = at.n * Plan::IMAGES + 1 < sizes.batch;
  const long long tile = at.n * Plan::IMAGES * (ALL * rows.plane) + (1LL * d * height + h) * rows.length;
  rows.row = tensor + (block.group * OF_GROUP + channel) * rows.plane + tile;
  return rows;
}

// Where a unit's eight rows begin: in U's stage, or in V's ring from the step's first row on.
template <class Plan, bool of_u>
__device__ __forceinline__ int place_of_unit(const StripUnit& unit) {
  const int more = of_u ? (Plan::PAIR == 2 ? unit.more * 32 * 32 : unit.more * Plan::U_CHUNK)
                        : unit.more % Plan::PAIR * Plan::V_ROW + unit.more / Plan::PAIR * Plan::V_CHUNK;
  return more + unit.eight * 256 + unit.half * 128;
}

// One warp's part of all steps of a share. `raw` is the warp's own ring of Units::PER_WARP units, copied one step
// ahead. `stages` holds U's stages, then V's ring. A lane reads what other lanes copied, so the warp meets between the
// wait and the reading, and again before the next copy overwrites what was read. `bias`: see bias.cuh.
template <class Layer, class Tune, class Plan, int U_WIDTH, int V_WIDTH, class Bias>
__device__ __forceinline__ void stage_strips_by(char* stages, unsigned barriers, float* raw, int warp,
                                                RollingWalk<Plan> next, int row_tiles,
                                                const Sizes& sizes, const BlockOperands& block, const float* u,
                                                const float* v, float one, Bias& bias) {
  using Units = StripUnits<Layer, Tune>;
  // Up to 8 units are unrolled, so that constants decide what each of them is.
  constexpr int SPELLED = Units::PER_WARP <= 8 ? Units::PER_WARP : 1, WARPS = Units::WARPS;
  // With few registers and turns whose units belong to both operands, ptxas 13.0 spills what it keeps between turns.
  constexpr bool TIGHT = RollingRegisters<Plan, WARPS>::LEFT <= 80 && (Units::OF_U % WARPS || Units::ALL % WARPS);
  constexpr bool CARRIES = SPELLED > 1 && Plan::DILATION == 1 && !TIGHT;
  const auto fresh = [](int value) { return CARRIES ? value : computed_anew(value); };
  const auto is_of_u = [](int i, int unit) {
    return Units::OF_U % WARPS == 0 ? i < Units::OF_U / WARPS : unit < Units::OF_U;
  };
  const auto copy = [&](int i) {
    const int lane = fresh(threadIdx.x % 32), own = fresh(warp), unit = i * WARPS + own;
    if (next.left > 0) {
      float* to = raw + i * Units::FLOATS;
      if (is_of_u(i, unit)) {
        if (!next.warms())
          copy_unit<U_WIDTH, 0, Units::PITCH, Units::U_WHOLE, Plan::IMAGES>(
              to, rows_of_unit<Layer, Tune, true>(unit_of<Layer, Tune, true>(i, own), next, sizes, block, u), lane);
      } else if (Units::ALL % WARPS == 0 || unit < Units::ALL) {
        copy_unit<V_WIDTH, Units::HALO, Units::PITCH, Units::V_WHOLE, Plan::IMAGES>(
            to, rows_of_unit<Layer, Tune, false>(unit_of<Layer, Tune, false>(i, own), next, sizes, block, v), lane);
      }
    }
    cp_async_commit();
  };
  const StripPlaces<Plan> places(threadIdx.x % 32);
#pragma unroll SPELLED
  for (int i = 0; i < Units::PER_WARP; ++i) copy(i);
  int stage = 0, parity = 1, v_row = 0;
#pragma unroll 1
  while (next.left > 0) {
    const bool with_u = !next.warms();
    const auto step = bias.step(next, sizes, row_tiles);
    next.next(row_tiles);
    mbarrier_wait(barriers + 8 * (Plan::STAGES + stage), parity);
#pragma unroll SPELLED
    for (int i = 0; i < Units::PER_WARP; ++i) {
      const int lane = fresh(threadIdx.x % 32), own = fresh(warp), unit = i * WARPS + own;
      cp_async_wait<Units::PER_WARP - 1>();
      __syncwarp();
      const float* from = raw + i * Units::FLOATS;
      if (is_of_u(i, unit)) {
        const StripUnit of = unit_of<Layer, Tune, true>(i, own);
        if (with_u)
          store_unit<Plan, 0, Units::PITCH, Plan::U_BLOCK>(
              stages + stage * Plan::U_STAGE + place_of_unit<Plan, true>(of), from, lane, places, one,
              [&](const float4(&strip)[5], int h) { bias.template add<true>(i, of, step, block, strip, h); });
      } else if (Units::ALL % WARPS == 0 || unit < Units::ALL) {
        const StripUnit of = unit_of<Layer, Tune, false>(i, own);
        store_unit<Plan, Units::HALO, Units::PITCH, Plan::V_BLOCK>(
            stages + Plan::STAGES * Plan::U_STAGE + v_row * Plan::V_ROW + place_of_unit<Plan, false>(of), from, lane,
            places, one,
            [&](const float4(&strip)[5], int h) { bias.template add<false>(i, of, step, block, strip, h); });
      }
      __syncwarp();
      copy(i);
    }
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barriers + 8 * stage);
    if ((v_row += Plan::PAIR) == Plan::V_ROWS) v_row = 0;
    if (++stage == Plan::STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
}
