// How fused_mma cuts both gradients into tiles of blocks and warps: all constants of layer and config.
#pragma once
#include "contract/row_taps.cuh"

// The members that split_mma's products and its second stage use have the same names as in SplitMmaPlan. Here all tap
// rows and all channels of a group belong to one block.
template <class Layer, class Tune>
struct FusedPlan {
  using Group = TapGroup<Layer, 0>;
  static_assert(Group::END == Layer::kernel_w, "all taps of a row are read from one window");
  static constexpr bool THREE = Tune::precision == Precision::tf32x3;
  static constexpr int CI = Layer::in_channels / Layer::groups, CO = Layer::out_channels / Layer::groups;
  static constexpr int ROWS = Layer::kernel_d * Layer::kernel_h, KT = Layer::kernel_w;  // tap rows (kd, kh)
  static constexpr int M16 = ceil_div(CI, 16), N8 = ceil_div(CO, 8);

  static constexpr __host__ __device__ int smaller(int a, int b) { return a < b ? a : b; }
  static constexpr __host__ __device__ int larger(int a, int b) { return a > b ? a : b; }
  static constexpr __host__ __device__ int power_of_two_to(int most) {
    int found = 1;
    while (2 * found <= most) found *= 2;
    return found;
  }

  // Warps that sum grad_weight: each holds MA x NB fragments of all taps, as many as registers allow, in the fewest
  // warps. tf32x3 holds its operands twice.
  static constexpr int MOST_FRAGMENTS = THREE ? 18 : 27, FRAGMENTS = THREE ? 18 : 20, MOST_MA = THREE ? 1 : 2;
  static constexpr __host__ __device__ int blocking(int fragments) {  // MA * 8 + NB, or 0
    int best = 0, best_size = 0;
    for (int ma = 1; ma <= smaller(M16, MOST_MA); ++ma)
      for (int nb = 1; nb <= smaller(N8, 4); ++nb) {
        const int warps = ceil_div(M16, ma) * ceil_div(N8, nb), size = 2 * ma * nb + (ma > 1);
        if (ma * nb * ROWS * KT <= fragments && warps <= 8 && N8 % nb == 0 && size > best_size)
          best = ma * 8 + nb, best_size = size;
      }
    return best;
  }
  static constexpr int CHOSEN = blocking(FRAGMENTS) ? blocking(FRAGMENTS) : blocking(MOST_FRAGMENTS);
  static_assert(CHOSEN > 0, "the sums of grad_weight fit into the registers of 8 warps");
  static constexpr int MA = CHOSEN / 8, NB = CHOSEN % 8;
  static constexpr int WM = ceil_div(M16, MA), WN = ceil_div(N8, NB);
  static constexpr int M = WM * MA * 16, N = WN * NB * 8;  // channels staged

  // Shared memory, in floats: weights in the order of fragments, a ring of input rows, a ring of rows of gy. Row
  // pitches are 4 modulo 8: see SplitMmaPlan, and run_start() for the other way of reading them.
  static constexpr __host__ __device__ int plane_at(int plane, int tile) {
    int at = 0;
    for (int p = 0; p < plane; ++p) at += tile + Group::halo(p);
    return at;
  }
  static constexpr __host__ __device__ int gy_pitch(int tile) {
    const int length = plane_at(Group::PLANES, tile);
    return length % 8 == 4 ? length : length + 4;
  }
  static constexpr int WEIGHTS = ROWS * KT * N8 * M16 * 128;
  static constexpr __host__ __device__ int x_slots(int stages) { return ceil_div(stages - 1, ROWS) + 1; }
  static constexpr __host__ __device__ long long floats(int tile, int stages) {
    return WEIGHTS + 1LL * x_slots(stages) * M * (tile + 4) + 1LL * stages * N * gy_pitch(tile);
  }
  static constexpr __host__ __device__ bool fits(int tile, int stages) {
    return 4 * floats(tile, stages) <= 1024LL * Tune::SHARED_KB;
  }
  // If shared memory does not suffice: smaller tiles until two fit, then fewer stages.
  static constexpr __host__ __device__ int tile_of() {
    int tile = Tune::TILE;
    while (tile > 32 && !fits(tile, 2)) tile /= 2;
    return tile;
  }
  static constexpr int TILE = tile_of();
  static constexpr __host__ __device__ int stages_of() {
    int stages = Tune::STAGES;
    while (stages > 2 && !fits(TILE, stages)) --stages;
    return stages;
  }
  static constexpr int STAGES = stages_of(), X_SLOTS = x_slots(STAGES);
  // Warps of grad_weight copy and round before they multiply, those of grad_input afterwards. So one kind keeps the
  // tensor cores busy while the other waits for memory. That needs one more step in flight.
  static constexpr bool STAGGERED = Tune::STAGGER && STAGES >= 3;
  static constexpr int X_PITCH = TILE + 4, GY_PITCH = gy_pitch(TILE);
  static constexpr int X_SLOT = M * X_PITCH, STAGE = N * GY_PITCH;
  static constexpr int BARRIER = int(4 * floats(TILE, STAGES)), SHARED_BYTES = BARRIER + 16;  // behind all else
  static_assert(fits(TILE, STAGES), "one tile of this layer does not fit into SHARED_KB");

  // Warps left over share the positions of a tile.
  static constexpr int PS = power_of_two_to(larger(1, smaller(Tune::W_WARPS / (WM * WN), TILE / 32)));
  static constexpr int TILE_WARPS = WM * WN, W_WARPS = TILE_WARPS * PS;

  // Warps that sum grad_input: MX x 16 channels each, XP positions in runs of RUN, over all channels and taps of gy.
  static constexpr int MX = M16 % Tune::X_M_TILES == 0 ? Tune::X_M_TILES : 1, X_COLUMNS = M16 / MX;
  static constexpr __host__ __device__ bool shifts() {
    for (int p = 0; p < Group::PLANES; ++p)
      if (Group::halo(p) > 0) return true;
    return false;
  }
  static constexpr int RUN = shifts() && TILE >= 64 && !THREE ? 8 : 4, BLOCK = 8 * RUN;
  static constexpr int XP_WANTED = TILE / power_of_two_to(larger(1, Tune::X_WARPS / X_COLUMNS));
  static constexpr int XP = smaller(larger(larger(XP_WANTED, BLOCK), 32), smaller(TILE, THREE || MX > 1 ? 64 : 128));
  static constexpr int RUNS = XP / BLOCK, X_WARPS = X_COLUMNS * (TILE / XP);
  static constexpr int X_UNROLL = Tune::X_UNROLL;
  static constexpr int THREADS = 32 * (W_WARPS + X_WARPS);
  static_assert(THREADS <= 1024, "the warps of a block: fewer X_WARPS, or a smaller TILE");

  static constexpr int TR = ROWS, R_TILES = 1, M_TILES = 1, N_TILES = 1;
  static constexpr int SUMS = MA * NB * KT;                                      // fragments of a warp and tap row
  static constexpr long long SLOT = 32LL * Layer::groups * ROWS * TILE_WARPS * SUMS;  // float4 of a share
  // Tensor cores truncate sums instead of rounding them. So after this many tiles the sums are added up in fp32.
  static constexpr int PROMOTE = larger(1, 4096 * PS / TILE);
  // Blocks of a multiprocessor: two if shared memory and registers suffice.
  static constexpr int RESIDENT =
      SHARED_BYTES <= 113 * 1024 && THREADS <= 256 && MA * NB * ROWS * KT <= 12 && !THREE ? 2 : 1;
};

// The same plan with one fragment of 8 output channels for each warp.
template <class Plan>
struct OneColumn : Plan {
  static constexpr int NB = 1;
};
