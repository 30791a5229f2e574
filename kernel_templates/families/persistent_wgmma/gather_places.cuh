// What sizes decide for the gather kernel of persistent_wgmma: its work items, and where a position lies.
//
// Positions are counted along rows of `pitch`: so many that a shift along W never meets values of a neighbouring row.
// One column of zeros between two rows serves both. A tile is TILE neighbouring positions, of any rows.
#pragma once
#include "families/persistent_wgmma/gather_plan.cuh"
#include "hardware/const_loop.cuh"

// Division by a number that is known at launch: a product and a shift. For 0 <= value < 2^31.
struct GatherDivisor {
  int divisor;
  unsigned factor, shift;
  GatherDivisor() = default;
  explicit GatherDivisor(int by) : divisor(by), shift(31) {
    while ((1ULL << (shift - 31)) < unsigned(by)) ++shift;
    factor = unsigned((1ULL << shift) / unsigned(by)) + 1;
  }
  __device__ __forceinline__ int quotient(int value) const {
    return int(static_cast<unsigned long long>(unsigned(value)) * factor >> shift);
  }
};

// The run-time arguments of a launch.
template <class Scalar>
struct GatherArguments {
  const Scalar* source;
  const char* weights;  // packed
  const Scalar* bias;
  Scalar* result;
  float4* partial;  // sums of parts of an item, if it is split
  int source_d, source_h, source_w, result_d, result_h, result_w;
  int steps_w;                            // of a row of the result; zeros follow up to the pitch
  GatherDivisor pitch, steps_d, steps_h, splits;
  GatherDivisor turns;  // items after which the order of varieties changes
  int rows, items, unsplit;     // items from `unsplit` on are parts
  long long source_volume, result_volume;
  int wide_loads, wide_stores;  // rows are aligned for wide loads, stores
  float one;                    // 1, unknown to the compiler
};

// Fills in all but the pointers. Returns false if the layer has too many positions to be counted in int.
template <class P>
bool gather_sizes(const Sizes& s, int processors, GatherArguments<typename P::Scalar>& a) {
  constexpr bool F = P::FORWARD;
  a.source_d = F ? s.in_d : s.out_d, a.source_h = F ? s.in_h : s.out_h, a.source_w = F ? s.in_w : s.out_w;
  a.result_d = F ? s.out_d : s.in_d, a.result_h = F ? s.out_h : s.in_h, a.result_w = F ? s.out_w : s.in_w;
  a.source_volume = 1LL * a.source_d * a.source_h * a.source_w, a.result_volume = 1LL * a.result_d * a.result_h * a.result_w;
  const int steps_d = F ? ceil_div(a.result_d, P::SD) : a.result_d, steps_h = F ? ceil_div(a.result_h, P::SH) : a.result_h;
  a.steps_w = F ? ceil_div(a.result_w, P::S) : a.result_w;
  const long long valid = F ? a.source_w : (1LL * a.source_w - 1 + P::PW) / P::S + 1;
  constexpr int HIGH = P::LOW + P::REACH;
  long long pitch = 1LL * a.steps_w + (HIGH > 0 ? HIGH : 0);
  if (P::LOW < 0 && pitch < valid - P::LOW) pitch = valid - P::LOW;
  // Eight positions that a warp stores together begin at a sector, if the extra zeros are few.
  const long long even = (pitch + 7) / 8 * 8;
  if (even - pitch <= pitch / 32) pitch = even;
  const long long rows = s.batch * steps_d * steps_h;
  if (rows >= (1LL << 31) - P::TILE || pitch >= 1LL << 30) return false;
  const long long tiles = (rows * pitch - 1) / P::TILE + 1, whole = tiles * P::VARIETIES;
  if (whole >= 1LL << 26) return false;
  // The last items, which do not fill all multiprocessors, are split along K. The cost is estimated in cycles.
  const int stages = P::SEGMENTS * P::STEPS;
  const long long stage = P::TILE * P::WEIGHT_COLUMNS / 256 * P::UNITS * 3 / 2, full = whole / 132 * 132;
  long long best = -1;
  int chosen = 1;
  for (long long unsplit = full; unsplit >= 0 && unsplit >= full - 132; unsplit -= 132)
    for (int splits = 1; splits <= 32 && splits <= stages; ++splits) {
      const long long rest = (whole - unsplit) * splits, sums = splits == 1 ? 0 : 6000 + rest * (P::TILE * P::N / 512);
      const long long cycles = unsplit / 132 * (stages * stage + 3000) +
                               ceil_div(rest, 132) * (ceil_div(stages, splits) * stage + 3000) + sums;
      if (best < 0 || cycles < best) best = cycles, chosen = splits, a.unsplit = int(splits == 1 ? whole : unsplit);
    }
  a.rows = int(rows), a.items = int(a.unsplit + (whole - a.unsplit) * chosen), a.one = 1.0f;
  a.pitch = GatherDivisor(int(pitch)), a.steps_d = GatherDivisor(steps_d), a.steps_h = GatherDivisor(steps_h);
  a.splits = GatherDivisor(chosen);
  // Varieties may take different times, so a block does not get the same one in each turn.
  a.turns = GatherDivisor(processors % P::VARIETIES == 0 ? processors : P::VARIETIES);
  a.wide_loads = a.source_w % P::PACK == 0 && size_t(a.source) % (sizeof(typename P::Scalar) * P::PACK) == 0;
  return true;
}

// A position: its row (of all images) and its step along W.
struct GatherStep {
  int row, w;
};

template <class Scalar>
__device__ __forceinline__ GatherStep gather_step(const GatherArguments<Scalar>& a, int row0, int step0, int offset) {
  const int w = step0 + offset;
  if (w < 0) return {row0 - 1, w + a.pitch.divisor};
  const int rows = a.pitch.quotient(w);
  return {row0 + rows, w - rows * a.pitch.divisor};
}

// The image, and its step along D and H, that a row belongs to.
struct GatherRow {
  int n, d, h;
  template <class Scalar>
  __device__ __forceinline__ GatherRow(const GatherArguments<Scalar>& a, int row) {
    const int plane = a.steps_h.quotient(row);
    h = row - plane * a.steps_h.divisor;
    n = a.steps_d.quotient(plane), d = plane - n * a.steps_d.divisor;
  }
};

// An item: a tile of positions and a variety (group, row residues, tile of channels). It has all of their stages or a
// part, `first` to `end`.
template <class P>
struct GatherItem {
  int number, part, parts, variety, group, row_group, channel;
  int row0, step0;  // of the tile's first position
  GatherTaps d, h;  // each pair of them is a segment: STEPS stages
  int first, end;

  __device__ __forceinline__ GatherItem(const GatherArguments<typename P::Scalar>& a, int item) {
    number = item, part = 0, parts = 1;
    if (item >= a.unsplit) {
      const int whole = a.splits.quotient(item - a.unsplit);
      number = a.unsplit + whole, parts = a.splits.divisor, part = item - a.unsplit - whole * parts;
    }
    const int tile = number / P::VARIETIES;
    variety = number - tile * P::VARIETIES;
    if constexpr (P::ROW_GROUPS > 1) variety = (variety + a.turns.quotient(number)) % P::VARIETIES;
    channel = variety % P::TILES * P::CT;
    row_group = variety / P::TILES % P::ROW_GROUPS, group = variety / P::TILES / P::ROW_GROUPS;
    const long long position = 1LL * tile * P::TILE;
    row0 = position >> 31 == 0 ? a.pitch.quotient(int(position)) : int(position / a.pitch.divisor);
    step0 = int(position - 1LL * row0 * a.pitch.divisor);
    d = h = {};
    const_loop<0, (P::FORWARD ? P::SD : 1)>([&](auto r) {
      if (row_group * P::MERGED / P::SH == decltype(r)::value) d = P::D::taps(decltype(r)::value);
    });
    const_loop<0, (P::FORWARD ? P::SH : 1)>([&](auto r) {
      if (row_group * P::MERGED % P::SH == decltype(r)::value) h = P::H::taps(decltype(r)::value);
    });
    const int stages = d.count * h.count * P::STEPS;
    first = 0, end = stages;
    if (parts > 1) first = a.splits.quotient(stages * part), end = a.splits.quotient(stages * (part + 1));
  }
};
