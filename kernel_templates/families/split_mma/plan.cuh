// How split_mma cuts a layer's weight gradient into tiles of blocks and warps: all constants of layer and config.
#pragma once
#include "contract/row_taps.cuh"

template <class Layer, class Tune, int FIRST>
struct SplitMmaPlan {
  using Group = TapGroup<Layer, FIRST, 16 / int(sizeof(typename Layer::scalar))>;
  static constexpr bool THREE = Tune::precision == Precision::tf32x3;
  using Staged = typename Layer::scalar;  // what lies in shared memory
  static constexpr bool NARROW = sizeof(Staged) == 2;
  static constexpr int CI = Layer::in_channels / Layer::groups, CO = Layer::out_channels / Layer::groups;
  static constexpr int ROWS = Layer::kernel_d * Layer::kernel_h;  // tap rows (kd, kh)
  static constexpr int KT = Group::COUNT;
  static constexpr int M16 = ceil_div(CI, 16), N8 = ceil_div(CO, 8);
  // Fragments of 4 registers that a thread may spend on sums; tf32x3 keeps each twice, and its operands too.
  static constexpr int FRAGMENTS = THREE ? 12 : 28;

  static constexpr __host__ __device__ int smaller(int a, int b) { return a < b ? a : b; }
  static constexpr __host__ __device__ int larger(int a, int b) { return a > b ? a : b; }
  static constexpr __host__ __device__ int evenly(int count, int most) {
    return ceil_div(count, ceil_div(count, larger(1, most)));
  }
  static constexpr __host__ __device__ int n_tiles(int ma) {
    int best = 1;
    for (int nb = 2; nb <= smaller(N8, 4); ++nb)
      if (ma * nb * KT <= FRAGMENTS && ceil_div(N8, nb) * nb <= ceil_div(N8, best) * best) best = nb;
    return best;
  }

  static constexpr int MA = Tune::M_TILES ? smaller(Tune::M_TILES, M16)
                                          : smaller(M16 == 3 && !THREE && 3 * KT <= FRAGMENTS ? 3 : 2, M16);
  static constexpr int NB_ASKED = Tune::N_TILES ? smaller(Tune::N_TILES, N8) : n_tiles(MA);
  // More of them would not fit the registers of tf32x3.
  static constexpr int NB = THREE ? smaller(NB_ASKED, larger(1, FRAGMENTS / (MA * KT))) : NB_ASKED;
  static constexpr int M_WARPS_ALL = ceil_div(M16, MA), N_WARPS_ALL = ceil_div(N8, NB);
  static constexpr int WN = evenly(N_WARPS_ALL, Tune::WARPS);
  static constexpr int WM = evenly(M_WARPS_ALL, Tune::WARPS / WN);
  // Tap rows of a block, if shared memory suffices.
  static constexpr int TR_WANTED = evenly(ROWS, Tune::WARPS / (WM * WN));

  static constexpr int M = WM * MA * 16, N = WN * NB * 8;  // channels of a block's tile

  // Shared memory, in elements. Eight lanes that read 16 bytes each at once, from two rows and four strips of 8
  // positions, meet all 32 banks. For that float rows are 4 modulo 8 apart; 16-bit rows, whose strips are 16 bytes, are
  // 64 bytes apart (modulo 128).
  static constexpr __host__ __device__ int pitch(int length) {
    if (NARROW) return length + (96 - length % 64) % 64;
    return length % 8 == 4 ? length : length + 4;
  }
  static constexpr __host__ __device__ int plane_at(int plane, int tile) {
    int at = 0;
    for (int p = 0; p < plane; ++p) at += tile + Group::halo(p);
    return at;
  }
  static constexpr __host__ __device__ int gy_pitch(int tile) {
    return pitch(plane_at(Group::PLANES, tile));
  }
  static constexpr __host__ __device__ int stage_elements(int tile, int rows) {
    return M * pitch(tile) + rows * N * gy_pitch(tile);
  }
  static constexpr __host__ __device__ bool fits(int tile, int rows, int stages) {
    return 1LL * sizeof(Staged) * stages * stage_elements(tile, rows) <= 1024LL * Tune::SHARED_KB;
  }
  // If shared memory does not suffice: first fewer tap rows, until two stages of 64 positions fit, then a smaller
  // tile, then fewer stages.
  static constexpr int TILE_ASKED = THREE && KT > 4 ? smaller(Tune::TILE, 64) : Tune::TILE;  // fewer addresses held
  static constexpr int TILE_LEAST = smaller(TILE_ASKED, 64);
  static constexpr __host__ __device__ int tile_of(int rows, int stages) {
    int tile = TILE_ASKED;
    while (tile > 32 && !fits(tile, rows, stages)) tile /= 2;
    return tile;
  }
  static constexpr __host__ __device__ int stages_of(int rows) {
    int stages = Tune::STAGES;
    while (stages > 2 && !fits(tile_of(rows, stages), rows, stages)) --stages;
    return stages;
  }
  static constexpr __host__ __device__ int rows_of() {
    int rows = TR_WANTED;
    while (rows > 1 && !fits(TILE_LEAST, rows, 2)) --rows;
    return evenly(ROWS, rows);
  }
  static constexpr int TR = rows_of(), STAGES = stages_of(TR), TILE = tile_of(TR, STAGES);
  static constexpr int SHARED_BYTES = int(sizeof(Staged)) * STAGES * stage_elements(TILE, TR);
  static_assert(SHARED_BYTES <= 1024 * Tune::SHARED_KB, "one tile of this layer does not fit into SHARED_KB");

  // Warps left over share the positions of a tile.
  static constexpr int SPARE = smaller(Tune::WARPS / (WM * WN * TR), TILE / 32);
  static constexpr int PS = SPARE >= 4 ? 4 : SPARE >= 2 ? 2 : 1;
  static constexpr int TILE_WARPS = WM * WN * TR, WARPS = TILE_WARPS * PS, THREADS = 32 * WARPS;

  static constexpr int M_TILES = ceil_div(CI, M), N_TILES = ceil_div(CO, N), R_TILES = ceil_div(ROWS, TR);
  static constexpr int TILES = Layer::groups * M_TILES * N_TILES * R_TILES;
  static constexpr int SUMS = MA * NB * KT;                       // fragments of a warp
  static constexpr long long SLOT = 32LL * TILES * TILE_WARPS * SUMS;  // float4 of one share of the positions
  // Tensor cores truncate sums instead of rounding them. So after this many tiles the sums are added up in fp32.
  static constexpr int PROMOTE = larger(1, 4096 * PS / TILE);
};
