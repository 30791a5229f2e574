// The tile of a block: rows x strips of 4 steps of one plane. The host chooses it, so that short rows share a tile and
// long ones are cut evenly.
#pragma once
#include "contract/problem.cuh"

// n / divisor for n * divisor < 2^32; by = 2^32 / divisor rounded up (0 for divisor 1).
__device__ __forceinline__ int fma_divided(int n, unsigned by) { return by ? int(__umulhi(unsigned(n), by)) : n; }
inline unsigned fma_divisor(int divisor) {
  return divisor == 1 ? 0u : unsigned(((1ULL << 32) + divisor - 1) / divisor);
}

struct FmaTile {
  int strips, rows;          // of a tile
  int strip_tiles, row_tiles;  // of a plane
  unsigned by_strips;
};

inline FmaTile fma_tile(int steps_w, int steps_h, int most, int most_rows) {
  const int all = ceil_div(steps_w, 4);
  FmaTile tile;
  tile.strip_tiles = ceil_div(all, most);
  tile.strips = ceil_div(all, tile.strip_tiles);
  int rows = most / tile.strips < most_rows ? most / tile.strips : most_rows;
  if (rows > steps_h) rows = steps_h;
  tile.row_tiles = ceil_div(steps_h, rows);
  tile.rows = ceil_div(steps_h, tile.row_tiles);
  tile.by_strips = fma_divisor(tile.strips);
  return tile;
}
