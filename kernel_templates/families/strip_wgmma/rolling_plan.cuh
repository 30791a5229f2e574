// How strip_wgmma cuts the weight gradient into tiles: operands as in families/strip_wgmma/plan.cuh, and rows of V that
// stay.
//
// A block walks along h. The taps of a kernel column (kd, all kh) meet rows of V that earlier tiles met too. So a ring
// keeps the last of these rows, and a tile brings one new row for each group (kd, part of V's channels), not one for
// each (kd, kh). If U has at most 32 channels, two neighbouring rows of it fill the 64 rows of a product. They share
// their rows of V, so KH + 1 products do the work of 2 * KH.
#pragma once
#include "families/strip_wgmma/plan.cuh"

// The strip of a layer: at least as long as the halo, because a tile takes the halo from the next strip.
template <class Layer, class Tune>
struct RollingTune : Tune {
  static constexpr int HALO = (Layer::kernel_w - 1) * Layer::dilation_w;
  static constexpr int STRIP = Tune::STRIP ? Tune::STRIP : HALO <= 8 ? 8 : 16;
};

// The choices for tunables that are 0. Columns: as many as allow three warpgroups to hold their sums in registers. U:
// the input, unless grad_output saves more than a fifth of the products. grad_output's rows are longer; often they
// need one more tile, which is almost empty.
template <class Layer, class Tune>
struct RollingChoices {
  static constexpr int MOST_N = Tune::COLUMNS ? Tune::COLUMNS : 200;
  static constexpr int ALIGN = 4;  // copies of 16 bytes
  static constexpr bool EVEN = Tune::COLUMNS == 0;
  // Rolling needs that V's rows for neighbouring rows of U are neighbours too. A pair saves nothing with a single tap
  // along h.
  static constexpr bool ROLLS = Tune::ROLL && Layer::stride_h == 1;
  static constexpr __host__ __device__ bool pairs(int u_channels) {
    return ROLLS && u_channels <= 32 && Layer::dilation_h == 1 && Layer::kernel_h > 1;
  }
  static constexpr __host__ __device__ long long products(int work, int u_channels) {
    return 1LL * work * (pairs(u_channels) ? Layer::kernel_h + 1 : 2 * Layer::kernel_h);
  }
  static constexpr __host__ __device__ bool u_is_gy(int with_gy, int with_input) {
    return Tune::U ? Tune::U == 2
                   : 5 * products(with_gy, Layer::out_channels / Layer::groups) <
                         4 * products(with_input, Layer::in_channels / Layer::groups);
  }
};

template <class Layer, class Tune, int RESERVED = 0>
struct RollingPlan : StripPlan<Layer, RollingTune<Layer, Tune>, RESERVED, RollingChoices<Layer, Tune>> {
  using Choices = RollingChoices<Layer, Tune>;
  using Strips = StripPlan<Layer, RollingTune<Layer, Tune>, RESERVED, Choices>;
  static constexpr int REACH = Strips::HALO + Strips::EXTRA;  // of shifts, in blocks
  // A tile is one row, or the same row of two neighbouring batch elements: 32 positions of each.
  static constexpr int IMAGES = Tune::IMAGES, LENGTH = Strips::TILE / IMAGES;
  static_assert(IMAGES == 1 || Strips::STRIP == 8, "a lane writes four strips, of one batch element");
  static_assert(!Strips::SPLIT && REACH <= Strips::STRIP, "shifted blocks come from the strip that follows");

  static constexpr bool ROLLS = Choices::ROLLS, PAIRS = Choices::pairs(Strips::CU);
  static constexpr int TAPS_H = ROLLS ? Layer::kernel_h : 1;
  // For a number of multiplying warpgroups: how many lie beside one another, how many slabs they hold, and into how
  // many blocks the taps along h are cut.
  static constexpr __host__ __device__ int wide(int consumers) {
    return consumers / Strips::U_TILES < 1 ? 1 : consumers / Strips::U_TILES;
  }
  static constexpr __host__ __device__ int most_slabs(int consumers) {
    const int sums = Strips::U_TILES * wide(consumers) > 2 ? 112 : 192;  // registers of a thread
    return wide(consumers) * (sums / (Strips::N / 2) < 1 ? 1 : sums / (Strips::N / 2));
  }
  static constexpr __host__ __device__ int cuts_of_h(int consumers) {
    const int rows = most_slabs(consumers) - PAIRS;
    return ceil_div(TAPS_H, rows < 1 ? 1 : rows);
  }
  static constexpr int MOST_CONSUMERS = Tune::CONSUMERS ? Tune::CONSUMERS : cuts_of_h(2) < cuts_of_h(3) ? 2 : 3;
  static constexpr int WIDE = wide(MOST_CONSUMERS), MOST_SLABS = most_slabs(MOST_CONSUMERS);
  static constexpr int PAIR = PAIRS && MOST_SLABS > 2 ? 2 : 1;
  static constexpr int U_EIGHTS = ceil_div(Strips::CU < 64 ? Strips::CU : 64, 8);
  static constexpr int U_CHANNELS = PAIR == 2 ? 32 + 8 * U_EIGHTS : 8 * U_EIGHTS;
  static constexpr int U_BLOCK = U_CHANNELS * 32, U_CHUNK = Strips::STRIP * U_BLOCK;

  // A group is what a block stages of V for one row. A slab is the products of one group and one row of the ring.
  static constexpr int GROUPS = Layer::kernel_d * (Layer::kernel_h / TAPS_H) * Strips::V_PARTS;
  static constexpr int ROWS_H = Strips::evenly(TAPS_H, MOST_SLABS - (PAIR - 1));  // taps along h of a block
  static constexpr int RING = ROWS_H + PAIR - 1;                                  // rows that a tile meets
  static constexpr int BLOCK_GROUPS = ROWS_H < TAPS_H ? 1 : Strips::evenly(GROUPS, MOST_SLABS / RING);
  static constexpr int BLOCK_SLABS = BLOCK_GROUPS * RING;
  static constexpr int SLABS = ceil_div(BLOCK_SLABS, WIDE), WARPGROUPS = ceil_div(BLOCK_SLABS, SLABS);
  static constexpr int LAST_SLABS = BLOCK_SLABS - (WARPGROUPS - 1) * SLABS;  // of the last warpgroup
  static constexpr int CONSUMERS = Strips::U_TILES * WARPGROUPS, THREADS = 128 * CONSUMERS;

  // The next row of V along h is STEP rows further in the tensor. Tiles of a column begin WARM_UP steps early; these
  // steps bring rows of V only.
  static constexpr int STEP = ROLLS ? Layer::dilation_h : 1, BEHIND = (ROWS_H - 1) * STEP;
  static constexpr int WARM_UP = ceil_div(BEHIND, PAIR);
  static constexpr __host__ __device__ int v_rows(int stages) { return ceil_div(stages * PAIR + BEHIND, PAIR) * PAIR; }
  static constexpr int V_ROW = BLOCK_GROUPS * Strips::V_CHUNK;  // bytes of a row in the ring
  static constexpr int U_STAGE = Strips::U_TILES * U_CHUNK;
  static constexpr __host__ __device__ int bytes(int stages) { return stages * U_STAGE + v_rows(stages) * V_ROW; }
  static constexpr __host__ __device__ int stages() {
    int count = Tune::STAGES;
    while (count > 1 && bytes(count) > Strips::ROOM) --count;
    return count;
  }
  static constexpr int STAGES = stages(), V_ROWS = v_rows(STAGES);
  // A last group of 8 rows that U does not have is read from the memory behind it, and its sums are dropped.
  static constexpr int SHARED_BYTES = bytes(STAGES) + 2048 + 16 * STAGES;

  static constexpr int H_TILES = ceil_div(TAPS_H, ROWS_H), G_TILES = ceil_div(GROUPS, BLOCK_GROUPS);
  static constexpr int M_TILES = ceil_div(Strips::U_PARTS, Strips::U_TILES);
  static constexpr int TILES = Layer::groups * M_TILES * G_TILES * H_TILES;
  static constexpr long long SLOT = 16LL * Strips::N * SLABS * CONSUMERS * TILES;  // float4 of one share

  // Along h: V's row for U's row 0 and shift 0, and the tap of a shift. LOW and tap_of_shift() are the same along w.
  static constexpr int LOW_H = Strips::U_IS_GY ? Layer::padding_h - (Layer::kernel_h - 1) * STEP : -Layer::padding_h;
  static constexpr __host__ __device__ int tap_of_row(int shift) {
    return Strips::U_IS_GY ? Layer::kernel_h - 1 - shift : shift;
  }
};

// How the registers of a multiprocessor are divided. A block starts with the same number for each thread. Then the COPY
// copying warps give some of theirs to the multiplying warpgroups.
template <class Plan, int COPY>
struct RollingRegisters {
  static constexpr int THREADS = Plan::THREADS + 32 * COPY;
  static constexpr int FAIR = 65536 / THREADS / 8 * 8, ENTRY = FAIR < 248 ? FAIR : 248;
  static constexpr int SUMS = ceil_div(Plan::SLABS * Plan::N / 2 + 32, 8) * 8;
  static constexpr int OWN = SUMS > 240 ? 240 : SUMS < ENTRY ? ENTRY : SUMS;
  static constexpr int LEFT = (ENTRY * (THREADS / 32) - OWN * (Plan::THREADS / 32)) / COPY / 8 * 8;
  static constexpr bool TRADES = OWN > ENTRY, SUFFICE = LEFT >= 56 && Plan::N / 2 + 26 <= ENTRY;
};

// The walk of the multiplying warps: the tiles of U left, and the tiles of a column (PAIR rows of U each).
// Each column begins with WARM_UP steps without a tile.
template <class Plan>
struct RollingSteps {
  long long left;
  int h, heights, warm;
  __device__ RollingSteps(const Sizes& sizes, long long begin, long long end)
      : left(end - begin), heights(ceil_div(Plan::U_IS_GY ? sizes.out_h : sizes.in_h, Plan::PAIR)),
        warm(Plan::WARM_UP) {
    h = int(begin % heights);
  }
  __device__ __forceinline__ bool warms() const { return Plan::WARM_UP > 0 && warm > 0; }
  // Returns true where a column ends.
  __device__ __forceinline__ bool advance() {
    if (warms()) {
      --warm;
      return false;
    }
    --left;
    if (++h < heights) return false;
    h = 0;
    warm = Plan::WARM_UP;
    return true;
  }
};

// The walk of the copying warps: tile w of a row, row (n, d, h * PAIR).
template <class Plan>
struct RollingWalk : RollingSteps<Plan> {
  long long n;  // in IMAGES batch elements
  int d, w, u_d;
  __device__ RollingWalk(const Sizes& sizes, long long begin, long long end, int row_tiles)
      : RollingSteps<Plan>(sizes, begin, end), u_d(Plan::U_IS_GY ? sizes.out_d : sizes.in_d) {
    const long long column = begin / this->heights;
    w = int(column % row_tiles);
    d = int(column / row_tiles % u_d);
    n = column / row_tiles / u_d;
  }
  __device__ __forceinline__ int row() const { return (Plan::WARM_UP > 0 ? this->h - this->warm : this->h) * Plan::PAIR; }
  __device__ __forceinline__ void next(int row_tiles) {
    if (!this->advance()) return;
    if (++w < row_tiles) return;
    w = 0;
    if (++d < u_d) return;
    d = 0;
    ++n;
  }
};
