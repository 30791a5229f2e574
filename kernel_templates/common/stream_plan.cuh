// What strided_streams knows at compile time, and the walks that its blocks take.
//
// A block keeps its variety: a group, a tile of channels and a residue of the output planes along D. A walk is a strip
// of columns of one output plane, row after row from the top; a step is a part ("piece") of one output row in it. What
// is staged is one row of the input ("unit"): first all planes that the walk's taps meet at one height, then those at
// the next. All warps go through the same walks, and count units and steps alike.
#pragma once
#include "common/strip_axis.cuh"
#include "common/taps.cuh"

// D and H, where taps are taken one after the other: output q * stride - CUT + r gets tap k from input q + FIRST - shift.
template <int KERNEL, int STRIDE, int PADDING, int DILATION>
struct StreamAxis {
  static constexpr int COMMON = greatest_common_divisor(STRIDE, DILATION);
  static constexpr int TAP_STEP = STRIDE / COMMON, SHIFT_STEP = DILATION / COMMON;  // from a tap of a residue to its next
  static constexpr int REACH = (KERNEL - 1) * DILATION / STRIDE, FIRST = PADDING / STRIDE, CUT = PADDING % STRIDE;
  static constexpr int CELLS_AT_MOST = DILATION == 1 ? ceil_div(KERNEL, STRIDE) : KERNEL;  // taps of one residue

  // The first tap of a residue; KERNEL if it has none.
  static constexpr __host__ __device__ int first_tap(int residue) {
    for (int k = 0; k < TAP_STEP && k < KERNEL; ++k)
      if (k * DILATION % STRIDE == residue) return k;
    return KERNEL;
  }
};

// The taps of one output position along an axis that meet an input inside: taps k, k + TAP_STEP, ... (count), which
// meet inputs `at`, at - SHIFT_STEP, ...
struct StreamTaps {
  int k, count, at;
};
template <class Axis, int KERNEL, int STRIDE, int DILATION>
__device__ __forceinline__ StreamTaps stream_taps(int out, int size) {
  const int q = (out + Axis::CUT) / STRIDE, first = Axis::first_tap((out + Axis::CUT) % STRIDE);
  const int at = q + Axis::FIRST - first * DILATION / STRIDE;
  const int skipped = at < size ? 0 : (at - size) / Axis::SHIFT_STEP + 1;
  const int end = at < 0 ? 0 : at / Axis::SHIFT_STEP + 1, all = (KERNEL - first + Axis::TAP_STEP - 1) / Axis::TAP_STEP;
  return {first + skipped * Axis::TAP_STEP, max(0, min(end, all) - skipped), at - skipped * Axis::SHIFT_STEP};
}

template <class Layer, class Tune>
struct StreamPlan {
  static constexpr int M = Layer::out_channels / Layer::groups, K = Layer::in_channels / Layer::groups;
  static constexpr int KD = Layer::kernel_d, KH = Layer::kernel_h, KW = Layer::kernel_w, S = Layer::stride_w;
  using W = StripAxis<true, KW, S, Layer::padding_w, Layer::dilation_w>;
  using H = StreamAxis<KH, Layer::stride_h, Layer::padding_h, Layer::dilation_h>;
  using D = StreamAxis<KD, Layer::stride_d, Layer::padding_d, Layer::dilation_d>;
  static constexpr bool HAS_BIAS = Layer::has_bias != 0;

  static constexpr int TILE = Tune::TILE, IMAGE = Tune::IMAGE;  // cells: a cell is `stride` neighbouring outputs
  static constexpr int MT = IMAGE / 64, CLASSES = W::CLASSES, SLABS = ceil_div(K, 8), QUADS = 2 * SLABS;
  static_assert(TILE % IMAGE == 0 && IMAGE % 64 == 0, "a tile is cut into whole images");

  // Channels of a block. The sums of a step are 64 registers at most; the weights leave room for inputs and images.
  static constexpr int TAPS = D::CELLS_AT_MOST * KH * KW;  // that one residue along D meets
  static constexpr int SUMS = KW < S ? KW : S, MOST_BY_SUMS = 8192 / (IMAGE * SUMS), MOST_BY_ROOM = 3584 / (TAPS * SLABS);
  static constexpr int MOST = MOST_BY_SUMS < MOST_BY_ROOM ? MOST_BY_SUMS : MOST_BY_ROOM;
  static constexpr int NEEDED = M <= 8 ? 8 : M <= 16 ? 16 : M <= 32 ? 32 : 64;
  static constexpr int FITS = MOST < 16 ? 8 : MOST < 32 ? 16 : MOST < 64 ? 32 : 64;
  static constexpr int N = Tune::CHANNEL_TILE > 0 ? Tune::CHANNEL_TILE : NEEDED < FITS ? NEEDED : FITS;
  static constexpr int CHANNEL_TILES = ceil_div(M, N), VARIETIES = Layer::groups * CHANNEL_TILES * Layer::stride_d;

  // Neighbouring taps that shift alike and whose residues' sums lie side by side are one product. 0: not the first one.
  static constexpr int run_at(int tap) {
    for (int k = 0; k <= tap;) {
      int length = 1;
      while (k + length < KW && W::offset(k + length) == W::offset(k) &&
             W::class_of(W::residue(k + length)) == W::class_of(W::residue(k)) + length)
        ++length;
      int taken = 1;
      while (2 * taken <= length && 2 * taken * N <= 256) taken *= 2;
      if (k == tap) return taken;
      k += taken;
    }
    return 0;
  }

  // Where a row takes several walks, neighbours overlap by so many cells that one of them has each 32-byte sector whole.
  static constexpr int OVERLAP = ceil_div(7, S);

  static constexpr int PLANE = TILE + W::REACH;  // positions of a unit: [4 channels][position][channel]
  static constexpr int UNIT = QUADS * 4 * PLANE, WEIGHTS = TAPS * SLABS * 8 * N;
  static constexpr int PITCH = S * IMAGE + 4, IMAGE_FLOATS = N * PITCH;  // + 4: no two lanes of a product in one bank
  static constexpr int CARRIED = 8 * N;
  static constexpr int WINDOW = D::CELLS_AT_MOST * (H::REACH + 1);  // units that one step may need
  static constexpr int ROOM = (Tune::BLOCKS == 1 ? 227 * 1024 : 228 * 1024 / Tune::BLOCKS - 1024) / 4 - 128;
  static constexpr int IMAGES = Tune::IMAGES, LEFT = (ROOM - WEIGHTS - CARRIED - IMAGES * IMAGE_FLOATS) / UNIT;
  static constexpr int RING = WINDOW + Tune::STAGES < LEFT ? WINDOW + Tune::STAGES : LEFT;
  static_assert(RING >= WINDOW, "what a step needs must fit in shared memory");
  static constexpr int RING_AT = WEIGHTS, IMAGES_AT = RING_AT + RING * UNIT, CARRY_AT = IMAGES_AT + IMAGES * IMAGE_FLOATS;
  static constexpr int BARRIERS_AT = CARRY_AT + CARRIED, BYTES = 4 * BARRIERS_AT + 16 * (RING + IMAGES + 1);
  static_assert(16 * (RING + IMAGES + 1) <= 512, "128 floats of the room are for barriers");

  static constexpr int BLOCKS = Tune::BLOCKS, TEAMS = Tune::TEAMS, PRODUCERS = Tune::PRODUCERS, STORERS = Tune::STORERS;
  static constexpr int THREADS = 128 * TEAMS + 32 * (PRODUCERS + STORERS);
  // A barrier tells only whether an odd or an even number of phases has ended.
  static_assert(IMAGES >= TEAMS && RING >= PRODUCERS / 4, "nobody may wait for a phase that lies two ahead");

  // Registers of a thread at launch; where those are few, warps that store and stage hand some to those that multiply.
  static constexpr int LAUNCHED = 65536 / BLOCKS / THREADS / 8 * 8;
  static constexpr bool SHARED_OUT = LAUNCHED < 104 && LAUNCHED >= 80;
  static constexpr int STORING = 48, STAGING = 88;
  static constexpr int MULTIPLYING =
      (LAUNCHED * (THREADS / 128) - STORING * STORERS / 4 - STAGING * PRODUCERS / 4) / TEAMS / 8 * 8;
  static_assert(!SHARED_OUT || (MULTIPLYING >= LAUNCHED && MULTIPLYING <= 240), "nobody waits for what there is not");
};

// The run-time half of a launch.
struct StreamArguments {
  const float* input;
  const float* weight;
  const float* bias;
  float* output;
  Sizes sizes;
  long long in_volume, out_volume;  // of a channel
  int cells;                        // of a row
  int chunks, chunk_step;           // walks beside each other, and cells from one to the next
  int segments, segment_rows;       // walks below each other
  int planes;                       // output planes of a residue, those outside included
  int walks;                        // of a variety
  float one;                        // 1, where the compiler cannot see it
};

// Which part of a plane a walk is.
template <class P, class Layer>
struct StreamWalk {
  int n, od, row, rows, first_cell, pieces;
  int kd, planes, top;         // its taps along D, and the input plane that the first of them meets
  int first_h, heights;        // of the input rows that are staged
  bool exists, last_chunk;

  __device__ __forceinline__ StreamWalk(const StreamArguments& a, int number, int residue_d) {
    const int chunk = number % a.chunks, plane = number / a.chunks % a.planes, rest = number / a.chunks / a.planes;
    n = rest / a.segments;
    od = plane * Layer::stride_d - P::D::CUT + residue_d;
    exists = od >= 0 && od < a.sizes.out_d;
    row = rest % a.segments * a.segment_rows, rows = min(a.segment_rows, a.sizes.out_h - row);
    first_cell = chunk * a.chunk_step, last_chunk = chunk + 1 == a.chunks;
    pieces = ceil_div(min(P::TILE, a.cells - first_cell), P::IMAGE);
    const StreamTaps d = stream_taps<typename P::D, P::KD, Layer::stride_d, Layer::dilation_d>(max(od, 0), a.sizes.in_d);
    kd = d.k, planes = d.count, top = d.at;
    first_h = lowest(row);
    const int last_h = min(a.sizes.in_h - 1, (row + rows - 1 + P::H::CUT) / Layer::stride_h + P::H::FIRST);
    heights = planes == 0 ? 0 : max(0, last_h + 1 - first_h);
  }
  // The first input row that an output row may meet.
  static __device__ __forceinline__ int lowest(int oh) {
    return max(0, (oh + P::H::CUT) / Layer::stride_h + P::H::FIRST - P::H::REACH);
  }
  __device__ __forceinline__ int units() const { return heights * planes; }
  __device__ __forceinline__ int steps() const { return rows * pieces; }
};
