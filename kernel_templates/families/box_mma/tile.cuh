// The shape of box_mma's tiles, which the launcher chooses, and the order in which a block takes them.
#pragma once
#include "families/box_mma/plan.cuh"
#include "hardware/short_division.cuh"

template <class Scalar>
struct BoxArguments {
  const Scalar* in;
  const float* packed;  // weights in fragment order, in words of 4 bytes
  const Scalar* bias;   // null: none
  Scalar* out;
  int in_d, in_h, in_w, out_d, out_h, out_w;
  int deep, high, strips;                  // of a tile: steps along D and H, strips along W
  int tiles_d, tiles_h, tiles_w;           // tiles along each axis
  long long tiles;                         // of all batch elements
  int planes, rows, width;                 // of a box, in grains
  int pitch, pair, row;                    // in elements: from channel to channel, more after each pair, row to row
  int in_vector, out_vector;               // elements that a copy or a store may take together
  int pieces;                              // of in_vector grains, in a row of a box
  unsigned by_pieces, by_rows, by_strips, by_high;  // the first number above 2^31 / pieces, and so on
};

// Chooses the shape with the least cost: products or copies, whichever takes longer, in cycles of a multiprocessor. It
// tries about a hundred shapes at most, because this happens at each launch. False: no box fits.
template <class Plan, class Scalar>
bool box_shape(BoxArguments<Scalar>& a) {
  using D = typename Plan::D;
  using H = typename Plan::H;
  using W = typename Plan::W;
  constexpr int MOST = 8 * Plan::WARPS * Plan::STRIPS;
  const int steps_d = D::steps(a.out_d), steps_h = H::steps(a.out_h);
  const int all = ceil_div(ceil_div(W::steps(a.out_w), Plan::CELL), Plan::CELLS);
  double least = 0;
  BoxArguments<Scalar> best = a;
  best.tiles = 0;
  int wanted = ceil_div(all, MOST);  // tiles along W
  do {
    a.strips = ceil_div(all, wanted);
    a.tiles_w = ceil_div(all, a.strips);
    a.width = (a.strips - 1) * Plan::STRIP_IN + Plan::WINDOW + (Plan::RAW ? Plan::VECTOR - 1 : 0);
    const int vectors = ceil_div(a.width, Plan::VECTOR);
    const typename Plan::Skew skew = Plan::SKEWS.of[vectors % 8];
    a.pitch = (vectors + skew.more) * Plan::VECTOR, a.pair = skew.pair * Plan::VECTOR;
    a.row = Plan::CHANNELS * a.pitch + Plan::CHANNELS / 2 * a.pair;
    for (int deep = 1; deep <= (Plan::SPLIT ? 1 : box_least(4, steps_d)) && deep * a.strips <= MOST; ++deep) {
      a.planes = Plan::SPLIT ? 1 : D::grains(deep);
      const int room = Plan::BOX_BYTES / (a.planes * a.row * Plan::BYTES);  // rows
      if (room < H::grains(1)) break;
      const int fit = (room - H::grains(1)) / H::IN_STEP + 1;
      const int high = box_least(box_least(fit, MOST / (deep * a.strips)), steps_h);
      a.deep = deep, a.tiles_d = ceil_div(steps_d, deep), a.tiles_h = ceil_div(steps_h, high);
      a.high = ceil_div(steps_h, a.tiles_h), a.rows = H::grains(a.high);
      a.tiles = 1LL * a.tiles_d * a.tiles_h * a.tiles_w;
      const double products = 1.7 * Plan::WARPS * Plan::FRAGMENTS * Plan::NT * (Plan::THREE ? 3 : 1);
      const double copies = Plan::PLANES * a.planes * a.rows * Plan::CHANNELS * (a.width * Plan::BYTES / 20.0 + 4);
      const double cost = a.tiles * (products > copies ? products + 0.3 * copies : copies + 0.3 * products);
      if (best.tiles == 0 || cost < least) least = cost, best = a;
    }
    wanted += 1 + wanted / 4;
  } while (a.strips > 1);
  a = best;
  return a.tiles > 0;
}

// n / divisor for n * divisor < 2^31; `by` is the first whole number above 2^31 / divisor.
__device__ __forceinline__ int box_quotient(int n, unsigned by) { return int(__umulhi(2 * unsigned(n), by)); }

// A tile: batch element, and its first step along each axis. Along W steps are counted in strips.
template <class Scalar>
struct BoxTile {
  long long tile, n;
  int d, h, w;
  __device__ __forceinline__ void at(const BoxArguments<Scalar>& a, long long index) {
    tile = n = index;
    w = take_remainder(n, a.tiles_w) * a.strips;
    h = take_remainder(n, a.tiles_h) * a.high;
    d = take_remainder(n, a.tiles_d) * a.deep;
  }
};

// Where a strip lies in its tile; a strip that does not exist lies at deep = -1.
struct BoxStrip {
  int deep, high, strip;
};
template <class Scalar>
__device__ __forceinline__ BoxStrip box_strip(const BoxArguments<Scalar>& a, int index) {
  const int line = box_quotient(index, a.by_strips), deep = box_quotient(line, a.by_high);
  return {deep < a.deep ? deep : -1, line - deep * a.high, index - line * a.strips};
}

// RAW: vectors from .. to - 1 of a row of the box lie inside the source's row, whatever its phase. `first_w`: the element of
// the source's row that the first vector holds.
template <class Plan>
struct BoxEnds {
  int from, to;
  __device__ __forceinline__ BoxEnds(const BoxArguments<typename Plan::Scalar>& a, int first_w) {
    constexpr int VECTOR = Plan::VECTOR;
    const int before = VECTOR - 1 - first_w;
    from = before <= 0 ? 0 : box_least(ceil_div(before, VECTOR), a.pieces);
    to = a.in_w <= first_w ? from : box_least((a.in_w - first_w) / VECTOR, a.pieces);
    if (to < from) to = from;
  }
  __device__ __forceinline__ int cut(const BoxArguments<typename Plan::Scalar>& a) const { return a.pieces - (to - from); }
};

// RAW: how many elements lie between the start of a vector of 16 bytes and the first element of a tile's first row in the first
// channel of its group, modulo VECTOR. Rows and elements that do not exist count as if they did.
template <class Plan>
__device__ __forceinline__ unsigned box_phase(const BoxArguments<typename Plan::Scalar>& a,
                                              const BoxTile<typename Plan::Scalar>& tile, int group) {
  using D = typename Plan::D;
  using H = typename Plan::H;
  const unsigned first = unsigned(reinterpret_cast<unsigned long long>(a.in) / unsigned(Plan::BYTES));
  const unsigned volume = unsigned(a.in_d) * a.in_h * a.in_w, slice = (unsigned(tile.n) * Plan::GROUPS + group) * Plan::K;
  const unsigned d = D::ORIGIN + tile.d * D::IN_STEP * D::GRAIN, h = H::ORIGIN + tile.h * H::IN_STEP * H::GRAIN;
  return first + slice * volume + (d * a.in_h + h) * a.in_w + Plan::W::ORIGIN + tile.w * Plan::STRIP_IN * Plan::W::GRAIN;
}
