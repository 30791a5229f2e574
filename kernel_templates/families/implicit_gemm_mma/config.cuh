// Compile-time constants of a strip GEMM: tile shape, pitches in shared memory, fragment order of the channels.
//
// The product has rows (channels of the result, "M") and columns (positions, "N"). It sums over channels of the source
// ("K") and taps. A position is a step along W (contract/axis.cuh). The rows of steps of a plane lie one after the
// other at a pitch, so a tile is a run of COLUMNS positions, whatever the width of the plane.
#pragma once
#include "contract/problem.cuh"
#include "contract/axis.cuh"

enum class StripWeights { automatic, resident, streamed, direct };

constexpr __host__ __device__ int round_up(int value, int multiple) { return ceil_div(value, multiple) * multiple; }

// Which channel of a slab of 8 stands in slot k of a fragment. There are three orders; the one with the fewest bank
// conflicts is used.
constexpr __host__ __device__ int strip_channel(int order, int slot) {
  const int q = slot & 3, high = slot >> 2;
  if (order == 1) return 2 * q + high;
  if (order == 2) return (q & 1) + ((q & 2) << 1) + (high << 1);
  return slot;
}

// The largest number of lanes of a quarter-warp whose 16 bytes lie in the same four banks, if lane (g, t) reads
// channel(t) * pitch + g * step (floats).
constexpr int strip_conflicts(int order, int pitch, int step) {
  int worst = 0;
  for (int high = 0; high < 2; ++high)
    for (int quarter = 0; quarter < 4; ++quarter) {
      int hits[8] = {};
      for (int lane = quarter * 8; lane < quarter * 8 + 8; ++lane) {
        const int at = (strip_channel(order, lane % 4 + 4 * high) * pitch + lane / 4 * step) / 4 % 8;
        if (++hits[at] > worst) worst = hits[at];
      }
    }
  return worst;
}

struct StripPlacement {
  int order, pitch;
};

constexpr StripPlacement strip_placement(int width, int step) {
  StripPlacement best = {0, width};
  int fewest = 99;
  for (int pad = 0; pad < 32; pad += 4)
    for (int order = 0; order < 3; ++order) {
      const int found = strip_conflicts(order, width + pad, step);
      if (found < fewest) {
        fewest = found;
        best = {order, width + pad};
      }
    }
  return best;
}

// 16-bit values are multiplied in pairs of channels. Lane column t of a fragment takes 4 channels of a slab of 16, in
// slots 2t, 2t + 1 (pair 0) and 2t + 8, 2t + 9 (pair 1). Of a slab of 8 it takes 2, and its other slots are zero.
constexpr __host__ __device__ int strip_half_channel(int order, int slab, int t, int i) {
  if (order == 1) return 4 * i + t;
  if (order == 2) return slab / 4 * t + i;
  return 2 * t + (i & 1) + ((i & 2) << 2);
}

// The largest number of lanes that read the same four banks at once. A lane reads `read` values of 16 bits: 8 (a
// quarter-warp at a time) or 4 (half a warp).
constexpr int strip_half_conflicts(int order, int slab, int pitch, int step, int read) {
  const int together = read == 8 ? 8 : 16;
  int worst = 0;
  for (int i = 0; i < slab / 4; ++i)
    for (int first = 0; first < 32; first += together) {
      int hits[16] = {};
      for (int lane = first; lane < first + together; ++lane) {
        const int at = (strip_half_channel(order, slab, lane % 4, i) * pitch + lane / 4 * step) / read % together;
        if (++hits[at] > worst) worst = hits[at];
      }
    }
  return worst;
}

constexpr StripPlacement strip_half_placement(int slab, int width, int step, int read) {
  StripPlacement best = {0, width};
  int fewest = 99;
  for (int pad = 0; pad < 64; pad += 8)
    for (int order = 0; order < 3; ++order) {
      const int found = strip_half_conflicts(order, slab, width + pad, step, read);
      if (found < fewest) {
        fewest = found;
        best = {order, width + pad};
      }
    }
  return best;
}

template <bool FORWARD_, class Layer, class Tune>
struct StripConfig {
  static constexpr bool FORWARD = FORWARD_;
  using Scalar = typename Layer::scalar;
  static constexpr bool HALVES = sizeof(Scalar) == 2, BFLOAT = Tune::precision == Precision::bf16;
  // Rows of odd length are first copied to rows of whole pieces, because cp.async needs at least 4 aligned bytes.
  static constexpr bool PAD = HALVES && Tune::PAD;
  static constexpr int PIECE = 16 / int(sizeof(Scalar));  // values that a copy takes, at most
  using D = StripAxis<FORWARD, Layer::kernel_d, Layer::stride_d, Layer::padding_d, Layer::dilation_d>;
  using H = StripAxis<FORWARD, Layer::kernel_h, Layer::stride_h, Layer::padding_h, Layer::dilation_h>;
  using W = StripAxis<FORWARD, Layer::kernel_w, Layer::stride_w, Layer::padding_w, Layer::dilation_w>;

  static constexpr int GROUPS = Layer::groups;
  static constexpr int M = (FORWARD ? Layer::out_channels : Layer::in_channels) / GROUPS;
  static constexpr int K = (FORWARD ? Layer::in_channels : Layer::out_channels) / GROUPS;
  static constexpr int SLAB = HALVES && K > 8 ? 16 : 8;  // channels of a product
  static constexpr bool HAS_BIAS = FORWARD && Layer::has_bias;
  static constexpr bool THREE = Tune::precision == Precision::tf32x3;  // products of high and low parts
  static constexpr int PLANES_OF_A = THREE ? 2 : 1;                    // high parts; low parts
  // The accumulator of a tensor core loses about 1e-8 of its sum at each product of 8. So tf32x3 empties it after 16
  // taps.
  static constexpr int ROWS_KEPT = 16 / W::TAPS < 1 ? 1 : 16 / W::TAPS;

  // If the rows that the taps along H need are neighbours, these taps share one plane of rows in shared memory, shifted
  // by whole rows. Else each tap has the rows that it meets.
  static constexpr bool SHARED_ROWS = H::IN_STEP == 1 && H::REACH <= 6;
  static constexpr int ROW_PLANES = SHARED_ROWS ? 1 : H::TAPS;

  // Tile shape. If a tunable is 0 it is chosen here, so that the sums fit in the registers. The header's [derived]
  // repeats this.
  static constexpr int SUMS = FORWARD ? (W::TAPS < W::OUT_STEP ? W::TAPS : W::OUT_STEP) : 1;  // residues, at most
  static constexpr bool NARROW = SUMS > 2 || W::IN_STEP > 1 || (THREE && SUMS > 1 && W::TAPS > 5);
  static constexpr int STRIP = Tune::STRIP > 0 ? Tune::STRIP : NARROW ? 4 : 8;
  static constexpr int FRAGMENTS = ceil_div(M, 16);
  static constexpr bool MANY_TAPS = (H::TAPS > 1 && W::TAPS > 5) || (THREE && H::TAPS * W::TAPS > 9);
  static constexpr int ROOM_ONCE = SUMS > 2 || MANY_TAPS ? 16 : 32;
  static constexpr int ROOM = ROOM_ONCE / PLANES_OF_A;  // tf32x3 keeps every sum twice
  static constexpr int MA_MOST = ROOM / (SUMS * STRIP) < 1 ? 1 : ROOM / (SUMS * STRIP) < 4 ? ROOM / (SUMS * STRIP) : 4;
  static constexpr int MA = Tune::FRAGMENTS_M > 0 ? Tune::FRAGMENTS_M : FRAGMENTS < MA_MOST ? FRAGMENTS : MA_MOST;
  static constexpr int WARPS_M = Tune::WARPS_M > 0 ? Tune::WARPS_M : FRAGMENTS > MA ? 2 : 1;
  static constexpr int WARPS_N = Tune::WARPS_N > 0 ? Tune::WARPS_N : STRIP * WARPS_M > 8 ? 2 : 4;
  static constexpr bool FEW_TAPS = SHARED_ROWS && (H::TAPS == 1 || H::OUT_STEP > 1);  // in a step
  static constexpr int SLABS_AUTO = !FEW_TAPS ? 1 : H::TAPS == 1 && WARPS_M == 2 && !HALVES ? 4 : 2;
  static constexpr int CHANNELS_AUTO = SLABS_AUTO * SLAB;
  static constexpr int CHANNELS_WANTED = round_up(Tune::CHANNELS > 0 ? Tune::CHANNELS : CHANNELS_AUTO, SLAB);
  static constexpr int CHANNELS = CHANNELS_WANTED < round_up(K, SLAB) ? CHANNELS_WANTED : round_up(K, SLAB);
  static constexpr int STAGES = Tune::STAGES;
  static constexpr int WARPS = WARPS_M * WARPS_N, THREADS = 32 * WARPS;
  static constexpr int MT = WARPS_M * MA, TILE_M = 16 * MT, M_TILES = ceil_div(FRAGMENTS, MT);
  static constexpr int WARP_COLUMNS = 8 * STRIP, COLUMNS = WARPS_N * WARP_COLUMNS;

  // A 32-byte sector that two warps write in part costs as much as several whole ones. So neighbouring warps overlap by
  // this many positions, and one of the two stores the whole sector (or the whole line of 128 bytes): see store.cuh.
  static constexpr int OWNED = Tune::OWNED / int(sizeof(Scalar)) < 32 ? Tune::OWNED / int(sizeof(Scalar)) : 32;
  static constexpr int SECTOR = OWNED > 0 ? OWNED : 32 / int(sizeof(Scalar));  // values
  static constexpr int OVERLAP = OWNED > 0 ? round_up(ceil_div(SECTOR - 1, W::OUT_STEP), PIECE) : 0;
  static_assert(OVERLAP < WARP_COLUMNS, "a warp has positions of its own");

  // Source in shared memory: [row plane][channel][position].
  static constexpr int LEAD = (W::BASE % PIECE + PIECE) % PIECE;  // positions before the first, so that copies align
  static constexpr int READ = PIECE == 8 && STRIP * W::IN_STEP % 8 == 0 ? 8 : 4;  // values that a lane loads at once
  // What a lane's strip meets.
  static constexpr int WINDOW = round_up((STRIP - 1) * W::IN_STEP + W::REACH + 1 + LEAD, READ);
  static constexpr int SPAN = round_up((COLUMNS - STRIP) * W::IN_STEP + WINDOW, PIECE);
  static constexpr int MAX_PITCH = Tune::MAX_PITCH;  // positions from row to row, where rows are shared
  static constexpr int ROWS_APART = SHARED_ROWS ? H::REACH : 0;
  static constexpr int WIDTH = SPAN + ROWS_APART * MAX_PITCH * W::IN_STEP;
  static constexpr StripPlacement PLACEMENT = HALVES ? strip_half_placement(SLAB, WIDTH, STRIP * W::IN_STEP, READ)
                                                     : strip_placement(WIDTH, STRIP * W::IN_STEP);
  static constexpr int PITCH = PLACEMENT.pitch, ORDER = PLACEMENT.order;
  static constexpr int INPUT_STAGE = ROW_PLANES * CHANNELS * PITCH;  // values

  // The image: results of a warp before they are stored, 8 channels x its positions.
  static constexpr bool ROLL = Tune::ROLL;
  static constexpr int IMAGE_WIDTH = WARP_COLUMNS * W::OUT_STEP, IMAGE_PITCH = IMAGE_WIDTH + 4;

  // Weights: [depth tap][slab of channels][tap of the plane][fragment][high, low][lane][4]. Sizes are in words of 4
  // bytes: a float or two 16-bit values.
  static constexpr int TAPS = H::TAPS * W::TAPS;
  static constexpr int CHUNKS = ceil_div(K, CHANNELS), SLABS = CHUNKS * (CHANNELS / SLAB);
  static constexpr int WEIGHT_SLAB = TAPS * MT * PLANES_OF_A * 128;
  static constexpr long long WEIGHT_TILE = 1LL * D::TAPS * SLABS * WEIGHT_SLAB;
  static constexpr int WEIGHT_STAGE = CHANNELS / SLAB * WEIGHT_SLAB;
  static constexpr StripWeights CHOICE = StripWeights(Tune::WEIGHTS);
  // Weights read from L1 take registers that tf32x3 does not have. 163 KB of shared memory must suffice: an sm_80 has
  // no more.
  static constexpr bool STAGES_FIT = STAGES * (INPUT_STAGE + WEIGHT_STAGE) <= 38912;
  static constexpr int MOST_STAGED = !THREE || SUMS > 2 ? 5120 : STAGES_FIT ? 10240 : 0;
  // An upper bound of what the inputs take, in words, as the header computes it. 16-bit weights are few enough to stay
  // in shared memory, unless the inputs are so wide that there is no room (grad_input with a large stride).
  static constexpr long long INPUT_MOST =
      1LL * STAGES * ROW_PLANES * CHANNELS *
      (COLUMNS * W::IN_STEP + W::REACH + LEAD + 9 * PIECE - 4 + ROWS_APART * MAX_PITCH * W::IN_STEP) / (PIECE / 4);
  static constexpr bool ROOM_FOR_ALL = !HALVES || INPUT_MOST + WEIGHT_TILE + WARPS * 8 * IMAGE_PITCH <= 41472;
  static constexpr bool ALL_FIT = WEIGHT_TILE <= 49152 / 4 && ROOM_FOR_ALL;
  static constexpr StripWeights WEIGHTS = CHOICE != StripWeights::automatic ? CHOICE
                                          : ALL_FIT                         ? StripWeights::resident
                                          : WEIGHT_STAGE <= MOST_STAGED     ? StripWeights::streamed
                                                                            : StripWeights::direct;
  static constexpr long long WEIGHT_FLOATS = WEIGHTS == StripWeights::resident   ? WEIGHT_TILE
                                             : WEIGHTS == StripWeights::streamed ? 1LL * STAGES * WEIGHT_STAGE
                                                                                 : 0;

  static constexpr long long SHARED_BYTES =
      4 * (WEIGHT_FLOATS + 1LL * WARPS * 8 * IMAGE_PITCH) + 1LL * sizeof(Scalar) * STAGES * INPUT_STAGE;

  static constexpr int ROWS_UNROLLED = Tune::UNROLL && H::OUT_STEP == 1 && TAPS <= (HALVES ? 9 : 15) ? H::TAPS : 1;
  // Blocks that a multiprocessor should hold: the compiler limits registers to that.
  static constexpr int HELD = PLANES_OF_A * (SUMS * MA * STRIP * 4 + 2 * (WINDOW < 48 ? WINDOW : 48));
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  static constexpr bool OLD = true;  // seen by device code only, so it must not change the shape of a tile
#else
  static constexpr bool OLD = false;
#endif
  static constexpr int BLOCKS_AUTO = WARPS > 4 ? (HELD <= 72 ? 2 : 1) : HELD <= (OLD ? 56 : 88) ? 3 : 2;
  static constexpr int BLOCKS = Tune::BLOCKS > 0 ? Tune::BLOCKS : BLOCKS_AUTO;
  static constexpr int CELLS = GROUPS * M_TILES;  // a block keeps its group and tile of channels
  static_assert(STRIP % 4 == 0, "a lane reads its strip 16 bytes at a time");
  static_assert(CHANNELS % SLAB == 0, "a fragment takes whole slabs of channels");
  static_assert(sizeof(Scalar) == 4 || HALVES, "float, or 16 bits a value");
};
