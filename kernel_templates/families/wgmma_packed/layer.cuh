// A transposed convolution of stride 1 (on grains: contract/grains.cuh) as one problem for forward and grad_input:
// result(r) sums source(r + LEFT + j * dil) over taps j and channels. Source and weights are first packed in the order in which
// tensor cores read them. This file describes the layout and packs; wgmma_packed.cu multiplies.
//
// Packed source: units of 16 bytes, that is 4 (TF32) or 8 (16-bit) channels of one position, rounded once.
//     [n][group][hi, lo][unit of channels][d][position], position = row * pitch + column
// It includes rows and columns of zeros around the image, so nothing tests borders later. The next position is 16 bytes
// further, so a tap is a shift of the start address.
// Packed weights: [group][channel tile][tap d][chunk][tap h][tap w][hi, lo][unit 0, 1][channel of the tile], in units
// of 16 bytes. Folded: [...][bundle of taps w][unit 0, 1][tap of the bundle][channel of the tile].
#pragma once
#include "contract/flat_grid.cuh"
#include "contract/grains.cuh"
#include "hardware/pack.cuh"
#include "contract/problem.cuh"
#include "hardware/ptx.cuh"
#include "contract/scalar.cuh"

constexpr __host__ __device__ int larger(int a, int b) { return a > b ? a : b; }
constexpr __host__ __device__ int smaller(int a, int b) { return a < b ? a : b; }

// The number of columns of a product that holds `channels` with the least waste. From 64 channels on, channels are its
// 64 rows.
constexpr int channel_tile_for(int channels) {
  return channels <= 8 ? 8 : channels <= 16 ? 16 : channels <= 24 ? 24 : channels <= 32 ? 32 : channels <= 48 ? 48 : 64;
}

// What is known at compile time.
template <class Layer, class Tune, bool is_forward>
struct PackedPlan {
  using Scalar = typename Layer::scalar;
  using Grain = Grains<Layer>;
  using Own = typename Grain::Own;
  // grad_input packs grains only, as they lie in grad_output.
  static constexpr int GRAIN_D = is_forward ? 1 : Grain::D, FIRST_D = is_forward ? 0 : Grain::FIRST_D;
  static constexpr int GRAIN_H = is_forward ? 1 : Grain::H, FIRST_H = is_forward ? 0 : Grain::FIRST_H;
  static constexpr int GRAIN_W = is_forward ? 1 : Grain::W, FIRST_W = is_forward ? 0 : Grain::FIRST_W;
  static constexpr Precision precision = Tune::precision;
  static constexpr bool FORWARD = is_forward, SPLIT = Tune::precision == Precision::tf32x3;
  static constexpr bool HAS_BIAS = is_forward && Layer::has_bias != 0;
  static constexpr int GROUPS = Layer::groups;
  static constexpr int SUMMED = (is_forward ? Layer::in_channels : Layer::out_channels) / GROUPS;    // of a group
  static constexpr int CHANNELS = (is_forward ? Layer::out_channels : Layer::in_channels) / GROUPS;  // of a group
  static constexpr int KD = Layer::kernel_d, KH = Layer::kernel_h, KW = Layer::kernel_w;
  static constexpr int DD = Own::dilation_d, DH = Own::dilation_h, DW = Own::dilation_w;
  static constexpr int HALO_D = (KD - 1) * DD, HALO_H = (KH - 1) * DH, HALO_W = (KW - 1) * DW;
  static constexpr int LEFT_D = is_forward ? Own::padding_d - HALO_D : -Own::padding_d;
  static constexpr int LEFT_H = is_forward ? Own::padding_h - HALO_H : -Own::padding_h;
  static constexpr int LEFT_W = is_forward ? Own::padding_w - HALO_W : -Own::padding_w;

  static constexpr int PARTS = SPLIT ? 2 : 1;                     // hi and lo
  static constexpr int PER_UNIT = 16 / int(sizeof(Scalar));      // channels in 16 bytes
  static constexpr int CHUNKS = ceil_div(SUMMED, 2 * PER_UNIT);  // a product sums two units
  static constexpr int UNITS_OF_SOURCE = 2 * CHUNKS;

  // Split weights are twice as large. Where they would fill most of a stage, a block takes fewer channels.
  static constexpr int tile_chosen() {
    int tile = channel_tile_for(CHANNELS);
    while (SPLIT && tile > 8 && KH * KW * PARTS * tile * 32 > 65536) tile = tile == 24 ? 16 : tile / 2;
    return tile;
  }
  // FOLD: the 64 rows of a product are the channels of a tile, for each tap of a bundle of neighbouring taps along W. All
  // taps of a bundle meet the same columns, so a result is the sum of columns that lie apart: fold_sums() adds them.
  static constexpr bool FOLD = Tune::FOLD != 0;
  static constexpr int fold_tile() { return CHANNELS <= 8 ? 8 : CHANNELS <= 16 ? 16 : 32; }
  static constexpr int CHANNEL_TILE = Tune::CHANNEL_TILE != 0 ? Tune::CHANNEL_TILE : FOLD ? fold_tile() : tile_chosen();
  static constexpr bool CHANNELS_ARE_ROWS = CHANNEL_TILE == 64 || FOLD;  // of the product; else its 64 rows are positions
  static constexpr int CHANNEL_TILES = ceil_div(CHANNELS, CHANNEL_TILE);
  static constexpr int BUNDLE = FOLD ? 64 / CHANNEL_TILE : 1, BUNDLES = ceil_div(KW, BUNDLE);
  static constexpr int WEIGHT_ROWS = BUNDLE * CHANNEL_TILE;
  static_assert(!FOLD || (!SPLIT && CHANNEL_TILE <= 32 && (BUNDLE - 1) * DW <= 8), "what a bundle reaches fits in 8 columns");

  // A run: positions that one warpgroup multiplies together, in groups of 8.
  static constexpr int RUN = Tune::RUN, CONSUMERS = Tune::CONSUMERS, BLOCKS = Tune::BLOCKS_PER_SM;
  // Beside the consumers, one warp fills the ring. The other warps of PACKERS warpgroups pack what the next launch
  // reads.
  static constexpr int PACKERS = Tune::PACKERS != 3 ? Tune::PACKERS : KD > 1 && CONSUMERS == 2 && BLOCKS == 1 && !FOLD ? 2 : 0;
  static constexpr int PRODUCERS = larger(1, PACKERS), PACKING_WARPS = PACKERS == 0 ? 0 : 4 * PRODUCERS - 1;
  static constexpr int THREADS = 128 * (CONSUMERS + PRODUCERS);
  // A block starts with LAUNCHED registers a thread (the compiler's limit). Producing warpgroups give some of theirs
  // away.
  static constexpr int LAUNCHED = 65536 / (THREADS * BLOCKS) / 8 * 8, KEPT = PACKING_WARPS == 0 ? 56 : PRODUCERS == 1 ? 88 : 72;
  static constexpr int TAKEN = smaller(240, (LAUNCHED * (CONSUMERS + PRODUCERS) - KEPT * PRODUCERS) / CONSUMERS / 8 * 8);
  // Sums of one run that lie side by side: those of its positions, 64 at a time, or of its bundles.
  static constexpr int PRODUCTS = FOLD ? BUNDLES : CHANNELS_ARE_ROWS ? 1 : RUN / 64;
  static constexpr int COLUMNS = FOLD ? RUN + 8 : CHANNELS_ARE_ROWS ? RUN : CHANNEL_TILE;
  static constexpr int SUMS = PRODUCTS * COLUMNS / 2 * PARTS;  // registers of a thread for one run; split: kept twice
  // Tensor cores truncate their sums (an error that grows with the length, 1e-6 after 128 products of three terms
  // each). So split sums are added to the total after this many taps, or rows of taps.
  static constexpr int TAPS_KEPT = 16, ROWS_KEPT = larger(1, TAPS_KEPT / KW);
  static constexpr int MOST_SUMS = PACKERS != 0 ? 96 : TAKEN >= 208 ? 144 : TAKEN >= 168 ? 128 : 96;
  static constexpr int SLICE_BYTES = KH * BUNDLES * PARTS * WEIGHT_ROWS * 32;  // weights of one tap d and chunk
  // As many runs as registers hold, for tiles of at most 1024 positions (512 in 3-D). Halved until three stages fit.
  static constexpr int runs_chosen() {
    int runs = Tune::RUNS != 0 ? Tune::RUNS : larger(1, smaller(MOST_SUMS / SUMS, (KD > 1 ? 512 : 1024) / (RUN * CONSUMERS)));
    while (Tune::RUNS == 0 && runs > 1 && wide_stage_bytes(runs) > 72000 / BLOCKS) runs /= 2;
    return runs;
  }
  static constexpr int wide_stage_bytes(int runs) {
    return PARTS * 32 * (CONSUMERS * runs + HALO_H) * (RUN + HALO_W) + SLICE_BYTES;
  }
  static constexpr int RUNS = runs_chosen();
  static_assert(RUN % 64 == 0 && (CHANNELS_ARE_ROWS || RUN % 128 == 0), "a warp stores 32 positions of a run together");
  static_assert(RUNS * SUMS <= 160, "RUNS * RUN * CHANNEL_TILE sums must fit in registers");
  static constexpr int TILE = CONSUMERS * RUNS * RUN;  // positions of a block

  static constexpr int WEIGHT_BYTES = KD * CHUNKS * SLICE_BYTES;           // of one channel tile
  static constexpr int SLICE = Tune::SLICE, SHAPE = Tune::SHAPE, RESIDENT = Tune::RESIDENT, STAGES = Tune::STAGES;
  static constexpr int MOST_STAGES = 8;
  // Bytes of a warp: 8 channels of 32 positions, padded; folded: its rows of a product.
  static constexpr int STAGING = FOLD ? 16 * COLUMNS * 4 : 8 * 40 * 4;
  static constexpr int FIXED_BYTES = 4 * CONSUMERS * STAGING + (2 * MOST_STAGES + 2) * 8;
  static constexpr int BUDGET = BLOCKS == 1 ? 227 * 1024 : 228 * 1024 / BLOCKS - 1024;
};

// What the sizes decide. Positions are counted in units of 16 bytes of the packed source or of the staged patch.
struct PackedGeometry {
  long long batch, tiles;
  int source_d, source_h, source_w;  // in elements
  int result_d, result_h, result_w;  // in grains
  int pitch, plane;                 // of the packed source: a row, an image
  int flat;                         // 1: a tile is TILE neighbouring positions of the packed image, whole rows in it
  int wide_columns, wide_tiles;     // else RUN columns of a row each, in CONSUMERS * RUNS rows,
  int tail_columns;                 // and the last columns in strips of 8 columns
  int tiles_per_plane, patch;       // patch: staged positions of a unit of channels
  int stages, stage_bytes, resident;  // resident: all weights of a channel tile stay in shared memory
  long long source_bytes;           // packed, with what tiles at the edge read beyond it
};

// Grains of the source along D.
template <class Plan>
constexpr __host__ __device__ int source_planes(const PackedGeometry& g) {
  return Plan::Grain::count(g.source_d, Plan::FIRST_D, Plan::GRAIN_D);
}

template <class Plan>
PackedGeometry packed_geometry(const Sizes& full) {
  const Sizes& sizes = Plan::Grain::sizes(full);
  constexpr int ROWS = Plan::CONSUMERS * Plan::RUNS, TAIL_ROWS = ROWS * Plan::RUN / 8;
  PackedGeometry g = {};
  g.batch = sizes.batch;
  g.source_d = Plan::FORWARD ? full.in_d : full.out_d, g.result_d = Plan::FORWARD ? sizes.out_d : sizes.in_d;
  g.source_h = Plan::FORWARD ? full.in_h : full.out_h, g.result_h = Plan::FORWARD ? sizes.out_h : sizes.in_h;
  g.source_w = Plan::FORWARD ? full.in_w : full.out_w, g.result_w = Plan::FORWARD ? sizes.out_w : sizes.in_w;
  const int source_w = Plan::FORWARD ? sizes.in_w : sizes.out_w;
  // The zeros behind a row also serve as the zeros before the next row, if there are any.
  const int whole = g.result_w + Plan::HALO_W;
  g.pitch = smaller(whole, larger(g.result_w, larger(whole + Plan::LEFT_W, source_w - Plan::LEFT_W)));
  g.plane = (g.result_h + Plan::HALO_H) * g.pitch + Plan::HALO_W;

  const int flat_tiles = ceil_div(g.result_h * g.pitch, Plan::TILE);
  const long long flat_patch = Plan::TILE + 1LL * Plan::HALO_H * g.pitch + Plan::HALO_W;
  const int rest = g.result_w % Plan::RUN, strips = ceil_div(rest, 8);
  const int bands = ceil_div(g.result_h, ROWS), tail_bands = ceil_div(g.result_h, TAIL_ROWS);
  const int wide_patch = (ROWS + Plan::HALO_H) * (Plan::RUN + Plan::HALO_W);
  const int tail_patch = (TAIL_ROWS + Plan::HALO_H) * (8 + Plan::HALO_W);
  const int all_wide = ceil_div(g.result_w, Plan::RUN) * bands;
  const int with_tail = g.result_w / Plan::RUN * bands + strips * tail_bands;

  long long best = -1;
  for (int shape = 0; shape < 3; ++shape) {  // flat, wide with a tail of strips, wide alone
    if (Plan::SHAPE != 0 && (Plan::SHAPE == 1) != (shape == 0)) continue;
    if (Plan::FOLD && shape == 1) continue;  // the 8 columns of a strip are too few
    const long long patch = shape == 0 ? flat_patch : shape == 1 ? larger(wide_patch, tail_patch) : wide_patch;
    const int tiles = shape == 0 ? flat_tiles : shape == 1 ? with_tail : all_wide;
    if (patch > 16000) continue;  // a descriptor counts to 16383
    const int patch_bytes = int(patch) * 32 * Plan::PARTS, room = Plan::BUDGET - Plan::FIXED_BYTES;
    const int kept = (room - Plan::WEIGHT_BYTES) / patch_bytes, streamed = room / (patch_bytes + Plan::SLICE_BYTES);
    const bool resident = room > Plan::WEIGHT_BYTES && kept >= (Plan::RESIDENT == 1 ? 2 : Plan::RESIDENT == 0 ? 99 : 3);
    const int stages = smaller(Plan::STAGES, resident ? kept : streamed);
    if (stages < 2) continue;  // the stage before is given back only after the next has begun
    // Cycles of a stage: the maximum of products (tensor cores or shared memory) and loads. Loads are bytes from L2 and,
    // with short rows, the copies themselves (66 cycles each, measured on an H200).
    const int products = Plan::KH * Plan::BUNDLES * (Plan::TILE / 64) *
                         (Plan::CHANNELS_ARE_ROWS ? 32 : larger(Plan::CHANNEL_TILE / 2, 16 + Plan::CHANNEL_TILE / 4));
    const int loads = (patch_bytes + (resident ? 0 : Plan::SLICE_BYTES)) / 18;
    const int tail_copies = 2 * Plan::PARTS * (TAIL_ROWS + Plan::HALO_H) * 66;
    const int slow_tiles = shape == 1 ? strips * tail_bands : 0;
    const long long cycles = 1LL * (tiles - slow_tiles) * larger(products, loads) +
                             1LL * slow_tiles * larger(larger(products, loads), tail_copies);
    const long long cost = stages == 2 ? cycles * 13 / 10 : cycles;  // two stages were a third slower
    if (best >= 0 && cost >= best) continue;
    best = cost;
    g.flat = shape == 0;
    g.wide_columns = shape == 1 ? g.result_w / Plan::RUN : ceil_div(g.result_w, Plan::RUN);
    g.wide_tiles = g.wide_columns * bands;
    g.tail_columns = shape == 1 ? strips : 0;
    g.tiles_per_plane = tiles;
    g.patch = int(patch);
    g.stages = stages;
    g.resident = resident;
    g.stage_bytes = patch_bytes + (resident ? 0 : Plan::SLICE_BYTES);
  }
  g.tiles = g.batch * g.result_d * Plan::GROUPS * Plan::CHANNEL_TILES * g.tiles_per_plane;
  const long long images = g.batch * Plan::GROUPS * Plan::PARTS * Plan::UNITS_OF_SOURCE * source_planes<Plan>(g);
  const int rows_read = (g.tail_columns != 0 ? TAIL_ROWS : ROWS) + Plan::HALO_H + 1;
  const long long beyond = g.flat ? g.patch : 1LL * rows_read * g.pitch + Plan::RUN + Plan::HALO_W;
  g.source_bytes = ((images * g.plane + beyond) * 16 + 255) / 256 * 256;
  return g;
}

// With packing warps the batch is processed in slices: while one is multiplied, the next is packed. Two slices are in
// the workspace at a time. A slice has at least about SLICE tiles for every block.
template <class Plan>
long long packed_slice(const Sizes& sizes) {
  const PackedGeometry whole = packed_geometry<Plan>(sizes);
  if (Plan::PACKING_WARPS == 0 || sizes.batch < 2 || whole.tiles == 0) return sizes.batch;
  const long long most = Plan::SLICE == 0 ? 16 : whole.tiles / (Plan::SLICE * 132LL * Plan::BLOCKS),
                  slices = most < 1 ? 1 : most > 16 ? 16 : most;
  return ceil_div(sizes.batch, slices < sizes.batch ? slices : sizes.batch);
}

template <class Plan>
PackedGeometry packed_geometry_of(Sizes sizes, long long batch) {
  sizes.batch = batch;
  return packed_geometry<Plan>(sizes);
}

template <class Plan>
long long packed_workspace(const Sizes& sizes) {
  const long long slice = packed_slice<Plan>(sizes);
  return packed_geometry_of<Plan>(sizes, slice).source_bytes * (slice < sizes.batch ? 2 : 1) +
         1LL * Plan::GROUPS * Plan::CHANNEL_TILES * Plan::WEIGHT_BYTES;
}

// A value as tensor cores take it (part 0), or the remainder (part 1).
template <Precision precision>
__device__ __forceinline__ float operand_part(float value, int part) {
  const float high = round_to_tf32(value);
  // An infinity leaves no remainder: the difference would be NaN.
  return part == 0 ? high : fabsf(value) < __uint_as_float(0x7F800000u) ? round_to_tf32(value - high) : 0.f;
}
template <Precision precision, class Scalar>
__device__ __forceinline__ Scalar operand_part(Scalar value, int) {
  return value;
}

// Packs `positions` positions of one unit of channels of one image: first, first + apart, ... `image` counts (n and
// group, unit, d), d fastest. Neighbouring threads take neighbouring positions: a warp reads 32 of each channel and
// writes 512 bytes. Bytes: the source is read once and written once.
template <class Plan, int positions>
__device__ __forceinline__ void pack_positions(const PackedGeometry& g, const typename Plan::Scalar* __restrict__ source,
                                               Pack<typename Plan::Scalar, Plan::PER_UNIT>* __restrict__ packed,
                                               unsigned image, int first, int apart) {
  using Scalar = typename Plan::Scalar;
  const unsigned units = image / unsigned(source_planes<Plan>(g));
  const int d = int(image - units * source_planes<Plan>(g)), unit = int(units % Plan::UNITS_OF_SOURCE);
  const long long n_group = units / Plan::UNITS_OF_SOURCE;
  const long long channel_step = 1LL * g.source_d * g.source_h * g.source_w;
  const int source_d = d * Plan::GRAIN_D + Plan::FIRST_D;
  const Scalar* from = source + (n_group * Plan::SUMMED + unit * Plan::PER_UNIT) * channel_step +
                       1LL * source_d * g.source_h * g.source_w;
  const int channels = smaller(Plan::PER_UNIT, Plan::SUMMED - unit * Plan::PER_UNIT);
  Scalar value[positions][Plan::PER_UNIT];
#pragma unroll
  for (int i = 0; i < positions; ++i) {
    const int position = first + i * apart;
    const int row = int(unsigned(position) / unsigned(g.pitch));
    const int h = (row + Plan::LEFT_H) * Plan::GRAIN_H + Plan::FIRST_H;
    const int w = (position - row * g.pitch + Plan::LEFT_W) * Plan::GRAIN_W + Plan::FIRST_W;
    const bool inside = unsigned(h) < unsigned(g.source_h) && unsigned(w) < unsigned(g.source_w) &&
                        (Plan::GRAIN_D == 1 || source_d < g.source_d);
    const Scalar* at = from + 1LL * h * g.source_w + w;
#pragma unroll
    for (int c = 0; c < Plan::PER_UNIT; ++c) {
      value[i][c] = narrow<Scalar>(0.f);
      if (inside && c < channels) value[i][c] = __ldcs(at + c * channel_step);
    }
  }
#pragma unroll
  for (int part = 0; part < Plan::PARTS; ++part) {
    const long long of_unit = (n_group * Plan::PARTS + part) * Plan::UNITS_OF_SOURCE + unit;
    auto* to = packed + (of_unit * source_planes<Plan>(g) + d) * g.plane;
#pragma unroll
    for (int i = 0; i < positions; ++i) {
      Pack<Scalar, Plan::PER_UNIT> out;
#pragma unroll
      for (int c = 0; c < Plan::PER_UNIT; ++c) out.value[c] = operand_part<Plan::precision>(value[i][c], part);
      if (first + i * apart < g.plane) to[first + i * apart] = out;
    }
  }
}

// The packing kernel of the first slice. No thread synchronises.
constexpr int PACK_THREADS = 256, PACK_POSITIONS = 4;

template <class Plan>
__global__ void __launch_bounds__(PACK_THREADS) pack_source(PackedGeometry g,
                                                            const typename Plan::Scalar* __restrict__ source,
                                                            Pack<typename Plan::Scalar, Plan::PER_UNIT>* __restrict__ packed,
                                                            int blocks_per_image) {
  const long long block = flat_block(), image = block / blocks_per_image;
  if (image >= g.batch * Plan::GROUPS * Plan::UNITS_OF_SOURCE * source_planes<Plan>(g)) return;
  const int first = int(block % blocks_per_image) * (PACK_THREADS * PACK_POSITIONS) + int(threadIdx.x);
  pack_positions<Plan, PACK_POSITIONS>(g, source, packed, unsigned(image), first, PACK_THREADS);
}

// thread -> data: one packed weight.
template <class Plan>
__global__ void __launch_bounds__(256) pack_weights(const typename Plan::Scalar* __restrict__ weight,
                                                    typename Plan::Scalar* __restrict__ packed) {
  constexpr int TOTAL = Plan::GROUPS * Plan::CHANNEL_TILES * (Plan::WEIGHT_BYTES / int(sizeof(typename Plan::Scalar)));
  const int index = int(blockIdx.x * 256 + threadIdx.x);
  if (index >= TOTAL) return;
  int rest = index;
  const auto digit = [&rest](int base) {
    const int value = rest % base;
    rest /= base;
    return value;
  };
  const int in_unit = digit(Plan::PER_UNIT), row = digit(Plan::WEIGHT_ROWS), unit = digit(2), part = digit(Plan::PARTS);
  const int kw = digit(Plan::BUNDLES) * Plan::BUNDLE + (Plan::FOLD ? row / Plan::CHANNEL_TILE : 0);
  const int kh = digit(Plan::KH), chunk = digit(Plan::CHUNKS), kd = digit(Plan::KD);
  const int of_tile = Plan::FOLD ? row % Plan::CHANNEL_TILE : row;
  const int channel = digit(Plan::CHANNEL_TILES) * Plan::CHANNEL_TILE + of_tile, group = rest;
  const int summed = (2 * chunk + unit) * Plan::PER_UNIT + in_unit;
  auto value = narrow<typename Plan::Scalar>(0.f);
  if (channel < Plan::CHANNELS && summed < Plan::SUMMED && (!Plan::FOLD || kw < Plan::KW)) {
    // In forward the source position falls as the tap rises, so taps are stored from the last to the first.
    const int tap = Plan::FORWARD ? ((Plan::KD - 1 - kd) * Plan::KH + Plan::KH - 1 - kh) * Plan::KW + Plan::KW - 1 - kw
                                  : (kd * Plan::KH + kh) * Plan::KW + kw;
    const long long ci = group * (Plan::FORWARD ? Plan::SUMMED : Plan::CHANNELS) + (Plan::FORWARD ? summed : channel);
    const int co = Plan::FORWARD ? channel : summed, co_per_group = Plan::FORWARD ? Plan::CHANNELS : Plan::SUMMED;
    value = weight[(ci * co_per_group + co) * (Plan::KD * Plan::KH * Plan::KW) + tap];
  }
  packed[index] = operand_part<Plan::precision>(value, part);
}
