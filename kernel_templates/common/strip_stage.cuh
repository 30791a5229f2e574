// The warps of strip_wgmma that bring tiles into shared memory: rows of a tensor are copied as they are, and from there
// written once more as strips (common/strip_plan.cuh), rounded to TF32 on the way.
#pragma once
#include "common/ptx.cuh"
#include "common/strip_products.cuh"

// The same number, but what is computed from it is not carried along from one turn of a loop to the next: these warps
// have few registers.
__device__ __forceinline__ int computed_anew(int value) {
#ifndef __CUDACPU__
  asm volatile("" : "+r"(value));
#endif
  return value;
}

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
  static constexpr int FLOATS = 8 * PITCH, BYTES = 4 * Tune::COPY_WARPS * PER_WARP * FLOATS;
};

// Eight rows (channels), `plane` elements apart; `first` is the position of column 0 in a row of `length`.
struct StripRows {
  const float* row;
  long long plane;
  int channels, first, length;
};

template <int WIDTH, int HALO, int PITCH>
__device__ __forceinline__ void copy_unit_by(float* to, const StripRows& from, int lane) {
  constexpr int VECTORS = 64 / WIDTH, TURNS = 8 * VECTORS / 32;
  if constexpr (VECTORS <= 32) {
    constexpr int STEP = 32 / VECTORS;
    const int r = lane / VECTORS, column = lane % VECTORS * WIDTH, at = from.first + column;
    const int rows = unsigned(at) < unsigned(from.length) ? from.channels - r : 0;
    const float* source = from.row + r * from.plane + at;
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn, source += STEP * from.plane) {
      const bool there = turn * STEP < rows;
      cp_async<4 * WIDTH>(to + (r + turn * STEP) * PITCH + column, source, there ? 4 * WIDTH : 0);  // 0: not read
    }
  } else {
#pragma unroll 4
    for (int turn = 0; turn < TURNS; ++turn) {
      const int r = turn / 2, column = turn % 2 * 32 + lane, at = from.first + column;
      const bool there = r < from.channels && unsigned(at) < unsigned(from.length);
      cp_async<4>(to + r * PITCH + column, from.row + r * from.plane + at, there ? 4 : 0);
    }
  }
  if constexpr (HALO > 0) {
#pragma unroll
    for (int e = lane; e < 8 * HALO / WIDTH; e += 32) {
      const int r = e / (HALO / WIDTH), column = 64 + e % (HALO / WIDTH) * WIDTH, at = from.first + column;
      const bool there = r < from.channels && unsigned(at) < unsigned(from.length);
      cp_async<4 * WIDTH>(to + r * PITCH + column, from.row + r * from.plane + at, there ? 4 * WIDTH : 0);
    }
  }
}

template <int HALO, int PITCH>
__device__ __forceinline__ void copy_unit(float* to, const StripRows& from, int width, int lane) {
  if (width == 4) return copy_unit_by<4, HALO, PITCH>(to, from, lane);
  if (width == 2) return copy_unit_by<2, HALO, PITCH>(to, from, lane);
  copy_unit_by<1, HALO, PITCH>(to, from, lane);
}

__device__ __forceinline__ float element(const float4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// A lane has row lane % 8, positions 4 q .. 4 q + 3 of the strips 4 h .. 4 h + 3. `to`: block 0 of the eight rows.
template <class Plan, int HALO, int PITCH, int BLOCK>
__device__ __forceinline__ void store_unit(char* to, const float* rows, int lane) {
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
    for (int s = 0; s < 5; ++s) value[s] = HALO > 0 || s < 4 ? round_to_tf32(element(strip[s], e)) : 0.f;
    const int place = q == 0 ? Plan::place(e) : Plan::place(4 + e);
    *reinterpret_cast<float4*>(to + (HALO > 0 ? place : 4 * q + e) * BLOCK) =
        make_float4(value[0], value[1], value[2], value[3]);
    if (HALO > 0 && 4 * q + e < Plan::HALO) {
      const int again = q == 0 ? Plan::place(8 + e) : Plan::place(12 + e);
      *reinterpret_cast<float4*>(to + again * BLOCK) = make_float4(value[1], value[2], value[3], value[4]);
    }
  }
}

// One unit of the tile at `at`: its rows in the tensor.
template <class Layer, class Tune>
__device__ __forceinline__ StripRows rows_of_unit(int unit, const TileWalk& at, const Sizes& sizes, int group,
                                                  int u_part0, int slab0, const float* u, const float* v) {
  using Plan = StripPlan<Layer, Tune>;
  using Units = StripUnits<Layer, Tune>;
  const bool of_u = unit < Units::OF_U;
  const bool of_input = of_u != Plan::U_IS_GY;
  const int depth = of_input ? sizes.in_d : sizes.out_d, height = of_input ? sizes.in_h : sizes.out_h;
  StripRows rows;
  rows.length = of_input ? sizes.in_w : sizes.out_w;
  rows.plane = 1LL * depth * height * rows.length;
  int channel, d = at.d, h = at.h;
  bool there = true;
  if (of_u) {
    channel = (u_part0 + unit / Units::U_EIGHTS) * 64 + unit % Units::U_EIGHTS * 8;
    rows.channels = Plan::CU - channel;
    rows.first = at.w * 64;
  } else {
    const int slab = slab0 + (unit - Units::OF_U) / Units::V_EIGHTS;
    const int tap_row = slab / Plan::V_PARTS, part = slab % Plan::V_PARTS;
    const int in_part = (unit - Units::OF_U) % Units::V_EIGHTS * 8;
    const int kd = tap_row / Layer::kernel_h * Layer::dilation_d - Layer::padding_d;
    const int kh = tap_row % Layer::kernel_h * Layer::dilation_h - Layer::padding_h;
    d = Plan::U_IS_GY ? d - kd : d * Layer::stride_d + kd;
    h = Plan::U_IS_GY ? h - kh : h * Layer::stride_h + kh;
    there = tap_row < Plan::ROWS && unsigned(d) < unsigned(depth) && unsigned(h) < unsigned(height);
    channel = part * Plan::V_CHANNELS + in_part;
    rows.channels = Plan::CV - channel;
    rows.first = at.w * 64 + int(Plan::LOW);
  }
  const int all = of_input ? Layer::in_channels : Layer::out_channels, per_group = of_input ? Plan::CI : Plan::CO;
  there = there && rows.channels > 0 && unit < Units::ALL;
  rows.row = of_u ? u : v;
  if (there)
    rows.row += (at.n * all + group * per_group + channel) * rows.plane + (1LL * d * height + h) * rows.length;
  else
    rows.channels = 0;
  return rows;
}

// One warp's part of all tiles of a share. `raw`: its own ring of Units::PER_WARP units, copied one tile ahead;
// `stages` and `barriers` as multiply_strips_of_share() finds them. A lane reads what other lanes copied, so the warp
// meets between the wait and the reading, and again before the next copy overwrites what was read.
template <class Layer, class Tune, class Plan>
__device__ __forceinline__ void stage_strips(char* stages, unsigned barriers, float* raw, int warp, TileWalk next,
                                             int row_tiles, const Sizes& sizes, int group, int u_part0, int slab0,
                                             const float* u, const float* v, int u_width, int v_width) {
  using Units = StripUnits<Layer, Tune>;
  const auto copy = [&](int i) {
    const int lane = computed_anew(threadIdx.x % 32), unit = computed_anew(i * Tune::COPY_WARPS + warp);
    if (unit < Units::ALL && next.left > 0) {
      const StripRows rows = rows_of_unit<Layer, Tune>(unit, next, sizes, group, u_part0, slab0, u, v);
      float* to = raw + i * Units::FLOATS;
      if (unit < Units::OF_U)
        copy_unit<0, Units::PITCH>(to, rows, u_width, lane);
      else
        copy_unit<Units::HALO, Units::PITCH>(to, rows, v_width, lane);
    }
    cp_async_commit();
  };
#pragma unroll 1
  for (int i = 0; i < Units::PER_WARP; ++i) copy(i);
  int stage = 0, parity = 1;
#pragma unroll 1
  for (long long left = next.left; left > 0; --left) {
    next.advance(row_tiles);
    mbarrier_wait(barriers + 8 * (Plan::STAGES + stage), parity);
#pragma unroll 1
    for (int i = 0; i < Units::PER_WARP; ++i) {
      const int lane = computed_anew(threadIdx.x % 32), unit = i * Tune::COPY_WARPS + warp;
      cp_async_wait<Units::PER_WARP - 1>();
      __syncwarp();
      char* to = stages + stage * Plan::STAGE;
      if (unit < Units::OF_U)
        store_unit<Plan, 0, Units::PITCH, Plan::U_BLOCK>(
            to + unit / Units::U_EIGHTS * Plan::U_CHUNK + unit % Units::U_EIGHTS * 256, raw + i * Units::FLOATS, lane);
      else if (unit < Units::ALL)
        store_unit<Plan, Units::HALO, Units::PITCH, Plan::V_BLOCK>(
            to + Plan::U_TILES * Plan::U_CHUNK + (unit - Units::OF_U) / Units::V_EIGHTS * Plan::V_CHUNK +
                (unit - Units::OF_U) % Units::V_EIGHTS * 256,
            raw + i * Units::FLOATS, lane);
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
