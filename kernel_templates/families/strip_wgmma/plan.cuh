// How packed_wgmma and strip_wgmma lay out their operands and cut the weight gradient into tiles: constants of layer
// and config.
//
// Tensor cores need the summed index contiguous; here that is the position. A tap is a shift of it by a few elements,
// but operands can be shifted by multiples of 16 bytes only. So a tile of STRIPS * STRIP positions of a row is packed
// as STRIPS strips. Block j holds position j of every strip, for all channels. A product takes one block, and a shift
// by d is block j + d. Blocks from STRIP on repeat the beginning of the next strip.
#pragma once
#include "contract/problem.cuh"

// What a variant may choose: the most columns of V in a product; whether V has one part more, so that
// no part is half empty; ALIGN: V's tiles begin at multiples of it; and, if either tensor may be U, whether
// grad_output is U, given the number of products for either choice.
struct StripDefaults {
  static constexpr int MOST_N = 256, ALIGN = 1;
  static constexpr bool EVEN = false;
  static constexpr __host__ __device__ bool u_is_gy(int with_gy, int with_input) { return with_gy < with_input; }
};

// RESERVED: bytes of shared memory that are not for stages.
template <class Layer, class Tune, int RESERVED = 0, class Choices = StripDefaults>
struct StripPlan {
  static_assert(Layer::is_constant && Layer::stride_w == 1, "a tap is a shift along the row");
  // tf32x3: high parts and, behind them, the remainders. Sums are kept twice, so there is room for half as many.
  static constexpr bool SPLIT = Tune::precision == Precision::tf32x3;
  static constexpr int PLANES = SPLIT ? 2 : 1;
  static constexpr __host__ __device__ int eights(int channels) { return ceil_div(channels, 8) * 8; }
  static constexpr __host__ __device__ int evenly(int count, int most) {
    return ceil_div(count, ceil_div(count, most < 1 ? 1 : most));
  }
  static constexpr int CI = Layer::in_channels / Layer::groups, CO = Layer::out_channels / Layer::groups;
  static constexpr int KERNEL = Layer::kernel_w, DILATION = KERNEL > 1 ? Layer::dilation_w : 1;
  static constexpr int HALO = (KERNEL - 1) * DILATION, ROWS = Layer::kernel_d * Layer::kernel_h;

  // U is not shifted; it is the operand of 64 rows. V is shifted; it has a column for each (tap, channel), 256 at most
  // (tf32x3: 192). If all strides are 1 either tensor may be U: the one that wastes fewer products.
  static constexpr __host__ __device__ int parts_of(int channels) {
    int parts = 1;
    while (KERNEL * eights(ceil_div(channels, parts)) > (SPLIT && Choices::MOST_N > 192 ? 192 : Choices::MOST_N))
      ++parts;
    const int all = eights(channels) / 8;
    return Choices::EVEN && all % parts != 0 && all % (parts + 1) == 0 ? parts + 1 : parts;
  }
  static constexpr __host__ __device__ int work(int u, int v) {
    return ceil_div(u, 64) * parts_of(v) * eights(ceil_div(v, parts_of(v)));
  }
  static constexpr bool UNIT = Layer::stride_d == 1 && Layer::stride_h == 1;
  static constexpr bool U_IS_GY = UNIT && Choices::u_is_gy(work(CO, CI), work(CI, CO));
  static constexpr int CU = U_IS_GY ? CO : CI, CV = U_IS_GY ? CI : CO;
  // Along w: V's first position for U's position 0, and the tap that shift number s stands for.
  // A tile begins EXTRA positions earlier where its first one is no multiple of ALIGN and the strip has room for that.
  static constexpr long long EXACT_LOW = U_IS_GY ? 1LL * Layer::padding_w - HALO : -1LL * Layer::padding_w;
  static constexpr int BESIDE = int((EXACT_LOW % Choices::ALIGN + Choices::ALIGN) % Choices::ALIGN);
  static constexpr int EXTRA = HALO + BESIDE <= Tune::STRIP ? BESIDE : 0;
  static constexpr long long LOW = EXACT_LOW - EXTRA;
  static constexpr __host__ __device__ int tap_of_shift(int s) { return U_IS_GY ? KERNEL - 1 - s : s; }

  static constexpr int STRIPS = 32 / int(sizeof(typename Layer::scalar)), STRIP = Tune::STRIP;
  static constexpr int TILE = STRIPS * STRIP, V_BLOCKS = STRIP + HALO + EXTRA;
  static constexpr int U_CHANNELS = CU > 64 ? 64 : eights(CU), U_PARTS = ceil_div(CU, 64);
  static constexpr int V_PARTS = parts_of(CV), V_CHANNELS = eights(ceil_div(CV, V_PARTS)), N = KERNEL * V_CHANNELS;

  // Bytes: a block, and what is packed of one part of one tile.
  static constexpr int U_BLOCK = U_CHANNELS * 32, V_BLOCK = V_CHANNELS * 32;
  static constexpr int U_CHUNK = STRIP * U_BLOCK, V_CHUNK = V_BLOCKS * V_BLOCK;
  // Blocks whose shifts are a dilation apart are neighbours, so all taps of a block are one operand.
  static constexpr __host__ __device__ int place(int block) {
    int at = block / DILATION;
    for (int residue = 0; residue < block % DILATION; ++residue) at += ceil_div(V_BLOCKS - residue, DILATION);
    return at;
  }

  // A slab is one part of V for one tap row: N columns. A block has U_TILES x WARPGROUPS warpgroups, each with SLABS
  // slabs.
  static constexpr int ALL_SLABS = ROWS * V_PARTS;
  static constexpr int U_TILES = Tune::U_TILES < U_PARTS ? Tune::U_TILES : U_PARTS;
  static constexpr int MOST_CONSUMERS = SPLIT && Tune::CONSUMERS > 2 ? 2 : Tune::CONSUMERS;
  static constexpr int WIDE = MOST_CONSUMERS / U_TILES < 1 ? 1 : MOST_CONSUMERS / U_TILES;
  static constexpr int MOST_SUMS = SPLIT ? 96 : U_TILES * WIDE > 2 ? 112 : 192;  // registers of a thread for sums
  static constexpr int BLOCK_SLABS = evenly(ALL_SLABS, WIDE * (MOST_SUMS / (N / 2) < 1 ? 1 : MOST_SUMS / (N / 2)));
  static constexpr int SLABS = ceil_div(BLOCK_SLABS, WIDE), WARPGROUPS = ceil_div(BLOCK_SLABS, SLABS);
  static constexpr int CONSUMERS = U_TILES * WARPGROUPS, THREADS = 128 * CONSUMERS;

  static constexpr int STAGE = PLANES * (U_TILES * U_CHUNK + WARPGROUPS * SLABS * V_CHUNK);
  static constexpr int ROOM = 224 * 1024 - RESERVED;
  static constexpr int STAGES = ROOM / STAGE < Tune::STAGES ? ROOM / STAGE : Tune::STAGES;
  // A last group of 8 rows that U does not have is read from the memory behind it, and its sums are dropped.
  static constexpr int SHARED_BYTES = STAGES * STAGE + 2048 + 16 * STAGES;

  static constexpr int R_TILES = ceil_div(ALL_SLABS, WARPGROUPS * SLABS), M_TILES = ceil_div(U_PARTS, U_TILES);
  static constexpr int TILES = Layer::groups * M_TILES * R_TILES;
  static constexpr long long SLOT = 16LL * N * SLABS * CONSUMERS * TILES;  // float4 of one share of the positions
  // Tensor cores truncate sums instead of rounding them. So after this many tiles the sums are added up in fp32.
  static constexpr int PROMOTE = (SPLIT ? 128 : 4096) / TILE < 1 ? 1 : (SPLIT ? 128 : 4096) / TILE;
};

// The rows of U and V (n, d, h) and the tiles of a row; both are packed with U's tiles.
template <class Layer, class Tune>
struct StripSizes {
  using Plan = StripPlan<Layer, Tune>;
  long long u_rows, v_rows, u_bytes, v_bytes;
  int row_tiles;
  explicit StripSizes(const Sizes& s) {
    const long long in_rows = s.batch * s.in_d * s.in_h, out_rows = s.batch * s.out_d * s.out_h;
    u_rows = Plan::U_IS_GY ? out_rows : in_rows;
    v_rows = Plan::U_IS_GY ? in_rows : out_rows;
    row_tiles = ceil_div(Plan::U_IS_GY ? s.out_w : s.in_w, Plan::TILE);
    u_bytes = u_rows * row_tiles * Layer::groups * Plan::U_PARTS * Plan::U_CHUNK * Plan::PLANES;
    // and one chunk of zeros
    v_bytes = (v_rows * row_tiles * Layer::groups * Plan::V_PARTS + 1) * Plan::V_CHUNK * Plan::PLANES;
  }
};
