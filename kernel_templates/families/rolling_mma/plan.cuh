// How rolling_mma cuts a layer's weight gradient into tiles of blocks and warps: all constants of layer and config.
#pragma once
#include "contract/row_taps.cuh"

// The taps of one axis, in chains. Tap chain + t * STEP meets gy at i * stride - padding + chain * dilation with the
// input at i - t * APART. So all taps of a chain meet the same gy, and step i needs one new gy for each chain.
template <int KERNEL, int STRIDE, int DILATION>
struct TapChains {
  static constexpr __host__ __device__ int divisor(int a, int b) { return b == 0 ? a : divisor(b, a % b); }
  static constexpr int STEP = STRIDE / divisor(STRIDE, DILATION), APART = DILATION / divisor(STRIDE, DILATION);
  static constexpr int CHAINS = KERNEL < STEP ? KERNEL : STEP;
  static constexpr __host__ __device__ int length(int chain) { return (KERNEL - chain + STEP - 1) / STEP; }
  static constexpr int LONGEST = length(0), BEHIND = APART * (LONGEST - 1);  // the oldest input that is still met
};

template <class Layer, class Tune, int FIRST>
struct RollingMmaPlan {
  using Group = TapGroup<Layer, FIRST, 1>;
  using D = TapChains<Layer::kernel_d, Layer::stride_d, Layer::dilation_d>;
  using H = TapChains<Layer::kernel_h, Layer::stride_h, Layer::dilation_h>;
  static constexpr bool THREE = Tune::precision == Precision::tf32x3;
  static constexpr bool NARROW = sizeof(typename Layer::scalar) == 2;
  static constexpr int BYTES = int(sizeof(typename Layer::scalar)), VECTOR = 16 / BYTES;
  static constexpr int CI = Layer::in_channels / Layer::groups, CO = Layer::out_channels / Layer::groups;
  static constexpr int ROWS = Layer::kernel_d * Layer::kernel_h;  // tap rows (kd, kh)
  static constexpr int KT = Group::COUNT, STRIDE = Layer::stride_w, DILATION = Layer::dilation_w;
  static constexpr int K_STEP = NARROW ? 16 : 8, UNROLL = Tune::UNROLL;  // positions that a product sums
  static constexpr int CI8 = ceil_div(CI, 8), CO8 = ceil_div(CO, 8);
  // Fragments of 4 registers that a thread may spend on sums; tf32x3 keeps each twice, and its operands too.
  static constexpr int FRAGMENTS = THREE ? 12 : 28;

  static constexpr __host__ __device__ int smaller(int a, int b) { return a < b ? a : b; }
  static constexpr __host__ __device__ int larger(int a, int b) { return a > b ? a : b; }
  static constexpr __host__ __device__ int evenly(int count, int most) {
    return ceil_div(count, ceil_div(count, larger(1, most)));
  }

  // Channels of a block, in eights.
  static constexpr int NB = smaller(Tune::N_TILES ? Tune::N_TILES : larger(1, smaller(2, FRAGMENTS / KT)), CO8);
  static constexpr int IN8 = evenly(CI8, 4);
  static constexpr int WN = ceil_div(evenly(CO8, smaller(4, Tune::WARPS * NB)), NB), OUT8 = WN * NB;
  static constexpr int IN = 8 * IN8, OUT = 8 * OUT8;
  static constexpr int IN_TILES = ceil_div(CI8, IN8), OUT_TILES = ceil_div(CO8, OUT8);

  // The rows of a product are two halves of 8 channels of the input. A half is (td, t, eight channels), td running
  // slowest: taps td of the chain of D and t of the chain of H.
  static constexpr __host__ __device__ int halves(int chain, int d_taps) { return d_taps * H::length(chain) * IN8; }
  static constexpr __host__ __device__ int m_tiles(int chain) { return ceil_div(halves(chain, D::LONGEST), 2); }
  static constexpr int MA =
      evenly(m_tiles(0), smaller(4, Tune::M_TILES ? Tune::M_TILES : larger(1, FRAGMENTS / (NB * KT))));
  // Each chain of H has groups of MA products; a warp computes one of all groups.
  static constexpr __host__ __device__ int groups_before(int chain) {
    int count = 0;
    for (int c = 0; c < chain; ++c) count += ceil_div(m_tiles(c), MA);
    return count;
  }
  static constexpr int GROUPS = groups_before(H::CHAINS);
  static constexpr int WM = evenly(GROUPS, Tune::WARPS / WN), M_PARTS = ceil_div(GROUPS, WM);

  // Shared memory, in elements. Rows lie there as in memory. The first wanted element of a row can be anywhere in its
  // first vector. The taps of a group reach `span` elements of gy from the first one that tap FIRST meets.
  static constexpr int LOW = int(RowTaps<Layer>::offset(FIRST));
  static constexpr __host__ __device__ int span(int tile) {
    return (tile - 1) * Layer::stride_w + (KT - 1) * Layer::dilation_w + 1;
  }
  static constexpr __host__ __device__ int chunks(int length) { return ceil_div(length + VECTOR - 1, VECTOR); }
  // How many lanes of a warp meet in the fullest bank if lane (row, column) reads element row * pitch + column * step.
  static constexpr __host__ __device__ int conflicts(int pitch, int step) {
    int lanes[32] = {}, most = 0;
    for (int row = 0; row < 8; ++row)
      for (int column = 0; column < 4; ++column) {
        int& here = lanes[(row * pitch + column * step) * BYTES / 4 % 32];
        if (++here > most) most = here;
      }
    return most;
  }
  // The shortest pitch from `count` vectors on with the fewest conflicts.
  static constexpr __host__ __device__ int pitch(int count, int step) {
    int best = count;
    for (int more = 1; more < 4; ++more)
      if (conflicts(VECTOR * (count + more), step) < conflicts(VECTOR * best, step)) best = count + more;
    return VECTOR * best;
  }
  static constexpr __host__ __device__ int x_pitch(int tile) { return pitch(chunks(tile), NARROW ? 2 : 1); }
  static constexpr __host__ __device__ int gy_pitch(int tile) {
    return pitch(chunks(span(tile)), Layer::stride_w * (NARROW ? 2 : 1));
  }

  // Rings of input rows and of rows of gy: those that a step meets, and those that are copied meanwhile.
  static constexpr int SLOTS = H::BEHIND + 1 + Tune::STAGES, GY_SLOTS = 1 + Tune::STAGES;
  static constexpr int X_ROWS = D::LONGEST * IN, GY_ROWS = H::CHAINS * OUT;  // new rows of a step
  static constexpr __host__ __device__ long long bytes(int tile) {
    return 1LL * BYTES * (larger(x_pitch(tile), gy_pitch(tile)) + X_ROWS * SLOTS * x_pitch(tile) + GY_ROWS * GY_SLOTS * gy_pitch(tile));
  }
  static constexpr __host__ __device__ int tile_of() {
    int tile = THREE ? smaller(Tune::TILE, 128) : Tune::TILE;  // the tensor cores sum over one tile
    while (tile > 32 && bytes(tile) > 1024LL * Tune::SHARED_KB) tile /= 2;
    return tile;
  }
  static constexpr int TILE = tile_of();
  static_assert(bytes(TILE) <= 1024LL * Tune::SHARED_KB, "one tile of this layer does not fit into SHARED_KB");
  static constexpr int SHARED_BYTES = int(bytes(TILE));
  static constexpr int X_PITCH = x_pitch(TILE), GY_PITCH = gy_pitch(TILE);
  static constexpr int MOST_CHUNKS = larger(chunks(TILE), chunks(span(TILE)));
  static constexpr int X_SLOT = X_ROWS * X_PITCH;
  static constexpr int X_AT = larger(X_PITCH, GY_PITCH);  // a row of zeros lies before it
  static constexpr int GY_AT = X_AT + X_ROWS * SLOTS * X_PITCH, GY_SLOT = GY_ROWS * GY_PITCH;

  // Warps left over share the positions of a tile.
  static constexpr int SPARE = smaller(Tune::WARPS / (WM * WN), TILE / K_STEP);
  static constexpr int PS = SPARE >= 8 ? 8 : SPARE >= 4 ? 4 : SPARE >= 2 ? 2 : 1;
  static constexpr int TILE_WARPS = WM * WN, WORKERS = TILE_WARPS * PS, COPIERS = Tune::COPY_WARPS ? Tune::COPY_WARPS : WORKERS,
                       THREADS = 32 * (WORKERS + Tune::COPY_WARPS);

  static constexpr int KINDS = Layer::groups * IN_TILES * OUT_TILES * M_PARTS;  // of blocks, for each chain of D
  // Blocks of a shorter chain of D have less work (1 for the copies, and the length of the chain), so there are fewer.
  static constexpr int LENGTH = 1 + D::LONGEST, LENGTHS = D::CHAINS + Layer::kernel_d;
  static constexpr __host__ __device__ int shares(int longest, int chain) {
    return larger(1, longest * (1 + D::length(chain)) / LENGTH);
  }
  static constexpr int SUMS = MA * NB * KT;                            // fragments of a warp
  static constexpr long long SLOT = 32LL * D::CHAINS * KINDS * TILE_WARPS * SUMS;  // float4 of one share of the positions
  // Tensor cores truncate sums instead of rounding them. So after this many steps the sums are added up in fp32.
  static constexpr int PROMOTE = larger(1, 4096 * PS / TILE);
};
