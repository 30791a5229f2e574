// grad_weight of register_wgmma: tiles, the layout of a stage, and the shares. Positions are the summed index. README.md has the
// words.
#pragma once
#include "contract/weight_launch.cuh"
#include "families/persistent_wgmma/gather_places.cuh"

// Stride 2 along W: two neighbouring elements of gy are a word, and position q of x meets word q + a for tap 2 a + residue + padding.
template <class Layer, class Tune>
struct RawSplitPlan {
  using Scalar = typename Layer::scalar;
  static constexpr int SIZE = sizeof(Scalar), DEPTH = 32 / SIZE;  // positions of a product
  static constexpr int KW = Layer::kernel_w, PW = Layer::padding_w, CI = Layer::in_channels, CO = Layer::out_channels;
  static constexpr int TAP_ROWS = Layer::kernel_d * Layer::kernel_h, TAPS = TAP_ROWS * KW;
  static constexpr __host__ __device__ int halved(int v) { return v >= 0 ? v / 2 : -((1 - v) / 2); }

  static constexpr __host__ __device__ int first_of(int kernel, int stride, int padding) {
    return kernel - stride < padding ? kernel - stride : padding;
  }

  // The 64 rows of a product are CHANNELS channels of gy for each of SUBS groups of taps. A warpgroup has R such products, one for
  // each tap of a group: together the taps of a chunk.
  static constexpr int CHANNELS = CO > 32 ? 64 : CO > 16 ? 32 : 16, SUBS = 64 / CHANNELS;
  static constexpr int R = SUBS > 1 ? (KW > SUBS ? 2 : 1) : KW == 3 ? 3 : KW > 1 ? 2 : 1;
  static constexpr int CHUNK = SUBS * R, CHUNKS = ceil_div(KW, CHUNK);
  // Two warpgroups multiply. They have different chunks, or else different channels of gy, or else tap rows, or else channels of x.
  static constexpr int CONSUMERS = 2, WT = CHUNKS > 1 ? 2 : 1, WC = WT == 1 && CO > 64 ? 2 : 1;
  static constexpr int WR = WT * WC == 1 && TAP_ROWS > 1 ? 2 : 1, WN = CONSUMERS / (WT * WC * WR);
  static constexpr int FULL = 256 / R / 8 * 8, MOST = Tune::COLUMNS < FULL ? Tune::COLUMNS : FULL;
  static constexpr int CI_TILES = ceil_div(CI, MOST * WN), N = ceil_div(ceil_div(CI, CI_TILES * WN), 8) * 8;
  static constexpr int X_ROWS = WN * N, GY_ROWS = WC * CHANNELS;
  static constexpr int CO_TILES = ceil_div(CO, GY_ROWS), CHUNK_TILES = ceil_div(CHUNKS, WT), ROW_TILES = ceil_div(TAP_ROWS, WR);
  static constexpr int TILES = CI_TILES * CHUNK_TILES * CO_TILES * ROW_TILES;

  // Tap t of a group meets word q + a0 + word_of(t); `is_high` tells which half. The first tap of a group is even if R > 1.
  static constexpr __host__ __device__ int word_of(int t) { return halved(t - PW) - halved(-PW); }
  static constexpr int LOW = halved(-PW), LAST = halved(KW - 1 - PW);
  static constexpr int WORDS = (R > 1 ? word_of(R - 1) : 0) + 2;  // that the positions q and q + 1 meet
  // Words are loaded in pairs, which begin at an even word.
  static constexpr bool FIXED = CHUNKS == 1 && SUBS == 1, ONE_PAIR = FIXED && LOW % 2 == 0 && WORDS == 2;
  static constexpr int LOADED = ONE_PAIR ? 2 : 4;
  // Positions at the ends of a row meet words beyond it. Positions q and q + 1 lie in one row: so with a from -1 to 1 only the first
  // word may lie before it, and only the last one behind it.
  static constexpr bool CROSSES = LOW < 0 || LAST > 0;
  static_assert(LOW >= -1 && LAST >= -1 && LAST <= 1);

  // A stage: POSITIONS of each channel of x, in swizzled panels of 128 bytes; then the words that these meet, of each channel of gy.
  // The length of such a row keeps the lanes of half a warp in different banks.
  static constexpr int OF_COPY = 8 / SIZE;  // words of 16 bytes
  static constexpr int BEFORE = LOW < 0 ? (OF_COPY - LOW) / OF_COPY * OF_COPY : 0;
  static constexpr int BEYOND = ceil_div(KW, R) * R - PW - 2;  // elements behind the word of a position
  static constexpr int BEHIND = SIZE == 4 ? (BEYOND > 0 ? ceil_div(BEYOND, 2) : 0) : ONE_PAIR ? 0 : LAST + 2;
  static constexpr __host__ __device__ int row_of(int positions) {
    const int run = ceil_div(BEFORE + positions + BEHIND, OF_COPY);
    return run + (10 - run % 8) % 8;
  }
  static constexpr __host__ __device__ int stage_of(int positions) {
    return ceil_div(SIZE * positions * X_ROWS + WR * GY_ROWS * 16 * row_of(positions), 1024) * 1024;
  }
  static constexpr int ROOM = 227 * 1024 - 256, MOST_EACH = 256 / SIZE;
  static constexpr int POSITIONS =
      Tune::POSITIONS != 0 ? Tune::POSITIONS : 3 * stage_of(MOST_EACH) <= ROOM ? MOST_EACH : MOST_EACH / 2;
  static constexpr int RUN = ceil_div(BEFORE + POSITIONS + BEHIND, OF_COPY), ROW = row_of(POSITIONS), ROW_BYTES = 16 * ROW;
  static constexpr int X_BYTES = SIZE * POSITIONS * X_ROWS, STAGE = stage_of(POSITIONS);
  static constexpr int FIT = ROOM / STAGE, STAGES = FIT < 8 ? FIT : 8;
  static constexpr int BARRIERS_AT = STAGES * STAGE, SHARED_BYTES = BARRIERS_AT + 16 * STAGES;
  static_assert(STAGES >= 2, "a stage is given back only after the next has begun");
  static constexpr int PROMOTE = 4096 / POSITIONS;  // stages that tensor cores add up

  // The multiplying warps sum grad_bias from the words that they load, if these tap rows meet each row of gy once: along D those from
  // FIRST_D on, stride_d of them, along H alike.
  static constexpr int FIRST_D = first_of(Layer::kernel_d, Layer::stride_d, Layer::padding_d);
  static constexpr int FIRST_H = first_of(Layer::kernel_h, Layer::stride_h, Layer::padding_h);
  static constexpr int OWN_WORD = -(LOW - (LOW & 1)), COUNTED = Layer::stride_d * Layer::stride_h;  // the word of position q
  // Of float32 each warp has only the elements of its taps: those of both that stand for the position's own must be in the tile.
  static constexpr int BIAS_WT = SIZE == 4 ? WT : 1, BIAS_SLOTS = SIZE == 4 ? WT * SUBS : 1;
  static constexpr bool LOADS_OWN = SIZE == 4 ? PW + 1 < CHUNK * WT && PW + 1 < ceil_div(KW, R) * R : OWN_WORD < LOADED;
  static constexpr bool BIAS = Layer::has_bias && FIRST_D >= 0 && FIRST_H >= 0 && LOADS_OWN &&
                               (Layer::kernel_d == 1 || Layer::dilation_d == 1) && (Layer::kernel_h == 1 || Layer::dilation_h == 1);
  static constexpr int BIAS_SUMS = COUNTED * BIAS_SLOTS * GY_ROWS;  // of a share and a tile of gy
  static bool meets_all(const Sizes& s) {
    return s.out_d + Layer::padding_d <= 1LL * s.in_d * Layer::stride_d + FIRST_D &&
           s.out_h + Layer::padding_h <= 1LL * s.in_h * Layer::stride_h + FIRST_H;
  }
  // The place of a tap row among those, or -1.
  static constexpr __host__ __device__ int counted(int tap_row) {
    const int d = tap_row / Layer::kernel_h - FIRST_D, h = tap_row % Layer::kernel_h - FIRST_H;
    return d >= 0 && d < Layer::stride_d && h >= 0 && h < Layer::stride_h ? d * Layer::stride_h + h : -1;
  }

  // Two warpgroups copy: of float32 the first one x, the second one gy; of 16 bits each of them both.
  static constexpr int STAGERS = 256, EACH_TENSOR = SIZE == 4 ? 128 : 256, THREADS = 128 * CONSUMERS + STAGERS;
  // Sums of a warpgroup in the workspace: [tap of the group][row][channel of x].
  static constexpr int OWN_SUMS = R * 64 * N;
  static constexpr long long SLOT = CONSUMERS * OWN_SUMS;
};

// What the host decides. A line is a row of x, with its words of gy; lines follow each other every `pitch` positions.
template <class Plan, class Tune>
struct RawSplitWork {
  int pitch = 8, step = 0, lines = 0;  // `step`: the positions of a product further in a line
  float one = 1.0f;                    // 1, unknown to the compiler
  GatherDivisor of_line, of_image, of_plane;  // positions of a line, lines of an image and of a plane
  long long stages = 0, each = 0, more = 0;   // in all; of each share; the first shares have one more
  int shares = 1;
  bool serves = false, adds_bias = false;

  explicit RawSplitWork(const Sizes& s) {
    const long long wide = s.in_w > (s.out_w + 1LL) / 2 ? s.in_w : (s.out_w + 1LL) / 2, all = s.batch * s.in_d * s.in_h;
    const long long longest = ceil_div(wide, 16LL / Plan::SIZE) * (16 / Plan::SIZE);  // so a copy lies in one line
    if (longest > 1 << 28 || all > 1 << 28 || all * longest > 1 << 29) return;
    serves = true;
    if (all == 0) return;
    pitch = int(longest), step = Plan::DEPTH % pitch, lines = int(all);
    of_line = GatherDivisor(pitch), of_image = GatherDivisor(s.in_d * s.in_h), of_plane = GatherDivisor(s.in_h);
    stages = ceil_div(all * longest, 1LL * Plan::POSITIONS);
    const int most = share_count(MORE_SHARES * Tune::GRID / Plan::TILES, stages);
    for (int n = 2; n <= most; ++n)
      if (nanoseconds(n) < nanoseconds(shares)) shares = n;
    each = stages / shares, more = stages % shares;
    if constexpr (Plan::BIAS)
      adds_bias = Plan::meets_all(s) && (each + 1) * (Plan::POSITIONS / 2) < TERMS_PER_SUM;
  }
  __host__ __device__ long long first_stage(int share) const { return share * each + (share < more ? share : more); }
  __host__ __device__ long long stages_of(int share) const { return each + (share < more); }
  __host__ __device__ int works() const { return shares * Plan::TILES; }
  long long slots() const { return stages == 0 ? 0 : Plan::SLOT * works(); }
  long long bytes() const { return 4 * (slots() + (adds_bias ? 1LL * shares * Plan::CO_TILES * Plan::BIAS_SUMS : 0)); }

 private:
  // Bytes per ns that a block stages, and that all blocks write or read of partial sums.
  static constexpr double BYTES_OF_BLOCK = 40, BYTES_OF_ALL = 4000;
  static constexpr int MORE_SHARES = 8;  // more shares than blocks may distribute the work more evenly
  double nanoseconds(int of_shares) const {
    constexpr double OF_STAGE = Plan::STAGE / BYTES_OF_BLOCK, OF_SLOT = 4. * Plan::SLOT / BYTES_OF_ALL;
    const long long parts = 1LL * of_shares * Plan::TILES;
    return OF_STAGE * ceil_div(parts, 1LL * Tune::GRID) * ceil_div(stages, 1LL * of_shares) + 2 * OF_SLOT * parts;
  }
};

// Tile `number` of the plan: neighbouring tiles read the same words of gy.
template <class Plan>
struct RawSplitTile {
  int ci, chunk, co, tap_row;  // the first ones
  __device__ __forceinline__ explicit RawSplitTile(int number) {
    ci = number % Plan::CI_TILES * Plan::X_ROWS, number /= Plan::CI_TILES;
    chunk = number % Plan::CHUNK_TILES * Plan::WT, number /= Plan::CHUNK_TILES;
    co = number % Plan::CO_TILES * Plan::GY_ROWS, tap_row = number / Plan::CO_TILES * Plan::WR;
  }
};
