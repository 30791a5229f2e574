// What sizes decide for the gather kernel of persistent_wgmma: its work items, and where a position lies.
//
// Positions are counted along rows of `pitch`: so many that a shift along W never meets values of a neighbouring row.
// One column of zeros between two rows serves both. A tile is TILE neighbouring positions, of any rows.
#pragma once
#include "families/persistent_wgmma/gather_plan.cuh"
#include "contract/taps.cuh"
#include "hardware/short_division.cuh"

// The run-time arguments of a launch.
template <class Scalar>
struct GatherArguments {
  const Scalar* source;
  const char* weights;  // packed
  const Scalar* bias;
  Scalar* result;
  float4* partial;  // sums of parts of an item, if it is split
  int source_d, source_h, source_w, result_d, result_h, result_w;
  int steps_d, steps_h, steps_w, pitch;  // of the result; a row has steps_w, and zeros up to the pitch
  int rows, tiles, items, splits;
  long long source_volume, result_volume;
  int wide_loads, wide_stores;  // rows lie so that neighbours can be read, stored together
  float one;                    // 1, where the compiler cannot see it
};

// Fills in all but the pointers. Returns false if the layer has too many positions to be counted in int.
template <class P>
bool gather_sizes(const Sizes& s, GatherArguments<typename P::Scalar>& a) {
  constexpr bool F = P::FORWARD;
  a.source_d = F ? s.in_d : s.out_d, a.source_h = F ? s.in_h : s.out_h, a.source_w = F ? s.in_w : s.out_w;
  a.result_d = F ? s.out_d : s.in_d, a.result_h = F ? s.out_h : s.in_h, a.result_w = F ? s.out_w : s.in_w;
  a.source_volume = 1LL * a.source_d * a.source_h * a.source_w, a.result_volume = 1LL * a.result_d * a.result_h * a.result_w;
  a.steps_d = F ? ceil_div(a.result_d, P::SD) : a.result_d, a.steps_h = F ? ceil_div(a.result_h, P::SH) : a.result_h;
  a.steps_w = F ? ceil_div(a.result_w, P::S) : a.result_w;
  const long long valid = F ? a.source_w : (1LL * a.source_w - 1 + P::PW) / P::S + 1;
  constexpr int HIGH = P::LOW + P::REACH;
  long long pitch = 1LL * a.steps_w + (HIGH > 0 ? HIGH : 0);
  if (P::LOW < 0 && pitch < valid - P::LOW) pitch = valid - P::LOW;
  const long long rows = s.batch * a.steps_d * a.steps_h;
  if (rows >= 1LL << 31 || pitch >= 1LL << 30) return false;
  const long long tiles = (rows * pitch - 1) / P::TILE + 1;
  if (tiles * P::VARIETIES >= 1LL << 26) return false;
  a.pitch = int(pitch), a.rows = int(rows), a.tiles = int(tiles), a.one = 1.0f;
  // Few items leave multiprocessors without work: then each is split along K. Estimated in cycles.
  const int stages = P::SEGMENTS * P::STEPS;
  const long long whole = tiles * P::VARIETIES, stage = P::TILE * P::WEIGHT_COLUMNS / 256 * P::UNITS * 3 / 2;
  long long best = -1;
  a.splits = 1;
  for (int splits = 1; splits <= 32 && splits <= stages; ++splits) {
    const long long sums = splits == 1 ? 0 : 6000 + whole * splits * (P::TILE * P::N / 512);
    const long long cycles = ceil_div(whole * splits, 132) * (ceil_div(stages, splits) * stage + 3000) + sums;
    if (best < 0 || cycles < best) best = cycles, a.splits = splits;
  }
  a.items = int(whole * a.splits);
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
  if (w < 0) return {row0 - 1, w + a.pitch};
  const int rows = int(unsigned(w) / unsigned(a.pitch));
  return {row0 + rows, w - rows * a.pitch};
}

// One piece of work: a tile of positions and a variety, that is a group, row residues and a tile of channels; of these
// the stages first to end.
template <class P>
struct GatherItem {
  int number, variety, group, row_group, channel;
  int row0, step0;  // of the tile's first position
  Taps d, h;        // one for each stage of a step along K; they lie `at` further than SOURCE_D times the row
  int first, end;

  __device__ __forceinline__ GatherItem(const GatherArguments<typename P::Scalar>& a, int item) {
    number = item / a.splits;
    const int split = item - number * a.splits, tile = number / P::VARIETIES;
    variety = number - tile * P::VARIETIES;
    channel = variety % P::TILES * P::CT;
    row_group = variety / P::TILES % P::ROW_GROUPS, group = variety / P::TILES / P::ROW_GROUPS;
    const long long position = 1LL * tile * P::TILE;
    row0 = int(short_quotient(position, a.pitch)), step0 = int(position - 1LL * row0 * a.pitch);
    d = taps_of<P::FORWARD>(row_group * P::MERGED / P::SH, P::KD, P::SD, P::PD, P::DD);
    h = taps_of<P::FORWARD>(row_group * P::MERGED % P::SH, P::KH, P::SH, P::PH, P::DH);
    const int stages = d.count * h.count * P::STEPS;
    first = int(1LL * stages * split / a.splits), end = int(1LL * stages * (split + 1) / a.splits);
  }

 private:
  template <bool forward>
  static __device__ __forceinline__ Taps taps_of(int r, int kernel, int stride, int padding, int dilation) {
    if (kernel == 1 && stride == 1) return {0, 1, 1, forward ? padding : -padding, 0};
    return forward ? taps_of_output(r, kernel, stride, padding, dilation)
                   : taps_of_input(0, kernel, stride, padding, dilation);
  }
};
