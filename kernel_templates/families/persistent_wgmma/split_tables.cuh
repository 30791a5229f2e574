// Where the stages of grad_weight lie: the copying warps write a table for each and look places up there.
#pragma once
#include "families/persistent_wgmma/split_bias.cuh"
#include "hardware/short_division.cuh"

// Where a stage begins: the offset of its first strip in channel 0 of both tensors, and that strip's first column in
// gy. In `flags`, bit 0 (x) and bit 1 (gy) mean that the strips are neighbours and inside, so that no table is needed.
// Behind them lie 15 bits for the tile's tap rows that meet gy there, and 15 bits for those whose row of gy counts for
// grad_bias.
struct alignas(16) GradSplitStart {
  long long x, gy;
  int first;
  unsigned flags;
};

// Where a strip lies: its offset from the image of the stage's first strip, and its first column in the row. Of a row
// that does not exist the first column is far outside.
struct GradSplitStrip {
  int offset, first;
};

template <class Layer, class Tune>
struct GradSplitTensors {
  using Scalar = typename Layer::scalar;
  const Scalar *x, *gy;
  int x_width, gy_width;
  float* bias_partials;  // null: grad_bias is not added up here
  float one;
};

template <class Layer, class Tune>
struct GradSplitTables {
  using Plan = GradSplitPlan<Layer, Tune>;
  using Bias = GradSplitBias<Layer, Tune>;
  static constexpr int STRIPS = Plan::STRIPS, ROWS = Plan::ROWS, STRIDE = Plan::STRIDE, FAR_OUT = 1 << 30;

  const Sizes& sizes;
  const GradSplitTensors<Layer, Tune>& tensors;
  const GradSplitWork<Plan, Tune>& work;
  struct Tile {
    int m, oct0, row0;
  };
  static __device__ __forceinline__ Tile tile_of(int number) {
    const int n = number % Plan::TILES / Plan::M_TILES;
    return {number % Plan::TILES % Plan::M_TILES, n * Plan::OCTS, n * Plan::OCTS / Plan::CO8};
  }
  // The first stage of a pair (share, tile).
  __device__ __forceinline__ long long first_stage(int number) const {
    return work.first_stage(number / Plan::TILES);
  }
  __device__ __forceinline__ int stages_of(int number) const {
    return int(work.stages_of(number / Plan::TILES));
  }
  static __device__ __forceinline__ bool x_flat(unsigned flags) { return flags & 1; }
  static __device__ __forceinline__ bool gy_flat(unsigned flags) { return flags & 2; }
  // Moves a strip on by one step. Adding costs much less than dividing.
  __device__ __forceinline__ void go_on(Position& at) const {
    const Position& step = work.step;
    at.w += step.w;
    bool over = at.w >= work.strips.in_w;
    if (over) at.w -= work.strips.in_w;
    at.h += step.h + over;
    over = at.h >= sizes.in_h;
    if (over) at.h -= sizes.in_h;
    at.d += step.d + over;
    over = at.d >= sizes.in_d;
    if (over) at.d -= sizes.in_d;
    at.n += step.n + over;
  }
  __device__ __forceinline__ Position strip_at(long long strip) const {
    Position at;
    at.w = take_remainder(strip, work.strips.in_w);
    at.h = take_remainder(strip, sizes.in_h);
    at.d = take_remainder(strip, sizes.in_d);
    at.n = strip;
    return at;
  }
  // Whether tap row g of the tile meets gy from there; and whether the row of gy counts for grad_bias: it does at the
  // last of the positions that meet it.
  __device__ __forceinline__ bool meets(const Position& from, int row0, int g, bool& counts) const {
    const int kd = (row0 + g) / Layer::kernel_h, kh = (row0 + g) % Layer::kernel_h;
    const int d = from.d * Layer::stride_d - Layer::padding_d + kd * Layer::dilation_d;
    const int h = from.h * Layer::stride_h - Layer::padding_h + kh * Layer::dilation_h;
    const bool met = unsigned(d) < unsigned(sizes.out_d) && unsigned(h) < unsigned(sizes.out_h);
    counts = met && (kd < Layer::stride_d || from.d + 1 >= sizes.in_d) &&
             (kh < Layer::stride_h || from.h + 1 >= sizes.in_h);
    return met;
  }
  // How far tap row `row` is behind tap row 0 in gy.
  __device__ __forceinline__ long long of_tap_row(int row) const {
    const int d = row / Layer::kernel_h * Layer::dilation_d, h = row % Layer::kernel_h * Layer::dilation_h;
    return (1LL * d * sizes.out_h + h) * sizes.out_w;
  }
  // How far tap row g of a tile is behind the start in gy; the tile's first one is row0.
  __device__ __forceinline__ long long of_tap(int row0, int g) const {
    return Plan::ONE_ROW ? 0 : of_tap_row(row0 + g) - of_tap_row(row0);
  }
  // first_of: the column of gy where the strip's core begins. in_gy: its place in the plane of gy, for tap (0, 0).
  __device__ __forceinline__ int first_of(const Position& at) const {
    return at.w * Plan::STRIP * STRIDE - Layer::padding_w + Plan::HEAD;
  }
  __device__ __forceinline__ long long in_gy(const Position& at) const {
    const int d = at.d * Layer::stride_d - Layer::padding_d, h = at.h * Layer::stride_h - Layer::padding_h;
    return (1LL * d * sizes.out_h + h) * sizes.out_w + first_of(at);
  }
  __device__ __forceinline__ long long in_x(const Position& at) const {
    return (1LL * at.d * sizes.in_h + at.h) * sizes.in_w + at.w * Plan::STRIP;
  }
  // The start of the stage that begins with lane 0's strip.
  __device__ __forceinline__ GradSplitStart start_of(const Position& at, const Tile& of) const {
    GradSplitStart to;
    to.first = first_of(at);
    to.x = (at.n * Plan::CI + of.m * (64 * Plan::MB)) * work.in_plane + in_x(at);
    to.gy = at.n * Plan::CO * work.out_plane + in_gy(at) + of_tap_row(of.row0);
    if constexpr (Plan::ONE_ROW) to.gy += (of.oct0 - of.row0 * Plan::CO8) * 8 * work.out_plane;
    const bool one_row = at.w + STRIPS <= work.strips.in_w && at.w * Plan::STRIP + STRIPS * Plan::STRIP <= sizes.in_w;
    const long long in_image = (1LL * at.d * sizes.in_h + at.h) * work.strips.in_w + at.w;
    const bool inside = at.n < sizes.batch;
    const bool whole_rows = sizes.in_w == work.strips.in_w * Plan::STRIP && in_image + STRIPS <= work.image_strips;
    const bool x_flat = inside && tensors.x_width == 4 && (one_row || whole_rows);
    const bool gy_flat = inside && tensors.gy_width == 4 && one_row && to.first >= 0 &&
                         to.first + STRIPS * Plan::CORE <= sizes.out_w;
    to.flags = (x_flat ? 1u : 0u) | (gy_flat ? 2u : 0u);
#pragma unroll
    for (int g = 0; g < ROWS; ++g) {
      bool counts;
      if (meets(at, of.row0, g, counts)) to.flags |= 1u << (2 + g);
      if (Bias::HERE && counts && of.m == 0) to.flags |= 1u << (17 + g);
    }
    return to;
  }
  static __device__ __forceinline__ GradSplitStrip* table_at(char* own) {
    return reinterpret_cast<GradSplitStrip*>(own + sizeof(GradSplitStart));
  }
  // For each tap row a bit for each strip: here gy's row counts for grad_bias.
  static __device__ __forceinline__ unsigned* counted_at(GradSplitStrip* table) {
    return reinterpret_cast<unsigned*>(table + (1 + ROWS) * STRIPS);
  }
  // What all warps read of a stage. The lanes of a warp call it together; each lane writes a strip. Offsets count from
  // the stage's start.
  __device__ __forceinline__ void write_table(char* own, const Position& at, int number, unsigned lane) const {
    const Tile of = tile_of(number);
    GradSplitStrip* const table = table_at(own);
    const GradSplitStart start = start_of(at, of);
    if (lane == 0) *reinterpret_cast<GradSplitStart*>(own) = start;
    const unsigned flags = __shfl_sync(0xffffffffu, start.flags, 0);
    if (x_flat(flags) && gy_flat(flags)) return;
    const long long x0 = __shfl_sync(0xffffffffu, in_x(at), 0), gy0 = __shfl_sync(0xffffffffu, in_gy(at), 0);
    const long long n = at.n - __shfl_sync(0xffffffffu, at.n, 0);
    const bool there = lane < STRIPS && at.n < sizes.batch;
    if (lane < STRIPS)
      table[lane] = {int(n * Plan::CI * work.in_plane + in_x(at) - x0), there ? at.w * Plan::STRIP : FAR_OUT};
#pragma unroll
    for (int g = 0; g < ROWS; ++g) {
      bool counts;
      const bool met = meets(at, of.row0, g, counts) && there;
      if (lane < STRIPS)
        table[(1 + g) * STRIPS + lane] = {int(n * Plan::CO * work.out_plane + of_tap(of.row0, g) + in_gy(at) - gy0),
                                          met ? first_of(at) : -FAR_OUT};
      if constexpr (Bias::HERE) {
        const unsigned all = __ballot_sync(0xffffffffu, counts && there && of.m == 0);
        if (lane == 0) counted_at(table)[g] = all;
      }
    }
  }
};
