// Compile-time constants of forward and grad_input of persistent_packed: the products of GatherPlan, how the source is
// packed, and a stage that only copies fill. README.md has the words.
#pragma once
#include "families/persistent_packed/packed_source.cuh"

template <class Layer, class Tune, bool is_forward>
struct PackedGatherPlan : GatherPlan<Layer, Tune, is_forward> {
  using Base = GatherPlan<Layer, Tune, is_forward>;
  static constexpr bool LAST = Tune::CHANNELS_LAST != 0;  // source and result are channels_last
  using AlongD = PackedAxis<is_forward, Base::KD, Base::SD, Base::PD, Base::DD>;
  using AlongH = PackedAxis<is_forward, Base::KH, Base::SH, Base::PH, Base::DH>;
  using AlongW = PackedAxis<is_forward, Base::KW, Base::S, Base::PW, Base::DW>;

  // A stage: UNITS units of K of the window, plane by plane, then their weights.
  static constexpr int PLANE_ROWS = Base::WINDOW, UNIT_ROWS = Base::PLANES * PLANE_ROWS;  // in 16 bytes
  static constexpr int UNIT_BYTES = 16 * (Base::PLANES_AT_MOST * PLANE_ROWS + Base::WEIGHT_COLUMNS);
  static constexpr int units_chosen() {
    for (int units = 8; units > 2; units /= 2)
      if (units * UNIT_BYTES <= 49152 && Base::ALL_UNITS > units / 2) return units;
    return 2;
  }
  static constexpr int UNITS = Tune::UNITS != 0 ? Tune::UNITS : units_chosen();
  static constexpr int STEPS = ceil_div(Base::ALL_UNITS, UNITS);
  static constexpr int STAGE_BYTES = UNITS * UNIT_BYTES, WINDOW_BYTES = 16 * UNITS * UNIT_ROWS;
  static constexpr int WEIGHT_BYTES = 16 * UNITS * Base::WEIGHT_COLUMNS;
  static constexpr int FIT = Base::SHARED / STAGE_BYTES, STAGES = FIT < 8 ? FIT : 8;
  static constexpr int SMEM_BYTES = STAGES * STAGE_BYTES + 256 + Base::ODD_BYTES;
  static_assert(STAGES >= 2, "a stage is given back only after the next has begun");

  // Warpgroups 0 and 1 multiply. One warp of the third issues copies.
  static constexpr int THREADS = Base::CONSUMERS + 128, KEPT = 40, TAKEN = 232;
  static constexpr long long PACKED_BYTES = 1LL * Base::VARIETIES * Base::SEGMENTS * STEPS * WEIGHT_BYTES;
};

// How the source is packed.
template <class P>
struct PackedSourceOf {
  using Scalar = typename P::Scalar;
  static constexpr bool F = P::FORWARD, LAST = P::LAST;
  static constexpr int PACK = P::PACK, CHANNELS = P::CHANNELS, PLANES = P::PLANES, GROUPS = P::GROUPS, K = P::K;
  static constexpr int UNITS = P::STEPS * P::UNITS, PHASES = P::AlongD::PHASES * P::AlongH::PHASES;
  static constexpr int STEP_D = F ? 1 : P::SD, STEP_H = F ? 1 : P::SH, STEP_W = F ? 1 : P::S;
  static constexpr int BEFORE_D = F ? 0 : P::PD, BEFORE_H = F ? 0 : P::PH, BEFORE_W = F ? 0 : P::PW;
  static constexpr __host__ __device__ int phase_of(int plane) { return F ? 0 : P::phase_of(plane); }
};

template <class Scalar>
struct PackedArguments {
  GatherArguments<Scalar> gather;  // its rows are those of the grid, with their zeros
  PackedGrid grid;
  char* packed;
};

// Fills in all but the pointers. Returns false if there are too many positions.
template <class P>
bool packed_sizes(const Sizes& s, int processors, PackedArguments<typename P::Scalar>& all) {
  constexpr bool F = P::FORWARD;
  GatherArguments<typename P::Scalar>& a = all.gather;
  a.source_d = F ? s.in_d : s.out_d, a.source_h = F ? s.in_h : s.out_h, a.source_w = F ? s.in_w : s.out_w;
  a.result_d = F ? s.out_d : s.in_d, a.result_h = F ? s.out_h : s.in_h, a.result_w = F ? s.out_w : s.in_w;
  a.source_volume = 1LL * a.source_d * a.source_h * a.source_w, a.result_volume = 1LL * a.result_d * a.result_h * a.result_w;
  a.steps_w = F ? ceil_div(a.result_w, P::S) : a.result_w;
  const int steps[3] = {F ? ceil_div(a.result_d, P::SD) : a.result_d, F ? ceil_div(a.result_h, P::SH) : a.result_h, a.steps_w};
  const int source[3] = {a.source_d, a.source_h, a.source_w};
  if (!packed_grid<typename P::AlongD, typename P::AlongH, typename P::AlongW, P::TILE>(s.batch, steps, source, all.grid))
    return false;
  const long long whole = ceil_div(1LL * all.grid.rows * all.grid.row, P::TILE) * P::VARIETIES;
  if (whole >= 1LL << 26) return false;

  // The last items, which do not fill all multiprocessors, are split along K. The cost is estimated in cycles.
  const int stages = P::SEGMENTS * P::STEPS;
  const long long stage = P::TILE * P::WEIGHT_COLUMNS / 256 * P::UNITS, full = whole / 132 * 132;
  long long best = -1;
  int chosen = 1;
  for (long long unsplit = full; unsplit >= 0 && unsplit >= full - 132; unsplit -= 132)
    for (int splits = 1; splits <= 32 && splits <= stages; ++splits) {
      const long long rest = (whole - unsplit) * splits, sums = splits == 1 ? 0 : 6000 + rest * (P::TILE * P::N / 512);
      const long long cycles = unsplit / 132 * (stages * stage + 3000) +
                               ceil_div(rest, 132) * (ceil_div(stages, splits) * stage + 3000) + sums;
      if (best < 0 || cycles < best) best = cycles, chosen = splits, a.unsplit = int(splits == 1 ? whole : unsplit);
    }
  a.rows = all.grid.rows, a.items = int(a.unsplit + (whole - a.unsplit) * chosen), a.one = 1.0f;
  a.pitch = all.grid.wide, a.steps_d = all.grid.deep, a.steps_h = all.grid.high;
  a.splits = GatherDivisor(chosen);
  // Varieties may take different times, so a block does not get the same one in each turn.
  a.turns = GatherDivisor(processors % P::VARIETIES == 0 ? processors : P::VARIETIES);
  return true;
}
