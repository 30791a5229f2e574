// How register_blocked cuts a layer's weight gradient into tiles of threads, warps and blocks: constants of layer and
// config. FIRST is the first tap of the group that is summed (contract/row_taps.cuh).
#pragma once

#include "contract/row_taps.cuh"
#include "contract/scalar.cuh"

template <class Layer, class Tune, int FIRST>
struct FmaWeightPlan {
  using Group = TapGroup<Layer, FIRST>;
  static constexpr int CI = Layer::in_channels / Layer::groups, CO = Layer::out_channels / Layer::groups;
  static constexpr int ROWS = Layer::kernel_d * Layer::kernel_h;  // tap rows (kd, kh)
  static constexpr int KT = Group::COUNT;

  static constexpr __host__ __device__ int smaller(int a, int b) { return a < b ? a : b; }
  static constexpr __host__ __device__ int larger(int a, int b) { return a > b ? a : b; }
  static constexpr __host__ __device__ int evenly(int count, int most) {
    return ceil_div(count, ceil_div(count, larger(1, most)));
  }
  static constexpr __host__ __device__ int power(int least) {
    int p = 1;
    while (p < least) p *= 2;
    return p;
  }
  static constexpr __host__ __device__ int vectors() {  // loads of 16 bytes for a strip of gy
    int count = 0;
    for (int p = 0; p < Group::PLANES; ++p) count += 1 + Group::halo(p) / 4;
    return count;
  }

  // A thread's tile: A input x B output channels x KT taps. The cost counts products, wasted ones included, and loads.
  static constexpr __host__ __device__ long long cost(int a, int b) {
    return 1LL * ceil_div(CI, a) * ceil_div(CO, b) * (4 * a * b * KT + 3 * (a + b * vectors()));
  }
  static constexpr __host__ __device__ int best() {  // A * 16 + B
    int found = 17;
    for (int a = 1; a <= 8; a *= 2)
      for (int b = 1; b <= 8; b *= 2)
        if (a * b * KT <= Tune::SUMS && cost(a, b) < cost(found / 16, found % 16)) found = 16 * a + b;
    return found;
  }
  static constexpr int A = best() / 16, B = best() % 16, SUMS = A * B * KT;

  // A warp: LX lanes along ci, LY along co, LP along the positions. A block: warps along co, ci, tap rows, positions.
  static constexpr int LX = smaller(8, power(ceil_div(CI, A)));
  static constexpr int LY = smaller(32 / LX, power(ceil_div(CO, B)));
  static constexpr int LP = 32 / (LX * LY);
  static constexpr int WN = evenly(ceil_div(CO, LY * B), Tune::WARPS);
  static constexpr int WM = evenly(ceil_div(CI, LX * A), Tune::WARPS / WN);
  static constexpr int TR_WANTED = evenly(ROWS, Tune::WARPS / (WM * WN));
  static constexpr int M = WM * LX * A, N = WN * LY * B;  // channels of a block's tile

  // Shared memory, in floats. The pitch of rows lets the lanes of a warp meet different banks: LP strips of 4 lie side
  // by side.
  static constexpr __host__ __device__ int pitch_of(int length) {
    int pitch = length;
    while (pitch % 32 != 4 * LP % 32) pitch += 4;
    return pitch;
  }
  static constexpr __host__ __device__ int plane_at(int plane, int tile) {
    int at = 0;
    for (int p = 0; p < plane; ++p) at += tile + Group::halo(p);
    return at;
  }
  static constexpr __host__ __device__ int gy_pitch(int tile) { return pitch_of(plane_at(Group::PLANES, tile)); }
  static constexpr __host__ __device__ int stage_floats(int tile, int rows) {
    return M * pitch_of(tile) + rows * N * gy_pitch(tile);
  }
  static constexpr __host__ __device__ bool fits(int tile, int rows, int stages) {
    return 4LL * stages * stage_floats(tile, rows) <= 1024LL * Tune::SHARED_KB;
  }
  static constexpr int WANTED = larger(Tune::TILE, 4 * LP);  // a strip for each lane
  // If shared memory does not suffice: first fewer tap rows, until two stages of 32 positions fit, then a smaller
  // tile, then fewer stages.
  static constexpr __host__ __device__ int rows_of() {
    int rows = TR_WANTED;
    while (rows > 1 && !fits(smaller(WANTED, 32), rows, 2)) --rows;
    return evenly(ROWS, rows);
  }
  static constexpr __host__ __device__ int tile_of(int rows, int stages) {
    int tile = WANTED;
    while (tile > 16 && !fits(tile, rows, stages)) tile /= 2;
    return tile;
  }
  static constexpr __host__ __device__ int stages_of(int rows) {
    int stages = Tune::STAGES;
    while (stages > 2 && !fits(tile_of(rows, stages), rows, stages)) --stages;
    return stages;
  }
  static constexpr int TR = rows_of(), STAGES = stages_of(TR), TILE = tile_of(TR, STAGES);
  static constexpr int X_PITCH = pitch_of(TILE), GY_PITCH = gy_pitch(TILE), STAGE = stage_floats(TILE, TR);
  static constexpr int SHARED_BYTES = 4 * STAGES * STAGE;
  static_assert(fits(TILE, TR, STAGES), "one tile of this layer does not fit into SHARED_KB");

  // Warps left over share the positions of a tile.
  static constexpr int TILE_WARPS = WM * WN * TR;
  static constexpr int SPARE = smaller(Tune::WARPS / TILE_WARPS, TILE / 4 / LP);
  static constexpr int WP = SPARE >= 8 ? 8 : SPARE >= 4 ? 4 : SPARE >= 2 ? 2 : 1;
  static constexpr int WARPS = TILE_WARPS * WP, THREADS = 32 * WARPS;
  // Threads whose registers a multiprocessor should hold. Without this bound ptxas spills to fit more.
  static constexpr int RESIDENT = SUMS <= 32 ? 512 : SUMS <= 56 && LP < 32 ? 384 : 256;
  static constexpr int BLOCKS = larger(1, RESIDENT / THREADS);

  static constexpr int M_TILES = ceil_div(CI, M), N_TILES = ceil_div(CO, N), R_TILES = ceil_div(ROWS, TR);
  static constexpr int TILES = Layer::groups * M_TILES * N_TILES * R_TILES;
  static constexpr long long RESULTS = 1LL * Layer::in_channels * CO * ROWS * KT;  // of this group of taps
};

// The second stage of register_blocked's grad_weight: partial sums of a group of taps become grad_weight.

// thread -> data: a block takes 32 results of a group of taps, one for each lane; its 8 warps share the slots. Row 0
// then adds up what the other rows left, always in the same order.
template <class Layer, class Plan, int FIRST>
__global__ void __launch_bounds__(256) fma_add_slots(const float* __restrict__ partials, long long slots,
                                                 typename Layer::scalar* __restrict__ grad_weight) {
  __shared__ float left[8][32];
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32;
  const long long mine = 32LL * blockIdx.x + lane;
  float sum = 0;
  if (mine < Plan::RESULTS) {
#pragma unroll 4
    for (long long slot = row; slot < slots; slot += 8) sum += partials[slot * Plan::RESULTS + mine];
  }
  left[row][lane] = sum;
  __syncthreads();
  if (row != 0 || mine >= Plan::RESULTS) return;
  for (int other = 1; other < 8; ++other) sum += left[other][lane];
  grad_weight[mine / Plan::KT * Layer::kernel_w + FIRST + mine % Plan::KT] = narrow<typename Layer::scalar>(sum);
}
