// Compile-time constants of wgmma_strided: which taps meet an output residue, the layout of packed weights and shared
// memory, and the walks of its blocks.
//
// Along D and H, output q * stride + r - CUT meets tap k, if k has residue r, at input q + FIRST - shift(k). Along W,
// output 2 q + residue(k) meets tap k at input q + offset(k).
// A cell is one q of D, one q of H and TILE of W, with all its outputs. A walk goes down H, cell by cell. One staged
// row of the input is a unit. Units are staged in this order: all planes that a walk meets at one height, then those at
// the next height. So rows stay while the next cells need them.
#pragma once
#include "contract/problem.cuh"

template <int KERNEL, int STRIDE, int PADDING, int DILATION>
struct PairedAxis {
  static constexpr int FIRST = PADDING / STRIDE, CUT = PADDING % STRIDE, REACH = (KERNEL - 1) * DILATION / STRIDE;
  static constexpr __host__ __device__ int residue(int tap) { return tap * DILATION % STRIDE; }
  static constexpr __host__ __device__ int shift(int tap) { return tap * DILATION / STRIDE; }
  static constexpr __host__ __device__ int cells(int out) { return (CUT + out - 1) / STRIDE + 1; }
  // The taps of a residue.
  static constexpr __host__ __device__ int count(int r) {
    int found = 0;
    for (int tap = 0; tap < KERNEL; ++tap) found += residue(tap) == r;
    return found;
  }
  static constexpr __host__ __device__ int tap(int r, int number) {
    for (int tap = 0; tap < KERNEL; ++tap)
      if (residue(tap) == r && number-- == 0) return tap;
    return KERNEL;
  }
  // The number of this tap's shift among the different shifts, counted from the smallest. Taps come in the order of
  // their shifts.
  static constexpr __host__ __device__ int shift_number(int tap) {
    int found = 0;
    for (int k = 1; k <= tap; ++k) found += shift(k) != shift(k - 1);
    return found;
  }
  static constexpr int SHIFTS = shift_number(KERNEL - 1) + 1;
  // The last residue with a tap of the largest shift, REACH. It uses the first input that a cell needs.
  static constexpr __host__ __device__ int last_of_first() {
    int last = 0;
    for (int tap = 0; tap < KERNEL; ++tap)
      if (shift(tap) == REACH && residue(tap) > last) last = residue(tap);
    return last;
  }
  static constexpr int LAST_OF_FIRST = last_of_first();
  static constexpr __host__ __device__ int shift_at(int number) {
    for (int tap = 0; tap < KERNEL; ++tap)
      if (shift_number(tap) == number) return shift(tap);
    return 0;
  }
};

// The axis W, with a stride of 2. Taps of the same offset are a slice: one product.
template <int KERNEL, int PADDING, int DILATION>
struct PairedColumns {
  static constexpr __host__ __device__ int residue(int tap) { return (PADDING + tap * DILATION) % 2; }
  static constexpr __host__ __device__ int offset(int tap) { return (residue(tap) + PADDING - tap * DILATION) / 2; }
  static constexpr int LEAST = offset(KERNEL - 1), REACH = offset(0) - LEAST;
  static constexpr __host__ __device__ int slice_of(int tap) {
    int found = 0;
    for (int k = 1; k <= tap; ++k) found += offset(k) != offset(k - 1);
    return found;
  }
  static constexpr int SLICES = slice_of(KERNEL - 1) + 1;
  // The tap of that slice and residue; KERNEL if there is none.
  static constexpr __host__ __device__ int tap_of(int slice, int r) {
    for (int tap = 0; tap < KERNEL; ++tap)
      if (slice_of(tap) == slice && residue(tap) == r) return tap;
    return KERNEL;
  }
  static constexpr __host__ __device__ int slice_offset(int slice) {
    return offset(tap_of(slice, 0) < KERNEL ? tap_of(slice, 0) : tap_of(slice, 1)) - LEAST;
  }
};

template <class Layer, class Tune>
struct PairedPlan {
  static constexpr int M = Layer::out_channels / Layer::groups, K = Layer::in_channels / Layer::groups;
  static constexpr int GROUPS = Layer::groups, KD = Layer::kernel_d, KH = Layer::kernel_h, KW = Layer::kernel_w;
  static constexpr bool HAS_BIAS = Layer::has_bias != 0;
  using W = PairedColumns<KW, Layer::padding_w, Layer::dilation_w>;
  using H = PairedAxis<KH, Layer::stride_h, Layer::padding_h, Layer::dilation_h>;
  using D = PairedAxis<KD, Layer::stride_d, Layer::padding_d, Layer::dilation_d>;
  static_assert(Layer::stride_w == 2 && Layer::dilation_w % 2 == 1, "a product has two residues along W");

  static constexpr int TILE = Tune::TILE, SLABS = ceil_div(K, 8), QUADS = 2 * SLABS;
  static constexpr int CHANNELS = 32, CHANNEL_TILES = ceil_div(M, CHANNELS), VARIETIES = GROUPS * CHANNEL_TILES;
  static constexpr int CLASSES = Layer::stride_d * Layer::stride_h;  // of rows of outputs in a cell

  // Fragments of weights: [kd][kh][slice][slab][thread of a warpgroup]. Four values if both residues have a tap in the
  // slice, else two: no zeros are kept.
  static constexpr __host__ __device__ bool both(int slice) { return W::tap_of(slice, 0) < KW && W::tap_of(slice, 1) < KW; }
  static constexpr __host__ __device__ int slice_floats(int slice) { return SLABS * (both(slice) ? 512 : 256); }
  static constexpr __host__ __device__ int slice_at(int slice) {
    int at = 0;
    for (int s = 0; s < slice; ++s) at += slice_floats(s);
    return at;
  }
  static constexpr int ROW_FLOATS = slice_at(W::SLICES), WEIGHTS = KD * KH * ROW_FLOATS;

  static constexpr int CONSUMERS = 2, THREADS = 128 * (CONSUMERS + 1);
  static constexpr int PLANE = TILE + W::REACH, UNIT = QUADS * 4 * PLANE;  // floats: [4 channels][position][channel]
  static constexpr int IMAGE_FLOATS = 8 * 64;  // of a warp: 8 channels, 32 results and those before them
  static constexpr int PLANES = D::SHIFTS, WINDOW = PLANES * (H::REACH + 1);  // units that one cell may need
  static constexpr int ROOM = 227 * 1024 / 4 - 192;
  static constexpr int LEFT = (ROOM - WEIGHTS - 4 * CONSUMERS * IMAGE_FLOATS) / UNIT;
  static constexpr int RING = WINDOW + Tune::STAGES < LEFT ? WINDOW + Tune::STAGES : LEFT;
  static_assert(RING >= WINDOW, "what a cell needs must fit in shared memory");
  static constexpr int RING_AT = WEIGHTS, IMAGES_AT = (RING_AT + RING * UNIT + 127) / 128 * 128;
  static constexpr int BARRIERS_AT = IMAGES_AT + 4 * CONSUMERS * IMAGE_FLOATS, BYTES = 4 * BARRIERS_AT + 16 * RING + 8;
  static_assert(16 * RING + 8 <= 256, "192 floats of the room are for barriers and alignment");

  static constexpr int KEPT = 72, TAKEN = 216;  // registers of a thread; a block is launched with 168
};

struct PairedArguments {
  const float* input;
  const float* weights;  // packed
  const float* bias;
  float* output;
  Sizes sizes;
  long long in_volume, out_volume;
  int planes, rows, chunks;  // cells along D, H and W
  int cells;                 // of the batch
  float one;                 // 1, unknown to the compiler
};

// A walk: from a cell down to the end of its column, or to the end of the block's work.
template <class P>
struct PairedWalk {
  int n, plane, chunk, row, length;
  __device__ PairedWalk(const PairedArguments& a, int cell, int end) {
    row = cell % a.rows;
    const int column = cell / a.rows, rest = column / a.chunks;
    chunk = column % a.chunks, plane = rest % a.planes, n = rest / a.planes;
    length = min(a.rows - row, end - cell);
  }
  __device__ __forceinline__ int units() const { return (length + P::H::REACH) * P::PLANES; }
};

// The mbarriers: a unit of the ring is full or empty; the weights arrive once.
struct PairedBarriers {
  unsigned full, empty, weights_there;
  __device__ PairedBarriers(unsigned base, int ring) : full(base), empty(base + 8 * ring), weights_there(base + 16 * ring) {}
};
