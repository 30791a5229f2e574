// Compile-time constants of wgmma_residues. A cell is the outputs of one input position: `stride` neighbours. A
// tile is SPAN neighbouring cells of a row. The warpgroups ("teams") of a block sum its results, CELLS each.
#pragma once
#include "contract/axis.cuh"
#include "contract/problem.cuh"

template <class Layer, class Tune>
struct ResiduePlan {
  static constexpr int M = Layer::out_channels / Layer::groups, K = Layer::in_channels / Layer::groups;
  static constexpr int KW = Layer::kernel_w, S = Layer::stride_w;
  static constexpr bool HAS_BIAS = Layer::has_bias != 0;
  using W = StripAxis<true, KW, S, Layer::padding_w, Layer::dilation_w>;
  static constexpr int CLASSES = W::CLASSES, REACH = W::REACH;  // classes: residues that meet a tap, each with own sums
  static constexpr int CHANNEL_TILES = ceil_div(M, 64), VARIETIES = Layer::groups * CHANNEL_TILES;  // a block keeps its own

  // An upper bound of CLASSES, as in the header of the .cu: there a common factor of stride and dilation counts only if
  // it is the stride.
  static constexpr int CLASSES_AT_MOST = Layer::dilation_w % S == 0 ? 1 : KW < S ? KW : S;
  static constexpr int CELLS = Tune::CELLS > 0 ? Tune::CELLS : CLASSES_AT_MOST == 1 ? 128 : CLASSES_AT_MOST == 2 ? 64 : 32;
  static_assert(CLASSES * CELLS <= 256, "the sums of a thread must fit in registers");
  static constexpr int TEAMS = Tune::TEAMS, THREADS = 128 * TEAMS, BUFFERS = Tune::BUFFERS, SPAN = TEAMS * CELLS;
  // Neighbouring tiles overlap, so that one of them stores all of each unit of OWNED aligned values.
  static constexpr int OWNED = Tune::OWNED / 4, OVERLAP = ceil_div(ceil_div(OWNED - 1, S), 4) * 4, STEP = SPAN - OVERLAP;
  static_assert(OWNED % 8 == 0 && OWNED <= 32 && STEP > 0,
                "whole sectors, and what the ends of a row leave over is a lane each");

  // Input channels are summed in chunks of at most 32. A chunk is staged as [4 channels][position][channel].
  static constexpr int ALL_SLABS = ceil_div(K, 8), SLABS = ALL_SLABS < 4 ? ALL_SLABS : 4, CHUNKS = ceil_div(ALL_SLABS, SLABS);
  static constexpr int QUADS = 2 * SLABS;
  static constexpr bool WHOLE = K == CHUNKS * SLABS * 8;
  static constexpr int POSITIONS = SPAN + REACH;  // staged
  // A thread stages the same position of several quads. The few positions beyond the span are distributed one by one.
  static constexpr int ACROSS = THREADS % SPAN == 0 ? SPAN : THREADS;
  static constexpr int COPIES = ceil_div(SPAN, ACROSS), MAIN = COPIES * ACROSS;
  static constexpr int QUADS_AT_ONCE = THREADS / ACROSS, TURNS = ceil_div(QUADS, QUADS_AT_ONCE);
  static constexpr int UNITS = TURNS * COPIES;
  static constexpr int BEHIND = POSITIONS > MAIN ? POSITIONS - MAIN : 0;
  static constexpr int EXTRA = ceil_div(BEHIND * QUADS, THREADS);

  // Four images of the result, each 8 channels of a tile, in the order of the result in memory. Rows begin at 16 bytes.
  // A pitch of 4 more than a multiple of 8 has the fewest bank conflicts.
  static constexpr int FRONT = OWNED;  // where in an image row its first whole unit begins
  static constexpr int PITCH = (FRONT + SPAN * S + 3) / 8 * 8 + 4, IMAGE = 8 * PITCH;

  // Weights: [chunk and slab][tap][4 channels][output channel][channel]. Shared memory, in floats.
  static constexpr int PRODUCT = 64 * 8, WEIGHTS = CHUNKS * SLABS * KW * PRODUCT;
  static constexpr int BUFFER = QUADS * 4 * POSITIONS;
  static constexpr int INPUTS_AT = WEIGHTS, IMAGES_AT = INPUTS_AT + BUFFERS * BUFFER;
  static constexpr int BIAS_AT = IMAGES_AT + 4 * IMAGE, BYTES = 4 * (BIAS_AT + 64 + 2);
  static_assert(BYTES <= 227 * 1024, "weights, inputs and images must fit in shared memory");

  // Blocks of a multiprocessor: as many as shared memory holds, and as registers hold the sums and the loads under way
  // of their warpgroups.
  static constexpr int FIT = 228 * 1024 / (BYTES + 1024);
  static constexpr int HELD = (CLASSES * CELLS / 2 + 4 * (UNITS + EXTRA) > 80 ? 2 : 4) / TEAMS;
  static constexpr int CHOSEN = FIT < HELD ? FIT : HELD, BLOCKS = CHOSEN > 1 ? CHOSEN : 1;

  static constexpr __host__ __device__ int first_tap_of(int which) {
    for (int tap = 0; tap < KW; ++tap)
      if (W::class_of(W::residue(tap)) == which) return tap;
    return KW;
  }
  static constexpr __host__ __device__ int residue_of(int which) { return W::residue(first_tap_of(which)); }
};

// The run-time arguments of a launch. An item is a tile of a row.
struct ResidueArguments {
  const float* input;
  const float* weight;
  const float* bias;
  float* output;
  int in_w, out_w, rows;  // rows of an image, along D and H
  int tiles, items;       // of a row, of all
  int* tickets;           // of each variety: tiles that blocks have taken beyond their first
  long long in_plane, out_plane;
  float one;  // 1, unknown to the compiler
};

struct ResidueTile {
  int n, row, tile;
  __device__ __forceinline__ ResidueTile(const ResidueArguments& a, int item)
      : n(item / a.tiles / a.rows), row(item / a.tiles % a.rows), tile(item % a.tiles) {}
};
