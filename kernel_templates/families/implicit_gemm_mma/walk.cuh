// The order in which a persistent block takes its tiles, and the arguments that the host gives it.
#pragma once
#include "families/implicit_gemm_mma/config.cuh"

template <class Scalar>
struct StripArguments {
  const Scalar* in;
  const float* packed;  // weights in fragment order, in words of 4 bytes
  const Scalar* bias;   // null: none
  Scalar* out;
  long long items;  // tiles of one channel tile and group, all residues of D and H counted as one
  int in_d, in_h, in_w, out_d, out_h, out_w;
  int depth, rows;                 // steps along D and H
  int columns, column_blocks;      // steps along W of a column block; column blocks
  int pitch, tiles;                // positions from row to row; tiles of a column block
  unsigned by_pitch, by_in_pitch;  // 2^32 / pitch, and of the same row in the input, rounded up
  int overlap;                     // positions of a warp that the next one has too
  int in_vector, out_vector;       // values that a copy or store may take together
};

template <class C>
using StripArgumentsOf = StripArguments<typename C::Scalar>;

// Positions from warp to warp.
template <class C>
__device__ __forceinline__ int strip_warp_step(const StripArgumentsOf<C>& a) {
  return C::WARP_COLUMNS - (C::OVERLAP > 0 ? a.overlap : 0);
}

// n / divisor for n * divisor < 2^32, `by` as above.
__device__ __forceinline__ int divided(int n, unsigned by) { return int(__umulhi(unsigned(n), by)); }

// A tile: batch element n, step d along D, column block, first row and column. A block does its residues of D and H one
// after the other: they read the same input, and every block gets the same mix of long and short sums.
template <class C>
struct StripTile {
  long long item;
  int residue;
  int d, block, row, column;
  long long n;

  __device__ __forceinline__ void start(const StripArgumentsOf<C>& a) {
    item = blockIdx.x / C::CELLS;
    residue = 0;
    if (!ended(a)) place(a);
    if (!ended(a) && !live(a)) next(a);
  }
  __device__ __forceinline__ bool ended(const StripArgumentsOf<C>& a) const { return item >= a.items; }

  // To the next tile that has an output at all.
  __device__ __forceinline__ void next(const StripArgumentsOf<C>& a) {
    do {
      if (++residue == C::D::OUT_STEP * C::H::OUT_STEP) {
        residue = 0;
        item += gridDim.x / C::CELLS;
        if (ended(a)) return;
        place(a);
      }
    } while (!live(a));
  }
  __device__ __forceinline__ int residue_d() const { return residue / C::H::OUT_STEP; }
  __device__ __forceinline__ int residue_h() const { return residue % C::H::OUT_STEP; }
  __device__ __forceinline__ int out_d() const { return d * C::D::OUT_STEP + residue_d() - C::D::CUT; }

  // The first depth tap from `tap` on that meets this tile, or TAPS.
  __device__ __forceinline__ int depth_tap(const StripArgumentsOf<C>& a, int tap) const {
    if constexpr (C::H::CLASSES < C::H::OUT_STEP)
      if (!C::H::met(residue_h())) return C::D::TAPS;
    for (; tap < C::D::TAPS; ++tap)
      if (C::D::residue(tap) == residue_d() && unsigned(in_d(tap)) < unsigned(a.in_d)) break;
    return tap;
  }
  __device__ __forceinline__ int in_d(int tap) const { return d * C::D::IN_STEP + C::D::BASE + C::D::offset(tap); }

 private:
  __device__ __forceinline__ bool live(const StripArgumentsOf<C>& a) const {
    const int last_row = min(a.rows - 1, row + (column + C::COLUMNS - 1) / a.pitch);
    return unsigned(out_d()) < unsigned(a.out_d) && row * C::H::OUT_STEP + residue_h() - C::H::CUT < a.out_h &&
           last_row * C::H::OUT_STEP + residue_h() - C::H::CUT >= 0;
  }
  __device__ __forceinline__ void place(const StripArgumentsOf<C>& a) {
    const int position = int(item % a.tiles) * (C::WARPS_N * strip_warp_step<C>(a));
    const long long rest = item / a.tiles;
    row = position / a.pitch;
    column = position % a.pitch;
    block = int(rest % a.column_blocks);
    d = int(rest / a.column_blocks % a.depth);
    n = rest / a.column_blocks / a.depth;
  }
};

// The steps of the sum, tile by tile: depth tap, then chunk of channels. They run ahead of the products.
template <class C>
struct StripSteps {
  StripTile<C> tile;
  int tap, chunk;

  __device__ __forceinline__ void start(const StripArgumentsOf<C>& a) {
    tile.start(a);
    chunk = 0;
    if (!tile.ended(a)) tap = tile.depth_tap(a, 0);
    to_a_step(a);
  }
  __device__ __forceinline__ void next(const StripArgumentsOf<C>& a) {
    if (++chunk < C::CHUNKS) return;
    chunk = 0;
    tap = tile.depth_tap(a, tap + 1);
    to_a_step(a);
  }

 private:
  __device__ __forceinline__ void to_a_step(const StripArgumentsOf<C>& a) {
    while (!tile.ended(a) && tap == C::D::TAPS) {
      tile.next(a);
      if (!tile.ended(a)) tap = tile.depth_tap(a, 0);
    }
  }
};
