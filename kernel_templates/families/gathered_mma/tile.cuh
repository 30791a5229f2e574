// Which class, channels and positions a block of gathered_mma has, and where its threads find them.
#pragma once
#include "contract/flat_grid.cuh"
#include "families/gathered_mma/plan.cuh"
#include "hardware/short_division.cuh"

// Neighbouring blocks have the classes of the same part of the result, so their stores to one sector meet in L2. Then
// come the channel tiles, which read the same source.
template <class P>
struct GatheredTile {
  int class_d, class_h, class_w, m_tile, group;
  long long first;  // position
  GatheredTaps d, h, w;
  GatheredRange use_d, use_h, use_w;  // taps that a position of this tile may meet

  __device__ __forceinline__ GatheredTile(const GatheredArguments& a, long long block) {
    class_w = take_remainder(block, a.classes_w);
    class_h = take_remainder(block, a.classes_h);
    class_d = take_remainder(block, a.classes_d);
    m_tile = take_remainder(block, P::M_TILES);
    group = block >= a.tiles ? int(block / a.tiles) : 0;
    first = (block - group * a.tiles) * P::TILE_N;
    d = P::D::taps_of_class(class_d), h = P::H::taps_of_class(class_h), w = P::W::taps_of_class(class_w);

    // The positions are neighbours as long as they are in one row; else the whole row, plane or volume counts.
    long long from = first, to = (first + P::TILE_N < a.positions ? first + P::TILE_N : a.positions) - 1;
    int low = take_remainder(from, a.positions_w), high = take_remainder(to, a.positions_w);
    use_w = P::W::range(w, from == to ? low : 0, from == to ? high : a.positions_w - 1, a.source_w);
    low = take_remainder(from, a.positions_h), high = take_remainder(to, a.positions_h);
    use_h = P::H::range(h, from == to ? low : 0, from == to ? high : a.positions_h - 1, a.source_h);
    low = take_remainder(from, a.positions_d), high = take_remainder(to, a.positions_d);
    use_d = P::D::range(d, from == to ? low : 0, from == to ? high : a.positions_d - 1, a.source_d);
  }

  __device__ __forceinline__ bool no_taps() const {
    return use_d.end == 0 || use_h.end == 0 || use_w.end == 0;
  }
  // The weights of this block's channels and class.
  __device__ __forceinline__ const float* weights(const GatheredArguments& a) const {
    const long long firsts = (1LL * d.first * P::H::FIRSTS + h.first) * P::W::FIRSTS + w.first;
    return a.packed + ((1LL * group * P::M_TILES + m_tile) * P::FIRSTS + firsts) * P::CLASS_FLOATS;
  }
};

// One position: where tap 0 of its class meets the source.
struct GatheredColumn {
  int d, h, w;
  bool exists;
  const float* from;  // channel 0 of the group; may lie outside, and is not read then

  template <class P>
  __device__ __forceinline__ void place(const GatheredArguments& a, const GatheredTile<P>& tile, int column) {
    long long rest = tile.first + column;
    exists = rest < a.positions;
    w = tile.w.at + take_remainder(rest, a.positions_w) * P::W::SPAN;
    h = tile.h.at + take_remainder(rest, a.positions_h) * P::H::SPAN;
    d = tile.d.at + take_remainder(rest, a.positions_d) * P::D::SPAN;
    from = a.source + (rest * P::GROUPS + tile.group) * P::K * a.source_volume +
           (1LL * d * a.source_h + h) * a.source_w + w;
  }

  // True if there is an element of the source where a tap is met that lies so far from tap 0.
  template <class P>
  __device__ __forceinline__ bool meets(const GatheredArguments& a, int to_d, int to_h, int to_w) const {
    return exists && (P::D::PLAIN || unsigned(d + to_d) < unsigned(a.source_d)) &&
           (P::H::PLAIN || unsigned(h + to_h) < unsigned(a.source_h)) &&
           (P::W::PLAIN || unsigned(w + to_w) < unsigned(a.source_w));
  }
};

// Where the result of a position is stored, in the tile's channel 0; null if there is none.
template <class P>
__device__ __forceinline__ float* gathered_result(const GatheredArguments& a, const GatheredTile<P>& tile, int column) {
  long long rest = tile.first + column;
  if (rest >= a.positions) return nullptr;
  const long long w = 1LL * take_remainder(rest, a.positions_w) * P::W::RESULT_STEP + tile.class_w;
  const long long h = 1LL * take_remainder(rest, a.positions_h) * P::H::RESULT_STEP + tile.class_h;
  const long long d = 1LL * take_remainder(rest, a.positions_d) * P::D::RESULT_STEP + tile.class_d;
  if (d >= a.result_d || h >= a.result_h || w >= a.result_w) return nullptr;
  return a.result + ((rest * P::GROUPS + tile.group) * P::M + tile.m_tile * P::TILE_M) * a.result_volume +
         (d * a.result_h + h) * a.result_w + w;
}
