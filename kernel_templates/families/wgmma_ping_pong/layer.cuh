// A transposed convolution of stride 1 along W alone (kernel 1 in D and H), for forward and grad_input: what is known
// at compile time, and what the sizes decide. wgmma_ping_pong.cu computes it. Weights are packed as
// families/wgmma_packed/layer.cuh describes.
#pragma once
#include "families/wgmma_packed/layer.cuh"

template <class Layer, class Tune, bool is_forward>
struct PingPongPlan {
  using Scalar = typename Layer::scalar;
  static_assert(sizeof(Scalar) == 4, "tf32 only");
  static constexpr Precision precision = Tune::precision;
  static constexpr bool FORWARD = is_forward, HAS_BIAS = is_forward && Layer::has_bias != 0;
  static constexpr int GROUPS = Layer::groups;
  static constexpr int SUMMED = (is_forward ? Layer::in_channels : Layer::out_channels) / GROUPS;    // of a group
  static constexpr int CHANNELS = (is_forward ? Layer::out_channels : Layer::in_channels) / GROUPS;  // of a group
  static constexpr int KD = 1, KH = 1, KW = Layer::kernel_w, DW = Layer::dilation_w, HALO = (KW - 1) * DW;
  static constexpr int LEFT = is_forward ? Layer::padding_w - HALO : -Layer::padding_w;
  static constexpr int PARTS = 1, PER_UNIT = 4, CHUNKS = ceil_div(SUMMED, 8);

  // A consumer's thread has 128 sums: the warpgroup has 128 channels of 128 positions, or 64 channels of 256.
  static constexpr int ROOM = 227 * 1024, STAGING = 8 * 40 * 4;  // of a warp: 8 channels of 32 positions, padded
  static constexpr int weight_bytes(int tile) { return CHUNKS * KW * tile * 32; }
  // Products read HALO positions beyond the window. Behind the last stage there must be memory for that, too.
  static constexpr int other_bytes(int tile) { return weight_bytes(tile) + HALO * 16 + 8 * STAGING + 512; }
  static constexpr int stage_bytes(int tile) { return 32 * (16384 / tile + 1); }
  static constexpr bool two_fit(int tile) { return other_bytes(tile) + 4 * stage_bytes(tile) <= ROOM; }
  static constexpr int CHANNEL_TILE = Tune::CHANNEL_TILE != 0 ? Tune::CHANNEL_TILE
                                      : CHANNELS > 64 && two_fit(128) ? 128
                                                                       : 64;
  static_assert(two_fit(CHANNEL_TILE), "the weights of a channel tile and two stages must fit in shared memory");
  static constexpr int CHANNEL_TILES = ceil_div(CHANNELS, CHANNEL_TILE);
  static constexpr bool FOLD = false;  // as pack_weights() asks: a row of weights is a channel
  static constexpr int BUNDLE = 1, BUNDLES = KW, WEIGHT_ROWS = CHANNEL_TILE;
  static constexpr int ROW_TILES = CHANNEL_TILE / 64, COLUMN_TILES = 2 / ROW_TILES;
  static constexpr int WINDOW = 128 * COLUMN_TILES;        // staged positions; the last HALO results are incomplete
  static constexpr int RESULTS = (WINDOW - HALO) / 2 * 2;  // even, so that pairs of positions stay aligned
  static_assert(RESULTS >= 2, "the taps must not span the window");

  // A stage: four channels of the window, 16 bytes a position, then the next four. One position lies between the two,
  // so that four lanes that write to either meet all banks.
  static constexpr int PLANE = WINDOW + 1, STAGE_BYTES = stage_bytes(CHANNEL_TILE);
  static constexpr int SLICE_BYTES = KW * CHANNEL_TILE * 32, WEIGHT_BYTES = weight_bytes(CHANNEL_TILE);
  static constexpr int RING = smaller(Tune::STAGES, (ROOM - other_bytes(CHANNEL_TILE)) / (2 * STAGE_BYTES));  // of one consumer
  static constexpr int STAGING_AT = (WEIGHT_BYTES + 2 * RING * STAGE_BYTES + HALO * 16 + 127) / 128 * 128;
  static constexpr int BARRIERS_AT = STAGING_AT + 8 * STAGING, BYTES = BARRIERS_AT + (4 * RING + 1) * 8;
  static_assert(BYTES <= ROOM && 4 * RING + 1 <= 40, "counted as other_bytes() does");
  static constexpr int THREADS = 512, KEPT = 88, TAKEN = 168;  // registers: 2 x 88 + 2 x 168 = 4 x 128
  static constexpr int UNITS = COLUMN_TILES, DEPTH = larger(1, Tune::DEPTH / UNITS);  // loads of a thread, stages ahead
};

struct PingPongGeometry {
  long long tiles, source_plane, result_plane;
  int rows;  // of W, in an image
  int source_w, result_w, tiles_per_row;
  int shift;           // how far before the row the first tile begins, to align pairs of source positions
  int paired_results;  // pairs of result positions are aligned, too
  int step_n, step_row, step_tile;  // from a block's tile to its next
  float one;           // 1, unknown to the compiler
};

template <class Plan>
PingPongGeometry ping_pong_geometry(const Sizes& sizes) {
  PingPongGeometry g = {};
  g.rows = sizes.out_d * sizes.out_h;
  g.source_w = Plan::FORWARD ? sizes.in_w : sizes.out_w, g.result_w = Plan::FORWARD ? sizes.out_w : sizes.in_w;
  g.source_plane = 1LL * g.rows * g.source_w, g.result_plane = 1LL * g.rows * g.result_w;
  g.shift = Plan::LEFT % 2 != 0 ? 1 : 0;
  g.paired_results = g.result_w % 2 == 0 && g.shift == 0;
  g.tiles_per_row = ceil_div(g.result_w + g.shift, Plan::RESULTS);
  g.tiles = sizes.batch * g.rows * g.tiles_per_row * Plan::GROUPS * Plan::CHANNEL_TILES;
  g.one = 1.f;
  return g;
}

// Which part of the result a tile is. A block keeps its group and channel tile.
template <class Plan>
struct PingPongTile {
  int n, row, tile, group, channel_tile;  // tile: of the row

  __device__ explicit PingPongTile(const PingPongGeometry& g) {
    constexpr int VARIETIES = Plan::GROUPS * Plan::CHANNEL_TILES;
    const int variety = int(blockIdx.x) % VARIETIES, rest = int(blockIdx.x) / VARIETIES;
    group = variety / Plan::CHANNEL_TILES, channel_tile = variety % Plan::CHANNEL_TILES;
    tile = rest % g.tiles_per_row, row = rest / g.tiles_per_row % g.rows, n = rest / g.tiles_per_row / g.rows;
  }
  // Moves to the next tile of the block, without a division.
  __device__ __forceinline__ void advance(const PingPongGeometry& g) {
    tile += g.step_tile;
    const bool next_row = tile >= g.tiles_per_row;
    tile -= next_row ? g.tiles_per_row : 0;
    row += g.step_row + (next_row ? 1 : 0);
    const bool next_image = row >= g.rows;
    row -= next_image ? g.rows : 0;
    n += g.step_n + (next_image ? 1 : 0);
  }
  // The first result position of the tile; -1 where the row begins shifted.
  __device__ __forceinline__ int first(const PingPongGeometry& g) const { return tile * Plan::RESULTS - g.shift; }
};
