// Which tile of a packed layer a block computes, and how the tile lies in the staged patch and in the result.
#pragma once
#include "families/wgmma_packed/layer.cuh"

// Where a block works: its tile of positions, its channel tile and its group.
struct PackedTile {
  long long n;
  int group, channel_tile, d;
  int first;         // the first packed position it reads, for tap d 0
  int row, column;   // its first result row and column; flat: column is its first packed position
  bool tail;
};

// How a tile lies in the staged patch, in positions.
struct PatchLayout {
  int rows, length;          // copies: the number of packed rows, and positions of each
  int pitch;                 // from one row of taps to the next
  int run_step, group_step;  // from one run to the next, from 8 positions of a run to the next 8
};

template <class Plan>
__device__ __forceinline__ PackedTile packed_tile(const PackedGeometry& g, long long tile) {
  PackedTile t;
  constexpr int VARIETIES = Plan::GROUPS * Plan::CHANNEL_TILES;
  const int variety = int(tile % VARIETIES);
  t.group = variety / Plan::CHANNEL_TILES, t.channel_tile = variety % Plan::CHANNEL_TILES;
  const long long rest = tile / VARIETIES, image = rest / g.tiles_per_plane;
  int at = int(rest % g.tiles_per_plane);
  t.d = int(image % g.result_d), t.n = image / g.result_d;
  t.tail = !g.flat && at >= g.wide_tiles;
  if (g.flat) {
    t.row = 0, t.column = t.first = at * Plan::TILE;
    return t;
  }
  constexpr int ROWS = Plan::CONSUMERS * Plan::RUNS;
  if (t.tail) {
    at -= g.wide_tiles;
    t.row = at / g.tail_columns * (ROWS * Plan::RUN / 8), t.column = g.wide_columns * Plan::RUN + at % g.tail_columns * 8;
  } else {
    t.row = at / g.wide_columns * ROWS, t.column = at % g.wide_columns * Plan::RUN;
  }
  t.first = t.row * g.pitch + t.column;
  return t;
}

template <class Plan>
__device__ __forceinline__ PatchLayout patch_layout(const PackedGeometry& g, const PackedTile& t) {
  constexpr int ROWS = Plan::CONSUMERS * Plan::RUNS;
  if (g.flat) return {1, g.patch, g.pitch, Plan::RUN, 8};
  if (!t.tail) return {ROWS + Plan::HALO_H, Plan::RUN + Plan::HALO_W, Plan::RUN + Plan::HALO_W, Plan::RUN + Plan::HALO_W, 8};
  constexpr int LENGTH = 8 + Plan::HALO_W;
  return {ROWS * Plan::RUN / 8 + Plan::HALO_H, LENGTH, LENGTH, Plan::RUN / 8 * LENGTH, LENGTH};
}

// The index in the result's plane of position p of run `run`; -1 if there is none.
template <class Plan>
__device__ __forceinline__ int result_index(const PackedGeometry& g, const PackedTile& t, int run, int p) {
  int row, column;
  if (g.flat) {
    const unsigned position = unsigned(t.column) + run * Plan::RUN + p;
    row = int(position / unsigned(g.pitch)), column = int(position) - row * g.pitch;
  } else if (t.tail) {
    row = t.row + run * (Plan::RUN / 8) + p / 8, column = t.column + p % 8;
  } else {
    row = t.row + run, column = t.column + p;
  }
  return row < g.result_h && column < g.result_w ? row * g.result_w + column : -1;
}

// False if a tap of D lies outside the source. It adds nothing and is left out.
template <class Plan>
__device__ __forceinline__ bool reaches(const PackedGeometry& g, const PackedTile& t, int kd) {
  return unsigned(t.d + Plan::LEFT_D + kd * Plan::DD) < unsigned(g.source_d);
}

// A place in the ring and its parity; producers and consumers each walk along it.
struct RingPlace {
  int stage = 0, parity = 0;
  __device__ __forceinline__ void next(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};
