// The warps of strip_wgmma that bring tiles into shared memory: rows of a tensor are copied as they are, and from there
// written once more as strips (common/strip_plan.cuh), rounded to TF32 on the way.
#pragma once
#include "common/computed_anew.cuh"
#include "common/ptx.cuh"
#include "common/strip_products.cuh"

// What a warp stages at a time: eight channels of one chunk, 64 positions and a halo of them.
template <class Layer, class Tune>
struct StripUnits {
  using Plan = StripPlan<Layer, Tune>;
  static_assert(Plan::TILE == 64 && Plan::HALO <= 8, "a lane's four positions in four strips are a quarter of a row");
  static constexpr int U_EIGHTS = Plan::U_CHANNELS / 8, V_EIGHTS = Plan::V_CHANNELS / 8;
  static constexpr int OF_U = Plan::U_TILES * U_EIGHTS;
  static constexpr int ALL = OF_U + Plan::WARPGROUPS * Plan::SLABS * V_EIGHTS;
  static constexpr int PER_WARP = ceil_div(ALL, Tune::COPY_WARPS);
  static constexpr int HALO = ceil_div(Plan::HALO, 4) * 4;
  // Eight lanes that read 16 bytes of eight rows meet all banks: the pitch is 4 or 12 modulo 32.
  static constexpr int PITCH = HALO <= 4 ? 68 : 76;
  // Every unit has eight channels; a tile of V lies in the row of the same number.
  static constexpr bool U_WHOLE = Plan::CU % 64 == 0 && Plan::U_PARTS % Plan::U_TILES == 0;
  static constexpr bool V_WHOLE = Plan::V_PARTS * Plan::V_CHANNELS == Plan::CV &&
                                  Plan::R_TILES * Plan::WARPGROUPS * Plan::SLABS == Plan::ALL_SLABS;
  static constexpr bool SAME_ROW = Plan::ROWS == 1 && Layer::padding_d == 0 && Layer::padding_h == 0 &&
                                   Layer::stride_d == 1 && Layer::stride_h == 1;
  static constexpr int FLOATS = 8 * PITCH, BYTES = 4 * Tune::COPY_WARPS * PER_WARP * FLOATS;
};

// Eight rows (channels), `plane` elements apart; `first` is the position of column 0 in a row of `length`.
struct StripRows {
  const float* row;
  long long plane;
  int channels, first, length;
};

// Where a lane's copies of a unit begin: row r of the eight, column `column`; and its part of the halo.
template <int WIDTH, int HALO>
struct StripLane {
  static constexpr int LANES = 64 / WIDTH < 32 ? 64 / WIDTH : 32, STEP = 32 / LANES, IN_HALO = HALO > 0 ? HALO / WIDTH : 1;
  static __device__ __forceinline__ int r(int lane) { return unsigned(lane) / LANES; }
  static __device__ __forceinline__ int column(int lane) { return unsigned(lane) % LANES * WIDTH; }
  static __device__ __forceinline__ int halo_r(int e) { return unsigned(e) / IN_HALO; }
  static __device__ __forceinline__ int halo_column(int e) { return 64 + unsigned(e) % IN_HALO * WIDTH; }
};

// WHOLE: all eight channels exist. The rows of a lane are STEP apart; its pointer runs over them.
template <int WIDTH, int HALO, int PITCH, bool WHOLE>
__device__ __forceinline__ void copy_unit(float* to, const StripRows& from, int lane) {
  using Lane = StripLane<WIDTH, HALO>;
  const int r = Lane::r(lane), column = Lane::column(lane);
#pragma unroll
  for (int part = 0; part < 64; part += Lane::LANES * WIDTH) {
    const bool inside = unsigned(from.first + column + part) < unsigned(from.length);
    const float* source = from.row + r * from.plane + (from.first + column) + part;
#pragma unroll
    for (int k = 0; k < 8; k += Lane::STEP, source += Lane::STEP * from.plane)
      cp_async<4 * WIDTH>(to + (r + k) * PITCH + column + part, source,
                          inside && (WHOLE ? from.channels > 0 : r + k < from.channels) ? 4 * WIDTH : 0);  // 0: not read
  }
  if constexpr (HALO > 0) {
#pragma unroll
    for (int turn = 0; turn < ceil_div(8 * HALO / WIDTH, 32); ++turn) {
      const int e = turn * 32 + lane;
      if (e >= 8 * HALO / WIDTH) continue;
      const int halo_r = Lane::halo_r(e), halo_column = Lane::halo_column(e);
      const bool there = (WHOLE ? from.channels > 0 : halo_r < from.channels) &&
                         unsigned(from.first + halo_column) < unsigned(from.length);
      cp_async<4 * WIDTH>(to + halo_r * PITCH + halo_column,
                          from.row + halo_r * from.plane + (from.first + halo_column), there ? 4 * WIDTH : 0);
    }
  }
}

__device__ __forceinline__ float element(const float4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// A lane has row lane % 8, positions 4 q .. 4 q + 3 of the strips 4 h .. 4 h + 3. `to`: block 0 of the eight rows.
template <class Plan, int HALO, int PITCH, int BLOCK>
__device__ __forceinline__ void store_unit(char* to, const float* rows, int lane, float one) {
  const int r = lane % 8, q = lane / 8 % 2, h = lane / 16;
  const float* from = rows + r * PITCH + 32 * h + 4 * q;
  to += h * 128 + r * 16;
  float4 strip[5];
#pragma unroll
  for (int s = 0; s < 4; ++s) strip[s] = *reinterpret_cast<const float4*>(from + 8 * s);
  strip[4] = make_float4(0.f, 0.f, 0.f, 0.f);
  if (4 * q < HALO) strip[4] = *reinterpret_cast<const float4*>(from + 32);
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    float value[5];
#pragma unroll
    for (int s = 0; s < 5; ++s) value[s] = HALO > 0 || s < 4 ? round_for_tensor_cores(element(strip[s], e), one) : 0.f;
    // Without dilation a block further on is a constant.
    const int place = Plan::DILATION == 1 ? 4 * q + e : q == 0 ? Plan::place(e) : Plan::place(4 + e);
    *reinterpret_cast<float4*>(to + (HALO > 0 ? place : 4 * q + e) * BLOCK) =
        make_float4(value[0], value[1], value[2], value[3]);
    if (HALO > 0 && 4 * q + e < Plan::HALO) {
      const int again = Plan::DILATION == 1 ? 8 + 4 * q + e : q == 0 ? Plan::place(8 + e) : Plan::place(12 + e);
      *reinterpret_cast<float4*>(to + again * BLOCK) = make_float4(value[1], value[2], value[3], value[4]);
    }
  }
}

// One unit of the tile at `at`: its rows in the tensor. Constants decide as much of it as they can. `unit` counts from
// the first of its operand.
template <class Layer, class Tune, bool of_u>
__device__ __forceinline__ StripRows rows_of_unit(unsigned unit, const TileWalk& at, const Sizes& sizes, int group,
                                                  int u_part0, int slab0, const float* tensor) {
  using Plan = StripPlan<Layer, Tune>;
  using Units = StripUnits<Layer, Tune>;
  constexpr bool of_input = of_u != Plan::U_IS_GY;
  const int depth = of_input ? sizes.in_d : sizes.out_d, height = of_input ? sizes.in_h : sizes.out_h;
  StripRows rows;
  rows.length = of_input ? sizes.in_w : sizes.out_w;
  rows.plane = 1LL * depth * height * rows.length;
  constexpr int ALL = of_input ? Layer::in_channels : Layer::out_channels, OF_GROUP = of_input ? Plan::CI : Plan::CO;
  int channel, d = at.d, h = at.h;
  bool there = true;
  if constexpr (of_u) {
    channel = u_part0 * 64 + unit * 8;
    rows.channels = Units::U_WHOLE ? 8 : Plan::CU - channel;
    rows.first = at.w * 64;
  } else {
    int tap_row = 0;
    if constexpr (Plan::ROWS == 1) {
      channel = slab0 * Plan::V_CHANNELS + unit * 8;
    } else {
      const unsigned slab = slab0 + unit / Units::V_EIGHTS;
      tap_row = slab / Plan::V_PARTS;
      channel = slab % Plan::V_PARTS * Plan::V_CHANNELS + unit % Units::V_EIGHTS * 8;
    }
    if constexpr (!Units::SAME_ROW) {
      const int kd = tap_row / Layer::kernel_h * Layer::dilation_d - Layer::padding_d;
      const int kh = tap_row % Layer::kernel_h * Layer::dilation_h - Layer::padding_h;
      d = Plan::U_IS_GY ? d - kd : d * Layer::stride_d + kd;
      h = Plan::U_IS_GY ? h - kh : h * Layer::stride_h + kh;
      there = tap_row < Plan::ROWS && unsigned(d) < unsigned(depth) && unsigned(h) < unsigned(height);
    }
    rows.channels = Units::V_WHOLE ? 8 : Plan::CV - channel;
    rows.first = at.w * 64 + int(Plan::LOW);
  }
  if (!there || rows.channels <= 0) rows.channels = 0, channel = d = h = 0;
  // What belongs to the tile, and what to the unit.
  const long long tile = at.n * (ALL * rows.plane) + (1LL * d * height + h) * rows.length;
  rows.row = tensor + (group * OF_GROUP + channel) * rows.plane + tile;
  return rows;
}

// One warp's part of all tiles of a share. `raw`: its own ring of Units::PER_WARP units, copied one tile ahead;
// `stages` and `barriers` as multiply_strips_of_share() finds them. A lane reads what other lanes copied, so the warp
// meets between the wait and the reading, and again before the next copy overwrites what was read.
template <class Layer, class Tune, class Plan, int U_WIDTH, int V_WIDTH>
__device__ __forceinline__ void stage_strips_by(char* stages, unsigned barriers, float* raw, int warp, TileWalk next,
                                                int row_tiles, const Sizes& sizes, int group, int u_part0, int slab0,
                                                const float* u, const float* v, float one) {
  using Units = StripUnits<Layer, Tune>;
  // As many units are spelled out: then constants decide what each of them is.
  constexpr int SPELLED = Units::PER_WARP <= 8 ? Units::PER_WARP : 1, WARPS = Tune::COPY_WARPS;
  // These warps have few registers.
  const auto fresh = [](int value) { return SPELLED > 1 && Plan::DILATION == 1 ? value : computed_anew(value); };
  const auto is_of_u = [](int i, int unit) {
    return Units::OF_U % WARPS == 0 ? i < Units::OF_U / WARPS : unit < Units::OF_U;
  };
  const auto copy = [&](int i) {
    const int lane = fresh(threadIdx.x % 32), unit = i * WARPS + fresh(warp);
    if (next.left > 0) {
      float* to = raw + i * Units::FLOATS;
      if (is_of_u(i, unit))
        copy_unit<U_WIDTH, 0, Units::PITCH, Units::U_WHOLE>(
            to, rows_of_unit<Layer, Tune, true>(unit, next, sizes, group, u_part0, slab0, u), lane);
      else if (Units::ALL % WARPS == 0 || unit < Units::ALL)
        copy_unit<V_WIDTH, Units::HALO, Units::PITCH, Units::V_WHOLE>(
            to, rows_of_unit<Layer, Tune, false>(unit - Units::OF_U, next, sizes, group, u_part0, slab0, v), lane);
    }
    cp_async_commit();
  };
  // Eight rows of a unit within a stage.
  const auto place_of = [](int i, unsigned own, int eights, int chunk) {
    return eights % WARPS == 0 ? i * WARPS / eights * chunk + (i * WARPS % eights + own) * 256
                               : (i * WARPS + own) / eights * chunk + (i * WARPS + own) % eights * 256;
  };
#pragma unroll SPELLED
  for (int i = 0; i < Units::PER_WARP; ++i) copy(i);
  int stage = 0, parity = 1;
#pragma unroll 1
  for (long long left = next.left; left > 0; --left) {
    next.advance(row_tiles);
    mbarrier_wait(barriers + 8 * (Plan::STAGES + stage), parity);
#pragma unroll SPELLED
    for (int i = 0; i < Units::PER_WARP; ++i) {
      const int lane = fresh(threadIdx.x % 32), own = fresh(warp), unit = i * WARPS + own;
      cp_async_wait<Units::PER_WARP - 1>();
      __syncwarp();
      char* to = stages + stage * Plan::STAGE;
      const float* from = raw + i * Units::FLOATS;
      if (is_of_u(i, unit))
        store_unit<Plan, 0, Units::PITCH, Plan::U_BLOCK>(to + place_of(i, own, Units::U_EIGHTS, Plan::U_CHUNK), from,
                                                         lane, one);
      else if (Units::ALL % WARPS == 0 || unit < Units::ALL)
        store_unit<Plan, Units::HALO, Units::PITCH, Plan::V_BLOCK>(
            to + Plan::U_TILES * Plan::U_CHUNK +
                (Units::OF_U % WARPS == 0 ? place_of(i - Units::OF_U / WARPS, own, Units::V_EIGHTS, Plan::V_CHUNK)
                                          : unsigned(unit - Units::OF_U) / Units::V_EIGHTS * Plan::V_CHUNK +
                                                unsigned(unit - Units::OF_U) % Units::V_EIGHTS * 256),
            from, lane, one);
      __syncwarp();
      copy(i);
    }
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barriers + 8 * stage);
    if (++stage == Plan::STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
}
