// grad_weight of depthwise layers: which taps a block sums, and the tiles of positions it walks over.
#pragma once
#include "families/depthwise/plan.cuh"

template <class Layer, class Tune>
struct DepthwiseWeightPlan {
  using Scalar = typename Layer::scalar;
  using Sum = typename Layer::accumulator;
  using Row = FmaRow<false, Layer, false>;
  static_assert(Layer::in_channels == Layer::groups, "a group has one input channel");
  static constexpr int CHANNELS = Layer::groups, MULTIPLIER = Layer::out_channels / Layer::groups;
  static constexpr int KD = Layer::kernel_d, KH = Layer::kernel_h, KW = Layer::kernel_w;
  static constexpr int THREADS = Tune::THREADS, TILE = Tune::TILE;
  // A block sums all taps if registers hold their sums; else some tap rows of one kd.
  static constexpr int MOST_ROWS = Tune::SUMS / KW < 1 ? 1 : Tune::SUMS / KW;
  static constexpr bool ALL = KD * KH <= MOST_ROWS;
  static constexpr int TR = ALL ? KD * KH : ceil_div(KH, ceil_div(KH, MOST_ROWS));  // tap rows of a block
  static constexpr int PARTS = ALL ? 1 : ceil_div(KH, TR), TAP_GROUPS = ALL ? 1 : KD * PARTS;
  static constexpr int DEPTHS = ALL ? KD : 1, HEIGHTS = ALL ? KH : TR;
  static constexpr int SUMS = TR * KW;

  static constexpr __host__ __device__ int gy_rows(int rows) {
    return (rows - 1) * Layer::stride_h + (HEIGHTS - 1) * Layer::dilation_h + 1;
  }
  static constexpr int ROOM = 1024 * Tune::STAGE_KB / int(sizeof(Sum)) / 2;  // of one of two stages
};

struct DepthwiseWeightTile {
  int strips, rows, batches;   // of a tile; more than one of the batch only if planes are whole
  int strip_tiles, row_tiles;  // of a plane
  unsigned by_strips, by_rows;
  int x_elements, elements;    // of a stage: the input's, all
  long long tiles;

  // Where tile `number` begins. Tiles are counted along d first, then rows, so neighbours share rows of gy.
  struct Place {
    long long n;
    int d, h, strip;
  };
  __device__ __forceinline__ Place place(long long number, int in_d) const {
    const long long rest = number / in_d, plane = rest / row_tiles;
    return {plane / strip_tiles * batches, int(number % in_d), int(rest % row_tiles) * rows,
            int(plane % strip_tiles) * strips};
  }
};

template <class P>
DepthwiseWeightTile depthwise_weight_tile(const Sizes& sizes) {
  const int all = ceil_div(sizes.in_w, 4);
  const auto evenly = [](int count, int most) { return ceil_div(count, ceil_div(count, most)); };
  DepthwiseWeightTile t;
  t.strips = evenly(all, P::TILE);
  const int rows = P::TILE / t.strips;
  t.rows = evenly(sizes.in_h, rows < sizes.in_h ? rows : sizes.in_h);
  t.batches = t.strips == all && t.rows == sizes.in_h ? P::TILE / (t.strips * t.rows) : 1;
  if (t.batches > sizes.batch) t.batches = sizes.batch < 1 ? 1 : int(sizes.batch);
  const auto x_size = [&] { return t.batches * t.rows * 4 * t.strips; };
  const auto size = [&] {
    return x_size() + t.batches * P::DEPTHS * P::gy_rows(t.rows) * P::Row::width(t.strips);
  };
  while (size() > P::ROOM && (t.batches > 1 || t.rows > 1 || t.strips > 1)) {
    if (t.batches > 1)
      --t.batches;
    else if (t.rows > 1)
      t.rows = evenly(sizes.in_h, t.rows - 1);
    else
      t.strips = evenly(all, t.strips - 1);
  }
  t.strip_tiles = ceil_div(all, t.strips), t.row_tiles = ceil_div(sizes.in_h, t.rows);
  t.by_strips = fma_divisor(t.strips), t.by_rows = fma_divisor(t.rows);
  t.x_elements = x_size(), t.elements = size();
  t.tiles = ceil_div(sizes.batch, t.batches) * sizes.in_d * t.row_tiles * t.strip_tiles;
  return t;
}
