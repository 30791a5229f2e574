// A walk over the input in tiles.
#pragma once
#include "contract/problem.cuh"

// Where a tile begins. A tile is `length` neighbouring positions of an input row. Tiles are counted along h first, then
// w, d, n: neighbouring rows of the input meet the same rows of gy, which are then still in L2.
struct TilePlace {
  long long n;
  int d, h, w;

  __device__ __forceinline__ TilePlace(long long tile, const Sizes& sizes, int length) {
    const int row_tiles = ceil_div(sizes.in_w, length);
    const long long column = tile / sizes.in_h, slice = column / row_tiles;
    n = slice / sizes.in_d, d = int(slice % sizes.in_d), h = int(tile % sizes.in_h);
    w = int(column % row_tiles) * length;
  }
  __device__ __forceinline__ void next(const Sizes& sizes, int length) {
    if (++h < sizes.in_h) return;
    h = 0;
    if ((w += length) < sizes.in_w) return;
    w = 0;
    if (++d < sizes.in_d) return;
    d = 0;
    ++n;
  }
};
