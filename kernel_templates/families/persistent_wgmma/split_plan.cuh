// grad_weight of persistent_wgmma: how the work is cut. README.md has the words.
#pragma once
#include "contract/positions.cuh"
#include "contract/weight_launch.cuh"

// Along W tap k meets gy at element v = stride * q + k * dilation of a row that begins `padding` elements before gy's.
// So the tap is residue v % stride, shifted by v / stride positions. Without dilation every `stride` neighbouring taps
// have one shift and all residues: they are one wide product. Each other tap is a narrow product of its own.
// Tune::ASYNC says which loader brings the data: cp.async, or registers (GradSplitBy).
template <class Layer, class Tune>
struct GradSplitPlan {
  static constexpr int K = Layer::kernel_w, STRIDE = Layer::stride_w, DILATION = Layer::dilation_w;
  static constexpr int FAR = (K - 1) * DILATION, PADDING = Layer::padding_w;
  static constexpr int WIDE = DILATION == 1 ? K / STRIDE : 0, NARROW = K - WIDE * STRIDE;
  static constexpr __host__ __device__ int narrow_at(int t) { return (WIDE * STRIDE + t) * DILATION; }

  // Channels. An oct is 8 channels of gy for one tap row; octs are counted tap row by tap row.
  static constexpr int CI = Layer::in_channels, CO = Layer::out_channels;
  static constexpr int CI_BLOCKS = ceil_div(CI, 64), CO8 = ceil_div(CO, 8);
  static constexpr int TAP_ROWS = Layer::kernel_d * Layer::kernel_h, ALL_OCTS = TAP_ROWS * CO8;

  // Warpgroup w of a block owns 64 channels of x (w % MB) and OCTS_WG octs.
  static constexpr int MB = CI_BLOCKS < Tune::CONSUMERS ? CI_BLOCKS : Tune::CONSUMERS, WN = Tune::CONSUMERS / MB;
  static constexpr int CONSUMERS = MB * WN;
  static constexpr int MOST = WIDE > 0 || Tune::COLUMNS < 192 ? Tune::COLUMNS : 192;
  static constexpr int FIT = MOST / (8 * K) > 1 ? MOST / (8 * K) : 1;
  // A tile has fewer octs if it then has one tap row and not much less work.
  static constexpr int SAME_ROW = ceil_div(CO8, ceil_div(CO8, FIT * WN));
  static constexpr int EVEN = ceil_div(ALL_OCTS, ceil_div(ALL_OCTS, FIT * WN));
  static constexpr bool FEWER = CO8 % SAME_ROW == 0 && SAME_ROW % WN == 0 && 4 * SAME_ROW >= 3 * EVEN;
  static constexpr int OCTS_WG = ceil_div(FEWER ? SAME_ROW : EVEN, WN);
  static constexpr int OCTS = OCTS_WG * WN;
  static constexpr int M_TILES = ceil_div(CI_BLOCKS, MB), N_TILES = ceil_div(ALL_OCTS, OCTS), TILES = M_TILES * N_TILES;
  static constexpr int FILLED = (OCTS + CO8 - 2) / CO8 + 1;
  // Tap rows that a tile meets.
  static constexpr int ROWS = CO8 % OCTS == 0   ? 1
                              : OCTS % CO8 == 0 ? OCTS / CO8
                              : FILLED < TAP_ROWS ? FILLED
                                                  : TAP_ROWS;
  static constexpr bool ALIGNED = CO8 % OCTS == 0 || OCTS % CO8 == 0 || TAP_ROWS == 1;
  static constexpr bool ONE_ROW = CO8 % OCTS == 0 || TAP_ROWS == 1, WHOLE = CO8 % OCTS == 0 && CO % 8 == 0;
  static constexpr int WIDE_N = OCTS_WG * 8 * STRIDE, NARROW_N = OCTS_WG * 8, GROUPS = OCTS_WG * K, SUMS = 4 * GROUPS;
  // The eight columns of oct `o` and tap `k` among a warpgroup's.
  static constexpr __host__ __device__ int group_of(int o, int k) {
    return k < WIDE * STRIDE ? (k / STRIDE * OCTS_WG + o) * STRIDE + k % STRIDE
                             : OCTS_WG * k + o;
  }

  // If the kernel is two strides long, layers of models with many channels have short rows.
  static constexpr bool SHORT = CI >= 512 && TAP_ROWS > 1 && K == 2 * STRIDE;
  static constexpr int SIZE = int(sizeof(typename Layer::scalar)), PER = 16 / SIZE;
  static constexpr int BEYOND = FAR + 1 > STRIDE ? FAR + 1 - STRIDE : 0;
  // Whether cp.async serves the layer: heads and tails are short, and a tile has few tap rows. With 16-bit types it copies
  // half as much at a time; that is faster only if sums leave few registers for loads.
  static constexpr bool COPIES = SIZE == 4 ? BEYOND <= 4 && ROWS <= 4 && !SHORT : BEYOND == 0 && PADDING == 0 && SUMS > 64;
  static constexpr bool ASYNC = Tune::ASYNC;
  // A strip is STRIP neighbouring positions of a row; a chunk is 16 bytes: one position of each of PER strips.
  // Longer strips have relatively shorter heads and tails.
  static constexpr bool FITS_8 = 4 * (8192 * MB + (8 + FAR / STRIDE) * 128 * STRIDE * OCTS) <= 200 * 1024;
  static constexpr bool LONG = FAR >= STRIDE && !SHORT && (TAP_ROWS * K <= 16 || (!COPIES && FITS_8));
  static constexpr int STRIP = Tune::STRIP ? Tune::STRIP : LONG ? 8 : 4;
  static constexpr int LENGTH = (STRIP - 1) * STRIDE + FAR + 1;  // elements of a row of gy that a strip meets
  static constexpr int BLOCKS = STRIP + FAR / STRIDE;            // positions of gy, counted by residue
  // The core of these elements begins at a multiple of 4 of a row of gy and is read as vectors; HEAD elements lie
  // before it, TAIL behind it. They belong to the cores of the strips beside it.
  static constexpr int HEAD = PADDING <= BEYOND ? PADDING : PADDING % 4;
  static constexpr int CORE = STRIP * STRIDE, TAIL = LENGTH > HEAD + CORE ? LENGTH - HEAD - CORE : 0;
  static_assert(HEAD <= CORE && TAIL <= CORE, "only the next strips have them");
  static constexpr int EXTRA = HEAD + TAIL, EXTRA_OR_1 = EXTRA > 0 ? EXTRA : 1;

  // Eight neighbouring lanes read 128 neighbouring bytes of a channel, or several channels if these are shorter. The
  // distances between chunks and between blocks (of all chunks for one position) are such that these lanes then write
  // to different banks.
  static constexpr int TABLE = 32 + 32 * PER * (1 + ROWS) + 16 * ((ROWS + 3) / 4);  // bytes; a copying warp writes two
  static constexpr int OF_WARP = 2 * TABLE + 4 * PER * int(sizeof(Position));  // with the places of its strips
  static constexpr int ROOM = 227 * 1024 - 256 - Tune::COPY_WARPS * OF_WARP;
  static constexpr int RAW = STRIP * 1024 * MB + BLOCKS * 128 * STRIDE * OCTS;
  // grad_bias is summed up where gy is copied, if taps meet every row; else sum_channel reads gy a second time. If
  // several taps meet a row, only one of them counts.
  static constexpr bool BIAS = Layer::has_bias && Layer::dilation_d == 1 && Layer::dilation_h == 1 &&
                               Layer::kernel_d >= Layer::stride_d && Layer::kernel_h >= Layer::stride_h;
  static constexpr bool COUNTS = BIAS && (Layer::kernel_d > Layer::stride_d || Layer::kernel_h > Layer::stride_h);
  // A warp's job in shared memory: 32 items, what counts, and the edges.
  static constexpr int EDGES = OCTS * 8 * EXTRA, EDGE_TURNS = ceil_div(EDGES, 32 * Tune::COPY_WARPS);
  static constexpr int EDGE_BYTES = PER == 4 ? 128 : 256;
  static constexpr int JOB_BYTES = 2048 + (COUNTS ? 128 : 0) + EDGE_TURNS * EDGE_BYTES;
  static constexpr int BROUGHT = ASYNC ? 5 * Tune::COPY_WARPS * JOB_BYTES : 0;  // bytes of jobs in flight that must fit
  static constexpr int CHUNKS = Tune::CHUNKS ? Tune::CHUNKS : (ASYNC ? 8 : 12) * RAW + 3200 + BROUGHT <= ROOM ? 4 : 2;
  static constexpr __host__ __device__ int at_least(int least, int value) { return value < least ? least : value; }
  static constexpr int X_VECTORS = STRIP / 4, VECTORS = CORE / 4;
  static constexpr int X_CHUNK = 1024 * MB + 16 * at_least(1, 8 / (X_VECTORS * CHUNKS));
  static constexpr int X_BLOCK = CHUNKS * X_CHUNK + (STRIP == 8 ? 16 : 0);
  static constexpr bool POWER = (VECTORS & (VECTORS - 1)) == 0;
  static constexpr int LANES = !POWER ? 2 : VECTORS < 8 ? VECTORS : 8;
  static constexpr int OF_CHUNKS = CHUNKS < 8 / LANES ? CHUNKS : 8 / LANES;
  static constexpr int APART = POWER ? 16 * at_least(1, 8 / (LANES * CHUNKS)) : 64;
  static constexpr int UNIT = POWER && STRIDE <= 4 ? at_least(16, APART * OF_CHUNKS / at_least(1, 4 / STRIDE)) : 16;
  static constexpr int GY_CHUNK = 128 * STRIDE * OCTS + APART;
  static constexpr int GY_BLOCK = CHUNKS * GY_CHUNK + (CHUNKS * APART / UNIT % 2 == 1 ? 0 : UNIT);
  static constexpr int STRIPS = CHUNKS * PER, X_STAGE = STRIP * X_BLOCK, STAGE = X_STAGE + BLOCKS * GY_BLOCK;
  static constexpr int FITTING = (ROOM - BROUGHT) / STAGE > 2 ? (ROOM - BROUGHT) / STAGE : 2;
  static constexpr int STAGES = FITTING < Tune::STAGES ? FITTING : Tune::STAGES;
  static constexpr int X_JOBS = ceil_div(MB * 64 * CHUNKS * X_VECTORS, 32 * Tune::COPY_WARPS);
  static constexpr int JOBS = X_JOBS + ceil_div(OCTS * 8 * CHUNKS * VECTORS, 32 * Tune::COPY_WARPS);
  static constexpr int MOST_JOBS = ASYNC ? (ROOM - STAGES * STAGE) / (Tune::COPY_WARPS * JOB_BYTES) : 0;
  static constexpr int BUFFERS = MOST_JOBS < 9 ? MOST_JOBS : 9;  // jobs of a warp that are on the way, and one more
  static constexpr int STAGES_AT = BUFFERS * Tune::COPY_WARPS * JOB_BYTES, TABLES_AT = STAGES_AT + STAGES * STAGE;
  static constexpr int BARRIERS_AT = TABLES_AT + Tune::COPY_WARPS * OF_WARP, SHARED_BYTES = BARRIERS_AT + 16 * STAGES;
  static constexpr int PROMOTE = ceil_div(4096, STRIPS * STRIP);  // stages that tensor cores add up

  // Registers: the copying warps give some of theirs to the multiplying ones.
  static constexpr int COPY_WARPS = Tune::COPY_WARPS, THREADS = 128 * CONSUMERS + 32 * COPY_WARPS;
  static constexpr int FAIR = 65536 / THREADS / 8 * 8, ENTRY = FAIR < 248 ? FAIR : 248;
  static constexpr int ASKED = (SUMS + 32 + 7) / 8 * 8, OWN = ASKED > 240 ? 240 : ASKED < ENTRY ? ENTRY : ASKED;
  static constexpr int LEFT = (ENTRY * (THREADS / 32) - OWN * 4 * CONSUMERS) / COPY_WARPS / 8 * 8;
  static constexpr bool TRADES = OWN > ENTRY;
  // A product that needs more registers than a thread has at the start becomes two.
  static constexpr int PARTS = WIDE > 0 && WIDE_N / 2 + 26 > ENTRY && OCTS_WG * STRIDE % 2 == 0 ? 2 : 1;
  static constexpr int PART_N = WIDE_N / PARTS;

  // If there is one share, sums can be stored in grad_weight directly. This is done if every channel exists.
  static constexpr bool DIRECT = CI_BLOCKS % MB == 0 && CI % 64 == 0 && CO % 8 == 0 && CO8 % OCTS == 0;

  // float4 that a tile has in the workspace for one share.
  static constexpr long long SLOT = 128LL * GROUPS * CONSUMERS;
};

// Tune, and which loader is used.
template <class Tune, bool BY_ASYNC>
struct GradSplitBy : Tune {
  static constexpr bool ASYNC = BY_ASYNC;
};
// The first choice, for rows of whole vectors. Other rows are loaded through registers.
template <class Layer, class Tune>
using GradSplitMain = GradSplitBy<Tune, GradSplitPlan<Layer, GradSplitBy<Tune, false>>::COPIES>;

// The same, with half the columns: twice as many tiles.
template <class Tune>
struct GradSplitHalved : Tune {
  static constexpr int COLUMNS = 128;
};

// What the host decides: how many strips a row has, how many stages there are, and how many shares.
template <class Plan, class Tune>
struct GradSplitWork {
  long long stages, in_plane, out_plane, image_strips;
  int shares;
  Sizes strips;   // the walk counts strips instead of columns
  long long each, more;  // stages of each share; the first shares have one more
  Position step;  // of a table of a copying warp to its next one
  explicit GradSplitWork(const Sizes& s)
      : in_plane(1LL * s.in_d * s.in_h * s.in_w), out_plane(1LL * s.out_d * s.out_h * s.out_w),
        strips{s.batch, s.in_d, s.in_h, 1, 0, 0, 0} {
    // The cores reach as far as taps meet gy, so that a row's last strip has nothing in its tail.
    const long long reach = (s.in_w - 1LL) * Plan::STRIDE + Plan::FAR + 1 - Plan::PADDING;
    const long long behind = (reach < s.out_w ? reach : s.out_w) + Plan::PADDING - Plan::HEAD;
    const int row_strips_x = ceil_div(s.in_w, Plan::STRIP), row_strips_gy = int(ceil_div(behind, 1LL * Plan::CORE));
    int row_strips = s.in_w > 0 && row_strips_gy > row_strips_x ? row_strips_gy : row_strips_x;
    // Within a stage, offsets are 32-bit. A stage that would reach too far stays within one row.
    const long long image = 1LL * s.in_d * s.in_h * row_strips, images = Plan::STRIPS / (image > 0 ? image : 1) + 2;
    const long long x = Plan::CI * in_plane, gy = Plan::CO * out_plane;
    if ((x > gy ? x : gy) * images >= 1LL << 31) row_strips = ceil_div(row_strips, Plan::STRIPS) * Plan::STRIPS;
    strips.in_w = row_strips > 0 ? row_strips : 1;
    image_strips = 1LL * s.in_d * s.in_h * strips.in_w;
    stages = ceil_div(s.batch * s.in_d * s.in_h * row_strips, Plan::STRIPS);
    step = position_of(1LL * Plan::COPY_WARPS * Plan::STRIPS);
    shares = 1;
    const int most = share_count(MORE_SHARES * Tune::GRID / Plan::TILES, stages);
    for (int n = 2; n <= most; ++n)
      if (nanoseconds(n) < nanoseconds(shares)) shares = n;
    each = stages / shares, more = stages % shares;
  }
  // About how long it takes: the stages of the block that has most, then partial sums written and read.
  double nanoseconds(int of_shares) const {
    constexpr double OF_STAGE = Plan::STAGE / BYTES_OF_BLOCK, OF_SLOT = 16. * Plan::SLOT / BYTES_OF_ALL;
    const long long parts = 1LL * of_shares * Plan::TILES;
    const double staged = OF_STAGE * ceil_div(parts, 1LL * Tune::GRID) * ceil_div(stages, 1LL * of_shares);
    const bool stored = Plan::DIRECT && of_shares == 1 && stages <= Plan::PROMOTE;
    return staged + (stored ? OF_SLOT * parts : 2 * OF_SLOT * parts + SECOND_LAUNCH);
  }
  __host__ __device__ long long first_stage(int share) const { return share * each + (share < more ? share : more); }
  __host__ __device__ long long stages_of(int share) const { return each + (share < more); }
  __host__ __device__ int works() const { return shares * Plan::TILES; }
  // One share, short enough for the tensor cores: results are stored directly.
  __host__ __device__ bool direct() const { return Plan::DIRECT && shares == 1 && stages <= Plan::PROMOTE; }
 private:
  // As measured on an H200: bytes per ns that a block stages, and that all blocks write or read of partial sums.
  static constexpr double BYTES_OF_BLOCK = 32, BYTES_OF_ALL = 4000, SECOND_LAUNCH = 3000;
  // More shares than blocks may distribute the work more evenly.
  static constexpr int MORE_SHARES = 8;
  Position position_of(long long strip) const {
    const long long rows = strip / strips.in_w, planes = rows / at_least_one(strips.in_h);
    Position at;
    at.w = int(strip % strips.in_w), at.h = int(rows % at_least_one(strips.in_h));
    at.d = int(planes % at_least_one(strips.in_d)), at.n = planes / at_least_one(strips.in_d);
    return at;
  }
  static long long at_least_one(long long value) { return value > 0 ? value : 1; }
};
