// Depthwise layers: constants, and the tile that a block computes. A group has one input channel and MULTIPLIER output
// channels. All tap rows of a tile are staged at once, so rows are read from memory once. First forward and grad_input,
// then grad_weight.
#pragma once
#include "families/register_blocked/copy.cuh"
#include "families/register_blocked/row.cuh"

template <bool FORWARD_, class Layer, class Tune>
struct DepthwisePlan {
  static constexpr bool FORWARD = FORWARD_;
  using Scalar = typename Layer::scalar;
  using Sum = typename Layer::accumulator;
  using D = StripAxis<FORWARD, Layer::kernel_d, Layer::stride_d, Layer::padding_d, Layer::dilation_d>;
  using H = StripAxis<FORWARD, Layer::kernel_h, Layer::stride_h, Layer::padding_h, Layer::dilation_h>;
  using W = StripAxis<FORWARD, Layer::kernel_w, Layer::stride_w, Layer::padding_w, Layer::dilation_w>;
  using Row = FmaRow<FORWARD, Layer, false>;
  static_assert(Layer::in_channels == Layer::groups, "a group has one input channel");
  static constexpr int CHANNELS = Layer::groups, MULTIPLIER = Layer::out_channels / Layer::groups;
  static constexpr int RESULTS = FORWARD ? MULTIPLIER : 1, SOURCES = FORWARD ? 1 : MULTIPLIER;
  static constexpr bool HAS_BIAS = FORWARD && Layer::has_bias;
  static constexpr int THREADS = Tune::THREADS, TILE = Tune::TILE;  // TILE: strips of 4 steps

  // Weights in shared memory: [plane of the tile][output channel][tap row][tap], rows of taps in whole vectors.
  static constexpr int TAP_ROWS = D::TAPS * H::TAPS;
  static constexpr int TAPS_PITCH = W::TAPS <= 2 ? W::TAPS : ceil_div(W::TAPS, 4) * 4;
  static constexpr int WEIGHTS = ceil_div(MULTIPLIER * TAP_ROWS * TAPS_PITCH, 4) * 4;

  // The most slices of the source that a slice of the result meets.
  static constexpr __host__ __device__ int depths() {
    int most = 0;
    for (int r = 0; r < D::OUT_STEP; ++r) {
      int count = 0;
      for (int k = 0; k < D::TAPS; ++k) count += D::residue(k) == r;
      if (count > most) most = count;
    }
    return most;
  }
  static constexpr int DEPTHS = depths();
  static constexpr __host__ __device__ int source_rows(int rows) { return (rows - 1) * H::IN_STEP + H::REACH + 1; }
  static constexpr int IMAGE = 4 * TILE * W::OUT_STEP;  // results of one residue of H
  static constexpr int IMAGES = RESULTS * H::OUT_STEP > 1 ? 2 : 1;
  static constexpr int THREADS_LOG = THREADS == 64 ? 6 : THREADS == 128 ? 7 : 8;
  static constexpr int ROOM = 1024 * Tune::STAGE_KB / int(sizeof(Sum));  // for sources and weights
};

struct DepthwiseTile {
  int strips, rows, planes;    // of a tile; more than one plane only if they are whole
  int strip_tiles, row_tiles;  // of a plane
  unsigned by_strips, by_rows;
  int elements;                // of shared memory for sources
};

template <class P>
DepthwiseTile depthwise_tile(int steps_w, int steps_h) {
  const int all = ceil_div(steps_w, 4);
  const auto evenly = [](int count, int most) { return ceil_div(count, ceil_div(count, most)); };
  DepthwiseTile t;
  t.strips = evenly(all, P::TILE);
  const int rows = P::TILE / t.strips;
  t.rows = evenly(steps_h, rows < steps_h ? rows : steps_h);
  t.planes = t.strips == all && t.rows == steps_h ? P::TILE / (t.strips * t.rows) : 1;
  const auto size = [&] { return t.planes * P::DEPTHS * P::source_rows(t.rows) * P::Row::width(t.strips); };
  while (size() + t.planes * P::WEIGHTS > P::ROOM && (t.planes > 1 || t.rows > 1 || t.strips > 1)) {
    if (t.planes > 1)
      --t.planes;
    else if (t.rows > 1)
      t.rows = evenly(steps_h, t.rows - 1);
    else
      t.strips = evenly(all, t.strips - 1);
  }
  t.strip_tiles = ceil_div(all, t.strips), t.row_tiles = ceil_div(steps_h, t.rows);
  t.by_strips = fma_divisor(t.strips), t.by_rows = fma_divisor(t.rows);
  t.elements = size();
  return t;
}

// grad_weight: which taps a block sums, and the tiles of positions it walks over.
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
